"""Discrete Fourier transforms of the standard; see ``lezero.fft`` for how they are computed and differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero import fft as _fft
from lezero.array_api.operands import need_device, need_tensor
from lezero.tensor import Tensor

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft", "rfftfreq",
    "rfftn",
]  # fmt: skip

Axes = Sequence[int] | None


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _fft.fft(need_tensor("fft.fft", x), n, axis, norm)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _fft.ifft(need_tensor("fft.ifft", x), n, axis, norm)


def fftn(x: Tensor, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    return _fft.fftn(need_tensor("fft.fftn", x), s, axes, norm)


def ifftn(x: Tensor, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    return _fft.ifftn(need_tensor("fft.ifftn", x), s, axes, norm)


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _fft.rfft(need_tensor("fft.rfft", x), n, axis, norm)


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _fft.irfft(need_tensor("fft.irfft", x), n, axis, norm)


def rfftn(x: Tensor, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    return _fft.rfftn(need_tensor("fft.rfftn", x), s, axes, norm)


def irfftn(x: Tensor, /, *, s: Axes = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    return _fft.irfftn(need_tensor("fft.irfftn", x), s, axes, norm)


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _fft.hfft(need_tensor("fft.hfft", x), n, axis, norm)


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _fft.ihfft(need_tensor("fft.ihfft", x), n, axis, norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of the points of ``fft``, of samples `d` apart."""
    need_device("fft.fftfreq", device)
    return _fft.fftfreq(n, d, dtype=dtype)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of the points of ``rfft``, of samples `d` apart."""
    need_device("fft.rfftfreq", device)
    return _fft.rfftfreq(n, d, dtype=dtype)


def fftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    return _fft.fftshift(need_tensor("fft.fftshift", x), axes)


def ifftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    return _fft.ifftshift(need_tensor("fft.ifftshift", x), axes)
