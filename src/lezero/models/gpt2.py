"""GPT-2 (Radford et al. 2019), with Hugging Face's parameter names and layouts, so that published weights load."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from lezero import nn
from lezero.misspelt import SpeltArguments
from lezero.models.huggingface import PublishedModel, through, tied_linear
from lezero.nn import functional as F
from lezero.nn.parameter import new_parameter
from lezero.tensor import Tensor, ones


@dataclass(frozen=True)
class GPT2Config(SpeltArguments):
    """Sizes and rates; the defaults are the smallest published model.

    Parameters
    ----------
    vocab_size, n_embd, n_layer, n_head : int
    n_positions : int
        The longest sequence.
    n_inner : int or None
        Width of the blocks' two-layer networks, ``4 * n_embd`` unless given.
    dropout : float
        Behind the embeddings and each sublayer.
    attention_dropout : float or None
        Of the attention weights; the same as `dropout` unless given.
    layer_norm_epsilon, initializer_range : float
        `initializer_range` is the deviation of the initial weights.
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    dropout: float = 0.1
    attention_dropout: float | None = None
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02


class Conv1D(nn.Module):
    """A linear layer whose weight lies as (in_features, out_features), as in the published files."""

    def __init__(self, out_features: int, in_features: int, std: float):
        super().__init__()
        self.weight = new_parameter(in_features, out_features)
        self.bias = new_parameter(out_features)
        nn.init.normal_(self.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class GPT2Attention(nn.Module):
    """Attention in which a token sees itself and those before it."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        features, self.heads = config.n_embd, config.n_head
        if features % self.heads:
            raise ValueError(f"GPT-2: n_embd={features} is not a multiple of n_head={self.heads}")
        self.c_attn = Conv1D(3 * features, features, config.initializer_range)
        self.c_proj = Conv1D(features, features, _residual_std(config))
        self.attention_dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (self._heads(part) for part in self.c_attn(x).chunk(3, -1))
        p = self.attention_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, p, is_causal=mask is None)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(*x.shape)))

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, n_embd) -> (batch, heads, length, features of a head)"""
        return x.reshape(x.shape[0], x.shape[1], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class GPT2MLP(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        width = 4 * config.n_embd if config.n_inner is None else config.n_inner
        self.c_fc = Conv1D(width, config.n_embd, config.initializer_range)
        self.c_proj = Conv1D(config.n_embd, width, _residual_std(config))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


def _residual_std(config: GPT2Config) -> float:
    """Smaller with depth, since each layer adds to the residual twice (Radford et al. 2019, section 2.3)."""
    return config.initializer_range / sqrt(2 * config.n_layer)


class GPT2Block(nn.Module):
    """Attention and a two-layer network, each behind a layer norm and added to its input."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = GPT2Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = GPT2MLP(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class GPT2Model(PublishedModel):
    """The network below the scores."""

    body = "transformer"
    gradient_checkpointing = False

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(GPT2Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=config.initializer_range)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode sequences.

        Parameters
        ----------
        input_ids : (batch, length), integers
        attention_mask : (batch, length), bool or numbers; tokens where it is 0 (padding) are seen by none

        Returns
        -------
        (batch, length, n_embd)
        """
        length, most = input_ids.shape[1], self.config.n_positions
        if length > most:
            raise ValueError(f"GPT-2: sequences of at most {most} tokens are taken, got shape {tuple(input_ids.shape)}")
        x = self.drop(self.wte(input_ids) + self.wpe.weight[:length])
        mask = None
        if attention_mask is not None:
            mask = (attention_mask != 0)[:, None, None, :] & ones(length, length, dtype="bool").tril()
        return self.ln_f(through(self.h, x, mask, self.gradient_checkpointing and self.training))


class GPT2LMHeadModel(PublishedModel):
    """With scores for the next token, from the weight of the token embeddings."""

    body = "transformer"

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.config = config
        self.transformer = GPT2Model(config)
        self.lm_head = tied_linear(self.transformer.wte, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """As :meth:`GPT2Model.forward`; returns scores (batch, length, vocab_size) for the token after each."""
        return self.lm_head(self.transformer(input_ids, attention_mask))


def gpt2(**options: Any) -> GPT2LMHeadModel:
    """The model of 12 layers, 124.4 M parameters; options are those of :class:`GPT2Config`."""
    return GPT2LMHeadModel(GPT2Config(**options))
