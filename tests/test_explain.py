"""``lz.explain``: what it says, and that it changes nothing."""

from __future__ import annotations

import gc
import json
import re
import threading

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F
from lezero.runtime.trie import Root
from lezero.schedule import recompute

with_kernels = pytest.mark.skipif(lz.device.get_backend() != "cpu", reason="only the cpu backend has kernels to show")


def network():
    lz.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 3))


def batch():
    rng = np.random.default_rng(0)
    return lz.tensor(rng.standard_normal((8, 6)).astype(np.float32)), lz.tensor(rng.integers(0, 3, 8))


def state_of(model, optimizer):
    values = [v.numpy().copy() for v in model.state_dict().values()]
    return values + [
        np.asarray(v.numpy()) for s in optimizer.state.values() for v in s.values() if isinstance(v, lz.Tensor)
    ]


@with_kernels
def test_a_model_s_forward_pass():
    model, (x, _) = network().eval(), batch()
    found = lz.explain(model, x)
    assert found.after.kernels <= found.before.kernels and found.after.moved_bytes < found.before.moved_bytes
    fused = [k for k in found.kernels if "matmul" in k.operations or "dot" in k.operations]
    assert fused and all(k.moved_bytes > 0 for k in found.kernels)
    assert "gelu" in found.graph() and "gelu" not in found.graph("decompose")
    with pytest.raises(KeyError, match="there is no pass 'fold'; there are recorded"):
        found.graph("fold")


@with_kernels
def test_a_kernel_names_the_user_s_line():
    def twice(x):
        return x.exp() * 2  # the line

    (kernel,) = lz.explain(twice, lz.ones(40)).kernels
    assert "exp" in kernel.operations and "mul" in kernel.operations
    assert any(line.startswith(__file__) for line in kernel.lines)


