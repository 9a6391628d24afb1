"""Bring operands of contractions and opaque operations into a form their kernels take.

Matrix products read their operands in place wherever the access is strided (a transpose is a flag, a slice a stride);
attention in addition reads any strides of its batches and heads; convolutions want dense channels-last activations and row-major weights; opaque operations want row-major operands.  What
does not fit is copied, and the copy is an ordinary element-wise node, so it fuses into whatever produces the value.
"""

from __future__ import annotations

from dataclasses import dataclass

from lezero.graph.dim import same
from lezero.graph.dtype import number_dtype
from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.base import REGISTRY
from lezero.ops.expr import Expr
from lezero.ops.indexing import Scatter
from lezero.passes.scatters import filling
from lezero.schedule import joining
from lezero.schedule.index import Ix, Var
from lezero.schedule.layout import (
    CHANNELS_LAST,
    Order,
    from_planes,
    infer_orders,
    now,
    planar,
    row_major,
    same_memory,
)
from lezero.schedule.reads import pieces
from lezero.schedule.strided import in_memory, strided

ATTENTION = frozenset(("attention_blocks", "attention_blocks_grad"))
FLOATS = frozenset(("f32", "f64", "bf16", "f16"))


def prepare(graph: Graph, leaf_orders: dict[Node, Order]) -> tuple[Graph, dict[Node, Order]]:
    """The graph with copies where they are needed, and every node's memory order."""
    graph = _narrowed(graph.rebuild(_without_empty).rebuild(_products_of_integers))
    forced: dict[Node, Order] = dict(leaf_orders)
    copies: dict[tuple[Node, Order], Node] = {}
    orders = infer_orders(graph, forced)
    new: dict[Node, Node] = {}
    outputs = frozenset(graph.outputs)

    def copy(x: Node, order: Order) -> Node:
        made = copies.get((x, order))
        if made is None:
            made = copies[x, order] = Node(REGISTRY["identity"], (x,), (), x.shape, x.dtype, x.device, site=x.site)
            forced[made] = order
        return made

    for node in graph.nodes():
        inputs = tuple(new[n] for n in node.inputs)
        if node.op.name == "dot":
            inputs = tuple(
                x if matrix(n, orders, outputs) is not None else copy(x, row_major(x.ndim))
                for n, x in zip(map(_settled, node.inputs), map(_settled, inputs))
            )
        elif node.op.name in ATTENTION:
            inputs = tuple(
                x if strided(n, orders, outputs) is not None else copy(x, row_major(x.ndim))
                for n, x in zip(map(_settled, node.inputs), map(_settled, inputs))
            )
        elif node.op.kind == "contraction":
            wanted = _wanted(node)
            inputs = tuple(
                x if _dense(x, o, w) or (not k and _stored(x) and from_planes(node, o)) else copy(x, w)
                for k, ((x, o), w) in enumerate(zip(_with_orders(node, inputs, orders, forced), wanted))
            )
        elif node.op.kind == "opaque":
            filled = isinstance(node.op, Scatter) and filling(node) is not None
            inputs = tuple(
                x if _dense(x, o, row_major(x.ndim)) or (filled and not k) else copy(x, row_major(x.ndim))
                for k, (x, o) in enumerate(_with_orders(node, inputs, orders, forced))
            )
        made = node if node.op.is_leaf else with_inputs(node, inputs)
        new[node] = made
        if made is not node and node in forced:
            forced[made] = forced[node]
    graph = Graph(graph.leaves, tuple(new[n] for n in graph.outputs))
    return graph, infer_orders(graph, forced, orders)


def _with_orders(node: Node, inputs: tuple[Node, ...], orders: dict[Node, Order], forced: dict[Node, Order]):
    """Operands and the orders they lie in."""
    pairs = zip(map(_settled, node.inputs), map(_settled, inputs))
    return [(x, forced.get(x, orders[n])) for n, x in pairs]


def _settled(x: Node) -> Node:
    """The leaf, for one whose extents were settled."""
    if x.op.name == "reshape" and x.inputs[0].op.is_leaf and x.shape == x.inputs[0].shape:
        return x.inputs[0]
    return x


def _wanted(node: Node) -> tuple[Order, ...]:
    """Orders a convolution reads its operands in; weights are as the user holds them."""
    images = row_major(4) if planar(node) else CHANNELS_LAST
    return images, images if node.op.name == "conv2d_weight_grad" else row_major(4)


def _stored(x: Node) -> bool:
    """Whether a node can have memory of its own: sources and views have none, unless copied."""
    return now(x).op.kind not in ("view", "source")


def _dense(x: Node, order: Order, wanted: Order) -> bool:
    return _stored(x) and same_memory(x.shape, order, wanted)


@dataclass(frozen=True)
class Matrices:
    """How a product's operand lies in memory: element strides of rows, columns and the batch."""

    source: Node
    offset: int
    batch_stride: int
    row_stride: int
    column_stride: int


