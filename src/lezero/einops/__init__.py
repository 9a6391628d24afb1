"""einops works with tensors: ``einops.rearrange(tensor, "b c h w -> b (h w) c")`` and the like, with gradients.

einops finds what subclasses its ``AbstractBackend``.  This module is imported by itself as soon as both libraries are; layers are
in ``lezero.einops.layers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

try:
    from einops._backends import AbstractBackend
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("lezero.einops needs einops: pip install einops", name=error.name) from error

from lezero.tensor import Tensor, arange, cat, einsum, from_numpy, stack

_REDUCTIONS = {
    "min": Tensor.amin, "max": Tensor.amax, "sum": Tensor.sum, "mean": Tensor.mean, "prod": Tensor.prod, "any": Tensor.any,
    "all": Tensor.all,
}  # fmt: skip


class LeZeroBackend(AbstractBackend):
    """What einops asks of a library of tensors."""

    framework_name = "lezero"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: np.ndarray) -> Tensor:
        made = from_numpy(x)
        return made.requires_grad_() if made.is_floating_point() else made

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return arange(start, stop)

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """Plain ints: einops keeps what it worked out by them, and symbols belong to one recording."""
        return tuple(map(int, x.shape))

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(tuple(axes))

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        return _REDUCTIONS[operation](x, tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: list) -> Tensor:
        return stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return x.unsqueeze(new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        sizes = [-1] * n_axes
        for place, extent in pos2len.items():
            x = x.unsqueeze(place)
            sizes[place] = extent
        return x.expand(sizes)

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        return x.repeat(tuple(repeats))

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return cat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return einsum(pattern, *x)

    def layers(self) -> Any:
        from lezero.einops import layers

        return layers
