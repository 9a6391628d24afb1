"""Operands of matrix products that are computed while they are packed, and are never in memory as a whole.

The gradient of a large vocabulary's scores follows element by element from the scores and a few numbers of each row, and is
read by two products and a sum.  Each of them computes it again: that is cheaper than a pass through memory to write it and
one to read it, and there is no second value of that size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.schedule.layout import Order

LEAST_BYTES = 16 << 20
"""A value that certainly does not stay in a cache between the kernel that writes it and those that read it."""
MAX_CHAIN = 24
"""Operations that such a value may take."""
MAX_USES = 4
"""Kernels that may compute it."""


def packed(
    order: Sequence[Node], users: dict[Node, list[Node]], outputs: Collection[Node]
) -> dict[Node, frozenset[Node]]:
    """First operands of products that need no memory: each with the large nodes on the way to it, itself included.

    Parameters
    ----------
    order : the nodes of a primitive graph, inputs before what reads them
    users : what reads each node
    outputs : of the graph
    """
    found: dict[Node, frozenset[Node]] = {}
    for node in order:
        x = reshaped_from(node.inputs[0]) if node.op.name == "dot" else None
        if x is None or x in found or not _large(x) or not _only_packed(x, users, outputs):
            continue
        chain = _chain(x, users, outputs)
        if chain:
            found[x] = chain
    return found


def rounded(
    order: Sequence[Node], users: dict[Node, list[Node]], outputs: Collection[Node], orders: Mapping[Node, Order]
) -> set[Node]:
    """Leaves in half precision that only products read: they read the leaf itself and round what they pack.

    Weights under autocast: each is read by two products, and rounding it in a kernel of its own would read and write memory
    as often.
    """
    return {
        n
        for n in order
        if n.op.name == "cast"
        and n.dtype.code in ("bf16", "f16")
        and n.inputs[0].op.is_leaf
        and n.inputs[0].dtype.code == "f32"
        and n.ndim > 1
        and n not in outputs
        and orders[n] == orders[n.inputs[0]]
        and _only_multiplied(n, users, outputs)
    }


def _only_multiplied(value: Node, users: dict[Node, list[Node]], outputs: Collection[Node]) -> bool:
    """Whether nothing but at most `MAX_USES` products read a value, in whatever shape."""
    readers = 0
    todo = [value]
    while todo:
        for user in users.get(todo.pop(), ()):
            if user.op.name in ("reshape", "permute") and user not in outputs:
                todo.append(user)
            elif user.op.name == "dot":
                readers += 1
            else:
                return False
    return 0 < readers <= MAX_USES


def reshaped_from(x: Node) -> Node:
    """What a node is in another shape."""
    while x.op.name == "reshape":
        x = x.inputs[0]
    return x


def _large(node: Node) -> bool:
    return int(prod(node.shape)) * node.dtype.itemsize >= LEAST_BYTES


def _only_packed(value: Node, users: dict[Node, list[Node]], outputs: Collection[Node]) -> bool:
    """Whether a value is read by nothing but sums and products that can compute it."""
    if value in outputs or value.op.kind != "elementwise" or value.dtype.code not in ("f32", "f64"):
        return False
    readers = 0
    todo = [value]
    while todo:
        n = todo.pop()
        for user in users.get(n, ()):
            if user.op.name == "reshape" and user not in outputs:
                todo.append(user)
            elif user.op.kind == "reduce" or packs(user, n):
                readers += 1
            else:
                return False
    return readers <= MAX_USES


def packs(node: Node, x: Node) -> bool:
    """Whether a node is one product of matrices, `x` being the first."""
    return (
        node.op.name == "dot"
        and node.inputs[0] is x
        and node.inputs[1] is not x
        and node.ndim == 2
        and not any(same(d, 1) for d in node.shape)
    )


def _chain(value: Node, users: dict[Node, list[Node]], outputs: Collection[Node]) -> frozenset[Node]:
    """The large nodes on the way to a value that serve nothing else, if all start from one and the same that is in memory.

    Empty if they do not.
    """
    chain, roots = {value}, _large_inputs(value, value)
    grown = True
    while grown:
        inner = {x for x in roots if x.op.kind == "elementwise" and x not in outputs and _within(x, chain, users)}
        grown = bool(inner)
        chain |= inner
        roots = (roots - inner).union(*(_large_inputs(x, value) for x in inner)) - chain
    good = len(roots) == 1 and len(chain) <= MAX_CHAIN and all(r.op.kind != "view" for r in roots)
    return frozenset(chain if good else ())


def _large_inputs(node: Node, value: Node) -> set[Node]:
    """What a node reads, but for numbers of rows and columns of `value` and for what is drawn at any place."""
    shown = {_shown(x) for x in node.inputs}
    return {x for x in shown if x.op.kind != "source" and 16 * int(prod(x.shape)) > int(prod(value.shape))}


def _shown(x: Node) -> Node:
    """What a view shows, if it is the same elements or one value repeated; the view itself otherwise."""
    while x.op.name in ("reshape", "expand"):
        x = x.inputs[0]
    return x


def _within(node: Node, chain: set[Node], users: dict[Node, list[Node]]) -> bool:
    """Whether nothing but the chain reads a node."""
    todo = list(users.get(node, ()))
    while todo:
        n = todo.pop()
        if n.op.kind == "view":
            todo += users.get(n, ())
        elif n not in chain:
            return False
    return True
