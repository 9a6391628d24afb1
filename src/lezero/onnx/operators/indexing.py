"""Gathering, scattering, sorting, padding and what else picks elements by position."""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.program import OnnxError, numpy_dtype
from lezero.onnx.registry import Context, dimension, integers, on_device, on_host, operator
from lezero.tensor import Tensor, tensor


def counted(indices: Tensor, extent: int) -> Tensor:
    """Indices with those that count from the end made to count from the beginning."""
    return lz.where(indices < 0, indices + extent, indices).to(lz.int64)


@operator("GatherElements")
def gather_elements(_: Context, x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return lz.gather(x, axis, counted(indices, x.shape[axis]))


def _flat_positions(indices: Tensor, extents: list[int]) -> Tensor:
    """Row-major positions of index tuples in the last dimension."""
    at: Any = 0
    for k, extent in enumerate(extents):
        at = at * extent + counted(indices.select(-1, k), extent)
    return at


@operator("GatherND")
def gather_nd(_: Context, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    lead, depth = list(x.shape[:batch_dims]), int(indices.shape[-1])
    inner, rest = list(x.shape[batch_dims : batch_dims + depth]), list(x.shape[batch_dims + depth :])
    batches, rows = int(np.prod([int(d) for d in lead])), int(np.prod([int(d) for d in inner]))
    at = lz.reshape(_flat_positions(indices, inner), (batches, -1)) + lz.arange(batches).reshape(-1, 1) * rows
    found = lz.index_select(lz.reshape(x, (batches * rows, *rest)), 0, lz.reshape(at, (-1,)))
    return lz.reshape(found, (*indices.shape[:-1], *rest))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scattered(x: Tensor, axis: int, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    indices = counted(indices, x.shape[axis])
    if reduction == "none":
        return lz.scatter(x, axis, indices, updates)
    return lz.scatter_reduce(x, axis, indices, updates, _REDUCTIONS[reduction])


@operator("Scatter", 9)
@operator("ScatterElements", 11)
def scatter_elements(
    _: Context, x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    return _scattered(x, dimension(axis, x.ndim), indices, updates, reduction)


@operator("ScatterND")
def scatter_nd(_: Context, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = int(indices.shape[-1])
    inner, rest = list(x.shape[:depth]), list(x.shape[depth:])
    width = int(np.prod([int(d) for d in rest]))
    at = lz.reshape(_flat_positions(indices, inner), (-1, 1)) * width + lz.arange(width).reshape(1, -1)
    flat = _scattered(lz.reshape(x, (-1,)), 0, lz.reshape(at, (-1,)), lz.reshape(updates, (-1,)), reduction)
    return lz.reshape(flat, tuple(x.shape))


@operator("TensorScatter", 24, host=True)
def tensor_scatter(
    _: Context, past: Any, update: Any, write_indices: Any = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """A cache with new rows of each sample from its own position on; a circular one goes on from its beginning."""
    past, update = on_device(past), on_device(update)
    axis = dimension(axis, past.ndim)
    at = lz.arange(update.shape[axis]).reshape([-1 if k == axis else 1 for k in range(past.ndim)])
    if write_indices is not None:
        at = at + on_device(write_indices).to(lz.int64).reshape([-1] + [1] * (past.ndim - 1))
    if mode == "circular":
        at = at % past.shape[axis]
    return lz.scatter(past, axis, lz.broadcast_to(at, tuple(update.shape)), update)


@operator("TopK", 1, host=True)
def top_k_1(_: Context, x: Any, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    return _top(on_device(x), k, axis, True)


@operator("TopK", 10, host=True)
def top_k(_: Context, x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    return _top(on_device(x), integers(k)[0], axis, bool(largest))


def _top(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Equal elements in the order in which they stand."""
    values, places = lz.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, int(k)), places.narrow(axis, 0, int(k))


@operator("NonZero")
def non_zero(_: Context, x: Tensor) -> Tensor:
    return lz.nonzero(x).t().contiguous()


@operator("Compress")
def compress(_: Context, x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    places = lz.nonzero(condition).reshape(-1)
    return lz.index_select(lz.reshape(x, (-1,)) if axis is None else x, axis or 0, places)


@operator("OneHot", 9)
def one_hot(_: Context, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    n = int(integers(depth)[0])
    at = counted(indices, n).unsqueeze(axis)
    extents = [1] * at.ndim
    extents[axis] = n
    off, on = values.select(0, 0), values.select(0, 1)
    return lz.where(at == lz.arange(n).reshape(extents), on, off)


@operator("EyeLike")
def eye_like(_: Context, x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = x.shape
    chosen = x.dtype if dtype is None else tensor(np.empty(0, numpy_dtype(dtype))).dtype
    return (lz.arange(columns).reshape(1, -1) - lz.arange(rows).reshape(-1, 1) == k).to(chosen)


@operator("Trilu", host=True)
def trilu(_: Context, x: Any, k: Any = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(integers(k)[0])
    return (lz.triu if upper else lz.tril)(on_device(x), diagonal)


def _accumulated(name: str, f: Any, nothing: int) -> None:
    @operator(name, host=True)
    def call(_: Context, x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        x, a = on_device(x), dimension(int(integers(axis)[0]), x.ndim)
        if reverse:
            x = lz.flip(x, (a,))
        if exclusive:
            n = x.shape[a]
            first = lz.full(tuple(1 if k == a else d for k, d in enumerate(x.shape)), nothing, dtype=x.dtype)
            x = lz.cat([first, x.narrow(a, 0, n - 1)], a)
        y = f(x, a).to(x.dtype)
        return lz.flip(y, (a,)) if reverse else y


_accumulated("CumSum", lz.cumsum, 0)
_accumulated("CumProd", lz.cumprod, 1)


@operator("ReverseSequence")
def reverse_sequence(_: Context, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    at = lz.arange(x.shape[time_axis])
    at = at.reshape([-1 if k == time_axis else 1 for k in range(x.ndim)])
    n = lengths.reshape([-1 if k == batch_axis else 1 for k in range(x.ndim)])
    return lz.gather(x, time_axis, lz.broadcast_to(lz.where(at < n, n - 1 - at, at), tuple(x.shape)))


# -- padding ----------------------------------------------------------------------------------------------------------


@operator("Pad", 1)
def pad_1(
    _: Context, x: Tensor, *, paddings: list[int] | None = None, pads: list[int] | None = None, mode: str = "constant",
    value: float = 0.0,
) -> Tensor:  # fmt: skip
    return _padded(x, pads if paddings is None else paddings, list(range(x.ndim)), mode, value)


@operator("Pad", 11, host=True, fixed=(2,))
def pad(_: Context, x: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant") -> Tensor:
    x = on_device(x)
    where = list(range(x.ndim)) if axes is None else [dimension(int(a), x.ndim) for a in integers(axes)]
    number = 0 if value is None else np.asarray(on_host(value)).reshape(()).item()
    return _padded(x, integers(pads), where, mode, number)


def _padded(x: Tensor, pads: Any, axes: list[int], mode: str, value: Any) -> Tensor:
    n = len(axes)
    if len(pads) != 2 * n:
        raise OnnxError(f"{len(pads)} numbers of padding for {n} axes, of which each has two sides")
    for axis, before, after in zip(axes, pads[:n], pads[n:]):
        x = _padded_axis(x, axis, int(before), int(after), mode, value)
    return x


def _padded_axis(x: Tensor, axis: int, before: int, after: int, mode: str, value: Any) -> Tensor:
    extent = int(x.shape[axis])
    if before < 0 or after < 0:
        first, last = max(0, -before), extent - max(0, -after)
        x = x.narrow(axis, first, max(0, last - first))
        return _padded_axis(x, axis, max(0, before), max(0, after), mode, value)
    if not before and not after:
        return x
    if mode == "constant":
        sides = [0, 0] * (x.ndim - 1 - axis) + [before, after]
        return F.pad(x, sides, value=value)
    at = np.arange(-before, extent + after)
    if mode == "edge":
        at = at.clip(0, extent - 1)
    elif mode == "wrap":
        at %= extent
    elif mode == "reflect":
        period = max(1, 2 * extent - 2)
        at = np.abs(at) % period
        at = np.where(at >= extent, period - at, at)
    else:
        raise OnnxError(f"padding mode {mode!r} is not known")
    return lz.index_select(x, axis, tensor(at))


# -- blocks -----------------------------------------------------------------------------------------------------------


@operator("DepthToSpace")
def depth_to_space(_: Context, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        y = lz.permute(lz.reshape(x, (n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = lz.permute(lz.reshape(x, (n, c // (b * b), b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return lz.reshape(y, (n, c // (b * b), h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(_: Context, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    y = lz.reshape(x, (n, c, h // b, b, w // b, b))
    y = lz.permute(y, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return lz.reshape(y, (n, c * b * b, h // b, w // b))


@operator("Unique", host=True)
def unique(_: Context, x: Any, *, axis: int | None = None, sorted: int = 1) -> tuple[Any, ...]:
    """How many results there are depends on values, so this is computed at once."""
    array = np.asarray(on_host(x))
    values, first, inverse, times = np.unique(array, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values, first, times = np.take(values, order, 0 if axis is None else axis), first[order], times[order]
        inverse = rank[inverse]
    return tuple(on_device(v) for v in (values, first, inverse, times))


@operator("Einsum")
def einsum(_: Context, *xs: Tensor, equation: str) -> Tensor:
    return lz.einsum(equation, *xs)


@operator("CenterCropPad", host=True)
def center_crop_pad(_: Context, x: Any, shape: Any, *, axes: list[int] | None = None) -> Tensor:
    x = on_device(x)
    for axis, wanted in zip(range(x.ndim) if axes is None else axes, integers(shape)):
        axis = dimension(axis, x.ndim)
        extent, n = int(x.shape[axis]), int(wanted)
        if extent > n:
            x = x.narrow(axis, (extent - n) // 2, n)
        elif extent < n:
            x = _padded_axis(x, axis, (n - extent) // 2, n - extent - (n - extent) // 2, "constant", 0)
    return x
