"""A linear regression whose gradient is written out in NumPy, and what the tests of traps share."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.hal import registry
from lezero.runtime import stats

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")
"""Tests that look into the CPU backend; all others hold on every backend."""


def data(n=6, seed=0):
    r = np.random.default_rng(seed)
    return r.normal(size=(n, 3)), r.normal(size=(n, 2))


def start(seed=1):
    return np.random.default_rng(seed).normal(size=(3, 2))


def parameter(a=None):
    return nn.Parameter(lz.tensor(start() if a is None else a))


def regression(w, x, y):
    return ((lz.tensor(x) @ w - lz.tensor(y)) ** 2).mean()


def gradient(w, x, y):
    """Of ``regression`` with respect to w, in NumPy."""
    return 2 * x.T @ (x @ w - y) / y.size


def equal(tensor, array, rtol=1e-12):
    np.testing.assert_allclose(tensor.numpy(), array, rtol=rtol, atol=1e-13)


def counted(fn):
    """How many (runs, new plans) `fn` caused."""
    before = stats()
    fn()
    after = stats()
    return after["runs"] - before["runs"], after["plans_built"] - before["plans_built"]
