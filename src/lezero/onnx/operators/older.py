"""Operators of ``com.microsoft`` that the standard has had since, and relatives of those in ``microsoft.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.operators.attention import causal_conv_with_state, linear_attention
from lezero.onnx.operators.indexing import gather_nd, pad, trilu, unique
from lezero.onnx.operators.microsoft import DOMAIN, embed_layer_normalization, real
from lezero.onnx.operators.shaping import range_
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, integers, operator
from lezero.tensor import Tensor

operator("Trilu", domain=DOMAIN, host=True)(trilu)
operator("GatherND", domain=DOMAIN)(gather_nd)
operator("Pad", domain=DOMAIN, host=True, fixed=(2,))(pad)


@operator("Range", domain=DOMAIN, host=True)
def ranged(ctx: Context, start: Any, limit: Any, delta: Any = None) -> Any:
    return range_(ctx, start, limit, np.ones_like(start) if delta is None else delta)


@operator("Unique", domain=DOMAIN, host=True)
def unique_in_order(ctx: Context, x: Any) -> tuple[Any, ...]:
    values, _, places, times = unique(ctx, x, sorted=0)
    return values, places, times


@operator("ExpandDims", domain=DOMAIN, host=True)
def expand_dims(_: Context, x: Any, axis: Any) -> Any:
    (at,) = integers(axis)
    return np.expand_dims(x, at) if isinstance(x, np.ndarray) else x.unsqueeze(at)


@operator("Inverse", domain=DOMAIN)
def inverse(_: Context, x: Tensor) -> Tensor:
    return lz.linalg.inv(x)


@operator("CDist", domain=DOMAIN)
def cdist(_: Context, a: Tensor, b: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    if metric not in ("euclidean", "sqeuclidean"):
        raise OnnxError(f"the metric {metric!r} is not supported")
    squares = lz.sum((a.unsqueeze(1) - b.unsqueeze(0)) ** 2, dim=2)
    return lz.sqrt(squares) if metric == "euclidean" else squares


@operator("QEmbedLayerNormalization", domain=DOMAIN, fixed=tuple(range(2, 18)))
def q_embed_layer_normalization(
    ctx: Context, words: Tensor, segments: Tensor | None, of_words: Tensor, of_positions: Tensor, of_segments: Tensor | None,
    gamma: Tensor, beta: Tensor, mask: Tensor | None, *scales: Tensor | None, epsilon: float = 1e-12,
) -> tuple[Any, ...]:  # fmt: skip
    """Tables and weights as bytes; `scales` are those of the five in their order, and then their zero points."""
    quantised = (of_words, of_positions, of_segments, gamma, beta)
    found = [
        None if q is None or s is None else real(q, s, z)
        for q, s, z in zip(quantised, scales[:5], scales[5:], strict=True)
    ]
    return embed_layer_normalization(ctx, words, segments, *found, mask, epsilon=epsilon)[:2]  # type: ignore[arg-type]


@operator("GatedRMSNorm", domain=DOMAIN)
def gated_rms_norm(
    _: Context, x: Tensor, scale: Tensor, gate: Tensor, *, activation: str = "silu", epsilon: float = 1e-5
) -> Tensor:
    """Each stretch of as many features as there are scales is normalised; then it is multiplied by the activated gate."""
    width = scale.shape[0]
    y = F.rms_norm(lz.reshape(x.float(), (-1, width)), (width,), scale.float(), epsilon)
    gate = gate.float()
    gate = lz.sigmoid(gate) if activation == "sigmoid" else F.silu(gate)
    return (lz.reshape(y, tuple(x.shape)) * gate).to(x.dtype)


@operator("LinearAttention", domain=DOMAIN)
def linear_attention_without_window(
    ctx: Context, *operands: Tensor | None, state_window: int = 0, **attributes: Any
) -> Any:
    if state_window:
        raise OnnxError("windows of states are not supported")
    return linear_attention(ctx, *operands, **attributes)  # type: ignore[arg-type]


@operator("CausalConvWithState", domain=DOMAIN)
def causal_conv_1d(ctx: Context, *operands: Tensor | None, activation: str = "none", **others: int) -> Any:
    usual = {"dilation": 1, "ndim": 1, "state_channels_last": -1}
    if any(value != usual.get(name, 0) for name, value in others.items()):
        raise OnnxError("other forms than that of one dimension, channels first, are not supported")
    return causal_conv_with_state(ctx, *operands, activation=activation)  # type: ignore[arg-type]
