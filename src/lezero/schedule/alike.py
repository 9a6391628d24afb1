"""Groups that differ in nothing but which nodes they are of: the layers of a network, over and over.

What lowering does with a group depends on its *form*: operations, extents, memory orders, and how nodes refer to each other.
Groups of one form are lowered once, and the others take the result with their own nodes in place of the first one's.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from lezero.graph.dim import exact
from lezero.graph.node import Node
from lezero.schedule.group import Group
from lezero.schedule.groups import Grouping


class Forms:
    """The forms of a grouping's groups; `stored` are the nodes that get memory."""

    def __init__(self, grouping: Grouping, stored: set[Node]):
        self.grouping, self.stored = grouping, stored
        self._signatures: dict[Node, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, group: Group) -> tuple[Hashable, list[Node]]:
        """A group's form, and its nodes in an order in which groups of the same form correspond to each other."""
        number = {n: k for k, n in enumerate(group.nodes)}
        rows: list[Any] = []
        members = [
            (
                self._signature(n), n in self.stored, n in group.row, n in group.outer, group.level[n],
                tuple([ix.key for ix in group.index[n]]), tuple([self._see(x, number, rows) for x in n.inputs]),
            )
            for n in group.nodes
        ]  # fmt: skip
        form = (group.kind, exact(group.shape), group.reduced, group.style, tuple(members), tuple(rows))
        return form, list(number)

    def _see(self, x: Node, number: dict[Node, int], rows: list[Any]) -> int:
        """The number of a node; one met for the first time gets the next, and a row that says what it is."""
        found = number.get(x)
        if found is None:
            row = (self._signature(x), *self._below(x, number, rows))
            found = number[x] = len(number)
            rows.append((found, row))
        return found

    def _below(self, x: Node, number: dict[Node, int], rows: list[Any]) -> tuple[Any, ...]:
        """What a node outside a group is computed from where the group uses it; ("memory",) if it is read."""
        grouping = self.grouping
        looked_through = x.op.kind == "view" and x not in grouping.group_of
        if not looked_through and (x.op.kind == "leaf" or not grouping.inline(x)):
            return ("memory",)
        # the token of `later` is nothing but a dependency
        return tuple([self._see(n, number, rows) for n in (x.inputs[:1] if x.op.name == "later" else x.inputs)])

    def _signature(self, x: Node) -> int:
        """A number for all that concerns a node by itself."""
        found = self._signatures.get(x)
        if found is None:
            key = (x.op, exact(x.attrs), exact(x.shape), x.dtype, self.grouping.orders[x])
            found = self._signatures[x] = self._numbers.setdefault(key, len(self._numbers))
        return found
