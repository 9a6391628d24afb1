"""Averages of a model's weights over the course of training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from lezero import nn
from lezero.misspelt import suggest_names
from lezero.nn.normalization import _BatchNorm
from lezero.nn.parameter import constant_tensor
from lezero.optim.lr_scheduler import LRScheduler
from lezero.optim.lr_scheduler.base import numbers_per_group
from lezero.optim.optimizer import Optimizer
from lezero.runtime import realize
from lezero.tensor import Tensor, no_grad

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
AverageOfAll = Callable[[list[Tensor], list[Tensor], Tensor], None]


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """An exponential moving average: ``decay * average + (1 - decay) * parameter``."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"get_ema_avg_fn: decay is between 0 and 1, got {decay}")
    return partial(_moving, decay)


def get_swa_avg_fn() -> Average:
    """The mean of all that were seen (Izmailov et al. 2018)."""
    return _mean


def get_ema_multi_avg_fn(decay: float = 0.999) -> AverageOfAll:
    """``get_ema_avg_fn`` for all tensors in one call; they run together either way."""
    return partial(_each, get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> AverageOfAll:
    """``get_swa_avg_fn`` for all tensors in one call; they run together either way."""
    return partial(_each, _mean)


def _moving(decay: float, average: Tensor, parameter: Tensor, n: Tensor) -> Tensor:
    return average * decay + parameter * (1 - decay)


def _mean(average: Tensor, parameter: Tensor, n: Tensor) -> Tensor:
    return average + (parameter - average) / (n + 1)


def _each(avg_fn: Average, averages: list[Tensor], parameters: list[Tensor], n: Tensor) -> None:
    for average, parameter in zip(averages, parameters):
        average.copy_(avg_fn(average.detach(), parameter, n))


class AveragedModel(nn.Module):
    """A copy of a model whose parameters are an average over its training.

    Parameters
    ----------
    model : Module
    device : ignored unless given, as in ``Module.to``
    avg_fn : function of (average, parameter, how many were averaged) giving the new average; the plain mean unless given
    multi_avg_fn : function of (averages, parameters, how many were averaged), lists of tensors; writes to the averages.
        Instead of `avg_fn`: ValueError where both are given.
    use_buffers : bool
        Average floating-point buffers too; otherwise they are copied.

    Examples
    --------
    >>> ema = AveragedModel(model, avg_fn=get_ema_avg_fn(0.999))
    >>> for x, y in loader:
    ...     train_step(x, y)
    ...     ema.update_parameters(model)
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: nn.Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: AverageOfAll | None = None,
        use_buffers: bool = False,
    ):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel: give avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", constant_tensor(np.zeros((), np.int64)))
        self.average = partial(_each, avg_fn or _mean) if multi_avg_fn is None else multi_avg_fn
        self.use_buffers = use_buffers
        self._started = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take the model's present values into the average; the first time, they are the average."""
        started = self._started or int(self.n_averaged) > 0
        self._started = True
        averages: list[Tensor] = list(self.module.parameters())
        values: list[Tensor] = [p.detach() for p in model.parameters()]
        for average, buffer in zip(self.module.buffers(), model.buffers()):
            if self.use_buffers and average.dtype.is_floating_point:
                averages.append(average)
                values.append(buffer.detach())
            else:
                average.copy_(buffer.detach())
        if started:
            self.average(averages, values, self.n_averaged)
        else:
            for average, value in zip(averages, values):
                average.copy_(value)
        self.n_averaged.add_(1)
        realize(self.n_averaged)


@no_grad()
def update_bn(loader: Iterable[Any], model: nn.Module, device: Any = None) -> None:
    """Compute the running statistics of a model's batch norms anew, by one pass over the data."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    was_training = model.training
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # a cumulative mean
    model.train()
    try:
        for batch in loader:
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(x if device is None else x.to(device))
            realize(norms[0].running_mean)
    finally:
        for m, momentum in zip(norms, momenta):
            m.momentum = momentum
        model.train(was_training)


class SWALR(LRScheduler):
    """Anneals the rate to `swa_lr` over `anneal_epochs`, then keeps it.

    Parameters
    ----------
    swa_lr : float, or one a group
    anneal_epochs : int
    anneal_strategy : {"cos", "linear"}
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ):
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"SWALR: anneal_strategy is 'cos' or 'linear', got {anneal_strategy!r}")
        if anneal_epochs < 0:
            raise ValueError(f"SWALR: anneal_epochs must not be negative, got {anneal_epochs}")
        targets = numbers_per_group("SWALR", "swa_lr", swa_lr, optimizer)
        for group, target in zip(optimizer.param_groups, targets):
            group["swa_lr"] = target
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, epoch: int) -> float:
        t = max(0.0, min(1.0, epoch / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self.anneal_strategy == "cos" else t

    def get_lr(self) -> list[float]:
        epoch = self.last_epoch + (1 if self.anneal_epochs == 0 else 0)
        before, now = self._share(max(0, epoch - 1)), self._share(epoch)
        rates = []
        for group in self.optimizer.param_groups:
            # The rate it started from follows from the present one, whoever set that.
            lr, target = group["lr"], group["swa_lr"]
            start = target if before == 1 else (lr - before * target) / (1 - before)
            rates.append(target * now + start * (1 - now))
        return rates


suggest_names(__name__)
