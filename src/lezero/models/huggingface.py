"""What the models with Hugging Face's names share: tied weights, and the forms their published files come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lezero import nn
from lezero.nn.parameter import new_parameter
from lezero.nn.state import IncompatibleKeys

_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_CONSTANTS = (".position_ids", ".attn.bias", ".attn.masked_bias")  # buffers that older versions stored


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
