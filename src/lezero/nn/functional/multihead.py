"""Multi-head attention as a function of its weights."""

from __future__ import annotations

from lezero.nn.functional.attention import additive_mask, attention_weights, scaled_dot_product_attention
from lezero.nn.functional.convolution import linear
from lezero.nn.functional.dropout import dropout
from lezero.nn.functional.padding import pad
from lezero.tensor import Tensor, cat


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What :class:`~lezero.nn.MultiheadAttention` computes, with the weights given.

    Parameters
    ----------
    query, key, value : (length, batch, features), or (length, features)
    embed_dim_to_check, num_heads : int, the query's features, which the heads divide
    in_proj_weight, in_proj_bias : (3 · features, features) and (3 · features,); with `use_separate_proj_weight` the weights are
        q_proj_weight, k_proj_weight and v_proj_weight, (features, features of each)
    bias_k, bias_v : (1, 1, features), a key and a value that stand behind the others; or None
    add_zero_attn : a key and a value of zeros behind them
    dropout_p : the share of attention weights dropped in training
    key_padding_mask, attn_mask : (batch, keys), and (queries, keys) or (batch · heads, queries, keys); True hides, floating is added
    static_k, static_v : (batch · heads, keys, features of a head), in place of the projected keys and values
    average_attn_weights : weights (batch, queries, keys) instead of (batch, heads, queries, keys)
    is_causal : query i sees keys 0 to i, where there is no mask

    Returns
    -------
    the shape of `query`; and the attention weights, or None without `need_weights`
    """
    features = int(query.shape[-1])
    if query.ndim not in (2, 3) or features != embed_dim_to_check or features % num_heads:
        raise ValueError(
            f"multi_head_attention_forward: a query of 2 or 3 dimensions and {embed_dim_to_check} features, a multiple of "
            f"{num_heads} heads, is needed, got shape {tuple(query.shape)}"
        )
    alone = query.ndim == 2
    if alone:
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    queries, batch = query.shape[:2]
    weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        weights = (None,) * 3 if in_proj_weight is None else in_proj_weight.chunk(3)  # type: ignore[assignment]
    if any(w is None for w in weights):
        raise ValueError("multi_head_attention_forward: in_proj_weight, or one weight for each input, is needed")
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))  # type: ignore[arg-type]
    more = 0
    if bias_k is not None and bias_v is not None:
        k, v = (cat([t, b.expand(1, batch, features)]) for t, b in ((k, bias_k), (v, bias_v)))
        more += 1
    q, k, v = (_heads(t, num_heads) for t in (q, k, v))
    k, v = (
        own if given is None else given.reshape(batch, num_heads, *given.shape[1:])
        for own, given in ((k, static_k), (v, static_v))
    )
    if add_zero_attn:
        k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
        more += 1
    mask = _mask(q, attn_mask, key_padding_mask, more)
    causal, p = is_causal and mask is None, dropout_p if training else 0.0
    found = None
    if need_weights:
        found = attention_weights(q, k, mask, causal)
        y = dropout(found, p) @ v
        found = found.mean(1) if average_attn_weights else found
        found = found.squeeze(0) if alone else found
    else:
        y = scaled_dot_product_attention(q, k, v, mask, p, causal)
    y = linear(y.permute(2, 0, 1, 3).reshape(queries, batch, features), out_proj_weight, out_proj_bias)
    return (y.squeeze(1) if alone else y), found


def _heads(x: Tensor, heads: int) -> Tensor:
    """(length, batch, features) -> (batch, heads, length, features of a head)"""
    length, batch, features = x.shape
    return x.reshape(length, batch, heads, features // heads).permute(1, 2, 0, 3)


def _mask(q: Tensor, mask: Tensor | None, padding: Tensor | None, more: int) -> Tensor | None:
    """Both masks as one to add, with `more` keys at the end that everything sees."""
    batch, heads = q.shape[:2]
    total = None
    if mask is not None:
        total = additive_mask(mask, q)
        total = total.reshape(batch, heads, *total.shape[1:]) if total.ndim == 3 else total
    if padding is not None:
        hidden = additive_mask(padding, q).reshape(batch, 1, 1, padding.shape[-1])
        total = hidden if total is None else total + hidden
    return pad(total, (0, more)) if more and total is not None else total
