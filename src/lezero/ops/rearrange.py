"""Rearrangements made of views: joining, splitting, repeating, borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero.graph.dtype import promote
from lezero.ops.base import broadcast_shapes
from lezero.ops.rules import along, narrow, shown, unsqueeze
from lezero.ops.shaping import expand, flip, reshape
from lezero.ops.slicing import concatenate, part

# -- joining and splitting ---------------------------------------------------------------------------------------


def cat(xs: Sequence[Any], axis: int) -> Any:
    """Operands end to end along `axis`, in their common dtype."""
    if not xs:
        raise ValueError("cat: at least one tensor is needed")
    dtype = xs[0].dtype
    for x in xs[1:]:
        dtype = promote(dtype, x.dtype)
    return concatenate(*(narrow(x, dtype) for x in xs), axis=axis) if len(xs) > 1 else narrow(xs[0], dtype)


def stack(xs: Sequence[Any], axis: int) -> Any:
    """Operands of one shape along a new axis."""
    if not xs:
        raise ValueError("stack: at least one tensor is needed")
    for x in xs:
        if tuple(x.shape) != tuple(xs[0].shape):
            raise ValueError(f"stack: shapes {shown(xs[0].shape)} and {shown(x.shape)} differ; all must be the same")
    return cat([unsqueeze(x, axis) for x in xs], axis)


def split(x: Any, sizes: int | Sequence[int], axis: int) -> list[Any]:
    """Parts along `axis` of the given sizes; one size means as many parts of it as there are, the last perhaps smaller."""
    extent = x.shape[axis]
    if isinstance(sizes, int):
        if sizes < 1:
            raise ValueError(f"split: the size of a part must be at least 1, got {sizes}")
        whole, rest = divmod(int(extent), sizes)
        sizes = [sizes] * whole + ([rest] if rest or not whole else [])
    total = 0
    parts = []
    for size in sizes:
        parts.append(part(x, axis, total, total + size))
        total = total + size
    if total != extent:
        raise ValueError(f"split: sizes {tuple(sizes)} do not add up to the extent {extent} of dimension {axis}")
    return parts


def chunk(x: Any, chunks: int, axis: int) -> list[Any]:
    """At most `chunks` parts of equal size along `axis`, the last perhaps smaller."""
    if chunks < 1:
        raise ValueError(f"chunk: at least 1 chunk is needed, got {chunks}")
    size = -(-int(x.shape[axis]) // chunks)
    return split(x, size, axis) if size else [x] * chunks


def squeeze(x: Any, axes: tuple[int, ...] | None = None) -> Any:
    """Extents of 1 dropped: all of them, or those of `axes` that are 1."""
    gone = [a for a, d in enumerate(x.shape) if (axes is None or a in axes) and d == 1]
    return reshape(x, shape=tuple(d for a, d in enumerate(x.shape) if a not in gone)) if gone else x


# -- repeating ---------------------------------------------------------------------------------------------------


def repeat(x: Any, counts: tuple[int, ...]) -> Any:
    """x laid side by side `counts[k]` times along axis k; more counts than axes make new ones in front."""
    if len(counts) < len(x.shape):
        raise ValueError(f"repeat: at least {len(x.shape)} counts are needed for shape {shown(x.shape)}, got {counts}")
    shape = (1,) * (len(counts) - len(x.shape)) + tuple(x.shape)
    between = tuple(e for d in shape for e in (1, d))
    grown = tuple(e for n, d in zip(counts, shape) for e in (n, d))
    return reshape(expand(reshape(x, shape=between), shape=grown), shape=tuple(n * d for n, d in zip(counts, shape)))


def tile(x: Any, counts: tuple[int, ...]) -> Any:
    """``repeat``, with missing counts in front taken as 1."""
    return repeat(x, (1,) * (len(x.shape) - len(counts)) + tuple(counts))


def repeat_interleave(x: Any, count: int, axis: int) -> Any:
    """Each element `count` times in a row along `axis`."""
    shape = tuple(x.shape)
    grown = (*shape[: axis + 1], count, *shape[axis + 1 :])
    return reshape(
        expand(unsqueeze(x, axis + 1), shape=grown), shape=(*shape[:axis], shape[axis] * count, *shape[axis + 1 :])
    )


# -- borders -----------------------------------------------------------------------------------------------------


def _border(x: Any, axis: int, before: int, after: int, mode: str) -> Any:
    n = x.shape[axis]
    if mode == "replicate":
        edge = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
        left = expand(part(x, axis, 0, 1), shape=(*edge[0], before, *edge[1]))
        right = expand(part(x, axis, n - 1, n), shape=(*edge[0], after, *edge[1]))
    elif mode == "reflect":
        left = flip(part(x, axis, 1, before + 1), axes=(axis,))
        right = flip(part(x, axis, n - 1 - after, n - 1), axes=(axis,))
    else:
        left, right = part(x, axis, n - before, n), part(x, axis, 0, after)
    pieces = [p for p, width in ((left, before), (x, 1), (right, after)) if width]
    return cat(pieces, axis)


def border(x: Any, before: tuple[int, ...], after: tuple[int, ...], mode: str) -> Any:
    """x with a border made of its own elements, `before[k]` and `after[k]` wide on axis k.

    Parameters
    ----------
    mode : {"reflect", "replicate", "circular"}
        Mirrored without the edge, the edge repeated, or continued from the other side.
    """
    room = {"reflect": -1, "replicate": None, "circular": 0}
    if mode not in room:
        raise ValueError(f"pad: mode {mode!r} is none of constant, reflect, replicate, circular")
    for axis, (b, a) in enumerate(zip(before, after)):
        limit, n = room[mode], x.shape[axis]
        if (
            b < 0
            or a < 0
            or (limit is None and n == 0 and b + a > 0)
            or (limit is not None and (b > n + limit or a > n + limit))
        ):
            if b or a:
                raise ValueError(f"pad: widths ({b}, {a}) do not suit mode {mode!r} on dimension {axis} of extent {n}")
        if b or a:
            x = _border(x, axis, b, a, mode)
    return x


def meshgrid(*xs: Any, indexing: str = "ij") -> list[Any]:
    """Each 1-D operand spread over the grid of all; ``indexing="xy"`` swaps the first two axes."""
    order = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        order[:2] = [1, 0]
    laid = [along(x, order[k], len(xs)) for k, x in enumerate(xs)]
    shape = broadcast_shapes("meshgrid", *(x.shape for x in laid))
    return [expand(x, shape=shape) for x in laid]
