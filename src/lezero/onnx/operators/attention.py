"""Attention in its several forms, and what goes with it: rotary positions, gated units, causal convolutions with a state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.program import Body, OnnxError, numpy_dtype
from lezero.onnx.registry import Context, operator
from lezero.tensor import Tensor, tensor


def _element_type(code: int) -> Any:
    return tensor(np.empty(0, numpy_dtype(code))).dtype


def _heads_apart(x: Tensor, heads: int | None) -> Tensor:
    """(batch, length, heads * features) as (batch, heads, length, features); four dimensions as they are."""
    if x.ndim == 4:
        return x
    if not heads:
        raise OnnxError("operands of three dimensions need q_num_heads and kv_num_heads")
    return lz.permute(lz.reshape(x, (x.shape[0], x.shape[1], heads, x.shape[2] // heads)), (0, 2, 1, 3))


def _heads_together(x: Tensor) -> Tensor:
    x = lz.permute(x, (0, 2, 1, 3))
    return lz.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3]))


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Each of the heads as often as a query head uses it, one after the other."""
    times = heads // x.shape[1]
    if times == 1:
        return x
    wide = lz.broadcast_to(x.unsqueeze(2), (x.shape[0], x.shape[1], times, *x.shape[2:]))
    return lz.reshape(wide, (x.shape[0], heads, *x.shape[2:]))


class _Mask:
    """Which keys a query sees, and what is added to its scores.

    seen : bool, broadcasts to (batch, heads, queries, keys); None if all are
    added : floating, likewise; None if nothing is
    """

    def __init__(self, seen: Tensor | None, added: Tensor | None):
        self.seen, self.added = seen, added

    def any(self) -> Tensor | None:
        """Which queries see a key at all; None if all do."""
        if self.added is not None:
            return lz.any(self.bias(self.added.dtype) > -math.inf, dim=-1, keepdim=True)
        return None if self.seen is None else lz.any(self.seen, dim=-1, keepdim=True)

    def bias(self, dtype: Any) -> Tensor | None:
        """The whole mask as something to add."""
        if self.seen is None:
            return self.added
        hidden = lz.where(self.seen, 0.0, -math.inf).to(dtype)
        return hidden if self.added is None else self.added + hidden

    def without_empty(self) -> tuple[_Mask, Tensor | None]:
        """The mask with queries that see nothing made to see all, whose results are then replaced; and which do see some."""
        some = self.any()
        if some is None:
            return self, None
        seen = None if self.seen is None else lz.logical_or(self.seen, lz.logical_not(some))
        return _Mask(seen, None if self.added is None else lz.where(some, self.added, 0.0).to(self.added.dtype)), some


def _mask(
    queries: int,
    keys: int,
    given: Tensor | None,
    offset: Any,
    causal: bool,
    left: int,
    right: int,
    lengths: Tensor | None,
) -> _Mask:
    """offset : the position of the first query among the keys; a number, or (batch, 1, 1, 1)"""
    i, j = lz.arange(queries).reshape(-1, 1) + offset, lz.arange(keys)
    seen: Tensor | None = None
    for holds in (
        j <= i if causal else None,
        i - j <= left if left >= 0 else None,
        j - i <= right if right >= 0 else None,
        j < lengths.reshape(-1, 1, 1, 1) if lengths is not None else None,
    ):
        if holds is not None:
            seen = holds if seen is None else lz.logical_and(seen, holds)
    if given is None:
        return _Mask(seen, None)
    short = keys - int(given.shape[-1])
    if given.dtype is lz.bool_:
        if short > 0:
            given = lz.cat([given, lz.zeros((*given.shape[:-1], short), dtype=lz.bool_)], -1)
        return _Mask(given if seen is None else lz.logical_and(seen, given), None)
    return _Mask(seen, F.pad(given, (0, short), value=-math.inf) if short > 0 else given)


