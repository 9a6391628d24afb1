"""Normalisation."""

from __future__ import annotations

from typing import Any

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.registry import Context, dimension, operator
from lezero.tensor import Tensor


def _over_last(x: Tensor, axis: int, *scales: Tensor | None) -> tuple[tuple[int, ...], list[Tensor | None]]:
    """The extents from an axis on, and scales spread over them."""
    extents = tuple(x.shape[dimension(axis, x.ndim) :])
    spread = [s if s is None or tuple(s.shape) == extents else lz.broadcast_to(s, extents).to(x.dtype) for s in scales]
    return extents, spread


@operator("LayerNormalization", 17)
def layer_normalization(
    ctx: Context, x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    if all(d == 1 for d in scale.shape[: dimension(axis, x.ndim) - x.ndim]) and scale.ndim > x.ndim - dimension(
        axis, x.ndim
    ):
        scale = lz.reshape(scale, tuple(scale.shape[dimension(axis, x.ndim) - x.ndim :]))
    extents, (scale_, bias_) = _over_last(x, axis, scale, bias)
    y = F.layer_norm(x, extents, scale_, bias_, epsilon)
    if not ctx.wanted(1) and not ctx.wanted(2):
        return (y,)
    axes, wide = tuple(range(dimension(axis, x.ndim), x.ndim)), x if x.dtype is lz.float64 else x.float()
    mean, spread = lz.mean(wide, dim=axes, keepdim=True), lz.var(wide, dim=axes, correction=0, keepdim=True)
    return y, mean, lz.rsqrt(spread + epsilon)


@operator("RMSNormalization", 23)
def rms_normalization(
    _: Context, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    extents, (spread,) = _over_last(x, axis, scale)
    return F.rms_norm(x, extents, spread, epsilon)


@operator("GroupNormalization", 18)
def group_normalization_18(
    _: Context, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    """In this version scales and biases are of groups."""
    times = x.shape[1] // num_groups
    scale, bias = (lz.reshape(lz.broadcast_to(v.reshape(-1, 1), (num_groups, times)), (-1,)) for v in (scale, bias))
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@operator("GroupNormalization", 21)
def group_normalization(
    _: Context, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@operator("InstanceNormalization", 1)
def instance_normalization(
    _: Context, x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, consumed_inputs: Any = None
) -> Tensor:
    return F.group_norm(x, int(x.shape[1]), scale, bias, epsilon)


@operator("LpNormalization", 1)
def lp_normalization(_: Context, x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    sums = lz.sum(lz.abs(x) if p == 1 else x * x, dim=axis, keepdim=True)
    nothing = sums == 0
    sums = lz.where(nothing, 1.0, sums).to(x.dtype)
    return x / (sums if p == 1 else lz.sqrt(sums))


@operator("MeanVarianceNormalization", 9)
def mean_variance_normalization(_: Context, x: Tensor, *, axes: list[int] | None = None) -> Tensor:
    dims = tuple((0, 2, 3) if axes is None else axes)
    deviation = lz.std(x, dim=dims, correction=0, keepdim=True)
    return (x - lz.mean(x, dim=dims, keepdim=True)) / (deviation + 1e-9)


@operator("LRN", 1)
def local_response_normalization(
    _: Context, x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    if size % 2:
        return F.local_response_norm(x, size, alpha, beta, bias)
    # of an even number of channels PyTorch has one more before, the standard one more after
    return lz.flip(F.local_response_norm(lz.flip(x, (1,)), size, alpha, beta, bias), (1,))
