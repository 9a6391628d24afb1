"""Kernel boundaries: which nodes are computed together.

A :class:`Group` becomes one kernel.  It has loop variables over the shape of its *full* values; where it reduces, the
variables fall into kept and reduced ones, results of the reductions are *row* values, and full values may use row values
again (softmax: a maximum, a sum and a quotient, all in one group).  The rule for membership is one: a node may join a
group if it reads every member at exactly the element that the group computes in the same iteration, and everything else
from memory.  ``may_join`` answers what is legal; ``wants_join`` what is wise; ``refusals`` keeps the reasons for ``explain``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from lezero.codegen.launch import MOST_ELEMENTS
from lezero.graph.dim import Dim, identical, same
from lezero.graph.node import Graph, Node
from lezero.loops.ir import POSITIONS
from lezero.ops.base import REGISTRY
from lezero.ops.indexing import Scatter
from lezero.passes.pipeline import switched_off
from lezero.passes.scatters import filling
from lezero.schedule.index import TRUE, Ix, Mask, Var
from lezero.schedule.layout import Order, Seen, linear, planar, row_major
from lezero.schedule.packed import packed, reshaped_from, rounded
from lezero.schedule.rounding import HALF
from lezero.schedule.statistics import squares_of, sums_of

MAX_NODES = 64
MAX_ACCESSES = 30
MAX_INLINE = 48
STEPS = frozenset(("add", "sub", "mul", "cast"))
"""Operations a value may be seen through to one that is in memory: at most ``MAX_STEPS`` of them."""
MAX_STEPS = 6
SPLIT_WORK = 1 << 16
"""Elements from which a reduction to a few long rows is worth a combine phase: below, all threads together are no faster."""
FEW_ROWS = 16
"""Rows that may be too few for all threads.  Not the number of threads: the bits of a sum do not depend on that."""
MANY_ROWS = 1024
"""Columns that are enough for all threads."""


@dataclass(eq=False)
class Group:
    """Nodes computed by one kernel.

    kind : "loops", "contraction" (matrix product or convolution with element-wise work behind it) or "opaque"
    variables : one for each dimension of the full shape, in logical order
    reduced : names of the reduced variables, None while nothing is reduced
    style : how a reduction is computed: "row" (vector over reduced), "lane" (vector over kept, reduced variables in serial
        loops), "split" (partial results by task, then a combine phase)
    index : node -> the element it is computed at in an iteration
    level : node -> the stage it is computed in; a reduction's result is there from the next stage on
    """

    number: int
    kind: str
    shape: tuple[int, ...]
    variables: tuple[Var, ...]
    nodes: list[Node] = field(default_factory=list)
    reduced: frozenset[str] | None = None
    style: str = ""
    index: dict[Node, tuple[Ix, ...]] = field(default_factory=dict)
    level: dict[Node, int] = field(default_factory=dict)
    row: set[Node] = field(default_factory=set)
    outer: set[Node] = field(default_factory=set)  # results of summing row values, and what is computed from them
    reads: set[Node] = field(default_factory=set)  # nodes of other groups, and leaves
    ancestors: int = 0
    update: bool = False  # of parameters

    @cached_property
    def size(self) -> int:
        return prod(self.shape)

    @cached_property
    def bit(self) -> int:
        return 1 << self.number

    def names(self) -> list[str]:
        return [n.op.name for n in self.nodes]


@dataclass
class Access:
    """A value read from memory (or a member) at a position, where `mask` holds."""

    node: Node
    position: tuple[Ix, ...]
    mask: Mask | None


class Grouping:
    """Assigns every computed node of a primitive graph to a group."""

    def __init__(self, graph: Graph, orders: dict[Node, Order], threads: int):
        self.graph, self.orders, self.threads = graph, orders, threads
        self.groups: list[Group] = []
        self.group_of: dict[Node, Group] = {}
        self.refusals: list[tuple[Node, Group, str]] = []
        self._inline: dict[Node, int] = {}
        self._root: dict[Node, tuple[Node, int]] = {}  # what is made again -> what in memory, in how many steps
        self.outputs = outputs = frozenset(graph.outputs)
        order = graph.nodes()
        self.users: dict[Node, list[Node]] = graph.consumers()
        self._in_memory = {m for n in order if n.op.kind in ("contraction", "opaque") for m in in_memory(n, outputs)}
        self._off = switched_off()
        self._sizes: dict[Node, int] = {}
        self._variables: dict[tuple, Var] = {}
        self._accesses: dict[tuple, tuple[tuple[Ix, ...], list[Access]]] = {}
        packs = not self._off & {"fuse", "packed"}
        self.rounded = rounded(order, self.users, outputs, orders) if packs else set()  # by the products that read them
        self._sunk = self._packed(order) | self.rounded
        self._accesses.clear()  # those found with less that is computed where it is used
        self._in_memory -= self._sunk
        if not self._off & {"fuse", "see_through"}:
            self._sunk |= {n for n in order if n not in self._sunk and (self._cheaper_again(n) or self._only_summed(n))}
        self._inlined = {n for n in order if n in self._sunk or self._from_little(n)}
        self._rank = {n: i for i, n in enumerate(order)}
        for node in order:
            kind = node.op.kind
            if kind == "leaf":
                continue
            if kind == "view":
                if node in outputs:
                    self._place(node)
                continue
            if self.inline(node) and node not in outputs:
                continue
            self._place(node)

    # -- inlining ----------------------------------------------------------------------------------------------

    def inline(self, node: Node) -> bool:
        """Whether a node is computed wherever it is used."""
        return node in self._inlined

    def _from_little(self, node: Node) -> bool:
        """Whether a node comes from nothing but sources and single numbers."""
        if node in self._in_memory or (node.op.kind == "view" and node in self.outputs):
            return False
        return self._inline_size(node) <= MAX_INLINE

    def _packed(self, order: Sequence[Node]) -> set[Node]:
        """What products compute of their first operands as they pack them."""
        if self._off & {"fuse", "packed"}:
            return set()
        found: set[Node] = set()
        little = {n for n in order if self._from_little(n)}
        for value, chain in packed(order, self.users, self.outputs).items():
            self._inlined = little | found | chain
            products = (n for n in order if n.op.name == "dot" and reshaped_from(n.inputs[0]) is value)
            if all(self._packs(n.inputs[0]) for n in products):
                found |= chain
        return found

    def _packs(self, matrix: Node) -> bool:
        """Whether what a matrix is computed from lies in memory as the matrix does, or is one number for a row or column."""
        if self.orders[matrix] != row_major(2):
            return False
        out: list[Access] = []
        row, column = (Var(name, d) for name, d in zip(("row", "col"), matrix.shape))
        self._reach(matrix, (Ix.of(row), Ix.of(column)), None, out)
        for a in out:
            at = linear(a.position, a.node.shape, self.orders[a.node]).affine()
            step = None if at is None else at.get(column.name, 0)
            if step is None or not (same(step, 0) or same(step, 1)) or (a.mask is not None and a.mask is not TRUE):
                return False
        return True

    def _has_position(self, node: Node) -> bool:
        """Whether what is computed on the way to a node depends on where it is, and not only on single numbers and what is in
        memory."""
        seen: set[Node] = set()
        todo = list(node.inputs)
        while todo:
            n = todo.pop()
            if n in seen or n.op.kind == "leaf" or (n in self.group_of and not self.inline(n)):
                continue
            seen.add(n)
            if n.op.kind == "source" and n.ndim and n.op.name not in ("full", "constant"):
                return True
            todo += n.inputs
        return False

    def _cheaper_again(self, node: Node) -> bool:
        """What takes one load of something that is in memory anyway is made again where it is used, instead of being kept.

        A comparison: what a ReLU's gradient wants to know can be seen from the activation that the next convolution reads.
        And a standardisation: with the statistics, its steps follow from the value they are of.
        """
        if node.op.kind != "elementwise" or node in self.outputs:
            return False
        large = {x for x in node.inputs if self._inline_size(x) > MAX_INLINE}
        if node.op.domain == "compare":
            return len(large) == 1 and not large.isdisjoint(self._in_memory | self.outputs)
        if node.op.name not in STEPS or node in self._in_memory:
            return False
        seen = {self._seen_in(x) for x in large if not _spread(x, node)}
        if len(seen) != 1:
            return False
        ((root, steps),) = seen
        if steps == MAX_STEPS or root.op.kind == "view" or root.dtype.itemsize > node.dtype.itemsize:
            return False
        self._root[node] = root, steps + 1
        return True

    def _only_summed(self, node: Node) -> bool:
        """What one reduction alone reads is computed in its loops, unless reading what it is made of takes longer than storing it."""
        users = self.users.get(node, [])
        if node.op.kind != "elementwise" or node in self.outputs or len(users) != 1 or users[0].op.kind != "reduce":
            return False
        large = {self._seen_in(x)[0] for x in node.inputs if self._inline_size(x) > MAX_INLINE and not _spread(x, node)}
        return sum(x.dtype.itemsize for x in large) <= 2 * node.dtype.itemsize

    def _seen_in(self, x: Node) -> tuple[Node, int]:
        """The value that `x` takes one load of, and the steps from there."""
        while x.op.name == "reshape" and x not in self.outputs:
            x = x.inputs[0]
        return self._root.get(x, (x, 0))

    def computed(self, group: Group) -> list[Node]:
        """What a kernel computes: its nodes, and what it makes again on the way to them."""
        found = dict.fromkeys(group.nodes)
        todo = list(group.nodes)
        while todo:
            for x in todo.pop().inputs:
                if x not in found and x not in self.group_of and x.op.kind in ("elementwise", "view"):
                    found[x] = None
                    todo.append(x)
        return list(found)

    def _inline_size(self, node: Node) -> int:
        have = self._inline.get(node)
        if have is not None:
            return have
        kind = node.op.kind
        if kind == "leaf":
            size = 0 if not node.shape else 1 << 20
        elif kind in ("source", "elementwise", "view"):
            # inputs come first in topological order, so their sizes are known
            size = 1 + sum(self._inline.get(n) if n in self._inline else self._inline_size(n) for n in node.inputs)  # type: ignore[misc]
            if kind == "source":
                size = min(size, MAX_INLINE)
        else:
            size = 1 << 20
        self._inline[node] = size
        return size

    # -- accesses ----------------------------------------------------------------------------------------------

    def accesses(self, node: Node, position: tuple[Ix, ...]) -> list[Access]:
        """What a node reads to compute its element at `position`, looking through views and inlined nodes."""
        key = (node, *map(id, position))
        found = self._accesses.get(key)
        if found is None:  # with the position, so that its identity stays its own
            found = self._accesses[key] = position, self._find_accesses(node, position)
        return found[1]

    def _find_accesses(self, node: Node, position: tuple[Ix, ...]) -> list[Access]:
        out: list[Access] = []
        if node.op.kind == "view":
            self._reach(node, position, None, out)
        else:
            for x in node.inputs:
                self._reach(x, position, None, out)
        return out

    def _reach(self, node: Node, position: tuple[Ix, ...], mask: Mask | None, out: list[Access]) -> None:
        if node.op.kind == "view" and (node not in self.group_of or self.inline(node)):
            for k, at, m in pieces(node, position):
                both = m if mask is None else mask if m is None else mask & m
                self._reach(node.inputs[k], at, both, out)
                for ix in at:
                    self._reads(ix, out)
            if node.op.name == "later":
                token = node.inputs[1]
                self._reach(token, (Ix.of(0),) * token.ndim, None, out)
            return
        if node.op.kind == "leaf" or not self.inline(node):
            out.append(Access(node, position, mask))
            return
        for x in node.inputs:
            self._reach(x, position if x.ndim == len(position) else (), mask, out)

    def _reads(self, ix: Ix, out: list[Access]) -> None:
        for a, _ in ix.terms.values():
            self._atom_reads(a, out)

    def _atom_reads(self, a: Any, out: list[Access]) -> None:
        if isinstance(a, Var):
            return
        if a[0] == "read":
            self._reach(a[1], a[2], None, out)
            for ix in a[2]:
                self._reads(ix, out)
            return
        for part in a[1:]:
            if isinstance(part, Ix):
                self._reads(part, out)

    # -- placing -----------------------------------------------------------------------------------------------

    def _loops(self, shape: tuple[int, ...]) -> tuple[Var, ...]:
        """A variable for each dimension: the same ones for the same extents, so that what is found for them can be kept."""
        keys = [(k, type(d), d.expr if type(d) is Dim else d) for k, d in enumerate(shape)]
        return tuple([self._variables.setdefault(key, Var(f"i{key[0]}", d)) for key, d in zip(keys, shape)])

    def _anywhere(self, node: Node) -> tuple[Ix, ...]:
        return tuple([Ix.of(v) for v in self._loops(_space(node))])

    def _size(self, node: Node) -> int:
        have = self._sizes.get(node)
        if have is None:
            have = self._sizes[node] = prod(node.shape)
        return have

    def _place(self, node: Node) -> None:
        if node.op.kind in ("contraction", "opaque"):
            if not self._beside(node):
                self._new(node)
            return
        read = self.accesses(node, self._anywhere(node))
        for group in () if "fuse" in self._off else self._candidates(read):
            why = self._try(group, node)
            if why is None:
                self._merge_inputs(group, read)
                return
            self.refusals.append((node, group, why))
        self._new(node)

    def _beside(self, node: Node) -> bool:
        """Join the kernel that gives this result of attention's with others of the same inputs."""
        for x in self.users[node.inputs[0]] if "gives" in node.op.attrs else ():
            group = self.group_of.get(x)
            if group is not None and x.op is node.op and x.inputs == node.inputs and x.attrs[1:] == node.attrs[1:]:
                self._admit(group, node, tuple([Ix.of(v) for v in self._loops(node.shape)]), 0, [])
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
        beside: dict[int, Group] = {}
        large = [a.node for a in read if a.node.ndim and int(self._size(a.node)) >= 256]
        for m in large:
            for g in self.groups[-24:]:
                if g.number not in near and g.kind == "loops" and m in g.reads:
                    beside[g.number] = g
        return found + [beside[k] for k in sorted(beside, reverse=True)]

    def _new(self, node: Node) -> Group:
        shape = _space(node)
        group = Group(
            number=len(self.groups),
            kind=node.op.kind if node.op.kind in ("contraction", "opaque") else "loops",
            shape=shape,
            variables=self._loops(shape),
        )
        group.update = node.update
        self.groups.append(group)
        if group.kind == "loops":
            why = self._try(group, node)
            assert why is None, why
        else:
            position = tuple(Ix.of(v) for v in group.variables)
            self._admit(group, node, position, 0, [Access(x, (), None) for x in self._operands(node)])
        return group

    def _operands(self, node: Node) -> list[Node]:
        """Nodes in memory behind a contraction's or an opaque operation's inputs (views are copied or strided)."""
        out: list[Access] = []
        for x in node.inputs:
            self._reach(x, tuple(Ix.of(Var(f"q{k}", d)) for k, d in enumerate(x.shape)), None, out)
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

    def _try(self, group: Group, node: Node) -> str | None:
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
        n = self._size(node)
        if same(n, group.size):
            places.append(("full", reshaped(group.shape, tuple(Ix.of(v) for v in group.variables), node.shape)))
        if group.reduced is not None:
            kept = [v for v in group.variables if v.name not in group.reduced]
            if same(n, prod(v.extent for v in kept)):
                shape = tuple(v.extent for v in kept)
                places.append(("row", reshaped(shape, tuple(Ix.of(v) for v in kept), node.shape)))
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
            why = self._epilogue(group, node, read, where)
            if why is not None:
                return why, read, 0
        return None, read, level

    def _epilogue(self, group: Group, node: Node, read: list[Access], where: str) -> str | None:
        """Whether element-wise work can follow a contraction tile by tile."""
        root = group.nodes[0]
        if root.op.name == "conv2d_weight_grad" and self._widens(group, node):
            return None
        if root.op.name not in ("dot", "conv2d"):
            return "gradients of convolutions are stored as they are"
        if any(n.op.kind == "reduce" for n in group.nodes):
            return "the tiles give sums"
        if where != "full" or (len(node.shape) != len(root.shape) and root.op.name != "dot"):
            return "only element-wise work of the product's shape follows a tile"
        if len(node.shape) != len(root.shape) and root.dtype.itemsize == 2:
            # measured on 1,024 rows: bias and residual sum took 0.07 of the product's time in its tiles, 0.02 beside it
            return "work on sequences in half precision is quicker in a kernel of its own"
        if self._has_position(node):
            return "positions are not known inside a tile"
        if node.dtype.is_complex or any(a.node.dtype.is_complex for a in read):
            return "complex numbers"
        if self.orders[node] != (self.orders[root] if root.op.name != "dot" else row_major(node.ndim)):
            return "another memory layout"
        last = group.variables[self.orders[root][-1]].name
        for a in read:
            if self.group_of.get(a.node) is group:
                continue
            if a.mask is not None and a.mask is not TRUE:
                return "a masked read"
            e = linear(a.position, a.node.shape, self.orders[a.node]).affine()
            if e is None or not (same(e.get(last, 0), 0) or same(e.get(last, 0), 1)):
                return f"{a.node.op.name} is not contiguous along the tile's columns"
            if root.op.name == "dot":
                continue
            follows = _planewise(e, group) if planar(root) else _pixelwise(e, group, self.orders[root])
            if not follows:
                return f"{a.node.op.name} does not follow the convolution's pixels"
        if not (self._takes_the_place(group, node, read) or self._wanted_in_memory(node)):
            return "its readers compute it from what is stored anyway"
        return None

    def _widens(self, group: Group, node: Node) -> bool:
        """Whether a node is nothing but the group's only value in float32: the gradient of a weight that autocast rounded."""
        (root, *others) = group.nodes
        cast = node.op.name == "cast" and node.inputs[0] is root and node.dtype.code == "f32"
        alone = not others and root not in self.outputs and self._readers(root) == {node}
        return cast and alone and root.dtype.code in HALF and self.orders[node] == self.orders[root]

    def _takes_the_place(self, group: Group, node: Node, read: list[Access]) -> bool:
        """Whether what a value is computed from need not be stored if the value is."""
        members = {node, *group.nodes}
        of = {a.node for a in read} & members
        return of.isdisjoint(self.outputs) and all(self._readers(n) <= members for n in of)

    def _wanted_in_memory(self, node: Node, steps: int = MAX_STEPS) -> bool:
        """Whether a value, or what is computed from it element by element, is read from memory by a product."""
        if node in self.outputs or node in self._in_memory:
            return True
        readers = self._readers(node) if steps else set()
        return all(n.op.kind == "elementwise" for n in readers) and any(
            self._wanted_in_memory(n, steps - 1) for n in readers
        )

    def _try_reduce(self, group: Group, node: Node) -> str | None:
        x = node.inputs[0]
        axes, keepdim = node.attrs[0], node.attrs[1]
        if group.kind == "contraction":
            return self._try_statistics(group, node)
        if node.dtype.is_complex:
            first = not group.nodes and len(group.shape) == x.ndim and all(map(same, group.shape, x.shape))
            return None if first and self._first_reduce(group, node) else "complex numbers"
        if group.reduced is not None and self._try_outer(group, node):
            return None
        if not same(self._size(x), group.size):
            return "it reduces another shape"
        position = reshaped(group.shape, tuple(Ix.of(v) for v in group.variables), x.shape)
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
        self._reach(x, position, None, out)
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

    def _try_statistics(self, group: Group, node: Node) -> str | None:
        """Sums that batch normalisation takes of a convolution's result: its tiles give them while they are in a register."""
        total = squares_of(node)
        of = sums_of(node if total is None else total)
        if of is None or of is not group.nodes[0] or "statistics" in switched_off():
            return "a reduction does not follow a contraction's tiles"
        if total is not None and total not in group.nodes:
            return "the mean that it needs is not taken from the tiles"
        if any(n.op.kind == "elementwise" for n in group.nodes):
            return "the tiles are finished by an epilogue"
        if any(n.op.kind == "reduce" and (squares_of(n) is None) == (total is None) for n in group.nodes):
            return "the tiles give this sum already"
        self._admit(group, node, (), 0, [])
        return None

    def _first_reduce(self, group: Group, node: Node) -> bool:
        """A complex reduction starts a group of its own, in which one thread takes a row."""
        x = node.inputs[0]
        position = tuple(Ix.of(v) for v in group.variables)
        split = _variables_of(position, node.attrs[0])
        assert split is not None
        group.reduced, group.style = split[0], "lane"
        out: list[Access] = []
        self._reach(x, position, None, out)
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
        kept = [v for v in group.variables if v.name not in group.reduced]  # type: ignore[operator]
        if not kept or not same(prod(x.shape), prod(v.extent for v in kept)) or same(prod(x.shape), 1):
            return False
        position = reshaped(tuple(v.extent for v in kept), tuple(Ix.of(v) for v in kept), x.shape)
        out: list[Access] = []
        self._reach(x, position, None, out)
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

    def _merge_inputs(self, group: Group, read: list[Access]) -> None:
        """Bring in other groups that a node just placed reads from, when they can be computed in the same loops."""
        if group.kind != "loops":
            return
        others = {self.group_of[a.node].number for a in read if a.node in self.group_of}
        for number in sorted(others):
            other = self.groups[number]
            if other is group or other.kind != "loops" or not other.nodes:
                continue
            if len(group.nodes) + len(other.nodes) > MAX_NODES:
                continue
            if not self._merge(group, other) and self._merge(other, group):
                group = other

    def _merge(self, group: Group, other: Group) -> bool:
        """Move everything of `other` into `group`; leaves both as they were if that does not work."""
        if other.outer or self._between(group, other) or self._between(other, group):
            return False
        over_rows = not same(other.size, group.size)
        if over_rows and not self._only_for(other, group):
            return False
        if not over_rows and other.reduced is not None and group.reduced is not None and other.style != group.style:
            return False
        saved = _save(group), _save(other), [g.ancestors for g in self.groups]
        members = sorted(group.nodes + other.nodes, key=self._rank.__getitem__)
        fresh = Group(group.number, "loops", group.shape, group.variables)
        mine, theirs = list(group.nodes), list(other.nodes)
        for n in mine + theirs:
            del self.group_of[n]
        _load(group, _save(fresh))
        old_bit = other.bit
        _load(other, _save(Group(other.number, "loops", other.shape, other.variables)))
        both = old_bit | group.bit
        group.ancestors = (saved[0][-1] | saved[1][-1]) & ~both
        for g in self.groups:
            if g.ancestors & both:
                g.ancestors |= group.ancestors | group.bit
        if not self._place_all(group, members):
            for m in mine + theirs:
                self.group_of.pop(m, None)
            _load(group, saved[0])
            _load(other, saved[1])
            for g, a in zip(self.groups, saved[2]):
                g.ancestors = a
            for m in mine:
                self.group_of[m] = group
            for m in theirs:
                self.group_of[m] = other
            return False
        for g in self.groups:
            g.ancestors &= ~old_bit
        return True

    def _between(self, first: Group, last: Group) -> bool:
        """Whether another group needs the result of `first` and is needed for `last`."""
        bit = first.bit
        return bool(last.ancestors & bit) and any(
            g.ancestors & bit and last.ancestors & g.bit for g in self.groups if g is not first and g is not last
        )

    def _only_for(self, other: Group, group: Group) -> bool:
        """Whether nobody else will want what `other` computes: it may wait until all rows of `group` are done."""
        members = {*other.nodes, *group.nodes}
        return not any(n in self.outputs or self._readers(n) - members for n in other.nodes)

    def _readers(self, node: Node) -> set[Node]:
        """Nodes that read a value, also through views and inlined nodes."""
        found: set[Node] = set()
        todo = list(self.users.get(node, ()))
        while todo:
            n = todo.pop()
            if (
                n in self.group_of
                or n.op.kind not in ("view", "elementwise")
                or (n.op.kind != "view" and not self.inline(n))
            ):
                found.add(n)
            else:
                todo += self.users.get(n, ())
        return found

    def _place_all(self, group: Group, members: list[Node]) -> bool:
        """Join every member to an empty group, in an order that works: sums over rows fit once something else made rows."""
        left = members
        while left:
            waiting: list[Node] = []
            missing = set(left)
            for n in left:
                needs = {a.node for a in self.accesses(n, self._anywhere(n))}
                if needs & missing or self._try(group, n) is not None:
                    waiting.append(n)
                else:
                    missing.discard(n)
            if len(waiting) == len(left):
                return False
            left = waiting
        return True


