"""What exactly in an object keeps it from being sent, and where it sits: the question behind a good error message."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from lezero.data.by_value import globals_read_by


def culprit(obj: Any, path: str, travels: Callable[[Any], bool]) -> tuple[str, Any]:
    """The innermost part of `obj` that cannot travel, and its path.

    Parameters
    ----------
    obj : Any
        Something for which ``travels(obj)`` is false.
    path : str
        What to call it.
    travels : callable
        Whether an object can be sent; it is asked about one part after the other, so this is for failures only.
    """
    above = {id(obj)}
    while True:
        for step, part in _parts(obj):
            if id(part) not in above and not travels(part):
                above.add(id(part))
                path, obj = path + step, part
                break
        else:
            return path, obj


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        for key, value in obj.items():
            yield f"[{key!r}]", value
    elif isinstance(obj, list | tuple):
        for index, value in enumerate(obj):
            yield f"[{index}]", value
    elif isinstance(obj, set | frozenset):
        for value in obj:
            yield " → element", value
    elif isinstance(obj, FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, type):
        for name, value in vars(obj).items():
            yield f".{name}", value
        for base in obj.__bases__:
            yield f" → class {base.__name__}", base
    elif isinstance(obj, MethodType | staticmethod | classmethod):
        yield ".__func__", obj.__func__
    elif isinstance(obj, property):
        for name in ("fget", "fset", "fdel"):
            yield f".{name}", getattr(obj, name)
    elif isinstance(obj, functools.partial):
        for name in ("func", "args", "keywords"):
            yield f".{name}", getattr(obj, name)
    if isinstance(obj, MethodType):
        yield ".__self__", obj.__self__
    elif not isinstance(obj, type | FunctionType):
        yield from _parts_of_state(obj)
        yield f" → class {type(obj).__name__}", type(obj)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f" → variable {name}", cell.cell_contents
        except ValueError:
            continue  # it has no value yet
    for name, value in globals_read_by(function).items():
        yield f" → global {name}", value
    for name in ("__defaults__", "__kwdefaults__", "__annotations__", "__dict__"):
        yield f".{name}", getattr(function, name)


def _parts_of_state(obj: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that would be sent, which ``__getstate__`` decides."""
    try:
        state = obj.__getstate__()
    except Exception:
        return
    pieces = state if isinstance(state, tuple) else (state,)  # with __slots__: (attributes, slots)
    for piece in pieces:
        if isinstance(piece, dict):
            for name, value in piece.items():
                yield f".{name}", value
        else:
            yield ".__getstate__()", piece
