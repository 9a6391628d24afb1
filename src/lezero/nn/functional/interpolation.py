"""Interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import numpy as np

from lezero.arguments import need_real, whole
from lezero.graph.dtype import uint8
from lezero.nn.parameter import constant_tensor
from lezero.ops.pooling import adaptive_avg_pool
from lezero.ops.resample import resample
from lezero.ops.rules import need_floating, wide_dtype
from lezero.runtime.whole import WHOLE
from lezero.tensor import Tensor

_DIMENSIONS = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,), "trilinear": (3,), "bicubic": (2,),
    "area": (1, 2, 3),
}  # fmt: skip


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Images in another size.

    Parameters
    ----------
    input : (batch, channels, length), (batch, channels, height, width) or (batch, channels, depth, height, width)
        Of a floating dtype where elements are blended, or uint8, whose blends are rounded.
    size : the new extents, one int or one for each dimension; or
    scale_factor : what the extents are multiplied by, rounded down; likewise
    mode : {"nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area"}
        "nearest" takes the element at ``floor(o * step)``, "nearest-exact" the one whose centre is nearest; "linear" blends
        two elements, "bilinear" four, "trilinear" eight and "bicubic" sixteen (Keys 1981); "area" takes means over adaptive
        bins.
    align_corners : bool
        For the modes that blend: whether the first and last elements lie on each other, rather than the outer edges of the
        first and last pixels.
    recompute_scale_factor : bool
        Let positions follow from the new extents, not from `scale_factor` itself.
    antialias : bool
        For "bilinear" and "bicubic": blend all elements that an output covers where it gets smaller.

    Returns
    -------
    (batch, channels, *size)
    """
    if mode not in _DIMENSIONS:
        raise ValueError(f"interpolate: mode is one of {', '.join(_DIMENSIONS)}, got {mode!r}")
    n = input.ndim - 2
    if n not in _DIMENSIONS[mode]:
        wanted = " or ".join(str(d + 2) for d in _DIMENSIONS[mode])
        raise ValueError(
            f"interpolate: mode {mode!r} takes an input of {wanted} dimensions, got shape {tuple(input.shape)}"
        )
    smooth = mode.endswith("linear")
    blends = smooth or mode == "bicubic"
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"interpolate: antialias is for modes 'bilinear' and 'bicubic', got {mode!r}")
    if align_corners is not None and not blends:
        raise ValueError(f"interpolate: mode {mode!r} has no align_corners")
    if blends and input.dtype is uint8:
        options = size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        return interpolate(input.float(), *options).round().clamp(0, 255).to(uint8)
    if blends:
        need_floating("interpolate", input)
    extents = [int(d) for d in input.shape[2:]]
    sizes, steps = _sizes_and_steps(extents, size, scale_factor, recompute_scale_factor)
    whole = WHOLE.parts.get("interpolate")
    if whole is not None:
        options = mode, bool(align_corners), antialias, bool(recompute_scale_factor)
        if (made := whole(input, size, scale_factor, *options)) is not None:
            return made
    if mode == "area":
        return adaptive_avg_pool(input, output=tuple(sizes))
    if antialias or mode == "bicubic":
        return _filtered(input, sizes, steps, mode == "bicubic", bool(align_corners), antialias)
    x = input
    for axis, (extent, out, step) in enumerate(zip(extents, sizes, steps), 2):
        how = mode
        if smooth:
            how = "corners" if align_corners else "linear"
        if align_corners:
            step = (extent - 1) / (out - 1) if out > 1 else 0.0
        if mode == "nearest" and out == 2 * extent:
            step = 0.5  # whatever the scale was, as in PyTorch
        # In a size that stays, PyTorch looks at the scale in its exact mode, and with one dimension in the other one, too.
        if out != extent or mode == "nearest-exact" or (mode == "nearest" and n == 1 and step != 1):
            x = resample(x, axis=axis, size=out, mode=how, step=step)
    return x


def _filtered(x: Tensor, sizes: list[int], steps: list[float], cubic: bool, corners: bool, antialias: bool) -> Tensor:
    """Each dimension multiplied by the weights that its elements have in the outputs."""
    for axis, (out, step) in enumerate(zip(sizes, steps), 2):
        extent = int(x.shape[axis])
        if corners:
            step = (extent - 1) / (out - 1) if out > 1 else 0.0
        shares = _covering if antialias else _neighbours
        weights = constant_tensor(shares(extent, out, step, cubic, corners).astype(wide_dtype(x.dtype).numpy))
        y = x.movedim(axis, -1)._cast(weights.dtype) @ weights.T
        x = y.movedim(-1, axis)._cast(x.dtype)
    return x


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel with parameter `a`."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d < 1, near, np.where(d < 2, far, 0))


def _neighbours(extent: int, out: int, step: float, cubic: bool, corners: bool) -> np.ndarray:
    """(out, extent): the shares of the four elements nearest to each output; outermost ones go on beyond the ends."""
    position = np.arange(out) * step if corners else (np.arange(out) + 0.5) * step - 0.5
    first = np.floor(position).astype(int)
    weights = np.zeros((out, extent))
    for k in range(-1, 3):
        at = np.clip(first + k, 0, extent - 1)
        np.add.at(weights, (np.arange(out), at), _cubic(position - first - k, -0.75))
    return weights


def _covering(extent: int, out: int, step: float, cubic: bool, corners: bool) -> np.ndarray:
    """(out, extent): the shares of all elements that an output covers, as Pillow and PyTorch have them."""
    wide = max(step, 1.0)
    reach = (2.0 if cubic else 1.0) * wide
    weights = np.zeros((out, extent))
    for o in range(out):
        centre = step * (o + 0.5)
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), extent)
        distance = (np.arange(first, last) - centre + 0.5) / wide
        share = _cubic(distance, -0.5) if cubic else np.maximum(1 - np.abs(distance), 0)
        weights[o, first:last] = share / share.sum()
    return weights


def _sizes_and_steps(
    extents: list[int], size: int | Sequence[int] | None, scale: float | Sequence[float] | None, recompute: bool | None
) -> tuple[list[int], list[float]]:
    """The new extents, and the distance between outputs in elements."""
    if (size is None) == (scale is None):
        raise ValueError("interpolate: either size or scale_factor is needed")
    n = len(extents)
    if scale is not None:
        given = scale if isinstance(scale, (tuple, list)) else [scale] * n
        for factor in given:
            need_real("interpolate: scale_factor", factor)
        scales = [float(s) for s in given]
        sizes = [floor(d * s) for d, s in zip(extents, scales)]
    else:
        if recompute:
            raise ValueError("interpolate: recompute_scale_factor goes with scale_factor, not with size")
        scales = []
        sizes = [int(whole("interpolate: size", d)) for d in (size if isinstance(size, (tuple, list)) else [size] * n)]
    if len(sizes) != n or (scale is not None and len(scales) != n) or any(d < 1 for d in (*sizes, *extents)):
        raise ValueError(
            f"interpolate: {n} extents of 1 or more are needed for those of the input, {tuple(extents)}; got size={size} and "
            f"scale_factor={scale}"
        )
    if scale is None or recompute:
        return sizes, [d / out for d, out in zip(extents, sizes)]
    return sizes, [1 / s for s in scales]
