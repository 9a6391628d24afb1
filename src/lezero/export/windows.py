"""Sliding windows and their adjoint as padding and gathers, which ONNX has, and pooling to a number of bins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lezero.graph.dtype import int64
from lezero.ops.creation import arange, number_of
from lezero.ops.elementwise import where
from lezero.ops.indexing import take
from lezero.ops.movement import pad, permute, reshape
from lezero.ops.pooling import _binned, _bins, narrow, widen
from lezero.ops.windows import window_counts


def _places(x: Any, n: Any, axis: int, rank: int) -> Any:
    """0 to n - 1 along one of `rank` dimensions."""
    shape = tuple(n if k == axis else 1 for k in range(rank))
    return reshape(arange(start=0, stop=n, step=1, dtype=int64, like=x), shape=shape)


def _moved(x: Any, source: int, target: int) -> Any:
    order = [k for k in range(len(x.shape)) if k != source]
    order.insert(target, source)
    return permute(x, axes=tuple(order))


def window(x: Any, axes: Any, sizes: Any, strides: Any, dilations: Any, before: Any, after: Any, fill: Any) -> Any:
    rank = len(x.shape)
    counts = window_counts([x.shape[a] for a in axes], sizes, strides, dilations, before, after)
    around = [[0] * rank, [0] * rank]
    for axis, b, a in zip(axes, before, after):
        around[0][axis], around[1][axis] = b, a
    y = pad(x, before=tuple(around[0]), after=tuple(around[1]), fill=fill) if any(map(any, around)) else x
    for axis, count, size, stride, dilation in zip(axes, counts, sizes, strides, dilations):
        index = _places(x, count, 0, 2) * stride + _places(x, size, 1, 2) * dilation
        y = take(y, index, axis=axis)
        y = _moved(y, axis + 1, len(y.shape) - 1)
    return y


def from_windows(x: Any, axes: Any, strides: Any, dilations: Any, before: Any, extents: Any) -> Any:
    rank, y = len(x.shape), x
    lead = rank - len(axes)
    for k, (axis, stride, dilation, b, extent) in enumerate(zip(axes, strides, dilations, before, extents)):
        count, size = y.shape[axis], y.shape[lead + k]
        y = _moved(y, lead + k, axis + 1)
        flat = reshape(y, shape=(*y.shape[:axis], count * size, *y.shape[axis + 2 :]))
        tap = _places(x, size, 1, 2)
        reach = _places(x, extent, 0, 2) + b - tap * dilation
        at = reach // stride
        met = (reach >= 0) & (reach % stride == 0) & (at < number_of(x, count))
        y = take(flat, where(met, at * size + tap, 0), axis=axis)
        laid = reshape(met, shape=tuple(n if j in (axis, axis + 1) else 1 for j, n in enumerate(y.shape)))
        y = _moved(where(laid, y, 0), axis + 1, lead + k)
    return y


def adaptive_avg(x: Any, output: tuple[int, ...]) -> Any:
    """The form for any extents: whether symbols divide is not known."""
    lead = len(x.shape) - len(output)
    y = widen(x)
    for k, bins in enumerate(output):
        y = _binned(y, lead + k, _bins(y, x.shape[lead + k], bins))
    return narrow(y, x.dtype)


APART: dict[str, Callable] = {"window": window, "from_windows": from_windows, "adaptive_avg_pool": adaptive_avg}
"""What these operations come apart into here."""
