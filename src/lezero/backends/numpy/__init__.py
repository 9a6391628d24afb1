"""The oracle: every operation by its NumPy reference, one after the other.

Slow and plain on purpose.  It is what all other backends are tested against, and the smallest example of one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lezero.graph.dim import rehint
from lezero.graph.dtype import DType
from lezero.graph.node import Graph, Node
from lezero.hal.backend import Backend, Program, Properties
from lezero.hal.buffer import Buffer
from lezero.ops.expr import evaluate


class NumpyProgram(Program):
    def __init__(self, graph: Graph):
        self.graph = graph

    def run(
        self,
        inputs: Sequence[Buffer],
        bindings: Sequence[int],
        donated: Sequence[int] = (),
        into: Mapping[int, Buffer] | None = None,
    ) -> list[Buffer]:
        graph = _concrete(self.graph, bindings)
        values = {leaf: b.array for leaf, b in zip(graph.leaves, inputs)}
        results = evaluate(graph.outputs, values)
        return [Buffer(np.array(r, order="C", copy=True)) for r in results]


def _concrete(graph: Graph, bindings: Sequence[int]) -> Graph:
    """The graph with this run's extents in place of symbols."""
    new: dict[Node, Node] = {}

    def plain(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(plain(x) for x in v)
        return int(rehint((v,), bindings)[0]) if isinstance(v, int) and not isinstance(v, bool) else v

    for node in graph.nodes():
        shape = plain(node.shape)
        made = Node(node.op, tuple(new[n] for n in node.inputs), plain(node.attrs), shape, node.dtype, node.device)
        made.weak, made.site = node.weak, node.site
        new[node] = made
    for leaf in graph.leaves:
        new.setdefault(leaf, leaf)
    return Graph(tuple(new[n] for n in graph.leaves), tuple(new[n] for n in graph.outputs))


class NumpyBackend(Backend):
    name = "numpy"

    def devices(self) -> list[str]:
        return ["cpu"]

    def properties(self, device: str) -> Properties:
        return Properties("NumPy", "cpu", os.cpu_count() or 1, 0)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        return Buffer(np.empty(shape, dtype.numpy))

    def compile(
        self,
        graph: Graph,
        donatable: frozenset[int] = frozenset(),
        inputs: Sequence[Buffer] = (),
        together: frozenset[int] = frozenset(),
    ) -> Program:
        return NumpyProgram(graph)
