"""Checkpointed regions: stretches of a recording of which nothing inside is kept for the gradient.

A region is a stretch of a trie path between two marks.  The mark at its beginning is part of the path, so a trace with the
region and one without are different paths, and whatever is learned for one is never followed in the other.

When the gradient walk comes to a node of a region, the operations it asks about are recorded again from what the region
reads of the outside, *as of later* (:class:`~lezero.ops.shaping.later`): only once the gradient has arrived.  No code of the
user's runs a second time, so random numbers repeat and running statistics are updated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lezero.graph.dtype import as_dtype
from lezero.graph.node import Node
from lezero.ops.base import REGISTRY
from lezero.runtime.inference import Inferred, spec_of
from lezero.runtime.recorder import step
from lezero.runtime.recording import STATE, Handle, Recording
from lezero.runtime.trie import advance, tracks

_NO_VALUE = spec_of((), as_dtype("bool"), "cpu", True)
_BEGIN = Inferred(REGISTRY["constant"], ("checkpoint",), _NO_VALUE, False, ())
_END = Inferred(REGISTRY["constant"], ("end of checkpoint",), _NO_VALUE, False, ())
OPEN = 1 << 62
"""Where a region ends that is still being recorded."""


class Region:
    """The nodes of a path with ``begin < index <= end``.

    arguments : leaves the region's function was given, of which the copy is made later than the original
    outer : the region it is inside of
    """

    __slots__ = ("arguments", "begin", "end", "outer")

    def __init__(self, begin: int, end: int, outer: Region | None, arguments: frozenset[Node] = frozenset()):
        self.begin, self.end, self.outer, self.arguments = begin, end, outer, arguments

    def __contains__(self, node: Node) -> bool:
        """Whether a node is computed inside."""
        return self.begin < node.index <= self.end and not node.op.is_leaf


def innermost(regions: Sequence[Region], node: Node) -> Region | None:
    """The smallest region a node is computed in; inner ones come after those around them."""
    return next((r for r in reversed(regions) if node in r), None)


def outermost(regions: Sequence[Region], node: Node) -> Region | None:
    """The largest region a node is computed in."""
    return next((r for r in regions if node in r), None)


def recorded(fn: Callable[[], Any], arguments: Iterable[Handle]) -> Any:
    """Call `fn`; what it records is a region."""
    rec = STATE.recording
    nodes = [t._node if t._rec is rec else rec.imported.get(id(t)) for t in arguments]
    mark = advance(rec, _BEGIN, (), True, False, None)
    outer = next((r for r in reversed(rec.regions) if r.end == OPEN), None)
    region = Region(mark.index, OPEN, outer, frozenset(n for n in nodes if n is not None and n.op.is_leaf))
    rec.regions.append(region)
    try:
        return fn()
    finally:
        region.end, now = rec.tail.index, STATE.recording
        end = advance(now, _END, (), True, False, None)
        if now is not rec:  # a value was read inside, and another recording begun
            now.regions.append(Region(now.root.index, end.index, None))


class Again:
    """What the walk back through a recording reads of nodes inside regions: the same, recorded again."""

    def __init__(self, rec: Recording):
        self.rec = rec
        self.made: dict[Region, dict[Node, Node]] = {}
        self.tokens: dict[Region, Node] = {}

    def of(self, node: Node, dy: Node) -> tuple[Node, tuple[Node, ...]]:
        """A node and its inputs, for the gradient rule of the node; `dy` is the gradient that has arrived there."""
        region = innermost(self.rec.regions, node)
        if region is None:
            return node, node.inputs
        around: Region | None = region
        while around is not None:
            self.tokens.setdefault(around, dy if dy.inputs and dy.op.kind != "source" else node)
            around = around.outer
        return self._value(node, region), tuple([self._value(n, region) for n in node.inputs])

    def _value(self, node: Node, region: Region | None) -> Node:
        """A node as the copy of a region has it; with None the node itself."""
        if region is None:
            return node
        made = self.made.setdefault(region, {})
        if node in made:
            return made[node]
        missing: set[Node] = set()
        todo = [node]
        while todo:
            n = todo.pop()
            if n in made or n in missing:
                continue
            if n in region and n not in self.rec.variables:
                missing.add(n)
                todo.extend(n.inputs)
            else:
                made[n] = self._from_outside(n, region)
        for n in sorted(missing, key=lambda n: n.index):
            inputs = tuple([made[i] for i in n.inputs])
            grad_mode = STATE.grad_mode
            made[n] = advance(self.rec, n.found, inputs, grad_mode, tracks(n.found, inputs, grad_mode), n.site)
            self.rec.count += 1
        return made[node]

    def _from_outside(self, node: Node, region: Region) -> Node:
        """What the copy reads in place of something the region does not compute."""
        outer = self._value(node, region.outer)
        own = node in self.rec.variables and node not in region.arguments  # a parameter: there all the time
        if not node.shape or own or node.op.name == "constant":
            return outer
        return step(self.rec, REGISTRY["later"], (outer, self.tokens[region]), ())


def kept_for(node: Node, reader: Node, regions: Sequence[Region]) -> list[Node]:
    """What must be kept so that the gradient of `reader`, which reads `node`, can have its value: the node itself, or what the
    region that both are in reads of the outside to compute it."""
    region = outermost(regions, node)
    if region is None or reader not in region:
        return [node]
    found: dict[Node, None] = {}
    seen = {node}
    todo = [node]
    while todo:
        n = todo.pop()
        if n not in region:
            found[n] = None
            continue
        fresh = [i for i in n.inputs if i not in seen]
        seen.update(fresh)
        todo += fresh
    return list(found)
