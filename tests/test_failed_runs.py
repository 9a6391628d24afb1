"""A run that fails takes nothing with it but the values that cannot be computed."""

from __future__ import annotations

import contextlib
import gc
import itertools
from weakref import ref

import numpy as np
import pytest

import lezero as lz
from interrupts import BeforeLine
from lezero import nn
from lezero.nn import functional as F
from lezero.runtime import run, updates
from lezero.runtime.recording import STATE


def too_large():
    return lz.ones(2**21, 1) + lz.ones(1, 2**21)


def cannot(read):
    with pytest.raises(MemoryError, match="could not allocate"):
        read()


class Training:
    """A small training whose state is easily compared."""

    def __init__(self):
        lz.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = lz.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x, self.y = lz.randn(6, 3), lz.tensor([0, 1, 0, 1, 1, 0])
        self.step()

    def loss(self):
        return F.cross_entropy(self.model(self.x), self.y)

    def step(self, extra=None):
        self.optimizer.zero_grad()
        loss = self.loss()
        (loss if extra is None else loss + extra).backward()
        self.optimizer.step()
        return loss

    def state(self):
        found = {k: v.numpy().copy() for k, v in self.model.state_dict().items()}
        for k, s in self.optimizer.state_dict()["state"].items():
            found |= {f"{k}.{name}": np.array(v) for name, v in s.items()}
        return found


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_does_not_depend_on_the_failing_value_is_read_while_it_lives():
    x = lz.tensor([1.0, 2.0])
    y, huge, z = x * 2, too_large(), x + 1
    assert z.tolist() == [2, 3] and y.tolist() == [2, 4]
    for _ in range(3):
        cannot(huge.numpy)
        assert (y + z).tolist() == [4, 7]
    cannot(lambda: (huge + 1).sum().item())
    cannot(lambda: lz.realize(huge))


def test_reading_the_failing_value_gives_the_others_theirs_in_one_run():
    x = lz.tensor([1.0, 2.0])
    y, huge, z = x * 2, too_large(), x + 1
    child = huge.sum(1)  # it needs no memory, but the whole of huge is wanted too
    cannot(huge.numpy)
    runs = lz.runtime.stats()["runs"]
    assert y.tolist() == [2, 4] and z.tolist() == [2, 3]
    assert lz.runtime.stats()["runs"] == runs
    assert tuple(child.shape) == (2**21,)


def test_running_everything_says_what_failed_and_asking_for_some_does_not():
    x = lz.tensor([1.0])
    y, huge = x * 2, too_large()
    lz.realize(y)
    z = x * 3
    del huge
    huge = too_large()
    cannot(lz.realize)
    assert y.item() == 2 and z.item() == 3
    del huge
    lz.realize()


def test_a_step_is_made_although_something_else_fails():
    wanted, training = Training(), Training()
    wanted.step()
    huge = too_large()
    loss = training.step()
    cannot(huge.numpy)
    assert_same(training.state(), wanted.state())
    assert np.isfinite(loss.item())
    training.step(), wanted.step()
    assert_same(training.state(), wanted.state())


def needs_too_much(x):
    """A number that depends on `x` and cannot be computed without a value too large for any machine."""
    return ((x.sum() * lz.ones(2**21, 1)) @ lz.ones(1, 2**21)).cumsum(0).mean()


def test_a_step_that_fails_has_not_happened_and_the_next_one_does():
    wanted, training = Training(), Training()
    before = training.state()
    cannot(lambda: training.step(extra=needs_too_much(training.model(training.x))))
    after = training.state()
    assert after.keys() == before.keys()
    for name in before:
        np.testing.assert_array_equal(after[name], before[name], name)
    assert all(p.grad is None for p in training.model.parameters())
    training.step(), wanted.step()
    assert_same(training.state(), wanted.state())


def test_the_loss_of_a_step_that_failed_can_still_be_read():
    training = Training()
    wanted = training.loss().item()
    training = Training()
    training.optimizer.zero_grad()
    loss = training.loss()
    (loss + needs_too_much(loss)).backward()
    cannot(training.optimizer.step)
    assert abs(loss.item() - wanted) < 1e-6


