"""BERT (Devlin et al. 2018), with Hugging Face's parameter names, so that published weights load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lezero import nn
from lezero.misspelt import SpeltArguments
from lezero.models.huggingface import PublishedModel, through, tied_linear
from lezero.nn import functional as F
from lezero.tensor import Tensor


@dataclass(frozen=True)
class BertConfig(SpeltArguments):
    """Sizes and rates; the defaults are the base model for lower-case English.

    Parameters
    ----------
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size : int
    max_position_embeddings : int
        The longest sequence.
    type_vocab_size : int
        How many kinds of segments there are.
    dropout : float
        Behind the embeddings, each sublayer and before the classifier.
    attention_dropout : float or None
        Of the attention weights; the same as `dropout` unless given.
    pad_token_id : int or None
        This token's embedding starts at zero and is not trained as an input.
    layer_norm_eps, initializer_range : float
        `initializer_range` is the deviation of the initial weights.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    dropout: float = 0.1
    attention_dropout: float | None = None
    pad_token_id: int | None = 0
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02


class BertEmbeddings(nn.Module):
    """The sum of token, position and segment embeddings, normalised."""

    def __init__(self, config: BertConfig):
        super().__init__()
        hidden = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, hidden, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, hidden)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(batch, length) and (batch, length) or None, which is all zeros -> (batch, length, hidden_size)"""
        length, most = input_ids.shape[1], self.position_embeddings.num_embeddings
        if length > most:
            raise ValueError(f"BERT: sequences of at most {most} tokens are taken, got shape {tuple(input_ids.shape)}")
        # Rows known beforehand are taken as slices: their gradients are sums then, not scattered writes.
        segments = self.token_type_embeddings
        segment = segments.weight[0] if token_type_ids is None else segments(token_type_ids)
        x = self.word_embeddings(input_ids) + self.position_embeddings.weight[:length] + segment
        return self.dropout(self.LayerNorm(x))


class BertSelfAttention(nn.Module):
    """Attention with separate layers for query, key and value."""

    def __init__(self, config: BertConfig):
        super().__init__()
        hidden, self.heads = config.hidden_size, config.num_attention_heads
        if hidden % self.heads:
            raise ValueError(f"BERT: hidden_size={hidden} is not a multiple of num_attention_heads={self.heads}")
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.attention_dropout = config.dropout if config.attention_dropout is None else config.attention_dropout

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        p = self.attention_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, p)
        return y.transpose(1, 2).reshape(*x.shape)

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, hidden) -> (batch, heads, length, features of a head)"""
        return x.reshape(x.shape[0], x.shape[1], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class BertAddNorm(nn.Module):
    """A linear layer's result added to the residual and normalised."""

    def __init__(self, features: int, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertAddNorm(config.hidden_size, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.output(self.self(x, mask), x)


class BertIntermediate(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.dense(x))


class BertLayer(nn.Module):
    """Attention and a two-layer network, each added to its input and normalised after it."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertAddNorm(config.intermediate_size, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class BertEncoder(nn.Module):
    gradient_checkpointing = False

    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return through(self.layer, x, mask, self.gradient_checkpointing and self.training)


class BertPooler(nn.Module):
    """A layer with tanh on the first token."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, length, hidden_size) -> (batch, hidden_size)"""
        return self.dense(hidden[:, 0]).tanh()


def _initialise(model: nn.Module, config: BertConfig) -> None:
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=config.initializer_range)
            nn.init.zeros_(m.bias)
        elif isinstance(m, nn.Embedding):
            nn.init.normal_(m.weight, std=config.initializer_range)
            if m.padding_idx is not None:
                nn.init.zeros_(m.weight.data[m.padding_idx])


class BertModel(PublishedModel):
    """The encoder.

    Parameters
    ----------
    config : BertConfig
    add_pooling_layer : bool
        Whether there is a ``pooler``; ``model.pooler(model(ids))`` is the (batch, hidden_size) summary of the sequences.
    """

    body = "bert"

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        _initialise(self, config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Encode sequences.

        Parameters
        ----------
        input_ids : (batch, length), integers
        attention_mask : (batch, length), bool or numbers; tokens where it is 0 (padding) are seen by none
        token_type_ids : (batch, length), integers, all 0 unless given

        Returns
        -------
        (batch, length, hidden_size)
        """
        mask = None if attention_mask is None else (attention_mask != 0)[:, None, None, :]
        return self.encoder(self.embeddings(input_ids, token_type_ids), mask)


class BertPredictionHeadTransform(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(x)))


class BertLMPredictionHead(nn.Module):
    """Scores for every token of the vocabulary; the decoder's weight is that of the word embeddings."""

    def __init__(self, config: BertConfig, words: nn.Embedding):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = tied_linear(words, bias=True)
        self.bias = self.decoder.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.transform(x))


class BertOnlyMLMHead(nn.Module):
    def __init__(self, config: BertConfig, words: nn.Embedding):
        super().__init__()
        self.predictions = BertLMPredictionHead(config, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.predictions(x)


class BertForMaskedLM(PublishedModel):
    """The encoder with the head that predicts masked tokens."""

    body = "bert"

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config, self.bert.embeddings.word_embeddings)
        _initialise(self.cls.predictions.transform, config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """As :meth:`BertModel.forward`; returns scores (batch, length, vocab_size)."""
        return self.cls(self.bert(input_ids, attention_mask, token_type_ids))


class BertForSequenceClassification(PublishedModel):
    """The encoder with a classifier of whole sequences, into `num_labels`, on its pooler; see :class:`BertConfig`."""

    body = "bert"

    def __init__(self, config: BertConfig, num_labels: int = 2):
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        _initialise(self.classifier, config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """As :meth:`BertModel.forward`; returns scores (batch, num_labels)."""
        hidden = self.bert(input_ids, attention_mask, token_type_ids)
        return self.classifier(self.dropout(self.bert.pooler(hidden)))  # type: ignore[misc]


def bert_base(add_pooling_layer: bool = True, **options: Any) -> BertModel:
    """The encoder of 12 layers, 109.5 M parameters with its pooler; options are those of :class:`BertConfig`."""
    return BertModel(BertConfig(**options), add_pooling_layer)


def bert_base_for_masked_lm(**options: Any) -> BertForMaskedLM:
    """With the head that predicts masked tokens, 109.5 M parameters; options are those of :class:`BertConfig`."""
    return BertForMaskedLM(BertConfig(**options))


def bert_base_for_sequence_classification(num_labels: int = 2, **options: Any) -> BertForSequenceClassification:
    """With a classifier of sequences, 109.5 M parameters; options are those of :class:`BertConfig`."""
    return BertForSequenceClassification(BertConfig(**options), num_labels)
