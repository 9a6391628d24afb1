"""``lz.jit``: a captured step does what the recorded step does, bit for bit, and says when it cannot."""

import inspect
import signal
from collections import namedtuple

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.hal import registry
from lezero.nn import functional as F
from lezero.runtime import stats
from lezero.runtime.jit import MAX_VARIANTS, CaptureError

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")
"""Tests that look into the CPU backend; all others hold on every backend."""


def batch(n=8, seed=0):
    r = np.random.default_rng(seed)
    return lz.tensor(r.normal(size=(n, 6)).astype(np.float32)), lz.tensor(r.integers(0, 4, n))


def network(kind, seed=0):
    lz.manual_seed(seed)
    layers = {
        "plain": [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)],
        "dropout": [nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.4), nn.Linear(16, 4)],
        "batch_norm": [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)],
    }[kind]
    return nn.Sequential(*layers)


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
}


def trainer(kind, optimizer):
    net = network(kind)
    opt = OPTIMIZERS[optimizer](net.parameters())

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, opt, step


def state_of(net, opt):
    arrays = [t.numpy().copy() for t in net.state_dict().values()]
    return arrays + [v.numpy().copy() for s in opt.state.values() for v in s.values()]


@pytest.mark.parametrize("kind", ["plain", "dropout", "batch_norm"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_twenty_captured_steps_equal_the_recorded_ones_bit_for_bit(kind, optimizer):
    results = []
    for captured in (False, True):
        net, opt, step = trainer(kind, optimizer)
        run = lz.jit(step) if captured else step
        lz.manual_seed(7)
        losses = [run(*batch(seed=i)).item() for i in range(20)]
        results.append((losses, state_of(net, opt)))
    (a, states), (b, captured_states) = results
    assert a == b
    for u, v in zip(states, captured_states, strict=True):
        np.testing.assert_array_equal(u, v)
    assert len(set(a)) == 20


def test_the_function_is_called_twice_and_then_never_again():
    calls = []

    @lz.jit
    def f(x):
        calls.append(1)
        return x * 2

    for i in range(5):
        np.testing.assert_array_equal(f(lz.tensor([float(i)])).numpy(), [2.0 * i])
    assert len(calls) == 2


def test_it_keeps_its_name_and_documentation_and_works_as_a_method():
    class Scale:
        def __init__(self, by):
            self.by = lz.tensor(by)

        @lz.jit
        def __call__(self, x):
            """Scaled."""
            return x * self.by

    a, b = Scale(2.0), Scale(3.0)
    for _ in range(4):
        assert a(lz.tensor(1.0)).item() == 2.0
        assert b(lz.tensor(1.0)).item() == 3.0
    assert inspect.unwrap(Scale.__call__).__doc__ == "Scaled."
    assert "variant" in repr(Scale.__dict__["__call__"])
    with pytest.raises(TypeError, match="function"):
        lz.jit(3)


# -- guards ---------------------------------------------------------------------------------------------------


def test_shapes_dtypes_and_python_arguments_are_guarded():
    @lz.jit
    def f(x, k, *, name="a", extra=()):
        return x * k + len(name) + sum(extra)

    for _ in range(3):
        assert f(lz.tensor([1.0, 2.0]), 3).tolist() == [4.0, 7.0]
        assert f(lz.tensor([1.0, 2.0, 3.0]), 3).tolist() == [4.0, 7.0, 10.0]
        assert f(lz.tensor([1, 2]), 3).dtype is lz.int64
        assert f(lz.tensor([1.0, 2.0]), 4).tolist() == [5.0, 9.0]
        assert f(lz.tensor([1.0, 2.0]), 3, name="abc").tolist() == [6.0, 9.0]
        assert f(lz.tensor([1.0, 2.0]), 3, extra=(1, 2)).tolist() == [7.0, 10.0]
        assert f(lz.tensor([1.0, 2.0]), True).tolist() == [2.0, 3.0]
        assert f(lz.tensor([1.0, 2.0]), 1).tolist() == [2.0, 3.0]


def test_training_mode_is_guarded():
    net = network("dropout")
    f = lz.jit(net)
    x, _ = batch()
    for _ in range(3):
        net.train()
        a, b = f(x).numpy(), f(x).numpy()
        assert not np.array_equal(a, b)
        net.eval()
        a, b = f(x).numpy(), f(x).numpy()
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, net(x).numpy())


def test_grad_mode_is_guarded():
    w = nn.Parameter(lz.tensor([2.0]))
    f = lz.jit(lambda x: x * w)
    for _ in range(3):
        with lz.no_grad():
            assert not f(lz.tensor([3.0])).requires_grad
        out = f(lz.tensor([3.0]))
        assert out.requires_grad
        w.grad = None
        out.backward()
        assert w.grad.tolist() == [3.0]


def test_requires_grad_of_arguments_is_guarded():
    f = lz.jit(lambda x: x * 2)
    for _ in range(3):
        assert not f(lz.tensor([1.0])).requires_grad
        x = lz.tensor([1.0], requires_grad=True)
        out = f(x)
        out.backward()
        assert x.grad.tolist() == [2.0]


def test_the_same_tensor_twice_is_another_variant():
    @lz.jit
    def f(a, b):
        a.add_(1)
        return a + b

    x = lz.tensor([1.0])
    for k in range(4):
        assert f(lz.tensor([1.0]), lz.tensor([10.0])).item() == 12.0
        assert f(x, x).item() == 2.0 * (k + 2)


def test_variants_are_bounded_and_explained():
    @lz.jit
    def f(x, k):
        return x + k

    for k in range(2 * MAX_VARIANTS):
        assert f(lz.tensor([1.0]), k).item() == 1.0 + k
    assert f"{MAX_VARIANTS} variants" in repr(f)
    assert f.reasons
    assert f(lz.tensor([1.0]), 0).item() == 1.0


def test_an_argument_that_cannot_be_compared_is_refused():
    with pytest.raises(CaptureError, match=r"argument of f\(\) is a set"):
        lz.jit(_named("f", lambda x: x))({1, 2})


def _named(name, fn):
    fn.__name__ = name
    return fn


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["item", "numpy", "if", "print", "mask", "realize", "tolist"])
def test_reading_a_value_is_refused_with_its_line(read):
    def f(x):
        y = x * 2
        if read == "item":
            y.item()  # item
        elif read == "numpy":
            y.numpy()  # numpy
        elif read == "if":
            if y.sum() > 0:  # if
                y = y + 1
        elif read == "print":
            str(y)  # print
        elif read == "mask":
            y = y[y > 0]  # mask
        elif read == "realize":
            y.realize()  # realize
        else:
            y.tolist()  # tolist
        return y

    lines, first = inspect.getsourcelines(f)
    at = first + next(i for i, text in enumerate(lines) if text.rstrip().endswith(f"# {read}"))
    x = lz.tensor([1.0])
    for _ in range(2):
        with pytest.raises(CaptureError, match=rf"test_jit\.py:{at}\b"):
            lz.jit(f)(x)
    assert (x * 3).item() == 3.0


