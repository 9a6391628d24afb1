"""A backend that schedules like the CPU backend and runs the kernels' loop IR in plain Python.

No code is generated, so a wrong result is the scheduler's, and a thousand small graphs take seconds.  Contractions and opaque
operations are computed by their NumPy references.  ``use()`` makes it the backend in a ``with`` block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from lezero.graph.dim import Dim
from lezero.graph.dtype import DType
from lezero.graph.node import Graph, Node
from lezero.hal import registry
from lezero.hal.backend import Backend, Program, Properties
from lezero.hal.buffer import Buffer
from lezero.loops import interpret
from lezero.ops.expr import reference
from lezero.passes.pipeline import restructure
from lezero.schedule import groups
from lezero.schedule.layout import Order, row_major
from lezero.schedule.lower import lower
from lezero.schedule.lowered import Lowered, number
from lezero.schedule.schedule import Step, arrange, order_steps

THREADS = 3


class InterpretedProgram(Program):
    def __init__(self, graph: Graph, orders: dict[Node, Order]):
        self.leaves = graph.leaves
        primitive = restructure(graph)
        self.shapes = [n.shape for n in primitive.outputs]
        self.grouping, _ = arrange(primitive, orders, THREADS)
        self.graph, self.orders = self.grouping.graph, self.grouping.orders
        stored = set(self.graph.outputs)
        for g in self.grouping.groups:
            stored |= g.reads
        steps = []
        for g in self.grouping.groups:
            if g.nodes:
                what = [lower(g, self.grouping, stored)] if g.kind == "loops" else []
                source = SimpleNamespace(key=str(g.number))  # no two alike, and nothing is generated
                steps.append(Step(g, what, [source], frozenset(g.reads), tuple(n for n in g.nodes if n in stored)))
        self.steps = [s for together in order_steps(steps, self.graph.outputs)[0] for s in together]

    def run(self, inputs: Sequence[Buffer], bindings: Sequence[int], donated: Sequence[int] = ()) -> list[Buffer]:
        memory: dict[Node, np.ndarray] = {}  # logical arrays whose memory has the node's order
        for leaf, b in zip(self.leaves, inputs):
            memory[leaf] = b.array
        for step in self.steps:
            for n in step.writes:
                memory[n] = _poisoned(tuple(number(d, bindings) for d in n.shape), n.dtype.numpy, self.orders[n])
            if step.what:
                (lowered,) = step.what
                self._interpret(lowered, memory, bindings)
            else:
                self._reference(step, memory, bindings)
        shapes = [tuple(number(d, bindings) for d in shape) for shape in self.shapes]
        return [_buffer(memory[n].reshape(shape)) for n, shape in zip(self.graph.outputs, shapes)]

    def _interpret(self, lowered: Lowered, memory: dict[Node, np.ndarray], bindings: Sequence[int]) -> None:
        tasks, combine = lowered.tasks(THREADS, bindings)
        limit = number(lowered.limit, bindings)
        if lowered.partials:  # several tasks, however small the problem: that is what is tested
            tasks = max(1, min(limit, THREADS))
        arrays = []
        for o in lowered.operands:
            if isinstance(o, Node):
                order = self.orders[o]
                arrays.append(memory[o].transpose(order).reshape(-1))
                assert np.shares_memory(arrays[-1], memory[o]) or not memory[o].size
            else:
                elements, _ = lowered.partials[o[1]] if len(lowered.partials) > o[1] else lowered.partials[0]
                k = list(lowered.operands).index(o)
                arrays.append(
                    np.full(number(elements, bindings) * tasks, 77, interpret.dtype(lowered.kernel.buffers[k].type))
                )
        params = [tasks if p == "tasks" else number(p, bindings) for p in lowered.params]
        interpret.run(lowered.kernel, arrays, params, tasks, combine)

    def _reference(self, step: Step, memory: dict[Node, np.ndarray], bindings: Sequence[int]) -> None:
        values: dict[Node, np.ndarray] = {}
        members = set(step.group.nodes)

        def value(node: Node) -> np.ndarray:
            if node not in values:
                known = node in memory and node not in members
                values[node] = (
                    memory[node] if known else reference(_concrete(node, bindings), [value(x) for x in node.inputs])
                )
            return values[node]

        for n in step.writes:
            memory[n][...] = value(n)


def _concrete(node: Node, bindings: Sequence[int]) -> Node:
    """The node with numbers in place of symbols."""

    def plain(v: Any) -> Any:
        return tuple(map(plain, v)) if isinstance(v, tuple) else number(v, bindings) if type(v) is Dim else v

    return Node(node.op, node.inputs, plain(node.attrs), plain(node.shape), node.dtype)


def _poisoned(shape: tuple[int, ...], dtype: np.dtype, order: Order) -> np.ndarray:
    flat = np.full(tuple(shape[a] for a in order), 77, dtype)
    return flat.transpose(np.argsort(order)) if order else flat


class InterpretedBackend(Backend):
    name = "interpreted"

    def devices(self) -> list[str]:
        return ["cpu"]

    def properties(self, device: str) -> Properties:
        return Properties("loop interpreter", "cpu", 1, 0)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        return Buffer(np.empty(shape, dtype.numpy))

    def compile(
        self,
        graph: Graph,
        donatable: frozenset[int] = frozenset(),
        inputs: Sequence[Buffer] = (),
        together: frozenset[int] = frozenset(),
    ) -> Program:
        orders = {leaf: _order_of(b.array) for leaf, b in zip(graph.leaves, inputs)}
        return InterpretedProgram(graph, orders)


def _buffer(a: np.ndarray) -> Buffer:
    return Buffer(a, order=None if a.flags.c_contiguous else _order_of(a))


def _order_of(a: np.ndarray) -> Order:
    return row_major(a.ndim) if a.flags.c_contiguous else tuple(sorted(range(a.ndim), key=lambda i: (-a.strides[i], i)))


@contextlib.contextmanager
def use() -> Iterator[None]:
    before, work = registry.current(), groups.SPLIT_WORK
    groups.SPLIT_WORK = 4096  # so that small graphs have split reductions too
    registry._made.setdefault("interpreted", InterpretedBackend())
    registry.set_backend("interpreted")
    try:
        yield
    finally:
        registry.set_backend(before.name)
        groups.SPLIT_WORK = work
