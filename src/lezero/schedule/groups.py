"""Kernel boundaries: which nodes are computed together.

A :class:`Group` becomes one kernel.  It has loop variables over the shape of its *full* values; where it reduces, the
variables fall into kept and reduced ones, results of the reductions are *row* values, and full values may use row values
again (softmax: a maximum, a sum and a quotient, all in one group).  The rule for membership is one: a node may join a
group if it reads every member at exactly the element that the group computes in the same iteration, and everything else
from memory.  ``refusals`` keeps the reasons for ``explain``.
"""

from __future__ import annotations

from math import prod

from lezero.codegen.launch import MOST_ELEMENTS
from lezero.graph.dim import same
from lezero.graph.node import Graph, Node
from lezero.loops.ir import POSITIONS
from lezero.schedule import epilogues
from lezero.schedule.group import MAX_NODES, Group, loop_order, space
from lezero.schedule.index import TRUE, Ix
from lezero.schedule.layout import Order
from lezero.schedule.merging import merge_inputs
from lezero.schedule.reads import Access, Reads

MAX_ACCESSES = 30
SPLIT_WORK = 1 << 16
"""Elements from which a reduction to a few long rows is worth a combine phase: below, all threads together are no faster."""
FEW_ROWS = 16
"""Rows that may be too few for all threads.  Not the number of threads: the bits of a sum do not depend on that."""
MANY_ROWS = 1024
"""Columns that are enough for all threads."""