def test_a_difference_at_the_second_call_is_refused_with_its_line():
    calls = []

    def f(x):
        calls.append(1)
        if len(calls) % 2:
            return x + 1
        return x * 2  # differs

    lines, first = inspect.getsourcelines(f)
    at = first + next(i for i, text in enumerate(lines) if "# differs" in text)
    g = lz.jit(f)
    assert g(lz.tensor([3.0])).item() == 4.0
    with pytest.raises(CaptureError, match=rf"second call.*test_jit\.py:{at}\b"):
        g(lz.tensor([3.0]))


def test_a_number_that_changes_by_a_side_effect_is_refused():
    count = [0]

    @lz.jit
    def f(x):
        count[0] += 1
        return x + count[0]

    f(lz.tensor([1.0]))
    with pytest.raises(CaptureError, match="second call"):
        f(lz.tensor([1.0]))


def test_what_the_refused_second_call_wrote_is_taken_back():
    calls = []
    w = lz.tensor([1.0])

    @lz.jit
    def f(x):
        calls.append(1)
        w.add_(x)
        return w * 2 if len(calls) % 2 else w * 2 + 1

    f(lz.tensor([1.0]))
    assert w.item() == 2.0
    with pytest.raises(CaptureError):
        f(lz.tensor([1.0]))
    assert w.item() == 2.0


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


# -- arguments and results ------------------------------------------------------------------------------------


