"""A kernel in loop IR, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lezero.codegen.launch import MOST_ELEMENTS, divided
from lezero.graph.dim import Dim, evaluate
from lezero.graph.node import Node
from lezero.loops import ir

GRAIN = 16_384
"""Elements a task should have at least; smaller kernels run on one thread."""
PART = 1 << 15
"""Elements behind a partial result at least: a few microseconds of work, so that it does not matter that parts are many."""
ROWS_OF_PART = 16
"""Rows behind a partial row at least, so that writing and adding up the partial rows is little beside reading the rows."""
PARTS = 64
"""Partial results, unless a part would be too long for one task: how many there are shows in the bits of a sum."""


@dataclass
class Lowered:
    """A kernel and what it is called with.

    operands : nodes, in the order of the kernel's buffers; ("partial", k) for the k-th array of partial results
    params : extents (int or Dim), evaluated for each run's extents; "tasks" is the number of tasks of the body,
        "round" how many times the kernel was launched before
    partials : arrays of partial results; `tasks` says how many there are of each element
    """

    kernel: ir.Kernel
    operands: list[Any]
    params: list[int]
    work: int  # elements, an extent expression
    limit: int  # most tasks that make sense, an extent expression
    partials: list[tuple[int, int]]  # (elements for each task, bytes of one)
    combine_limit: int = 1
    rounds: Callable[[Sequence[int]], int] = lambda bindings: 1  # how many times it is launched
    in_place: tuple[tuple[Node, Node], ...] = ()  # (stored node, input whose memory it may take)
    copies: tuple[Node, Node] | None = None  # (stored node, input): nothing to do where it has taken that memory
    part: tuple[Node, Node, int] | None = None  # (stored node, input, from which element on it is that): likewise

    def tasks(self, threads: int, bindings: Sequence[int]) -> tuple[int, int]:
        """(tasks, combine tasks) for given extents."""
        work, limit = number(self.work, bindings), number(self.limit, bindings)
        if not self.partials:
            if not limit:
                return 0, 0
            return divided(limit, min(4 * threads, work // GRAIN), work, MOST_ELEMENTS), 0
        # A sum's bits depend on where it is cut: that follows from the sizes alone.
        kept = number(self.partials[0][0], bindings)
        tasks = divided(limit, min(PARTS, work // max(PART, kept * ROWS_OF_PART)), work, MOST_ELEMENTS)
        if self.combine_limit == 1:
            return tasks, 1
        return tasks, divided(kept, min(threads, kept * tasks // GRAIN), kept * tasks, MOST_ELEMENTS)


def number(d: int, bindings: Sequence[int]) -> int:
    """An extent for given values of the symbols."""
    return evaluate(d.expr, bindings) if type(d) is Dim else int(d)
