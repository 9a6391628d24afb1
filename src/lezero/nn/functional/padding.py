"""Borders around images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lezero.arguments import whole
from lezero.graph.dim import Dim
from lezero.ops import movement
from lezero.runtime.whole import as_extent
from lezero.tensor import Tensor, arange, cat


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the last dimensions.

    Parameters
    ----------
    pad : ints
        (before, after) of the last dimension, then of the one before it, and so on; negative cuts off.
    mode : {"constant", "reflect", "replicate", "circular"}
    value : number for "constant", 0 by default
    """
    if isinstance(pad, int):
        raise TypeError(f"pad: widths are a tuple, (before, after) of each dimension from the last on, got {pad}")
    widths = [as_extent(whole("pad: a width", p)) for p in pad]
    if len(widths) % 2 or len(widths) > 2 * input.ndim:
        raise ValueError(f"pad: pairs of widths for at most {input.ndim} dimensions are needed, got {tuple(pad)}")
    n = len(widths) // 2
    pairs = [(widths[2 * i], widths[2 * i + 1]) for i in range(n)][::-1]  # in order of dimensions
    if mode == "constant":
        rest = (0,) * (input.ndim - n)
        return movement.pad(
            input, before=rest + tuple(b for b, _ in pairs), after=rest + tuple(a for _, a in pairs), fill=value or 0
        )
    if value is not None:
        raise ValueError(f"pad: mode {mode!r} takes no value")
    if mode not in _BORDERS:
        raise ValueError(f"pad: mode is 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    x = input
    for axis, (before, after) in zip(range(x.ndim - n, x.ndim), pairs):
        if type(before) is Dim or type(after) is Dim:
            x = x.index_select(axis, _PLACES[mode](arange(-before, x.shape[axis] + after), x.shape[axis]))
            continue
        cut = max(-before, 0), max(-after, 0)
        before, after = max(before, 0), max(after, 0)
        if mode == "circular":
            x = _cut(x, axis, *cut)
        if before or after:
            x = _BORDERS[mode](x, axis, before, after)
        if mode != "circular":
            x = _cut(x, axis, *cut)
    return x


def _cut(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    if not before and not after:
        return x
    left = x.shape[axis] - before - after
    if left < 1:
        raise ValueError(
            f"pad: {before} and {after} elements cut off leave nothing of a dimension of {int(x.shape[axis])}"
        )
    return x.narrow(axis, before, left)


def _check(mode: str, x: Tensor, axis: int, before: int, after: int, limit: int) -> None:
    if max(before, after) > limit:
        raise ValueError(
            f"pad: mode {mode!r} takes widths up to {limit} for a dimension of {int(x.shape[axis])}, got {(before, after)}"
        )


def _reflect(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    n = as_extent(x.shape[axis])
    _check("reflect", x, axis, before, after, n - 1)
    left = x.narrow(axis, 1, before).flip(axis) if before else None
    right = x.narrow(axis, n - 1 - after, after).flip(axis) if after else None
    return _around(left, x, right, axis)


def _replicate(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    n = as_extent(x.shape[axis])
    if n == 0:
        raise ValueError(f"pad: mode 'replicate' takes a dimension of 1 or more, got {(before, after)} for none")

    def edge(at: int, width: int) -> Tensor | None:
        shape = [*x.shape]
        shape[axis] = width
        return x.narrow(axis, at, 1).expand(*shape) if width else None

    return _around(edge(0, before), x, edge(n - 1, after), axis)


def _circular(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    n = as_extent(x.shape[axis])
    _check("circular", x, axis, before, after, n)
    left = x.narrow(axis, n - before, before) if before else None
    right = x.narrow(axis, 0, after) if after else None
    return _around(left, x, right, axis)


def _around(left: Tensor | None, x: Tensor, right: Tensor | None, axis: int) -> Tensor:
    return cat([t for t in (left, x, right) if t is not None], axis)


_PLACES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "reflect": lambda i, n: (n - 1) - ((n - 1) - i.abs()).abs(),
    "replicate": lambda i, n: i.clamp(0, n - 1),
    "circular": lambda i, n: i % n,
}
"""Where a place outside of n elements reads, for widths that follow from extents."""
_BORDERS = {"reflect": _reflect, "replicate": _replicate, "circular": _circular}
