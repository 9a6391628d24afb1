"""Layers that rearrange: flattening and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero.arguments import whole
from lezero.nn import functional as F
from lezero.nn.functional.geometry import per_dimension
from lezero.nn.module import Module
from lezero.tensor import Tensor


class Flatten(Module):
    """Dimensions `start_dim` to `end_dim` as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class PixelShuffle(Module):
    """(..., c r², h, w) -> (..., c, h r, w r)."""

    def __init__(self, upscale_factor: int):
        super().__init__()
        self.upscale_factor = whole("PixelShuffle: upscale_factor", upscale_factor, 1)

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(..., c, h r, w r) -> (..., c r², h, w)."""

    def __init__(self, downscale_factor: int):
        super().__init__()
        self.downscale_factor = whole("PixelUnshuffle: downscale_factor", downscale_factor, 1)

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels of `groups` groups taken in turn."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups = whole("ChannelShuffle: groups", groups, 1)

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Upsample(Module):
    """Images in another size: :func:`~lezero.nn.functional.interpolate` with settings kept.

    Parameters
    ----------
    size : the new extents; or
    scale_factor : what the extents are multiplied by
    mode : {"nearest", "nearest-exact", "linear", "bilinear"}
    align_corners, recompute_scale_factor : see the function
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ):
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, *extents) -> (batch, channels, *size)"""
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        sizes = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{sizes}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Images (batch, channels, height, width) in another size, each element the nearest one's."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ):
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Images (batch, channels, height, width) in another size, blended, with the corners on each other."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ):
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class Unflatten(Module):
    """Dimension `dim` as several, of the given sizes."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class _Pad(Module):
    dims: int
    mode: str

    def __init__(self, padding: int | Sequence[int]):
        super().__init__()
        self.padding = per_dimension(type(self).__name__, "padding", padding, 2 * self.dims)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class ConstantPad1d(_Pad):
    """Padding with a value: (left, right)."""

    dims, mode = 1, "constant"

    def __init__(self, padding: int | Sequence[int], value: float):
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad2d(ConstantPad1d):
    """Padding with a value: (left, right, top, bottom)."""

    dims = 2


class ConstantPad3d(ConstantPad1d):
    """Padding with a value: (left, right, top, bottom, front, back)."""

    dims = 3


def _layers(kind: str, mode: str, what: str) -> tuple[Any, Any, Any]:
    """The layers of a mode, of one to three dimensions."""
    sides = ("(left, right)", "(left, right, top, bottom)", "(left, right, top, bottom, front, back)")
    one, two, three = (
        type(f"{kind}{n}d", (_Pad,), {"__doc__": f"{what}: {side}.", "__module__": __name__, "dims": n, "mode": mode})
        for n, side in zip((1, 2, 3), sides)
    )
    return one, two, three


ZeroPad1d, ZeroPad2d, ZeroPad3d = _layers("ZeroPad", "constant", "Padding with zeros")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _layers(
    "ReflectionPad", "reflect", "Padding with the mirrored border"
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _layers(
    "ReplicationPad", "replicate", "Padding with the outermost values"
)
CircularPad1d, CircularPad2d, CircularPad3d = _layers("CircularPad", "circular", "Padding with the opposite border")
