"""Planar convolutions against PyTorch in float64, at every CPU level this machine has."""

from __future__ import annotations

import numpy as np
import pytest

from lezero.backends.cpu.detect import available_levels, detect
from lezero.codegen.contraction import (
    ConvSpec,
    Epilogue,
    plan_conv_forward,
    plan_conv_input_grad,
    plan_conv_weight_grad,
)
from lezero.codegen.target import TARGETS, Target
from lezero.loops.ir import acc, call, cast, const, load, param, var
from test_contractions import close, draw, poison, run

torch = pytest.importorskip("torch")


@pytest.fixture(params=[x for x in ("generic", "avx2", "avx512") if x in available_levels()])
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]


CASES = {  # in, out, kernel, stride, padding (top, left, bottom, right), dilation, n, h, w
    "first of LeNet": (1, 6, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 3, 28, 28),
    "second of LeNet": (6, 16, (5, 5), (1, 1), (0, 0, 0, 0), (1, 1), 3, 14, 14),
    "rows of three pixels": (3, 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5, 4, 3),
    "one pixel": (2, 3, (3, 2), (1, 1), (0, 0, 0, 0), (1, 1), 4, 3, 2),
    "uneven": (5, 7, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2), 2, 9, 21),
    "strided": (3, 9, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 2, 23, 21),
    "strided down": (3, 8, (3, 3), (3, 1), (1, 1, 0, 2), (1, 1), 2, 23, 21),
    "stride past the kernel": (2, 4, (2, 1), (3, 4), (0, 1, 0, 0), (1, 1), 2, 13, 18),
    "dilated": (4, 8, (3, 3), (3, 2), (2, 0, 1, 3), (2, 2), 2, 11, 13),
    "dilated only": (4, 5, (3, 4), (1, 1), (3, 4, 1, 0), (3, 2), 2, 11, 13),
    "pointwise": (3, 17, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 2, 5, 7),
    "wide padding": (2, 4, (3, 3), (2, 2), (4, 5, 3, 4), (1, 1), 1, 4, 5),
    "padding past the kernel": (2, 4, (2, 2), (1, 1), (4, 5, 3, 4), (1, 1), 1, 4, 5),
    "long rows": (2, 3, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 70, 333),
    "a column": (1, 1, (5, 1), (1, 1), (2, 0, 2, 0), (1, 1), 2, 200, 1),
}


def oracle(x: np.ndarray, weight: np.ndarray, dy: np.ndarray, spec: ConvSpec) -> tuple[np.ndarray, ...]:
    """The convolution and both its gradients in float64."""
    top, left, bottom, right = spec.padding
    image = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    filters = torch.from_numpy(weight.astype(np.float64)).requires_grad_()
    padded = torch.nn.functional.pad(image, (left, right, top, bottom))
    y = torch.conv2d(padded, filters, None, spec.stride, 0, spec.dilation)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    return y.detach().numpy(), image.grad.numpy(), filters.grad.numpy()


def check(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target, seed: int = 0) -> None:
    rng, dtype = np.random.default_rng(seed), spec.dtype
    c, o = spec.channels
    x, weight = draw(rng, (n, c, h, w), dtype), draw(rng, (o, c, *spec.kernel), dtype)
    dy = draw(rng, (n, o, *spec.out_size(h, w)), dtype)
    y, dx, dw = oracle(x, weight, dy, spec)
    result = poison(y.shape, dtype)
    run(plan_conv_forward(spec, n, h, w, threads, target), {"x": x, "w": weight, "out": result}, target, threads)
    close(result, y, dtype)
    result = poison(x.shape, dtype)
    run(plan_conv_input_grad(spec, n, h, w, threads, target), {"dy": dy, "w": weight, "dx": result}, target, threads)
    close(result, dx, dtype)
    result = poison(weight.shape, dtype)
    run(plan_conv_weight_grad(spec, n, h, w, threads, target), {"dy": dy, "x": x, "dw": result}, target, threads)
    close(result, dw, dtype)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("f32", name) for name in CASES]
    + [(d, name) for d in ("f64", "bf16") for name in ("rows of three pixels", "dilated", "first of LeNet")],
)
def test_a_planar_convolution_and_both_gradients(target, name, dtype):
    c, o, kernel, stride, padding, dilation, n, h, w = CASES[name]
    spec = ConvSpec((c, o), kernel, stride, padding, dilation, 1, dtype, dtype, planar=True)
    check(spec, n, h, w, list(CASES).index(name) % 3 + 1, target)


