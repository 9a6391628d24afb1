"""Attention's own kernels: against NumPy in float64 at every CPU level, and where programs take them.

Errors of half precision are those of one rounding of the result, and where operands are multiplied in pairs, of one of each
probability and each gradient of a score before that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amx_emulation
import lezero as lz
import lezero.nn.functional as F
from lezero.backends.cpu.detect import available_levels, detect
from lezero.codegen.contraction import attention as kernel
from lezero.codegen.contraction import pairs
from lezero.codegen.contraction.attention import AttentionSpec, Extents, Numbers, plan_attention, plan_attention_grad
from lezero.codegen.target import TARGETS
from lezero.graph.dtype import float32
from lezero.hal import registry
from lezero.ops.random import uniform
from lezero.passes import attention as chosen
from lezero.runtime import run
from lezero.schedule.attention import BITS
from test_contractions import NUMPY
from test_contractions import run as run_plan

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")
TOLERANCE = {"f32": 5e-6, "f64": 1e-14, "bf16": 5e-6, "f16": 5e-6}
"""Of sums, relative to the largest element of each result."""
LEAST_SCORES = chosen.LEAST_SCORES
UNIT = {"f32": 0.0, "f64": 0.0, "bf16": 2.0**-8, "f16": 2.0**-11}
"""What a rounding moves a number by at most, relative to it."""
RESULTS = ("y", "logarithm", "dq", "dk", "dv")
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 17, 33, 5, 7),
    (1, 2, 140, 131, 64, 64),
    (1, 2, 131, 300, 80, 33),
    (1, 1, 300, 9, 3, 256),
]


def exact(arrays, scale, is_causal, y=None, kept=1.0):
    """Result, logarithms and gradients in float64, each with what it would be of absolute values.

    y : the result, rounded, that the gradients use.
    kept : what dropout multiplies by.
    """
    q, k, v, dy = (arrays[x].swapaxes(1, 2).astype(np.float64) for x in ("q", "k", "v", "dy"))
    mask = arrays.get("mask")
    s = q @ k.swapaxes(-1, -2) * scale
    if is_causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask.astype(np.float64)
    top = s.max(-1, keepdims=True)
    top = np.where(top == -np.inf, 0, top)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        logarithm = np.where(total == 0, np.inf, np.log(total) + top)[..., 0]
    dp = dy @ v.swapaxes(-1, -2) * kept
    dropped = p * kept
    y = dropped @ v if y is None else y.astype(np.float64)
    ds = p * (dp - (dy * y).sum(-1, keepdims=True)) * scale
    return {
        "y": (dropped @ v, dropped @ np.abs(v)),
        "logarithm": (logarithm, 0),
        "dq": (ds @ k, np.abs(ds) @ np.abs(k)),
        "dk": (ds.swapaxes(-1, -2) @ q, np.abs(ds).swapaxes(-1, -2) @ np.abs(q)),
        "dv": (dropped.swapaxes(-1, -2) @ dy, dropped.swapaxes(-1, -2) @ np.abs(dy)),
    }


def kept(sizes, arrays, p):
    """What dropout multiplies each weight by: 0 or 1 / (1 - p)."""
    if not p:
        return 1.0
    batch, heads, queries, keys, *_ = sizes
    numbers = uniform.reference(arrays["seed"][0], arrays["offset"][0], (batch, heads, queries, keys), float32)
    return np.where(numbers >= np.float32(p), 0.0 if p == 1 else 1 / (1 - p), 0.0)


def drawn(sizes, dtype, masked=None, p=0.0):
    """q, k, v, dy and the mask; heads lie side by side in memory, as a linear layer leaves them."""
    batch, heads, queries, keys, features, values = sizes
    r = np.random.default_rng(0)

    def one(rows, columns):
        return r.standard_normal((batch, rows, heads, columns)).astype(NUMPY[dtype])

    arrays = {"q": one(queries, features), "k": one(keys, features), "v": one(keys, values), "dy": one(queries, values)}
    if p:
        arrays |= {"seed": np.array([0x1234_5678_9ABC]), "offset": np.array([(1 << 33) + 7])}
    if masked is not None:
        mask = r.standard_normal((batch, 1, queries, keys)).astype(NUMPY["f32" if masked == "bool" else masked])
        arrays["mask"] = mask > 0.3 if masked == "bool" else mask
        if masked == "bool":
            arrays["mask"][:, :, 0] = False  # a query that sees nothing
    return arrays


def computed(spec, sizes, arrays, numbers, target, threads):
    """What both kernels leave in memory that was full of NaN before."""
    spec = replace(spec, random=BITS if numbers.p else None)
    batch, heads, queries, keys, features, values = sizes
    strides = {}
    for name, x in arrays.items():
        if x.ndim == 1:
            continue
        steps = [s // x.itemsize for s in x.strides]
        strides[name] = (steps[0], 0, steps[2]) if name == "mask" else (steps[0], steps[2], steps[1])
    extents = Extents(*sizes)
    shapes = {
        "y": (batch, queries, heads, values),
        "logarithm": (batch, heads, queries),
        "dq": (batch, queries, heads, features),
        "dk": (batch, keys, heads, features),
        "dv": (batch, keys, heads, values),
    }
    types = {name: NUMPY[kernel.COMPUTE[spec.dtype] if name == "logarithm" else spec.dtype] for name in RESULTS}
    made = {name: np.full(shape, np.nan, types[name]) for name, shape in shapes.items()}
    for planned in (plan_attention, plan_attention_grad):
        plan = planned(spec, extents, strides, numbers, threads, target)
        if target is amx_emulation.TARGET:
            plan, threads = amx_emulation.emulated(plan), 1
        run_plan(plan, {**arrays, **made}, target, threads)
    return {name: x if name == "logarithm" else x.swapaxes(1, 2) for name, x in made.items()}


EMULATED = "emulated amx"
LEVELS = [x for x in available_levels() if x != "amx"]
LEVELS += [EMULATED] * ("avx512-bf16" in LEVELS)


CASES = [
    ("f32", None, False, 0.0),
    ("f32", "bool", False, 0.0),
    ("f32", "f32", True, 0.4),
    ("f64", None, True, 0.0),
    ("f64", "f64", False, 0.1),
    ("bf16", None, True, 0.0),
    ("bf16", "bf16", True, 0.1),
    ("bf16", "f32", False, 0.0),
    ("f16", "bool", False, 0.4),
]


@pytest.mark.parametrize(
    "level, dtype, mask, is_causal, p",
    [(level, *case) for level in LEVELS for case in CASES if level != EMULATED or case[0] == "bf16"],
)
def test_any_size_is_the_sum_in_float64(level, dtype, mask, is_causal, p):
    target = amx_emulation.TARGET if level == EMULATED else TARGETS[level]
    unit, paired = UNIT[dtype], pairs.supported(dtype, target)
    for threads, sizes in enumerate(SIZES, 1):
        arrays = drawn(sizes, dtype, mask, p)
        got = computed(AttentionSpec(dtype, mask, is_causal), sizes, arrays, Numbers(0.37, p), target, threads % 3 + 1)
        expected = exact(arrays, 0.37, is_causal, got["y"], kept(sizes, arrays, p))
        for name, (b, absolute) in expected.items():
            a, finite = got[name].astype(np.float64), np.isfinite(b)
            np.testing.assert_array_equal(a[~finite], b[~finite])
            a, b = a[finite], b[finite]
            bound = TOLERANCE[dtype] * max(1.0, np.abs(b).max(initial=0.0))
            if name != "logarithm":
                bound = bound + 1.01 * unit * (np.abs(b) + paired * absolute[finite])
            assert (np.abs(a - b) <= bound).all(), (sizes, name)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_bits_do_not_depend_on_the_number_of_threads(dtype):
    sizes = (2, 3, 260, 270, 32, 16)
    arrays = drawn(sizes, dtype, dtype, 0.2)
    spec = AttentionSpec(dtype, dtype, True)
    one, three = (computed(spec, sizes, arrays, Numbers(0.2, 0.2), detect(), threads) for threads in (1, 3))
    for name in RESULTS:
        np.testing.assert_array_equal(one[name].view(np.uint8), three[name].view(np.uint8))


def test_all_weights_dropped():
    sizes = (1, 2, 9, 20, 4, 4)
    arrays = drawn(sizes, "f32", None, 1.0)
    got = computed(AttentionSpec("f32"), sizes, arrays, Numbers(0.2, 1.0), detect(), 2)
    assert not any(got[name].any() for name in RESULTS if name != "logarithm")


def test_scores_beyond_the_range_of_exp():
    """The running maximum keeps every exponential within 1: large scores in late blocks, and tiny ones throughout."""
    sizes = (1, 1, 9, 300, 4, 4)
    arrays = drawn(sizes, "f64")
    arrays["k"][:, 200:] *= 1000
    arrays["k"][:, :100] -= 3000
    got = computed(AttentionSpec("f64"), sizes, arrays, Numbers(1.0), detect(), 2)
    for name, (b, _) in exact(arrays, 1.0, False).items():
        assert np.linalg.norm(got[name] - b) <= 1e-11 * np.linalg.norm(b)


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    """The kernels are used for few scores, too."""
    monkeypatch.setattr(chosen, "LEAST_SCORES", 0)
    run._plans.clear()
    yield
    run._plans.clear()


# -- in programs ------------------------------------------------------------------------------------------------------


def step(n=20, features=8, heads=2, key_heads=None, mask=None, read_first=False, dtype=lz.float32, **options):
    """Gradients of a layer that splits what a product gives into heads, as BERT's do."""
    lz.manual_seed(0)
    r = np.random.default_rng(0)
    counts = heads, key_heads or heads, key_heads or heads
    x = lz.tensor(r.normal(size=(2, n, 16)).astype(np.float32)).to(dtype)
    weights = [lz.tensor(r.normal(size=(16, c * features)).astype(np.float32) / 4).to(dtype) for c in counts]
    for w in weights:
        w.requires_grad = True
    qkv = ((x @ w).reshape(2, n, c, features).transpose(1, 2) for w, c in zip(weights, counts, strict=True))
    y = F.scaled_dot_product_attention(*qkv, mask, **options).transpose(1, 2).reshape(2, n, heads * features)
    loss = y.square().sum()
    if read_first:
        loss.item()
    loss.backward()
    lz.realize(*(w.grad for w in weights))
    return [w.grad.numpy().astype(np.float32) for w in weights]


