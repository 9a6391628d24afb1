"""What a kernel computes, as expressions of its loop variables: what is read from memory becomes a load at a linear index."""

from __future__ import annotations

from typing import Any
from weakref import proxy

from lezero.graph.dim import Dim
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.schedule.group import Group, loop_order
from lezero.schedule.groups import Grouping
from lezero.schedule.index import Emit, Ix, Mask, Params, Var, read_key, within
from lezero.schedule.layout import linear
from lezero.schedule.reads import pieces
from lezero.schedule.rounding import HALF, Rounding


class Values:
    """The values of a group's nodes, and the buffers, parameters and ways of reading that they need."""

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
        me = proxy(self)  # a cycle would keep all of this until Python looks for garbage

        def read(node: Node, position: tuple[Ix, ...]) -> ir.Value:
            return me._read(node, position)

        self.emit = Emit(self.params, read)
        self.rounding = Rounding()
        self.memo: dict[Any, ir.Value] = {}
        self.readable: dict[Any, ir.Value | None] = {}  # elements of index tensors: the mask they exist behind
        self.scratched: dict[Node, tuple[int, ir.Value]] = {}
        self.loaded: dict[Node, set[Any]] = {}  # where each array is read

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

    def _from_scratch(self, node: Node) -> ir.Value:
        number_, index = self.scratched[node]
        return ir.load(-1 - number_, compute_code(node.dtype), index)

    def _acc(self, node: Node) -> str:
        return f"r{self.group.nodes.index(node)}"

    def _acc_type(self, node: Node) -> str:
        return compute_code(node.dtype)


def _typed(value: ir.Value, node: Node) -> ir.Value:
    return ir.cast(value, compute_code(node.dtype))
