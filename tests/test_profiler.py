"""``lz.profiler``: kernels are timed and named."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero.backends.cpu.detect import detect
from lezero.profiler import Event, Limits, Row

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
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels, runs = ([e for e in trace if e.get("cat") == c] for c in ("kernel", "run"))
    assert len(kernels) == len(p.events) and len(runs) == p.runs
    for e in kernels:
        run = next(r for r in runs if r["name"] == f"run {e['args']['run']}")
        assert e["ph"] == "X" and run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] + 1e-3
    assert {e["tid"] for e in kernels + runs} <= {e["tid"] for e in trace if e["name"] == "thread_name"}
    assert sum(run["args"]["kernels"] for run in runs) == len(kernels)


def profiled(function):
    """What one call did, by itself."""
    with lz.no_grad():
        function().realize()
        with lz.profiler.profile() as p:
            function().realize()
    return p


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [lz.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]


@pytest.mark.parametrize(("m", "k", "n"), [(96, 80, 112), (1, 300, 200), (16, 30_000, 16)])
def test_a_product_is_two_operations_for_each_multiply_add(m, k, n):
    a, b = arrays((m, k), (k, n))
    p = profiled(lambda: a @ b)
    assert sum(e.flops for e in p.events) == 2 * m * k * n
    (product,) = (e for e in p.events if e.flops)  # not what adds up the parts of a long sum
    assert product is max(p.events, key=lambda e: e.moved_bytes) and product.moved_bytes >= 4 * (m * k + k * n)
    bias = lz.ones(n)
    assert sum(e.flops for e in profiled(lambda: F.relu(a @ b + bias)).events) == 2 * m * k * n + 2 * m * n


@pytest.mark.parametrize(
    ("channels", "size", "stride", "groups"), [((3, 16), 20, 1, 1), ((16, 32), 17, 2, 1), ((8, 8), 12, 2, 8), ((8, 16), 9, 1, 2)]
)  # fmt: skip
def test_a_convolution_and_its_gradients_are_the_same_number_of_operations_each(channels, size, stride, groups):
    x, w = arrays((2, channels[0], size, size), (channels[1], channels[0] // groups, 3, 3))
    x.requires_grad = w.requires_grad = True
    out = (size - 1) // stride + 1
    once = 2 * 2 * channels[1] * out**2 * (channels[0] // groups) * 9

    def step():
        x.grad = w.grad = None
        F.conv2d(x, w, stride=stride, padding=1, groups=groups).backward(lz.ones(2, channels[1], out, out))

    with lz.profiler.profile() as p:
        step()
        lz.realize(x.grad, w.grad)
    by_name = {name: sum(e.flops for e in p.events if e.name.startswith(name)) for name in
               ("conv2d_input_grad", "conv2d_weight_grad")}  # fmt: skip
    assert by_name == {"conv2d_input_grad": once, "conv2d_weight_grad": once}
    with lz.no_grad():
        p = profiled(lambda: F.conv2d(x, w, stride=stride, padding=1, groups=groups))
    assert sum(e.flops for e in p.events) == once
    assert not any(e.flops for e in p.events if "pad" in e.name or "weights" in e.name)


def test_element_wise_kernels_count_each_operation_and_each_array_once():
    (x,) = arrays((1000,))
    (e,) = profiled(lambda: x.exp() + x).events
    assert (e.flops, e.moved_bytes) == (2000, 8000)
    (e,) = profiled(lambda: x.to(lz.int32)).events
    assert (e.flops, e.moved_bytes) == (0, 8000)
    (e,) = profiled(x.sum).events
    assert (e.flops, e.moved_bytes) == (1000, 4004)


def test_the_distance_from_the_limit_is_the_least_time_over_the_time_taken():
    machine = Limits(flops_per_second=100e9, bytes_per_second=10e9)
    computing = Event("a", 0, 2_000_000, 2_000_000, 1000, 1, 100e6)  # 1 ms at the least
    moving = Event("a", 0, 1_000_000, 1_000_000, 5_000_000, 1, 1000.0)  # 0.5 ms at the least
    row = Row("a", [computing, moving])
    assert row.of_limit(machine) == pytest.approx(1.5 / 3)
    assert row.gigaflops_per_second == pytest.approx(0.100001 / 0.003)
    assert row.gigabytes_per_second == pytest.approx(0.005001 / 0.003)


def test_the_limit_of_a_product_is_that_of_how_it_multiplies():
    machine = Limits(flops_per_second=100e9, bytes_per_second=10e9, pairs_per_second=200e9)
    assert machine.seconds(100e6, 0) == pytest.approx(1e-3)
    assert machine.seconds(100e6, 0, "pairs") == pytest.approx(0.5e-3)
    assert machine.seconds(100e6, 0, "filtered") == pytest.approx(1e-3 * 16 / 36)
    x, w, small = arrays((2, 32, 16, 16), (32, 32, 3, 3), (32, 32, 1, 1))
    with lz.no_grad():
        assert "filtered" in {e.products for e in profiled(lambda: F.conv2d(x, w, padding=1)).events}
        assert {e.products for e in profiled(lambda: F.conv2d(x, small)).events} == {"plain"}
        low = [t.to(lz.bfloat16).realize() for t in (x, small)]
        found = {e.products for e in profiled(lambda: F.conv2d(*low)).events}
    assert ("pairs" in found) == detect().bf16_dot


@pytest.mark.parametrize(("rate", "explained"), [(1e3, True), (1e30, False)])
def test_what_is_above_a_limit_is_explained(monkeypatch, rate, explained):
    monkeypatch.setattr(lz.profiler, "limits", lambda: Limits(rate, rate, rate))
    (x,) = arrays((64, 64))
    with lz.profiler.profile() as p:
        (x @ x).numpy()
    assert p.table().splitlines()[-1].startswith("above 100 %: from caches") == explained


def test_rows_add_up_to_the_line_for_all_and_limits_are_measured_once():
    a, b = arrays((64, 64), (64, 64))
    with lz.profiler.profile() as p:
        for _ in range(3):
            ((a @ b).exp().sum(0) * 2).numpy()
    lines = [line for line in p.table(1).splitlines() if not line.startswith("above 100 %")]
    header, first, *rest, everything = lines[:-2]
    assert len(p.rows()) > 1 and len(rest) == 1 and rest[0].startswith(f"… and {len(p.rows()) - 1} more")
    calls = [int(line.split()[-9]) for line in (first, *rest, everything)]
    assert sum(calls[:-1]) == calls[-1] == len(p.events)
    shares = [float(line.split()[-7][:-1]) for line in (first, *rest)]
    assert sum(shares) == pytest.approx(100, abs=0.15)
    assert header.split()[:4] == ["kernel", "calls", "ms", "share"]
    machine = lz.profiler.limits()
    assert lz.profiler.limits() is machine
    assert (
        1e9 < machine.flops_per_second < 1e15
        and 1e8 < machine.pairs_per_second < 1e15
        and 1e8 < machine.bytes_per_second < 1e13
    )


def test_kernels_that_run_at_once_have_tracks_of_their_own():
    from lezero.profiler import _tracks

    events = [Event("a", *t, 0, 0, 1) for t in ((0, 10), (5, 8), (10, 12), (6, 20))]
    assert _tracks(events) == [0, 1, 0, 2]


def test_profiles_do_not_nest_and_end_with_their_block():
    with lz.profiler.profile(), pytest.raises(RuntimeError, match="another profile"):
        lz.profiler.profile().__enter__()
    with pytest.raises(ZeroDivisionError), lz.profiler.profile():
        raise ZeroDivisionError
    with lz.profiler.profile() as p:
        lz.ones(3).numpy()
    lz.ones(4).numpy()
    assert p.runs <= 1
