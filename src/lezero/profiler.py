"""Where the time of a run goes, kernel by kernel.

with lz.profiler.profile() as p:
    for x, y in loader:
        step(x, y)
print(p.table())
p.save_trace("trace.json")      # for chrome://tracing or ui.perfetto.dev
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lezero.hal import registry
from lezero.misspelt import suggest_names
from lezero.runtime.run import run_now


@dataclass
class Event:
    """One kernel in one run; times in nanoseconds of the monotonic clock, `busy` summed over the threads."""

    name: str
    start: int
    end: int
    busy: int
    moved_bytes: int
    run: int


@dataclass
class Row:
    """All calls of the kernels of one name."""

    name: str
    calls: int
    seconds: float
    busy_seconds: float
    moved_bytes: int

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes of operands and results over the time it took."""
        return self.moved_bytes / self.seconds / 1e9 if self.seconds else 0.0


class profile:
    """Context: note when every kernel runs (CPU backend).  Recording and planning are what is left of ``wall_seconds``.

    Leaving the block runs what is pending.  An interrupt (Ctrl-C) in that moment can come before it is noticed that the block
    was left; profiling goes on then until ``p.__exit__(None, None, None)``.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.wall_seconds = 0.0
        self._runs = 0

    def __enter__(self) -> profile:
        from lezero.backends import cpu

        if registry.get_backend() != "cpu":
            raise RuntimeError(
                f"the profiler times kernels of the cpu backend; the one in use is {registry.get_backend()!r}"
            )
        if cpu.observer is not None:
            raise RuntimeError(
                "another profile is being taken (one whose block was left by Ctrl-C ends with p.__exit__(None, None, None))"
            )
        run_now()
        cpu.observer = self._note
        self._start = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from lezero.backends import cpu

        try:
            if kind is None:
                run_now()
        finally:
            cpu.observer = None
            self.wall_seconds += (time.monotonic_ns() - self._start) / 1e9

    def _note(self, instance: Any, times: list[Any]) -> None:
        self._runs += 1
        for record, t in zip(instance.records, times):
            if t.end:
                self.events.append(Event(t.label, t.start, t.end, t.busy, record.moved_bytes, self._runs))

    @property
    def runs(self) -> int:
        return self._runs

    @property
    def kernel_seconds(self) -> float:
        """Time in which at least one kernel ran."""
        total = reached = 0
        for e in sorted(self.events, key=lambda e: e.start):
            total += max(0, e.end - max(e.start, reached))
            reached = max(reached, e.end)
        return total / 1e9

    def rows(self) -> list[Row]:
        """One row for each kernel, the dearest first."""
        rows: dict[str, Row] = {}
        for e in self.events:
            row = rows.setdefault(e.name, Row(e.name, 0, 0.0, 0.0, 0))
            row.calls += 1
            row.seconds += (e.end - e.start) / 1e9
            row.busy_seconds += e.busy / 1e9
            row.moved_bytes += e.moved_bytes
        return sorted(rows.values(), key=lambda r: -r.seconds)

    def table(self, limit: int = 40) -> str:
        """The rows as text: calls, milliseconds, share of all kernels, microseconds a call, GB/s, threads busy on average."""
        rows = self.rows()
        total = sum(r.seconds for r in rows) or 1.0
        width = max([6, *(len(r.name) for r in rows[:limit])])
        width = min(width, 60)
        lines = [f"{'kernel':<{width}} {'calls':>6} {'ms':>10} {'share':>6} {'us/call':>10} {'GB/s':>7} {'threads':>7}"]
        for r in rows[:limit]:
            name = r.name if len(r.name) <= width else r.name[: width - 1] + "…"
            lines.append(
                f"{name:<{width}} {r.calls:>6} {1e3 * r.seconds:>10.3f} {100 * r.seconds / total:>5.1f}% "
                f"{1e6 * r.seconds / r.calls:>10.1f} {r.gigabytes_per_second:>7.2f} {r.busy_seconds / (r.seconds or 1):>7.2f}"
            )
        if len(rows) > limit:
            lines.append(f"… and {len(rows) - limit} more")
        lines.append(
            f"{self.runs} runs; kernels {1e3 * self.kernel_seconds:.3f} ms of {1e3 * self.wall_seconds:.3f} ms; "
            "the rest is recording, planning, compiling and Python"
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def save_trace(self, path: str | Path) -> None:
        """Write the events in Chrome's trace format."""
        events = [
            {
                "name": e.name, "ph": "X", "pid": 0, "tid": 0, "ts": (e.start - self._start) / 1e3, "dur": (e.end - e.start) / 1e3,
                "args": {"run": e.run, "busy_us": e.busy / 1e3, "bytes": e.moved_bytes},
            }
            for e in self.events
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


__all__ = ["Event", "Row", "profile"]


suggest_names(__name__)
