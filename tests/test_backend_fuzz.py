"""Random graphs with several results held, against the NumPy references: what may fuse must still compute the same.

Most run through the loop interpreter, where nothing is compiled; a smaller number through the backend in use.
``LEZERO_TEST_EXAMPLES`` scales both (2 by default: 100 interpreted graphs and 16 compiled ones); a failure prints the shortest
program with its seed that fails.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import interpreted_backend
import lezero as lz
from backend_parity import oracle, oracle_gradients
from conftest import EXAMPLES
from fuzz_programs import Program, program
from lezero.hal import registry


def differs(p: Program) -> str | None:
    """What is wrong with a program's results, if anything."""
    expected = oracle(p, p.arrays)
    results = p(*map(lz.tensor, p.arrays))
    for k, y, e in zip(p.kept, results, expected):
        got = y.numpy()
        scale = max(1.0, float(np.abs(e[np.isfinite(e)]).max(initial=0)))
        if got.shape != e.shape or not np.allclose(got, e, rtol=1e-7, atol=1e-7 * scale, equal_nan=True):
            return f"%{k} is {got!r}, should be {e!r}"
    return None


def smallest(p: Program, fails) -> Program:
    """The program with as few results as still fails."""
    for k in list(p.kept):
        less = dataclasses.replace(p, kept=[j for j in p.kept if j != k])
        if less.kept and fails(less):
            p = less
    return p


def fails(p: Program) -> str | None:
    try:
        return differs(p)
    except Exception as e:  # whatever it is, the program is made small first
        return f"{type(e).__name__}: {e}"


def check(seed: int, size: int) -> None:
    wrong = fails(program(seed, size))
    if wrong is None:
        return
    for fewer in range(1, size + 1):
        p = program(seed, fewer)
        if fails(p):
            p = smallest(p, fails)
            raise AssertionError(f"program({seed}, {fewer}):\n{p}\n{fails(p)}")
    raise AssertionError(f"program({seed}, {size}): {wrong}, but not a second time")


def sizes(seed: int, largest: int) -> int:
    return 1 + seed * 7 % largest


@pytest.mark.parametrize("block", range(5))
def test_interpreted_programs(block):
    with interpreted_backend.use():
        for seed in range(block * 10_000, block * 10_000 + 10 * EXAMPLES):
            check(seed, sizes(seed, 25))


@pytest.mark.parametrize("block", range(4))
def test_compiled_programs(block):
    for seed in range(500_000 + block * 10_000, 500_000 + block * 10_000 + 2 * EXAMPLES):
        check(seed, sizes(seed, 25))


@pytest.mark.slow
def test_large_programs():
    with interpreted_backend.use():
        for seed in range(900_000, 900_000 + 2 * EXAMPLES):
            check(seed, 30 + seed % 90)


@pytest.mark.parametrize("seed", range(700_000, 700_000 + 10 * EXAMPLES))
def test_gradients_of_programs(seed):
    """The forward pass, its gradients and the values held, all in one run."""
    p = program(seed, sizes(seed, 12), contractions=seed % 2 == 0)
    last = p.kept[-1:]
    one = dataclasses.replace(p, kept=last)
    function = lambda *xs: one(*xs)[0]
    (value,) = oracle(one, p.arrays)
    if not value.size:
        return
    weights = np.random.default_rng(seed).standard_normal(value.shape)
    expected = oracle_gradients(function, p.arrays, weights, set(range(len(p.arrays))))
    with interpreted_backend.use():
        operands = [lz.tensor(a, requires_grad=True) for a in p.arrays]
        results = p(*operands)
        if not expected:
            assert not results[-1].requires_grad or all(x.grad is None for x in operands)
            return
        results[-1].backward(lz.tensor(weights))
        for k, g in expected.items():
            scale = max(1.0, float(np.abs(g).max(initial=0)))
            np.testing.assert_allclose(operands[k].grad.numpy(), g, rtol=1e-7, atol=1e-7 * scale, err_msg=repr(p))


def test_the_backend_is_put_back():
    before = registry.current()
    with interpreted_backend.use():
        assert registry.current().name == "interpreted"
    assert registry.current() is before


def test_a_plan_is_for_the_order_of_its_inputs_in_memory():
    rng = np.random.default_rng(0)
    with interpreted_backend.use():
        x, w = lz.tensor(rng.standard_normal((2, 16, 3, 4))), lz.nn.Parameter(rng.standard_normal((16, 16, 3, 3)))
        channels_first, channels_last = x * 1, lz.nn.functional.conv2d(x, w, padding=1).detach()
        lz.realize(channels_first, channels_last)
        assert channels_first.numpy().strides != channels_last.numpy().strides
        for y in channels_first, channels_last:
            np.testing.assert_array_equal((y.detach() * 2).numpy(), 2 * y.numpy())


@pytest.mark.parametrize("size", [(4, 1), (1, 4), (1, 1), (3, 2)])
@pytest.mark.parametrize("shape", ["1chw", "nc11", "1c11", "n1hw", "nchw", "11h1"])
def test_what_is_added_to_a_convolution_follows_its_pixels(size, shape):
    rng = np.random.default_rng(0)
    extents = dict(zip("nchw1", (2, 8, *size, 1)))
    x, w = rng.standard_normal((2, 3, *size)), rng.standard_normal((8, 3, 1, 1))
    more = rng.standard_normal([extents[c] for c in shape])
    y = lz.nn.functional.conv2d(lz.tensor(x), lz.tensor(w)) + lz.tensor(more)
    np.testing.assert_allclose(y.numpy(), np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]) + more, rtol=1e-12)


@pytest.mark.parametrize("seed, size", [(85, 6), (10046, 23), (530013, 7), (510052, 14), (520106, 14)])
def test_programs_that_once_failed(seed, size):
    """Joins of values that are made again where they are used; a product of a view whose base is not row-major,
    and of one that is a result itself."""
    with interpreted_backend.use():
        check(seed, size)
    check(seed, size)
