"""ATen's operations on images, and losses, whose arguments or results are not those of PyTorch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lezero.interop.aten import OPERATIONS, REDUCTIONS, aten
from lezero.nn import functional as F
from lezero.tensor import Tensor


def _upsampling(mode: str, corners: bool, antialias: bool = False) -> Callable[..., Tensor]:
    def call(x: Tensor, size: Any, *rest: Any) -> Tensor:
        aligned, scale = rest if corners else (None, *rest)
        return F.interpolate(x, None if size is None else tuple(size), scale, mode, aligned, antialias=antialias)

    return call


for _axes, _mode in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    OPERATIONS[f"upsample_{_mode}{_axes}d"] = _upsampling(_mode, True)
    OPERATIONS[f"upsample_nearest{_axes}d"] = _upsampling("nearest", False)
    OPERATIONS[f"_upsample_nearest_exact{_axes}d"] = _upsampling("nearest-exact", False)
for _mode in ("bilinear", "bicubic"):
    OPERATIONS[f"upsample_{_mode}2d"] = _upsampling(_mode, True)
    OPERATIONS[f"_upsample_{_mode}2d_aa"] = _upsampling(_mode, True, antialias=True)


def _with_indices(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    function = getattr(F, name)

    def call(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        return function(x, *args, return_indices=True)

    return call


def _maxima(name: str) -> Callable[..., tuple[Tensor, None]]:
    """The maxima alone: there are no positions."""
    function = getattr(F, name)

    def call(x: Tensor, size: Any) -> tuple[Tensor, None]:
        return function(x, tuple(size)), None

    return call


for _axes in (1, 2):
    OPERATIONS[f"max_pool{_axes}d_with_indices"] = _with_indices(f"max_pool{_axes}d")
    OPERATIONS[f"adaptive_max_pool{_axes}d"] = _maxima(f"adaptive_max_pool{_axes}d")


@aten("max_unpool2d")
def _max_unpool2d(x: Tensor, indices: Tensor, size: Any) -> Tensor:
    # the window only says which sizes fit: it is what makes of x the size that is asked for
    steps = tuple(n // k for n, k in zip(size, x.shape[-2:]))
    return F.max_unpool2d(x, indices, steps, output_size=tuple(size))


@aten("im2col")
def _im2col(x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    return F.unfold(x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))


@aten("col2im")
def _col2im(x: Tensor, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    return F.fold(x, tuple(size), tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))


@aten("grid_sampler")
def _grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    names = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return F.grid_sample(x, grid, names[0][mode], names[1][padding], align_corners)


@aten("affine_grid_generator")
def _affine_grid(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    return F.affine_grid(theta, tuple(size), align_corners)


@aten("log_sigmoid")
def _log_sigmoid(x: Tensor) -> Tensor:
    return F.logsigmoid(x)


@aten("cross_entropy_loss")
def _cross_entropy(
    x: Tensor, target: Tensor, weight: Any = None, reduction: int = 1, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Tensor:  # fmt: skip
    return F.cross_entropy(x, target, weight, ignore_index, REDUCTIONS[reduction], label_smoothing)


@aten("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll_loss(x: Tensor, target: Tensor, weight: Any = None, reduction: int = 1, ignore_index: int = -100) -> Tensor:
    return F.nll_loss(x, target, weight, ignore_index, REDUCTIONS[reduction])
