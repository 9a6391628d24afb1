"""Convolutional layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero.nn import functional as F
from lezero.nn import init
from lezero.nn.functional.convolution import conv_padding
from lezero.nn.functional.geometry import per_dimension, positive
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter, new_parameter
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]


class _Conv(Module):
    """What convolutions of one and two dimensions share."""

    dims: int
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple = 1,
        padding: str | IntOrTuple = 0,
        dilation: IntOrTuple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: {in_channels} and {out_channels} channels are multiples of groups, got groups={groups}"
            )
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                f"{name}: padding_mode is 'zeros', 'reflect', 'replicate' or 'circular', got {padding_mode!r}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = positive(name, "kernel_size", kernel_size, self.dims)
        self.stride = positive(name, "stride", stride, self.dims)
        self.dilation = positive(name, "dilation", dilation, self.dims)
        self.padding = padding if isinstance(padding, str) else per_dimension(name, "padding", padding, self.dims)
        self.padding_mode = padding_mode
        conv_padding(
            name, padding, self.kernel_size, self.stride, self.dilation
        )  # refused here rather than at the first call
        self.weight = new_parameter(out_channels, in_channels // groups, *self.kernel_size, device=device, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_channels, device=device, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.layer_(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            pairs = conv_padding(type(self).__name__, padding, self.kernel_size, self.stride, self.dilation)
            input = F.pad(input, [w for pair in reversed(pairs) for w in pair], self.padding_mode)
            padding = 0
        return self._convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    @staticmethod
    def _convolve(*args: Any) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.dims:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.dims:
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class Conv1d(_Conv):
    """Convolution over (batch, in_channels, length).

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, dilation : int
    padding : int, "same" or "valid"
    groups : int
        Channels are divided in as many groups that do not see each other.
    bias : bool
    padding_mode : {"zeros", "reflect", "replicate", "circular"}

    Attributes
    ----------
    weight : (out_channels, in_channels / groups, kernel_size), uniform within ±1/√(taps × channels of a group)
    bias : (out_channels,), likewise; or None
    """

    dims = 1
    _convolve = staticmethod(F.conv1d)


class Conv2d(_Conv):
    """Convolution over (batch, in_channels, height, width).

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, dilation : int or (int, int)
    padding : int, (int, int), "same" or "valid"
    groups : int
        Channels are divided in as many groups that do not see each other; ``groups=in_channels`` is a depthwise one.
    bias : bool
    padding_mode : {"zeros", "reflect", "replicate", "circular"}

    Attributes
    ----------
    weight : (out_channels, in_channels / groups, *kernel_size), uniform within ±1/√(taps × channels of a group)
    bias : (out_channels,), likewise; or None
    """

    dims = 2
    _convolve = staticmethod(F.conv2d)


class Conv3d(_Conv):
    """Convolution over (batch, in_channels, depth, height, width); parameters and attributes as for :class:`Conv2d`, of three
    dimensions."""

    dims = 3
    _convolve = staticmethod(F.conv3d)


class _ConvTranspose(Module):
    """What transposed convolutions of one to three dimensions share."""

    dims: int
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrTuple,
        stride: IntOrTuple = 1,
        padding: IntOrTuple = 0,
        output_padding: IntOrTuple = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: IntOrTuple = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        name = type(self).__name__
        if padding_mode != "zeros":
            raise ValueError(f"{name}: padding_mode is 'zeros', got {padding_mode!r}")
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: {in_channels} and {out_channels} channels are multiples of groups, got groups={groups}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = positive(name, "kernel_size", kernel_size, self.dims)
        self.stride = positive(name, "stride", stride, self.dims)
        self.padding, self.padding_mode = per_dimension(name, "padding", padding, self.dims), padding_mode
        self.output_padding = per_dimension(name, "output_padding", output_padding, self.dims)
        self.dilation = positive(name, "dilation", dilation, self.dims)
        self.weight = new_parameter(in_channels, out_channels // groups, *self.kernel_size, device=device, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_channels, device=device, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.layer_(self.weight, self.bias)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """As the class says; `output_size`, the extents wanted (or the whole shape), takes the place of `output_padding`."""
        extra = self.output_padding if output_size is None else self._padding_for(input, output_size)
        return self._convolve(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )

    def _padding_for(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        sizes = tuple(output_size)
        if len(sizes) in (self.dims + 1, self.dims + 2):
            sizes = sizes[-self.dims :]
        geometry = zip(input.shape[-self.dims :], self.stride, self.padding, self.dilation, self.kernel_size)
        least = tuple((h - 1) * s - 2 * p + d * (k - 1) + 1 for h, s, p, d, k in geometry)
        extra = tuple(size - low for size, low in zip(sizes, least))
        if len(sizes) != self.dims or any(not 0 <= e < s for e, s in zip(extra, self.stride)):
            raise ValueError(
                f"{type(self).__name__}: output_size is at least {least} and less than a stride {self.stride} more, got {sizes}"
            )
        return extra

    @staticmethod
    def _convolve(*args: Any) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over (batch, in_channels, length); parameters and attributes as for :class:`ConvTranspose2d`."""

    dims = 1
    _convolve = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over (batch, in_channels, height, width): the gradient of a convolution, as a layer.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, output_padding, dilation : int or (int, int)
        The output has ``(extent - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1`` rows or columns.
    groups : int
    bias : bool

    Attributes
    ----------
    weight : (in_channels, out_channels / groups, *kernel_size)
    bias : (out_channels,) or None
    """

    dims = 2
    _convolve = staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over (batch, in_channels, depth, height, width); parameters and attributes as for
    :class:`ConvTranspose2d`, of three dimensions."""

    dims = 3
    _convolve = staticmethod(F.conv_transpose3d)
