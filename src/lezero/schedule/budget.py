"""A schedule that keeps to a given amount of memory, and what that costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from numbers import Integral

from lezero.graph.node import Node
from lezero.passes.pipeline import switched_off
from lezero.schedule.lowered import number
from lezero.schedule.recompute import MAX_CHAIN, MOST_OPERATIONS, Effort
from lezero.schedule.schedule import Instance, Schedule

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
EFFORTS = (
    Effort(),
    Effort(2),
    Effort(2, products=True),
    Effort(3, 2 * MAX_CHAIN, products=True),
    Effort(4, 4 * MAX_CHAIN, products=True),
)
"""What is tried in turn; of the first that fits, only as much is done as it takes."""
HALVINGS = 3
"""How closely that is found out: each takes the time of planning once more."""


class MemoryLimitError(RuntimeError):
    """No schedule was found that keeps to a limit.

    Attributes
    ----------
    limit, least : int
        The limit, and the least that could be met, in bytes.
    """

    def __init__(self, name: str, limit: int, least: int):
        super().__init__(
            f"{name}: memory_limit={limit} ({show_bytes(limit)}) cannot be met: with everything recomputed that can be, a call "
            f"needs {least} bytes ({show_bytes(least)}). Raise the limit to that, use a smaller batch, or store activations "
            'in half precision (lz.autocast("cpu"))'
        )
        self.limit, self.least = limit, least


def parse_bytes(name: str, value: int | str) -> int:
    """A number of bytes: a positive int, or text such as "2GiB", "512 MiB" or "1.5 GB".

    Raises
    ------
    TypeError, ValueError
        For anything else.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        nbytes = int(value)
    elif isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", value)
        if found is None or found[2].lower() not in _UNITS:
            raise ValueError(
                f'{name}: {value!r} is not an amount of memory; write a number of bytes, or one with a unit like "2GiB", '
                '"512MiB" or "1.5GB"'
            )
        nbytes = int(float(found[1]) * _UNITS[found[2].lower()])
    else:
        raise TypeError(f'{name}: bytes as an int or text like "2GiB" are needed, got {type(value).__name__}')
    if nbytes <= 0:
        raise ValueError(f"{name}: more than 0 bytes are needed, got {value!r}")
    return nbytes


def show_bytes(nbytes: float) -> str:
    """Three digits or four, in the largest unit that leaves 1 or more."""
    power = min(3, max(0, int(nbytes).bit_length() - 1) // 10)
    return f"{nbytes / 1024**power:.4g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


@dataclass
class MemoryReport:
    """What keeping to a memory limit took.

    Attributes
    ----------
    limit : int, in bytes
    before, after : int
        Bytes a call needs (the arena and results in new memory) as it is planned without a limit, and with it.
    extra_time : float
        Estimated additional time, as a part of that of a call without a limit: each kernel is taken to last as long as what it
        moves or what it multiplies, at 32 operations for a byte, whichever is more.
    recomputed : list of (operation, where, bytes)
        Values computed a second time instead of being kept; `where` is the file and line that recorded them, or None.
    """

    limit: int
    before: int
    after: int
    extra_time: float
    recomputed: list[tuple[str, str | None, int]] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"memory limit {show_bytes(self.limit)}: a call needs {show_bytes(self.after)} ({show_bytes(self.before)} without a limit); "
            f"{len(self.recomputed)} values are computed again, estimated {self.extra_time:.1%} more time"
        )
        rows = sorted(self.recomputed, key=lambda r: -r[2])
        return "\n".join([head, *(f"  {show_bytes(n):>10}  {op}{f'  {at}' if at else ''}" for op, at, n in rows)])


@dataclass
class Limit:
    """A limit of a captured function, and the report of its last call."""

    name: str
    nbytes: int
    report: MemoryReport | None = None


def fit(
    build: Callable[[Effort | None], Schedule], bindings: Sequence[int], limit: Limit
) -> tuple[Schedule, MemoryReport]:
    """The schedule that recomputes the least among those tried that need no more than `limit` for these extents.

    Raises
    ------
    MemoryLimitError
        If there is none.
    """
    best = usual = _Tried(None, build, bindings)
    if usual.nbytes > limit.nbytes:
        least = usual.nbytes
        for tried in _attempts(build, bindings):
            least = min(least, tried.nbytes)
            if tried.nbytes <= limit.nbytes:
                best = _less(tried, build, bindings, limit.nbytes)
                break
        else:
            raise MemoryLimitError(limit.name, limit.nbytes, least)
    recomputed = [_described(r.first, bindings) for r in best.schedule.recomputed]
    time = best.seconds / usual.seconds - 1 if usual.seconds else 0.0
    return best.schedule, MemoryReport(limit.nbytes, usual.nbytes, best.nbytes, time, recomputed)


def needed(schedule: Schedule, instance: Instance) -> int:
    """Bytes a call needs: the arena, and results that lie in no input's memory."""
    graph = schedule.graph
    new = (
        prod(shape) * n.dtype.itemsize
        for n, shape in zip(graph.outputs, instance.output_shapes)
        if n not in schedule.reused
    )
    return instance.arena_bytes + sum(new)


class _Tried:
    """A schedule made with some effort, and what it takes."""

    def __init__(self, effort: Effort | None, build: Callable[[Effort | None], Schedule], bindings: Sequence[int]):
        self.effort, self.schedule = effort, build(effort)
        instance = self.schedule.instantiate(bindings)
        self.nbytes = needed(self.schedule, instance)
        work = self.schedule.flops(instance)
        self.seconds = sum(max(r.moved_bytes, f / MOST_OPERATIONS) for r, f in zip(instance.records, work))


def _attempts(build: Callable[[Effort | None], Schedule], bindings: Sequence[int]) -> Iterator[_Tried]:
    if "recompute" not in switched_off():
        for effort in EFFORTS:
            yield _Tried(effort, build, bindings)


def _less(fits: _Tried, build: Callable[[Effort | None], Schedule], bindings: Sequence[int], limit: int) -> _Tried:
    """What recomputes less than `fits`, and fits too."""
    assert fits.effort is not None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried = _Tried(replace(fits.effort, share=middle), build, bindings)
        if tried.nbytes <= limit:
            high = middle
            if tried.seconds <= fits.seconds:
                fits = tried
        else:
            low = middle
    return fits


def _described(n: Node, bindings: Sequence[int]) -> tuple[str, str | None, int]:
    size = prod(number(d, bindings) for d in n.shape) * n.dtype.itemsize
    return n.op.name, f"{n.site[0]}:{n.site[1]}" if n.site else None, size
