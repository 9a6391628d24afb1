"""What a trainer refuses, and what it says: at construction, when a loader is given, and at the first batch."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from lezero.amp import GradScaler, autocast
from lezero.arguments import whole
from lezero.data import Dataset
from lezero.nn import Module
from lezero.nn.located import add_to_message
from lezero.optim import Optimizer
from lezero.tensor import Tensor
from lezero.trainer.callbacks import Callback

_BATCHES = "batches: a DataLoader, or any iterable of (inputs, targets)"


def model_of(model: Any) -> None:
    if isinstance(model, type):
        raise TypeError(f"Trainer: model is the class {model.__name__}; an instance of it is needed")
    if not isinstance(model, Module):
        raise TypeError(f"Trainer: model is an nn.Module, got {_kind(model)}")


def optimizer_of(model: Module, optimizer: Any, loss_fn: Any) -> None:
    if optimizer is None:
        return
    if isinstance(optimizer, type):
        raise TypeError(
            f"Trainer: optimizer is the class {optimizer.__name__}; give {optimizer.__name__}(model.parameters(), ...)"
        )
    if not isinstance(optimizer, Optimizer):
        swapped = ": optimizer and loss_fn are swapped" if isinstance(loss_fn, Optimizer) else ""
        raise TypeError(f"Trainer: optimizer is an optim.Optimizer, got {_kind(optimizer)}{swapped}")
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    of_model = [id(p) for p in model.parameters() if p.requires_grad]
    if of_model and trained.isdisjoint(of_model):
        raise ValueError(
            "Trainer: the optimizer has none of this model's parameters, so the model would stay as it is; make it from "
            "model.parameters()"
        )


def loss_of(loss_fn: Any) -> None:
    if loss_fn is None:
        return
    if isinstance(loss_fn, type):
        raise TypeError(f"Trainer: loss_fn is the class {loss_fn.__name__}; give an instance, {loss_fn.__name__}()")
    if not callable(loss_fn):
        raise TypeError(
            f"Trainer: loss_fn is a function of outputs and targets, such as nn.functional.cross_entropy, got "
            f"{_kind(loss_fn)}"
        )


def scheduler_of(scheduler: Any, optimizer: Any) -> None:
    if scheduler is None:
        return
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        raise TypeError(f"Trainer: scheduler is an instance with a step(), got {_kind(scheduler)}")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError("Trainer: the scheduler drives another optimizer than the trainer's")


def precision_of(dtype: Any, scaler: Any) -> None:
    """Refuse what autocast would, and say so of a switch where a dtype is meant."""
    if isinstance(dtype, (bool, np.bool_)):
        raise TypeError(
            f"Trainer: autocast is a dtype, lz.bfloat16 or lz.float16, or None for no autocast; got {dtype}"
        )
    if dtype is not None:
        autocast("cpu", dtype=dtype)
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"Trainer: scaler is an amp.GradScaler(), got {_kind(scaler)}")


def limits_of(clip_grad_norm: Any, accumulate: Any) -> None:
    if clip_grad_norm is not None and not (_is_number(clip_grad_norm) and clip_grad_norm > 0):
        raise ValueError(f"Trainer: clip_grad_norm is a number above 0, got {clip_grad_norm!r}")
    whole("Trainer: accumulate", accumulate, 1)


def callbacks_of(callbacks: Any) -> list[Callback]:
    if isinstance(callbacks, (Callback, type)) or not isinstance(callbacks, Iterable):
        raise TypeError(f"Trainer: callbacks is a list of callbacks, got {_kind(callbacks)}")
    listed = list(callbacks)
    for callback in listed:
        if isinstance(callback, type):
            raise TypeError(f"Trainer: the callback {callback.__name__} is a class; give an instance of it")
        if not isinstance(callback, Callback):
            raise TypeError(f"Trainer: callbacks derive from lezero.trainer.Callback, got {_kind(callback)}")
    return listed


def loader_of(name: str, loader: Any) -> None:
    """Refuse what can be iterated over and gives no batches: a dataset gives its items, a tensor its rows."""
    if isinstance(loader, Dataset):
        raise TypeError(
            f"{name} takes {_BATCHES}; a {type(loader).__name__} gives single items: DataLoader({type(loader).__name__}(...), "
            "batch_size=32)"
        )
    arrays = (Tensor, np.ndarray)
    if isinstance(loader, arrays) or (isinstance(loader, tuple) and loader and isinstance(loader[0], arrays)):
        given = _kind(loader) if isinstance(loader, arrays) else "a tuple of them"
        raise TypeError(
            f"{name} takes {_BATCHES}; tensors and arrays ({given} here) become one by "
            "DataLoader(TensorDataset(x, y), batch_size=32)"
        )
    if isinstance(loader, type) or not (isinstance(loader, Iterable) or hasattr(loader, "__getitem__")):
        raise TypeError(f"{name} takes {_BATCHES}; got {_kind(loader)}")


def no_batch(loader: Any) -> ValueError:
    used_up = "; it is an iterator, which gives its batches once" if isinstance(loader, Iterator) else ""
    return ValueError(f"Trainer.fit: the loader gave no batch{used_up}")


def scalar(what: str, value: Any) -> None:
    """Refuse a loss or a metric that is no single number."""
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return
        shape = tuple(int(extent) for extent in value.shape)
        raise ValueError(f"{what} gave a tensor of shape {shape}; a single number is needed: did you forget .mean()?")
    if not _is_number(value):
        raise TypeError(f"{what} gave {_kind(value)}; a single number is needed")


def loss_value(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"Trainer: loss_fn gave {_kind(loss)}; a tensor of one element is needed")
    scalar("Trainer: loss_fn", loss)


@contextmanager
def given_no_targets(targets: Any) -> Iterator[None]:
    """Say of an error in a loss or a metric that the batch had no targets."""
    try:
        yield
    except Exception as error:
        if targets is None:
            add_to_message(
                error,
                "the batch had no targets: batches are (inputs, targets), or a dict with 'labels'; for others override "
                "Trainer.compute",
            )
        raise


def metrics_of(metrics: Mapping[str, Any]) -> None:
    for name, metric in metrics.items():
        if isinstance(metric, type) or not callable(metric):
            raise TypeError(f"Trainer: the metric {name!r} is a function of outputs and targets, got {_kind(metric)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (numbers.Number, np.generic)) or (isinstance(value, np.ndarray) and value.size == 1)


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if isinstance(value, (str, bool, int, float, type(None))) else f"a {type(value).__name__}"
