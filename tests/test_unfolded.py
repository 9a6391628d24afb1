"""Convolutions of few channels in pairs of bf16: a row of taps as channels."""

from __future__ import annotations

import numpy as np
import pytest

from lezero.backends.cpu.detect import available_levels
from lezero.codegen.contraction import ConvSpec, plan_conv_forward, plan_conv_weight_grad
from lezero.codegen.target import TARGETS
from test_contractions import NUMPY, poison, run

torch = pytest.importorskip("torch")

LEVELS = [x for x in available_levels() if TARGETS[x].bf16_dot and x != "amx"]
if not LEVELS:
    pytest.skip("this processor does not multiply pairs of bf16", allow_module_level=True)
TARGET = TARGETS[LEVELS[-1]]

CASES = {  # in, out, kernel, stride, padding (top, left, bottom, right), vertical dilation, n, h, w
    "first layer": (3, 64, (7, 7), (2, 2), (3, 3, 3, 3), 1, 1, 21, 21),
    "an even run": (3, 40, (3, 2), (1, 1), (1, 0, 0, 1), 1, 2, 6, 5),
    "one channel": (1, 17, (5, 5), (1, 1), (2, 2, 2, 2), 1, 3, 9, 7),
    "more than a register": (5, 33, (2, 7), (1, 3), (0, 2, 1, 4), 2, 2, 8, 11),
    "one element more than a register": (11, 16, (1, 3), (1, 1), (0, 1, 0, 1), 1, 1, 3, 5),
    "padding alone": (3, 16, (3, 3), (4, 4), (5, 4, 4, 5), 1, 1, 2, 2),
    "more taps than a block has": (15, 24, (7, 5), (1, 1), (3, 2, 3, 2), 1, 1, 7, 9),
    "rows that nearly fill their lines": (14, 16, (3, 3), (1, 1), (0, 0, 0, 0), 1, 1, 5, 6),
    "several blocks": (3, 32, (3, 3), (2, 2), (1, 1, 1, 1), 1, 3, 37, 39),
}


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_sums_of_small_integers_are_exact(name: str, planes: bool):
    c, o, kernel, stride, padding, dilation, n, h, w = CASES[name]
    top, left, bottom, right = padding
    spec = ConvSpec((c, o), kernel, stride, padding, (dilation, 1), 1, "bf16", "f32", planes=planes)
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(-8, 9, (n, c, h, w)).astype(np.float64))
    weight = torch.from_numpy(rng.integers(-8, 9, (o, c, *kernel)).astype(np.float64)).requires_grad_()
    padded = torch.nn.functional.pad(image, (left, right, top, bottom))
    expected = torch.conv2d(padded, weight, None, stride, 0, (dilation, 1))
    gradient = torch.from_numpy(rng.integers(-8, 9, tuple(expected.shape)).astype(np.float64))
    expected.backward(gradient)

    def stored(x: torch.Tensor) -> np.ndarray:
        return np.ascontiguousarray(x.detach().permute(0, 2, 3, 1).numpy().astype(NUMPY["bf16"]))

    x = image.numpy().astype(NUMPY["bf16"]) if planes else stored(image)
    filters = weight.detach().numpy().astype(NUMPY["bf16"])
    for threads in (1, 2, 3):
        out, dw = poison(tuple(stored(expected).shape), "f32"), poison(tuple(weight.shape), "f32")
        forward = plan_conv_forward(spec, n, h, w, threads, TARGET)
        assert forward.launches[0].source.name == "conv.unfold"
        run(forward, {"x": x, "w": filters, "out": out}, TARGET, threads)
        run(
            plan_conv_weight_grad(spec, n, h, w, threads, TARGET),
            {"x": x, "dy": stored(gradient), "dw": dw},
            TARGET,
            threads,
        )
        np.testing.assert_array_equal(out, expected.detach().permute(0, 2, 3, 1).numpy())
        np.testing.assert_array_equal(dw, weight.grad.numpy())


@pytest.mark.parametrize("planes", [False, True])
def test_an_infinity_spoils_the_windows_it_is_in_and_no_other(planes: bool):
    spec = ConvSpec((3, 16), (3, 3), (2, 2), (1, 1, 1, 1), dtype="bf16", out_dtype="f32", planes=planes)
    image = torch.ones(1, 3, 9, 9, dtype=torch.float64)
    image[0, 1, 4, 4] = torch.inf
    weight = np.ones((16, 3, 3, 3))
    expected = torch.conv2d(image, torch.from_numpy(weight), None, 2, 1).permute(0, 2, 3, 1).numpy()
    x = image.numpy() if planes else np.ascontiguousarray(image.permute(0, 2, 3, 1).numpy())
    out = poison(expected.shape, "f32")
    arrays = {"x": x.astype(NUMPY["bf16"]), "w": weight.astype(NUMPY["bf16"]), "out": out}
    run(plan_conv_forward(spec, 1, 9, 9, 2, TARGET), arrays, TARGET, 2)
    np.testing.assert_array_equal(out, expected)
