"""What a run keeps for a ``backward()`` that may follow: what operations declare, less what is cheap to make again.

The rule is that of ``schedule/recompute.py``, which cannot see a gradient that has not been recorded: a large value is not kept
if it follows, element by element, within rows, or by a product of little depth, from values that are kept anyway (or small), of not more than
``MOST_READ_IN_ALL`` times its size, at most ``MAX_CHAIN`` of the values left out in a row.  What is left out, the gradient walk records again
(``gradient._PastValues``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod
from operator import attrgetter

from lezero.graph.dim import Dim, evaluate
from lezero.graph.node import Node
from lezero.runtime.checkpoint import Region, kept_for
from lezero.schedule import recompute

SHARE = 4
"""From which part of `recompute.LEAST_TOTAL` on less is kept: a plan of both passes counts the gradients on their way too, and
has the memory of its results for what is kept."""
WITHIN_ROWS = frozenset({"batch_norm", "dropout", "layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax"})
"""Operations that take little more time than reading their input; a batch norm is given its statistics."""


def residuals(
    reachable: Iterable[Node], have: Collection[Node], regions: Sequence[Region], bindings: Sequence[int]
) -> tuple[Node, ...]:
    """The values to keep for the gradients of `reachable` nodes, besides those there are anyway (`have`), as recorded: what
    the gradient walk lets go of last comes first."""
    keep: dict[Node, None] = {}
    for node in reachable:
        for n in _declared(node):
            for k in kept_for(n, node, regions):
                if k not in have and k.op.kind != "source" and not k.op.is_leaf:
                    keep[k] = None
    sizes = {n: _nbytes(n, bindings) for n in keep}
    if SHARE * sum(sizes.values()) < recompute.LEAST_TOTAL:
        return _in_order(keep)
    return _in_order(_without_cheap(keep, have, sizes, bindings))


def _in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=attrgetter("index")))


def _declared(node: Node) -> list[Node]:
    """What a node's operation keeps."""
    found: list[Node] = []
    for name in () if node.op.is_leaf else node.op.keeps:
        if name == "y":
            found.append(node)
            continue
        position = node.op.inputs.index(name)
        last = node.op.variadic and position == len(node.op.inputs) - 1
        found += node.inputs[position:] if last else node.inputs[position : position + 1]
    return found


def _without_cheap(
    keep: dict[Node, None], have: Collection[Node], sizes: dict[Node, int], bindings: Sequence[int]
) -> dict[Node, None]:
    kept = dict(keep)
    read: dict[Node, int] = {}  # bytes, for each that is left out
    chain: dict[Node, int] = {}
    for n in sorted(keep, key=lambda n: n.index):
        if sizes[n] < recompute.LEAST_BYTES or _narrowed(n):
            continue
        made_of = _made_of(n, kept, have, bindings, read)
        if made_of is None:
            continue
        total = sum(read.get(x) or _nbytes(x, bindings) for x in made_of)
        longest = 1 + max((chain[x] for x in made_of if x in chain), default=0)
        if total <= recompute.MOST_READ_IN_ALL * sizes[n] and longest <= recompute.MAX_CHAIN:
            read[n], chain[n] = total, longest
            del kept[n]
            kept.update((x, None) for x in made_of if x not in read)
    return kept


def _narrowed(node: Node) -> bool:
    """Whether a value is a leaf, such as a parameter, in a narrower type: reading that again takes longer."""
    return node.op.name == "cast" and node.inputs[0].op.is_leaf and node.dtype.itemsize < node.inputs[0].dtype.itemsize


def _made_of(
    node: Node, kept: Collection[Node], have: Collection[Node], bindings: Sequence[int], left_out: Collection[Node]
) -> list[Node] | None:
    """What has to be kept, or is left out itself, to make a node again cheaply; None where that is more than is kept anyway."""
    found: list[Node] = []
    seen = {node}
    todo = [node]
    while todo:
        n = todo.pop()
        if n is not node:
            if n.op.is_leaf or n in have:
                continue
            if n in kept or n in left_out:
                found.append(n)
                continue
        if not _cheap(n) or len(seen) > recompute.MAX_NODES:
            if n is node or _nbytes(n, bindings) >= recompute.LEAST_BYTES:
                return None
            found.append(n)
            continue
        fresh = [x for x in n.inputs if x not in seen]
        seen.update(fresh)
        todo += fresh
    return found


def _cheap(node: Node) -> bool:
    if node.op.name in ("linear", "matmul"):
        depth = int(node.inputs[0].shape[-1])
        return _shallow(depth, node)
    if node.op.name == "convolution":
        return _shallow(prod(map(int, node.inputs[1].shape[1:])), node)
    return node.op.kind in ("elementwise", "view", "source") or node.op.name in WITHIN_ROWS


def _shallow(depth: int, node: Node) -> bool:
    return 2 * depth <= recompute.MOST_OPERATIONS * node.dtype.itemsize


def _nbytes(node: Node, bindings: Sequence[int]) -> int:
    extents = (evaluate(d.expr, bindings) if type(d) is Dim else d for d in node.shape)
    return prod(extents) * node.dtype.itemsize
