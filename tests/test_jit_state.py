"""``lz.jit``: what a captured function reaches besides its arguments, and what is put in its place."""

import numpy as np
import pytest

import lezero as lz
from captures import batch, native, network, state_of, trainer
from lezero import nn, optim
from lezero.nn import functional as F
from lezero.runtime import stats
from lezero.runtime.jit import CaptureError

# -- what it reaches ------------------------------------------------------------------------------------------


def test_tensors_it_closes_over_are_read_at_every_call():
    w = lz.tensor([2.0])
    f = lz.jit(lambda x: x * w)
    for k in range(5):
        assert f(lz.tensor([3.0])).item() == 3.0 * (k + 2)
        w.add_(1)  # recorded outside, not yet run


def test_a_closure_whose_tensor_is_exchanged():
    """The variable is Python's: once captured, the function goes on with the tensor it saw."""
    box = [lz.tensor([2.0])]
    f = lz.jit(lambda x: x * box[0])
    assert f(lz.tensor([3.0])).item() == 6.0
    box[0] = lz.tensor([5.0])
    with pytest.raises(CaptureError, match="other tensors"):
        f(lz.tensor([3.0]))


@native
def test_tensors_it_writes_are_written_in_place_at_every_call():
    w = lz.tensor(np.zeros(1000, np.float32))
    f = lz.jit(lambda x: w.mul_(0.5).add_(x))
    x = lz.tensor(np.ones(1000, np.float32))
    expected, addresses = 0.0, []
    for _ in range(8):
        out = f(x)
        assert out is w
        del out
        expected = expected * 0.5 + 1
        addresses.append(w._buffer.address)
        np.testing.assert_allclose(w.numpy(), expected)
    assert len(set(addresses[3:])) == 1


def test_held_values_survive_captured_updates():
    net, _, step = trainer("plain", "momentum")
    run = lz.jit(step)
    held, values = [], []
    for i in range(8):
        loss = run(*batch(seed=i))
        array = net[0].weight.numpy()
        held.append((array, loss))
        values.append((array.copy(), loss.item()))
    for (array, loss), (value, number) in zip(held, values):
        np.testing.assert_array_equal(array, value)
        assert loss.item() == number


@native
def test_captured_steps_write_parameters_where_they_are():
    net, _, step = trainer("plain", "adamw")
    run = lz.jit(step)
    x, y = batch()
    for _ in range(4):
        run(x, y)
    addresses = [p._buffer.address for p in net.parameters()]
    before = stats()
    for _ in range(5):
        run(x, y)
    after = stats()
    assert [p._buffer.address for p in net.parameters()] == addresses
    assert (after["runs"] - before["runs"], after["plans_built"] - before["plans_built"]) == (5, 0)


def test_a_learning_rate_schedule_is_followed_without_a_new_variant():
    rates = []
    results = []
    for captured in (False, True):
        net, opt, step = trainer("plain", "momentum")
        schedule = optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.7)
        run = lz.jit(step) if captured else step
        for i in range(10):
            run(*batch(seed=i))
            rates.append(opt.param_groups[0]["lr"])
            schedule.step()
        results.append(state_of(net, opt))
    assert len(set(rates)) == 5
    assert "1 variants" in repr(run)
    for u, v in zip(*results, strict=True):
        np.testing.assert_array_equal(u, v)


def test_gradients_accumulate_when_the_step_does_not_clear_them():
    results = []
    for captured in (False, True):
        net = network("plain")
        opt = optim.SGD(net.parameters(), lr=0.1)

        def micro(x, y, net=net):
            loss = F.cross_entropy(net(x), y) / 3
            loss.backward()
            return loss

        run = lz.jit(micro) if captured else micro
        for i in range(18):
            run(*batch(seed=i))
            if i % 3 == 2:
                opt.step()
                opt.zero_grad()
        results.append([p.numpy().copy() for p in net.parameters()])
    for u, v in zip(*results, strict=True):
        np.testing.assert_array_equal(u, v)


