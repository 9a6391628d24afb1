"""Layers that pool by power means, and that put values back where maxima were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero.nn import functional as F
from lezero.nn.module import Module
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]


class _LPPool(Module):
    function: Any

    def __init__(
        self,
        norm_type: float,
        kernel_size: IntOrTuple,
        stride: IntOrTuple | None = None,
        ceil_mode: bool = False,
    ):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """``(sum of x ** norm_type) ** (1 / norm_type)`` of each window of (batch, channels, length).

    Further parameters are those of :func:`~lezero.nn.functional.lp_pool1d`.
    """

    function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """``(sum of x ** norm_type) ** (1 / norm_type)`` of each window of (batch, channels, height, width).

    Further parameters are those of :func:`~lezero.nn.functional.lp_pool1d`.
    """

    function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """``(sum of x ** norm_type) ** (1 / norm_type)`` of each window of (batch, channels, depth, height, width).

    Further parameters are those of :func:`~lezero.nn.functional.lp_pool1d`.
    """

    function = staticmethod(F.lp_pool3d)


class _MaxUnpool(Module):
    function: Any

    def __init__(self, kernel_size: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple = 0):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Zeros with the input where maxima were; see :func:`~lezero.nn.functional.max_unpool1d`."""

    function = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """Zeros with the input where maxima were; see :func:`~lezero.nn.functional.max_unpool2d`."""

    function = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """Zeros with the input where maxima were; see :func:`~lezero.nn.functional.max_unpool3d`."""

    function = staticmethod(F.max_unpool3d)
