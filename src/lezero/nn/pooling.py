"""Pooling layers."""

from __future__ import annotations

from typing import Any

from lezero.arguments import whole
from lezero.nn import functional as F
from lezero.nn.functional.geometry import per_dimension, positive
from lezero.nn.functional.pooling import is_empty
from lezero.nn.module import Module
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]


class _Pool(Module):
    """What layers with windows share."""

    dims: int

    def _check(self, kernel_size: IntOrTuple, stride: IntOrTuple | None, padding: IntOrTuple) -> None:
        """Refuse here, rather than at the first call, windows that there are none of."""
        name = type(self).__name__
        kernel = positive(name, "kernel_size", kernel_size, self.dims)
        if not (stride is None or is_empty(stride)):
            positive(name, "stride", stride, self.dims)
        pads = per_dimension(name, "padding", padding, self.dims)
        if any(p < 0 or 2 * p > k for p, k in zip(pads, kernel)):
            raise ValueError(f"{name}: padding is from 0 to half of the kernel_size {kernel_size}, got {padding}")


class _MaxPool(_Pool):
    """The largest value in each window.

    Parameters
    ----------
    kernel_size : int, or one a dimension
    stride : likewise; the kernel's size unless given
    padding : at most half of the kernel; padding never is the maximum
    dilation : distance between a window's elements
    return_indices : also return where each maximum is, in the flattened spatial dimensions
    ceil_mode : keep a last window that reaches over the end
    """

    def __init__(
        self,
        kernel_size: IntOrTuple,
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ):
        super().__init__()
        self._check(kernel_size, stride, padding)
        positive(type(self).__name__, "dilation", dilation, self.dims)
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.return_indices, self.ceil_mode = padding, dilation, return_indices, ceil_mode

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    dims = 1

    def forward(self, x: Tensor) -> Any:
        """(batch, channels, length) -> (batch, channels, windows)"""
        return F.max_pool1d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    dims = 2

    def forward(self, x: Tensor) -> Any:
        """(batch, channels, height, width) -> (batch, channels, rows, columns)"""
        return F.max_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool3d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    dims = 3

    def forward(self, x: Tensor) -> Any:
        """(batch, channels, depth, height, width) -> (batch, channels, levels, rows, columns)"""
        return F.max_pool3d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class AvgPool1d(_Pool):
    """The mean of each window of (batch, channels, length); parameters as for :class:`AvgPool2d`."""

    dims = 1

    def __init__(
        self,
        kernel_size: IntOrTuple,
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ):
        super().__init__()
        self._check(kernel_size, stride, padding)
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode, self.count_include_pad = padding, ceil_mode, count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_Pool):
    """What means over windows of images and of volumes share."""

    def __init__(
        self,
        kernel_size: IntOrTuple,
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):
        super().__init__()
        self._check(kernel_size, stride, padding)
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        if divisor_override == 0:
            raise ValueError(f"{type(self).__name__}: divisor_override must not be 0")
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return self._average(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    @staticmethod
    def _average(*args: Any) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of each window of (batch, channels, height, width).

    Parameters
    ----------
    kernel_size, stride, padding : int or (int, int); the stride is the kernel's size unless given
    ceil_mode : keep a last window that reaches over the end
    count_include_pad : whether padding counts in what a sum is divided by
    divisor_override : divide by this instead
    """

    dims = 2
    _average = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of (batch, channels, depth, height, width); parameters as for :class:`AvgPool2d`."""

    dims = 3
    _average = staticmethod(F.avg_pool3d)


class _Adaptive(Module):
    def __init__(self, output_size: Any):
        super().__init__()
        name = f"{type(self).__name__}: output_size"
        for extent in output_size if isinstance(output_size, (tuple, list)) else (output_size,):
            if extent is not None:
                whole(name, extent, 1)
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """Means over `output_size` bins of (batch, channels, length)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """Means over `output_size` bins of (batch, channels, height, width); None keeps an extent."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveMaxPool1d(_Adaptive):
    """Maxima over `output_size` bins of (batch, channels, length)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool1d(x, self.output_size)


class AdaptiveMaxPool2d(_Adaptive):
    """Maxima over `output_size` bins of (batch, channels, height, width); None keeps an extent."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(x, self.output_size)
