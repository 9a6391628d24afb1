"""Reading and writing at positions that are themselves data.

Reading is a view.  Writing (:class:`Scatter`) is a copy of the base into which the source's elements go one by one.
Indices are integers, non-negative and in range (``wrapped`` makes negative ones so): the reference refuses others, compiled
kernels read 0 and write nothing there, so that a wrong index never touches foreign memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lezero.graph.dim import same
from lezero.graph.dtype import int64
from lezero.ops.base import Composite, Opaque, View, broadcast_shapes, op
from lezero.ops.comparison import where
from lezero.ops.creation import arange, full, number_of, zeros_like
from lezero.ops.rules import along, count, narrow, shown, unsqueeze
from lezero.ops.shaping import expand, reshape
from lezero.ops.slicing import both


def _integers(name: str, *indices: Any) -> None:
    for index in indices:
        if index.dtype.kind not in "iu":
            raise TypeError(f"{name}: indices must be integers, got {index.dtype.name}")


def _in_range(q: Any, extent: int) -> Any:
    return (q >= 0) & (q < extent)


def _checked(name: str, index: np.ndarray, extent: int) -> np.ndarray:
    bad = (index < 0) | (index >= extent)
    if bad.any():
        raise IndexError(f"{name}: index {index[bad].flat[0]} is out of range for an extent of {extent}")
    return index


def wrapped(index: Any, extent: int) -> Any:
    """Indices in which negative ones count from the end, as in Python."""
    return index if index.dtype.kind == "u" else where(index < 0, index + number_of(index, extent), index)


# -- reading -----------------------------------------------------------------------------------------------------


def _chosen_shape(name: str, x: Any, indices: tuple, axis: int) -> tuple[int, ...]:
    """x's shape with that of the (broadcast) indices in place of the axes they index."""
    _integers(name, *indices)
    if axis + len(indices) > len(x.shape):
        raise IndexError(
            f"{name}: {len(indices)} indices from dimension {axis} on are too many for shape {shown(x.shape)}"
        )
    chosen = broadcast_shapes(name, *(index.shape for index in indices))
    return (*x.shape[:axis], *chosen, *x.shape[axis + len(indices) :])


def _chosen_position(i: tuple, x: Any, indices: tuple, axis: int) -> tuple[tuple, Any]:
    """Where position `i` of the indexed tensor lies in `x`, and whether that exists."""
    rank = max(len(index.shape) for index in indices)
    at = i[axis : axis + rank]
    chosen, mask = [], None
    for k, index in enumerate(indices):
        shape = index.shape
        q = index.read(*(0 if same(d, 1) else p for p, d in zip(at[rank - len(shape) :], shape)))
        mask = both(mask, _in_range(q, x.shape[axis + k]))
        chosen.append(q)
    return (*i[:axis], *chosen, *i[axis + rank :]), mask


def _chosen(name: str, x: np.ndarray, indices: tuple, axis: int) -> np.ndarray:
    indices = tuple(_checked(name, index.astype(np.int64), x.shape[axis + k]) for k, index in enumerate(indices))
    return x[(np.s_[:],) * axis + indices]


@op("take", onnx="Gather")
class take(View):
    """Positions along `axis` chosen by an index tensor of any rank, whose shape takes the axis' place.

    An embedding is ``take(weight, tokens, axis=0)``, and ``torch.index_select`` a take with a 1-D index.

    Parameters
    ----------
    x : any dtype
    index : integers, any shape
    axis : int, non-negative
    """

    attrs = {"axis": 0}
    keeps = ("index",)

    def infer(x, index, axis):
        return _chosen_shape("take", x, (index,), axis), x.dtype

    def index(out, i, x, index, axis):
        return [(0, *_chosen_position(i, x, (index,), axis))]

    def reference(x, index, axis):
        return _chosen("take", x, (index,), axis)

    def gradient(dy, y, x, index, axis):
        return index_add(zeros_like(x), index, dy, axis=axis), None


