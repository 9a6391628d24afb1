"""Traps about processes and threads."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.nn import functional as F
from regression import data, equal, parameter, regression


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


def test_what_one_thread_writes_another_sees_at_its_next_use():
    w, seen = lz.zeros(3), []
    rows = w[:1]
    lz.realize(w)
    used, written = threading.Event(), threading.Event()

    def reader():
        before = w.detach() * 1, rows * 1  # recorded, not run
        used.set()
        written.wait(10)
        seen.extend([(w.detach() * 1).tolist(), (rows * 1).tolist(), *(y.tolist() for y in before)])

    thread = threading.Thread(target=reader)
    thread.start()
    used.wait(10)
    with lz.no_grad():
        w.fill_(5.0)
    w.tolist()
    written.set()
    thread.join()
    assert seen == [[5.0] * 3, [5.0], [0.0] * 3, [0.0]]


@pytest.mark.parametrize("captured", [False, True], ids=["recorded", "captured"])
def test_a_step_replayed_in_one_thread_is_seen_by_another(captured):
    net = small_net(0)
    optimizer = lz.optim.SGD(net.parameters(), lr=0.1)
    weight, differ, now = next(net.parameters()), [], []
    x = lz.tensor(np.float32(data(4, seed=4)[0]))

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    step = lz.jit(step) if captured else step
    step(), step(), step()  # from here on steps are replayed
    turns = threading.Barrier(2, timeout=60)

    def reader():
        for _ in range(3):
            kept = weight.detach() * 1  # noqa: F841 -- recorded, not run
            turns.wait()
            turns.wait()
            differ.append(float((weight.detach() * 1 - lz.tensor(now[0])).abs().max()))

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(3):
        turns.wait()
        step()
        now[:] = [weight.detach().numpy().copy()]
        turns.wait()
    thread.join()
    assert differ == [0.0] * 3


@pytest.mark.parametrize("inferring", ["recorded", "captured"])
@pytest.mark.parametrize("training", ["recorded", "captured"])
@pytest.mark.parametrize("switches", ["rare", "quick"])
def test_one_thread_trains_while_another_infers_with_the_same_model(training, inferring, switches, request):
    if switches == "quick":
        request.getfixturevalue("quick_switches")
    inputs = [lz.tensor(np.float32(data(n, seed=n)[0])) for n in (8, 5, 7)]

    def make(lr):
        net = small_net(0).eval()
        opt = optim.Adam(net.parameters(), lr=lr)

        def step(x):
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()

        return net, lz.jit(step) if training == "captured" else step

    for lr in (0.0, 0.01):  # with 0 every result is known
        net, step = make(lr)
        inferred = lz.jit(net) if inferring == "captured" else net
        with lz.no_grad():
            expected = [inferred(x).numpy().copy() for x in inputs]
        steps, results, trained = [], [], threading.Event()
        give_up = time.monotonic() + 20

        def infer(net=net, inferred=inferred, results=results, trained=trained):
            with lz.no_grad():
                while not trained.is_set():
                    results.append([inferred(x).numpy().copy() for x in inputs])
                    for p in net.parameters():
                        p.detach().numpy()

        def learn(step=step, steps=steps, results=results, trained=trained, give_up=give_up):
            try:
                while (len(steps) < 200 or len(results) < 50) and time.monotonic() < give_up:
                    steps.append(inputs[len(steps) % 3])
                    step(steps[-1])
            finally:
                trained.set()

        in_threads(learn, infer)
        assert len(results) >= 50
        if lr == 0:
            for got in results:
                for y, want in zip(got, expected):
                    np.testing.assert_array_equal(y, want)
        alone, step = make(lr)
        for x in steps:
            step(x)
        for p, q in zip(net.parameters(), alone.parameters()):
            np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_results_pending_in_a_thread_that_goes_on_recording_are_computed_once_and_right():
    x = lz.tensor(np.float32(data(8, seed=8)[0])).requires_grad_()
    halves = [(x * k).tanh() for k in range(1, 9)]  # pending, and this thread records no more
    runs, sums = lz.runtime.stats()["runs"], []
    reader = threading.Thread(target=lambda: sums.extend(y.sum().item() for y in halves))
    reader.start()
    reader.join(60)
    assert len(sums) == 8 and lz.runtime.stats()["runs"] - runs <= 1 + 8  # all of `halves` at once
    sum(y.sum() for y in halves).backward()
    np.testing.assert_allclose(sums, [y.sum().item() for y in halves])
    k = np.arange(1, 9)[:, None, None]
    np.testing.assert_allclose(
        x.grad.numpy(), (k * (1 - np.tanh(k * x.detach().numpy()) ** 2)).sum(0), rtol=1e-4, atol=1e-5
    )


def test_threads_begin_while_another_writes(quick_switches):
    w = lz.zeros(3)

    def live(ended):
        lz.ones(2)
        ended.wait(30)

    def write(begun):
        while not begun.is_set():
            for _ in range(20):
                w.add_(1)
            w.tolist()

    def begin(begun):
        ended = threading.Event()
        threads = [threading.Thread(target=live, args=(ended,)) for _ in range(300)]
        try:
            for thread in threads:
                thread.start()
        finally:
            begun.set()
            ended.set()
        for thread in threads:
            thread.join()

    for _ in range(5):
        begun = threading.Event()
        in_threads(lambda begun=begun: write(begun), lambda begun=begun: begin(begun))


def test_a_function_being_captured_has_one_value_of_what_another_thread_writes():
    w, x = lz.ones(3), lz.ones(3)

    def in_another(function):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    def tied(x):
        y = x * w
        in_another(lambda: w.add_(1).tolist())
        return y + w

    captured = lz.jit(tied)
    assert [captured(x).tolist() for _ in range(3)] == [[2.0] * 3, [4.0] * 3, [6.0] * 3]
