"""Traps about failures and interrupts: everything is as it was or complete, and no mode is left on."""

import contextlib
import signal
import time

import numpy as np
import pytest

import lezero as lz
from lezero import optim
from lezero.runtime import recording
from regression import data, equal, gradient, native, parameter, regression, start

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
    real = recording._counting

    class Interrupting:
        def __enter__(self):
            real.__enter__()

        def __exit__(self, *error):
            real.__exit__(*error)
            monkeypatch.setattr(recording, "_counting", real)
            raise KeyboardInterrupt

    monkeypatch.setattr(recording, "capturing", 0)  # the count is put back afterwards: this one is lost
    monkeypatch.setattr(recording, "_counting", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        lz.jit(lambda x: x + 1)(lz.ones(2))
    assert lz.ones(2).sum().item() == 2
