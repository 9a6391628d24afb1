"""Pooling by power means, and values put back where maxima were."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from lezero.nn.functional.geometry import per_dimension
from lezero.nn.functional.pooling import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from lezero.nn.functional.volumes import avg_pool3d, max_pool3d
from lezero.tensor import Tensor, zeros

IntOrTuple = int | tuple[int, ...]


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: IntOrTuple, stride: IntOrTuple | None = None, ceil_mode: bool = False
) -> Tensor:
    """``(sum of x ** norm_type) ** (1 / norm_type)`` of each window over (batch, channels, length).

    `kernel_size` and `stride` are a number, or one a spatial dimension; the stride is the kernel's size unless given.  `ceil_mode` keeps
    a last window that reaches over the end.
    """
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: IntOrTuple, stride: IntOrTuple | None = None, ceil_mode: bool = False
) -> Tensor:
    """The same of each window over (batch, channels, height, width)."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: IntOrTuple, stride: IntOrTuple | None = None, ceil_mode: bool = False
) -> Tensor:
    """The same of each window over (batch, channels, depth, height, width)."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


def _lp_pool(n: int, x: Tensor, p: float, kernel: Any, stride: Any, ceil_mode: bool) -> Tensor:
    mean, largest = ((avg_pool1d, max_pool1d), (avg_pool2d, max_pool2d), (avg_pool3d, max_pool3d))[n - 1]
    if p == inf:
        return largest(x.abs(), kernel, stride, ceil_mode=ceil_mode)
    if p == -inf:
        return -largest(-x.abs(), kernel, stride, ceil_mode=ceil_mode)
    out = mean(x**p, kernel, stride, ceil_mode=ceil_mode)
    size = prod(per_dimension(f"lp_pool{n}d", "kernel_size", kernel, n))
    return (out.sign() * out.abs() * size) ** (1.0 / p)


def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Zeros with the input at `indices`, which ``max_pool1d(…, return_indices=True)`` gave.

    Parameters
    ----------
    input, indices : (batch, channels, windows) or (channels, windows)
    kernel_size, stride, padding : those of the pooling
    output_size : the extents before it, as several may lead to the same windows; the smallest unless given
    """
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The same for two dimensions, whose positions are counted together."""
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The same for three dimensions, whose positions are counted together."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


def _max_unpool(n: int, x: Tensor, indices: Tensor, kernel: Any, stride: Any, padding: Any, output: Any) -> Tensor:
    name = f"max_unpool{n}d"
    if x.ndim not in (n + 1, n + 2) or tuple(indices.shape) != tuple(x.shape):
        raise ValueError(
            f"{name}: an input of {n + 2} dimensions (or {n + 1}, without a batch) and indices of its shape are needed, got "
            f"{tuple(x.shape)} and {tuple(indices.shape)}"
        )
    kernels = per_dimension(name, "kernel_size", kernel, n)
    strides = kernels if stride is None or stride == () else per_dimension(name, "stride", stride, n)
    pads = per_dimension(name, "padding", padding, n)
    lead, windows = x.shape[:-n], x.shape[-n:]
    usual = tuple((w - 1) * s - 2 * p + k for w, s, p, k in zip(windows, strides, pads, kernels))
    sizes = usual if output is None else tuple(output)[-n:]
    if len(sizes) != n or any(abs(size - u) >= s for size, u, s in zip(sizes, usual, strides)):
        raise ValueError(f"{name}: output_size is {usual}, give or take less than a stride {strides}; got {output}")
    flat = zeros(*lead, prod(sizes), dtype=x.dtype)
    flat_shape = (*lead, prod(windows))
    return flat.scatter(-1, indices.reshape(flat_shape), x.reshape(flat_shape)).reshape(*lead, *sizes)