@op("gather_nd", onnx="GatherND")
class gather_nd(View):
    """``x[i, j, …]``: the leading axes indexed together, one index tensor each; indices broadcast.

    Parameters
    ----------
    x : any dtype
    indices : integers, at most as many as x has axes
    """

    keeps = ("indices",)

    def infer(x, *indices):
        return _chosen_shape("gather_nd", x, indices, 0), x.dtype

    def index(out, i, x, *indices):
        return [(0, *_chosen_position(i, x, indices, 0))]

    def reference(x, *indices):
        return _chosen("gather_nd", x, indices, 0)

    def gradient(dy, y, x, *indices):
        return scatter_nd_add(zeros_like(x), dy, *indices), *(None for _ in indices)


@op("gather", onnx="GatherElements")
class gather(View):
    """``x`` at ``index`` along `axis`, position by position (NumPy's ``take_along_axis``).

    Parameters
    ----------
    x : any dtype
    index : integers, of x's rank and nowhere larger except along `axis`
    axis : int, non-negative
    """

    attrs = {"axis": 0}
    keeps = ("index",)

    def infer(x, index, axis):
        _integers("gather", index)
        _fits_along("gather", x, index, axis)
        return index.shape, x.dtype

    def index(out, i, x, index, axis):
        q = index.read(*i)
        return [(0, (*i[:axis], q, *i[axis + 1 :]), _in_range(q, x.shape[axis]))]

    def reference(x, index, axis):
        _checked("gather", index, x.shape[axis])
        cut = tuple(np.s_[:] if a == axis else np.s_[:n] for a, n in enumerate(index.shape))
        return np.take_along_axis(x[cut], index.astype(np.intp), axis)

    def gradient(dy, y, x, index, axis):
        return scatter_add(zeros_like(x), index, dy, axis=axis), None


def _fits_along(name: str, x: Any, index: Any, axis: int) -> None:
    fits = len(x.shape) == len(index.shape) and all(
        a == axis or n <= d for a, (n, d) in enumerate(zip(index.shape, x.shape))
    )
    if not fits or axis >= len(x.shape):
        raise ValueError(
            f"{name}: an index of shape {shown(index.shape)} does not fit a tensor of shape {shown(x.shape)} along dimension "
            f"{axis}: ranks must agree, and other extents must not be larger"
        )


# -- writing -----------------------------------------------------------------------------------------------------


class Scatter(Opaque):
    """The base (input 0) with the elements of the source (input ``source``) added or written into it.

    The rule ``target(j, *inputs, **attrs)`` says where the source's element at position `j` goes: ``(position, mask)``, with
    index objects and ``input.read`` as in ``View.index``; nothing happens where the mask (None: nowhere) fails.
    Where several elements meet, "add" adds them all up and "set" keeps the last in row-major order; the gradient of "set"
    does not know which one that was and serves them all (as in PyTorch).
    """

    mode = "add"
    source = 1
    target: Callable  # (j, *inputs, **attrs)


class _Indexed:
    """A NumPy array as an input of index rules."""

    def __init__(self, array: np.ndarray):
        self.shape, self.dtype = array.shape, array.dtype
        self._array = array

    def read(self, *position: Any) -> np.ndarray:
        return self._array[tuple(position)].astype(np.int64)


def scattered(scatter: Any, inputs: tuple[np.ndarray, ...], **attrs: Any) -> np.ndarray:
    """A scatter's value by its own rule ``target``, in NumPy."""
    base, source = inputs[0], inputs[scatter.source]
    j = tuple(np.indices(source.shape))
    position, mask = scatter.target(j, *map(_Indexed, inputs), **attrs)
    position = np.broadcast_arrays(*position, j[0])[:-1] if j else position
    if mask is not None and not np.all(mask):
        raise IndexError(f"{scatter.name}: an index is out of range for shape {base.shape}")
    wide = np.float32 if base.dtype.itemsize == 2 and base.dtype.kind not in "iu" else base.dtype
    y = base.astype(wide)
    if scatter.mode == "add":
        np.add.at(y, tuple(position), source.astype(wide))
    else:
        y[tuple(position)] = source
    return y.astype(base.dtype)


