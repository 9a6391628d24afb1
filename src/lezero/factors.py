"""Further decompositions of linear algebra: LU, Householder's reflections, eigenvectors of general matrices (see ``linalg``).

What NumPy's LAPACK has is computed by it when called, the LU decomposition by columns here; gradients are recorded operations.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from lezero.function import Function
from lezero.linalg import _eye, _made, _matrix, cholesky, inv, solve, solve_triangular
from lezero.rearranged import _values, diag_embed
from lezero.tensor import Tensor, cat, tensor, where, zeros

# -- LU ---------------------------------------------------------------------------------------------------------------


class LU(NamedTuple):
    """``P @ L @ U``: a permutation, unit lower triangular columns, an upper triangle."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactors(NamedTuple):
    """Both triangles in one matrix, and the rows that were exchanged, counted from 1 (int32)."""

    LU: Tensor
    pivots: Tensor


def _in_a_row(a: np.ndarray) -> np.ndarray:
    """(batch, m, n), where there may be none of any."""
    return a.reshape(prod(a.shape[:-2]), *a.shape[-2:])


def _eliminated(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(both triangles, (..., k) rows exchanged, from 1): Gauss's elimination with partial pivoting, of matrices (batch, m, n)."""
    a = a.copy()
    batch, m, n = a.shape
    k, every = min(m, n), np.arange(batch)
    pivots = np.zeros((batch, k), np.int32)
    for j in range(k):
        column = a[:, j:, j]  # LAPACK's size of complex numbers, too
        p = (np.abs(column.real) + np.abs(column.imag)).argmax(1) + j
        pivots[:, j] = p + 1
        a[every, p], a[every, j] = a[every, j].copy(), a[every, p].copy()
        pivot = a[:, j, j]
        a[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)[:, None]
        a[:, j + 1 :, j + 1 :] -= a[:, j + 1 :, j, None] * a[:, j, None, j + 1 :]
    return a, pivots


def _order(pivots: np.ndarray, rows: int) -> np.ndarray:
    """(..., rows): where each row of ``L @ U`` was."""
    order = np.broadcast_to(np.arange(rows), (*pivots.shape[:-1], rows)).copy()
    flat, exchanged = (
        order.reshape(prod(order.shape[:-1]), rows),
        pivots.reshape(prod(pivots.shape[:-1]), pivots.shape[-1]),
    )
    every = np.arange(len(flat))
    for j in range(exchanged.shape[1]):
        p = exchanged[:, j] - 1
        flat[every, p], flat[every, j] = flat[every, j].copy(), flat[every, p].copy()
    return flat.reshape(order.shape)


def _exchanged(name: str, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(A with its rows exchanged, P, pivots), by values."""
    _matrix(name, A)
    m, n = map(int, A.shape[-2:])
    a = _values(f"linalg.{name}", A)
    pivots = _eliminated(_in_a_row(a))[1].reshape(*a.shape[:-2], min(m, n))
    P = _permutation(pivots, m, A)
    return P.mT @ A, P, tensor(pivots)


def _permutation(pivots: np.ndarray, rows: int, like: Tensor) -> Tensor:
    order = _order(pivots, rows)
    return _made(np.swapaxes(np.eye(rows)[order], -1, -2), like)


class _Triangles(Function):
    """L and U of square matrices whose rows need no exchange; both gradients in one triangle each."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        a = A.numpy()
        n = a.shape[-1]
        found: Any = _in_a_row(a).copy()
        for j in range(n):
            pivot = found[:, j, j]
            found[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)[:, None]
            found[:, j + 1 :, j + 1 :] -= found[:, j + 1 :, j, None] * found[:, j, None, j + 1 :]
        found = found.reshape(a.shape)
        L, U = _made(np.tril(found, -1) + np.eye(n), A), _made(np.triu(found), A)
        ctx.save_for_backward(L, U)
        return L, U

    @staticmethod
    def backward(ctx: Any, dl: Tensor, du: Tensor) -> Tensor:
        L, U = ctx.saved_tensors
        inner = (L.mH @ dl).tril(-1) + (du @ U.mH).triu()
        left = solve_triangular(L.mH, inner, upper=True, unitriangular=True)
        return solve_triangular(U.mH, left, upper=False, left=False)


def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """The LU decomposition of matrices (..., m, n), rows exchanged for the largest pivots; there is none without here.

    The gradient is for matrices of full rank.
    """
    if not pivot:
        raise ValueError("linalg.lu: pivot=False is not there")
    rows, P, _ = _exchanged("lu", A)
    return LU(P, *_triangles(rows))


def _triangles(rows: Tensor) -> tuple[Tensor, Tensor]:
    m, n = map(int, rows.shape[-2:])
    k = min(m, n)
    L, U = _Triangles.apply(rows.narrow(-2, 0, k).narrow(-1, 0, k))
    if m > n:
        return cat([L, solve_triangular(U, rows.narrow(-2, n, m - n), upper=True, left=False)], -2), U
    if n > m:
        right = solve_triangular(L, rows.narrow(-1, m, n - m), upper=False, unitriangular=True)
        return L, cat([U, right], -1)
    return L, U


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactors:
    """As ``lu``, both triangles in one matrix, with the rows exchanged: what ``lu_solve`` takes."""
    if not pivot:
        raise ValueError("linalg.lu_factor: pivot=False is not there")
    rows, _, pivots = _exchanged("lu_factor", A)
    L, U = _triangles(rows)
    return LUFactors(_packed(L, U), pivots)


def _packed(L: Tensor, U: Tensor) -> Tensor:
    m, n = int(L.shape[-2]), int(U.shape[-1])
    below, above = L.tril(-1), U.triu()
    if m > n:
        above = cat([above, zeros(*U.shape[:-2], m - n, n, dtype=U.dtype)], -2)
    if n > m:
        below = cat([below, zeros(*L.shape[:-2], m, n - m, dtype=L.dtype)], -1)
    return below + above


class LUFactorsAndInfo(NamedTuple):
    """As ``LUFactors``, with the place of the first pivot that is 0, from 1 (int32; 0: none)."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorsAndInfo:
    """As ``lu_factor``, saying whether a pivot is 0 (a LinAlgError where `check_errors`)."""
    found = lu_factor(A, pivot=pivot)
    none = _values("linalg.lu_factor_ex", found.LU.diagonal(0, -2, -1)) == 0
    info = np.where(none.any(-1), none.argmax(-1) + 1, 0).astype(np.int32)
    _refuse("lu_factor_ex", info, check_errors)
    return LUFactorsAndInfo(*found, tensor(info))


def _refuse(name: str, info: np.ndarray, check_errors: bool) -> None:
    if check_errors and info.any():
        raise LinAlgError(f"linalg.{name}: the decomposition fails at place {int(info.max())} of a matrix")


def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> LU:
    """The permutation and both triangles of what ``lu_factor`` gives; empty where not asked for."""
    m, n = map(int, LU_data.shape[-2:])
    k, nothing = min(m, n), zeros(0, dtype=LU_data.dtype)
    P = _permutation(_values("lu_unpack", LU_pivots), m, LU_data) if unpack_pivots else nothing
    if not unpack_data:
        return LU(P, nothing, nothing)
    below = LU_data.narrow(-1, 0, k).tril(-1)
    ones = _made(np.eye(m, k), LU_data)
    return LU(P, below + ones, LU_data.narrow(-2, 0, k).triu())


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with ``A @ X = B`` (``X @ A = B`` unless `left`), of A's ``lu_factor``; of A's conjugate transpose where `adjoint`."""
    _matrix("lu_solve", LU, square=True)
    if not left:
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    P, L, U = lu_unpack(LU, pivots)
    if adjoint:
        y = solve_triangular(U.mH, B, upper=False)
        return P @ solve_triangular(L.mH, y, upper=True, unitriangular=True)
    y = solve_triangular(L, P.mT @ B, upper=False, unitriangular=True)
    return solve_triangular(U, y, upper=True)


# -- Householder's reflections ----------------------------------------------------------------------------------------


class Reflections(NamedTuple):
    """An upper triangle with reflections' vectors below it, and their factors."""

    a: Tensor
    tau: Tensor


def geqrf(input: Tensor) -> Reflections:
    """The QR decomposition as LAPACK leaves it: R, and below it the vectors of the reflections that Q is a product of."""
    _matrix("geqrf", input)
    a = _values("geqrf", input)
    h, tau = np.linalg.qr(a, "raw")
    return Reflections(_made(np.swapaxes(h, -1, -2), input), _made(tau, input))


def householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of reflections whose vectors lie below the diagonal of `input` (..., m, n), m >= n.

    tau : (..., k), k <= n, their factors
    """
    _matrix("householder_product", input)
    m, n, k = int(input.shape[-2]), int(input.shape[-1]), int(tau.shape[-1])
    if m < n or n < k:
        raise ValueError(
            f"linalg.householder_product: at least as many rows as columns, and columns as factors, are needed; got "
            f"{(m, n)} and {k}"
        )
    return _reflected(input, tau, _made(np.eye(m, n), input).expand(*input.shape[:-2], m, n), range(k - 1, -1, -1))


def _reflected(vectors: Tensor, tau: Tensor, x: Tensor, order: Any, conjugate: bool = False) -> Tensor:
    """Reflections (numbered by column) applied to x (..., m, ·), one after the other."""
    m, k = int(vectors.shape[-2]), int(tau.shape[-1])
    below = vectors.narrow(-1, 0, k).tril(-1) + _made(np.eye(m, k), vectors)
    for j in order:
        v, t = below.narrow(-1, j, 1), tau.narrow(-1, j, 1).unsqueeze(-1)
        t = t.conj() if conjugate and t.is_complex() else t
        x = x - t * (v @ (v.mH @ x))
    return x


def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """``Q @ other`` (``other @ Q`` unless `left`), Q (or its conjugate transpose) being the product of ``geqrf``'s reflections."""
    _matrix("ormqr", input)
    if not left:
        return ormqr(input, tau, other.mH, True, not transpose).mH
    k = int(tau.shape[-1])
    return _reflected(input, tau, other, range(k) if transpose else range(k - 1, -1, -1), transpose)


# -- eigenvectors -----------------------------------------------------------------------------------------------------


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
            gaps = (w.unsqueeze(-2) - w.unsqueeze(-1)).conj() + _eye(w.shape[-1], V)
            off = (whole - V.mH @ (V * lengths)) / gaps
            off = off - diag_embed(off.diagonal(0, -2, -1))
            inner = off if inner is None else inner + off
        dA = solve(V.mH, inner @ V.mH)
        return dA.real() if ctx.real else dA


def eig(A: Tensor) -> Eig:
    """Eigenvalues and eigenvectors of square matrices, complex and in no order.

    The gradient of eigenvectors is infinite where eigenvalues are equal, and depends on their phases.
    """
    _matrix("eig", A, square=True)
    return Eig(*_Eig.apply(A))


def eigvals(A: Tensor) -> Tensor:
    """Eigenvalues of square matrices, complex and in no order."""
    return eig(A).eigenvalues


# -- results with what went wrong -------------------------------------------------------------------------------------


class CholeskyAndInfo(NamedTuple):
    """The factor, and the order of the first leading minor that is not positive (int32; 0: none)."""

    L: Tensor
    info: Tensor


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyAndInfo:
    """As ``cholesky``; of matrices that are not positive definite the factor is NaN (a LinAlgError where `check_errors`)."""
    _matrix("cholesky_ex", A, square=True)
    n = int(A.shape[-1])
    a = _values("linalg.cholesky_ex", A)
    info = np.array([_first_failure(x) for x in _in_a_row(a)], np.int32).reshape(a.shape[:-2])
    _refuse("cholesky_ex", info, check_errors)
    wrong = tensor(info != 0).unsqueeze(-1).unsqueeze(-1)
    L = cholesky(where(wrong, _eye(n, A), A)._cast(A.dtype), upper=upper)
    return CholeskyAndInfo(where(wrong, float("nan"), L)._cast(A.dtype) if info.any() else L, tensor(info))


def _first_failure(a: np.ndarray) -> int:
    for k in range(1, len(a) + 1):
        try:
            np.linalg.cholesky(a[:k, :k])
        except LinAlgError:
            return k
    return 0


class InverseAndInfo(NamedTuple):
    """The inverse, and the place of the first pivot that is 0 (int32; 0: none)."""

    inverse: Tensor
    info: Tensor


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InverseAndInfo:
    """As ``inv``; the inverse of singular matrices is NaN (a LinAlgError where `check_errors`)."""
    regular, info = _regular("inv_ex", A, check_errors)
    return InverseAndInfo(_unless(info, inv(regular)), info)


class SolutionAndInfo(NamedTuple):
    """The solution, and the place of the first pivot that is 0 (int32; 0: none)."""

    result: Tensor
    info: Tensor


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> SolutionAndInfo:
    """As ``solve``; the solution with singular matrices is NaN (a LinAlgError where `check_errors`)."""
    regular, info = _regular("solve_ex", A, check_errors)
    x = solve(regular, B, left=left)
    return SolutionAndInfo(_unless(info, x, vectors=x.ndim < A.ndim), info)


def _regular(name: str, A: Tensor, check_errors: bool) -> tuple[Tensor, Tensor]:
    """A with the identity in place of singular matrices, and which those are."""
    _matrix(name, A, square=True)
    n = int(A.shape[-1])
    triangles = _eliminated(_in_a_row(_values(f"linalg.{name}", A)))[0]
    none = np.diagonal(triangles, 0, -2, -1) == 0
    info = np.where(none.any(-1), none.argmax(-1) + 1, 0).astype(np.int32) if n else np.zeros(len(none), np.int32)
    info = info.reshape(tuple(map(int, A.shape[:-2])))
    _refuse(name, info, check_errors)
    wrong = tensor(info != 0).unsqueeze(-1).unsqueeze(-1)
    return (where(wrong, _eye(n, A), A)._cast(A.dtype) if info.any() else A), tensor(info)


def _unless(info: Tensor, x: Tensor, vectors: bool = False) -> Tensor:
    if not info.numpy().any():
        return x
    wrong = (info != 0).unsqueeze(-1)
    return where(wrong if vectors else wrong.unsqueeze(-1), float("nan"), x)._cast(x.dtype)


def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """X with ``tensordot(A, X, X.ndim) = B``; `dims` of A are moved to its end first."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    shape = tuple(A.shape[B.ndim :])
    n = int(B.numel())
    if int(A.numel()) != n * n:
        raise ValueError(
            f"linalg.tensorsolve: as many unknowns as equations are needed, got shapes {tuple(map(int, A.shape))} and "
            f"{tuple(map(int, B.shape))}"
        )
    return solve(A.reshape(n, n), B.reshape(n)).reshape(shape)
