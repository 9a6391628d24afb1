"""Optimizers against PyTorch's over ten steps in float64; their state, groups and edges."""

import copy
import math
import pickle

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.optim import swa_utils
from lezero.tensor import no_grad, ones, tensor, zeros

torch = pytest.importorskip("torch")


def problem():
    """Two parameters on each side, and a loss that moves them."""
    r = np.random.default_rng(0)
    start, x = [r.normal(size=(4, 3)), r.normal(size=(3,))], r.normal(size=(6, 4))
    ours = [nn.Parameter(tensor(a)) for a in start]
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in start]
    mine, other = tensor(x), torch.tensor(x)
    return ours, theirs, lambda p: ((mine @ p[0] + p[1]) ** 2).mean(), lambda p: ((other @ p[0] + p[1]) ** 2).mean()


def close(ours, theirs, rtol=1e-12):
    for p, q in zip(ours, theirs):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=rtol, atol=1e-14)


CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.05}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.05, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.05, "amsgrad": True, "weight_decay": 0.3}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "alpha": 0.9}),
    ("RMSprop", {"lr": 0.01, "centered": True, "maximize": True}),
    ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.5}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.5, "eps": 1e-3}),
]


@pytest.mark.parametrize("name, options", CASES, ids=lambda v: v if isinstance(v, str) else ",".join(map(str, v)))
def test_ten_steps_are_pytorchs(name, options):
    ours, theirs, f, g = problem()
    a, b = getattr(optim, name)(ours, **options), getattr(torch.optim, name)(theirs, **options)
    for step in range(10):
        for group in (*a.param_groups, *b.param_groups):
            group["lr"] = options["lr"] / (1 + step)  # a schedule
        a.zero_grad(), b.zero_grad()
        f(ours).backward(), g(theirs).backward()
        a.step(), b.step()
        close(ours, theirs)


def test_lion_and_lamb_follow_their_formulas():
    ours, _, f, _ = problem()
    lion = optim.Lion(ours, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    p, m = ours[1].numpy().copy(), 0.0
    for _ in range(3):
        lion.zero_grad()
        f(ours).backward()
        g = ours[1].grad.numpy().copy()
        lion.step()
        p = p * (1 - 0.01 * 0.1) - 0.01 * np.sign(0.9 * m + (1 - 0.9) * g)
        m = 0.99 * m + (1 - 0.99) * g
        np.testing.assert_allclose(ours[1].numpy(), p, rtol=1e-12)

    ours, _, f, _ = problem()
    lamb = optim.LAMB(ours, lr=0.01, weight_decay=0.1)
    p, m, v = ours[1].numpy().copy(), 0.0, 0.0
    for t in range(1, 4):
        lamb.zero_grad()
        f(ours).backward()
        g = ours[1].grad.numpy().copy()
        lamb.step()
        m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g * g
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.1 * p
        p = p - 0.01 * np.linalg.norm(p) / np.linalg.norm(step) * step
        np.testing.assert_allclose(ours[1].numpy(), p, rtol=1e-10)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "LAMB"])
