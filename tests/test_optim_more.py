"""Adadelta, Adafactor, Adamax, ASGD, L-BFGS, Muon, NAdam, RAdam, Rprop and CyclicLR against PyTorch's."""

import copy

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.tensor import tensor

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
SHAPES = [(4, 3), (3,), (), (3, 2)]
START = [RNG.normal(size=s) for s in SHAPES]
X = RNG.normal(size=(6, 4))


def loss(library, p):
    x = library.tensor(X, dtype=getattr(library, str(p[0].dtype).rpartition(".")[2]))
    hidden = library.tanh(x @ p[0] + p[1]) * p[2]
    return ((hidden @ p[3] - 1) ** 2).mean()


def parameters(dtype="float64"):
    ours = [nn.Parameter(tensor(a, dtype=getattr(lz, dtype))) for a in START]
    return ours, [torch.nn.Parameter(torch.tensor(a, dtype=getattr(torch, dtype))) for a in START]


def close(ours, theirs, rtol=1e-11):
    for p, q in zip(ours, theirs):
        assert str(p.dtype).endswith(str(q.dtype).rpartition(".")[2])
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=rtol, atol=1e-13)


CASES = [
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.05, "betas": (0.4, 0.9), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.05}),
    ("NAdam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.05}),
    ("RAdam", {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"lr": 0.05, "betas": (0.8, 0.5)}),  # whose variance is never known
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 5, "weight_decay": 0.1, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (0.01, 0.2), "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "beta2_decay": -0.5, "eps": (1e-2, 0.1), "d": 1.5, "weight_decay": 0.1, "maximize": True}),
]  # fmt: skip


def ids(value):
    return value if isinstance(value, str) else ",".join(value)


