"""Linear algebra: decompositions, solutions, norms; names, arguments and results follow ``torch.linalg``.

Decompositions are computed by LAPACK, through NumPy, when they are called: the value of the operand is read, so what has been
recorded runs, and ``lz.jit`` does not capture them.  Their gradients are recorded operations like any other, and can be
differentiated again.  Matrices are the last two dimensions, others are batches; dtypes are float32, float64, complex64 and
complex128.

Formulas of gradients: M. B. Giles, "An extended collection of matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008), unless a function names another source.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from lezero.composed import cross as _cross
from lezero.composed import outer, tensordot
from lezero.function import Function
from lezero.graph import dtype as dt
from lezero.misspelt import suggest_names
from lezero.numerics import chain_matmul
from lezero.numerics import matrix_power as _positive_power
from lezero.ops.base import broadcast_shapes, normalize_axis
from lezero.ops.rules import narrow, widen
from lezero.rearranged import diag_embed
from lezero.rearranged import diagonal as _diagonal
from lezero.tensor import Tensor, cat, eye, full, tensor, where, zeros

_DTYPES = (dt.float32, dt.float64, dt.complex64, dt.complex128)


def _matrix(name: str, A: Tensor, square: bool = False) -> None:
    """Raise for what is no matrix, or none that LAPACK takes."""
    if A.dtype not in _DTYPES:
        raise TypeError(f"linalg.{name}: float32, float64, complex64 or complex128 is needed, got {A.dtype.name}")
    shape = tuple(map(int, A.shape))
    if len(shape) < 2:
        raise ValueError(f"linalg.{name}: matrices have two dimensions or more, got shape {shape}")
    if square and shape[-1] != shape[-2]:
        raise ValueError(f"linalg.{name}: square matrices are needed, got shape {shape}")


def _made(array: np.ndarray, like: Tensor) -> Tensor:
    return tensor(array.astype(like.dtype.numpy, copy=False))


def _eye(n: int, like: Tensor) -> Tensor:
    return eye(int(n), dtype=like.dtype)


# -- inverses and solutions -------------------------------------------------------------------------------------------


class _Inverse(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        y = _made(np.linalg.inv(A.numpy()), A)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return -(y.mH @ dy @ y.mH)


def inv(A: Tensor) -> Tensor:
    """The inverses of square matrices; LinAlgError where one is singular."""
    _matrix("inv", A, square=True)
    return _Inverse.apply(A)


class _Solution(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor) -> Tensor:
        x = _made(np.linalg.solve(A.numpy(), B.numpy()), B)
        ctx.save_for_backward(A, x)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, Tensor]:
        A, x = ctx.saved_tensors
        db = _Solution.apply(A.mH, dx)
        return -(db @ x.mH), db


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with ``A @ X = B`` (or ``X @ A = B``).

    Parameters
    ----------
    A : (..., n, n)
    B : (..., n, k), or (..., n) with the batches of A, or (n,); LinAlgError where a matrix of A is singular
    """
    _matrix("solve", A, square=True)
    if B.dtype is not A.dtype:
        raise TypeError(f"linalg.solve: A and B have one dtype, got {A.dtype.name} and {B.dtype.name}")
    if B.ndim == 1 or (A.ndim - 1 == B.ndim and tuple(B.shape) == tuple(A.shape[:-1])):
        return _solved(A, B.unsqueeze(-1)).squeeze(-1)
    return _solved(A, B) if left else _solved(A.mT, B.mT).mT


def _solved(A: Tensor, B: Tensor) -> Tensor:
    batch = broadcast_shapes("linalg.solve", A.shape[:-2], B.shape[:-2])
    return _Solution.apply(A.expand(*batch, *A.shape[-2:]), B.expand(*batch, *B.shape[-2:]))


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """As ``solve``, with the other triangle of A taken for zeros, and its diagonal for ones where `unitriangular`."""
    _matrix("solve_triangular", A, square=True)
    _matrix("solve_triangular", B)
    triangle = A.triu(int(unitriangular)) if upper else A.tril(-int(unitriangular))
    return solve(triangle + _eye(A.shape[-1], A) if unitriangular else triangle, B, left=left)


