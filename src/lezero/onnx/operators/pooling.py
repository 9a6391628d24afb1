"""Pooling over windows and over everything, and its inverse."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.operators.network import window_pads
from lezero.onnx.registry import Context, integers, on_device, operator
from lezero.ops import movement, pooling
from lezero.ops.windows import window
from lezero.tensor import Tensor


class Windows:
    """Where the windows of a pooling operator lie.

    kernel, strides, dilations : one int for each spatial dimension
    before, after : what surrounds the data
    counts : how many windows there are
    """

    def __init__(
        self, x: Tensor, kernel_shape: list[int], strides: list[int] | None, dilations: list[int] | None, pads: list[int] | None,
        auto_pad: str, ceil_mode: int,
    ):  # fmt: skip
        n = len(kernel_shape)
        self.kernel, self.strides = tuple(kernel_shape), tuple(strides or [1] * n)
        self.dilations, self.extents = tuple(dilations or [1] * n), list(x.shape[2:])
        around = window_pads(self.extents, kernel_shape, list(self.strides), list(self.dilations), pads, auto_pad)
        self.before, self.after = tuple(b for b, _ in around), tuple(a for _, a in around)
        self.counts = [self._count(k, bool(ceil_mode)) for k in range(n)]

    def _reach(self, k: int) -> int:
        return self.dilations[k] * (self.kernel[k] - 1) + 1

    def _count(self, k: int, ceil_mode: bool) -> int:
        stride, inside = self.strides[k], self.extents[k] + self.before[k]
        room = inside + self.after[k] - self._reach(k)
        if not ceil_mode:
            return room // stride + 1
        count = (room + stride - 1) // stride + 1
        return count - 1 if (count - 1) * stride >= inside else count

    @property
    def needed(self) -> tuple[int, ...]:
        """What is read behind the data."""
        ends = ((c - 1) * s + self._reach(k) for k, (c, s) in enumerate(zip(self.counts, self.strides)))
        return tuple(max(0, e - d - b) for e, d, b in zip(ends, self.extents, self.before))

    def of(self, x: Tensor, fill: Any = 0) -> Tensor:
        """(batch, channels, *windows, *kernel): what each window sees."""
        return window(
            x, axes=tuple(range(2, x.ndim)), sizes=self.kernel, strides=self.strides, dilations=self.dilations,
            before=self.before, after=self.needed, fill=fill,
        )  # fmt: skip

    def even(self) -> bool:
        """Whether PyTorch's rules have the same windows: as much before as after, and no more than half of a window."""
        return self.before == self.after and all(2 * b <= k for b, k in zip(self.before, self.kernel))


@operator("AveragePool", 1)
def average_pool(
    _: Context, x: Tensor, *, kernel_shape: list[int], strides: list[int] | None = None, dilations: list[int] | None = None,
    pads: list[int] | None = None, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
) -> Tensor:  # fmt: skip
    w = Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if w.even() and all(d == 1 for d in w.dilations):
        return pooling.avg_pool(
            x, kernel=w.kernel, stride=w.strides, padding=w.before, ceil_mode=bool(ceil_mode),
            count_include_pad=bool(count_include_pad), divisor_override=None,
        )  # fmt: skip
    last = tuple(range(x.ndim, 2 * x.ndim - 2))
    counted = np.ones((1, 1, *map(int, w.extents)), x.dtype.numpy)
    if count_include_pad:
        widths = [(0, 0), (0, 0), *zip(w.before, w.after)]
        counted = np.pad(counted, [(int(b), int(a)) for b, a in widths], constant_values=1)
    ones = lz.tensor(counted)
    if count_include_pad:
        beyond = tuple(max(0, n - a) for n, a in zip(w.needed, w.after))
        seen = window(
            ones, axes=tuple(range(2, x.ndim)), sizes=w.kernel, strides=w.strides, dilations=w.dilations,
            before=(0,) * len(w.kernel), after=beyond, fill=0,
        )  # fmt: skip
    else:
        seen = w.of(ones)
    return lz.sum(w.of(x), dim=last) / lz.sum(seen, dim=last)


def _lowest(x: Tensor) -> Any:
    return -float("inf") if x.dtype.is_floating_point else int(np.iinfo(x.dtype.numpy).min)


