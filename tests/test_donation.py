"""Results that take over the memory of what they replace: several tensors are updated from each other's old values."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz

OPERATIONS = [
    lambda a, b: a + b,
    lambda a, b: a - 2 * b,
    lambda a, b: a * b,
    lambda a, b: (a - b).tanh(),
    lambda a, b: a.maximum(b) if hasattr(a, "maximum") else np.maximum(a, b),
]


def numpy_version(k, a, b):
    if k == 3:
        return np.tanh(a - b)
    if k == 4:
        return np.maximum(a, b)
    return OPERATIONS[k](a, b)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", [(5,), (17, 33), (4, 1, 3)])
def test_tensors_updated_from_each_other(seed, shape):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    values = [rng.uniform(-1, 1, shape) for _ in range(n)]
    ours = [lz.tensor(v) for v in values]
    held = None
    with lz.no_grad():
        for step in range(4):
            rules = [(int(rng.integers(5)), int(rng.integers(n)), int(rng.integers(n))) for _ in range(n)]
            extra = int(rng.integers(n))
            scale = values[extra].sum()
            factor = 1 / (1 + ours[extra].sum().abs())
            fresh = [OPERATIONS[k](ours[i], ours[j]) * factor for k, i, j in rules]
            by_hand = [numpy_version(k, values[i], values[j]) / (1 + abs(scale)) for k, i, j in rules]
            if step == 1:
                held = ours[0].detach().clone(), values[0].copy(), ours[1].numpy(), values[1].copy()
            for t, v in zip(ours, fresh):
                t.copy_(v)
            del fresh, v
            lz.realize(*ours)
            values = by_hand
            for t, v in zip(ours, values):
                np.testing.assert_allclose(t.numpy(), v, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(held[0].numpy(), held[1])
    np.testing.assert_allclose(held[2], held[3])


def test_a_gradient_scaled_by_a_sum_of_gradients_leaves_parameters_readable():
    """The scaled gradient must not take the parameter's memory before the parameter has been read."""
    from lezero import nn, optim

    lz.manual_seed(0)
    model = nn.Linear(6, 2)
    x = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    weight = model.weight.numpy().copy()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    y = model(lz.tensor(x))
    (y * y).mean().backward()
    grads = [p.grad.numpy().copy() for p in model.parameters()]
    model.zero_grad()
    y = model(lz.tensor(x))
    (y * y).mean().backward()
    with lz.no_grad():
        factor = 1 / (model.weight.grad.sum() + model.bias.grad.sum())
        for p in model.parameters():
            p.grad = p.grad.detach() * factor
    optimizer.step()
    expected = weight - grads[0] / (grads[0].sum() + grads[1].sum())
    np.testing.assert_allclose(model.weight.numpy(), expected, rtol=1e-5, atol=1e-6)