class _PseudoInverse(Function):
    """Golub & Pereyra (1973), "The differentiation of pseudo-inverses"."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, rtol: float, hermitian: bool) -> Tensor:
        y = _made(np.linalg.pinv(A.numpy(), rtol, hermitian), A)
        ctx.save_for_backward(A, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        A, P = ctx.saved_tensors
        G, m, n = dy.mH, A.shape[-2], A.shape[-1]
        rows = (_eye(m, A) - A @ P) @ G @ P @ P.mH
        columns = P.mH @ P @ G @ (_eye(n, A) - P @ A)
        return rows + columns - P.mH @ dy @ P.mH, None, None


def pinv(A: Tensor, *, rtol: float | Tensor | None = None, hermitian: bool = False) -> Tensor:
    """Moore and Penrose's pseudo-inverses, singular values up to `rtol` of the largest taken for 0.

    Parameters
    ----------
    A : (..., m, n)
    rtol : float or (...), the dtype's epsilon times the larger extent by default
    """
    _matrix("pinv", A)
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
    _matrix("lstsq", A)
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


# -- determinants -----------------------------------------------------------------------------------------------------


class _Cofactors(Function):
    """The conjugated gradient of the determinant, by way of singular values, so that singular matrices have one, too."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        u, s, vh = np.linalg.svd(A.numpy())
        n = s.shape[-1]
        others = np.where(np.eye(n, dtype=bool), 1, np.expand_dims(s, -2)).prod(-1)
        turn = np.linalg.det(u) * np.linalg.det(vh)
        y = _made((turn[..., None, None] * (u * others[..., None, :]) @ vh) if n else np.zeros_like(A.numpy()), A)
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
        return _made(np.asarray(np.linalg.det(A.numpy())), A)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (A,) = ctx.saved_tensors
        return dy.unsqueeze(-1).unsqueeze(-1) * _Cofactors.apply(A)


def det(A: Tensor) -> Tensor:
    """Determinants.

    The gradient is that of cofactors, for singular matrices too; gradients of gradients and of complex matrices are for
    regular ones.
    """
    _matrix("det", A, square=True)
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
        results = _made(np.asarray(sign), A), tensor(np.asarray(log, A.dtype.to_real().numpy))
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
    _matrix("slogdet", A, square=True)
    return SignLogDet(*_SignLogDet.apply(A))


def logdet(input: Tensor) -> Tensor:
    """Logarithms of determinants; NaN where negative."""
    sign, log = slogdet(input)
    return where(sign < 0, float("nan"), log)._cast(log.dtype)


# -- decompositions ---------------------------------------------------------------------------------------------------


class _Cholesky(Function):
    """Murray (2016), "Differentiation of the Cholesky decomposition"."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        y = _made(np.linalg.cholesky(A.numpy()), A)
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
    _matrix("cholesky", A, square=True)
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
        results = tuple(_made(x, A) for x in np.linalg.qr(A.numpy()))
        ctx.save_for_backward(*results)
        return results  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dr: Tensor) -> Tensor:
        Q, R = ctx.saved_tensors
        M = R @ dr.mH - dq.mH @ Q
        low = M.tril(-1)
        on = M.diagonal(0, -2, -1)
        symmetric = low + low.mH + diag_embed(on.real()._cast(M.dtype) if M.is_complex() else on)
        return _Solution.apply(R, (dq + Q @ symmetric).mH).mH


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and upper triangular R, ``Q @ R = A``.

    Parameters
    ----------
    A : (..., m, n), with a gradient where its first min(m, n) columns are independent
    mode : {"reduced", "complete", "r"}
        Q of shape (m, min(m, n)), Q of shape (m, m) (no gradient if m > n), or an empty Q (no gradient).
    """
    _matrix("qr", A)
    m, n = map(int, A.shape[-2:])
    if mode == "r":
        return QR(zeros(0, dtype=A.dtype), _made(np.asarray(np.linalg.qr(A.detach().numpy(), "r")), A))
    if mode == "complete" and m > n:
        if A.requires_grad:
            raise ValueError(
                "linalg.qr: there is no gradient of a complete Q of more rows than columns; use mode='reduced'"
            )
        return QR(*(_made(x, A) for x in np.linalg.qr(A.numpy(), "complete")))
    if mode not in ("reduced", "complete"):
        raise ValueError(f"linalg.qr: mode is 'reduced', 'complete' or 'r', got {mode!r}")
    if m >= n:
        return QR(*_QR.apply(A))
    Q, R = _QR.apply(A.narrow(-1, 0, m))
    return QR(Q, cat([R, Q.mH @ A.narrow(-1, m, n - m)], -1))