def test_gradients_are_left_where_the_recorded_step_leaves_them():
    net, _, step = trainer("plain", "sgd")
    run = lz.jit(step)
    for i in range(6):
        run(*batch(seed=i))
        held = [p.grad.numpy().copy() for p in net.parameters()]
        assert all(np.abs(g).sum() > 0 for g in held[-1:])
    twin, _, plain = trainer("plain", "sgd")
    for i in range(6):
        plain(*batch(seed=i))
    for p, q in zip(net.parameters(), twin.parameters()):
        np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())


def test_gradients_through_what_it_returns():
    w = nn.Parameter(lz.tensor([[1.0, 2.0], [3.0, 4.0]]))
    f = lz.jit(lambda x: (x @ w).relu())
    for k in range(5):
        x = lz.tensor([[1.0, float(k)]])
        w.grad = None
        f(x).sum().backward()
        assert w.grad.tolist() == [[1.0, 1.0], [k, k]]


# -- what is put in the place of something else ----------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "rmsprop"])
def test_an_optimizers_state_that_is_loaded_is_taken_up(optimizer):
    def run(captured):
        net, opt, step = trainer("plain", optimizer)
        call = lz.jit(step) if captured else step
        saved = None
        for i in range(12):
            if i == 3:
                saved = opt.state_dict()
                saved = {**saved, "state": {k: {n: v.clone() for n, v in s.items()} for k, s in saved["state"].items()}}
            if i == 8:
                opt.load_state_dict(saved)
            call(*batch(seed=i))
        return state_of(net, opt)

    for a, b in zip(run(False), run(True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("change", [{"maximize": True}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_hyper_parameters_that_decide_operations_are_guarded(change):
    def run(captured):
        net, opt, step = trainer("plain", "sgd")
        call = lz.jit(step) if captured else step
        for i in range(12):
            if i == 5:
                opt.param_groups[0].update(change)
            if i == 9:
                opt.param_groups[0].update({"maximize": False, "momentum": 0.0, "nesterov": False})
            call(*batch(seed=i))
        return [p.numpy() for p in net.parameters()]

    for a, b in zip(run(False), run(True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_parameter_in_a_modules_place_is_used():
    net = nn.Linear(2, 1, bias=False)
    net.weight = nn.Parameter(lz.ones(1, 2))
    captured = lz.jit(lambda x: net(x).sum())
    for _ in range(4):
        assert captured(lz.ones(2)).item() == 2.0
    net.weight = nn.Parameter(lz.zeros(1, 2))
    for _ in range(4):
        assert captured(lz.ones(2)).item() == 0.0


@pytest.mark.parametrize("made", [lz.zeros, lambda n: lz.nn.Parameter(lz.zeros(n)), lambda n: lz.tensor([0.0] * n)])
def test_what_is_copied_into_a_captured_tensor_is_a_value_and_no_other_structure(made):
    state = made(3)
    f = lz.jit(lambda x: x * state)
    x = lz.ones(3)
    for k in range(4):
        with lz.no_grad():
            state.copy_(lz.tensor([float(k)] * 3))
        assert f(x).tolist() == [k] * 3


WRITES = {
    "copied": lambda x: x.copy_(lz.ones(x.shape).to(x.dtype)),
    "computed": lambda x: x.add_(x),
    "filled": lambda x: x.fill_(3),
    "a part": lambda x: x.__setitem__(0, 5),
}


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "numbers", [np.arange(6, dtype=np.float32), np.arange(6).reshape(2, 3)], ids=["floats", "integers"]
)
def test_data_that_are_written_to_between_calls(numbers, write, at):
    """What was data, whose extents are symbols, may be a computed value with other ones by the next call."""
    x, ones = lz.tensor(numbers), lz.ones(numbers.shape)
    f = lz.jit(lambda y: x * 2 + y)
    for k in range(8):
        if k == at:
            WRITES[write](x)
        np.testing.assert_array_equal(f(ones).numpy(), x.numpy() * 2 + 1)
    assert not f.reasons


def test_a_state_that_becomes_computed():
    state, captured, plain = lz.tensor(np.zeros(4, np.float32)), [], []

    @lz.jit
    def add(x):
        state.add_(x)
        return state.sum()

    for k in range(5):
        captured.append(add(lz.full((4,), float(k))).item())
        plain.append(4.0 * sum(range(k + 1)))
    assert captured == plain
