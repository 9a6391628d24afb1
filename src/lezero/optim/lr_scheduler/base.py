"""What schedules share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from lezero.arguments import check_arguments, need_real
from lezero.misspelt import SpeltArguments
from lezero.optim.optimizer import Optimizer


class Schedule(SpeltArguments):
    """Whatever sets the learning rates of an optimizer: its constructor's arguments are what their annotations say."""

    _elsewhere: tuple[str, ...] = ("optimizer",)
    """Attributes that are no part of the state."""
    _last_lr: list[float]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls, *args, **kwargs)
        check_arguments(cls, args, kwargs)
        return self

    def get_last_lr(self) -> list[float]:
        """The rates set by the latest ``step``, one a group."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        return {k: v for k, v in self.__dict__.items() if k not in self._elsewhere and not callable(v)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what ``state_dict()`` of an equal schedule gave; KeyError for what another kind's has."""
        unknown = state_dict.keys() - self.__dict__.keys()
        if unknown:
            raise KeyError(f"{type(self).__name__}: the state of another schedule: it has {', '.join(sorted(unknown))}")
        self.__dict__.update(state_dict)


def need_optimizer(name: str, optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{name}: an Optimizer is needed, got {type(optimizer).__name__}")


class LRScheduler(Schedule):
    """Base class: override ``get_lr()``, which gives the rates for ``self.last_epoch`` from those in the groups.

    Parameters
    ----------
    optimizer : Optimizer
    last_epoch : int
        -1 starts anew; otherwise the schedule goes on from there, and every group must carry its ``initial_lr``.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        need_optimizer(type(self).__name__, optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(f"{type(self).__name__}: parameter group {i} has no 'initial_lr' to resume from")
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr = [group["lr"] for group in optimizer.param_groups]
        self._starting = True
        self.step()
        self._starting = False

    def get_lr(self) -> list[float]:
        """The rates for ``self.last_epoch``, one a group."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr()")

    def step(self) -> None:
        """Advance by one; warns if the optimizer has not stepped at the rate that is left by it."""
        if self.last_epoch == 0 and not self._starting and not self.optimizer._stepped:
            warnings.warn(
                "scheduler.step() comes before the first optimizer.step(), so the schedule's first learning rate is never "
                "used; call optimizer.step() first",
                stacklevel=2,
            )
        self.last_epoch += 1
        self._write(self.get_lr())

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _write(self, rates: Iterable[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates):
            group["lr"] = lr
        self._last_lr = self._rates()


class Factor(LRScheduler):
    """A schedule that multiplies the rate by ``factor()`` at each step after the first."""

    def factor(self) -> float:
        """What the rate is multiplied by at this step."""
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self._starting:  # a resumed schedule finds its rate in the groups
            return self._rates()
        f = self.factor()
        return [lr * f for lr in self._rates()]


def per_group(name: str, what: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """One value a parameter group: the same for all, or a list of the right length."""
    need_optimizer(name, optimizer)
    n = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{name}: {what} has {len(value)} values for {n} parameter groups")
    return list(value)


def numbers_per_group(name: str, what: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """The same for what is a number."""
    values = per_group(name, what, value, optimizer)
    for one in values:
        need_real(f"{name}: {what}", one)
    return values
