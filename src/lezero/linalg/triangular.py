"""Decompositions with a triangle: Cholesky's and QR."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lezero.function import Function
from lezero.linalg.matrices import check_matrix, tensor_of
from lezero.linalg.solutions import Solution, inv
from lezero.rearranged import diag_embed
from lezero.tensor import Tensor, cat, zeros


class _Cholesky(Function):
    """Murray (2016), "Differentiation of the Cholesky decomposition"."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        y = tensor_of(np.linalg.cholesky(A.numpy()), A)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (L,) = ctx.saved_tensors
        low = (L.mH @ dy.tril()).tril()
        half = low - diag_embed(low.diagonal(0, -2, -1)) / 2
        back = inv(L)
        return back.mH @ ((half + half.mH) / 2) @ back


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Lower triangular L with ``L @ L.mH = A`` (or `upper` ones, ``U.mH @ U``); LinAlgError for other than positive definite A."""
    check_matrix("cholesky", A, square=True)
    L = _Cholesky.apply(A)
    return L.mH if upper else L


class QR(NamedTuple):
    """Orthonormal columns, and an upper triangle."""

    Q: Tensor
    R: Tensor


class _QR(Function):
    """Walter & Lehmann (2010), "Algorithmic differentiation of linear algebra functions", for at least as many rows as columns."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        results = tuple(tensor_of(x, A) for x in np.linalg.qr(A.numpy()))
        ctx.save_for_backward(*results)
        return results  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dr: Tensor) -> Tensor:
        Q, R = ctx.saved_tensors
        M = R @ dr.mH - dq.mH @ Q
        low = M.tril(-1)
        on = M.diagonal(0, -2, -1)
        symmetric = low + low.mH + diag_embed(on.real()._cast(M.dtype) if M.is_complex() else on)
        return Solution.apply(R, (dq + Q @ symmetric).mH).mH


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and upper triangular R, ``Q @ R = A``.

    Parameters
    ----------
    A : (..., m, n), with a gradient where its first min(m, n) columns are independent
    mode : {"reduced", "complete", "r"}
        Q of shape (m, min(m, n)), Q of shape (m, m) (no gradient if m > n), or an empty Q (no gradient).
    """
    check_matrix("qr", A)
    m, n = map(int, A.shape[-2:])
    if mode == "r":
        return QR(zeros(0, dtype=A.dtype), tensor_of(np.asarray(np.linalg.qr(A.detach().numpy(), "r")), A))
    if mode == "complete" and m > n:
        if A.requires_grad:
            raise ValueError(
                "linalg.qr: there is no gradient of a complete Q of more rows than columns; use mode='reduced'"
            )
        return QR(*(tensor_of(x, A) for x in np.linalg.qr(A.numpy(), "complete")))
    if mode not in ("reduced", "complete"):
        raise ValueError(f"linalg.qr: mode is 'reduced', 'complete' or 'r', got {mode!r}")
    if m >= n:
        return QR(*_QR.apply(A))
    Q, R = _QR.apply(A.narrow(-1, 0, m))
    return QR(Q, cat([R, Q.mH @ A.narrow(-1, m, n - m)], -1))
