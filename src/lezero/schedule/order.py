"""In which order kernels run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar

from lezero.graph.node import Node
from lezero.passes.pipeline import switched_off

Unit = TypeVar("Unit", bound=Hashable)


def in_order(
    units: Sequence[Unit],
    reads: Callable[[Unit], Collection[Node]],
    writes: Callable[[Unit], Collection[Node]],
    nbytes: Callable[[Node], int],
) -> list[Unit]:
    """Units in an order that respects what they read: as given where there is a choice, but first what frees memory.

    A unit frees memory if it is the last to read more bytes than it writes: the gradient of a weight frees an activation,
    the positions of maxima are smaller than what they are positions in.  ``nbytes`` is 0 for values that are kept anyway.

    Raises
    ------
    ValueError
        If they depend on each other in a circle.
    """
    saves = "order" not in switched_off()
    rank = {u: i for i, u in enumerate(units)}
    writer = {n: u for u in units for n in writes(u)}
    readers: dict[Node, set[Unit]] = {}
    for u in units:
        for n in reads(u):
            if writer.get(n, u) is not u:
                readers.setdefault(n, set()).add(u)
    missing = {u: len({writer[n] for n in reads(u) if writer.get(n, u) is not u}) for u in units}
    ready = [(rank[u], u) for u in units if not missing[u]]
    frees: list[tuple[int, Unit]] = []
    waiting, out = {u for _, u in ready}, []

    def weigh(u: Unit) -> None:
        if not saves:
            return
        freed = sum(nbytes(n) for n in set(reads(u)) if readers.get(n) == {u})
        if freed > sum(map(nbytes, writes(u))):
            heapq.heappush(frees, (rank[u], u))

    for u in waiting:
        weigh(u)
    while waiting:
        _, u = heapq.heappop(frees or ready)
        if u not in waiting:
            continue
        waiting.remove(u)
        out.append(u)
        for n in reads(u):
            left = readers.get(n, set())
            left.discard(u)
            if len(left) == 1:
                (last,) = left
                if last in waiting:
                    weigh(last)
        done = {v for n in writes(u) for v in readers.get(n, ())}
        for v in done:
            missing[v] -= 1
            if not missing[v]:
                waiting.add(v)
                heapq.heappush(ready, (rank[v], v))
                weigh(v)
    if len(out) != len(units):
        raise ValueError("the kernels of this graph depend on each other in a circle")
    return out
