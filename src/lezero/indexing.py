"""``x[index]`` and ``x[index] = value``: NumPy's and PyTorch's indexing in terms of views, gathers and scatters."""

from __future__ import annotations

from typing import Any

import numpy as np

from lezero.graph.dtype import bool_
from lezero.ops.base import REGISTRY as OPS
from lezero.runtime.recorder import STATE, Handle, record


def _normalize(x: Any, index: Any) -> list[Any]:
    """Index entries with the Ellipsis spelled out, lists and arrays as tensors, one entry a dimension (None apart)."""
    from lezero.tensor import Tensor, tensor

    entries = list(index) if isinstance(index, tuple) else [index]
    entries = [tensor(np.asarray(e)) if isinstance(e, (list, np.ndarray)) else e for e in entries]
    used = 0
    for e in entries:
        if isinstance(e, Tensor) and e.dtype is bool_:
            used += max(e.ndim, 0)
        elif e is not None and e is not Ellipsis and not isinstance(e, bool):
            used += 1
    if used > x.ndim:
        raise IndexError(f"too many indices: {used} for a tensor of {x.ndim} dimensions")
    fill = [slice(None)] * (x.ndim - used)
    at = [i for i, e in enumerate(entries) if e is Ellipsis]
    if len(at) > 1:
        raise IndexError("an index can only have one Ellipsis")
    if at:
        entries[at[0] : at[0] + 1] = fill
    else:
        entries += fill
    return entries


def _basic(x: Any, entries: list[Any]) -> tuple[Any, list[Any]]:
    """Apply ints, slices and None as views; returns (view, what is left: a tensor or None for each of its dimensions)."""
    from lezero.tensor import Tensor

    starts, stops, steps, drop, shape_after = [], [], [], [], []
    left: list[Any] = []
    dim = 0
    shape = x.shape
    for e in entries:
        if e is None or isinstance(e, bool):
            shape_after.append(("new", 1))
            left.append(None)
            continue
        if isinstance(e, Tensor):
            if e.dtype is bool_ and e.ndim != 1:
                raise IndexError("a bool mask of more than one dimension must be the only index")
            n = shape[dim]
            starts.append(0), stops.append(n), steps.append(1)
            shape_after.append(("keep", dim))
            left.append(e)
        elif isinstance(e, slice):
            start, stop, step = _slice(e, shape[dim])
            starts.append(start), stops.append(stop), steps.append(step)
            shape_after.append(("keep", dim))
            left.append(None)
        else:
            try:
                k = e.__index__()
            except AttributeError:
                raise IndexError(f"an index must be int, slice, None, ..., a tensor or a list, not {type(e).__name__}") from None
            n = shape[dim]
            if not -int(n) <= k < int(n):
                raise IndexError(f"index {k} is out of range for dimension {dim} of extent {int(n)}")
            k = k if k >= 0 else n + k
            starts.append(k), stops.append(k + 1), steps.append(1)
            drop.append(dim)
        dim += 1
    view = x
    if any(a != 0 or s != 1 or b is not None and b != n for a, b, s, n in zip(starts, stops, steps, shape)):
        view = x._as_view(OPS["slice"], (tuple(starts), tuple(stops), tuple(steps)))
    if drop or any(kind == "new" for kind, _ in shape_after):
        sliced = view.shape
        view = view.reshape(tuple(1 if kind == "new" else sliced[d] for kind, d in shape_after))
    return view, left


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


def get(x: Any, index: Any) -> Any:
    from lezero.tensor import Tensor

    if isinstance(index, Tensor) and index.dtype is bool_:
        return _mask(x, index)
    view, left = _basic(x, _normalize(x, index))
    at = [i for i, e in enumerate(left) if e is not None]
    if not at:
        return view if view is not x else x._as_view(OPS["reshape"], (tuple(x.shape),))
    left = [_mask_positions(e) if e is not None and e.dtype is bool_ else e for e in left]
    if len(at) == 1:
        return record(OPS["take"], (view, left[at[0]]), (at[0],))
    order, back = _advanced_order(view.ndim, at, max(left[i].ndim for i in at))
    moved = view if order is None else record(OPS["permute"], (view,), (order,))
    out = record(OPS["gather_nd"], (moved, *(left[i] for i in at)), ())
    return out if back is None else record(OPS["permute"], (out,), (back(out.ndim),))


