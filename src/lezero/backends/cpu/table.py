"""Tables: what a run does, as data that the native walker reads.

A :class:`TableBuilder` takes records in order and arranges them in stages (see ``walker.py``): a record with several
tasks is a stage of its own, followed by one for its combine phase; records of one task that follow each other share
a serial stage and meet no barrier between them; a record that needs no barrier joins the stage before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lezero.backends.cpu import walker
from lezero.backends.cpu.loader import LoadedKernel

_SERIAL_LIMIT = 32
"""Records in one serial stage: Ctrl-C is looked at between stages."""

OperandSet = tuple[Sequence[tuple[int, int]], Sequence[int], int]
"""Operands as (base, offset in bytes), params, and how many tasks."""


@dataclass
class Table:
    """A finished table.  It keeps its kernels loaded.

    Attributes
    ----------
    words : int64 array, aligned to 64 bytes
    bases : int
        Length of the `bases` array a run must pass.
    scratch_bytes : int
        Scratch memory each thread needs.
    labels : list of str
        One for each record.
    """

    words: np.ndarray
    address: int
    bases: int
    scratch_bytes: int
    overwrites: bool
    labels: list[str]
    kernels: list[LoadedKernel]
    item_records: np.ndarray  # the record of each item

    @property
    def stages(self) -> int:
        return int(self.words[walker.STAGES])


@dataclass
class RecordTimes:
    """When a record ran, in nanoseconds of the monotonic clock; `busy` is the sum over all threads."""

    label: str
    start: int
    end: int
    busy: int


def record_times(table: Table, profile: np.ndarray) -> list[RecordTimes]:
    """Fold a run's timings (items × start, end, busy) into records."""
    times = []
    for record, label in enumerate(table.labels):
        mine = profile[table.item_records == record]
        ran = mine[mine[:, 1] > 0]
        if len(ran):
            times.append(RecordTimes(label, int(ran[:, 0].min()), int(ran[:, 1].max()), int(ran[:, 2].sum())))
        else:
            times.append(RecordTimes(label, 0, 0, 0))
    return times


@dataclass
class _Item:
    address: int
    operands: Sequence[tuple[int, int]]
    params: Sequence[int]
    tasks: int
    record: int


@dataclass
class _Stage:
    items: list[_Item] = field(default_factory=list)
    serial: bool = False
    overwrites: bool = False

    @property
    def tasks(self) -> int:
        return sum(item.tasks for item in self.items)


class TableBuilder:
    """Collects records; `build` lays them out."""

    def __init__(self) -> None:
        self._stages: list[_Stage] = []
        self._labels: list[str] = []
        self._kernels: dict[int, LoadedKernel] = {}
        self._scratch = 0
        self._bases = 0

    def add(
        self,
        kernel: LoadedKernel,
        operand_sets: Sequence[OperandSet],
        combine_tasks: int = 0,
        scratch_bytes: int = 0,
        overwrites: bool = False,
        label: str = "",
        needs_barrier: bool = True,
    ) -> None:
        """Append a record.

        Parameters
        ----------
        kernel : LoadedKernel
        operand_sets : list of (operands, params, tasks)
            The kernel runs over each set, all sets' tasks at once.  An operand is (base, offset): its address is
            ``bases[base] + offset``, with the bases of the run.
        combine_tasks : int
            Tasks of the combine phase, for each set; 0 if there is none.
        scratch_bytes : int
            Thread-private memory a task needs.
        overwrites : bool
            The record writes memory that was valid before the run (parameters, optimizer state, running
            statistics): once it has begun the run cannot be abandoned.
        label : str
            For the profiler.
        needs_barrier : bool
            False if the record neither reads what the records since the last barrier write, nor writes what they
            touch: it then runs beside them.
        """
        if not kernel.address:
            raise ValueError(f"record {label!r}: the kernel has no function named 'kernel'")
        if combine_tasks and not kernel.combine_address:
            raise ValueError(
                f"record {label!r}: combine tasks are wanted, but the kernel has no function named 'combine'"
            )
        record = len(self._labels)
        self._labels.append(label)
        self._kernels[id(kernel)] = kernel
        self._scratch = max(self._scratch, scratch_bytes)
        sets = [(list(operands), list(params), tasks) for operands, params, tasks in operand_sets if tasks > 0]
        for operands, _, _ in sets:
            self._bases = max(self._bases, 1 + max([base for base, _ in operands], default=-1))
        self._append([_Item(kernel.address, o, p, n, record) for o, p, n in sets], overwrites, needs_barrier)
        if combine_tasks:
            combine = [_Item(kernel.combine_address, o, p, combine_tasks, record) for o, p, _ in sets]
            self._append(combine, overwrites, True)

    def _append(self, items: list[_Item], overwrites: bool, needs_barrier: bool) -> None:
        if not items:
            return
        last = self._stages[-1] if self._stages else None
        single = len(items) == 1 and items[0].tasks == 1
        if last and not needs_barrier and not last.serial:
            last.items += items
        elif last and single and last.tasks == 1:
            last.items += items
            last.serial = True
        elif last and single and last.serial and len(last.items) < _SERIAL_LIMIT:
            last.items += items
        else:
            last = _Stage(items)
            self._stages.append(last)
        last.overwrites |= overwrites

    def build(self) -> Table:
        """The table: header, stages, items, operands and params, then the stages' counters on lines of their own."""
        items = [item for stage in self._stages for item in stage.items]
        stages_at = walker.HEADER_WORDS
        items_at = stages_at + len(self._stages) * walker.STAGE_WORDS
        at = items_at + len(items) * walker.ITEM_WORDS
        stage_words: list[int] = []
        item_words: list[int] = []
        tail: list[int] = []
        number = 0
        for stage in self._stages:
            stage_words += [len(stage.items), items_at + len(item_words), stage.tasks, int(stage.serial)]
            first = 0
            for item in stage.items:
                operands_at = at + len(tail)
                for base, offset in item.operands:
                    tail += (base, offset)
                params_at = at + len(tail)
                tail += item.params
                item_words += [first, first + item.tasks, item.tasks, item.address,
                               len(item.operands), operands_at, params_at, number]  # fmt: skip
                first += item.tasks
                number += 1
        counters_at = -(-(at + len(tail)) // walker.COUNTER_WORDS) * walker.COUNTER_WORDS
        overwriting = next((i for i, stage in enumerate(self._stages) if stage.overwrites), len(self._stages))
        parallel = max((1 if stage.serial else stage.tasks for stage in self._stages), default=0)
        operands = max((len(item.operands) for item in items), default=0)
        header = [len(self._stages), stages_at, counters_at, operands, overwriting, parallel, 0, 0]
        words = _aligned_words(counters_at + len(self._stages) * walker.COUNTER_WORDS)
        content = header + stage_words + item_words + tail
        try:
            words[: len(content)] = content
        except OverflowError:
            raise MemoryError(
                "a result would have more elements than memory has addresses (2**63): a shape is larger than meant"
            ) from None
        return Table(
            words, words.ctypes.data, self._bases, self._scratch, overwriting < len(self._stages), self._labels,
            list(self._kernels.values()), np.array([item.record for item in items], dtype=np.int64),
        )  # fmt: skip


def _aligned_words(count: int) -> np.ndarray:
    raw = np.zeros(count + 8, dtype=np.int64)
    start = -raw.ctypes.data % 64 // 8
    return raw[start : start + count]
