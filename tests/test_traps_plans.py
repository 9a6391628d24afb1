"""What compiles nothing, and how many operations there may be."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.backends.cpu import compiler
from lezero.hal import registry
from lezero.nn import functional as F
from lezero.runtime import recorder
from lezero.runtime.recording import STATE
from regression import counted, data, equal, gradient, parameter, regression, start

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
    assert STATE.recording.count > 150_000
    equal(y, np.full(2, 1 + 0.5 * 50_000))
    equal(x.grad, np.ones(2))


def test_200_000_operations_run_in_pieces(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_RECORDED", 200)
    x = lz.tensor(np.ones(4))
    y = x
    for k in range(200_000):
        y = y * 1.0 if k % 2 else y + 0.5
    assert STATE.recording.count <= 200
    equal(y, np.full(4, 1 + 0.5 * 100_000))


def test_gradients_through_a_chain_that_ran_in_pieces(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_RECORDED", 100)
    x = lz.tensor(np.ones(4), requires_grad=True)
    y = x
    for _ in range(300):
        y = y * 1.0001 + 0.5
    y.sum().backward()
    equal(x.grad, np.full(4, 1.0001**300), rtol=1e-9)
