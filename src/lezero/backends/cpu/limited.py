"""A program that keeps to a memory limit: a schedule of its own for extents that the one before does not fit for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lezero.hal.backend import Program
from lezero.hal.buffer import Buffer
from lezero.schedule.budget import Limit, MemoryReport, fit
from lezero.schedule.recompute import Effort
from lezero.schedule.schedule import Schedule

if TYPE_CHECKING:
    from lezero.backends.cpu import CpuProgram

MAX_PROGRAMS = 16
"""Extents for which a schedule is kept; the least recently used goes first."""


class LimitedProgram(Program):
    """Chooses a program by the extents; a limit that cannot be met raises before anything runs."""

    def __init__(
        self, build: Callable[[Effort | None], Schedule], program: Callable[[Schedule], CpuProgram], limit: Limit
    ):
        self._build, self._program, self._limit = build, program, limit
        self._made: OrderedDict[tuple[int, ...], tuple[CpuProgram, MemoryReport]] = OrderedDict()

    @property
    def schedule(self) -> Schedule:
        """That of the last run."""
        return next(reversed(self._made.values()))[0].schedule

    def run(
        self,
        inputs: Sequence[Buffer],
        bindings: Sequence[int],
        donated: Sequence[int] = (),
        into: Mapping[int, Buffer] | None = None,
    ) -> list[Buffer]:
        key = tuple(bindings)
        if key not in self._made:
            schedule, report = fit(self._build, bindings, self._limit)
            self._made[key] = self._program(schedule), report
            if len(self._made) > MAX_PROGRAMS:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        program, self._limit.report = self._made[key]
        return program.run(inputs, bindings, donated, into)
