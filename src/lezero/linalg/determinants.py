"""Determinants and their logarithms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lezero.function import Function
from lezero.linalg.matrices import check_matrix, tensor_of
from lezero.linalg.solutions import inv
from lezero.tensor import Tensor, tensor, where


class _Cofactors(Function):
    """The conjugated gradient of the determinant, by way of singular values, so that singular matrices have one, too."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        u, s, vh = np.linalg.svd(A.numpy())
        n = s.shape[-1]
        others = np.where(np.eye(n, dtype=bool), 1, np.expand_dims(s, -2)).prod(-1)
        turn = np.linalg.det(u) * np.linalg.det(vh)
        y = tensor_of((turn[..., None, None] * (u * others[..., None, :]) @ vh) if n else np.zeros_like(A.numpy()), A)
        ctx.save_for_backward(A, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        A, C = ctx.saved_tensors
        whole = (dy.conj() * C).sum((-2, -1), keepdim=True) if A.is_complex() else (dy * C).sum((-2, -1), keepdim=True)
        return (whole * C - C @ dy.mH @ C) / det(A).reshape((*A.shape[:-2], 1, 1))


class _Determinant(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        ctx.save_for_backward(A)
        return tensor_of(np.asarray(np.linalg.det(A.numpy())), A)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (A,) = ctx.saved_tensors
        return dy.unsqueeze(-1).unsqueeze(-1) * _Cofactors.apply(A)


def det(A: Tensor) -> Tensor:
    """Determinants.

    The gradient is that of cofactors, for singular matrices too; gradients of gradients and of complex matrices are for
    regular ones.
    """
    check_matrix("det", A, square=True)
    if A.is_complex():
        sign, log = slogdet(A)
        return sign * log.exp()
    return _Determinant.apply(A)


class SignLogDet(NamedTuple):
    """Sign (or unit complex number) and logarithm of the absolute value of a determinant."""

    sign: Tensor
    logabsdet: Tensor


class _SignLogDet(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        sign, log = np.linalg.slogdet(A.numpy())
        results = tensor_of(np.asarray(sign), A), tensor(np.asarray(log, A.dtype.to_real().numpy))
        ctx.save_for_backward(A, results[0])
        if not A.is_complex():
            ctx.mark_non_differentiable(results[0])
        return results

    @staticmethod
    def backward(ctx: Any, dsign: Tensor | None, dlog: Tensor | None) -> Tensor | None:
        A, sign = ctx.saved_tensors
        whole = None if dlog is None else dlog._cast(A.dtype)
        if dsign is not None:  # sign = exp(i * angle), and the angle is the imaginary part of the trace of inv(A) dA
            turned = (dsign.conj() * sign).imag()._cast(A.dtype) * -1j
            whole = turned if whole is None else whole + turned
        return None if whole is None else whole.unsqueeze(-1).unsqueeze(-1) * inv(A).mH


def slogdet(A: Tensor) -> SignLogDet:
    """(sign, logarithm of the absolute value) of determinants; (0, -inf) where singular."""
    check_matrix("slogdet", A, square=True)
    return SignLogDet(*_SignLogDet.apply(A))


def logdet(input: Tensor) -> Tensor:
    """Logarithms of determinants; NaN where negative."""
    sign, log = slogdet(input)
    return where(sign < 0, float("nan"), log)._cast(log.dtype)
