"""Inverses, and solutions of linear equations."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lezero.function import Function
from lezero.linalg.matrices import check_matrix, identity, tensor_of
from lezero.ops.base import broadcast_shapes
from lezero.tensor import Tensor


class _Inverse(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        y = tensor_of(np.linalg.inv(A.numpy()), A)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return -(y.mH @ dy @ y.mH)


def inv(A: Tensor) -> Tensor:
    """The inverses of square matrices; LinAlgError where one is singular."""
    check_matrix("inv", A, square=True)
    return _Inverse.apply(A)


class Solution(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor) -> Tensor:
        x = tensor_of(np.linalg.solve(A.numpy(), B.numpy()), B)
        ctx.save_for_backward(A, x)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, Tensor]:
        A, x = ctx.saved_tensors
        db = Solution.apply(A.mH, dx)
        return -(db @ x.mH), db


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with ``A @ X = B`` (or ``X @ A = B``).

    Parameters
    ----------
    A : (..., n, n)
    B : (..., n, k), or (..., n) with the batches of A, or (n,); LinAlgError where a matrix of A is singular
    """
    check_matrix("solve", A, square=True)
    if B.dtype is not A.dtype:
        raise TypeError(f"linalg.solve: A and B have one dtype, got {A.dtype.name} and {B.dtype.name}")
    if B.ndim == 1 or (A.ndim - 1 == B.ndim and tuple(B.shape) == tuple(A.shape[:-1])):
        return _solved(A, B.unsqueeze(-1)).squeeze(-1)
    return _solved(A, B) if left else _solved(A.mT, B.mT).mT


def _solved(A: Tensor, B: Tensor) -> Tensor:
    batch = broadcast_shapes("linalg.solve", A.shape[:-2], B.shape[:-2])
    return Solution.apply(A.expand(*batch, *A.shape[-2:]), B.expand(*batch, *B.shape[-2:]))


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """As ``solve``, with the other triangle of A taken for zeros, and its diagonal for ones where `unitriangular`."""
    check_matrix("solve_triangular", A, square=True)
    check_matrix("solve_triangular", B)
    triangle = A.triu(int(unitriangular)) if upper else A.tril(-int(unitriangular))
    return solve(triangle + identity(A.shape[-1], A) if unitriangular else triangle, B, left=left)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse with regard to ``tensordot(A, ·, ind)``."""
    rows = prod(map(int, A.shape[:ind]))
    return inv(A.reshape(rows, -1)).reshape((*A.shape[ind:], *A.shape[:ind]))


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
