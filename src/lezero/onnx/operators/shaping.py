"""Shapes, and moving elements: what decides a shape is a host value, so that it is known while recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.program import OnnxError, constant_value
from lezero.onnx.registry import Context, dimension, host_shape, integers, on_device, on_host, operator
from lezero.tensor import Tensor, tensor


def is_host(x: Any) -> bool:
    return isinstance(x, np.ndarray)


@operator("Shape", host=True)
def shape(_: Context, x: Any, *, start: int = 0, end: int | None = None) -> np.ndarray:
    return host_shape(list(x.shape)[slice(start, end)])


@operator("Size", host=True)
def size(_: Context, x: Any) -> np.ndarray:
    return np.array(int(np.prod([int(d) for d in x.shape], dtype=np.int64)))


@operator("Constant", host=True)
def constant(ctx: Context, **attributes: Any) -> Any:
    """Where a function's caller gives the value; others are constants of the graph (see ``program.py``)."""
    array = constant_value(replace(ctx.call, attributes=attributes))
    return array if array.dtype.kind in "iub" or array.dtype == object else on_device(array)


def _extents(shape: Any) -> list[int]:
    """A shape that has to be one; symbols are."""
    extents = integers(shape)
    negative = next((d for d in extents if type(d) is int and d < 0), None)
    if negative is not None:
        raise OnnxError(f"a shape has the extent {negative}")
    return extents


@operator("ConstantOfShape", host=True)
def constant_of_shape(_: Context, shape: Any, *, value: np.ndarray | None = None) -> Any:
    fill = np.zeros(1, np.float32) if value is None else value
    extents = _extents(shape)
    if fill.dtype.kind in "iub" and len(extents) <= 1:
        return np.full([int(d) for d in extents], fill[0], fill.dtype)
    return on_device(fill).expand(*extents).clone() if extents else on_device(fill.reshape(()))


def _reshaped(x: Any, shape: Any, allowzero: int = 0) -> Any:
    extents = [d if d != 0 or allowzero else x.shape[k] for k, d in enumerate(integers(shape))]
    return x.reshape(extents) if is_host(x) else lz.reshape(x, tuple(extents))


@operator("Reshape", 1, host=True)
def reshape_1(_: Context, x: Any, *, shape: list[int], consumed_inputs: Any = None) -> Any:
    return _reshaped(x, np.array(shape))


@operator("Reshape", 5, host=True)
def reshape(_: Context, x: Any, shape: Any, *, allowzero: int = 0) -> Any:
    return _reshaped(x, shape, allowzero)


@operator("Flatten")
def flatten(_: Context, x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod([int(d) for d in x.shape[:axis]], dtype=np.int64))
    return lz.reshape(
        x, (x.shape[0] if axis == 1 else rows, int(np.prod([int(d) for d in x.shape[axis:]], dtype=np.int64)))
    )


@operator("Transpose", host=True)
def transpose(_: Context, x: Any, *, perm: list[int] | None = None) -> Any:
    order = list(range(x.ndim))[::-1] if perm is None else perm
    return x.transpose(order) if is_host(x) else lz.permute(x, tuple(order))


def _squeezed(x: Any, axes: list[int] | None) -> Any:
    if axes is None:
        axes = [k for k, d in enumerate(x.shape) if d == 1]
    gone = {dimension(a, x.ndim) for a in axes}
    for a in gone:
        if x.shape[a] != 1:
            raise OnnxError(f"axis {a} of {list(x.shape)} cannot be squeezed: its extent is not 1")
    extents = [d for k, d in enumerate(x.shape) if k not in gone]
    return x.reshape(extents) if is_host(x) else lz.reshape(x, tuple(extents))


def _unsqueezed(x: Any, axes: list[int]) -> Any:
    rank = x.ndim + len(axes)
    new = {dimension(a, rank) for a in axes}
    if len(new) < len(axes):
        raise OnnxError(f"axes {axes} name one twice")
    rest = iter(x.shape)
    extents = [1 if k in new else next(rest) for k in range(rank)]
    return x.reshape(extents) if is_host(x) else lz.reshape(x, tuple(extents))


@operator("Squeeze", 1, host=True)
def squeeze_1(_: Context, x: Any, *, axes: list[int] | None = None) -> Any:
    return _squeezed(x, axes)


@operator("Squeeze", 13, host=True)
def squeeze(_: Context, x: Any, axes: Any = None) -> Any:
    return _squeezed(x, None if axes is None else integers(axes))


@operator("Unsqueeze", 1, host=True)
def unsqueeze_1(_: Context, x: Any, *, axes: list[int]) -> Any:
    return _unsqueezed(x, axes)


@operator("Unsqueeze", 13, host=True)
def unsqueeze(_: Context, x: Any, axes: Any) -> Any:
    return _unsqueezed(x, integers(axes))