class Eigh(NamedTuple):
    """Ascending eigenvalues, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class _Eigh(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        w, v = np.linalg.eigh(A.numpy(), UPLO)  # type: ignore[call-overload]
        results = tensor(w.astype(A.dtype.to_real().numpy, copy=False)), _made(v, A)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, dw: Tensor | None, dv: Tensor | None) -> tuple[Any, ...]:
        w, V = ctx.saved_tensors
        inner = None if dw is None else diag_embed(dw._cast(V.dtype))
        if dv is not None:
            gaps = w.unsqueeze(-2) - w.unsqueeze(-1) + _eye(w.shape[-1], w)
            off = _skew(V.mH @ dv) / 2 / gaps._cast(V.dtype)  # so that the gradient is symmetric, as the matrix is
            off = off - diag_embed(off.diagonal(0, -2, -1))
            inner = off if inner is None else inner + off
        return (None if inner is None else V @ inner @ V.mH), None


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues and eigenvectors of symmetric (Hermitian) matrices, of which one triangle is read.

    The gradient of eigenvectors is infinite where eigenvalues are equal, and depends on their signs (phases).
    """
    _matrix("eigh", A, square=True)
    if UPLO.upper() not in ("L", "U"):
        raise ValueError(f"linalg.eigh: UPLO is 'L' or 'U', got {UPLO!r}")
    return Eigh(*_Eigh.apply(A, UPLO.upper()))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric (Hermitian) matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


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
        results = _made(u, A), tensor(s.astype(A.dtype.to_real().numpy, copy=False)), _made(vh, A)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, du: Tensor | None, ds: Tensor | None, dvh: Tensor | None) -> Tensor | None:
        U, S, Vh = ctx.saved_tensors
        k, row, column = int(S.shape[-1]), S.unsqueeze(-2)._cast(U.dtype), S.unsqueeze(-1)._cast(U.dtype)
        gaps = row * row - column * column + _eye(k, U)
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
    _matrix("svd", A)
    U, S, Vh = _SVD.apply(A)
    m, n = map(int, A.shape[-2:])
    if full_matrices and m != n:
        u, _, vh = np.linalg.svd(A.detach().numpy())
        k = min(m, n)
        if m > k:
            U = cat([U, _made(u[..., k:], A)], -1)
        else:
            Vh = cat([Vh, _made(vh[..., k:, :], A)], -2)
    return SVD(U, S, Vh)


def svdvals(A: Tensor) -> Tensor:
    """Singular values, descending."""
    return svd(A, full_matrices=False).S


