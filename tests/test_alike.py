"""Groups of one form are lowered once, however many layers there are; what differs in anything that matters is not."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero import nn, optim
from lezero.backends.cpu import CpuBackend
from lezero.hal import registry
from lezero.passes import decompose
from lezero.runtime import run
from lezero.schedule import schedule as module

pytestmark = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")


def layers(count):
    convolutions = [[nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()] for _ in range(count)]
    linear = [[nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU()] for _ in range(count)]
    flat = [m for ms in convolutions for m in ms] + [nn.Flatten(2)] + [m for ms in linear for m in ms]
    return nn.Sequential(*flat, nn.Flatten(), nn.Linear(576, 5))


def lowered(count, monkeypatch):
    """(groups lowered, operations taken apart, groups there are) when planning a training step."""
    made, apart = [], []
    step, between = module._step, decompose._between
    monkeypatch.setattr(module, "_step", lambda *a: made.append(a[0]) or step(*a))
    monkeypatch.setattr(decompose, "_between", lambda *a: apart.append(a[1]) or between(*a))
    net = layers(count)
    opt = optim.SGD(net.parameters(), lr=0.1)
    x, y = lz.tensor(np.ones((2, 12, 6, 8), np.float32)), lz.tensor([1, 2])
    lz.realize(x)
    made.clear()
    apart.clear()
    F.cross_entropy(net(x), y).backward()
    opt.step()
    schedule = run.statistics.last[0].program.schedule
    return len(made), len(apart), sum(map(len, schedule.steps))


def test_more_equal_layers_are_no_more_to_lower(monkeypatch):
    *few, groups = lowered(4, monkeypatch)
    *again, more = lowered(8, monkeypatch)
    assert more >= groups + 40 and again == few and 0 < few[0] < groups and 0 < few[1] < groups


SHAPES = [(3, 4), (4, 3), (12,), (1, 12), (3, 1, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_looks_alike_and_is_not(shape):
    """Kernels in one plan that differ in one thing each: the extents, what is stored, an order, which operand is which."""
    r = np.random.default_rng(0)
    a, b, c, d = (r.normal(size=shape) for _ in range(4))
    v, w, x, y = map(lz.tensor, (a, b, c, d))
    square = lz.tensor(np.arange(16.0).reshape(4, 4))
    results = {
        "difference": (v.exp() - w, np.exp(a) - b),
        "the other way": (x - y.exp(), c - np.exp(d)),
        "the same twice": (v.exp() - v, np.exp(a) - a),
        "stored between": ((x + y, (x + y).sum()), (c + d, (c + d).sum())),
        "not stored": ((v + w).sum(), (a + b).sum()),
        "turned": (square.T.exp(), np.exp(np.arange(16.0).reshape(4, 4).T)),
        "not turned": (square.exp(), np.exp(np.arange(16.0).reshape(4, 4))),
        "product": (square @ (square + 1), np.arange(16.0).reshape(4, 4) @ np.arange(1.0, 17).reshape(4, 4)),
        "running sum": (v.reshape(-1).cumsum(0), np.cumsum(a)),
        "another running sum": (w.reshape(-1).cumsum(0), np.cumsum(b)),
        "sorted": (lz.sort(v.reshape(-1))[0], np.sort(a.reshape(-1))),
        "also sorted": (lz.sort(x.reshape(-1))[0], np.sort(c.reshape(-1))),
        "rows chosen": (square[lz.tensor([2, 0])], np.arange(16.0).reshape(4, 4)[[2, 0]]),
        "other rows": (square[lz.tensor([3, 1])], np.arange(16.0).reshape(4, 4)[[3, 1]]),
        "turned product": (square.T @ (square + 1), np.arange(16.0).reshape(4, 4).T @ np.arange(1.0, 17).reshape(4, 4)),
    }
    lz.realize(*(t for found, _ in results.values() for t in (found if type(found) is tuple else (found,))))
    for name, (found, wanted) in results.items():
        for f, t in zip(*((v if type(v) is tuple else (v,)) for v in (found, wanted)), strict=True):
            np.testing.assert_allclose(f.numpy(), t, rtol=1e-12, err_msg=name)


def test_planning_leaves_the_collector_as_it_was(monkeypatch):
    seen = []

    def fails(*args):
        seen.append(gc.isenabled())
        raise RuntimeError("no plan")

    monkeypatch.setattr("lezero.backends.cpu.build", fails)
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(RuntimeError, match="no plan"):
                lz.zeros(3 + enabled).exp().numpy()
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
    assert not any(seen) and len(seen) >= 2
    assert isinstance(registry.current(), CpuBackend)
