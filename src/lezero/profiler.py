"""Where the time of a run goes, kernel by kernel, and how far each is from what the machine can do.

with lz.profiler.profile() as p:
    for x, y in loader:
        step(x, y)
print(p.table())
p.save_trace("trace.json")      # for ui.perfetto.dev or chrome://tracing
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from lezero.backends import cpu
from lezero.backends.cpu.pool import get_num_threads
from lezero.graph.dtype import DType, bfloat16, float32
from lezero.graph.node import Graph
from lezero.hal import registry
from lezero.hal.buffer import Buffer
from lezero.misspelt import SpeltArguments, suggest_names
from lezero.ops.base import REGISTRY
from lezero.ops.expr import Expr, apply, leaf
from lezero.runtime.run import run_now
from lezero.schedule.work import products


@dataclass(frozen=True)
class Limits:
    """What the machine does at most with the threads in use, a second: float32 operations, bytes read and written, and
    operations of bfloat16 products."""

    flops_per_second: float
    bytes_per_second: float
    pairs_per_second: float = float("nan")

    def computing(self, flops: float, products: str = "plain") -> float:
        """The least time for so many operations; `products` as ``schedule.work.products`` says."""
        rate = self.pairs_per_second if products.endswith("pairs") else self.flops_per_second
        return flops * (16 / 36 if products.startswith("filtered") else 1) / rate

    def seconds(self, flops: float, moved_bytes: float, products: str = "plain") -> float:
        """The least time for so many operations and bytes that go through memory, if each hides behind the other."""
        return max(self.computing(flops, products), moved_bytes / self.bytes_per_second)


def limits() -> Limits:
    """Measured limits, for the number of threads in use: the best of several runs, taken once in a process (half a second).

    Operations: a product of two 1024 x 1024 matrices, of float32 and of bfloat16.  Bytes: an array of 128 MiB negated into
    another.
    Kernels whose data is in a cache can be above the second.
    """
    return _limits(get_num_threads())


@lru_cache(maxsize=8)
def _limits(threads: int) -> Limits:
    n = 1024

    def product(dtype: DType) -> float:
        return _fastest(lambda a, b: apply(REGISTRY["dot"], (a, b), (False, False)), [(n, n), (n, n)], dtype)

    size = 1 << 25
    copy = _fastest(lambda a: apply(REGISTRY["neg"], (a,), ()), [(size,)], float32)
    return Limits(2 * n**3 / product(float32), 2 * 4 * size / copy, 2 * n**3 / product(bfloat16))


def _fastest(function: Callable[..., Expr], shapes: Sequence[tuple[int, ...]], dtype: DType, times: int = 12) -> float:
    """Seconds that a function of arrays takes, the least of several times."""
    leaves = [leaf(s, dtype) for s in shapes]
    inputs = [Buffer(np.ones(s, dtype.numpy)) for s in shapes]
    graph = Graph(tuple(x.node for x in leaves), (function(*leaves).node,))
    program = cpu.CpuBackend().compile(graph, frozenset(), inputs)
    into = dict(enumerate(program.run(inputs, ())))  # with pages that are there from the second time on
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        program.run(inputs, (), (), into)
        best = min(best, time.perf_counter() - start)
    return best


@dataclass
class Event:
    """One kernel in one run; times in nanoseconds of the monotonic clock, `busy` summed over the threads.

    flops : floating-point operations, a multiply-add being two, any other one for each element
    moved_bytes : of its operands and results, each once
    products : how it multiplies, see ``schedule.work.products``
    """

    name: str
    start: int
    end: int
    busy: int
    moved_bytes: int
    run: int
    flops: float = 0.0
    products: str = "plain"

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return (self.end - self.start) / 1e9


@dataclass
class Row:
    """All calls of the kernels of one name."""

    name: str
    events: list[Event]

    @property
    def calls(self) -> int:
        """How often it ran."""
        return len(self.events)

    @property
    def seconds(self) -> float:
        """How long it ran, in all."""
        return sum(e.end - e.start for e in self.events) / 1e9

    @property
    def busy_seconds(self) -> float:
        """Summed over the threads."""
        return sum(e.busy for e in self.events) / 1e9

    @property
    def moved_bytes(self) -> int:
        """Bytes of operands and results, in all."""
        return sum(e.moved_bytes for e in self.events)

    @property
    def flops(self) -> float:
        """Floating-point operations, in all."""
        return sum(e.flops for e in self.events)

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes of operands and results over the time it took."""
        return self.moved_bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gigaflops_per_second(self) -> float:
        """Floating-point operations over the time it took."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    def of_limit(self, limits: Limits) -> float:
        """The least time the machine could need, call by call, over the time it took.

        Above 1 where data is in a cache, or where products with padding are counted and not done.
        """
        least = sum(limits.seconds(e.flops, e.moved_bytes, e.products) for e in self.events)
        return least / self.seconds if self.seconds else 0.0


class profile(SpeltArguments):
    """Context: note when every kernel runs (CPU backend).  Recording and planning are what is left of ``wall_seconds``.

    Leaving the block runs what is pending.  An interrupt (Ctrl-C) in that moment can come before it is noticed that the block
    was left; profiling goes on then until ``p.__exit__(None, None, None)``.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.wall_seconds = 0.0
        self._runs = 0
        self._flops: dict[int, tuple[Any, list[float]]] = {}  # id of an instance -> itself, and of each record

    def __enter__(self) -> profile:
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
        try:
            if kind is None:
                run_now()
        finally:
            cpu.observer = None
            self.wall_seconds += (time.monotonic_ns() - self._start) / 1e9

    def _note(self, schedule: Any, instance: Any, times: list[Any]) -> None:
        self._runs += 1
        if id(instance) not in self._flops:
            self._flops[id(instance)] = instance, schedule.flops(instance)
        for record, t, flops in zip(instance.records, times, self._flops[id(instance)][1]):
            if t.end:
                kind = products(record.source)
                self.events.append(Event(t.label, t.start, t.end, t.busy, record.moved_bytes, self._runs, flops, kind))

    def __getattr__(self, name: str) -> Any:
        advice = _METHODS.get(name)
        raise AttributeError(f"'profile' has no attribute {name!r}" + (f": {advice}" if advice else ""), name=name)

    @property
    def runs(self) -> int:
        """How many runs there were."""
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
            rows.setdefault(e.name, Row(e.name, [])).events.append(e)
        return sorted(rows.values(), key=lambda r: -r.seconds)

    def table(self, limit: int = 40) -> str:
        """The rows as text, the dearest first, and their sum.

        Columns: calls, milliseconds, share of all kernels, microseconds a call, GFLOP/s, GB/s, threads busy on average, and
        the least time the machine could need (:func:`limits`) over the time taken, with what decides it: computing or memory.
        It can be above 100 %: caches give bytes faster than memory, and convolutions need not multiply the padding that
        GFLOP/s counts, as is usual.
        """
        rows, machine = self.rows(), limits()
        shown = [*rows[:limit], *_rest(rows[limit:]), Row("all", self.events)]
        total = shown[-1].seconds or 1.0
        width = min(max([6, *(len(r.name) for r in shown)]), 48)
        header = (
            f"{'calls':>6} {'ms':>10} {'share':>6} {'us/call':>9} {'GFLOP/s':>8} {'GB/s':>7} {'threads':>7}  of limit"
        )
        lines = [
            f"{'kernel':<{width}} {header}",
            *(f"{_cut(r.name, width):<{width}} {_numbers(r, total, machine)}" for r in shown),
            f"{self.runs} runs; kernels {1e3 * self.kernel_seconds:.3f} ms of {1e3 * self.wall_seconds:.3f} ms; "
            "the rest is recording, planning, compiling and Python",
            f"limits measured here: {machine.flops_per_second / 1e9:.0f} GFLOP/s (a float32 product of 1024 x 1024 matrices), "
            f"{machine.pairs_per_second / 1e9:.0f} (a bfloat16 one), "
            f"{machine.bytes_per_second / 1e9:.1f} GB/s (an array of 128 MiB read and written)",
            *_above(shown, machine),
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def save_trace(self, path: str | Path) -> None:
        """Write the events in Chrome's trace format: a track of runs, and one of kernels (more where several run at once)."""
        tracks = _tracks(self.events)
        names = {0: "runs"} | {
            1 + k: "kernels" if not k else f"kernels beside them ({k})" for k in range(max(tracks, default=0) + 1)
        }
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": t, "args": {"name": name}} for t, name in names.items()
        ]
        events.append({"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "LeZero"}})
        runs: dict[int, list[Event]] = {}
        for e in self.events:
            runs.setdefault(e.run, []).append(e)
        events += [
            self._span(f"run {k}", min(e.start for e in of), max(e.end for e in of), 0, {"kernels": len(of)})
            for k, of in runs.items()
        ]
        machine = limits()
        events += [self._span(e.name, e.start, e.end, 1 + t, _facts(e, machine)) for e, t in zip(self.events, tracks)]
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")

    export_chrome_trace = save_trace  # PyTorch's name

    def _span(self, name: str, start: int, end: int, track: int, facts: dict[str, Any]) -> dict[str, Any]:
        at, took = (start - self._start) / 1e3, (end - start) / 1e3
        return {"name": name, "cat": "kernel" if track else "run", "ph": "X", "pid": 0, "tid": track, "ts": at, "dur": took, "args": facts}  # fmt: skip


def _facts(e: Event, machine: Limits) -> dict[str, Any]:
    seconds = e.seconds or 1e-9
    return {
        "run": e.run, "busy_us": e.busy / 1e3, "threads": e.busy / 1e9 / seconds, "bytes": e.moved_bytes, "flop": e.flops,
        "GFLOP/s": e.flops / seconds / 1e9, "GB/s": e.moved_bytes / seconds / 1e9,
        "of limit": machine.seconds(e.flops, e.moved_bytes, e.products) / seconds,
    }  # fmt: skip


def _tracks(events: Sequence[Event]) -> list[int]:
    """A track for each event, so that those of one track do not overlap."""
    ends: list[int] = []
    found = [0] * len(events)
    for k in sorted(range(len(events)), key=lambda k: events[k].start):
        track = next((t for t, end in enumerate(ends) if end <= events[k].start), len(ends))
        ends[track : track + 1] = [events[k].end]
        found[k] = track
    return found


def _rest(rows: Sequence[Row]) -> list[Row]:
    return [Row(f"… and {len(rows)} more", [e for r in rows for e in r.events])] if rows else []


def _above(rows: Sequence[Row], machine: Limits) -> list[str]:
    """What it means to be above a limit, where a row is."""
    if all(r.of_limit(machine) <= 1 for r in rows):
        return []
    return [
        "above 100 %: from caches, which give more bytes than memory, or without padding, whose products are counted"
    ]


def _numbers(r: Row, total: float, machine: Limits) -> str:
    computing = (
        sum(machine.computing(e.flops, e.products) for e in r.events) >= r.moved_bytes / machine.bytes_per_second
    )
    return (
        f"{r.calls:>6} {1e3 * r.seconds:>10.3f} {100 * r.seconds / total:>5.1f}% {1e6 * r.seconds / (r.calls or 1):>9.1f} "
        f"{r.gigaflops_per_second:>8.2f} {r.gigabytes_per_second:>7.2f} {r.busy_seconds / (r.seconds or 1):>7.2f} "
        f"{100 * r.of_limit(machine):>5.0f}% {'computing' if computing else 'memory'}"
    )


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


__all__ = ["Event", "Limits", "Row", "limits", "profile"]


_KERNELS = "every kernel is noted, with its bytes and operations; nothing has to be chosen"
_ONE_STRETCH = "what runs inside `with lz.profiler.profile() as p` is noted; warm up before it"
_METHODS = {
    "export_memory_timeline": 'lz.explain(step, x, y).save("page.html") shows the memory over time',
    "export_stacks": "lz.explain(step, x, y) says which lines are behind a kernel",
    "key_averages": "rows() has the sums of each kernel as objects, and table() as text; the dearest are first",
    "start": _ONE_STRETCH,
    "step": _ONE_STRETCH,
    "stop": _ONE_STRETCH,
    "total_average": "rows() has the sums of each kernel, and table() those of all",
}
"""What to do about methods of PyTorch's profile."""
_NAMES = {
    **dict.fromkeys(("DeviceType", "ProfilerActivity", "supported_activities"), _KERNELS),
    **dict.fromkeys(("ProfilerAction", "schedule"), _ONE_STRETCH),
    "record_function": "kernels are named after their operations, and lz.explain(step, x, y) says which layers and lines are behind them",
    "tensorboard_trace_handler": 'p.save_trace("trace.json") writes what ui.perfetto.dev and chrome://tracing show',
}

suggest_names(__name__, _NAMES)
