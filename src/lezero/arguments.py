"""Whether an argument is the kind of number that is meant; errors name the function and the argument.

Functions ask for each argument; constructors of a family of classes (layers, schedules) are looked at as a whole, by what their
annotations say.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Number, Real
from typing import Any

import numpy as np


def whole(name: str, value: Any, least: int | None = None) -> int:
    """`value` as an int.

    name : what the error begins with, as in ``chunk: chunks``

    Raises
    ------
    TypeError
        For anything but an integer (Python's, NumPy's, or what has ``__index__``); floats are not cut off.
    ValueError
        For less than `least`.
    """
    try:
        number = value if isinstance(value, int) else operator.index(value)  # extents that are symbols stay so
    except TypeError:
        raise TypeError(f"{name} is an int, got {value!r}") from None
    if least is not None and int(number) < least:
        raise ValueError(f"{name} must be {least} or more, got {number}")
    return number


def need_real(name: str, value: Any) -> None:
    """Raise a TypeError for anything but a real number."""
    if not isinstance(value, Real) and not (isinstance(value, np.generic) and value.dtype.kind in "biuf"):
        raise TypeError(f"{name} is a number, got {value!r}")


def need_number(name: str, value: Any) -> None:
    """Raise a TypeError for anything but a number, which may be complex."""
    if not isinstance(value, (Number, np.generic)):
        raise TypeError(f"{name} is a number, got {value!r}")


def _whole_or_several(name: str, value: Any) -> None:
    """An int, or ints in a row."""
    if isinstance(value, str):
        raise TypeError(f"{name} is an int or a tuple of ints, got {value!r}")
    try:
        values = tuple(value)
    except TypeError:
        values = (value,)
    for one in values:
        try:
            whole(name, one)
        except TypeError:
            raise TypeError(f"{name} is an int or a tuple of ints, got {value!r}") from None


def _padding(name: str, value: Any) -> None:
    if not isinstance(value, str):
        _whole_or_several(name, value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "int": whole,
    "float": need_real,
    "IntOrTuple": _whole_or_several,
    "int | Sequence[int]": _whole_or_several,
    "Sequence[int]": _whole_or_several,
    "str | IntOrTuple": _padding,
}
_CHECKS |= {f"{kind} | None": check for kind, check in _CHECKS.items()}


@cache
def _checked(constructor: Any) -> list[tuple[int, str, str]]:
    """(position, name, annotation) of the arguments of a constructor that are looked at."""
    code = constructor.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    kinds = constructor.__annotations__
    return [(i, name, kinds[name]) for i, name in enumerate(names) if kinds.get(name) in _CHECKS]


def check_arguments(cls: type, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise a TypeError that names the class and the argument for one that is no number where its constructor needs one.

    Only constructors of ours are looked at, also where a user's class inherits one.
    """
    constructor = cls.__init__  # type: ignore[misc]
    if not getattr(constructor, "__module__", "").startswith("lezero."):  # a user's own
        return
    for position, name, kind in _checked(constructor):
        if position < len(args):
            value = args[position]
        elif name in named:
            value = named[name]
        else:
            continue
        if value is not None or not kind.endswith("None"):
            _CHECKS[kind](f"{cls.__name__}: {name}", value)
