"""Memory on purpose: limits, statistics, accumulated gradients, and losses that are read before ``backward()``."""

from __future__ import annotations

import gc
import subprocess
import sys
from math import inf

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero import nn, optim
from lezero.hal import registry
from lezero.runtime import residuals, run
from lezero.schedule import recompute, schedule
from lezero.schedule.budget import parse_bytes
from lezero.schedule.memory import Interval, Space, joined, lend, settle
from test_checkpoint import added_peak

pytestmark = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that plans memory")


@pytest.fixture(autouse=True)
def without_garbage():
    """What tests before left in cycles, or recorded, is not let go of while memory is counted."""
    gc.collect()
    lz.realize()
    gc.collect()


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(n),
            nn.Linear(n, 4 * n),
            nn.Linear(4 * n, n),
            nn.Dropout(0.1),
        )

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


def transformer():
    return nn.Sequential(*[Block(32) for _ in range(6)], nn.Flatten(), nn.Linear(32 * 16, 5)), (24, 16, 32)


def wide():
    """More gradients than activations."""
    layers = [x for _ in range(6) for x in (nn.Linear(192, 192), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(192, 5)), (30, 192)


def convolutions():
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    body = [block(3, 16), *[block(16, 16) for _ in range(5)]]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)), (8, 3, 24, 24)


def captured(make, **options):
    """A captured training step, the model and the step's arguments."""
    lz.manual_seed(0)
    net, shape = make()
    opt = optim.AdamW(net.parameters(), lr=0.01)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    r = np.random.default_rng(0)
    x, y = lz.tensor(r.normal(size=shape).astype("f4")), lz.tensor(r.integers(0, 5, shape[0]))
    return lz.jit(step, **options), net, (x, y)


def trained(make, **options):
    step, net, arguments = captured(make, **options)
    losses = [step(*arguments).item() for _ in range(4)]
    return losses, [t.numpy().copy() for t in net.state_dict().values()], step.memory


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make, share", [(transformer, 0.75), (transformer, 0.5), (convolutions, 0.7)])
def test_a_limit_is_kept_and_changes_no_value(make, share):
    losses, state, free = trained(make, memory_limit="16GiB")
    limit = int(share * free.before)
    limited_losses, limited_state, report = trained(make, memory_limit=limit)
    np.testing.assert_allclose(limited_losses, losses, rtol=1e-4)
    for a, b in zip(limited_state, state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4)
    assert not free.recomputed and free.after == free.before and free.extra_time == 0
    assert report.after <= limit == report.limit < report.before
    assert report.recomputed and 0 < report.extra_time < 1
    assert all(n > 0 and "test_memory.py" in at for _, at, n in report.recomputed)
    assert "values are computed again" in str(report) and "more time" in str(report)


