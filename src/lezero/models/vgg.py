"""VGG networks (Simonyan & Zisserman 2014), with torchvision's parameter names, so that published weights load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero import nn
from lezero.tensor import Tensor

STAGES_16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Configuration D of the paper: channels and number of convolutions between poolings."""


class VGG(nn.Module):
    """3×3 convolutions with pooling in between, and three linear layers.

    Parameters
    ----------
    stages : (channels, convolutions) of each stage; every stage ends with a pooling by 2
    batch_norm : bool
        Normalise after each convolution.
    num_classes : int
    dropout : float
        Behind the first two linear layers.
    hidden_features : int
        Width of the first two linear layers.
    in_channels : int
    """

    def __init__(
        self,
        stages: Sequence[tuple[int, int]] = STAGES_16,
        batch_norm: bool = False,
        num_classes: int = 1000,
        dropout: float = 0.5,
        hidden_features: int = 4096,
        in_channels: int = 3,
    ):
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for width, convolutions in stages:
            for _ in range(convolutions):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width), nn.ReLU()] if batch_norm else [nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, hidden_features),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_features, hidden_features),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_features, num_classes),
        )
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(m.bias)
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0.0, 0.01)
                nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, height, width) -> (batch, num_classes)"""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def vgg16(**options: Any) -> VGG:
    """16 layers with weights, 138.4 M parameters; options are those of :class:`VGG`."""
    return VGG(STAGES_16, **options)


def vgg16_bn(**options: Any) -> VGG:
    """:func:`vgg16` with batch normalisation."""
    return VGG(STAGES_16, batch_norm=True, **options)
