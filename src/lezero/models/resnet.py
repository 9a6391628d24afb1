"""Residual networks (He et al. 2015), with torchvision's parameter names, so that published weights load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lezero import nn
from lezero.tensor import Tensor


def _conv3x3(channels: int, out: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, stride=stride, padding=1, groups=groups, bias=False)


def _conv1x1(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and the residual connection around them."""

    expansion = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        groups: int = 1,
        base_width: int = 64,
    ):
        super().__init__()
        if groups != 1 or base_width != 64:
            raise ValueError("BasicBlock: groups=1 and base_width=64 only; the bottleneck networks have others")
        self.conv1 = _conv3x3(inplanes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.conv2 = _conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample
        self.stride = stride

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + shortcut)


class Bottleneck(nn.Module):
    """1×1 down, 3×3 (which carries the stride, "ResNet v1.5"), 1×1 up, and the residual connection."""

    expansion = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        groups: int = 1,
        base_width: int = 64,
    ):
        super().__init__()
        width = int(planes * (base_width / 64.0)) * groups
        self.conv1 = _conv1x1(inplanes, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, stride, groups)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv1x1(width, planes * self.expansion)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU()
        self.downsample = downsample
        self.stride = stride

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + shortcut)


class ResNet(nn.Module):
    """The network of four stages.

    Parameters
    ----------
    block : BasicBlock or Bottleneck
    layers : the number of blocks in each stage
    num_classes : int
    zero_init_residual : bool
        Start every block as the identity, by a last batch norm of scale 0 (Goyal et al. 2017).
    groups, width_per_group : int
        ResNeXt and wide networks.
    in_channels : int
    """

    def __init__(
        self,
        block: Callable[..., Any],
        layers: list[int],
        num_classes: int = 1000,
        zero_init_residual: bool = False,
        groups: int = 1,
        width_per_group: int = 64,
        in_channels: int = 3,
    ):
        super().__init__()
        self.inplanes = 64
        self.groups, self.base_width = groups, width_per_group
        self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._stage(block, 64, layers[0], 1)
        self.layer2 = self._stage(block, 128, layers[1], 2)
        self.layer3 = self._stage(block, 256, layers[2], 2)
        self.layer4 = self._stage(block, 512, layers[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)  # type: ignore[attr-defined]
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(m, (BasicBlock, Bottleneck)):
                nn.init.zeros_(m.last_norm.weight)

    def _stage(self, block: Callable[..., Any], planes: int, blocks: int, stride: int) -> nn.Sequential:
        out = planes * block.expansion  # type: ignore[attr-defined]
        downsample = None
        if stride != 1 or self.inplanes != out:
            downsample = nn.Sequential(_conv1x1(self.inplanes, out, stride), nn.BatchNorm2d(out))
        first = block(self.inplanes, planes, stride, downsample, self.groups, self.base_width)
        self.inplanes = out
        rest = [block(out, planes, groups=self.groups, base_width=self.base_width) for _ in range(blocks - 1)]
        return nn.Sequential(first, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_channels, height, width) -> (batch, num_classes)"""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(**options: Any) -> ResNet:
    """18 layers, 11.7 M parameters; options are those of :class:`ResNet`."""
    return ResNet(BasicBlock, [2, 2, 2, 2], **options)


def resnet34(**options: Any) -> ResNet:
    """34 layers, 21.8 M parameters."""
    return ResNet(BasicBlock, [3, 4, 6, 3], **options)


def resnet50(**options: Any) -> ResNet:
    """50 layers, 25.6 M parameters."""
    return ResNet(Bottleneck, [3, 4, 6, 3], **options)


def resnet101(**options: Any) -> ResNet:
    """101 layers, 44.5 M parameters."""
    return ResNet(Bottleneck, [3, 4, 23, 3], **options)
