"""Interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from lezero.arguments import need_real, whole
from lezero.ops.resample import resample
from lezero.tensor import Tensor

_DIMENSIONS = {"nearest": (1, 2), "nearest-exact": (1, 2), "linear": (1,), "bilinear": (2,)}


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """Images in another size.

    Parameters
    ----------
    input : (batch, channels, length) or (batch, channels, height, width)
    size : the new extents, one int or one for each dimension; or
    scale_factor : what the extents are multiplied by, rounded down; likewise
    mode : {"nearest", "nearest-exact", "linear", "bilinear"}
        "nearest" takes the element at ``floor(o * step)``, "nearest-exact" the one whose centre is nearest; "linear" blends
        two elements, "bilinear" four.
    align_corners : bool
        For the modes that blend: whether the first and last elements lie on each other, rather than the outer edges of the
        first and last pixels.
    recompute_scale_factor : bool
        Let positions follow from the new extents, not from `scale_factor` itself.

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
    blends = mode.endswith("linear")
    if align_corners is not None and not blends:
        raise ValueError(f"interpolate: mode {mode!r} has no align_corners")
    extents = [int(d) for d in input.shape[2:]]
    sizes, steps = _sizes_and_steps(extents, size, scale_factor, recompute_scale_factor)
    x = input
    for axis, (extent, out, step) in enumerate(zip(extents, sizes, steps), 2):
        how = mode
        if blends:
            how = "corners" if align_corners else "linear"
        if align_corners:
            step = (extent - 1) / (out - 1) if out > 1 else 0.0
        if mode == "nearest" and out == 2 * extent:
            step = 0.5  # whatever the scale was, as in PyTorch
        # In a size that stays, PyTorch looks at the scale in its exact mode, and with one dimension in the other one, too.
        if out != extent or mode == "nearest-exact" or (mode == "nearest" and n == 1 and step != 1):
            x = resample(x, axis=axis, size=out, mode=how, step=step)
    return x


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
