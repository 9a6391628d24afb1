"""Functions of the standard that arrange elements."""

from __future__ import annotations

from collections.abc import Sequence

from lezero import placed, rearranged
from lezero.array_api.operands import Axes, need_tensor, promoted
from lezero.ops.base import normalize_axes, several_axes
from lezero.tensor import Tensor, cat
from lezero.tensor import stack as _stack


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all broadcast to together."""
    return placed.broadcast_shapes(*shapes)


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """All in the shape they broadcast to together."""
    return rearranged.broadcast_tensors(*(need_tensor("broadcast_arrays", x) for x in arrays))


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    return need_tensor("broadcast_to", x).expand(shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Joined along an existing dimension, or with None all elements one after the other."""
    parts = [need_tensor("concat", x) for x in arrays]
    return cat([x.reshape(-1) for x in parts]) if axis is None else cat(promoted("concat", *parts), axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Joined along a new dimension."""
    return _stack(promoted("stack", *(need_tensor("stack", x) for x in arrays)), axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts along a dimension."""
    return need_tensor("unstack", x).unbind(axis)


def expand_dims(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """With new dimensions of extent 1 at `axis`, counted in the result."""
    axes = several_axes("expand_dims", axis)
    for d in normalize_axes("expand_dims", axes, need_tensor("expand_dims", x).ndim + len(axes)):
        x = x.unsqueeze(d)
    return x


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Without the dimensions `axis`, whose extents are 1; a ValueError if they are not."""
    axes = normalize_axes("squeeze", several_axes("squeeze", axis), need_tensor("squeeze", x).ndim)
    for d in axes:
        if x.shape[d] != 1:
            raise ValueError(f"array_api.squeeze: dimension {d} has extent {int(x.shape[d])}, not 1")
    return x.squeeze(axes) if axes else x


def flip(x: Tensor, /, *, axis: Axes = None) -> Tensor:
    """Elements in reverse order along `axis`, or along all dimensions."""
    axes = normalize_axes("flip", None if axis is None else several_axes("flip", axis), need_tensor("flip", x).ndim)
    return x.flip(*axes) if axes else x.clone()


def moveaxis(x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """With the dimensions `source` where `destination` says, the others in their order."""
    places = tuple(several_axes("moveaxis", p) for p in (source, destination))
    if len(places[0]) != len(places[1]):
        raise ValueError(f"array_api.moveaxis: {len(places[0])} dimensions cannot move to {len(places[1])} places")
    return need_tensor("moveaxis", x).movedim(*places)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    return need_tensor("permute_dims", x).permute(tuple(axes))


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; a view, or with ``copy=True`` not."""
    view = need_tensor("reshape", x).reshape(shape)
    return view.clone() if copy else view


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axes = None) -> Tensor:
    """Elements moved along `axis`, round the end; without `axis`, along all elements in row-major order."""
    need_tensor("roll", x)
    if axis is None:
        return rearranged.roll(x, shift)
    axes = several_axes("roll", axis)
    shifts = several_axes("roll", shift)
    if len(shifts) not in (1, len(axes)):
        raise ValueError(f"array_api.roll: {len(shifts)} shifts for {len(axes)} dimensions")
    moved = rearranged.roll(x, shifts * (len(axes) if len(shifts) == 1 else 1), axes)
    return moved.clone() if moved is x else moved


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element, or each part along `axis`, several times in a row; counts of each (a tensor) are read."""
    return rearranged.repeat_interleave(need_tensor("repeat", x), repeats, axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Repeated along every dimension."""
    return rearranged.tile(need_tensor("tile", x), tuple(repetitions))


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The parts along `axis` (which may be left out for a vector) at `indices`, a vector of integers."""
    if axis is None and need_tensor("take", x).ndim != 1:
        raise ValueError(f"array_api.take: axis is needed for a tensor of {x.ndim} dimensions")
    return need_tensor("take", x).index_select(0 if axis is None else axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """The elements along `axis` at `indices`, which broadcast with x in the other dimensions."""
    d = normalize_axes("take_along_axis", axis, need_tensor("take_along_axis", x).ndim)[0]
    rest = broadcast_shapes(*((*t.shape[:d], *t.shape[d + 1 :]) for t in (x, indices)))
    x, indices = (t.expand((*rest[:d], t.shape[d], *rest[d:])) for t in (x, indices))
    return x.gather(d, indices)
