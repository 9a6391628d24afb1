"""Windows, Fourier transforms and what goes with them.

A transform is a product with a matrix of cosines and sines, made in float64 on the host: lengths are those of frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.program import OnnxError, numpy_dtype
from lezero.onnx.registry import Context, dimension, integers, on_device, on_host, operator
from lezero.tensor import Tensor, tensor

# -- windows ----------------------------------------------------------------------------------------------------------


def _window(name: str, *weights: float) -> None:
    """Sums of cosines of 0, 1, 2, … turns, with signs that alternate."""

    @operator(name, 17, host=True)
    def call(_: Context, size: Any, *, periodic: int = 1, output_datatype: int = 1) -> Tensor:
        (n,) = (int(v) for v in integers(size))
        turn = 2 * np.pi * np.arange(n) / max(1, n if periodic else n - 1)
        values = sum(w * (-1) ** k * np.cos(k * turn) for k, w in enumerate(weights))
        return tensor(np.asarray(values).astype(numpy_dtype(output_datatype)))


_window("HannWindow", 0.5, 0.5)
_window("HammingWindow", 25 / 46, 21 / 46)
_window("BlackmanWindow", 0.42, 0.5, 0.08)


# -- transforms -------------------------------------------------------------------------------------------------------


def transformed(x: Tensor, axis: int, length: int | None, inverse: bool, onesided: bool) -> Tensor:
    """The discrete Fourier transform along an axis; the last dimension holds a real number, or real and imaginary part."""
    if axis == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise OnnxError(f"axis {axis} of {list(x.shape)}: the last dimension is that of real and imaginary part")
    if inverse and onesided:
        n = 2 * (int(x.shape[axis]) - 1) if length is None else length
        return _half_inverse(_extent(x, axis, n // 2 + 1), axis, n)
    n = int(x.shape[axis]) if length is None else length
    x = _extent(x, axis, n)
    cosines, sines = _waves(n // 2 + 1 if onesided else n, n, 1 if inverse else -1, x)
    if inverse:
        cosines, sines = cosines / n, sines / n
    real = _along(x.select(-1, 0), axis, cosines), _along(x.select(-1, 0), axis, sines)
    if x.shape[-1] == 1:
        return lz.stack(real, -1)
    imaginary = _along(x.select(-1, 1), axis, cosines), _along(x.select(-1, 1), axis, sines)
    return lz.stack((real[0] - imaginary[1], real[1] + imaginary[0]), -1)


def _half_inverse(x: Tensor, axis: int, n: int) -> Tensor:
    """A real signal of length `n` from the first half of its spectrum: all but the first and the middle one count twice."""
    cosines, sines = _waves(n, n // 2 + 1, 1, x, n)
    twice = np.full(n // 2 + 1, 2.0)
    twice[0] = 1
    if n % 2 == 0:
        twice[-1] = 1
    weights = tensor((twice / n).astype(x.dtype.numpy))
    y = _along(x.select(-1, 0), axis, cosines * weights)
    if x.shape[-1] == 2:
        y = y - _along(x.select(-1, 1), axis, sines * weights)
    return y.unsqueeze(-1)


def _waves(rows: int, columns: int, sign: int, like: Tensor, period: int | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of row * column turns of the period; the product is exact, so that far ones are as good as near ones."""
    n = columns if period is None else period
    angle = sign * 2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % n) / n
    return tensor(np.cos(angle).astype(like.dtype.numpy)), tensor(np.sin(angle).astype(like.dtype.numpy))


def _along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    return lz.movedim(lz.matmul(lz.movedim(x, axis, -1), matrix.t()), -1, axis)


def _extent(x: Tensor, axis: int, n: int) -> Tensor:
    have = int(x.shape[axis])
    if have >= n:
        return x.narrow(axis, 0, n) if have > n else x
    zeros = lz.zeros([n - have if k == axis else d for k, d in enumerate(x.shape)], dtype=x.dtype)
    return lz.cat([x, zeros], axis)


