"""``x[index]`` and ``x[index] = value``: PyTorch's indexing in terms of views, gathers and scatters.

An index is read in three steps.  Masks become the positions where they hold (which reads their value, so what is pending
runs first).  Ints, slices, ``None`` and ``...`` make a view, so that writing through the result reaches the tensor.  What is
left are integer tensors, which gather or scatter: they broadcast together, and the dimensions they index are replaced by
theirs in place, or in front if the indices were not next to each other.

Negative indices count from the end.  Those out of range are refused, at once or by the run that computes them
(``runtime/bounds.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lezero.graph.dtype import bool_
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.indexing import wrapped
from lezero.ops.slicing import sliced_extent
from lezero.runtime.bounds import expect, of_dimension
from lezero.runtime.leaves import kind_of
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE, Handle
from lezero.runtime.writes import note_view


def get(x: Any, index: Any) -> Any:
    """``x[index]``."""
    index = _as_tensor(index)
    if _is_mask(index) and index.ndim:
        return _masked(x, index)
    view, chosen = _basic(x, _entries(x, index))
    if not chosen:
        return x._as_view(OPS["reshape"], (tuple(x.shape),)) if view is x else view
    if len(chosen) == 1:
        (axis,) = chosen
        return record(OPS["take"], (view, chosen[axis]), (axis,))
    front, place = _arrangement(view.ndim, chosen)
    moved = view if front is None else record(OPS["permute"], (view,), (front,))
    out = record(OPS["gather_nd"], (moved, *chosen.values()), ())
    return out if place is None else record(OPS["permute"], (out,), (place(out.ndim),))


def put(x: Any, index: Any, value: Any) -> None:
    """``x[index] = value``, which is broadcast and cast."""
    from lezero.tensor import tensor

    index = _as_tensor(index)
    if isinstance(value, (list, tuple, np.ndarray)):
        value = tensor(value, dtype=x.dtype)
    if _is_mask(index) and index.ndim:
        _put_masked(x, index, value)
        return
    entries = _entries(x, index)
    if not any(isinstance(e, Handle) for e in entries):
        _put_slice(x, entries, value)
        return
    view, chosen = _basic(x, entries)
    front, place = _arrangement(view.ndim, chosen)
    moved = view if front is None else record(OPS["permute"], (view,), (front,))
    indices = tuple(chosen.values())
    target = record(OPS["gather_nd"], (moved, *indices), ())
    value = _fitting(value, x, target.ndim)._cast(x.dtype)
    selected = _arranged(target.shape, place)
    _check_source(f"x[index] = value: the index selects {selected}", value, selected)
    if place is not None:
        axes = place(target.ndim)
        value = value.expand(tuple(target.shape[a] for a in axes)).permute(_inverse(axes))
    elif tuple(value.shape) != tuple(target.shape):
        value = value.expand(target.shape)
    updated = record(OPS["scatter_nd"], (moved, value, *indices), ())
    view._set(updated if front is None else record(OPS["permute"], (updated,), (_inverse(front),)))


MAX_OFFSETS = 32
"""Offsets up to this many are symbols of a recording: a loop that writes to every row in one recording needs no symbol each."""


def _put_slice(x: Any, entries: list[Any], value: Any) -> None:
    """Write where ints, slices and Nones say.

    Where the slice begins is a symbol like an extent, so ``x[i] = row`` in a loop is planned once for all i (from 2 on, 0 and 1
    are never symbols).
    """
    starts, stops, steps, kept, _, empty = _windows(x.shape, entries)
    counts = tuple(map(sliced_extent, starts, stops, steps))
    shape = tuple(0 if k in empty else 1 if d is None else counts[d] for k, d in enumerate(kept))
    value = x._fitted(_fitting(value, x, len(shape)), shape)
    if 0 in shape:
        return
    value = value if shape == counts else value.reshape(counts)
    rec = STATE.recording
    for d, start in enumerate(starts):
        if start > 1 and type(start) is int and type(stops[d]) is int and len(rec.bindings) < MAX_OFFSETS:
            starts[d] = rec.symbol(start)
            stops[d] = starts[d] + (stops[d] - start)
    x._set(record(OPS["slice_update"], (x, value), (tuple(starts), tuple(stops), tuple(steps))))


def _arranged(shape: tuple[int, ...], place: Any) -> tuple[int, ...]:
    """The shape of what an index selects, in the order its dimensions have for the user."""
    shape = _plain(shape)
    return shape if place is None else tuple(shape[a] for a in place(len(shape)))


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))


# -- reading an index -------------------------------------------------------------------------------------------------


def _as_tensor(e: Any) -> Any:
    """Lists and arrays of positions or of bools as tensors; anything else as it is."""
    from lezero.tensor import tensor

    if isinstance(e, (list, np.ndarray)):
        array = np.asarray(e)  # (tensors among the entries have __array__)
        return tensor(array.astype(np.int64) if array.size == 0 and array.dtype.kind == "f" else array)
    return e


def _is_mask(e: Any) -> bool:
    return isinstance(e, Handle) and e.dtype is bool_  # type: ignore[attr-defined]


def _entries(x: Any, index: Any) -> list[Any]:
    """One entry for each dimension of x, and the Nones: int, slice or integer tensor, with masks and ... spelled out."""
    entries: list[Any] = []
    dim = 0
    rest: int | None = None  # where the Ellipsis was
    for e in index if isinstance(index, tuple) else (index,):
        e = _as_tensor(e)
        if e is Ellipsis:
            if rest is not None:
                raise IndexError("an index can only have one Ellipsis")
            rest = len(entries)
        elif e is None or isinstance(e, (bool, np.bool_)):
            entries.append(None if e is None else bool(e))
        elif _is_mask(e):
            if e.ndim == 0:
                entries.append(bool(_value(e)))
                continue
            positions = _positions(e)
            entries += positions
            _check_mask(x, e, None if rest is not None else dim)
            dim += len(positions)
        else:
            entries.append(e)
            dim += 1
    used = sum(e is not None and not isinstance(e, bool) for e in entries)
    if used > x.ndim:
        raise IndexError(f"too many indices: {used} for a tensor of {x.ndim} dimensions")
    at = len(entries) if rest is None else rest
    return [*entries[:at], *(slice(None),) * (x.ndim - used), *entries[at:]]


class _Windows(NamedTuple):
    """What ints, slices, Nones and bools say: a window of each dimension of a tensor, and how those make dimensions."""

    starts: list[Any]
    stops: list[Any]  # None: past the first element
    steps: list[int]
    kept: list[int | None]  # dimensions of the view: one of the tensor, or new
    chosen: dict[int, Any]  # integer tensors, by the view's dimension
    empty: list[int]  # new dimensions of no element


def _windows(shape: tuple[int, ...], entries: list[Any]) -> _Windows:
    w = _Windows([], [], [], [], {}, [])
    for e in entries:
        if e is None or isinstance(e, bool):
            if e is False:
                w.empty.append(len(w.kept))
            w.kept.append(None)
            continue
        dim = len(w.starts)
        n = shape[dim]
        start, stop, step = 0, n, 1
        if isinstance(e, slice):
            start, stop, step = _slice(e, n)  # type: ignore[assignment]
            w.kept.append(dim)
        elif isinstance(e, Handle):
            w.chosen[len(w.kept)] = _checked(e, n, dim)
            w.kept.append(dim)
        else:
            start = _int(e, n, dim)
            stop = start + 1
        w.starts.append(start)
        w.stops.append(stop)
        w.steps.append(step)
    return w


def _basic(x: Any, entries: list[Any]) -> tuple[Any, dict[int, Any]]:
    """Apply ints, slices and Nones as a view of x; returns it and the integer tensors left, by its dimensions."""
    shape = x.shape
    starts, stops, steps, kept, chosen, empty = _windows(shape, entries)
    view = x
    if any(a != 0 or s != 1 or b is None or b != n for a, b, s, n in zip(starts, stops, steps, shape)):
        view = sliced(x, (tuple(starts), tuple(stops), tuple(steps)))
    if kept != list(range(len(shape))):
        extents = view.shape
        shape = tuple(1 if d is None else extents[d] for d in kept)
        view = view.reshape(shape) if view is x or view._buffer is None else _reshaped_at_once(view, shape)
    for axis in empty:
        view = view.narrow(axis, 0, 0)
    return view, chosen


MAX_COPIED_BYTES = 64 << 20
"""Slices up to this size of tensors that have a value are copied at once."""


def sliced(x: Any, attrs: tuple[tuple, tuple, tuple]) -> Any:
    """The view of x that starts, stops and steps so.

    Where a slice begins is part of what is recorded, so ``data[i : i + 64]`` in a training loop would be planned anew for
    every ``i`` (measured on a small perceptron: 40 ms a step instead of 1).  A tensor that has a value is therefore sliced at
    once: the result is what a run would have made of it, a view with a value of its own.
    """
    buffer = x._buffer
    if (
        buffer is not None
        and x._rec is None
        and buffer.device == "cpu"
        and STATE.capture is None
        and not x.requires_grad
    ):
        known = tuple(
            tuple(None if v is None else int(v) for v in part) for part in attrs
        )  # no extent of this recording
        array = buffer.array[tuple(map(slice, *known))]
        if array.nbytes <= MAX_COPIED_BYTES:
            from lezero.tensor.creation import _from_array

            view = _from_array(np.array(array, order="C"))
            note_view(view, x, OPS["slice"], known)
            return view
    return x._as_view(OPS["slice"], attrs)


def _reshaped_at_once(view: Any, shape: tuple[int, ...]) -> Any:
    """A slice that was taken at once, in another shape: recording that would make each of ``x.unbind()`` a plan of its own."""
    from lezero.tensor.creation import _from_array

    shape = tuple(map(int, shape))
    made = _from_array(view._buffer.array.reshape(shape))
    view._buffer = None  # the memory has one owner; the slice is taken again should it be written through
    note_view(made, view, OPS["reshape"], (shape,))
    return made


def _int(e: Any, n: int, dim: int) -> int:
    try:
        k = e.__index__()
    except AttributeError:
        raise IndexError(
            f"an index must be int, slice, None, ..., a tensor, an array or a list, not {type(e).__name__}"
        ) from None
    if not -int(n) <= k < int(n):
        raise IndexError(f"index {k} is out of range for dimension {dim} of extent {int(n)}")
    return k if k >= 0 else n + k


def _slice(s: slice, n: int) -> tuple[int, int | None, int]:
    """start, stop and step as the slice operation takes them, within [0, n]; stop None means past the first element."""
    step = 1 if s.step is None else s.step.__index__()
    if step == 0:
        raise ValueError("a slice step must not be 0")

    def bound(v: Any, low: int, high: int) -> int:
        v = v if isinstance(v, int) else v.__index__()
        if v < 0:
            v = n + v
        return low if v < low else high if v > high else v

    if step > 0:
        start = 0 if s.start is None else bound(s.start, 0, n)
        stop = n if s.stop is None else bound(s.stop, 0, n)
        return start, (stop if stop > start else start), step
    start = n - 1 if s.start is None else bound(s.start, -1, n - 1)
    stop = -1 if s.stop is None else bound(s.stop, -1, n - 1)
    if stop >= start:
        return 0, 0, 1
    return start, (None if stop == -1 else stop), step


def _checked(e: Any, n: int, dim: int) -> Any:
    """An integer tensor as an index without negative positions."""
    if e.dtype.kind not in "iu":
        raise IndexError(f"tensors used as indices must be integers or bools, not {e.dtype.name}")
    expect(e, n, of_dimension(dim), negative=True)
    return wrapped(e, n)


def _arrangement(ndim: int, chosen: dict[int, Any]) -> tuple[Any, Any]:
    """How to gather along several dimensions at once.

    Returns (order of the dimensions that brings the indexed ones to the front, function of the result's rank giving the
    order that puts the indices' dimensions where they belong); None where nothing has to move.
    """
    at = list(chosen)
    front = None if at == list(range(len(at))) else (*at, *(i for i in range(ndim) if i not in chosen))
    # an index of no dimensions picks one position, like an int: it leaves nothing behind that could stand in the way
    wide = [i for i in at if chosen[i].ndim]
    if not wide:
        return front, None
    before = [i for i in range(wide[0]) if i not in chosen]
    between = [i for i in range(wide[0], wide[-1]) if i not in chosen]
    if between or not before:
        return front, None
    rank, first = max(e.ndim for e in chosen.values()), len(before)
    return front, lambda n: (*range(rank, rank + first), *range(rank), *range(rank + first, n))


def _fitting(value: Any, x: Any, ndim: int) -> Any:
    """A value to be written: a number as a run-time input of x's dtype, a tensor without leading extents of 1 too many."""
    from lezero.tensor.creation import _number, need_fit

    if not isinstance(value, Handle):
        if not isinstance(value, (bool, int, float, complex, np.generic)):
            raise TypeError(f"in-place write: a tensor, an array or a number is needed, got {kind_of(value)}")
        need_fit("in-place write", value, x.dtype)
        return _number(value)._cast(x.dtype)
    extra = value.ndim - ndim  # type: ignore[attr-defined]
    if extra > 0 and all(d == 1 for d in value.shape[:extra]):  # type: ignore[attr-defined]
        return value.reshape(value.shape[extra:])  # type: ignore[attr-defined]
    return value


# -- masks ------------------------------------------------------------------------------------------------------------


def _value(mask: Any) -> np.ndarray:
    if STATE.capture is not None:
        STATE.capture.refuse("a bool mask decides the shape of the result, so its value is read")
    return mask.numpy()


def _positions(mask: Any) -> list[Any]:
    """Where a mask holds: one 1-D tensor of positions for each of its dimensions."""
    from lezero.tensor import tensor

    return [tensor(p) for p in np.nonzero(_value(mask))]


def _check_mask(x: Any, mask: Any, dim: int | None) -> None:
    if dim is not None and tuple(mask.shape) != tuple(x.shape[dim : dim + mask.ndim]):
        raise IndexError(f"a mask of shape {_plain(mask.shape)} does not fit a tensor of shape {_plain(x.shape)}")


def _plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(d) for d in shape)


