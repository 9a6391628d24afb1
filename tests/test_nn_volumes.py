"""Convolutions and pooling over sequences and volumes, and sampling at given places: PyTorch's results and gradients."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero.nn import functional as F

torch = pytest.importorskip("torch")
P = torch.nn.functional


def same(ours, theirs, *arrays, tolerance=1e-9):
    """Equal results, and equal gradients of a weighted sum of them."""
    mine = [lz.tensor(a, requires_grad=True) for a in arrays]
    other = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, z = ours(*mine), theirs(*other)
    assert tuple(y.shape) == tuple(z.shape)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), tolerance, tolerance)
    weight = np.random.default_rng(7).standard_normal(tuple(z.shape))
    (y * lz.tensor(weight)).sum().backward()
    (z * torch.tensor(weight)).sum().backward()
    for a, b in zip(mine, other):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), tolerance, tolerance)


def drawn(*shapes):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s) for s in shapes]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": (2, 1, 3), "padding": (1, 2, 0)},
        {"dilation": (2, 1, 2), "padding": (2, 1, 1), "groups": 2},
        {"padding": "same"},
    ],
)
def test_conv3d(options):
    groups = options.get("groups", 1)
    x, w, b = drawn((2, 4, 7, 6, 8), (6, 4 // groups, 3, 2, 3), (6,))
    same(lambda *t: F.conv3d(*t, **options), lambda *t: P.conv3d(*t, **options), x, w, b)


def test_conv3d_without_a_batch_and_a_kernel_that_does_not_fit():
    same(F.conv3d, P.conv3d, *drawn((2, 4, 5, 6), (3, 2, 2, 2, 2)))
    with pytest.raises(ValueError, match="does not fit"):
        F.conv3d(lz.zeros(1, 1, 2, 5, 5), lz.zeros(1, 1, 3, 3, 3))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 3, "dilation": 2, "groups": 2, "padding": 2}],
)
def test_transposed_convolutions(n, options):
    name, groups = f"conv_transpose{n}d", options.get("groups", 1)
    x, w, b = drawn((2, 4, *(5, 3, 4)[:n]), (4, 6 // groups, *(3, 3, 2)[:n]), (6,))
    same(lambda *t: getattr(F, name)(*t, **options), lambda *t: getattr(P, name)(*t, **options), x, w, b)


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling_of_volumes(ceil_mode):
    (x,) = drawn((2, 3, 7, 6, 5))
    options = {"kernel_size": (3, 2, 2), "stride": 2, "padding": 1, "ceil_mode": ceil_mode}
    same(lambda t: F.max_pool3d(t, **options), lambda t: P.max_pool3d(t, **options), x)
    same(lambda t: F.avg_pool3d(t, **options), lambda t: P.avg_pool3d(t, **options), x)
    ours = F.max_pool3d(lz.tensor(x), **options, return_indices=True)[1]
    theirs = P.max_pool3d(torch.tensor(x), **options, return_indices=True)[1]
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_grid_sample_of_images(mode, padding_mode, align_corners):
    x, grid = drawn((2, 3, 5, 7), (2, 4, 3, 2))
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    same(lambda *t: F.grid_sample(*t, **options), lambda *t: P.grid_sample(*t, **options), x, grid)


@pytest.mark.parametrize("padding_mode", ["zeros", "reflection"])
def test_grid_sample_of_volumes(padding_mode):
    x, grid = drawn((2, 2, 3, 4, 5), (2, 2, 3, 4, 3))
    options = {"padding_mode": padding_mode, "align_corners": False}
    same(lambda *t: F.grid_sample(*t, **options), lambda *t: P.grid_sample(*t, **options), x, grid)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 4, 5, 1)])
def test_affine_grid(size, align_corners):
    n = len(size) - 2
    (theta,) = drawn((2, n, n + 1))
    same(
        lambda t: F.affine_grid(t, size, align_corners=align_corners),
        lambda t: P.affine_grid(t, list(size), align_corners=align_corners),
        theta,
    )


def test_what_sampling_refuses():
    x, grid = lz.zeros(1, 1, 4, 4), lz.zeros(1, 2, 2, 2)
    with pytest.raises(ValueError, match="grid_sample"):
        F.grid_sample(x, lz.zeros(1, 2, 2, 3))
    with pytest.raises(ValueError, match="mode"):
        F.grid_sample(x, grid, mode="trilinear")
    with pytest.raises(ValueError, match="padding_mode"):
        F.grid_sample(x, grid, padding_mode="constant")
    with pytest.raises(ValueError, match="theta"):
        F.affine_grid(lz.zeros(1, 2, 2), (1, 1, 4, 4))
