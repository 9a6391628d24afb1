"""Sums of parts become parts side by side.

The gradient of a slice is an ``embed``, zeros with a part in them, and a value that is taken apart (by ``select``, ``unbind``,
``split``, ``chunk`` or overlapping windows) gets the sum of those.  Added up one by one, a sequence of `n` steps costs `n` passes
over the whole; side by side it costs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lezero.graph.dim import exact, identical, same
from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.base import REGISTRY
from lezero.ops.expr import Expr


def join_parts(graph: Graph) -> Graph:
    """``embed(a, start 0) + x + embed(b, start n)`` becomes ``x + concatenate(a, b)``, with zeros in the gaps.

    Parts at the same place are added up first; others that overlap go into as many concatenations as there are parts on top of
    each other.  Every element is the sum of what it was the sum of; only a -0.0 to which zeros were added keeps its sign.
    """
    terms = sums(graph)
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs = tuple(new[n] for n in node.inputs)
        made = node if node.op.is_leaf else with_inputs(node, inputs)
        if node in terms:
            made = _joined([new[n] for n in terms[node]], made)
        new[node] = made
    return Graph(graph.leaves, tuple(new[n] for n in graph.outputs))


def sums(graph: Graph) -> dict[Node, list[Node]]:
    """What is added up, from left to right, by each sum that is not part of a larger one.

    A partial sum that something else reads, too, is a term of its own.
    """
    users, outputs = graph.consumers(), frozenset(graph.outputs)
    adds = [n for n in graph.nodes() if _adds(n)]
    inner = {n for n in adds if n not in outputs and len(users[n]) == 1 and _adds(users[n][0])}
    found: dict[Node, list[Node]] = {}
    for root in adds:
        if root in inner:
            continue
        terms = found[root] = []
        stack = [root]
        while stack:
            node = stack.pop()
            if node is root or node in inner:
                stack += reversed(node.inputs)
            else:
                terms.append(node)
    return found


def _adds(node: Node) -> bool:
    return node.op.name == "add" and not node.update and node.dtype.kind != "b"


@dataclass(frozen=True)
class Part:
    """A value and where its first element lies in the whole."""

    starts: tuple[int, ...]
    value: Expr


def _joined(terms: Sequence[Node], whole: Node) -> Node:
    """The sum of `terms`, of which `whole` is one way to write it: that, where no two parts can be joined."""
    rest: list[Node] = []
    parts: list[Part] = []
    for n in terms:
        part = _part(n)
        if part is None:
            rest.append(n)
        elif not any(same(d, 0) for d in part.value.shape):
            parts.append(part)
    left = parts
    for axis in reversed(range(whole.ndim)):
        left = _along(left, axis)
    if len(left) == len(parts):
        return whole
    total: Expr | None = None
    for value in (*map(Expr, rest), *(_in_place(p, whole.shape) for p in left)):
        total = value if total is None else total + value
    assert total is not None
    if total.node.site is None:
        total.node.site = whole.site
    return total.node


def _part(x: Node) -> Part | None:
    """What lies among zeros in `x`, if it is a block."""
    attrs = x.named_attrs()
    if x.op.name == "embed" and all(type(s) is int and s == 1 for s in attrs["steps"]):
        return Part(attrs["starts"], Expr(x.inputs[0]))
    if x.op.name == "pad" and attrs["fill"] == 0 and all(map(_known, (*attrs["before"], *attrs["after"]))):
        return Part(attrs["before"], Expr(x.inputs[0]))
    return None


def _known(width: int) -> bool:
    """Whether a width is a number, and not one that cuts off."""
    return type(width) is int and width >= 0


def _along(parts: Sequence[Part], axis: int) -> list[Part]:
    """The parts with those joined that differ in where they lie on one axis only."""
    beside: dict[tuple, list[Part]] = {}
    for p in parts:
        key = exact(_others(p.starts, axis)), exact(_others(p.value.shape, axis))
        beside.setdefault(key, []).append(p)
    return [_side_by_side(row, axis) for group in beside.values() for row in _rows(group, axis)]


def _others(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*values[:axis], *values[axis + 1 :])


def _rows(parts: Iterable[Part], axis: int) -> list[list[Part]]:
    """Parts in rows in which none overlaps another, those at the same place added up."""
    placed: dict[tuple, Part] = {}
    for p in parts:
        place = exact((p.starts[axis], p.value.shape[axis]))
        have = placed.get(place)
        placed[place] = p if have is None else Part(p.starts, have.value + p.value)
    rows: list[list[Part]] = []
    for p in sorted(placed.values(), key=lambda p: int(p.starts[axis])):
        row = next((r for r in rows if _known(p.starts[axis] - _end(r[-1], axis))), None)
        if row is None:
            rows.append([p])
        else:
            row.append(p)
    return rows


def _end(p: Part, axis: int) -> int:
    return p.starts[axis] + p.value.shape[axis]


def _side_by_side(row: Sequence[Part], axis: int) -> Part:
    values = [row[0].value]
    for before, p in pairwise(row):
        gap = p.starts[axis] - _end(before, axis)
        if gap:
            values.append(_zeros(p.value, axis, gap))
        values.append(p.value)
    if len(values) == 1:
        return row[0]
    return Part(row[0].starts, REGISTRY["concatenate"](*values, axis=axis))


def _zeros(like: Expr, axis: int, extent: int) -> Expr:
    shape = (*like.shape[:axis], extent, *like.shape[axis + 1 :])
    attrs = (shape, 0, like.dtype)
    return Expr(Node(REGISTRY["full"], (), attrs, shape, like.dtype, like.node.device))


def _in_place(p: Part, shape: tuple[int, ...]) -> Expr:
    """Zeros of `shape` with a part in them."""
    if identical(p.value.shape, shape):
        return p.value
    return REGISTRY["embed"](p.value, shape=shape, starts=p.starts, steps=(1,) * len(shape))
