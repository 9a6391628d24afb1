"""Extents that inference has found equal become one.

Adding a tensor of symbolic extent to one of ten rows only works where the symbol is ten, and class labels of scores only where
there are as many labels as rows, whatever a row was made of; the recording is only followed again where that holds.  With the
number, or the expression, in place of the symbol, values on both sides are seen to have the same shape.
"""

from __future__ import annotations

from typing import Any

from lezero.graph.dim import Dim, Guard, evaluate, identical, symbols
from lezero.graph.dim import _of as poly
from lezero.graph.node import Graph, Node
from lezero.ops.base import REGISTRY


def settle_extents(graph: Graph) -> Graph:
    """What some node's guard says a symbol is equal to, in its place; leaves keep the symbol behind a reshape."""
    nodes = graph.nodes()
    guards = dict.fromkeys(guard for node in nodes for guard in node.guards)
    if not guards:
        return graph
    extents = {k: d for n in nodes if n.op.is_leaf for d in n.shape if (k := _symbol(d)) is not None}
    if not _solve(extents, list(guards)):
        return graph

    def settled(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(map(settled, v))
        return evaluate(v.expr, extents) if type(v) is Dim and symbols(v.expr) <= extents.keys() else v

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        shape = settled(node.shape)
        if not node.op.is_leaf:
            return Node(
                node.op, inputs, settled(node.attrs), shape, node.dtype, node.device, weak=node.weak, site=node.site
            )
        if identical(shape, node.shape):
            return node
        return Node(REGISTRY["reshape"], (node,), (shape,), shape, node.dtype, node.device)

    return graph.rebuild(change)


def _symbol(d: int) -> int | None:
    """The number of the symbol that an extent is."""
    if type(d) is not Dim or len(d.expr) != 1:
        return None
    ((atoms, coefficient),) = d.expr
    return atoms[0][1] if coefficient == 1 and len(atoms) == 1 and atoms[0][0] == "s" else None


def _solve(extents: dict[int, int], guards: list[Guard]) -> bool:
    """Replace symbols by what equations of the form ``symbol == expression of others`` say; whether there were any."""
    found = False
    for comparison, *sides, outcome in guards:
        if comparison != "==" or not outcome or not all(symbols(side) <= extents.keys() for side in sides):
            continue
        a, b = (evaluate(side, extents) for side in sides)
        choices = [
            (k, by) for x, by in ((a, b), (b, a)) if (k := _symbol(x)) is not None and k not in symbols(poly(by))
        ]
        if choices:
            found = True
            symbol, by = max(choices, key=lambda choice: choice[0])
            only = {**{k: Dim.symbol(k, int(d)) for k, d in extents.items()}, symbol: by}
            extents.update({k: evaluate(poly(d), only) for k, d in extents.items()})
    return found
