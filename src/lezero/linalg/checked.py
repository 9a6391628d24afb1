"""Decompositions and solutions that say which matrices they fail for, rather than raise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from lezero.linalg.elimination import eliminated, lu_factor
from lezero.linalg.matrices import check_matrix, identity, in_a_row
from lezero.linalg.solutions import inv, solve
from lezero.linalg.triangular import cholesky
from lezero.rearranged import _values
from lezero.tensor import Tensor, tensor, where


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


class CholeskyAndInfo(NamedTuple):
    """The factor, and the order of the first leading minor that is not positive (int32; 0: none)."""

    L: Tensor
    info: Tensor


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyAndInfo:
    """As ``cholesky``; of matrices that are not positive definite the factor is NaN (a LinAlgError where `check_errors`)."""
    check_matrix("cholesky_ex", A, square=True)
    n = int(A.shape[-1])
    a = _values("linalg.cholesky_ex", A)
    info = np.array([_first_failure(x) for x in in_a_row(a)], np.int32).reshape(a.shape[:-2])
    _refuse("cholesky_ex", info, check_errors)
    wrong = tensor(info != 0).unsqueeze(-1).unsqueeze(-1)
    L = cholesky(where(wrong, identity(n, A), A)._cast(A.dtype), upper=upper)
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
    check_matrix(name, A, square=True)
    n = int(A.shape[-1])
    triangles = eliminated(in_a_row(_values(f"linalg.{name}", A)))[0]
    none = np.diagonal(triangles, 0, -2, -1) == 0
    info = np.where(none.any(-1), none.argmax(-1) + 1, 0).astype(np.int32) if n else np.zeros(len(none), np.int32)
    info = info.reshape(tuple(map(int, A.shape[:-2])))
    _refuse(name, info, check_errors)
    wrong = tensor(info != 0).unsqueeze(-1).unsqueeze(-1)
    return (where(wrong, identity(n, A), A)._cast(A.dtype) if info.any() else A), tensor(info)


def _unless(info: Tensor, x: Tensor, vectors: bool = False) -> Tensor:
    if not info.numpy().any():
        return x
    wrong = (info != 0).unsqueeze(-1)
    return where(wrong if vectors else wrong.unsqueeze(-1), float("nan"), x)._cast(x.dtype)
