"""Powers and exponentials of matrices."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from lezero.function import Function
from lezero.linalg.matrices import check_matrix, tensor_of
from lezero.linalg.solutions import inv
from lezero.numerics import matrix_power as _positive_power
from lezero.ops.rules import narrow, widen
from lezero.tensor import Tensor, cat

_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0,
    670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip


def _exponential(A: np.ndarray) -> np.ndarray:
    """Scaling and squaring with the Padé approximant of degree 13 (Higham 2005, "The scaling and squaring method revisited")."""
    if not A.size:
        return A
    largest = np.abs(A).sum(-2).max()
    halvings = max(0, int(np.ceil(np.log2(largest / 5.371920351148152)))) if 5.4 < largest < inf else 0
    A = A / 2.0**halvings
    unit, b = np.broadcast_to(np.eye(A.shape[-1], dtype=A.dtype), A.shape), _PADE
    A2 = A @ A
    A4 = A2 @ A2
    A6 = A4 @ A2
    odd = A @ (A6 @ (b[13] * A6 + b[11] * A4 + b[9] * A2) + b[7] * A6 + b[5] * A4 + b[3] * A2 + b[1] * unit)
    even = A6 @ (b[12] * A6 + b[10] * A4 + b[8] * A2) + b[6] * A6 + b[4] * A4 + b[2] * A2 + b[0] * unit
    y = np.linalg.solve(even - odd, even + odd)
    for _ in range(halvings):
        y = y @ y
    return y


class _Exponential(Function):
    """Al-Mohy & Higham (2009), "Computing the Fréchet derivative of the matrix exponential": a block of a larger exponential."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        ctx.save_for_backward(A)
        wide = np.complex128 if A.is_complex() else np.float64
        return tensor_of(_exponential(A.numpy().astype(wide)), A)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (A,) = ctx.saved_tensors
        n, turned = int(A.shape[-1]), A.mH
        above, below = cat([turned, dy], -1), cat([turned * 0, turned], -1)
        return _Exponential.apply(cat([above, below], -2)).narrow(-2, 0, n).narrow(-1, n, n)


def matrix_exp(A: Tensor) -> Tensor:
    """Exponentials of square matrices, computed in double precision."""
    x = widen(A)
    check_matrix("matrix_exp", x, square=True)
    return narrow(_Exponential.apply(x), A.dtype)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """Square matrices multiplied by themselves, `n` factors; inverses for negative `n`."""
    return _positive_power(inv(A), -n) if n < 0 else _positive_power(A, n)
