"""Convolutions over sequences and volumes, and pooling over volumes, with what computes images.

A convolution over a volume is one over images: the depth's windows are channels of theirs.
"""

from __future__ import annotations

from typing import Any

from lezero.nn.functional.convolution import check_unbatched, conv_padding
from lezero.nn.functional.geometry import batched, per_dimension
from lezero.nn.functional.padding import pad
from lezero.nn.functional.pooling import _avg_pool, _max_pool
from lezero.ops.conv import conv2d_input_grad, convolution
from lezero.ops.windows import from_windows, window
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTuple = 1,
    padding: str | IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over (batch, channels, depth, height, width) or without batch; weight (out, in / groups, *kernel).

    bias : (out,)
    stride, padding, dilation : a number, or one a spatial dimension; padding may be "same" (with stride 1) or "valid"
    """
    if weight.ndim != 5:
        raise ValueError(f"conv3d: a weight (out, in / groups, *kernel) is needed, got shape {tuple(weight.shape)}")
    x, added = batched("conv3d", input, 5)
    strides, dilations = per_dimension("conv3d", "stride", stride, 3), per_dimension("conv3d", "dilation", dilation, 3)
    (before, after), *around = conv_padding("conv3d", padding, tuple(weight.shape[2:]), strides, dilations)
    seen = window(
        x, axes=(2,), sizes=(weight.shape[2],), strides=strides[:1], dilations=dilations[:1], before=(before,), after=(after,)
    )  # fmt: skip
    n, c, depth, height, width, taps = seen.shape
    if depth < 1:
        raise ValueError(f"conv3d: a kernel {tuple(weight.shape[2:])} does not fit in an input {tuple(input.shape)}")
    images = seen.permute(0, 2, 1, 5, 3, 4).reshape(n * depth, c * taps, height, width)
    operands = (images, _as_images(weight)) if bias is None else (images, _as_images(weight), bias)
    y = convolution(*operands, stride=strides[1:], padding=tuple(around), dilation=dilations[1:], groups=groups)
    y = y.reshape(n, depth, *y.shape[1:]).permute(0, 2, 1, 3, 4)
    return y.squeeze(0) if added else y


def _as_images(weight: Tensor) -> Tensor:
    """A kernel's depth as channels, behind each of its channels."""
    return weight.reshape(weight.shape[0], weight.shape[1] * weight.shape[2], *weight.shape[3:])


def transposed(
    x: Tensor, weight: Tensor, extents: tuple[int, ...], stride: tuple[int, ...], padding: Pairs, dilation: tuple[int, ...], groups: int
) -> Tensor:  # fmt: skip
    """The gradient of a convolution over one to three dimensions for its input, which has the spatial `extents`.

    Parameters
    ----------
    x : (batch, in, *spatial)
    weight : (in, out / groups, *kernel)
    padding : (before, after) of each dimension
    """
    if len(extents) == 1:
        y = transposed(
            x.unsqueeze(2), weight.unsqueeze(2), (1, *extents), (1, *stride), ((0, 0), *padding), (1, *dilation), groups
        )
        return y.squeeze(2)
    geometry: dict[str, Any] = {"padding": padding[-2:], "stride": stride[-2:], "dilation": dilation[-2:]}
    if len(extents) == 2:
        return conv2d_input_grad(x, weight, input_shape=extents, groups=groups, **geometry)
    n, c, depth, *image = x.shape
    images = x.permute(0, 2, 1, 3, 4).reshape(n * depth, c, *image)
    y = conv2d_input_grad(images, _as_images(weight), input_shape=extents[1:], groups=groups, **geometry)
    y = y.reshape(n, depth, weight.shape[1] * groups, weight.shape[2], *extents[1:]).permute(0, 2, 1, 4, 5, 3)
    spread = from_windows(
        y, axes=(2,), strides=stride[:1], dilations=dilation[:1], before=(padding[0][0],), extents=extents[:1]
    )
    return spread.sum(-1)


def _conv_transpose(
    n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, output_padding: Any, groups: int,
    dilation: Any,
) -> Tensor:  # fmt: skip
    name = f"conv_transpose{n}d"
    if weight.ndim != n + 2:
        raise ValueError(f"{name}: a weight (in, out / groups, *kernel) is needed, got shape {tuple(weight.shape)}")
    stride, dilation = per_dimension(name, "stride", stride, n), per_dimension(name, "dilation", dilation, n)
    pads, extra = per_dimension(name, "padding", padding, n), per_dimension(name, "output_padding", output_padding, n)
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
        raise ValueError(f"{name}: output_padding {extra} is below the stride {stride} or the dilation {dilation}")
    x, added = batched(name, input, n + 2)
    if added:
        check_unbatched(name, x, weight, int(weight.shape[0]))
    # Outputs behind the last stride were cut off by the padding, or get nothing.
    further = tuple(max(e - s + 1, 0) for e, s in zip(extra, stride))
    after = tuple(max(p - f, 0) for p, f in zip(pads, further))
    extents = tuple(
        (h - 1) * s - p - a + d * (k - 1) + e - f + 1
        for h, s, p, a, d, k, e, f in zip(x.shape[2:], stride, pads, after, dilation, weight.shape[2:], extra, further)
    )
    y = transposed(x, weight, extents, stride, tuple(zip(pads, after)), dilation, groups)
    empty = [max(f - p, 0) for p, f in zip(pads, further)]
    if any(empty):
        y = pad(y, [w for more in reversed(empty) for w in (0, more)])
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * n).to(y.dtype)
    return y.squeeze(0) if added else y


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTuple = 1,
    padding: IntOrTuple = 0,
    output_padding: IntOrTuple = 0,
    groups: int = 1,
    dilation: IntOrTuple = 1,
) -> Tensor:
    """Transposed convolution over (batch, channels, length); weight (in, out / groups, kernel).

    bias : (out,)
    stride, padding, dilation : a number, or one a spatial dimension; padding is what the convolution had, and is taken off
    output_padding : what the result is longer at its end, less than the stride or the dilation
    """
    return _conv_transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTuple = 1,
    padding: IntOrTuple = 0,
    output_padding: IntOrTuple = 0,
    groups: int = 1,
    dilation: IntOrTuple = 1,
) -> Tensor:
    """Transposed convolution (the gradient of a convolution); weight (in, out / groups, kernel height, width).

    bias : (out,)
    stride, padding, dilation : a number, or one a spatial dimension; padding is what the convolution had, and is taken off
    output_padding : what the result is longer at its end, less than the stride or the dilation
    """
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTuple = 1,
    padding: IntOrTuple = 0,
    output_padding: IntOrTuple = 0,
    groups: int = 1,
    dilation: IntOrTuple = 1,
) -> Tensor:
    """Transposed convolution over (batch, channels, depth, height, width); weight (in, out / groups, *kernel).

    bias : (out,)
    stride, padding, dilation : a number, or one a spatial dimension; padding is what the convolution had, and is taken off
    output_padding : what the result is longer at its end, less than the stride or the dilation
    """
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def max_pool3d(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value in each window over (batch, channels, depth, height, width).

    Further parameters are those of :class:`~lezero.nn.MaxPool3d`.
    """
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, indices=return_indices)


def avg_pool3d(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over (batch, channels, depth, height, width).

    Further parameters are those of :class:`~lezero.nn.AvgPool3d`.
    """
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