def _scatter_target(j: tuple, x: Any, index: Any, axis: int) -> tuple[tuple, Any]:
    q = index.read(*j)
    return (*j[:axis], q, *j[axis + 1 :]), _in_range(q, x.shape[axis])


def _infer_scatter(name: str, x: Any, index: Any, src: Any, axis: int):
    _integers(name, index)
    _fits_along(name, x, index, axis)
    if tuple(src.shape) != tuple(index.shape) or src.dtype is not x.dtype:
        raise ValueError(
            f"{name}: the source {src.dtype.name}{list(src.shape)} must have the index's shape {shown(index.shape)} "
            f"and the dtype {x.dtype.name}"
        )
    return x.shape, x.dtype


@op("scatter_add")
class scatter_add(Scatter):
    """x with ``src`` added at ``index`` along `axis`, position by position: the adjoint of ``gather``.

    Parameters
    ----------
    x : any dtype but bool
    index : integers, of x's rank and nowhere larger except along `axis`
    src : of the index's shape and x's dtype
    """

    attrs = {"axis": 0}
    keeps = ("index",)
    mode, source = "add", 2

    def infer(x, index, src, axis):
        return _infer_scatter("scatter_add", x, index, src, axis)

    def target(j, x, index, src, axis):
        return _scatter_target(j, x, index, axis)

    def reference(x, index, src, axis):
        return scattered(scatter_add, (x, index, src), axis=axis)

    def gradient(dy, y, x, index, src, axis):
        return dy, None, gather(dy, index, axis=axis)


@op("scatter", onnx="ScatterElements")
class scatter(Scatter):
    """x with ``src`` written at ``index`` along `axis`, position by position; of several at one place the last stays.

    Parameters as for ``scatter_add``.
    """

    attrs = {"axis": 0}
    keeps = ("index",)
    mode, source = "set", 2

    def infer(x, index, src, axis):
        return _infer_scatter("scatter", x, index, src, axis)

    def target(j, x, index, src, axis):
        return _scatter_target(j, x, index, axis)

    def reference(x, index, src, axis):
        return scattered(scatter, (x, index, src), axis=axis)

    def gradient(dy, y, x, index, src, axis):
        return scatter(dy, index, zeros_like(src), axis=axis), None, gather(dy, index, axis=axis)


def _infer_chosen(name: str, x: Any, src: Any, indices: tuple, axis: int):
    wanted = _chosen_shape(name, x, indices, axis)
    if tuple(src.shape) != wanted or src.dtype is not x.dtype:
        raise ValueError(
            f"{name}: the source must be {x.dtype.name}{list(wanted)}, got {src.dtype.name}{list(src.shape)}"
        )
    return x.shape, x.dtype


@op("index_add")
class index_add(Scatter):
    """x with ``src`` added at the positions that ``take`` with this index would read: its adjoint.

    Parameters
    ----------
    x : any dtype but bool
    index : integers, any shape
    src : of the shape and dtype of ``take(x, index, axis=axis)``
    axis : int, non-negative
    """

    attrs = {"axis": 0}
    keeps = ("index",)
    mode, source = "add", 2

    def infer(x, index, src, axis):
        return _infer_chosen("index_add", x, src, (index,), axis)

    def target(j, x, index, src, axis):
        return _chosen_position(j, x, (index,), axis)

    def reference(x, index, src, axis):
        return scattered(index_add, (x, index, src), axis=axis)

    def gradient(dy, y, x, index, src, axis):
        return dy, None, take(dy, index, axis=axis)


