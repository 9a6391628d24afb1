"""Values read in place by kernels that take a stride for each of their dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.schedule.index import Ix, Var
from lezero.schedule.layout import Order, linear
from lezero.schedule.reads import pieces


@dataclass(frozen=True)
class Strided:
    """How a value lies in memory: its first element, and the elements from one position to the next along each axis."""

    source: Node
    offset: int
    strides: tuple[int, ...]


def in_memory(x: Node, orders: dict[Node, Order], outputs: frozenset[Node]) -> tuple[Node, Ix] | None:
    """The value in memory that `x` shows, and the element of it at ``q0, q1, …``; None where the way there is not one view
    after another.

    Outputs are not seen through: those have memory of their own, and what they show may have none.
    """
    at = tuple(Ix.of(Var(f"q{k}", d)) for k, d in enumerate(x.shape))
    while x.op.kind == "view" and x not in outputs:
        found = pieces(x, at)
        if len(found) != 1 or found[0][2] is not None or (len(x.inputs) > 1 and x.op.name != "later"):
            return None
        x, at = x.inputs[0], found[0][1]
    return None if x.op.kind == "source" else (x, linear(at, x.shape, orders[x]))


def strided(x: Node, orders: dict[Node, Order], outputs: frozenset[Node]) -> Strided | None:
    """A value with adjacent elements along its last axis, seen through views; None for any other."""
    found = in_memory(x, orders, outputs)
    steps = None if found is None else found[1].affine()
    if found is None or steps is None:
        return None
    node, place = found
    # along one position nothing is stepped over
    found_steps = tuple(0 if same(d, 1) else steps.get(f"q{k}", 0) for k, d in enumerate(x.shape))
    if any(int(s) < 0 for s in found_steps) or not (same(x.shape[-1], 1) or same(found_steps[-1], 1)):
        return None
    return Strided(node, place.constant, found_steps)