def test_the_memory_that_is_used_keeps_to_the_limit():
    free = trained(transformer, memory_limit="16GiB")[2]
    step, _, arguments = captured(transformer, memory_limit=free.before // 2)
    assert added_peak(lambda: step(*arguments)) <= free.before // 2
    assert registry.current()._arena.nbytes <= step.memory.after


def test_a_larger_batch_is_planned_again():
    free = trained(transformer, memory_limit="16GiB")[2]
    step, _, (x, y) = captured(transformer, memory_limit=free.before)
    for _ in range(3):
        step(x, y)
    assert not step.memory.recomputed
    for _ in range(3):
        step(lz.cat([x, x]), lz.cat([y, y]))
    assert step.memory.recomputed and step.memory.after <= free.before


def test_a_limit_that_cannot_be_met_names_the_least_and_changes_nothing():
    step, net, arguments = captured(transformer, memory_limit="50KiB")
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    for _ in range(2):
        with pytest.raises(
            lz.MemoryLimitError, match=r"lz.jit: step\(\): memory_limit=51200 \(50 KiB\) cannot be met"
        ) as e:
            step(*arguments)
    assert e.value.limit == 51200 and f"needs {e.value.least} bytes" in str(e.value)
    for k, v in net.state_dict().items():
        np.testing.assert_array_equal(v.numpy(), before[k], k)
    assert all(p.grad is None for p in net.parameters())
    met = captured(transformer, memory_limit=e.value.least)[0]
    met(*arguments)
    assert met.memory.after <= e.value.least


def test_a_step_goes_on_after_a_batch_that_does_not_fit():
    step, net, (x, y) = captured(transformer, memory_limit="4MiB")
    for _ in range(3):
        loss = step(x, y)
    before = [t.numpy().copy() for t in net.state_dict().values()]
    grads = [p.grad.numpy().copy() for p in net.parameters()]
    with pytest.raises(lz.MemoryLimitError):
        step(lz.cat([x] * 40), lz.cat([y] * 40))
    for a, b in zip(net.state_dict().values(), before, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    for p, g in zip(net.parameters(), grads, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g)
    assert step(x, y).item() < loss.item()


@pytest.mark.parametrize(
    "text, nbytes",
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("100kb", 100_000), ("77", 77), (5, 5), ("1TiB", 1 << 40)],
)  # fmt: skip
def test_amounts_of_memory(text, nbytes):
    assert parse_bytes("x", text) == nbytes
    assert parse_bytes("x", np.int64(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "2 GiBs", "two", "-1GiB", "1e9", "GiB", 0, -5, "0"])
def test_what_is_no_amount_of_memory_is_refused(text):
    with pytest.raises(ValueError, match=r"lz\.jit: f\(\)"):
        captured_named_f(text)


@pytest.mark.parametrize("value", [1.5, True, [1]])
def test_what_is_no_number_of_bytes_is_refused(value):
    with pytest.raises(TypeError, match=r"lz.jit: f\(\): bytes as an int or text"):
        captured_named_f(value)


def captured_named_f(limit):
    def f(x):
        return x

    return lz.jit(f, memory_limit=limit)


# -- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_count_tensors_the_arena_and_kernels():
    lz.realize()
    lz.device.empty_cache()  # a kept block may be larger than what it is taken for
    before = lz.device.memory_stats()
    x = lz.tensor(np.ones((1024, 1024), "f4"))
    held = lz.device.memory_stats()
    assert held["allocated_bytes"] - before["allocated_bytes"] == 4 << 20
    y = (x @ x).sum(0) + (x @ x).relu().amax(1)
    y.numpy()
    after = lz.device.memory_stats()
    assert after["arena_bytes"] >= 4 << 20  # a product in between
    assert after["peak_bytes"] >= held["allocated_bytes"] + after["arena_bytes"]
    assert after["kernels_loaded"] > 0
    assert after["allocated_bytes"] == lz.device.memory_allocated()
    assert after["peak_bytes"] == lz.device.max_memory_allocated()


def test_the_peak_is_counted_from_where_it_is_reset():
    x = lz.tensor(np.ones(1 << 20, "f4"))
    del x
    assert lz.device.max_memory_allocated() >= 4 << 20
    lz.device.reset_peak_memory_stats()
    assert lz.device.max_memory_allocated() == lz.device.memory_allocated()
    x = lz.tensor(np.ones(1 << 20, "f4"))
    del x
    assert lz.device.max_memory_allocated() == lz.device.memory_allocated() + (4 << 20)


COUNTED = """
import lezero as lz
from lezero import nn, optim
from lezero.hal import registry

before = lz.device.memory_allocated()
net = nn.Linear(512, 512, bias=False)
opt = optim.Adam(net.parameters())
x = lz.ones(2, 512)
lz.realize()
registry.current()._arena.release()
print(lz.device.memory_allocated() - before)
net(x).sum().backward()
opt.step()
registry.current()._arena.release()
print(lz.device.memory_allocated() - before)
"""


def test_parameters_gradients_and_state_are_counted():
    # In a process of its own: what is left of other tests, and let go of meanwhile, is in the count.
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    weight, all_of_it = map(int, done.stdout.split())
    assert 1 << 20 <= weight <= (1 << 20) + (64 << 10)
    assert 4 << 20 <= all_of_it <= (4 << 20) + (128 << 10)  # and gradient, two moments


def test_unused_memory_is_given_back():
    x = lz.tensor(np.ones(32 << 20, "f4"))
    del x
    registry.current()._arena.release()  # whose block may be a small one, and these stay
    kept = lz.device.memory_stats()["kept_bytes"]
    assert kept >= 128 << 20
    lz.device.empty_cache()
    assert lz.device.memory_stats()["kept_bytes"] <= kept - (128 << 20)


def test_what_tensors_hold_and_what_is_compiled_stays():
    w = nn.Parameter(lz.ones(256, 256))
    y = (w.exp() * w).sin()
    y.realize()  # its gradient may still be asked for
    (lz.rand(512, 512) @ lz.rand(512, 512)).softmax(1).sum().item()
    lz.device.empty_cache()
    held = lz.device.memory_stats()
    assert held["arena_bytes"] == 0 and held["kernels_loaded"] > 0 and held["allocated_bytes"] >= 3 * 256 * 256 * 4
    lz.device.empty_cache()
    assert lz.device.memory_stats() == held
    y.sum().backward()
    assert w.grad[0, 0].item() == pytest.approx(2 * np.e * np.cos(np.e), rel=1e-5)


# -- gradients added up -----------------------------------------------------------------------------------------------


def perceptron():
    lz.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))


