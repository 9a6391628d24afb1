"""``lz.jit``: a captured step does what the recorded step does, bit for bit, and says when it cannot."""

import copy
import inspect
import pickle
from collections import namedtuple

import numpy as np
import pytest

import lezero as lz
from captures import OPTIMIZERS, batch, network, state_of, trainer
from lezero import nn
from lezero.nn import functional as F
from lezero.runtime import stats
from lezero.runtime.jit import MAX_VARIANTS, CaptureError


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


# -- refusals in the steady state -------------------------------------------------------------------------------


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


@pytest.mark.parametrize("number", [0.0, -0.0, complex(0.0, -0.0)])
def test_zeros_of_different_sign_are_different_arguments(number):
    f = lz.jit(lambda x, s: x * s)
    x = lz.ones(1)
    for _ in range(2):
        for s in (number, -number):
            assert repr(f(x, s).item()) == repr((x * s).item())


def test_not_a_number_is_one_argument():
    f = lz.jit(lambda x, s: x * s)
    for _ in range(3):
        f(lz.ones(1), float("nan"))
    assert not f.reasons


PLANS_MEMORY = lz.device.get_backend() == "cpu"


class Captured(lz.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = lz.nn.Parameter(lz.ones(2))
        self.scaled = lz.jit(self.scale, memory_limit="1GiB" if PLANS_MEMORY else None)

    def scale(self, x):
        return x * self.weight


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_copied_module_has_captured_functions_of_its_own(copied):
    module = Captured()
    for _ in range(3):
        module.scaled(lz.ones(2))
    twin = copied(module)
    with lz.no_grad():
        module.weight.fill_(5.0)
    for _ in range(3):
        assert module.scaled(lz.ones(2)).tolist() == [5, 5]
        assert twin.scaled(lz.ones(2)).tolist() == [1, 1]
    assert not PLANS_MEMORY or twin.scaled.memory is not None


@lz.jit
def added(x):
    return x + 1


def test_a_captured_function_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(added)) is added is copy.deepcopy(added)


def test_the_form_that_was_called_least_recently_goes_first():
    f, calls = lz.jit(lambda x, k: calls.append(k) or x * k), []
    x = lz.tensor([1.0, 2.0])
    for _ in range(4):
        f(x, 0)
    for k in range(1, 2 * MAX_VARIANTS):
        for _ in range(3):
            f(x, k)
            f(x, 0)  # stays, being called all the time
    assert calls.count(0) == 2 and calls.count(1) == 2
    f(x, 1)
    assert calls.count(1) == 3  # was gone
