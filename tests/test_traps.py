"""Mutation and aliasing traps: what users hold keeps its value, and what they write arrives."""

import copy
import gc

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.nn import functional as F
from regression import counted, data, equal, gradient, native, parameter, regression, start

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
    held = np.from_dlpack(w.detach())
    assert np.shares_memory(held, w.numpy())
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
