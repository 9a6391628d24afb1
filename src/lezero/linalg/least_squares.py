"""Pseudo-inverses, least squares and ranks: what singular values that are nearly 0 are left out of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lezero.function import Function
from lezero.graph import dtype as dt
from lezero.linalg.matrices import check_matrix, identity, tensor_of
from lezero.linalg.spectral import eigvalsh, svdvals
from lezero.tensor import Tensor, zeros


class _PseudoInverse(Function):
    """Golub & Pereyra (1973), "The differentiation of pseudo-inverses"."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, rtol: float, hermitian: bool) -> Tensor:
        y = tensor_of(np.linalg.pinv(A.numpy(), rtol, hermitian), A)
        ctx.save_for_backward(A, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        A, P = ctx.saved_tensors
        G, m, n = dy.mH, A.shape[-2], A.shape[-1]
        rows = (identity(m, A) - A @ P) @ G @ P @ P.mH
        columns = P.mH @ P @ G @ (identity(n, A) - P @ A)
        return rows + columns - P.mH @ dy @ P.mH, None, None


def pinv(A: Tensor, *, rtol: float | Tensor | None = None, hermitian: bool = False) -> Tensor:
    """Moore and Penrose's pseudo-inverses, singular values up to `rtol` of the largest taken for 0.

    Parameters
    ----------
    A : (..., m, n)
    rtol : float or (...), the dtype's epsilon times the larger extent by default
    """
    check_matrix("pinv", A)
    limit = _tolerance(A) if rtol is None else rtol.tolist() if isinstance(rtol, Tensor) else float(rtol)
    return _PseudoInverse.apply(A, limit, hermitian)


def _tolerance(A: Tensor) -> float:
    return max(int(A.shape[-2]), int(A.shape[-1])) * float(np.finfo(A.dtype.numpy).eps)


class LeastSquares(NamedTuple):
    """What ``lstsq`` finds."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """X with the smallest ``norm(A @ X - B)``, and of those the smallest.

    Parameters
    ----------
    A : (..., m, n)
    B : (..., m, k) or (..., m)
    rcond : singular values up to this share of the largest are taken for 0
    driver : {None, "gelsy", "gelsd", "gelss", "gels"}
        All are computed by the pseudo-inverse.  As in PyTorch, "gelsd" and "gelss" give singular values, all but "gelsy" (the
        default) squared residuals where m > n and all ranks are n, and "gels" gives no rank.
    """
    check_matrix("lstsq", A)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ValueError(f"linalg.lstsq: driver is 'gels', 'gelsy', 'gelsd' or 'gelss', got {driver!r}")
    vector = A.ndim - 1 == B.ndim and tuple(B.shape) == tuple(A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    x = pinv(A, rtol=rcond) @ right
    rank = matrix_rank(A, rtol=rcond)
    m, n = map(int, A.shape[-2:])
    empty = zeros(0, dtype=A.dtype.to_real())
    settled = m > n and driver not in (None, "gelsy") and (driver == "gels" or bool((rank == n).all()))
    residuals = (A @ x - right).abs().square().sum(-2) if settled else empty
    values = svdvals(A) if driver in ("gelsd", "gelss") else empty
    if driver == "gels":
        rank = zeros(0, dtype=dt.int64)
    return LeastSquares(x.squeeze(-1) if vector else x, residuals, rank, values)


def matrix_rank(
    A: Tensor, *, atol: float | None = None, rtol: float | Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """How many singular values exceed ``max(atol, rtol * largest)``; rtol is as for ``pinv`` unless atol is given."""
    check_matrix("matrix_rank", A, square=hermitian)
    values = eigvalsh(A.detach()).abs() if hermitian else svdvals(A.detach())
    if not int(values.shape[-1]):
        return zeros(*A.shape[:-2], dtype=dt.int64)
    rtol = (_tolerance(A) if atol is None else 0.0) if rtol is None else rtol
    relative, absolute = (
        t.unsqueeze(-1) if isinstance(t, Tensor) else t for t in (rtol, 0.0 if atol is None else atol)
    )
    return (values > (values.amax(-1, keepdim=True) * relative).clamp(min=absolute)).sum(-1)
