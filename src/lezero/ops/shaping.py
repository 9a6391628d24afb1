"""Views of whole tensors: the same elements in another shape, order or place; see ``base.View`` for the rule ``index``."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lezero.graph.dim import same
from lezero.ops.base import View, broadcast_shapes, op


def blocks(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[range, range]]:
    """Runs of axes of two shapes that hold the same elements, cut as finely as is true for every symbolic extent."""
    cuts, j0, k0 = [], 0, 0
    size_a = 1
    for j, d in enumerate(a, 1):
        size_a = size_a * d
        size_b = 1
        for k in range(k0 + 1, len(b) + 1):
            size_b = size_b * b[k - 1]
            if same(size_a, size_b):
                cuts.append((range(j0, j), range(k0, k)))
                j0, k0, size_a = j, k, 1
                break
    if j0 < len(a) or k0 < len(b):
        cuts.append((range(j0, len(a)), range(k0, len(b))))
    return cuts


@op("reshape", onnx="Reshape")
class reshape(View):
    """The same elements in row-major order, in another shape.

    Parameters
    ----------
    shape : tuple of int, with the same product as x's (-1 is resolved before, see ``resolved_shape``)
    """

    attrs = {"shape": ()}
    shape_attrs = True

    def infer(x, shape):
        if prod(x.shape) != prod(shape):
            raise ValueError(
                f"reshape: a tensor of shape {tuple(x.shape)} has {prod(x.shape)} elements, which shape {shape} does not hold"
            )
        return shape, x.dtype

    def index(out, i, x, shape):
        position: list[Any] = [0] * len(x.shape)
        if any(same(d, 0) for d in x.shape):  # no elements, and nothing to divide by
            return [(0, tuple(position), None)]
        for from_axes, to_axes in blocks(tuple(x.shape), tuple(out)):
            linear: Any = 0
            for k in to_axes:
                linear = i[k] if k == to_axes[0] else linear * out[k] + i[k]
            for j in reversed(from_axes):
                if j == from_axes[0]:
                    position[j] = linear
                else:
                    position[j] = linear % x.shape[j]
                    linear = linear // x.shape[j]
        return [(0, tuple(position), None)]

    def reference(x, shape):
        return np.reshape(x, shape)

    def gradient(dy, y, x, shape):
        return reshape(dy, shape=tuple(x.shape))


def resolved_shape(shape: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    """A shape in which the one -1 is replaced by what makes the element counts agree."""
    unknown = [k for k, d in enumerate(shape) if d == -1]
    if not unknown:
        return tuple(shape)
    known = prod(d for d in shape if d != -1)
    if len(unknown) > 1 or known == 0 or prod(old) % known != 0:
        raise ValueError(
            f"reshape: shape {tuple(shape)} leaves no whole extent for -1 in a tensor of shape {tuple(old)}"
        )
    return tuple(prod(old) // known if k == unknown[0] else d for k, d in enumerate(shape))


@op("permute", onnx="Transpose")
class permute(View):
    """Axes in another order: axis k of the result is axis ``axes[k]`` of x."""

    attrs = {"axes": ()}

    def infer(x, axes):
        if sorted(axes) != list(range(len(x.shape))):
            raise ValueError(f"permute: {axes} is not an order of the {len(x.shape)} axes of shape {tuple(x.shape)}")
        return tuple(x.shape[a] for a in axes), x.dtype

    def index(out, i, x, axes):
        return [(0, tuple(i[axes.index(a)] for a in range(len(axes))), None)]

    def reference(x, axes):
        return np.transpose(x, axes)

    def gradient(dy, y, x, axes):
        return permute(dy, axes=tuple(axes.index(a) for a in range(len(axes))))


@op("expand", onnx="Expand")
class expand(View):
    """Extents of 1 repeated, and new axes put in front."""

    attrs = {"shape": ()}
    shape_attrs = True

    def infer(x, shape):
        if len(shape) < len(x.shape) or broadcast_shapes("expand", x.shape, shape) != tuple(shape):
            raise ValueError(f"expand: shape {tuple(x.shape)} does not expand to {shape}; only extents of 1 can grow")
        return shape, x.dtype

    def index(out, i, x, shape):
        lead = len(out) - len(x.shape)
        return [(0, tuple(0 if same(d, 1) else i[lead + a] for a, d in enumerate(x.shape)), None)]

    def reference(x, shape):
        return np.broadcast_to(x, shape)

    def gradient(dy, y, x, shape):
        from lezero.ops.reduce import sum

        lead = len(shape) - len(x.shape)
        grown = tuple(a for a, d in enumerate(shape) if a < lead or (same(x.shape[a - lead], 1) and not same(d, 1)))
        return (
            reshape(sum(dy, axes=grown, keepdim=True), shape=tuple(x.shape))
            if grown
            else reshape(dy, shape=tuple(x.shape))
        )


@op("flip")
class flip(View):
    """The order reversed along `axes`."""

    attrs = {"axes": ()}

    def infer(x, axes):
        return x.shape, x.dtype

    def index(out, i, x, axes):
        return [(0, tuple(out[a] - 1 - p if a in axes else p for a, p in enumerate(i)), None)]

    def reference(x, axes):
        return np.flip(x, axes)

    def gradient(dy, y, x, axes):
        return flip(dy, axes=axes)


@op("roll")
class roll(View):
    """Elements moved on by `shifts` along `axes`; those that leave at the end come back at the start."""

    attrs = {"shifts": (), "axes": ()}
    shape_attrs = True

    def infer(x, shifts, axes):
        if len(shifts) != len(axes):
            raise ValueError(f"roll: one shift per axis is needed, got {shifts} for {axes}")
        return x.shape, x.dtype

    def index(out, i, x, shifts, axes):
        position = list(i)
        for shift, axis in zip(shifts, axes):
            position[axis] = (position[axis] + (-shift) % out[axis]) % out[axis] if out[axis] else position[axis]
        return [(0, tuple(position), None)]

    def reference(x, shifts, axes):
        return np.roll(x, shifts, axes) if axes else x

    def gradient(dy, y, x, shifts, axes):
        return roll(dy, shifts=tuple(-s for s in shifts), axes=axes)


@op("later")
class later(View):
    """x as it is, for what must not be computed before `token` is there (``schedule/recompute.py``); nothing is moved."""

    def infer(x, token):
        return tuple(x.shape), x.dtype

    def index(out, i, x, token):
        return [(0, tuple(i), None)]

    def reference(x, token):
        return x

    def gradient(dy, y, x, token):
        return dy, None
