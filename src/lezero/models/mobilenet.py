"""MobileNetV2 (Sandler et al. 2018), with torchvision's parameter names, so that published weights load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero import nn
from lezero.tensor import Tensor

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Table 2 of the paper: expansion, channels, blocks, and the stride of the first block."""


def _divisible(channels: float, divisor: int) -> int:
    """The nearest multiple of `divisor`, raised where rounding down loses more than a tenth."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest


def _conv_norm_relu6(channels: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6())


class InvertedResidual(nn.Module):
    """1×1 up, depthwise 3×3, 1×1 down without activation; the input is added where its shape is the output's."""

    def __init__(self, channels: int, out: int, stride: int, expand_ratio: int):
        super().__init__()
        width = channels * expand_ratio
        layers: list[nn.Module] = [] if expand_ratio == 1 else [_conv_norm_relu6(channels, width, kernel=1)]
        layers.append(_conv_norm_relu6(width, width, stride=stride, groups=width))
        layers += [nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.conv = nn.Sequential(*layers)
        self.use_res_connect = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return x + y if self.use_res_connect else y


class MobileNetV2(nn.Module):
    """The network of inverted residuals.

    Parameters
    ----------
    num_classes : int
    width_mult : float
        All numbers of channels are multiplied by it and rounded to multiples of `round_nearest`.
    inverted_residual_setting : (expansion, channels, blocks, stride) of each stage, the paper's unless given
    round_nearest : int
    dropout : float
        Before the classifier.
    in_channels : int
    """

    def __init__(
        self,
        num_classes: int = 1000,
        width_mult: float = 1.0,
        inverted_residual_setting: Sequence[Sequence[int]] = STAGES,
        round_nearest: int = 8,
        dropout: float = 0.2,
        in_channels: int = 3,
    ):
        super().__init__()
        channels = _divisible(32 * width_mult, round_nearest)
        self.last_channel = _divisible(1280 * max(1.0, width_mult), round_nearest)
        features: list[nn.Module] = [_conv_norm_relu6(in_channels, channels, stride=2)]
        for expand_ratio, width, blocks, stride in inverted_residual_setting:
            out = _divisible(width * width_mult, round_nearest)
            for i in range(blocks):
                features.append(InvertedResidual(channels, out, stride if i == 0 else 1, expand_ratio))
                channels = out
        features.append(_conv_norm_relu6(channels, self.last_channel, kernel=1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(self.last_channel, num_classes))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out")
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0.0, 0.01)
                nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, height, width) -> (batch, num_classes)"""
        return self.classifier(self.features(x).mean((2, 3)))


def mobilenet_v2(**options: Any) -> MobileNetV2:
    """MobileNetV2, 3.5 M parameters; options are those of :class:`MobileNetV2`."""
    return MobileNetV2(**options)
