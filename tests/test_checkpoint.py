"""``lz.checkpoint``: nothing inside is kept for the gradient, and nothing else changes."""

from __future__ import annotations

import gc
from functools import partial

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero import models, nn
from lezero.hal import registry
from lezero.schedule import recompute

native = pytest.mark.skipif(
    registry.get_backend() != "cpu", reason="about the memory of the backend that generates code"
)


class Block(nn.Module):
    def __init__(self, features, p=0.0, batch_norm=False):
        super().__init__()
        self.norm = nn.BatchNorm1d(features) if batch_norm else nn.LayerNorm(features)
        self.up, self.down, self.drop = (
            nn.Linear(features, 4 * features),
            nn.Linear(4 * features, features),
            nn.Dropout(p),
        )
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


def plain(fn, *args):
    return fn(*args)


def one_by_one(call, blocks, x):
    for block in blocks:
        x = call(block, x)
    return x


def nested(call, blocks, x):
    return call(partial(one_by_one, call, blocks[1:]), call(blocks[0], x))


def all_in_one(call, blocks, x):
    return call(lambda: one_by_one(plain, blocks, x))


def read_between(call, blocks, x):
    for block in blocks:
        x = call(block, x)
        float(x.sum())
    return x


def read_inside(call, blocks, x):
    def reading(block, x):
        y = block(x)
        float(y.mean())
        return y * 2 + x

    for block in blocks:
        x = call(reading, block, x)
    return x


def several_results(call, blocks, x):
    def two(block, x):
        y = block(x)
        return {"up": y, "down": [y.relu() * x]}

    for block in blocks:
        found = call(two, block, x)
        x = found["up"] + found["down"][0]
    return x


def changing_a_tensor(call, blocks, x):
    y = x * 1

    def change(block):
        y.mul_(0.5)
        return block(y)

    for block in blocks:
        x = x + call(change, block) * y
    return x