def test_nested_arguments_and_results():
    Pair = namedtuple("Pair", "first second")

    @lz.jit
    def f(tree, scale=2.0):
        a, (b, name) = tree["a"], tree["rest"]
        total = a + b
        return {"sum": total, "pair": Pair(a * scale, [b, name, None]), "same": total, "in": a, "n": len(name)}

    for k in range(5):
        a, b = lz.tensor([float(k)]), lz.tensor([10.0])
        out = f({"a": a, "rest": (b, "xyz")})
        assert out["sum"].item() == k + 10
        assert type(out["pair"]) is Pair and out["pair"].first.item() == 2.0 * k
        assert out["pair"].second[0] is b and out["pair"].second[1:] == ["xyz", None]
        assert out["in"] is a and out["n"] == 3
        assert out["same"] is out["sum"]


def test_results_of_different_calls_are_different_values():
    f = lz.jit(lambda x: x + 1)
    outs = [f(lz.tensor([float(k)])) for k in range(6)]
    assert [o.item() for o in outs] == [k + 1.0 for k in range(6)]


def test_a_captured_function_inside_another():
    inner = lz.jit(lambda x: x * 2)
    outer = lz.jit(lambda x: inner(x) + 1)
    for k in range(4):
        assert outer(lz.tensor([float(k)])).item() == 2 * k + 1
        assert inner(lz.tensor([float(k)])).item() == 2 * k


def test_arguments_that_are_still_recorded():
    f = lz.jit(lambda x: x + 1)
    for k in range(5):
        x = lz.tensor([float(k)]) * 2
        assert f(x).item() == 2 * k + 1


def test_random_numbers_are_fresh_at_every_call_and_repeat_with_the_seed():
    f = lz.jit(lambda x: F.dropout(x, 0.5, training=True))
    x = lz.ones(64)
    runs = []
    for _ in range(2):
        lz.manual_seed(3)
        runs.append([f(x).numpy().copy() for _ in range(5)])
    for a, b in zip(*runs):
        np.testing.assert_array_equal(a, b)
    assert len({r.tobytes() for r in runs[0]}) == 5


def test_batch_sizes_are_variants_of_one_plan():
    _, _, step = trainer("plain", "sgd")
    run = lz.jit(step)
    for n in (8, 8, 8):
        run(*batch(n))
    before = stats()["plans_built"]
    for n in (5, 5, 5, 9, 9, 9):
        run(*batch(n))
    assert stats()["plans_built"] - before <= 1
    assert "3 variants" in repr(run)


def test_tensors_made_inside_from_data_are_constants():
    weights = [0.5, 2.0]

    @lz.jit
    def f(x):
        total = lz.tensor(0.0)
        total += (x * lz.tensor(weights)).sum()
        h = x * 2
        h.add_(1).mul_(lz.tensor(np.array([1.0, 3.0], np.float32)))
        return total * 1, h

    for k in range(5):
        total, h = f(lz.tensor([float(k), 1.0]))
        assert total.item() == 0.5 * k + 2 and h.tolist() == [2.0 * k + 1, 9.0]


def test_tensors_made_inside_from_data_that_changes_are_refused():
    r = np.random.default_rng(0)
    f = lz.jit(lambda x: x + lz.tensor(r.normal(size=1)))
    f(lz.tensor([1.0]))
    with pytest.raises(CaptureError, match="second call"):
        f(lz.tensor([1.0]))


def test_arguments_are_written_to():
    @lz.jit
    def f(a, b):
        a.mul_(2).add_(b)
        return a.sum()

    for k in range(5):
        a = lz.tensor([float(k), 1.0])
        assert f(a, lz.tensor([1.0, 1.0])).item() == 2 * k + 4
        assert a.tolist() == [2.0 * k + 1, 3.0]


def test_gradients_of_arguments():
    @lz.jit
    def f(x):
        loss = (x * x).sum()
        loss.backward()
        return loss

    for k in range(5):
        x = lz.tensor([float(k), 1.0], requires_grad=True)
        assert f(x).item() == k * k + 1
        assert x.grad.tolist() == [2.0 * k, 2.0]
    for k in range(2, 5):
        f(x)
        assert x.grad.tolist() == [8.0 * k, 2.0 * k]


def test_freezing_a_parameter_is_another_variant():
    net, _, step = trainer("plain", "sgd")
    run = lz.jit(step)
    for k in range(8):
        net[0].weight.requires_grad_(k not in (4, 5))
        before = net[0].weight.numpy().copy()
        net[0].weight.grad = None
        run(*batch(seed=k))
        assert np.array_equal(before, net[0].weight.numpy()) == (k in (4, 5))


