"""Layers with an input each, for their way into ONNX files: every one is written and compared, or is listed with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lezero as lz
import lezero.nn.functional as F
from lezero import nn

Make = Callable[[], Any]


def image(*shape: int) -> Make:
    return lambda: lz.randn(*(shape or (2, 4, 7, 6)))


def words() -> Any:
    return lz.randint(0, 9, (2, 5))


class Using(nn.Module):
    """A module for a function of one input and parts with parameters."""

    def __init__(self, call: Callable, *parts: nn.Module):
        super().__init__()
        self.parts, self.call = nn.ModuleList(list(parts)), call

    def forward(self, input):
        return self.call(input, *self.parts)


ROWS, SEQUENCE, VOLUME = image(3, 6), image(2, 4, 9), image(2, 4, 5, 6, 4)
TRANSFORMER = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "batch_first": True}
LAYERS: dict[str, tuple[Make, Make]] = {
    **{
        name: (lambda name=name: getattr(nn, name)(), ROWS)
        for name in """CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6
        RReLU SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Identity Flatten""".split()
    },
    "Softmax": (lambda: nn.Softmax(-1), ROWS),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), ROWS),
    "Softmin": (lambda: nn.Softmin(-1), ROWS),
    "Softmax2d": (nn.Softmax2d, image()),
    "Threshold": (lambda: nn.Threshold(0.1, 2.0), ROWS),
    "Dropout": (lambda: nn.Dropout(0.5), ROWS),
    "Linear": (lambda: nn.Linear(6, 5), ROWS),
    "Bilinear": (lambda: Using(lambda x, layer: layer(x, x.flip(0)), nn.Bilinear(6, 6, 3)), ROWS),
    "Embedding": (lambda: nn.Embedding(9, 4, padding_idx=2), words),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(9, 4, mode="sum"), words),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, padding="same", groups=2), SEQUENCE),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, 2, 1, dilation=2), image()),
    "Conv2d reflected": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), image()),
    "Conv3d": (lambda: nn.Conv3d(4, 3, 3, padding=1), VOLUME),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), SEQUENCE),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, groups=2), image()),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 3, 2, 2), VOLUME),
    "MaxPool1d": (lambda: nn.MaxPool1d(3, 2, 1), SEQUENCE),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), image()),
    "MaxPool2d with indices": (lambda: nn.MaxPool2d(2, return_indices=True), image()),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), VOLUME),
    "AvgPool1d": (lambda: nn.AvgPool1d(3, 2, 1), SEQUENCE),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), image()),
    "AvgPool2d ceil_mode": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), image()),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), VOLUME),
    "LPPool2d": (lambda: nn.LPPool2d(2, 3), image()),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(4), SEQUENCE),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((1, 1)), image()),
    "AdaptiveAvgPool2d of unequal bins": (lambda: nn.AdaptiveAvgPool2d((3, 4)), image()),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), VOLUME),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(4), SEQUENCE),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d((3, 4)), image()),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), VOLUME),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), SEQUENCE),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), image()),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), VOLUME),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), image()),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), image()),
    "LayerNorm": (lambda: nn.LayerNorm((7, 6)), image()),
    "RMSNorm": (lambda: nn.RMSNorm(6), ROWS),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), image()),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(3), image()),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), image()),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), image(2, 3, 6, 4)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), image()),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 3)), ROWS),
    "Unfold": (lambda: nn.Unfold(2), image()),
    "Fold": (lambda: nn.Fold((4, 5), 2), image(2, 8, 12)),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(2), image()),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d((1, 2, 0, 1)), image()),
    "CircularPad1d": (lambda: nn.CircularPad1d(2), SEQUENCE),
    "ConstantPad1d": (lambda: nn.ConstantPad1d((2, -1), 0.5), SEQUENCE),
    "ZeroPad3d": (lambda: nn.ZeroPad3d(1), VOLUME),
    **{
        f"Upsample {mode}": (lambda mode=mode: nn.Upsample(scale_factor=2, mode=mode), image())
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    },
    "Upsample linear": (lambda: nn.Upsample(scale_factor=1.5, mode="linear", align_corners=True), SEQUENCE),
    "Upsample trilinear": (lambda: nn.Upsample(size=(4, 4, 4), mode="trilinear"), VOLUME),
    "interpolate antialiased": (lambda: Using(lambda x: F.interpolate(x, (4, 4), mode="bilinear", antialias=True)), image()),
    "grid_sample": (
        lambda: Using(
            lambda x: F.grid_sample(x, F.affine_grid(lz.eye(2, 3).expand(x.shape[0], 2, 3), x.shape, False), align_corners=False)
        ),
        image(),
    ),
    "normalize": (lambda: Using(F.normalize), ROWS),
    "cosine_similarity": (lambda: Using(lambda x: F.cosine_similarity(x, x.flip(0))), ROWS),
    "RNN": (lambda: nn.RNN(4, 5, 2, batch_first=True), image(2, 6, 4)),
    "LSTM": (lambda: nn.LSTM(4, 5, batch_first=True, bidirectional=True, proj_size=2), image(2, 6, 4)),
    "GRU": (lambda: nn.GRU(4, 5, batch_first=True), image(2, 6, 4)),
    "LSTMCell": (lambda: nn.LSTMCell(6, 5), ROWS),
    "MultiheadAttention": (
        lambda: Using(lambda x, layer: layer(x, x, x)[0], nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)),
        image(2, 5, 8),
    ),
    "scaled_dot_product_attention": (
        lambda: Using(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), image(2, 2, 5, 4),
    ),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**TRANSFORMER), 2), image(2, 5, 8),
    ),
    "TransformerDecoder": (
        lambda: Using(
            lambda x, layer: layer(x, x.flip(1)), nn.TransformerDecoder(nn.TransformerDecoderLayer(**TRANSFORMER), 1)
        ),
        image(2, 5, 8),
    ),
    "Transformer": (
        lambda: Using(
            lambda x, layer: layer(x, x), nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **TRANSFORMER)
        ),
        image(2, 5, 8),
    ),
}  # fmt: skip