class Cubed(lz.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def users_operation(call, blocks, x):
    for block in blocks:
        x = call(lambda x, block=block: Cubed.apply(block(x)) * 0.1, x)
    return x


FORMS = [one_by_one, nested, all_in_one, read_between, read_inside, several_results, changing_a_tensor, users_operation]


def gradients(form, call, *, p=0.3, batch_norm=True, dtype="float64", captured=False):
    """Loss, gradients, running statistics and kept outputs of two steps."""
    lz.manual_seed(3)
    net = nn.Sequential(*[Block(6, p, batch_norm) for _ in range(3)]).to(dtype)
    x = lz.randn(5, 6, dtype=dtype, requires_grad=True)
    found = []

    def step():
        y = form(call, list(net), x)
        loss = (y**2).mean()
        loss.backward()
        return loss, y

    run_step = lz.jit(step) if captured else step
    for _ in range(4 if captured else 2):
        for t in (x, *net.parameters()):
            t.grad = None
        loss, y = run_step()
        found += [loss.numpy(), y.detach().numpy(), *[t.grad.numpy() for t in (x, *net.parameters())]]
    return [*found, *[b.numpy() for b in net.buffers()]], [block.calls for block in net]


def assert_alike(ours, theirs, rtol=1e-9):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("form", FORMS)
def test_values_gradients_random_numbers_and_statistics_are_those_without_it(form):
    with_it, calls = gradients(form, lz.checkpoint)
    without, expected = gradients(form, plain)
    assert_alike(with_it, without)
    assert calls == expected == [2, 2, 2]


@pytest.mark.parametrize("form", [one_by_one, nested, several_results, changing_a_tensor])
def test_under_jit(form):
    assert_alike(gradients(form, lz.checkpoint, captured=True)[0], gradients(form, plain, captured=True)[0])


@pytest.mark.parametrize("form", [one_by_one, nested])
def test_under_autocast(form):
    with lz.autocast("cpu", dtype=lz.bfloat16):
        ours = gradients(form, lz.checkpoint, dtype="float32", p=0.2)[0]
        theirs = gradients(form, plain, dtype="float32", p=0.2)[0]
    assert_alike(ours, theirs, rtol=1e-5)  # the same low-precision operations: the rest is the order of float32 sums


def test_like_pytorchs():
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    r = np.random.default_rng(0)
    w, x = (r.normal(size=shape) for shape in ((4, 4), (3, 4)))

    def grads(xp, checkpoint):
        ws, xs = (xp.tensor(v, requires_grad=True) for v in (w, x))
        options = {"use_reentrant": False, "preserve_rng_state": True, "determinism_check": "none", "debug": False}
        y = checkpoint(lambda a, scale: (a @ ws).tanh() * scale, xs, 3.0, **options)
        (y * y).sum().backward()
        return [y.detach().numpy(), ws.grad.numpy(), xs.grad.numpy()]

    assert_alike(grads(lz, lz.checkpoint), grads(torch, checkpoint))


@pytest.mark.parametrize("read", [False, True])
def test_gradients_of_gradients(read):
    def second(call):
        lz.manual_seed(0)
        w, x = lz.randn(4, 4, dtype="float64", requires_grad=True), lz.randn(3, 4, dtype="float64")
        h = call(lambda x: (x @ w).tanh(), x)
        loss = (call(lambda h: (h @ w).sin() ** 2, h)).sum()
        if read:
            loss.item()
        (g,) = lz.autograd.grad(loss, [w], create_graph=True)
        if read:
            g.sum().item()
        (g**2).sum().backward()
        return [g.detach().numpy(), w.grad.numpy()]

    assert_alike(second(lz.checkpoint), second(plain))


def test_without_gradients_it_is_a_call():
    with lz.no_grad():
        assert lz.checkpoint(lambda x, y=1: x * y, lz.ones(2), y=3).tolist() == [3, 3]


def test_an_exception_passes_and_the_next_step_is_right():
    def fails(x):
        x * 2
        raise KeyError("the user's")

    x = lz.ones(3, requires_grad=True)
    with pytest.raises(KeyError, match="the user's"):
        lz.checkpoint(fails, x)
    lz.checkpoint(lambda x: x**2, x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="checkpoint: a function is needed, got Tensor"):
        lz.checkpoint(lz.ones(2))
    with pytest.raises(ValueError, match=r"1 to 2 segments .* got 3"):
        lz.autograd.checkpoint_sequential([F.relu, F.relu], 3, lz.ones(2))


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_a_sequence_in_segments(segments):
    def in_segments(call, blocks, x):
        if call is plain:
            return one_by_one(plain, blocks, x)
        return lz.autograd.checkpoint_sequential(nn.Sequential(*blocks[:3], nn.Tanh(), nn.Identity()), segments, x)

    def and_without(call, blocks, x):
        return one_by_one(plain, blocks, x).tanh()

    assert_alike(gradients(in_segments, lz.checkpoint)[0], gradients(and_without, plain)[0])


# -- memory -----------------------------------------------------------------------------------------------------------


def added_peak(step):
    """The most bytes in use during a step, less those in use before and after."""
    gc.collect()  # what is let go of during the step would make its peak too low
    registry.current()._arena.release()
    step()
    lz.device.synchronize()
    registry.current()._arena.release()
    before = lz.device.memory_stats()["allocated_bytes"]
    lz.device.reset_peak_memory_stats()
    step()
    lz.device.synchronize()
    return lz.device.memory_stats()["peak_bytes"] - before


@native
@pytest.mark.parametrize("read", [False, True])
def test_only_the_inputs_are_kept(read, monkeypatch):
    """Twice as many layers need one input more each, and not what is inside."""
    monkeypatch.setattr(recompute, "LEAST_TOTAL", 1 << 60)

    def peak(call, layers):
        net = nn.Sequential(*[Block(96, 0.1) for _ in range(layers)])
        x = lz.tensor(np.random.default_rng(0).normal(size=(512, 96)).astype("f4"))

        def step():
            net.zero_grad()
            loss = one_by_one(call, net, x).mean()
            if read:
                loss.item()
            loss.backward()

        return added_peak(step)

    inputs = 512 * 96 * 4
    grown = peak(lz.checkpoint, 8) - peak(lz.checkpoint, 4)
    assert grown <= 4 * 1.25 * inputs
    assert peak(plain, 8) - peak(plain, 4) >= 4 * 4 * inputs


@native
@pytest.mark.parametrize(
    "make", [
        lambda: models.bert_base(False, vocab_size=50, hidden_size=64, num_hidden_layers=6, num_attention_heads=4, intermediate_size=256),
        lambda: models.gpt2(vocab_size=50, n_embd=64, n_layer=6, n_head=4).transformer,
    ],
)  # fmt: skip
def test_models_keep_only_the_inputs_of_their_layers(make, monkeypatch):
    monkeypatch.setattr(recompute, "LEAST_TOTAL", 1 << 60)
    net = make()
    ids = lz.tensor(np.random.default_rng(0).integers(0, 50, (4, 64)))

    def step():
        net.zero_grad()
        lz.manual_seed(5)
        net(ids).square().mean().backward()

    def grads():
        step()
        return [p.grad.numpy().copy() for p in net.parameters()]

    assert not net.is_gradient_checkpointing
    plain_grads, plain_peak = grads(), added_peak(step)
    net.gradient_checkpointing_enable()
    assert net.is_gradient_checkpointing
    assert_alike(grads(), plain_grads, rtol=2e-5)
    assert added_peak(step) <= 0.6 * plain_peak
    net.gradient_checkpointing_disable()
    assert not net.is_gradient_checkpointing


# -- what is read later is what is there, however often it was put off ---------------------------------------------------


def gradients_of(function, given, parameters, checkpointed):
    for p in parameters:
        p.grad = None
    y = lz.checkpoint(function, given()) if checkpointed else function(given())
    y.square().sum().backward()
    return [p.grad.numpy().copy() for p in parameters]


def drawn(*shapes):
    r = np.random.default_rng(0)
    return [lz.tensor(r.normal(size=s) * 0.3).requires_grad_(True) for s in shapes]


@pytest.mark.parametrize(
    "read", [F.embedding, lambda i, e: lz.gather(e, 0, i.reshape(-1, 1).expand(-1, 8)), lambda i, e: lz.index_select(e, 0, i.flatten())]
)  # fmt: skip
def test_a_table_that_is_read_by_indices_inside_a_region(read):
    (table,) = drawn((50, 8))
    indices = lz.tensor(np.random.default_rng(1).integers(0, 50, (2, 40)))
    kept, again = (gradients_of(lambda i: read(i, table), lambda: indices, [table], on) for on in (False, True))
    np.testing.assert_array_equal(*kept, *again)


@pytest.mark.parametrize(
    "choose", [lambda x: lz.sort(x, 1)[0], lambda x: lz.topk(x, 3, 1)[0], lambda x: lz.cummax(x, 1)[0]]
)
def test_a_computed_value_that_is_sorted_inside_a_region(choose):
    (w,) = drawn((6, 7))
    x = lz.tensor(np.random.default_rng(1).normal(size=(5, 6)))
    kept, again = (gradients_of(lambda h: choose(h.tanh()), lambda: x @ w, [w], on) for on in (False, True))
    np.testing.assert_allclose(*kept, *again, rtol=1e-12)


def test_a_region_s_input_in_another_layout_than_its_convolution_reads():
    first, second = drawn((16, 16, 3, 3), (7, 16, 3, 3))
    x = lz.tensor(np.random.default_rng(1).normal(size=(3, 16, 10, 12)))

    def region(h):
        return F.conv2d(h, second, padding=1).flatten(2).transpose(1, 2).mean(1)

    kept, again = (
        gradients_of(region, lambda: F.conv2d(x, first, padding=1), [first, second], on) for on in (False, True)
    )
    for a, b in zip(kept, again, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)


def test_a_region_whose_values_are_computed_again_twice(monkeypatch):
    for name in ("LEAST_TOTAL", "LEAST_BYTES", "LEAST_GAP"):
        monkeypatch.setattr(recompute, name, 0)
    w0, w1, w2 = drawn((16, 7, 3, 3), (16, 16, 3, 3), (16, 16, 3, 3))
    x = lz.tensor(np.random.default_rng(1).normal(size=(9, 7, 16, 16)))

    def norm(x):
        return F.batch_norm(x, None, None, training=True)

    def region(x):
        x = F.conv2d(x, w0, stride=2, padding=3)
        return F.relu(x + norm(F.conv2d(F.relu(norm(F.conv2d(x, w1, padding=1))), w2, padding=1))).mean((2, 3))

    kept, again = (gradients_of(region, lambda: x * 1, [w0, w1, w2], on) for on in (False, True))
    for a, b in zip(kept, again, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)
