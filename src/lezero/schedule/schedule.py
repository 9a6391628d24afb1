"""A schedule: the kernels of a graph in order, for any extents its symbols may take.

``build`` does everything that does not depend on extents: groups, their loop IR, the order, which results may be written
over inputs.  ``Schedule.instantiate`` is size arithmetic: launches with their integers, and the memory plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any

from lezero.codegen.emit import kernel_source
from lezero.codegen.launch import KernelSource
from lezero.codegen.target import Target
from lezero.graph.dim import identical, same
from lezero.graph.node import Graph, Node
from lezero.passes.pipeline import switched_off
from lezero.schedule.alike import Forms
from lezero.schedule.attention import Attention
from lezero.schedule.contractions import Contracted
from lezero.schedule.group import Group
from lezero.schedule.groups import Grouping
from lezero.schedule.index import Ix, Var
from lezero.schedule.joining import placed
from lezero.schedule.layout import Order, linear, row_major
from lezero.schedule.lower import lower
from lezero.schedule.lowered import Lowered, number
from lezero.schedule.memory import Interval, Space, joined, lend, pack, settle, side_by_side
from lezero.schedule.order import in_order
from lezero.schedule.prepare import ATTENTION, prepare
from lezero.schedule.reads import pieces
from lezero.schedule.recompute import Effort, Recomputed, recompute
from lezero.schedule.recompute import nbytes as seen_bytes
from lezero.schedule.work import flops, multiplies


@dataclass(eq=False)
class Step:
    """One kernel group."""

    group: Group
    what: Contracted | list[Lowered]
    sources: list[KernelSource]  # of the lowered kernels
    reads: frozenset[Node]
    writes: tuple[Node, ...]
    like: Step | None = None  # an earlier one of the same form, from which this was made

    @property
    def name(self) -> str:
        return self.what.name if isinstance(self.what, Contracted) else self.what[0].kernel.name

    @property
    def in_place(self) -> tuple[tuple[Node, Node], ...]:
        """(stored node, input whose memory it may take)"""
        if isinstance(self.what, Contracted):
            return self.what.in_place
        first, *rest = self.what
        if first.copies and not any(first.copies[1] in k.operands for k in rest):
            return (first.copies,)
        return () if rest else first.in_place

    @property
    def copies(self) -> bool:
        """Whether it begins with a copy that is not needed in place."""
        return not isinstance(self.what, Contracted) and self.what[0].copies is not None

    @property
    def combines(self) -> bool:
        """Whether partial results are put together after the tasks."""
        return not isinstance(self.what, Contracted) and any(k.kernel.combine is not None for k in self.what)


@dataclass
class Record:
    """A kernel to launch, possibly over several sets of operands."""

    source: KernelSource
    label: str
    sets: list[tuple[list[tuple[Any, int]], tuple[int, ...], int]]  # operands as (name, byte offset), params, tasks
    combine_tasks: int
    scratch_bytes: int
    overwrites: bool
    beside: bool  # runs at the same time as the record before it, as one launch of several codes
    moved_bytes: int
    entry: int  # of `Schedule.steps`


@dataclass
class Block:
    """Where a value lies in the arena, and from which record to which: a node, or (step, name) for memory of a step's own."""

    value: Any
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass
class Instance:
    """A schedule for given extents.  Operand names are nodes (leaves and outputs) or "arena"."""

    records: list[Record]
    arena_bytes: int
    output_shapes: list[tuple[int, ...]]
    moved_bytes: int  # read and written by all kernels
    bindings: tuple[int, ...]
    memory: list[Block]
    together: dict[Node, int]  # where outputs lie in the one block that is kept
    together_bytes: int
    settled: dict[
        Node, tuple[Node, int]
    ]  # outputs that lie in the block of an input: from which of its parts on, and how far


