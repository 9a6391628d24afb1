"""Concatenations whose operands are computed where they belong.

Along an axis before which there is nothing to repeat, the operands of a concatenation lie one after the other in its memory: the
states of a recurrent layer, or the gradients of its steps.  Each operand's kernel writes it there (``placed``), and what cannot
be placed, such as an input, is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.ops.base import REGISTRY
from lezero.schedule.layout import Order, row_major
from lezero.schedule.lowered import Lowered

LEAST = 4
"""Operands from which on they are joined in memory: fewer are chosen between by whatever reads them."""


def in_memory(node: Node, inputs: Sequence[Node], many: int, outputs: frozenset[Node]) -> Node | None:
    """A concatenation as values one after the other; None where it is better read through (up to `many` operands, of which one
    is not computed for it) or its operands are not contiguous in it.

    inputs : the operands as they are now; ``node.inputs`` are those that `outputs` are of
    """
    if node.op.name != "concatenate" or len(inputs) < LEAST or not all(same(d, 1) for d in node.shape[: node.attrs[0]]):
        return None
    if len(inputs) <= many and not all(_computed(x, outputs) for x in node.inputs):
        return None
    bases = tuple(_base(x) for x in inputs)
    return Node(REGISTRY["joined"], bases, (node.shape,), node.shape, node.dtype, node.device, site=node.site)


def _base(x: Node) -> Node:
    while x.op.name == "reshape":
        x = x.inputs[0]
    return x


def _computed(x: Node, outputs: frozenset[Node]) -> bool:
    while x.op.name == "reshape" and x not in outputs:
        x = x.inputs[0]
    return x.op.kind not in ("leaf", "view", "source") and x not in outputs


def placed(
    steps: Iterable[Sequence[Lowered]], written: frozenset[Node], outputs: frozenset[Node], orders: dict[Node, Order]
) -> dict[Node, tuple[Node, int]]:
    """Values that lie in the memory of a concatenation: which, and how many elements from its first."""
    found: dict[Node, tuple[Node, int]] = {}
    for kernels in steps:
        for k in kernels:
            if k.part is None:
                continue
            whole, x, start = k.part
            if x in written and x not in outputs and orders[x] == row_major(x.ndim):
                found[x] = whole, start
    return found