def test_a_loss_that_was_differentiated_inside_cannot_be_again():
    _, _, step = trainer("plain", "sgd")
    run = lz.jit(step)
    for _ in range(4):
        loss = run(*batch())
        with pytest.raises(RuntimeError, match="retain_graph"):
            loss.backward()


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
    make = globals()["network"]

    def alone(*args):
        with lock:
            net = make(*args)
            lz.realize(*net.parameters())
            return net

    globals()["network"] = alone
    try:
        threads = [threading.Thread(target=work, args=(10 * k,)) for k in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
    finally:
        globals()["network"] = make
    if errors:
        raise errors[0]


# -- the steady state: calls that differ in values only ----------------------------------------------------------


def steady(kind="plain", optimizer="adamw", calls=4):
    """A captured step after a few calls, and the same recorded."""
    net, opt, step = trainer(kind, optimizer)
    captured = lz.jit(step)
    other_net, other_opt, recorded = trainer(kind, optimizer)
    for i in range(calls):
        assert captured(*batch(seed=i)).item() == recorded(*batch(seed=i)).item()
    (variant,) = captured._variants.values()
    assert variant.steady is not None
    return net, opt, captured, other_net, other_opt, recorded


def follow(captured, recorded, net, other_net, opt, other_opt, first=10, calls=4):
    for i in range(first, first + calls):
        assert captured(*batch(seed=i)).item() == recorded(*batch(seed=i)).item()
    for a, b in zip(state_of(net, opt), state_of(other_net, other_opt), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["plain", "dropout", "batch_norm"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_it_is_reached_and_kept(kind, optimizer):
    lz.manual_seed(3)
    captured = lz.jit(trainer(kind, optimizer)[2])
    for i in range(4):
        captured(*batch(seed=i))
    (variant,) = captured._variants.values()
    at_first = variant.steady
    assert at_first is not None
    for i in range(4):
        captured(*batch(seed=i))
    assert variant.steady is at_first


def test_arrays_parameters_and_gradients_held_from_before_a_call_keep_their_values():
    net, opt, captured, other_net, other_opt, recorded = steady()
    weight, grad = net[0].weight.numpy(), net[0].weight.grad
    weight_then, grad_then = weight.copy(), grad.numpy().copy()
    follow(captured, recorded, net, other_net, opt, other_opt)
    np.testing.assert_array_equal(weight, weight_then)
    np.testing.assert_array_equal(grad.numpy(), grad_then)
    assert not np.array_equal(weight, net[0].weight.numpy())
    assert not np.array_equal(grad_then, net[0].weight.grad.numpy())
    np.testing.assert_array_equal(net[0].weight.grad.numpy(), other_net[0].weight.grad.numpy())


def test_losses_held_from_several_calls_are_different_tensors():
    *_, captured, _, _, recorded = steady()
    losses = [(captured(*batch(seed=i)), recorded(*batch(seed=i)).item()) for i in range(6)]
    assert [a.item() for a, _ in losses] == [b for _, b in losses]


def test_values_written_from_outside_are_taken_up():
    net, opt, captured, other_net, other_opt, recorded = steady()
    for n in (net, other_net):
        with lz.no_grad():
            n[0].weight.mul_(0.5)
            n[2].bias.copy_(lz.ones(4))
    follow(captured, recorded, net, other_net, opt, other_opt)
    theirs = np.full((4, 16), 0.25, np.float32)
    for n in (net, other_net):
        n.load_state_dict({**n.state_dict(), "2.weight": lz.from_numpy(theirs)})
        n[0].weight.grad = None
    follow(captured, recorded, net, other_net, opt, other_opt, first=20)
    np.testing.assert_array_equal(theirs, np.full((4, 16), 0.25, np.float32))


def test_gradients_changed_between_calls_do_not_matter_after_zero_grad():
    net, opt, captured, other_net, other_opt, recorded = steady()
    with lz.no_grad():
        net[0].weight.grad.mul_(3.0)
        net[2].weight.grad = lz.zeros(16, 4).T
    follow(captured, recorded, net, other_net, opt, other_opt)


def test_recorded_and_captured_steps_can_take_turns():
    net, opt, captured, other_net, other_opt, recorded = steady()

    def by_hand(n, o, x, y):
        o.zero_grad()
        loss = F.cross_entropy(n(x), y)
        loss.backward()
        o.step()
        return loss.item()

    for i in range(4):
        x, y = batch(seed=50 + i)
        assert by_hand(net, opt, x, y) == by_hand(other_net, other_opt, x, y)
        assert captured(x, y).item() == recorded(x, y).item()
    follow(captured, recorded, net, other_net, opt, other_opt)


@native
def test_another_number_of_threads_or_backend_between_calls():
    net, opt, captured, other_net, other_opt, recorded = steady()
    threads = lz.get_num_threads()
    try:
        for n in (1, 3, 2):
            lz.set_num_threads(n)
            follow(captured, recorded, net, other_net, opt, other_opt, first=10 * n, calls=2)
        registry.set_backend("numpy")
        follow(captured, recorded, net, other_net, opt, other_opt, first=40, calls=2)
    finally:
        lz.set_num_threads(threads)
        registry.set_backend("cpu")
    follow(captured, recorded, net, other_net, opt, other_opt, first=50, calls=2)


def test_views_made_outside_follow_the_updates():
    p = lz.zeros(3)
    view, inner = p[0:2], p[0:2][1:]

    @lz.jit
    def f(x):
        p.add_(x)
        return p.sum()

    for i in range(6):
        assert f(lz.tensor(1.0)).item() == 3.0 * (i + 1)
        assert view.tolist() == [i + 1.0] * 2 and inner.tolist() == [i + 1.0]


def test_a_number_that_cannot_be_had_changes_nothing():
    net, opt, captured, other_net, other_opt, recorded = steady()
    before = state_of(net, opt)
    opt.param_groups[0]["lr"] = "fast"
    with pytest.raises((TypeError, ValueError)):
        captured(*batch(seed=9))
    opt.param_groups[0]["lr"] = 0.01
    for a, b in zip(before, state_of(net, opt), strict=True):
        np.testing.assert_array_equal(a, b)
    follow(captured, recorded, net, other_net, opt, other_opt)


def test_two_parameters_that_change_places():
    a, b = lz.tensor([1.0, 2.0]), lz.tensor([3.0, 4.0])

    @lz.jit
    def swap(k):
        x, y = a * 1, b + k
        a.copy_(y)
        b.copy_(x)

    want = [[1.0, 2.0], [3.0, 4.0]]
    for i in range(7):
        swap(lz.tensor(float(i)))
        want = [[v + i for v in want[1]], want[0]]
        assert [a.tolist(), b.tolist()] == want


@pytest.mark.parametrize(
    "look",
    [
        lambda a: a * a.item(), lambda a: a if a > 0 else -a, lambda a: a * float(a), lambda a: a * a.tolist(),
        lambda a: a + lz.tensor(np.sin(a.numpy())), lambda a: a + np.asarray(a).item(),
    ],
)  # fmt: skip
def test_values_that_are_there_cannot_be_looked_at_either(look):
    """They would be those of the first calls for ever."""
    captured = lz.jit(look)
    with pytest.raises(CaptureError, match="cannot look at values"):
        captured(lz.tensor(2.0))
    weight = lz.tensor(3.0)
    with pytest.raises(CaptureError, match=r"test_jit\.py:\d+"):
        lz.jit(lambda x: x * weight.item())(lz.tensor(2.0))


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


# -- gradients that are there before the call -----------------------------------------------------------------


def accumulation(kind, split):
    """(network, functions to call in turn) of an accumulation over three batches."""
    net = network("plain")
    opt = {
        "sgd": lambda: optim.SGD(net.parameters(), lr=0.1),
        "momentum": lambda: optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        "adamw": lambda: optim.AdamW(net.parameters(), lr=0.01),
    }[kind]()

    def add(x, y):
        loss = F.cross_entropy(net(x), y) / 3
        loss.backward()
        return loss

    def clear_and_add(x, y):
        opt.zero_grad()
        return add(x, y)

    def zero_and_add(x, y):
        opt.zero_grad(set_to_none=False)
        return add(x, y)

    def add_and_step(x, y):
        loss = add(x, y)
        opt.step()
        return loss

    def add_step_and_clear(x, y):
        loss = add_and_step(x, y)
        opt.zero_grad()
        return loss

    def add_clip_step_and_clear(x, y):
        loss = add(x, y)
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        opt.step()
        opt.zero_grad(set_to_none=False)
        return loss

    return net, {
        "cleared first": (clear_and_add, add, add_and_step),
        "zeros first": (zero_and_add, add, add_and_step),
        "cleared last": (add, add, add_step_and_clear),
        "clipped": (add, add, add_clip_step_and_clear),
    }[split]


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("split", ["cleared first", "cleared last", "clipped"])
def test_accumulation_may_be_split_over_captured_functions(kind, split):
    net, functions = accumulation(kind, split)
    captured = {f: lz.jit(f) for f in functions}
    twin, plain = accumulation(kind, split)
    for i in range(8):
        for k in range(3):
            x, y = batch(seed=3 * i + k)
            assert captured[functions[k]](x, y).item() == plain[k](x, y).item()
            for p, q in zip(net.parameters(), twin.parameters(), strict=True):
                np.testing.assert_array_equal(p.numpy(), q.numpy())
                assert (p.grad is None) == (q.grad is None)
                if q.grad is not None:
                    np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())
    for f in captured.values():  # with gradients there and without, if both occur
        assert len(f._variants) <= 2 and any(v.confirmed for v in f._variants.values())


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
def test_gradients_may_be_filled_with_zeros_at_the_start(kind):
    """None is there at the first call, and some at all others."""

    def run(captured):
        net, functions = accumulation(kind, "zeros first")
        calls = [lz.jit(f) for f in functions] if captured else functions
        values = []
        for i in range(6):
            for k, call in enumerate(calls):
                values.append(call(*batch(seed=3 * i + k)).item())
        return net, calls, [*values, *[t.numpy() for p in net.parameters() for t in (p, p.grad)]]

    (_, _, expected), (net, calls, found) = run(False), run(True)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(c._variants) for c in calls] == [2, 1, 1]
    assert all(p.grad._base is None for p in net.parameters())  # no view of the gradient before


def test_zeros_are_written_into_the_gradients_that_are_there():
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    for k, grad in enumerate((lz.tensor([3.0, 4.0]), lz.tensor([3.0, 4.0], requires_grad=True), w * 2)):
        w.grad = grad
        (optim.SGD([w], lr=0.1) if k % 2 else nn.ParameterList([w])).zero_grad(set_to_none=False)
        assert w.grad is grad and grad.tolist() == [0.0, 0.0] and not grad.requires_grad


def test_a_gradient_put_there_between_calls_is_added_to():
    """Also where none was there when the function was captured."""
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    opt = optim.SGD([w], lr=0.5)

    @lz.jit
    def step(x):
        loss = (w * x).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    expected = np.array([1.0, 2.0])
    for k in range(12):
        extra = k % 4 == 3 or k > 8
        if extra:
            w.grad = lz.tensor([float(k), 1.0])
        step(lz.tensor([1.0, -1.0]))
        expected = expected - 0.5 * (np.array([1.0, -1.0]) + (np.array([k, 1.0]) if extra else 0))
        assert w.tolist() == expected.tolist() and w.grad is None


def test_a_step_by_itself_may_be_captured():
    def run(captured):
        net, _, _ = trainer("plain", "sgd")
        opt = optim.AdamW(net.parameters(), lr=0.01)

        def update():
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            opt.step()
            opt.zero_grad()

        call = lz.jit(update) if captured else update
        for i in range(7):
            x, y = batch(seed=i)
            F.cross_entropy(net(x), y).backward()
            call()
            assert all(p.grad is None for p in net.parameters())
        return [p.numpy() for p in net.parameters()]

    for a, b in zip(run(False), run(True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_are_what_they_were_after_a_captured_function_raises():
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    w.grad = lz.tensor([5.0, 6.0])
    grad = w.grad

    @lz.jit
    def step(x):
        (w * x).sum().backward()
        w.grad = w.grad * 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step(lz.ones(2))
    assert w.grad is grad and grad.tolist() == [5.0, 6.0]


def test_gradients_of_another_shape_of_argument_are_another_variant():
    @lz.jit
    def f(x):
        (x * x).sum().backward()
        return x.grad.sum()

    for k in range(6):
        x = lz.tensor([float(k), 1.0], requires_grad=True)
        assert f(x).item() == 2 * k + 2
        if k % 2:
            assert f(x).item() == 4 * k + 4