@dataclass
class Schedule:
    graph: Graph
    shapes: list[tuple[int, ...]]  # of the outputs, as asked for
    grouping: Grouping
    orders: dict[Node, Order]
    steps: list[list[Step]]  # steps of one entry share a record
    beside: frozenset[int]  # entries of `steps` that run at the same time as the one before
    reused: dict[Node, Node]  # output -> donated leaf whose memory it takes
    shared: dict[Node, Node]  # intermediate value -> the one whose memory it takes
    within: dict[Node, tuple[Node, int]]  # value -> that which it is a part of, from which element on
    lent: frozenset[Node]  # donated leaves in whose memory intermediate values may lie once they have been read
    target: Target
    threads: int
    parts: frozenset[Node]  # those of `lent` that are parts of blocks
    together: tuple[Node, ...]  # outputs that lie in one block, unless small
    refusals: list[tuple[Node, Group, str]] = field(default_factory=list)
    recomputed: list[Recomputed] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        """How many there are: groups that run at the same time are one launch, and what is all there already needs none."""
        idle = sum(
            not isinstance(s.what, Contracted) and all(map(self._there_already, s.what)) for [s, *_] in self.steps
        )
        return len(self.steps) - len(self.beside) - idle

    def instantiate(self, bindings: Sequence[int], places: Mapping[Node, tuple[int, int]] | None = None) -> Instance:
        """Launches and memory for given extents of the symbols.

        places : for lent leaves that are parts of blocks, which block, and the offset in it
        """
        places = places or {}
        outputs = set(self.graph.outputs)
        raw: list[
            tuple[KernelSource, str, list[tuple[list[Any], list[int], tuple[int, ...], int]], int, int, bool, int, int]
        ] = []
        life: dict[Any, list[int]] = {}  # name -> [bytes, first, last]
        read: dict[Node, int] = {}  # when a lent leaf is read last
        written: dict[Node, int] = {}  # when a result in memory of its own is written first
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

        homes: dict[Any, tuple[Any, int]] = {}

        def home_of(name: Any) -> tuple[Any, int]:
            """The value in whose memory a value lies, and how many bytes from the beginning."""
            if name not in homes:
                home, offset = self.shared.get(name, name), 0
                if home in self.within:
                    whole, start = self.within[home]
                    outer, offset = home_of(whole)
                    home, offset = outer, offset + number(start, bindings) * home.dtype.itemsize
                homes[name] = home, offset
            return homes[name]

        planned: dict[int, list[tuple]] = {}
        at = 0
        for entry, steps in enumerate(self.steps):
            for launches in _aligned([self._launches(s, bindings, planned) for s in steps]):
                if entry not in self.beside:  # the others run at the same time as the one before
                    at = len(raw)
                before = moved
                sets = []
                for step, (operands, offsets, params, tasks, workspaces) in zip(steps, [x[1:] for x in launches]):
                    for name in operands:
                        if isinstance(name, Node):
                            moved += nbytes(name)
                            home, _ = home_of(name)
                            if not home.op.is_leaf and home not in outputs:
                                touch(home, nbytes(home), at)
                            elif name in self.lent:
                                read[name] = at
                            elif home in outputs and home not in self.reused:
                                written.setdefault(home, at)
                        else:
                            touch((step, name), workspaces[name], at)
                    names: list[Any] = [n if isinstance(n, Node) else (step, n) for n in operands]
                    sets.append((names, offsets, params, tasks))
                source, label, combine, overwrites = launches[0][0]
                scratch = max(source.scratch(p) for _, _, p, _ in sets)
                raw.append((source, label, sets, combine, scratch, overwrites, entry, moved - before))
        lives = [Interval(name, size, first, last) for name, (size, first, last) in life.items()]
        spaces = [Space(n, nbytes(n), at, inf) for n, at in read.items()]
        spaces += [Space(n, nbytes(n), -inf, at) for n, at in written.items()]
        together = [n for n in self.together if n not in self.reused and nbytes(n) >= LEAST_LENT]
        offsets_together, together_bytes = side_by_side([nbytes(n) for n in together])
        inside = dict(places) | {n: (-1, at) for n, at in zip(together, offsets_together)}
        parts = joined([(s, *inside[s.name]) for s in spaces if s.name in inside])
        results = [Interval(n, nbytes(n), at, len(raw)) for n, at in written.items() if n not in inside]
        settled, parts = self._settle(parts, [v for v in results if v.nbytes >= LEAST_LENT], places, nbytes)
        spaces = [s for s in spaces if s.name not in inside and s.name not in settled] + parts
        lent = lend([s for s in spaces if s.nbytes >= LEAST_LENT], [v for v in lives if v.nbytes >= LEAST_LENT])
        offsets_, arena = pack([v for v in lives if v.name not in lent])
        records = []
        for source, label, sets, combine, scratch, overwrites, entry, touched in raw:
            placed = [
                (
                    [
                        ("arena", offsets_[n] + o)
                        if n in offsets_
                        else (lent[n][0], lent[n][1] + o)
                        if n in lent
                        else (self.reused.get(n, n), o)
                        for n, o in ((home, o + inner) for (home, inner), o in zip(map(home_of, names), offs))
                    ],
                    params,
                    tasks,
                )
                for names, offs, params, tasks in sets
            ]
            beside = entry in self.beside
            overwrites = overwrites or any(
                x in settled or (x in lent and lent[x][0] in read) for names, *_ in sets for x, _ in map(home_of, names)
            )
            records.append(Record(source, label, placed, combine, scratch, overwrites, beside, touched, entry))
        shapes = [tuple(number(d, bindings) for d in shape) for shape in self.shapes]
        memory = [Block(v.name, offsets_[v.name], v.nbytes, v.first, v.last) for v in lives if v.name in offsets_]
        kept = dict(zip(together, offsets_together))
        return Instance(records, arena, shapes, moved, tuple(bindings), memory, kept, together_bytes, settled)

    def _settle(
        self,
        spaces: list[Space],
        results: list[Interval],
        places: Mapping[Node, tuple[int, int]],
        nbytes: Callable[[Node], int],
    ) -> tuple[dict[Any, tuple[Any, int]], list[Space]]:
        """Results that lie in the blocks of inputs, and the spaces that remain; some are of the block that is made."""
        sizes: dict[int, int] = {}
        for n, (block, _) in places.items():
            sizes[block] = sizes.get(block, 0) + nbytes(n)
        of_inputs = {s.name: (places[s.name][0], sizes[places[s.name][0]]) for s in spaces if s.name in places}
        settled, left = settle([s for s in spaces if s.name in places], results, of_inputs)
        return settled, left + [s for s in spaces if s.name not in places]

    def flops(self, instance: Instance) -> list[float]:
        """Floating-point operations of each record (see ``schedule/work.py``); a step's are with the launches that multiply."""
        by_entry: dict[int, list[int]] = {}
        for at, record in enumerate(instance.records):
            by_entry.setdefault(record.entry, []).append(at)
        found = [0.0] * len(instance.records)
        for entry, places in by_entry.items():
            total = sum(flops(n, instance.bindings) for s in self.steps[entry] for n in self.grouping.computed(s.group))
            weights = self._weights(entry, [instance.records[at] for at in places], instance.bindings)
            for at, weight in zip(places, weights):
                found[at] = total * weight / (sum(weights) or 1)
        return found

    def _weights(self, entry: int, records: list[Record], bindings: Sequence[int]) -> list[int]:
        """How a step's work is divided between its launches."""
        tasks = [sum(n for _, _, n in r.sets) for r in records]
        what = self.steps[entry][0].what
        if not isinstance(what, Contracted):
            return tasks
        plan = what.plan(bindings, self.threads, self.target)
        return [n if multiplies(x) else 0 for n, x in zip(tasks, plan.launches)]

    def _launches(self, step: Step, bindings: Sequence[int], planned: dict[int, list[tuple]]) -> list[tuple]:
        """((source, label, combine tasks, overwrites), operands, byte offsets, params, tasks, workspaces) of a step; those of
        the same form are `planned` once."""
        form = id(step.like or step)
        if form not in planned:
            planned[form] = self._plan(step, bindings)
        overwrites = any(n in self.reused for n in step.writes)
        what = step.what
        out = []
        for (source, label, combine), operands, *rest in planned[form]:
            if isinstance(what, Contracted):
                names = [n if n.startswith("w:") else what.operands[n] for n in operands]
            elif self._there_already(what[operands]):
                continue
            else:
                names = what[operands].operands
            out.append(((source, label, combine, overwrites), names, *rest))
        return out

    def _there_already(self, kernel: Lowered) -> bool:
        """Whether what a kernel would copy lies where it is to be."""
        if kernel.part is not None:
            whole, x, start = kernel.part
            return self.within.get(x) == (whole, start)
        return kernel.copies is not None and self._one_memory(*kernel.copies)

    def _one_memory(self, node: Node, x: Node) -> bool:
        """Whether a value has taken the memory of an input."""
        return self.reused.get(node) is x or self.shared.get(node, node) is self.shared.get(x, x)

    def _plan(self, step: Step, bindings: Sequence[int]) -> list[tuple]:
        """The launches of a step, with the operands' names for a contraction, and otherwise which kernel's operands they are."""
        if isinstance(step.what, Contracted):
            return self._plan_contraction(step.what, bindings)
        out: list[tuple] = []
        for k, (lowered, source) in enumerate(zip(step.what, step.sources)):
            tasks, combine = lowered.tasks(self.threads, bindings)
            workspaces: dict[Any, int] = {}
            for o in lowered.operands:
                if isinstance(o, Node):
                    continue
                if o[0] == "partial":
                    part = [x for x in lowered.operands if not isinstance(x, Node) and x[0] == "partial"].index(o)
                    elements, itemsize = lowered.partials[part]
                    workspaces[o] = number(elements, bindings) * tasks * itemsize
                else:
                    workspaces[o] = number(o[2], bindings) * o[3]
            head = (source, lowered.kernel.name, combine)
            offsets = [0] * len(lowered.operands)
            for r in range(lowered.rounds(bindings)):
                named = {"tasks": tasks, "round": r}
                params = tuple(named[p] if type(p) is str else number(p, bindings) for p in lowered.params)
                out.append((head, k, offsets, params, tasks, workspaces))
        return out

    def _plan_contraction(self, c: Contracted, bindings: Sequence[int]) -> list[tuple]:
        plan = c.plan(bindings, self.threads, self.target)
        out: list[tuple] = []
        for i, launch in enumerate(plan.launches):
            offsets = [
                number(c.offsets.get(n, 0), bindings) * c.operands[n].dtype.itemsize if not n.startswith("w:") else 0
                for n in launch.operands
            ]
            label = c.name if i == len(plan.launches) - 1 else f"{c.name}: {launch.source.name}"
            head = (launch.source, label, launch.combine_tasks)
            out.append((head, launch.operands, offsets, launch.params, launch.tasks, plan.workspaces))
        return out


