"""Fourier transforms against PyTorch's, with gradients and gradients of gradients."""

import numpy as np
import pytest

import lezero as lz

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
REAL, COMPLEX = RNG.normal(size=(2, 5, 6)), RNG.normal(size=(2, 5, 6)) + 1j * RNG.normal(size=(2, 5, 6))
NORMS = (None, "backward", "forward", "ortho")
ONE = [{}, {"n": 4}, {"n": 9, "dim": 1}, {"dim": 0}]
SEVERAL = [{}, {"s": (3, 7)}, {"s": (7, 4), "dim": (0, -1)}, {"dim": (2, 1)}, {"s": (-1, 5)}]
CALLS = [
    (name, options)
    for names, choices in (
        ("fft ifft rfft irfft hfft ihfft", ONE),
        ("fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn hfftn ihfftn", SEVERAL),
    )
    for name in names.split()
    for options in choices
]


def close(ours, theirs, tolerance=1e-10):
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1]
    theirs = theirs.detach().resolve_conj().resolve_neg()
    np.testing.assert_allclose(ours.detach().numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name, options", CALLS, ids=lambda v: v if isinstance(v, str) else str(v))
def test_transforms_and_gradients_are_pytorchs(name, options):
    norm = NORMS[CALLS.index((name, options)) % 4]
    arrays = [REAL] if name.startswith(("rfft", "ihfft")) else [COMPLEX, REAL]
    for array in arrays:
        o, t = lz.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
        found, wanted = (
            getattr(lz.fft, name)(o, norm=norm, **options),
            getattr(torch.fft, name)(t, norm=norm, **options),
        )
        close(found, wanted)
        weights = np.random.default_rng(1).normal(size=wanted.shape)
        size = lambda y, w: ((y * w).abs() ** 2).sum() if y.is_complex() else (y**3 * w).sum()
        (g,) = lz.autograd.grad(size(found, lz.tensor(weights)), [o], create_graph=True)
        (h,) = torch.autograd.grad(size(wanted, torch.tensor(weights)), [t], create_graph=True)
        close(g, h, 1e-8)
        if options:
            continue
        (g,) = lz.autograd.grad((g.abs() ** 2).sum(), [o])
        (h,) = torch.autograd.grad((h.abs() ** 2).sum(), [t])
        close(g, h, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64", "bool"])
def test_dtypes_are_pytorchs(dtype):
    array = (REAL * 2).astype(dtype)
    for name in ("fft", "irfft", *(() if dtype.startswith("c") else ("rfft",))):
        close(getattr(lz.fft, name)(lz.tensor(array)), getattr(torch.fft, name)(torch.tensor(array)), 1e-4)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_frequencies_and_shifts(n):
    close(lz.fft.fftfreq(n, 0.5), torch.fft.fftfreq(n, 0.5), 1e-6)
    close(lz.fft.rfftfreq(n, 0.5), torch.fft.rfftfreq(n, 0.5), 1e-6)
    x = np.arange(n * 3.0).reshape(n, 3)
    for dim in (None, 0, (0, 1), -1):
        close(lz.fft.fftshift(lz.tensor(x), dim), torch.fft.fftshift(torch.tensor(x), dim))
        close(lz.fft.ifftshift(lz.tensor(x), dim), torch.fft.ifftshift(torch.tensor(x), dim))


def test_what_cannot_be_transformed_is_refused():
    with pytest.raises(TypeError, match=r"rfft: real numbers are needed, got complex128"):
        lz.fft.rfft(lz.tensor(COMPLEX))
    with pytest.raises(ValueError, match="one point or more"):
        lz.fft.fft(lz.zeros(2, 0))
    with pytest.raises(ValueError, match="norm is"):
        lz.fft.fft(lz.zeros(2), norm="none")
    with pytest.raises(ValueError, match="named twice"):
        lz.fft.fftn(lz.zeros(2, 2), dim=(0, 0))
    with pytest.raises(TypeError, match="got float16"):
        lz.fft.fft(lz.zeros(2, dtype=lz.float16))


SIGNAL, WINDOW = RNG.normal(size=(2, 40)), np.hanning(10)[1:-1] + 0.1
STFT = [
    {},
    {"hop_length": 3, "win_length": 6, "normalized": True},
    {"center": False, "hop_length": 4},
    {"pad_mode": "constant", "onesided": False},
    {"pad_mode": "circular", "hop_length": 2},
    {"pad_mode": "replicate"},
]


@pytest.mark.parametrize("options", STFT, ids=str)
def test_short_time_transforms_there_and_back(options):
    o, t = lz.tensor(SIGNAL, requires_grad=True), torch.tensor(SIGNAL, requires_grad=True)
    length = options.get("win_length", 8)
    mine, other = lz.tensor(WINDOW[:length], requires_grad=True), torch.tensor(WINDOW[:length], requires_grad=True)
    found = o.stft(8, window=mine, return_complex=True, **options)
    wanted = t.stft(8, window=other, return_complex=True, **options)
    close(found, wanted)
    back = {k: v for k, v in options.items() if k != "pad_mode"}
    for size in (None, 30, *(() if length < 8 else (60,))):  # the zeros beside a shorter window reach no end
        close(
            lz.istft(found, 8, window=mine, length=size, **back),
            torch.istft(wanted, 8, window=other, length=size, **back),
        )
    (lz.istft(found * found, 8, window=mine, **back) ** 2).sum().backward()
    (torch.istft(wanted * wanted, 8, window=other, **back) ** 2).sum().backward()
    close(o.grad, t.grad, 1e-8)
    close(mine.grad, other.grad, 1e-7)


def test_short_time_transforms_of_one_signal_and_of_complex_numbers():
    x = RNG.normal(size=20) + 1j * RNG.normal(size=20)
    found, wanted = lz.stft(lz.tensor(x), 6), torch.stft(torch.tensor(x), 6, return_complex=True)
    close(found, wanted)
    back = {"onesided": False, "return_complex": True}
    close(lz.istft(found, 6, **back), torch.istft(wanted, 6, **back))
    real = x.real.copy()
    close(lz.stft(lz.tensor(real), 6, return_complex=False), torch.stft(torch.tensor(real), 6, return_complex=False))
    with pytest.raises(ValueError, match="return_complex"):
        lz.stft(lz.tensor(real), 6)
    with pytest.raises(ValueError, match="leave elements out"):
        lz.istft(found, 6, hop_length=9, center=False, onesided=False)
    with pytest.raises(ValueError, match="leave elements out"):
        lz.istft(found, 6, win_length=4, onesided=False, length=60)
