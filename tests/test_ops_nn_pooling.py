"""Pooling: parity with PyTorch to second order, and the corners of its geometry."""

# ruff: noqa: B023 -- the functions made in a loop are called before it goes on

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import lezero as lz  # noqa: E402
import lezero.nn.functional as nn  # noqa: E402
from lezero.graph.dtype import float64  # noqa: E402
from lezero.ops.pooling import adaptive_avg_pool, avg_pool, max_pool, max_pool_index  # noqa: E402
from op_parity import both_roads, check, make_leaves  # noqa: E402

F = torch.nn.functional


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


@st.composite
def geometries(draw, dilated):
    n = draw(st.sampled_from([1, 2]))
    each = lambda s: tuple(draw(s) for _ in range(n))
    kernel = each(st.integers(1, 4))
    return {
        "extents": each(st.integers(1, 9)),
        "kernel": kernel,
        "stride": each(st.integers(1, 4)),
        "padding": tuple(draw(st.integers(0, k // 2)) for k in kernel),
        "dilation": each(st.integers(1, 3)) if dilated else (1,) * n,
        "ceil_mode": draw(st.booleans()),
    }


def fits(g):
    """There is a window, and none sees padding alone (where PyTorch's gradient goes to whatever is there)."""
    axes = list(zip(g["extents"], g["padding"], g["dilation"], g["kernel"], g["stride"]))
    return all(
        n + 2 * p >= d * (k - 1) + 1
        and all(any(0 <= start + t * d < n for t in range(k)) for start in range(-p, n + p - d * (k - 1), s))
        for n, p, d, k, s in axes
    )


@settings(max_examples=60, deadline=None)
@given(geometries(dilated=True))
def test_max_pool(geometry):
    assume(fits(geometry))
    extents = geometry.pop("extents")
    x = normal(2, 3, *extents)
    pool = F.max_pool1d if len(extents) == 1 else F.max_pool2d

    def theirs(x):
        return pool(
            x, geometry["kernel"], geometry["stride"], geometry["padding"], geometry["dilation"], geometry["ceil_mode"]
        )

    check(lambda x: max_pool(x, **geometry), theirs, x)


@settings(max_examples=60, deadline=None)
@given(geometries(dilated=False), st.booleans(), st.sampled_from([None, None, 3]))
def test_avg_pool(geometry, count_include_pad, divisor):
    assume(fits(geometry))
    extents = geometry.pop("extents")
    del geometry["dilation"]
    one = len(extents) == 1
    counting = {"count_include_pad": count_include_pad, "divisor_override": None if one else divisor}
    x = normal(2, 3, *extents)

    def theirs(x):
        args = geometry["kernel"], geometry["stride"], geometry["padding"], geometry["ceil_mode"], count_include_pad
        return F.avg_pool1d(x, *args) if one else F.avg_pool2d(x, *args, divisor)

    check(lambda x: avg_pool(x, **geometry, **counting), theirs, x)


def test_of_equal_maxima_the_first_gets_the_gradient():
    x = np.ones((1, 1, 4, 4))
    window = {"kernel": (2, 2), "stride": (1, 1)}
    check(lambda x: max_pool(x, **window), lambda x: F.max_pool2d(x, 2, 1), x)


@st.composite
def odd_values(draw):
    """A pooling of values among which NaN, infinities and equal ones are frequent."""
    geometry = draw(geometries(dilated=True))
    shape = (2, draw(st.sampled_from([1, 3, 17])), *geometry.pop("extents"))
    values = np.array([np.nan, -np.inf, np.inf, 1.0, 2.0])
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.choice(values, shape, p=[0.15, 0.45, 0.1, 0.15, 0.15]), geometry


@settings(max_examples=60)
@given(odd_values())
def test_the_gradient_goes_where_pytorch_sends_it(drawn):
    x, geometry = drawn
    assume(fits({"extents": x.shape[2:], **geometry}))
    pool = F.max_pool1d if x.ndim == 3 else F.max_pool2d
    order = [geometry[k] for k in ("kernel", "stride", "padding", "dilation", "ceil_mode")]
    check(lambda x: max_pool(x, **geometry), lambda x: pool(x, *order), x, order=1)


LARGE = [
    {"kernel": (13, 11), "stride": (1, 1), "padding": (6, 5), "dilation": (1, 1)},
    {"kernel": (12, 9), "stride": (1, 2), "padding": (3, 0), "dilation": (2, 1)},
    {"kernel": (9, 33), "stride": (1, 3), "padding": (4, 16), "dilation": (1, 2)},
]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("window", LARGE)
def test_large_windows_are_pooled_one_dimension_after_the_other(window, ceil_mode):
    rng = np.random.default_rng(0)
    order = [*window.values(), ceil_mode]
    everywhere = rng.choice(np.array([-np.inf, 1.0, 2.0]), (2, 2, 40, 70), p=[0.5, 0.3, 0.2])
    rare = np.where(rng.random((1, 2, 40, 70)) < 0.01, np.nan, normal(1, 2, 40, 70))
    for x in (everywhere, rare, np.full((1, 1, 30, 67), -np.inf)):
        check(lambda x: max_pool(x, **window, ceil_mode=ceil_mode), lambda x: F.max_pool2d(x, *order), x, order=1)
        found = positions(x, window, ceil_mode)
        np.testing.assert_array_equal(found, F.max_pool2d(torch.tensor(x), *order, return_indices=True)[1])


def positions(x, window, ceil_mode):
    """What ``return_indices`` gives."""
    (here,), values = make_leaves([x])
    (tap,) = both_roads([max_pool_index(here, **window, ceil_mode=ceil_mode).node], values, 0)
    at = 0
    for axis, size in ((0, x.shape[2]), (1, x.shape[3])):
        inside = tap // window["kernel"][1] if axis == 0 else tap % window["kernel"][1]
        start = np.arange(tap.shape[2 + axis]) * window["stride"][axis] - window["padding"][axis]
        place = start.reshape((-1, 1) if axis == 0 else (1, -1)) + inside * window["dilation"][axis]
        at = at * size + place
    return at


def test_adaptive_maxima_follow_the_rules_of_pooling():
    rng = np.random.default_rng(0)
    for shape, bins in (((2, 3, 7), (3,)), ((2, 3, 7, 9), (3, 4)), ((1, 2, 8, 6), (4, 3)), ((1, 2, 5, 5), (7, 3))):
        x = rng.choice(np.array([np.nan, -np.inf, 1.0, 2.0]), shape, p=[0.15, 0.35, 0.25, 0.25])
        mine, theirs = lz.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        name = f"adaptive_max_pool{len(bins)}d"
        y, z = getattr(nn, name)(mine, bins), getattr(F, name)(theirs, bins)
        dy = normal(*z.shape)
        y.backward(lz.tensor(dy))
        z.backward(torch.tensor(dy))
        np.testing.assert_array_equal(y.numpy(), z.detach().numpy())
        np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), atol=1e-12)


def test_nan_is_the_maximum():
    x = normal(1, 1, 5, 5)
    x[0, 0, 2, 2] = np.nan
    window = {"kernel": (2, 2), "stride": (2, 2)}
    check(lambda x: max_pool(x, **window), lambda x: F.max_pool2d(x, 2), x, order=1)


def test_max_pool_of_integers_and_of_an_empty_batch():
    x = np.arange(-50, 0).reshape(1, 2, 5, 5)
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
    check(lambda x: max_pool(x, **window), lambda x: F.max_pool2d(x, 3, 2, 1), x, order=0)
    check(lambda x: max_pool(x, **window), lambda x: F.max_pool2d(x, 3, 2, 1), normal(0, 2, 5, 5))


def test_index_numbers_the_taps_of_the_kernel():
    x = np.array([[[1.0, 5.0, 2.0, 0.0]]])
    found = check(
        lambda x: max_pool_index(x, kernel=(2,), stride=(2,), padding=(0,), dilation=(1,)),
        lambda x: torch.tensor([[[1, 0]]]),
        x,
        order=0,
    )
    assert found.dtype == np.int64


@pytest.mark.parametrize("output", [(1, 1), (2, 3), (4, 6), (8, 6), (3, 5), (11, 7)])
def test_adaptive_avg_pool(output):
    check(lambda x: adaptive_avg_pool(x, output=output), lambda x: F.adaptive_avg_pool2d(x, output), normal(2, 3, 8, 6))


@pytest.mark.parametrize("output", [1, 3, 4])
def test_adaptive_avg_pool_in_one_dimension(output):
    check(lambda x: adaptive_avg_pool(x, output=(output,)), lambda x: F.adaptive_avg_pool1d(x, output), normal(2, 3, 8))


def test_one_pixel():
    x = normal(2, 3, 1, 1)
    for ours, theirs in ((max_pool, F.max_pool2d), (avg_pool, F.avg_pool2d)):
        check(lambda x: ours(x, kernel=(1, 1)), lambda x: theirs(x, 1), x)
    check(lambda x: adaptive_avg_pool(x, output=(2, 2)), lambda x: F.adaptive_avg_pool2d(x, 2), x)


def test_what_does_not_fit_is_said():
    (x,), _ = make_leaves([normal(1, 1, 4, 4)])
    assert x.dtype is float64
    with pytest.raises(ValueError, match=r"max_pool: no window of \(5, 5\)"):
        max_pool(x, kernel=(5, 5))
    with pytest.raises(ValueError, match="between 0 and half of the kernel"):
        avg_pool(x, kernel=(2, 2), padding=(2, 0))
    with pytest.raises(ValueError, match="adaptive_avg_pool: "):
        adaptive_avg_pool(x, output=(0, 1))
