"""Attention of many queries, by its kernel or a part of them at a time, with nothing of the size of all scores in memory."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero import nn
from lezero.hal import registry
from lezero.nn.functional.attention import attention_weights
from lezero.ops import attention as module
from lezero.passes import attention as kernels
from lezero.runtime import run

torch = pytest.importorskip("torch")

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")
peer = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(params=["parts", "kernel"])
def many(monkeypatch, request):
    """Parts of at most seven queries, or the kernel that takes all."""
    if request.param == "parts":
        monkeypatch.setenv("LEZERO_PASSES", "-attention")
    monkeypatch.setattr(kernels, "LEAST_SCORES", 0)
    run._plans.clear()
    monkeypatch.setattr(module, "BLOCK", 7)


def drawn(queries, keys, heads=2, key_heads=2, dtype=np.float64):
    r = np.random.default_rng(0)
    shapes = (heads, queries, 6), (key_heads, keys, 6), (key_heads, keys, 5), (heads, queries, 5)
    return [r.normal(size=(2, *s)).astype(dtype) for s in shapes]


def ours(arrays, mask=None, **options):
    """Result and gradients for q, k, v (and a floating mask)."""
    *tensors, w = map(lz.tensor, arrays)
    if mask is not None:
        mask = lz.tensor(mask)
    wanted = [*tensors, *([mask] if mask is not None and mask.dtype.is_floating_point else [])]
    for t in wanted:
        t.requires_grad = True
    y = F.scaled_dot_product_attention(*tensors, mask, **options)
    (y * w).sum().backward()
    return [t.numpy() for t in (y.detach(), *(t.grad for t in wanted))]


def theirs(arrays, mask=None, **options):
    *tensors, w = map(torch.tensor, arrays)
    if mask is not None:
        mask = torch.tensor(mask)
    wanted = [*tensors, *([mask] if mask is not None and mask.is_floating_point() else [])]
    for t in wanted:
        t.requires_grad_()
    y = peer(*tensors, mask, **options)
    (y * w).sum().backward()
    return [t.numpy() for t in (y.detach(), *(t.grad for t in wanted))]


OPTIONS = {"plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.3}}


@pytest.mark.parametrize("queries, keys", [(8, 8), (40, 40), (61, 23), (29, 90)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_parts_together_are_the_whole(many, queries, keys, options):
    arrays = drawn(queries, keys)
    for a, b in zip(ours(arrays, **options), theirs(arrays, **options), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(40, 30), (1, 30), (2, 1, 40, 30), (2, 40, 1)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_is_taken_in_parts_too(many, shape, kind):
    arrays = drawn(40, 30)
    mask = np.random.default_rng(1).normal(size=shape)
    mask = mask > -1 if kind == "bool" else mask
    for a, b in zip(ours(arrays, mask), theirs(arrays, mask), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_heads_that_share_keys(many):
    arrays = drawn(40, 30, heads=6, key_heads=2)
    for a, b in zip(ours(arrays, enable_gqa=True), theirs(arrays, enable_gqa=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("queries", [5, 40])
def test_dropout_draws_what_it_draws_of_the_weights(many, queries, masked):
    arrays = drawn(queries, 30)
    mask = np.random.default_rng(1).normal(size=(queries, 30)) if masked else None
    lz.manual_seed(3)
    got = ours(arrays, mask, dropout_p=0.4)

    lz.manual_seed(3)
    *tensors, w = map(lz.tensor, arrays)
    q, k, v = tensors
    wanted = [*tensors]
    if masked:
        wanted.append(lz.tensor(mask))
    for t in wanted:
        t.requires_grad = True
    y = F.dropout(attention_weights(q, k, *wanted[3:]), 0.4) @ v
    (y * w).sum().backward()
    for a, b in zip(got, (y.detach(), *(t.grad for t in wanted)), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-11)


def test_dropout_takes_a_probability():
    q = lz.zeros(1, 4, 3)
    with pytest.raises(ValueError, match=r"p is a probability between 0 and 1, got 1\.5"):
        F.scaled_dot_product_attention(q, q, q, dropout_p=1.5)
    assert not F.scaled_dot_product_attention(q, q, q + 1, dropout_p=1.0).numpy().any()


def test_second_derivatives(many, monkeypatch):
    arrays = drawn(20, 9)

    def second():
        q, k, v, w = map(lz.tensor, arrays)
        for t in (q, k, v):
            t.requires_grad = True
        y = F.scaled_dot_product_attention(q, k, v)
        first = lz.autograd.grad((y * w).sum(), (q, k, v), create_graph=True)
        again = lz.autograd.grad(sum((g * g).sum() for g in first), (q, k, v))
        return [t.numpy() for t in again]

    parts = second()
    monkeypatch.setattr(module, "BLOCK", 100)
    for a, b in zip(parts, second(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 3e-2), ("float16", 4e-3)])
def test_half_precision(many, dtype, tolerance):
    q, k, v, w = drawn(40, 30, dtype=np.float32)
    tensors = [lz.tensor(a).to(dtype) for a in (q, k, v)]
    exact = theirs([*(t.double().numpy() for t in tensors), w.astype(np.float64)], is_causal=True)
    for t in tensors:
        t.requires_grad = True
    y = F.scaled_dot_product_attention(*tensors, is_causal=True)
    (y.float() * lz.tensor(w)).sum().backward()
    for a, b in zip((y.detach(), *(t.grad for t in tensors)), exact, strict=True):
        assert np.linalg.norm(a.double().numpy() - b) <= tolerance * np.linalg.norm(b)


def arena(step):
    step()
    plan, bindings = run.statistics.last
    return plan.program.schedule.instantiate(bindings).arena_bytes


@native
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "dropout", "half"])
def test_memory_grows_with_the_sequence_and_not_with_its_square(kind):
    def step(n):
        r = np.random.default_rng(0)
        q, k, v = (lz.tensor(r.normal(size=(2, n, 32)).astype(np.float32)) for _ in range(3))
        if kind == "half":
            q, k, v = (t.to(lz.bfloat16) for t in (q, k, v))
        for t in (q, k, v):
            t.requires_grad = True
        mask = lz.tensor(r.normal(size=(1, n)).astype(np.float32)) if kind == "masked" else None
        p = 0.1 if kind == "dropout" else 0.0
        F.scaled_dot_product_attention(q, k, v, mask, p, kind == "causal").square().sum().backward()
        lz.realize(q.grad, k.grad, v.grad)

    half, whole = (arena(lambda n=n: step(n)) for n in (1024, 2048))
    assert whole <= 2.1 * half
    assert whole < 2 * 256 * 2048 * 2  # of the scores of 256 queries, in half precision


@native
def test_a_layer_that_trains_with_dropout_takes_no_more():
    n, heads = 1024, 8
    layer = nn.TransformerEncoderLayer(32, heads, 64, dropout=0.1, batch_first=True)
    x = lz.tensor(np.random.default_rng(0).normal(size=(1, n, 32)).astype(np.float32))

    def step():
        layer(x).square().sum().backward()
        lz.realize(*(p.grad for p in layer.parameters()))

    assert arena(step) < 0.75 * heads * n * n * 4


@native
def test_one_plan_serves_other_lengths(many):
    """Of as many parts."""

    def step(n):
        arrays = drawn(n, n)
        ids = lz.tensor(np.arange(n))  # the length of integer data is a symbol
        tables = [lz.tensor(np.moveaxis(a, 2, 0).copy(), requires_grad=True) for a in arrays]
        q, k, v, w = (t[ids].permute(1, 2, 0, 3) for t in tables)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        (y * w).sum().backward()
        got = y.detach(), *(t.grad.permute(1, 2, 0, 3) for t in tables[:3])
        for a, b in zip(got, theirs(arrays, is_causal=True), strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-9, atol=1e-11)

    step(40)
    built = run.statistics.plans_built
    for n in (56, 29):
        step(n)
    assert run.statistics.plans_built == built
