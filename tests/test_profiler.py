"""``lz.profiler``: kernels are timed and named."""

from __future__ import annotations

import json

import pytest

import lezero as lz

pytestmark = pytest.mark.skipif(lz.device.get_backend() != "cpu", reason="times the cpu backend's kernels")


def test_a_profile_has_a_row_for_each_kernel(tmp_path):
    x = lz.ones(200, 300)
    with lz.profiler.profile() as p:
        for _ in range(3):
            ((x * 2).exp().sum(1)).numpy()
    assert p.runs >= 3 and 0 < p.kernel_seconds < p.wall_seconds
    top = max(p.rows(), key=lambda r: r.moved_bytes)
    assert top.calls >= 3 and top.moved_bytes >= 3 * 200 * 300 * 4 and top.gigabytes_per_second > 0
    assert "GB/s" in p.table() and top.name[:20] in str(p)
    p.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == len(p.events) and all(e["ph"] == "X" and e["dur"] >= 0 for e in events)


def test_profiles_do_not_nest_and_end_with_their_block():
    with lz.profiler.profile(), pytest.raises(RuntimeError, match="another profile"):
        lz.profiler.profile().__enter__()
    with pytest.raises(ZeroDivisionError), lz.profiler.profile():
        raise ZeroDivisionError
    with lz.profiler.profile() as p:
        lz.ones(3).numpy()
    lz.ones(4).numpy()
    assert p.runs <= 1