def matrix(x: Node, orders: dict[Node, Order], outputs: frozenset[Node]) -> Matrices | None:
    """A stack of matrices read in place, seen through views, if their elements are strided and one of the two strides is 1."""
    found = in_memory(x, orders, outputs)
    coefficients = None if found is None else found[1].affine()
    if found is None or coefficients is None:
        return None
    node, place = found
    c = [coefficients.get(f"q{k}", 0) if not same(d, 1) else None for k, d in enumerate(x.shape)]
    row, column = c[-2], c[-1]
    rows, columns = x.shape[-2], x.shape[-1]
    if column is None:
        column = 1
    if row is None:
        row = columns if same(column, 1) else 1
    if not same(column, 1) and not same(row, 1):
        return None
    if int(row) < 0 or int(column) < 0 or (same(row, 0) or same(column, 0)):
        return None
    if (same(column, 1) and int(row) < int(columns)) or (not same(column, 1) and int(column) < int(rows)):
        return None
    batch = None
    width: int = 1
    for d, s in zip(reversed(x.shape[:-2]), reversed(c[:-2])):
        if s is None:
            continue
        if batch is None:
            batch, width = s, d
        elif same(s, batch * width):
            width = width * d
        else:
            return None
    return Matrices(node, place.constant, 0 if batch is None else batch, row, column)


def _without_empty(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Contractions of nothing are zeros: an extent of 0 is never a symbol, so this is known when the schedule is made."""
    if node.op.is_leaf:
        return node
    node = with_inputs(node, inputs)
    if node.op.kind != "contraction" or not any(same(d, 0) for n in (node, *node.inputs) for d in n.shape):
        return node
    zeros = Node(REGISTRY["constant"], (), (0,), (), number_dtype(0), node.device)
    zeros = Node(REGISTRY["cast"], (zeros,), (node.dtype,), (), node.dtype, node.device)
    zeros = Node(REGISTRY["expand"], (zeros,), (node.shape,), node.shape, node.dtype, node.device)
    return Node(REGISTRY["identity"], (zeros,), (), node.shape, node.dtype, node.device, site=node.site)


MAX_PIECES = 16
"""Values that a chain of views may put together without memory in between."""
MAX_VIEWS = 24
"""Views of views without memory in between."""


def _narrowed(graph: Graph) -> Graph:
    """Memory within long chains of views and joins of many values, so that no kernel reads hundreds of arrays."""
    outputs = frozenset(graph.outputs)
    width: dict[Node, int] = {}
    depth: dict[Node, int] = {}

    def stored(x: Node) -> Node:
        if x not in width:
            return x
        return Node(REGISTRY["identity"], (x,), (), x.shape, x.dtype, x.device, site=x.site)

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op.kind != "view":
            return node if node.op.is_leaf else with_inputs(node, inputs)
        joined = joining.in_memory(node, inputs, MAX_PIECES, outputs)
        if joined is not None:
            return joined
        if _pieces_of(node, inputs, width) > MAX_PIECES or max(depth.get(x, 0) for x in inputs) >= MAX_VIEWS:
            inputs = tuple(stored(x) for x in inputs)
        while len(inputs) > MAX_PIECES and node.op.name == "concatenate":
            (axis,) = node.attrs
            parts = [inputs[k : k + MAX_PIECES] for k in range(0, len(inputs), MAX_PIECES)]
            inputs = tuple(stored(_joined(node, part, axis)) for part in parts)
        node = with_inputs(node, inputs)
        width[node] = _pieces_of(node, inputs, width)
        depth[node] = 1 + max(depth.get(x, 0) for x in inputs)
        return node

    def _joined(node: Node, part: tuple[Node, ...], axis: int) -> Node:
        shape = list(part[0].shape)
        for x in part[1:]:
            shape[axis] = shape[axis] + x.shape[axis]
        made = Node(node.op, part, node.attrs, tuple(shape), node.dtype, node.device, site=node.site)
        width[made] = len(part)
        return made

    return graph.rebuild(change)


ONE_PIECE = frozenset(["reshape", "permute", "expand", "slice", "flip", "take", "gather", "diagonal"])


def _pieces_of(node: Node, inputs: tuple[Node, ...], width: dict[Node, int]) -> int:
    """How many values in memory a view chooses between, one counted as often as it is read from."""
    if node.op.name in ONE_PIECE:
        return width.get(inputs[0], 1)
    if node.op.name == "concatenate":
        return sum(width.get(x, 1) for x in inputs)
    position = tuple(Ix.of(Var(f"q{k}", d)) for k, d in enumerate(node.shape))
    return sum(width.get(inputs[k], 1) for k, _, _ in pieces(node, position))


def _products_of_integers(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Products of integers and complex numbers, for which there is no tiled kernel, as multiply and add."""
    if node.op.is_leaf:
        return node
    node = with_inputs(node, inputs)
    if node.op.name != "dot" or node.dtype.code in FLOATS:
        if node.op.kind == "contraction" and node.dtype.code not in FLOATS:
            raise NotImplementedError(
                f"{node.op.name} of {node.dtype.name}: convolutions take floating dtypes; convert with .float()"
            )
        return node
    a, b = Expr(node.inputs[0]), Expr(node.inputs[1])
    trans_a, trans_b = node.attrs
    n = len(a.shape)
    swap = (*range(n - 2), n - 1, n - 2)
    if trans_a:
        a = REGISTRY["permute"](a, axes=swap)
    if not trans_b:
        b = REGISTRY["permute"](b, axes=swap)
    lead = tuple(a.shape[:-2])
    (m, k), columns = a.shape[-2:], b.shape[-2]
    full = (*lead, m, columns, k)
    a = REGISTRY["expand"](REGISTRY["reshape"](a, shape=(*lead, m, 1, k)), shape=full)
    b = REGISTRY["expand"](REGISTRY["reshape"](b, shape=(*lead, 1, columns, k)), shape=full)
    total = REGISTRY["sum"](a * b, axes=(len(full) - 1,), keepdim=False)
    return total.node if total.dtype is node.dtype else REGISTRY["cast"](total, dtype=node.dtype).node