@operator("Attention", 23)
def attention(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, past_key: Tensor | None = None,
    past_value: Tensor | None = None, nonpad_kv_seqlen: Tensor | None = None, *, is_causal: int = 0, q_num_heads: int | None = None,
    kv_num_heads: int | None = None, scale: float | None = None, softcap: float = 0.0, qk_matmul_output_mode: int = 0,
    softmax_precision: int | None = None, left_window_size: int = -1, right_window_size: int = -1,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    packed = q.ndim == 3
    q, k, v = _heads_apart(q, q_num_heads), _heads_apart(k, kv_num_heads), _heads_apart(v, kv_num_heads)
    if (past_key is None) != (past_value is None):
        raise OnnxError("past_key and past_value come together")
    offset: Any = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = lz.cat([past_key, k], 2), lz.cat([past_value, v], 2)
    elif nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen.reshape(-1, 1, 1, 1) - q.shape[2]
    scale = float(q.shape[3]) ** -0.5 if scale is None else scale
    lone = (
        is_causal
        and type(offset) is int
        and offset == 0
        and attn_mask is None
        and left_window_size < 0 > right_window_size
    )
    lone = bool(lone and nonpad_kv_seqlen is None)
    precision = q.dtype if softmax_precision is None else _element_type(softmax_precision)
    plain = not softcap and not ctx.wanted(3) and precision.itemsize <= max(q.dtype.itemsize, 4)
    windows = (left_window_size, right_window_size)
    causal = bool(is_causal) and not (lone and plain)
    mask = _mask(q.shape[2], k.shape[2], attn_mask, offset, causal, *windows, nonpad_kv_seqlen)
    mask, some = mask.without_empty()
    scores = None
    if plain:
        given = mask.seen if mask.added is None else mask.bias(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, given, is_causal=lone, scale=scale, enable_gqa=True)
        y = y if some is None else lz.where(some, y, 0.0).to(y.dtype)
    else:
        mode = STAGES[qk_matmul_output_mode]
        y, scores = _in_steps(q, k, v, mask, some, scale, softcap, precision, mode)
    return _heads_together(y) if packed else y, k, v, scores


STAGES = ("product", "capped", "biased", "weights")
"""What the scores that Attention can give are: of queries and keys, after the soft cap, with the mask, and their softmax."""


def _in_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: _Mask,
    some: Tensor | None,
    scale: float,
    softcap: float,
    precision: Any,
    mode: str,
) -> tuple[Tensor, Tensor]:
    """The result, and what the product of queries and keys is on the way to the weights, at the stage asked for."""
    stages = {}
    root = math.sqrt(scale)
    scores = (q * root).to(q.dtype) @ (_repeated(k, q.shape[1]) * root).to(k.dtype).mT
    stages["product"] = scores
    if softcap:
        scores = (softcap * lz.tanh(scores / softcap)).to(q.dtype)
    stages["capped"] = scores
    bias = mask.bias(q.dtype)
    scores = scores if bias is None else scores + bias
    stages["biased"] = scores if some is None else lz.where(some, scores, -math.inf).to(q.dtype)
    weights = F.softmax(scores.to(precision), -1).to(q.dtype)
    weights = weights if some is None else lz.where(some, weights, 0.0).to(q.dtype)
    stages["weights"] = weights
    return weights @ _repeated(v, q.shape[1]), stages[mode]


