"""Linear layers."""

from __future__ import annotations

from typing import Any

from lezero.nn import functional as F
from lezero.nn import init
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter, new_parameter
from lezero.tensor import Tensor


class Identity(Module):
    """Its input, unchanged; takes any arguments, to stand in for other layers."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Linear(Module):
    """``x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    dtype : floating dtype, the default one unless given

    Attributes
    ----------
    weight : (out_features, in_features), uniform within ±1/√in_features
    bias : (out_features,), likewise; or None
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = new_parameter(out_features, in_features, device=device, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_features, device=device, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.layer_(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features)"""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """``y[o] = x1 @ weight[o] @ x2 + bias[o]``.

    Parameters
    ----------
    in1_features, in2_features, out_features : int
    bias : bool
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = new_parameter(out_features, in1_features, in2_features, device=device, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_features, device=device, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.layer_(self.weight, self.bias, fan_in=self.in1_features)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """(*, in1_features), (*, in2_features) -> (*, out_features)"""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Embedding(Module):
    """A table of vectors, looked up by index.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
    padding_idx : int or None
        This row starts at zero and gets no gradient.
    max_norm, norm_type : rows that are looked up are first scaled down to this norm, in place
    scale_grad_by_freq : divide each row's gradient by how often it was looked up
    sparse : gradients are dense either way

    Attributes
    ----------
    weight : (num_embeddings, embedding_dim), normal
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"Embedding: padding_idx={padding_idx} is not a row of a table of {num_embeddings}")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if _weight is not None:
            if tuple(_weight.shape) != (num_embeddings, embedding_dim):
                raise ValueError(
                    f"Embedding: a weight of shape {(num_embeddings, embedding_dim)} is needed, got {tuple(_weight.shape)}"
                )
            self.weight = Parameter(_weight, requires_grad=not _freeze)
            return
        self.weight = new_parameter(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.weight.requires_grad_(not _freeze)
        self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> Embedding:
        """An embedding with given vectors (rows, features); frozen unless told otherwise."""
        if embeddings.ndim != 2:
            raise ValueError(
                f"Embedding.from_pretrained: vectors (rows, features) are needed, got shape {tuple(embeddings.shape)}"
            )
        rows, features = (int(d) for d in embeddings.shape)
        self = cls(rows, features, padding_idx=padding_idx, **options)
        self.weight = Parameter(embeddings, requires_grad=not freeze)
        return self

    def reset_parameters(self) -> None:
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.data[self.padding_idx])

    def forward(self, input: Tensor) -> Tensor:
        """Indices (*) -> (*, embedding_dim)"""
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class CosineSimilarity(Module):
    """The cosine of the angle between two vectors along `dim`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8):
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of the difference of two vectors."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
