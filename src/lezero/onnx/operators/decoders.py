"""Operators of ``com.microsoft`` that language models are made of: attention with a cache, rotations."""

from __future__ import annotations

import math
from typing import Any

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.operators.attention import rotary_embedding
from lezero.onnx.operators.microsoft import DOMAIN, _added
from lezero.onnx.operators.quantising import from_zero, standard
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, operator
from lezero.tensor import Tensor


@operator("DynamicQuantizeLSTM", domain=DOMAIN, fixed=(8, 9, 10, 11))
def dynamic_quantize_lstm(
    ctx: Context, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None, h: Tensor | None, c: Tensor | None,
    peepholes: Tensor | None, sw: Tensor, zw: Tensor, sr: Tensor, zr: Tensor, **attributes: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """With the weights that the integers stand for; inputs and states are not rounded to bytes."""

    def of(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        if scale.ndim == 1 and scale.shape[0] != 1:  # one for each direction
            scale, zero = lz.reshape(scale, (-1, 1, 1)), lz.reshape(zero, (-1, 1, 1))
        elif scale.ndim == 2:  # one for each of a gate's rows
            scale, zero = scale.unsqueeze(1), zero.unsqueeze(1)
        return lz.transpose(from_zero(q, zero).float() * scale, 1, 2)

    return standard(ctx, "LSTM", x, of(w, sw, zw), of(r, sr, zr), b, lengths, h, c, peepholes, **attributes)


# -- attention --------------------------------------------------------------------------------------------------------


@operator("RotaryEmbedding", domain=DOMAIN, fixed=(2, 3))
def rotated(
    ctx: Context, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, *, interleaved: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0, scale: float = 1.0, is_packed_batching: int = 0,
) -> Tensor:  # fmt: skip
    """`positions` of each word, or the first's."""
    if scale != 1 or is_packed_batching:
        raise OnnxError("scaled rotations and packed batches are not supported")
    heads = num_heads
    if x.ndim == 3 and not heads:
        heads = int(x.shape[2]) // (2 * int(cos.shape[1]))
    at = positions.to(lz.int64)
    if at.ndim == 1:
        batch, length = x.shape[0], x.shape[1] if x.ndim == 3 else x.shape[2]
        at = (at.reshape(1, 1) + lz.arange(length)).expand(batch, length)
    return rotary_embedding(
        ctx, x, cos, sin, at, interleaved=interleaved, num_heads=heads, rotary_embedding_dim=rotary_embedding_dim
    )


def _apart(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * width] -> [batch, heads, length, width]"""
    return lz.transpose(lz.reshape(x, (*x.shape[:2], heads, -1)), 1, 2)


def _together(x: Tensor) -> Tensor:
    return lz.reshape(lz.transpose(x, 1, 2), (x.shape[0], x.shape[2], -1))


@operator("MultiHeadAttention", domain=DOMAIN, fixed=(4,))
def multi_head_attention(
    _: Context, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, bias: Tensor | None = None, mask: Tensor | None = None,
    attention_bias: Tensor | None = None, past_k: Tensor | None = None, past_v: Tensor | None = None, *past: Any, num_heads: int,
    mask_filter_value: float = -10000.0, scale: float = 0.0, unidirectional: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Keys and values may be one tensor, [batch, length, heads, 2, width], and queries with them, [batch, length, heads, 3, width]."""
    if any(p is not None for p in past):
        raise OnnxError("shared buffers are not supported")
    if q.ndim == 5:
        q, k, v = (_unfolded(q.select(3, n)) for n in range(3))
    elif k is not None and k.ndim == 5:
        k, v = (_unfolded(k.select(3, n)) for n in range(2))
    if k is None or v is None:
        raise OnnxError("keys and values are needed")
    if bias is not None:
        of_q, of_k = int(q.shape[2]), 0 if k.ndim == 4 else int(k.shape[2])
        q = q + bias.narrow(0, 0, of_q)
        if k.ndim == 3:
            k, v = k + bias.narrow(0, of_q, of_k), v + bias.narrow(0, of_q + of_k, int(v.shape[2]))
    queries = _apart(q, num_heads)
    keys, values = (x if x.ndim == 4 else _apart(x, num_heads) for x in (k, v))
    if past_k is not None and past_v is not None:
        keys, values = lz.cat([past_k, keys], 2), lz.cat([past_v, values], 2)
    added = _added(mask, q.shape[0], q.shape[1], keys.shape[2], unidirectional, mask_filter_value)
    if attention_bias is not None:
        added = attention_bias if added is None else attention_bias + added
    factor = scale or 1 / math.sqrt(int(queries.shape[-1]))
    added = None if added is None else added.to(queries.dtype)
    return _together(F.scaled_dot_product_attention(queries, keys, values, added, scale=factor)), keys, values


def _unfolded(x: Tensor) -> Tensor:
    """[batch, length, heads, width] -> [batch, length, heads * width]"""
    return lz.reshape(x, (*x.shape[:2], -1))


@operator("GroupQueryAttention", domain=DOMAIN, fixed=(7, 8))
def group_query_attention(
    ctx: Context, q: Tensor, k: Tensor | None, v: Tensor | None, past_k: Tensor | None, past_v: Tensor | None, last: Tensor,
    total: Any, cos: Tensor | None = None, sin: Tensor | None = None, positions: Tensor | None = None,
    attention_bias: Tensor | None = None, sink: Tensor | None = None, k_scale: Any = None, v_scale: Any = None,
    q_norm: Tensor | None = None, k_norm: Tensor | None = None, lengths: Any = None, *, num_heads: int, kv_num_heads: int,
    do_rotary: int = 0, rotary_interleaved: int = 0, scale: float = 0.0, local_window_size: int = -1, softcap: float = 0.0,
    smooth_softmax: int = 0, causal: int = 1, qk_output: int = 0, qk_norm_epsilon: float = 1e-6, q_norm_epsilon: float | None = None,
    k_norm_epsilon: float | None = None, **others: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Causal attention in which several heads share keys and values, of which earlier words' are given.

    last : the position of each sentence's last word
    sink : for each head the logarithm of what is added to the sums of its softmax
    q_norm, k_norm : weights of a norm of each head's queries and keys
    """
    if any(m is not None for m in (k_scale, v_scale, lengths)) or any(o not in (0, "NONE") for o in others.values()):
        raise OnnxError("padded queries, windows of the cache, and quantised caches are not supported")
    length = q.shape[1]
    if k is None or v is None:
        width = int(q.shape[2]) // (num_heads + 2 * kv_num_heads)
        q, k, v = lz.split(q, [num_heads * width, kv_num_heads * width, kv_num_heads * width], 2)
    queries, keys, values = _apart(q, num_heads), _apart(k, kv_num_heads), _apart(v, kv_num_heads)
    if q_norm is not None and k_norm is not None:
        width = (queries.shape[-1],)
        queries = F.rms_norm(queries, width, q_norm, q_norm_epsilon or qk_norm_epsilon)
        keys = F.rms_norm(keys, width, k_norm, k_norm_epsilon or qk_norm_epsilon)
    earlier = lz.clamp(last.to(lz.int64).reshape(-1, 1) + 1 - length, min=0)  # words of each sentence before these
    if do_rotary:
        at = earlier + lz.arange(length) if positions is None else positions
        queries, keys = (rotated(ctx, x, at, cos, sin, interleaved=rotary_interleaved) for x in (queries, keys))
    if past_k is not None and past_v is not None:
        keys, values = _continued(past_k, keys, earlier), _continued(past_v, values, earlier)
    row, column = earlier.unsqueeze(2) + lz.arange(length).reshape(1, -1, 1), lz.arange(keys.shape[2]).reshape(1, 1, -1)
    seen = column <= (row if causal else last.to(lz.int64).reshape(-1, 1, 1))
    if local_window_size > 0:
        seen = seen & (column > row - local_window_size)
    added = lz.where(seen.unsqueeze(1), 0.0, -math.inf).to(queries.dtype)
    added = added if attention_bias is None else added + attention_bias
    each = num_heads // kv_num_heads
    k, v = lz.repeat_interleave(keys, each, dim=1), lz.repeat_interleave(values, each, dim=1)
    factor = scale or 1 / math.sqrt(int(queries.shape[-1]))
    if smooth_softmax and sink is None:
        sink = lz.zeros(num_heads, dtype=queries.dtype)
    if not softcap and sink is None and not qk_output:
        return _together(F.scaled_dot_product_attention(queries, k, v, added, scale=factor)), keys, values
    scores = lz.matmul(queries, k.mT) * factor
    scores = (lz.tanh(scores / softcap) * softcap if softcap else scores) + added
    weights = _shares(scores, sink)
    shown = lz.where(seen.unsqueeze(1), scores, 0.0).to(scores.dtype) if qk_output == 1 else weights
    return _together(lz.matmul(weights, v)), keys, values, shown


def _shares(scores: Tensor, sink: Tensor | None) -> Tensor:
    """The softmax along the last axis; with one more score for each head, whose share is nobody's."""
    if sink is None:
        return F.softmax(scores, -1)
    column = lz.reshape(sink.to(scores.dtype), (1, -1, 1, 1)).expand(*scores.shape[:3], 1)
    return F.softmax(lz.cat([scores, column], -1), -1).narrow(-1, 0, scores.shape[-1])


def _continued(past: Tensor, new: Tensor, earlier: Tensor) -> Tensor:
    """Each sentence's words, and then the new ones: [batch, heads, length, width]."""
    both = lz.cat([past, new], 2)
    at = lz.arange(both.shape[2]).reshape(1, -1)
    at = lz.where(at < earlier, at, lz.clamp(at - earlier + past.shape[2], max=both.shape[2] - 1))
    return lz.take_along_dim(both, lz.reshape(at, (at.shape[0], 1, -1, 1)).expand(both.shape), 2)
