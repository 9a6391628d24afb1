"""Norms of vectors and matrices, and condition numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from lezero.graph import dtype as dt
from lezero.linalg.matrices import check_matrix
from lezero.linalg.solutions import inv
from lezero.linalg.spectral import svdvals
from lezero.ops.base import normalize_axis
from lezero.ops.rules import narrow, widen
from lezero.tensor import Tensor


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """``sum(abs(x) ** ord) ** (1 / ord)`` over dimensions, largest for inf, smallest for -inf, how many are not 0 for 0."""
    x = x if dtype is None else x._cast(dt.as_dtype(dtype))
    if not (x.is_floating_point() or x.is_complex()):
        raise TypeError(f"linalg.vector_norm: a floating or complex dtype is needed, got {x.dtype.name}")
    size = x.abs() if x.is_complex() else x
    if ord == inf:
        return size.abs().amax(dim, keepdim)
    if ord == -inf:
        return size.abs().amin(dim, keepdim)
    return size.norm(ord, dim, keepdim)


_Reduction = Callable[[Tensor], Tensor]


def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Norms of matrices.

    Parameters
    ----------
    A : (..., m, n), or with the matrices in two other dimensions `dim`
    ord : {"fro", "nuc", 2, -2, 1, -1, inf, -inf}
        The root of the sum of squares; the sum, the largest or the smallest of the singular values; the largest or the
        smallest sum of absolute values in a column (1, -1) or a row (inf, -inf).
    """
    A = A if dtype is None else A._cast(dt.as_dtype(dtype))
    rows, columns = (normalize_axis("linalg.matrix_norm", d, A.ndim) for d in dim)
    if rows == columns:
        raise ValueError(f"linalg.matrix_norm: two different dimensions are needed, got {tuple(dim)}")
    x = widen(A).movedim((rows, columns), (-2, -1))
    check_matrix("matrix_norm", x)
    if ord not in _MATRIX_NORMS:
        raise ValueError(f"linalg.matrix_norm: ord is one of {', '.join(map(repr, _MATRIX_NORMS))}, got {ord!r}")
    y = narrow(_MATRIX_NORMS[ord](x), A.dtype.to_real())
    if not keepdim:
        return y
    for d in sorted((rows, columns)):
        y = y.unsqueeze(d)
    return y


_MATRIX_NORMS: dict[Any, _Reduction] = {
    "fro": lambda x: vector_norm(x, 2, (-2, -1)),
    "nuc": lambda x: svdvals(x).sum(-1),
    2: lambda x: svdvals(x).amax(-1),
    -2: lambda x: svdvals(x).amin(-1),
    1: lambda x: x.abs().sum(-2).amax(-1),
    -1: lambda x: x.abs().sum(-2).amin(-1),
    inf: lambda x: x.abs().sum(-1).amax(-1),
    -inf: lambda x: x.abs().sum(-1).amin(-1),
}


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """``matrix_norm`` over two dimensions, ``vector_norm`` otherwise (and where `ord` is not given)."""
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    pair = (-2, -1) if dim is None and A.ndim == 2 else dim
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        return matrix_norm(A, ord, pair, keepdim, dtype=dtype)
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """Condition numbers: largest over smallest singular value, or ``norm(A, p) * norm(inv(A), p)``."""
    if p in (None, 2, -2):
        values = svdvals(A)
        first, last = values.select(-1, 0), values.select(-1, -1)
        return last / first if p == -2 else first / last
    return matrix_norm(A, p) * matrix_norm(inv(A), p)