def test_a_write_that_fails_leaves_the_old_value_and_other_writes_are_made():
    x, y = lz.tensor([1.0, 2.0]), lz.tensor([3.0, 4.0])
    view = x[:1]
    x.add_(needs_too_much(x))
    y.mul_(2)
    cannot(x.numpy)
    assert x.tolist() == [1, 2] and y.tolist() == [6, 8] and view.tolist() == [1]
    x.add_(1)
    assert x.tolist() == [2, 3] and view.tolist() == [2]


def test_gradients_of_a_value_read_beside_a_failing_one():
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    loss, huge = (w * w).sum(), too_large()
    assert loss.item() == 5
    loss.backward()
    assert w.grad.tolist() == [2, 4]
    cannot(huge.numpy)
    assert (w.grad * 2).tolist() == [4, 8]


def test_random_numbers_are_those_of_a_run_that_did_not_fail():
    lz.manual_seed(3)
    wanted = [lz.rand(3).tolist() for _ in range(2)]
    lz.manual_seed(3)
    a, huge = lz.rand(3), too_large()
    cannot(huge.numpy)
    b = lz.rand(3)
    assert [a.tolist(), b.tolist()] == wanted


def test_a_captured_step_beside_a_failing_value():
    step = lz.jit(lambda x: x * 2 + 1)
    x = lz.tensor([1.0, 2.0])
    step(x), step(x)
    huge = too_large()
    assert step(x).tolist() == [3, 5]
    cannot(huge.numpy)
    assert step(x).tolist() == [3, 5]


def test_a_loop_beside_a_failing_value_does_not_try_it_again():
    x, huge = lz.tensor([1.0, 2.0]), too_large()
    cannot(huge.numpy)
    (x * 2).tolist()
    built = lz.runtime.stats()["plans_built"]
    for _ in range(5):
        assert (x * 2).tolist() == [2, 4]
    assert lz.runtime.stats()["plans_built"] == built
    assert huge.ndim == 2


class Fails(lz.autograd.Function):
    where = "forward"

    @staticmethod
    def forward(ctx, x):
        if Fails.where == "forward":
            raise KeyError("the user's")
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        raise KeyError("the user's")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_function_of_the_users_that_raises(where, monkeypatch):
    monkeypatch.setattr(Fails, "where", where)
    x = nn.Parameter(lz.tensor([1.0, 2.0]))
    y = x * 3
    for _ in range(2):
        with pytest.raises(KeyError, match="the user's"):
            Fails.apply(x).sum().backward()
    assert y.tolist() == [3, 6] and x.grad is None
    y.sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_what_is_not_finite_says_so_whenever_it_is_read_while_checking():
    x, w = lz.tensor([1.0, -1.0]), lz.tensor([1.0, 1.0])
    with lz.debug.check_numerics():
        y, bad = x * 2, x.log()
        w.add_(1)
        with pytest.raises(FloatingPointError, match="log"):
            y.numpy()
        assert y.tolist() == [2, -2] and w.tolist() == [1, 1]
        for _ in range(2):
            with pytest.raises(FloatingPointError, match="log"):
                bad.numpy()
    assert np.isnan(bad.numpy()).tolist() == [False, True]


