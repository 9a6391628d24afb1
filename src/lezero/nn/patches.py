"""Layers of patches, and of bags of vectors."""

from __future__ import annotations

from typing import Any

from lezero.nn import functional as F
from lezero.nn.linear import Embedding
from lezero.nn.module import Module
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]


class Unfold(Module):
    """Patches of an image as columns; see :func:`~lezero.nn.functional.unfold`."""

    def __init__(
        self, kernel_size: IntOrTuple, dilation: IntOrTuple = 1, padding: IntOrTuple = 0, stride: IntOrTuple = 1
    ):
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, channels · kernel elements, patches)"""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """Images of columns of patches, added where they overlap; see :func:`~lezero.nn.functional.fold`."""

    def __init__(
        self,
        output_size: IntOrTuple,
        kernel_size: IntOrTuple,
        dilation: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        stride: IntOrTuple = 1,
    ):
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels · kernel elements, patches) -> (batch, channels, *output_size)"""
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class EmbeddingBag(Embedding):
    """A table of vectors, of which bags are put together; see :func:`~lezero.nn.functional.embedding_bag`.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
    mode : {"sum", "mean", "max"}
    include_last_offset : whether offsets say where the last bag ends, too
    padding_idx : this row counts nowhere, starts at zero and gets no gradient
    max_norm, norm_type, scale_grad_by_freq, sparse : see the function

    Attributes
    ----------
    weight : (num_embeddings, embedding_dim), normal
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ):
        frozen = False
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, frozen, device, dtype
        )  # fmt: skip
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(  # type: ignore[override]
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Indices (bags, indices), or (indices,) with offsets (bags,) -> (bags, embedding_dim)"""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
