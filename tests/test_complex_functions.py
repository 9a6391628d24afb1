"""Elementary functions of complex numbers against PyTorch's, with gradients."""

import numpy as np
import pytest

import lezero as lz
from lezero.tensor.complex_functions import OF_COMPLEX

torch = pytest.importorskip("torch")

rng = np.random.default_rng(0)
Z = rng.normal(size=60) * 2 + 1j * rng.normal(size=60) * 2
FEW = Z[:4]


@pytest.mark.parametrize("dtype, error", [("complex64", 1e-5), ("complex128", 1e-14)])
@pytest.mark.parametrize(
    "name", [*OF_COMPLEX, "exp", "log", "sqrt", "rsqrt", "reciprocal", "square", "abs", "sgn", "angle"]
)
def test_values_are_pytorchs(name, dtype, error):
    z = Z.astype(dtype)
    got = getattr(lz, name)(lz.tensor(z)).numpy()
    wanted = getattr(torch, name)(torch.tensor(z.astype(complex))).numpy()
    np.testing.assert_allclose(got, wanted, rtol=error)


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_gradients_are_pytorchs(name):
    ours, theirs = lz.tensor(FEW, requires_grad=True), torch.tensor(FEW, requires_grad=True)
    for x, package in ((ours, lz), (theirs, torch)):
        y = getattr(package, name)(x)
        (y.real() if x is ours else y.real).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-9)


@pytest.mark.parametrize("name", ["asin", "acos", "acosh", "atanh"])
def test_branch_cuts_are_where_the_sign_of_zero_says(name):
    on_the_cut = np.array([complex(2, 0.0), complex(2, -0.0), complex(-3, 0.0), complex(-3, -0.0)])
    got = getattr(lz, name)(lz.tensor(on_the_cut)).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, getattr(np, "arc" + name[1:])(on_the_cut), rtol=1e-12, atol=1e-12)


POWERS = [
    (Z, Z[::-1].copy()),
    (Z, np.abs(Z)),
    (np.abs(Z), Z),
    (np.array([0, 0, 0, 2j]), np.array([1 + 1j, 2, 3 + 1j, 0])),
]


@pytest.mark.parametrize("base, exponent", POWERS, ids=["both", "complex base", "complex exponent", "zeros"])
def test_powers_and_their_gradients_are_pytorchs(base, exponent):
    ours = [lz.tensor(x, requires_grad=True) for x in (base, exponent)]
    theirs = [torch.tensor(x, requires_grad=True) for x in (base, exponent)]
    results = [(ours[0] ** ours[1]), (theirs[0] ** theirs[1])]
    np.testing.assert_allclose(results[0].detach().numpy(), results[1].detach().numpy(), rtol=1e-12)
    results[0].real().sum().backward()
    results[1].real.sum().backward()
    for x, y in zip(ours, theirs):
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-11)


def test_nothing_to_the_power_of_nothing_is_one():
    zero = np.zeros(1, complex)
    assert (lz.tensor(zero) ** lz.tensor(zero)).tolist() == [1] == (zero**zero).tolist()
