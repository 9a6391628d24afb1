"""``lz.jit``: gradients that are there before the call."""

import numpy as np
import pytest

import lezero as lz
from captures import batch, network, trainer
from lezero import nn, optim
from lezero.nn import functional as F


def accumulation(kind, split):
    """(network, functions to call in turn) of an accumulation over three batches."""
    net = network("plain")
    opt = {
        "sgd": lambda: optim.SGD(net.parameters(), lr=0.1),
        "momentum": lambda: optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        "adamw": lambda: optim.AdamW(net.parameters(), lr=0.01),
    }[kind]()

    def add(x, y):
        loss = F.cross_entropy(net(x), y) / 3
        loss.backward()
        return loss

    def clear_and_add(x, y):
        opt.zero_grad()
        return add(x, y)

    def zero_and_add(x, y):
        opt.zero_grad(set_to_none=False)
        return add(x, y)

    def add_and_step(x, y):
        loss = add(x, y)
        opt.step()
        return loss

    def add_step_and_clear(x, y):
        loss = add_and_step(x, y)
        opt.zero_grad()
        return loss

    def add_clip_step_and_clear(x, y):
        loss = add(x, y)
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        opt.step()
        opt.zero_grad(set_to_none=False)
        return loss

    return net, {
        "cleared first": (clear_and_add, add, add_and_step),
        "zeros first": (zero_and_add, add, add_and_step),
        "cleared last": (add, add, add_step_and_clear),
        "clipped": (add, add, add_clip_step_and_clear),
    }[split]


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("split", ["cleared first", "cleared last", "clipped"])
def test_accumulation_may_be_split_over_captured_functions(kind, split):
    net, functions = accumulation(kind, split)
    captured = {f: lz.jit(f) for f in functions}
    twin, plain = accumulation(kind, split)
    for i in range(8):
        for k in range(3):
            x, y = batch(seed=3 * i + k)
            assert captured[functions[k]](x, y).item() == plain[k](x, y).item()
            for p, q in zip(net.parameters(), twin.parameters(), strict=True):
                np.testing.assert_array_equal(p.numpy(), q.numpy())
                assert (p.grad is None) == (q.grad is None)
                if q.grad is not None:
                    np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())
    for f in captured.values():  # with gradients there and without, if both occur
        assert len(f._variants) <= 2 and any(v.confirmed for v in f._variants.values())


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
def test_gradients_may_be_filled_with_zeros_at_the_start(kind):
    """None is there at the first call, and some at all others."""

    def run(captured):
        net, functions = accumulation(kind, "zeros first")
        calls = [lz.jit(f) for f in functions] if captured else functions
        values = []
        for i in range(6):
            for k, call in enumerate(calls):
                values.append(call(*batch(seed=3 * i + k)).item())
        return net, calls, [*values, *[t.numpy() for p in net.parameters() for t in (p, p.grad)]]

    (_, _, expected), (net, calls, found) = run(False), run(True)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(c._variants) for c in calls] == [2, 1, 1]
    assert all(p.grad._base is None for p in net.parameters())  # no view of the gradient before


def test_zeros_are_written_into_the_gradients_that_are_there():
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    for k, grad in enumerate((lz.tensor([3.0, 4.0]), lz.tensor([3.0, 4.0], requires_grad=True), w * 2)):
        w.grad = grad
        (optim.SGD([w], lr=0.1) if k % 2 else nn.ParameterList([w])).zero_grad(set_to_none=False)
        assert w.grad is grad and grad.tolist() == [0.0, 0.0] and not grad.requires_grad


def test_a_gradient_put_there_between_calls_is_added_to():
    """Also where none was there when the function was captured."""
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    opt = optim.SGD([w], lr=0.5)

    @lz.jit
    def step(x):
        loss = (w * x).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    expected = np.array([1.0, 2.0])
    for k in range(12):
        extra = k % 4 == 3 or k > 8
        if extra:
            w.grad = lz.tensor([float(k), 1.0])
        step(lz.tensor([1.0, -1.0]))
        expected = expected - 0.5 * (np.array([1.0, -1.0]) + (np.array([k, 1.0]) if extra else 0))
        assert w.tolist() == expected.tolist() and w.grad is None


def test_a_step_by_itself_may_be_captured():
    def run(captured):
        net, _, _ = trainer("plain", "sgd")
        opt = optim.AdamW(net.parameters(), lr=0.01)

        def update():
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            opt.step()
            opt.zero_grad()

        call = lz.jit(update) if captured else update
        for i in range(7):
            x, y = batch(seed=i)
            F.cross_entropy(net(x), y).backward()
            call()
            assert all(p.grad is None for p in net.parameters())
        return [p.numpy() for p in net.parameters()]

    for a, b in zip(run(False), run(True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_are_what_they_were_after_a_captured_function_raises():
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    w.grad = lz.tensor([5.0, 6.0])
    grad = w.grad

    @lz.jit
    def step(x):
        (w * x).sum().backward()
        w.grad = w.grad * 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step(lz.ones(2))
    assert w.grad is grad and grad.tolist() == [5.0, 6.0]


def test_gradients_of_another_shape_of_argument_are_another_variant():
    @lz.jit
    def f(x):
        (x * x).sum().backward()
        return x.grad.sum()

    for k in range(6):
        x = lz.tensor([float(k), 1.0], requires_grad=True)
        assert f(x).item() == 2 * k + 2
        if k % 2:
            assert f(x).item() == 4 * k + 4
