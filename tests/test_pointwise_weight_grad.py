"""Weight gradients of pointwise convolutions in pairs of bf16: blocks, parts, strides and both ways about."""

from __future__ import annotations

import numpy as np
import pytest

from lezero.backends.cpu.detect import available_levels
from lezero.codegen.contraction import ConvSpec, plan_conv_weight_grad, pointwise_weight_grad
from lezero.codegen.launch import MOST_PRODUCTS
from lezero.codegen.target import TARGETS
from test_contractions import NUMPY, poison, run

LEVELS = [x for x in available_levels() if TARGETS[x].bf16_dot and x != "amx"]
if not LEVELS:
    pytest.skip("this processor does not multiply pairs of bf16", allow_module_level=True)
TARGET = TARGETS[LEVELS[-1]]

CASES = {  # in, out, stride, n, h, w
    "three blocks, an odd number of pixels": (40, 70, (1, 1), 1, 31, 29),
    "three blocks, turned": (70, 40, (1, 1), 1, 31, 29),
    "two parts": (18, 33, (1, 1), 3, 53, 53),
    "two parts, turned": (33, 18, (1, 1), 3, 53, 53),
    "strides": (33, 50, (2, 3), 3, 41, 37),
    "strides, turned": (50, 33, (3, 2), 3, 41, 37),
    "more rows than a block has": (30, 500, (1, 1), 1, 20, 20),
    "more rows than a block has, turned": (500, 30, (1, 1), 1, 20, 20),
    "three outputs": (64, 3, (1, 1), 1, 5, 5),
    "panels of three registers": (48, 64, (1, 1), 2, 7, 7),
    "one pixel": (16, 16, (1, 1), 1, 1, 1),
}


def sizes(name: str) -> tuple[ConvSpec, tuple[int, int, int], dict[str, int]]:
    c, o, stride, *image = CASES[name]
    spec = ConvSpec((c, o), (1, 1), stride, dtype="bf16", out_dtype="f32")
    params = plan_conv_weight_grad(spec, *image, 2, TARGET).launches[0].params
    return spec, tuple(image), dict(zip(pointwise_weight_grad.PARAMS, params, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_sums_of_small_integers_are_exact_for_any_number_of_threads(name: str):
    spec, (n, h, w), p = sizes(name)
    assert p["turned"] == ("turned" in name or "three outputs" in name)
    assert (p["parts"] > 1) == ("parts" in name)
    assert (p["row_parts"] > 1) == ("more rows" in name)
    rng = np.random.default_rng(0)
    (c, o), (step_y, step_x) = spec.channels, spec.stride
    x = rng.integers(-8, 9, (n, h, w, c)).astype(NUMPY["bf16"])
    dy = rng.integers(-8, 9, (n, *spec.out_size(h, w), o)).astype(NUMPY["bf16"])
    pixels = x[:, ::step_y, ::step_x].astype(np.float64).reshape(-1, c)
    expected = (dy.astype(np.float64).reshape(-1, o).T @ pixels).reshape(o, c, 1, 1)
    for threads in (1, 2, 3):
        dw = poison(expected.shape, "f32")
        run(plan_conv_weight_grad(spec, n, h, w, threads, TARGET), {"x": x, "dy": dy, "dw": dw}, TARGET, threads)
        np.testing.assert_array_equal(dw, expected)


@pytest.mark.parametrize("name", ["two parts", "strides, turned", "more rows than a block has"])
def test_bits_do_not_depend_on_the_threads(name: str):
    spec, (n, h, w), _ = sizes(name)
    rng = np.random.default_rng(1)
    c, o = spec.channels
    x, dy = (rng.standard_normal(s).astype(NUMPY["bf16"]) for s in ((n, h, w, c), (n, *spec.out_size(h, w), o)))
    results = []
    for threads in (1, 2, 3, 8):
        dw = poison((o, c, 1, 1), "f32")
        run(plan_conv_weight_grad(spec, n, h, w, threads, TARGET), {"x": x, "dy": dy, "dw": dw}, TARGET, threads)
        results.append(dw)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("channels", [(64, 256), (2048, 512), (16, 16)])
@pytest.mark.parametrize("images", [1, 64, 4096])
def test_no_task_is_long(channels: tuple[int, int], images: int):
    spec = ConvSpec(channels, (1, 1), dtype="bf16", out_dtype="bf16")
    launch = plan_conv_weight_grad(spec, images, 56, 56, 1, TARGET).launches[0]
    assert images * 56 * 56 * channels[0] * channels[1] <= 1.1 * MOST_PRODUCTS * launch.tasks


def test_an_infinity_spoils_its_own_row_and_column_only():
    spec = ConvSpec((40, 70), (1, 1), dtype="bf16", out_dtype="f32")
    x, dy = np.ones((1, 5, 5, 40), NUMPY["bf16"]), np.ones((1, 5, 5, 70), NUMPY["bf16"])
    x[0, 4, 4, 3], dy[0, 4, 4, 7] = np.inf, np.nan  # of the last pixel, whose partner is zeros
    dw = poison((70, 40, 1, 1), "f32")
    run(plan_conv_weight_grad(spec, 1, 5, 5, 2, TARGET), {"x": x, "dy": dy, "dw": dw}, TARGET, 2)
    finite = np.isfinite(dw[:, :, 0, 0])
    assert not finite[7].any() and not finite[:, 3].any()
    assert finite.sum() == 69 * 39
