"""From a group of nodes to a kernel in loop IR, in one of four styles.

Everything a group computes is an expression of its loop variables (``values.py``), in nests of loops (``nests.py``); the styles
say which loops are tasks, which are vectors, and where reductions are done.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from lezero.graph.dim import Dim
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.schedule.group import Group
from lezero.schedule.groups import Grouping
from lezero.schedule.guards import guarded
from lezero.schedule.index import Ix
from lezero.schedule.lowered import Lowered
from lezero.schedule.nests import BLOCK, Nests, Segment, in_block, row_block, start
from lezero.schedule.splitting import split

COSTLY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "erfc sigmoid pow lgamma digamma atan2".split()
)


def lower(group: Group, grouping: Grouping, stored: set[Node]) -> Lowered:
    return Lowering(group, grouping, stored).build()


class Lowering(Nests):
    """A group's kernel."""

    def build(self) -> Lowered:
        self._everything()  # a first time, to see every access
        if self.order == list(self.group.variables) and (other := split(self.group, self.nonlinear)):
            return Lowering(other, self.grouping, self.all_stored, self.of).build()
        segments = self._segments()
        self._reset(segments)
        style = self.group.style if self.group.reduced is not None else "plain"
        result = getattr(self, "_" + style)(segments)
        return result

    def _plain(self, segments: list[Segment]) -> Lowered:
        """Element-wise: rows as tasks, vectors along the innermost segment."""
        work = prod(v.extent for v in self.group.variables)
        if not segments:
            return self._finish(self._stage(0, self.stored, self._stores(self.stored)), 1, 1)
        *outer, inner = segments
        if not outer:
            body: list[ir.Stmt] = [
                ir.Loop(
                    inner.var.name,
                    self.params.value(inner.var.extent),
                    self._stage(0, self.stored, self._stores(self.stored)),
                    vector=True,
                    task=True,
                )
            ]
            return self._finish(body, work, work)
        name, extent, bound, nested = self._rows(segments, inner=1)
        self.emit.bound = bound
        nest = self._nest(nested, self._stage(0, self.stored, self._stores(self.stored)), vector=True)
        return self._finish([ir.Loop(name, self.params.value(extent), nest, task=True)], work, extent)

    # -- reductions --------------------------------------------------------------------------------------------

    def _row(self, segments: list[Segment]) -> Lowered:
        """One row after the other, vectors along the reduced dimensions."""
        group = self.group
        kept, reduced = self._split_segments(segments)
        bound: dict[str, ir.Value] = {}
        name, extent = "row", 1
        nested: list[Segment] = []
        if kept:
            name, extent, bound, nested = self._rows(kept, inside=int(prod(s.var.extent for s in reduced)))
        blocked, size = row_block(reduced)
        if blocked >= 0:
            bound[reduced[blocked].var.name] = in_block(ir.var("c"), size)
        self.emit.bound = bound
        body: list[ir.Stmt] = []
        cached = self._plan_scratch(reduced)
        for s, (stores, reduces) in enumerate(self._by_stage()):
            if not stores and not reduces and not cached.get(s):
                continue
            body += self._accs(reduces)
            inner: list[ir.Stmt] = []
            for n in cached.get(s, []):
                inner.append(self._to_scratch(n, reduced))
            inner = self._stage(s, stores, inner + self._reduces(reduces) + self._stores(stores))
            if reduced:
                body += self._row_nest(reduced, inner, reduces, blocked, size)
            else:
                body += inner
        self.memo.clear()
        body += self._stores([n for n in self.stored if n in group.row])
        work = prod(v.extent for v in group.variables)
        return self._with_outer(name, extent, self._nest(nested, body, vector=False), work, inner=body)

    def _row_nest(
        self,
        reduced: list[Segment],
        inner: list[ir.Stmt],
        reduces: list[Node],
        blocked: int,
        size: int,
        var: str = "c",
    ) -> list[ir.Stmt]:
        """Loops over a row, the innermost a vector loop, that of the number `blocked` in blocks over `var`."""
        if blocked < 0:
            return self._nest(reduced, inner, vector=True)
        outer, long, rest = reduced[:blocked], reduced[blocked], reduced[blocked + 1 :]
        inner = self._nest(rest, inner, vector=True)
        inner = self._in_blocks(self._extent(long), reduces, inner, size, var, vector=not rest)
        return self._nest(outer, inner, vector=False)

    def _lane(self, segments: list[Segment]) -> Lowered:
        """Vectors along the kept dimensions, the reduced ones in serial loops: short or strided reductions."""
        group = self.group
        kept, reduced = self._split_segments(segments)
        work = prod(v.extent for v in group.variables)
        if not kept:
            return self._row(segments)
        *outer, inner = kept
        bound: dict[str, ir.Value] = {}
        name, extent = "", 1
        nested: list[Segment] = []
        if outer:
            size = int(prod(s.var.extent for s in reduced))
            name, extent, bound, nested = self._rows(kept, inside=size, inner=1)
        long = next((s for s in reversed(reduced) if type(s.var.extent) is Dim or s.var.extent > BLOCK), None)
        if long is not None:
            bound[long.var.name] = in_block(ir.var("c"))
        self.emit.bound = bound
        body: list[ir.Stmt] = []
        for s, (stores, reduces) in enumerate(self._by_stage()):
            if not stores and not reduces:
                continue
            body += self._accs(reduces)
            inside = self._stage(s, stores, self._reduces(reduces) + self._stores(stores))
            if long is None:
                body += self._short_nest(reduced, guarded(inside, inner.var.name, start))
            else:
                k = reduced.index(long)
                inside = self._in_blocks(
                    self._extent(long), reduces, self._nest(reduced[k + 1 :], inside, vector=False)
                )
                body += self._nest(reduced[:k], inside, vector=False)
        body += self._stores([n for n in self.stored if n in group.row])
        if not outer:
            return self._with_outer(inner.var.name, inner.var.extent, body, work, inner=body, vector=True)
        nest = self._nest(nested, body, vector=True)
        return self._with_outer(name, extent, nest, work, inner=body)

    def _with_outer(
        self, name: str, extent: int, body: list[ir.Stmt], work: int, *, inner: list[ir.Stmt], vector: bool = False
    ) -> Lowered:
        """Put the task loop around, and behind it the partial results of reductions over rows (done in `inner`)."""
        group = self.group
        sums = [n for n in group.nodes if n in group.outer and n.op.kind == "reduce"]
        inner += self._reduces(sums)
        loop = ir.Loop(name, self.params.value(extent), body, task=True, vector=vector)
        if not sums:
            return self._finish_scratch([loop], work, extent)
        whole: list[ir.Stmt] = [*self._accs(sums), loop]
        partials = []
        for k, n in enumerate(sums):
            type = self._acc_type(n)
            b = self.buffer(("partial", k), type, "rw")
            whole.append(ir.Store(b, ir.TASK, ir.acc(self._acc(n), type)))
            partials.append((1, ir.TYPES[type]))
        combine: list[ir.Stmt] = self._accs(sums)
        inside: list[ir.Stmt] = []
        for k, n in enumerate(sums):
            type = self._acc_type(n)
            v = ir.load(self.buffers["partial", k], type, ir.var("t"))
            inside.append(ir.Reduce(self._acc(n), n.op.reduction, v))
        combine.append(ir.Loop("t", self.params.named("tasks"), inside))
        self.memo.clear()
        combine += self._stores([n for n in self.stored if n in group.outer])
        return self._finish_scratch(whole, work, extent, combine=combine, partials=partials)

    # -- what is kept in scratch memory -------------------------------------------------------------------------

    def _plan_scratch(self, reduced: list[Segment]) -> dict[int, list[Node]]:
        """Costly full values used again in a later stage: stage -> nodes to keep in scratch memory."""
        self.scratched.clear()
        group = self.group
        if len(reduced) != 1:
            return {}
        out: dict[int, list[Node]] = {}
        for n in group.nodes:
            if n in group.row or n in group.outer or n.op.name not in COSTLY or n.dtype.is_complex:
                continue
            users = [m for m in self.grouping.users.get(n, ()) if self.grouping.group_of.get(m) is self.of]
            # a reduction of level s+1 reads in stage s
            stages = {group.level[m] - (m.op.kind == "reduce") for m in self._downstream(users)}
            if any(s > group.level[n] for s in stages):
                out.setdefault(group.level[n], []).append(n)
        return out

    def _downstream(self, users: list[Node]) -> list[Node]:
        """Users and what is computed from them in the same iteration."""
        group = self.group
        seen: set[Node] = set()
        todo = list(users)
        while todo:
            n = todo.pop()
            if n in seen or self.grouping.group_of.get(n) is not self.of:
                continue
            seen.add(n)
            if n not in group.row:
                todo += self.grouping.users.get(n, ())
        return [n for n in seen if n not in group.outer]

    def _to_scratch(self, node: Node, reduced: list[Segment]) -> ir.Stmt:
        value = self.value(node, self.group.index[node])
        number_ = len(self.scratched)
        index = (
            self.emit.ix(self._renamed(Ix.of(reduced[0].members[-1])))
            if len(reduced[0].members) > 1
            else self.emit.bound.get(reduced[0].var.name, ir.var(reduced[0].var.name))
        )
        self.scratched[node] = (number_, index)
        self.memo.clear()
        # scratch arrays are numbered behind the buffers; the numbers are put right in _finish_scratch
        return ir.Store(-1 - number_, index, value)

    def _finish_scratch(self, body: list[ir.Stmt], work: int, limit: int, **more: Any) -> Lowered:
        if self.scratched:
            reduced = self.group.reduced or frozenset()
            length = self.params.value(prod(v.extent for v in self.group.variables if v.name in reduced))
            more["scratch"] = tuple(
                ir.Scratch(compute_code(n.dtype), length)
                for n, _ in sorted(self.scratched.items(), key=lambda t: t[1][0])
            )
            body = _renumber(body, len(self.types))
        return self._finish(body, work, limit, **more)

    # -- partial results ---------------------------------------------------------------------------------------

    def _split(self, segments: list[Segment]) -> Lowered:
        """Long reductions: each task reduces a stretch of the outermost reduced dimension, then partial results are combined."""
        group = self.group
        kept, reduced = self._split_segments(segments)
        ((stores, reduces),) = [s for s in self._by_stage() if s[1]][:1] or [([], [])]
        work = prod(v.extent for v in group.variables)
        count = prod(s.var.extent for s in kept)
        first, rest = (reduced[0], reduced[1:]) if reduced else (None, [])
        inner_kept = bool(kept) and self._innermost_is_kept(kept, reduced)
        bound: dict[str, ir.Value] = {}
        blocked, size = row_block(rest)
        if first is not None:
            n = self.params.value(first.var.extent)
            chunk = ir.call("floordiv", ir.call("add", n, ir.call("sub", ir.TASKS, ir.const(1))), ir.TASKS)
            begin = ir.call("mul", ir.TASK, chunk)
            length = ir.call("max", ir.call("min", chunk, ir.call("sub", n, begin)), ir.const(0))
            at = ir.call("add", begin, ir.var("c"))
            if inner_kept:
                at = in_block(at)
            elif blocked < 0:
                at = in_block(at, size)
            else:
                bound[rest[blocked].var.name] = in_block(ir.var("i"), size)
            bound[first.var.name] = at
        else:
            length = ir.call("max", ir.call("sub", ir.const(1), ir.TASK), ir.const(0))
        self.emit.bound = bound
        inner = self._stage(0, stores, self._reduces(reduces) + self._stores(stores))
        if inner_kept:
            body = self._accs(reduces) + self._in_blocks(length, reduces, self._nest(rest, inner, vector=False))
        elif blocked < 0:
            loops = self._in_blocks(length, reduces, self._nest(rest, inner, vector=True), size, vector=not rest)
            body = [*self._accs(reduces), *loops]
        else:
            loops = self._row_nest(rest, inner, reduces, blocked, size, "i")
            body = [*self._accs(reduces), ir.Loop("c", length, loops)]
        place = self._partial_index(kept)
        partials = []
        for k, n_ in enumerate(reduces):
            for j, (name, type) in enumerate(self._acc_parts(n_)):
                b = self.buffer(("partial", 2 * k + j), type, "rw")
                at = ir.call("add", ir.call("mul", ir.TASK, self.params.value(count)), place)
                body.append(ir.Store(b, at, ir.acc(name, type)))
                partials.append((count, ir.TYPES[type]))
        for i, s in enumerate(reversed(kept)):
            body = [ir.Loop(s.var.name, self.params.value(s.var.extent), body, vector=inner_kept and i == 0)]
        return self._finish(
            body, work, first.var.extent if first is not None else 1, partials=partials, combine=self._combine(kept, reduces, count),
            combine_limit=2 if kept else 1,
        )  # fmt: skip

    def _acc_parts(self, n: Node) -> list[tuple[str, str]]:
        if n.op.reduction in ir.POSITIONS:
            return [(self._acc(n) + "v", compute_code(n.inputs[0].dtype)), (self._acc(n), "i64")]
        return [(self._acc(n), self._acc_type(n))]

    def _partial_index(self, kept: list[Segment]) -> ir.Value:
        place: ir.Value = ir.const(0)
        for s in kept:
            place = ir.call("add", ir.call("mul", place, self.params.value(s.var.extent)), ir.var(s.var.name))
        return place

    def _combine(self, kept: list[Segment], reduces: list[Node], count: int) -> list[ir.Stmt]:
        self.memo.clear()
        self.emit.bound = {}
        inside: list[ir.Stmt] = []
        place = self._partial_index(kept)
        at = ir.call("add", ir.call("mul", ir.var("t"), self.params.value(count)), place)
        for k, n in enumerate(reduces):
            parts = self._acc_parts(n)
            loads = [ir.load(self.buffers["partial", 2 * k + j], type, at) for j, (_, type) in enumerate(parts)]
            if len(parts) == 2:
                inside.append(ir.Reduce(parts[0][0], n.op.reduction, loads[0], parts[1][0], loads[1]))
            else:
                inside.append(ir.Reduce(parts[0][0], n.op.reduction, loads[0]))
        body: list[ir.Stmt] = [*self._accs(reduces), ir.Loop("t", self.params.named("tasks"), inside)]
        body += self._stores([n for n in self.stored if n in self.group.row])
        for i, s in enumerate(reversed(kept)):
            one = len(kept) == 1
            body = [
                ir.Loop(
                    s.var.name, self.params.value(s.var.extent), body, vector=i == 0, task=one or i == len(kept) - 1
                )
            ]
        return body


