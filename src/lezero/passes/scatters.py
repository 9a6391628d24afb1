"""Elements are added straight into what their sum would be added to."""

from __future__ import annotations

from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.indexing import Scatter


def add_into(graph: Graph) -> Graph:
    """``y + scatter(zeros, ...)`` becomes ``scatter(y, ...)``: no zeros are written, and only what changes is read.

    So the gradient of an embedding whose weight is used elsewhere too, as by the scores of a language model, goes into what
    the other use gave.  Not in half precision, where the scatter's sums are rounded by themselves.
    """
    users = graph.consumers()
    outputs = frozenset(graph.outputs)

    def alone(x: Node) -> bool:
        return _into_zeros(x) and len(users[x]) == 1 and x not in outputs

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op.is_leaf:
            return node
        at = next((k for k, x in enumerate(node.inputs) if alone(x)), None) if _plain_sum(node) else None
        if at is None:
            return with_inputs(node, inputs)
        scatter = inputs[at]
        return with_inputs(scatter, (inputs[1 - at], *scatter.inputs[1:]))

    return graph.rebuild(change)


def _plain_sum(node: Node) -> bool:
    return node.op.name == "add" and not node.update and node.dtype.itemsize > 2 and node.dtype.differentiable


def _into_zeros(x: Node) -> bool:
    return isinstance(x.op, Scatter) and x.op.mode == "add" and filling(x) == 0


def filling(scatter: Node) -> int | float | complex | None:
    """The number everywhere in a scatter's base, None where that is not one known number."""
    base = scatter.inputs[0]
    value = base.named_attrs()["value"] if base.op.name == "full" else None
    return value if type(value) in (bool, int, float, complex) else None
