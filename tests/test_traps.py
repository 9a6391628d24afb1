"""Mutation and aliasing traps: what users hold keeps its value, what they write arrives, and nothing runs twice.

A linear regression whose gradient is written out in NumPy serves as the reference throughout.
"""

import contextlib
import copy
import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.backends.cpu import compiler
from lezero.hal import registry
from lezero.nn import functional as F
from lezero.runtime import recorder, stats

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


# -- updates and what is still held ---------------------------------------------------------------------------


@pytest.mark.parametrize("hold", ["detach", "data", "clone", "numpy", "sum"])
def test_a_held_old_parameter(hold):
    """Copies, exported arrays and results keep the old value; ``detach`` and ``data`` are the parameter itself."""
    x, y = data()
    w = parameter()
    held = {"detach": w.detach, "clone": w.detach().clone, "numpy": w.numpy, "data": lambda: w.data, "sum": w.sum}[
        hold
    ]()
    opt = optim.SGD([w], lr=0.1)
    expected = start()
    for _ in range(3):
        opt.zero_grad()
        regression(w, x, y).backward()
        opt.step()
        expected = expected - 0.1 * gradient(expected, x, y)
    equal(w, expected)
    if hold in ("detach", "data"):
        equal(held, expected)
    else:
        np.testing.assert_allclose(np.asarray(held), start().sum() if hold == "sum" else start(), rtol=1e-14)


@native
def test_an_update_without_holders_happens_in_place_and_with_holders_does_not():
    x, y = data()
    w = parameter()
    opt = optim.SGD([w], lr=0.1)

    def step():
        opt.zero_grad()
        regression(w, x, y).backward()
        opt.step()

    step()
    address = w._buffer.address
    step()
    assert w._buffer.address == address
    held = w.numpy()
    before = held.copy()
    step()
    assert w._buffer.address != address
    np.testing.assert_array_equal(held, before)
    assert not held.flags.writeable
    with pytest.raises(ValueError):
        held[0] = 1
    del held
    step()
    address = w._buffer.address
    step()
    assert w._buffer.address == address


