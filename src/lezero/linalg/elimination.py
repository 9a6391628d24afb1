"""The LU decomposition, computed by columns here (NumPy has none), and what is solved with it."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from lezero.function import Function
from lezero.linalg.matrices import check_matrix, in_a_row, tensor_of
from lezero.linalg.solutions import solve_triangular
from lezero.rearranged import _values
from lezero.tensor import Tensor, cat, tensor, zeros


class LU(NamedTuple):
    """``P @ L @ U``: a permutation, unit lower triangular columns, an upper triangle."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactors(NamedTuple):
    """Both triangles in one matrix, and the rows that were exchanged, counted from 1 (int32)."""

    LU: Tensor
    pivots: Tensor


def eliminated(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    check_matrix(name, A)
    m, n = map(int, A.shape[-2:])
    a = _values(f"linalg.{name}", A)
    pivots = eliminated(in_a_row(a))[1].reshape(*a.shape[:-2], min(m, n))
    P = _permutation(pivots, m, A)
    return P.mT @ A, P, tensor(pivots)


def _permutation(pivots: np.ndarray, rows: int, like: Tensor) -> Tensor:
    order = _order(pivots, rows)
    return tensor_of(np.swapaxes(np.eye(rows)[order], -1, -2), like)


class _Triangles(Function):
    """L and U of square matrices whose rows need no exchange; both gradients in one triangle each."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        a = A.numpy()
        n = a.shape[-1]
        found: Any = in_a_row(a).copy()
        for j in range(n):
            pivot = found[:, j, j]
            found[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)[:, None]
            found[:, j + 1 :, j + 1 :] -= found[:, j + 1 :, j, None] * found[:, j, None, j + 1 :]
        found = found.reshape(a.shape)
        L, U = tensor_of(np.tril(found, -1) + np.eye(n), A), tensor_of(np.triu(found), A)
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


def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> LU:
    """The permutation and both triangles of what ``lu_factor`` gives; empty where `unpack_data` or `unpack_pivots` is False."""
    m, n = map(int, LU_data.shape[-2:])
    k, nothing = min(m, n), zeros(0, dtype=LU_data.dtype)
    P = _permutation(_values("lu_unpack", LU_pivots), m, LU_data) if unpack_pivots else nothing
    if not unpack_data:
        return LU(P, nothing, nothing)
    below = LU_data.narrow(-1, 0, k).tril(-1)
    ones = tensor_of(np.eye(m, k), LU_data)
    return LU(P, below + ones, LU_data.narrow(-2, 0, k).triu())


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with ``A @ X = B`` (``X @ A = B`` unless `left`), of A's ``lu_factor``; of A's conjugate transpose where `adjoint`."""
    check_matrix("lu_solve", LU, square=True)
    if not left:
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    P, L, U = lu_unpack(LU, pivots)
    if adjoint:
        y = solve_triangular(U.mH, B, upper=False)
        return P @ solve_triangular(L.mH, y, upper=True, unitriangular=True)
    y = solve_triangular(L, P.mT @ B, upper=False, unitriangular=True)
    return solve_triangular(U, y, upper=True)
