"""Sizes given as one number or as one a dimension."""

from __future__ import annotations

from operator import index
from typing import Any


def per_dimension(name: str, what: str, value: Any, n: int) -> tuple[int, ...]:
    """`value` for each of `n` dimensions; the error names the function and the argument."""
    if type(value) is int:
        return (value,) * n
    try:
        given = (value,) if hasattr(value, "__index__") else value
        values = tuple(v if isinstance(v, int) else index(v) for v in given)  # extents that are symbols stay so
    except TypeError:
        raise TypeError(f"{name}: {what} is an int or {n} ints, got {value!r}") from None
    if len(values) == 1:
        values *= n
    if len(values) != n:
        raise ValueError(f"{name}: {what} is an int or {n} ints, got {value!r}")
    return values


def positive(name: str, what: str, value: Any, n: int) -> tuple[int, ...]:
    """The same for what is 1 or more, as kernel sizes and strides are."""
    values = per_dimension(name, what, value, n)
    if min(values) < 1:
        raise ValueError(f"{name}: {what} is 1 or more, got {value!r}")
    return values


def batched(name: str, x: Any, dims: int) -> tuple[Any, bool]:
    """`x` with a batch dimension in front if it has none, and whether one was put there; `dims` counts the batch's."""
    if x.ndim == dims:
        return x, False
    if x.ndim == dims - 1:
        return x.unsqueeze(0), True
    raise ValueError(
        f"{name}: an input of {dims} dimensions (or {dims - 1}, without a batch) is needed, got shape {tuple(x.shape)}"
    )
