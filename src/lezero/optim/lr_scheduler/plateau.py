"""A schedule that watches a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lezero.optim.lr_scheduler.base import Schedule, need_optimizer, numbers_per_group
from lezero.optim.optimizer import Optimizer


class ReduceLROnPlateau(Schedule):
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
        need_optimizer("ReduceLROnPlateau", optimizer)
        if patience < 0 or cooldown < 0:
            raise ValueError(f"ReduceLROnPlateau: patience and cooldown are 0 or more, got {patience} and {cooldown}")
        if factor >= 1.0:
            raise ValueError(f"ReduceLROnPlateau: factor is below 1, got {factor}")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode is 'min' or 'max', got {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"ReduceLROnPlateau: threshold_mode is 'rel' or 'abs', got {threshold_mode!r}")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.min_lrs = numbers_per_group("ReduceLROnPlateau", "min_lr", min_lr, optimizer)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def is_better(self, value: float) -> bool:
        """Whether a value of the metric counts as better than the best so far."""
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