def in_memory(node: Node, outputs: frozenset[Node]) -> list[Node]:
    """The nodes a contraction or an opaque operation reads from memory."""
    found = []
    for x in node.inputs[isinstance(node.op, Scatter) and filling(node) is not None :]:
        while x.op.kind == "view" and x not in outputs:
            x = x.inputs[0]
        found.append(x)
    return found


_FIELDS = ("nodes", "reduced", "style", "index", "level", "row", "outer", "reads", "ancestors")


def _save(group: Group) -> tuple:
    return tuple(_copied(getattr(group, f)) for f in _FIELDS)


def _load(group: Group, saved: tuple) -> None:
    for f, v in zip(_FIELDS, saved):
        setattr(group, f, _copied(v))


def _copied(v: Any) -> Any:
    return v.copy() if isinstance(v, (list, dict, set)) else v


def _space(node: Node) -> tuple[int, ...]:
    return node.inputs[0].shape if node.op.kind == "reduce" else node.shape


def pieces(node: Node, position: tuple[Ix, ...]) -> list[tuple[int, tuple[Ix, ...], Mask | None]]:
    """Where a view's element at `position` comes from."""
    rule = node.op.index
    assert rule is not None, node.op.name
    out = []
    for k, at, mask in rule(node.shape, position, *(Seen(x) for x in node.inputs), **node.named_attrs()):
        if mask is TRUE:
            mask = None
        if mask is not None and mask.parts == (False,):
            continue
        out.append((k, tuple([Ix.of(p) for p in at]), mask))
    return out


