"""Graphs that are deep, wide, empty or of many dimensions."""

from __future__ import annotations

import time

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero.hal import registry


def test_two_hundred_thousand_additions():
    x, one = lz.tensor(np.zeros(4, np.float32)), lz.tensor(np.ones(4, np.float32))
    start = time.perf_counter()
    y = x
    for _ in range(200_000):
        y = y + one
    np.testing.assert_array_equal(y.numpy(), np.full(4, 200_000, np.float32))
    assert time.perf_counter() - start < 60


def test_a_deep_gradient():
    x = lz.tensor(np.ones(4), requires_grad=True)
    y = x
    for _ in range(3000):
        y = y * 1.0001
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1.0001**3000, rtol=1e-9)


def test_two_thousand_views():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = lz.tensor(a)
    for k in range(2001):
        x = x.roll(1, 1) if k % 50 == 0 else x.flip(k % 2)
        a = np.roll(a, 1, 1) if k % 50 == 0 else np.flip(a, k % 2)
    np.testing.assert_array_equal(x.numpy(), a)


def test_a_sum_of_five_hundred_tensors():
    arrays = [np.full((3, 5), k, np.float32) for k in range(500)]
    tensors = list(map(lz.tensor, arrays))
    total = tensors[0]
    for t in tensors[1:]:
        total = total + t
    np.testing.assert_array_equal(total.numpy(), sum(arrays))
    np.testing.assert_array_equal(lz.stack(tensors).sum(0).numpy(), sum(arrays))
    np.testing.assert_array_equal(lz.cat(tensors, 1).numpy(), np.concatenate(arrays, 1))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4), (0, 0)])
def test_nothing_at_all(shape):
    a = np.zeros(shape, np.float32)
    x = lz.tensor(a, requires_grad=True)
    y = (x * 2 + 1).exp()
    assert y.numpy().shape == shape
    assert y.sum().item() == 0
    assert x.sum(0).numpy().shape == shape[1:]
    assert x.reshape(-1).numpy().shape == (0,)
    assert lz.cat([x, x], 0).numpy().shape == (2 * shape[0], *shape[1:])
    y.sum().backward()
    assert x.grad.numpy().shape == shape
    assert np.isnan(x.mean().item())


def test_products_of_nothing():
    a, b = lz.tensor(np.zeros((3, 0), np.float32)), lz.tensor(np.zeros((0, 4), np.float32))
    np.testing.assert_array_equal((a @ b).numpy(), np.zeros((3, 4)))
    assert (b @ lz.tensor(np.zeros((4, 2), np.float32))).numpy().shape == (0, 2)


