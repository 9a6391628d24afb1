"""Short-time Fourier transforms; installed like ``composed``.

Names, arguments and results follow PyTorch.  As ``lezero.fft``, they read the value of their operand, and have gradients.
"""

from __future__ import annotations

from lezero import fft
from lezero.numerics import view_as_real
from lezero.rearranged import _values, index_add
from lezero.tensor import Tensor, arange, cat, ones, zeros


def _window(name: str, window: Tensor | None, win_length: int | None, n_fft: int, like: Tensor) -> Tensor:
    """`window`, or ones, with zeros on both sides up to `n_fft`."""
    length = n_fft if win_length is None else win_length
    if not 0 < length <= n_fft:
        raise ValueError(f"{name}: win_length is from 1 to n_fft = {n_fft}, got {length}")
    dtype = like.dtype.to_real()
    w = ones(length, dtype=dtype) if window is None else window
    if tuple(w.shape) != (length,):
        raise ValueError(f"{name}: a window of {length} elements is needed, got shape {tuple(map(int, w.shape))}")
    left = (n_fft - length) // 2
    return w if length == n_fft else cat([zeros(left, dtype=dtype), w, zeros(n_fft - length - left, dtype=dtype)])


def _hop(name: str, hop_length: int | None, n_fft: int) -> int:
    hop = n_fft // 4 if hop_length is None else hop_length
    if hop < 1:
        raise ValueError(f"{name}: hop_length is 1 or more, got {hop}")
    return hop


def _padded(x: Tensor, n: int, mode: str) -> Tensor:
    """`n` more elements on both sides of the last dimension."""
    if mode == "constant":
        sides = (zeros(*x.shape[:-1], n, dtype=x.dtype),) * 2
    elif mode == "reflect":
        if n >= int(x.shape[-1]):
            raise ValueError(f"stft: more than n_fft // 2 = {n} elements are reflected, got {int(x.shape[-1])}")
        sides = x[..., 1 : n + 1].flip(-1), x[..., -n - 1 : -1].flip(-1)
    elif mode == "replicate":
        sides = x[..., :1].expand(*x.shape[:-1], n), x[..., -1:].expand(*x.shape[:-1], n)
    elif mode == "circular":
        sides = x[..., -n:], x[..., :n]
    else:
        raise ValueError(f"stft: pad_mode is 'reflect', 'constant', 'replicate' or 'circular', got {mode!r}")
    return cat([sides[0], x, sides[1]], -1) if n else x


def stft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:  # fmt: skip
    """Fourier transforms of windows that follow each other.

    Parameters
    ----------
    input : (time,) or (batch, time), real or complex
    n_fft : points of each transform
    hop_length : from one window to the next, ``n_fft // 4`` by default
    win_length, window : a window shorter than `n_fft` has zeros on both sides; ones by default
    center : windows have their middle at multiples of `hop_length`; the input is padded by `pad_mode`
    normalized : divide by the root of `n_fft`
    onesided : only the first ``n_fft // 2 + 1`` frequencies, the default for real numbers
    return_complex : False gives real and imaginary parts along a last dimension

    Returns
    -------
    (batch, frequencies, windows)
    """
    if return_complex is None and not input.is_complex():
        raise ValueError("stft: return_complex=True, or False for real and imaginary parts, is needed of real input")
    x = _padded(input, n_fft // 2, pad_mode) if center else input
    if not 0 < n_fft <= int(x.shape[-1]):
        raise ValueError(f"stft: n_fft is from 1 to the {int(x.shape[-1])} elements there are, got {n_fft}")
    frames = x.unfold(-1, n_fft, _hop("stft", hop_length, n_fft)) * _window("stft", window, win_length, n_fft, x)
    half = not frames.is_complex() if onesided is None else onesided
    y = (fft.rfft if half else fft.fft)(frames, norm="ortho" if normalized else None).mT
    return view_as_real(y) if return_complex is False else y


def istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None,
    return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """The signal of which ``stft`` with the same arguments gives `input`; overlapping windows are weighed by their squares.

    Parameters
    ----------
    input : (frequencies, windows) or (batch, frequencies, windows), complex
    length : elements of the signal; what windows do not reach is 0
    """
    if not input.is_complex():
        raise TypeError(f"istft: complex numbers are needed, got {input.dtype.name}")
    hop, w = _hop("istft", hop_length, n_fft), _window("istft", window, win_length, n_fft, input)
    half = int(input.shape[-2]) != n_fft if onesided is None else onesided
    norm = "ortho" if normalized else None
    if return_complex and not half:
        frames = fft.ifft(input.mT, norm=norm)
    else:  # the other half of all frequencies is that of a real signal
        frames = fft.irfft(input.mT[..., : n_fft // 2 + 1], n_fft, norm=norm)
    count = int(input.shape[-1])
    total = n_fft + hop * (count - 1)
    at = (arange(count).unsqueeze(1) * hop + arange(n_fft)).reshape(-1)
    out = index_add(zeros(*frames.shape[:-2], total, dtype=frames.dtype), -1, at, (frames * w).flatten(-2))
    envelope = index_add(zeros(total, dtype=w.dtype), 0, at, (w * w).expand(count, n_fft).reshape(-1))
    start = n_fft // 2 if center else 0
    stop = total - start if length is None else min(start + length, total)
    if (_values("istft", envelope[start:stop].abs()) < 1e-11).any():
        raise ValueError("istft: windows that overlap nowhere leave elements out; give another hop_length or window")
    y = out[..., start:stop] / envelope[start:stop]
    missing = 0 if length is None else length - (stop - start)
    return cat([y, zeros(*y.shape[:-1], missing, dtype=y.dtype)], -1) if missing else y


METHODS = """
istft stft
"""  # which are methods of Tensor too
IN_PLACE = ""
FUNCTIONS = METHODS  # for the top level
