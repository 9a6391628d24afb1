"""Products of bf16 at every CPU level: multiplied in pairs or widened to f32, they are exact and summed in f32."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import amx_emulation
from lezero.backends.cpu.detect import available_levels
from lezero.codegen.contraction import (
    ConvSpec,
    MatmulSpec,
    plan_conv_forward,
    plan_conv_input_grad,
    plan_conv_weight_grad,
    plan_matmul,
    winograd,
)
from lezero.codegen.launch import Plan
from lezero.codegen.target import TARGETS, Target
from test_contractions import NUMPY, poison
from test_contractions import run as run_plan

EMULATED = "emulated amx"

SIZES = [(1, 1, 2, 1), (2, 17, 33, 5), (3, 15, 70, 19), (1, 100, 64, 100), (1, 31, 3, 20), (2, 29, 40, 4101)]


@pytest.fixture(params=[*available_levels(), *[EMULATED] * ("avx512-bf16" in available_levels())])
def target(request: pytest.FixtureRequest) -> Target:
    return amx_emulation.TARGET if request.param == EMULATED else TARGETS[request.param]


def run(plan: Plan, arrays: dict[str, np.ndarray], target: Target, threads: int) -> None:
    if target is amx_emulation.TARGET:
        plan, threads = amx_emulation.emulated(plan), 1
    run_plan(plan, arrays, target, threads)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "bf16") -> np.ndarray:
    """Small enough for any order of summation to be exact."""
    return rng.integers(-8, 9, shape).astype(NUMPY[dtype])


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_matrix_products_are_exact(target: Target, trans_a: bool, trans_b: bool):
    rng = np.random.default_rng(0)
    for threads, (batch, m, n, k) in enumerate(SIZES):
        a, b, out = integers(rng, (batch, m, k)), integers(rng, (batch, k, n)), poison((batch, m, n), "f32")
        stored = {
            "a": np.ascontiguousarray(a.swapaxes(1, 2)) if trans_a else a,
            "b": np.ascontiguousarray(b.swapaxes(1, 2)) if trans_b else b,
        }
        plan = plan_matmul(MatmulSpec("bf16", "f32", trans_a, trans_b), batch, m, n, k, threads % 3 + 1, target)
        run(plan, {**stored, "out": out}, target, threads % 3 + 1)
        np.testing.assert_array_equal(out, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_three_products_of_bf16_stand_for_one_of_f32(target: Target, trans_a: bool, trans_b: bool):
    """Numbers of 16 bits are sums of two of bf16; only the product of two rests is left out."""
    rng = np.random.default_rng(5)
    for long in "ab":
        for batch, m, n, k in SIZES:
            bits = {"a": 4, "b": 4} | {long: 16}
            a, b = (rng.integers(0, 1 << bits[x], (batch, *s)) for x, s in (("a", (m, k)), ("b", (k, n))))
            a[..., 16:], b[..., 16:, :] = a[..., 16:] & 15, b[..., 16:, :] & 15  # sums of 24 bits
            stored = {
                "a": np.ascontiguousarray(a.swapaxes(1, 2) if trans_a else a, np.float32),
                "b": np.ascontiguousarray(b.swapaxes(1, 2) if trans_b else b, np.float32),
            }
            out = poison((batch, m, n), "f32")
            plan = plan_matmul(MatmulSpec("f32", "f32", trans_a, trans_b, bf16_products=3), batch, m, n, k, 2, target)
            run(plan, {**stored, "out": out}, target, 2)
            np.testing.assert_array_equal(out, a @ b)


def test_three_products_are_off_by_that_of_the_rests(target: Target):
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((1, 150, 300), np.float32), rng.standard_normal((1, 300, 90), np.float32)
    out, rounded = poison((1, 150, 90), "f32"), poison((1, 150, 90), "f32")
    for products, result in ((3, out), (1, rounded)):
        plan = plan_matmul(MatmulSpec("f32", "f32", bf16_products=products), 1, 150, 90, 300, 2, target)
        run(plan, {"a": a, "b": b, "out": result}, target, 2)
    exact, bound = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    np.testing.assert_array_less(np.abs(out - exact), 2.0**-14 * bound)
    if target.bf16_dot:
        assert np.abs(rounded - exact).max() > 20 * np.abs(out - exact).max()


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_operands_of_f32_are_rounded_while_they_are_packed(target: Target, trans_a: bool, trans_b: bool):
    """To the nearest, and to even between two: where products of bf16 are no faster, nothing is rounded."""
    rng = np.random.default_rng(4)
    for batch, m, n, k in SIZES[1:]:
        a, b = (rng.integers(-999, 1000, (batch, *s)).astype(np.float32) for s in ((m, k), (k, n)))
        stored = {
            "a": np.ascontiguousarray(a.swapaxes(1, 2)) if trans_a else a,
            "b": np.ascontiguousarray(b.swapaxes(1, 2)) if trans_b else b,
        }
        out = poison((batch, m, n), "f32")
        plan = plan_matmul(MatmulSpec("f32", "f32", trans_a, trans_b, bf16_products=1), batch, m, n, k, 2, target)
        run(plan, {**stored, "out": out}, target, 2)
        if target.bf16_dot:
            a, b = a.astype(NUMPY["bf16"]), b.astype(NUMPY["bf16"])
        exact = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(out, exact, rtol=0, atol=2e-6 * np.abs(exact).max())


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("wide", [(False, True), (True, False), (True, True)])
def test_operands_that_lie_in_f32_are_what_a_cast_makes_of_them(target: Target, dtype: str, wide: tuple[bool, bool]):
    """Bit for bit, at every level, in matrix products of either orientation and with one vector."""
    rng = np.random.default_rng(5)
    sizes = [(2, 17, 33, 5), (1, 100, 64, 101), (1, 1, 400, 300), (1, 400, 1, 300)]
    for turn, (batch, m, n, k) in enumerate(size for size in sizes for _ in range(2)):
        a, b = (rng.normal(size=(batch, *s)).astype(np.float32) for s in ((m, k), (k, n)))
        b[0, 0, 0] = np.inf
        turned = bool(turn % 2)
        stored = {"a": np.ascontiguousarray(a.swapaxes(1, 2)), "b": np.ascontiguousarray(b.swapaxes(1, 2))}
        stored = stored if turned else {"a": a, "b": b}
        low = {name: x.astype(NUMPY[dtype]) for name, x in stored.items()}
        results = []
        for which in ((False, False), wide):
            out = poison((batch, m, n), "f32")
            plan = plan_matmul(MatmulSpec(dtype, "f32", turned, turned, wide=which), batch, m, n, k, 2, target)
            operands = {name: stored[name] if w else low[name] for name, w in zip("ab", which, strict=True)}
            run(plan, {**operands, "out": out}, target, 2)
            results.append(out)
        np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_nothing_beside_an_operand_is_multiplied(target: Target, trans_a: bool, trans_b: bool):
    """An odd reduction ends within a pair; whatever lies behind it, and beside the matrix, is NaN here."""
    rng = np.random.default_rng(1)
    m, n, k, room = 20, 37, 13, 3
    stored = {}
    for name, rows, columns, turned in (("a", m, k, trans_a), ("b", k, n, trans_b)):
        shape = (columns, rows) if turned else (rows, columns)
        stored[name] = poison((shape[0] + room, shape[1] + room), "bf16")
        stored[name][: shape[0], : shape[1]] = integers(rng, shape)
    out = poison((m, n), "f32")
    spec = MatmulSpec("bf16", "f32", trans_a, trans_b)
    strides = {"lda": stored["a"].shape[1], "ldb": stored["b"].shape[1]}
    run(plan_matmul(spec, 1, m, n, k, 1, target, **strides), {**stored, "out": out}, target, 1)
    a, b = (stored[x][:-room, :-room].astype(np.float64) for x in ("a", "b"))
    np.testing.assert_array_equal(out, (a.T if trans_a else a) @ (b.T if trans_b else b))


CONVS = {  # in, out, kernel, stride, padding (top, left, bottom, right), dilation, groups, n, h, w
    "3x3, rows of odd and of even length": (16, 33, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 3, 9, 10),
    "pointwise, an even number of pixels": (32, 40, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, 2, 6, 5),
    "pointwise, an odd number of pixels": (34, 40, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, 3, 3, 5),
    "pointwise, weights of several squares": (70, 90, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, 1, 3, 4),
    "pointwise, padded": (16, 16, (1, 1), (1, 1), (1, 1, 1, 1), (1, 1), 1, 2, 3, 4),
    "strided pointwise": (64, 24, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1, 2, 7, 8),
    "strided": (18, 32, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, 2, 11, 13),
    "images taller than their results": (16, 16, (5, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, 5, 6, 7),
    "taps that meet nothing": (16, 16, (3, 3), (3, 2), (2, 0, 1, 3), (2, 2), 1, 2, 11, 13),
    "odd channels": (17, 19, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 2, 6, 7),
    "few channels": (6, 10, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1, 2, 9, 9),
    "two channels, dilated": (2, 6, (3, 3), (1, 1), (1, 0, 1, 0), (2, 2), 1, 2, 9, 9),
    "groups": (32, 48, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 2, 2, 8, 9),
    "groups of odd size": (21, 27, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3, 2, 5, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVS)
def test_convolutions_and_both_gradients_are_exact(target: Target, name: str):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    c, o, kernel, stride, padding, dilation, groups, n, h, w = CONVS[name]
    top, left, bottom, right = padding
    spec = ConvSpec((c, o), kernel, stride, padding, dilation, groups, "bf16", "f32")
    x, weight = integers(rng, (n, h, w, c)), integers(rng, (o, c // groups, *kernel))
    dy = integers(rng, (n, *spec.out_size(h, w), o))
    image = torch.from_numpy(x.astype(np.float64)).permute(0, 3, 1, 2).requires_grad_()
    filters = torch.from_numpy(weight.astype(np.float64)).requires_grad_()
    padded = torch.nn.functional.pad(image, (left, right, top, bottom))
    expected = torch.conv2d(padded, filters, None, stride, 0, dilation, groups)
    expected.backward(torch.from_numpy(dy.astype(np.float64)).permute(0, 3, 1, 2))
    for make, arrays, result, wanted in (
        (plan_conv_forward, {"x": x, "w": weight}, "out", expected.detach().permute(0, 2, 3, 1).numpy()),
        (plan_conv_input_grad, {"dy": dy, "w": weight}, "dx", image.grad.permute(0, 2, 3, 1).numpy()),
        (plan_conv_weight_grad, {"x": x, "dy": dy}, "dw", filters.grad.numpy()),
    ):
        out = poison(wanted.shape, "f32")
        run(make(spec, n, h, w, 2, target), {**arrays, result: out}, target, 2)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("size", [(8, 10), (14, 16), (7, 9), (8, 11)])
@pytest.mark.parametrize("channels", [(32, 64), (64, 40), (48, 70)])
def test_minimal_filtering_is_exact_where_its_sums_have_few_digits(
    target: Target, size: tuple[int, int], channels: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """Patches and weights of small integers are still numbers of bf16 when they are transformed; others are rounded once."""
    monkeypatch.setattr(winograd, "FEW_WEIGHTS", 32)
    monkeypatch.setattr(winograd, "PATCHES_OF_ODD", 56)
    monkeypatch.setattr(winograd, "PATCHES_OF_MANY", 56)
    rng = np.random.default_rng(6)
    spec = ConvSpec(channels, (3, 3), (1, 1), (1, 1, 1, 1), dtype="bf16", out_dtype="f32", minimal=True)
    shapes = (5, *size, channels[0]), (*channels[::-1], 3, 3), (5, *size, channels[1])
    for make, names, result in (
        (plan_conv_forward, ("x", "w"), "out"),
        (plan_conv_input_grad, ("dy", "w"), "dx"),
        (plan_conv_weight_grad, ("x", "dy"), "dw"),
    ):
        plan = make(spec, 5, *size, 2, target)
        filtered = target.bf16_dot and not target.amx
        assert any(x.source.name.startswith("winograd") for x in plan.launches) == filtered
        for exact in (True, False):
            draw = (lambda s: integers(rng, s)) if exact else (lambda s: rng.standard_normal(s).astype(NUMPY["bf16"]))
            arrays = dict(zip(("x", "w", "dy"), map(draw, shapes)))
            results = {}
            for minimal in (False, True):
                out = results[minimal] = poison(shapes[("dx", "dw", "out").index(result)], "f32")
                made = make(replace(spec, minimal=minimal), 5, *size, 2, target)
                run(made, {name: arrays[name] for name in names} | {result: out}, target, 2)
            if exact:
                np.testing.assert_array_equal(results[True], results[False])
            # 1.7 times what rounding both operands to eight digits does, which is 0.0023 for normal numbers
            gap = np.linalg.norm(results[True] - results[False]) / np.linalg.norm(results[False])
            assert gap <= 0.0042


@pytest.mark.parametrize(
    ("channels", "images", "size", "filtered"),
    [
        ((256, 256), 2, 14, True),
        ((512, 256), 2, 14, False),
        ((512, 512), 16, 14, True),
        ((512, 512), 16, 7, True),
        ((512, 512), 4, 7, False),
        ((128, 512), 64, 7, False),
        ((1024, 512), 64, 14, False),
        ((255, 256), 16, 14, False),
    ],
)
def test_products_in_pairs_are_filtered_where_that_was_measured_to_be_quicker(
    channels: tuple[int, int], images: int, size: int, filtered: bool
):
    target = TARGETS["avx512-bf16"]
    spec = ConvSpec(channels, (3, 3), (1, 1), (1, 1, 1, 1), dtype="bf16", out_dtype="bf16", minimal=True)
    for make in (plan_conv_forward, plan_conv_input_grad, plan_conv_weight_grad):
        plan = make(spec, images, size, size, 2, target)
        assert any(x.source.name.startswith("winograd") for x in plan.launches) == filtered


@pytest.mark.parametrize(("channels", "groups"), [((16, 64), 1), ((64, 33), 1), ((32, 16), 1), ((37, 37), 37)])
@pytest.mark.parametrize("stride", [1, 2])
def test_results_in_half_precision_are_those_in_f32_rounded(
    target: Target, channels: tuple[int, int], groups: int, stride: int
):
    """Whole tiles, ragged ones and pixels apart; infinities, NaN, ties and numbers too large among the results."""
    rng = np.random.default_rng(5)
    for dtype, largest in (("bf16", 3.3895e38), ("f16", 65504)):
        x = rng.standard_normal((2, 9, 10, channels[0])).astype(NUMPY[dtype])
        x[0, 0, 0, 0], x[0, 4, 4, 1], x[1, 2, 2, 2], x[1, 6, 6, 3] = np.inf, -np.inf, np.nan, largest
        kernel = (3, 3) if groups > 1 else (1, 1)
        weight = rng.integers(-8, 9, (channels[1], channels[0] // groups, *kernel)).astype(NUMPY[dtype])
        padding = (kernel[0] // 2,) * 4
        spec = ConvSpec(channels, kernel, (stride, stride), padding, groups=groups, dtype=dtype, out_dtype=dtype)
        dy = rng.standard_normal((2, *spec.out_size(9, 10), channels[1])).astype(NUMPY[dtype])
        for make, arrays, name, shape in (
            (plan_conv_forward, {"x": x, "w": weight}, "out", dy.shape),
            (plan_conv_input_grad, {"dy": dy, "w": weight}, "dx", x.shape),
        ):
            results = {out: poison(shape, out) for out in (dtype, "f32")}
            for out, result in results.items():
                run(make(replace(spec, out_dtype=out), 2, 9, 10, 2, target), {**arrays, name: result}, target, 2)
            with np.errstate(over="ignore"):
                rounded = results["f32"].astype(NUMPY[dtype]).astype(np.float32)
                np.testing.assert_array_equal(results[dtype].astype(np.float32), rounded)


def test_a_tap_does_not_take_what_lies_behind_its_run(target: Target):
    """Rows of nine pixels: the taps of the edges meet eight, and the middle ones end within a pair."""
    rng = np.random.default_rng(3)
    finite = []
    x, dy = integers(rng, (2, 5, 9, 16)), integers(rng, (2, 5, 9, 16))
    dy[:, :, 0, 3] = np.inf
    x[:, :, 8, 5] = np.inf
    for dtype in ("bf16", "f32"):
        spec = ConvSpec((16, 16), (3, 3), (1, 1), (1, 1, 1, 1), dtype=dtype, out_dtype="f32")
        dw = poison((16, 16, 3, 3), "f32")
        arrays = {"x": x.astype(NUMPY[dtype]), "dy": dy.astype(NUMPY[dtype]), "dw": dw}
        run(plan_conv_weight_grad(spec, 2, 5, 9, 1, target), arrays, target, 1)
        finite.append(np.isfinite(dw))
    assert 0 < finite[1].sum() < finite[1].size
    np.testing.assert_array_equal(*finite)


PLANS = {
    "product": lambda t: plan_matmul(MatmulSpec("bf16", "bf16"), 1, 64, 64, 64, 1, t),
    "forward": lambda t: plan_conv_forward(ConvSpec((16, 32), (3, 3), dtype="bf16", out_dtype="bf16"), 1, 9, 9, 1, t),
    "input": lambda t: plan_conv_input_grad(ConvSpec((16, 32), (3, 3), dtype="bf16", out_dtype="bf16"), 1, 9, 9, 1, t),
    "pointwise weight": lambda t: plan_conv_weight_grad(ConvSpec((48, 32), (1, 1), dtype="bf16", out_dtype="bf16"), 1, 9, 9, 1, t),
    "first weight": lambda t: plan_conv_weight_grad(ConvSpec((3, 32), (5, 5), dtype="bf16", out_dtype="bf16"), 1, 9, 9, 1, t),
    "weight": lambda t: plan_conv_weight_grad(ConvSpec((16, 32), (3, 3), dtype="bf16", out_dtype="bf16"), 1, 9, 9, 1, t),
}  # fmt: skip


INSTRUCTIONS = {
    "avx512-bf16": {"vdpbf16ps"},
    "amx": {"tdpbf16ps", "ldtilecfg", "tileloadd", "tilestored", "tilerelease"},
}


@pytest.mark.parametrize("level", TARGETS)
@pytest.mark.parametrize("kind", PLANS)
def test_pairs_are_multiplied_where_the_processor_can(kind: str, level: str):
    """Code for every level is made and assembled here, whatever this processor can run."""
    target = TARGETS[level]
    text = "".join(assembled(x.source.emit(target), target) for x in PLANS[kind](target).launches)
    every = set().union(*INSTRUCTIONS.values())
    assert {x for x in every if re.search(rf"\b{x}\b", text)} == INSTRUCTIONS.get(level, set())


def assembled(text: str, target: Target) -> str:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(cpu=target.cpu, features=target.features)
    return machine.emit_assembly(llvm.parse_assembly(text))
