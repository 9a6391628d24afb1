"""GradScaler against PyTorch's: scales, skipped steps, state; what it says of overflows; capture; Apex's levels."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import numpy as np
import pytest

import lezero as lz
from lezero import amp, nn, optim
from lezero.amp import scaler as scaler_module
from lezero.models import lenet5
from lezero.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore:GradScaler. the first loss was infinite")
START = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
DATA = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
OPTIMIZERS = {
    "SGD": (optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "Adam": (optim.Adam, {"lr": 0.1}),
    "AMSGrad": (optim.Adam, {"lr": 0.1, "amsgrad": True}),
    "AdamW": (optim.AdamW, {"lr": 0.1}),
    "RMSprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "Adagrad": (optim.Adagrad, {"lr": 0.1}),
    "Lion": (optim.Lion, {"lr": 0.01}),
    "LAMB": (optim.LAMB, {"lr": 0.1}),
}


class OwnSGD(optim.Optimizer):
    """Not one of lezero.optim: it keeps a count in Python."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.calls = 0

    @lz.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])


class Problem:
    """One weight, an optimizer, a scaler, and a loss that can be made infinite."""

    def __init__(self, make=optim.Adam, options=None, captured=False, **settings):
        self.w = nn.Parameter(lz.tensor(START))
        self.optimizer = make([("weight", self.w)], **(options or {"lr": 0.1}))
        self.scaler = amp.GradScaler(**{"init_scale": 8.0, "growth_interval": 3, **settings})
        self.x = lz.tensor(DATA)
        self.call = lz.jit(self.train) if captured else self.train

    def train(self, factor):
        self.optimizer.zero_grad()
        loss = ((self.x @ self.w) ** 2).mean() * factor
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def step(self, factor=1.0):
        return self.call(lz.tensor(np.float32(factor)))

    def state(self):
        tensors = [self.w, *self.optimizer.state[self.w].values()]
        return [t.detach().numpy().copy() for t in tensors]


def equal(a, b):
    return len(a) == len(b) and all(map(np.array_equal, a, b))


BAD = {2, 3, 8, 14, 15, 16}


