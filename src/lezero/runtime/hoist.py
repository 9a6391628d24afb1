"""What a captured function computes from nothing that changes between its calls: computed once, and kept.

A model applied again and again puts its weights in order every time: gates in another order, the norm of a weight, a copy in half
precision.  `Hoisted` divides such a program in two.  One gives these values from the tensors that are no arguments, and runs
when one of them is another or was written to; the other gives the results from them, and runs at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import is_, itemgetter
from typing import Any
from weakref import ref

from lezero.graph.node import Graph, Node, with_inputs
from lezero.hal.backend import Backend, Program
from lezero.hal.buffer import Buffer, written_by_others
from lezero.ops.base import LEAF
from lezero.passes.pipeline import switched_off

LEAST = 1 / 32
"""Part of the bytes of what is no argument that the kept values must come to: for less, nothing is planned a second time."""
MOST = 1 / 4
"""Part of these bytes that may be kept besides them, or `ALWAYS`, if that is more."""
ALWAYS = 1 << 20
CHANGES = 3
"""Calls in a row before which something was written to, after which nothing is kept any more."""


class Hoisted:
    """A program in two parts; see the module.

    Parameters
    ----------
    graph : what the whole program computes
    kept : the values to keep, nodes of the graph
    sources : positions of the leaves that these are computed from
    inputs : buffers of all leaves
    """

    def __init__(
        self, graph: Graph, kept: Sequence[Node], sources: Sequence[int], inputs: Sequence[Buffer], backend: Backend,
        bindings: Sequence[int],
    ):  # fmt: skip
        self._sources = _chosen(sources)
        before = Graph(tuple(graph.leaves[k] for k in sources), tuple(kept))
        self._before: Program = backend.compile(before, inputs=[inputs[k] for k in sources])
        self._changed = 0
        self._compute(self._sources(inputs), bindings)
        after, rest = _after(graph, kept)
        self._rest = _chosen(rest)
        self.program: Program = backend.compile(after, inputs=[*self._rest(inputs), *self._kept])

    @property
    def useless(self) -> bool:
        """Whether the sources are other ones at every call."""
        return self._changed > CHANGES

    def inputs(self, given: Sequence[Buffer], bindings: Sequence[int]) -> list[Buffer]:
        """What `program` reads where the whole one would read `given`."""
        sources = self._sources(given)
        same = all(map(is_, sources, [r() for r in self._seen])) and [b.version for b in sources] == self._versions
        self._changed = 0 if same else self._changed + 1
        if not same:
            self._compute(sources, bindings)
        return [*self._rest(given), *self._kept]

    def _compute(self, sources: Sequence[Buffer], bindings: Sequence[int]) -> None:
        if any(map(written_by_others, sources)):
            self._changed = CHANGES + 1
        self._kept = self._before.run(sources, bindings)  # first: where it raises, nothing is known of these sources
        self._seen = [ref(b) for b in sources]  # a strong one would keep runs from writing over the weights
        self._versions = [b.version for b in sources]


def hoisted(
    graph: Graph, constant: Sequence[int], inputs: Sequence[Buffer], backend: Backend, bindings: Sequence[int]
) -> Hoisted | None:
    """A graph in two parts, if that is worth its while.

    constant : positions of the leaves that are no arguments
    """
    if "hoist" in switched_off():
        return None
    fixed = {graph.leaves[k]: _bytes(graph.leaves[k]) for k in constant if not written_by_others(inputs[k])}
    total = sum(fixed.values())
    kept, sources = _worth_keeping(graph, fixed, max(MOST * total, ALWAYS))
    if not kept or sum(map(_bytes, kept)) < LEAST * total:
        return None
    places = [k for k in constant if graph.leaves[k] in sources]
    return Hoisted(graph, kept, places, inputs, backend, bindings)


def _worth_keeping(graph: Graph, fixed: dict[Node, int], most: float) -> tuple[list[Node], set[Node]]:
    """What is computed from `fixed` leaves alone and read by something that is not, as far as it takes no more memory than they
    do, and all together no more than `most` bytes; and which leaves these are."""
    reads: dict[Node, frozenset[Node] | None] = {}  # of each node the leaves it is computed from; None where others are
    for node in graph.nodes():
        if node.op.is_leaf:
            reads[node] = frozenset([node]) if node in fixed else None
        else:
            of = [reads[n] for n in node.inputs]
            reads[node] = None if None in of else frozenset().union(*of)  # type: ignore[arg-type]
    kept: dict[Node, None] = {}
    sources: set[Node] = set()
    results, room = set(graph.outputs), most  # a result is made anew by each run
    for node in graph.nodes():
        for value in map(_computed, node.inputs if reads[node] is None else ()):
            of_value = reads[value]
            if value in kept or value in results or not of_value or value.op.is_leaf:
                continue
            size = _bytes(value)
            if size <= min(room, sum(fixed[n] for n in of_value)):
                kept[value] = None
                sources |= of_value
                room -= size
    return list(kept), sources


SEEN_THROUGH = frozenset({"reshape", "permute", "expand", "slice", "flip"})
"""Views through which elements are as quickly read as where they are."""


def _computed(node: Node) -> Node:
    """What a view is a view of."""
    while node.op.name in SEEN_THROUGH:
        (node,) = node.inputs
    return node


def _after(graph: Graph, kept: Sequence[Node]) -> tuple[Graph, list[int]]:
    """The graph with values given to it, as its last leaves; and the positions of the other leaves that it reads."""
    given = {n: Node(LEAF, (), ("tensor",), n.shape, n.dtype, n.device) for n in kept}
    changed = graph.rebuild(lambda node, inputs: given.get(node) or with_inputs(node, inputs))
    used = set(changed.nodes())
    rest = [k for k, leaf in enumerate(graph.leaves) if leaf in used]
    return Graph((*(graph.leaves[k] for k in rest), *given.values()), changed.outputs), rest


def _bytes(node: Node) -> int:
    return prod(map(int, node.shape)) * node.dtype.itemsize


def _chosen(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What picks the elements at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: [items[k] for k in places]
