"""Canonical form: equal computations once, views that do nothing left out, chains of casts shortened."""

from __future__ import annotations

from lezero.graph.dim import exact, identical
from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.base import REGISTRY


def eliminate_common(graph: Graph) -> Graph:
    """Merge nodes that compute the same from the same.

    Not what belongs to a parameter's update with what does not: these are never in one kernel, so the value would be stored for
    the other (ascending along ``-grad`` and looking at it: 9 % more bytes moved in a step of a small perceptron).
    """
    seen: dict[tuple, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = node if node.op.is_leaf else with_inputs(node, inputs)
        if node.op.is_leaf:
            return node
        key = (node.op, node.inputs, exact(node.attrs), exact(node.shape), node.dtype, node.update)
        return seen.setdefault(key, node)

    return graph.rebuild(change)


def remove_idle(graph: Graph) -> Graph:
    """Leave out what passes its input on unchanged: identities, reshapes and expansions to the same shape, double views."""

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op.is_leaf:
            return node
        node = with_inputs(node, inputs)
        name = node.op.name
        if name in ("identity", "detach", "variable"):
            return node.inputs[0]
        if name in ("reshape", "expand") and identical(node.inputs[0].shape, node.shape):
            return node.inputs[0]
        if name == "permute":
            source, axes = node.inputs[0], node.attrs[0]
            if source.op.name == "permute":
                axes = tuple(source.attrs[0][a] for a in axes)
                source = source.inputs[0]
            if axes == tuple(range(len(axes))):
                return source
            if source is not node.inputs[0]:
                return Node(node.op, (source,), (axes,), node.shape, node.dtype, node.device, site=node.site)
        if name == "reshape" and node.inputs[0].op.name == "reshape":
            return change(
                Node(node.op, node.inputs[0].inputs, node.attrs, node.shape, node.dtype, node.device),
                node.inputs[0].inputs,
            )
        if name == "cast" and node.inputs[0].dtype is node.dtype:
            return node.inputs[0]
        return node

    return graph.rebuild(change)


def pin_outputs(graph: Graph) -> Graph:
    """Outputs that are leaves, or the same node twice, get a copy of their own, so that every output is stored once."""
    taken: set[Node] = set()
    outputs = []
    for n in graph.outputs:
        if n.op.is_leaf or n in taken or n.op.kind in ("source",):
            n = Node(REGISTRY["identity"], (n,), (), n.shape, n.dtype, n.device)
        taken.add(n)
        outputs.append(n)
    return Graph(graph.leaves, tuple(outputs))
