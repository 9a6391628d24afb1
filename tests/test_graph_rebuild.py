"""``Graph.rebuild`` and the order of nodes."""

from lezero.graph.dtype import float32
from lezero.graph.node import Graph, Node, toposort, with_inputs
from lezero.ops.base import LEAF, REGISTRY


def _node(name, *inputs):
    return Node(REGISTRY[name], inputs, (), (4,), float32)


def _graph():
    a, b = (Node(LEAF, (), (), (4,), float32) for _ in range(2))
    product = _node("mul", a, b)
    return Graph((a, b), (_node("add", product, _node("exp", product)), _node("neg", b)))


def test_a_graph_in_which_nothing_changes_stays_the_same_object():
    graph = _graph()
    assert graph.rebuild(lambda node, inputs: node if node.op.is_leaf else with_inputs(node, inputs)) is graph


def test_what_reads_a_changed_node_is_made_anew_and_the_rest_is_kept():
    graph = _graph()

    def change(node, inputs):
        if node.op.name == "exp":
            return _node("sqrt", *inputs)
        return node if node.op.is_leaf else with_inputs(node, inputs)

    changed = graph.rebuild(change)
    assert [n.op.name for n in changed.nodes()] == ["leaf", "leaf", "mul", "sqrt", "add", "neg"]
    assert changed.outputs[0] is not graph.outputs[0] and changed.outputs[1] is graph.outputs[1]


def test_inputs_come_first_in_the_order_in_which_they_are_read():
    graph = _graph()
    order = toposort(graph.outputs)
    a, b = graph.leaves
    total, negated = graph.outputs
    product, exponential = total.inputs
    assert order == [a, b, product, exponential, total, negated]