def _aligned(launches: list[list[tuple]]) -> list[list[tuple]]:
    """The k-th launches of steps that share a record, for each k."""
    return [list(group) for group in zip(*launches)] if launches else []


def arrange(
    graph: Graph, leaf_orders: dict[Node, Order], threads: int, effort: Effort | None = None
) -> tuple[Grouping, list[Recomputed]]:
    """A primitive graph divided into kernels, and what is computed a second time.

    Outputs that are another value in another shape are that value: the memory is the same.
    """
    graph, orders = prepare(graph, leaf_orders)
    graph = Graph(graph.leaves, _memory_of(graph.outputs, orders))
    grouping = Grouping(graph, orders, threads)
    if "recompute" in switched_off():
        return grouping, []
    done: list[Recomputed] = []
    for _ in range(1 if effort is None else effort.rounds):
        graph, orders, recomputed = recompute(graph, orders, grouping, effort)
        if not recomputed:
            break
        grouping = Grouping(graph, orders, threads)
        done += recomputed
    return grouping, done


def _memory_of(outputs: Sequence[Node], orders: dict[Node, Order]) -> tuple[Node, ...]:
    """Each output, or what it is a reshape of if that is computed, row-major, and no other output."""
    bases = []
    for n in outputs:
        x = n
        while x.op.name == "reshape":
            x = x.inputs[0]
        plain = x.op.kind not in ("leaf", "view", "source") and orders[x] == row_major(x.ndim)
        bases.append(x if plain and orders[n] == row_major(n.ndim) and _strided(n, x) else n)
    times = Counter([*bases, *outputs])
    return tuple(b if b is n or times[b] == 1 else n for b, n in zip(bases, outputs))