class Grouping(Reads):
    """Assigns every computed node of a primitive graph to a group."""

    def __init__(self, graph: Graph, orders: dict[Node, Order], threads: int):
        super().__init__(graph, orders)
        self.threads = threads
        self.groups: list[Group] = []
        self.refusals: list[tuple[Node, Group, str]] = []
        self.rank = {n: i for i, n in enumerate(self.order)}
        for node in self.order:
            kind = node.op.kind
            if kind == "leaf":
                continue
            if kind == "view":
                if node in self.outputs:
                    self._place(node)
                continue
            if self.inline(node) and node not in self.outputs:
                continue
            self._place(node)

    # -- placing -----------------------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        if node.op.kind in ("contraction", "opaque"):
            if not self._beside(node):
                self._new(node)
            return
        read = self.accesses(node, self.anywhere(node))
        for group in () if "fuse" in self._off else self._candidates(read):
            why = self.try_join(group, node)
            if why is None:
                merge_inputs(self, group, read)
                return
            self.refusals.append((node, group, why))
        self._new(node)

    def _beside(self, node: Node) -> bool:
        """Join the kernel that gives this result of attention's with others of the same inputs."""
        for x in self.users[node.inputs[0]] if "gives" in node.op.attrs else ():
            group = self.group_of.get(x)
            if group is not None and x.op is node.op and x.inputs == node.inputs and x.attrs[1:] == node.attrs[1:]:
                self._admit(group, node, tuple([Ix.of(v) for v in self.loops(node.shape)]), 0, [])
                return True
        return False

    def _candidates(self, read: list[Access]) -> list[Group]:
        """Groups a node might join: those it reads from, latest first, then those that read the same values."""
        near: dict[int, Group] = {}
        for a in read:
            g = self.group_of.get(a.node)
            if g is not None:
                near[g.number] = g
        found = [near[k] for k in sorted(near, reverse=True)]
        large = {a.node for a in read if a.node.ndim and int(self.size(a.node)) >= 256}
        recent = reversed(self.groups[-24:])
        beside = [g for g in recent if g.number not in near and g.kind == "loops" and not large.isdisjoint(g.reads)]
        return found + beside

    def _new(self, node: Node) -> Group:
        shape = space(node)
        group = Group(
            number=len(self.groups),
            kind=node.op.kind if node.op.kind in ("contraction", "opaque") else "loops",
            shape=shape,
            variables=self.loops(shape),
        )
        group.update = node.update
        self.groups.append(group)
        if group.kind == "loops":
            why = self.try_join(group, node)
            assert why is None, why
        else:
            position = tuple(Ix.of(v) for v in group.variables)
            self._admit(group, node, position, 0, [Access(x, (), None) for x in self._operands(node)])
        return group

    def _operands(self, node: Node) -> list[Node]:
        """Nodes in memory behind a contraction's or an opaque operation's inputs (views are copied or strided)."""
        out: list[Access] = []
        for x in node.inputs:
            self.reach(x, tuple([Ix.of(v) for v in self.loops(x.shape)]), None, out)
        return [a.node for a in out]

    def _admit(self, group: Group, node: Node, index: tuple[Ix, ...], level: int, read: list[Access]) -> None:
        group.nodes.append(node)
        group.index[node] = index
        group.level[node] = level
        self.group_of[node] = group
        group.reads.discard(node)
        added = 0
        for a in read:
            other = self.group_of.get(a.node)
            if other is group:
                continue
            group.reads.add(a.node)
            if other is not None:
                added |= other.ancestors | other.bit
        if added & ~group.ancestors:
            group.ancestors |= added
            if len(group.nodes) > 1:  # nothing needs what is just being made
                bit, ancestors = group.bit, group.ancestors
                for g in self.groups:
                    if g.ancestors & bit:
                        g.ancestors |= ancestors

    def try_join(self, group: Group, node: Node) -> str | None:
        """Join if that is legal and wise; the reason if not."""
        if group.kind == "opaque":
            return "a kernel of its own"
        if group.kind == "contraction" and "epilogue" in self._off:
            return "LEZERO_PASSES leaves epilogues out"
        if node.update is not group.update:
            return "updates of parameters are fused with each other only, so that all of them share one kernel"
        if len(group.nodes) >= MAX_NODES:
            return f"the kernel has {MAX_NODES} operations already"
        if node.op.kind == "reduce":
            return self._try_reduce(group, node)
        last = "shapes differ"
        for where, index in self._places(group, node):
            last_reason, read, level = self._check(group, node, index, where)
            if last_reason is None:
                self._admit(group, node, index, level, read)
                if where == "row":
                    group.row.add(node)
                elif where == "outer":
                    group.outer.add(node)
                return None
            last = last_reason
        return last

    def _places(self, group: Group, node: Node) -> list[tuple[str, tuple[Ix, ...]]]:
        """Where in a group's iteration an element-wise node could be computed."""
        places = []
        n = self.size(node)
        if same(n, group.size):
            places.append(("full", self.element(group.variables, node.shape)))
        if group.reduced is not None:
            kept = tuple([v for v in group.variables if v.name not in group.reduced])
            if same(n, prod(v.extent for v in kept)):
                places.append(("row", self.element(kept, node.shape)))
            if group.outer and same(n, 1):
                places.append(("outer", tuple(Ix.of(0) for _ in node.shape)))
        return places

    def _check(
        self, group: Group, node: Node, index: tuple[Ix, ...], where: str
    ) -> tuple[str | None, list[Access], int]:
        read = self.accesses(node, index)
        level = 0
        touched = False
        for a in read:
            if self.group_of.get(a.node) is group:
                touched = True
                if a.mask is not None and a.mask is not TRUE:
                    return f"it reads {a.node.op.name} behind a mask", read, 0
                if a.node in group.outer:
                    if where != "outer":
                        return f"{a.node.op.name} is only there when all rows are done", read, 0
                    continue
                if where == "outer":
                    return "it is computed before the rows are summed", read, 0
                if not _equal(a.position, group.index[a.node]):
                    return f"it reads {a.node.op.name} at another element than the loop computes", read, 0
                if a.node in group.row:
                    if where == "full" and group.style == "split":
                        return f"{a.node.op.name} is only there after the combine phase", read, 0
                    level = max(level, group.level[a.node])
                elif where == "row":
                    return "a row value cannot be made of a single element", read, 0
                else:
                    level = max(level, group.level[a.node])
            else:
                other = self.group_of.get(a.node)
                if other is not None and other.ancestors & group.bit:
                    return f"{a.node.op.name} needs this kernel's result first", read, 0
        if where == "outer" and not touched:
            return "nothing of this kernel is read", read, 0
        if (
            len(group.reads | {a.node for a in read}) + len(group.nodes) > 3 * MAX_ACCESSES
            or len(group.reads) > MAX_ACCESSES
        ):
            return "too many arrays for one kernel", read, 0
        if group.kind == "contraction":
            why = epilogues.refused(self, group, node, read, where)
            if why is not None:
                return why, read, 0
        return None, read, level

    # -- reductions --------------------------------------------------------------------------------------------

    def _try_reduce(self, group: Group, node: Node) -> str | None:
        x = node.inputs[0]
        axes, keepdim = node.attrs[0], node.attrs[1]
        if group.kind == "contraction":
            why = epilogues.refused_statistics(group, node)
            if why is None:
                self._admit(group, node, (), 0, [])
            return why
        if node.dtype.is_complex:
            first = not group.nodes and len(group.shape) == x.ndim and all(map(same, group.shape, x.shape))
            return None if first and self._first_reduce(group, node) else "complex numbers"
        if group.reduced is not None and self._try_outer(group, node):
            return None
        if not same(self.size(x), group.size):
            return "it reduces another shape"
        position = self.element(group.variables, x.shape)
        split = _variables_of(position, axes)
        if split is None:
            return "its axes do not line up with the loops"
        reduced, _ = split
        if not group.nodes and not reduced:
            reduced = frozenset()
        if group.reduced is not None and reduced != group.reduced:
            return "the kernel reduces other axes"
        wide = [n for n in group.nodes if n not in group.row]
        if group.reduced is None and not reduced and group.nodes:
            return "it reduces over nothing"
        out: list[Access] = []
        self.reach(x, position, None, out)
        level = 0
        for a in out:
            if self.group_of.get(a.node) is group:
                if (a.mask is not None and a.mask is not TRUE) or not _equal(a.position, group.index[a.node]):
                    return f"it reads {a.node.op.name} at another element than the loop computes"
                if a.node in group.outer:
                    return f"{a.node.op.name} is only there when all rows are done"
                level = max(level, group.level[a.node])
            else:
                other = self.group_of.get(a.node)
                if other is not None and other.ancestors & group.bit:
                    return f"{a.node.op.name} needs this kernel's result first"
        if level and group.style == "split":
            return "its input is only there after the combine phase"
        if len(group.reads | {a.node for a in out}) > MAX_ACCESSES:
            return "too many arrays for one kernel"
        if group.reduced is None:
            style = self._style(group, reduced, node)
            if style == "split" and any(group.level[n] for n in wide):
                return "values that wait for another reduction"
            group.reduced, group.style = reduced, style
        kept = tuple(p for i, p in enumerate(position) if i not in axes)
        index = tuple(Ix.of(0) if i in axes else p for i, p in enumerate(position)) if keepdim else kept
        self._admit(group, node, index, level + 1, out)
        group.row.add(node)
        return None

    def _first_reduce(self, group: Group, node: Node) -> bool:
        """A complex reduction starts a group of its own, in which one thread takes a row."""
        x = node.inputs[0]
        position = tuple(Ix.of(v) for v in group.variables)
        split = _variables_of(position, node.attrs[0])
        assert split is not None
        group.reduced, group.style = split[0], "lane"
        out: list[Access] = []
        self.reach(x, position, None, out)
        kept = tuple(p for i, p in enumerate(position) if i not in node.attrs[0])
        index = tuple(Ix.of(0) if i in node.attrs[0] else p for i, p in enumerate(position)) if node.attrs[1] else kept
        self._admit(group, node, index, 1, out)
        group.row.add(node)
        return True

    def _try_outer(self, group: Group, node: Node) -> bool:
        """A reduction of row values over all rows becomes the combine phase (the mean of a loss)."""
        x = node.inputs[0]
        if (
            group.style not in ("row", "lane")
            or len(node.attrs[0]) != x.ndim
            or node.op.reduction not in ("sum", "max", "min", "prod")
        ):
            return False
        kept = tuple([v for v in group.variables if v.name not in group.reduced])  # type: ignore[operator]
        if not kept or not same(prod(x.shape), prod(v.extent for v in kept)) or same(prod(x.shape), 1):
            return False
        position = self.element(kept, x.shape)
        out: list[Access] = []
        self.reach(x, position, None, out)
        if not any(self.group_of.get(a.node) is group for a in out):
            return False
        for a in out:
            mine = self.group_of.get(a.node) is group
            if mine and (a.node not in group.row or not _equal(a.position, group.index[a.node])):
                return False
            other = self.group_of.get(a.node)
            if not mine and other is not None and other.ancestors & group.bit:
                return False
        self._admit(group, node, tuple(Ix.of(0) for _ in node.shape), 1 << 20, out)
        group.outer.add(node)
        return True

    def _style(self, group: Group, reduced: frozenset[str], node: Node) -> str:
        """How to compute a reduction, from the sizes seen when the schedule is made (right for any, quick for these)."""
        kept = [v for v in group.variables if v.name not in reduced]
        rows = int(prod(v.extent for v in kept))
        size = int(prod(v.extent for v in group.variables if v.name in reduced))
        order = loop_order([*group.nodes, node], group, self.orders)
        inner = next((v for v in reversed(order) if v.extent != 1), None)
        if node.op.reduction in POSITIONS:
            if (rows < FEW_ROWS and rows * size >= SPLIT_WORK) or size > MOST_ELEMENTS:
                return "split"
            return (
                "lane" if (inner is not None and inner.name not in reduced and size <= 1 << 14) or size <= 8 else "row"
            )
        if inner is not None and inner.name in reduced:
            if size <= 16 and rows >= 64:
                return "lane"
            if (rows < FEW_ROWS and rows * size >= SPLIT_WORK) or size > MOST_ELEMENTS:
                return "split"
            return "row"
        if size <= 64 or (rows >= MANY_ROWS and size <= 256):
            return "lane"
        return "split"


def _equal(a: tuple[Ix, ...], b: tuple[Ix, ...]) -> bool:
    return len(a) == len(b) and all(x.same(y) for x, y in zip(a, b))


def _variables_of(position: tuple[Ix, ...], axes: tuple[int, ...]) -> tuple[frozenset[str], frozenset[str]] | None:
    """Names of the variables in the reduced and in the other positions, None if they overlap."""
    reduced: set[str] = set()
    kept: set[str] = set()
    for i, p in enumerate(position):
        (reduced if i in axes else kept).update(p.variables())
    return None if reduced & kept else (frozenset(reduced), frozenset(kept))
