"""Functions of the standard that search, sort, and count distinct elements.

Those whose result's shape depends on values (``nonzero``, ``unique_*``) read them, and are refused inside ``lz.jit``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lezero import placed, rearranged
from lezero.array_api.operands import Axes, need_tensor, over, promoted
from lezero.ops.base import REGISTRY as OPS
from lezero.rearranged import _values
from lezero.runtime.recorder import record
from lezero.tensor import Tensor, tensor


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the largest element is (the first of equal ones), along `axis` or in row-major order."""
    return need_tensor("argmax", x).argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the smallest element is (the first of equal ones), along `axis` or in row-major order."""
    return need_tensor("argmin", x).argmin(axis, keepdims)


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Positions in ascending or descending order; always stable, NaN last (or first, descending)."""
    return need_tensor("argsort", x).argsort(axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in ascending or descending order; always stable, NaN last (or first, descending)."""
    return need_tensor("sort", x).sort(axis, descending).values


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return over("count_nonzero", x, axis, keepdims, lambda t, d, k: t._reduce("count_nonzero", d, k))


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """One vector of positions for each dimension.  Values are read."""
    if not need_tensor("nonzero", x).ndim:
        raise ValueError("array_api.nonzero: positions have a dimension, and a 0-d tensor has none")
    return rearranged.nonzero(x, as_tuple=True)


def searchsorted(x1: Tensor, x2: Tensor | float, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """For each of `x2` the position in the ascending vector `x1` (in the order of `sorter`) before which it is inserted.

    side : "left" is the first such position, "right" the last.
    """
    if side not in ("left", "right"):
        raise ValueError(f"array_api.searchsorted: side is 'left' or 'right', got {side!r}")
    ordered = need_tensor("searchsorted", x1) if sorter is None else x1.index_select(0, sorter)
    values = x2 if isinstance(x2, Tensor) else tensor(x2, dtype=x1.dtype)
    ordered, values = promoted("searchsorted", ordered, values)
    return rearranged.searchsorted(ordered, values, right=side == "right")


def where(condition: Tensor, x1: Tensor | complex, x2: Tensor | complex, /) -> Tensor:
    """x1 where `condition` holds, x2 elsewhere."""
    return record(OPS["where"], (need_tensor("where", condition), *promoted("where", x1, x2)), ())


def isin(x1: Tensor | int, x2: Tensor | int, /, *, invert: bool = False) -> Tensor:
    """Whether each element of `x1` is in `x2`, or with `invert` is not."""
    a, b = promoted("isin", x1, x2)
    dtype = (a if isinstance(a, Tensor) else b).dtype
    return placed.isin(*(t if isinstance(t, Tensor) else tensor(t, dtype=dtype) for t in (a, b)), invert=invert)


class UniqueAllResult(NamedTuple):
    """Distinct elements, ascending, where each is first, which of them every element is, and how often they occur."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCountsResult(NamedTuple):
    """Distinct elements, ascending, and how often they occur."""

    values: Tensor
    counts: Tensor


class UniqueInverseResult(NamedTuple):
    """Distinct elements, ascending, and which of them every element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAllResult:
    """Distinct elements and all about them; each NaN is distinct.  Values are read; those that are given have a gradient."""
    found: Any = np.unique(
        _values("unique_all", need_tensor("unique_all", x)).reshape(-1),
        return_index=True,
        return_inverse=True,
        return_counts=True,
        equal_nan=False,
    )
    first, inverse, counts = (tensor(f.reshape(-1)) for f in found[1:])
    return UniqueAllResult(x.reshape(-1)[first], first, inverse.reshape(tuple(map(int, x.shape))), counts)


def unique_counts(x: Tensor, /) -> UniqueCountsResult:
    """Distinct elements and how often they occur; see :func:`unique_all`."""
    found = unique_all(x)
    return UniqueCountsResult(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverseResult:
    """Distinct elements and which of them every element is; see :func:`unique_all`."""
    found = unique_all(x)
    return UniqueInverseResult(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Distinct elements, ascending; see :func:`unique_all`."""
    return unique_all(x).values
