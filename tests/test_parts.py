"""Sums of parts are parts side by side, and what stands side by side is computed where it belongs."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero.hal import registry
from lezero.runtime import run

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about generated code")
R = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def fresh():
    run._plans.clear()
    lz.realize()


def launched():
    """Names of the kernels of the last run."""
    program, bindings = run.statistics.last
    return [r.label for r in program.program.schedule.instantiate(bindings).records]


def drawn(*shape):
    return R.normal(size=shape)


def gradient_of(f, x):
    """The gradient of sum(f(x)), as an array."""
    leaf = lz.tensor(x, requires_grad=True)
    f(leaf).backward()
    lz.realize(leaf.grad)
    return leaf.grad.numpy()


def slices(rng, shape):
    """A random index: for each axis all of it, one position, a stretch, or every second."""
    index = []
    for d in shape:
        a, b = sorted(rng.integers(0, d + 1, 2))
        kinds = [slice(None), slice(int(a), int(b)), slice(int(a), None, 2), slice(int(a), int(a) + 1)]
        index.append(kinds[rng.choice(4, p=[0.4, 0.3, 0.05, 0.25])])
    return tuple(index)


@pytest.mark.parametrize("seed", range(12))
def test_gradients_of_random_parts(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    shape = tuple(int(d) for d in rng.integers(1, 7, rng.integers(1, 4)))
    chosen = [slices(rng, shape) for _ in range(rng.integers(2, 12))]
    x = rng.normal(size=shape)
    factors = [rng.normal(size=x[i].shape) for i in chosen]
    dense = rng.normal(size=shape)
    expected = dense.copy()
    for i, f in zip(chosen, factors):
        expected[i] += f

    def f(t):
        return (t * lz.tensor(dense)).sum() + sum((t[i] * lz.tensor(g)).sum() for i, g in zip(chosen, factors))

    np.testing.assert_allclose(gradient_of(f, x), expected, rtol=1e-12, atol=1e-13)
    monkeypatch.setenv("LEZERO_PASSES", "-join_parts,-join_products,-share")
    np.testing.assert_allclose(gradient_of(f, x), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(6))
def test_tilings_give_every_element_as_it_is(seed):
    """Parts that do not overlap, in any order and with gaps: the elements of the parts bit for bit, NaN and infinities too."""
    rng = np.random.default_rng(100 + seed)
    shape = (int(rng.integers(2, 20)), int(rng.integers(2, 20)))
    cuts = [np.unique([0, n, *rng.integers(0, n, 4)]) for n in shape]
    boxes = [
        (slice(int(a), int(b)), slice(int(c), int(d)))
        for a, b in zip(cuts[0], cuts[0][1:])
        for c, d in zip(cuts[1], cuts[1][1:])
    ]
    rng.shuffle(boxes)
    values = rng.normal(size=shape)
    values[rng.random(shape) < 0.2] = np.nan
    values[rng.random(shape) < 0.2] = -np.inf
    expected = np.zeros(shape)
    for box in boxes[1:]:
        expected[box] = values[box]
    value = lz.tensor(values)
    leaf = lz.zeros(*shape, dtype=lz.float64, requires_grad=True)
    sum((leaf[box] * value[box]).sum() for box in boxes[1:]).backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), expected)


@native
@pytest.mark.parametrize("steps", [3, 12, 64])
def test_the_gradient_of_steps_is_written_once(steps):
    x = drawn(steps, 8, 64)
    weights = [lz.tensor(drawn(8, 64)) for _ in range(steps)]
    lz.realize(*weights)

    def f(t):
        return sum((lz.tanh(s) * w).sum() for s, w in zip(t.unbind(0), weights))

    got = gradient_of(f, x)
    program, bindings = run.statistics.last
    moved = program.program.schedule.instantiate(bindings).moved_bytes
    assert moved < 12 * x.nbytes  # a sum of `steps` parts moves more than `steps` times that
    np.testing.assert_allclose(
        got, (1 - np.tanh(x) ** 2) * np.stack([w.numpy() for w in weights]), rtol=1e-9, atol=1e-12
    )


def test_partial_sums_that_are_read_elsewhere_stay():
    a, b, c = (lz.tensor(drawn(3)) for _ in range(3))
    two = F.pad(a, (0, 6)) + F.pad(b, (3, 3))
    three = two + F.pad(c, (6, 0))
    other = two * 2
    lz.realize(two, three, other)
    first = np.concatenate([a.numpy(), b.numpy(), np.zeros(3)])
    np.testing.assert_array_equal(two.numpy(), first)
    np.testing.assert_array_equal(other.numpy(), 2 * first)
    np.testing.assert_array_equal(three.numpy(), np.concatenate([a.numpy(), b.numpy(), c.numpy()]))


@pytest.mark.parametrize("dtype", [lz.int32, lz.bool, lz.bfloat16, lz.complex64])
def test_sums_of_parts_in_other_dtypes(dtype):
    parts = [lz.tensor(R.integers(0, 2, 4)).to(dtype) for _ in range(3)]
    total = F.pad(parts[0], (0, 8)) + F.pad(parts[1], (4, 4)) + F.pad(parts[2], (8, 0))
    expected = np.concatenate([p.to(lz.float32 if dtype is lz.bfloat16 else dtype).numpy() for p in parts])
    np.testing.assert_array_equal(total.to(lz.float32 if dtype is lz.bfloat16 else dtype).numpy(), expected)


def test_parts_of_symbolic_extent():
    @lz.jit
    def step(x):
        halves = x.chunk(2, 1)
        return lz.grad(lambda t: sum((k + 1) * (t[:, 4 * k : 4 * k + 4] ** 2).sum() for k in range(4)))(x), halves[0]

    for n in (3, 5, 2):
        x = drawn(n, 16)
        got, _ = step(lz.tensor(x))
        np.testing.assert_allclose(got.numpy(), 2 * x * np.repeat([1, 2, 3, 4], 4), rtol=1e-12)


# -- products ------------------------------------------------------------------------------------------------------


def recurrence(steps, batch, width, bias, dtype="f8"):
    x, w, b = (a.astype(dtype) for a in (drawn(steps, batch, width), drawn(width, width) / width, drawn(width)))

    def gradients():
        weight, offset = lz.tensor(w, requires_grad=True), lz.tensor(b, requires_grad=True)
        h = lz.zeros(batch, width, dtype=weight.dtype)
        for s in lz.tensor(x).unbind(0):
            h = lz.tanh(F.linear(h, weight, offset if bias else None) + s)
        (h**2).sum().backward()
        wanted = [weight.grad] + [offset.grad] * bias
        lz.realize(*wanted)
        return [g.numpy() for g in wanted]

    return gradients


@native
@pytest.mark.parametrize("bias", [False, True])
def test_the_gradient_of_a_weight_of_many_steps_is_one_product(bias, monkeypatch):
    gradients = recurrence(10, 4, 48, bias)
    with_it = gradients()
    assert sum(label == "dot" for label in launched()) == 1 and "copy" not in launched()
    monkeypatch.setenv("LEZERO_PASSES", "-join_products")
    without = gradients()
    assert sum(label.startswith("dot") for label in launched()) > 20
    for a, b in zip(with_it, without):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


@native
def test_products_with_long_operands_stay_apart():
    a, b = [lz.tensor(drawn(300, 8)) for _ in range(6)], [lz.tensor(drawn(300, 8)) for _ in range(6)]
    lz.realize(*a, *b)
    total = sum(x.T @ y for x, y in zip(a, b))
    lz.realize(total)
    assert sum(label.startswith("dot") for label in launched()) == 6
    np.testing.assert_allclose(
        total.numpy(), sum(x.numpy().T @ y.numpy() for x, y in zip(a, b)), rtol=1e-12, atol=1e-12
    )


# -- side by side in memory ----------------------------------------------------------------------------------------


@native
def test_values_are_computed_where_they_are_stacked():
    x = [lz.tensor(drawn(4, 32)) for _ in range(20)]
    w = lz.tensor(drawn(32, 32))
    lz.realize(w, *x)
    stacked = lz.stack([F.linear(v, w) for v in x])
    total = stacked.cumsum(0)
    lz.realize(total)
    assert set(launched()) == {"dot", "cumsum"}
    expected = np.cumsum(np.stack([v.numpy() @ w.numpy().T for v in x]), 0)
    np.testing.assert_allclose(total.numpy(), expected, rtol=1e-10, atol=1e-12)


@native
@pytest.mark.parametrize("dtype", [lz.float64, lz.bfloat16])
def test_what_has_memory_of_its_own_is_copied(dtype):
    """Inputs, results, and what stands in two stacks."""
    x = [lz.tensor(drawn(3, 5)).to(dtype) for _ in range(20)]
    lz.realize(*x)
    made = [lz.exp(v) for v in x]
    first, second = lz.stack([*made, *x]), lz.cat([*made[5:], lz.zeros(1, 5, dtype=dtype), *made[:5]])
    result = made[7]
    del made[7]
    both = first.float().sum(0), second.float() * 2
    lz.realize(result, *both)
    e = [lz.exp(v).float().numpy() for v in x]
    np.testing.assert_array_equal(result.float().numpy(), e[7])
    stacked = np.stack([*e, *(v.float().numpy() for v in x)])
    np.testing.assert_allclose(both[0].numpy(), stacked.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(
        both[1].numpy(), 2 * np.concatenate([*e[5:], np.zeros((1, 5), "f4"), *e[:5]]).astype("f4")
    )


def test_a_stack_of_stacks():
    x = [lz.tensor(drawn(2, 3)) for _ in range(25)]
    made = [lz.tanh(v) for v in x]
    inner = [lz.stack(made[5 * k : 5 * k + 5]) for k in range(5)]
    outer = lz.cat([s * 1.0 for s in inner])
    again = lz.cat(inner).cumsum(0)
    expected = np.tanh(np.stack([v.numpy() for v in x]))
    np.testing.assert_allclose(outer.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(again.numpy(), expected.cumsum(0), rtol=1e-12, atol=1e-14)


def test_parts_outlive_what_is_written_over_the_stack():
    x, w = [lz.tensor(drawn(64, 33)) for _ in range(8)], lz.tensor(drawn(33, 33))
    lz.realize(w, *x)
    made = [lz.tanh(v) for v in x]
    total = lz.exp(lz.stack(made)).cumsum(0)
    late = (made[3] + total[0]) @ w
    del made
    lz.realize(late)
    t = np.tanh(np.stack([v.numpy() for v in x]))
    np.testing.assert_allclose(late.numpy(), (t[3] + np.exp(t[0])) @ w.numpy(), rtol=1e-10, atol=1e-12)


def test_stacks_of_images():
    """Convolutions give channels-last values, which are brought in order on their way."""
    x, w = [lz.tensor(drawn(2, 16, 5, 5)) for _ in range(6)], lz.tensor(drawn(16, 16, 3, 3))
    got = lz.stack([F.relu(F.conv2d(v, w, padding=1)) for v in x]).cumsum(0)
    expected = np.cumsum([F.relu(F.conv2d(v, w, padding=1)).numpy() for v in x], 0)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_random_joins(seed, monkeypatch):
    """Trees of joins, element-wise steps, slices and products over a few values, some of which are kept."""
    rng = np.random.default_rng(seed)
    leaves = [rng.normal(size=(int(rng.integers(1, 4)), 6)) for _ in range(6)]

    def values():
        draw = np.random.default_rng(seed + 1)
        have = [lz.tensor(v) for v in leaves]
        kept = []
        for _ in range(30):
            kind = draw.integers(5)
            picked = [have[k] for k in draw.integers(0, len(have), int(draw.integers(4, 22)))]
            if kind == 0:
                made = lz.cat([lz.tanh(p) if draw.random() < 0.7 else p for p in picked])[: int(draw.integers(1, 9))]
            elif kind == 1:
                made = lz.cat([p.sum(0, keepdim=True) for p in picked]).cumsum(0) * 0.1
            elif kind == 2:
                made = picked[0] @ (picked[1].T @ picked[1]) / 10
            elif kind == 3:
                made = lz.exp(-picked[0].abs()) + picked[0][:1]
            else:
                made = lz.cat([p[:1].expand(2, 6).sin() for p in picked])[::2]
            have.append(made)
            if draw.random() < 0.2:
                kept.append(made)
        kept.append(have[-1])
        del have, made, picked
        lz.realize(*kept)
        return [k.numpy() for k in kept]

    with_it = values()
    monkeypatch.setenv("LEZERO_PASSES", "-share,-join_parts,-join_products")
    for a, b in zip(with_it, values()):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
