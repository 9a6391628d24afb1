"""Whatever LEZERO_PASSES leaves out, results are the NumPy backend's; and each name leaves something out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero import nn, optim
from lezero.hal import registry
from lezero.passes import pipeline
from lezero.passes.pipeline import PIPELINE, REQUIRED, SCHEDULED
from lezero.runtime import run
from lezero.schedule import recompute
from lezero.schedule.contractions import Contracted

OPTIONAL = sorted({p.__name__ for p in PIPELINE} - REQUIRED | SCHEDULED)
ALL = ",".join(f"-{name}" for name in OPTIONAL)
native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")


class Network(nn.Module):
    """Two residual blocks, one layer of attention, and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(5))
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 2)
        for k in (0, 2):
            y = F.relu(self.norms[k + 1](self.convs[k](x)))
            x = F.relu(x + self.norms[k + 2](self.convs[k + 1](y)))
        x = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).reshape(x.shape[0], -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).reshape(x.shape)
        return self.head((x + F.gelu(self.out(y))).mean(1))


def train(monkeypatch, passes, backend=None):
    """(losses, parameters and buffers, schedule of the step and its extents) of three steps in float64."""
    monkeypatch.setenv("LEZERO_PASSES", passes)
    before = registry.get_backend()
    registry.set_backend(backend or before)
    try:
        lz.manual_seed(0)
        net = Network().double()
        opt = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        r = np.random.default_rng(0)
        x, y = lz.tensor(r.normal(size=(4, 3, 8, 8))), lz.tensor(r.integers(0, 5, 4))
        losses = []
        for _ in range(3):
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        plan, bindings = run.statistics.last
        return losses, [t.numpy().copy() for t in net.state_dict().values()], (plan.program, bindings)
    finally:
        registry.set_backend(before)


@pytest.fixture
def eager(monkeypatch):
    """Small values are recomputed too."""
    for name in ("LEAST_TOTAL", "LEAST_BYTES", "LEAST_GAP"):
        monkeypatch.setattr(recompute, name, 0)
    run._plans.clear()
    yield
    run._plans.clear()


@pytest.fixture(scope="module")
def expected():
    with pytest.MonkeyPatch.context() as patch:
        return train(patch, "", "numpy")[:2]


@native
@pytest.mark.parametrize("passes", ["", *(f"-{name}" for name in OPTIONAL), ALL])
def test_results_are_the_same(passes, expected, eager, monkeypatch):
    losses, state, _ = train(monkeypatch, passes)
    np.testing.assert_allclose(losses, expected[0], rtol=1e-10)
    for mine, theirs in zip(state, expected[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-11)


def order_of(schedule):
    return [n.op.name for steps in schedule.steps for s in steps for n in s.group.nodes]


def follows(schedule):
    """Values in channels-last order that no convolution computes, and that are no copies for one."""
    nodes = [n for g in schedule.grouping.groups for n in g.nodes]
    return sum(
        schedule.orders[n] == (0, 2, 3, 1) and n.op.kind != "contraction" and n.op.name != "identity" for n in nodes
    )


def fused(group):
    """Several operations in one kernel; attention's results have no kernels apart."""
    return len(group.nodes) > 1 and "gives" not in group.nodes[0].op.attrs


def with_epilogues(schedule):
    return sum(g.kind == "contraction" and fused(g) for g in schedule.grouping.groups)


def contracted(schedule):
    return [s.what for steps in schedule.steps for s in steps if isinstance(s.what, Contracted)]


FEWER = {
    "layout": follows,
    "epilogue": with_epilogues,
    "statistics": lambda s: sum(len(what.sums) for what in contracted(s)),
    "winograd": lambda s: sum(getattr(what.spec, "minimal", False) for what in contracted(s)),
    "see_through": lambda s: len(s.grouping._sunk),
    "recompute": lambda s: len(s.recomputed),
    "share": lambda s: len(s.shared),
    "together": lambda s: len(s.beside) + sum(len(steps) - 1 for steps in s.steps),
    "fuse": lambda s: sum(fused(g) for g in s.grouping.groups),
}
"""What there is none of without a pass, and some with it."""


@native
@pytest.mark.parametrize("name", sorted(FEWER))
def test_each_name_leaves_something_out(name, eager, monkeypatch):
    with_it, without = (train(monkeypatch, passes)[2][0].schedule for passes in ("", f"-{name}"))
    assert FEWER[name](with_it) > 0 == FEWER[name](without)


@native
def test_without_order_kernels_run_as_recorded(monkeypatch):
    run._plans.clear()
    with_it, without = (train(monkeypatch, passes)[2][0].schedule for passes in ("", "-order"))
    assert sorted(order_of(with_it)) == sorted(order_of(without)) and order_of(with_it) != order_of(without)
    run._plans.clear()


@native
def test_the_set_is_part_of_what_programs_are_known_by(monkeypatch):
    def kernels(passes):
        monkeypatch.setenv("LEZERO_PASSES", passes)
        x = lz.tensor(np.arange(6.0).reshape(2, 3))
        lz.realize((x.exp() + 1).sum())
        return run.statistics.last[0].program.schedule.kernels

    assert [kernels(passes) for passes in ("", "-fuse", "", "-fuse")] == [1, 3, 1, 3]


def test_the_documents_name_all_of_them():
    docs = Path(__file__).parents[1] / "docs"
    for name in ("looking-inside.md", "looking-inside.zh-CN.md"):
        text = (docs / name).read_text(encoding="utf-8")
        assert (
            sorted(
                line.split("`")[1]
                for line in text.splitlines()
                if line.startswith("| `") and line.split("`")[1] in OPTIONAL
            )
            == OPTIONAL
        )
    assert all(f"``{name}``" in str(pipeline.__doc__) for name in SCHEDULED)
