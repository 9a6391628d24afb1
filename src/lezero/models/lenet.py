"""LeNet-5 (LeCun et al. 1998), with ReLU and max pooling as it is taught today."""

from __future__ import annotations

from lezero import nn
from lezero.tensor import Tensor


class LeNet5(nn.Module):
    """Two convolutions and three linear layers for 28×28 images.

    Parameters
    ----------
    num_classes : int
    in_channels : int, 1 for digits
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, 28, 28) -> (batch, num_classes)"""
        return self.classifier(self.features(x))


def lenet5(num_classes: int = 10, in_channels: int = 1) -> LeNet5:
    """LeNet-5 for 28×28 images of `in_channels`, giving scores (batch, `num_classes`): 61,706 parameters with the defaults."""
    return LeNet5(num_classes, in_channels)
