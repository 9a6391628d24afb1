"""Kernels of operations that no group of loops over one shape expresses: scans, scatters, sorting.

:func:`lower_opaque` gives the kernels of a node, to be run one after the other.  Inputs and the result are row-major in
memory; extents are read at run time, so that one kernel serves every size.
"""

from __future__ import annotations

from lezero.graph.node import Node
from lezero.ops.indexing import Scatter
from lezero.ops.scan import Scan
from lezero.ops.sorting import argsort
from lezero.schedule.lowered import Lowered
from lezero.schedule.opaque.parts import lower_joined
from lezero.schedule.opaque.scan import lower_scan
from lezero.schedule.opaque.scatter import lower_scatter
from lezero.schedule.opaque.sort import lower_argsort


def lower_opaque(node: Node) -> list[Lowered]:
    """The kernels that compute an opaque operation, in the order in which they run (each waits for the one before).

    Their operands are inputs of the node, the node itself, and ("work", name, elements, bytes of one) for memory that lives
    until the last of them has run.
    """
    if isinstance(node.op, Scan):
        return lower_scan(node)
    if isinstance(node.op, Scatter):
        return lower_scatter(node)
    if node.op.name == "joined":
        return lower_joined(node)
    if node.op is argsort:
        return lower_argsort(node)
    raise NotImplementedError(f"{node.op.name} has no kernel")