def kernels():
    return [s.name for steps in run.statistics.last[0].program.schedule.steps for s in steps]


@native
def test_a_layer_reads_its_heads_where_they_lie():
    step()
    names = kernels()
    assert names.count("attention_blocks") == names.count("attention_blocks_grad") == 1
    # three products forward, three weight gradients, the two kernels of attention, and the gradient of the square
    assert names.count("dot") == 6 and len([name for name in names if name != "identity"]) == 9


@native
@pytest.mark.parametrize(
    "options",
    [{"dropout_p": 0.5}, {"dtype": lz.bfloat16}, {"dtype": lz.float16, "dropout_p": 0.1}],
    ids=["dropout", "bfloat16", "float16 with dropout"],
)
@pytest.mark.parametrize("mask", [None, lz.float32], ids=["all", "masked"])
def test_half_precision_and_dropout_have_the_kernels(options, mask):
    step(**options, mask=mask and lz.ones(20, 20, dtype=mask))
    names = kernels()
    assert names.count("attention_blocks") == names.count("attention_blocks_grad") == 1
    assert names.count("dot") == 6


@native
def test_autocast_takes_the_kernels():
    """Of BERT's attention, whose mask is float32."""
    r = np.random.default_rng(0)
    q, k, v = (lz.tensor(r.normal(size=(2, 3, 20, 8)).astype(np.float32), requires_grad=True) for _ in range(3))
    mask = lz.zeros(2, 1, 1, 20)
    with lz.amp.autocast("cpu", lz.bfloat16):
        y = F.scaled_dot_product_attention(q, k, v, mask, 0.1)
    y.float().square().sum().backward()
    lz.realize(q.grad, k.grad, v.grad)
    assert {"attention_blocks", "attention_blocks_grad"} <= set(kernels())


