"""Captured functions called with other extents: equal ones in one call need not be equal in the next."""

import numpy as np
import pytest

import lezero as lz
from lezero.nn import functional as F
from lezero.runtime.jit import CaptureError

SQUARE_FIRST = [(4, 4), (4, 6), (4, 6), (4, 4), (4, 6), (4, 4), (5, 5), (5, 7), (5, 5), (5, 7), (5, 5)]
FUNCTIONS = {
    "both sums": lambda x, y: x.sum() + y.sum(0).max(),
    "joined": lambda x, y: lz.cat([x.flatten(), y.flatten()]),
    "outer": lambda x, y: (x.unsqueeze(2) - y.unsqueeze(1)).sum((1, 2)),
    "asks": lambda x, y: x.sum(0) if x.shape[0] == x.shape[1] else y.sum(1),
    "made": lambda x, y: lz.arange(x.shape[1]) * x + y.reshape(x.shape[0], -1),
    "one hot": lambda x, y: F.one_hot(x, 5).sum(1) * y.sum(),
    "rows of a table": lambda x, y: TABLE[x].sum(1)[y],
}
TABLE = lz.tensor(np.random.default_rng(0).standard_normal((5, 3), np.float32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_integer_data_of_extents_that_are_equal_in_some_calls(name):
    function, numbers = FUNCTIONS[name], np.random.default_rng(0)
    captured, calls = lz.jit(function), []

    def noted(x, y):
        calls.append(x.shape)
        return function(x, y)

    counted = lz.jit(noted)
    for shape in SQUARE_FIRST:
        x, y = (lz.tensor(numbers.integers(0, min(shape), shape)) for _ in range(2))
        expected = function(x, y).numpy()
        np.testing.assert_array_equal(captured(x, y).numpy(), expected)
        np.testing.assert_array_equal(counted(x, y).numpy(), expected)
    assert len(calls) == 2 * len(set(SQUARE_FIRST))  # twice for each shape, and not again


def test_shapes_in_any_order():
    numbers = np.random.default_rng(1)
    captured = lz.jit(lambda x, w: (x.unsqueeze(1) @ w).squeeze(1) + x[:, :1].float())
    for _ in range(150):
        rows, columns = numbers.integers(1, 4, 2)
        x = lz.tensor(numbers.integers(0, 9, (rows, columns))).float()
        w = lz.tensor(numbers.integers(0, 9, (rows, columns, columns))).float()
        expected = np.einsum("ij,ijk->ik", x.numpy(), w.numpy()) + x.numpy()[:, :1]
        np.testing.assert_array_equal(captured(x, w).numpy(), expected)


def test_another_shape_of_what_is_no_argument_is_named():
    held = [lz.ones(3)]
    captured = lz.jit(lambda x: (x.sum() * held[0]).sum())
    captured(lz.ones(2))
    held[0] = lz.ones(4)
    with pytest.raises(
        CaptureError, match=r"a tensor of shape \(4,\) \(float32\) from outside where the first recorded a .*\(3,\)"
    ):
        captured(lz.ones(2))