@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_explaining_a_training_step_changes_nothing(steps_before):
    model, (x, y) = network(), batch()
    optimizer = lz.optim.AdamW(model.parameters(), lr=1e-2)
    twin = network()
    other = lz.optim.AdamW(twin.parameters(), lr=1e-2)

    def step(model, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    lz.manual_seed(1)
    losses = [step(model, optimizer).item() for _ in range(steps_before)]
    lz.manual_seed(1)
    assert [step(twin, other).item() for _ in range(steps_before)] == losses
    random, grads = lz.get_rng_state(), [p.grad for p in model.parameters()]
    before = state_of(model, optimizer)
    found = lz.explain(step, model, optimizer)
    assert lz.get_rng_state() == random
    assert all(a is b for a, b in zip(grads, (p.grad for p in model.parameters())))
    for a, b in zip(before, state_of(model, optimizer)):
        np.testing.assert_array_equal(a, b)
    assert "adam_param" in found.graph()
    lz.set_rng_state(random)
    mine = [step(model, optimizer).item() for _ in range(3)]
    lz.set_rng_state(random)
    assert mine == [step(twin, other).item() for _ in range(3)]


def test_backward_of_a_loss_is_included_on_request():
    model, (x, y) = network(), batch()
    forward = lz.explain(lambda: F.cross_entropy(model(x), y))
    both = lz.explain(lambda: F.cross_entropy(model(x), y), backward=True)
    assert both.before.operations > forward.before.operations
    assert all(p.grad is None for p in model.parameters())


@with_kernels
def test_kernels_that_run_at_the_same_time_count_as_one_and_are_listed():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = lz.optim.AdamW(model.parameters())

    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = lz.explain(step, lz.ones(4, 8), lz.tensor([1, 2, 3, 4]))
    beside = [k for k in found.kernels if k.beside]
    assert beside and found.after.kernels == len(found.kernels) - len(beside)
    text = str(found)
    assert f"{len(found.kernels)} are listed, {len(beside)} of them beside the one before" in text
    assert text.count(" + ") == len(beside) and [k["beside"] for k in found.to_dict()["kernels"]].count(True) == len(
        beside
    )
    alone = lz.explain(lambda x: x + 1, lz.ones(3))
    assert len(alone.kernels) == 1 and "count as one" not in str(alone)


@with_kernels
def test_text_json_and_file(tmp_path):
    model, (x, _) = network(), batch()
    found = lz.explain(model, x)
    text = str(found)
    for words in (
        "bytes moved",
        "peak memory",
        "Operations after each pass",
        "Kernels, with the operations fused in each",
    ):
        assert words in text
    assert re.search(rf"operations +{found.before.operations} +{found.after.operations}\n", text)
    again = json.loads(json.dumps(found.to_dict()))
    assert again["after"]["kernels"] == found.after.kernels and len(again["kernels"]) == len(found.kernels)
    found.save(tmp_path / "explained.txt")
    assert "return" in (tmp_path / "explained.txt").read_text()


def test_values_held_by_variables_are_named():
    losses = []

    def step(x):
        losses.append((x * x).mean())
        return x.exp()

    ((name, what),) = lz.explain(step, lz.ones(5)).held
    assert name == "losses" and "mean" in what


def test_a_function_that_reads_a_value_is_refused_and_leaves_no_trace():
    w = lz.ones(3, requires_grad=True)

    def step():
        with lz.no_grad():
            w.mul_(2)
        return w.sum().item()

    with pytest.raises(RuntimeError, match="a value is read"):
        lz.explain(step)
    assert w.tolist() == [1, 1, 1]
    assert (w * 2).sum().item() == 6


@with_kernels
def test_the_last_run_in_numbers():
    x = lz.tensor(np.ones((64, 64), np.float32))
    ((x * 2).exp() + 1).sum().item()
    last = lz.runtime.stats()["last_run"]
    assert last["restructured"]["kernels"] < last["recorded"]["kernels"]
    assert last["restructured"]["moved_bytes"] < last["recorded"]["moved_bytes"]
    assert last["restructured"]["peak_bytes"] < last["recorded"]["peak_bytes"]


def test_a_backend_without_kernels_shows_the_passes():
    before = lz.device.get_backend()
    lz.device.set_backend("numpy")
    try:
        found = lz.explain(lambda x: (x * 2).exp(), lz.ones(3))
    finally:
        lz.device.set_backend(before)
    assert found.after is None and not found.kernels
    assert "decompose" in str(found) and json.dumps(found.to_dict())


def test_operations_are_counted_the_same_everywhere():
    """Constants of gradient rules are none."""
    model = network().train()
    optimizer = lz.optim.AdamW(model.parameters(), lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = lz.explain(step, *batch())
    passes = found.to_dict()["passes"]
    assert sum(passes[0]["operations"].values()) == found.before.operations
    assert f"recorded {found.before.operations:>15}" in str(found)
    assert "constant" not in passes[0]["operations"]
    assert "constant" in found.graph("recorded")


def training_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


@with_kernels
def test_kernels_name_the_layer_that_was_called_also_for_its_gradient():
    model = nn.Sequential(nn.Linear(6, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 3)))
    x, y = batch()
    found = lz.explain(lambda: F.cross_entropy(model(x), y), backward=True)
    assert found.layers == ["Sequential.0", "Sequential.1.0", "Sequential.1.1"]
    products = [k for k in found.kernels if k.operations[0] == "dot"]
    layers = [k.layers[0] for k in products]
    assert layers.count("Sequential.1.1") == 3 and layers.count("Sequential.0") == 2  # x wants no gradient
    assert any("Sequential.1.1.weight float32[3, 16]" in k.reads for k in products)


@with_kernels
def test_the_line_is_that_of_this_recording_not_of_one_like_it():
    x = lz.ones(40).realize()
    (x.exp() * 2).numpy()

    def twice(x):
        return x.exp() * 2  # here

    (kernel,) = lz.explain(twice, x).kernels
    assert [line.rsplit(":", 1)[1] for line in kernel.lines] == [str(twice.__code__.co_firstlineno + 1)]


def test_explanations_leave_nothing_behind():
    model, (x, y) = network(), batch()
    optimizer = lz.optim.SGD(model.parameters(), lr=0.1)

    def roots():
        training_step(model, optimizer, x, y)  # an optimizer lets go of what it learned in tries that are gone
        gc.collect()
        return sum(type(o) is Root for o in gc.get_objects())

    before = roots()
    for _ in range(3):
        lz.explain(training_step, model, optimizer, x, y)
    optimizer.param_groups[0]["momentum"] = 0.5  # something to learn
    assert roots() <= before


@pytest.fixture
def recomputed(monkeypatch):
    """An explanation of a network in which whatever is worth a kernel is recomputed."""
    for limit, value in (("LEAST_TOTAL", 0), ("LEAST_BYTES", 4096)):
        monkeypatch.setattr(recompute, limit, value)
    model = lz.models.resnet18(num_classes=3)
    optimizer = lz.optim.SGD(model.parameters(), lr=0.1)
    return lz.explain(training_step, model, optimizer, lz.rand(2, 3, 32, 32), lz.tensor([0, 1]))


@with_kernels
def test_what_is_computed_again_is_said_with_the_reason(recomputed):
    assert len(recomputed.recomputed) > 5
    for r in recomputed.recomputed:
        operation = r.value.split()[0]
        assert 0 < r.kernel <= r.last_early_use < r.again and r.nbytes > 0 and r.made_of
        for k in (r.kernel, r.again):
            assert operation in recomputed.kernels[k - 1].operations
        assert str(r.last_early_use) in r.why and str(r.again) in r.why and r.why in str(recomputed)
    assert "Computed again instead of kept" in str(recomputed)
    again = json.loads(json.dumps(recomputed.to_dict()))["recomputed"]
    assert [r["value"] for r in again] == [r.value for r in recomputed.recomputed]


@with_kernels
def test_the_arena_s_blocks_do_not_overlap_and_fill_it(recomputed):
    blocks = recomputed.memory
    assert (
        max(b.offset + b.nbytes for b in blocks)
        <= recomputed.after.arena_bytes
        < 64 + max(b.offset + b.nbytes for b in blocks)
    )
    for i, a in enumerate(blocks):
        assert 1 <= a.first <= a.last <= len(recomputed.kernels) and a.nbytes > 0
        for b in blocks[:i]:
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert (
                apart or a.last <= b.first or b.last <= a.first
            )  # one kernel of several launches may end one, begin another
    weights = [b for b in blocks if b.value.startswith("memory of conv2d")]
    assert weights and all(b.first == b.last for b in weights)


@with_kernels
def test_a_kernel_says_how_many_operations_it_does():
    a, b = lz.rand(20, 30), lz.rand(30, 40)
    (kernel,) = lz.explain(lambda a, b: (a @ b).relu(), a, b).kernels
    assert kernel.flops == 2 * 20 * 30 * 40 + 20 * 40 and kernel.writes == ["relu float32[20, 40]"]


@pytest.mark.parametrize("given", [3, lz.ones(2)])
def test_what_is_no_function_is_refused(given):
    with pytest.raises(TypeError, match="explain: a function or a model is needed, got"):
        lz.explain(given)


def test_the_summary_says_what_is_counted():
    found = lz.explain(lambda x: x.softmax(1), lz.rand(4, 5))
    text = found.summary()
    assert found.after.operations > found.before.operations == 1
    assert "As recorded: what the program" in text and "taken apart into primitives" in text


def test_what_other_threads_write_meanwhile_stays_written():
    weight, entered, written = lz.nn.Parameter(lz.zeros(2)), threading.Event(), threading.Event()

    def explained(x):
        entered.set()
        assert written.wait(10)
        return x + 1

    def train():
        assert entered.wait(10)
        optimizer = lz.optim.SGD([weight], lr=1.0)
        (weight * -3).sum().backward()
        optimizer.step()
        written.set()

    other = threading.Thread(target=train)
    other.start()
    lz.explain(explained, lz.ones(2))
    other.join()
    assert weight.tolist() == [3, 3] and weight.grad.tolist() == [-3, -3]


def test_models_are_explained_in_several_threads_at_once():
    model, x, errors = lz.nn.Linear(3, 3), lz.ones(2, 3), []
    wanted = model(x).tolist()

    def explain():
        try:
            for _ in range(10):
                lz.explain(model, lz.ones(2, 3))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=explain) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and model(x).tolist() == wanted


def test_everything_an_explained_function_changes_is_put_back():
    weight, frozen = lz.nn.Parameter(lz.ones(2, 2)), lz.nn.Parameter(lz.ones(2))
    (weight * 2).sum().backward()
    state = lz.zeros(2, 2).realize()
    row, column = state[0], state[:, 0]
    lz.realize(row, column)

    def changing(x):
        frozen.requires_grad_(False)
        frozen.requires_grad_(True)
        frozen.requires_grad_(False)
        row.add_(1)
        state.mul_(2)
        weight.grad = None
        (weight * x + column).sum().backward()
        with lz.no_grad():
            weight.fill_(7)
            weight.data = weight * 2
        return weight * 1

    lz.explain(changing, lz.ones(2, 2))
    assert weight.tolist() == [[1, 1], [1, 1]] and weight.grad.tolist() == [[2, 2], [2, 2]] and frozen.requires_grad
    assert state.tolist() == [[0, 0], [0, 0]] and row.tolist() == [0, 0] == column.tolist()
    row += 1
    assert state.tolist() == [[1, 1], [0, 0]] and column.tolist() == [1, 0]
