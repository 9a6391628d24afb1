"""What products compute while they pack it is never in memory, and is the same."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from conftest import EXAMPLES
from lezero.hal import registry
from lezero.runtime import run
from lezero.schedule import packed
from lezero.schedule.contractions import Contracted
from test_backend_fuzz import check, sizes

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")


@pytest.fixture
def small(monkeypatch):
    """Whatever can be computed while it is packed is, however small."""
    monkeypatch.setattr(packed, "LEAST_BYTES", 0)
    run._plans.clear()
    yield
    run._plans.clear()


def drawn(rows, features, classes, dtype):
    r = np.random.default_rng(0)
    shapes = ((rows, features), (classes, features), (classes,))
    return [r.normal(size=s).astype(dtype) for s in shapes], r.integers(0, classes, rows)


def gradients(arrays, y, options):
    """Of cross-entropy behind a linear layer: loss and gradients, and the bytes between kernels."""
    x, w, b = (lz.tensor(a, requires_grad=True) for a in arrays)
    loss = F.cross_entropy(F.linear(x, w, b), lz.tensor(y), **options)
    loss.backward()
    lz.realize(loss, x.grad, w.grad, b.grad)
    plan, bindings = run.statistics.last
    instance = plan.program.schedule.instantiate(bindings)
    products = [r for r in instance.records if " of " in r.source.key and r.source.name == "matmul"]
    return [t.numpy() for t in (loss.detach(), x.grad, w.grad, b.grad)], instance.arena_bytes, len(products)


def expected(arrays, y, options, dtype):
    options = {k: torch.tensor(v, dtype=dtype) if k == "weight" else v for k, v in options.items()}
    x, w, b = (torch.tensor(a, dtype=dtype, requires_grad=True) for a in arrays)
    loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, w, b), torch.tensor(y), **options)
    loss.backward()
    return [t.numpy() for t in (loss.detach(), x.grad, w.grad, b.grad)]


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_the_gradient_of_many_scores_is_never_in_memory(monkeypatch):
    rows, classes = 150, 30_000
    arrays, y = drawn(rows, 16, classes, np.float32)
    got, arena, products = gradients(arrays, y, {})
    assert products == 2
    assert arena < 1.2 * rows * classes * 4  # the scores alone
    exact, peer = expected(arrays, y, {}, torch.float64), expected(arrays, y, {}, torch.float32)
    np.testing.assert_allclose(got[0], exact[0], rtol=1e-6)
    monkeypatch.setenv("LEZERO_PASSES", "-packed")
    run._plans.clear()
    kept, more, none = gradients(arrays, y, {})
    assert none == 0 and more > 1.9 * rows * classes * 4
    for a, b in zip(got, kept, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, e, p in list(zip(got, exact, peer, strict=True))[1:]:
        assert distance(a, e) <= 1.5 * distance(p, e)


OPTIONS = [{}, {"label_smoothing": 0.1}, {"ignore_index": 3, "reduction": "sum"}, {"weight": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: next(iter(o), "plain"))
@pytest.mark.parametrize("shape", [(5, 7, 33), (70, 20, 37), (17, 3, 260)])
def test_gradients_match_pytorch(small, shape, options):
    arrays, y = drawn(*shape, np.float64)
    y[0] = 3
    if "weight" in options:
        options = {"weight": np.random.default_rng(1).uniform(0.5, 2, shape[2])}
    ours = {k: lz.tensor(v) if k == "weight" else v for k, v in options.items()}
    got, _, products = gradients(arrays, y, ours)
    assert products == 2
    for a, e in zip(got, expected(arrays, y, options, torch.float64), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-12)


def test_a_long_reduction_is_cut(small):
    """Both the product's parts and what they are computed from begin further on."""
    arrays, y = drawn(6, 8, 9000, np.float64)
    got, _, products = gradients(arrays, y, {})
    assert products == 2
    for a, e in zip(got, expected(arrays, y, {}, torch.float64), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-13)


def test_what_something_else_reads_stays_in_memory(small):
    """A value that is asked for, or read by another kind of kernel, or made of two that are in memory."""
    r = np.random.default_rng(0)
    a, b, w = (lz.tensor(r.normal(size=s) / 8) for s in ((40, 30), (40, 30), (30, 20)))
    s, t = a.exp() @ w.exp(), (b @ w).exp() * 2
    e = t.exp()
    results = s.sum(), (e @ w.T), e, ((s * t).sin() @ w.T)
    lz.realize(*results)
    an, bn, wn = a.numpy(), b.numpy(), w.numpy()
    tn = np.exp(bn @ wn) * 2
    np.testing.assert_allclose(results[1].numpy(), np.exp(tn) @ wn.T, rtol=1e-10)
    np.testing.assert_allclose(results[2].numpy(), np.exp(tn), rtol=1e-10)
    np.testing.assert_allclose(results[3].numpy(), np.sin(np.exp(an) @ np.exp(wn) * tn) @ wn.T, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("block", range(2))
def test_random_programs(block, small):
    for seed in range(block * 10_000 + 800_000, block * 10_000 + 800_000 + 3 * EXAMPLES):
        check(seed, sizes(seed, 25))


def of_low_precision(x, w, low):
    """A linear layer's result and gradients under autocast, and how many kernels that takes."""
    x, w = lz.tensor(x, requires_grad=True), lz.tensor(w, requires_grad=True)
    with lz.amp.autocast("cpu", dtype=low):
        y = F.linear(x, w).tanh()
    y.float().square().sum().backward()
    lz.realize(y, x.grad, w.grad)
    kernels = run.statistics.last[0].program.schedule.kernels
    return [t.float().numpy() for t in (y.detach(), x.grad, w.grad)], kernels


@pytest.mark.parametrize("low", [lz.bfloat16, lz.float16])
def test_weights_are_rounded_by_the_products_that_read_them(monkeypatch, low):
    r = np.random.default_rng(2)
    x, w = r.normal(size=(4, 6, 40)).astype(np.float32), r.normal(size=(50, 40)).astype(np.float32)
    got, kernels = of_low_precision(x, w, low)
    monkeypatch.setenv("LEZERO_PASSES", "-packed")
    run._plans.clear()
    expected, more = of_low_precision(x, w, low)
    assert more > kernels
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_product_does_not_overwrite_what_it_is_still_rounding():
    """Its tiles may lie over those of a residual that they are added to, but not if that is the weight."""
    r = np.random.default_rng(3)
    weight = lz.nn.Parameter(lz.tensor(r.normal(size=(90, 90)).astype(np.float32)))
    a, b = (lz.tensor(r.normal(size=(90, 90)).astype(np.float32)).to(lz.bfloat16) for _ in range(2))
    lz.realize(a, b)
    for rounding in (False, True):
        result = weight.detach() + (a @ (weight.detach().to(lz.bfloat16) if rounding else b)).float()
        lz.realize(result)
        steps = [step.what for steps in run.statistics.last[0].program.schedule.steps for step in steps]
        (product,) = (what for what in steps if isinstance(what, Contracted))
        assert len(product.in_place) == (not rounding)
