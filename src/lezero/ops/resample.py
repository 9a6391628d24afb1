"""Sampling one dimension at other positions: what interpolation is made of.

Every mode says where in the input an output position lies.  Reading there is a gather, and so is the gradient: the outputs
that read an input position are neighbours, so it collects from a few of them and nothing is scattered.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil as ceil_of
from typing import Any

import numpy as np

from lezero.graph.dim import Dim
from lezero.graph.dtype import float32, int64
from lezero.ops.base import Composite, op
from lezero.ops.creation import arange, number_of
from lezero.ops.elementwise import cast, ceil, floor, maximum, minimum
from lezero.ops.indexing import take
from lezero.ops.movement import expand, reshape
from lezero.ops.reduce import sum
from lezero.ops.rules import narrow, need_floating, shown, wide, wide_dtype, widen

# mode: (a, b, c), for position (o + a) * step - a * c of output o; whether elements are blended; and where the first output
# that reads input i is, (i + d) / step - a
_MODES = {
    "linear": (0.5, 1, True, -0.5),
    "corners": (0.0, 0, True, -1.0),
    "nearest": (0.0, 0, False, 0.0),
    "nearest-exact": (0.5, 0, False, 0.0),
}
_ATTRS = {"axis": 0, "size": 1, "mode": "linear", "step": 1.0}


def _position(o: Any, last: Any, mode: str, step: Any, low: Any, high: Any, down: Any) -> Any:
    """Where outputs `o` lie in the input, whose outermost values go on beyond its ends; operands or arrays."""
    centre, back, blends, _ = _MODES[mode]
    position = (o + centre) * step - centre * back
    position = position if blends else down(position)
    return low(high(position, 0), last)


def _dtype(x: Any, mode: str) -> Any:
    """What positions are computed in.  PyTorch's choice: which element is the nearest is decided in single precision."""
    return wide_dtype(x.dtype) if _MODES[mode][2] else float32


def _counted(x: Any, n: Any) -> Any:
    return arange(start=0, stop=n, step=1, dtype=int64, like=x)


def _positions(x: Any, o: Any, extent: Any, mode: str, step: float) -> Any:
    o = cast(o, dtype=_dtype(x, mode))
    return _position(o, number_of(x, extent - 1), mode, step, minimum, maximum, floor)


def _weights(size: int, extent: int, mode: str, step: float, dtype: Any) -> np.ndarray:
    """(size, extent): how much of each element every output takes."""
    o = np.arange(size, dtype=dtype)
    position = _position(o, dtype(extent - 1), mode, dtype(step), np.minimum, np.maximum, np.floor)
    return np.maximum(0, 1 - abs(position[:, None] - np.arange(extent, dtype=dtype)))


