"""Sliding windows, the basis of pooling and unfolding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lezero.ops.base import Composite, View, op
from lezero.ops.shaping import expand, reshape
from lezero.ops.slicing import both, span

GEOMETRY = {"axes": (), "strides": (), "dilations": (), "before": ()}


def window_counts(
    extents: Sequence[int], sizes: Any, strides: Any, dilations: Any, before: Any, after: Any
) -> tuple[int, ...]:
    """How many windows fit along each axis."""
    counts = []
    for d, k, s, l, b, a in zip(extents, sizes, strides, dilations, before, after):
        n = (d + b + a - l * (k - 1) - 1) // s + 1
        counts.append(n if n > 0 else 0)
    return tuple(counts)


def _replaced(shape: Sequence[int], axes: tuple[int, ...], extents: Sequence[int]) -> tuple[int, ...]:
    new = list(shape)
    for axis, d in zip(axes, extents):
        new[axis] = d
    return tuple(new)


@op("to_windows")
class to_windows(View):
    """Each trailing axis counts a place w in a window; along ``axes`` the result counts windows instead of elements:
    result[…c…, …w…] = x[…c * stride + w * dilation - before…, …w…], or `fill` outside x.
    """

    attrs = {**GEOMETRY, "counts": (), "fill": 0}
    shape_attrs = True

    def infer(x, axes, strides, dilations, before, counts, fill):
        return _replaced(x.shape, axes, counts), x.dtype

    def index(out, i, x, axes, strides, dilations, before, counts, fill):
        position, mask = list(i), None
        lead = len(out) - len(axes)
        for k, axis in enumerate(axes):
            p = i[axis] * strides[k] + i[lead + k] * dilations[k] - before[k]
            if before[k] > 0:
                mask = both(mask, p >= 0)
            reach = (counts[k] - 1) * strides[k] + (out[lead + k] - 1) * dilations[k] - before[k]
            if reach >= x.shape[axis]:
                mask = both(mask, p < x.shape[axis])
            position[axis] = p
        return [(0, tuple(position), mask)]

    def reference(x, axes, strides, dilations, before, counts, fill):
        lead = x.ndim - len(axes)
        y = np.full(_replaced(x.shape, axes, counts), fill, x.dtype)
        for w in np.ndindex(*x.shape[lead:]):
            read, write = _window_spans(x.shape, axes, strides, dilations, before, counts, w)
            y[(*write, *w)] = x[(*read, *w)]
        return y

    def gradient(dy, y, x, axes, strides, dilations, before, counts, fill):
        extents = tuple(x.shape[a] for a in axes)
        return from_windows(dy, axes=axes, strides=strides, dilations=dilations, before=before, extents=extents)


@op("from_windows")
class from_windows(View):
    """The adjoint of ``to_windows``: result[…p…, …w…] = x[…(p + before - w * dilation) / stride…, …w…] where that is a
    window, else 0.
    """

    attrs = {**GEOMETRY, "extents": ()}
    shape_attrs = True

    def infer(x, axes, strides, dilations, before, extents):
        return _replaced(x.shape, axes, extents), x.dtype

    def index(out, i, x, axes, strides, dilations, before, extents):
        position, mask = list(i), None
        lead = len(out) - len(axes)
        for k, axis in enumerate(axes):
            p = i[axis] + before[k] - i[lead + k] * dilations[k]
            c = p // strides[k] if strides[k] != 1 else p
            mask = both(mask, (p >= 0) & (c < x.shape[axis]))
            if strides[k] != 1:
                mask = both(mask, p % strides[k] == 0)
            position[axis] = c
        return [(0, tuple(position), mask)]

    def reference(x, axes, strides, dilations, before, extents):
        lead = x.ndim - len(axes)
        y = np.zeros(_replaced(x.shape, axes, extents), x.dtype)
        counts = tuple(x.shape[a] for a in axes)
        for w in np.ndindex(*x.shape[lead:]):
            write, read = _window_spans(y.shape, axes, strides, dilations, before, counts, w)
            y[(*write, *w)] = x[(*read, *w)]
        return y

    def gradient(dy, y, x, axes, strides, dilations, before, extents):
        counts = tuple(x.shape[a] for a in axes)
        return to_windows(dy, axes=axes, strides=strides, dilations=dilations, before=before, counts=counts)


def _window_spans(
    shape: Any, axes: Any, strides: Any, dilations: Any, before: Any, counts: Any, w: tuple
) -> tuple[list, list]:
    """For place w in the windows, the slices of elements and of windows that meet (without the trailing axes)."""
    elements = [span(0, d) for d in shape[: len(shape) - len(axes)]]
    windows = list(elements)
    for k, axis in enumerate(axes):
        first = w[k] * dilations[k] - before[k]  # the element that window 0 has there
        low = max(0, -(first // strides[k]))
        high = max(low, min(counts[k], -((first - shape[axis]) // strides[k])))
        windows[axis] = span(low, high)
        start = first + low * strides[k]
        elements[axis] = np.s_[start : start + (high - low) * strides[k] : strides[k]] if high > low else np.s_[0:0]
    return elements, windows


@op("window")
class window(Composite):
    """Sliding windows: ``axes`` count windows, and a new trailing axis for each of them counts the places in a window.

    Parameters
    ----------
    x : any shape and dtype
    axes, sizes, strides, dilations, before, after : one int per axis
        Windows of `sizes` elements, `dilations` apart, start every `strides` elements of x with `before` and `after`
        elements of `fill` around it.
    fill : number
    """

    attrs = {"axes": (), "sizes": (), "strides": (), "dilations": (), "before": (), "after": (), "fill": 0}
    shape_attrs = True

    def infer(x, axes, sizes, strides, dilations, before, after, fill):
        if not len(axes) == len(sizes) == len(strides) == len(dilations) == len(before) == len(after):
            raise ValueError("window: one size, stride, dilation and width before and after per axis are needed")
        counts = window_counts([x.shape[a] for a in axes], sizes, strides, dilations, before, after)
        return (*_replaced(x.shape, axes, counts), *sizes), x.dtype

    def decompose(x, axes, sizes, strides, dilations, before, after, fill):
        shape = tuple(x.shape)
        counts = window_counts([x.shape[a] for a in axes], sizes, strides, dilations, before, after)
        spread = expand(reshape(x, shape=(*shape, *(1 for _ in sizes))), shape=(*shape, *sizes))
        return to_windows(
            spread, axes=axes, strides=strides, dilations=dilations, before=before, counts=counts, fill=fill
        )

    def reference(x, axes, sizes, strides, dilations, before, after, fill):
        counts = window_counts([x.shape[a] for a in axes], sizes, strides, dilations, before, after)
        spread = np.broadcast_to(x.reshape(*x.shape, *(1 for _ in sizes)), (*x.shape, *sizes))
        return to_windows.reference(spread, axes, strides, dilations, before, counts, fill)

    def gradient(dy, y, x, axes, sizes, strides, dilations, before, after, fill):
        from lezero.ops.reduce import sum

        extents = tuple(x.shape[a] for a in axes)
        spread = from_windows(dy, axes=axes, strides=strides, dilations=dilations, before=before, extents=extents)
        rank = len(x.shape)
        return sum(spread, axes=tuple(range(rank, rank + len(sizes))))
