"""What the scheduler gets from code generation: kernel sources, and launches that say how to run them.

``KernelSource`` names machine code before it exists: equal keys mean equal code, on disk and in memory.
``Launch`` is one record of a table: a source, its operands by name, run-time integers and a task count.
``Plan`` is the sequence of launches that computes one kernel group, with the workspaces between them.
Making a plan for given extents is size arithmetic only; it never compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lezero.codegen.target import Target

MOST_ELEMENTS = 1 << 22
"""Elements of a loop that a task goes through at most, where there is a choice: an interrupt is looked at between tasks.
About 4 ms of additions, 30 ms of lgamma."""

MOST_PRODUCTS = 1 << 31
"""The same for the multiply-adds of contractions: some 20 ms."""


def divided(items: int, few: int, work: int, most: int) -> int:
    """How many tasks share `items`: `few`, or as many as keep each one's part of `work` within `most`."""
    return max(1, min(items, max(few, -(-work // most))))


@dataclass(frozen=True)
class KernelSource:
    """Machine code to be.

    key : text that determines the code, given the target (loop structure, dtypes, micro-tile, layout).
    emit : target -> LLVM IR text that defines ``kernel`` and, where it has a second phase, ``combine`` (loops/ir.py).
    scratch : params -> bytes of thread-private scratch memory a task needs.
    """

    name: str
    key: str
    emit: Callable[[Target], str] = field(compare=False, repr=False)
    scratch: Callable[[tuple[int, ...]], int] = field(default=lambda params: 0, compare=False, repr=False)


@dataclass
class Launch:
    source: KernelSource
    operands: tuple[str, ...]  # names; the plan's caller maps them to buffers, and "w:…" to the plan's workspaces
    params: tuple[int, ...]
    tasks: int
    combine_tasks: int = 0


@dataclass
class Plan:
    launches: list[Launch]
    workspaces: dict[str, int] = field(default_factory=dict)  # "w:name" -> bytes, 64-byte aligned
