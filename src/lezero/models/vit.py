"""Vision transformers (Dosovitskiy et al. 2020), with torchvision's parameter names, so that published weights load."""

from __future__ import annotations

from collections import OrderedDict
from math import sqrt
from typing import Any

from lezero import nn
from lezero.nn.parameter import new_parameter
from lezero.tensor import Tensor, cat

EPS = 1e-6  # of the layer norms


class EncoderBlock(nn.Module):
    """Attention and a two-layer network, each behind a layer norm and added to its input."""

    def __init__(self, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float, attention_dropout: float):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_dim, eps=EPS)
        self.self_attention = nn.MultiheadAttention(hidden_dim, num_heads, attention_dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(hidden_dim, eps=EPS)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_dim, mlp_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(mlp_dim, hidden_dim),
            nn.Dropout(dropout),
        )
        for i in (0, 3):
            nn.init.xavier_uniform_(self.mlp[i].weight)
            nn.init.normal_(self.mlp[i].bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden_dim), also returned"""
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = x + self.dropout(y)
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Learnt positions, the blocks, and a last layer norm."""

    def __init__(
        self,
        tokens: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float,
        attention_dropout: float,
    ):
        super().__init__()
        self.pos_embedding = new_parameter(1, tokens, hidden_dim)
        self.dropout = nn.Dropout(dropout)
        block = lambda: EncoderBlock(num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
        self.layers = nn.Sequential(OrderedDict((f"encoder_layer_{i}", block()) for i in range(num_layers)))
        self.ln = nn.LayerNorm(hidden_dim, eps=EPS)
        nn.init.normal_(self.pos_embedding, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden_dim), also returned"""
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class VisionTransformer(nn.Module):
    """A transformer over the patches of an image; the class is read from a token put before them.

    Parameters
    ----------
    image_size : int
        Height and width of the images, a multiple of `patch_size`.
    patch_size, num_layers, num_heads, hidden_dim, mlp_dim : int
    dropout : float
        Behind the positions, the attention and both layers of each block's network.
    attention_dropout : float
        Of the attention weights.
    num_classes : int
    representation_size : int or None
        Width of a layer with tanh before the classifier, as in pre-training.
    in_channels : int
    """

    def __init__(
        self,
        image_size: int = 224,
        patch_size: int = 16,
        num_layers: int = 12,
        num_heads: int = 12,
        hidden_dim: int = 768,
        mlp_dim: int = 3072,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
        representation_size: int | None = None,
        in_channels: int = 3,
    ):
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"VisionTransformer: image_size={image_size} is not a multiple of patch_size={patch_size}")
        self.image_size, self.patch_size, self.hidden_dim = image_size, patch_size, hidden_dim
        self.conv_proj = nn.Conv2d(in_channels, hidden_dim, patch_size, stride=patch_size)
        self.class_token = new_parameter(1, 1, hidden_dim)
        tokens = (image_size // patch_size) ** 2 + 1
        self.encoder = Encoder(tokens, num_layers, num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
        self.heads = _heads(hidden_dim, representation_size, num_classes)
        nn.init.trunc_normal_(self.conv_proj.weight, std=1 / sqrt(in_channels * patch_size**2))
        nn.init.zeros_(self.conv_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, image_size, image_size) -> (batch, num_classes)"""
        if tuple(x.shape[2:]) != (self.image_size, self.image_size):
            raise ValueError(
                f"VisionTransformer: images of {self.image_size}×{self.image_size} are needed, got shape {tuple(x.shape)}"
            )
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        start = self.class_token.expand(x.shape[0], 1, self.hidden_dim)
        return self.heads(self.encoder(cat([start, patches], 1))[:, 0])


def _heads(hidden_dim: int, representation_size: int | None, num_classes: int) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = hidden_dim
    if representation_size is not None:
        pre_logits = nn.Linear(hidden_dim, representation_size)
        nn.init.trunc_normal_(pre_logits.weight, std=1 / sqrt(hidden_dim))
        nn.init.zeros_(pre_logits.bias)
        layers["pre_logits"], layers["act"] = pre_logits, nn.Tanh()
        width = representation_size
    head = nn.Linear(width, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    layers["head"] = head
    return nn.Sequential(layers)


def vit_b_16(**options: Any) -> VisionTransformer:
    """The base model on 16×16 patches, 86.6 M parameters; options are those of :class:`VisionTransformer`."""
    return VisionTransformer(**options)
