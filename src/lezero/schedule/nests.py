"""Loops over what a kernel computes, and the statements inside them.

Adjacent dimensions that every access crosses in one stride become one loop, so that a contiguous element-wise kernel is a
single loop over all elements whatever the shape, and equal computations on different shapes share a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from lezero.codegen.launch import MOST_ELEMENTS
from lezero.graph.dim import Dim, same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.schedule.group import Group
from lezero.schedule.groups import Grouping
from lezero.schedule.index import Ix, Var
from lezero.schedule.layout import linear
from lezero.schedule.lowered import Lowered
from lezero.schedule.reads import reshaped
from lezero.schedule.values import Values

CUT = 1 << 8
"""Iterations in a block of a loop that is too long for one task, at the least."""
BLOCK = 32
"""Numbers added up one after the other in a column, before sums of such blocks are."""
ROW_BLOCK = 1 << 12
"""Numbers added up in the lanes of vectors along a row, before sums of such blocks are."""
WRITTEN_OUT = 9
"""Iterations up to which short reductions have no loop: windows of 2 x 2 and 3 x 3."""


@dataclass
class Segment:
    """A loop over one variable or several adjacent ones taken together."""

    var: Var
    members: list[Var]
    begin: ir.Value | None = None  # of a block of it: where it begins, and of how many iterations it is
    size: int = 0


def in_block(at: ir.Value, size: int = BLOCK) -> ir.Value:
    """What is `at` in the first block of ``Nests._in_blocks``, in that of now."""
    return ir.call("add", at, ir.call("mul", ir.var("block"), ir.const(size)))


def row_block(reduced: list[Segment]) -> tuple[int, int]:
    """Which of the nested loops over a row to take in blocks, so that each has some `ROW_BLOCK` elements, and of how many
    iterations: the innermost within which there are enough, -1 where there are not."""
    inside = 1
    for k in range(len(reduced) - 1, -1, -1):
        extent = reduced[k].var.extent
        if type(extent) is Dim or extent * inside > ROW_BLOCK:
            return k, max(1, ROW_BLOCK // inside)
        inside = max(1, inside * int(extent))
    return -1, max(1, ROW_BLOCK // inside)


class Nests(Values):
    """Segments, nests of loops over them, what is stored and reduced inside, and what may be computed in place."""

    def __init__(self, group: Group, grouping: Grouping, stored: set[Node], of: Group | None = None):
        super().__init__(group, grouping, stored, of)
        self.written: dict[Node, Any] = {}  # where each result is stored
        self.stages: dict[int, set[Node]] = {}  # what each stage of a reduction reads
        self.read_by: dict[Node, set[Node]] = {}  # what has been read when a result is stored

    def _everything(self) -> None:
        group = self.group
        for n in group.nodes:
            if n.op.kind == "reduce":
                x = n.inputs[0]
                self.value(x, self._input_position(n))
                if n.op.reduction in ir.POSITIONS:
                    self._pin(self._where(n))
                if n in group.outer:
                    continue
            if n in self.stored and n not in group.outer:
                self._store_index(n)
                self.value(n, group.index[n])

    def _input_position(self, node: Node) -> tuple[Ix, ...]:
        group, x = self.group, node.inputs[0]
        if node in group.outer:
            kept = self._kept()
            return reshaped(tuple(v.extent for v in kept), tuple(Ix.of(v) for v in kept), x.shape)
        return reshaped(group.shape, tuple(Ix.of(v) for v in group.variables), x.shape)

    def _where(self, node: Node) -> Ix:
        """The position an argmax reports."""
        x, axes = node.inputs[0], node.attrs[0]
        at = self._input_position(node)
        if len(axes) == 1:
            return at[axes[0]]
        total = Ix.of(0)
        for p, d in zip(at, x.shape):
            total = total * d + p
        return total

    def _kept(self) -> list[Var]:
        return [v for v in self.group.variables if v.name not in (self.group.reduced or ())]

    def _store_index(self, node: Node) -> Ix:
        at = linear(self.group.index[node], node.shape, self.grouping.orders[node])
        if at.affine() is None:
            self._pin(at)
        else:
            self.linears.append(at)
        return at

    # -- loops -------------------------------------------------------------------------------------------------

    def _segments(self) -> list[Segment]:
        """Loop variables, with those taken together that every access crosses in one stride."""
        reduced = self.group.reduced or frozenset()
        variables = [v for v in self.order if not same(v.extent, 1)]
        # kept variables outside, reduced ones inside: only neighbours of one kind merge
        maps = [ix.affine() or {} for ix in self.linears]
        partial_kept = [v for v in variables if v.name not in reduced]
        out: list[Segment] = []
        for kind in (partial_kept, [v for v in variables if v.name in reduced]):
            run: list[Segment] = []
            for v in kind:
                if run and self._mergeable(run[-1], v, maps):
                    last = run[-1]
                    run[-1] = Segment(Var(f"{last.var.name}_{v.name}", last.var.extent * v.extent), [*last.members, v])
                else:
                    run.append(Segment(v, [v]))
            out += run
        return out

    def _mergeable(self, segment: Segment, v: Var, maps: list[dict[str, int]]) -> bool:
        last = segment.members[-1]
        if last.name in self.pinned or v.name in self.pinned:
            return False
        return all(same(m.get(last.name, 0), m.get(v.name, 0) * v.extent) for m in maps)

    def _reset(self, segments: list[Segment]) -> None:
        self.memo.clear()
        self.params.values.clear()
        self.params._numbers.clear()
        self.buffers.clear()
        self.types.clear()
        self.rename = {}
        for s in segments:
            if len(s.members) > 1:
                for m in s.members[:-1]:
                    self.rename[m.name] = None
                self.rename[s.members[-1].name] = Ix.of(s.var)

    def _split_segments(self, segments: list[Segment]) -> tuple[list[Segment], list[Segment]]:
        reduced = self.group.reduced or frozenset()
        return (
            [s for s in segments if s.members[0].name not in reduced],
            [s for s in segments if s.members[0].name in reduced],
        )

    def _innermost_is_kept(self, kept: list[Segment], reduced: list[Segment]) -> bool:
        order = [v.name for v in self.order]
        last = lambda ss: max((order.index(s.members[-1].name) for s in ss), default=-1)
        return last(kept) > last(reduced)

    def _flat(self, segments: list[Segment], name: str) -> tuple[str, int, dict[str, ir.Value]]:
        """One loop over several segments: its variable, its extent, and the segments' variables in terms of it."""
        if len(segments) == 1:
            return segments[0].var.name, segments[0].var.extent, {}
        total = prod(s.var.extent for s in segments)
        left = ir.var(name)
        bound: dict[str, ir.Value] = {}
        for i, s in enumerate(reversed(segments)):
            extent = self.params.value(s.var.extent)
            last = i == len(segments) - 1
            bound[s.var.name] = left if last else ir.call("mod", left, extent)
            if not last:
                left = ir.call("floordiv", left, extent)
        return name, total, bound

    def _rows(
        self, segments: list[Segment], inside: int = 1, inner: int = 0
    ) -> tuple[str, int, dict[str, ir.Value], list[Segment]]:
        """The task loop over the outermost segments, as few as give every thread work, and the segments to nest inside.

        Recovering several variables from one costs a division per row, which short rows would notice.  Where rows are long,
        the task loop also goes over blocks of the next segment.

        Parameters
        ----------
        inside : elements of a loop inside all segments
        inner : how many of the last segments are nested in any case
        """
        extents = [int(s.var.extent) for s in segments]
        count = 1
        while count < len(segments) - inner:
            step = prod(extents[count + 1 :]) * inside
            if prod(extents[:count]) >= 8 * self.grouping.threads and step <= MOST_ELEMENTS:
                break
            count += 1
        outer, nested = segments[:count], segments[count:]
        if not nested or prod(extents[count:]) * inside <= MOST_ELEMENTS:
            name, total, bound = self._flat(outer, "row")
            return name, total, bound, nested
        whole, step = nested[0].var, prod(extents[count + 1 :]) * inside
        size = max(CUT, 1 << (MOST_ELEMENTS // max(1, step)).bit_length() >> 1)
        blocks = Var(f"{whole.name}_block", (whole.extent + (size - 1)) // size)
        name, total, bound = self._flat([*outer, Segment(blocks, [])], "row")
        begin = ir.call("mul", bound[blocks.name], ir.const(size))
        part = Segment(Var(f"{whole.name}_part", whole.extent), nested[0].members, begin, size)
        bound[whole.name] = ir.call("add", begin, ir.var(part.var.name))
        return name, total, bound, [part, *nested[1:]]

    def _extent(self, segment: Segment) -> ir.Value:
        """How many iterations the loop over a segment has."""
        extent = self.params.value(segment.var.extent)
        if segment.begin is None:
            return extent
        return ir.call("min", ir.call("sub", extent, segment.begin), ir.const(segment.size))

    def _nest(self, segments: list[Segment], body: list[ir.Stmt], vector: bool) -> list[ir.Stmt]:
        """Loops over segments, the innermost a vector loop if asked for."""
        for i, s in enumerate(reversed(segments)):
            body = [ir.Loop(s.var.name, self._extent(s), body, vector=vector and i == 0)]
        return body

    def _short_nest(self, segments: list[Segment], body: list[ir.Stmt]) -> list[ir.Stmt]:
        """Loops over segments, written out if that is a window of pooling or the like."""
        extents = [s.var.extent for s in segments]
        if any(type(d) is Dim for d in extents) or prod(extents) > WRITTEN_OUT:
            return self._nest(segments, body, vector=False)
        for s in reversed(segments):
            body = [ir.Loop(s.var.name, ir.const(int(s.var.extent)), body, unroll=True)]
        return body

    def _in_blocks(
        self,
        length: ir.Value,
        reduces: list[Node],
        inner: list[ir.Stmt],
        size: int = BLOCK,
        var: str = "c",
        vector: bool = False,
    ) -> list[ir.Stmt]:
        """A loop over `var` in blocks, with sums that begin anew in each: adding up a long column one number after
        the other loses digits."""
        sums = {self._acc(n): self._acc_type(n) for n in reduces if n.op.reduction == "sum"}

        def renamed(s: ir.Stmt) -> ir.Stmt:
            if isinstance(s, ir.Loop):
                return ir.Loop(s.var, s.extent, [renamed(x) for x in s.body], s.vector, s.task, s.unroll)
            if isinstance(s, ir.Reduce) and s.acc in sums:
                return ir.Reduce(s.acc + "b", s.kind, s.value)
            return s

        count = ir.call("floordiv", ir.call("add", length, ir.const(size - 1)), ir.const(size))
        left = ir.call("sub", length, ir.call("mul", ir.var("block"), ir.const(size)))
        body: list[ir.Stmt] = [ir.Acc(name + "b", type, start("sum", type)) for name, type in sums.items()]
        body.append(ir.Loop(var, ir.call("min", left, ir.const(size)), [renamed(s) for s in inner], vector=vector))
        body += [ir.Reduce(name, "sum", ir.acc(name + "b", type)) for name, type in sums.items()]
        return [ir.Loop("block", count, body)]

    # -- statements --------------------------------------------------------------------------------------------

    def _stores(self, nodes: list[Node]) -> list[ir.Stmt]:
        out: list[ir.Stmt] = []
        for n in nodes:
            value = self.value(n, self.group.index[n])
            at = linear(self.group.index[n], n.shape, self.grouping.orders[n])
            self.written[n] = at.key
            index = self._index(at)
            k = self.buffer(n, n.dtype.code, "w")
            out.append(ir.Store(k, index, self.rounding.narrow(value, n.dtype.code)))
        return out

    def _reduces(self, nodes: list[Node]) -> list[ir.Stmt]:
        return [self._reduce(n) for n in nodes]

    def _reduce(self, n: Node) -> ir.Reduce:
        kind = n.op.reduction
        value = self.value(n.inputs[0], self._input_position(n))
        if kind in ir.POSITIONS:
            index = self.emit.ix(self._renamed(self._where(n)))
            return ir.Reduce(self._acc(n) + "v", kind, value, self._acc(n), index)
        return ir.Reduce(self._acc(n), kind, ir.cast(value, self._acc_type(n)))

    def _accs(self, nodes: list[Node]) -> list[ir.Stmt]:
        out: list[ir.Stmt] = []
        for n in nodes:
            kind = n.op.reduction
            if kind in ir.POSITIONS:
                type = compute_code(n.inputs[0].dtype)
                out.append(ir.Acc(self._acc(n) + "v", type, start(ir.POSITIONS[kind], type)))
                out.append(ir.Acc(self._acc(n), "i64", ir.const(0)))
            else:
                out.append(ir.Acc(self._acc(n), self._acc_type(n), start(kind, self._acc_type(n))))
        return out

    def _by_stage(self) -> list[tuple[list[Node], list[Node]]]:
        """For each stage (full values to store, reductions to do)."""
        group = self.group
        last = max((group.level[n] for n in group.nodes if n not in group.outer), default=0)
        stages = []
        for s in range(last + 1):
            stores = [n for n in self.stored if n not in group.row and n not in group.outer and group.level[n] == s]
            reduces = [
                n for n in group.nodes if n.op.kind == "reduce" and n not in group.outer and group.level[n] == s + 1
            ]
            stages.append((stores, reduces))
        return stages

    def _stage(self, number: int, stores: list[Node], body: list[ir.Stmt]) -> list[ir.Stmt]:
        """Note what a stage reads, element by element, up to each of its stores and altogether."""
        read: set[Node] = set()
        stored = iter(stores)
        for s in body:
            if isinstance(s, ir.Reduce | ir.Store):
                read |= self._arrays(s.value)
            if isinstance(s, ir.Store) and s.buffer >= 0:  # scratch is numbered downwards
                self.read_by[next(stored)] = set(read)
        self.stages[number] = read
        return body

    def _arrays(self, value: ir.Value) -> set[Node]:
        """The arrays a value is loaded from."""
        names = list(self.buffers)
        found: set[Node] = set()
        seen: set[ir.Value] = set()
        todo = [value]
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v.op == "load" and v.attr >= 0:  # scratch is numbered downwards
                found.add(names[v.attr])
            todo.extend(v.args)
        return found

    def _in_place(self) -> tuple[tuple[Node, Node], ...]:
        """(result, input) where the result may take the input's memory.

        The input is only read at the element that is written, and has been read when that is: a value is loaded once in an
        iteration, so stores that follow use what was loaded.  Earlier stages of a reduction are done with a row before the
        next begins, and no later one reads it.
        """
        pairs = []
        for n, read in self.read_by.items():
            level = self.group.level[n]
            still = (self.stages[level] - read).union(*(arrays for s, arrays in self.stages.items() if s > level))
            read = read.union(*(arrays for s, arrays in self.stages.items() if s < level)) - still
            pairs += [
                (n, x) for x, at in self.loaded.items() if x in read and x.dtype is n.dtype and at == {self.written[n]}
            ]
        return tuple(pairs)

    def _finish(self, body: list[ir.Stmt], work: int, limit: int, **more: Any) -> Lowered:
        name = ".".join(dict.fromkeys(n.op.name for n in self.group.nodes if n.op.name not in ("cast", "constant")))
        more["in_place"] = self._in_place()
        kernel = ir.Kernel(
            name[:60] or "copy",
            tuple(ir.Buffer(t, m) for t, m in self.types),
            len(self.params.values),
            body,
            more.pop("combine", None),
            more.pop("scratch", ()),
        )
        return Lowered(
            kernel,
            list(self.buffers),
            list(self.params.values),
            work,
            limit,
            more.pop("partials", []),
            **more,
        )


def start(kind: str, type: str) -> ir.Value:
    """What a reduction starts from."""
    if kind == "sum":
        return ir.const(0, type)
    if kind == "prod":
        return ir.const(1, type)
    if kind in ("any", "all"):
        return ir.const(kind == "all", "bool")
    if type == "bool":
        return ir.const(kind == "min", "bool")
    if type[0] == "f":
        return ir.const(float("-inf") if kind == "max" else float("inf"), type)
    bits = int(type[1:])
    if type[0] == "u":
        return ir.const(0 if kind == "max" else (1 << bits) - 1, type)
    return ir.const(-(1 << (bits - 1)) if kind == "max" else (1 << (bits - 1)) - 1, type)
