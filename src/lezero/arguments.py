"""Whether an argument is the kind of number that is meant; errors name the function and the argument."""

from __future__ import annotations

import operator
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
