"""Which work may follow a product or a convolution tile by tile, while its result is in registers."""

from __future__ import annotations

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.passes.pipeline import switched_off
from lezero.schedule.group import Group
from lezero.schedule.index import TRUE
from lezero.schedule.layout import Order, linear, planar, row_major
from lezero.schedule.reads import MAX_STEPS, Access, Reads
from lezero.schedule.rounding import HALF
from lezero.schedule.statistics import squares_of, sums_of


def refused(reads: Reads, group: Group, node: Node, read: list[Access], where: str) -> str | None:
    """Why element-wise work cannot follow a contraction tile by tile; None if it can."""
    root = group.nodes[0]
    if root.op.name == "conv2d_weight_grad" and _widens(reads, group, node):
        return None
    if root.op.name not in ("dot", "conv2d"):
        return "gradients of convolutions are stored as they are"
    if any(n.op.kind == "reduce" for n in group.nodes):
        return "the tiles give sums"
    if where != "full" or (len(node.shape) != len(root.shape) and root.op.name != "dot"):
        return "only element-wise work of the product's shape follows a tile"
    if len(node.shape) != len(root.shape) and root.dtype.itemsize == 2:
        # measured on 1,024 rows: bias and residual sum took 0.07 of the product's time in its tiles, 0.02 beside it
        return "work on sequences in half precision is quicker in a kernel of its own"
    if _has_position(reads, node):
        return "positions are not known inside a tile"
    if node.dtype.is_complex or any(a.node.dtype.is_complex for a in read):
        return "complex numbers"
    if reads.orders[node] != (reads.orders[root] if root.op.name != "dot" else row_major(node.ndim)):
        return "another memory layout"
    last = group.variables[reads.orders[root][-1]].name
    for a in read:
        if reads.group_of.get(a.node) is group:
            continue
        if a.mask is not None and a.mask is not TRUE:
            return "a masked read"
        e = linear(a.position, a.node.shape, reads.orders[a.node]).affine()
        if e is None or not (same(e.get(last, 0), 0) or same(e.get(last, 0), 1)):
            return f"{a.node.op.name} is not contiguous along the tile's columns"
        if root.op.name == "dot":
            continue
        follows = _planewise(e, group) if planar(root) else _pixelwise(e, group, reads.orders[root])
        if not follows:
            return f"{a.node.op.name} does not follow the convolution's pixels"
    if not (_takes_the_place(reads, group, node, read) or _wanted_in_memory(reads, node)):
        return "its readers compute it from what is stored anyway"
    return None


def refused_statistics(group: Group, node: Node) -> str | None:
    """The same of the sums that batch normalisation takes of a convolution's result, while its tiles are in registers."""
    total = squares_of(node)
    of = sums_of(node if total is None else total)
    if of is None or of is not group.nodes[0] or "statistics" in switched_off():
        return "a reduction does not follow a contraction's tiles"
    if total is not None and total not in group.nodes:
        return "the mean that it needs is not taken from the tiles"
    if any(n.op.kind == "elementwise" for n in group.nodes):
        return "the tiles are finished by an epilogue"
    if any(n.op.kind == "reduce" and (squares_of(n) is None) == (total is None) for n in group.nodes):
        return "the tiles give this sum already"
    return None


def _widens(reads: Reads, group: Group, node: Node) -> bool:
    """Whether a node is nothing but the group's only value in float32: the gradient of a weight that autocast rounded."""
    (root, *others) = group.nodes
    cast = node.op.name == "cast" and node.inputs[0] is root and node.dtype.code == "f32"
    alone = not others and root not in reads.outputs and reads.readers(root) == {node}
    return cast and alone and root.dtype.code in HALF and reads.orders[node] == reads.orders[root]


def _takes_the_place(reads: Reads, group: Group, node: Node, read: list[Access]) -> bool:
    """Whether what a value is computed from need not be stored if the value is."""
    members = {node, *group.nodes}
    of = {a.node for a in read} & members
    return of.isdisjoint(reads.outputs) and all(reads.readers(n) <= members for n in of)


def _wanted_in_memory(reads: Reads, node: Node, steps: int = MAX_STEPS) -> bool:
    """Whether a value, or what is computed from it element by element, is read from memory by a product."""
    if node in reads.outputs or node in reads.in_memory:
        return True
    readers = reads.readers(node) if steps else set()
    return all(n.op.kind == "elementwise" for n in readers) and any(
        _wanted_in_memory(reads, n, steps - 1) for n in readers
    )


def _has_position(reads: Reads, node: Node) -> bool:
    """Whether what is computed on the way to a node depends on where it is, and not only on single numbers and what is in
    memory."""
    seen: set[Node] = set()
    todo = list(node.inputs)
    while todo:
        n = todo.pop()
        if n in seen or n.op.kind == "leaf" or (n in reads.group_of and not reads.inline(n)):
            continue
        seen.add(n)
        if n.op.kind == "source" and n.ndim and n.op.name not in ("full", "constant"):
            return True
        todo += n.inputs
    return False


def _planewise(e: dict[str, int], group: Group) -> bool:
    """Whether an affine access of a row-major result is a*column + anything of image and channel, with planes as rows."""
    _, _, y, x = group.variables
    across = e.get(x.name, 0)
    if same(x.extent, 1):
        return same(y.extent, 1) or same(e.get(y.name, 0), 0) or same(e.get(y.name, 0), 1)
    return same(y.extent, 1) or same(e.get(y.name, 0), across * x.extent)


def _pixelwise(e: dict[str, int], group: Group, order: Order) -> bool:
    """Whether an affine access of a channels-last result is a*pixel + b*channel."""
    n, y, x, _ = (group.variables[a] for a in order)
    step: int | None = None
    for v, width in ((x, 1), (y, x.extent), (n, x.extent * y.extent)):
        if same(v.extent, 1):
            continue
        got = e.get(v.name, 0)
        if step is None:
            step = got  # the innermost that moves at all: everything further in has one position
        elif not same(got, step * width):
            return False
    return True