def test_state_goes_on_where_it_was(name, pickled):
    ours, _, f, _ = problem()
    options = {"lr": 0.05, **({"momentum": 0.9} if name in ("SGD", "RMSprop") else {})}
    first = getattr(optim, name)(ours, **options)

    def run(optimizer, params, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            f(params).backward()
            optimizer.step()

    run(first, ours, 3)
    copies = [nn.Parameter(p.detach().clone()) for p in ours]
    second = getattr(optim, name)(copies, lr=1.0)
    second.load_state_dict(
        pickle.loads(pickle.dumps(first.state_dict())) if pickled else copy.deepcopy(first.state_dict())
    )
    assert second.param_groups[0]["lr"] == 0.05
    run(first, ours, 3), run(second, copies, 3)
    close(ours, copies, 1e-15)


def test_state_is_pytorchs_in_form_and_loads_from_it():
    ours, theirs, f, g = problem()
    a, b = optim.Adam(ours, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    g(theirs).backward()
    b.step()
    state = b.state_dict()
    state["state"] = {n: {k: v.numpy() for k, v in values.items()} for n, values in state["state"].items()}
    a.load_state_dict(state)
    with no_grad():
        for p, q in zip(ours, theirs):
            p.copy_(tensor(q.detach().numpy()))
    f(ours).backward(), b.zero_grad(), g(theirs).backward()
    a.step(), b.step()
    close(ours, theirs)
    mine, other = a.state_dict(), b.state_dict()
    assert mine["state"].keys() == other["state"].keys() and mine["state"][0].keys() == other["state"][0].keys()
    assert mine["param_groups"][0]["params"] == other["param_groups"][0]["params"]
    assert mine["state"][0]["step"].item() == 2.0


def test_another_models_state_is_refused_and_nothing_changes():
    ours, _, f, _ = problem()
    a = optim.Adam(ours, lr=0.1)
    f(ours).backward()
    a.step()
    other = optim.Adam([nn.Parameter(ones(5, 5)), nn.Parameter(ones(3))], lr=0.7)
    for p in other.param_groups[0]["params"]:
        p.grad = zeros(*p.shape)
    other.step()
    with pytest.raises(ValueError, match=r"another model.*'exp_avg' of parameter 0.*\(5, 5\).*\(4, 3\)"):
        a.load_state_dict(other.state_dict())
    assert a.param_groups[0]["lr"] == 0.1
    with pytest.raises(ValueError, match=r"another model.*\[1\].*\[2\]"):
        a.load_state_dict(optim.Adam([nn.Parameter(ones(1))]).state_dict())
    with pytest.raises(ValueError, match="not an optimizer's state"):
        a.load_state_dict({"weight": 1})


def test_groups_have_their_own_settings():
    ours, theirs, f, g = problem()
    a = optim.SGD([{"params": ours[:1], "lr": 0.3}, {"params": ours[1]}], lr=0.1, momentum=0.9)
    b = torch.optim.SGD([{"params": theirs[:1], "lr": 0.3}, {"params": theirs[1]}], lr=0.1, momentum=0.9)
    for _ in range(3):
        a.zero_grad(), b.zero_grad()
        f(ours).backward(), g(theirs).backward()
        a.step(), b.step()
    close(ours, theirs)
    extra = nn.Parameter(ones(2))
    a.add_param_group({"params": extra, "lr": 0.5})
    assert a.param_groups[2]["lr"] == 0.5 and a.param_groups[2]["momentum"] == 0.9 and "lr: 0.5" in repr(a)


def test_named_parameters_are_accepted():
    net = nn.Linear(2, 2)
    a = optim.SGD(net.named_parameters(), lr=0.1)
    assert a.param_groups[0]["param_names"] == ["weight", "bias"]


def test_wrong_parameters_are_refused():
    w = nn.Parameter(ones(2))
    for params, error, message in [
        ([], ValueError, "empty"),
        (w, TypeError, r"\[tensor\]"),
        ([w, w], ValueError, "twice"),
        ([{"params": [w]}, {"params": [w]}], ValueError, "two groups"),
        ([w * 2], ValueError, "leaf"),
        ([3], TypeError, "Tensor, got int"),
        ([{"params": {w}}], TypeError, "order"),
        ([{"lr": 3}], TypeError, "params"),
    ]:
        with pytest.raises(error, match=message):
            optim.SGD(params, lr=0.1)
    with pytest.raises(ValueError, match=r"SGD: lr.*-1"):
        optim.SGD([w], lr=-1)
    with pytest.raises(ValueError, match="nesterov"):
        optim.SGD([w], lr=1, nesterov=True)
    with pytest.raises(ValueError, match="betas"):
        optim.AdamW([w], betas=(1.0, 0.9))


def test_parameters_without_gradient_and_frozen_ones_stay():
    ours, theirs, f, g = problem()
    idle, frozen = nn.Parameter(ones(2)), nn.Parameter(ones(2), requires_grad=False)
    a, b = optim.Adam([*ours, idle, frozen], lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for _ in range(2):
        a.zero_grad(), b.zero_grad()
        f(ours).backward(), g(theirs).backward()
        a.step(), b.step()
    close(ours, theirs)
    assert idle.numpy().tolist() == frozen.numpy().tolist() == [1, 1] and idle not in a.state


def test_a_parameter_that_sits_a_step_out_keeps_its_own_count():
    ours, theirs, _, _ = problem()
    a, b = optim.Adam(ours, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for active in ([0, 1], [0], [0, 1], [1]):
        a.zero_grad(), b.zero_grad()
        for i in active:
            (ours[i] ** 2).sum().backward(), (theirs[i] ** 2).sum().backward()
        a.step(), b.step()
        close(ours, theirs)
    assert [a.state[p]["step"].item() for p in ours] == [3, 3]


def test_two_optimizers_share_a_parameter():
    ours, theirs, f, g = problem()
    pairs = [
        (optim.SGD(ours, lr=0.1, momentum=0.9), torch.optim.SGD(theirs, lr=0.1, momentum=0.9)),
        (optim.Adam(ours[:1], lr=0.1), torch.optim.Adam(theirs[:1], lr=0.1)),
    ]
    for step in range(4):
        a, b = pairs[step % 2]
        a.zero_grad(), b.zero_grad()
        f(ours).backward(), g(theirs).backward()
        a.step(), b.step()
        close(ours, theirs)


def test_closure_and_gradient_accumulation():
    ours, theirs, f, g = problem()
    a, b = optim.SGD(ours, lr=0.1), torch.optim.SGD(theirs, lr=0.1)

    def closure(optimizer, loss, params):
        def call():
            optimizer.zero_grad()
            value = loss(params)
            value.backward()
            return value

        return call

    for _ in range(2):
        assert a.step(closure(a, f, ours)).item() == pytest.approx(b.step(closure(b, g, theirs)).item(), rel=1e-12)
    a.zero_grad(), b.zero_grad()
    for _ in range(3):
        f(ours).backward(), g(theirs).backward()
    a.step(), b.step()
    close(ours, theirs)
    a.zero_grad(set_to_none=False)
    assert not ours[0].grad.numpy().any()


def test_an_optimizer_of_ones_own():
    class SignSGD(optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        @no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(p.grad.sign(), alpha=-group["lr"])

    class Twice(SignSGD):
        def step(self, closure=None):
            super().step()
            super().step()

    w = nn.Parameter(tensor([1.0, -2.0]))
    log = []
    opt = Twice([w])
    opt.register_step_pre_hook(lambda o, args, kwargs: log.append("pre"))
    opt.register_step_post_hook(lambda o, args, kwargs: log.append("post"))
    (w * w).sum().backward()
    opt.step()
    np.testing.assert_allclose(w.numpy(), [0.8, -1.8], rtol=1e-6)
    assert log == ["pre", "post"]


def test_a_step_runs_what_was_recorded():
    ours, _, f, _ = problem()
    a = optim.AdamW(ours)
    loss = f(ours)
    loss.backward()
    a.step()
    assert loss._buffer is not None and ours[0]._buffer is not None and a.state[ours[0]]["step"]._buffer is not None


def test_held_values_survive_an_update():
    w = nn.Parameter(tensor([1.0, 2.0]))
    a = optim.SGD([w], lr=0.5)
    before, array = w.detach().clone(), w.numpy()
    (w * w).sum().backward()
    a.step()
    assert before.numpy().tolist() == array.tolist() == [1, 2] and w.numpy().tolist() == [0, 0]


def test_half_precision_parameters():
    w = nn.Parameter(ones(8, dtype="bfloat16"))
    for name in ("SGD", "AdamW", "RMSprop", "Adagrad"):
        opt = getattr(optim, name)([w], lr=0.1)
        opt.zero_grad()
        (w * w).sum().backward()
        opt.step()
        assert w.dtype.name == "bfloat16" and np.isfinite(w.float().numpy()).all()


# -- averages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "mean of each", "ema of each", "mean of all", "ema of all"])
def test_averaged_models_are_pytorchs(kind):
    ours, theirs = nn.Linear(3, 2).double(), torch.nn.Linear(3, 2).double()
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})

    def average(averages):
        if kind == "plain":
            return {}
        name = f"get_{'ema' if 'ema' in kind else 'swa'}{'_multi' if 'all' in kind else ''}_avg_fn"
        function = getattr(averages, name)(*([0.9] if "ema" in kind else []))
        return {"multi_avg_fn" if "all" in kind else "avg_fn": function}

    a = swa_utils.AveragedModel(ours, **average(swa_utils))
    b = torch.optim.swa_utils.AveragedModel(theirs, **average(torch.optim.swa_utils))
    a = pickle.loads(pickle.dumps(a))
    for k in range(4):
        a.update_parameters(ours), b.update_parameters(theirs)
        with no_grad():
            ours.weight.mul_(k + 1.5)
        with torch.no_grad():
            theirs.weight.mul_(k + 1.5)
    rtol = 1e-7 if kind == "mean of all" else 1e-12  # there PyTorch takes 1 / (n + 1) in float32
    close(a.parameters(), b.parameters(), rtol)
    assert a.n_averaged.item() == 4 and list(a.state_dict()) == list(b.state_dict())
    x = np.ones((1, 3))
    np.testing.assert_allclose(a(tensor(x)).detach().numpy(), b(torch.tensor(x)).detach().numpy(), rtol=rtol)


def test_one_function_says_how_to_average():
    with pytest.raises(ValueError, match="not both"):
        swa_utils.AveragedModel(
            nn.Linear(2, 2), avg_fn=swa_utils.get_swa_avg_fn(), multi_avg_fn=swa_utils.get_swa_multi_avg_fn()
        )


@pytest.mark.parametrize("axes", [0, 2, 3])
def test_batch_norm_statistics_are_computed_anew(axes):
    net = nn.Sequential({0: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[axes](2))
    shape = (8, 2) + (3,) * axes
    data = [tensor(np.random.default_rng(i).normal(size=shape).astype(np.float32)) for i in range(3)]
    swa_utils.update_bn(data, net.eval())
    expected = np.mean([d.numpy().mean((0, *range(2, 2 + axes))) for d in data], 0)
    np.testing.assert_allclose(net[0].running_mean.numpy(), expected, rtol=1e-5)
    assert net[0].momentum == 0.1 and not net.training and math.isclose(net[0].num_batches_tracked.item(), 3)


def test_loaded_state_is_the_optimizers_own():
    ours, _, f, _ = problem()
    first = optim.AdamW(ours, lr=0.1)
    f(ours).backward()
    first.step()
    saved = first.state_dict()
    before = {k: v.numpy().copy() for k, v in saved["state"][0].items()}
    second = optim.AdamW([nn.Parameter(p.detach().clone()) for p in ours], lr=0.1)
    second.load_state_dict(saved)
    copies = second.param_groups[0]["params"]
    assert second.state[copies[0]]["step"] is second.state[copies[1]]["step"]  # one count, as when they began together
    f(copies).backward()
    second.step()
    for key, value in before.items():
        np.testing.assert_array_equal(first.state[ours[0]][key].numpy(), value)
    assert second.state[copies[0]]["step"].item() == 2


@pytest.mark.parametrize("captured", [False, True])
def test_a_schedule_builds_no_plan_and_reaches_a_captured_step(captured):
    import lezero as lz
    from lezero.runtime import stats

    ours, theirs, f, g = problem()
    a, b = optim.AdamW(ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    schedules = optim.lr_scheduler.ExponentialLR(a, 0.7), torch.optim.lr_scheduler.ExponentialLR(b, 0.7)

    def step():
        a.zero_grad()
        loss = f(ours)
        loss.backward()
        a.step()
        return loss

    call = lz.jit(step) if captured else step
    for i in range(8):
        call()
        b.zero_grad()
        g(theirs).backward()
        b.step()
        for s in schedules:
            s.step()
        if i == 3:
            built = stats()["plans_built"]
    assert stats()["plans_built"] == built
    close(ours, theirs)


# -- steps that are followed instead of recorded again ----------------------------------------------------------------


STEPS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1),
}


def twin(make, start):
    """The same optimizer and parameter in PyTorch."""
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.tensor(start))
    theirs = {
        "sgd": torch.optim.SGD,
        "momentum": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "rmsprop": torch.optim.RMSprop,
    }
    more = {"momentum": {"momentum": 0.9}, "rmsprop": {"momentum": 0.5}}
    return w, theirs.get(make, torch.optim.Adagrad)([w], lr=0.1, **more.get(make, {}))


@pytest.mark.parametrize("make", list(STEPS))
def test_gradients_that_are_there_before_the_step_are_those_of_now(make):
    """Old gradients are held, and the new ones have been read: the step must not take the old ones."""
    start = np.array([1.0, -2.0, 3.0])
    w = nn.Parameter(tensor(start))
    opt = STEPS[make]([w])
    v, theirs = twin(make, start)
    held = []
    for i in range(6):
        opt.zero_grad()
        (w * w * (i + 1.0)).sum().backward()
        held.append(w.grad)
        w.grad.numpy()
        opt.step()
        theirs.zero_grad()
        (v * v * (i + 1.0)).sum().backward()
        theirs.step()
        np.testing.assert_allclose(w.detach().numpy(), v.detach().numpy(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("make", list(STEPS))
def test_views_of_parameters_follow_the_steps(make):
    w = nn.Parameter(tensor([1.0, -2.0, 3.0]))
    opt = STEPS[make]([w])
    view, inner = w.detach()[0:2], w.detach()[1:][1:]
    for _ in range(5):
        opt.zero_grad()
        (w * w).sum().backward()
        opt.step()
        assert view.tolist() == w.tolist()[:2] and inner.tolist() == w.tolist()[2:]


@pytest.mark.parametrize("make", ["momentum", "adam", "rmsprop", "adagrad"])
def test_state_that_was_loaded_is_used_though_the_old_one_is_held(make):
    def run(hold):
        w = nn.Parameter(tensor([1.0, -2.0, 3.0]))
        opt = STEPS[make]([w])
        held, saved = [], None
        for i in range(8):
            if i == 2:
                saved = opt.state_dict()
            if i == 5:
                held += opt.state[w].values() if hold else []
                opt.load_state_dict(saved)
            opt.zero_grad()
            (w * w).sum().backward()
            opt.step()
        return w.tolist()

    assert run(True) == run(False)


def test_a_momentum_that_comes_and_goes():
    w, recorded = (nn.Parameter(tensor([1.0, -2.0, 3.0])) for _ in range(2))
    opt, plain = optim.SGD([w], lr=0.1), optim.SGD([recorded], lr=0.1)
    plain._replays = False
    for i in range(12):
        for p, o in ((w, opt), (recorded, plain)):
            o.param_groups[0]["momentum"] = 0.9 if i // 3 % 2 else 0.0
            o.zero_grad()
            (p * p).sum().backward()
            o.step()
        assert w.tolist() == recorded.tolist()


class Changing:
    """A number that can be another one later, as other libraries' scalars can."""

    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.array(self.value, dtype)


@pytest.mark.parametrize("make", list(STEPS))
@pytest.mark.parametrize("lr", [Changing(0.1), np.array(0.1)], ids=["object", "array"])
def test_a_learning_rate_that_changes_where_it_is_is_used_as_it_is_now(make, lr):
    w, expected = nn.Parameter(tensor([1.0, -2.0])), nn.Parameter(tensor([1.0, -2.0]))
    ours, same = STEPS[make]([w]), STEPS[make]([expected])
    ours.param_groups[0]["lr"] = lr
    for rate in (0.1, 0.1, 0.1, 0.3, 0.0, 0.2):
        if isinstance(lr, Changing):
            lr.value = rate
        else:
            lr.fill(rate)
        same.param_groups[0]["lr"] = rate
        for p, optimizer in ((w, ours), (expected, same)):
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()
    np.testing.assert_array_equal(w.detach().numpy(), expected.detach().numpy())


BUILT_IN = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "LAMB"]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), [nn.Linear(2, 2)]], ids=type)
def test_a_model_in_place_of_its_parameters_says_what_to_pass(name, model):
    for given in (model, [{"params": model}]):
        with pytest.raises(TypeError, match=rf"^{name}: .*; pass model.parameters\(\)$"):
            getattr(optim, name)(given, lr=1)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_hyper_parameter_that_is_no_number_is_named(name):
    make = getattr(optim, name)
    with pytest.raises(TypeError, match=rf"^{name}: lr is a number, got '0.1'$"):
        make([nn.Parameter(ones(2))], lr="0.1")
    with pytest.raises(ValueError, match=rf"^{name}: weight_decay must not be negative, got nan$"):
        make([nn.Parameter(ones(2))], weight_decay=math.nan)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_hyper_parameter_of_a_group_is_looked_at_too(name):
    groups = [{"params": [nn.Parameter(ones(2))]}, {"params": [nn.Parameter(ones(2))], "lr": "0.1"}]
    with pytest.raises(TypeError, match=rf"^{name}, parameter group 1: lr is a number, got '0.1'$"):
        getattr(optim, name)(groups)
    optimizer = getattr(optim, name)([nn.Parameter(ones(2))])
    with pytest.raises(ValueError, match=rf"^{name}, parameter group 1: weight_decay must not be negative, got -1$"):
        optimizer.add_param_group({"params": [nn.Parameter(ones(2))], "weight_decay": -1})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("betas", [0.9, (0.9,), ("0.9", 0.9)])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "Lion", "LAMB"])
def test_what_cannot_be_betas_is_named(name, betas):
    with pytest.raises((TypeError, ValueError), match=f"^{name}: betas are two numbers"):
        getattr(optim, name)([nn.Parameter(ones(2))], betas=betas)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "LAMB"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_and_their_state_keep_their_dtype(name, dtype):
    ours = [nn.Parameter(ones(*shape, dtype=getattr(lz, dtype))) for shape in ((), (3,))]
    optimizer = getattr(optim, name)(ours, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        sum((p.float() ** 2).sum() for p in ours).backward()
        optimizer.step()
    for p in ours:
        assert p.dtype is getattr(lz, dtype)
        assert all(v.dtype is p.dtype for key, v in optimizer.state[p].items() if key != "step")
