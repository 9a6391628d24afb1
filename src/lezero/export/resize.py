"""Interpolation of images whose extents are free as ONNX's Resize; positions in known extents are computed as elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from lezero.export.errors import ExportError
from lezero.export.operators import emits
from lezero.export.writer import Writer
from lezero.graph.dim import Dim, Guard, noting_guards
from lezero.graph.node import Node
from lezero.ops.base import Composite
from lezero.ops.pooling import adaptive_avg_pool
from lezero.runtime.recording import STATE
from lezero.tensor import Tensor

MOST_EXTENT = 8192
"""Up to which extents a scale has to give the same size here and in the file."""


class _Resize(Composite):
    """Images (batch, channels, *) in another size; it is written and never run.

    Parameters
    ----------
    sizes : the new extents
    scales : what positions follow from, for each dimension; None where they follow from the sizes
    mode : as ``nn.functional.interpolate`` has it
    corners, antialias : its options
    """

    attrs = {"sizes": (), "scales": None, "mode": "nearest", "corners": False, "antialias": False}
    differentiable = False

    @staticmethod
    def infer(x, sizes, scales, mode, corners, antialias):
        return (*x.shape[:2], *sizes), x.dtype


_RESIZE = _Resize("resize", None)
_NEAREST = {
    "nearest": {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest-exact": {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"},
}


@emits("resize")
def _written(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    _, scales, mode, corners, antialias = node.attrs
    options: dict[str, Any] = {"mode": "nearest", **_NEAREST.get(mode, {})}
    if mode not in _NEAREST:
        options["mode"] = "cubic" if mode == "bicubic" else "linear"
        options["coordinate_transformation_mode"] = "align_corners" if corners else "half_pixel"
    if mode == "bicubic":
        options["cubic_coeff_a"] = -0.5 if antialias else -0.75
    if antialias:
        if w.opset < 18:
            return None
        options |= {"antialias": 1, "exclude_outside": 1}  # weights within the image sum to one, as in PyTorch
    if scales is None:
        return w.add("Resize", [*operands, "", "", w.extents(node.shape)], **options)
    return w.add("Resize", [*operands, "", w.constant((1, 1, *scales), np.float32)], **options)


def recorder(ask: Callable[[Guard], None]) -> Callable[..., Tensor | None]:
    """What records interpolation of free extents.

    ask : is told what it decides by extents
    """

    def record(
        x: Tensor, size: Any, scale: Any, mode: str, corners: bool, antialias: bool, recompute: bool
    ) -> Tensor | None:
        extents = x.shape[2:]
        sizes, scales = _each(size, len(extents)), _each(scale, len(extents))
        if STATE.grad_mode or not any(type(d) is Dim for d in (*extents, *(sizes or ()))):
            return None
        if scales is not None:
            sizes = [_scaled(d, float(s)) for d, s in zip(extents, scales)]
        if mode == "area":
            return adaptive_avg_pool(x, output=tuple(sizes))  # type: ignore[arg-type, call-arg, return-value]
        if recompute or corners:
            scales = None
        if scales is not None and not antialias:
            guards: list[Guard] = []
            with noting_guards(guards):
                scales = [_scale(d, out, float(s), mode, x.ndim) for d, out, s in zip(extents, sizes, scales)]
            for guard in guards:
                ask(guard)
        scales = None if scales is None else tuple(map(float, scales))
        return _RESIZE(x, sizes=tuple(sizes), scales=scales, mode=mode, corners=corners, antialias=antialias)

    return record


def _each(value: Any, n: int) -> Any:
    return value if value is None or isinstance(value, (tuple, list)) else [value] * n


def _scale(extent: int, out: int, scale: float, mode: str, rank: int) -> float:
    """The scale that positions follow from: for some sizes that is another one in PyTorch, whatever was asked for."""
    if mode == "nearest" and 2 < scale < 3 and out == 2 * extent:
        return 2.0
    copies = mode.endswith("linear") or (mode == "nearest" and rank > 3)
    return 1.0 if copies and 1 < scale < 2 and out == extent else scale


def _scaled(extent: int, scale: float) -> int:
    """``floor(extent * scale)`` of any extent."""
    ratio = _ratio(scale)
    if ratio is None:
        raise ExportError(
            f"interpolate: extents times {scale} are not rounded down to the same sizes in ONNX, so they cannot be free; size= "
            "says the new extents exactly"
        )
    return extent * ratio.numerator // ratio.denominator


@lru_cache(maxsize=256)
def _ratio(scale: float) -> Fraction | None:
    """The scale as a ratio, if sizes by it are those of floating point, in double precision (here) and single (in ONNX)."""
    ratio = Fraction(scale).limit_denominator(4096)
    extents = np.arange(1, MOST_EXTENT + 1)
    sizes = extents * ratio.numerator // ratio.denominator
    ours, theirs = np.floor(extents * scale), np.floor(extents.astype(np.float32) * np.float32(scale))
    return ratio if (ours == sizes).all() and (theirs == sizes).all() else None
