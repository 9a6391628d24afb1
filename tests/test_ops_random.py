"""Sources: ranges and constants, and Philox against its published answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lezero.graph.dtype import by_name, float32, float64, int64, uint32
from lezero.ops import creation, random
from lezero.ops.expr import evaluate, leaf
from op_cases import run_source, variable
from op_parity import make_leaves, take_apart

X = leaf((), float32)


def value_of(y):
    return evaluate([y.node], {})[0]


@pytest.mark.parametrize("key, counter, words", [
    # Random123's known-answer tests
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])  # fmt: skip
def test_philox_gives_the_published_words(key, counter, words):
    assert tuple(int(w) for w in random.philox_words(key, counter)) == words


@settings(max_examples=10, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_philox_in_loop_ir_gives_the_same_words(seed, offset, word):
    numbers = {"seed": np.asarray(seed, np.int64), "offset": np.asarray(offset, np.int64)}
    state, values = make_leaves(list(numbers.values()))
    shape = (2, 0, 3) if word == 3 else (2, 5, 3)
    y = random.philox(*state, shape=shape, word=word)
    inputs = (variable("seed", "i64"), variable("offset", "i64"))
    got = run_source(random.philox, shape, uint32, {"shape": shape, "word": word}, inputs, numbers)
    np.testing.assert_array_equal(got, evaluate([y.node], values)[0])


STATE, VALUES = make_leaves([np.asarray(1234), np.asarray(5)])


def drawn(y):
    """By reference, checked against the decomposition."""
    (direct,) = evaluate([y.node], VALUES)
    (apart,) = evaluate(take_apart([y.node]), VALUES)
    np.testing.assert_allclose(apart.astype(np.float64), direct.astype(np.float64), rtol=1e-5, atol=1e-6)
    return direct


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform_numbers_are_uniform_and_below_one(dtype):
    x = drawn(random.uniform(*STATE, shape=(20000,), dtype=by_name(dtype))).astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    assert abs(x.mean() - 0.5) < 0.02 and abs(x.var() - 1 / 12) < 0.005
    assert np.histogram(x, 10, (0, 1))[0].min() > 1800


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_normal_numbers_have_the_moments(dtype):
    x = drawn(random.normal(*STATE, shape=(200, 100), dtype=by_name(dtype))).astype(np.float64)
    assert np.isfinite(x).all()
    for power, moment, slack in ((1, 0, 0.03), (2, 1, 0.04), (3, 0, 0.12), (4, 3, 0.25)):
        assert abs((x**power).mean() - moment) < slack


@pytest.mark.parametrize("low, high", [(0, 1), (-3, 4), (0, 1 << 20), (-(1 << 61), 1 << 61)])
def test_whole_numbers_fill_their_range(low, high):
    x = drawn(random.randint(*STATE, low=low, high=high, shape=(5000,)))
    assert x.dtype == np.int64 and x.min() >= low and x.max() < high
    assert abs(x.astype(np.float64).mean() - (low + high - 1) / 2) < 0.03 * (high - low)


def test_bernoulli_follows_each_probability():
    p = np.repeat([0.0, 0.25, 1.0], 8000)
    (x,), values = make_leaves([p])
    (hits,) = evaluate([random.bernoulli(x, *STATE).node], values | VALUES)
    first, second, third = hits.reshape(3, -1).mean(1)
    assert first == 0 and third == 1 and abs(second - 0.25) < 0.02


def test_permutations_hold_every_number_once():
    (x,) = evaluate([random.randperm(100, *STATE).node], VALUES)
    assert sorted(x) == list(range(100)) and list(x) != sorted(x)


def test_calls_and_seeds_differ_and_repeat():
    def bits(seed, offset):
        state, values = make_leaves([np.asarray(seed), np.asarray(offset)])
        return evaluate([random.philox(*state, shape=(64,)).node], values)[0]

    assert (bits(1, 2) == bits(1, 2)).all()
    assert not (bits(1, 2) == bits(1, 3)).any() and not (bits(1, 2) == bits(2, 2)).any()


# -- ranges ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([1, 2, 5, -1, -3]), st.sampled_from([1, 0.5, 0.3]))
def test_arange_is_numpys(start, stop, step, scale):
    dtype = int64 if scale == 1 else float64
    attrs = {"start": start, "stop": stop, "step": step * scale if scale != 1 else step, "dtype": dtype}
    y = creation.arange(**attrs, like=X)
    want = np.arange(start, stop, attrs["step"])
    np.testing.assert_allclose(value_of(y), want, atol=1e-12)
    np.testing.assert_allclose(run_source(creation.arange, want.shape, dtype, attrs), want, atol=1e-12)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 8])
def test_linspace_meets_both_ends(steps):
    attrs = {"start": -1.5, "stop": 4.1, "steps": steps, "dtype": float64}
    y = value_of(creation.linspace(**attrs, like=X))
    np.testing.assert_allclose(y, np.linspace(-1.5, 4.1, steps), rtol=1e-14)
    np.testing.assert_allclose(run_source(creation.linspace, (steps,), float64, attrs), y, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16", "complex64"])
def test_constants_and_diagonals(dtype):
    dtype = by_name(dtype)
    attrs = {"shape": (2, 3), "value": 1, "dtype": dtype}
    y = creation.full(**attrs, like=X)
    assert y.dtype is dtype
    np.testing.assert_array_equal(run_source(creation.full, (2, 3), dtype, attrs).astype(dtype.numpy), value_of(y))
    attrs = {"n": 3, "m": 2, "dtype": dtype}
    want = np.eye(3, 2, dtype=dtype.numpy)
    np.testing.assert_array_equal(value_of(creation.eye(**attrs, like=X)), want)
    np.testing.assert_array_equal(run_source(creation.eye, (3, 2), dtype, attrs).astype(dtype.numpy), want)


@pytest.mark.parametrize("call, error, words", [
    (lambda: creation.arange(start=0, stop=3, step=0, like=X), ValueError, "step must not be 0"),
    (lambda: random.uniform(X, X, shape=(2,)), TypeError, "0-d int64"),
    (lambda: random.randint(*STATE, low=3, high=3, shape=(2,)), ValueError, "low < high"),
    (lambda: random.uniform(*STATE, shape=(2,), dtype=int64), TypeError, "floating"),
    (lambda: creation.full(shape=(2,)), TypeError, "no tensor"),
])  # fmt: skip
def test_misuse_is_refused_with_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call()