@operator("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, *, score_mod: Body | None = None, prob_mod: Body | None = None,
    softmax_precision: int | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    scale = float(q.shape[3]) ** -0.5 if scale is None else scale
    if score_mod is None and prob_mod is None and softmax_precision in (None, 1):
        return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
    if softmax_precision is not None:
        precision = _element_type(softmax_precision)
    else:
        precision = lz.float64 if q.dtype is lz.float64 else lz.float32
    scores = (q.to(precision) @ _repeated(k, q.shape[1]).to(precision).mT) * scale
    if score_mod is not None:
        (scores,) = ctx.run(score_mod, (scores,))
    weights = F.softmax(scores, -1)
    if prob_mod is not None:
        (weights,) = ctx.run(prob_mod, (weights,))
    return (weights @ _repeated(v, q.shape[1]).to(precision)).to(q.dtype)


@operator("LinearAttention", 27)
def linear_attention(
    _: Context, query: Tensor, key: Tensor, value: Tensor, past: Tensor | None = None, decay: Tensor | None = None,
    beta: Tensor | None = None, *, q_num_heads: int, kv_num_heads: int, scale: float = 0.0, update_rule: str = "gated_delta",
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dtype, heads = query.dtype, kv_num_heads
    batch, steps = query.shape[:2]
    single = lz.float64 if dtype is lz.float64 else lz.float32
    q, k, v = (x.to(single) for x in (query, key, value))
    q = lz.reshape(q, (batch, steps, heads, q_num_heads // heads, q.shape[2] // q_num_heads))
    k, v = (lz.reshape(x, (batch, steps, heads, x.shape[2] // heads, 1)) for x in (k, v))
    scale = scale or float(q.shape[-1]) ** -0.5
    gated, delta = update_rule.startswith("gated"), update_rule.endswith("delta")
    for name, operand, needed in (("decay", decay, gated), ("beta", beta, delta)):
        if needed and operand is None:
            raise OnnxError(f"update_rule {update_rule!r} needs {name}")
    fade = lz.exp(lz.reshape(decay.to(single), (batch, steps, heads, -1, 1))) if gated and decay is not None else None
    rate = lz.reshape(beta.to(single), (batch, steps, -1, 1, 1)) if delta and beta is not None else None
    state = lz.zeros((batch, heads, k.shape[3], v.shape[3]), dtype=single) if past is None else past.to(single)
    out = []
    for t in range(int(steps)):
        state = state if fade is None else state * fade.select(1, t)
        kt, new = k.select(1, t), v.select(1, t).mT
        if rate is not None:
            new = (new - kt.mT @ state) * rate.select(1, t)
        state = state + kt * new
        out.append(q.select(1, t) @ state)
    y = lz.reshape(lz.stack(out, 1) * scale, (batch, steps, q_num_heads * v.shape[3]))
    return y.to(dtype), state.to(dtype if past is None else past.dtype)


@operator("CausalConvWithState", 27)
def causal_conv_with_state(
    _: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    before = weight.shape[2] - 1
    whole = F.pad(x, (before, 0)) if past is None else lz.cat([past, x], 2)
    y = F.conv1d(whole, weight, bias, groups=int(weight.shape[0]))
    if activation in ("silu", "swish"):
        y = F.silu(y)
    elif activation != "none":
        raise OnnxError(f"activation {activation!r} is not known")
    return y, whole.narrow(2, whole.shape[2] - before, before)


@operator("RotaryEmbedding", 23, fixed=(1, 2))
def rotary_embedding(
    _: Context, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None, *, interleaved: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:  # fmt: skip
    packed = x.ndim == 3
    x = _heads_apart(x, num_heads)
    width = rotary_embedding_dim or x.shape[3]
    if positions is not None:
        rows = lz.reshape(positions, (-1,))
        cos, sin = (lz.reshape(lz.index_select(c, 0, rows), (*positions.shape, c.shape[1])) for c in (cos, sin))
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned, rest = x.narrow(3, 0, width), x.narrow(3, width, x.shape[3] - width)
    if interleaved:
        pairs = lz.reshape(turned, (*x.shape[:3], width // 2, 2))
        a, b = pairs.select(4, 0), pairs.select(4, 1)
        turned = lz.reshape(lz.stack([cos * a - sin * b, sin * a + cos * b], -1), tuple(turned.shape))
    else:
        a, b = turned.narrow(3, 0, width // 2), turned.narrow(3, width // 2, width // 2)
        turned = lz.cat([cos * a - sin * b, sin * a + cos * b], 3)
    y = turned if width == x.shape[3] else lz.cat([turned, rest], 3)
    return _heads_together(y) if packed else y


@operator("SwiGLU", 28)
def swiglu(_: Context, gate: Tensor, value: Tensor, *, alpha: float = 1.0) -> Tensor:
    return gate * lz.sigmoid(gate if alpha == 1 else gate * alpha) * value
