"""``lz.debug.check_numerics``: what it names, what it passes over, and what it leaves as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from lezero import nn


@pytest.fixture(autouse=True)
def off_again():
    yield
    lz.debug.check_numerics(False)


def line_of(function, text):
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(k for k in range(first, len(lines)) if text in lines[k - 1])


def test_names_the_operation_its_operands_and_the_line():
    def broken(x):
        y = x * 2
        z = y.log()  # here
        return z.sum()

    lz.debug.check_numerics()
    x = lz.tensor([1.0, -1.0, 2.0])
    with pytest.raises(FloatingPointError, match=r"log\(float32\[3\] from -2 to 4\) gave 1 NaN of 3 values") as caught:
        broken(x).item()
    assert f"{__file__}:{line_of(broken, '# here')}" in str(caught.value)
    lz.debug.check_numerics(False)
    assert np.isnan(broken(x).item())


def test_infinities_and_divisions():
    with lz.debug.check_numerics():
        with pytest.raises(FloatingPointError, match="div"):
            (lz.ones(3) / lz.tensor([1.0, 0.0, 2.0])).numpy()
        with pytest.raises(FloatingPointError, match="exp"):
            lz.tensor([100.0]).exp().numpy()
    assert not lz.debug.is_checking()


def test_what_comes_in_is_passed_over():
    with lz.debug.check_numerics():
        x = lz.tensor([1.0, float("nan"), float("inf")])
        assert np.isnan((x * 2).numpy()[1])
        scores = lz.zeros(2, 3).masked_fill(lz.tensor([[True, False, False]]), float("-inf"))
        assert scores.softmax(1).numpy()[0, 0] == 0
        with pytest.raises(FloatingPointError, match="sub"):
            infinite = lz.tensor([float("inf")])
            (infinite - infinite).numpy()  # the NaN is made here


def test_a_failing_step_leaves_the_training_state_as_it_was():
    lz.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = lz.optim.Adam(model.parameters(), lr=0.1)
    average = [p.detach().clone() for p in model.parameters()]

    def step(x):
        optimizer.zero_grad()
        loss = (-1 - model(x).square()).log().mean() if x.shape[0] == 5 else model(x).square().mean()
        loss.backward()
        optimizer.step()
        for a, p in zip(average, model.parameters()):
            a.copy_(p.detach())
        return loss

    good, bad = lz.tensor(np.random.default_rng(0).random((4, 3), np.float32)), lz.zeros(5, 3) - 10
    lz.debug.check_numerics()
    step(good).item()
    values = lambda: (
        [t.numpy().copy() for t in [*model.state_dict().values(), *average]]
        + [v.numpy().copy() for s in optimizer.state.values() for v in s.values() if isinstance(v, lz.Tensor)]
    )
    before = values()
    with pytest.raises(FloatingPointError, match="log"):
        step(bad).item()
    for a, b in zip(before, values()):
        np.testing.assert_array_equal(a, b)
    assert all(p.grad is None for p in model.parameters())
    assert np.isfinite(step(good).item())
    for a, p in zip(average, model.parameters()):
        np.testing.assert_array_equal(a.numpy(), p.numpy())


def test_results_are_the_same_with_it_on():
    def train():
        lz.manual_seed(0)
        w = lz.randn(4, 4, requires_grad=True)
        optimizer = lz.optim.SGD([w], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (w @ w).tanh().sum().backward()
            optimizer.step()
        return w.numpy().copy()

    plain = train()
    with lz.debug.check_numerics():
        np.testing.assert_array_equal(train(), plain)


def test_gradients_are_checked_too():
    x = lz.zeros(3, requires_grad=True)
    with lz.debug.check_numerics():
        x.sqrt().sum().backward()
        with pytest.raises(FloatingPointError):
            x.grad.numpy()
    assert x.grad is None and x.tolist() == [0, 0, 0]
