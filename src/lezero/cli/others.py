"""The networks of lezero.models that do not classify images: what the command line shows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lezero import models, nn
from lezero.nn import functional as F
from lezero.tensor import Tensor, tensor

LENGTH = 128
"""Tokens in an example's sequences."""


class Example(NamedTuple):
    """A network, what it is called with, and the loss of its outputs (None: it has none of its own)."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor | None
    loss: Callable[[Tensor, Tensor], Tensor] | None


def _sequences(batch: int, vocabulary: int) -> Tensor:
    return tensor(np.random.default_rng(0).integers(0, vocabulary, (batch, LENGTH)))


def _each_token(scores: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def _next_token(scores: Tensor, tokens: Tensor) -> Tensor:
    return _each_token(scores[:, :-1], tokens[:, 1:])


def _encoder(batch: int) -> Example:
    model = models.bert_base()
    return Example(model, (_sequences(batch, model.embeddings.word_embeddings.num_embeddings),), None, None)


def _masked_lm(batch: int) -> Example:
    model = models.bert_base_for_masked_lm()
    tokens = _sequences(batch, model.bert.embeddings.word_embeddings.num_embeddings)
    return Example(model, (tokens,), tokens, _each_token)


def _sequence_classifier(batch: int) -> Example:
    model = models.bert_base_for_sequence_classification()
    tokens = _sequences(batch, model.bert.embeddings.word_embeddings.num_embeddings)
    return Example(model, (tokens,), tensor(np.arange(batch) % 2), F.cross_entropy)


def _gpt2(batch: int) -> Example:
    model = models.gpt2()
    tokens = _sequences(batch, model.transformer.wte.num_embeddings)
    return Example(model, (tokens,), tokens, _next_token)


def _unet(batch: int) -> Example:
    rng = np.random.default_rng(0)
    images, classes = rng.random((batch, 3, 64, 64), np.float32), rng.integers(0, 2, (batch, 64, 64))
    return Example(models.unet(), (tensor(images),), tensor(classes), F.cross_entropy)


OTHERS: dict[str, Callable[[int], Example]] = {
    "bert_base": _encoder,
    "bert_base_for_masked_lm": _masked_lm,
    "bert_base_for_sequence_classification": _sequence_classifier,
    "gpt2": _gpt2,
    "unet": _unet,
}


def unknown_network(name: str) -> str:
    """What to say of a name that no network has."""
    from lezero.cli.networks import NETWORKS
    from lezero.misspelt import close

    names: list[Any] = [*NETWORKS, *OTHERS]
    meant = close(name, names)
    return f"there is no network {name!r}; " + (
        f"did you mean {' or '.join(meant)}?" if meant else f"there are {', '.join(names)}"
    )
