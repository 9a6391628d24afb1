"""Sums over a convolution's pixels that its kernel gives beside its result (what batch normalisation wants)."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero.backends import cpu
from lezero.backends.cpu.detect import detect
from lezero.codegen.contraction import ConvSpec, plan_conv_forward, winograd
from lezero.codegen.contraction.spec import COMPUTE
from lezero.nn import functional as F
from test_bf16_products import run, target
from test_contractions import draw, poison

__all__ = ["target"]  # the fixture


def statistics(spec, x, weight, target, threads):
    """(result, sums, squares) from the kernels."""
    n, h, w, _ = x.shape
    dtype, o = spec.dtype, spec.channels[1]
    y = poison((n, *spec.out_size(h, w), o), dtype)
    sums, squares = (poison((o,), COMPUTE[dtype]) for _ in range(2))
    plan = plan_conv_forward(spec, n, h, w, threads, target)
    run(plan, {"x": x, "w": weight, "out": y, "sum": sums, "squares": squares}, target, threads)
    return y, sums, squares


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "groups", "dtype"),
    [((16, 40), 1, 1, 1, "f32"), ((16, 33), 3, 2, 1, "f32"), ((24, 20), 3, 1, 2, "f32"), ((3, 32), 3, 2, 1, "f32"),
     ((17, 70), 1, 1, 1, "f64"), ((16, 64), 1, 1, 1, "bf16"), ((16, 40), 3, 2, 1, "bf16"), ((17, 33), 1, 1, 1, "f16")],
)  # fmt: skip
def test_sums_and_squared_distances_are_those_of_the_result(target, channels, kernel, stride, groups, dtype):
    rng = np.random.default_rng(0)
    spec = ConvSpec(channels, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 4, groups=groups, dtype=dtype,
                    out_dtype=dtype, statistics=True)  # fmt: skip
    for n, h, w in ((3, 19, 17), (1, 1, 2)):  # many blocks, ragged; and less than a tile
        x = draw(rng, (n, h, w, channels[0]), dtype)
        weight = draw(rng, (channels[1], channels[0] // groups, kernel, kernel), dtype)
        y, sums, squares = statistics(spec, x, weight, target, 2)
        flat = y.reshape(-1, channels[1]).astype(np.float64)
        gaps = np.square(flat - flat.mean(0)).sum(0)
        unit = np.finfo(sums.dtype).eps
        assert np.abs(sums - flat.sum(0)).max() <= 4 * unit * np.abs(flat).sum(0).max()
        assert np.abs(squares - gaps).max() <= 8 * unit * np.square(flat).sum(0).max()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("size", [(14, 16), (13, 16), (16, 15), (7, 7)])
def test_minimal_filtering_gives_them_also_where_patches_reach_beyond_the_image(target, monkeypatch, size, dtype):
    monkeypatch.setattr(winograd, "FEW_WEIGHTS", 32)
    monkeypatch.setattr(winograd, "PATCHES_OF_ODD", 56)
    rng = np.random.default_rng(4)
    spec = ConvSpec((32, 40), (3, 3), padding=(1,) * 4, dtype=dtype, out_dtype=dtype, statistics=True, minimal=True)
    plan = plan_conv_forward(spec, 5, *size, 2, target)
    filtered = dtype == "f32" or (target.bf16_dot and not target.amx)
    assert any(launch.source.name == "winograd" for launch in plan.launches) == filtered
    x, weight = draw(rng, (5, *size, 32), dtype), draw(rng, (40, 32, 3, 3), dtype)
    x += x.dtype.type(3)
    y, sums, squares = statistics(spec, x, weight, target, 2)
    flat = y.reshape(-1, 40).astype(np.float64)
    np.testing.assert_allclose(sums, flat.sum(0), atol=1e-6 * np.abs(flat).sum(0).max())
    np.testing.assert_allclose(squares, np.square(flat - flat.mean(0)).sum(0), rtol=1e-5)


def test_a_large_mean_does_not_swallow_the_variance():
    rng = np.random.default_rng(1)
    x = (1000 + rng.standard_normal((8, 28, 28, 32))).astype(np.float32)
    weight = np.eye(32, dtype=np.float32).reshape(32, 32, 1, 1)  # the result is the image
    spec = ConvSpec((32, 32), (1, 1), statistics=True)
    y, _, squares = statistics(spec, x, weight, detect(), 2)
    np.testing.assert_array_equal(y, x)
    flat = x.reshape(-1, 32).astype(np.float64)
    # A value is rounded to 6e-5 standard deviations; the mean square less the squared mean would be off by percents.
    np.testing.assert_allclose(squares, np.square(flat - flat.mean(0)).sum(0), rtol=1e-5)


def test_pixels_that_lie_apart_at_the_beginning_of_a_block_do_not_swallow_it_either():
    rng = np.random.default_rng(1)
    x = (1000 + rng.standard_normal((1, 14, 16, 32))).astype(np.float32)  # a block
    x[:, 0] -= 1000
    weight = np.eye(32, dtype=np.float32).reshape(32, 32, 1, 1)
    spec = ConvSpec((32, 32), (1, 1), statistics=True)
    y, sums, squares = statistics(spec, x, weight, detect(), 1)
    flat = y.reshape(-1, 32).astype(np.float64)
    np.testing.assert_allclose(sums, flat.sum(0), rtol=1e-6)
    np.testing.assert_allclose(squares, np.square(flat - flat.mean(0)).sum(0), rtol=4e-6)


@pytest.mark.parametrize("minimal", [False, True])
def test_what_is_the_same_everywhere_has_no_variance(minimal):
    x = np.full((4, 16, 16, 32), 1 / 3, np.float32)
    weight = np.zeros((32, 32, 3, 3), np.float32)
    weight[:, :, 1, 1] = np.eye(32)
    spec = ConvSpec((32, 32), (3, 3), padding=(1,) * 4, statistics=True, minimal=minimal)
    _, _, squares = statistics(spec, x, weight, detect(), 2)
    assert (squares >= 0).all()
    np.testing.assert_allclose(squares, 0, atol=1e-9)


@pytest.mark.parametrize("minimal", [False, True])
def test_their_bits_do_not_depend_on_the_threads(minimal):
    rng = np.random.default_rng(2)
    x, weight = draw(rng, (4, 14, 14, 64), "f32"), draw(rng, (96, 64, 3, 3), "f32")
    spec = ConvSpec((64, 96), (3, 3), padding=(1,) * 4, statistics=True, minimal=minimal)
    first, *others = (statistics(spec, x, weight, detect(), threads) for threads in (1, 2, 3, 8))
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


def labels(compute, monkeypatch):
    found = []
    lz.realize()
    monkeypatch.setattr(cpu, "observer", lambda schedule, instance, times: found.extend(t.label for t in times))
    result = compute()
    lz.realize()
    monkeypatch.setattr(cpu, "observer", None)
    return result, found


def taken(names):
    """Whether a convolution's kernel gave sums."""
    return any(name.startswith("conv2d.sum") for name in names)