def reshaped(shape: tuple[int, ...], position: tuple[Ix, ...], to: tuple[int, ...]) -> tuple[Ix, ...]:
    """The position in shape `to` of the element at `position` of `shape`, row-major."""
    if identical(shape, to):
        return position
    rule = REGISTRY["reshape"].index
    assert rule is not None
    ((_, at, _),) = rule(shape, position, _Shape(to), shape=shape)
    return tuple(Ix.of(p) for p in at)


class _Shape:
    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape


def _equal(a: tuple[Ix, ...], b: tuple[Ix, ...]) -> bool:
    return len(a) == len(b) and all(x.same(y) for x, y in zip(a, b))


def _variables_of(position: tuple[Ix, ...], axes: tuple[int, ...]) -> tuple[frozenset[str], frozenset[str]] | None:
    """Names of the variables in the reduced and in the other positions, None if they overlap."""
    reduced: set[str] = set()
    kept: set[str] = set()
    for i, p in enumerate(position):
        (reduced if i in axes else kept).update(p.variables())
    return None if reduced & kept else (frozenset(reduced), frozenset(kept))


def _spread(x: Node, over: Node) -> bool:
    """Whether `x` is a much smaller value repeated, such as one for each channel."""
    while x.op.kind == "view" and len(x.inputs) == 1:
        x = x.inputs[0]
    return x.op.kind != "view" and 16 * prod(map(int, x.shape)) <= prod(map(int, over.shape))