@pytest.mark.parametrize("seed", range(12))
def test_random_planar_convolutions(seed):
    rng = np.random.default_rng(seed)

    def pick(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    kernel, stride = (pick(1, 5), pick(1, 5)), [(1, 1), (2, 2), (1, 2)][seed % 3]
    dilation = (pick(1, 3), pick(1, 3))
    padding = (pick(0, 4), pick(0, 4), pick(0, 4), pick(0, 4))
    h, w = pick(9, 20), pick(9, 40)
    dtype = ["f32", "f64"][seed % 2]
    spec = ConvSpec((pick(1, 10), pick(1, 20)), kernel, stride, padding, dilation, 1, dtype, dtype, planar=True)
    check(spec, pick(1, 5), h, w, pick(1, 4), detect(), seed)


def test_infinities_stay_in_their_own_channel():
    # Vectors read past the end of what they sum; zero times infinity would not be zero.
    x = np.ones((2, 2, 5, 5), np.float32)
    x[:, 1] = np.inf
    dy, dw = np.ones((2, 3, 3, 3), np.float32), poison((3, 2, 3, 3), "f32")
    spec = ConvSpec((2, 3), (3, 3), planar=True)
    run(plan_conv_weight_grad(spec, 2, 5, 5, 1, detect()), {"dy": dy, "x": x, "dw": dw}, detect(), 1)
    assert (dw[:, 0] == 18).all() and np.isinf(dw[:, 1]).all()


def test_an_epilogue_with_several_operands_and_results(target):
    rng = np.random.default_rng(3)
    n, c, o, h, w = 3, 4, 11, 9, 7
    x, weight = draw(rng, (n, c, h, w), "f32"), draw(rng, (o, c, 3, 3), "f32")
    arrays = {
        "bias": draw(rng, (o,), "f32"),
        "scale": draw(rng, (n,), "f32"),
        "residual": draw(rng, (n, o, h, w), "f32"),
    }
    row, col, tile = var("row"), var("col"), acc("tile", "f32")
    total = call("add", tile, load(0, "f32", var("channel")))
    total = call("mul", total, load(1, "f32", var("batch")))
    total = call("add", total, load(2, "f32", call("add", call("mul", row, param(0)), col)))
    relu = call("max", total, const(0.0, "f32"))
    outputs = (("sum", "f32", total), ("relu", "f64", cast(relu, "f64")))
    spec = ConvSpec(
        (c, o), (3, 3), padding=(1, 1, 1, 1), planar=True,
        epilogue=Epilogue(outputs, (("bias", "f32"), ("scale", "f32"), ("residual", "f32"))),
    )  # fmt: skip
    results = {"sum": poison((n, o, h, w), "f32"), "relu": poison((n, o, h, w), "f64")}
    plan = plan_conv_forward(spec, n, h, w, 2, target, epilogue_params=(h * w,))
    run(plan, {"x": x, "w": weight, **arrays, **results}, target, 2)
    y, _, _ = oracle(x, weight, results["sum"], spec)
    expected = (y + arrays["bias"][:, None, None]) * arrays["scale"][:, None, None, None] + arrays["residual"]
    close(results["sum"], expected, "f32")
    close(results["relu"], np.maximum(expected, 0), "f32")


def test_weight_gradients_repeat_exactly():
    rng = np.random.default_rng(4)
    x, dy = draw(rng, (9, 3, 20, 20), "f32"), draw(rng, (9, 8, 18, 18), "f32")
    plan = plan_conv_weight_grad(ConvSpec((3, 8), (3, 3), planar=True), 9, 20, 20, 3, detect())
    results = [poison((8, 3, 3, 3), "f32") for _ in range(5)]
    for dw in results:
        run(plan, {"dy": dy, "x": x, "dw": dw}, detect(), 3)
    assert all((dw == results[0]).all() for dw in results)


def test_no_images_and_no_pixels():
    for n, size in ((0, 5), (2, 2)):
        x, dy = np.ones((n, 2, size, size), np.float32), np.ones((n, 3, max(size - 2, 0), max(size - 2, 0)), np.float32)
        weight, dx, dw = np.ones((3, 2, 3, 3), np.float32), poison(x.shape, "f32"), poison((3, 2, 3, 3), "f32")
        spec = ConvSpec((2, 3), (3, 3), planar=True)
        run(plan_conv_weight_grad(spec, n, size, size, 2, detect()), {"dy": dy, "x": x, "dw": dw}, detect(), 2)
        assert (dw == 0).all()
        run(plan_conv_input_grad(spec, n, size, size, 2, detect()), {"dy": dy, "w": weight, "dx": dx}, detect(), 2)
        assert (dx == 0).all()
        assert not plan_conv_forward(spec, n, size, size, 2, detect()).launches


def test_groups_are_refused():
    with pytest.raises(ValueError, match="planar"):
        ConvSpec((4, 4), (3, 3), groups=2, planar=True)


def test_other_sizes_share_machine_code():
    keys = {
        launch.source.key
        for kernel, size in ((3, 14), (5, 28), (1, 9))
        for spec in [ConvSpec((3, 8), (kernel, kernel), padding=(kernel // 2,) * 4, planar=True)]
        for launch in plan_conv_forward(spec, 8, size, size, 2, detect()).launches
    }
    assert len(keys) == 1
