"""Values of images and volumes at given places between their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import lezero.composed  # noqa: F401  (gather and the like are methods by now)
from lezero.tensor import Tensor, arange, stack

Taps = list[tuple[Tensor, Tensor]]
"""Along one dimension: positions of elements, as floating-point numbers, and their weights."""


def linear_taps(position: Tensor, extent: int) -> Taps:
    """The two neighbours of a position."""
    below = position.floor()
    share = position - below
    return [(below, 1 - share), (below + 1, share)]


def nearest_taps(position: Tensor, extent: int) -> Taps:
    """The nearest element; of two equally near the even one.  The gradient of the position is 0."""
    return [(position.detach().round(), position * 0 + 1)]


def cubic_taps(position: Tensor, extent: int, a: float = -0.75) -> Taps:
    """The two elements before and after a position, weighted by Keys' cubic convolution (1981)."""
    first = position.floor()
    t = position - first

    def near(x: Tensor) -> Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
    return [(first + (k - 1), w) for k, w in enumerate(weights)]


def sample(x: Tensor, taps: Sequence[Taps], beyond: Callable[[Tensor, int], Tensor] | None = None) -> Tensor:
    """Sums of elements times weights.

    Parameters
    ----------
    x : (batch, channels, *spatial)
    taps : for each spatial dimension, positions and weights of shape (batch, points)
    beyond : what position inside stands for one that may be outside; zeros are read there unless given

    Returns
    -------
    (batch, channels, points)
    """
    batch, channels, *spatial = x.shape
    flat = x.reshape(batch, channels, -1)
    total: Any = None
    for corner in product(*taps):
        at: Any = 0
        weight: Any = 1
        for (position, share), extent in zip(corner, spatial):
            inside = position.detach().clamp(0, extent - 1) if beyond is None else beyond(position.detach(), extent)
            if beyond is None:
                share = share * ((position >= 0) & (position <= extent - 1)).to(share.dtype)
            at, weight = at * extent + inside.long(), weight * share
        index = at.unsqueeze(1).expand(batch, channels, at.shape[1])
        term = flat.gather(2, index) * weight.unsqueeze(1)
        total = term if total is None else total + term
    return total


def _clamped(position: Tensor, extent: int, align_corners: bool) -> Tensor:
    return position.clamp(0, extent - 1)


def _reflected(position: Tensor, extent: int, align_corners: bool) -> Tensor:
    """Back and forth between the outermost elements' centres, or their outer edges."""
    low, span = (0.0, extent - 1) if align_corners else (-0.5, extent)
    if span == 0:
        return position * 0
    away = (position - low).abs()
    within = away - (away / (2 * span)).floor() * (2 * span)  # in a period: there, and back
    return (span - (within - span).abs() + low).clamp(0, extent - 1)


_BEYOND = {"border": _clamped, "reflection": _reflected}
_TAPS = {"bilinear": linear_taps, "nearest": nearest_taps, "bicubic": cubic_taps}


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Values at places given in a grid, with gradients for both.

    Parameters
    ----------
    input : (batch, channels, *spatial), any number of spatial dimensions
    grid : (batch, *places, dimensions)
        Positions from -1 to 1, the last spatial dimension first.
    mode : {"bilinear", "nearest", "bicubic"}
        The first also stands for linear interpolation along any number of dimensions.
    padding_mode : {"zeros", "border", "reflection"}
        What is seen beyond the elements.
    align_corners : whether -1 and 1 are the centres of the outermost elements, or their outer edges (the default)

    Returns
    -------
    (batch, channels, *places)

    Raises
    ------
    ValueError
        For shapes that do not fit, and names that are not listed.
    """
    n = input.ndim - 2
    if n < 1 or grid.ndim != n + 2 or grid.shape[-1] != n or grid.shape[0] != input.shape[0]:
        raise ValueError(
            f"grid_sample: an input (batch, channels, *spatial) and a grid (batch, *places, {max(n, 1)}) are needed, got shapes "
            f"{tuple(input.shape)} and {tuple(grid.shape)}"
        )
    if mode not in _TAPS:
        raise ValueError(f"grid_sample: mode is 'bilinear', 'nearest' or 'bicubic', got {mode!r}")
    if padding_mode != "zeros" and padding_mode not in _BEYOND:
        raise ValueError(f"grid_sample: padding_mode is 'zeros', 'border' or 'reflection', got {padding_mode!r}")
    align, rule = bool(align_corners), _BEYOND.get(padding_mode)
    places, taps = grid.shape[1:-1], []
    for k, extent in enumerate(input.shape[2:]):
        g = grid.select(-1, n - 1 - k).reshape(grid.shape[0], -1)
        position = (g + 1) * ((extent - 1) / 2) if align else ((g + 1) * extent - 1) / 2
        if rule is not None and mode != "bicubic":
            position = rule(position, extent, align)
        taps.append(_TAPS[mode](position, extent))
    # a cubic's own taps are put back inside, not where it is centred
    beyond = None if rule is None or mode != "bicubic" else lambda p, extent: rule(p, extent, align)
    y = sample(input, taps, beyond)
    return y.reshape(*input.shape[:2], *places)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid of an affine map, for `grid_sample`.

    Parameters
    ----------
    theta : (batch, n, n + 1)
    size : (batch, channels, *spatial) of what will be sampled to, n spatial extents
    align_corners : as for `grid_sample`

    Returns
    -------
    (batch, *spatial, n)
    """
    spatial = tuple(size)[2:]
    n = len(spatial)
    if theta.ndim != 3 or tuple(theta.shape[1:]) != (n, n + 1):
        raise ValueError(
            f"affine_grid: for a size {tuple(size)} theta is (batch, {n}, {n + 1}), got shape {tuple(theta.shape)}"
        )
    axes = []
    for k, extent in enumerate(spatial):
        i = arange(extent, dtype=theta.dtype)
        corners = align_corners and extent > 1
        line = i * (2 / (extent - 1)) - 1 if corners else (i * 2 + 1) / extent - 1
        axes.append(line.reshape(*(-1 if j == k else 1 for j in range(n))).expand(*spatial))
    places = stack([*axes[::-1], axes[0] * 0 + 1], -1).reshape(1, -1, n + 1)
    return (places @ theta.mT).reshape(theta.shape[0], *spatial, n)