def matrix_rank(
    A: Tensor, *, atol: float | None = None, rtol: float | Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """How many singular values exceed ``max(atol, rtol * largest)``; rtol is as for ``pinv`` unless atol is given."""
    _matrix("matrix_rank", A, square=hermitian)
    values = eigvalsh(A.detach()).abs() if hermitian else svdvals(A.detach())
    if not int(values.shape[-1]):
        return zeros(*A.shape[:-2], dtype=dt.int64)
    rtol = (_tolerance(A) if atol is None else 0.0) if rtol is None else rtol
    relative, absolute = (
        t.unsqueeze(-1) if isinstance(t, Tensor) else t for t in (rtol, 0.0 if atol is None else atol)
    )
    return (values > (values.amax(-1, keepdim=True) * relative).clamp(min=absolute)).sum(-1)


# -- functions of matrices --------------------------------------------------------------------------------------------

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
        return _made(_exponential(A.numpy().astype(wide)), A)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (A,) = ctx.saved_tensors
        n, turned = int(A.shape[-1]), A.mH
        above, below = cat([turned, dy], -1), cat([turned * 0, turned], -1)
        return _Exponential.apply(cat([above, below], -2)).narrow(-2, 0, n).narrow(-1, n, n)


def matrix_exp(A: Tensor) -> Tensor:
    """Exponentials of square matrices, computed in double precision."""
    x = widen(A)
    _matrix("matrix_exp", x, square=True)
    return narrow(_Exponential.apply(x), A.dtype)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """Square matrices multiplied by themselves, `n` factors; inverses for negative `n`."""
    return _positive_power(inv(A), -n) if n < 0 else _positive_power(A, n)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices (the first and the last may be vectors) in the order that takes the fewest operations."""
    if len(tensors) < 2:
        raise ValueError(f"linalg.multi_dot: two tensors or more are needed, got {len(tensors)}")
    first, last = tensors[0], tensors[-1]
    matrices = [first.unsqueeze(0) if first.ndim == 1 else first, *tensors[1:-1]]
    y = chain_matmul(*matrices, last.unsqueeze(1) if last.ndim == 1 else last)
    y = y.squeeze(0) if first.ndim == 1 else y
    return y.squeeze(-1) if last.ndim == 1 else y


# -- norms ------------------------------------------------------------------------------------------------------------


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """``sum(abs(x) ** ord) ** (1 / ord)`` over dimensions, largest for inf, smallest for -inf, how many are not 0 for 0."""
    x = x if dtype is None else x._cast(dt.as_dtype(dtype))
    if not (x.is_floating_point() or x.is_complex()):
        raise TypeError(f"linalg.vector_norm: a floating or complex dtype is needed, got {x.dtype.name}")
    size = x.abs() if x.is_complex() else x
    if ord == inf:
        return size.abs().amax(dim, keepdim)
    if ord == -inf:
        return size.abs().amin(dim, keepdim)
    return size.norm(ord, dim, keepdim)


_Reduction = Callable[[Tensor], Tensor]


def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Norms of matrices.

    Parameters
    ----------
    A : (..., m, n), or with the matrices in two other dimensions `dim`
    ord : {"fro", "nuc", 2, -2, 1, -1, inf, -inf}
        The root of the sum of squares; the sum, the largest or the smallest of the singular values; the largest or the
        smallest sum of absolute values in a column (1, -1) or a row (inf, -inf).
    """
    A = A if dtype is None else A._cast(dt.as_dtype(dtype))
    rows, columns = (normalize_axis("linalg.matrix_norm", d, A.ndim) for d in dim)
    if rows == columns:
        raise ValueError(f"linalg.matrix_norm: two different dimensions are needed, got {tuple(dim)}")
    x = widen(A).movedim((rows, columns), (-2, -1))
    _matrix("matrix_norm", x)
    if ord not in _MATRIX_NORMS:
        raise ValueError(f"linalg.matrix_norm: ord is one of {', '.join(map(repr, _MATRIX_NORMS))}, got {ord!r}")
    y = narrow(_MATRIX_NORMS[ord](x), A.dtype.to_real())
    if not keepdim:
        return y
    for d in sorted((rows, columns)):
        y = y.unsqueeze(d)
    return y


_MATRIX_NORMS: dict[Any, _Reduction] = {
    "fro": lambda x: vector_norm(x, 2, (-2, -1)),
    "nuc": lambda x: svdvals(x).sum(-1),
    2: lambda x: svdvals(x).amax(-1),
    -2: lambda x: svdvals(x).amin(-1),
    1: lambda x: x.abs().sum(-2).amax(-1),
    -1: lambda x: x.abs().sum(-2).amin(-1),
    inf: lambda x: x.abs().sum(-1).amax(-1),
    -inf: lambda x: x.abs().sum(-1).amin(-1),
}


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """``matrix_norm`` over two dimensions, ``vector_norm`` otherwise (and where `ord` is not given)."""
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    pair = (-2, -1) if dim is None and A.ndim == 2 else dim
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        return matrix_norm(A, ord, pair, keepdim, dtype=dtype)
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """Condition numbers: largest over smallest singular value, or ``norm(A, p) * norm(inv(A), p)``."""
    if p in (None, 2, -2):
        values = svdvals(A)
        first, last = values.select(-1, 0), values.select(-1, -1)
        return last / first if p == -2 else first / last
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


# -- products and parts -----------------------------------------------------------------------------------------------


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Vector products of 3-vectors along `dim`."""
    if input.ndim != other.ndim or any(
        int(t.shape[normalize_axis("linalg.cross", dim, t.ndim)]) != 3 for t in (input, other)
    ):
        raise ValueError(
            f"linalg.cross: tensors of as many dimensions, with extent 3 in dimension {dim}, are needed, got shapes "
            f"{tuple(map(int, input.shape))} and {tuple(map(int, other.shape))}"
        )
    shape = broadcast_shapes("linalg.cross", input.shape, other.shape)
    return _cross(input.expand(*shape), other.expand(*shape), dim)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Sums of ``conj(x) * y`` along `dim`."""
    return ((x.conj() if x.is_complex() else x) * y).sum(dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Diagonals of matrices, as a new last dimension."""
    return _diagonal(A, offset, dim1, dim2)


def trace(A: Tensor, *, offset: int = 0) -> Tensor:
    """Sums of the diagonals of matrices."""
    return diagonal(A, offset=offset).sum(-1)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Products of matrices, batches broadcast."""
    return input @ other


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers 0 to N - 1 of the last dimension's elements, along a new last dimension."""
    x = (x if x.ndim else x.reshape(1))._cast(dt.int64 if x.dtype.kind in "biu" else x.dtype)
    n = int(x.shape[-1]) if N is None else N
    ones = full(tuple(x.shape), 1, dtype=x.dtype)
    powers = [ones]
    for _ in range(n - 1):
        powers.append(powers[-1] * x)
    return cat([p.unsqueeze(-1) for p in powers], -1)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse with regard to ``tensordot(A, ·, ind)``."""
    rows = prod(map(int, A.shape[:ind]))
    return inv(A.reshape(rows, -1)).reshape((*A.shape[ind:], *A.shape[:ind]))


from lezero.factors import (  # noqa: E402 -- made of what is defined above
    cholesky_ex,
    eig,
    eigvals,
    householder_product,
    inv_ex,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    solve_ex,
    tensorsolve,
)  # fmt: skip

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "logdet", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp",
    "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_ex",
    "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vander", "vecdot", "vector_norm",
]  # fmt: skip

suggest_names(
    __name__,
    dict.fromkeys("ldl_factor ldl_factor_ex ldl_solve".split(), "lu_factor and lu_solve take symmetric matrices, too"),
)
