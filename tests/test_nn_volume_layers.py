"""Layers over sequences, images and volumes of one family each: as PyTorch's, with gradients and state."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero import nn

torch = pytest.importorskip("torch", reason="compared with PyTorch")

LAYERS = {
    "Conv3d": (lambda m: m.Conv3d(4, 6, (2, 3, 2), stride=(1, 2, 1), padding=(0, 1, 1), dilation=(1, 1, 2), groups=2), (2, 4, 4, 5, 6)),
    "Conv3d, same": (lambda m: m.Conv3d(2, 3, 3, padding="same", bias=False), (1, 2, 3, 4, 5)),
    "Conv3d, no batch": (lambda m: m.Conv3d(2, 3, 2), (2, 3, 4, 5)),
    "Conv3d, circular": (lambda m: m.Conv3d(2, 3, 3, padding=1, padding_mode="circular"), (2, 2, 3, 4, 5)),
    "ConvTranspose1d": (lambda m: m.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (2, 4, 5)),
    "ConvTranspose2d": (lambda m: m.ConvTranspose2d(3, 2, 3, stride=2, padding=1), (2, 3, 4, 5)),
    "ConvTranspose3d": (lambda m: m.ConvTranspose3d(3, 2, (2, 3, 2), stride=(2, 1, 2), padding=(0, 1, 0)), (2, 3, 3, 4, 2)),
    "MaxPool3d": (lambda m: m.MaxPool3d((2, 3, 2), stride=(1, 2, 2), padding=(1, 1, 0), ceil_mode=True), (2, 3, 4, 5, 6)),
    "AvgPool3d": (lambda m: m.AvgPool3d(2, stride=2, padding=1, count_include_pad=False), (2, 3, 4, 5, 6)),
    "AvgPool3d, divisor": (lambda m: m.AvgPool3d(2, divisor_override=3), (2, 3, 4, 5, 6)),
    "LPPool3d": (lambda m: m.LPPool3d(2, (2, 2, 3), stride=2), (2, 3, 4, 5, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_pytorchs(name):
    make, shape = LAYERS[name]
    theirs, ours = make(torch.nn).double(), make(nn).double()
    ours.load_state_dict({k: lz.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    x = np.random.default_rng(0).standard_normal(shape)
    a, b = torch.tensor(x, requires_grad=True), lz.tensor(x, requires_grad=True)
    y, z = theirs(a), ours(b)
    np.testing.assert_allclose(z.detach().numpy(), y.detach().numpy(), rtol=1e-10, atol=1e-12)
    g = np.random.default_rng(1).standard_normal(tuple(y.shape))
    y.backward(torch.tensor(g))
    z.backward(lz.tensor(g))
    np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=1e-9, atol=1e-11)
    mine = dict(ours.named_parameters())
    for k, p in theirs.named_parameters():
        np.testing.assert_allclose(mine[k].grad.numpy(), p.grad.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("lazy", "shape"), [("LazyConv3d", (2, 4, 3, 4, 5)), ("LazyConvTranspose1d", (2, 4, 5)),
                                            ("LazyConvTranspose3d", (2, 4, 3, 2, 2))])  # fmt: skip
def test_lazy_layers_take_the_channels_of_the_first_input(lazy, shape):
    ours, theirs = getattr(nn, lazy)(6, 2), getattr(torch.nn, lazy)(6, 2)
    y = ours(lz.ones(*shape))
    assert tuple(y.shape) == tuple(theirs(torch.ones(*shape)).shape) and ours.in_channels == 4
    assert type(ours).__name__ == lazy.removeprefix("Lazy")


def test_wrong_numbers_name_the_layer():
    for make, says in (
        (lambda: nn.Conv3d(3, 4, 3, groups=2), "Conv3d: 3 and 4 channels"),
        (lambda: nn.ConvTranspose1d(3, 4, 0), "ConvTranspose1d: kernel_size is 1 or more"),
        (lambda: nn.AvgPool3d(2, divisor_override=0), "AvgPool3d: divisor_override must not be 0"),
    ):
        with pytest.raises(ValueError, match=says):
            make()