def _flat(x: Any, mask: Any) -> Any:
    """x with the dimensions the mask covers as one."""
    _check_mask(x, mask, 0)
    k = mask.ndim
    total = 1
    for d in x.shape[:k]:
        total = total * d
    return x if k == 1 else x.reshape((total, *x.shape[k:]))


def _masked(x: Any, mask: Any) -> Any:
    flat = _flat(x, mask)
    (positions,) = _positions(mask.reshape(-1))
    return record(OPS["take"], (flat, positions), (0,))


def _put_masked(x: Any, mask: Any, value: Any) -> None:
    if not isinstance(value, Handle) or value.ndim == 0:  # type: ignore[attr-defined]
        # one value for all: no need to know where the mask holds
        _check_mask(x, mask, 0)
        mask = mask.reshape((*mask.shape, *(1,) * (x.ndim - mask.ndim)))
        x._set(record(OPS["where"], (mask, _fitting(value, x, 0)._cast(x.dtype), x), ()))
        return
    (positions,) = _positions(mask.reshape(-1))
    flat = _flat(x, mask)
    places = (int(positions.shape[0]), *_plain(flat.shape[1:]))
    _check_source(f"x[mask] = value: the mask holds at {places[0]} places", value, places)
    put(flat, positions, value)


def _check_source(what: str, value: Any, shape: tuple[int, ...]) -> None:
    """Refuse a value that does not broadcast to what it is written to."""
    given = _plain(value.shape)
    extra = len(given) - len(shape)
    lead, rest = given[: max(extra, 0)], given[max(extra, 0) :]
    if any(d != 1 for d in lead) or any(a not in (1, b) for a, b in zip(reversed(rest), reversed(shape))):
        raise ValueError(f"{what}, so a value that broadcasts to {shape} is needed, got shape {given}")
