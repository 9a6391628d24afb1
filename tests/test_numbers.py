"""Numbers people can trust: sums of many alike, roundings in half precision, NaN, infinities and signed zeros."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F

torch = pytest.importorskip("torch")

# -- long sums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1_000_000,), 0), ((4, 3, 200, 200), (0, 2, 3)), ((3, 100_000), 1), ((9, 2, 5000), (0, 2))],
    ids=str,
)  # fmt: skip
def test_the_mean_of_many_numbers_that_are_nearly_equal(shape, axes):
    for number in (160.1, 7.7):
        x = (number * (1 + 1e-6 * np.random.default_rng(1).standard_normal(shape))).astype(np.float32)
        exact = x.astype(np.float64).mean(axes)
        assert np.abs(lz.tensor(x).mean(axes).numpy() / exact - 1).max() < 1e-6


def test_sums_of_nothing():
    for shape, axes in (
        ((3, 0), (0, 1)),
        ((2, 5000, 0), (1, 2)),
        ((0, 5000), (0, 1)),
        ((0, 5000), 1),
        ((7, 0, 2), (0, 1)),
    ):
        x = np.zeros(shape, np.float32)
        for data in (lz.tensor(x), lz.tensor(x) + 1):
            np.testing.assert_array_equal(data.sum(axes).numpy(), x.sum(axes))


def test_statistics_of_a_batch_whose_mean_is_large():
    """In one sum after the other the mean would be 0.001 off, which is a fiftieth of the standard deviation."""
    x = (160.1 + 0.05 * np.random.default_rng(0).standard_normal((4, 3, 200, 200))).astype(np.float32)
    mean, var = lz.zeros(3), lz.ones(3)
    y = F.batch_norm(lz.tensor(x), mean, var, training=True, momentum=1.0, eps=0.0)
    wide = x.astype(np.float64)
    exact = (wide - wide.mean((0, 2, 3), keepdims=True)) / wide.std((0, 2, 3), keepdims=True)
    assert np.abs(y.numpy() - exact).max() < 1e-3
    assert np.abs(mean.numpy() - wide.mean((0, 2, 3))).max() < 5e-5
    np.testing.assert_allclose(var.numpy(), wide.var((0, 2, 3), ddof=1), rtol=5e-6)


# -- half precision -------------------------------------------------------------------------------------------------

HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROUNDED_ONCE = {
    "number / x": (lambda x, y: 0.3 / x, lambda x, y: 0.3 / x),
    "x / number": (lambda x, y: x / 0.3, lambda x, y: x / 0.3),
    "add": (lambda x, y: lz.add(x, y, alpha=0.3), lambda x, y: x + 0.3 * y),
    "sub": (lambda x, y: lz.sub(x, y, alpha=0.3), lambda x, y: x - 0.3 * y),
    "addcmul": (lambda x, y: lz.addcmul(x, x, y, value=0.3), lambda x, y: x + 0.3 * x * y),
    "addcdiv": (lambda x, y: lz.addcdiv(x, x, y, value=0.3), lambda x, y: x + 0.3 * x / y),
    "lerp": (lambda x, y: lz.lerp(x, y, 0.3), lambda x, y: x + 0.3 * (y - x)),
    "logit": (lambda x, y: x.sigmoid().logit(), lambda x, y: np.log(x) - np.log1p(-x)),
    "trigamma": (lambda x, y: x.abs().polygamma(1), lambda x, y: _trigamma(np.abs(x))),
}


def _trigamma(x):
    return torch.polygamma(1, torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("name", ROUNDED_ONCE)
@pytest.mark.parametrize("dtype", HALF)
def test_composed_functions_of_half_precision_are_rounded_once(name, dtype):
    """Within half a unit in the last place of the result in float64: plain numbers are not rounded first."""
    rng = np.random.default_rng(0)
    x, y = ((3 * rng.standard_normal(2000) + 0.01).astype(np.float32).astype(HALF[dtype]) for _ in range(2))
    ours, exact = ROUNDED_ONCE[name]
    if name == "logit":
        x = lz.tensor(x).sigmoid().numpy()
        x = x[(x > 0) & (x < 1)]
        ours = lambda x, y: x.logit()
    found = ours(lz.tensor(x), lz.tensor(y))
    assert found.dtype.name == dtype
    wide = exact(x.astype(np.float64), y.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        unit = np.spacing(np.abs(wide).astype(HALF[dtype])).astype(np.float64)
    finite = np.abs(wide) < float(ml_dtypes.finfo(HALF[dtype]).max) * 0.99
    assert np.all(np.abs(found.numpy().astype(np.float64) - wide)[finite] <= 0.51 * unit[finite])


@pytest.mark.parametrize("dtype", HALF)
def test_a_plain_divisor_is_not_rounded_to_half_precision(dtype):
    x = (3 * np.random.default_rng(0).standard_normal(2000)).astype(np.float32).astype(HALF[dtype])
    wanted = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)) // 0.3
    np.testing.assert_array_equal((lz.tensor(x) // 0.3).numpy().astype(np.float32), wanted.float().numpy())


def test_interpolation_ends_exactly_at_the_end():
    x, end = lz.tensor([1.0, 1e8, -3.0]), lz.tensor([1e-8, 0.1, 7.7])
    assert x.lerp(end, 1.0).tolist() == end.tolist()


# -- NaN, infinities, zeros -----------------------------------------------------------------------------------------

EDGES = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3, 6, -3, 0.5, -0.5, 1e-30, -1e-30, 3e38, -3e38, -1e9], np.float32
)
OF_ONE = {
    "relu": lambda m, f, x: f.relu(x),
    "relu6": lambda m, f, x: f.relu6(x),
    "hardtanh": lambda m, f, x: f.hardtanh(x),
    "threshold": lambda m, f, x: f.threshold(x, 0.1, 7.0),
    "hardshrink": lambda m, f, x: f.hardshrink(x),
    "softshrink": lambda m, f, x: f.softshrink(x),
    "leaky_relu": lambda m, f, x: f.leaky_relu(x, 0.1),
    "clamp": lambda m, f, x: x.clamp(-1, 1),
    "clamp from below": lambda m, f, x: x.clamp(min=0.5),
    "sinc": lambda m, f, x: m.sinc(x.clamp(-10, 10)),
    "acosh": lambda m, f, x: m.acosh(x),
    "digamma": lambda m, f, x: m.digamma(x.clamp(-0.7, 6)),
    "max": lambda m, f, x: x.max(),
    "min": lambda m, f, x: x.min(),
    "logit": lambda m, f, x: m.logit(x.clamp(0, 1)),
    "nan_to_num": lambda m, f, x: m.nan_to_num(x),
}
OF_TWO = {
    "maximum": lambda m, f, x, y: m.maximum(x, y),
    "minimum": lambda m, f, x, y: m.minimum(x, y),
    "fmax": lambda m, f, x, y: m.fmax(x, y),
    "fmin": lambda m, f, x, y: m.fmin(x, y),
    "clamp": lambda m, f, x, y: m.clamp(x, y, y + 1),
    "copysign": lambda m, f, x, y: m.copysign(x, y),
    "atan2": lambda m, f, x, y: m.atan2(x, y),
    "logaddexp": lambda m, f, x, y: m.logaddexp(x, y),
}


def _same_with_gradients(function, *arrays, rtol=1e-5):
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ours = [lz.tensor(a.copy()).requires_grad_() for a in arrays]
    y, z = function(lz, F, *ours), function(torch, torch.nn.functional, *theirs)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=rtol, atol=1e-30)
    lz.autograd.backward([y], [lz.ones(*y.shape)])
    for mine, wanted in zip(ours, torch.autograd.grad(z, theirs, torch.ones(z.shape))):
        np.testing.assert_allclose(mine.grad.numpy(), wanted.numpy(), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_edge_values_are_pytorchs(name):
    _same_with_gradients(OF_ONE[name], EDGES)


@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_edge_values_are_pytorchs(name):
    _same_with_gradients(OF_TWO[name], np.repeat(EDGES, len(EDGES)), np.tile(EDGES, len(EDGES)))


def test_gradients_where_a_factor_is_zero_or_a_square_vanishes():
    x = np.array([0.0, 0.0, 2.0, 0.0], np.float32)
    _same_with_gradients(lambda m, f, x, y: m.xlogy(x, y), x, np.array([3.0, 0.5, 4.0, 1e-3], np.float32))
    tiny = lz.tensor([1e-40, 0.0, 3e-39]).requires_grad_()
    lz.hypot(tiny, lz.tensor([0.0, 0.0, 4e-39])).sum().backward()
    np.testing.assert_allclose(tiny.grad.numpy(), [1, 0, 0.6], rtol=1e-5)


ROWS = np.array([[-np.inf] * 3, [np.inf, 1, 2], [np.inf, np.inf, -np.inf], [np.nan, 1, 2], [-np.inf, 1, -np.inf]], np.float32)  # fmt: skip


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_rows_of_infinities_and_nan_are_pytorchs(name):
    _same_with_gradients(lambda m, f, x: getattr(m, name)(x, 1), ROWS)


@pytest.mark.parametrize("length", [5, 130])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_with_rows_that_see_nothing(length, kind):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, length, 4)).astype(np.float32) for _ in range(3))
    mask = np.ones((length, length), bool)
    mask[1], mask[3, :-1] = False, False
    given = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype(np.float32)
    _same_with_gradients(
        lambda m, f, q, k, v: f.scaled_dot_product_attention(q, k, v, attn_mask=m.tensor(given)), q, k, v, rtol=1e-3
    )


def test_quantiles_between_infinities():
    x = np.array([-np.inf, -np.inf, 0, np.inf, np.inf], np.float32)
    for q in (0.1, 0.4, 0.6, 0.9):
        for name in ("quantile", "nanquantile"):
            found = getattr(lz, name)(lz.tensor(x), q).numpy()
            np.testing.assert_array_equal(found, getattr(torch, name)(torch.tensor(x), q).numpy())


# -- integers -------------------------------------------------------------------------------------------------------


def test_averages_of_integers_are_cut_off():
    x = np.random.default_rng(0).integers(-50, 50, (2, 3, 9, 9))
    for options in (
        {},
        {"stride": 2, "padding": 1},
        {"padding": 1, "count_include_pad": False},
        {"divisor_override": 7},
    ):
        wanted = torch.nn.functional.avg_pool2d(torch.tensor(x), 3, **options)
        np.testing.assert_array_equal(F.avg_pool2d(lz.tensor(x), 3, **options).numpy(), wanted.numpy())


@pytest.mark.parametrize("ends", [(0.5, 9.7), (-3.2, 3.9), (4.3, 0)], ids=str)
def test_integers_between_two_ends(ends):
    for steps in (2, 4, 7):
        for name in ("linspace", "logspace"):
            found = getattr(lz, name)(*ends, steps, dtype=lz.int64)
            assert found.tolist() == getattr(torch, name)(*ends, steps, dtype=torch.int64).tolist()


def test_blends_of_bytes_are_rounded_and_of_other_integers_refused():
    x = np.random.default_rng(0).integers(0, 256, (1, 2, 9, 7), np.uint8)
    for mode in ("bilinear", "bicubic"):
        wide = torch.nn.functional.interpolate(torch.tensor(x).double(), (5, 13), mode=mode).numpy()
        found = F.interpolate(lz.tensor(x), (5, 13), mode=mode)
        assert found.dtype is lz.uint8 and np.abs(found.numpy() - wide.clip(0, 255)).max() <= 0.5 + 1e-4
        with pytest.raises(TypeError, match="floating dtype"):
            F.interpolate(lz.tensor(x.astype(np.int64)), (5, 13), mode=mode)


# -- shapes and dtypes ----------------------------------------------------------------------------------------------


def test_one_variance_for_each_row_of_a_gaussian():
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((2, 5, 5)).astype(np.float32)
    var = np.abs(rng.standard_normal(5)).astype(np.float32)
    var[1], var[2] = 1e-9, np.inf
    _same_with_gradients(lambda m, f, x, t, v: f.gaussian_nll_loss(x, t, v, eps=0.1, reduction="none"), x, target, var)
    with pytest.raises(ValueError, match="not broadcast"):
        F.gaussian_nll_loss(lz.tensor(x), lz.tensor(target), lz.ones(4))


def test_random_complex_numbers_have_variance_one():
    z = lz.randn(20_000, dtype=lz.complex64)
    assert math.isclose(float(z.real().var()), 0.5, rel_tol=0.05) and math.isclose(
        float(z.imag().var()), 0.5, rel_tol=0.05
    )
    assert abs(float((z.real() * z.imag()).mean())) < 0.02
