"""Products of vectors and matrices, and their diagonals."""

from __future__ import annotations

from collections.abc import Sequence

from lezero.composed import cross as _cross
from lezero.graph import dtype as dt
from lezero.numerics import chain_matmul
from lezero.ops.base import broadcast_shapes, normalize_axis
from lezero.rearranged import diagonal as _diagonal
from lezero.tensor import Tensor, cat, full


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Vector products of 3-vectors along `dim`."""
    if input.ndim != other.ndim or any(
        int(t.shape[normalize_axis("linalg.cross", dim, t.ndim)]) != 3 for t in (input, other)
    ):
        raise ValueError(
            f"linalg.cross: tensors of as many dimensions, with extent 3 in dimension {dim}, are needed, got shapes "
            f"{tuple(map(int, input.shape))} and {tuple(map(int, other.shape))}"
        )
    shape = broadcast_shapes("linalg.cross", input.shape, other.shape)
    return _cross(input.expand(*shape), other.expand(*shape), dim)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Sums of ``conj(x) * y`` along `dim`."""
    return ((x.conj() if x.is_complex() else x) * y).sum(dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Diagonals of matrices, as a new last dimension."""
    return _diagonal(A, offset, dim1, dim2)


def trace(A: Tensor, *, offset: int = 0) -> Tensor:
    """Sums of the diagonals of matrices."""
    return diagonal(A, offset=offset).sum(-1)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Products of matrices, batches broadcast."""
    return input @ other


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices (the first and the last may be vectors) in the order that takes the fewest operations."""
    if len(tensors) < 2:
        raise ValueError(f"linalg.multi_dot: two tensors or more are needed, got {len(tensors)}")
    first, last = tensors[0], tensors[-1]
    matrices = [first.unsqueeze(0) if first.ndim == 1 else first, *tensors[1:-1]]
    y = chain_matmul(*matrices, last.unsqueeze(1) if last.ndim == 1 else last)
    y = y.squeeze(0) if first.ndim == 1 else y
    return y.squeeze(-1) if last.ndim == 1 else y


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers 0 to N - 1 of the last dimension's elements, along a new last dimension."""
    x = (x if x.ndim else x.reshape(1))._cast(dt.int64 if x.dtype.kind in "biu" else x.dtype)
    n = int(x.shape[-1]) if N is None else N
    ones = full(tuple(x.shape), 1, dtype=x.dtype)
    powers = [ones]
    for _ in range(n - 1):
        powers.append(powers[-1] * x)
    return cat([p.unsqueeze(-1) for p in powers], -1)
