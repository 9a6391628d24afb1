"""Discrete Fourier transforms; names, arguments and results follow ``torch.fft``.

Transforms are computed by NumPy's pocketfft when they are called: the value of the operand is read, so what has been recorded
runs, and ``lz.jit`` does not capture them.  Gradients are recorded operations and transforms of the same kind, and can be
differentiated again.  Results of float32 are complex64, and so on; integers count as the default floating dtype.

Every transform takes `norm`: "backward" divides inverse transforms by the number of points (the default), "forward" the others,
"ortho" both by its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lezero.function import Function
from lezero.graph import dtype as dt
from lezero.misspelt import suggest_names
from lezero.ops.base import normalize_axis
from lezero.rearranged import roll
from lezero.tensor import Tensor, arange, cat, full, tensor, zeros

Axes = int | Sequence[int] | None


class _Complex(Function):
    """Complex to complex, times `scale`; the adjoint is the other direction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], inverse: bool, scale: float) -> Tensor:
        ctx.plan = axes, inverse, scale
        a = x.numpy()
        y = np.fft.ifftn(a, axes=axes, norm="forward") if inverse else np.fft.fftn(a, axes=axes)
        y = y * scale
        return tensor(y.astype(x.dtype.numpy, copy=False))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        axes, inverse, scale = ctx.plan
        return _Complex.apply(dy, axes, not inverse, scale), None, None, None


class _FromReal(Function):
    """The first half of the spectrum of real numbers, along one axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int) -> Tensor:
        ctx.plan = axis, int(x.shape[axis])
        return tensor(np.fft.rfft(x.numpy(), axis=axis).astype(x.dtype.to_complex().numpy, copy=False))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        axis, n = ctx.plan
        return _Complex.apply(_resized(dy, axis, n), (axis,), True, 1.0).real(), None


class _ToReal(Function):
    """`n` real numbers from the first half of their spectrum, along one axis; not divided by `n`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, n: int) -> Tensor:
        ctx.plan = axis, n
        y = np.fft.irfft(x.numpy(), n, axis=axis, norm="forward")
        return tensor(y.astype(x.dtype.to_real().numpy, copy=False))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        axis, n = ctx.plan
        half = _FromReal.apply(dy, axis)
        twice = full(
            (int(half.shape[axis]),), 2.0, dtype=dy.dtype
        )  # all but the first, and the middle one, stand for two
        twice[0] = 1.0
        if n % 2 == 0:
            twice[-1] = 1.0
        return half * twice.reshape((-1,) + (1,) * (dy.ndim - axis - 1)), None, None


def _resized(x: Tensor, axis: int, n: int) -> Tensor:
    """Cut, or filled up with zeros, to extent `n`."""
    have = int(x.shape[axis])
    if n <= have:
        return x if n == have else x.narrow(axis, 0, n)
    shape = [*map(int, x.shape)]
    shape[axis] = n - have
    return cat([x, zeros(*shape, dtype=x.dtype)], axis)


def _floating(x: Tensor) -> Tensor:
    x = x if x.is_complex() else x._cast(dt.floating(x.dtype))
    if x.dtype in (dt.float16, dt.bfloat16):
        raise TypeError(f"fft: float32, float64 or complex numbers are needed, got {x.dtype.name}")
    return x


def _real(name: str, x: Tensor) -> Tensor:
    if x.is_complex():
        raise TypeError(f"fft.{name}: real numbers are needed, got {x.dtype.name}")
    return _floating(x)


def _scale(norm: str | None, count: int, inverse: bool) -> float:
    if norm not in (None, "backward", "forward", "ortho"):
        raise ValueError(f"fft: norm is 'backward', 'forward' or 'ortho', got {norm!r}")
    if norm == "ortho":
        return count**-0.5
    return 1 / count if inverse == (norm != "forward") else 1.0


