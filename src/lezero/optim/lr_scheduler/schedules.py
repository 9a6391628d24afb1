"""Schedules that are a formula of the step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

from lezero.arguments import whole
from lezero.optim.lr_scheduler.base import Factor, LRScheduler, per_group
from lezero.optim.optimizer import Optimizer


def _functions(name: str, given: Any, optimizer: Optimizer) -> list[Callable]:
    functions = per_group(name, "lr_lambda", given, optimizer)
    for f in functions:
        if not callable(f):
            raise TypeError(f"{name}: lr_lambda is a function of the epoch, or one a group, got {f!r}")
    return functions


def _one_or_more(name: str, what: str, value: Any) -> None:
    if not isinstance(value, Real):
        raise TypeError(f"{name}: {what} is a number of steps, got {value!r}")
    if not float(value) >= 1:
        raise ValueError(f"{name}: {what} is 1 or more, got {value!r}")


class _ByFunctions(LRScheduler):
    _elsewhere = ("optimizer", "lr_lambdas")

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable | Sequence[Callable], last_epoch: int = -1):
        self.lr_lambdas = _functions(type(self).__name__, lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)


class LambdaLR(_ByFunctions):
    """The initial rate times ``lr_lambda(epoch)``; one function, or one a group."""

    def get_lr(self) -> list[float]:
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas)]


class MultiplicativeLR(_ByFunctions):
    """The rate times ``lr_lambda(epoch)`` at each step."""

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self._starting:
            return self._rates()
        return [lr * f(self.last_epoch) for lr, f in zip(self._rates(), self.lr_lambdas)]


class StepLR(Factor):
    """The rate times `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        _one_or_more("StepLR", "step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        return self.gamma if self.last_epoch % self.step_size == 0 else 1.0


class MultiStepLR(Factor):
    """The rate times `gamma` at each milestone (a step given twice counts twice)."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1):
        if not isinstance(milestones, Iterable):
            raise TypeError(f"MultiStepLR: milestones are a list of steps, got {milestones!r}")
        steps = [whole("MultiStepLR: a milestone", step) for step in milestones]
        self.milestones, self.gamma = dict(Counter(steps)), gamma
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        return self.gamma ** self.milestones.get(self.last_epoch, 0)


class ConstantLR(Factor):
    """The rate times `factor` for the first `total_iters` steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1):
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor is between 0 and 1, got {factor}")
        self.scale, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return [lr * self.scale for lr in self._rates()]
        return super().get_lr()

    def factor(self) -> float:
        return 1 / self.scale if self.last_epoch == self.total_iters else 1.0


class LinearLR(Factor):
    """From `start_factor` of the rate to `end_factor` of it, in equal steps over `total_iters`."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ):
        if not 0 < start_factor <= 1:
            raise ValueError(f"LinearLR: start_factor is above 0 and at most 1, got {start_factor}")
        if not 0 <= end_factor <= 1:
            raise ValueError(f"LinearLR: end_factor is between 0 and 1, got {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return [lr * self.start_factor for lr in self._rates()]
        return super().get_lr()

    def factor(self) -> float:
        if self.last_epoch > self.total_iters:
            return 1.0
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return 1.0 + rise / before


class ExponentialLR(Factor):
    """The rate times `gamma` at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        return self.gamma


class PolynomialLR(Factor):
    """The initial rate times ``(1 - step / total_iters) ** power``, then 0."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        t, n = self.last_epoch, self.total_iters
        return 1.0 if t > n else ((1.0 - t / n) / (1.0 - (t - 1) / n)) ** self.power


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the initial rate to `eta_min` over `T_max` steps (Loshchilov & Hutter 2017), and back up after."""

    def __init__(self, optimizer: Optimizer, T_max: float, eta_min: float = 0.0, last_epoch: int = -1):
        _one_or_more("CosineAnnealingLR", "T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        t, n, low = self.last_epoch, self.T_max, self.eta_min
        rates = self._rates()
        if t == 0 or self._starting:
            return rates
        if (t - 1 - n) % (2 * n) == 0:  # leaving the bottom: the ratio below would be 0 / 0
            rise = (1 - math.cos(math.pi / n)) / 2
            return [lr + (base - low) * rise for lr, base in zip(rates, self.base_lrs)]
        ratio = (1 + math.cos(math.pi * t / n)) / (1 + math.cos(math.pi * (t - 1) / n))
        return [ratio * (lr - low) + low for lr in rates]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines that restart: the first takes `T_0` steps, each further one `T_mult` times as many.

    ``step(epoch)`` also takes a fractional epoch, to move within one.
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1):
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"CosineAnnealingWarmRestarts: T_0 is a positive integer, got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"CosineAnnealingWarmRestarts: T_mult is an integer of at least 1, got {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, float(last_epoch)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        wave = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * wave for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ValueError(f"CosineAnnealingWarmRestarts: the epoch must not be negative, got {epoch}")
        elif self.T_mult == 1 or epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_i = self.T_0 * self.T_mult**n
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
        self.last_epoch = math.floor(epoch)
        self._write(self.get_lr())


class WarmupLR(LRScheduler):
    """A linear warm-up from ``start_factor`` of the rate over `warmup_steps`, then the rate of a `decay`.

    Parameters
    ----------
    warmup_steps : int
    total_steps : int or None
        Where the decay ends; needed unless `decay` is "constant".
    decay : {"cosine", "linear", "constant"}
    min_factor : float
        The share of the rate at the end of the decay.
    start_factor : float
        The share at step 0; the transformer recipes start from 0.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int | None = None,
        decay: str = "cosine",
        min_factor: float = 0.0,
        start_factor: float = 0.0,
        last_epoch: int = -1,
    ):
        if decay not in ("cosine", "linear", "constant"):
            raise ValueError(f"WarmupLR: decay is 'cosine', 'linear' or 'constant', got {decay!r}")
        if decay != "constant" and (total_steps is None or total_steps <= warmup_steps):
            raise ValueError(
                f"WarmupLR: a {decay} decay needs total_steps above warmup_steps={warmup_steps}, got {total_steps}"
            )
        self.warmup_steps, self.total_steps, self.decay = warmup_steps, total_steps, decay
        self.min_factor, self.start_factor = min_factor, start_factor
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        t, w = self.last_epoch, self.warmup_steps
        if t < w:
            factor = self.start_factor + (1 - self.start_factor) * t / w
        elif self.decay == "constant" or self.total_steps is None:
            factor = 1.0
        else:
            share = min(1.0, (t - w) / (self.total_steps - w))
            fall = (1 + math.cos(math.pi * share)) / 2 if self.decay == "cosine" else 1 - share
            factor = self.min_factor + (1 - self.min_factor) * fall
        return [base * factor for base in self.base_lrs]