@op("scatter_nd_add")
class scatter_nd_add(Scatter):
    """x with ``src`` added at the positions that ``gather_nd`` with these indices would read: its adjoint.

    Parameters
    ----------
    x : any dtype but bool
    src : of the shape and dtype of ``gather_nd(x, *indices)``
    indices : integers, which broadcast
    """

    keeps = ("indices",)
    mode, source = "add", 1

    def infer(x, src, *indices):
        return _infer_chosen("scatter_nd_add", x, src, indices, 0)

    def target(j, x, src, *indices):
        return _chosen_position(j, x, indices, 0)

    def reference(x, src, *indices):
        return scattered(scatter_nd_add, (x, src, *indices))

    def gradient(dy, y, x, src, *indices):
        return dy, gather_nd(dy, *indices), *(None for _ in indices)


@op("scatter_nd", onnx="ScatterND")
class scatter_nd(Scatter):
    """x with ``src`` written at the positions that ``gather_nd`` with these indices would read; of several at one place
    the last stays.  Parameters as for ``scatter_nd_add``."""

    keeps = ("indices",)
    mode, source = "set", 1

    def infer(x, src, *indices):
        return _infer_chosen("scatter_nd", x, src, indices, 0)

    def target(j, x, src, *indices):
        return _chosen_position(j, x, indices, 0)

    def reference(x, src, *indices):
        return scattered(scatter_nd, (x, src, *indices))

    def gradient(dy, y, x, src, *indices):
        return scatter_nd(dy, zeros_like(src), *indices), gather_nd(dy, *indices), *(None for _ in indices)


# -- composed ----------------------------------------------------------------------------------------------------


@op("one_hot", onnx="OneHot")
class one_hot(Composite):
    """int64 with a new last axis of `num_classes`: 1 at the index, 0 elsewhere.

    Parameters
    ----------
    index : integers of any shape
    num_classes : int, at least 1
    """

    attrs = {"num_classes": 1}
    shape_attrs = True
    differentiable = False

    def infer(index, num_classes):
        _integers("one_hot", index)
        if num_classes < 1:
            raise ValueError(f"one_hot: num_classes must be at least 1, got {num_classes}")
        return (*index.shape, num_classes), int64

    def decompose(index, num_classes):
        classes = arange(start=0, stop=num_classes, step=1, dtype=index.dtype, like=index)
        return narrow(
            unsqueeze(index, len(index.shape)) == along(classes, len(index.shape), len(index.shape) + 1), int64
        )

    def reference(index, num_classes):
        return index[..., None] == np.arange(num_classes)

    def gradient(dy, y, index, num_classes):
        return None


def searchsorted(ordered: Any, values: Any, right: bool = False) -> Any:
    """For each value the first position in an ascending vector before which it can be inserted (int64).

    Of several vectors (*batch, n) each has its own values (*batch, m).  Bisection: as many reads for each value as the largest
    position has bits.
    """
    rank = len(ordered.shape)
    if not rank or (rank > 1 and tuple(ordered.shape[:-1]) != tuple(values.shape[:-1])):
        raise ValueError(
            f"searchsorted: ordered values must be a vector, or (*batch, n) for values (*batch, m), got shapes "
            f"{shown(ordered.shape)} and {shown(values.shape)}"
        )
    n = ordered.shape[rank - 1]
    read = take if rank == 1 else gather
    first = full(shape=tuple(values.shape), value=0, dtype=int64, like=values)
    last, reach = first + number_of(first, n), 1
    while reach <= n:
        reach *= 2
        middle = (first + last) // 2
        seen = read(ordered, where(middle < last, middle, 0), axis=rank - 1)
        before = ~(seen > values) if right else ~(seen >= values)  # of a NaN too: it belongs at the end
        before = before & (middle < last)
        first, last = where(before, middle + 1, first), where(before, last, middle)
    return first


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """x, in which the places where the mask holds get the elements of `source` one after the other."""
    from lezero.ops.scan import cumsum

    mask = expand(mask, shape=tuple(x.shape))
    n = count(x)
    nth = cumsum(reshape(mask, shape=(n,)), axis=0) - 1
    flat = take(reshape(source, shape=(count(source),)), where(nth < 0, 0, nth), axis=0)
    return where(mask, reshape(flat, shape=tuple(x.shape)), x)
