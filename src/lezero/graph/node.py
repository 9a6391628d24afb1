"""Nodes: what a recording is made of.

A node is immutable once made: an operation applied to nodes, with its attributes and the inferred shape, dtype and device.
Nodes of a recording double as the trie of what has been recorded before: ``next`` is the node that followed last time and
``branches``, where there was more than one, all that ever did.  Passes build new nodes that are in no trie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lezero.graph.dim import Dim, evaluate
from lezero.graph.dim import show as show_dim
from lezero.graph.dtype import DType

if TYPE_CHECKING:
    from lezero.ops.base import Op


class Node:
    """One operation in a graph.

    Attributes
    ----------
    op : the operation (an ``ops.base.Op``); leaves have ``ops.base.LEAF``
    inputs : tuple of Node
    attrs : tuple of hashable values, in the order of ``op.attrs``
    shape : tuple of int or Dim
    dtype, device
    weak : the value of a Python scalar (promotes by category only)
    tracks : the gradient walk goes through this node
    static : (leaves) extents are never symbols
    index : position in its recording
    site : (file, line) of the user's code that recorded it
    grad_mode : what it was when this was recorded
    guards : comparisons of symbolic extents that inference relied on
    update : part of a parameter's update: fused with its like only, so that all updates share one kernel
    found : (recorded nodes) operation, attributes and what they give, as an interned object (see runtime.inference)
    next, branches : the nodes that followed in the trie
    plans, replays : what is known of recordings that end here, and of backward passes that begin here
    """

    # Slots: a trace of a large network is tens of thousands of these (what they cost is in benchmarks/recording.py).
    __slots__ = (
        "attrs", "branches", "device", "dtype", "found", "grad_mode", "guards", "index", "inputs", "next", "op", "plans",
        "replays", "shape", "site", "static", "tracks", "update", "weak",
    )  # fmt: skip

    def __init__(
        self,
        op: Op,
        inputs: tuple[Node, ...],
        attrs: tuple,
        shape: tuple[int, ...],
        dtype: DType,
        device: str = "cpu",
        *,
        weak: bool = False,
        tracks: bool = False,
        site: tuple[str, int] | None = None,
    ):
        self.op, self.inputs, self.attrs = op, inputs, attrs
        self.shape, self.dtype, self.device = shape, dtype, device
        self.weak, self.tracks, self.site = weak, tracks, site
        self.index, self.grad_mode, self.static, self.update = -1, True, True, False
        self.guards: tuple = ()
        self.found: Any = None
        self.next: Node | None = None
        self.branches: list[Node] | None = None
        self.plans: dict[Any, Any] | None = None
        self.replays: dict[Any, Any] | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def named_attrs(self) -> dict[str, Any]:
        return dict(zip(self.op.attrs, self.attrs))

    def __repr__(self) -> str:
        dims = ", ".join(show_dim(d) for d in self.shape)
        attrs = "".join(f", {k}={v!r}" for k, v in self.named_attrs().items())
        ins = ", ".join(f"%{n.index}" if n.index >= 0 else n.op.name for n in self.inputs)
        return f"{self.op.name}({ins}{attrs}) : {self.dtype.name}[{dims}]"


def toposort(outputs: Iterable[Node]) -> list[Node]:
    """Every node the outputs need, inputs first.  Iterative: a graph may be 200,000 nodes deep."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, Iterator[Node]]] = []
    for output in outputs:
        if output in done:
            continue
        done.add(output)
        stack.append((output, iter(output.inputs)))
        while stack:
            node, rest = stack[-1]
            for n in rest:
                if n not in done:
                    done.add(n)
                    if n.inputs:
                        stack.append((n, iter(n.inputs)))
                        break
                    order.append(n)
            else:
                order.append(node)
                stack.pop()
    return order


class Graph:
    """Outputs and everything they need; `leaves` are the inputs in the order a run supplies them."""

    __slots__ = ("_order", "leaves", "outputs")

    def __init__(self, leaves: tuple[Node, ...], outputs: tuple[Node, ...]):
        self.leaves, self.outputs = leaves, outputs
        self._order: tuple[Node, ...] | None = None

    def nodes(self) -> tuple[Node, ...]:
        """Every node, inputs first."""
        if self._order is None:
            self._order = tuple(toposort(self.outputs))
        return self._order

    def consumers(self) -> dict[Node, list[Node]]:
        users: dict[Node, list[Node]] = {}
        for node in self.nodes():
            for n in node.inputs:
                users.setdefault(n, []).append(node)
        return users

    def rebuild(self, change) -> Graph:
        """A graph in which each node is ``change(node, new_inputs)``; return the node itself to leave it as it is."""
        new: dict[Node, Node] = {}
        for node in self.nodes():
            new[node] = change(node, tuple([new[n] for n in node.inputs]))
        if all(made is node for node, made in new.items()):
            return self  # whose order is known
        return Graph(self.leaves, tuple(new[n] for n in self.outputs))

    def at(self, bindings: Sequence[int]) -> Graph:
        """The graph with the extents its symbols have under `bindings`: nodes of one trace may remember different ones."""

        def now(value: Any) -> Any:
            if type(value) is tuple:
                return tuple(now(v) for v in value)
            return Dim(evaluate(value.expr, bindings), value.expr) if type(value) is Dim else value

        new: dict[Node, Node] = {}
        for node in self.nodes():
            inputs = tuple(new[n] for n in node.inputs)
            if _symbolic((node.shape, node.attrs)):
                made = Node(node.op, inputs, now(node.attrs), now(node.shape), node.dtype, node.device)
                made.weak, made.site, made.static, made.index = node.weak, node.site, node.static, node.index
            else:
                made = with_inputs(node, inputs)
            if made is not node:
                made.guards = node.guards
            new[node] = made
        return Graph(tuple(new.get(n, n) for n in self.leaves), tuple(new[n] for n in self.outputs))

    def __repr__(self) -> str:
        return show(self)


def _symbolic(value: Any) -> bool:
    return any(_symbolic(v) for v in value) if type(value) is tuple else type(value) is Dim


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The node with other inputs (itself, where they are the same)."""
    if inputs == node.inputs:  # nodes are equal only to themselves
        return node
    made = Node(node.op, inputs, node.attrs, node.shape, node.dtype, node.device, weak=node.weak, site=node.site)
    if node.update:
        made.update = True
    return made


def show(graph: Graph) -> str:
    """The graph as text, one node a line."""
    names = {}
    lines = []
    for i, node in enumerate(graph.nodes()):
        names[node] = f"%{i}"
        dims = ", ".join(show_dim(d) for d in node.shape)
        words = [names[n] for n in node.inputs] + [f"{k}={v!r}" for k, v in node.named_attrs().items()]
        lines.append(f"{names[node]:>5} = {node.op.name}({', '.join(words)}) : {node.dtype.name}[{dims}]")
    lines.append("return " + ", ".join(names[n] for n in graph.outputs))
    return "\n".join(lines)


class GraphError(Exception):
    """A graph that breaks a rule every pass must keep."""


def verify(graph: Graph) -> None:
    """Check what every pass must leave true: no cycle, leaves listed, and inference agrees with what nodes say."""
    listed = set(graph.leaves)
    for node in graph.nodes():
        if node.op.is_leaf:
            if node not in listed:
                raise GraphError(f"{node!r} is a leaf that the graph does not list")
            continue
        shape, dtype = node.op.infer_nodes(node.inputs, node.attrs)
        if tuple(map(int, shape)) != tuple(map(int, node.shape)) or dtype is not node.dtype:
            raise GraphError(f"{node!r} should be {dtype.name}{list(shape)}")
