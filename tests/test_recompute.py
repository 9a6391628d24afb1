"""Recomputation changes what is kept in memory, never a value."""

from __future__ import annotations

import numpy as np
import pytest

import interpreted_backend
import lezero as lz
import lezero.nn.functional as F
from conftest import EXAMPLES
from lezero import models, nn, optim
from lezero.graph.dtype import as_dtype
from lezero.hal import registry
from lezero.runtime import run
from lezero.schedule import recompute as module
from test_backend_fuzz import check, sizes

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")


@pytest.fixture
def eager(monkeypatch):
    """Whatever can be recomputed is, however small and near."""
    monkeypatch.setattr(module, "LEAST_TOTAL", 0)
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    monkeypatch.setattr(module, "LEAST_GAP", 0)
    count = []
    choose = module._choose

    def counted(*args):
        chosen = choose(*args)
        count.append(len(chosen))
        return chosen

    monkeypatch.setattr(module, "_choose", counted)
    run._plans.clear()
    yield count
    run._plans.clear()


def residual():
    return models.resnet18(num_classes=7)


def transformer():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.LayerNorm(32), nn.LayerNorm(32)
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
            self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)
            self.drop = nn.Dropout(0.2)

        def forward(self, x):
            q, k, v = self.qkv(self.a(x)).reshape(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).reshape(x.shape)
            x = x + self.drop(self.out(y))
            return x + self.down(F.gelu(self.up(self.b(x))))

    return nn.Sequential(*[Block() for _ in range(4)], nn.Flatten(), nn.Linear(32 * 12, 7))


def perceptron():
    """Activations that follow a product's tiles, and so do their derivatives."""
    layers = [x for _ in range(6) for x in (nn.Linear(32, 256), nn.GELU(approximate="tanh"), nn.Linear(256, 32))]
    return nn.Sequential(*layers, nn.Linear(32, 7))


def steps(make, shape, monkeypatch, passes, dtype=np.float32):
    """Losses, parameters and the bytes between kernels of three training steps."""
    monkeypatch.setenv("LEZERO_PASSES", passes)
    run._plans.clear()
    lz.manual_seed(0)
    net = make().to(as_dtype(np.dtype(dtype)))
    opt = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    r = np.random.default_rng(0)
    x = lz.tensor(r.normal(size=shape).astype(dtype))
    y = lz.tensor(r.integers(0, 7, shape[0]))
    losses = []
    for _ in range(3):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    plan, bindings = run.statistics.last[:2]
    arena = plan.program.schedule.instantiate(bindings).arena_bytes if registry.get_backend() == "cpu" else 0
    return losses, [p.numpy().copy() for p in net.parameters()], arena


@native
@pytest.mark.parametrize(
    "make, shape, less",
    [(residual, (8, 3, 96, 96), 0.82), (transformer, (2, 12, 32), 0.5), (perceptron, (96, 32), 0.5)],
)
def test_a_network_trains_the_same_in_less_memory(make, shape, less, eager, monkeypatch):
    before = steps(make, shape, monkeypatch, "-recompute", np.float64)
    kept = steps(make, shape, monkeypatch, "-recompute")[2]
    assert not eager
    after = steps(make, shape, monkeypatch, "", np.float64)
    assert max(eager) >= 8
    np.testing.assert_allclose(after[0], before[0], rtol=1e-10)
    for a, b in zip(after[1], before[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-11)
    assert steps(make, shape, monkeypatch, "")[2] <= less * kept


def test_small_computations_are_left_alone(monkeypatch):
    monkeypatch.setattr(module, "_choose", lambda *_: pytest.fail("looked for what to recompute"))
    run._plans.clear()
    steps(transformer, (2, 12, 32), monkeypatch, "")


@pytest.mark.parametrize("block", range(3))
def test_random_programs(block, eager):
    with interpreted_backend.use():
        for seed in range(block * 10_000 + 700_000, block * 10_000 + 700_000 + 10 * EXAMPLES):
            check(seed, sizes(seed, 25))
    assert sum(eager) > 0


@native
def test_a_softmax_is_made_again_from_the_statistics_of_its_rows(eager, monkeypatch):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return x + F.softmax(q @ k.transpose(1, 2), -1) @ v

    def make():
        return nn.Sequential(*[Attention() for _ in range(4)], nn.Flatten(), nn.Linear(40 * 16, 7))

    steps(make, (2, 40, 16), monkeypatch, "", np.float64)
    schedule = run.statistics.last[0].program.schedule
    rows = [r for r in schedule.recomputed if any(n.op.name == "max" for n in r.made_of)]
    assert rows
    for r in rows:
        again = schedule.grouping.group_of[r.again]
        assert not any(n.op.name == "max" or (n.op.name == "sum" and n in r.made_of) for n in again.nodes)


@native
def test_of_residual_sums_that_depend_on_each_other_every_second_is_kept(eager, monkeypatch):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.BatchNorm2d(32), nn.BatchNorm2d(32)
            self.conv, self.back = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x):
            return F.relu(x + self.b(self.back(F.relu(self.a(self.conv(x))))))

    def make():
        return nn.Sequential(nn.Conv2d(16, 32, 3), *[Block() for _ in range(6)], nn.Flatten(), nn.Linear(32 * 36, 7))

    steps(make, (4, 16, 8, 8), monkeypatch, "")
    sums = [r for r in run.statistics.last[0].program.schedule.recomputed if len(_images(r.made_of)) > 1]
    assert len(sums) == 3
    again = {r.again for r in sums}
    assert not any(again.intersection(r.made_of) for r in sums)


def _images(nodes):
    return [n for n in nodes if n.ndim == 4 and n.shape[-1] > 1]


@native
def test_parameters_in_half_precision_are_kept(eager):
    convolutions = [x for _ in range(6) for x in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
    net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 36, 7))
    lz.realize()
    with lz.amp.autocast("cpu", dtype=lz.bfloat16):
        loss = F.cross_entropy(net(lz.randn(4, 32, 6, 6)).float(), lz.randint(0, 7, (4,)))
    loss.backward()
    loss.item()
    assert sum(eager) > 0
    recomputed = run.statistics.last[0].program.schedule.recomputed
    assert not any(r.first.op.name == "cast" and r.first.inputs[0].op.is_leaf for r in recomputed)
