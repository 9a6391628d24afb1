"""The contract a backend fulfils.

A backend is one package, found through the entry-point group ``lezero.backends``.  It is handed a coarse graph (operations
as users know them) and returns a program; decomposing, fusing and compiling is its own business, with the help of
``passes`` and ``schedule``.  ``backends/numpy`` is the smallest example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lezero.graph.dtype import DType
from lezero.graph.node import Graph
from lezero.hal.buffer import Buffer


@dataclass
class Properties:
    """What there is to know about a device.

    name : of the processor
    kind : such as "cpu"
    cores : how many it may use
    memory_bytes : how much there is
    level : which instructions are used, for ``LEZERO_CPU``
    details : what else its backend says
    """

    name: str
    kind: str
    cores: int
    memory_bytes: int
    level: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class Program:
    """A compiled graph.  ``run`` may be called many times, with the extents of any inputs that fit the graph's symbols."""

    def run(
        self,
        inputs: Sequence[Buffer],
        bindings: Sequence[int],
        donated: Sequence[int] = (),
        into: Mapping[int, Buffer] | None = None,
    ) -> list[Buffer]:
        """Compute the graph's outputs.

        inputs : one buffer for each of the graph's leaves
        bindings : the values of the symbols
        donated : positions of inputs whose memory an output may take over; its buffer may then be the input's
        into : position of an output -> a buffer an earlier run with equal bindings gave for it, which nobody needs any
            more: the output may be that buffer

        An exception means that nothing was overwritten.  An interrupt (Ctrl-C) that comes too late for that is raised when
        the run is complete, with the outputs as its attribute ``results``.
        """
        raise NotImplementedError


class Backend:
    """A way to run graphs."""

    name = ""

    def devices(self) -> list[str]:
        """Names of devices that are there now, like ``cpu`` or ``cuda:0``; empty when the backend cannot work here."""
        raise NotImplementedError

    def properties(self, device: str) -> Properties:
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """Uninitialised memory."""
        raise NotImplementedError

    def plan_key(self) -> Any:
        """Whatever else a program depends on (thread count, options); part of the key programs are found by."""
        return None

    def compile(
        self,
        graph: Graph,
        donatable: frozenset[int] = frozenset(),
        inputs: Sequence[Buffer] = (),
        together: frozenset[int] = frozenset(),
    ) -> Program:
        """A program for a graph.  Raises NotImplementedError naming an operation or dtype the backend lacks.

        donatable : positions of leaves whose buffers may be written over once they have been read
        inputs : buffers like those of every run (their strides are the same, their extents may differ in the symbols)
        together : positions of outputs that are kept for one later run, and may be a ``Part`` of one block
        """
        raise NotImplementedError

    def compile_within(self, graph: Graph, donatable: frozenset[int], inputs: Sequence[Buffer], limit: Any) -> Program:
        """As ``compile``, for a program that needs no more memory than ``limit.nbytes``; its runs set ``limit.report``."""
        raise NotImplementedError(
            f"lz.jit: the backend {self.name!r} plans no memory, so memory_limit needs another one"
        )

    def synchronize(self) -> None:
        """Return when everything launched has finished."""

    def memory_stats(self) -> dict[str, int]:
        """``allocated_bytes``, ``peak_bytes`` and whatever else the backend counts."""
        return {}

    def reset_peak_memory_stats(self) -> None:
        """Count ``peak_bytes`` from what is in use now."""

    def empty_cache(self) -> None:
        """Give memory that is kept to be used again back to the operating system."""
