"""From a group of nodes to a kernel in loop IR.

Everything a group computes is an expression of its loop variables; what is read from memory becomes a load at a linear
index.  Adjacent dimensions that every access crosses in one stride become one loop, so that a contiguous element-wise
kernel is a single loop over all elements whatever the shape, and equal computations on different shapes share a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from lezero.codegen.launch import MOST_ELEMENTS, divided
from lezero.graph.dim import Dim, evaluate, same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.schedule.groups import Group, Grouping, loop_order, pieces, reshaped
from lezero.schedule.guards import guarded
from lezero.schedule.index import Emit, Ix, Mask, Params, Var, read_key, within
from lezero.schedule.layout import linear
from lezero.schedule.rounding import HALF, Rounding
from lezero.schedule.splitting import split

GRAIN = 16_384
"""Elements a task should have at least; smaller kernels run on one thread."""
PART = 1 << 15
"""Elements behind a partial result at least: a few microseconds of work, so that it does not matter that parts are many."""
ROWS_OF_PART = 16
"""Rows behind a partial row at least, so that writing and adding up the partial rows is little beside reading the rows."""
PARTS = 64
"""Partial results, unless a part would be too long for one task: how many there are shows in the bits of a sum."""
CUT = 1 << 8
"""Iterations in a block of a loop that is too long for one task, at the least."""
BLOCK = 32
"""Numbers added up one after the other in a column, before sums of such blocks are."""
WRITTEN_OUT = 9
"""Iterations up to which short reductions have no loop: windows of 2 x 2 and 3 x 3."""
COSTLY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "erfc sigmoid pow lgamma digamma atan2".split()
)


@dataclass
class Lowered:
    """A kernel and what it is called with.

    operands : nodes, in the order of the kernel's buffers; ("partial", k) for the k-th array of partial results
    params : extents (int or Dim), evaluated for each run's extents; "tasks" is the number of tasks of the body,
        "round" how many times the kernel was launched before
    partials : arrays of partial results; `tasks` says how many there are of each element
    """

    kernel: ir.Kernel
    operands: list[Any]
    params: list[int]
    work: int  # elements, an extent expression
    limit: int  # most tasks that make sense, an extent expression
    partials: list[tuple[int, int]]  # (elements for each task, bytes of one)
    combine_limit: int = 1
    rounds: Callable[[Sequence[int]], int] = lambda bindings: 1  # how many times it is launched
    in_place: tuple[tuple[Node, Node], ...] = ()  # (stored node, input whose memory it may take)
    copies: tuple[Node, Node] | None = None  # (stored node, input): nothing to do where it has taken that memory
    part: tuple[Node, Node, int] | None = None  # (stored node, input, from which element on it is that): likewise

    def tasks(self, threads: int, bindings: Sequence[int]) -> tuple[int, int]:
        """(tasks, combine tasks) for given extents."""
        work, limit = number(self.work, bindings), number(self.limit, bindings)
        if not self.partials:
            if not limit:
                return 0, 0
            return divided(limit, min(4 * threads, work // GRAIN), work, MOST_ELEMENTS), 0
        # A sum's bits depend on where it is cut: that follows from the sizes alone.
        kept = number(self.partials[0][0], bindings)
        tasks = divided(limit, min(PARTS, work // max(PART, kept * ROWS_OF_PART)), work, MOST_ELEMENTS)
        if self.combine_limit == 1:
            return tasks, 1
        return tasks, divided(kept, min(threads, kept * tasks // GRAIN), kept * tasks, MOST_ELEMENTS)


def number(d: int, bindings: Sequence[int]) -> int:
    """An extent for given values of the symbols."""
    return evaluate(d.expr, bindings) if type(d) is Dim else int(d)


def lower(group: Group, grouping: Grouping, stored: set[Node]) -> Lowered:
    return Lowering(group, grouping, stored).build()


@dataclass
class _Segment:
    """A loop over one variable or several adjacent ones taken together."""

    var: Var
    members: list[Var]
    begin: ir.Value | None = None  # of a block of it: where it begins, and of how many iterations it is
    size: int = 0


def _in_block(at: ir.Value) -> ir.Value:
    """What is `at` in the first block of ``Lowering._in_blocks``, in that of now."""
    return ir.call("add", at, ir.call("mul", ir.var("block"), ir.const(BLOCK)))


class Lowering:
    def __init__(self, group: Group, grouping: Grouping, stored: set[Node], of: Group | None = None):
        """`group` may be another form of the group `of` that the grouping knows."""
        self.group, self.grouping, self.of = group, grouping, of or group
        self.all_stored = stored
        self.stored = [n for n in group.nodes if n in stored]
        self.order = loop_order(group.nodes, group, grouping.orders)
        self.params = Params()
        self.buffers: dict[Any, int] = {}
        self.types: list[tuple[str, str]] = []
        self.linears: list[Ix] = []
        self.pinned: set[str] = set()
        self.nonlinear: list[Ix] = []  # what the pinned variables occur in
        self.rename: dict[str, Ix | None] = {}
        self.emit = Emit(self.params, self._read)
        self.rounding = Rounding()
        self.memo: dict[Any, ir.Value] = {}
        self.readable: dict[Any, ir.Value | None] = {}  # elements of index tensors: the mask they exist behind
        self.scratched: dict[Node, tuple[int, ir.Value]] = {}
        self.loaded: dict[Node, set[Any]] = {}  # where each array is read
        self.written: dict[Node, Any] = {}  # where each result is stored
        self.stages: dict[int, set[Node]] = {}  # what each stage of a reduction reads
        self.read_by: dict[Node, set[Node]] = {}  # what has been read when a result is stored

    # -- values ------------------------------------------------------------------------------------------------

    def buffer(self, what: Any, type: str, mode: str = "r") -> int:
        if what not in self.buffers:
            self.buffers[what] = len(self.types)
            self.types.append((type, mode))
        return self.buffers[what]

    def value(self, node: Node, position: tuple[Ix, ...], mask: ir.Value | None = None) -> ir.Value:
        """A node's element at a position, in the type that computes for its dtype.

        Behind a mask the position need only exist where that holds, and nothing is read from memory elsewhere.
        """
        if self.grouping.group_of.get(node) is self.of:
            mask = None  # members are read where the kernel computes them, which is in range
        key = (node, tuple(p.key for p in position), mask)
        have = self.memo.get(key)
        if have is None:
            have = self.memo[key] = self._value(node, position, mask)
        return have

    def _value(self, node: Node, position: tuple[Ix, ...], mask: ir.Value | None) -> ir.Value:
        member = self.grouping.group_of.get(node) is self.of
        if member and node.op.kind == "reduce":
            return self._rounded(ir.acc(self._acc(node), self._acc_type(node)), node)
        if node in self.scratched:
            return self._from_scratch(node)
        if not member and not (node.op.kind == "view" and node not in self.grouping.group_of):
            if node.op.kind == "leaf" or not self.grouping.inline(node):
                return self._load(node, position, mask)
        if node.op.kind == "view":
            return self._view(node, position, mask)
        if node.op.kind == "source":
            return self._source(node, position)
        return self._element(
            node, [self.value(x, position if x.ndim == len(position) else (), mask) for x in node.inputs]
        )

    def _element(self, node: Node, args: list[ir.Value]) -> ir.Value:
        element = node.op.element
        assert element is not None, node.op.name
        return self._rounded(_typed(element(*args, **self._attrs(node)), node), node)

    def _rounded(self, value: ir.Value, node: Node) -> ir.Value:
        """Half precision computes in f32; every operation's result is rounded, whatever it is fused with."""
        return self.rounding.rounded(value, node.dtype.code) if node.dtype.code in HALF else value

    def _attrs(self, node: Node) -> dict[str, Any]:
        return {k: self._extents(v) for k, v in node.named_attrs().items()}

    def _extents(self, v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(self._extents(x) for x in v)
        return self.params.value(v) if type(v) is Dim else v

    def _source(self, node: Node, position: tuple[Ix, ...]) -> ir.Value:
        element = node.op.element
        assert element is not None, node.op.name
        at: tuple[Any, ...] = ()
        if node.op.name not in ("full", "constant"):
            for p in position:
                self._pin(p)
            at = tuple(self.emit.ix(self._renamed(p)) for p in position)
        shape = tuple(self.params.value(d) for d in node.shape) if at else tuple(node.shape)
        inputs = [self.value(x, ()) for x in node.inputs]
        return self._rounded(_typed(element(at, shape, node.dtype, *inputs, **self._attrs(node)), node), node)

    def _view(self, node: Node, position: tuple[Ix, ...], outer: ir.Value | None) -> ir.Value:
        """The pieces of a view, each behind its mask, and all of them behind `outer`."""
        result: ir.Value | None = None
        fill = dict(node.named_attrs()).get("fill", 0)
        code = compute_code(node.dtype)
        parts = pieces(node, position)
        if not parts:
            return ir.const(fill, code)
        before = self.readable
        asked = [ix for _, at, mask in parts for ix in (*at, *(mask.indices() if mask else ()))]
        here = dict.fromkeys((key for ix in asked for key in ix.reads()), outer)
        self.readable = {**before, **here} if outer is None else {**here, **before}
        for k, at, mask in reversed(parts):
            if mask is None:
                result = self.value(node.inputs[k], at, outer)
                continue
            condition = self._condition(mask)
            both = condition if outer is None else ir.call("and", outer, condition)
            otherwise = result if result is not None else ir.const(fill, code)
            result = ir.call("where", condition, self.value(node.inputs[k], at, both), otherwise)
        self.readable = before
        assert result is not None
        return result

    def _condition(self, mask: Mask) -> ir.Value:
        for ix in mask.indices():
            self._pin(ix)
        return self.emit.mask(mask)  # its variables are pinned, so none of them was renamed

    def _load(self, node: Node, position: tuple[Ix, ...], mask: ir.Value | None) -> ir.Value:
        k = self.buffer(node, node.dtype.code)
        at = linear(position, node.shape, self.grouping.orders[node])
        self.loaded.setdefault(node, set()).add(at.key)
        v = ir.load(k, node.dtype.code, self._index(at), mask)
        return ir.cast(v, compute_code(node.dtype))

    def _index(self, at: Ix) -> ir.Value:
        if at.affine() is None:
            self._pin(at)
        else:
            self.linears.append(at)
        return self.emit.ix(self._renamed(at))

    def _read(self, node: Node, position: tuple[Ix, ...]) -> ir.Value:
        """An element of an index tensor, read only where the view that asks for it is read."""
        mask = self.readable.get(read_key(node, position))
        if mask is not None and all(within(p, d) and not any(p.reads()) for p, d in zip(position, node.shape)):
            mask = None  # it exists everywhere
        return ir.cast(self.value(node, position, mask), "i64")

    def _pin(self, ix: Ix) -> None:
        """Variables that occur other than linearly keep their own loops."""
        self.pinned.update(ix.variables())
        self.nonlinear.append(ix)

    def _renamed(self, ix: Ix) -> Ix:
        if not self.rename or not ix.terms:
            return ix
        terms: dict = {}
        out = Ix({}, ix.constant)
        for key, (a, c) in ix.terms.items():
            if isinstance(a, Var) and a.name in self.rename:
                by = self.rename[a.name]
                if by is not None:
                    out = out + by * c
            else:
                terms[key] = (a, c)
        return out + Ix(terms, 0)

    # -- accumulators ------------------------------------------------------------------------------------------

    def _acc(self, node: Node) -> str:
        return f"r{self.group.nodes.index(node)}"

    def _acc_type(self, node: Node) -> str:
        return compute_code(node.dtype)

    # -- loops -------------------------------------------------------------------------------------------------

    def build(self) -> Lowered:
        self._everything()  # a first time, to see every access
        if self.order == list(self.group.variables) and (other := split(self.group, self.nonlinear)):
            return Lowering(other, self.grouping, self.all_stored, self.of).build()
        segments = self._segments()
        self._reset(segments)
        style = self.group.style if self.group.reduced is not None else "plain"
        result = getattr(self, "_" + style)(segments)
        return result

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

    def _segments(self) -> list[_Segment]:
        """Loop variables, with those taken together that every access crosses in one stride."""
        reduced = self.group.reduced or frozenset()
        variables = [v for v in self.order if not same(v.extent, 1)]
        # kept variables outside, reduced ones inside: only neighbours of one kind merge
        maps = [ix.affine() or {} for ix in self.linears]
        partial_kept = [v for v in variables if v.name not in reduced]
        out: list[_Segment] = []
        for kind in (partial_kept, [v for v in variables if v.name in reduced]):
            run: list[_Segment] = []
            for v in kind:
                if run and self._mergeable(run[-1], v, maps):
                    last = run[-1]
                    run[-1] = _Segment(Var(f"{last.var.name}_{v.name}", last.var.extent * v.extent), [*last.members, v])
                else:
                    run.append(_Segment(v, [v]))
            out += run
        return out

    def _mergeable(self, segment: _Segment, v: Var, maps: list[dict[str, int]]) -> bool:
        last = segment.members[-1]
        if last.name in self.pinned or v.name in self.pinned:
            return False
        return all(same(m.get(last.name, 0), m.get(v.name, 0) * v.extent) for m in maps)

    def _reset(self, segments: list[_Segment]) -> None:
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

    def _flat(self, segments: list[_Segment], name: str) -> tuple[str, int, dict[str, ir.Value]]:
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
        self, segments: list[_Segment], inside: int = 1, inner: int = 0
    ) -> tuple[str, int, dict[str, ir.Value], list[_Segment]]:
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
        name, total, bound = self._flat([*outer, _Segment(blocks, [])], "row")
        begin = ir.call("mul", bound[blocks.name], ir.const(size))
        part = _Segment(Var(f"{whole.name}_part", whole.extent), nested[0].members, begin, size)
        bound[whole.name] = ir.call("add", begin, ir.var(part.var.name))
        return name, total, bound, [part, *nested[1:]]

    def _extent(self, segment: _Segment) -> ir.Value:
        """How many iterations the loop over a segment has."""
        extent = self.params.value(segment.var.extent)
        if segment.begin is None:
            return extent
        return ir.call("min", ir.call("sub", extent, segment.begin), ir.const(segment.size))

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

    # -- the styles --------------------------------------------------------------------------------------------

    def _plain(self, segments: list[_Segment]) -> Lowered:
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

    def _split_segments(self, segments: list[_Segment]) -> tuple[list[_Segment], list[_Segment]]:
        reduced = self.group.reduced or frozenset()
        return (
            [s for s in segments if s.members[0].name not in reduced],
            [s for s in segments if s.members[0].name in reduced],
        )

    def _nest(self, segments: list[_Segment], body: list[ir.Stmt], vector: bool) -> list[ir.Stmt]:
        """Loops over segments, the innermost a vector loop if asked for."""
        for i, s in enumerate(reversed(segments)):
            body = [ir.Loop(s.var.name, self._extent(s), body, vector=vector and i == 0)]
        return body

    def _short_nest(self, segments: list[_Segment], body: list[ir.Stmt]) -> list[ir.Stmt]:
        """Loops over segments, written out if that is a window of pooling or the like."""
        extents = [s.var.extent for s in segments]
        if any(type(d) is Dim for d in extents) or prod(extents) > WRITTEN_OUT:
            return self._nest(segments, body, vector=False)
        for s in reversed(segments):
            body = [ir.Loop(s.var.name, ir.const(int(s.var.extent)), body, unroll=True)]
        return body

    def _row(self, segments: list[_Segment]) -> Lowered:
        """One row after the other, vectors along the reduced dimensions."""
        group = self.group
        kept, reduced = self._split_segments(segments)
        bound: dict[str, ir.Value] = {}
        name, extent = "row", 1
        nested: list[_Segment] = []
        if kept:
            name, extent, bound, nested = self._rows(kept, inside=int(prod(s.var.extent for s in reduced)))
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
                body += self._nest(reduced, inner, vector=True)
            else:
                body += inner
        self.memo.clear()
        body += self._stores([n for n in self.stored if n in group.row])
        work = prod(v.extent for v in group.variables)
        return self._with_outer(name, extent, self._nest(nested, body, vector=False), work, inner=body)

    def _plan_scratch(self, reduced: list[_Segment]) -> dict[int, list[Node]]:
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

    def _to_scratch(self, node: Node, reduced: list[_Segment]) -> ir.Stmt:
        value = self.value(node, self.group.index[node])
        number_ = len(self.scratched)
        index = (
            self.emit.ix(self._renamed(Ix.of(reduced[0].members[-1])))
            if len(reduced[0].members) > 1
            else ir.var(reduced[0].var.name)
        )
        self.scratched[node] = (number_, index)
        self.memo.clear()
        # scratch arrays are numbered behind the buffers; the numbers are put right in _finish_scratch
        return ir.Store(-1 - number_, index, value)

    def _from_scratch(self, node: Node) -> ir.Value:
        number_, index = self.scratched[node]
        return ir.load(-1 - number_, compute_code(node.dtype), index)

    def _lane(self, segments: list[_Segment]) -> Lowered:
        """Vectors along the kept dimensions, the reduced ones in serial loops: short or strided reductions."""
        group = self.group
        kept, reduced = self._split_segments(segments)
        work = prod(v.extent for v in group.variables)
        if not kept:
            return self._row(segments)
        *outer, inner = kept
        bound: dict[str, ir.Value] = {}
        name, extent = "", 1
        nested: list[_Segment] = []
        if outer:
            size = int(prod(s.var.extent for s in reduced))
            name, extent, bound, nested = self._rows(kept, inside=size, inner=1)
        long = next((s for s in reversed(reduced) if type(s.var.extent) is Dim or s.var.extent > BLOCK), None)
        if long is not None:
            bound[long.var.name] = _in_block(ir.var("c"))
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

    def _split(self, segments: list[_Segment]) -> Lowered:
        """Long reductions: each task reduces a stretch of the outermost reduced dimension, then partial results are combined."""
        group = self.group
        kept, reduced = self._split_segments(segments)
        ((stores, reduces),) = [s for s in self._by_stage() if s[1]][:1] or [([], [])]
        work = prod(v.extent for v in group.variables)
        count = prod(s.var.extent for s in kept)
        first, rest = (reduced[0], reduced[1:]) if reduced else (None, [])
        inner_kept = bool(kept) and self._innermost_is_kept(kept, reduced)
        bound: dict[str, ir.Value] = {}
        if first is not None:
            n = self.params.value(first.var.extent)
            chunk = ir.call("floordiv", ir.call("add", n, ir.call("sub", ir.TASKS, ir.const(1))), ir.TASKS)
            begin = ir.call("mul", ir.TASK, chunk)
            length = ir.call("max", ir.call("min", chunk, ir.call("sub", n, begin)), ir.const(0))
            at = ir.call("add", begin, ir.var("c"))
            if inner_kept:
                at = _in_block(at)
            bound[first.var.name] = at
        else:
            length = ir.call("max", ir.call("sub", ir.const(1), ir.TASK), ir.const(0))
        self.emit.bound = bound
        inner = self._stage(0, stores, self._reduces(reduces) + self._stores(stores))
        if inner_kept:
            body = self._accs(reduces) + self._in_blocks(length, reduces, self._nest(rest, inner, vector=False))
        else:
            loops = self._nest(rest, inner, vector=True)
            body = [*self._accs(reduces), ir.Loop("c", length, loops, vector=not rest)]
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

    def _in_blocks(self, length: ir.Value, reduces: list[Node], inner: list[ir.Stmt]) -> list[ir.Stmt]:
        """A serial loop over `c` in blocks, with sums that begin anew in each: adding up a long column one number after
        the other loses digits."""
        sums = {self._acc(n): self._acc_type(n) for n in reduces if n.op.reduction == "sum"}

        def renamed(s: ir.Stmt) -> ir.Stmt:
            if isinstance(s, ir.Loop):
                return ir.Loop(s.var, s.extent, [renamed(x) for x in s.body], s.vector, s.task, s.unroll)
            if isinstance(s, ir.Reduce) and s.acc in sums:
                return ir.Reduce(s.acc + "b", s.kind, s.value)
            return s

        count = ir.call("floordiv", ir.call("add", length, ir.const(BLOCK - 1)), ir.const(BLOCK))
        left = ir.call("sub", length, ir.call("mul", ir.var("block"), ir.const(BLOCK)))
        body: list[ir.Stmt] = [ir.Acc(name + "b", type, start("sum", type)) for name, type in sums.items()]
        body.append(ir.Loop("c", ir.call("min", left, ir.const(BLOCK)), [renamed(s) for s in inner]))
        body += [ir.Reduce(name, "sum", ir.acc(name + "b", type)) for name, type in sums.items()]
        return [ir.Loop("block", count, body)]

    def _innermost_is_kept(self, kept: list[_Segment], reduced: list[_Segment]) -> bool:
        order = [v.name for v in self.order]
        last = lambda ss: max((order.index(s.members[-1].name) for s in ss), default=-1)
        return last(kept) > last(reduced)

    def _acc_parts(self, n: Node) -> list[tuple[str, str]]:
        if n.op.reduction in ir.POSITIONS:
            return [(self._acc(n) + "v", compute_code(n.inputs[0].dtype)), (self._acc(n), "i64")]
        return [(self._acc(n), self._acc_type(n))]

    def _partial_index(self, kept: list[_Segment]) -> ir.Value:
        place: ir.Value = ir.const(0)
        for s in kept:
            place = ir.call("add", ir.call("mul", place, self.params.value(s.var.extent)), ir.var(s.var.name))
        return place

    def _combine(self, kept: list[_Segment], reduces: list[Node], count: int) -> list[ir.Stmt]:
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


def _typed(value: ir.Value, node: Node) -> ir.Value:
    return ir.cast(value, compute_code(node.dtype))


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
