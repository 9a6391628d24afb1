"""A schedule: the kernels of a graph in order, for any extents its symbols may take.

``build`` does everything that does not depend on extents: groups, their loop IR, the order, which results may be written
over inputs.  ``Schedule.instantiate`` is size arithmetic: launches with their integers, and the memory plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from lezero.codegen.emit import kernel_source
from lezero.codegen.launch import KernelSource
from lezero.codegen.target import Target
from lezero.graph.node import Graph, Node
from lezero.schedule.contractions import Contracted
from lezero.schedule.groups import Group, Grouping
from lezero.schedule.layout import Order
from lezero.schedule.lower import Lowered, lower, number
from lezero.schedule.memory import Interval, pack
from lezero.schedule.prepare import prepare


@dataclass(eq=False)
class Step:
    """One kernel group."""

    group: Group
    what: Contracted | list[Lowered]
    sources: list[KernelSource]  # of the lowered kernels
    reads: frozenset[Node]
    writes: tuple[Node, ...]

    @property
    def name(self) -> str:
        return self.what.name if isinstance(self.what, Contracted) else self.what[0].kernel.name


@dataclass
class Record:
    """A kernel to launch, possibly over several sets of operands."""

    source: KernelSource
    label: str
    sets: list[tuple[list[tuple[Any, int]], tuple[int, ...], int]]  # operands as (name, byte offset), params, tasks
    combine_tasks: int
    scratch_bytes: int
    overwrites: bool


@dataclass
class Instance:
    """A schedule for given extents.  Operand names are nodes (leaves and outputs) or "arena"."""

    records: list[Record]
    arena_bytes: int
    output_shapes: list[tuple[int, ...]]
    moved_bytes: int  # read and written by all kernels


@dataclass
class Schedule:
    graph: Graph
    grouping: Grouping
    orders: dict[Node, Order]
    steps: list[list[Step]]  # steps of one entry share a record
    reused: dict[Node, Node]  # output -> donated leaf whose memory it takes
    target: Target
    threads: int
    refusals: list[tuple[Node, Group, str]] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        return len(self.steps)

    def instantiate(self, bindings: Sequence[int]) -> Instance:
        """Launches and memory for given extents of the symbols."""
        outputs = set(self.graph.outputs)
        raw: list[tuple[KernelSource, str, list[tuple[list[Any], list[int], tuple[int, ...], int]], int, int, bool]] = []
        life: dict[Any, list[int]] = {}  # name -> [bytes, first, last]
        moved = 0

        def touch(name: Any, nbytes: int, at: int) -> None:
            have = life.get(name)
            if have is None:
                life[name] = [nbytes, at, at]
            else:
                have[0], have[2] = max(have[0], nbytes), at

        sizes: dict[Node, int] = {}

        def nbytes(n: Node) -> int:
            size = sizes.get(n)
            if size is None:
                size = sizes[n] = prod(number(d, bindings) for d in n.shape) * n.dtype.itemsize
            return size

        for steps in self.steps:
            for launches in _aligned([self._launches(s, bindings) for s in steps]):
                at = len(raw)
                sets = []
                for step, (operands, offsets, params, tasks, workspaces) in zip(steps, [x[1:] for x in launches]):
                    for name in operands:
                        if isinstance(name, Node):
                            moved += nbytes(name)
                            if not name.op.is_leaf and name not in outputs:
                                touch(name, nbytes(name), at)
                        else:
                            touch((step, name), workspaces[name], at)
                    names = [n if isinstance(n, Node) else (step, n) for n in operands]
                    sets.append((names, offsets, params, tasks))
                source, label, combine, overwrites = launches[0][0]
                scratch = max(source.scratch(p) for _, _, p, _ in sets)
                raw.append((source, label, sets, combine, scratch, overwrites))
        offsets_, arena = pack([Interval(name, size, first, last) for name, (size, first, last) in life.items()])
        records = []
        for source, label, sets, combine, scratch, overwrites in raw:
            placed = [
                ([("arena", offsets_[n] + o) if n in offsets_ else (self.reused.get(n, n), o) for n, o in zip(names, offs)], params, tasks)
                for names, offs, params, tasks in sets
            ]
            records.append(Record(source, label, placed, combine, scratch, overwrites))
        shapes = [tuple(number(d, bindings) for d in n.shape) for n in self.graph.outputs]
        return Instance(records, arena, shapes, moved)

    def _launches(self, step: Step, bindings: Sequence[int]) -> list[tuple]:
        """((source, label, combine tasks, overwrites), operands, byte offsets, params, tasks, workspaces) of a step."""
        overwrites = any(n in self.reused for n in step.writes)
        if isinstance(step.what, Contracted):
            c = step.what
            plan = c.plan(bindings, self.threads, self.target)
            out = []
            for i, launch in enumerate(plan.launches):
                names = [n if n.startswith("w:") else c.operands[n] for n in launch.operands]
                offs = [
                    number(c.offsets.get(n, 0), bindings) * c.operands[n].dtype.itemsize if not n.startswith("w:") else 0
                    for n in launch.operands
                ]
                head = (launch.source, c.name if i == len(plan.launches) - 1 else f"{c.name}: {launch.source.name}", launch.combine_tasks, overwrites)
                out.append((head, names, offs, launch.params, launch.tasks, plan.workspaces))
            return out
        out = []
        for lowered, source in zip(step.what, step.sources):
            tasks, combine = lowered.tasks(self.threads, bindings)
            params = tuple(tasks if p == "tasks" else number(p, bindings) for p in lowered.params)
            workspaces: dict[Any, int] = {}
            for o in lowered.operands:
                if isinstance(o, Node):
                    continue
                if o[0] == "partial":
                    k = [x for x in lowered.operands if not isinstance(x, Node) and x[0] == "partial"].index(o)
                    elements, itemsize = lowered.partials[k]
                    workspaces[o] = number(elements, bindings) * tasks * itemsize
                else:
                    workspaces[o] = number(o[2], bindings) * o[3]
            head = (source, lowered.kernel.name, combine, overwrites)
            out.append((head, list(lowered.operands), [0] * len(lowered.operands), params, tasks, workspaces))
        return out


def _aligned(launches: list[list[tuple]]) -> list[list[tuple]]:
    """The k-th launches of steps that share a record, for each k."""
    return [list(group) for group in zip(*launches)] if launches else []


def build(
    graph: Graph, leaf_orders: dict[Node, Order], donatable: frozenset[Node], target: Target, threads: int
) -> Schedule:
    """Schedule a primitive graph (what ``passes.pipeline.restructure`` gives)."""
    graph, orders = prepare(graph, leaf_orders)
    grouping = Grouping(graph, orders, threads)
    stored: set[Node] = set(graph.outputs)
    for g in grouping.groups:
        stored |= g.reads
    steps = [_step(g, grouping, stored) for g in grouping.groups if g.nodes]
    ordered = _order(steps, set(graph.outputs))
    return Schedule(
        graph, grouping, orders, ordered, _reuse(ordered, graph, orders, donatable), target, threads, grouping.refusals
    )


def _step(group: Group, grouping: Grouping, stored: set[Node]) -> Step:
    writes = tuple(n for n in group.nodes if n in stored)
    reads = frozenset(group.reads)
    if group.kind == "contraction":
        return Step(group, Contracted(group, grouping, stored), [], reads, writes)
    if group.kind == "opaque":
        from lezero.schedule.opaque import lower_opaque

        kernels = lower_opaque(group.nodes[0])
    else:
        kernels = [lower(group, grouping, stored)]
    return Step(group, kernels, [kernel_source(k.kernel) for k in kernels], reads, writes)


def _order(steps: list[Step], outputs: set[Node]) -> list[list[Step]]:
    """Steps in an order that respects what they read, in recorded order where there is a choice.

    Steps that only write results nobody else reads (the updates of parameters) come last, and those of them that run the
    same machine code share one record.
    """
    writer = {n: s for s in steps for n in s.writes}
    read_by_others = {n for s in steps for n in s.reads}
    needs = {s: {writer[n] for n in s.reads if n in writer and writer[n] is not s} for s in steps}
    users: dict[Step, list[Step]] = {s: [] for s in steps}
    for s, before in needs.items():
        for b in before:
            users[b].append(s)
    last = [s for s in steps if len(s.sources) == 1 and not any(n in read_by_others for n in s.writes)]
    same_code: dict[str, list[Step]] = {}
    for s in last:
        same_code.setdefault(s.sources[0].key, []).append(s)
    shared = {s for group in same_code.values() if len(group) > 1 and not group[0].sources[0].has_combine for s in group}
    rank = {s: i for i, s in enumerate(steps)}
    missing = {s: len(before) for s, before in needs.items()}
    ready = [(rank[s], s) for s in steps if not missing[s] and s not in shared]
    ready = [(r, i, s) for i, (r, s) in enumerate(ready)]
    heapq.heapify(ready)
    out: list[list[Step]] = []
    count = len(ready)
    while ready:
        _, _, s = heapq.heappop(ready)
        out.append([s])
        for u in users[s]:
            missing[u] -= 1
            if not missing[u] and u not in shared:
                count += 1
                heapq.heappush(ready, (rank[u], count, u))
    out += [group for group in same_code.values() if group[0] in shared]
    if sum(map(len, out)) != len(steps):
        raise AssertionError("the kernels of this graph depend on each other in a circle")
    return out


def _reuse(ordered: list[list[Step]], graph: Graph, orders: dict[Node, Order], donatable: frozenset[Node]) -> dict[Node, Node]:
    """Outputs that take the memory of a donated input: read last, element by element, in the kernel that writes them."""
    outputs = set(graph.outputs)
    last: dict[Node, int] = {}
    for at, steps in enumerate(ordered):
        for s in steps:
            for n in s.reads:
                last[n] = at
    reused: dict[Node, Node] = {}
    for at, steps in enumerate(ordered):
        readers: dict[Node, int] = {}
        for s in steps:
            for n in s.reads:
                readers[n] = readers.get(n, 0) + 1
        for s in steps:
            if isinstance(s.what, Contracted):
                continue
            for node, leaf in s.what[-1].in_place:
                if (
                    node in outputs and leaf in donatable and leaf not in reused.values() and node not in reused
                    and last.get(leaf) == at and readers[leaf] == 1 and orders[node] == orders[leaf] and len(s.what) == 1
                    and all(a is b or (type(a) is type(b) and a == b) for a, b in zip(node.shape, leaf.shape))
                    and len(node.shape) == len(leaf.shape)
                ):  # fmt: skip
                    reused[node] = leaf
    return reused