def test_views_of_an_exported_array_block_donation_too():
    w = parameter()
    row = w.numpy()[1:, ::-1].T
    before = row.copy()
    opt = optim.SGD([w], lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        regression(w, *data()).backward()
        opt.step()
    np.testing.assert_array_equal(row, before)


def test_a_dlpack_or_buffer_export_blocks_donation():
    w = parameter()
    held = np.from_dlpack(w) if hasattr(w, "__dlpack__") else np.asarray(w)
    before = held.copy()
    opt = optim.SGD([w], lr=0.1)
    for _ in range(2):
        opt.zero_grad()
        regression(w, *data()).backward()
        opt.step()
    np.testing.assert_array_equal(held, before)


def test_two_handles_to_one_value_do_not_share_what_one_of_them_is_given():
    a = lz.tensor([1.0, 2.0])
    b = a.clone()
    lz.realize(a, b)
    a += 1
    equal(a, [2.0, 3.0])
    equal(b, [1.0, 2.0])
    c, d = copy.deepcopy(a), copy.copy(a)
    a += 1
    equal(a, [3.0, 4.0])
    equal(c, [2.0, 3.0])
    equal(d, [3.0, 4.0])  # a shallow copy shares the value, as a detached tensor does


def test_deepcopied_models_train_apart():
    net = nn.Linear(3, 2)
    twin = copy.deepcopy(net)
    w = net.weight.numpy().copy()
    opt = optim.SGD(net.parameters(), lr=0.1)
    x, y = lz.tensor(np.float32(data()[0])), lz.tensor(np.float32(data()[1]))
    for _ in range(2):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
    np.testing.assert_array_equal(twin.weight.numpy(), w)
    assert not np.array_equal(net.weight.numpy(), w)


def test_writing_through_detach_and_data_reaches_the_parameter():
    w = parameter()
    w.detach().fill_(2.0)
    equal(w, np.full((3, 2), 2.0))
    w.data[1] = 5.0
    w.data[2].mul_(3)
    equal(w, [[2, 2], [5, 5], [6, 6]])
    w.data = lz.zeros(3, 2, dtype=lz.float64)
    equal(w, np.zeros((3, 2)))
    assert w.requires_grad and w.is_leaf
    regression(w, *data()).backward()
    equal(w.grad, gradient(np.zeros((3, 2)), *data()))


def test_a_detached_parameter_follows_and_is_followed_across_runs():
    x, y = data()
    w = parameter()
    d = w.detach()
    d.numpy()
    opt = optim.SGD([w], lr=0.1)
    regression(w, x, y).backward()
    opt.step()
    expected = start() - 0.1 * gradient(start(), x, y)
    equal(d, expected)
    d -= 1.0
    equal(w, expected - 1)
    equal(d, expected - 1)


def test_a_tensor_held_across_steps_keeps_its_value():
    x, y = data()
    w = parameter()
    opt = optim.SGD([w], lr=0.1, momentum=0.9)
    expected, momentum, losses, outputs, values = start(), 0, [], [], []
    for _ in range(5):
        opt.zero_grad()
        out = lz.tensor(x) @ w
        loss = ((out - lz.tensor(y)) ** 2).mean()
        loss.backward()
        opt.step()
        losses.append(loss), outputs.append(out)
        values.append(expected)
        momentum = 0.9 * momentum + gradient(expected, x, y)
        expected = expected - 0.1 * momentum
    for loss, out, w_then in zip(losses, outputs, values):
        equal(out, x @ w_then)
        equal(loss, ((x @ w_then - y) ** 2).mean())


def test_the_state_dict_of_before_is_the_state_of_now_unless_copied():
    net = nn.Linear(3, 2)
    shared, kept = net.state_dict(), copy.deepcopy(net.state_dict())
    before = net.weight.numpy().copy()
    opt = optim.SGD(net.parameters(), lr=0.5)
    F.mse_loss(net(lz.ones(4, 3)), lz.zeros(4, 2)).backward()
    opt.step()
    np.testing.assert_array_equal(shared["weight"].numpy(), net.weight.numpy())
    np.testing.assert_array_equal(kept["weight"].numpy(), before)


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


# -- views ----------------------------------------------------------------------------------------------------


def test_a_write_through_a_view_of_a_view():
    a = np.arange(24.0).reshape(2, 3, 4)
    x = lz.tensor(a)
    x[0][1] = -1.0
    a[0][1] = -1
    equal(x, a)
    x[1].T[2, 1:] = 7.0
    a[1].T[2, 1:] = 7
    equal(x, a)
    x.permute(2, 0, 1)[3].reshape(-1)[2:4].mul_(10)
    flat = a.transpose(2, 0, 1)[3].reshape(-1)
    flat[2:4] *= 10
    a.transpose(2, 0, 1)[3] = flat.reshape(2, 3)
    equal(x, a)


@pytest.mark.parametrize("run_between", [False, True])
def test_siblings_see_a_write_through_another_view(run_between):
    a = np.arange(12.0).reshape(3, 4)
    x = lz.tensor(a)
    row, column, transposed = x[1], x[:, 2], x.T
    if run_between:
        lz.realize(row, column, transposed)
    row += 100
    if run_between:
        row.numpy()
    column *= 2
    a[1] += 100
    a[:, 2] *= 2
    for ours, theirs in ((x, a), (row, a[1]), (column, a[:, 2]), (transposed, a.T)):
        equal(ours, theirs)
    x.zero_()
    for view in (row, column, transposed):
        assert not view.numpy().any()


def test_an_initialiser_on_a_slice():
    w = parameter(np.zeros((4, 3)))
    nn.init.ones_(w[1:3])
    equal(w, [[0] * 3, [1] * 3, [1] * 3, [0] * 3])
    nn.init.constant_(w.data[3], 4.0)
    with lz.no_grad():
        w[0].fill_(2)
        w[:, 1].normal_()
    values = w.numpy()
    np.testing.assert_array_equal(values[:, 0], [2, 1, 1, 4])
    np.testing.assert_array_equal(values[:, 2], [2, 1, 1, 4])
    assert len(set(values[:, 1])) == 4
    assert w.requires_grad and w.is_leaf


def test_writing_through_a_view_of_a_parameter_needs_no_grad():
    w = parameter()
    with pytest.raises(RuntimeError, match="no_grad"):
        w[0] = 1.0
    equal(w, start())
    with pytest.raises(RuntimeError, match="no_grad"):
        w += 1.0
    equal(w, start())


def test_a_view_whose_base_nobody_holds_stands_alone():
    v = lz.tensor(np.arange(6.0)).reshape(2, 3)[1]
    v += 1
    equal(v, [4, 5, 6])
    gc.collect()
    v += 1
    equal(v, [5, 6, 7])


def test_expanded_tensors_cannot_be_written_through():
    x = lz.tensor([1.0, 2.0])
    e = x.expand(3, 2)
    try:
        e += 1
    except RuntimeError as error:
        assert "expand" in str(error)
        equal(x, [1, 2])
    else:  # not a view then: the write stays where it was made
        equal(e, [[2, 3]] * 3)
        equal(x, [1, 2])


def test_gradients_flow_through_writes_into_computed_tensors():
    r = np.random.default_rng(0)
    a = r.normal(size=(3, 2))
    w = parameter(a)
    h = w * 2
    h[1] = w[0] * w[2]
    h[:, 0].mul_(3)
    (h**2).sum().backward()
    m = np.ones((3, 2))
    m[:, 0] = 3
    g = np.zeros_like(a)
    g[0] += 2 * (2 * a[0] * m[0]) * 2 * m[0]
    g[2] += 2 * (2 * a[2] * m[2]) * 2 * m[2]
    d = 2 * (a[0] * a[2] * m[1]) * m[1]
    g[0] += d * a[2]
    g[2] += d * a[0]
    equal(w.grad, g)


# -- what compiles nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, options", [("SGD", {"momentum": 0.9}), ("AdamW", {}), ("RMSprop", {})])
def test_a_learning_rate_schedule_compiles_nothing(name, options):
    x, y = data()
    w = parameter()
    opt = getattr(optim, name)([w], lr=0.1, **options)
    schedule = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=50)

    def step():
        opt.zero_grad()
        regression(w, x, y).backward()
        opt.step()
        schedule.step()

    for _ in range(3):
        step()
    compiled = compiler.default().stats()
    rates = []

    def steps():
        for _ in range(10):
            rates.append(opt.param_groups[0]["lr"])
            step()

    assert counted(steps) == (10, 0)
    assert len(set(rates)) == 10
    after = compiler.default().stats()
    assert (after.compiled, after.misses, after.disk_hits) == (compiled.compiled, compiled.misses, compiled.disk_hits)


def test_python_numbers_in_the_loss_compile_nothing():
    x, y = data()
    w = parameter()
    weights = iter(np.linspace(0.1, 2, 8).tolist())

    def step():
        w.grad = None
        weight = next(weights)
        (regression(w, x, y) * weight + weight / 3).backward()
        equal(w.grad, weight * gradient(start(), x, y))

    step(), step()
    assert counted(lambda: [step() for _ in range(5)])[1] == 0


def test_another_batch_size_uses_the_same_plan():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    opt = optim.SGD(net.parameters(), lr=0.01)

    def step(n):
        x, y = data(n)
        opt.zero_grad()
        loss = F.mse_loss(net(lz.tensor(np.float32(x))), lz.tensor(np.float32(y)))
        loss.backward()
        opt.step()
        return loss

    for n in (8, 9, 8):
        step(n)
    assert counted(lambda: [step(n) for n in (7, 31, 2, 8, 64, 5)])[1] == 0
    # One row has a plan of its own (an extent of 1 broadcasts), which is built once.
    assert counted(lambda: [step(n) for n in (1, 3, 1, 4, 1)])[1] <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 17])
def test_batch_sizes_give_the_gradients_of_their_batch(n):
    w = parameter()
    for size in (5, n, 6, n):
        x, y = data(size, seed=size)
        w.grad = None
        regression(w, x, y).backward()
        equal(w.grad, gradient(start(), x, y))


def test_train_and_eval_alternate_on_their_own_plans():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    opt = optim.SGD(net.parameters(), lr=0.01)
    x, y = (lz.tensor(np.float32(a)) for a in data(8))

    def epoch():
        net.train()
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
        net.eval()
        with lz.no_grad():
            a, b = net(x).numpy(), net(x).numpy()
        np.testing.assert_array_equal(a, b)

    for _ in range(3):
        epoch()
    assert counted(lambda: [epoch() for _ in range(4)])[1] == 0


# -- data that is used again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lz.tensor, lz.from_numpy], ids=["tensor", "from_numpy"])
def test_a_loader_that_reuses_its_buffer(make):
    buffer = np.zeros((4, 3))
    kept = []
    for i in range(3):
        buffer[:] = i
        t = make(buffer)
        kept.append((t, t * 2))
    buffer[:] = -1
    for i, (t, doubled) in enumerate(kept):
        equal(t, np.full((4, 3), i))
        equal(doubled, np.full((4, 3), 2 * i))


