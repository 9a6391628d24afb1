"""Values read in place by kernels that take a stride for each of their dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.schedule.groups import pieces
from lezero.schedule.index import Ix, Var
from lezero.schedule.layout import Order, linear


@dataclass(frozen=True)
class Strided:
    """How a value lies in memory: its first element, and the elements from one position to the next along each axis."""

    source: Node
    offset: int
    strides: tuple[int, ...]


def strided(x: Node, orders: dict[Node, Order], outputs: frozenset[Node]) -> Strided | None:
    """A value with adjacent elements along its last axis, seen through views other than outputs; None for any other."""
    at = tuple(Ix.of(Var(f"q{k}", d)) for k, d in enumerate(x.shape))
    node = x
    while node.op.kind == "view" and node not in outputs:
        found = pieces(node, at)
        if len(found) != 1 or found[0][2] is not None or (len(node.inputs) > 1 and node.op.name != "later"):
            return None
        node, at = node.inputs[0], found[0][1]
    if node.op.kind == "source":
        return None
    place = linear(at, node.shape, orders[node])
    steps = place.affine()
    if steps is None:
        return None
    # along one position nothing is stepped over
    found_steps = tuple(0 if same(d, 1) else steps.get(f"q{k}", 0) for k, d in enumerate(x.shape))
    if any(int(s) < 0 for s in found_steps) or not (same(x.shape[-1], 1) or same(found_steps[-1], 1)):
        return None
    return Strided(node, place.constant, found_steps)