def _plan(name: str, x: Tensor, s: Axes, dim: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(axes, extents to transform) of `x`."""
    s = (s,) if isinstance(s, int) else s
    if dim is None:
        axes = tuple(range(0 if s is None else x.ndim - len(s), x.ndim))
    else:
        axes = tuple(normalize_axis(f"fft.{name}", d, x.ndim) for d in ((dim,) if isinstance(dim, int) else dim))
    if len(set(axes)) != len(axes):
        raise ValueError(f"fft.{name}: a dimension is named twice in {dim}")
    if s is not None and len(s) != len(axes):
        raise ValueError(f"fft.{name}: {len(s)} extents for {len(axes)} dimensions")
    extents = tuple(int(x.shape[a]) if s is None or s[k] == -1 else int(s[k]) for k, a in enumerate(axes))
    if any(n < 1 for n in extents):
        raise ValueError(f"fft.{name}: a transform has one point or more, got extents {extents}")
    return axes, extents


def _fit(x: Tensor, axes: tuple[int, ...], extents: tuple[int, ...]) -> Tensor:
    for axis, n in zip(axes, extents):
        x = _resized(x, axis, n)
    return x


def _transform(name: str, x: Tensor, s: Axes, dim: Axes, norm: str | None, inverse: bool) -> Tensor:
    x = _floating(x)
    x = x._cast(x.dtype.to_complex())
    axes, extents = _plan(name, x, s, dim)
    return _Complex.apply(_fit(x, axes, extents), axes, inverse, _scale(norm, prod(extents), inverse))


def _from_real(name: str, x: Tensor, s: Axes, dim: Axes, norm: str | None, inverse: bool = False) -> Tensor:
    x = _real(name, x)
    axes, extents = _plan(name, x, s, dim)
    if not axes:
        raise ValueError(f"fft.{name}: one dimension or more is transformed")
    half = _FromReal.apply(_fit(x, axes, extents), axes[-1])
    return _Complex.apply(half, axes[:-1], False, _scale(norm, prod(extents), inverse))


def _to_real(name: str, x: Tensor, s: Axes, dim: Axes, norm: str | None, inverse: bool = True) -> Tensor:
    x = _floating(x)
    x = x._cast(x.dtype.to_complex())
    s = (s,) if isinstance(s, int) else s
    axes, extents = _plan(name, x, s, dim)
    if not axes:
        raise ValueError(f"fft.{name}: one dimension or more is transformed")
    n = extents[-1] if s is not None and s[-1] != -1 else 2 * (extents[-1] - 1)
    if n < 1:
        raise ValueError(f"fft.{name}: a transform has one point or more, got {n}")
    half = _fit(x, axes, (*extents[:-1], n // 2 + 1))
    scale = _scale(norm, prod(extents[:-1]) * n, inverse)
    return _ToReal.apply(_Complex.apply(half, axes[:-1], True, scale), axes[-1], n)


# -- of any numbers ---------------------------------------------------------------------------------------------------


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Along one dimension, cut or filled up with zeros to `n` points."""
    return _transform("fft", input, n, dim, norm, False)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``fft``."""
    return _transform("ifft", input, n, dim, norm, True)


def fftn(input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Along several dimensions (all, or the last ``len(s)``), of `s` points."""
    return _transform("fftn", input, s, dim, norm, False)


def ifftn(input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """The inverse of ``fftn``."""
    return _transform("ifftn", input, s, dim, norm, True)


def fft2(input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """Along two dimensions."""
    return _transform("fft2", input, s, dim, norm, False)


def ifft2(input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of ``fft2``."""
    return _transform("ifft2", input, s, dim, norm, True)


# -- of real numbers, and back to them --------------------------------------------------------------------------------


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """``fft`` of real numbers: the first ``n // 2 + 1`` points, of which the others are conjugates."""
    return _from_real("rfft", input, n, dim, norm)


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``rfft``: `n` real numbers (an even number unless given)."""
    return _to_real("irfft", input, n, dim, norm)


def rfftn(input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """``fftn`` of real numbers: half of the points along the last dimension transformed."""
    return _from_real("rfftn", input, s, dim, norm)


def irfftn(input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """The inverse of ``rfftn``."""
    return _to_real("irfftn", input, s, dim, norm)


def rfft2(input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """``fft2`` of real numbers."""
    return _from_real("rfft2", input, s, dim, norm)


def irfft2(input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of ``rfft2``."""
    return _to_real("irfft2", input, s, dim, norm)


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """``fft`` of numbers of which the first half is given, the others being conjugates: `n` real numbers."""
    return _to_real("hfft", _conj(input), n, dim, norm, inverse=False)


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``hfft``."""
    return _from_real("ihfft", input, n, dim, norm, inverse=True).conj()


def hfftn(input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """``hfft`` along the last dimension, ``fft`` along the others."""
    return _to_real("hfftn", _conj(input), s, dim, norm, inverse=False)


def ihfftn(input: Tensor, s: Axes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """The inverse of ``hfftn``."""
    return _from_real("ihfftn", input, s, dim, norm, inverse=True).conj()


def hfft2(input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """``hfftn`` along two dimensions."""
    return hfftn(input, s, dim, norm)


def ihfft2(input: Tensor, s: Axes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of ``hfft2``."""
    return ihfftn(input, s, dim, norm)


def _conj(x: Tensor) -> Tensor:
    return x.conj() if x.is_complex() else x


# -- frequencies ------------------------------------------------------------------------------------------------------


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None) -> Tensor:
    """The frequencies of the points of ``fft``, of samples `d` apart."""
    half = (n - 1) // 2 + 1
    return cat([arange(half), arange(-(n // 2), 0)])._cast(dt.as_dtype(dtype or dt.default_dtype())) / (n * d)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None) -> Tensor:
    """The frequencies of the points of ``rfft``, of samples `d` apart."""
    return arange(n // 2 + 1)._cast(dt.as_dtype(dtype or dt.default_dtype())) / (n * d)


def fftshift(input: Tensor, dim: Axes = None) -> Tensor:
    """With frequency 0 in the middle of each dimension (or of those in `dim`)."""
    return _shifted("fftshift", input, dim, lambda n: n // 2)


def ifftshift(input: Tensor, dim: Axes = None) -> Tensor:
    """The inverse of ``fftshift``."""
    return _shifted("ifftshift", input, dim, lambda n: -(n // 2))


def _shifted(name: str, x: Tensor, dim: Axes, by: Any) -> Tensor:
    axes = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    for d in axes:
        axis = normalize_axis(f"fft.{name}", d, x.ndim)
        x = roll(x, by(int(x.shape[axis])), axis)
    return x


__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft",
    "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

suggest_names(__name__)
