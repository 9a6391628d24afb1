"""Linear algebra of the standard; what has a gradient in ``lezero.linalg`` has one here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero import composed
from lezero import linalg as _linalg
from lezero.array_api.operands import Axes, accumulated, need_tensor, over, promoted
from lezero.graph import dtype as dt
from lezero.linalg.determinants import SignLogDet as SlogdetResult
from lezero.linalg.spectral import SVD as SVDResult
from lezero.linalg.spectral import Eig as EigResult
from lezero.linalg.spectral import Eigh as EighResult
from lezero.linalg.triangular import QR as QRResult
from lezero.ops.base import normalize_axis
from lezero.tensor import Tensor

__all__ = [
    "EigResult", "EighResult", "QRResult", "SVDResult", "SlogdetResult", "cholesky", "cross", "det", "diagonal", "eig", "eigh",
    "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv",
    "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def _pair(name: str, x1: Tensor, x2: Tensor) -> list[Tensor]:
    return promoted(name, need_tensor(name, x1), need_tensor(name, x2))


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Products of matrices and vectors; batches broadcast."""
    a, b = _pair("matmul", x1, x2)
    return a @ b


def matrix_transpose(x: Tensor, /) -> Tensor:
    if need_tensor("matrix_transpose", x).ndim < 2:
        raise ValueError(f"array_api.matrix_transpose: matrices have two dimensions or more, got {x.ndim}")
    return x.mT


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Sums of products over the last `axes` dimensions of x1 and the first of x2, or over those listed for each."""
    a, b = _pair("tensordot", x1, x2)
    return composed.tensordot(a, b, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sums of ``conj(x1) * x2`` along `axis`; the others broadcast."""
    a, b = _pair("vecdot", x1, x2)
    for x in (a, b):
        if not -x.ndim <= axis < x.ndim:
            raise IndexError(f"array_api.vecdot: there is no dimension {axis} in shape {tuple(map(int, x.shape))}")
    a, b = a.movedim(axis, -1), b.movedim(axis, -1)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"array_api.vecdot: extents {int(a.shape[-1])} and {int(b.shape[-1])} along dimension {axis}")
    return _linalg.vecdot(a, b)._cast(a.dtype)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Products of all elements of two vectors."""
    return composed.outer(*_pair("outer", x1, x2))


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Vector products of 3-vectors along `axis`; the other dimensions broadcast."""
    a, b = _pair("cross", x1, x2)
    for x in (a, b):
        if x.shape[normalize_axis("cross", axis, x.ndim)] != 3:
            raise ValueError(
                f"array_api.cross: dimension {axis} must have extent 3, got shape {tuple(map(int, x.shape))}"
            )
    ndim = max(a.ndim, b.ndim)
    a, b = (x.reshape((1,) * (ndim - x.ndim) + tuple(x.shape)) for x in (a, b))
    return _linalg.cross(a, b, dim=axis)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    return _linalg.diagonal(need_tensor("diagonal", x), offset=offset)


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Sums of diagonals, of integers in int64 or uint64, unless `dtype` says in what."""
    out = accumulated(need_tensor("trace", x).dtype) if dtype is None else dt.as_dtype(dtype)
    return _linalg.diagonal(x, offset=offset).sum(-1, dtype=out)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    return _linalg.cholesky(need_tensor("cholesky", x), upper=upper)


def det(x: Tensor, /) -> Tensor:
    return _linalg.det(need_tensor("det", x))


def slogdet(x: Tensor, /) -> SlogdetResult:
    return _linalg.slogdet(need_tensor("slogdet", x))


def inv(x: Tensor, /) -> Tensor:
    return _linalg.inv(need_tensor("inv", x))


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The pseudo-inverse; singular values below `rtol` times the largest count as 0."""
    return _linalg.pinv(need_tensor("pinv", x), rtol=rtol)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """X with ``x1 @ X = x2``, of matrices unless x2 has one dimension; batches broadcast."""
    a, b = _pair("solve", x1, x2)
    if 1 < b.ndim < a.ndim:
        b = b.expand((*a.shape[:-2], *b.shape[-2:]))
    return _linalg.solve(a, b)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    if mode not in ("reduced", "complete"):
        raise ValueError(f"array_api.linalg.qr: mode is 'reduced' or 'complete', got {mode!r}")
    return _linalg.qr(need_tensor("qr", x), mode)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    return _linalg.svd(need_tensor("svd", x), full_matrices)


def svdvals(x: Tensor, /) -> Tensor:
    return _linalg.svdvals(need_tensor("svdvals", x))


def eig(x: Tensor, /) -> EigResult:
    return _linalg.eig(need_tensor("eig", x))


def eigvals(x: Tensor, /) -> Tensor:
    return _linalg.eigvals(need_tensor("eigvals", x))


def eigh(x: Tensor, /) -> EighResult:
    return _linalg.eigh(need_tensor("eigh", x))


def eigvalsh(x: Tensor, /) -> Tensor:
    return _linalg.eigvalsh(need_tensor("eigvalsh", x))


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    return _linalg.matrix_power(need_tensor("matrix_power", x), n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """How many singular values are above `rtol` times the largest."""
    return _linalg.matrix_rank(need_tensor("matrix_rank", x), rtol=rtol)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """See ``lezero.linalg.matrix_norm``."""
    return _linalg.matrix_norm(need_tensor("matrix_norm", x), ord, keepdim=keepdims)


def vector_norm(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """See ``lezero.linalg.vector_norm``."""
    return over("vector_norm", x, axis, keepdims, lambda t, d, k: _linalg.vector_norm(t, ord, d, k))
