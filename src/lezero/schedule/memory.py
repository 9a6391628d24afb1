"""One arena for all intermediate values: offsets packed by lifetime."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import Any

ALIGNMENT = 64


@dataclass
class Interval:
    """A value that lives from record `first` to record `last`, both included."""

    name: Hashable
    nbytes: int
    first: int
    last: int


TINY = 1 / 256
"""The part of the peak that the smallest values may take without sharing memory: most values are tiny (statistics of
channels), and finding each a place among all others took half of the time for a new batch size of ResNet-50."""


def pack(intervals: Sequence[Interval]) -> tuple[dict[Hashable, int], int]:
    """Offsets such that values alive at the same time do not overlap, and the arena's size.

    Largest first, each at the lowest offset that is free for its whole life: within a few percent of the peak of what is
    alive at once for the graphs of networks.  The smallest lie behind each other at the end.
    """
    left = alive_peak(intervals) * TINY
    order = sorted(intervals, key=lambda v: (-v.nbytes, v.first))
    tiny: list[Interval] = []
    while order and (left := left - _aligned(order[-1].nbytes)) >= 0:
        tiny.append(order.pop())
    placed: list[tuple[int, int, float, float]] = []  # (offset, end, first, last), by offset
    offsets: dict[Hashable, int] = {}
    top = 0
    for v in order:
        size = _aligned(v.nbytes)
        at = _lowest(v, placed)
        offsets[v.name] = at
        insort(placed, (at, at + size, v.first, v.last))
        top = max(top, at + size)
    for v in tiny:
        offsets[v.name] = top
        top += _aligned(v.nbytes)
    return offsets, top


@dataclass
class Space:
    """Memory of `nbytes` bytes that is free after record `after` and up to record `before`, both not included.

    busy : what is in use for longer, as (first byte, end, first record, last record), by first byte
    """

    name: Any
    nbytes: int
    after: float
    before: float
    busy: tuple[tuple[int, int, float, float], ...] = ()


def side_by_side(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of values that lie one after the other, and how much they take."""
    ends = list(accumulate(map(_aligned, sizes), initial=0))
    return ends[:-1], ends[-1]


def joined(parts: Sequence[tuple[Space, int, int]]) -> list[Space]:
    """Spaces that are parts of blocks, as (space, which block, offset in it): those next to each other are one."""
    spaces: list[Space] = []
    end: tuple[int, int] | None = None
    for part, block, offset in sorted(parts, key=lambda p: p[1:]):
        if end != (block, offset):
            spaces.append(Space(part.name, 0, -inf, inf))
        whole, size = spaces[-1], _aligned(part.nbytes)
        busy = [(first, last) for first, last in ((-inf, part.after), (part.before, inf)) if first != last]
        whole.busy += tuple((whole.nbytes, whole.nbytes + size, first, last) for first, last in busy)
        whole.nbytes += size
        end = block, offset + size
    return spaces


def lend(spaces: Sequence[Space], intervals: Sequence[Interval]) -> dict[Hashable, tuple[Hashable, int]]:
    """Values that fit in memory lent for a time, as (space, offset): largest first, each in the smallest that will do."""
    found: dict[Hashable, tuple[Hashable, int]] = {}
    placed: dict[Hashable, list[tuple[int, int, float, float]]] = {}
    by_size = sorted(spaces, key=lambda s: s.nbytes)
    for v in sorted(intervals, key=lambda v: (-v.nbytes, v.first)):
        for s in by_size:
            if s.nbytes < v.nbytes or s.after >= v.first or s.before <= v.last:
                continue
            here = placed.setdefault(s.name, list(s.busy))
            at = _lowest(v, here)
            if at + v.nbytes <= s.nbytes:
                insort(here, (at, at + _aligned(v.nbytes), v.first, v.last))
                found[v.name] = s.name, at
                break
    return found


def settle(
    spaces: Sequence[Space], results: Sequence[Interval], blocks: Mapping[Hashable, tuple[Hashable, int]]
) -> tuple[dict[Hashable, tuple[Hashable, int]], list[Space]]:
    """Results that may live in what others leave of their blocks, as (space, offset), and the spaces without them.

    A block is held by any result in it, so it takes them only if they fill half of it at least.

    blocks : for each space, which block it is in, and the bytes of that
    """
    found = lend(spaces, results)
    sizes = {v.name: v.nbytes for v in results}
    filled: dict[Hashable, int] = {}
    for name, (space, _) in found.items():
        block = blocks[space][0]
        filled[block] = filled.get(block, 0) + sizes[name]
    worth = {space for space, (block, nbytes) in blocks.items() if 2 * filled.get(block, 0) >= nbytes}
    found = {name: place for name, place in found.items() if place[0] in worth}
    left = []
    for s in spaces:
        taken = [
            (at, at + _aligned(v.nbytes), v.first, inf)
            for v in results
            for space, at in [found.get(v.name, (None, 0))]
            if space == s.name
        ]
        left.append(replace(s, busy=tuple(sorted((*s.busy, *taken)))))
    return found, left


def _aligned(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def _lowest(v: Interval, placed: Sequence[tuple[int, int, float, float]]) -> int:
    """The lowest offset that is free for the whole life of a value; placed: (offset, end, first, last), by offset."""
    size, begin, finish, at = _aligned(v.nbytes), v.first, v.last, 0
    for o, e, first, last in placed:
        if first <= finish and begin <= last:
            if o - at >= size:
                break
            at = e if e > at else at
    return at


def alive_peak(intervals: Sequence[Interval]) -> int:
    """The most bytes alive at one time: no packing can be smaller."""
    events: dict[int, int] = {}
    for v in intervals:
        events[v.first] = events.get(v.first, 0) + v.nbytes
        events[v.last + 1] = events.get(v.last + 1, 0) - v.nbytes
    now = peak = 0
    for t in sorted(events):
        now += events[t]
        peak = max(peak, now)
    return peak
