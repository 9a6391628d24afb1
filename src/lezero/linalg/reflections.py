"""Householder's reflections: the QR decomposition as LAPACK leaves it, and products with its Q."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lezero.linalg.matrices import check_matrix, tensor_of
from lezero.rearranged import _values
from lezero.tensor import Tensor


class Reflections(NamedTuple):
    """An upper triangle with reflections' vectors below it, and their factors."""

    a: Tensor
    tau: Tensor


def geqrf(input: Tensor) -> Reflections:
    """The QR decomposition as LAPACK leaves it: R, and below it the vectors of the reflections that Q is a product of."""
    check_matrix("geqrf", input)
    a = _values("geqrf", input)
    h, tau = np.linalg.qr(a, "raw")
    return Reflections(tensor_of(np.swapaxes(h, -1, -2), input), tensor_of(tau, input))


def householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of reflections whose vectors lie below the diagonal of `input` (..., m, n), m >= n.

    tau : (..., k), k <= n, their factors
    """
    check_matrix("householder_product", input)
    m, n, k = int(input.shape[-2]), int(input.shape[-1]), int(tau.shape[-1])
    if m < n or n < k:
        raise ValueError(
            f"linalg.householder_product: at least as many rows as columns, and columns as factors, are needed; got "
            f"{(m, n)} and {k}"
        )
    return _reflected(input, tau, tensor_of(np.eye(m, n), input).expand(*input.shape[:-2], m, n), range(k - 1, -1, -1))


def _reflected(vectors: Tensor, tau: Tensor, x: Tensor, order: Any, conjugate: bool = False) -> Tensor:
    """Reflections (numbered by column) applied to x (..., m, ·), one after the other."""
    m, k = int(vectors.shape[-2]), int(tau.shape[-1])
    below = vectors.narrow(-1, 0, k).tril(-1) + tensor_of(np.eye(m, k), vectors)
    for j in order:
        v, t = below.narrow(-1, j, 1), tau.narrow(-1, j, 1).unsqueeze(-1)
        t = t.conj() if conjugate and t.is_complex() else t
        x = x - t * (v @ (v.mH @ x))
    return x


def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """``Q @ other`` (``other @ Q`` unless `left`), Q (or its conjugate transpose) being the product of ``geqrf``'s reflections."""
    check_matrix("ormqr", input)
    if not left:
        return ormqr(input, tau, other.mH, True, not transpose).mH
    k = int(tau.shape[-1])
    return _reflected(input, tau, other, range(k) if transpose else range(k - 1, -1, -1), transpose)
