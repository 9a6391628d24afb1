"""A kernel's nodes, and where in its loops each is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.schedule.index import Ix, Var
from lezero.schedule.layout import Order, row_major

MAX_NODES = 64


@dataclass(eq=False)
class Group:
    """Nodes computed by one kernel.

    kind : "loops", "contraction" (matrix product or convolution with element-wise work behind it) or "opaque"
    variables : one for each dimension of the full shape, in logical order
    reduced : names of the reduced variables, None while nothing is reduced
    style : how a reduction is computed: "row" (vector over reduced), "lane" (vector over kept, reduced variables in serial
        loops), "split" (partial results by task, then a combine phase)
    index : node -> the element it is computed at in an iteration
    level : node -> the stage it is computed in; a reduction's result is there from the next stage on
    """

    number: int
    kind: str
    shape: tuple[int, ...]
    variables: tuple[Var, ...]
    nodes: list[Node] = field(default_factory=list)
    reduced: frozenset[str] | None = None
    style: str = ""
    index: dict[Node, tuple[Ix, ...]] = field(default_factory=dict)
    level: dict[Node, int] = field(default_factory=dict)
    row: set[Node] = field(default_factory=set)
    outer: set[Node] = field(default_factory=set)  # results of summing row values, and what is computed from them
    reads: set[Node] = field(default_factory=set)  # nodes of other groups, and leaves
    ancestors: int = 0
    update: bool = False  # of parameters

    @cached_property
    def size(self) -> int:
        return prod(self.shape)

    @cached_property
    def bit(self) -> int:
        return 1 << self.number

    def names(self) -> list[str]:
        return [n.op.name for n in self.nodes]


_CHANGING = ("nodes", "reduced", "style", "index", "level", "row", "outer", "reads", "ancestors")


def saved(group: Group) -> tuple:
    return tuple(_copied(getattr(group, f)) for f in _CHANGING)


def restore(group: Group, state: tuple) -> None:
    for f, v in zip(_CHANGING, state):
        setattr(group, f, _copied(v))


def _copied(v: Any) -> Any:
    return v.copy() if isinstance(v, (list, dict, set)) else v


def space(node: Node) -> tuple[int, ...]:
    return node.inputs[0].shape if node.op.kind == "reduce" else node.shape


def loop_order(nodes: Sequence[Node], group: Group, orders: dict[Node, Order]) -> list[Var]:
    """A group's variables from the outermost to the innermost: as the first of its `nodes` with an order of its own is stored."""
    for n in nodes:
        extents = space(n)
        order = orders[n.inputs[0]] if n.op.kind == "reduce" else orders[n]
        if (
            order != row_major(len(extents))
            and len(extents) == len(group.shape)
            and all(same(a, b) for a, b in zip(extents, group.shape))
        ):
            return [group.variables[a] for a in order]
    return list(group.variables)
