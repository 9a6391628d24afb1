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

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, length) -> (batch, channels, windows)"""
        return F.max_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    dims = 2

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, height, width) -> (batch, channels, rows, columns)"""
        return F.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool3d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    dims = 3

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, depth, height, width) -> (batch, channels, levels, rows, columns)"""
        return F.max_pool3d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
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

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

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

    def forward(self, input: Tensor) -> Tensor:
        return self._average(
            input,
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

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """Means over `output_size` bins of (batch, channels, height, width); None keeps an extent."""

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)


class AdaptiveAvgPool3d(_Adaptive):
    """Means over `output_size` bins of (batch, channels, depth, height, width); None keeps an extent."""

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool3d(input, self.output_size)


class _AdaptiveMax(_Adaptive):
    """return_indices : also return where each maximum is, in the flattened spatial dimensions"""

    def __init__(self, output_size: Any, return_indices: bool = False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return self._pool(input, self.output_size, self.return_indices)

    @staticmethod
    def _pool(*args: Any) -> Any:
        raise NotImplementedError


class AdaptiveMaxPool1d(_AdaptiveMax):
    """Maxima over `output_size` bins of (batch, channels, length); with `return_indices` also where they are."""

    _pool = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """Maxima over `output_size` bins of (batch, channels, height, width); None keeps an extent.

    return_indices : also return where each maximum is, in the flattened spatial dimensions
    """

    _pool = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Maxima over `output_size` bins of (batch, channels, depth, height, width); see :class:`AdaptiveMaxPool2d`."""

    _pool = staticmethod(F.adaptive_max_pool3d)


class _FractionalMaxPool(_Pool):
    """What random windows over images and volumes share; see :func:`~lezero.nn.functional.fractional_max_pool2d`."""

    _random_samples: Tensor | None

    def __init__(
        self,
        kernel_size: IntOrTuple,
        output_size: IntOrTuple | None = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ):
        super().__init__()
        name = type(self).__name__
        positive(name, "kernel_size", kernel_size, self.dims)
        if (output_size is None) == (output_ratio is None):
            raise ValueError(f"{name}: either output_size or output_ratio is needed")
        if output_ratio is not None:
            ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,)
            if not all(0 < r < 1 for r in ratios):
                raise ValueError(f"{name}: output_ratio is between 0 and 1, got {output_ratio}")
        self.kernel_size, self.output_size, self.output_ratio = kernel_size, output_size, output_ratio
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Tensor) -> Any:
        return self._pool(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples
        )

    @staticmethod
    def _pool(*args: Any) -> Any:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, output_size={self.output_size}, output_ratio={self.output_ratio}"


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest value in windows of (batch, channels, height, width) that begin at random distances (Graham 2014).

    Parameters
    ----------
    kernel_size : int, or one a dimension
    output_size : how many windows, likewise; or
    output_ratio : their number as a share of the extents, between 0 and 1
    return_indices : also return where each maximum is, in the flattened spatial dimensions
    """

    dims = 2
    _pool = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    """The same for (batch, channels, depth, height, width); see :class:`FractionalMaxPool2d`."""

    dims = 3
    _pool = staticmethod(F.fractional_max_pool3d)
