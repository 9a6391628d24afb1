"""Eigenvalues and eigenvectors, singular values and vectors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from lezero.function import Function
from lezero.linalg.matrices import check_matrix, identity, tensor_of
from lezero.linalg.solutions import solve
from lezero.rearranged import diag_embed
from lezero.tensor import Tensor, cat, tensor


class Eigh(NamedTuple):
    """Ascending eigenvalues, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class _Eigh(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        w, v = np.linalg.eigh(A.numpy(), UPLO)  # type: ignore[call-overload]
        results = tensor(w.astype(A.dtype.to_real().numpy, copy=False)), tensor_of(v, A)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, dw: Tensor | None, dv: Tensor | None) -> tuple[Any, ...]:
        w, V = ctx.saved_tensors
        inner = None if dw is None else diag_embed(dw._cast(V.dtype))
        if dv is not None:
            gaps = w.unsqueeze(-2) - w.unsqueeze(-1) + identity(w.shape[-1], w)
            off = _skew(V.mH @ dv) / 2 / gaps._cast(V.dtype)  # so that the gradient is symmetric, as the matrix is
            off = off - diag_embed(off.diagonal(0, -2, -1))
            inner = off if inner is None else inner + off
        return (None if inner is None else V @ inner @ V.mH), None


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues and eigenvectors of symmetric (Hermitian) matrices, of which one triangle is read.

    The gradient of eigenvectors is infinite where eigenvalues are equal, and depends on their signs (phases).
    """
    check_matrix("eigh", A, square=True)
    if UPLO.upper() not in ("L", "U"):
        raise ValueError(f"linalg.eigh: UPLO is 'L' or 'U', got {UPLO!r}")
    return Eigh(*_Eigh.apply(A, UPLO.upper()))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric (Hermitian) matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


class Eig(NamedTuple):
    """Complex eigenvalues, and eigenvectors of length 1 as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class _Eig(Function):
    """Boeddeker et al. (2019), "On the computation of complex-valued gradients with application to statistically optimum
    beamforming"."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        made = A.dtype.to_complex()
        found = (np.asarray(x).astype(made.numpy) for x in np.linalg.eig(A.numpy()))
        results = tuple(tensor(x) for x in found)
        ctx.save_for_backward(*results)
        ctx.real = not A.is_complex()
        return results  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, dw: Tensor | None, dv: Tensor | None) -> Tensor | None:
        w, V = ctx.saved_tensors
        if dw is None and dv is None:
            return None
        inner = None if dw is None else diag_embed(dw)
        if dv is not None:
            whole = V.mH @ dv
            lengths = whole.diagonal(0, -2, -1).real().unsqueeze(-2)._cast(V.dtype)  # which stay 1
            gaps = (w.unsqueeze(-2) - w.unsqueeze(-1)).conj() + identity(w.shape[-1], V)
            off = (whole - V.mH @ (V * lengths)) / gaps
            off = off - diag_embed(off.diagonal(0, -2, -1))
            inner = off if inner is None else inner + off
        dA = solve(V.mH, inner @ V.mH)
        return dA.real() if ctx.real else dA


def eig(A: Tensor) -> Eig:
    """Eigenvalues and eigenvectors of square matrices, complex and in no order.

    The gradient of eigenvectors is infinite where eigenvalues are equal, and depends on their phases.
    """
    check_matrix("eig", A, square=True)
    return Eig(*_Eig.apply(A))


def eigvals(A: Tensor) -> Tensor:
    """Eigenvalues of square matrices, complex and in no order."""
    return eig(A).eigenvalues


class SVD(NamedTuple):
    """``U @ diag(S) @ Vh``, singular values descending."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class _SVD(Function):
    """Townsend (2016), "Differentiating the singular value decomposition"."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        u, s, vh = np.linalg.svd(A.numpy(), full_matrices=False)
        results = tensor_of(u, A), tensor(s.astype(A.dtype.to_real().numpy, copy=False)), tensor_of(vh, A)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, du: Tensor | None, ds: Tensor | None, dvh: Tensor | None) -> Tensor | None:
        U, S, Vh = ctx.saved_tensors
        k, row, column = int(S.shape[-1]), S.unsqueeze(-2)._cast(U.dtype), S.unsqueeze(-1)._cast(U.dtype)
        gaps = row * row - column * column + identity(k, U)
        inner = [] if ds is None else [diag_embed(ds._cast(U.dtype))]
        outside = []
        if du is not None:
            turn = _skew(U.mH @ du)
            inner.append(_off_diagonal(turn) / gaps * row)
            if U.is_complex():  # phases of U and Vh that turn together (Wan & Zhang 2019)
                inner.append(diag_embed(turn.diagonal(0, -2, -1) / (2 * S)._cast(U.dtype)))
            if int(U.shape[-2]) > k:
                outside.append((du - U @ (U.mH @ du)) / row @ Vh)
        if dvh is not None:
            inner.append(column * (_off_diagonal(_skew(Vh @ dvh.mH)) / gaps))
            if int(Vh.shape[-1]) > k:
                outside.append(U @ ((dvh - (dvh @ Vh.mH) @ Vh) / column))
        if inner:
            outside.append(U @ _added(inner) @ Vh)
        return _added(outside) if outside else None


def _added(terms: Sequence[Tensor]) -> Tensor:
    return reduce(operator.add, terms)


def _off_diagonal(x: Tensor) -> Tensor:
    """Without the diagonal, which a difference of real matrices has none of."""
    return x - diag_embed(x.diagonal(0, -2, -1)) if x.is_complex() else x


def _skew(x: Tensor) -> Tensor:
    return x - x.mH


def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """Singular values and vectors, ``(U * S) @ Vh = A``.

    Parameters
    ----------
    A : (..., m, n)
    full_matrices : bool
        U of shape (m, m) and Vh of shape (n, n); only the first min(m, n) vectors of each have a gradient.

    The gradient of vectors is infinite where singular values are equal or 0 and depends on their signs (phases).
    """
    check_matrix("svd", A)
    U, S, Vh = _SVD.apply(A)
    m, n = map(int, A.shape[-2:])
    if full_matrices and m != n:
        u, _, vh = np.linalg.svd(A.detach().numpy())
        k = min(m, n)
        if m > k:
            U = cat([U, tensor_of(u[..., k:], A)], -1)
        else:
            Vh = cat([Vh, tensor_of(vh[..., k:, :], A)], -2)
    return SVD(U, S, Vh)


def svdvals(A: Tensor) -> Tensor:
    """Singular values, descending."""
    return svd(A, full_matrices=False).S