@pytest.mark.parametrize("name, options", CASES, ids=ids)
def test_twenty_steps_are_pytorchs(name, options):
    ours, theirs = parameters()
    a, b = getattr(optim, name)(ours, **options), getattr(torch.optim, name)(theirs, **options)
    for step in range(20):
        for group in (*a.param_groups, *b.param_groups):
            group["lr"] = group["lr"] / (1 + 0.1 * step)  # a schedule
        a.zero_grad(), b.zero_grad()
        loss(lz, ours).backward(), loss(torch, theirs).backward()
        a.step(), b.step()
    close(ours, theirs)
    for p, q in zip(ours, theirs):
        mine, other = a.state[p], b.state[q]
        assert mine.keys() == other.keys()
        for key, value in other.items():
            np.testing.assert_allclose(mine[key].numpy(), value.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_state_is_taken_over_from_pytorch_and_dtypes_stay(name):
    ours, theirs = parameters("float32")
    a, b = getattr(optim, name)(ours, lr=0.05), getattr(torch.optim, name)(theirs, lr=0.05)
    loss(torch, theirs).backward()
    b.step()
    state = copy.deepcopy(b.state_dict())
    state["state"] = {n: {k: v.numpy() for k, v in values.items()} for n, values in state["state"].items()}
    a.load_state_dict(state)
    with lz.no_grad():
        for p, q in zip(ours, theirs):
            p.copy_(q.detach().numpy())
    for _ in range(3):
        a.zero_grad(), b.zero_grad()
        loss(lz, ours).backward(), loss(torch, theirs).backward()
        a.step(), b.step()
    close(ours, theirs, 2e-5)


@pytest.mark.parametrize(
    "shape, options",
    [
        ((8, 4), {}),
        ((4, 8), {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
        ((5, 5), {"ns_steps": 3, "momentum": 0.5, "weight_decay": 0.0}),
    ],
    ids=["tall", "wide", "square"],
)
def test_muon_is_pytorchs_up_to_the_rounding_of_bfloat16(shape, options):
    start, target = (RNG.normal(size=shape).astype("f4") for _ in range(2))
    p, q = nn.Parameter(tensor(start)), torch.nn.Parameter(torch.tensor(start))
    a, b = optim.Muon([p], lr=0.05, **options), torch.optim.Muon([q], lr=0.05, **options)

    def step():
        a.zero_grad(), b.zero_grad()
        ((p - tensor(target)) ** 2).sum().backward(), ((q - torch.tensor(target)) ** 2).sum().backward()
        a.step(), b.step()

    for _ in range(20):
        step()
    moved = np.linalg.norm(q.detach().numpy() - start)
    assert moved > 0.5 and np.linalg.norm(p.detach().numpy() - q.detach().numpy()) < 0.01 * moved
    a.param_groups[0]["ns_steps"] = b.param_groups[0]["ns_steps"] = 1  # which changes the operations recorded
    starts = p.detach().numpy().copy(), q.detach().numpy().copy()
    step()
    mine, theirs = (x.detach().numpy() - start for x, start in zip((p, q), starts))
    assert np.linalg.norm(mine - theirs) < 0.05 * np.linalg.norm(theirs)


def test_muon_takes_matrices_only():
    with pytest.raises(ValueError, match=r"matrices, got one of shape \(3,\)"):
        optim.Muon([nn.Parameter(lz.ones(3))])
    with pytest.raises(ValueError, match="adjust_lr_fn"):
        optim.Muon([nn.Parameter(lz.ones(3, 3))], adjust_lr_fn="mine")


LBFGS = [
    {},
    {"lr": 0.3, "max_iter": 7, "history_size": 3},
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "max_iter": 4, "max_eval": 6, "history_size": 2},
    {"line_search_fn": "strong_wolfe", "lr": 8.0},
]


@pytest.mark.parametrize("options", LBFGS, ids=ids)
def test_lbfgs_steps_and_evaluations_are_pytorchs(options):
    ours, theirs = parameters()
    a, b = optim.LBFGS(ours, **options), torch.optim.LBFGS(theirs, **options)
    counts = [0, 0]

    def closure(k, library, optimizer, params):
        def evaluate():
            counts[k] += 1
            optimizer.zero_grad()
            value = loss(library, params)
            value.backward()
            return value

        return evaluate

    for _ in range(2):
        mine, other = a.step(closure(0, lz, a, ours)), b.step(closure(1, torch, b, theirs))
        assert mine.item() == pytest.approx(other.item(), rel=1e-9)
        assert counts[0] == counts[1]
        close(ours, theirs, 1e-7)
    state, reference = a.state_dict()["state"][0], b.state_dict()["state"][0]
    assert state.keys() == reference.keys() and state["n_iter"] == reference["n_iter"]
    assert len(state["old_dirs"]) == len(reference["old_dirs"])


def test_lbfgs_goes_on_from_a_state():
    ours, _ = parameters()
    copies = [nn.Parameter(p.detach().clone()) for p in ours]
    a, b = optim.LBFGS(ours, max_iter=3), optim.LBFGS(copies, max_iter=3)

    def closure(optimizer, params):
        def evaluate():
            optimizer.zero_grad()
            value = loss(lz, params)
            value.backward()
            return value

        return evaluate

    a.step(closure(a, ours))
    b.load_state_dict(copy.deepcopy(a.state_dict()))
    with lz.no_grad():
        for p, q in zip(copies, ours):
            p.copy_(q)
    a.step(closure(a, ours)), b.step(closure(b, copies))
    for p, q in zip(ours, copies):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def test_lbfgs_says_what_it_needs():
    ours, _ = parameters()
    with pytest.raises(TypeError, match="closure"):
        optim.LBFGS(ours).step()
    with pytest.raises(ValueError, match="one group"):
        optim.LBFGS([{"params": ours[:1]}, {"params": ours[1:]}])
    with pytest.raises(ValueError, match="strong_wolfe"):
        optim.LBFGS(ours, line_search_fn="wolfe")


@pytest.mark.parametrize(
    "name, options",
    [
        ("Adadelta", {"rho": 2.0}),
        ("Adamax", {"betas": (1.0, 0.9)}),
        ("NAdam", {"momentum_decay": -1.0}),
        ("RAdam", {"lr": -1.0}),
        ("ASGD", {"weight_decay": -1.0}),
        ("Rprop", {"etas": (1.5, 1.2)}),
        ("Adafactor", {"d": 0.5}),
        ("Adafactor", {"beta2_decay": 0.5}),
        ("Adafactor", {"eps": (None, -1.0)}),
    ],
    ids=ids,
)
def test_hyper_parameters_that_cannot_be_are_refused(name, options):
    with pytest.raises(ValueError, match=f"{name}.*{next(iter(options))}"):
        getattr(optim, name)([nn.Parameter(lz.ones(2))], **options)


CYCLES = [
    {},
    {"mode": "triangular2", "step_size_down": 5},
    {"mode": "exp_range", "gamma": 0.9, "cycle_momentum": False},
    {"scale_fn": lambda x: 1 / x, "base_momentum": 0.5},
    {"scale_fn": lambda x: 0.5**x, "scale_mode": "iterations"},
]


@pytest.mark.parametrize("options", CYCLES, ids=ids)
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_cyclic_rates_and_momenta_are_pytorchs(name, options):
    made = []
    for library, p in ((optim, nn.Parameter(lz.ones(2))), (torch.optim, torch.nn.Parameter(torch.ones(2)))):
        optimizer = getattr(library, name)([p], lr=1.0, **({"momentum": 0.9} if name == "SGD" else {}))
        made.append((optimizer, library.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3, **options)))
    for _ in range(20):
        rates, momenta = [], []
        for optimizer, schedule in made:
            (group,) = optimizer.param_groups
            rates.append((group["lr"], *schedule.get_last_lr()))
            momenta.append(group["momentum"] if name == "SGD" else group["betas"][0])
            optimizer.step(), schedule.step()
        assert rates[0] == pytest.approx(rates[1], rel=1e-12) and momenta[0] == pytest.approx(momenta[1], rel=1e-12)


def test_a_cycle_goes_on_from_its_state_and_refuses_what_it_cannot_do():
    optimizer = optim.SGD([nn.Parameter(lz.ones(2))], lr=1.0, momentum=0.9)
    first = optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 3)
    optimizer.step(), first.step(), first.step()
    second = optim.lr_scheduler.CyclicLR(optim.SGD([nn.Parameter(lz.ones(2))], lr=1.0, momentum=0.9), 0.5, 0.6, 9)
    second.load_state_dict(first.state_dict())
    first.step(), second.step()
    assert first.get_last_lr() == second.get_last_lr()
    with pytest.raises(ValueError, match="mode"):
        optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, mode="square")
    with pytest.raises(ValueError, match="no momentum"):
        optim.lr_scheduler.CyclicLR(optim.Adagrad([nn.Parameter(lz.ones(2))]), 0.01, 0.1)


