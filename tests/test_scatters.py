"""Scatters go straight into what their result is added to, in its own memory."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero.hal import registry
from lezero.runtime import run

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about generated code")
R = np.random.default_rng(0)
TABLE, WORDS, TARGETS = R.normal(size=(500, 64)), R.integers(0, 500, 96), R.integers(0, 500, 96)


def launched():
    """Names of the kernels of the last run that move at least as much as one table of float32."""
    program, bindings = run.statistics.last
    schedule = program.program.schedule
    return [r.label for r in schedule.instantiate(bindings).records if r.moved_bytes >= TABLE.size * 4]


def gradient_of_tied(dtype, backwards=1):
    """The gradient of a table that embeds words and gives scores, and what its last run launched."""
    table = lz.tensor(TABLE.astype(dtype), requires_grad=True)
    for _ in range(backwards):
        x = F.embedding(lz.tensor(WORDS), table)
        F.cross_entropy(F.linear(x.tanh(), table), lz.tensor(TARGETS)).backward()
        lz.realize(table.grad)
    return table.grad.numpy(), launched()


@native
@pytest.mark.parametrize("backwards", [1, 3])
def test_the_gradient_of_a_tied_embedding_goes_into_that_of_the_scores(backwards, monkeypatch):
    run._plans.clear()
    with_it, kernels = gradient_of_tied("f8", backwards)
    assert "index_add" in kernels and not {"copy", "identity"} & set(kernels)
    monkeypatch.setenv("LEZERO_PASSES", "-add_into")
    without, kernels = gradient_of_tied("f8", backwards)
    assert kernels.count("copy") == 1  # the zeros
    np.testing.assert_allclose(with_it, without, rtol=1e-12, atol=1e-15)


@native
def test_zeros_to_scatter_into_are_written_once():
    index, rows = lz.tensor(WORDS), lz.tensor(R.normal(size=(96, 64)))
    x = lz.zeros(500, 64, dtype=lz.float64).index_add(0, index, rows)
    lz.realize(x)
    assert launched() == ["copy", "index_add"]
    expected = np.zeros((500, 64))
    np.add.at(expected, WORDS, rows.numpy())
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-12, atol=1e-14)


@native
def test_a_scatter_takes_the_memory_of_what_nobody_else_reads():
    index, rows, other = lz.tensor(WORDS), lz.tensor(R.normal(size=(96, 64))), lz.tensor(TABLE)
    lz.realize(index, rows, other)
    made = lz.exp(other).index_add(0, index, rows)
    lz.realize(made)
    assert "copy" not in launched()
    expected = np.exp(TABLE)
    np.add.at(expected, WORDS, rows.numpy())
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-12)

    made[index] = 0.0  # the old value is nobody's
    lz.realize(made)
    assert "copy" not in launched()
    expected[WORDS] = 0
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-12)


def test_a_scatter_leaves_alone_what_is_read_elsewhere():
    index, rows, other = lz.tensor(WORDS), lz.tensor(R.normal(size=(96, 64))), lz.tensor(TABLE)
    base = lz.exp(other)
    into, twice = base.index_add(0, index, rows), base * 2
    lz.realize(into, twice)
    expected = np.exp(TABLE)
    np.testing.assert_allclose(twice.numpy(), 2 * expected, rtol=1e-12)
    np.testing.assert_allclose(base.numpy(), expected, rtol=1e-12)
    np.add.at(expected, WORDS, rows.numpy())
    np.testing.assert_allclose(into.numpy(), expected, rtol=1e-12)


def test_a_value_scattered_into_itself_is_read_before_it_is_written():
    n = 500
    index = R.permutation(n)
    x = lz.exp(lz.tensor(TABLE))
    made = x.index_add(0, lz.tensor(index), x)
    lz.realize(made)
    expected = np.exp(TABLE)
    expected[index] += np.exp(TABLE)
    del x
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-12)


def test_in_half_precision_the_sums_of_a_scatter_are_rounded_by_themselves(monkeypatch):
    run._plans.clear()
    rows = lz.tensor(R.normal(size=(96, 64))).to(lz.bfloat16)
    table = lz.tensor(TABLE).to(lz.bfloat16)

    def total():
        return (lz.zeros(500, 64, dtype=lz.bfloat16).index_add(0, lz.tensor(WORDS), rows) + table).float().numpy()

    with_it = total()
    monkeypatch.setenv("LEZERO_PASSES", "-add_into")
    np.testing.assert_array_equal(with_it, total())