@pytest.mark.parametrize("when", ["before", "completed"])
def test_an_interrupt_loses_nothing(when, monkeypatch):
    wanted, training = Training(), Training()
    wanted.step()
    other = training.x.sum()
    real = run._compute

    def interrupted(rec, handles, donate):
        if when == "before":
            monkeypatch.setattr(run, "_compute", real)
            raise KeyboardInterrupt
        ran = real(rec, handles, donate)
        monkeypatch.setattr(run, "_compute", real)
        ran.late = KeyboardInterrupt()
        return ran

    monkeypatch.setattr(run, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.step()
    assert_same(training.state(), wanted.state())
    assert other.item() == pytest.approx(training.x.numpy().sum(), rel=1e-5)


def test_an_interrupt_is_heard_while_a_failing_run_is_sorted_out(monkeypatch):
    x, huge = lz.tensor([1.0]), too_large()
    y = x * 2
    real = run._compute

    def interrupted(rec, handles, donate):
        if len(handles) == 1:
            monkeypatch.setattr(run, "_compute", real)
            raise KeyboardInterrupt
        return real(rec, handles, donate)

    monkeypatch.setattr(run, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        y.numpy()
    assert y.item() == 2
    cannot(huge.numpy)


def test_a_thread_reads_what_another_recorded_beside_a_failing_value():
    import threading

    made = []

    def work():
        x = lz.tensor([1.0, 2.0])
        made.extend([x * 2, too_large(), x * 3])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert made[0].tolist() == [2, 4] and made[2].tolist() == [3, 6]
    cannot(made[1].numpy)


def test_a_loop_that_skips_the_batch_that_was_too_large_goes_on():
    wanted, training = Training(), Training()
    cannot(lambda: training.step(extra=needs_too_much(training.model(training.x))))
    training.step(), wanted.step()  # nothing was read in between
    training.step(), wanted.step()
    assert_same(training.state(), wanted.state())


def test_an_interrupt_at_any_line_leaves_no_half_of_a_leaf():
    for n in itertools.count(1):
        x, w = lz.tensor([1.0, 2.0, 3.0]), lz.nn.Parameter(lz.tensor([2.0, 0.0, 1.0]))
        y = x + 1  # something is pending already
        interrupt = BeforeLine(n, lambda code: code.co_name in ("import_handle", "scalar_leaf"))
        with contextlib.suppress(KeyboardInterrupt), interrupt:
            _ = (y * w) * 3.0 - 0.5
        rec = STATE.recording
        assert len(rec.leaf_handles) == len(rec.leaf_nodes) == len(rec.buffers)
        assert all(rec.leaf_handles[k] is None and rec.leaf_nodes[k].attrs == ("scalar",) for k, _ in rec.scalars)
        z = (y * w) * 3.0 - 0.5
        z.sum().backward()
        assert z.tolist() == [11.5, -0.5, 11.5] and w.grad.tolist() == [6, 9, 12] and y.tolist() == [2, 3, 4]
        if interrupt.left > 0:
            break
    assert n > 20


def test_what_an_interrupt_left_is_computed_where_it_is_used_and_not_before(monkeypatch):
    x = lz.tensor([1.0, 2.0])
    y, other = x * 2, x + 1
    real = run._compute

    def interrupted(rec, handles, donate):
        monkeypatch.setattr(run, "_compute", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        y.numpy()
    assert (x - 1).tolist() == [0, 1] and y._buffer is None and other._buffer is None
    assert (y * 2 + other).tolist() == [6, 11] and y.tolist() == [2, 4]


def test_an_abandoned_run_holds_nothing(monkeypatch):
    x = lz.tensor([1.0, 2.0])
    (x * 7).numpy()
    (plan,) = [p for p in run._plans.values() if p is run.statistics.last[0]]

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plan.program, "run", interrupted)
    y = x * 7
    alive = ref(y)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            y.numpy()
        del y
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("captured", [False, True])
def test_training_goes_on_after_an_interrupted_step(captured, monkeypatch):
    wanted, training = Training(), Training()
    for _ in range(5):
        wanted.step()
    real = run._compute

    def interrupted(rec, handles, donate):
        monkeypatch.setattr(run, "_compute", real)
        raise KeyboardInterrupt

    training.step()
    monkeypatch.setattr(run, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.step()
    step = lz.jit(training.step) if captured else training.step
    for _ in range(3):
        step()
    assert_same(training.state(), wanted.state())


@pytest.mark.parametrize("done", range(4))
def test_a_step_that_is_interrupted_while_it_is_recorded_has_not_begun(done, monkeypatch):
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), lz.ones(2, 3)
    optimizer = lz.optim.AdamW(net.parameters(), lr=0.1)
    point, left = updates.point, [done]

    def interrupted(*args):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        point(*args)

    def state():
        kept = [v for s in optimizer.state.values() for v in s.values()]
        return [t.numpy().copy() for t in (*net.parameters(), *kept)]

    net(x).sum().backward()
    optimizer.step()
    before = state()
    with lz.no_grad():
        net[0].weight.mul_(2)  # in the same recording, but not part of the step
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(updates, "point", interrupted)
        optimizer.step()
    for a, b in zip(state(), [before[0] * 2, *before[1:]], strict=True):
        np.testing.assert_array_equal(a, b)
    optimizer.step()
    assert all((a != b).all() for a, b in zip(state(), before))