def test_an_array_taken_over_is_not_written_into():
    a = np.arange(4.0)
    t = lz.from_numpy(a)
    t += 1
    t.numpy()
    np.testing.assert_array_equal(a, np.arange(4.0))
    indices = np.array([0, 1])
    x = lz.tensor(np.arange(4.0))
    y = x[indices]
    indices[:] = 3
    equal(y, [0, 1])


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


# -- updates written by hand ----------------------------------------------------------------------------------


def test_sgd_written_by_hand():
    x, y = data()
    w = parameter()
    expected = start()

    def step(k):
        nonlocal expected
        loss = regression(w, x, y)
        loss.backward()
        with lz.no_grad():
            w_ = w
            w_ -= 0.1 / (k + 1) * w_.grad
        assert w_ is w
        w.grad = None
        expected = expected - 0.1 / (k + 1) * gradient(expected, x, y)
        equal(w, expected)

    for k in range(3):
        step(k)
    assert counted(lambda: [step(k) for k in range(3, 8)])[1] == 0
    assert w.requires_grad and w.is_leaf


def test_sgd_written_by_hand_without_reading_anything_runs_in_bounded_graphs():
    x, y = data()
    w = parameter()
    expected = start()
    for _ in range(30):
        regression(w, x, y).backward()
        with lz.no_grad():
            w.sub_(w.grad * 0.05)
            w.grad.zero_()
        expected = expected - 0.05 * gradient(expected, x, y)
    equal(w, expected, rtol=1e-9)
    assert not w.grad.numpy().any()


def test_an_exponential_average_follows_its_model():
    x, y = data()
    w = parameter()
    average = w.detach().clone()
    opt = optim.SGD([w], lr=0.1)
    expected, smooth = start(), start()
    for _ in range(5):
        opt.zero_grad()
        regression(w, x, y).backward()
        opt.step()
        with lz.no_grad():
            average.mul_(0.9).add_(w, alpha=0.1)
        expected = expected - 0.1 * gradient(expected, x, y)
        smooth = 0.9 * smooth + 0.1 * expected
    equal(w, expected)
    equal(average, smooth)


def test_an_in_place_swap():
    a, b = lz.tensor([1.0, 2.0]), lz.tensor([3.0, 4.0])
    for _ in range(3):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
    equal(a, [3, 4])
    equal(b, [1, 2])
    a.copy_(a)
    a += a
    equal(a, [6, 8])


# -- several optimizers ---------------------------------------------------------------------------------------


def test_two_optimizers_sharing_a_parameter():
    x, y = data()
    w, v = parameter(), parameter(start(5))
    one, two = optim.SGD([w], lr=0.1), optim.SGD([w, v], lr=0.01, momentum=0.9)
    a, b, ma, mb = start(), start(5), 0, 0
    for _ in range(4):
        one.zero_grad(), two.zero_grad()
        ((lz.tensor(x) @ w + lz.tensor(x) @ v - lz.tensor(y)) ** 2).mean().backward()
        one.step(), two.step()
        g = gradient(a + b, x, y)
        ma, mb = 0.9 * ma + g, 0.9 * mb + g
        a, b = a - 0.1 * g - 0.01 * ma, b - 0.01 * mb
    equal(w, a)
    equal(v, b)


def test_an_adversarial_pair():
    """Generator and discriminator, each stepping between the other's forward and backward passes."""
    x, _ = data()
    g0, d0 = np.random.default_rng(3).normal(size=(3, 3)), np.random.default_rng(4).normal(size=(3, 1))
    g, d = parameter(g0), parameter(d0)
    og, od = optim.SGD([g], lr=0.05), optim.SGD([d], lr=0.05)
    z = lz.tensor(x)
    a, b, n = g0, d0, len(x)
    for _ in range(4):
        fake = z @ g
        od.zero_grad()
        ((z @ d - 1) ** 2).mean().backward()
        ((fake.detach() @ d) ** 2).mean().backward()
        od.step()
        og.zero_grad()
        ((fake @ d - 1) ** 2).mean().backward()
        og.step()

        made = x @ a
        gb = 2 * x.T @ (x @ b - 1) / n + 2 * made.T @ (made @ b) / n
        b = b - 0.05 * gb
        a = a - 0.05 * 2 * x.T @ ((made @ b - 1) @ b.T) / n
        equal(d, b)
    equal(g, a)


