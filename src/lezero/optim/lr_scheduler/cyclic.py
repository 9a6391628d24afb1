"""Cyclical learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lezero.optim.lr_scheduler.base import LRScheduler, per_group
from lezero.optim.optimizer import Optimizer

_MODES = ("triangular", "triangular2", "exp_range")


class CyclicLR(LRScheduler):
    """Up from `base_lr` to `max_lr` and down again, and so on; momentum the other way (Smith 2017).

    Parameters
    ----------
    base_lr, max_lr : float, or one a group
    step_size_up, step_size_down : steps of the rising and of the falling half (the same unless given)
    mode : {"triangular", "triangular2", "exp_range"}
        All cycles alike, each half as high as the last, or scaled by ``gamma ** step``.
    gamma : float
    scale_fn : the height as a function of the cycle (from 1) or of the step, instead of `mode`
    scale_mode : {"cycle", "iterations"}
        What `scale_fn` is given.
    cycle_momentum, base_momentum, max_momentum : SGD's momentum, or Adam's first beta, moves against the rate
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ):
        if scale_fn is None and mode not in _MODES:
            raise ValueError(f"CyclicLR: mode is one of {', '.join(_MODES)}, got {mode!r}")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"CyclicLR: an Optimizer is needed, got {type(optimizer).__name__}")
        lows = per_group("CyclicLR", "base_lr", base_lr, optimizer)
        self.max_lrs = per_group("CyclicLR", "max_lr", max_lr, optimizer)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self._custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, lows):
                group["lr"] = lr
        if cycle_momentum:
            self._begin_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lows

    def _begin_momentum(
        self, optimizer: Optimizer, low: float | Sequence[float], high: float | Sequence[float], anew: bool
    ) -> None:
        self._use_beta1 = "betas" in optimizer.defaults
        if not self._use_beta1 and "momentum" not in optimizer.defaults:
            raise ValueError(f"CyclicLR: {type(optimizer).__name__} has no momentum; give cycle_momentum=False")
        self.base_momentums = per_group("CyclicLR", "base_momentum", low, optimizer)
        self.max_momentums = per_group("CyclicLR", "max_momentum", high, optimizer)
        if anew:
            for group, base, most in zip(optimizer.param_groups, self.base_momentums, self.max_momentums):
                group["max_momentum"], group["base_momentum"] = most, base

    def scale_fn(self, x: float) -> float:
        """The height of the cycle (or at the step) `x`, as a share of the first."""
        if self._custom is not None:
            return self._custom(x)
        if self.mode == "triangular":
            return 1.0
        return 0.5 ** (x - 1) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        share = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        share *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            groups = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums)
            for group, low, high in groups:
                momentum = high - (high - low) * share
                if self._use_beta1:
                    group["betas"] = (momentum, *group["betas"][1:])
                else:
                    group["momentum"] = momentum
        return [low + (high - low) * share for low, high in zip(self.base_lrs, self.max_lrs)]
