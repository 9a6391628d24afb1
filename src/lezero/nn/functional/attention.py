"""Attention."""

from __future__ import annotations

from lezero.nn.functional.dropout import check_probability
from lezero.ops import attention
from lezero.ops.base import broadcast_shapes
from lezero.runtime import random_key
from lezero.runtime.recorder import record
from lezero.tensor import Tensor, ones, zeros_like


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(query @ keyᵀ * scale + mask) @ value`` (Vaswani et al. 2017).

    Parameters
    ----------
    query : (*batch, heads, queries, features)
    key, value : (*batch, heads, keys, features); with `enable_gqa` their heads may divide the query's
    attn_mask : broadcasts to (*batch, heads, queries, keys); bool (True: seen) or floating (added)
    dropout_p : the share of attention weights dropped
    is_causal : query i sees keys 0 to i
    scale : 1/√features unless given

    Notes
    -----
    Memory grows with queries and keys, not with their product: of more than 256, the scores of a part are there at a time.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: is_causal and attn_mask exclude each other")
    if not enable_gqa and (
        query.ndim != key.ndim or tuple(query.shape[:-2]) != tuple(key.shape[:-2]) or key.ndim != value.ndim
    ):
        query, key, value = _one_batch(query, key, value)
    if not enable_gqa and query.ndim > 2 and query.shape[-3] != key.shape[-3]:
        raise ValueError(
            f"scaled_dot_product_attention: {int(query.shape[-3])} query heads and {int(key.shape[-3])} key heads need enable_gqa=True"
        )
    check_probability("scaled_dot_product_attention", dropout_p)
    random = random_key() if dropout_p else ()
    mask = () if attn_mask is None else (attn_mask,)
    blocks = attention.blocks_of(query.shape[-2], key.shape[-2])
    operands = (query, key, value, *random, *mask)
    return record(attention.attention, operands, (is_causal, scale, blocks, float(dropout_p)))


def _one_batch(*operands: Tensor) -> tuple[Tensor, ...]:
    """Operands with the batch dimensions that all broadcast to; as they are where they do not, which is refused later."""
    try:
        lead = broadcast_shapes("scaled_dot_product_attention", *(t.shape[:-2] for t in operands))
    except ValueError:
        return operands
    return tuple(t.expand(*lead, *t.shape[-2:]) for t in operands)


def attention_weights(
    query: Tensor, key: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """The attention weights themselves, (*batch, heads, queries, keys)."""
    if scale is None:
        scale = float(query.shape[-1]) ** -0.5
    scores = (query @ _repeat_heads(key, query).mT) * scale
    if is_causal:
        attn_mask = ones(query.shape[-2], key.shape[-2], dtype="bool").tril()
    if attn_mask is not None:
        scores = (
            scores + attn_mask if attn_mask.dtype.is_floating_point else scores.masked_fill(~attn_mask, float("-inf"))
        )
    return scores.softmax(-1)


def additive_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask to add: minus infinity where a bool `mask` is True (hidden); a floating one as it is."""
    if mask.dtype.is_floating_point:
        return mask
    return zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))


def _repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    if x.ndim < 3 or x.shape[-3] == query.shape[-3]:
        return x
    *batch, heads, length, features = x.shape
    times = query.shape[-3] // heads
    return (
        x.unsqueeze(-3).expand(*batch, heads, times, length, features).reshape(*batch, heads * times, length, features)
    )
