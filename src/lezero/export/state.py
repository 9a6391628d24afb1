"""A model that is as before when it has been called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from lezero.nn import Module, Parameter
from lezero.tensor import Tensor, no_grad, tensor


@contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """Put back, at the end, attributes of a model and its parts, what is in their lists and dictionaries, and values of buffers.

    model : a module, or a function; then the modules that it refers to
    """
    found: dict[int, Any] = {}
    for root in _roots(model):
        _collect(root, found)
    values = [(x, x.detach().numpy().copy()) for x in found.values() if isinstance(x, Tensor)]
    holders = [(x, _contents(x)) for x in found.values() if not isinstance(x, Tensor)]
    try:
        yield
    finally:
        for holder, contents in holders:
            _put_back(holder, contents)
        for t, value in values:
            _restore(t, value)


def _roots(model: Any) -> list[Any]:
    """Modules, where `model` is a function: its own globals and variables of functions around it."""
    if isinstance(model, MethodType):
        return [model.__self__]
    if not isinstance(model, FunctionType):
        return [model]
    found = [*(model.__defaults__ or ()), *(model.__globals__.get(n) for n in model.__code__.co_names)]
    for cell in model.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            found.append(cell.cell_contents)
    return [x for x in found if isinstance(x, Module)]


def _collect(value: Any, found: dict[int, Any]) -> None:
    """What can change in a model: objects of the user's classes, containers, and tensors but parameters."""
    todo = [value]
    while todo:
        x = todo.pop()
        if id(x) in found or isinstance(x, (Parameter, type, FunctionType)):
            continue
        if isinstance(x, tuple):
            todo += x
        elif isinstance(x, Tensor):
            found[id(x)] = x
        elif isinstance(x, (list, set, dict)) or _has_attributes(x):
            found[id(x)] = x
            todo += x if isinstance(x, (list, set)) else x.values() if isinstance(x, dict) else vars(x).values()


def _has_attributes(x: Any) -> bool:
    owner = type(x).__module__.partition(".")[0]
    return isinstance(x, Module) or (hasattr(x, "__dict__") and owner not in ("builtins", "numpy", "lezero"))


def _contents(x: Any) -> Any:
    return x.copy() if isinstance(x, (list, set, dict)) else vars(x).copy()


def _put_back(x: Any, contents: Any) -> None:
    held = x if isinstance(x, (list, set, dict)) else vars(x)
    if _identities(held) == _identities(contents):  # another thread may be reading it
        return
    held.clear()
    held.extend(contents) if isinstance(held, list) else held.update(contents)


def _identities(x: Any) -> list[int]:
    return [id(v) for v in ((*x, *x.values()) if isinstance(x, dict) else x)]


def _restore(t: Tensor, value: np.ndarray) -> None:
    now = t.detach().numpy()
    if now.tobytes() != value.tobytes():
        with no_grad():
            t.copy_(tensor(value))
