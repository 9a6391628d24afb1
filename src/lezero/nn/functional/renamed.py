"""Functions under further names of PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence

from lezero.nn.functional.convolution import conv1d
from lezero.nn.functional.interpolation import interpolate
from lezero.nn.functional.pooling import max_pool1d, max_pool2d
from lezero.nn.functional.shuffle import channel_shuffle
from lezero.nn.functional.volumes import max_pool3d
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]
Sizes = int | Sequence[int] | None
Scales = float | Sequence[float] | None

native_channel_shuffle = channel_shuffle


def upsample(
    input: Tensor,
    size: Sizes = None,
    scale_factor: Scales = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """``interpolate``"""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Sizes = None, scale_factor: Scales = None) -> Tensor:
    """``interpolate`` to the nearest element"""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: Sizes = None, scale_factor: Scales = None) -> Tensor:
    """``interpolate`` with the corners on each other"""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """Convolution over (length, batch, channels), with `pad` zeros at both ends; weight (kernel, in, out), bias (out,)."""
    y = conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return y.permute(2, 0, 1)


def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """``max_pool1d``, and where each maximum is in the input"""
    return max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)


def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """``max_pool2d``, and where each maximum is in the flattened height and width of the input"""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)


def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """``max_pool3d``, and where each maximum is in the flattened depth, height and width of the input"""
    return max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Distances between all pairs of rows: (rows, features) -> (rows · (rows - 1) / 2,), in the order of the upper triangle."""
    import numpy as np

    from lezero.nn.parameter import constant_tensor

    if input.ndim != 2:
        raise ValueError(f"pdist: an input (rows, features) is needed, got shape {tuple(input.shape)}")
    first, second = (constant_tensor(at) for at in np.triu_indices(int(input.shape[0]), 1))
    return (input.index_select(0, first) - input.index_select(0, second)).norm(p, -1)