@pytest.mark.parametrize("switched_off", [False, True])
def test_a_batch_norm_takes_its_statistics_from_the_convolution(monkeypatch, switched_off):
    torch = pytest.importorskip("torch")
    if switched_off:
        monkeypatch.setenv("LEZERO_PASSES", "-statistics")
    rng = np.random.default_rng(3)
    channels = 33 if switched_off else 32  # another plan
    x = rng.standard_normal((2, 16, 20, 20)).astype(np.float32)
    w = rng.standard_normal((channels, 16, 3, 3)).astype(np.float32)
    mean, var = lz.zeros(channels), lz.ones(channels)

    def step():
        weight = lz.tensor(w, requires_grad=True)
        y = F.batch_norm(F.conv2d(lz.tensor(x), weight, padding=1), mean, var, training=True)
        (y * y * y).sum().backward()
        return y, weight.grad

    (y, grad), names = labels(step, monkeypatch)
    assert taken(names) is not switched_off

    weight = torch.tensor(w.astype(np.float64), requires_grad=True)
    running = torch.zeros(channels, dtype=torch.float64), torch.ones(channels, dtype=torch.float64)
    conv = torch.nn.functional.conv2d(torch.tensor(x.astype(np.float64)), weight, padding=1)
    expected = torch.nn.functional.batch_norm(conv, *running, training=True)
    (expected * expected * expected).sum().backward()
    for ours, theirs in ((y, expected.detach()), (grad, weight.grad), (mean, running[0]), (var, running[1])):
        theirs = theirs.numpy()
        assert np.linalg.norm(ours.numpy() - theirs) <= 2e-6 * np.linalg.norm(theirs)