def _contracted(weights: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(np.tensordot(weights.astype(x.dtype), x, (1, axis)), 0, axis)


@lru_cache(maxsize=1024)
def _repeats(extent: int, size: int, mode: str, step: float) -> int:
    """How often each element comes, one after the other; 0 where they do not all come alike, or where that is not known.

    Views say it then, without a gather: forward and backward took a fifth of the time (8×64×56×56, doubled both ways).
    """
    if _MODES[mode][2] or isinstance(extent, Dim) or size % extent:
        return 0
    times = size // extent
    weights = _weights(size, extent, mode, step, np.float32)
    return times if (weights.argmax(1) == np.arange(size) // times).all() else 0


def _laid(x: Any, axis: int, like: Any) -> Any:
    """Weights over a dimension (or over it and the next) of `like`."""
    return reshape(x, shape=(1,) * axis + tuple(x.shape) + (1,) * (len(like.shape) - axis - len(x.shape)))


@op("resample", onnx="Resize")
class resample(Composite):
    """Elements of one dimension at other, evenly spaced positions.

    Parameters
    ----------
    x : any shape; floating dtype for the modes that blend
    axis : int, non-negative; an extent of 1 or more
    size : int
        Extent of the result.
    mode : {"linear", "corners", "nearest", "nearest-exact"}
        Output o lies at ``(o + 0.5) * step - 0.5``, ``o * step``, ``floor(o * step)`` or ``floor((o + 0.5) * step)``.  The
        first two blend both neighbours; beyond the ends the outermost elements go on.
    step : float
        Distance of the outputs, in elements.

    Returns
    -------
    x's shape with `size` along `axis`
    """

    attrs = dict(_ATTRS)

    def infer(x, axis, size, mode, step):
        if _MODES[mode][2]:
            need_floating("resample", x)
        if size < 1 or x.shape[axis] < 1:
            raise ValueError(f"resample: extents have to be 1 or more, got {shown(x.shape)} to {size} along {axis}")
        return (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype

    def reference(x, axis, size, mode, step):
        if not _MODES[mode][2]:
            weights = _weights(size, x.shape[axis], mode, step, np.float32)
            return x.take(weights.argmax(1), axis)
        x = wide(x)
        return _contracted(_weights(size, x.shape[axis], mode, step, x.dtype.type), x, axis)

    def decompose(x, axis, size, mode, step):
        extent = x.shape[axis]
        times = _repeats(extent, size, mode, step)
        if times:
            before, after = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
            each = reshape(x, shape=(*before, extent, 1, *after))
            return reshape(expand(each, shape=(*before, extent, times, *after)), shape=(*before, size, *after))
        position = _positions(x, _counted(x, size), extent, mode, step)
        below = cast(position, dtype=int64)
        first = take(x, below, axis=axis)
        if not _MODES[mode][2]:
            return first
        second = take(x, minimum(below + 1, number_of(x, extent - 1)), axis=axis)
        share = _laid(position - floor(position), axis, x)
        return narrow(widen(first) * (1 - share) + widen(second) * share, x.dtype)

    def gradient(dy, y, x, **attrs):
        return resample_grad(dy, extent=x.shape[attrs["axis"]], **attrs)


@op("resample_grad")
class resample_grad(Composite):
    """The gradient of :data:`resample`: every input position collects its shares of the outputs that read it.

    Parameters
    ----------
    dy : the result's gradient
    extent : int, the input's extent along `axis`
    axis, size, mode, step : those of :data:`resample`
    """

    attrs = {"extent": 1, **_ATTRS}
    shape_attrs = True

    def infer(dy, extent, axis, size, mode, step):
        need_floating("resample_grad", dy)
        return (*dy.shape[:axis], extent, *dy.shape[axis + 1 :]), dy.dtype

    def reference(dy, extent, axis, size, mode, step):
        dy = wide(dy)
        dtype = dy.dtype.type if _MODES[mode][2] else np.float32
        return _contracted(_weights(size, int(extent), mode, step, dtype).T, dy, axis)

    def decompose(dy, extent, axis, size, mode, step):
        times = _repeats(extent, size, mode, step)
        if times:
            seen = reshape(widen(dy), shape=(*dy.shape[:axis], extent, times, *dy.shape[axis + 1 :]))
            return narrow(sum(seen, axes=(axis + 1,), keepdim=False), dy.dtype)
        o = _readers(dy, extent, size, mode, step)
        i = _counted(dy, extent)
        far = abs(_positions(dy, o, extent, mode, step) - reshape(i, shape=(extent, 1)))
        share = cast(maximum(1 - far, 0), dtype=wide_dtype(dy.dtype))
        seen = widen(take(dy, o, axis=axis))
        return narrow(sum(seen * _laid(share, axis, seen), axes=(axis + 1,), keepdim=False), dy.dtype)

    def gradient(dx2, dx, dy, extent, **attrs):
        return resample(dx2, **attrs)


def _readers(dy: Any, extent: Any, size: int, mode: str, step: float) -> Any:
    """(extent, n): n neighbouring outputs, among them all that read each input position."""
    centre, _, blends, ahead = _MODES[mode]
    n = size if step == 0 else min(size, ceil_of((2 if blends else 1) / step) + 3)  # one to spare on either side
    neighbours = reshape(_counted(dy, n), shape=(1, n))
    if n == size:
        return neighbours + reshape(0 * _counted(dy, extent), shape=(extent, 1))
    i = cast(_counted(dy, extent), dtype=float32)
    first = cast(ceil((i + ahead) / step - centre), dtype=int64) - 1
    return neighbours + reshape(minimum(maximum(first, 0), size - n), shape=(extent, 1))