def _renumber(body: list[ir.Stmt], buffers: int) -> list[ir.Stmt]:
    """Scratch arrays, numbered -1, -2, … while the buffers were not all known, behind the buffers."""
    memo: dict[ir.Value, ir.Value] = {}

    def value(v: ir.Value) -> ir.Value:
        if v in memo:
            return memo[v]
        attr = buffers - 1 - v.attr if v.op == "load" and v.attr < 0 else v.attr
        memo[v] = ir.Value(v.op, v.type, tuple(value(a) for a in v.args), attr)
        return memo[v]

    return [_map(s, value, buffers) for s in body]


def _map(s: ir.Stmt, value: Callable[[ir.Value], ir.Value], buffers: int) -> ir.Stmt:
    if isinstance(s, ir.Loop):
        return ir.Loop(s.var, value(s.extent), [_map(x, value, buffers) for x in s.body], s.vector, s.task, s.unroll)
    if isinstance(s, ir.Acc):
        return ir.Acc(s.name, s.type, value(s.init))
    if isinstance(s, ir.Reduce):
        return ir.Reduce(s.acc, s.kind, value(s.value), s.index_acc, None if s.index is None else value(s.index))
    if isinstance(s, ir.Assign):
        return ir.Assign(s.acc, value(s.value))
    k = buffers - 1 - s.buffer if s.buffer < 0 else s.buffer
    return ir.Store(k, value(s.index), value(s.value), None if s.mask is None else value(s.mask), s.add)
