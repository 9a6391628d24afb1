"""What a captured function computes from no argument is computed once, and again when what it is computed from changes."""

import numpy as np
import pytest

import lezero as lz
from lezero.hal import registry
from lezero.nn import functional as F
from lezero.runtime import hoist

native = pytest.mark.skipif(
    registry.get_backend() != "cpu", reason="about the backend that restructures and plans memory"
)
RNG = np.random.default_rng(0)
N = 64


def real(*shape):
    return RNG.standard_normal(shape, np.float32)


@pytest.fixture
def computed(monkeypatch):
    """One entry for each time that kept values were computed."""
    times = []
    compute = hoist.Hoisted._compute

    def noted(self, *args):
        times.append(1)
        return compute(self, *args)

    monkeypatch.setattr(hoist.Hoisted, "_compute", noted)
    return times


def turned(w):
    """What a file may do to a weight: its halves in another order."""
    return lz.cat([w[N // 2 :], w[: N // 2]])


def expected(x, w):
    return x @ np.concatenate([w[N // 2 :], w[: N // 2]]).T


def close(got, want):
    np.testing.assert_allclose(got.numpy(), want, 1e-5, 1e-4)


def test_a_weight_is_put_in_order_once(computed):
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, turned(w)))
    for _ in range(8):
        x = real(3, N)
        close(f(lz.tensor(x)), expected(x, w.numpy()))
    assert computed == [1]


WRITES = {
    "in place": lambda w: w.mul_(2),
    "copied into": lambda w: w.copy_(lz.tensor(real(N, N))),
    "one element": lambda w: w.__setitem__((0, 0), 7.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_weight_that_is_written_to(name, computed):
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, turned(w)))
    x = real(3, N)
    for k in range(30):
        close(f(lz.tensor(x)), expected(x, w.numpy()))
        if k % 10 == 9:
            WRITES[name](w)
    assert len(computed) == 3


def test_a_step_that_writes_into_the_weights_own_memory(computed):
    """The buffer stays the same, and has other values."""
    w = lz.tensor(real(N, N))
    f, step = lz.jit(lambda x: F.linear(x, turned(w))), lz.jit(lambda: w.mul_(1.5))
    x, buffers = real(3, N), set()
    for k in range(40):
        got = f(lz.tensor(x)).numpy().copy()
        np.testing.assert_allclose(got, expected(x, w.numpy()), 1e-5, np.abs(got).max() * 1e-5)
        if k % 4 == 3:
            step()
            buffers.add(id(w.realize()._buffer))
    assert len(computed) == 9 and len(buffers) < 10


def test_a_tensor_that_changes_all_the_time_is_no_weight(computed):
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, turned(w)))
    x = real(3, N)
    for _ in range(20):
        close(f(lz.tensor(x)), expected(x, w.numpy()))
        w.copy_(lz.tensor(real(N, N)))
    assert len(computed) <= hoist.CHANGES + 2


def test_memory_of_others_may_change_at_any_time(computed):
    array = real(N, N)
    w = lz.from_dlpack(array)
    f = lz.jit(lambda x: F.linear(x, turned(w)))
    x = real(3, N)
    for _ in range(6):
        close(f(lz.tensor(x)), expected(x, array))
        array *= 2
    assert not computed


def test_a_result_that_is_of_no_argument(computed):
    w = lz.tensor(real(N, N))

    @lz.jit
    def f(x):
        y = turned(w)
        return F.linear(x, y), y, turned(y)

    results = []
    for _ in range(6):
        x = real(3, N)
        results.append(f(lz.tensor(x)))
        close(results[-1][0], expected(x, w.numpy()))
    w.zero_()
    for _, y, z in results:
        assert y.numpy().any() and z.numpy().any()
        y.add_(1)  # nobody else's
    close(f(lz.tensor(x))[0], np.zeros((3, N)))


def test_what_would_take_more_memory_than_it_is_computed_from_is_not_kept(computed):
    w = lz.tensor(RNG.integers(-9, 9, (N, N)).astype(np.int8))
    f = lz.jit(lambda x: F.linear(x, w.float() * 0.5))
    x = real(3, N)
    for _ in range(6):
        close(f(lz.tensor(x)), x @ w.numpy().T * 0.5)
    assert not computed


@native
def test_it_can_be_left_out_while_a_program_runs(computed, monkeypatch):
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, turned(w)))
    x, times = real(3, N), []
    for passes in ("-hoist", "", "-hoist"):
        monkeypatch.setenv("LEZERO_PASSES", passes)
        for _ in range(6):
            close(f(lz.tensor(x)), expected(x, w.numpy()))
        times.append(len(computed))
    assert times == [0, 1, 1]


def test_an_interrupt_while_kept_values_are_computed_anew(monkeypatch):
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, turned(w)))
    x = real(3, N)
    for _ in range(6):
        f(lz.tensor(x))
    (form,) = f._variants.values()

    def interrupted(*args):
        raise KeyboardInterrupt

    w.mul_(2).realize()
    with monkeypatch.context() as patched:
        patched.setattr(form.steady.hoisted._before, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(lz.tensor(x))
    close(f(lz.tensor(x)), expected(x, w.numpy()))


def test_random_numbers_are_drawn_at_every_call(computed):
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, F.dropout(w, 0.5)))
    x = lz.tensor(real(3, N))
    assert len({f(x).numpy().tobytes() for _ in range(8)}) == 8
    assert not computed


@native
def test_a_limit_on_memory_is_kept_to(computed):
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, turned(w)), memory_limit="1MiB")
    x = real(3, N)
    for _ in range(6):
        close(f(lz.tensor(x)), expected(x, w.numpy()))
    assert not computed


@pytest.mark.parametrize("late", [False, True], ids=["before the first call", "after some calls"])
def test_memory_that_was_handed_out(late):
    """PyTorch writes to what it is told is read-only."""
    torch = pytest.importorskip("torch")
    w = lz.tensor(real(N, N))
    f = lz.jit(lambda x: F.linear(x, turned(w)))
    x = real(3, N)
    if late:
        for _ in range(5):
            f(lz.tensor(x))
    theirs = torch.from_dlpack(w)
    for _ in range(6):
        close(f(lz.tensor(x)), expected(x, w.numpy()))
        theirs.mul_(2)
