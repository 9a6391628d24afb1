"""Lookups by index."""

from __future__ import annotations

from lezero.function import custom_op
from lezero.ops.embedding import embedding as _embedding
from lezero.ops.indexing import one_hot as _one_hot
from lezero.runtime.bounds import expect
from lezero.runtime.recorder import record
from lezero.tensor import Tensor, no_grad, where, zeros

_NO_ROW = "embedding: index {index} is not a row of a table of {extent} rows"


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of `weight` (rows, features) at the indices `input`.

    padding_idx : this row gets no gradient
    max_norm : rows that are looked up are first scaled down, in place, to this norm
    scale_grad_by_freq : divide each row's gradient by how often it is looked up here
    sparse : gradients are dense either way
    """
    if padding_idx is not None:
        rows = int(weight.shape[0])
        if not -rows <= padding_idx < rows:
            raise ValueError(f"embedding: padding_idx={padding_idx} is not a row of a table of {rows}")
        padding_idx %= rows
    expect(input, weight.shape[0], _NO_ROW)
    if max_norm is not None:
        with no_grad():
            _limit_rows(weight, input, max_norm, norm_type)
    if scale_grad_by_freq:
        weight = _divided_gradient(weight, 1 / _counts(input, weight).clamp(min=1))
    return record(_embedding, (weight, input), (padding_idx,))


@custom_op
def _divided_gradient(x: Tensor, factor: Tensor) -> Tensor:
    return x.clone()


@_divided_gradient.gradient
def _(dy: Tensor, y: Tensor, x: Tensor, factor: Tensor) -> tuple[Tensor, None]:
    return dy * factor, None


def _counts(index: Tensor, weight: Tensor) -> Tensor:
    """(rows, 1): how often each row is looked up."""
    flat = index.reshape(-1).to("int64")
    one = zeros(flat.shape, dtype=weight.dtype) + 1
    return zeros(weight.shape[0], dtype=weight.dtype).scatter_add(0, flat, one._cast(weight.dtype)).unsqueeze(1)


def _limit_rows(weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    norms = weight.norm(norm_type, 1, keepdim=True)
    # the small number is the one PyTorch divides by
    scale = where((norms > max_norm) & (_counts(index, weight) > 0), max_norm / (norms + 1e-7), 1.0)
    weight.copy_(weight * scale)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Int64 zeros with a one at each index: (*) -> (*, num_classes); -1 reads the largest index."""
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    expect(tensor, num_classes, "one_hot: index {index} is not one of {extent} classes")
    return _one_hot(tensor, num_classes=num_classes)
