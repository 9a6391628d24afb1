"""Transformer encoders (Vaswani et al. 2017), with PyTorch's parameter names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from lezero.nn import functional as F
from lezero.nn.attention import MultiheadAttention
from lezero.nn.containers import ModuleList
from lezero.nn.dropout import Dropout
from lezero.nn.linear import Linear
from lezero.nn.module import Module
from lezero.nn.normalization import LayerNorm
from lezero.tensor import Tensor

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class TransformerEncoderLayer(Module):
    """Attention and a two-layer network, each added to its input and normalised.

    Parameters
    ----------
    d_model, nhead : int; the heads divide the features
    dim_feedforward : int, width of the two-layer network
    dropout : of the attention weights, inside the network, and behind both sublayers
    activation : "relu", "gelu", or a function
    layer_norm_eps : float
    batch_first : inputs are (batch, length, features), not (length, batch, features)
    norm_first : normalise what goes into a sublayer instead of the sum behind it
    bias : whether linear layers and norms have one
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
            raise ValueError(f"TransformerEncoderLayer: activation is 'relu', 'gelu' or a function, got {activation!r}")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias=bias, batch_first=batch_first, **made)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **made)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **made)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.norm_first = norm_first
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Encode.

        Parameters
        ----------
        src : (batch, length, d_model) with `batch_first`, else (length, batch, d_model); or (length, d_model)
        src_mask : (length, length) or (batch * nhead, length, length); bool (True: hidden) or floating (added)
        src_key_padding_mask : (batch, length), likewise
        is_causal : position i sees positions 0 to i

        Returns
        -------
        the shape of `src`
        """
        if src_mask is not None or src_key_padding_mask is not None:
            self._check_masks(src, src_mask, src_key_padding_mask)
        masks = src_mask, src_key_padding_mask, is_causal
        if self.norm_first:
            x = src + self._attend(self.norm1(src), *masks)
            return x + self._transform(self.norm2(x))
        x = self.norm1(src + self._attend(src, *masks))
        return self.norm2(x + self._transform(x))

    def _check_masks(self, src: Tensor, mask: Tensor | None, padding: Tensor | None) -> None:
        """Refuse them by the names that they have here."""
        if src.ndim not in (2, 3):
            return  # which attention refuses
        lengths = src.shape[:2] if self.self_attn.batch_first else src.shape[1::-1]
        batch, length = (None, src.shape[0]) if src.ndim == 2 else lengths
        names = "src_mask", "src_key_padding_mask"
        self.self_attn._check_masks("TransformerEncoderLayer", mask, padding, batch, length, length, names)

    def _attend(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool) -> Tensor:
        y, _ = self.self_attn(x, x, x, padding, need_weights=False, attn_mask=mask, is_causal=is_causal)
        return self.dropout1(y)

    def _transform(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """Layers one after the other: independent copies of a given one.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
    num_layers : int
    norm : a module for the result, or None
    enable_nested_tensor, mask_check : bool
        Ways PyTorch has to leave out padding; nothing changes here.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ):
        super().__init__()
        self.layers = ModuleList([deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As the layer's ``forward``."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)
