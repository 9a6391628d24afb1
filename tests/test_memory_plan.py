"""The arena's plan: nothing overlaps that is alive at once, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lezero.schedule.memory import ALIGNMENT, TINY, Interval, alive_peak, pack

SIZES = st.one_of(st.integers(0, 200), st.integers(0, 1 << 20))
VALUES = st.lists(st.tuples(SIZES, st.integers(0, 12), st.integers(0, 12)), max_size=30)


@given(VALUES)
def test_what_is_alive_at_once_does_not_overlap(values):
    intervals = [Interval(k, size, first, first + more) for k, (size, first, more) in enumerate(values)]
    offsets, arena = pack(intervals)
    for v in intervals:
        assert offsets[v.name] % ALIGNMENT == 0 and offsets[v.name] + v.nbytes <= arena
        for w in intervals[: v.name]:
            if v.first <= w.last and w.first <= v.last and min(v.nbytes, w.nbytes):
                a, b = sorted((v, w), key=lambda x: offsets[x.name])
                assert offsets[a.name] + a.nbytes <= offsets[b.name]
    assert (arena == 0) == (not values)


def test_values_in_turn_take_the_memory_of_one_and_tiny_ones_a_small_part_of_it():
    large = [Interval(("large", k), 1 << 20, k, k) for k in range(50)]
    tiny = [Interval(("tiny", k), 64, k, k) for k in range(50)]
    arena = pack(large + tiny)[1]
    assert alive_peak(large) == 1 << 20 < arena <= (1 << 20) * (1 + TINY)
    more = [Interval(("tiny", k), 256, k % 50, k % 50) for k in range(1000)]
    assert pack(large + more)[1] <= alive_peak(large + more) * (1 + TINY) + ALIGNMENT