def pytorch(options, steps, settings, own=()):
    torch = pytest.importorskip("torch")
    w, x = torch.nn.Parameter(torch.tensor(START)), torch.tensor(DATA)
    optimizer = torch.optim.Adam([w], **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3, **settings)
    scales = []
    for k in range(steps):
        optimizer.zero_grad()
        loss = ((x @ w) ** 2).mean() * (float("inf") if k in BAD else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, w.detach().numpy(), optimizer.state[w]["step"].item(), scaler.state_dict()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("settings", [{}, {"growth_factor": 3.0, "backoff_factor": 0.3}])
def test_the_scales_of_a_run_are_those_of_pytorch(captured, settings):
    scales, w, count, state = pytorch({"lr": 0.1}, 24, settings)
    ours = Problem(captured=captured, **settings)
    found = []
    for k in range(24):
        ours.step(np.inf if k in BAD else 1.0)
        found.append(ours.scaler.get_scale())
    assert found == scales
    assert ours.scaler.state_dict() == state
    assert ours.optimizer.state[ours.w]["step"].item() == count == 24 - len(BAD)
    np.testing.assert_allclose(ours.w.detach().numpy(), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_skipped_step_changes_nothing(name, bad):
    p = Problem(*OPTIMIZERS[name])
    p.step(bad)  # state that is made in a skipped step
    assert np.array_equal(p.w.detach().numpy(), START)
    q = Problem(*OPTIMIZERS[name])
    p.step()
    q.step()
    assert equal(p.state(), q.state())
    before = p.state()
    p.step(bad)
    assert equal(p.state(), before)
    p.step()
    q.step()
    assert equal(p.state(), q.state())
    assert not equal(p.state(), before)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_steps_are_those_without_a_scaler(name):
    """Scales are powers of two, so nothing is rounded."""
    p, q = Problem(*OPTIMIZERS[name]), Problem(*OPTIMIZERS[name], enabled=False)
    for _ in range(4):
        p.step()
        q.step()
    assert p.scaler.get_scale() == 16.0 and q.scaler.get_scale() == 1.0
    for ours, plain in zip(p.state(), q.state()):
        np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-7)


def test_a_steady_loop_is_one_run_a_step_and_reads_nothing(monkeypatch):
    p = Problem()
    factors = [lz.tensor(np.float32(f)) for f in (1, 1, np.inf, 1, 1, np.inf, 1)]
    lz.realize(*factors)
    for factor in factors[:3]:
        p.train(factor)
    before = lz.runtime.stats()
    for factor in factors[3:]:
        p.train(factor)
    after = lz.runtime.stats()
    assert after["runs"] - before["runs"] == 4
    assert after["plans_built"] == before["plans_built"]


def test_optimizers_of_ones_own_are_not_called_when_a_gradient_overflowed():
    p = Problem(OwnSGD, {"lr": 0.1})
    for factor in (1.0, np.inf, 1.0, np.nan):
        before = p.w.detach().numpy().copy()
        p.step(factor)
        assert np.array_equal(p.w.detach().numpy(), before) is not np.isfinite(factor)
    assert p.optimizer.calls == 2
    assert p.scaler.get_scale() == 2.0
    with pytest.raises(lz.runtime.jit.CaptureError, match=r"whether to call OwnSGD\.step"):
        Problem(OwnSGD, {"lr": 0.1}, captured=True).step()


def test_a_step_written_over_one_of_ours_is_called_each_time():
    class Counting(optim.SGD):
        calls = 0

        def step(self, closure=None):
            Counting.calls += 1
            return super().step(closure)

    p = nn.Parameter(lz.tensor(START))
    optimizer = Counting([p], lr=0.1)
    for _ in range(4):
        (p * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert Counting.calls == 4
    np.testing.assert_allclose(p.detach().numpy(), START - 0.8, rtol=1e-5)


def test_gradients_are_unscaled_for_clipping():
    torch = pytest.importorskip("torch")
    p = Problem(optim.SGD, {"lr": 0.1}, init_scale=1024.0)
    q = torch.tensor(START, requires_grad=True)
    ((torch.tensor(DATA) @ q) ** 2).mean().backward()
    p.scaler.scale(((p.x @ p.w) ** 2).mean()).backward()
    np.testing.assert_allclose(p.w.grad.numpy(), 1024 * q.grad.numpy(), rtol=1e-5)
    p.scaler.unscale_(p.optimizer)
    np.testing.assert_allclose(p.w.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-6)
    nn.utils.clip_grad_norm_([p.w], 0.5)
    p.scaler.step(p.optimizer)
    p.scaler.update()
    assert np.linalg.norm(p.w.detach().numpy() - START) == pytest.approx(0.05, rel=1e-3)


def test_gradients_of_several_losses_add_up_and_are_checked_together():
    for factors, moves in (((1.0, 1.0), True), ((np.inf, 1.0), False), ((1.0, np.nan), False)):
        p = Problem(optim.SGD, {"lr": 0.1})
        for factor in factors:
            p.scaler.scale(((p.x @ p.w) ** 2).mean() * factor).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        assert np.array_equal(p.w.detach().numpy(), START) is not moves


def test_each_optimizer_skips_for_itself_and_the_scale_follows_all():
    p, q = (nn.Parameter(lz.tensor(START)) for _ in range(2))
    first, second = optim.SGD([p], lr=0.1), optim.SGD([q], lr=0.1)
    scaler = amp.GradScaler(init_scale=8.0)
    losses = scaler.scale([p.sum(), (q.sum() * lz.tensor(np.float32(np.inf)),)])
    assert type(losses) is list and type(losses[1]) is tuple
    losses[0].backward()
    losses[1][0].backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert not np.array_equal(p.detach().numpy(), START)
    assert np.array_equal(q.detach().numpy(), START)
    assert scaler.get_scale() == 4.0
    assert [o.parameter for o in scaler.overflows()] == ["parameter 0 of shape (5, 3)"]


def test_the_scale_is_float32_made_when_needed_and_can_be_set():
    scaler = amp.GradScaler()
    assert scaler._scale is None
    assert scaler.get_scale() == 65536.0
    y = scaler.scale(lz.ones(2, dtype=lz.float16))
    assert y.dtype is lz.float16
    assert scaler._scale.dtype is lz.float32
    assert scaler.scale(lz.tensor(1.0).half()).dtype is lz.float32
    for new in (4.0, lz.tensor(2.0), lz.tensor([0.5])):
        scaler.update(new)
        assert scaler.get_scale() == float(new)
    assert isinstance(next(scaler.scale(t for t in [lz.ones(2)])), lz.Tensor)


def test_defaults_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    ours, theirs = amp.GradScaler(), torch.amp.GradScaler("cpu")
    assert ours.state_dict() == theirs.state_dict()
    for name in ("get_scale", "get_growth_factor", "get_backoff_factor", "get_growth_interval", "is_enabled"):
        assert getattr(ours, name)() == getattr(theirs, name)()


def test_a_floor():
    p = Problem(init_scale=1.0, min_scale=0.25)
    scales = []
    for _ in range(4):
        p.step(np.inf)
        scales.append(p.scaler.get_scale())
    assert scales == [0.5, 0.25, 0.25, 0.25]
    below = Problem(init_scale=0.125, min_scale=1.0)
    below.step(np.inf)
    assert below.scaler.get_scale() == 0.125
    assert amp.GradScaler()._min_scale > 0


@pytest.mark.parametrize("captured", [False, True])
def test_hysteresis(captured):
    """Megatron-LM's rule, written out."""
    p = Problem(hysteresis=3, captured=captured)
    scale, good, left = 8.0, 0, 3
    for k, bad in enumerate([1, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 0]):
        p.step(np.inf if bad else 1.0)
        if bad:
            good, left = 0, left - 1
            scale *= 0.5 if left <= 0 else 1.0
        else:
            good += 1
            if good == 3:
                scale, good, left = scale * 2, 0, 3
        assert p.scaler.get_scale() == scale, k
    assert p.scaler.state_dict()["_hysteresis_tracker"] == left


def test_settings_changed_later_hold_in_a_captured_step():
    p = Problem(captured=True, growth_interval=1)
    for _ in range(4):
        p.step()
    assert p.scaler.get_scale() == 128.0
    p.scaler.set_growth_factor(4.0)
    p.scaler.set_backoff_factor(0.25)
    p.step()
    assert p.scaler.get_scale() == 512.0
    p.step(np.inf)
    assert p.scaler.get_scale() == 128.0
    p.scaler.set_growth_interval(2)
    p.step()
    assert p.scaler.get_scale() == 128.0
    p.step()
    assert p.scaler.get_scale() == 512.0
    assert len(p.call._variants) == 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, blow):
        y = self.middle(self.first(x))
        return self.last(y + (y - y.detach()) * blow)  # the value is y


@pytest.mark.parametrize("captured", [False, True])
def test_the_first_overflow_is_named(captured):
    """Gradients blow up between `last` and `middle`."""
    model = Net()
    plain, named = optim.SGD(model.parameters(), lr=0.0), optim.SGD(list(model.named_parameters()), lr=0.0)
    for optimizer in (plain, named):
        scaler = amp.GradScaler(growth_interval=100)

        def train(x, blow, optimizer=optimizer, scaler=scaler):
            optimizer.zero_grad()
            loss = model(x, blow).sum()
            scaler.scale(loss * 1e6).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        step = lz.jit(train) if captured else train
        x = lz.ones(3, 4)
        for _ in range(3):
            step(x, lz.tensor(1.0))
        assert scaler.overflows() == []
        step(x, lz.tensor(1e30))
        (found,) = scaler.overflows(model)
        assert found.parameter == "middle.weight"
        assert found.operation == "dot"
        assert "test_amp_scaler.py:" in found.line
        assert "middle.weight overflowed first, in dot recorded at" in str(found)
        expected = "middle.weight" if optimizer is named else "parameter 2 of shape (4, 4)"
        assert [o.parameter for o in scaler.overflows()] == [expected]
        step(x, lz.tensor(1.0))
        assert [o.parameter for o in scaler.overflows()] == [expected]  # the last one there was


def test_a_loss_that_is_not_finite_from_the_first_step_is_an_error():
    p = Problem()
    with pytest.warns(RuntimeWarning, match="first loss was infinite or NaN"):
        for _ in range(2):
            p.step(np.nan)
    with pytest.raises(FloatingPointError, match="each of the first 8 steps"):
        for _ in range(20):
            p.step(np.nan)
    assert np.array_equal(p.w.detach().numpy(), START)


def test_a_loss_that_was_finite_once_may_be_infinite_later():
    p = Problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p.step()
        for _ in range(12):
            p.step(np.inf)


def test_only_losses_are_blamed_on_losses():
    """An infinite gradient of a finite loss is what scaling is for."""
    p = Problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(12):
            p.scaler.scale(p.w.sum()).backward()
            p.w.grad = p.w.grad * np.inf
            p.scaler.step(p.optimizer)
            p.scaler.update()
    assert p.scaler.get_scale() == 8.0 / 2**12


def test_skipping_for_ever_is_an_error(monkeypatch):
    monkeypatch.setattr(scaler_module, "SKIPS_IN_A_ROW", 10)
    p = Problem(min_scale=1.0)
    p.step()
    with pytest.raises(FloatingPointError, match=r"steps were all skipped.*scale is down to 1: .*gradient of weight"):
        for _ in range(40):
            p.step(np.inf)


def test_the_updates_of_all_parameters_are_one_kernel_still():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer, scaler = optim.AdamW(model.parameters()), amp.GradScaler()

    def step(x):
        optimizer.zero_grad()
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    x = lz.ones(4, 8)
    step(x)
    updates = [k for k in lz.explain(step, x).kernels if "sqrt" in k.operations]
    assert len(updates) == 1
    assert updates[0].operations.count("sqrt") == 4


# -- misuse ------------------------------------------------------------------------------------------------------


def unscaled():
    p = Problem()
    p.scaler.scale(((p.x @ p.w) ** 2).mean()).backward()
    p.scaler.unscale_(p.optimizer)
    return p


def test_the_order_of_calls():
    p = unscaled()
    with pytest.raises(
        RuntimeError, match=r"unscale_\(\) has already been called on this optimizer since the last update"
    ):
        p.scaler.unscale_(p.optimizer)
    p.scaler.step(p.optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)"):
        p.scaler.unscale_(p.optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        p.scaler.step(p.optimizer)
    p.scaler.update()
    with pytest.raises(RuntimeError, match="no gradients were looked at since the last update"):
        p.scaler.update()
    p.step()  # and everything works again


def test_explaining_a_part_of_a_step_changes_nothing():
    p, q = Problem(), Problem()
    p.step()
    q.step()
    lz.explain(lambda: p.scaler.scale(((p.x @ p.w) ** 2).mean()))
    lz.explain(lambda: p.train(lz.tensor(1.0)))
    for factor in (1.0, np.inf, 1.0):
        p.step(factor)
        q.step(factor)
    assert equal(p.state(), q.state())
    assert p.scaler.state_dict() == q.scaler.state_dict()


@pytest.mark.parametrize("where", ["scale", "step", "update"])
def test_a_capture_that_fails_leaves_a_scaler_that_works(where):
    p, q = Problem(), Problem()
    p.step()
    q.step()

    @lz.jit
    def reads():
        p.optimizer.zero_grad()
        loss = ((p.x @ p.w) ** 2).mean()
        p.scaler.scale(loss).backward()
        if where != "scale":
            p.scaler.step(p.optimizer)
        if where == "update":
            p.scaler.update()
        return loss.item()

    with pytest.raises(lz.runtime.jit.CaptureError):
        reads()
    for factor in (1.0, np.inf, 1.0):
        p.step(factor)
        q.step(factor)
    assert equal(p.state(), q.state())
    assert p.scaler.state_dict() == q.scaler.state_dict()


def test_nothing_was_scaled():
    p = Problem()
    (p.w * 2).sum().backward()
    for call in (p.scaler.unscale_, p.scaler.step):
        with pytest.raises(RuntimeError, match="nothing has been scaled yet"):
            call(p.optimizer)
    with pytest.raises(RuntimeError, match="before anything was scaled"):
        p.scaler.update()
    assert np.array_equal(p.w.grad.numpy(), np.full((5, 3), 2.0))


def test_no_gradient():
    p = Problem()
    p.scaler.scale(lz.tensor(1.0))
    with pytest.raises(RuntimeError, match="no parameter of this optimizer has a gradient"):
        p.scaler.step(p.optimizer)


def test_float16_gradients_are_refused():
    w = nn.Parameter(lz.ones(3, dtype=lz.float16))
    optimizer, scaler = optim.SGD([w], lr=0.1), amp.GradScaler(init_scale=2.0)
    scaler.scale(w.sum()).backward()
    assert w.grad.dtype is lz.float16
    with pytest.raises(ValueError, match="gradient of parameter 0 is float16; parameters stay float32"):
        scaler.step(optimizer)
    v = nn.Parameter(lz.ones(3, dtype=lz.bfloat16))
    scaler.scale(v.sum()).backward()
    other = optim.SGD([v], lr=0.5)
    scaler.step(other)
    assert v.detach().float().numpy().tolist() == [0.5] * 3


def test_arguments_are_handed_on_and_closures_refused():
    class Taking(OwnSGD):
        @lz.no_grad()
        def step(self, times, *, closure=None, why=""):
            self.got = times, why
            return "done"

    p = Problem(Taking, {"lr": 0.1})
    p.scaler.scale(p.w.sum()).backward()
    with pytest.raises(RuntimeError, match="takes no closure"):
        p.scaler.step(p.optimizer, closure=p.w.sum)
    with pytest.raises(RuntimeError, match="takes no closure"):
        p.scaler.step(p.optimizer, p.w.sum)
    assert p.scaler.step(p.optimizer, 3, why="so") == "done"
    assert p.optimizer.got == (3, "so")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: amp.GradScaler(2.0**16), TypeError, "first argument is a device"),
        (lambda: amp.GradScaler("cuda"), ValueError, "GradScaler: there is no device 'cuda' here.*cpu"),
        (lambda: amp.GradScaler(init_scale=0.0), ValueError, "init_scale is a positive finite number, got 0"),
        (lambda: amp.GradScaler(init_scale=float("nan")), ValueError, "init_scale"),
        (lambda: amp.GradScaler(init_scale="big"), ValueError, "init_scale"),
        (lambda: amp.GradScaler(growth_factor=1.0), ValueError, "growth_factor must be more than 1"),
        (lambda: amp.GradScaler(backoff_factor=1.0), ValueError, "backoff_factor must be less than 1"),
        (lambda: amp.GradScaler(backoff_factor=0.0), ValueError, "backoff_factor is a positive"),
        (lambda: amp.GradScaler(growth_interval=0), ValueError, "growth_interval is an int, 1 or more"),
        (lambda: amp.GradScaler(growth_interval=1.5), ValueError, "growth_interval is an int"),
        (lambda: amp.GradScaler(min_scale=-1.0), ValueError, "min_scale is a positive"),
        (lambda: amp.GradScaler(hysteresis=0), ValueError, "hysteresis is an int"),
        (lambda: amp.GradScaler().scale(3.0), TypeError, "a tensor or an iterable of tensors is needed, got float"),
        (lambda: amp.GradScaler().scale({"loss": lz.ones(1)}), TypeError, "got dict"),
        (lambda: amp.GradScaler().scale(lz.arange(3)), TypeError, "floating tensor is needed, got int64"),
        (lambda: Problem().scaler.step("adam"), TypeError, "an optimizer is needed, got str"),
        (lambda: unscaled().scaler.update(-1.0), ValueError, "new_scale is a positive"),
        (lambda: unscaled().scaler.update(lz.ones(2)), ValueError, "a floating tensor of one element"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


# -- state -------------------------------------------------------------------------------------------------------


def test_states_are_exchanged_with_pytorch():
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu", init_scale=3.0, growth_interval=5)
    theirs.scale(torch.ones(1))
    state = {**theirs.state_dict(), "_growth_tracker": 2}
    ours = amp.GradScaler()
    ours.load_state_dict(state)
    assert ours.state_dict() == state
    theirs.load_state_dict(ours.state_dict())
    assert theirs.state_dict() == state


@pytest.mark.parametrize("captured", [False, True])
def test_a_run_goes_on_from_a_state(captured):
    p = Problem(captured=captured)
    for factor in (1, 1, 1, 1):
        p.step(factor)
    saved = copy.deepcopy(p.scaler.state_dict())
    expected = []
    for factor in (1, 1, np.inf, 1):
        p.step(factor)
        expected.append(p.scaler.state_dict())
    fresh = Problem(captured=captured)
    for scaler_of in (p, fresh):  # into one that has stepped, and one that has not
        scaler_of.scaler.load_state_dict(saved)
        assert scaler_of.scaler.state_dict() == saved
        found = []
        for factor in (1, 1, np.inf, 1):
            scaler_of.step(factor)
            found.append(scaler_of.scaler.state_dict())
        assert found == expected


def test_a_scaler_that_is_not_enabled():
    off = amp.GradScaler(enabled=False)
    p = Problem(enabled=False)
    x = lz.ones(2)
    assert off.scale(x) is x
    assert off.state_dict() == {}
    assert off.get_scale() == 1.0
    off.load_state_dict({})
    off.load_state_dict({"anything": 1})
    off.unscale_("whatever")
    off.update()
    p.step()
    assert not np.array_equal(p.w.detach().numpy(), START)
    with pytest.raises(RuntimeError, match="the state is empty"):
        amp.GradScaler().load_state_dict({})
    on = amp.GradScaler()
    with pytest.raises(ValueError, match="not a scaler's state, scale"):
        on.load_state_dict({"epoch": 3})
    with pytest.raises(ValueError, match="growth_factor must be more than 1"):
        on.load_state_dict({**on.state_dict(), "growth_factor": 0.5})
    assert on.state_dict() == amp.GradScaler().state_dict()


# -- training ----------------------------------------------------------------------------------------------------


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def drawn(r, pictures, count):
    """Noisy pictures of ten classes, three in ten labels wrong: no network gets far below a loss of 1.28."""
    labels = r.integers(0, 10, count)
    images = pictures[labels] + 0.5 * r.normal(size=(count, 1, 28, 28))
    given = np.where(r.random(count) < 0.3, r.integers(0, 10, count), labels)
    return lz.tensor(images.astype(np.float32)), lz.tensor(given)


def trained(make, dtype, captured=True, steps=80):
    """The loss on 1000 pictures that were not trained on."""
    r = np.random.default_rng(0)
    pictures = r.normal(size=(10, 1, 28, 28))
    lz.manual_seed(0)
    model = make()
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    scaler = amp.GradScaler(enabled=dtype is lz.float16)

    def loss_of(x, y):
        with amp.autocast("cpu", dtype=dtype or lz.bfloat16, enabled=dtype is not None):
            return F.cross_entropy(model(x), y)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    step = lz.jit(step) if captured else step
    for _ in range(steps):
        step(*drawn(r, pictures, 64))
    with lz.no_grad():
        return loss_of(*drawn(np.random.default_rng(5), pictures, 1000)).item()


@pytest.mark.parametrize("make", [mlp, lenet5])
def test_training_in_half_precision_comes_to_the_same_loss(make):
    full = trained(make, None)
    assert full < 1.35
    for dtype in (lz.bfloat16, lz.float16):
        assert trained(make, dtype) == pytest.approx(full, rel=0.01)


def test_threads_train_as_they_do_alone():
    dtypes = (lz.bfloat16, lz.float16, None)
    alone = {dtype: trained(mlp, dtype, captured=False, steps=20) for dtype in dtypes}
    made = {}
    for dtype in dtypes:  # threads draw random numbers from one stream
        lz.manual_seed(0)
        made[dtype] = mlp()
        lz.realize()
    together = {}

    def work(dtype):
        together[dtype] = trained(lambda: made[dtype], dtype, captured=False, steps=20)

    threads = [threading.Thread(target=work, args=(dtype,)) for dtype in dtypes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone
    assert len(set(alone.values())) == 3


# -- Apex's levels -----------------------------------------------------------------------------------------------


def layers():
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.ReLU(),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )


def apex(level, dtype=lz.float16, captured=False, **options):
    lz.manual_seed(0)
    model = layers()
    model, optimizer = amp.initialize(
        model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9), opt_level=level, dtype=dtype, **options
    )
    r = np.random.default_rng(0)
    x, y = lz.tensor(r.normal(size=(12, 8)).astype(np.float32)), lz.tensor(np.arange(12) % 3)

    def step(factor):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * factor
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        return loss

    return model, optimizer, lz.jit(step) if captured else step


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("dtype", [lz.bfloat16, lz.float16])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_levels_train_to_the_same_loss(level, dtype, captured):
    one = lz.tensor(1.0)
    plain = apex("O0")[2]
    expected = [plain(one).item() for _ in range(8)]
    model, optimizer, step = apex(level, dtype, captured)
    losses = [step(one).item() for _ in range(8)]
    np.testing.assert_allclose(losses, expected, rtol=0.05 if level == "O3" or dtype is lz.bfloat16 else 0.01)
    low = level in ("O2", "O3")
    assert model[0].weight.dtype is (dtype if low else lz.float32)
    for norm in (model[2], model[4]):
        assert norm.weight.dtype is (dtype if level == "O3" else lz.float32)
    masters = list(amp.master_params(optimizer))
    assert {p.dtype for p in masters} == {dtype if level == "O3" else lz.float32}
    assert model(lz.ones(2, 8)).dtype is lz.float32
    if level == "O2":
        assert np.array_equal(masters[0].detach().to(dtype).float().numpy(), model[0].weight.detach().float().numpy())
        assert masters[2] is model[2].weight


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_levels_with_a_dynamic_scale_skip_steps(level):
    model, optimizer, step = apex(level)
    step(lz.tensor(1.0))
    before = [p.detach().float().numpy().copy() for p in (*model.parameters(), *amp.master_params(optimizer))]
    step(lz.tensor(np.float32(np.inf)))
    after = [p.detach().float().numpy() for p in (*model.parameters(), *amp.master_params(optimizer))]
    assert equal(before, after)
    step(lz.tensor(1.0))
    assert not np.array_equal(model[0].weight.detach().float().numpy(), before[0])


def test_master_weights_gather_what_the_low_type_would_lose():
    w = nn.Linear(1, 1, bias=False)
    with lz.no_grad():
        w.weight.fill_(1.0)
    model, optimizer = amp.initialize(w, optim.SGD(w.parameters(), lr=1e-4), opt_level="O2", loss_scale=128.0)
    for _ in range(20):
        optimizer.zero_grad()
        with amp.scale_loss(model(lz.ones(1, 1)).sum(), optimizer) as loss:
            loss.backward()
        optimizer.step()
    assert next(amp.master_params(optimizer)).item() == pytest.approx(1 - 20e-4, rel=1e-5)
    assert model.weight.item() == pytest.approx(1 - 20e-4, abs=5e-4)


def test_gradients_of_several_backward_passes():
    for level in ("O1", "O2"):
        model, optimizer, _ = apex(level, loss_scale=64.0)
        x, y = lz.ones(3, 8), lz.tensor(np.arange(3))
        optimizer.zero_grad()
        for last in (False, True):
            with amp.scale_loss(F.cross_entropy(model(x), y), optimizer, delay_unscale=not last) as loss:
                loss.backward()
        twice = next(amp.master_params(optimizer)).grad.numpy().copy()
        with pytest.raises(RuntimeError, match="unscaled already"), amp.scale_loss(loss, optimizer):
            pass
        optimizer.zero_grad()
        with amp.scale_loss(F.cross_entropy(model(x), y), optimizer) as loss:
            loss.backward()
        np.testing.assert_allclose(twice, 2 * next(amp.master_params(optimizer)).grad.numpy(), rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_copies_of_a_prepared_model_compute_with_their_own_weights(level):
    model, _, _ = apex(level)
    twin = copy.deepcopy(model)
    x = lz.ones(2, 8)
    before = model.eval()(x).numpy()
    with lz.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert twin.eval()(x).numpy().tolist() == [[0.0] * 3] * 2
    assert np.array_equal(model(x).numpy(), before)
    assert isinstance(model, nn.Sequential) and type(model).__name__ == "Sequential"


def test_levels_that_are_not_enabled_change_nothing():
    model = layers()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    assert amp.initialize(model, optimizer, "O2", enabled=False) == (model, optimizer)
    assert model[0].weight.dtype is lz.float32
    assert "step" not in vars(optimizer)
    assert amp.initialize(model, opt_level="O0") is model


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m, o: amp.initialize(m, o, "02"), ValueError, "O0, O1, O2, O3 .with the letter O., got '02'"),
        (lambda m, o: amp.initialize(m, o, "O1", dtype=lz.float32), TypeError, "float16 or bfloat16, got float32"),
        (lambda m, o: amp.initialize(m, o, "O1", loss_scale="static"), ValueError, "positive number or 'dynamic'"),
        (lambda m, o: amp.initialize(m, o, "O1", loss_scale=0), ValueError, "positive number or 'dynamic'"),
        (lambda m, o: amp.initialize(o, m), TypeError, "a Module or a list of them is needed, got SGD"),
        (lambda m, o: amp.initialize(m.half(), o), ValueError, "the parameter 0.weight is float16"),
        (lambda m, o: amp.initialize(*amp.initialize(m, o)), ValueError, "has been initialized before"),
        (lambda m, o: amp.scale_loss(lz.ones(1), o).__enter__(), RuntimeError, "give the optimizer to amp.initialize"),
        (lambda m, o: amp.initialize(m, o)[1].step(), RuntimeError, "without gradients taken inside"),
    ],
)
def test_misuse_of_levels(make, error, message):
    model = layers()
    with pytest.raises(error, match=message):
        make(model, optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"])
def test_a_scaler_is_copied_and_pickled_between_steps(copied):
    net = nn.Linear(2, 2)
    opt, scaler = optim.SGD(net.parameters(), lr=0.1), lz.amp.GradScaler(init_scale=8.0, growth_interval=3)

    def backward(scaler):
        opt.zero_grad()
        scaler.scale(net(lz.ones(1, 2)).sum()).backward()

    def step(scaler):
        backward(scaler)
        scaler.step(opt)
        scaler.update()

    step(scaler), step(scaler)
    other = copied(scaler)
    assert other.state_dict() == scaler.state_dict()
    step(other)
    assert (other.get_scale(), scaler.get_scale()) == (16.0, 8.0)
    backward(scaler)
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match=r"after update\(\)"):
        copied(scaler)


def test_what_is_not_enabled_needs_no_such_device_or_dtype():
    with lz.autocast("cuda", dtype=lz.float32, enabled=False):
        assert (lz.ones(2, 2) @ lz.ones(2, 2)).dtype is lz.float32
    assert lz.amp.GradScaler("cuda", enabled=False).get_scale() == 1.0
