"""The one-cycle policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lezero.optim.lr_scheduler.base import LRScheduler, need_optimizer, numbers_per_group
from lezero.optim.optimizer import Optimizer


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and down far below the start, momentum the other way (Smith & Topin 2018).

    Parameters
    ----------
    max_lr : float, or one a group
    total_steps : int, or epochs and steps_per_epoch, ints as well
    pct_start : the share of steps spent rising
    anneal_strategy : {"cos", "linear"}
    cycle_momentum, base_momentum, max_momentum : SGD's momentum, or Adam's first beta, moves against the rate
    div_factor : the start is ``max_lr / div_factor``
    final_div_factor : the end is the start divided by it
    three_phase : fall symmetrically to the start first, then to the end
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ):
        need_optimizer("OneCycleLR", optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0:
            raise ValueError(f"OneCycleLR: the number of steps is positive, got {total_steps}")
        if div_factor <= 0 or final_div_factor <= 0:
            raise ValueError(
                f"OneCycleLR: div_factor and final_div_factor are above 0, got {div_factor} and {final_div_factor}"
            )
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start is between 0 and 1, got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal_strategy is 'cos' or 'linear', got {anneal_strategy!r}")
        self.total_steps, self.anneal_strategy, self.cycle_momentum = total_steps, anneal_strategy, cycle_momentum
        up = float(pct_start * total_steps) - 1
        if three_phase:
            self.phases = [
                (up, "initial_lr", "max_lr", "max_momentum", "base_momentum"),
                (2 * float(pct_start * total_steps) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                (total_steps - 1.0, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        else:
            self.phases = [
                (up, "initial_lr", "max_lr", "max_momentum", "base_momentum"),
                (total_steps - 1.0, "max_lr", "min_lr", "base_momentum", "max_momentum"),
            ]
        if last_epoch == -1:
            peaks = numbers_per_group("OneCycleLR", "max_lr", max_lr, optimizer)
            for group, peak in zip(optimizer.param_groups, peaks):
                group["initial_lr"] = peak / div_factor
                group["max_lr"] = peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            self._use_beta1 = "betas" in optimizer.defaults
            if not self._use_beta1 and "momentum" not in optimizer.defaults:
                raise ValueError(f"OneCycleLR: {type(optimizer).__name__} has no momentum; give cycle_momentum=False")
            if last_epoch == -1:
                highs = numbers_per_group("OneCycleLR", "max_momentum", max_momentum, optimizer)
                lows = numbers_per_group("OneCycleLR", "base_momentum", base_momentum, optimizer)
                for group, high, low in zip(optimizer.param_groups, highs, lows):
                    group["max_momentum"], group["base_momentum"] = high, low
                    self._set_momentum(group, high)
        super().__init__(optimizer, last_epoch)

    def _set_momentum(self, group: dict[str, Any], value: float) -> None:
        if self._use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start

    def get_lr(self) -> list[float]:
        t = self.last_epoch
        if t > self.total_steps:
            raise ValueError(f"OneCycleLR: step {t} of a schedule of {self.total_steps} steps")
        begin = 0.0
        for end, *_rest in self.phases:
            if t <= end or end == self.phases[-1][0]:
                break
            begin = end
        (_, lr0, lr1, m0, m1) = next(p for p in self.phases if p[0] == end)
        share = (t - begin) / (end - begin) if end > begin else 1.0  # a phase of no steps is over
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[lr0], group[lr1], share))
            if self.cycle_momentum:
                self._set_momentum(group, self._between(group[m0], group[m1], share))
        return rates
