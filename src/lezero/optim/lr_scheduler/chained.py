"""Schedules made of schedules: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from lezero.optim.lr_scheduler.base import LRScheduler, Schedule, need_optimizer
from lezero.optim.optimizer import Optimizer


class _Several(LRScheduler):
    """Holds the schedules, which must drive one optimizer."""

    _elsewhere = ("optimizer", "_schedulers")

    def __init__(self, schedulers: Sequence[Any], optimizer: Optimizer | None):
        if not schedulers:
            raise ValueError(f"{type(self).__name__}: at least one schedule is needed")
        for s in schedulers:
            if not isinstance(s, Schedule):
                raise TypeError(f"{type(self).__name__}: schedules are needed, got a {type(s).__name__}")
        optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        need_optimizer(type(self).__name__, optimizer)
        for i, s in enumerate(schedulers):
            if s.optimizer is not optimizer:
                raise ValueError(f"{type(self).__name__}: schedule {i} ({type(s).__name__}) drives another optimizer")
        self._schedulers, self.optimizer = list(schedulers), optimizer

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rest = dict(state_dict)
        states = rest.pop("_schedulers")
        if len(states) != len(self._schedulers):
            raise ValueError(f"{type(self).__name__}: the state of {len(states)} schedules for {len(self._schedulers)}")
        super().load_state_dict(rest)
        for s, state in zip(self._schedulers, states):
            s.load_state_dict(state)


class SequentialLR(_Several):
    """One of `schedulers` up to each of `milestones` (steps, one fewer), the next from there: a warm-up and then a decay."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[Any], milestones: Sequence[int], last_epoch: int = -1
    ):
        super().__init__(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedules have {len(schedulers) - 1} milestones, got {len(milestones)}"
            )
        self._milestones = list(milestones)
        self.base_lrs = self._schedulers[0].base_lrs
        self.last_epoch = last_epoch + 1
        # Each schedule took its first step when it was made; take those back, then begin with the first.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for s in self._schedulers:
            _take_back(s)
        self._schedulers[0].step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def step(self) -> None:
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            scheduler.last_epoch = -1
            for group, base in zip(self.optimizer.param_groups, scheduler.base_lrs):
                group["lr"] = base
        scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Several):
    """Every schedule takes its step at every step, each from the rate the one before left."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Optimizer | None = None):
        super().__init__(schedulers, optimizer)
        self._last_lr = self._schedulers[-1].get_last_lr()

    def step(self) -> None:
        for s in self._schedulers:
            s.step()
        self._last_lr = self._schedulers[-1].get_last_lr()


def _take_back(scheduler: Any) -> None:
    """Undo the count of the step that constructing a schedule takes."""
    if isinstance(scheduler, _Several):
        for s in scheduler._schedulers:
            _take_back(s)
    else:
        scheduler.last_epoch -= 1
