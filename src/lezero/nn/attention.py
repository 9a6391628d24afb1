"""Multi-head attention, with PyTorch's parameter names."""

from __future__ import annotations

from typing import Any

from lezero.nn import functional as F
from lezero.nn import init
from lezero.nn.functional.attention import additive_mask, attention_weights
from lezero.nn.linear import Linear
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter, new_parameter
from lezero.ops.rules import shown
from lezero.tensor import Tensor, cat


class MultiheadAttention(Module):
    """Attention with several heads (Vaswani et al. 2017).

    Parameters
    ----------
    embed_dim, num_heads : int; the heads divide the features
    dropout : the share of attention weights dropped in training
    bias : bool
    add_bias_kv : one more key and value, learnt, behind the others
    add_zero_attn : one more key and value of zeros behind them
    kdim, vdim : features of key and value, those of the query unless given
    batch_first : inputs are (batch, length, features), not (length, batch, features)

    Attributes
    ----------
    in_proj_weight : (3 * embed_dim, embed_dim), Xavier uniform; or q_, k_, v_proj_weight where kdim or vdim differ
    in_proj_bias : (3 * embed_dim,), zeros
    bias_k, bias_v : (1, 1, embed_dim), normal; or None
    out_proj : Linear
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention: {embed_dim} features are not a multiple of {num_heads} heads")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        one = self.kdim == embed_dim and self.vdim == embed_dim
        self.register_parameter(
            "in_proj_weight", new_parameter(3 * embed_dim, embed_dim, device=device, dtype=dtype) if one else None
        )
        for name, features in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
            self.register_parameter(
                f"{name}_proj_weight", None if one else new_parameter(embed_dim, features, device=device, dtype=dtype)
            )
        self.register_parameter(
            "in_proj_bias", new_parameter(3 * embed_dim, device=device, dtype=dtype) if bias else None
        )
        for name in ("bias_k", "bias_v"):
            more = new_parameter(1, 1, embed_dim, device=device, dtype=dtype) if add_bias_kv else None
            self.register_parameter(name, more)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for w in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if w is not None:
                init.xavier_uniform_(w)
        for b in (self.bias_k, self.bias_v):
            if b is not None:
                init.xavier_normal_(b)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; returns the output and the attention weights (None with ``need_weights=False``, which is faster).

        Parameters
        ----------
        query, key, value : (length, batch, features), or (batch, length, features) if batch_first, or without batch
        key_padding_mask : (batch, keys); True (or minus infinity) hides a key
        attn_mask : (queries, keys) or (batch * heads, queries, keys); True hides, floating is added
        average_attn_weights : weights (batch, queries, keys) instead of (batch, heads, queries, keys)
        is_causal : query i sees keys 0 to i
        """
        alone, together = query.ndim == 2, query is key and key is value
        if alone:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        elif query.ndim != 3:
            raise ValueError(
                f"MultiheadAttention: a query of 2 or 3 dimensions is needed, got shape {tuple(query.shape)}"
            )
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        batch, queries = query.shape[0], query.shape[1]
        if attn_mask is not None or key_padding_mask is not None:
            given = None if alone else batch
            self._check_masks("MultiheadAttention", attn_mask, key_padding_mask, given, queries, key.shape[1])
        if alone and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        q, k, v = self._project(query, key, value, together)
        mask = self._mask(q, key_padding_mask, attn_mask, batch)
        if self.bias_k is not None or self.add_zero_attn:
            k, v, mask = self._with_more_keys(k, v, mask)
        q, k, v = (self._heads(t) for t in (q, k, v))
        causal = is_causal and mask is None
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = attention_weights(q, k, mask, causal)
            y = F.dropout(weights, p) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
        y = self.out_proj(y.transpose(1, 2).reshape(batch, queries, self.embed_dim))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if alone:
            return y.squeeze(0), None if weights is None else weights.squeeze(0)
        return (y if self.batch_first else y.transpose(0, 1)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor, together: bool) -> tuple[Tensor, Tensor, Tensor]:
        n = self.embed_dim
        bias = self.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.split(n)
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif together:  # one product for all three
            return F.linear(query, self.in_proj_weight, bias).chunk(3, -1)  # type: ignore[return-value]
        else:
            weights = self.in_proj_weight.split(n)  # type: ignore[assignment]
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))  # type: ignore[arg-type]
        return q, k, v

    def _with_more_keys(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (batch, length, features) with those that everything sees behind them."""
        more = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                cat([t, b.expand(t.shape[0], 1, self.embed_dim)], 1) for t, b in ((k, self.bias_k), (v, self.bias_v))
            )
            more += 1
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            more += 1
        return k, v, None if mask is None else F.pad(mask, (0, more))

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, features) -> (batch, heads, length, features of a head)"""
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def _check_masks(
        self,
        owner: str,
        mask: Tensor | None,
        padding: Tensor | None,
        batch: int | None,
        queries: int,
        keys: int,
        names: tuple[str, str] = ("attn_mask", "key_padding_mask"),
    ) -> None:
        """Refuse masks that do not fit, by the names that the `owner` has for them; `batch` is None without one."""
        together = self.num_heads if batch is None else batch * self.num_heads
        square, cube = (queries, keys), (together, queries, keys)
        row = (keys,) if batch is None else (batch, keys)
        kinds = f"(queries, keys) or ({'' if batch is None else 'batch * '}heads, queries, keys)"
        allowed = (
            (names[0], mask, (square, cube), kinds),
            (names[1], padding, (row,), "(keys,)" if batch is None else "(batch, keys)"),
        )
        for name, given, shapes, kind in allowed:
            if given is None:
                continue
            if given.dtype.kind in "iuc":
                raise TypeError(
                    f"{owner}: {name} is bool (True: hidden) or floating (added) of shape {_either(shapes)}, got "
                    f"{given.dtype.name}{shown(given.shape)}; convert it with .bool()"
                )
            if tuple(given.shape) in shapes:
                continue
            hint = ""
            if batch is not None:  # with the other batch_first, lengths and the batch change places
                other = (keys, batch), (batch, batch), (queries * self.num_heads, batch, batch)
                if tuple(given.shape) in (other[:1] if given is padding else other[1:]):
                    order = "batch, length" if self.batch_first else "length, batch"
                    hint = f"; inputs are taken as ({order}, features), and the mask fits with batch_first={not self.batch_first}"
            raise ValueError(
                f"{owner}: {name} of shape {_either(shapes)} is needed, which is {kind}, bool (True: hidden) or floating "
                f"(added); got {given.dtype.name}{shown(given.shape)}{hint}"
            )

    def _mask(self, q: Tensor, padding: Tensor | None, mask: Tensor | None, batch: int) -> Tensor | None:
        total = None
        if mask is not None:
            total = additive_mask(mask, q)
            if total.ndim == 3:
                total = total.reshape(batch, self.num_heads, *total.shape[1:])
        if padding is not None:
            hidden = additive_mask(padding, q).reshape(batch, 1, 1, padding.shape[-1])
            total = hidden if total is None else total + hidden
        return total


def _either(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " or ".join(shown(shape) for shape in shapes)
