"""Contractions against NumPy and PyTorch in float64, at every CPU level this machine has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lezero.backends.cpu.compiler import get_kernels
from lezero.backends.cpu.detect import available_levels, detect
from lezero.backends.cpu.pool import ThreadPool
from lezero.backends.cpu.table import TableBuilder
from lezero.codegen.contraction import (
    ConvSpec,
    Epilogue,
    MatmulSpec,
    Prologue,
    matmul,
    plan_conv_forward,
    plan_conv_input_grad,
    plan_conv_weight_grad,
    plan_matmul,
    split,
    weight_grad,
)
from lezero.codegen.launch import Plan
from lezero.codegen.target import TARGETS, Target
from lezero.loops.ir import acc, call, const, load, param, var

ml_dtypes = pytest.importorskip("ml_dtypes")
NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f32": 2e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 8e-3}
"""Relative to the largest element, for sums of at most a few hundred products."""

POOLS: dict[int, ThreadPool] = {}


@pytest.fixture(params=[x for x in available_levels() if x != "amx"])
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]


def workspace(size: int) -> np.ndarray:
    """Aligned memory full of NaN: whoever reads what nobody wrote is found out."""
    whole = np.full(size + 64, 0xFF, dtype=np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


def run(plan: Plan, arrays: dict[str, np.ndarray], target: Target, threads: int) -> None:
    pool = POOLS.setdefault(threads, ThreadPool(threads))
    memory = {name: workspace(size) for name, size in plan.workspaces.items()} | arrays
    names = list(memory)
    builder = TableBuilder()
    for launch, kernel in zip(plan.launches, get_kernels([x.source for x in plan.launches], target), strict=True):
        operands = [(names.index(name), 0) for name in launch.operands]
        scratch = launch.source.scratch(launch.params)
        builder.add(kernel, [(operands, launch.params, launch.tasks)], scratch_bytes=scratch)
    pool.run(builder.build(), np.array([memory[name].ctypes.data for name in names], dtype=np.int64))


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.full(shape, np.nan).astype(NUMPY[dtype])


def close(result: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    assert result.shape == expected.shape
    error = np.abs(result.astype(np.float64) - expected).max(initial=0.0)
    assert error <= TOLERANCE[dtype] * max(1.0, np.abs(expected).max(initial=0.0)), error


SIZES = [
    (1, 1, 1, 1),
    (2, 17, 33, 5),
    (1, 64, 10, 0),
    (3, 15, 70, 19),
    (1, 100, 64, 100),
    (1, 1, 200, 77),
    (1, 90, 1, 33),
    (2, 40, 7, 50),
    (1, 31, 3, 20),
]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_products_of_any_size_and_transposition(target, dtype, trans_a, trans_b):
    rng = np.random.default_rng(0)
    for threads, (batch, m, n, k) in enumerate(SIZES):
        threads = threads % 3 + 1
        a, b = draw(rng, (batch, m, k), dtype), draw(rng, (batch, k, n), dtype)
        out = poison((batch, m, n), dtype)
        stored_a = np.ascontiguousarray(a.swapaxes(1, 2)) if trans_a else a
        stored_b = np.ascontiguousarray(b.swapaxes(1, 2)) if trans_b else b
        plan = plan_matmul(MatmulSpec(dtype, dtype, trans_a, trans_b), batch, m, n, k, threads, target)
        run(plan, {"a": stored_a, "b": stored_b, "out": out}, target, threads)
        close(out, a.astype(np.float64) @ b.astype(np.float64), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_a_matrix_times_a_vector(target, dtype, trans_a, trans_b, left):
    rng = np.random.default_rng(7)
    batch, long, k = 2, 333, 261
    m, n = (1, long) if left else (long, 1)
    a, b, out = draw(rng, (batch, m, k), dtype), draw(rng, (batch, k, n), dtype), poison((batch, m, n), "f32")
    stored = {
        "a": np.ascontiguousarray(a.swapaxes(1, 2)) if trans_a else a,
        "b": np.ascontiguousarray(b.swapaxes(1, 2)) if trans_b else b,
    }
    plan = plan_matmul(MatmulSpec(dtype, "f32", trans_a, trans_b), batch, m, n, k, 2, target)
    assert plan.launches[0].source.name == "gemv"
    run(plan, {**stored, "out": out}, target, 2)
    close(out, a.astype(np.float64) @ b.astype(np.float64), "f32")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("left", [False, True])
def test_nothing_is_written_behind_the_result_of_a_matrix_times_a_vector(target, dtype, left):
    m, n, k = (1, 7, 20_000) if left else (7, 1, 20_000)
    a, b, out = np.ones((m, k), NUMPY[dtype]), np.ones((k, n), NUMPY[dtype]), np.full(16, 3, NUMPY[dtype])
    run(plan_matmul(MatmulSpec(dtype, dtype), 1, m, n, k, 1, target), {"a": a, "b": b, "out": out}, target, 1)
    np.testing.assert_array_equal(out.astype(np.float64), [NUMPY[dtype](k)] * 7 + [3] * 9)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("trans", [False, True])
def test_half_floats_accumulate_in_f32(target, dtype, trans):
    rng = np.random.default_rng(1)
    a, b = draw(rng, (2, 33, 75), dtype), draw(rng, (2, 75, 41), dtype)
    wide, narrow = poison((2, 33, 41), "f32"), poison((2, 33, 41), dtype)
    stored = {
        "a": np.ascontiguousarray(a.swapaxes(1, 2)) if trans else a,
        "b": np.ascontiguousarray(b.swapaxes(1, 2)) if trans else b,
    }
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for out_dtype, out in (("f32", wide), (dtype, narrow)):
        plan = plan_matmul(MatmulSpec(dtype, out_dtype, trans, trans), 2, 33, 41, 75, 2, target)
        run(plan, {**stored, "out": out}, target, 2)
        close(out, expected, out_dtype)


LONG = [  # batch, m, n, k: reductions long enough to be cut, of sizes that nothing divides
    (1, 3, 5, 2049),
    (2, 17, 33, 2345),
    (1, 30, 70, 5003),
    (1, 64, 96, 9000),
]


@pytest.mark.parametrize("trans_b", [False, True])
def test_many_small_products_beside_a_large_one_keep_their_digits(target, trans_b):
    """As far from exact as four sums of a quarter of the length, added; a sum in one go is twice as far."""
    rng = np.random.default_rng(2)
    m, n, k = 30, 70, 1000
    a, b = draw(rng, (m, k), "f32") / 1000, draw(rng, (k, n), "f32")
    a[:, 0] = 1.0
    exact = a.astype(np.float64) @ b.astype(np.float64)
    out = poison((m, n), "f32")
    stored_b = np.ascontiguousarray(b.T) if trans_b else b
    plan = plan_matmul(MatmulSpec("f32", "f32", False, trans_b), 1, m, n, k, 1, target)
    run(plan, {"a": a, "b": stored_b, "out": out}, target, 1)
    quarters = sum(_in_one_go(a[:, i : i + 250], b[i : i + 250]) for i in range(0, k, 250))
    error, sums = (np.linalg.norm(x - exact) for x in (out, quarters))
    assert error <= 1.2 * sums
    assert np.linalg.norm(_in_one_go(a, b) - exact) > 1.5 * sums


def _in_one_go(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i in range(a.shape[1]):
        total += np.outer(a[:, i], b[i])
    return total


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("trans", [False, True])
def test_a_long_reduction_is_cut_the_same_way_for_any_number_of_threads(target, dtype, trans):
    rng = np.random.default_rng(9)
    for batch, m, n, k in LONG:
        a, b = draw(rng, (batch, m, k), dtype), draw(rng, (batch, k, n), dtype)
        stored_a = np.ascontiguousarray(a.swapaxes(1, 2)) if trans else a
        stored_b = np.ascontiguousarray(b.swapaxes(1, 2)) if trans else b
        wide = "f64" if dtype == "f64" else "f32"
        results = []
        for threads in (1, 2, 3):
            out = poison((batch, m, n), wide)
            plan = plan_matmul(MatmulSpec(dtype, wide, trans, trans), batch, m, n, k, threads, target)
            assert [launch.source.name for launch in plan.launches] == ["matmul", "matmul.sum"]
            run(plan, {"a": stored_a, "b": stored_b, "out": out}, target, threads)
            results.append(out)
        close(results[0], a.astype(np.float64) @ b.astype(np.float64), wide)
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("m, n, k", [(1024, 768, 30522), (2048, 2048, 8192), (64, 64, 1 << 20)])
def test_a_long_reduction_of_a_large_product_is_cut_into_as_many_parts_as_a_cache_holds(dtype, m, n, k):
    plan = plan_matmul(MatmulSpec(dtype, "f32"), 1, m, n, k, 2, TARGETS["avx512-bf16"])
    (size,) = plan.workspaces.values()
    assert 2 * 4 * m * n <= size <= split.MOST_BYTES


def test_an_epilogue_behind_a_long_reduction(target):
    rng = np.random.default_rng(10)
    batch, m, n, k = 2, 21, 35, 3000
    arrays = {"a": draw(rng, (batch, m, k), "f32"), "b": draw(rng, (k, n), "f32")}
    scale, out = draw(rng, (m,), "f32"), poison((m, batch, 40), "f32")
    # Scaled by row, and shifted by batch and column; the result's batch is its middle axis.
    shift = load(1, "f32", call("add", call("mul", var("batch"), param(0)), var("col")))
    value = call("add", call("mul", acc("tile", "f32"), load(0, "f32", var("row"))), shift)
    tail = Epilogue((("out", "f32", value),), (("scale", "f32"), ("shift", "f32")))
    arrays |= {"scale": scale, "shift": draw(rng, (batch, n), "f32")}
    plan = plan_matmul(
        MatmulSpec(epilogue=tail), batch, m, n, k, 2, target,
        stride_b=0, ldc=batch * 40, stride_c=40, epilogue_params=(n,),
    )  # fmt: skip
    assert len(plan.launches) == 2
    run(plan, {**arrays, "out": out}, target, 2)
    expected = arrays["a"].astype(np.float64) @ arrays["b"] * scale[:, None] + arrays["shift"][:, None]
    close(out[:, :, :n].swapaxes(0, 1), expected, "f32")
    assert np.isnan(out[:, :, n:]).all()


def test_a_short_reduction_and_a_result_too_large_for_its_parts_are_not_cut():
    for m, n, k in ((64, 64, 2047), (512, 512, 512), (4096, 4096, 8192)):
        assert len(plan_matmul(MatmulSpec(), 1, m, n, k, 2, detect()).launches) == 1


@pytest.mark.parametrize("threads", [2, 3])
def test_every_thread_has_as_many_blocks_as_the_others(threads):
    for batch, m, n, k in ((1, 2048, 2048, 2048), (1, 6000, 512, 2000), (5, 100, 700, 300), (1, 512, 512, 512)):
        (launch,) = plan_matmul(MatmulSpec(), batch, m, n, k, threads, detect()).launches
        p = dict(zip(matmul.PARAMS, launch.params))
        blocks = batch * p["mblocks"] * p["nblocks"]
        assert blocks % threads == 0 or blocks >= 4 * threads


def test_strides_and_a_repeated_matrix(target):
    rng = np.random.default_rng(2)
    a, b, out = draw(rng, (3, 20, 50), "f32"), draw(rng, (40, 60), "f32"), poison((20, 3, 40), "f32")
    # A's rows are part of wider ones, B is one matrix for all, and C's batch is its middle axis.
    plan = plan_matmul(
        MatmulSpec(), 3, 20, 35, 40, 2, target, lda=50, stride_a=1000, ldb=60, stride_b=0, ldc=120, stride_c=40
    )
    run(plan, {"a": a, "b": b, "out": out}, target, 2)
    close(out[:, :, :35].swapaxes(0, 1), a[:, :, :40].astype(np.float64) @ b[:, :35], "f32")
    assert np.isnan(out[:, :, 35:]).all()


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("m, n, k", [(37, 45, 21), (21, 35, 3000), (150, 40, 70)])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_an_operand_that_is_computed_while_it_is_packed(target, m, n, k, trans, dtype):
    """Of a matrix, a number for each of its rows, and its column."""
    rng = np.random.default_rng(4)
    stored = (k, m) if trans else (m, k)
    arrays = {"x": draw(rng, stored, dtype), "s": draw(rng, stored[:1], dtype), "b": draw(rng, (k, n), dtype)}
    at = call("add", call("mul", var("row"), param(0)), var("col"))
    diagonal = call("where", call("eq", var("row"), var("col")), const(3.0, dtype), const(0.0, dtype))
    value = call("add", call("mul", call("exp", load(0, dtype, at)), load(1, dtype, var("row"))), diagonal)
    head = Prologue(value, (("x", dtype), ("s", dtype)), 1)
    tail = Epilogue((("out", dtype, call("mul", acc("tile", dtype), load(0, dtype, param(0)))),), (("scale", dtype),))
    scale, out = draw(rng, (5,), dtype), poison((m, n), dtype)
    plan = plan_matmul(
        MatmulSpec(dtype, dtype, trans, epilogue=tail, prologue=head), 1, m, n, k, 2, target,
        prologue_params=(stored[1],), epilogue_params=(2,),
    )  # fmt: skip
    run(plan, {**arrays, "a": arrays["x"], "scale": scale, "out": out}, target, 2)
    a = np.exp(arrays["x"].astype(np.float64)) * arrays["s"][:, None] + 3 * np.eye(*stored)
    close(out, (a.T if trans else a) @ arrays["b"] * float(scale[2]), dtype)


def fused() -> Epilogue:
    """Bias by column, scale by row, residual; both the sum and its relu are kept."""
    row, col, tile = var("row"), var("col"), acc("tile", "f32")
    bias = load(0, "f32", col)
    scale = load(1, "f32", row)
    residual = load(2, "f32", call("add", call("mul", row, param(0)), col))
    total = call("add", call("mul", call("add", tile, bias), scale), residual)
    outputs = (("sum", "f32", total), ("relu", "f32", call("max", total, const(0.0, "f32"))))
    return Epilogue(outputs, (("bias", "f32"), ("scale", "f32"), ("residual", "f32")))


def test_an_epilogue_with_several_operands_and_results(target):
    rng = np.random.default_rng(3)
    m, n, k = 37, 45, 21
    arrays = {"a": draw(rng, (m, k), "f32"), "b": draw(rng, (k, n), "f32")}
    arrays |= {"bias": draw(rng, (n,), "f32"), "scale": draw(rng, (m,), "f32"), "residual": draw(rng, (m, n), "f32")}
    total, relu = poison((m, n), "f32"), poison((m, n), "f32")
    plan = plan_matmul(MatmulSpec(epilogue=fused()), 1, m, n, k, 2, target, epilogue_params=(n,))
    run(plan, {**arrays, "sum": total, "relu": relu}, target, 2)
    expected = (arrays["a"].astype(np.float64) @ arrays["b"] + arrays["bias"]) * arrays["scale"][:, None] + arrays[
        "residual"
    ]
    close(total, expected, "f32")
    close(relu, np.maximum(expected, 0), "f32")


@pytest.mark.parametrize("left", [False, True])
def test_an_epilogue_behind_a_matrix_times_a_vector(target, left):
    rng = np.random.default_rng(8)
    m, n, k = (1, 300, 250) if left else (300, 1, 250)
    arrays = {"a": draw(rng, (m, k), "f32"), "b": draw(rng, (k, n), "f32")}
    arrays |= {"bias": draw(rng, (n,), "f32"), "scale": draw(rng, (m,), "f32"), "residual": draw(rng, (m, n), "f32")}
    total, relu = poison((m, n), "f32"), poison((m, n), "f32")
    plan = plan_matmul(MatmulSpec(epilogue=fused()), 1, m, n, k, 2, target, epilogue_params=(n,))
    run(plan, {**arrays, "sum": total, "relu": relu}, target, 2)
    expected = (arrays["a"].astype(np.float64) @ arrays["b"] + arrays["bias"]) * arrays["scale"][:, None] + arrays[
        "residual"
    ]
    close(total, expected, "f32")
    close(relu, np.maximum(expected, 0), "f32")


def test_a_residual_may_be_overwritten_in_place(target):
    rng = np.random.default_rng(4)
    m, n, k = 33, 20, 9
    a, b, residual = draw(rng, (m, k), "f32"), draw(rng, (k, n), "f32"), draw(rng, (m, n), "f32")
    index = call("add", call("mul", var("row"), param(0)), var("col"))
    tail = Epilogue((("out", "f32", call("add", acc("tile", "f32"), load(0, "f32", index))),), (("residual", "f32"),))
    expected = a.astype(np.float64) @ b + residual
    plan = plan_matmul(MatmulSpec(epilogue=tail), 1, m, n, k, 2, target, epilogue_params=(n,))
    run(plan, {"a": a, "b": b, "out": residual, "residual": residual}, target, 2)
    close(residual, expected, "f32")


CONVS = {  # in, out, kernel, stride, padding (top, left, bottom, right), dilation, groups, n, h, w
    "3x3": (16, 32, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 2, 9, 11),
    "uneven": (20, 40, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2), 1, 2, 9, 11),
    "first layer": (3, 64, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, 2, 23, 21),
    "one channel": (1, 6, (5, 5), (1, 1), (0, 0, 0, 0), (1, 1), 1, 3, 12, 12),
    "six channels": (6, 16, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1, 3, 12, 12),
    "groups": (24, 36, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 3, 2, 10, 9),
    "wide groups": (64, 40, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2, 2, 6, 5),
    "pointwise": (33, 70, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, 2, 5, 7),
    "strided pointwise": (33, 17, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1, 2, 5, 7),
    "dilated": (4, 8, (3, 3), (3, 2), (2, 0, 1, 3), (2, 2), 1, 2, 11, 13),
    "depthwise": (37, 37, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 37, 2, 6, 27),
    "depthwise, every block size": (40, 40, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 40, 2, 5, 13),
    "strided depthwise": (37, 37, (5, 3), (2, 2), (2, 1, 1, 0), (1, 1), 37, 2, 6, 27),
    "dilated depthwise": (19, 19, (3, 2), (1, 3), (2, 0, 1, 0), (2, 3), 19, 2, 13, 17),
    "wide padding": (16, 16, (3, 3), (2, 2), (4, 5, 3, 4), (1, 1), 1, 1, 4, 5),
}

MINIMAL = {  # computed by minimal filtering
    "even": (32, 32, (1, 1, 1, 1), 2, 14, 12),
    "odd": (33, 70, (1, 1, 1, 1), 3, 15, 9),
    "many channels": (80, 50, (1, 1, 1, 1), 2, 11, 13),
    "no padding": (40, 48, (0, 0, 0, 0), 2, 13, 14),
    "uneven padding": (32, 100, (2, 0, 1, 2), 4, 8, 9),
    "far beyond the edge": (32, 40, (3, 4, 0, 3), 5, 7, 6),
}
CONVS |= {
    f"minimal: {name}": (c, o, (3, 3), (1, 1), padding, (1, 1), 1, n, h, w)
    for name, (c, o, padding, n, h, w) in MINIMAL.items()
}


OTHER_DTYPES = ["uneven", "first layer", "groups", "strided depthwise"]


@pytest.mark.parametrize(
    ("dtype", "name"), [("f32", name) for name in CONVS] + [(d, name) for d in ("f64", "bf16") for name in OTHER_DTYPES]
)
def test_convolutions_and_both_gradients(target, name, dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    c, o, kernel, stride, padding, dilation, groups, n, h, w = CONVS[name]
    top, left, bottom, right = padding
    minimal = name.startswith("minimal")
    spec = ConvSpec((c, o), kernel, stride, padding, dilation, groups, dtype, dtype, minimal=minimal)
    x, weight = draw(rng, (n, h, w, c), dtype), draw(rng, (o, c // groups, *kernel), dtype)
    dy = draw(rng, (n, *spec.out_size(h, w), o), dtype)

    def oracle(array: np.ndarray) -> object:
        return torch.from_numpy(array.astype(np.float64))

    image = oracle(x).permute(0, 3, 1, 2).requires_grad_()
    filters = oracle(weight).requires_grad_()
    padded = torch.nn.functional.pad(image, (left, right, top, bottom))
    expected = torch.conv2d(padded, filters, None, stride, 0, dilation, groups)
    expected.backward(oracle(dy).permute(0, 3, 1, 2))

    threads = list(CONVS).index(name) % 3 + 1
    y, dx, dw = poison(dy.shape, dtype), poison(x.shape, dtype), poison(weight.shape, dtype)
    for make, arrays in (
        (plan_conv_forward, {"x": x, "w": weight, "out": y}),
        (plan_conv_input_grad, {"dy": dy, "w": weight, "dx": dx}),
        (plan_conv_weight_grad, {"dy": dy, "x": x, "dw": dw}),
    ):
        plan = make(spec, n, h, w, threads, target)
        assert any("winograd" in launch.source.name for launch in plan.launches) == minimal
        run(plan, arrays, target, threads)
    close(y, expected.detach().permute(0, 2, 3, 1).numpy(), dtype)
    close(dx, image.grad.permute(0, 2, 3, 1).numpy(), dtype)
    close(dw, filters.grad.numpy(), dtype)


def test_minimal_filtering_has_an_epilogue_and_the_same_sums_for_any_number_of_threads(target):
    rng = np.random.default_rng(6)
    x, weight = draw(rng, (3, 9, 14, 32), "f32"), draw(rng, (40, 32, 3, 3), "f32")
    arrays = {
        "bias": draw(rng, (40,), "f32"),
        "scale": draw(rng, (378,), "f32"),
        "residual": draw(rng, (378, 40), "f32"),
    }
    spec = ConvSpec((32, 40), (3, 3), padding=(1, 1, 1, 1))
    plain = poison((378, 40), "f32")
    run(plan_conv_forward(spec, 3, 9, 14, 2, target), {"x": x, "w": weight, "out": plain}, target, 2)
    expected = (plain.astype(np.float64) + arrays["bias"]) * arrays["scale"][:, None] + arrays["residual"]
    filtered = replace(spec, minimal=True, epilogue=fused())
    results, gradients = [], []
    for threads in (1, 2, 3):
        total, relu, dw = poison((378, 40), "f32"), poison((378, 40), "f32"), poison(weight.shape, "f32")
        plan = plan_conv_forward(filtered, 3, 9, 14, threads, target, epilogue_params=(40,))
        run(plan, {"x": x, "w": weight, **arrays, "sum": total, "relu": relu}, target, threads)
        close(total, expected, "f32")
        close(relu, np.maximum(expected, 0), "f32")
        plan = plan_conv_weight_grad(filtered, 3, 9, 14, threads, target)
        run(plan, {"x": x, "dy": plain, "dw": dw}, target, threads)
        results.append(total)
        gradients.append(dw)
    for several in (results, gradients):
        assert all(np.array_equal(several[0], other) for other in several[1:])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_image_of_few_channels_may_lie_in_planes(target, dtype):
    rng = np.random.default_rng(10)
    spec = ConvSpec((3, 32), (3, 5), (2, 1), (1, 0, 2, 3), dtype=dtype, out_dtype=dtype)
    x, weight = draw(rng, (2, 17, 13, 3), dtype), draw(rng, (32, 3, 3, 5), dtype)
    dy = draw(rng, (2, *spec.out_size(17, 13), 32), dtype)
    results = []
    for planes in (False, True):
        y, dw = poison(dy.shape, dtype), poison(weight.shape, dtype)
        image = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if planes else x
        spec = replace(spec, planes=planes)
        run(plan_conv_forward(spec, 2, 17, 13, 2, target), {"x": image, "w": weight, "out": y}, target, 2)
        run(plan_conv_weight_grad(spec, 2, 17, 13, 2, target), {"x": image, "dy": dy, "dw": dw}, target, 2)
        results.append((y, dw))
    for one, other in zip(*results, strict=True):
        assert np.isfinite(one.astype(np.float32)).all()
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("channels", "kernel", "groups"), [((64, 96), 1, 1), ((32, 48), 3, 1), ((64, 64), 3, 64), ((64, 32), 3, 2)]
)
def test_the_bits_of_a_weight_gradient_do_not_depend_on_the_threads(channels, kernel, groups):
    rng = np.random.default_rng(9)
    spec = ConvSpec(channels, (kernel, kernel), padding=(kernel // 2,) * 4, groups=groups)
    x, dy = draw(rng, (4, 28, 28, channels[0]), "f32"), draw(rng, (4, 28, 28, channels[1]), "f32")
    results = []
    for threads in (1, 2, 3, 8):
        dw = poison((channels[1], channels[0] // groups, kernel, kernel), "f32")
        run(plan_conv_weight_grad(spec, 4, 28, 28, threads, detect()), {"x": x, "dy": dy, "dw": dw}, detect(), threads)
        results.append(dw)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("size", [56, 28, 14])
@pytest.mark.parametrize("channels", [(64, 256), (256, 64)])
def test_parts_of_a_pointwise_weight_gradient_are_equally_long(size, channels):
    launch = plan_conv_weight_grad(ConvSpec(channels, (1, 1)), 16, size, size, 2, detect()).launches[0]
    p = dict(zip(weight_grad.PARAMS, launch.params, strict=False))
    assert p["pixel_parts"] > 1
    assert p["images"] * p["out_height"] % p["pixel_parts"] == 0


def test_a_convolution_with_an_epilogue(target):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    # The weights of 384 channels are too large to go through for every tile.
    for channels, groups in ((32, 1), (32, 2), (32, 32), (384, 1)):
        x, weight = draw(rng, (2, 7, 6, channels), "f32"), draw(rng, (32, channels // groups, 3, 3), "f32")
        arrays = {
            "bias": draw(rng, (32,), "f32"),
            "scale": draw(rng, (84,), "f32"),
            "residual": draw(rng, (84, 32), "f32"),
        }
        total, relu = poison((84, 32), "f32"), poison((84, 32), "f32")
        spec = ConvSpec((channels, 32), (3, 3), padding=(1, 1, 1, 1), groups=groups, epilogue=fused())
        plan = plan_conv_forward(spec, 2, 7, 6, 2, target, epilogue_params=(32,))
        run(plan, {"x": x, "w": weight, **arrays, "sum": total, "relu": relu}, target, 2)
        image = torch.from_numpy(x.astype(np.float64)).permute(0, 3, 1, 2)
        y = torch.conv2d(image, torch.from_numpy(weight.astype(np.float64)), padding=1, groups=groups)
        flat = y.permute(0, 2, 3, 1).reshape(84, 32).numpy()
        expected = (flat + arrays["bias"]) * arrays["scale"][:, None] + arrays["residual"]
        close(total, expected, "f32")
        close(relu, np.maximum(expected, 0), "f32")


def test_layers_of_other_shapes_share_machine_code():
    target = detect()
    keys = {
        plan.launches[-1].source.key
        for kernel, stride, size in ((3, 1, 14), (3, 2, 28), (1, 1, 56), (5, 1, 9))
        for spec in [ConvSpec((64, 128), (kernel, kernel), (stride, stride), (kernel // 2,) * 4)]
        for plan in [plan_conv_forward(spec, 8, size, size, 2, target)]
    }
    assert len(keys) == 1
    assert (
        len({plan_matmul(MatmulSpec(), 1, m, 256, 100, 2, target).launches[0].source.key for m in (1, 32, 64, 500)})
        == 1
    )
