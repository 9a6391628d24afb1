"""Steps of a window that give nothing are jumped over, and only those."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero.hal import registry
from lezero.loops import ir
from lezero.runtime import run
from lezero.schedule.guards import guarded
from lezero.schedule.nests import start

torch = pytest.importorskip("torch")
native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about generated code")

ROW, LANE = ir.var("row"), ir.var("lane")
INSIDE = ir.call("ge", ROW, ir.const(1))
HERE = ir.call("lt", LANE, ir.const(5))


def element(mask):
    return ir.cast(ir.load(0, "bf16", LANE, mask), "f32")


def number(value):
    return ir.const(value, "f32")


def test_what_adds_nothing_or_is_least_is_guarded():
    zero = ir.cast(ir.const(0, "bf16"), "f32")
    sums = ir.Reduce("a", "sum", ir.call("where", INSIDE, element(INSIDE), zero))
    least = ir.Reduce("b", "max", ir.call("where", INSIDE, element(INSIDE), number(-math.inf)))
    (loop,) = guarded([sums, least], "lane", start)
    assert loop.extent == ir.call("where", INSIDE, ir.const(1), ir.const(0))
    assert [s.value for s in loop.body] == [ir.cast(ir.load(0, "bf16", LANE), "f32")] * 2


def test_what_differs_between_lanes_stays_a_mask():
    both = ir.call("and", HERE, INSIDE)
    (loop,) = guarded([ir.Reduce("a", "sum", ir.call("where", both, element(both), number(0)))], "lane", start)
    assert loop.extent.args[0] == INSIDE
    assert loop.body[0].value == ir.call("where", HERE, element(HERE), number(0))
    alone = ir.Reduce("a", "sum", ir.call("where", HERE, element(HERE), number(0)))
    assert guarded([alone], "lane", start) == [alone]


@pytest.mark.parametrize(
    "kind, otherwise", [("sum", 1.0), ("max", 0.0), ("min", -math.inf), ("prod", 0.0), ("argmax", 0.0)]
)
def test_what_counts_outside_is_not_guarded(kind, otherwise):
    value = ir.call("where", INSIDE, element(INSIDE), number(otherwise))
    position = ("i", ROW) if kind == "argmax" else ()
    step = ir.Reduce("a", kind, value, *position)
    assert guarded([step], "lane", start) == [step]


@native
def test_windows_of_pooling_are_guarded():
    lz.realize()  # what tests before have left
    y = F.max_pool2d(lz.tensor(np.ones((2, 20, 9, 9), "f4")), 3, 2, 1)
    lz.realize(y)
    (key,) = [q.key for steps in run.statistics.last[0].program.schedule.steps for s in steps for q in s.sources]
    assert re.search(r"for \w+ < where\(", key)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kernel, stride, padding", [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 1)])
def test_pooling_and_its_gradient_are_pytorchs(kernel, stride, padding, last):
    rng = np.random.default_rng(kernel + stride)
    values = rng.integers(-3, 4, (2, 20, 9, 11)).astype("f4")  # many ties
    values[0, :3] = -np.inf
    values[1, 5, 2:5, 3] = np.nan
    t = torch.tensor(values, requires_grad=True)
    theirs = torch.nn.functional.max_pool2d(t, kernel, stride, padding)
    dy = rng.normal(size=theirs.shape).astype("f4")
    theirs.backward(torch.tensor(dy))

    values = values.transpose(0, 2, 3, 1).copy() if last else values
    x = lz.tensor(values, requires_grad=True)
    ours = F.max_pool2d(x.permute(0, 3, 1, 2) if last else x, kernel, stride, padding)
    ours.backward(lz.tensor(dy))
    np.testing.assert_array_equal(ours.numpy(), theirs.detach().numpy())
    gradient = x.grad.numpy()
    np.testing.assert_allclose(gradient.transpose(0, 3, 1, 2) if last else gradient, t.grad.numpy(), atol=1e-6)