@native
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 4, "key_heads": 2, "enable_gqa": True},
        {"mask": lz.ones(20, 1, dtype=lz.bool)},
    ],
    ids=["shared keys", "a number for each query"],
)
def test_what_has_no_kernel_is_taken_apart(options):
    step(**options)
    assert not any(name.startswith("attention_blocks") for name in kernels())


@native
@pytest.mark.parametrize("n, taken", [(64, False), (128, True)])
def test_a_sentence_takes_the_kernels_and_a_phrase_does_not(monkeypatch, n, taken):
    monkeypatch.setattr(chosen, "LEAST_SCORES", LEAST_SCORES)
    step(n)
    assert ("attention_blocks" in kernels()) == taken


@native
def test_long_heads_are_taken_apart():
    """A task takes a whole head of the gradient."""
    q, k, v = (lz.zeros(1, 8192, 64, requires_grad=True) for _ in range(3))
    explained = lz.explain(lambda q, k, v: F.scaled_dot_product_attention(q, k, v).sum().backward() or q.grad, q, k, v)
    assert not any("attention_blocks" in str(kernel["name"]) for kernel in explained.to_dict()["kernels"])


@native
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_left_out_by_name(monkeypatch, p):
    taken = step(dropout_p=p)
    monkeypatch.setenv("LEZERO_PASSES", "-attention")
    apart = step(dropout_p=p)
    assert not any(name.startswith("attention_blocks") for name in kernels())
    for a, b in zip(taken, apart, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@native
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_loss_that_is_read_first_gives_the_same_gradients(p):
    whole = step(dropout_p=p)
    for a, b in zip(step(read_first=True, dropout_p=p), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    assert "attention_blocks_grad" in kernels()


def test_a_query_that_sees_nothing_has_no_part_in_it():
    r = np.random.default_rng(0)
    q, k, v = (lz.tensor(r.normal(size=(2, 20, 6)), requires_grad=True) for _ in range(3))
    mask = np.ones((20, 20), bool)
    mask[3] = False
    y = F.scaled_dot_product_attention(q, k, v, lz.tensor(mask))
    y.square().sum().backward()
    assert not y.numpy()[:, 3].any() and not q.grad.numpy()[:, 3].any()
    assert all(np.isfinite(t.grad.numpy()).all() for t in (q, k, v))


def test_nan_of_a_query_stays_its_own():
    r = np.random.default_rng(0)
    q, k, v = (lz.tensor(r.normal(size=(2, 140, 6)), requires_grad=True) for _ in range(3))
    poisoned = q.detach().numpy().copy()
    poisoned[1, 135] = np.nan
    q = lz.tensor(poisoned, requires_grad=True)
    y = F.scaled_dot_product_attention(q, k, v)
    y.sum().backward()
    hit = np.zeros((2, 140), bool)
    hit[1, 135] = True
    for a in (y.numpy(), q.grad.numpy()):
        np.testing.assert_array_equal(np.isnan(a).all(-1), hit)
    assert np.isnan(k.grad.numpy()[1]).all() and not np.isnan(k.grad.numpy()[0]).any()


@pytest.mark.parametrize("is_causal", [False, True])
def test_finite_differences(is_causal):
    r = np.random.default_rng(0)
    q, k, v = (lz.tensor(r.normal(size=(1, 2, 5, 3)), requires_grad=True) for _ in range(3))
    assert lz.autograd.gradcheck(lambda *x: F.scaled_dot_product_attention(*x, is_causal=is_causal), (q, k, v))


@native
def test_the_work_of_both_kernels_is_counted():
    n, heads, features = 20, 2, 8
    with lz.profiler.profile() as profile:
        step(n, features, heads)
    found = {e.name: e.flops for e in profile.events if e.name.startswith("attention_blocks")}
    products = 2 * heads * n * n * features
    assert found == {"attention_blocks": 2 * 2 * products, "attention_blocks_grad": 2 * 5 * products}
