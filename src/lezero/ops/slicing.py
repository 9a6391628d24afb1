"""Views of parts: slices and borders, their adjoints, and tensors joined from parts."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from lezero.graph.dim import same
from lezero.ops.base import View, op
from lezero.ops.creation import zeros_like


def both(a: Any, b: Any) -> Any:
    """The conjunction of two masks, where None stands for "everywhere"."""
    return b if a is None else a if b is None else a & b


def sliced_extent(start: int, stop: int | None, step: int) -> int:
    """How many elements a slice has; a stop of None means "past the first element" of a negative step."""
    if stop is None:
        stop = -1
    n = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
    return n if n > 0 else 0


def _check_slice(name: str, shape: tuple[int, ...], starts: tuple, stops: tuple, steps: tuple) -> tuple[int, ...]:
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise ValueError(f"{name}: one start, stop and step per axis are needed for shape {tuple(shape)}")
    counts = []
    for axis, (d, start, stop, step) in enumerate(zip(shape, starts, stops, steps)):
        if step == 0:
            raise ValueError(f"{name}: the step of axis {axis} is 0")
        n = sliced_extent(start, stop, step)
        if n and not (start >= 0 and start < d and 0 <= start + (n - 1) * step < d):
            raise IndexError(f"{name}: {start}:{stop}:{step} leaves axis {axis} of extent {d}")
        counts.append(n)
    return tuple(counts)


def _sliced(shape: tuple[int, ...], starts: tuple, stops: tuple, steps: tuple) -> tuple[Any, ...]:
    """NumPy index of a slice."""
    if not shape:
        return ()
    return np.ix_(*(a + s * np.arange(sliced_extent(a, b, s)) for a, b, s in zip(starts, stops, steps)))


def _inside(i: tuple, shape: tuple, extents: tuple, starts: tuple, steps: tuple) -> tuple[tuple, Any]:
    """Where position `i` of `shape` lies in a slice of it with `extents`: the position there, and a mask (None: always)."""
    position, mask = [], None
    for p, d, n, start, step in zip(i, shape, extents, starts, steps):
        if same(start, 0) and step == 1 and same(n, d):
            position.append(p)
            continue
        ahead = p - start if step > 0 else start - p
        stride = step if step > 0 else -step
        k = ahead if stride == 1 else ahead // stride
        if stride != 1:
            mask = both(mask, ahead % stride == 0)
        if not (same(start, 0) and step > 0):
            mask = both(mask, ahead >= 0)
        mask = both(mask, k < n)
        position.append(0 if same(n, 1) else k)  # the one place there is, so that what follows can be simplified
    return tuple(position), mask


SLICE = {"starts": (), "stops": (), "steps": ()}


@op("slice", onnx="Slice")
class slice(View):
    """Elements ``start, start + step, …`` before `stop` of each axis.

    Parameters
    ----------
    starts, stops, steps : one int per axis, absolute; a negative step may have the stop -1 (or None), see ``slice_bounds``
    """

    attrs = SLICE
    shape_attrs = True

    def infer(x, starts, stops, steps):
        return _check_slice("slice", x.shape, starts, stops, steps), x.dtype

    def index(out, i, x, starts, stops, steps):
        return [
            (0, tuple(p * step + start if step != 1 else p + start for p, start, step in zip(i, starts, steps)), None)
        ]

    def reference(x, starts, stops, steps):
        return x[_sliced(x.shape, starts, stops, steps)]

    def gradient(dy, y, x, starts, stops, steps):
        return embed(dy, shape=tuple(x.shape), starts=starts, steps=steps)


def slice_bounds(key: Any, extent: int) -> tuple[int, int, int]:
    """(start, stop, step) of a Python slice on an axis, absolute and clipped as Python does."""
    step = 1 if key.step is None else key.step
    if step == 0:
        raise ValueError("slice: step must not be 0")
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def place(k: int | None, default: int) -> int:
        if k is None:
            return default
        if k < 0:
            k = k + extent
            return low if k < low else k
        return high if k > high else k

    start, stop = place(key.start, low if step > 0 else high), place(key.stop, high if step > 0 else low)
    return start, stop, step


@op("embed")
class embed(View):
    """Zeros of `shape`, with x at ``start, start + step, …`` of each axis: the adjoint of ``slice``."""

    attrs = {"shape": (), "starts": (), "steps": ()}
    shape_attrs = True

    def infer(x, shape, starts, steps):
        for d, n, start, step in zip(shape, x.shape, starts, steps):
            if n and not (start >= 0 and start < d and 0 <= start + (n - 1) * step < d):
                raise IndexError(f"embed: {n} elements from {start} in steps of {step} leave an axis of extent {d}")
        return shape, x.dtype

    def index(out, i, x, shape, starts, steps):
        return [(0, *_inside(i, out, x.shape, starts, steps))]

    def reference(x, shape, starts, steps):
        y = np.zeros(shape, x.dtype)
        y[_sliced(shape, starts, tuple(a + n * s for a, n, s in zip(starts, x.shape, steps)), steps)] = x
        return y

    def gradient(dy, y, x, shape, starts, steps):
        return slice(dy, starts=starts, stops=tuple(a + n * s for a, n, s in zip(starts, x.shape, steps)), steps=steps)


@op("slice_update")
class slice_update(View):
    """`base` with a slice replaced by `new`: what writing through a view records."""

    attrs = SLICE
    shape_attrs = True

    def infer(base, new, starts, stops, steps):
        extents = _check_slice("slice_update", base.shape, starts, stops, steps)
        if tuple(new.shape) != extents or new.dtype is not base.dtype:
            raise ValueError(
                f"slice_update: {new.dtype.name}{list(new.shape)} does not fit a slice {base.dtype.name}{list(extents)}"
            )
        return base.shape, base.dtype

    def index(out, i, base, new, starts, stops, steps):
        position, mask = _inside(i, out, new.shape, starts, steps)
        if mask is None:
            return [(1, position, None)]
        return [(1, position, mask), (0, tuple(i), ~mask)]

    def reference(base, new, starts, stops, steps):
        y = np.array(base)
        y[_sliced(base.shape, starts, stops, steps)] = new
        return y

    def gradient(dy, y, base, new, starts, stops, steps):
        window = {"starts": starts, "stops": stops, "steps": steps}
        return slice_update(dy, zeros_like(new), **window), slice(dy, **window)


@op("pad", onnx="Pad")
class pad(View):
    """A border of `fill` around x; a negative width cuts off instead.

    Parameters
    ----------
    before, after : one int per axis
    fill : number
    """

    attrs = {"before": (), "after": (), "fill": 0}
    shape_attrs = True

    def infer(x, before, after, fill):
        if not len(before) == len(after) == len(x.shape):
            raise ValueError(f"pad: one width before and after each axis is needed for shape {tuple(x.shape)}")
        shape = tuple(d + b + a for d, b, a in zip(x.shape, before, after))
        for d in shape:
            if d < 0:
                raise ValueError(f"pad: widths {before} and {after} cut more than there is of shape {tuple(x.shape)}")
        return shape, x.dtype

    def index(out, i, x, before, after, fill):
        position, mask = [], None
        for p, d, b, a in zip(i, x.shape, before, after):
            q = p if same(b, 0) else p - b
            if b > 0:
                mask = both(mask, q >= 0)
            if a > 0:
                mask = both(mask, q < d)
            position.append(q)
        return [(0, tuple(position), mask)]

    def reference(x, before, after, fill):
        y = np.full([d + b + a for d, b, a in zip(x.shape, before, after)], fill, x.dtype)
        cut = tuple(span(max(-b, 0), d - max(-a, 0)) for d, b, a in zip(x.shape, before, after))
        place = tuple(span(max(b, 0), n - max(a, 0)) for n, b, a in zip(y.shape, before, after))
        y[place] = x[cut]
        return y

    def gradient(dy, y, x, before, after, fill):
        return pad(dy, before=tuple(-b for b in before), after=tuple(-a for a in after))


def span(start: int, stop: int) -> Any:
    return builtins.slice(start, stop if stop > start else start)


# -- joining -----------------------------------------------------------------------------------------------------


@op("concatenate", onnx="Concat")
class concatenate(View):
    """Operands of one dtype end to end along `axis`; see ``rearrange.cat`` for mixed dtypes."""

    attrs = {"axis": 0}

    def infer(*xs, axis):
        first = xs[0]
        if not first.shape:
            raise ValueError("concatenate: 0-d tensors cannot be joined; stack them")
        extent = 0
        for x in xs:
            if len(x.shape) != len(first.shape) or x.dtype is not first.dtype or any(
                a != axis and d != e for a, (d, e) in enumerate(zip(x.shape, first.shape))
            ):  # fmt: skip
                raise ValueError(
                    f"concatenate: {x.dtype.name}{list(x.shape)} does not join {first.dtype.name}{list(first.shape)} "
                    f"along dimension {axis}: dtypes and all other extents must agree"
                )
            extent = extent + x.shape[axis]
        return (*first.shape[:axis], extent, *first.shape[axis + 1 :]), first.dtype

    def index(out, i, *xs, axis):
        pieces, offset = [], 0
        for k, x in enumerate(xs):
            end = offset + x.shape[axis]
            mask = None if k == 0 else i[axis] >= offset
            if k < len(xs) - 1:
                mask = both(mask, i[axis] < end)
            pieces.append((k, (*i[:axis], i[axis] - offset, *i[axis + 1 :]), mask))
            offset = end
        return pieces

    def reference(*xs, axis):
        return np.concatenate(xs, axis)

    def gradient(dy, y, *xs, axis):
        grads, offset = [], 0
        for x in xs:
            end = offset + x.shape[axis]
            grads.append(part(dy, axis, offset, end))
            offset = end
        return tuple(grads)


def part(x: Any, axis: int, start: int, stop: int) -> Any:
    """``x[..., start:stop, ...]`` on one axis."""
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = start, stop
    return slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(x.shape))
