"""Further methods of tensors against PyTorch's: special functions, parts, shapes in place, linear algebra."""

import math

import numpy as np
import pytest

import lezero as lz

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
X, POSITIVE = RNG.normal(size=(3, 5)), RNG.uniform(0.1, 12, size=(3, 5))
HOLES = X.copy()
HOLES[0, 1] = HOLES[0, 3] = HOLES[1] = HOLES[2, 0] = np.nan
INTEGERS, OTHERS = RNG.integers(-30, 30, (3, 5)), RNG.integers(-30, 30, (3, 5))
PLACES = np.array([0, 2, 2])
INSIDE = np.concatenate([np.linspace(-0.999, 0.999, 37), [0.0, -0.0, 1e-30, 1 - 1e-12]])
MATRIX = RNG.normal(size=(3, 3))
DEFINITE = MATRIX @ MATRIX.T + np.eye(3)

# name: (a method call of either library's tensors, arrays)
CASES = {
    "erfinv": (lambda x: x.erfinv(), INSIDE),
    "erfinv at the ends": (lambda x: x.detach().erfinv(), np.array([-1.0, 1.0, 1.5, np.nan])),
    "erfinv_": (lambda x: (x * 1).erfinv_(), INSIDE),
    "i0": (lambda x: x.i0(), np.linspace(-40, 40, 83)),
    "i0 of large ones": (lambda x: x.detach().i0(), np.array([0.0, 100.0, 700.0, np.inf, np.nan])),
    "polygamma 0": (lambda x: x.polygamma(0), POSITIVE),
    "polygamma 2": (lambda x: x.polygamma(2), POSITIVE),
    "polygamma 5": (lambda x: x.polygamma(5), POSITIVE),
    "mvlgamma": (lambda x: x.mvlgamma(3), POSITIVE + 1),
    "gcd": (lambda x, y: x.gcd(y), INTEGERS, OTHERS),
    "gcd_": (lambda x, y: x.clone().gcd_(y), INTEGERS, OTHERS),
    "lcm": (lambda x, y: x.lcm(y), INTEGERS, OTHERS),
    "nextafter": (lambda x, y: x.detach().nextafter(y.detach()), X, X[::-1].copy()),
    "frexp": (lambda x: x.frexp()[0], X * 1e3),
    "frexp of all sizes": (lambda x: x.detach().frexp()[0], np.array([0.0, 1e-310, 1e308, -3.0])),
    "exponents of frexp": (lambda x: x.detach().frexp()[1], np.array([0.0, 1e-310, 1e308, -3.0])),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), X * 300),
    "logcumsumexp down": (lambda x: x.logcumsumexp(0), X),
    "nanmedian": (lambda x: x.nanmedian(), HOLES),
    "nanmedian of rows": (lambda x: x.nanmedian(1)[0], HOLES),
    "places of nanmedian": (lambda x: x.nanmedian(1)[1], np.where(np.isnan(HOLES), HOLES, np.abs(HOLES))[[0, 2]]),
    "nanmedian of integers": (lambda x: x.nanmedian(0, keepdim=True)[0], INTEGERS),
    "nanquantile": (lambda x: x.nanquantile(0.3, dim=1), HOLES),
    "nanquantile of all": (lambda x: x.nanquantile(0.7), HOLES),
    "nanquantile kept": (lambda x: x.nanquantile(0.7, 0, keepdim=True), HOLES),
    "mode": (lambda x: x.mode()[0], INTEGERS // 10),
    "places of mode": (lambda x: x.mode(0)[1], INTEGERS // 15),
    "mode with a gradient": (lambda x: x.mode(1)[0], np.round(X)),
    "histogram": (lambda x: x.detach().histogram(4, range=(-1.0, 1.0))[0], X),
    "edges of a histogram": (lambda x: x.detach().histogram(4)[1], X),
    "density": (lambda x, w: x.detach().histogram(4, weight=w.detach(), density=True)[0], X, POSITIVE),
    "hardshrink": (lambda x: x.hardshrink(0.7), X),
    "prelu": (lambda x, w: x.prelu(w), X, RNG.normal(size=5)),
    "put": (lambda x, i, y: x.put(i, y), X, PLACES[:2] * 4, RNG.normal(size=2)),
    "put accumulated": (lambda x, i, y: x.put(i, y, accumulate=True), X, PLACES * 4 - 9, RNG.normal(size=3)),
    "put_": (lambda x, i, y: (x * 1).put_(i, y, True), X, PLACES, RNG.normal(size=3)),
    "index_reduce": (lambda x, i, y: x.index_reduce(0, i, y, "mean"), X, PLACES, RNG.normal(size=(3, 5))),
    "index_reduce new": (
        lambda x, i, y: x.index_reduce(1, i, y, "mean", include_self=False), X, PLACES, RNG.normal(size=(3, 3)),
    ),
    "nonzero_static": (lambda x: x.nonzero_static(size=20), INTEGERS % 3),
    "nonzero_static short": (lambda x: x.nonzero_static(size=2, fill_value=7), INTEGERS % 3),
    "div trunc": (lambda x, y: x.div(y, rounding_mode="trunc"), X * 9, X[::-1].copy()),
    "div floor": (lambda x, y: x.div(y, rounding_mode="floor"), X * 9, X[::-1].copy()),
    "div_ trunc": (lambda x, y: (x * 1).div_(y, rounding_mode="trunc"), X * 9, X[::-1].copy()),
    "integers trunc": (lambda x, y: x.div(y * 2 + 1, rounding_mode="trunc"), INTEGERS * 10**15 + 1, OTHERS),
    "integers floor": (lambda x, y: x.div(y * 2 + 1, rounding_mode="floor"), INTEGERS, OTHERS),
    "integers trunc by a number": (lambda x: x.div(-7, rounding_mode="trunc"), INTEGERS),
    "integers trunc by a fraction": (lambda x: x.div(0.7, rounding_mode="trunc"), INTEGERS),
    "unsafe_chunk": (lambda x: x.unsafe_chunk(2)[1], X),
    "unsafe_split": (lambda x: x.unsafe_split(2, 1)[2], X),
    "unsafe_split_with_sizes": (lambda x: x.unsafe_split_with_sizes((1, 4), 1)[1], X),
    "cdouble": (lambda x: x.cdouble().abs(), X),
    "H": (lambda x: x.H, X),
    "t_": (lambda x: (x * 1).t_(), X),
    "transpose_": (lambda x: (x * 1).transpose_(0, 1).sin(), X),
    "swapaxes_": (lambda x: (x * 1).swapaxes_(0, 1), X),
    "swapdims_": (lambda x: (x * 1).swapdims_(-1, 0), X),
    "squeeze_": (lambda x: (x * 1).unsqueeze_(1).squeeze_(), X),
    "unsqueeze_": (lambda x: (x * 1).unsqueeze_(-1), X),
    "det": (lambda x: x.det(), MATRIX),
    "logdet": (lambda x: x.logdet(), DEFINITE),
    "logdet of a negative one": (lambda x: x.detach().logdet(), np.diag([1.0, -1.0])),
    "slogdet": (lambda x: x.slogdet()[1], MATRIX),
    "inverse": (lambda x: x.inverse(), MATRIX),
    "pinverse": (lambda x: x.pinverse(), X),
    "cholesky": (lambda x: (x @ x.mT).cholesky(upper=True), MATRIX),
    "cholesky_inverse": (lambda x: x.tril().cholesky_inverse(), DEFINITE),
    "cholesky_inverse upper": (lambda x: x.triu().cholesky_inverse(upper=True), DEFINITE),
    "cholesky_solve": (lambda b, x: b.cholesky_solve(x.tril()), X, DEFINITE),
    "cholesky_solve upper": (lambda b, x: b.cholesky_solve(x.triu(), upper=True), X, DEFINITE),
    "triangular_solve": (lambda b, x: b.triangular_solve(x)[0], X, DEFINITE),
    "triangular_solve transposed": (
        lambda b, x: b.triangular_solve(x, upper=False, transpose=True, unitriangular=True)[0], X, DEFINITE,
    ),
    "qr": (lambda x: x.qr()[1], MATRIX),
    "svd": (lambda x: x.svd()[2].abs(), X),
    "svd of values alone": (lambda x: x.svd(compute_uv=False)[1], X),
    "matrix_exp": (lambda x: x.matrix_exp(), MATRIX),
    "matrix_power": (lambda x: x.matrix_power(-3), MATRIX),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_pytorchs(name):
    call, *arrays = CASES[name]
    floating = [a.dtype.kind == "f" for a in arrays]
    theirs = [torch.tensor(a, requires_grad=f) for a, f in zip(arrays, floating)]
    ours = [lz.tensor(a, requires_grad=f) for a, f in zip(arrays, floating)]
    wanted, found = call(*theirs), call(*ours)
    assert str(found.dtype).split(".")[-1] == str(wanted.dtype).split(".")[-1]
    assert tuple(found.shape) == tuple(wanted.shape)
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-11, atol=1e-13)
    if not wanted.requires_grad:
        return
    weights = np.random.default_rng(1).normal(size=wanted.shape)
    (wanted * torch.tensor(weights)).sum().backward()
    if found.requires_grad:
        (found * lz.tensor(weights)).sum().backward()
    for o, t in zip(ours, theirs):
        if t.grad is not None:  # a gradient of zeros may be none at all
            mine = np.zeros(t.shape) if o.grad is None else o.grad.numpy()
            np.testing.assert_allclose(mine, t.grad.numpy(force=True), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["erfinv", "i0", "mvlgamma", "polygamma"])
def test_special_functions_in_single_precision(name):
    x = np.array([0.6, 0.9, 0.99, 0.3] if name == "erfinv" else [0.6, 3.0, 9.0, 80.0], np.float32)
    arguments = {"mvlgamma": (2,), "polygamma": (3,)}.get(name, ())
    found, wanted = getattr(lz.tensor(x), name)(*arguments), getattr(torch.tensor(x), name)(*arguments)
    assert found.dtype is lz.float32
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=3e-6)
    assert getattr(lz.tensor(x).half(), name)(*arguments).dtype is lz.float16


