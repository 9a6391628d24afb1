"""U-Net (Ronneberger et al. 2015), padded and with batch norm.

Names are those of the most used PyTorch implementation (github.com/milesial/Pytorch-UNet), so that its weights load.
"""

from __future__ import annotations

from typing import Any

from lezero import nn
from lezero.nn import functional as F
from lezero.tensor import Tensor, cat


class DoubleConv(nn.Module):
    """Two 3×3 convolutions, each with batch norm and ReLU."""

    def __init__(self, channels: int, out: int, middle: int | None = None):
        super().__init__()
        middle = out if middle is None else middle
        self.double_conv = nn.Sequential(
            nn.Conv2d(channels, middle, 3, padding=1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    """Half the height and width, by max pooling, then two convolutions."""

    def __init__(self, channels: int, out: int):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(channels, out))

    def forward(self, x: Tensor) -> Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    """Twice the height and width, the features of the same size from the way down in front, then two convolutions."""

    def __init__(self, channels: int, out: int, bilinear: bool):
        super().__init__()
        if bilinear:
            self.up: nn.Module = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(channels, out, channels // 2)
        else:
            self.up = nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
            self.conv = DoubleConv(channels, out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        rows, columns = (int(s) - int(d) for s, d in zip(skip.shape[2:], x.shape[2:]))
        if rows or columns:  # pooling dropped an odd row or column
            x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return self.conv(cat([skip, x], 1))


class OutConv(nn.Module):
    """A 1×1 convolution to the classes."""

    def __init__(self, channels: int, out: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class UNet(nn.Module):
    """Four halvings and four doublings of height and width, with connections between equal sizes.

    Parameters
    ----------
    n_channels : int
        Channels of the images.
    n_classes : int
    bilinear : bool
        Double by bilinear interpolation, with half the channels at the lowest level, instead of transposed convolutions.
    width : int
        Channels at the highest level; they double on each level below.
    """

    def __init__(self, n_channels: int = 3, n_classes: int = 2, bilinear: bool = False, width: int = 64):
        super().__init__()
        self.n_channels, self.n_classes, self.bilinear = n_channels, n_classes, bilinear
        widths = [width * 2**level for level in range(5)]
        share = 2 if bilinear else 1
        self.inc = DoubleConv(n_channels, width)
        self.down1 = Down(widths[0], widths[1])
        self.down2 = Down(widths[1], widths[2])
        self.down3 = Down(widths[2], widths[3])
        self.down4 = Down(widths[3], widths[4] // share)
        self.up1 = Up(widths[4], widths[3] // share, bilinear)
        self.up2 = Up(widths[3], widths[2] // share, bilinear)
        self.up3 = Up(widths[2], widths[1] // share, bilinear)
        self.up4 = Up(widths[1], widths[0], bilinear)
        self.outc = OutConv(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, n_channels, height, width) -> (batch, n_classes, height, width); 16 rows and columns or more"""
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(self.down4(x4), x4)
        x = self.up2(x, x3)
        x = self.up3(x, x2)
        return self.outc(self.up4(x, x1))


def unet(**options: Any) -> UNet:
    """U-Net, 31.0 M parameters; options are those of :class:`UNet`."""
    return UNet(**options)