def _strided(n: Node, base: Node) -> bool:
    """Whether a reshape reads its base in steps, as products of it need to; not so where a number stands for a symbol."""
    x, at = n, tuple(Ix.of(Var(f"q{k}", d)) for k, d in enumerate(n.shape))
    while x is not base:
        ((_, at, _),) = pieces(x, at)
        x = x.inputs[0]
    return linear(at, base.shape, row_major(base.ndim)).affine() is not None


def build(
    graph: Graph, leaf_orders: dict[Node, Order], donatable: frozenset[Node], target: Target, threads: int,
    bf16_products: int = 0, effort: Effort | None = None, parts: frozenset[Node] = frozenset(), together: Sequence[int] = (),
) -> Schedule:  # fmt: skip
    """Schedule a primitive graph (what ``passes.pipeline.restructure`` gives).

    bf16_products : how many may stand for a product of float32 in matrix products (see ``MatmulSpec``).
    effort : what to do to save memory; None does what costs little.
    parts : donatable leaves that are parts of blocks, which no result may hold
    together : positions of outputs that are kept for a later run
    """
    given = graph
    grouping, recomputed = arrange(graph, leaf_orders, threads, effort)
    graph, orders = grouping.graph, grouping.orders
    groups, stored = _needed(grouping, graph.outputs)
    steps = _steps(groups, grouping, stored, bf16_products)
    ordered, beside = order_steps(steps, graph.outputs)
    shapes = [n.shape for n in given.outputs]
    lowered = [s.what for s in steps if not isinstance(s.what, Contracted)]
    written = frozenset(n for s in steps for n in s.writes)
    within = {} if "share" in switched_off() else placed(lowered, written, frozenset(graph.outputs), orders)
    reused, shared = _reuse(ordered, beside, graph, shapes, orders, donatable - parts, within)
    lent = donatable - frozenset(reused.values()) - set(graph.outputs)
    return Schedule(
        graph,
        shapes,
        grouping,
        orders,
        ordered,
        beside,
        reused,
        shared,
        within,
        lent,
        target,
        threads,
        lent & parts,
        tuple(graph.outputs[k] for k in together),
        grouping.refusals,
        recomputed,
    )