def test_a_step_between_forward_and_backward_does_not_change_the_gradient():
    x, y = data()
    w, v = parameter(), parameter(start(5))
    opt = optim.SGD([v], lr=0.5)
    loss = ((lz.tensor(x) @ w * (lz.tensor(x) @ v)) ** 2).mean()
    regression(v, x, y).backward()
    opt.step()
    loss.backward()
    scale = x @ start(5)  # the value the forward pass saw
    equal(w.grad, 2 * x.T @ ((x @ start() * scale) * scale) / y.size)
    equal(v, start(5) - 0.5 * gradient(start(5), x, y))


# -- failures -------------------------------------------------------------------------------------------------


def test_an_exception_in_the_middle_of_a_step_leaves_everything_as_it_was():
    x, y = data()
    w = parameter()
    opt = optim.SGD([w], lr=0.1, momentum=0.9)

    def step(fail=False):
        opt.zero_grad()
        loss = regression(w, x, y)
        if fail == "loss":
            raise ZeroDivisionError
        loss.backward()
        if fail == "gradient":
            raise ZeroDivisionError
        opt.step()

    expected, momentum = start(), 0
    for k in range(9):
        if k % 3 == 0:
            step()
            momentum = 0.9 * momentum + gradient(expected, x, y)
            expected = expected - 0.1 * momentum
        else:
            with pytest.raises(ZeroDivisionError):
                step("loss" if k % 3 == 1 else "gradient")
        equal(w, expected)


def test_a_shape_error_leaves_the_recording_usable():
    a, b = lz.tensor(np.ones((2, 3))), lz.tensor(np.ones((4, 5)))
    c = a * 2
    for _ in range(3):
        with pytest.raises(ValueError, match="matmul"):
            c @ b
        with pytest.raises(Exception, match="add"):
            c + b
        c = c + 1
    equal(c, np.full((2, 3), 5.0))


@native
@pytest.mark.parametrize("where", ["compile", "run"])
def test_a_failed_run_can_be_tried_again(monkeypatch, where):
    from lezero.backends import cpu

    x, y = data()
    w = parameter()
    opt = optim.SGD([w], lr=0.1, momentum=0.9)
    step = lambda: (opt.zero_grad(), regression(w, x, y).backward(), opt.step())
    step()
    w_before = w.numpy().copy()
    opt.zero_grad()
    (regression(w, x, y) * 1.0 + 0.0).backward() if where == "compile" else regression(w, x, y).backward()
    with monkeypatch.context() as m:
        target = (cpu.CpuBackend, "compile") if where == "compile" else (cpu.CpuProgram, "run")

        def fails(*args, **kwargs):
            raise MemoryError("no room")

        m.setattr(*target, fails)
        with pytest.raises(MemoryError):
            opt.step()
    momentum = gradient(start(), x, y)
    first = start() - 0.1 * momentum
    np.testing.assert_allclose(w_before, first)
    second = first - 0.1 * (0.9 * momentum + gradient(first, x, y))
    equal(w, second)  # what was recorded still stands, and runs when it can
    step()
    assert opt.state[w]["step"].item() == 3


def long_step():
    """A step of a few hundred milliseconds: its parameters, and what they may be after it."""
    w = parameter(np.random.default_rng(0).normal(size=(512, 512)) / 22)
    opt = optim.SGD([w], lr=0.1)

    def step():
        opt.zero_grad()
        h = w
        for _ in range(8):
            h = h @ w
        h.mean().backward()
        opt.step()

    return w, step


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
@pytest.mark.parametrize("fraction", [0.1, 0.6, 0.95])
def test_an_interrupted_run_leaves_parameters_as_they_were_or_fully_updated(fraction):
    w, step = long_step()
    begin = w.numpy().copy()
    step()
    with lz.no_grad():
        w.copy_(lz.tensor(begin))
    began = time.perf_counter()
    step()
    seconds = time.perf_counter() - began
    once = w.numpy().copy()
    step()
    twice = w.numpy().copy()
    with lz.no_grad():
        w.copy_(lz.tensor(begin))
    w.numpy()

    def interrupt(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    interrupted = False
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds * fraction)
        step()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    after = w.numpy().copy()
    assert any(np.array_equal(after, b) for b in (begin, once)), f"interrupted={interrupted}"
    step()
    expected = once if np.array_equal(after, begin) else twice
    np.testing.assert_array_equal(w.numpy(), expected)


@native
@pytest.mark.parametrize("captured", [False, True])
def test_an_interrupt_that_comes_when_everything_is_written_loses_nothing(captured):
    from lezero.backends.cpu.pool import default_pool

    x, y = data()
    w = parameter()
    opt = optim.SGD([w], lr=0.1, momentum=0.9)
    expected, momentum = start(), 0
    xt, yt = lz.tensor(x), lz.tensor(y)

    def step(xt, yt):
        opt.zero_grad()
        loss = ((xt @ w - yt) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    if captured:
        step = lz.jit(step)
    pool = default_pool()
    for k in range(6):
        if k in (3, 4):
            walk = pool._walk

            def late(*args, walk=walk):
                walk(*args)
                raise KeyboardInterrupt

            pool._walk = late
            try:
                with pytest.raises(KeyboardInterrupt):
                    step(xt, yt)
            finally:
                pool._walk = walk
        else:
            step(xt, yt)
        g = gradient(expected, x, y)
        momentum = 0.9 * momentum + g
        expected = expected - 0.1 * momentum
        equal(w, expected)
        equal(w.grad, g)
    assert opt.state[w]["step"].item() == 6


# -- processes and threads ------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_in_the_middle_of_training():
    x, y = data(64)
    w = parameter()
    opt = optim.SGD([w], lr=0.1)

    def steps(n):
        for _ in range(n):
            opt.zero_grad()
            regression(w, x, y).backward()
            opt.step()
        return w.numpy().copy()

    steps(3)
    opt.zero_grad()
    loss = regression(w, x, y)  # recorded, not yet run
    with pytest.warns(DeprecationWarning) if sys.version_info >= (3, 12) else pytest.MonkeyPatch.context():
        read, write = os.pipe()
        child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            loss.backward()
            opt.step()
            os.write(write, steps(3).tobytes())
        finally:
            os._exit(0)
    os.close(write)
    loss.backward()
    opt.step()
    ours = steps(3)
    with os.fdopen(read, "rb") as f:
        theirs = np.frombuffer(f.read()).reshape(3, 2)
    os.waitpid(child, 0)
    np.testing.assert_array_equal(ours, theirs)


def in_threads(*functions):
    """Call all at once; re-raise what one of them raised."""
    errors = []
    barrier = threading.Barrier(len(functions))

    def call(fn):
        try:
            barrier.wait(30)
            fn()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(fn,)) for fn in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if errors:
        raise errors[0]


def small_net(seed):
    r = np.random.default_rng(seed)
    net = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    with lz.no_grad():
        for p in net.parameters():
            p.copy_(lz.tensor(r.normal(size=tuple(p.shape)).astype(np.float32)))
    return net


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_two_threads_training_two_models(quick_switches):
    def train(seed, sizes):
        net = small_net(seed)
        opt = optim.AdamW(net.parameters(), lr=0.01)
        for n in sizes:
            x, y = data(n, seed=n)
            opt.zero_grad()
            F.mse_loss(net(lz.tensor(np.float32(x))), lz.tensor(np.float32(y))).backward()
            opt.step()
        return [p.numpy().copy() for p in net.state_dict().values()]

    sizes = [8, 5, 8, 7, 12, 3, 9, 8, 31, 6] * 3
    alone = [train(s, sizes[s:]) for s in range(3)]
    together = [None] * 3

    def run(s):
        together[s] = train(s, sizes[s:])

    in_threads(*(lambda s=s: run(s) for s in range(3)))
    for a, b in zip(alone, together):
        for u, v in zip(a, b):
            np.testing.assert_array_equal(u, v)


def test_threads_inferring_with_a_shared_model(quick_switches):
    net = small_net(0).eval()
    inputs = [np.float32(data(n, seed=n)[0]) for n in range(1, 9)]
    with lz.no_grad():
        expected = [net(lz.tensor(x)).numpy().copy() for x in inputs]

    def infer():
        with lz.no_grad():
            for _ in range(10):
                for x, y in zip(inputs, expected):
                    np.testing.assert_array_equal(net(lz.tensor(x)).numpy(), y)

    in_threads(*[infer] * 4)


def test_a_tensor_recorded_in_one_thread_and_used_in_another():
    made = []
    thread = threading.Thread(target=lambda: made.append(lz.tensor(np.ones((2, 2))) * 3))
    thread.start()
    thread.join()
    equal(made[0] + 1, np.full((2, 2), 4.0))


