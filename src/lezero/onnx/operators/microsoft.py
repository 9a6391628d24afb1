"""Operators of ONNX Runtime's own domain, ``com.microsoft``, as quantised and optimised models have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.operators.quantising import (
    dequantize_linear,
    dynamic_quantize_linear,
    integer_product,
    qlinear_conv,
    quantize_linear,
    rounded_to,
    standard,
)
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, dimension, operator
from lezero.tensor import Tensor

DOMAIN = "com.microsoft"

operator("QuantizeLinear", domain=DOMAIN, fixed=(1, 2))(quantize_linear)
operator("DequantizeLinear", domain=DOMAIN, fixed=(1, 2))(dequantize_linear)


# -- element by element on quantised tensors --------------------------------------------------------------------------


def real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """What a quantised tensor stands for, float32."""
    return (x.float() - (0 if zero is None else zero.float())) * scale


def quantised(y: Tensor, scale: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    """Quantised as the zero point, or as the operand where there is none."""
    return rounded_to(y / scale, zero, (like if zero is None else zero).dtype.numpy)


def _binary(name: str, compute: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name, domain=DOMAIN, fixed=(1, 4, 6))
    def call(
        _: Context, a: Tensor, sa: Tensor, za: Tensor | None, b: Tensor, sb: Tensor, zb: Tensor | None, sy: Tensor,
        zy: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return quantised(compute(real(a, sa, za), real(b, sb, zb)), sy, zy, a)


_binary("QLinearAdd", lz.add)
_binary("QLinearMul", lz.mul)


def _unary(name: str, compute: Callable[..., Tensor]) -> None:
    @operator(name, domain=DOMAIN, fixed=(1, 3))
    def call(
        ctx: Context, x: Tensor, sx: Tensor, zx: Tensor | None, sy: Tensor, zy: Tensor | None = None, **attributes: Any
    ) -> Tensor:
        return quantised(compute(ctx, real(x, sx, zx), **attributes), sy, zy, x)


def _pooled(name: str) -> Callable[..., Tensor]:
    def compute(ctx: Context, x: Tensor, *, channels_last: int = 0, **attributes: Any) -> Tensor:
        x = lz.movedim(x, -1, 1) if channels_last else x
        y = standard(ctx, name, x, **attributes)
        return lz.movedim(y, 1, -1) if channels_last else y

    return compute


_unary("QLinearSigmoid", lambda _, x: lz.sigmoid(x))
_unary("QLinearLeakyRelu", lambda _, x, alpha=0.01: F.leaky_relu(x, alpha))
_unary("QLinearSoftmax", lambda _, x, axis=-1, opset=13: _softmax(x, axis, opset))
_unary("QLinearAveragePool", _pooled("AveragePool"))
_unary("QLinearGlobalAveragePool", _pooled("GlobalAveragePool"))


def _softmax(x: Tensor, axis: int, opset: int) -> Tensor:
    """Up to version 12 of the standard over all axes from one on."""
    if opset >= 13:
        return F.softmax(x, axis)
    return lz.reshape(F.softmax(lz.reshape(x, (*x.shape[: dimension(axis, x.ndim)], -1)), -1), x.shape)


@operator("QLinearConcat", domain=DOMAIN, fixed=(0,))
def qlinear_concat(_: Context, sy: Tensor, zy: Tensor, *operands: Tensor, axis: int) -> Tensor:
    values = [real(*operands[k : k + 3]) for k in range(0, len(operands), 3)]
    return quantised(lz.cat(values, axis), sy, zy, operands[0])


@operator("QLinearWhere", domain=DOMAIN, fixed=(2, 5, 7))
def qlinear_where(
    _: Context,
    condition: Tensor,
    a: Tensor,
    sa: Tensor,
    za: Tensor,
    b: Tensor,
    sb: Tensor,
    zb: Tensor,
    sy: Tensor,
    zy: Tensor,
) -> Tensor:
    return quantised(lz.where(condition, real(a, sa, za), real(b, sb, zb)), sy, zy, a)


@operator("NhwcMaxPool", domain=DOMAIN)
def nhwc_max_pool(ctx: Context, x: Tensor, **attributes: Any) -> Tensor:
    pooled = standard(ctx, "MaxPool", lz.movedim(x, -1, 1), **attributes)
    return lz.movedim(pooled[0] if isinstance(pooled, tuple) else pooled, 1, -1)


@operator("QLinearConv", domain=DOMAIN, fixed=(1, 4, 6))
def qlinear_conv_of_rows(ctx: Context, x: Tensor, *operands: Any, channels_last: int = 0, **attributes: Any) -> Tensor:
    y = qlinear_conv(ctx, lz.movedim(x, -1, 1) if channels_last else x, *operands, **attributes)
    return lz.movedim(y, 1, -1) if channels_last else y


# -- products ---------------------------------------------------------------------------------------------------------


@operator("QGemm", domain=DOMAIN, fixed=(1, 4, 7))
def qgemm(
    _: Context, a: Tensor, sa: Tensor, za: Tensor | None, b: Tensor, sb: Tensor, zb: Tensor | None, c: Tensor | None = None,
    sy: Tensor | None = None, zy: Tensor | None = None, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    y = integer_product(a.t() if transA else a, b.t() if transB else b, za, zb)
    y = (y if c is None else y + c).float() * (alpha * sa * sb)
    return y if sy is None else quantised(y, sy, zy, a)


@operator("MatMulIntegerToFloat", domain=DOMAIN, fixed=(2, 3))
def matmul_integer_to_float(
    _: Context, a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, za: Tensor | None = None, zb: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    y = integer_product(a, b, za, zb).to(sa.dtype) * (sa * sb)
    return y if bias is None else y + bias


@operator("DynamicQuantizeMatMul", domain=DOMAIN, fixed=(2,))
def dynamic_quantize_matmul(
    ctx: Context, a: Tensor, b: Tensor, sb: Tensor, zb: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    quantised, scale, zero = dynamic_quantize_linear(ctx, a)
    return matmul_integer_to_float(ctx, quantised, b, scale, sb, zero, zb, bias)


@operator("FusedMatMul", domain=DOMAIN)
@operator("TransposeMatMul", domain=DOMAIN)
def fused_matmul(
    _: Context, a: Tensor, b: Tensor, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:  # fmt: skip
    """transBatch : the first dimension is that of rows, and batches follow it."""

    def turned(x: Tensor, batch: int, rows: int) -> Tensor:
        x = lz.movedim(x, 0, -2) if batch else x
        return lz.transpose(x, -1, -2) if rows and x.ndim > 1 else x

    y = lz.matmul(turned(a, transBatchA, transA), turned(b, transBatchB, transB))
    return y if alpha == 1 else (y * alpha).to(y.dtype)


_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "Relu": (F.relu, 0), "Sigmoid": (lz.sigmoid, 0), "Tanh": (lz.tanh, 0), "HardSwish": (F.hardswish, 0),
    "LeakyRelu": (F.leaky_relu, 1), "Clip": (lz.clamp, 2),
    "HardSigmoid": (lambda x, alpha, beta: lz.clamp(alpha * x + beta, 0, 1), 2),
}  # fmt: skip
"""An activation that is part of another operator, and how many numbers it takes."""


def _activated(y: Tensor, activation: str, parameters: list[float]) -> Tensor:
    if not activation:
        return y
    if activation not in _ACTIVATIONS:
        raise OnnxError(f"the activation {activation!r} is not supported; there are {', '.join(_ACTIVATIONS)}")
    compute, count = _ACTIVATIONS[activation]
    return compute(y, *parameters[:count])


@operator("FusedConv", domain=DOMAIN)
def fused_conv(
    ctx: Context, x: Tensor, w: Tensor, bias: Tensor | None = None, z: Tensor | None = None, *, activation: str = "",
    activation_params: list[float] | None = None, **attributes: Any,
) -> Tensor:  # fmt: skip
    y = standard(ctx, "Conv", x, w, bias, **attributes)
    return _activated(y if z is None else y + z, activation, activation_params or [])


@operator("FusedGemm", domain=DOMAIN)
def fused_gemm(
    ctx: Context, a: Tensor, b: Tensor, c: Tensor | None = None, *, activation: str = "", activation_alpha: float = 0.0,
    activation_beta: float = 0.0, activation_gamma: float = 0.0, **attributes: Any,
) -> Tensor:  # fmt: skip
    return _activated(
        standard(ctx, "Gemm", a, b, c, **attributes), activation, [activation_alpha, activation_beta, activation_gamma]
    )


# -- activations and normalisation ------------------------------------------------------------------------------------


@operator("Gelu", domain=DOMAIN)
def gelu(_: Context, x: Tensor) -> Tensor:
    return F.gelu(x)


@operator("BiasGelu", domain=DOMAIN)
def bias_gelu(_: Context, x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@operator("FastGelu", domain=DOMAIN)
def fast_gelu(_: Context, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("QuickGelu", domain=DOMAIN)
def quick_gelu(_: Context, x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return x * lz.sigmoid(alpha * x)


@operator("LayerNormalization", 1)
def layer_normalization(
    _: Context, x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:  # fmt: skip
    """Also in files of older versions of the standard, which had none."""
    return F.layer_norm(x, tuple(x.shape[dimension(axis, x.ndim) :]), scale, bias, epsilon)


@operator("SimplifiedLayerNormalization", 1)
def simplified_layer_normalization(
    _: Context, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    return F.rms_norm(x, tuple(x.shape[dimension(axis, x.ndim) :]), scale, epsilon)


@operator("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(
    _: Context, x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None, *,
    epsilon: float = 1e-5,
) -> tuple[Any, ...]:  # fmt: skip
    x = x + skip if bias is None else x + skip + bias
    return F.layer_norm(x, (x.shape[-1],), gamma, beta, epsilon), None, None, x


@operator("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(
    _: Context, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-5
) -> tuple[Any, ...]:
    x = x + skip if bias is None else x + skip + bias
    return F.rms_norm(x, (x.shape[-1],), gamma, epsilon), None, None, x


@operator("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(
    _: Context, words: Tensor, segments: Tensor | None, of_words: Tensor, of_positions: Tensor, of_segments: Tensor | None,
    gamma: Tensor, beta: Tensor, mask: Tensor | None = None, positions: Tensor | None = None, *, epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> tuple[Any, ...]:  # fmt: skip
    """Normalised sums of embeddings, how many words of each sentence count, and the sums."""
    at = lz.arange(words.shape[1]).reshape(1, -1) if positions is None else positions.to(lz.int64)
    x = F.embedding(words.to(lz.int64), of_words) + F.embedding(at, of_positions)
    if segments is not None and of_segments is not None:
        x = x + F.embedding(segments.to(lz.int64), of_segments)
    counted = lz.zeros(words.shape[0], dtype=lz.int32) if mask is None else lz.sum(mask, dim=1).to(lz.int32)
    return F.layer_norm(x, (x.shape[-1],), gamma, beta, epsilon), counted, x


# -- attention --------------------------------------------------------------------------------------------------------


@operator("Attention", domain=DOMAIN, fixed=(3,))
def attention(
    _: Context, x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, past: Tensor | None = None,
    attention_bias: Tensor | None = None, past_length: Any = None, *, qkv_hidden_sizes: list[int] | None = None, **attributes: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    y = lz.matmul(x, weight)
    return _attended(y if bias is None else y + bias, mask, past, attention_bias, qkv_hidden_sizes, **attributes)


@operator("QAttention", domain=DOMAIN, fixed=(3, 4, 5))
def qattention(
    _: Context, x: Tensor, weight: Tensor, bias: Tensor, sx: Tensor, sw: Tensor, mask: Tensor | None = None,
    zx: Tensor | None = None, zw: Tensor | None = None, past: Tensor | None = None, **attributes: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    y = integer_product(x, weight, zx, zw).float() * (sx * sw) + bias
    return _attended(y, mask, past, None, None, **attributes)


def _attended(
    y: Tensor, mask: Tensor | None, past: Tensor | None, attention_bias: Tensor | None, sizes: list[int] | None, *, num_heads: int,
    unidirectional: int = 0, mask_filter_value: float = -10000.0, scale: float = 0.0, do_rotary: int = 0,
    past_present_share_buffer: int = 0, rotary_embedding_dim: int = 0,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Attention of queries, keys and values side by side in `y`, [batch, sequence, features]."""
    if do_rotary or past_present_share_buffer:
        raise OnnxError("rotary embeddings and shared buffers of keys and values are not supported")
    batch, length = y.shape[:2]
    queries, keys, values = (
        lz.transpose(lz.reshape(part, (batch, length, num_heads, -1)), 1, 2)
        for part in lz.split(y, sizes or [int(y.shape[2]) // 3] * 3, 2)
    )
    if past is not None:
        keys, values = lz.cat([past.select(0, 0), keys], 2), lz.cat([past.select(0, 1), values], 2)
    added = _added(mask, batch, length, keys.shape[2], unidirectional, mask_filter_value)
    if attention_bias is not None:
        added = attention_bias if added is None else attention_bias + added
    factor = scale or 1 / math.sqrt(int(queries.shape[-1]))
    out = F.scaled_dot_product_attention(
        queries, keys, values, None if added is None else added.to(queries.dtype), scale=factor
    )
    present = lz.stack([keys, values], 0) if keys.shape == values.shape else None
    return lz.reshape(lz.transpose(out, 1, 2), (batch, length, -1)), present


def _added(mask: Tensor | None, batch: int, rows: int, columns: int, causal: int, low: float) -> Tensor | None:
    """What is added to scores so that masked ones do not count, of shape [1 or batch, 1, 1 or rows, columns]."""
    hidden = None
    if mask is not None:
        hidden = lz.logical_not(_visible(mask, batch, rows, columns))
    if causal:
        later = lz.arange(columns) > lz.arange(rows).reshape(-1, 1) + (columns - rows)
        later = later.reshape(1, 1, rows, columns)
        hidden = later if hidden is None else lz.logical_or(hidden, later)
    return None if hidden is None else lz.where(hidden, low, 0.0)


def _visible(mask: Tensor, batch: int, rows: int, columns: int) -> Tensor:
    if mask.ndim == 1:  # where keys that count end, for each sentence; then, if there is more, where they begin
        if mask.shape[0] not in (batch, 2 * batch):
            raise OnnxError(f"a mask of {mask.shape[0]} numbers for {batch} sentences is not supported")
        at = lz.arange(columns).reshape(1, 1, 1, -1)
        ends = at < mask.narrow(0, 0, batch).reshape(-1, 1, 1, 1)
        return ends if mask.shape[0] == batch else ends & (at >= mask.narrow(0, batch, batch).reshape(-1, 1, 1, 1))
    if mask.ndim == 4:
        mask = mask.narrow(2, columns - rows, rows).narrow(3, 0, columns)
    return (mask.reshape(mask.shape[0], 1, -1, columns) if mask.ndim < 4 else mask) != 0