@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma_functions(name):
    a = np.concatenate(
        [POSITIVE.ravel(), POSITIVE.ravel() * 20, [0.01, 30.0, 1e4, 0.0, -1.0, 2.0, 2.0, np.inf, np.inf, 0.0]]
    )
    x = np.concatenate(
        [
            POSITIVE[::-1].ravel(),
            POSITIVE.ravel() * 20 + 3,
            [1e-8, 31.0, 1.01e4, 3.0, 1.0, 0.0, np.inf, 1.0, np.inf, 0.0],
        ]
    )
    other, mine = torch.tensor(x, requires_grad=True), lz.tensor(x, requires_grad=True)
    wanted, found = getattr(torch.tensor(a), name)(other), getattr(lz.tensor(a), name)(mine)
    # PyTorch's own are good to some 1e-9 where the operands are nearly equal
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=3e-9, atol=1e-300)
    wanted[:-10].sum().backward()
    found[:-10].sum().backward()
    np.testing.assert_allclose(mine.grad.numpy()[:-10], other.grad.numpy()[:-10], rtol=1e-11)
    for n in (1, 5, 40):  # one minus the chance of n events and more
        x = n * 1.1
        tail = math.fsum(math.exp(-x) * x**k / math.factorial(k) for k in range(n))
        exact = tail if name == "igammac" else 1 - tail
        result = getattr(lz.tensor(float(n), dtype=lz.float64), name)(lz.tensor(x, dtype=lz.float64))
        assert result.item() == pytest.approx(exact, rel=1e-13)