def test_a_mean_alone_and_a_variance_alone(monkeypatch):
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((2, 16, 21, 20)), rng.standard_normal((32, 16, 1, 1))
    y = np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0])
    x, w = (lz.tensor(a.astype(np.float32)) for a in (x, w))
    mean, names = labels(lambda: F.conv2d(x, w).mean((0, 2, 3)), monkeypatch)
    assert taken(names)
    np.testing.assert_allclose(mean.numpy(), y.mean((0, 2, 3)), rtol=0, atol=1e-6)

    def variance():
        z = F.conv2d(x, w)
        gap = z - z.mean((0, 2, 3), keepdim=True)
        return (gap * gap).mean((0, 2, 3))

    var, names = labels(variance, monkeypatch)
    assert taken(names)
    np.testing.assert_allclose(var.numpy(), y.var((0, 2, 3)), rtol=2e-6)
    shifted, _ = labels(
        lambda: ((z := F.conv2d(x, w)) - z.mean((0, 2, 3), keepdim=True) * 2).square().sum(), monkeypatch
    )
    expected = np.square(y - 2 * y.mean((0, 2, 3), keepdims=True)).sum()
    np.testing.assert_allclose(shifted.numpy(), expected, rtol=2e-6)


def test_they_are_right_for_another_batch_size_with_the_same_kernels(monkeypatch):
    rng = np.random.default_rng(5)
    w = rng.standard_normal((32, 16, 1, 1)).astype(np.float32)
    weight = lz.tensor(w)
    for n in (2, 7, 40):
        x = rng.standard_normal((n, 16, 6, 5)).astype(np.float32)
        y, names = labels(
            lambda x=x: F.batch_norm(F.conv2d(lz.tensor(x), weight), None, None, training=True), monkeypatch
        )
        assert taken(names)
        conv = np.einsum("nchw,oc->nohw", x.astype(np.float64), w[:, :, 0, 0])
        mean, var = conv.mean((0, 2, 3), keepdims=True), conv.var((0, 2, 3), keepdims=True)
        np.testing.assert_allclose(y.numpy(), (conv - mean) / np.sqrt(var + 1e-5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [lz.bfloat16, lz.float16])
def test_those_of_half_precision_are_of_what_is_stored(monkeypatch, dtype):
    rng = np.random.default_rng(6)
    x = lz.tensor(rng.standard_normal((2, 16, 21, 20)).astype(np.float32)).to(dtype)
    w = lz.tensor(rng.standard_normal((64, 16, 1, 1)).astype(np.float32)).to(dtype)

    def step():
        z = F.conv2d(x, w)
        wide = z.float()
        gap = wide - wide.mean((0, 2, 3), keepdim=True)
        return z, wide.mean((0, 2, 3)), (gap * gap).mean((0, 2, 3))

    (z, mean, var), names = labels(step, monkeypatch)
    assert taken(names)
    stored = z.float().numpy().astype(np.float64)
    np.testing.assert_allclose(mean.numpy(), stored.mean((0, 2, 3)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(var.numpy(), stored.var((0, 2, 3)), rtol=2e-6)
