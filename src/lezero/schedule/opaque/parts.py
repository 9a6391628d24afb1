"""Operands that stay where their kernels wrote them, or are copied into the whole (see ``schedule/joining.py``)."""

from __future__ import annotations

from math import prod

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.schedule.layout import now
from lezero.schedule.lowered import Lowered
from lezero.schedule.opaque.frame import Frame, plus


def lower_joined(node: Node) -> list[Lowered]:
    """A copy for each operand, which is not needed where it lies in the result already."""
    kernels = []
    start: int = 0
    for x in node.inputs:
        frame, i, n = Frame(), ir.var("i"), prod(x.shape)
        value = frame.load(x, i)
        first = frame.values(start) if not same(start, 0) else ir.const(0)
        store = frame.store(node, node.dtype.code, plus(i, first), value)
        loop = ir.Loop("i", frame.values(n), [store], vector=True, task=True)
        kernels.append(frame.lowered("copy", [loop], n, n, part=(node, now(x), start)))
        start = start + n
    return kernels