def _needed(grouping: Grouping, outputs: Sequence[Node]) -> tuple[list[Group], set[Node]]:
    """The groups that write something somebody reads, and everything that is read or asked for.

    Nothing reads what only an empty value would be made of.
    """
    groups = [g for g in grouping.groups if not all(map(_empty, g.nodes))]
    while True:
        stored = set(outputs).union(*(g.reads for g in groups))
        needed = [g for g in groups if not stored.isdisjoint(g.nodes)]
        if len(needed) == len(groups):
            return needed, stored
        groups = needed


def _empty(node: Node) -> bool:
    """Whether there is nothing to compute, whatever the symbols are."""
    return any(same(d, 0) for d in node.shape)


def _steps(groups: list[Group], grouping: Grouping, stored: set[Node], bf16_products: int) -> list[Step]:
    """The groups lowered, those of one form (see ``alike.py``) once."""
    forms = Forms(grouping, stored)
    first: dict[Any, tuple[Step, list[Node]]] = {}
    steps = []
    for group in groups:
        form, nodes = forms.of(group)
        if form in first:
            like, theirs = first[form]
            step = _alike(group, like, dict(zip(theirs, nodes)), stored)
        else:
            step = _step(group, grouping, stored, bf16_products)
            first[form] = step, nodes
        steps.append(step)
    return steps


def _alike(group: Group, like: Step, mine: dict[Node, Node], stored: set[Node]) -> Step:
    """The step of a group, from that of one of the same form; `mine` are its nodes by those of the other."""
    what: Contracted | list[Lowered]
    if isinstance(like.what, Contracted):
        what = like.what.of(mine)
    else:
        what = [
            replace(
                k,
                operands=[mine[o] if isinstance(o, Node) else o for o in k.operands],
                in_place=tuple((mine[n], mine[x]) for n, x in k.in_place),
                copies=k.copies and (mine[k.copies[0]], mine[k.copies[1]]),
                part=k.part and (mine[k.part[0]], mine[k.part[1]], k.part[2]),
            )
            for k in like.what
        ]
    writes = tuple(n for n in group.nodes if n in stored)
    return Step(group, what, like.sources, frozenset(group.reads), writes, like)


