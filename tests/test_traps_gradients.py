"""Traps about gradients: the loss that is read first, hooks, accumulation, gradients of gradients, and nothing runs twice."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.nn import functional as F
from regression import counted, data, equal, gradient, parameter, regression, start

# -- reading the loss -----------------------------------------------------------------------------------------


def test_reading_the_loss_before_and_after_backward_gives_the_same_gradients_and_no_second_forward():
    r = np.random.default_rng(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    x, y = lz.tensor(r.normal(size=(4, 2, 8, 8)).astype(np.float32)), lz.tensor(r.integers(0, 5, 4))

    def gradients(read):
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        if read == "before":
            value = loss.item()
        loss.backward()
        if read == "after":
            value = loss.item()
        grads = [p.grad.numpy().copy() for p in net.parameters()]
        return grads, loss.item() if read == "never" else value

    never, value = gradients("never")
    for read in ("before", "after"):
        grads, again = gradients(read)
        assert again == pytest.approx(value, rel=1e-6)
        for a, b in zip(grads, never):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    # One run for the forward pass and one for the gradients, which does no convolution of the forward pass again.
    names = kernels_run(lambda: gradients("before"))
    assert sum(is_forward_convolution(n) for n in names) == 1, names


def kernels_run(fn):
    """The operations of every graph that `fn` had compiled anew."""
    from lezero.runtime import run

    names = []
    build = run._build

    def watching(rec, ending, donated, backend):
        plan = build(rec, ending, donated, backend)
        names.extend(node.op.name for node in plan.graph.nodes())
        return plan

    plans = dict(run._plans)
    run._plans.clear()
    run._build = watching
    try:
        fn()
    finally:
        run._build = build
        run._plans.update(plans)
    return names


def is_forward_convolution(name):
    return name == "convolution"


def test_printing_the_loss_every_step_builds_two_plans_and_no_more():
    x, y = data()
    w = parameter()
    opt = optim.SGD([w], lr=0.1)
    expected = start()

    def step():
        nonlocal expected
        opt.zero_grad()
        loss = regression(w, x, y)
        np.testing.assert_allclose(loss.item(), ((x @ expected - y) ** 2).mean())
        loss.backward()
        opt.step()
        expected = expected - 0.1 * gradient(expected, x, y)
        equal(w, expected)

    for _ in range(3):
        step()
    assert counted(step) == (2, 0)
    assert counted(step) == (2, 0)


def test_the_loss_read_between_two_losses_of_one_forward():
    x, y = data()
    w = parameter()
    out = lz.tensor(x) @ w
    a = ((out - lz.tensor(y)) ** 2).mean()
    a.item()
    b = (out**2).mean()
    b.item()
    (a + b).backward()
    equal(w.grad, gradient(start(), x, y) + gradient(start(), x, 0 * y))


# -- gradients ------------------------------------------------------------------------------------------------


def test_retain_graph_and_the_second_backward():
    x, y = data()
    g = gradient(start(), x, y)
    for read in (False, True):
        w = parameter()
        loss = regression(w, x, y)
        if read:
            loss.item()
        loss.backward(retain_graph=True)
        equal(w.grad, g)
        loss.backward()
        equal(w.grad, 2 * g)
        with pytest.raises(RuntimeError, match="retain_graph"):
            loss.backward()
        loss.item()
        with pytest.raises(RuntimeError, match="retain_graph"):
            loss.backward()
        equal(w.grad, 2 * g)


def test_micro_batches_add_up_to_one_batch():
    x, y = data(12)
    w = parameter()
    for i in range(0, 12, 4):
        (regression(w, x[i : i + 4], y[i : i + 4]) / 3).backward()
    equal(w.grad, gradient(start(), x, y))


def test_accumulating_keeps_the_gradients_handle():
    x, y = data()
    w = parameter()
    regression(w, x, y).backward()
    held = w.grad
    for k in (2, 3, 4):
        regression(w, x, y).backward()
        assert w.grad is held
        equal(held, k * gradient(start(), x, y))
    w.grad = None
    regression(w, x, y).backward()
    assert w.grad is not held
    equal(held, 4 * gradient(start(), x, y))


def test_accumulation_compiles_a_fixed_number_of_plans():
    w = parameter()
    opt = optim.SGD([w], lr=0.1)
    expected = start()

    def step():
        nonlocal expected
        opt.zero_grad()
        total = 0
        for k in range(4):
            x, y = data(5, seed=k)
            (regression(w, x, y) / 4).backward()
            total = total + gradient(expected, x, y) / 4
        opt.step()
        expected = expected - 0.1 * total
        equal(w, expected)

    step(), step()
    runs, plans = counted(step)
    assert plans == 0 and runs <= 5


def test_zeroed_gradients_set_to_none_or_zero_train_alike():
    x, y = data()
    results = []
    for to_none in (True, False):
        w = parameter()
        opt = optim.SGD([w], lr=0.1, momentum=0.9)
        for _ in range(4):
            opt.zero_grad(set_to_none=to_none)
            regression(w, x, y).backward()
            opt.step()
        results.append(w.numpy())
    np.testing.assert_allclose(*results, rtol=1e-12)


def test_hooks_see_and_replace_gradients():
    x, y = data()
    w = parameter()
    seen = []
    first = w.register_hook(seen.append)
    second = w.register_hook(lambda g: g * 2)
    out = lz.tensor(x) @ w
    out.register_hook(lambda g: g * 10)
    out.retain_grad()
    ((out - lz.tensor(y)) ** 2).mean().backward()
    g = gradient(start(), x, y)
    equal(w.grad, 20 * g)
    equal(seen[0], 10 * g)
    first.remove(), second.remove()
    w.grad = None
    regression(w, x, y).backward()
    equal(w.grad, g)
    assert len(seen) == 1


@pytest.mark.parametrize("read_loss", [False, True])
@pytest.mark.parametrize("read_gradient", [False, True])
@pytest.mark.parametrize("update", [False, True])
def test_gradients_of_gradients_across_runs(read_loss, read_gradient, update):
    """As a gradient penalty needs them, whatever was read in between."""
    a = start()
    w = parameter()
    loss = (w**3 * 2).sum()
    if read_loss:
        loss.item()
    loss.backward(create_graph=True)
    g = w.grad
    if read_gradient:
        equal(g, 6 * a**2)
    w.grad = None
    if update:
        with lz.no_grad():
            w.mul_(5)
    (g**2).sum().backward()
    equal(w.grad, 2 * 6 * a**2 * 12 * a)


def test_a_hook_may_read_values_while_gradients_are_on_their_way():
    x, y = data()
    seen = []
    for before in (False, True):
        seen.clear()
        w, scale = parameter(), nn.Parameter(lz.tensor(np.array(3.0)))
        out = lz.tensor(x) @ w
        out.register_hook(lambda g: seen.append(g.norm().item()))
        w.register_hook(lambda g: seen.append(g.norm().item()))
        loss = ((out * scale - lz.tensor(y)) ** 2).mean()
        if before:
            loss.item()
        loss.backward()
        residual = 2 * (3 * (x @ start()) - y) / y.size
        equal(w.grad, 3 * x.T @ residual)
        equal(scale.grad, (residual * (x @ start())).sum())
        np.testing.assert_allclose(seen, [np.linalg.norm(3 * residual), np.linalg.norm(3 * x.T @ residual)], rtol=1e-12)
        with pytest.raises(RuntimeError, match="taken before"):
            loss.backward()


def test_a_hook_that_raises_leaves_no_gradient_and_no_mode_behind():
    w = parameter()
    for _ in range(2):
        h = w * 2
        h.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            (h * h).sum().backward()
        assert w.grad is None and lz.is_grad_enabled()
    ((w * 2) ** 2).sum().backward()
    equal(w.grad, 8 * start())


def test_a_value_overwritten_after_use_does_not_change_the_gradient():
    for read in (False, True):
        w = parameter()
        h = w * 2
        y = h * h
        if read:
            y.numpy()
        h.zero_()
        if read:
            h.numpy()
        y.sum().backward()
        equal(w.grad, 8 * start())


def test_backpropagation_through_time_cut_by_detach():
    w = parameter(np.random.default_rng(0).normal(size=(3, 3)) * 0.3)
    opt = optim.SGD([w], lr=0.1)
    h = lz.tensor(np.ones((2, 3)))
    a, b = w.numpy().copy(), np.ones((2, 3))
    for _ in range(4):
        h = h.detach()
        for _ in range(2):
            h = (h @ w).tanh()
        opt.zero_grad()
        (h**2).sum().backward()
        opt.step()
        b1 = np.tanh(b @ a)
        b2 = np.tanh(b1 @ a)
        d2 = 2 * b2 * (1 - b2**2)
        d1 = (d2 @ a.T) * (1 - b1**2)
        a, b = a - 0.1 * (b1.T @ d2 + b.T @ d1), b2
        equal(w, a)
        equal(h, b)
    out = (h @ w).tanh().sum()
    out.item()
    with pytest.raises(RuntimeError, match="retain_graph"):
        out.backward()  # h comes from a graph whose gradient has been taken


def test_hooks_do_not_stay_behind_on_a_repeated_trace():
    x, y = data()
    w = parameter()
    for k in range(6):
        w.grad = None
        out = lz.tensor(x) @ w
        if k in (2, 4):
            out.register_hook(lambda g: g * 3)
        ((out - lz.tensor(y)) ** 2).mean().backward()
        equal(w.grad, gradient(start(), x, y) * (3 if k in (2, 4) else 1))


def test_frozen_parameters_get_no_gradient_on_a_repeated_trace():
    x, y = data()
    w, v = parameter(), parameter(start(5))

    def step():
        w.grad = v.grad = None
        ((lz.tensor(x) @ w + lz.tensor(x) @ v - lz.tensor(y)) ** 2).mean().backward()

    for k in range(6):
        v.requires_grad_(k not in (2, 3))
        step()
        equal(w.grad, gradient(start() + start(5), x, y))
        assert (v.grad is None) == (k in (2, 3))


def test_gradients_do_not_share_a_tensor_with_the_seed_or_each_other():
    x, y = lz.tensor([1.0, 2.0], requires_grad=True), lz.tensor([3.0, 4.0], requires_grad=True)
    seed = lz.tensor([1.0, 1.0])
    (x + y).backward(seed)
    with lz.no_grad():
        x.grad.mul_(5.0)
    assert x.grad.tolist() == [5.0, 5.0]
    assert y.grad.tolist() == [1.0, 1.0]
    assert seed.tolist() == [1.0, 1.0]
