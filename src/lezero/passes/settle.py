"""Extents that inference has pinned down become numbers.

Adding a tensor of symbolic extent to one of ten rows only works where the symbol is ten, and the recording is only followed
again where that holds.  With the number in place of the symbol, values on both sides are seen to have the same shape.
"""

from __future__ import annotations

from typing import Any

from lezero.graph.dim import Dim, identical, symbols
from lezero.graph.node import Graph, Node
from lezero.ops.base import REGISTRY


def settle_extents(graph: Graph) -> Graph:
    """Numbers for the symbols that a guard of some node says are equal to one; leaves keep them behind a reshape."""
    known = {k for node in graph.nodes() for guard in node.guards for k in _pinned(guard)}
    if not known:
        return graph

    def settled(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(map(settled, v))
        return int(v) if type(v) is Dim and symbols(v.expr) <= known else v

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


def _pinned(guard: tuple) -> set[int]:
    """The symbol that a guard ``symbol == number`` is about."""
    comparison, a, b, outcome = guard
    if comparison != "==" or not outcome:
        return set()
    for symbol, number in ((a, b), (b, a)):
        if len(symbol) == 1 and len(symbol[0][0]) == 1 and symbol[0][0][0][0] == "s" and not symbols(number):
            return symbols(symbol)
    return set()
