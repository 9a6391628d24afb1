"""Pooling over windows: maximum, average, and average over adaptive bins.

The operations act on the last ``len(kernel)`` dimensions, so one definition serves 1-D and 2-D.  All of them come apart into
views and reductions: a forward pass reduces ``window``, a gradient reduces its adjoint ``from_windows``, which shows every
input position the windows it lies in.  Nothing is scattered.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from lezero.graph.dim import same
from lezero.graph.dtype import int64, uint8
from lezero.ops.base import Composite, View, op
from lezero.ops.creation import arange, number_of
from lezero.ops.elementwise import cast, maximum, minimum, where
from lezero.ops.matmul import matmul
from lezero.ops.movement import expand, permute, reshape
from lezero.ops.reduce import ArgExtreme, max, mean, sum
from lezero.ops.rules import along, narrow, need_floating, shown, wide, widen
from lezero.ops.windows import from_windows, window

_WINDOWS = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "ceil_mode": False}


def pooled_shape(name, spatial, kernel, stride, padding, dilation, ceil_mode):
    """How many windows there are in each dimension (PyTorch's rule).

    With `ceil_mode` the last window may reach over the padded end, as long as it starts before the right padding.
    """
    if any(k < 1 for k in kernel) or any(s < 1 for s in stride) or any(d < 1 for d in dilation):
        raise ValueError(f"{name}: kernel {kernel}, stride {stride} and dilation {dilation} have to be 1 or more")
    if any(p < 0 or 2 * p > k for p, k in zip(padding, kernel)):
        raise ValueError(f"{name}: padding {padding} has to be between 0 and half of the kernel {kernel}")
    out = []
    for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation):
        room = n + 2 * p - d * (k - 1) - 1
        extent = (room + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (extent - 1) * s >= n + p:
            extent = extent - 1
        out.append(extent)
    if any(o < 1 for o in out):
        raise ValueError(
            f"{name}: no window of {kernel} (dilation {dilation}) fits in {shown(spatial)} padded by {padding}; "
            f"use a smaller kernel or more padding"
        )
    return tuple(out)


def _check(name, x, kernel, *others):
    n = len(kernel)
    if len(x.shape) < n or any(len(o) != n for o in others):
        raise ValueError(f"{name}: {n} spatial dimensions are pooled, got {shown(x.shape)} with {(kernel, *others)}")


def _padding_after(spatial, windows, kernel, stride, padding, dilation):
    """Padding behind the data so that every window is inside; a stride may also leave some of the data unused."""
    after = []
    for n, w, k, s, p, d in zip(spatial, windows, kernel, stride, padding, dilation):
        need = (w - 1) * s + d * (k - 1) + 1 - n - p
        after.append(need if need > 0 else 0)
    return tuple(after)


def _windows(x, value, kernel, stride, padding, dilation, ceil_mode):
    """(*batch, *windows, *kernel): what each window sees, `value` outside the data."""
    n = len(kernel)
    spatial = x.shape[len(x.shape) - n :]
    windows = pooled_shape("pool", spatial, kernel, stride, padding, dilation, ceil_mode)
    after = _padding_after(spatial, windows, kernel, stride, padding, dilation)
    around = {"before": tuple(padding), "after": after, "fill": value}
    return window(x, axes=_last(x, n), sizes=kernel, strides=stride, dilations=dilation, **around)


def _numpy_windows(x, value, kernel, stride, padding, dilation, ceil_mode):
    n = len(kernel)
    lead, spatial = x.ndim - n, x.shape[-n:]
    windows = pooled_shape("pool", spatial, kernel, stride, padding, dilation, ceil_mode)
    after = _padding_after(spatial, windows, kernel, stride, padding, dilation)
    padded = np.pad(x, [(0, 0)] * lead + list(zip(padding, after)), constant_values=value)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    seen = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(-n, 0)))
    starts = tuple(np.s_[: (w - 1) * s + 1 : s] for w, s in zip(windows, stride))
    return seen[(..., *starts, *(np.s_[::d] for d in dilation))]


def _spread(dy, extents, kernel, stride, padding, dilation):
    """(*batch, *extents, *kernel): for every position and tap, the value of the window that sees the one through the other."""
    n = len(kernel)
    dy = expand(_with_taps(dy, kernel), shape=(*dy.shape, *kernel))
    axes = tuple(range(len(dy.shape) - 2 * n, len(dy.shape) - n))
    return from_windows(dy, axes=axes, strides=stride, dilations=dilation, before=padding, extents=extents)


def _numpy_spread(dy, extents, kernel, stride, padding, dilation):
    n = len(kernel)
    windows, batch = dy.shape[-n:], dy.shape[:-n]
    reach = [(w - 1) * s + d * (k - 1) + 1 for w, s, d, k in zip(windows, stride, dilation, kernel)]
    room = [r if r > e + p else e + p for r, e, p in zip(reach, extents, padding)]
    out = np.zeros((*batch, *room, *kernel), dy.dtype)
    for tap in product(*map(range, kernel)):
        at = [np.s_[t * d : t * d + (w - 1) * s + 1 : s] for t, d, w, s in zip(tap, dilation, windows, stride)]
        out[(..., *at, *tap)] = dy
    return out[(..., *(np.s_[p : p + e] for p, e in zip(padding, extents)), *(np.s_[:],) * n)]


def _taps(x, kernel):
    """The kernel's taps numbered in row-major order, in the kernel's shape."""
    return reshape(arange(start=0, stop=prod(kernel), step=1, dtype=int64, like=x), shape=tuple(kernel))


def _last(x, n):
    """The last n axes."""
    return tuple(range(len(x.shape) - n, len(x.shape)))


def _with_taps(x, kernel):
    """One axis of extent 1 for each of the kernel's, behind the others."""
    return reshape(x, shape=(*x.shape, *(1,) * len(kernel)))


@op("max_pool", onnx="MaxPool")
class max_pool(Composite):
    """The largest value in each window; NaN if there is one.

    Parameters
    ----------
    x : (*batch, *spatial), with as many spatial dimensions as the kernel has; any real dtype
    kernel, stride, dilation : tuple of int
    padding : tuple of int
        On both sides, at most half of the kernel; padding never is the maximum.
    ceil_mode : bool
        Keep a last window that reaches over the end.

    Returns
    -------
    (*batch, *windows)
    """

    attrs = dict(_WINDOWS)
    keeps = ("x",)

    def infer(x, kernel, stride, padding, dilation, ceil_mode):
        _check("max_pool", x, kernel, stride, padding, dilation)
        n = len(kernel)
        spatial = tuple(x.shape[len(x.shape) - n :])
        return (
            *x.shape[:-n],
            *pooled_shape("max_pool", spatial, kernel, stride, padding, dilation, ceil_mode),
        ), x.dtype

    def reference(x, **windows):
        n = len(windows["kernel"])
        return _numpy_windows(wide(x), _lowest(x.dtype), **windows).max(tuple(range(-n, 0)))

    def decompose(x, **windows):
        if apart := _apart(**windows):
            return max_pool(max_pool(x, **apart[0]), **apart[1])
        seen = _windows(x, _lowest(x.dtype.numpy), **windows)
        return max(seen, axes=_last(seen, len(windows["kernel"])), keepdim=False)

    def gradient(dy, y, x, **windows):
        if apart := _apart(**windows):
            rows = max_pool(x, **apart[0])
            return max_pool.gradient(max_pool.gradient(dy, y, rows, **apart[1]), rows, x, **apart[0])
        extents = tuple(x.shape[-len(windows["kernel"]) :])
        index = max_pool_index(x, **windows)
        if prod(windows["kernel"]) <= 256:
            index = cast(index, dtype=uint8)  # kept until the gradient is taken
        return max_pool_grad(dy, index, extents=extents, **windows)


APART = 4
"""How much less there has to be to do for two pools, one dimension after the other, to be better than one in one kernel."""


def _apart(kernel, stride, padding, dilation, ceil_mode):
    """Large windows as pools one after the other, of the last dimension and of the others; None for other windows.

    The maximum of maxima is the maximum, and in this order the first of equal ones, and the last NaN, in row-major order.
    """
    others = prod(kernel[:-1])
    if kernel[-1] * others <= APART * (kernel[-1] * prod(stride[:-1]) + others):
        return None
    given = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    alone = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
    last = {name: (*[alone[name]] * (len(kernel) - 1), v[-1]) for name, v in given.items()}
    before = {name: (*v[:-1], alone[name]) for name, v in given.items()}
    return {**last, "ceil_mode": ceil_mode}, {**before, "ceil_mode": ceil_mode}


def _lowest(dtype):
    return np.iinfo(dtype).min if dtype.kind in "iu" else -float("inf")


def _geometry(windows, kernel, stride, padding, dilation, ceil_mode):
    """Of each dimension: how many windows, kernel, stride, padding, dilation."""
    return zip(windows, kernel, stride, padding, dilation)


def _numpy_window_argmax(x):
    """Along the last axis."""
    last_nan = x.shape[-1] - 1 - np.isnan(x)[..., ::-1].argmax(-1)
    return np.where(np.isnan(x).any(-1), last_nan, x.argmax(-1))


@op("window_argmax")
class window_argmax(ArgExtreme):
    """int64 position of the greatest element along one axis: the first of equal ones, the last of several NaN."""

    reduction = "argmax_of_window"

    def reference(x, axes, keepdim):
        at = _numpy_window_argmax(np.moveaxis(wide(x), axes[0], -1))
        return np.expand_dims(at, axes[0]) if keepdim else at


@op("max_pool_index")
class max_pool_index(Composite):
    """Which tap of its kernel each window's maximum is at, in row-major order; the first of equal ones, the last of NaNs.

    It is never a tap on padding (PyTorch's rules).

    Parameters and result's shape are those of :data:`max_pool`; the dtype is int64.
    """

    attrs = dict(_WINDOWS)
    differentiable = False

    def infer(x, **windows):
        return max_pool.infer(x, **windows)[0], int64

    def reference(x, **windows):
        n = len(windows["kernel"])
        seen = _numpy_windows(wide(x), _lowest(x.dtype), **windows)
        index = _numpy_window_argmax(seen.reshape(*seen.shape[:-n], prod(windows["kernel"])))
        first = 0
        for w, k, s, p, d in _geometry(seen.shape[-2 * n : -n], **windows):
            first = np.asarray(first)[..., None] * k + np.maximum(-((np.arange(w) * s - p) // d), 0)
        return np.where(seen.max(tuple(range(-n, 0))) == _lowest(x.dtype), first, index)

    def decompose(x, **windows):
        if apart := _apart(**windows):
            across, down = apart
            row = max_pool_index(max_pool(x, **across), **down)
            return row * windows["kernel"][-1] + max_pool_pick(max_pool_index(x, **across), row, **down)
        n, lowest = len(windows["kernel"]), _lowest(x.dtype.numpy)
        seen = _windows(x, lowest, **windows)
        lead = len(seen.shape) - n
        taps = reshape(seen, shape=(*seen.shape[:lead], prod(windows["kernel"])))
        index = window_argmax(taps, axes=(lead,), keepdim=False)
        if not any(windows["padding"]):
            return index
        first: Any = 0
        for axis, (w, k, s, p, d) in enumerate(_geometry(seen.shape[lead - n : lead], **windows)):
            start = arange(start=0, stop=w, step=1, dtype=int64, like=x) * s - p
            first = first * k + along(maximum(-(start // d), 0), axis, n)
        return where(max(taps, axes=(lead,), keepdim=False) == lowest, first, index)


@op("repeat_blocks")
class repeat_blocks(View):
    """Each element of the last dimensions as a block: what a window's value is to the positions of windows that tile.

    Parameters
    ----------
    x : (*batch, *windows)
    extents : the extents of the result's last dimensions, windows * kernel
    kernel : the blocks' extents
    """

    attrs = {"extents": (), "kernel": ()}
    shape_attrs = True

    def infer(x, extents, kernel):
        return (*x.shape[: len(x.shape) - len(kernel)], *extents), x.dtype

    def index(out, i, x, extents, kernel):
        lead = len(out) - len(kernel)
        return [(0, (*i[:lead], *(p // k for p, k in zip(i[lead:], kernel))), None)]

    def reference(x, extents, kernel):
        for axis, k in zip(range(-len(kernel), 0), kernel):
            x = np.repeat(x, k, axis)
        return x

    def gradient(dy, y, x, extents, kernel):
        lead = tuple(x.shape[: len(x.shape) - len(kernel)])
        blocks = tuple(d for w, k in zip(x.shape[len(lead) :], kernel) for d in (w, k))
        axes = tuple(len(lead) + 2 * j + 1 for j in range(len(kernel)))
        return sum(reshape(dy, shape=(*lead, *blocks)), axes=axes, keepdim=False)


def _tiles(x, extents, kernel, stride, padding, dilation):
    """Whether the windows of `x` lie side by side and cover everything, each position in one of them."""
    return (
        tuple(stride) == tuple(kernel)
        and not any(padding)
        and all(d == 1 for d in dilation)
        and all(same(n, w * k) for n, w, k in zip(extents, x.shape[len(x.shape) - len(kernel) :], kernel))
    )


@op("max_pool_grad")
class max_pool_grad(Composite):
    """The gradient of :data:`max_pool`: each input position collects from the windows whose maximum it is.

    Parameters
    ----------
    dy : (*batch, *windows)
    index : (*batch, *windows), of :data:`max_pool_index`
    extents : the spatial extents of the input
    kernel, stride, padding, dilation, ceil_mode : the pooling's
    """

    attrs = {"extents": (), **_WINDOWS}
    shape_attrs = True
    keeps = ("index",)

    def infer(dy, index, extents, **windows):
        return (*dy.shape[: len(dy.shape) - len(extents)], *extents), dy.dtype

    def reference(dy, index, extents, ceil_mode, **windows):
        kernel = windows["kernel"]
        value = _numpy_spread(wide(dy), extents, **windows)
        tap = _numpy_spread(index, extents, **windows)
        chosen = tap == np.arange(prod(kernel)).reshape(kernel)
        return np.where(chosen, value, 0).sum(tuple(range(-len(kernel), 0)))

    def decompose(dy, index, extents, ceil_mode, **windows):
        kernel = windows["kernel"]
        if _tiles(dy, extents, **windows):
            here: Any = 0
            for axis, (n, k) in enumerate(zip(extents, kernel)):
                position = cast(arange(start=0, stop=n, step=1, dtype=int64, like=dy) % k, dtype=index.dtype)
                here = here * k + along(position, axis, len(kernel))
            blocks = {"extents": extents, "kernel": kernel}
            return where(repeat_blocks(index, **blocks) == here, repeat_blocks(dy, **blocks), 0)
        value = _spread(dy, extents, **windows)
        tap = _spread(index, extents, **windows)
        return sum(where(tap == _taps(dy, kernel), value, 0), axes=_last(value, len(kernel)), keepdim=False)

    def gradient(g, y, dy, index, extents, **windows):
        return max_pool_pick(g, index, **windows), None


@op("max_pool_pick")
class max_pool_pick(Composite):
    """The value in each window at a given tap: the gradient of :data:`max_pool_grad`, and its adjoint.

    Parameters
    ----------
    x : (*batch, *spatial)
    index : (*batch, *windows), of :data:`max_pool_index`
    kernel, stride, padding, dilation, ceil_mode : the pooling's
    """

    attrs = dict(_WINDOWS)
    keeps = ("index",)

    def infer(x, index, **windows):
        return tuple(index.shape), x.dtype

    def reference(x, index, **windows):
        n = len(windows["kernel"])
        seen = _numpy_windows(x, 0, **windows)
        seen = seen.reshape(*seen.shape[:-n], prod(windows["kernel"]))
        return np.take_along_axis(seen, index[..., None], -1)[..., 0]

    def decompose(x, index, **windows):
        kernel = windows["kernel"]
        seen = _windows(x, 0, **windows)
        chosen = _with_taps(index, kernel) == _taps(x, kernel)
        return sum(where(chosen, seen, 0), axes=_last(seen, len(kernel)), keepdim=False)

    def gradient(g, y, x, index, **windows):
        return max_pool_grad(g, index, extents=tuple(x.shape[-len(windows["kernel"]) :]), **windows), None


# -- averages -------------------------------------------------------------------------------------------------

_AVERAGE = {
    "kernel": (1, 1),
    "stride": (1, 1),
    "padding": (0, 0),
    "ceil_mode": False,
    "count_include_pad": True,
    "divisor_override": None,
}


def _sizes(position, extent, kernel, stride, padding, include, low, high):
    """How many elements the windows at `position` divide by, along one dimension.  `low` and `high` are the minimum and
    maximum of operands or of arrays."""
    start = position * stride - padding
    stop = low(start + kernel, extent + padding)
    return stop - start if include else low(stop, extent) - high(start, 0)


def _divisor(x, spatial, windows, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """What the sums over the windows are divided by: a number where all are alike, else (*windows)."""
    if divisor_override is not None:
        return divisor_override
    if not ceil_mode and (count_include_pad or not any(padding)):
        return prod(kernel)
    total = None
    for k, (n, w) in enumerate(zip(spatial, windows)):
        position = arange(start=0, stop=w, step=1, dtype=int64, like=x)
        geometry = (number_of(x, n), kernel[k], stride[k], padding[k], count_include_pad)
        sizes = along(_sizes(position, *geometry, minimum, maximum), k, len(kernel))
        total = sizes if total is None else total * sizes
    return total


def _numpy_divisor(spatial, windows, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
    if divisor_override is not None:
        return divisor_override
    total = np.ones((1,) * len(kernel))
    for k, (n, w) in enumerate(zip(spatial, windows)):
        sizes = _sizes(np.arange(w), n, kernel[k], stride[k], padding[k], count_include_pad, np.minimum, np.maximum)
        total = total * sizes.reshape((1,) * k + (-1,) + (1,) * (len(kernel) - k - 1))
    return total


def _undilated(kernel):
    return (1,) * len(kernel)


@op("avg_pool", onnx="AveragePool")
class avg_pool(Composite):
    """The mean of each window.

    Parameters
    ----------
    x : (*batch, *spatial), with as many spatial dimensions as the kernel has; floating dtype
    kernel, stride, padding, ceil_mode : as for :data:`max_pool`; padding is zeros
    count_include_pad : bool
        Whether padding counts in what a window's sum is divided by.
    divisor_override : int or None
        Divide by this instead.
    """

    attrs = dict(_AVERAGE)

    def infer(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        _check("avg_pool", x, kernel, stride, padding)
        need_floating("avg_pool", x)
        if divisor_override == 0:
            raise ValueError("avg_pool: divisor_override must not be 0")
        n = len(kernel)
        spatial = tuple(x.shape[len(x.shape) - n :])
        out = pooled_shape("avg_pool", spatial, kernel, stride, padding, _undilated(kernel), ceil_mode)
        return (*x.shape[:-n], *out), x.dtype

    def reference(x, kernel, stride, padding, ceil_mode, **counting):
        n = len(kernel)
        seen = _numpy_windows(wide(x), 0, kernel, stride, padding, _undilated(kernel), ceil_mode)
        windows = seen.shape[-2 * n : -n]
        total = seen.sum(tuple(range(-n, 0)))
        return total / _numpy_divisor(x.shape[-n:], windows, kernel, stride, padding, ceil_mode, **counting)

    def decompose(x, kernel, stride, padding, ceil_mode, **counting):
        n = len(kernel)
        seen = _windows(widen(x), 0, kernel, stride, padding, _undilated(kernel), ceil_mode)
        total = sum(seen, axes=_last(seen, n), keepdim=False)
        windows = total.shape[len(total.shape) - n :]
        return narrow(
            total / _divisor(x, x.shape[-n:], windows, kernel, stride, padding, ceil_mode, **counting), x.dtype
        )

    def gradient(dy, y, x, **attrs):
        return avg_pool_grad(dy, extents=tuple(x.shape[-len(attrs["kernel"]) :]), **attrs)


@op("avg_pool_grad")
class avg_pool_grad(Composite):
    """The gradient of :data:`avg_pool`: each input position collects its share of the windows it lies in.

    Parameters
    ----------
    dy : (*batch, *windows)
    extents : the spatial extents of the input
    kernel, stride, padding, ceil_mode, count_include_pad, divisor_override : the pooling's
    """

    attrs = {"extents": (), **_AVERAGE}
    shape_attrs = True

    def infer(dy, extents, **attrs):
        return (*dy.shape[: len(dy.shape) - len(extents)], *extents), dy.dtype

    def reference(dy, extents, kernel, stride, padding, ceil_mode, **counting):
        n = len(kernel)
        share = wide(dy) / _numpy_divisor(extents, dy.shape[-n:], kernel, stride, padding, ceil_mode, **counting)
        return _numpy_spread(share, extents, kernel, stride, padding, _undilated(kernel)).sum(tuple(range(-n, 0)))

    def decompose(dy, extents, kernel, stride, padding, ceil_mode, **counting):
        n = len(kernel)
        windows = dy.shape[len(dy.shape) - n :]
        share = widen(dy) / _divisor(dy, extents, windows, kernel, stride, padding, ceil_mode, **counting)
        seen = _spread(share, extents, kernel, stride, padding, _undilated(kernel))
        return narrow(sum(seen, axes=_last(seen, n), keepdim=False), dy.dtype)

    def gradient(g, y, dy, extents, **attrs):
        return avg_pool(g, **attrs)


@op("adaptive_avg_pool", onnx="GlobalAveragePool")
class adaptive_avg_pool(Composite):
    """Means over as many bins as are asked for: bin i of o covers ``floor(i*n/o)`` to ``ceil((i+1)*n/o)``.

    Parameters
    ----------
    x : (*batch, *spatial); floating dtype
    output : tuple of int, the number of bins in each of the last dimensions

    Returns
    -------
    (*batch, *output)
    """

    attrs = {"output": (1, 1)}

    def infer(x, output):
        need_floating("adaptive_avg_pool", x)
        n = len(output)
        if len(x.shape) < n or any(o < 1 for o in output) or any(d < 1 for d in x.shape[len(x.shape) - n :]):
            raise ValueError(
                f"adaptive_avg_pool: {shown(x.shape)} cannot be pooled to {output}; both have to be 1 or more"
            )
        return (*x.shape[:-n], *output), x.dtype

    def reference(x, output):
        y = wide(x)
        for axis, bins in zip(range(-len(output), 0), output):
            n = x.shape[axis]
            parts = [
                np.take(y, range(i * n // bins, -(-(i + 1) * n // bins)), axis).mean(axis, keepdims=True)
                for i in range(bins)
            ]
            y = np.concatenate(parts, axis)
        return y

    def decompose(x, output):
        n = len(output)
        lead, spatial = len(x.shape) - n, x.shape[-n:]
        y = widen(x)
        if all(d % o == 0 for d, o in zip(spatial, output)):
            split = [e for d, o in zip(spatial, output) for e in (o, d // o)]
            y = reshape(y, shape=(*x.shape[:lead], *split))
            return narrow(mean(y, axes=tuple(range(lead + 1, lead + 2 * n, 2)), keepdim=False), x.dtype)
        for k, bins in enumerate(output):
            y = _binned(y, lead + k, _bins(y, spatial[k], bins))
        return narrow(y, x.dtype)

    def gradient(dy, y, x, output):
        return adaptive_avg_pool_grad(dy, extents=tuple(x.shape[-len(output) :]))


@op("adaptive_avg_pool_grad")
class adaptive_avg_pool_grad(Composite):
    """The gradient of :data:`adaptive_avg_pool`: (*batch, *bins) to (*batch, *extents)."""

    attrs = {"extents": ()}
    shape_attrs = True

    def infer(dy, extents):
        return (*dy.shape[: len(dy.shape) - len(extents)], *extents), dy.dtype

    def reference(dy, extents):
        dx = wide(dy)
        for axis, n in zip(range(-len(extents), 0), extents):
            bins = dy.shape[axis]
            share = np.zeros((bins, n), dx.dtype)
            for i in range(bins):
                start, stop = i * n // bins, -(-(i + 1) * n // bins)
                share[i, start:stop] = 1 / (stop - start)
            dx = np.moveaxis(np.moveaxis(dx, axis, -1) @ share, -1, axis)
        return dx

    def decompose(dy, extents):
        n = len(extents)
        lead, bins = len(dy.shape) - n, dy.shape[-n:]
        dx = widen(dy)
        if all(e % b == 0 for e, b in zip(extents, bins)):
            parts = [e // b for e, b in zip(extents, bins)]
            dx = reshape(dx / number_of(dx, prod(parts)), shape=(*dy.shape[:lead], *(d for b in bins for d in (b, 1))))
            dx = expand(dx, shape=(*dy.shape[:lead], *(d for b, p in zip(bins, parts) for d in (b, p))))
            return narrow(reshape(dx, shape=(*dy.shape[:lead], *extents)), dy.dtype)
        for k, extent in enumerate(extents):
            dx = _binned(dx, lead + k, permute(_bins(dx, extent, bins[k]), axes=(1, 0)))
        return narrow(dx, dy.dtype)

    def gradient(g, y, dy, extents):
        return adaptive_avg_pool(g, output=tuple(dy.shape[-len(extents) :]))


def _bins(x, n, bins):
    """(n, bins): how much of each position goes into each bin."""
    extent, parts = number_of(x, n), number_of(x, bins)
    position = reshape(arange(start=0, stop=n, step=1, dtype=int64, like=x), shape=(n, 1))
    i = arange(start=0, stop=bins, step=1, dtype=int64, like=x)
    start = i * extent // parts
    stop = ((i + 1) * extent + (parts - 1)) // parts
    share = 1 / cast(stop - start, dtype=x.dtype)
    return where((position >= start) & (position < stop), share, 0)


def _binned(x, axis, matrix):
    """Replace an axis by its product with a matrix."""
    order = [*(a for a in range(len(x.shape)) if a != axis), axis]
    y = matmul(permute(x, axes=tuple(order)), matrix)
    return permute(y, axes=tuple(order.index(a) for a in range(len(order))))