def _length(value: Any) -> int | None:
    return None if value is None else int(integers(value)[0])


@operator("DFT", 17, host=True)
def dft_17(_: Context, x: Any, length: Any = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Tensor:
    x = on_device(x)
    return transformed(x, dimension(axis, x.ndim), _length(length), bool(inverse), bool(onesided))


@operator("DFT", 20, host=True)
def dft(_: Context, x: Any, length: Any = None, axis: Any = None, *, inverse: int = 0, onesided: int = 0) -> Tensor:
    x = on_device(x)
    at = -2 if axis is None else int(integers(axis)[0])
    return transformed(x, dimension(at, x.ndim), _length(length), bool(inverse), bool(onesided))


@operator("STFT", 17, host=True)
def stft(_: Context, x: Any, step: Any, window: Any = None, length: Any = None, *, onesided: int = 1) -> Tensor:
    """Frames of a signal [batch, time, 1 or 2], each transformed: [batch, frames, frequencies, 2]."""
    x = on_device(x)
    if x.ndim == 2:
        x = x.unsqueeze(-1)
    n = _length(length)
    if n is None:
        n = int(x.shape[1] if window is None else window.shape[0])
    frames = x.unfold(1, n, int(integers(step)[0])).movedim(-1, 2)
    if window is not None:
        frames = frames * on_device(window).reshape(-1, 1)
    return transformed(frames, 2, None, False, bool(onesided) and x.shape[-1] == 1)


@operator("MelWeightMatrix", 17, host=True)
def mel_weight_matrix(
    _: Context, bins: Any, length: Any, rate: Any, low: Any, high: Any, *, output_datatype: int = 1
) -> Tensor:
    """Triangles over the bins of a spectrum whose corners are evenly spaced in mel."""
    count, n, rate = (int(integers(v)[0]) for v in (bins, length, rate))
    low, high = (2595 * np.log10(1 + float(on_host(v).reshape(())) / 700) for v in (low, high))
    mel = low + np.arange(count + 2) * ((high - low) / (count + 2))
    corners = ((n + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(int)
    at = np.arange(n // 2 + 1).reshape(-1, 1)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising = np.where(middle > left, (at - left) / np.maximum(1, middle - left), at == middle)
    falling = (right - at) / np.maximum(1, right - middle)
    weights = np.where((at >= left) & (at <= middle), rising, np.where((at > middle) & (at < right), falling, 0))
    return tensor(weights.astype(numpy_dtype(output_datatype)))


# -- determinants -----------------------------------------------------------------------------------------------------


@operator("Det", 11)
def det(_: Context, x: Tensor) -> Tensor:
    return determinant(x)


def determinant(x: Tensor) -> Tensor:
    """Elimination, one column after the other, with the largest element of a column as its pivot."""
    n = int(x.shape[-1])
    if x.ndim < 2 or x.shape[-2] != n:
        raise OnnxError(f"a determinant of square matrices, not of {list(x.shape)}")
    result = lz.ones(x.shape[:-2], dtype=x.dtype)
    for k in range(n):
        rows = n - k
        at = lz.argmax(lz.abs(x.select(-1, 0)).detach(), dim=-1)
        order = lz.arange(rows)
        first = at.unsqueeze(-1)
        # the pivot's row goes first and the first one takes its place
        order = lz.where(order == 0, first, lz.where(order == first, 0, order))
        x = lz.gather(x, -2, lz.broadcast_to(order.unsqueeze(-1), (*x.shape[:-2], rows, rows)))
        pivot = x.select(-1, 0).select(-1, 0)
        result = result * lz.where(at == 0, pivot, -pivot)
        if rows > 1:
            ratio = x.narrow(-2, 1, rows - 1).narrow(-1, 0, 1) / lz.where(pivot == 0, 1, pivot).reshape(
                *pivot.shape, 1, 1
            )
            x = x.narrow(-2, 1, rows - 1).narrow(-1, 1, rows - 1) - ratio * x.narrow(-2, 0, 1).narrow(-1, 1, rows - 1)
    return result