def _advanced_order(ndim: int, at: list[int], index_ndim: int) -> tuple[Any, Any]:
    """(order bringing indexed dimensions to the front, function giving the order back), or None where not needed."""
    if at == list(range(len(at))):
        return None, None
    order = tuple(at + [i for i in range(ndim) if i not in at])
    if at != list(range(at[0], at[0] + len(at))):
        return order, None  # separated indices: their dimensions come first in the result
    first = at[0]

    def back(n: int) -> tuple[int, ...]:
        return (*range(index_ndim, index_ndim + first), *range(index_ndim), *range(index_ndim + first, n))

    return order, back


def _need_values(what: str) -> None:
    if STATE.capture is not None:
        STATE.capture.refuse(what)


def _mask_positions(mask: Any) -> Any:
    from lezero.tensor import tensor

    _need_values("a bool mask decides the shape of the result, so its value is read")
    return tensor(np.flatnonzero(mask.numpy()))


def _mask(x: Any, mask: Any) -> Any:
    k = mask.ndim
    if tuple(mask.shape) != tuple(x.shape[:k]):
        raise IndexError(f"a mask of shape {tuple(mask.shape)} does not fit a tensor of shape {tuple(x.shape)}")
    positions = _mask_positions(mask.reshape(-1) if k != 1 else mask)
    flat = x.reshape((-1, *x.shape[k:])) if k != 1 else x
    return record(OPS["take"], (flat, positions), (0,))


def put(x: Any, index: Any, value: Any) -> None:
    from lezero.tensor import Tensor, tensor

    if not isinstance(value, Handle) and isinstance(value, (list, tuple, np.ndarray)):
        value = tensor(value, dtype=x.dtype)
    if isinstance(index, Tensor) and index.dtype is bool_:
        shape = (*index.shape, *(1,) * (x.ndim - index.ndim))
        if not isinstance(value, Tensor) or value.ndim == 0:
            x._set(record(OPS["where"], (index.reshape(shape), value, x), ())._cast(x.dtype))
            return
        k = index.ndim
        positions = _mask_positions(index.reshape(-1))
        flat = x.reshape((-1, *x.shape[k:]))
        put(flat, positions, value)
        return
    view, left = _basic(x, _normalize(x, index))
    at = [i for i, e in enumerate(left) if e is not None]
    if not at:
        if view is x:
            view = x._as_view(OPS["reshape"], (tuple(x.shape),))
        view._set(value if isinstance(value, Tensor) else _like(view, value))
        return
    left = [_mask_positions(e) if e is not None and e.dtype is bool_ else e for e in left]
    order, back = _advanced_order(view.ndim, at, max(left[i].ndim for i in at))
    moved = view if order is None else record(OPS["permute"], (view,), (order,))
    indices = tuple(left[i] for i in at)
    target = record(OPS["gather_nd"], (moved, *indices), ())
    value = value if isinstance(value, Tensor) else _like(target, value)
    value = value._cast(x.dtype)
    if back is not None:
        placed = back(target.ndim)
        shape = tuple(target.shape[i] for i in placed)
        value = value.expand(shape).permute(tuple(placed.index(i) for i in range(len(placed))))
    elif tuple(value.shape) != tuple(target.shape):
        value = value.expand(target.shape)
    updated = record(OPS["scatter_nd"], (moved, value, *indices), ())
    if order is not None:
        updated = record(OPS["permute"], (updated,), (tuple(order.index(i) for i in range(len(order))),))
    view._set(updated)


def _like(t: Any, value: Any) -> Any:
    """A Python number as a 0-d tensor of the tensor's dtype (a run-time input)."""
    from lezero.tensor import _number

    return _number(value)._cast(t.dtype)
