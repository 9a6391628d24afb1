"""Statistical functions of the standard, and whether all or any elements hold."""

from __future__ import annotations

from typing import Any

from lezero import composed
from lezero.array_api.operands import Axes, accumulated, need_tensor, over
from lezero.array_api.shapes import concat
from lezero.graph import dtype as dt
from lezero.ops.base import normalize_axis
from lezero.tensor import Tensor, full


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return over("all", x, axis, keepdims, Tensor.all)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return over("any", x, axis, keepdims, Tensor.any)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest elements; NaN where there is one."""
    return over("max", x, axis, keepdims, Tensor.amax)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest elements; NaN where there is one."""
    return over("min", x, axis, keepdims, Tensor.amin)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return over("mean", x, axis, keepdims, Tensor.mean)


def _dtype(name: str, x: Tensor, dtype: Any) -> dt.DType:
    return accumulated(need_tensor(name, x).dtype) if dtype is None else dt.as_dtype(dtype)


def sum(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Sums, of integers in int64 or uint64, unless `dtype` says in what."""
    out = _dtype("sum", x, dtype)
    return over("sum", x, axis, keepdims, lambda t, d, k: t.sum(d, k, dtype=out))


def prod(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Products, of integers in int64 or uint64, unless `dtype` says in what."""
    out = _dtype("prod", x, dtype)
    return over("prod", x, axis, keepdims, lambda t, d, k: t.prod(d, k, dtype=out))


def var(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Variances, with squares divided by the number of elements less `correction`."""
    return over("var", x, axis, keepdims, lambda t, d, k: t.var(d, correction, k))


def std(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Roots of ``var``."""
    return over("std", x, axis, keepdims, lambda t, d, k: t.std(d, correction, k))


def _accumulate(name: str, x: Tensor, axis: int | None, dtype: Any, initial: int | None) -> Tensor:
    """Sums or products so far, along `axis` (which may be left out for a vector)."""
    out = _dtype(name, x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"array_api.{name}: axis is needed for a tensor of {x.ndim} dimensions")
        axis = 0
    d = normalize_axis(name, axis, x.ndim)
    y = (x._cast(out).cumsum(d) if name == "cumulative_sum" else x._cast(out).cumprod(d))._cast(out)
    if initial is None:
        return y
    first = full((*x.shape[:d], 1, *x.shape[d + 1 :]), initial, dtype=out)
    return concat([first, y], axis=d)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Sums so far, along `axis` (which may be left out for a vector); with `include_initial` a 0 comes before them."""
    return _accumulate("cumulative_sum", x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Products so far, along `axis` (which may be left out for a vector); with `include_initial` a 1 comes before them."""
    return _accumulate("cumulative_prod", x, axis, dtype, 1 if include_initial else None)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along `axis`, n times, after `prepend` and before `append`."""
    if n == 0:
        return need_tensor("diff", x).clone()
    parts = [part for part in (prepend, need_tensor("diff", x), append) if part is not None]
    return composed.diff(concat(parts, axis=axis) if len(parts) > 1 else x, n, axis)