@pytest.mark.parametrize("shape", [(7, 0, 4), (0, 5, 2), (3, 4, 0)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rearranging_nothing(shape, axis):
    """Kernels that put elements of an empty array in their places: each has a place of its own, or none is needed."""
    a = np.zeros(shape, np.uint16)
    x = lz.tensor(a)
    assert x.argsort(axis).numpy().shape == shape
    turned = x.permute(2, 0, 1)
    both = [(turned + 1).sum(axis), turned + 1, turned.contiguous()]
    expected = a.transpose(2, 0, 1) + 1
    np.testing.assert_array_equal(both[0].numpy(), expected.sum(axis))
    assert [y.numpy().shape for y in both[1:]] == [expected.shape] * 2


def test_writing_nothing():
    x = lz.tensor(np.arange(3, dtype=np.int8))
    nowhere, nothing = lz.tensor(np.zeros(0, np.int64)), lz.tensor(np.zeros(0, np.int8))
    for y in (x.scatter(0, nowhere, nothing), x.scatter_add(0, nowhere, nothing), x.index_add(0, nowhere, nothing)):
        np.testing.assert_array_equal(y.numpy(), np.arange(3))
    assert x[nowhere].numpy().shape == (0,)


def test_eight_dimensions():
    a = np.arange(256, dtype=np.float32).reshape((2,) * 8)
    x = lz.tensor(a).permute(7, 6, 5, 4, 3, 2, 1, 0)
    turned = a.transpose(7, 6, 5, 4, 3, 2, 1, 0)
    np.testing.assert_array_equal((x.sum((0, 2, 4)) * 2).numpy(), turned.sum((0, 2, 4)) * 2)
    np.testing.assert_array_equal((x + lz.tensor(a)).numpy(), turned + a)
    np.testing.assert_array_equal(x.reshape(16, 16).numpy(), turned.reshape(16, 16))


HALVES = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "digamma", "erfc", "lgamma", "log10", "sinh", "tan", "exp", "tanh", "sqrt",
]  # fmt: skip


@pytest.mark.parametrize("size", [(), (3,), (40,)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_computed_in_double_on_half_operands(dtype, size):
    x = np.random.default_rng(0).uniform(0.1, 0.9, size)
    kind = getattr(lz, dtype)
    t = lz.tensor(x.astype(np.float32)).to(kind)
    wide = t.to(lz.float64)
    eps = 2.0**-10 if dtype == "float16" else 2.0**-7
    for name in HALVES:
        shifted = (t + 1, wide + 1) if name == "acosh" else (t, wide)
        ours, exact = (getattr(lz, name)(v) for v in shifted)
        np.testing.assert_allclose(ours.to(lz.float64).numpy(), exact.numpy(), rtol=2 * eps, atol=eps, err_msg=name)
    y, wide_y = t * 0.3 + 0.1, (t * 0.3 + 0.1).to(lz.float64)
    for name in ("fmod", "remainder", "pow", "atan2"):
        ours, exact = getattr(lz, name)(t, y), getattr(lz, name)(wide, wide_y)
        np.testing.assert_allclose(ours.to(lz.float64).numpy(), exact.numpy(), rtol=2 * eps, atol=eps, err_msg=name)


@pytest.mark.skipif(registry.current().name != "cpu", reason="about threads")
def test_reductions_give_the_same_bits_with_any_number_of_threads():
    import hashlib

    from lezero.backends.cpu.pool import get_num_threads, set_num_threads

    def results():
        r = np.random.default_rng(0)
        long = lz.tensor(r.standard_normal((5, 50_021)).astype(np.float32))
        wide = lz.tensor(r.standard_normal((3001, 130)).astype(np.float32))
        images = lz.tensor(r.standard_normal((8, 40, 24, 24)).astype(np.float32))
        filters = lz.tensor(r.standard_normal((48, 40, 1, 1)).astype(np.float32))
        values = [
            long.sum(1), long.var(1), F.softmax(long, 1), F.layer_norm(long, (50_021,)), wide.sum(0), wide.logsumexp(0),
            F.batch_norm(F.conv2d(images, filters), None, None, training=True), long @ long.T,
        ]  # fmt: skip
        return [hashlib.sha256(np.ascontiguousarray(v.numpy()).tobytes()).hexdigest() for v in values]

    threads, found = get_num_threads(), []
    try:
        for n in (1, 2, 3, 7):
            set_num_threads(n)
            found.append(results())
    finally:
        set_num_threads(threads)
    assert found[0] == found[1] == found[2] == found[3]


def test_long_columns_are_added_up_without_losing_digits():
    """Next to a single accumulator, whose error grows with the number of rows."""
    x = np.random.default_rng(0).uniform(0, 1, (300_000, 32)).astype(np.float32)
    exact = x.astype(np.float64).sum(0)
    one_by_one = np.add.accumulate(x, 0)[-1]
    ours = np.abs(lz.tensor(x).sum(0).numpy() - exact).max()
    assert ours <= 0.05 * np.abs(one_by_one - exact).max()
    assert ours <= 4 * np.finfo(np.float32).eps * exact.max()


@pytest.mark.skipif(registry.get_backend() != "cpu", reason="about sums of the CPU backend")
@pytest.mark.parametrize("shape, axes", [((256, 4096), 0), ((3, 256, 4096), 1), ((4, 5, 64, 2048), (0, 2))])
def test_small_numbers_added_to_a_large_one_keep_their_digits(shape, axes):
    """As in the gradient of a vocabulary's bias: one label's -1 among probabilities."""
    x = (1.3e-7 * np.random.default_rng(0).uniform(0.5, 1.5, shape)).astype("f4")
    first = np.ix_(*[[0] if d in np.atleast_1d(axes) else range(n) for d, n in enumerate(shape)])
    x[first] = -1 / 256
    exact = x.sum(axes, dtype="f8")
    got = lz.tensor(x).sum(axes).numpy()
    assert np.linalg.norm(got - exact) <= 1.2e-7 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "make", [lambda x: x @ x.mT, lambda x: x.cumsum(1), lambda x: x.softmax(1), lambda x: x.sort(1)[0]]
)
def test_what_nothing_is_taken_of_is_not_computed(make):
    x = lz.tensor(np.random.default_rng(0).normal(size=(3, 3)))
    assert make(x.sin())[1:1, :2].numpy().shape == (0, 2)