def test_the_trigamma_function_is_a_zeta_function():
    np.testing.assert_allclose(
        lz.tensor(POSITIVE).polygamma(1).numpy(),
        torch.special.zeta(torch.tensor(2.0), torch.tensor(POSITIVE)),
        rtol=1e-12,
    )


def test_functions_at_the_top_level():
    x = lz.tensor(POSITIVE)
    np.testing.assert_array_equal(lz.polygamma(2, x).numpy(), x.polygamma(2).numpy())
    np.testing.assert_array_equal(lz.det(lz.tensor(MATRIX)).numpy(), lz.linalg.det(lz.tensor(MATRIX)).numpy())
    values, places = lz.mode(lz.tensor([1, 2, 2, 1, 2]))
    assert (values.item(), places.item()) == (2, 4)
    with pytest.raises(ValueError, match="not negative"):
        lz.polygamma(-1, x)
    assert lz.polygamma(2, lz.tensor(-0.5)).item() == pytest.approx(torch.polygamma(2, torch.tensor(-0.5)).item())


def test_shapes_in_place_are_refused_where_others_share_the_memory():
    x = lz.ones(2, 3)
    view = x[0]
    with pytest.raises(RuntimeError, match="t_: a view, and what has views, keeps its shape"):
        x.t_()
    with pytest.raises(RuntimeError, match="unsqueeze_"):
        view.unsqueeze_(0)
    p = lz.nn.Parameter(lz.ones(2, 3))
    with pytest.raises(RuntimeError, match="leaf"):
        p.t_()
    y = lz.ones(2, 3)
    z = y * 2
    assert y.t_() is y and y.shape == (3, 2) and z.shape == (2, 3)
    y += 1
    assert y.tolist() == [[2.0, 2.0]] * 3


def test_integers_and_rounding_modes_are_asked_for():
    with pytest.raises(TypeError, match="gcd: integers are needed, got float32"):
        lz.ones(2).gcd(lz.ones(2))
    with pytest.raises(ValueError, match="rounding_mode"):
        lz.ones(2).div(2, rounding_mode="up")


def test_what_a_tensor_never_is():
    x = lz.ones(2, 3)
    assert not (x.is_mps or x.is_xla or x.is_mkldnn or x.is_sparse_csr or x.is_shared() or x.is_distributed())
    assert x.output_nr == 0 and x.dim_order() == (0, 1) and x.is_set_to(x) and not x.is_set_to(lz.ones(2, 3))
