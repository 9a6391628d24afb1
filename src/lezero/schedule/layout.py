"""Physical layout: in which order of its dimensions a value lies in memory.

Logical shapes never change.  Convolutions produce channels-last, and everything computed from them follows, until a reshape
or a matrix product asks for row-major.  An *order* lists the axes from the outermost to the innermost in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lezero.codegen.contraction.conv import copies_image
from lezero.graph.dim import same
from lezero.graph.node import Graph, Node
from lezero.passes.pipeline import switched_off
from lezero.schedule.index import Ix

Order = tuple[int, ...]
CHANNELS_LAST: Order = (0, 2, 3, 1)


def row_major(ndim: int) -> Order:
    return tuple(range(ndim))


def strides(shape: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Elements from one position to the next along each axis; those of empty arrays are as if empty axes had one position,
    so that different positions stay different whatever is empty."""
    out: list[int] = [0] * len(shape)
    step: int = 1
    for axis in reversed(order):
        out[axis] = step
        step = step * (1 if same(shape[axis], 0) else shape[axis])
    return tuple(out)


def linear(position: tuple[Any, ...], shape: tuple[int, ...], order: Order) -> Ix:
    """The element number in memory of a position."""
    total = Ix.of(0)
    for p, s in zip(position, strides(shape, order)):
        total = total + Ix.of(p) * s
    return total


def same_memory(shape: tuple[int, ...], a: Order, b: Order) -> bool:
    """Whether two orders place every element alike: extents of 1 do not count."""
    return [i for i in a if shape[i] != 1] == [i for i in b if shape[i] != 1]


FEW_CHANNELS = 8
"""Up to this many channels on one side, vectors run along image rows (measured with benchmarks/contractions.py --planar:
1.1 to 4.6 times the speed of vectors along channels, for up to 64 channels on the other side)."""


def planar(node: Node) -> bool:
    """Whether a convolution (or a gradient of one) computes on row-major images instead of channels-last ones."""
    attrs = node.named_attrs()
    if attrs["groups"] != 1 or tuple(attrs["stride"]) != (1, 1):
        return False
    x, w = node.inputs
    channels = {
        "conv2d": (x.shape[1], w.shape[0]),
        "conv2d_input_grad": (node.shape[1], w.shape[0]),
        "conv2d_weight_grad": (x.shape[1], w.shape[1]),
    }[node.op.name]
    return min(int(c) for c in channels) <= FEW_CHANNELS


def from_planes(node: Node, order: Order) -> bool:
    """Whether a convolution, or its weight gradient, takes a row-major image although it computes channels-last: it copies
    an image of few channels with its padding around it in any case."""
    if node.op.name not in ("conv2d", "conv2d_weight_grad") or planar(node):
        return False
    x, w = node.inputs
    attrs, kernel = node.named_attrs(), (w if node.op.name == "conv2d" else node).shape[2:]
    few = copies_image(int(x.shape[1]), attrs["groups"], tuple(map(int, kernel)), attrs["dilation"])  # type: ignore[arg-type]
    return few and same_memory(x.shape, order, row_major(4)) and not same_memory(x.shape, order, CHANNELS_LAST)


def infer_orders(
    graph: Graph, leaves: Mapping[Node, Order], known: Mapping[Node, Order] = MappingProxyType({})
) -> dict[Node, Order]:
    """The order each node would be stored in; `known` are those of nodes of an earlier graph."""
    orders: dict[Node, Order] = {}
    follows = "layout" not in switched_off()
    for node in graph.nodes():
        if node in known:
            orders[node] = known[node]
            continue
        if node.op.name == "later":  # the same memory
            orders[node] = orders[node.inputs[0]]
            continue
        orders[node] = leaves.get(node) or (
            _order(node, orders) if follows or node.op.kind == "contraction" else row_major(node.ndim)
        )
    return orders


def _order(node: Node, orders: dict[Node, Order]) -> Order:
    n = node.ndim
    default = row_major(n)
    kind, name = node.op.kind, node.op.name
    if name in ("conv2d", "conv2d_input_grad"):
        return default if planar(node) else CHANNELS_LAST
    if kind in ("leaf", "source", "contraction", "opaque") or n < 2:
        return default
    if kind == "elementwise":
        for x in node.inputs:
            if orders[x] != row_major(x.ndim) and not _is_broadcast(x):
                return orders[x]
        return default
    if kind == "reduce":
        x = node.inputs[0]
        if orders[x] == row_major(x.ndim):
            return default
        axes, keepdim = node.attrs[0], node.attrs[1]
        if keepdim:
            return orders[x]
        kept = [a for a in range(x.ndim) if a not in axes]
        return tuple(kept.index(a) for a in orders[x] if a not in axes)
    return _through_view(node, orders)


def _is_broadcast(x: Node) -> bool:
    return x.op.name == "expand"


def _through_view(node: Node, orders: dict[Node, Order]) -> Order:
    """Axes of a view in the order of the strides they have in what is viewed."""
    x = node.inputs[0]
    if node.op.name == "reshape" and orders[x] == row_major(x.ndim):
        return row_major(node.ndim)
    if len(node.inputs) > 1 and node.op.name not in ("concatenate", "slice_update"):
        return row_major(node.ndim)
    if orders[x] == row_major(x.ndim) and node.op.name != "permute":
        return row_major(node.ndim)
    if node.op.name == "expand":
        lead = node.ndim - x.ndim
        return (*range(lead), *(a + lead for a in orders[x]))
    stride = _steps(node, orders[x])
    if stride is None:
        return row_major(node.ndim)
    return tuple(sorted(range(node.ndim), key=lambda a: (-abs(stride[a]) if stride[a] else -(1 << 62), a)))


def _steps(view: Node, order: Order) -> list[int] | None:
    """How far apart in memory the first two elements along each axis of a view are; None if data decides that."""
    rule, x = view.op.index, view.inputs[0]
    assert rule is not None

    def place(axis: int) -> int | None:
        position = tuple(Ix.of(int(a == axis)) for a in range(view.ndim))
        found = rule(view.shape, position, *map(Seen, view.inputs), **view.named_attrs())
        at = next((linear(p, x.shape, order) for k, p, _ in found if k == 0), None)
        return None if at is None or at.terms else int(at.constant)

    first, steps = place(-1), [place(axis) for axis in range(view.ndim)]
    if first is None or None in steps:
        return None
    return [s - first for s in steps]  # type: ignore[operator]


def now(x: Node) -> Node:
    """The value that is there, of one that is read later (``ops.shaping.later``)."""
    while x.op.name == "later":
        x = x.inputs[0]
    return x


class Seen:
    """An input as a view rule sees it."""

    __slots__ = ("dtype", "node", "shape")

    def __init__(self, node: Node):
        self.node, self.shape, self.dtype = node, node.shape, node.dtype

    def read(self, *position: Any) -> Ix:
        return Ix.atom(("read", self.node, tuple(Ix.of(p) for p in position)))
