"""Loops over a dimension that something read has in two parts are two loops, and give what one gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lezero as lz
from lezero.hal import registry
from lezero.runtime import run

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about generated code")


def kernels():
    return [q.key for steps in run.statistics.last[0].program.schedule.steps for s in steps for q in s.sources]


def divided_lanes(key):
    """Divisions of the variables of vector loops."""
    lanes = re.findall(r"for (\w+) < [^\n]* vector", key)
    return [v for v in lanes if re.search(rf"\b{v} (//|%)", key)]


@native
def test_heads_and_their_features_are_loops_of_their_own():
    values = np.random.default_rng(0).normal(size=(2, 3, 40, 32)).astype("f4")
    x = lz.tensor(values)
    joined = x.permute(0, 2, 1, 3).reshape(80, 96) + 1.0
    total = joined.sum(0)
    lz.realize(joined, total)
    assert not any(map(divided_lanes, kernels()))
    expected = values.transpose(0, 2, 1, 3).reshape(80, 96) + 1
    np.testing.assert_array_equal(joined.numpy(), expected)
    np.testing.assert_allclose(total.numpy(), expected.sum(0), rtol=1e-5)


REDUCTIONS = {
    "none": lambda y, axis: y,
    "sum": lambda y, axis: y.sum(axis),
    "max": lambda y, axis: y.max(axis) if isinstance(y, np.ndarray) else y.amax(axis),
    "argmax": lambda y, axis: y.argmax(axis),
    "both": lambda y, axis: y.sum(axis) + y.sum() * 0.5,
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_rearrangements(name, seed):
    rng = np.random.default_rng(seed)
    for _ in range(3):
        shape = tuple(int(d) for d in rng.choice([1, 2, 3, 16, 17, 32, 40], 4))
        axes = tuple(int(a) for a in rng.permutation(4))
        sizes = [shape[a] for a in axes]
        cut = int(rng.integers(1, 4))
        two = (int(np.prod(sizes[:cut])), int(np.prod(sizes[cut:])))
        axis = int(rng.integers(2))
        values = rng.normal(size=shape)
        row = rng.normal(size=two[1])
        reduce = REDUCTIONS[name]
        x, r = lz.tensor(values), lz.tensor(row)
        y = x.permute(*axes).reshape(*two) * r
        expected = values.transpose(axes).reshape(two) * row
        ours = reduce(y, axis)
        lz.realize(ours, y)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(ours.numpy(), reduce(expected, axis), rtol=1e-9, atol=1e-9)


def test_a_kernel_of_two_loops_serves_other_batches_and_lengths():
    @lz.jit
    def join(x):
        y = x.permute(0, 2, 1, 3).reshape(x.shape[0] * x.shape[2], -1)
        return y * 2, y.sum(0)

    rng = np.random.default_rng(1)
    for batch, length in ((2, 9), (3, 9), (3, 20), (5, 4)):
        values = rng.normal(size=(batch, 4, length, 16))
        expected = values.transpose(0, 2, 1, 3).reshape(batch * length, 64)
        doubled, total = join(lz.tensor(values))
        np.testing.assert_array_equal(doubled.numpy(), 2 * expected)
        np.testing.assert_allclose(total.numpy(), expected.sum(0), rtol=1e-12, atol=1e-12)