# -- size -----------------------------------------------------------------------------------------------------


@pytest.fixture
def oracle():
    """The backend that computes op by op, whose plans cost least."""
    before = registry.get_backend()
    registry.set_backend("numpy")
    yield
    registry.set_backend(before)


def test_a_graph_of_200_000_nodes(monkeypatch, oracle):
    """In one piece: recorded, differentiated, planned and run without recursion."""
    monkeypatch.setattr(recorder, "MAX_RECORDED", 10**9)
    x = lz.tensor(np.ones(2), requires_grad=True)
    y = x
    for k in range(100_000):
        y = y * 1.0 if k % 2 else y + 0.5
    y.sum().backward()
    assert recorder.STATE.recording.count > 150_000
    equal(y, np.full(2, 1 + 0.5 * 50_000))
    equal(x.grad, np.ones(2))


def test_200_000_operations_run_in_pieces(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_RECORDED", 200)
    x = lz.tensor(np.ones(4))
    y = x
    for k in range(200_000):
        y = y * 1.0 if k % 2 else y + 0.5
    assert recorder.STATE.recording.count <= 200
    equal(y, np.full(4, 1 + 0.5 * 100_000))


def test_gradients_through_a_chain_that_ran_in_pieces(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_RECORDED", 100)
    x = lz.tensor(np.ones(4), requires_grad=True)
    y = x
    for _ in range(300):
        y = y * 1.0001 + 0.5
    y.sum().backward()
    equal(x.grad, np.full(4, 1.0001**300), rtol=1e-9)


def test_gradients_do_not_share_a_tensor_with_the_seed_or_each_other():
    x, y = lz.tensor([1.0, 2.0], requires_grad=True), lz.tensor([3.0, 4.0], requires_grad=True)
    seed = lz.tensor([1.0, 1.0])
    (x + y).backward(seed)
    with lz.no_grad():
        x.grad.mul_(5.0)
    assert x.grad.tolist() == [5.0, 5.0]
    assert y.grad.tolist() == [1.0, 1.0]
    assert seed.tolist() == [1.0, 1.0]


# -- modes and interrupts -------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", [lz.no_grad, lz.inference_mode])
def test_no_interrupt_leaves_a_mode_on(mode):
    """Without a body, nearly half of all interrupts come when ``__exit__`` is called."""

    def raises(*_):
        raise KeyboardInterrupt

    r = np.random.default_rng(0)
    before = signal.signal(signal.SIGALRM, raises)
    left_on = 0
    try:
        for _ in range(300):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, r.uniform(2e-5, 2e-4))
                    while True:
                        with mode():
                            pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                left_on += not lz.is_grad_enabled()
                lz.set_grad_enabled(True)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert left_on == 0


@pytest.mark.parametrize("mode", [lz.no_grad, lambda: lz.set_grad_enabled(False)])
def test_modes_are_left_however_they_are_used(mode):
    def is_on():
        return not lz.is_grad_enabled()

    with contextlib.ExitStack() as stack:
        stack.enter_context(mode())
        assert is_on()
    assert not is_on()
    m = mode()
    m.__enter__()
    assert hasattr(m, "__exit__") and is_on()
    assert not m.__exit__(None, None, None)
    assert not is_on()
    with pytest.raises(ZeroDivisionError) as caught, mode():
        _ = 1 / 0
    assert caught.value.__context__ is None
    assert not is_on()


def test_a_mode_may_be_entered_again_inside_itself():
    m = lz.no_grad()
    with m, lz.enable_grad():
        with m:
            assert not lz.is_grad_enabled()
        assert lz.is_grad_enabled()
    assert lz.is_grad_enabled()


def test_a_captured_function_that_is_interrupted_at_once_is_no_longer_captured(monkeypatch):
    from lezero.runtime import jit as jitting

    real = jitting._counting

    class Interrupting:
        def __enter__(self):
            real.__enter__()

        def __exit__(self, *error):
            real.__exit__(*error)
            monkeypatch.setattr(jitting, "_counting", real)
            raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "capturing", 0)  # the count is put back afterwards: this one is lost
    monkeypatch.setattr(jitting, "_counting", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        lz.jit(lambda x: x + 1)(lz.ones(2))
    assert lz.ones(2).sum().item() == 2