@pytest.mark.parametrize("form", ["recorded", "jit", "read", "realized"])
def test_adding_up_gradients_takes_no_second_set_of_them(form):
    net = perceptron()
    opt = optim.SGD(net.parameters(), lr=0.01)
    x = lz.tensor(np.random.default_rng(0).normal(size=(16, 256)).astype("f4"))
    grads = sum(p.numel() * 4 for p in net.parameters())

    def steps(times):
        def step():
            opt.zero_grad()
            for _ in range(times):
                loss = (net(x) ** 2).mean()
                if form == "read":
                    loss.item()
                loss.backward()
                if form == "realized":
                    lz.realize()
            opt.step()

        step = lz.jit(step) if form == "jit" else step
        step()
        step()
        return added_peak(step)

    one = steps(1)
    for times in (2, 4):
        assert steps(times) <= one + grads / 4


def test_gradients_added_up_in_place_are_right():
    x = np.random.default_rng(0).normal(size=(4, 16, 256)).astype("f4")

    def grads(times):
        net = perceptron()
        if times == 1:
            (sum((net(lz.tensor(part)) ** 2).mean() for part in x)).backward()
        else:
            for part in x:
                (net(lz.tensor(part)) ** 2).mean().backward()
        return [p.grad.numpy() for p in net.parameters()]

    for a, b in zip(grads(4), grads(1), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_somebody_holds_is_not_written_over():
    net = perceptron()
    x = lz.ones(2, 256)
    net(x).sum().backward()
    first = net[0].weight.grad.numpy()
    copy = first.copy()
    net(x).sum().backward()
    np.testing.assert_allclose(net[0].weight.grad.numpy(), 2 * copy, rtol=1e-5)
    np.testing.assert_array_equal(first, copy)


def test_memory_that_is_lent_is_free_when_it_is_used():
    spaces = [Space("read early", 1024, 3, inf), Space("written late", 4096, -inf, 7)]
    values = [Interval(k, n, first, last) for k, n, first, last in [
        ("before", 4000, 0, 6), ("too late", 4000, 0, 7), ("after", 1000, 4, 9), ("too early", 1000, 3, 4), ("beside", 512, 5, 6),
    ]]  # fmt: skip
    assert lend(spaces, values) == {"before": ("written late", 0), "after": ("read early", 0)}
    assert lend(spaces, values[1:]) == {
        "after": ("read early", 0), "too early": ("written late", 0), "beside": ("written late", 0),
    }  # fmt: skip


def test_parts_of_a_block_are_lent_together_once_all_of_them_have_been_read():
    parts = [Space("a", 1000, 5, inf), Space("b", 1000, 3, inf), Space("other", 4096, 2, inf), Space("d", 1024, 1, inf)]
    places = [(0, 0), (0, 1024), (1, 0), (0, 4096)]
    whole = joined([(s, *at) for s, at in zip(parts, places, strict=True)])
    assert [(s.name, s.nbytes) for s in whole] == [("a", 2048), ("d", 1024), ("other", 4096)]
    values = [Interval("both", 2048, 6, 7), Interval("second", 1024, 4, 5), Interval("too early", 1500, 5, 9)]
    assert lend(whole[:1], values) == {"both": ("a", 0), "second": ("a", 1024)}
    late = joined([(Space("x", 1024, -inf, 3), 0, 0), (Space("y", 1024, -inf, 5), 0, 1024)])
    assert lend(late, [Interval("v", 2048, 0, 2), Interval("w", 1024, 3, 4)]) == {"v": ("x", 0), "w": ("x", 1024)}


# -- reading the loss first -------------------------------------------------------------------------------------------


@pytest.fixture
def peak(monkeypatch):
    """The added peak of a training step of a network, with its loss read before ``backward()`` or not."""
    for name in ("LEAST_TOTAL", "LEAST_BYTES"):
        monkeypatch.setattr(recompute, name, 0)
    r = np.random.default_rng(0)

    def measure(make, read):
        lz.manual_seed(0)
        net, shape = make()
        x, y = (
            lz.tensor(r.normal(size=(4 * shape[0], *shape[1:])).astype("f4")),
            lz.tensor(r.integers(0, 5, 4 * shape[0])),
        )
        run._plans.clear()

        def step():
            net.zero_grad()
            loss = F.cross_entropy(net(x), y)
            if read:
                loss.item()
            loss.backward()

        return added_peak(step)

    return measure


@pytest.mark.parametrize("make", [transformer, convolutions])
def test_reading_the_loss_before_backward_keeps_little_more(make, peak, monkeypatch):
    plain, chosen = peak(make, False), peak(make, True)
    monkeypatch.setattr(residuals, "_cheap", lambda node: False)
    assert chosen <= 1.05 * plain < peak(make, True)


def test_gradients_take_the_memory_of_what_was_kept_for_them(peak, monkeypatch):
    plain, read = peak(wide, False), peak(wide, True)
    monkeypatch.setattr(schedule, "settle", lambda spaces, results, blocks: ({}, spaces))
    assert read <= 1.05 * plain < peak(wide, True)


def test_results_settle_in_a_block_only_where_they_fill_half_of_it():
    spaces = [Space("a", 4096, -inf, inf, ((0, 4096, -inf, 3),)), Space("b", 4096, -inf, inf, ((0, 4096, -inf, 8),))]
    blocks = {"a": ("first", 8192), "b": ("first", 8192)}
    results = [Interval("early", 2048, 4, 20), Interval("later", 1024, 6, 20), Interval("last", 1024, 9, 20)]
    found, left = settle(spaces, results, blocks)
    assert found == {"early": ("a", 0), "later": ("a", 2048), "last": ("a", 3072)}
    assert [s.busy for s in left] == [
        ((0, 2048, 4, inf), (0, 4096, -inf, 3), (2048, 3072, 6, inf), (3072, 4096, 9, inf)),
        ((0, 4096, -inf, 8),),
    ]
    assert settle(spaces, results[:2], blocks) == ({}, spaces)
    assert settle([spaces[1]], [Interval("too early", 4096, 8, 20)], blocks)[0] == {}


def test_gradients_that_settled_in_what_was_kept_are_gradients_like_any_other():
    lz.manual_seed(0)
    net, _ = wide()
    r = np.random.default_rng(0)
    x, y = lz.tensor(r.normal(size=(120, 192)).astype("f4")), lz.tensor(r.integers(0, 5, 120))

    def gradients(read):
        """Of two batches added up, the first of which is held on to."""
        net.zero_grad()
        held = []
        for k in range(2):
            loss = F.cross_entropy(net(x * (k + 1)), y)
            if read:
                loss.item()
            loss.backward()
            held.append([p.grad.numpy() for p in net.parameters()])
        return [*held[0], *held[1], *(p.grad.numpy() for p in net.parameters())]

    plain, read = gradients(False), gradients(True)
    for a, b in zip(plain, read, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert settled_results() > 0


def settled_results():
    """Of all plans there are."""
    tables = [t for plan in run._plans.values() for t in getattr(plan.program, "tables", {}).values()]
    return sum(len(instance.settled) for _, instance, _ in tables)


def test_results_are_the_same_under_the_least_limit():
    r = np.random.default_rng(0)
    weights = [lz.tensor(r.normal(size=(32, 32, 3, 3)) * 0.06).requires_grad_(True) for _ in range(4)]
    x = lz.tensor(r.normal(size=(5, 32, 16, 18)))

    def step(x):
        for w in weights:
            w.grad = None
        for w in weights:
            x = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True)) + x
        loss = x.square().mean()
        loss.backward()
        return loss

    def results(function):
        return [function(x).item(), *(w.grad.numpy().copy() for w in weights)]

    expected = results(step)
    with pytest.raises(lz.MemoryLimitError) as caught:
        lz.jit(step, memory_limit="1KiB")(x)
    for ours, theirs in zip(results(lz.jit(step, memory_limit=caught.value.least)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_memory_is_not_lent_while_a_kernel_beside_uses_it():
    def gradients_of(zeroed):
        r, seen = np.random.default_rng(0), []
        kernel, weight = (lz.tensor(r.normal(size=s)).requires_grad_(True) for s in ((32, 32, 3, 3), (24, 16)))
        for k in range(3):
            for p in (kernel, weight) if k else ():
                if zeroed:
                    p.grad.zero_()
                else:
                    p.grad = None
            for _ in range(3):
                images, x = lz.tensor(r.normal(size=(2, 32, 12, 9))), lz.tensor(r.normal(size=(2, 16)))
                (F.conv2d(images, kernel, padding=1).square().mean() + (x @ weight.t()).square().mean()).backward()
            seen += [kernel.grad.clone(), weight.grad.clone()]
        return [g.numpy().copy() for g in seen]

    for a, b in zip(gradients_of(True), gradients_of(False), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10)


def test_gradients_are_the_same_where_the_loss_was_read_first(monkeypatch):
    """For several extents, and where something that was kept is held for longer."""
    for name in ("LEAST_TOTAL", "LEAST_BYTES"):
        monkeypatch.setattr(recompute, name, 0)
    monkeypatch.setattr(registry.current()._arena, "poison", True)
    lz.manual_seed(0)
    net, shape = convolutions()
    r = np.random.default_rng(0)
    for n in (32, 24, 40, 32):
        x, y = lz.tensor(r.normal(size=(n, *shape[1:])).astype("f4")), lz.tensor(r.integers(0, 5, n))

        def grads(read, x=x, y=y):
            net.zero_grad()
            loss = F.cross_entropy(net(x), y)
            if read:
                loss.item()
            if read == "twice":
                loss.backward(retain_graph=True)
                lz.realize()
                net.zero_grad()
            loss.backward()
            return [p.grad.numpy() for p in net.parameters()]

        plain, read, twice = grads(False), grads(True), grads("twice")
        for a, b, c in zip(plain, read, twice, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)
            np.testing.assert_array_equal(c, b)


def test_no_gradient_holds_the_memory_of_what_was_kept():
    lz.manual_seed(0)
    net = nn.Sequential(nn.ReLU(), *[nn.Linear(512, 512, bias=False) for _ in range(8)])
    x = lz.tensor(np.random.default_rng(0).normal(size=(512, 512)).astype("f4"), requires_grad=True)
    lz.realize()
    before = lz.device.memory_allocated()
    for _ in range(2):
        x.grad = None
        net.zero_grad()
        loss = net(x).sum()
        loss.item()
        loss.backward()
        lz.realize()
    for p in net.parameters():
        p.grad = None
    registry.current()._arena.release()
    assert lz.device.memory_allocated() - before <= (1 << 20) + (64 << 10)  # the gradient of x
