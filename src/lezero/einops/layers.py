"""einops' layers as modules: ``Rearrange``, ``Reduce`` and ``EinMix``, for ``nn.Sequential`` and everything else."""

from __future__ import annotations

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from lezero import nn
from lezero.tensor import Tensor, einsum, rand


class Rearrange(RearrangeMixin, nn.Module):
    """``einops.rearrange`` with a pattern."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class Reduce(ReduceMixin, nn.Module):
    """``einops.reduce`` with a pattern and a reduction."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class EinMix(_EinmixMixin, nn.Module):
    """A linear layer over the axes that a pattern says, with a weight and perhaps a bias."""

    def _create_parameters(self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float) -> None:
        self.weight = nn.Parameter((rand(*weight_shape) * 2 - 1) * weight_bound)
        self.bias = None if bias_shape is None else nn.Parameter((rand(*bias_shape) * 2 - 1) * bias_bound)

    def _create_rearrange_layers(self, before: Any, before_lengths: Any, after: Any, after_lengths: Any) -> None:
        self.pre_rearrange = None if before is None else Rearrange(before, **before_lengths)
        self.post_rearrange = None if after is None else Rearrange(after, **after_lengths)

    def forward(self, input: Tensor) -> Tensor:
        x = input if self.pre_rearrange is None else self.pre_rearrange(input)
        y = einsum(self.einsum_pattern, x, self.weight)
        y = y if self.bias is None else y + self.bias
        return y if self.post_rearrange is None else self.post_rearrange(y)
