"""``lz.jit``: failures and interrupts leave everything as it was, or complete."""

import signal

import numpy as np
import pytest

import captures
import lezero as lz
from captures import batch, follow, native, state_of, trainer

# -- failures -------------------------------------------------------------------------------------------------


def test_an_exception_inside_restores_what_was_written():
    w = lz.tensor([1.0])
    fail = [True]

    @lz.jit
    def f(x):
        w.add_(x)
        if fail[0]:
            raise ZeroDivisionError
        return w * 2

    x = lz.tensor([1.0])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            f(x)
        assert w.item() == 1.0
    fail[0] = False
    for k in range(4):
        assert f(x).item() == 2.0 * (k + 2)
    assert w.item() == 5.0


def test_an_exception_in_a_captured_step_leaves_parameters_gradients_and_state_alone():
    net, opt, step = trainer("plain", "momentum")
    fail = [False]

    @lz.jit
    def run(x, y):
        loss = step(x, y)
        if fail[0]:
            raise ZeroDivisionError
        return loss

    x, y = batch()
    fail[0] = True
    with pytest.raises(ZeroDivisionError):
        run(x, y)
    before = state_of(net, opt)[: len(net.state_dict())]
    fail[0] = False
    losses = [run(x, y).item() for _ in range(4)]
    twin, _, plain = trainer("plain", "momentum")
    for p, q in zip(before, twin.state_dict().values()):
        np.testing.assert_array_equal(p, q.numpy())
    assert losses == [plain(x, y).item() for _ in range(4)]


@native
@pytest.mark.parametrize("call", [0, 1, 2, 4])
def test_a_failed_run_restores_the_handles(monkeypatch, call):
    from lezero.backends import cpu

    net, _, step = trainer("plain", "momentum")
    run = lz.jit(step)
    x, y = batch()
    losses = []
    for k in range(6):
        if k == call:
            before = [t.numpy().copy() for t in net.state_dict().values()]
            with monkeypatch.context() as m:

                def fails(*args, **kwargs):
                    raise MemoryError("no room")

                m.setattr(cpu.CpuProgram, "run", fails)
                with pytest.raises(MemoryError):
                    run(x, y)
            if call > 1:
                for a, t in zip(before, net.state_dict().values()):
                    np.testing.assert_array_equal(a, t.numpy())
        losses.append(run(x, y).item())
    _, _, plain = trainer("plain", "momentum")
    expected = [plain(x, y).item() for _ in range(7)]
    assert losses in (expected[:6], expected[:call] + expected[call + 1 :])


def test_two_threads_calling_their_own_captures():
    import threading

    errors = []

    def work(seed):
        try:
            _, _, step = trainer("plain", "sgd")
            run = lz.jit(step)
            losses = [run(*batch(seed=seed + i)).item() for i in range(8)]
            _, _, step = trainer("plain", "sgd")
            assert losses == [step(*batch(seed=seed + i)).item() for i in range(8)]
        except BaseException as error:
            errors.append(error)

    # The default generator is shared, so networks are made with equal weights only if they are made alone.
    lock = threading.Lock()
    make = captures.network

    def alone(*args):
        with lock:
            net = make(*args)
            lz.realize(*net.parameters())
            return net

    captures.network = alone
    try:
        threads = [threading.Thread(target=work, args=(10 * k,)) for k in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
    finally:
        captures.network = make
    if errors:
        raise errors[0]


# -- interrupts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["_hand_out", "_release"])
def test_an_interrupt_right_after_the_run_loses_nothing(where, monkeypatch):
    from lezero.runtime import run

    net, opt, step = trainer("plain", "adamw")
    captured = lz.jit(step)
    for i in range(2):
        captured(*batch(seed=i))
    twin, twin_opt, recorded = trainer("plain", "adamw")
    for i in range(3):
        recorded(*batch(seed=i))
    real = getattr(run, where)

    def interrupted(*args):
        monkeypatch.setattr(run, where, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        captured(*batch(seed=2))
    monkeypatch.setattr(run, where, real)
    for a, b in zip(state_of(net, opt), state_of(twin, twin_opt), strict=True):
        np.testing.assert_array_equal(a, b)
    follow(captured, recorded, net, twin, opt, twin_opt)


@native
@pytest.mark.parametrize("captured", [False, True])
def test_an_interrupt_while_the_pool_is_let_go_of_comes_after_the_step(captured, monkeypatch):
    from lezero.backends.cpu.pool import default_pool

    net, opt, step = trainer("plain", "momentum")
    call = lz.jit(step) if captured else step
    for i in range(3):
        call(*batch(seed=i))
    twin, twin_opt, recorded = trainer("plain", "momentum")
    for i in range(4):
        recorded(*batch(seed=i))
    pool, last = default_pool(), batch(seed=3)
    real = pool._lock

    class Lock:
        def __enter__(self):
            return real.__enter__()

        def __exit__(self, *error):
            real.__exit__(*error)
            pool._lock = real
            raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_lock", Lock())
    with pytest.raises(KeyboardInterrupt):
        call(*last)
    for a, b in zip(state_of(net, opt), state_of(twin, twin_opt), strict=True):
        np.testing.assert_array_equal(a, b)
    follow(call, recorded, net, twin, opt, twin_opt)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # one that Python swallows in a finaliser
@pytest.mark.parametrize("captured", [False, True])
def test_many_interrupts_at_any_moment_tear_no_step(captured):
    """After each, parameters and state are those before the step or those after it."""
    net, opt, step = trainer("plain", "momentum")
    twin, twin_opt, reference = trainer("plain", "momentum")
    call = lz.jit(step) if captured else step
    batches = [batch(seed=i) for i in range(4)]
    for i in range(3):
        call(*batches[i % 4]), reference(*batches[i % 4])
    r = np.random.default_rng(0)

    def raises(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raises)
    now = state_of(net, opt)
    try:
        for i in range(3, 40):
            reference(*batches[i % 4])
            after = state_of(twin, twin_opt)
            for _ in range(50):
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, r.uniform(2e-5, 4e-4))
                        call(*batches[i % 4])
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    pass
                found = state_of(net, opt)
                if all(map(np.array_equal, found, after)):
                    break
                assert all(map(np.array_equal, found, now))
            else:
                call(*batches[i % 4])
            now = after
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