@operator("Concat", host=True)
def concat(_: Context, *xs: Any, axis: int = 1) -> Any:
    if all(map(is_host, xs)):
        return np.concatenate(xs, axis)
    return lz.cat([on_device(x) for x in xs], axis)


@operator("Expand", host=True)
def expand(_: Context, x: Any, shape: Any) -> Any:
    wanted = _extents(shape)
    if is_host(x) and np.ndim(x) <= 1 and len(wanted) <= 1:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in wanted))).copy()
    x = on_device(x)
    rank = max(x.ndim, len(wanted))
    have = [1] * (rank - x.ndim) + list(x.shape)
    want = [1] * (rank - len(wanted)) + wanted
    return lz.broadcast_to(x, tuple(h if w == 1 else w for h, w in zip(have, want)))


@operator("Tile", 6, host=True)
def tile(_: Context, x: Any, repeats: Any) -> Any:
    times = _extents(repeats)
    if len(times) != x.ndim:
        raise OnnxError(f"{len(times)} numbers of repeats for {x.ndim} dimensions")
    return np.tile(x, [int(t) for t in times]) if is_host(x) else lz.tile(x, tuple(times))


@operator("Range", host=True)
def range_(_: Context, start: Any, limit: Any, delta: Any) -> Any:
    start, limit, delta = (on_host(v).reshape(()) for v in (start, limit, delta))
    if start.dtype.kind in "iuO":
        return np.arange(int(start), int(limit), int(delta)).astype(np.int64 if start.dtype == object else start.dtype)
    return tensor(np.arange(start, limit, delta).astype(start.dtype))


def _sliced(x: Any, starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None) -> Any:
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index = [slice(None)] * x.ndim
    flipped = []
    for start, end, axis, step in zip(starts, ends, axes, steps):
        axis, n = dimension(axis, x.ndim), x.shape[axis]
        if is_host(x) or step > 0:
            index[axis] = slice(start, None if step < 0 and end < -n else end, step)
        else:  # backwards: what is wanted forwards, then turned round
            chosen = range(*slice(start, None if end < -n else end, step).indices(int(n)))
            index[axis] = slice(chosen[-1], chosen[0] + 1, -step) if chosen else slice(0, 0)
            flipped.append(axis)
    x = x[tuple(index)]
    return lz.flip(x, tuple(flipped)) if flipped else x


@operator("Slice", 1, host=True)
def slice_1(_: Context, x: Any, *, starts: list[int], ends: list[int], axes: list[int] | None = None) -> Any:
    return _sliced(x, starts, ends, axes, None)


@operator("Slice", 10, host=True)
def slice_(_: Context, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    axes, steps = (None if v is None else integers(v) for v in (axes, steps))
    return _sliced(x, integers(starts), integers(ends), axes, steps)


def _split_at(x: Any, axis: int, sizes: list[int]) -> tuple[Any, ...]:
    if sum(map(int, sizes)) != int(x.shape[dimension(axis, x.ndim)]) or any(int(n) < 0 for n in sizes):
        raise OnnxError(f"parts of {[int(n) for n in sizes]} do not make up axis {axis} of {list(map(int, x.shape))}")
    out, at = [], 0
    for n in sizes:
        out.append(_sliced(x, [at], [at + n], [axis], None))
        at = at + n
    return tuple(out)


def _even(extent: int, parts: int) -> list[int]:
    size = -(-extent // parts)
    return [min(size, max(0, extent - k * size)) for k in range(parts)]


@operator("Split", 1, host=True)
def split_1(ctx: Context, x: Any, *, axis: int = 0, split: list[int] | None = None) -> tuple[Any, ...]:
    return _split_at(x, axis, split or _even(int(x.shape[axis]), len(ctx.call.outputs)))


@operator("Split", 13, host=True)
def split(ctx: Context, x: Any, sizes: Any = None, *, axis: int = 0, num_outputs: int | None = None) -> tuple[Any, ...]:
    even = sizes is None
    return _split_at(
        x, axis, _even(int(x.shape[axis]), num_outputs or len(ctx.call.outputs)) if even else integers(sizes)
    )


@operator("Gather", host=True)
def gather(_: Context, x: Any, indices: Any, *, axis: int = 0) -> Any:
    if is_host(x) and is_host(indices):
        return np.asarray(np.take(x, indices.astype(np.int64), axis))
    x = on_device(x)
    axis = dimension(axis, x.ndim)
    if is_host(indices) and indices.ndim == 0 and indices.dtype != object:
        return x.select(axis, int(indices))
    indices = on_device(indices)
    indices = lz.where(indices < 0, indices + x.shape[axis], indices).to(lz.int64)
    found = lz.index_select(x, axis, indices.reshape(-1))
    return lz.reshape(found, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
