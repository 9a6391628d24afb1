"""What a graph costs before and after restructuring: kernels, bytes moved, peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from lezero.graph.dim import Dim, evaluate
from lezero.graph.node import Graph, Node
from lezero.schedule.memory import Interval, alive_peak


@dataclass
class Figures:
    """`peak_bytes` counts temporaries and new results; what exists before the run (parameters, inputs) is on both sides."""

    operations: int
    kernels: int
    moved_bytes: int
    peak_bytes: int
    arena_bytes: int = 0


_FREE = frozenset(
    {"reshape", "permute", "expand", "slice", "detach", "variable", "identity", "constant", "function_result"}
)
"""Operations that no framework spends a kernel on."""


def operations(graph: Graph) -> list[Node]:
    """The nodes that compute something: neither inputs nor constants."""
    return [n for n in graph.nodes() if not n.op.is_leaf and n.op.name != "constant"]


def size(node: Node, bindings: Sequence[int] = ()) -> int:
    """Bytes of a node's value; with `bindings`, for those values of its symbols."""
    shape = node.shape
    if bindings:
        shape = tuple(evaluate(d.expr, bindings) if type(d) is Dim else d for d in shape)
    return int(prod(map(int, shape))) * node.dtype.itemsize


def unfused(graph: Graph) -> Figures:
    """One kernel for each operation as recorded, every result stored until its last reader is done: the usual eager run."""
    nodes = sorted((n for n in graph.nodes() if not n.op.is_leaf), key=lambda n: n.index)
    memory: dict[Node, Node] = {}  # views lie in the memory of what they are views of
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    kernels = moved = 0
    for at, n in enumerate(nodes):
        memory[n] = memory.get(n.inputs[0], n.inputs[0]) if n.op.name in _FREE and n.inputs else n
        for i in n.inputs:
            last[memory.get(i, i)] = at
        if n.op.name in _FREE:
            continue
        first[n] = at
        kernels += 1
        moved += size(n) + sum(size(i) for i in dict.fromkeys(n.inputs))
    for n in graph.outputs:
        last[memory.get(n, n)] = len(nodes)
    lives = [Interval(n, size(n), at, last.get(n, at)) for n, at in first.items()]
    return Figures(len(operations(graph)), kernels, moved, alive_peak(lives))


def restructured(program: Any, bindings: Sequence[int]) -> Figures | None:
    """The same of a compiled program, where its backend schedules at all."""
    schedule = getattr(program, "schedule", None)
    if schedule is None:
        return None
    instance = schedule.instantiate(bindings)
    graph = schedule.graph
    fresh = sum(size(n, bindings) for n in graph.outputs if n not in schedule.reused)
    return Figures(
        len(operations(graph)),
        schedule.kernels,
        instance.moved_bytes,
        instance.arena_bytes + fresh,
        instance.arena_bytes,
    )


def byte_count(n: float) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError
