"""What a node reads from memory, looking through views and through what is computed wherever it is used."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from lezero.graph.dim import Dim, exact, identical, same
from lezero.graph.node import Graph, Node
from lezero.ops.base import REGISTRY
from lezero.ops.indexing import Scatter
from lezero.passes.pipeline import switched_off
from lezero.passes.scatters import filling
from lezero.schedule.group import Group, space
from lezero.schedule.index import TRUE, Ix, Mask, Var
from lezero.schedule.layout import Order, Seen, linear, row_major
from lezero.schedule.packed import packed, reshaped_from, rounded

MAX_INLINE = 48
STEPS = frozenset(("add", "sub", "mul", "cast"))
"""Operations a value may be seen through to one that is in memory: at most ``MAX_STEPS`` of them."""
MAX_STEPS = 6


@dataclass
class Access:
    """A value read from memory (or a member) at a position, where `mask` holds."""

    node: Node
    position: tuple[Ix, ...]
    mask: Mask | None


class Reads:
    """A primitive graph: what is computed where it is used, and what everything else reads."""

    def __init__(self, graph: Graph, orders: dict[Node, Order]):
        self.graph, self.orders = graph, orders
        self.group_of: dict[Node, Group] = {}  # of what is computed by a kernel: nobody looks through that
        self._inline: dict[Node, int] = {}
        self._root: dict[Node, tuple[Node, int]] = {}  # what is made again -> what in memory, in how many steps
        self.outputs = outputs = frozenset(graph.outputs)
        self.order = order = graph.nodes()
        self.users: dict[Node, list[Node]] = graph.consumers()
        self.in_memory = {m for n in order if n.op.kind in ("contraction", "opaque") for m in in_memory(n, outputs)}
        self._off = switched_off()
        self._sizes: dict[Node, int] = {}
        self._variables: dict[tuple, Var] = {}
        self._loops: dict[int, tuple[tuple[int, ...], tuple[Var, ...]]] = {}
        self._elements: dict[tuple, tuple[tuple[Var, ...], tuple[Ix, ...]]] = {}
        self._accesses: dict[tuple, tuple[tuple[Ix, ...], list[Access]]] = {}
        self._structures: dict[Any, int] = {}
        self._structure_of: dict[Node, int] = {}
        self._pieces: dict[tuple, tuple[tuple[Ix, ...], list[Piece]]] = {}
        packs = not self._off & {"fuse", "packed"}
        self.rounded = rounded(order, self.users, outputs, orders) if packs else set()  # by the products that read them
        self._sunk = self._packed() | self.rounded
        self._accesses.clear()  # those found with less that is computed where it is used
        self.in_memory -= self._sunk
        if not self._off & {"fuse", "see_through"}:
            self._sunk |= {n for n in order if n not in self._sunk and (self._cheaper_again(n) or self._only_summed(n))}
        self._inlined = {n for n in order if n in self._sunk or self._from_little(n)}

    # -- inlining ----------------------------------------------------------------------------------------------

    def inline(self, node: Node) -> bool:
        """Whether a node is computed wherever it is used."""
        return node in self._inlined

    def _from_little(self, node: Node) -> bool:
        """Whether a node comes from nothing but sources and single numbers."""
        if node in self.in_memory or (node.op.kind == "view" and node in self.outputs):
            return False
        return self._inline_size(node) <= MAX_INLINE

    def _packed(self) -> set[Node]:
        """What products compute of their first operands as they pack them."""
        if self._off & {"fuse", "packed"}:
            return set()
        found: set[Node] = set()
        little = {n for n in self.order if self._from_little(n)}
        for value, chain in packed(self.order, self.users, self.outputs).items():
            self._inlined = little | found | chain
            products = (n for n in self.order if n.op.name == "dot" and reshaped_from(n.inputs[0]) is value)
            if all(self._packs(n.inputs[0]) for n in products):
                found |= chain
        return found

    def _packs(self, matrix: Node) -> bool:
        """Whether what a matrix is computed from lies in memory as the matrix does, or is one number for a row or column."""
        if self.orders[matrix] != row_major(2):
            return False
        out: list[Access] = []
        row, column = (Var(name, d) for name, d in zip(("row", "col"), matrix.shape))
        self.reach(matrix, (Ix.of(row), Ix.of(column)), None, out)
        for a in out:
            at = linear(a.position, a.node.shape, self.orders[a.node]).affine()
            step = None if at is None else at.get(column.name, 0)
            if step is None or not (same(step, 0) or same(step, 1)) or (a.mask is not None and a.mask is not TRUE):
                return False
        return True

    def _cheaper_again(self, node: Node) -> bool:
        """What takes one load of something that is in memory anyway is made again where it is used, instead of being kept.

        A comparison: what a ReLU's gradient wants to know can be seen from the activation that the next convolution reads.
        And a standardisation: with the statistics, its steps follow from the value they are of.
        """
        if node.op.kind != "elementwise" or node in self.outputs:
            return False
        large = {x for x in node.inputs if self._inline_size(x) > MAX_INLINE}
        if node.op.domain == "compare":
            return len(large) == 1 and not large.isdisjoint(self.in_memory | self.outputs)
        if node.op.name not in STEPS or node in self.in_memory:
            return False
        seen = [self._seen_in(x) for x in large if not _spread(x, node)]
        if len({root for root, _ in seen}) != 1:
            return False
        root, steps = seen[0][0], sum(steps for _, steps in seen)
        if steps >= MAX_STEPS or root.op.kind == "view" or root.dtype.itemsize > node.dtype.itemsize:
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
            self.reach(node, position, None, out)
        else:
            for x in node.inputs:
                self.reach(x, position, None, out)
        return out

    def reach(self, node: Node, position: tuple[Ix, ...], mask: Mask | None, out: list[Access]) -> None:
        if node.op.kind == "view" and (node not in self.group_of or self.inline(node)):
            for k, at, m in self.pieces(node, position):
                both = m if mask is None else mask if m is None else mask & m
                self.reach(node.inputs[k], at, both, out)
                for ix in at:
                    self._reads(ix, out)
            if node.op.name == "later":
                token = node.inputs[1]
                self.reach(token, (Ix.of(0),) * token.ndim, None, out)
            return
        if node.op.kind == "leaf" or not self.inline(node):
            out.append(Access(node, position, mask))
            return
        for x in node.inputs:
            self.reach(x, position if x.ndim == len(position) else (), mask, out)

    def pieces(self, node: Node, position: tuple[Ix, ...]) -> list[Piece]:
        """Where a view's element at `position` comes from.  Views of one structure share the answer, unless data decides it:
        so it is the same object in every layer, and so is what is found for it in turn."""
        key = (self._structure(node), *map(id, position))
        found = self._pieces.get(key)
        if found is not None:
            return found[1]
        made = pieces(node, position)
        if not any(ix.has_reads for _, at, mask in made for ix in (*at, *(mask.indices() if mask else ()))):
            self._pieces[key] = position, made
        return made

    def _structure(self, node: Node) -> int:
        """A number for everything that decides what a view shows of its inputs."""
        found = self._structure_of.get(node)
        if found is None:
            key = (node.op, exact(node.attrs), exact(node.shape), tuple([exact(x.shape) for x in node.inputs]))
            found = self._structure_of[node] = self._structures.setdefault(key, len(self._structures))
        return found

    def _reads(self, ix: Ix, out: list[Access]) -> None:
        for a, _ in ix.terms.values():
            self._atom_reads(a, out)

    def _atom_reads(self, a: Any, out: list[Access]) -> None:
        if isinstance(a, Var):
            return
        if a[0] == "read":
            self.reach(a[1], a[2], None, out)
            for ix in a[2]:
                self._reads(ix, out)
            return
        for part in a[1:]:
            if isinstance(part, Ix):
                self._reads(part, out)

    def readers(self, node: Node) -> set[Node]:
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

    def loops(self, shape: tuple[int, ...]) -> tuple[Var, ...]:
        """A variable for each dimension: the same ones for the same extents, so that what is found for them can be kept."""
        found = self._loops.get(id(shape))  # most nodes have the shape of another: the same tuple
        if found is None:
            keys = [(k, type(d), d.expr if type(d) is Dim else d) for k, d in enumerate(shape)]
            made = tuple([self._variables.setdefault(key, Var(f"i{key[0]}", d)) for key, d in zip(keys, shape)])
            found = self._loops[id(shape)] = shape, made
        return found[1]

    def element(self, variables: tuple[Var, ...], shape: tuple[int, ...]) -> tuple[Ix, ...]:
        """The element of a value of some shape that loops over as many elements are at, row-major."""
        key = (*map(id, variables), exact(shape))
        found = self._elements.get(key)
        if found is None:
            position = tuple([Ix.of(v) for v in variables])
            at = reshaped(tuple([v.extent for v in variables]), position, shape)
            found = self._elements[key] = variables, at
        return found[1]

    def anywhere(self, node: Node) -> tuple[Ix, ...]:
        return tuple([Ix.of(v) for v in self.loops(space(node))])

    def size(self, node: Node) -> int:
        have = self._sizes.get(node)
        if have is None:
            have = self._sizes[node] = prod(node.shape)
        return have


def in_memory(node: Node, outputs: frozenset[Node]) -> list[Node]:
    """The nodes a contraction or an opaque operation reads from memory."""
    found = []
    for x in node.inputs[isinstance(node.op, Scatter) and filling(node) is not None :]:
        while x.op.kind == "view" and x not in outputs:
            x = x.inputs[0]
        found.append(x)
    return found


Piece = tuple[int, tuple[Ix, ...], Mask | None]
"""An input's number, a position in it, and where that is read."""


def pieces(node: Node, position: tuple[Ix, ...]) -> list[Piece]:
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


def _spread(x: Node, over: Node) -> bool:
    """Whether `x` is a much smaller value repeated, such as one for each channel."""
    while x.op.kind == "view" and len(x.inputs) == 1:
        x = x.inputs[0]
    return x.op.kind != "view" and 16 * prod(map(int, x.shape)) <= prod(map(int, over.shape))
