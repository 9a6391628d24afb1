"""Learning-rate schedules: each ``step()`` writes the next rate into the optimizer's parameter groups.

Rates are Python floats which the update reads as run-time inputs, so a schedule never compiles anything.  Schedules act on
the rate they find (not on a formula of the step), hence they chain, and a rate changed by hand is taken from there.  The
formulas are those of PyTorch's schedulers of the same names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lezero.optim.optimizer import Optimizer


class LRScheduler:
    """Base class: override ``get_lr()``, which gives the rates for ``self.last_epoch`` from those in the groups.

    Parameters
    ----------
    optimizer : Optimizer
    last_epoch : int
        -1 starts anew; otherwise the schedule goes on from there, and every group must carry its ``initial_lr``.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__}: an Optimizer is needed, got {type(optimizer).__name__}")
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
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr()")

    def get_last_lr(self) -> list[float]:
        """The rates set by the latest ``step``, one a group."""
        return list(self._last_lr)

    def step(self) -> None:
        """Advance by one."""
        self.last_epoch += 1
        self._write(self.get_lr())

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _write(self, rates: Iterable[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates):
            group["lr"] = lr
        self._last_lr = self._rates()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer" and not callable(v)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        unknown = state_dict.keys() - self.__dict__.keys()
        if unknown:
            raise KeyError(f"{type(self).__name__}: the state of another schedule: it has {', '.join(sorted(unknown))}")
        self.__dict__.update(state_dict)


class _Factor(LRScheduler):
    """A schedule that multiplies the rate by ``factor()`` at each step after the first."""

    def factor(self) -> float:
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self._starting:  # a resumed schedule finds its rate in the groups
            return self._rates()
        f = self.factor()
        return [lr * f for lr in self._rates()]


class LambdaLR(LRScheduler):
    """The initial rate times ``lr_lambda(epoch)``; one function, or one a group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable | Sequence[Callable], last_epoch: int = -1):
        self.lr_lambdas = _per_group("LambdaLR", "lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas)]

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}


class MultiplicativeLR(LRScheduler):
    """The rate times ``lr_lambda(epoch)`` at each step."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable | Sequence[Callable], last_epoch: int = -1):
        self.lr_lambdas = _per_group("MultiplicativeLR", "lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self._starting:
            return self._rates()
        return [lr * f(self.last_epoch) for lr, f in zip(self._rates(), self.lr_lambdas)]

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}


class StepLR(_Factor):
    """The rate times `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        return self.gamma if self.last_epoch % self.step_size == 0 else 1.0


class MultiStepLR(_Factor):
    """The rate times `gamma` at each milestone (a step given twice counts twice)."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1):
        self.milestones, self.gamma = dict(Counter(milestones)), gamma
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        return self.gamma ** self.milestones.get(self.last_epoch, 0)


class ConstantLR(_Factor):
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


class LinearLR(_Factor):
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


class ExponentialLR(_Factor):
    """The rate times `gamma` at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        return self.gamma


class PolynomialLR(_Factor):
    """The initial rate times ``(1 - step / total_iters) ** power``, then 0."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def factor(self) -> float:
        t, n = self.last_epoch, self.total_iters
        return 1.0 if t > n else ((1.0 - t / n) / (1.0 - (t - 1) / n)) ** self.power


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the initial rate to `eta_min` over `T_max` steps (Loshchilov & Hutter 2017), and back up after."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1):
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
            raise ValueError(f"CosineAnnealingWarmRestarts: the epoch is not negative, got {epoch}")
        elif self.T_mult == 1 or epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_i = self.T_0 * self.T_mult**n
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
        self.last_epoch = math.floor(epoch)
        self._write(self.get_lr())


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and down far below the start, momentum the other way (Smith & Topin 2018).

    Parameters
    ----------
    max_lr : float, or one a group
    total_steps : int, or epochs and steps_per_epoch
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
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0:
            raise ValueError(f"OneCycleLR: the number of steps is positive, got {total_steps}")
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
            peaks = _per_group("OneCycleLR", "max_lr", max_lr, optimizer)
            for group, peak in zip(optimizer.param_groups, peaks):
                group["initial_lr"] = peak / div_factor
                group["max_lr"] = peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            self._use_beta1 = "betas" in optimizer.defaults
            if not self._use_beta1 and "momentum" not in optimizer.defaults:
                raise ValueError(f"OneCycleLR: {type(optimizer).__name__} has no momentum; give cycle_momentum=False")
            if last_epoch == -1:
                highs = _per_group("OneCycleLR", "max_momentum", max_momentum, optimizer)
                lows = _per_group("OneCycleLR", "base_momentum", base_momentum, optimizer)
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
        share = (t - begin) / (end - begin)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[lr0], group[lr1], share))
            if self.cycle_momentum:
                self._set_momentum(group, self._between(group[m0], group[m1], share))
        return rates


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


class ReduceLROnPlateau:
    """The rate times `factor` once a metric has not got better for more than `patience` steps.

    Parameters
    ----------
    mode : {"min", "max"}
    threshold, threshold_mode : how much better counts: a share ("rel") or an amount ("abs")
    cooldown : steps to wait after a reduction
    min_lr : float, or one a group
    eps : a change smaller than this is not made
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ):
        if factor >= 1.0:
            raise ValueError(f"ReduceLROnPlateau: factor is below 1, got {factor}")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode is 'min' or 'max', got {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"ReduceLROnPlateau: threshold_mode is 'rel' or 'abs', got {threshold_mode!r}")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.min_lrs = _per_group("ReduceLROnPlateau", "min_lr", min_lr, optimizer)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "abs":
            return sign * value < sign * self.best - self.threshold
        return sign * value < sign * self.best * (1 - sign * self.threshold)

    def step(self, metrics: Any) -> None:
        """Advance by one, given the metric (a float, or a 0-d Tensor, which is read)."""
        value = float(metrics)
        self.last_epoch += 1
        if self.is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, low in zip(self.optimizer.param_groups, self.min_lrs):
                lr = max(group["lr"] * self.factor, low)
                if group["lr"] - lr > self.eps:
                    group["lr"] = lr
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        unknown = state_dict.keys() - self.__dict__.keys()
        if unknown:
            raise KeyError(f"ReduceLROnPlateau: the state of another schedule: it has {', '.join(sorted(unknown))}")
        self.__dict__.update(state_dict)


def _per_group(name: str, what: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """One value a parameter group: the same for all, or a list of the right length."""
    n = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{name}: {what} has {len(value)} values for {n} parameter groups")
    return list(value)