RECORDED = ["ASGD", "Adadelta", "Adafactor", "Adamax", "Muon", "NAdam", "RAdam", "Rprop"]


def matrices(dtype="float32"):
    return [nn.Parameter(tensor(START[k].astype("f4"), dtype=getattr(lz, dtype))) for k in (0, 3)]


@pytest.mark.parametrize("name", RECORDED)
def test_captured_steps_are_those_recorded_each_time(name):
    x = tensor(X, dtype=lz.float32)
    results = []
    for captures in (False, True):
        p = matrices()
        optimizer = getattr(optim, name)(p, lr=0.05)

        def step(x, p=p, optimizer=optimizer):
            optimizer.zero_grad()
            value = ((x @ p[0]).tanh() @ p[1]).square().mean()
            value.backward()
            optimizer.step()
            return value

        call = lz.jit(step) if captures else step
        losses = [call(x).item() for _ in range(5)]
        results.append([losses, *(q.detach().numpy().copy() for q in p)])
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("name", RECORDED)
def test_a_step_whose_gradients_overflowed_changes_nothing(name):
    p = matrices()
    optimizer, scaler = getattr(optim, name)(p, lr=0.05), lz.amp.GradScaler(init_scale=4.0)

    def step(factor):
        optimizer.zero_grad()
        scaler.scale(((p[0] @ p[1][:3]) * factor).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    def all_values():
        return [t.detach().numpy().copy() for t in (*p, *(v for s in optimizer.state.values() for v in s.values()))]

    step(1.0)
    before = all_values()
    step(float("inf"))
    for a, b in zip(before, all_values()):
        np.testing.assert_array_equal(a, b)
    step(1.0)
    assert any((a != b).any() for a, b in zip(before, all_values()))


@pytest.mark.parametrize("name", RECORDED)
def test_parameters_of_bfloat16_keep_their_dtype_and_are_computed_in_float32(name):
    moved = []
    for dtype in ("float32", "bfloat16"):
        p = matrices(dtype)
        optimizer = getattr(optim, name)(p, lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            sum((q.float() - 1).square().sum() for q in p).backward()
            optimizer.step()
        assert all(q.dtype is getattr(lz, dtype) for q in p)
        assert all(v.dtype in (q.dtype, lz.float32) for q in p for v in optimizer.state[q].values())
        moved.append(np.concatenate([(q.detach().float().numpy() - START[k]).ravel() for q, k in zip(p, (0, 3))]))
    assert np.linalg.norm(moved[0] - moved[1]) < 0.1 * np.linalg.norm(moved[0]) + 0.02
