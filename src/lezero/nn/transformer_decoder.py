"""Transformer decoders, and encoder and decoder as one model (Vaswani et al. 2017), with PyTorch's parameter names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from lezero.nn import functional as F
from lezero.nn import init
from lezero.nn.attention import MultiheadAttention
from lezero.nn.containers import ModuleList
from lezero.nn.dropout import Dropout
from lezero.nn.linear import Linear
from lezero.nn.module import Module
from lezero.nn.normalization import LayerNorm
from lezero.nn.transformer import _ACTIVATIONS, TransformerEncoder, TransformerEncoderLayer
from lezero.tensor import Tensor, full


class TransformerDecoderLayer(Module):
    """Attention to the target itself, attention to what an encoder made, and a two-layer network, each added and normalised.

    Parameters are those of :class:`~lezero.nn.TransformerEncoderLayer`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ValueError(f"TransformerDecoderLayer: activation is 'relu', 'gelu' or a function, got {activation!r}")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias=bias, batch_first=batch_first, **made)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias=bias, batch_first=batch_first, **made)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **made)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **made)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, **made)
        self.dropout1, self.dropout2, self.dropout3 = Dropout(dropout), Dropout(dropout), Dropout(dropout)
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Decode.

        Parameters
        ----------
        tgt : (batch, length, d_model) with `batch_first`, else (length, batch, d_model); or (length, d_model)
        memory : what is attended to, likewise, with its own length
        tgt_mask, memory_mask : (length, keys) or (batch * nhead, length, keys); bool (True: hidden) or floating (added)
        tgt_key_padding_mask, memory_key_padding_mask : (batch, keys), likewise
        tgt_is_causal, memory_is_causal : position i sees positions 0 to i, where there is no mask

        Returns
        -------
        the shape of `tgt`
        """
        own = tgt_mask, tgt_key_padding_mask, tgt_is_causal
        other = memory_mask, memory_key_padding_mask, memory_is_causal
        if self.norm_first:
            x = self.norm1(tgt)
            x = tgt + self.dropout1(_attended(self.self_attn, x, x, *own))
            x = x + self.dropout2(_attended(self.multihead_attn, self.norm2(x), memory, *other))
            return x + self._transform(self.norm3(x))
        x = self.norm1(tgt + self.dropout1(_attended(self.self_attn, tgt, tgt, *own)))
        x = self.norm2(x + self.dropout2(_attended(self.multihead_attn, x, memory, *other)))
        return self.norm3(x + self._transform(x))

    def _transform(self, x: Tensor) -> Tensor:
        return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))


def _attended(
    attention: MultiheadAttention, x: Tensor, to: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
) -> Tensor:
    return attention(x, to, to, padding, need_weights=False, attn_mask=mask, is_causal=is_causal)[0]


class TransformerDecoder(Module):
    """Layers one after the other: independent copies of a given one.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
    num_layers : int
    norm : a module for the result, or None
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__()
        self.layers = ModuleList([deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As the layer's ``forward``."""
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder, and a decoder that attends to what it made.

    Parameters
    ----------
    d_model, nhead : int; the heads divide the features
    num_encoder_layers, num_decoder_layers : int
    dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias : as for the layers
    custom_encoder, custom_decoder : modules that take their places, or None
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        settings = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, **made)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*settings, **made), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*settings, **made), num_decoder_layers, norm()
        )
        self.reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Encode `src`, decode `tgt`; shapes and masks are those of the layers.

        Returns
        -------
        the shape of `tgt`
        """
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model or src.ndim != tgt.ndim:
            raise ValueError(
                f"Transformer: a source and a target of as many dimensions and {self.d_model} features are needed, got "
                f"{tuple(src.shape)} and {tuple(tgt.shape)}"
            )
        memory = self.encoder(src, src_mask, src_key_padding_mask, bool(src_is_causal))
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """(sz, sz) to add: minus infinity above the diagonal, so that position i sees positions 0 to i."""
        return full((sz, sz), float("-inf"), dtype=dtype, device=device).triu(1)