def _step(group: Group, grouping: Grouping, stored: set[Node], bf16_products: int) -> Step:
    writes = tuple(n for n in group.nodes if n in stored)
    reads = frozenset(group.reads)
    if group.nodes[0].op.name in ATTENTION:
        return Step(group, Attention(group, grouping), [], reads, writes)
    if group.kind == "contraction":
        return Step(group, Contracted(group, grouping, stored, bf16_products), [], reads, writes)
    if group.kind == "opaque":
        from lezero.schedule.opaque import lower_opaque

        kernels = lower_opaque(group.nodes[0])
    else:
        kernels = [lower(group, grouping, stored)]
    return Step(group, kernels, [kernel_source(k.kernel) for k in kernels], reads, writes)


LEAST_LENT = 64 << 10
"""Bytes from which on a value may lie in the memory of a donated input that has been read, or of a result to be written."""
SMALL = 4096
"""Elements up to which a result may wait for the end of the run."""


def order_steps(steps: list[Step], outputs: Sequence[Node]) -> tuple[list[list[Step]], frozenset[int]]:
    """Steps in an order that respects what they read and saves memory (``in_order``), and what runs together.

    Steps that only write results nobody else reads (the updates of parameters) come last: all of them are one launch.
    Those that run the same machine code share an entry, the other entries of the launch run beside the first.
    """
    read_by_others = {n for s in steps for n in s.reads}
    final = [
        s
        for s in steps
        if not any(n in read_by_others for n in s.writes) and s.group.kind == "loops" and not s.combines
    ]
    same_code: dict[str, list[Step]] = {}
    for s in final:
        same_code.setdefault(s.sources[0].key, []).append(s)
    same_code = {
        k: ss for k, ss in same_code.items() if len(ss) > 1 or all(prod(n.shape) <= SMALL for n in ss[0].writes)
    }
    if "together" in switched_off():
        same_code = {}
    shared = {s for ss in same_code.values() for s in ss}
    kept = {n for s in shared for n in s.reads} | set(outputs)

    def freed(n: Node) -> int:
        return 0 if n.op.is_leaf or n in kept else seen_bytes(n)

    order = in_order([s for s in steps if s not in shared], lambda s: s.reads, lambda s: s.writes, freed)
    out = [[s] for s in order]
    first = len(out)
    out += same_code.values()
    return out, frozenset(range(first + 1, len(out)))


def _reuse(
    ordered: list[list[Step]],
    beside: frozenset[int],
    graph: Graph,
    shapes: list[tuple[int, ...]],
    orders: dict[Node, Order],
    donatable: frozenset[Node],
    within: dict[Node, tuple[Node, int]],
) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """Values that take the memory of one read last, element by element, in the kernel that writes them: outputs that of
    donated inputs, and intermediate values that of each other."""
    outputs = dict(zip(graph.outputs, shapes))
    launches: list[list[Step]] = []
    for entry, steps in enumerate(ordered):
        if entry in beside:
            launches[-1] = launches[-1] + steps
        else:
            launches.append(steps)
    last = {n: at for at, steps in enumerate(launches) for s in steps for n in s.reads}
    for n in reversed(list(within)):  # what others are parts of is read when they are
        whole, _ = within[n]
        last[whole] = max(last.get(whole, -1), last.get(n, -1))
    reused: dict[Node, Node] = {}
    shared: dict[Node, Node] = {}
    taken: set[Node] = set()
    share = "share" not in switched_off()
    for at, steps in enumerate(launches):
        readers = Counter(n for s in steps for n in s.reads)
        for s in steps:
            for node, x in s.in_place:
                if node in reused or node in shared or x in taken or last.get(x) != at or readers[x] != 1:
                    continue
                if node in within or x in within:
                    continue
                if orders[node] != orders[x] or tuple(map(int, node.shape)) != tuple(map(int, x.shape)):
                    continue
                if node in outputs and x in donatable and identical(outputs[node], x.shape):
                    reused[node] = x
                elif share and node not in outputs and x not in outputs and not x.op.is_leaf:
                    shared[node] = shared.get(x, x)
                elif (
                    share and s.copies and node in outputs and x not in outputs and not x.op.is_leaf and x not in shared
                ):
                    shared[x] = node
                else:
                    continue
                taken.add(x)
    return reused, shared
