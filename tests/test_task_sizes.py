"""No task is long: an interrupt is looked at between tasks.

Schedules are made for large tensors that do not exist, and what each task of each launch has to do is estimated.
"""

from __future__ import annotations

from math import prod

import pytest

from lezero.backends.cpu.detect import detect
from lezero.codegen.launch import MOST_ELEMENTS, MOST_PRODUCTS
from lezero.graph.dtype import bfloat16, float32, int64
from lezero.graph.node import Graph, toposort
from lezero.ops.base import REGISTRY
from lezero.ops.expr import leaf
from lezero.passes.pipeline import restructure
from lezero.schedule.contractions import Contracted
from lezero.schedule.layout import row_major
from lezero.schedule.lowered import number
from lezero.schedule.schedule import build

THREADS = [1, 2, 16]
MARGIN = 2
"""Tasks are not all alike."""


def op(name, *shapes, dtype=float32, **attrs):
    return REGISTRY[name](*(leaf(shape, dtype) for shape in shapes), **attrs)


def schedule(result, threads):
    graph = Graph(tuple(n for n in toposort([result.node]) if n.op.is_leaf), (result.node,))
    orders = {x: row_major(len(x.shape)) for x in graph.leaves}
    return build(restructure(graph), orders, frozenset(), detect(), threads)


def launches(made):
    """(label, tasks, what they have to do, how much of it one may have) of every launch."""
    for steps in made.steps:
        for step in steps:
            if isinstance(step.what, Contracted):
                plan = step.what.plan((), made.threads, made.target)
                for launch in plan.launches:
                    copied = max(plan.workspaces.get(name, 0) for name in launch.operands) // 4
                    if launch.source.name.endswith((".weights", ".sum", ".pad")):
                        yield launch.source.name, launch.tasks, copied, MOST_ELEMENTS
                    else:
                        yield launch.source.name, launch.tasks, products(step.what.root), MOST_PRODUCTS
                continue
            for lowered in step.what:
                tasks, combine = lowered.tasks(made.threads, ())
                if tasks:
                    yield lowered.kernel.name, tasks, number(lowered.work, ()), MOST_ELEMENTS
                if combine:
                    kept = number(lowered.partials[0][0], ())
                    yield f"{lowered.kernel.name}: combine", combine, kept * tasks, MOST_ELEMENTS


def products(root):
    """Multiply-adds of a contraction."""
    if root.op.name == "dot":
        x, (trans_a, _) = root.inputs[0], root.attrs
        return prod(root.shape) * x.shape[-2 if trans_a else -1]
    x, w = root.inputs
    if root.op.name == "conv2d":
        return prod(root.shape) * prod(w.shape[1:])
    if root.op.name == "conv2d_input_grad":
        return prod(x.shape) * prod(w.shape[1:])
    return prod(w.shape) * prod(root.shape[1:])


LONG, CONV = 400_000_000, {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
CASES = {
    "element-wise": lambda: op("exp", (LONG,)),
    "element-wise over few long rows": lambda: op("add", (3, LONG), (3, 1)),
    "element-wise over rows of different lengths": lambda: op("add", (2, 40, 5_000_000), (40, 1)),
    "transposed": lambda: op("exp", (2, 20_000, 20_000)) + op("permute", (2, 20_000, 20_000), axes=(0, 2, 1)),
    "sum": lambda: op("sum", (LONG,), axes=(0,)),
    "sum of bfloat16": lambda: op("sum", (LONG,), dtype=bfloat16, axes=(0,)),
    "sum of long rows": lambda: op("sum", (40, 10_000_000), axes=(1,)),
    "sum of rows": lambda: op("sum", (4_000_000, 100), axes=(1,)),
    "sum of columns": lambda: op("sum", (4_000_000, 100), axes=(0,)),
    "sum of many columns": lambda: op("sum", (1000, 400_000), axes=(0,)),
    "argmax": lambda: op("argmax", (LONG,), axes=(0,)),
    "argmax of rows": lambda: op("argmax", (4, LONG // 4), axes=(1,)),
    "argmax of columns": lambda: op("argmax", (LONG // 4, 4), axes=(0,)),
    "variance": lambda: op("var", (LONG,), axes=(0,)),
    "softmax of one row": lambda: op("softmax", (1, LONG), axis=1),
    "softmax of long rows": lambda: op("softmax", (64, 8_000_000), axis=1),
    "softmax": lambda: op("softmax", (400_000, 1000), axis=1),
    "cumsum": lambda: op("cumsum", (LONG,), axis=0),
    "cumsum of rows": lambda: op("cumsum", (2, LONG // 2), axis=1),
    "cumsum of few columns": lambda: op("cumsum", (LONG // 4, 4), axis=0),
    "cumsum of columns": lambda: op("cumsum", (100_000, 4000), axis=0),
    "cumsum of integers": lambda: op("cumsum", (LONG,), dtype=int64, axis=0),
    "cummax": lambda: op("cummax", (LONG,), axis=0),
    "cumprod": lambda: op("cumprod", (LONG,), axis=0),
    "cumprod of rows": lambda: op("cumprod", (8, LONG // 8), axis=1),
    "linear_scan": lambda: op("linear_scan", (LONG // 4, 4), (LONG // 4, 4), axis=0),
    "argsort": lambda: op("argsort", (LONG // 10,), axis=0),
    "argsort of wide keys": lambda: op("argsort", (LONG // 10,), dtype=int64, axis=0),
    "argsort of rows": lambda: op("argsort", (10_000, 10_000), axis=1),
    "argsort of columns": lambda: op("argsort", (LONG // 40, 4), axis=0),
    "max_pool": lambda: op("max_pool", (1, 1, 8192, 8192), kernel=(63, 63), stride=(1, 1)),
    "max_pool of long rows": lambda: op("max_pool", (1, 1, 4, 10_000_000), kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
    "avg_pool": lambda: op("avg_pool", (1, 1, 8192, 8192), kernel=(63, 63), stride=(1, 1)),
    "sum of very many rows": lambda: op("sum", (20_000_000_000 // 100_000, 100_000), axes=(1,)),
    "dot": lambda: op("dot", (8192, 8192), (8192, 8192)),
    "dot of few long rows": lambda: op("dot", (256, 100_000), (100_000, 65_536)),
    "dot with a long reduction": lambda: op("dot", (16, 30_000_000), (30_000_000, 16)),
    "dot of many": lambda: op("dot", (64, 2048, 2048), (64, 2048, 2048)),
    "conv2d": lambda: op("conv2d", (32, 256, 128, 128), (256, 256, 3, 3), **CONV),
    "conv2d of few channels": lambda: op("conv2d", (64, 3, 1024, 1024), (8, 3, 3, 3), **CONV),
    "conv2d's gradient for its weights": lambda: op("conv2d_weight_grad", (32, 256, 128, 128), (32, 256, 128, 128), kernel=(3, 3), **CONV),
    "conv2d's gradient for its input": lambda: op("conv2d_input_grad", (32, 256, 128, 128), (256, 256, 3, 3), input_shape=(128, 128), **CONV),
    "conv2d by channel": lambda: op("conv2d", (64, 256, 512, 512), (256, 1, 3, 3), **{**CONV, "groups": 256}),
}  # fmt: skip


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("case", CASES)
def test_no_task_is_long(case, threads):
    seen = list(launches(schedule(CASES[case](), threads)))
    assert seen
    for label, tasks, work, most in seen:
        assert work / tasks <= MARGIN * most, f"{label}: {work / tasks / most:.1f} times what a task should have"
