"""What the models with Hugging Face's names share: tied weights, and the forms their published files come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lezero import nn
from lezero.checkpointing import checkpoint
from lezero.nn.parameter import new_parameter
from lezero.nn.state import IncompatibleKeys
from lezero.tensor import Tensor

_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_CONSTANTS = (".position_ids", ".attn.bias", ".attn.masked_bias")  # buffers that older versions stored


def through(layers: nn.ModuleList, x: Tensor, mask: Tensor | None, checkpointed: bool) -> Tensor:
    """What a stack of layers makes of `x`; with `checkpointed` only the layers' inputs are kept for the gradient."""
    for layer in layers:
        x = checkpoint(layer, x, mask) if checkpointed else layer(x, mask)
    return x


def tied_linear(embedding: nn.Embedding, bias: bool) -> nn.Linear:
    """A linear layer from features to scores of an embedding's rows, on the embedding's weight; its bias starts at zero."""
    layer = nn.Linear(embedding.embedding_dim, 0, bias=bias)  # no weight of its own, which would be drawn for nothing
    layer.out_features, layer.weight = embedding.num_embeddings, embedding.weight
    if bias:
        layer.bias = new_parameter(embedding.num_embeddings)
    return layer


class PublishedModel(nn.Module):
    """A model that takes states as they are published.

    Attributes
    ----------
    body : str
        Under which name models with a head hold the model without one.
    """

    body: str

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether any part keeps only the inputs of its layers while training."""
        return any(getattr(m, "gradient_checkpointing", False) for m in self.modules())

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None) -> None:
        """Keep only the inputs of each layer while training, and compute the rest again for the gradient.

        Parameters
        ----------
        gradient_checkpointing_kwargs : taken as Hugging Face takes it; the options there are change nothing (see
            :func:`lezero.checkpoint`)
        """
        self._set_gradient_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        """Keep what the gradient needs."""
        self._set_gradient_checkpointing(False)

    def _set_gradient_checkpointing(self, value: bool) -> None:
        for m in self.modules():
            if hasattr(m, "gradient_checkpointing"):
                m.gradient_checkpointing = value

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """As :meth:`nn.Module.load_state_dict`, and the state may be in any form that published files have.

        Names may have the prefix of the model without a head or lack it; a layer norm may have gamma and beta; tied
        weights may be there once; constants that older versions stored are passed over.
        """
        if isinstance(state_dict, Mapping):
            state_dict = self._as_ours(state_dict)
        return super().load_state_dict(state_dict, strict, assign)

    def _as_ours(self, given: Mapping[str, Any]) -> dict[str, Any]:
        own = self.state_dict(keep_vars=True)
        state = {self._our_name(name, own): value for name, value in given.items()}
        state = {name: value for name, value in state.items() if name in own or not name.endswith(_CONSTANTS)}
        held = {id(own[name]): state[name] for name in state if name in own}
        for name, tensor in own.items():
            if name not in state and id(tensor) in held:
                state[name] = held[id(tensor)]
        return state

    def _our_name(self, name: str, own: Mapping[str, Any]) -> str:
        for old, new in _RENAMED.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        prefix = f"{self.body}."
        other = name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
        return other if name not in own and other in own else name