def _planewise(e: dict[str, int], group: Group) -> bool:
    """Whether an affine access of a row-major result is a*column + anything of image and channel, with planes as rows."""
    _, _, y, x = group.variables
    across = e.get(x.name, 0)
    if same(x.extent, 1):
        return same(y.extent, 1) or same(e.get(y.name, 0), 0) or same(e.get(y.name, 0), 1)
    return same(y.extent, 1) or same(e.get(y.name, 0), across * x.extent)


def _pixelwise(e: dict[str, int], group: Group, order: Order) -> bool:
    """Whether an affine access of a channels-last result is a*pixel + b*channel."""
    n, y, x, _ = (group.variables[a] for a in order)
    step: int | None = None
    for v, width in ((x, 1), (y, x.extent), (n, x.extent * y.extent)):
        if same(v.extent, 1):
            continue
        got = e.get(v.name, 0)
        if step is None:
            step = got  # the innermost that moves at all: everything further in has one position
        elif not same(got, step * width):
            return False
    return True


def loop_order(nodes: Sequence[Node], group: Group, orders: dict[Node, Order]) -> list[Var]:
    """A group's variables from the outermost to the innermost: as the first of its `nodes` with an order of its own is stored."""
    for n in nodes:
        space = _space(n)
        order = orders[n.inputs[0]] if n.op.kind == "reduce" else orders[n]
        if (
            order != row_major(len(space))
            and len(space) == len(group.shape)
            and all(same(a, b) for a, b in zip(space, group.shape))
        ):
            return [group.variables[a] for a in order]
    return list(group.variables)