@operator("MaxPool", 1)
def max_pool(
    ctx: Context, x: Tensor, *, kernel_shape: list[int], strides: list[int] | None = None, dilations: list[int] | None = None,
    pads: list[int] | None = None, auto_pad: str = "NOTSET", ceil_mode: int = 0, storage_order: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    w = Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    geometry: dict[str, Any] = {"kernel": w.kernel, "stride": w.strides, "dilation": w.dilations}
    if w.even():
        seen, geometry = x, {**geometry, "padding": w.before, "ceil_mode": bool(ceil_mode)}
    else:
        seen = movement.pad(x, before=(0, 0, *w.before), after=(0, 0, *w.needed), fill=_lowest(x))
        geometry = {**geometry, "padding": (0,) * len(w.kernel), "ceil_mode": False}
    y = pooling.max_pool(seen, **geometry)
    if not ctx.wanted(1):
        return (y,)
    return y, _flat_positions(pooling.max_pool_index(seen, **geometry), x, w, bool(storage_order))


def _flat_positions(taps: Tensor, x: Tensor, w: Windows, by_columns: bool) -> Tensor:
    """Where in the whole of `x` the maxima are; `by_columns` counts the first of the spatial dimensions fastest."""
    n = len(w.kernel)
    rows = [
        along(lz.arange(w.counts[k]) * w.strides[k] - w.before[k], 2 + k, x.ndim)
        + (taps // prod(w.kernel[k + 1 :])) % w.kernel[k] * w.dilations[k]
        for k in range(n)
    ]
    at: Any = 0
    for k in reversed(range(n)) if by_columns else range(n):
        at = at * w.extents[k] + rows[k]
    batch, channels = x.shape[:2]
    image = lz.arange(batch).reshape(-1, 1) * channels + lz.arange(channels)
    return image.reshape(batch, channels, *(1,) * n) * prod(w.extents) + at


def along(x: Tensor, axis: int, rank: int) -> Tensor:
    return x.reshape(*(-1 if k == axis else 1 for k in range(rank)))


@operator("LpPool", 1)
def lp_pool(
    _: Context, x: Tensor, *, kernel_shape: list[int], p: float = 2, strides: list[int] | None = None,
    dilations: list[int] | None = None, pads: list[int] | None = None, auto_pad: str = "NOTSET", ceil_mode: int = 0,
) -> Tensor:  # fmt: skip
    w = Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return _root(lz.sum(w.of(_power(x, p)), dim=tuple(range(x.ndim, 2 * x.ndim - 2))), p)


def _power(x: Tensor, p: float) -> Tensor:
    return lz.abs(x) if p == 1 else x * x if p == 2 else lz.abs(x) ** p


def _root(x: Tensor, p: float) -> Tensor:
    return x if p == 1 else lz.sqrt(x) if p == 2 else x ** (1 / p)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
def global_average_pool(_: Context, x: Tensor) -> Tensor:
    return lz.mean(x, dim=_spatial(x), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(_: Context, x: Tensor) -> Tensor:
    return lz.amax(x, dim=_spatial(x), keepdim=True)


@operator("GlobalLpPool", 1)
def global_lp_pool(_: Context, x: Tensor, *, p: float = 2) -> Tensor:
    return _root(lz.sum(_power(x, p), dim=_spatial(x), keepdim=True), p)


@operator("MaxUnpool", 9, host=True)
def max_unpool(
    _: Context, x: Any, indices: Any, output_shape: Any = None, *, kernel_shape: list[int], strides: list[int] | None = None,
    pads: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Positions count in the shape that follows from the windows; a larger output is zeros around it."""
    x, n = on_device(x), len(kernel_shape)
    strides, pads = strides or [1] * n, pads or [0] * 2 * n
    spatial = [
        (d - 1) * s - pads[k] - pads[n + k] + kernel_shape[k] for k, (d, s) in enumerate(zip(x.shape[2:], strides))
    ]
    shape = (*x.shape[:2], *spatial)
    flat = lz.zeros(prod(map(int, shape)), dtype=x.dtype)
    y = lz.reshape(lz.scatter(flat, 0, on_device(indices).reshape(-1), x.reshape(-1)), shape)
    if output_shape is None:
        return y
    return F.pad(y, [v for d, have in zip(integers(output_shape)[:1:-1], shape[:1:-1]) for v in (0, d - have)])
