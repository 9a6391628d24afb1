"""Pooling over adaptive and over random bins, with the positions of the maxima."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lezero.nn.functional.geometry import per_dimension
from lezero.nn.functional.pooling import _adaptive_max, _output_size
from lezero.nn.parameter import constant_tensor
from lezero.ops import pooling
from lezero.tensor import Tensor, arange, rand, where

IntOrTuple = int | tuple[int, ...]


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Means over `output_size` bins of (batch, channels, depth, height, width); None keeps an extent."""
    return pooling.adaptive_avg_pool(input, output=_output_size("adaptive_avg_pool3d", input, output_size, 3))


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over `output_size` bins of (batch, channels, length); on request with where they are."""
    return _adaptive(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over `output_size` bins of (batch, channels, height, width); on request with where they are."""
    return _adaptive(2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over `output_size` bins of (batch, channels, depth, height, width); on request with where they are."""
    return _adaptive(3, input, output_size, return_indices)


def adaptive_max_pool1d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> tuple[Tensor, Tensor]:
    """``adaptive_max_pool1d``, and where each maximum is"""
    return _adaptive(1, input, output_size, True)


def adaptive_max_pool2d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> tuple[Tensor, Tensor]:
    """``adaptive_max_pool2d``, and where each maximum is in the flattened height and width"""
    return _adaptive(2, input, output_size, True)


def adaptive_max_pool3d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> tuple[Tensor, Tensor]:
    """``adaptive_max_pool3d``, and where each maximum is in the flattened depth, height and width"""
    return _adaptive(3, input, output_size, True)


def _adaptive(n: int, x: Tensor, output_size: Any, indices: bool) -> Any:
    sizes = _output_size(f"adaptive_max_pool{n}d", x, output_size, n)
    y = _adaptive_max(x, sizes)  # which refuses what there are no bins of
    if not indices:
        return y
    extents = tuple(int(d) for d in x.shape[-n:])
    starts, widths = [], []
    for extent, bins in zip(extents, sizes):
        i = np.arange(int(bins))
        starts.append(constant_tensor(i * extent // bins))
        widths.append(-(-((i + 1) * extent) // bins) - i * extent // bins)
    lasts = [constant_tensor(w - 1) for w in widths]
    return y, _where_largest(x, starts, lasts, tuple(int(w.max()) for w in widths))


def _where_largest(x: Tensor, starts: list[Tensor], lasts: list[Tensor] | None, kernel: tuple[int, ...]) -> Tensor:
    """Where in the flattened last dimensions the largest element of each window is.

    Parameters
    ----------
    x : (*batch, *spatial)
    starts : for each spatial dimension where its windows begin, (windows,) or (*batch, windows)
    lasts : the last offset in each window, (windows,); those beyond read it again, which changes no maximum
    kernel : how many elements the largest windows have
    """
    n = len(kernel)
    spatial, batch = x.shape[-n:], x.shape[:-n]
    position: Any = 0
    for k, (start, size) in enumerate(zip(starts, kernel)):
        offset: Any = arange(size)
        if lasts is not None:
            offset = offset.minimum(lasts[k].unsqueeze(-1))
        along = start.unsqueeze(-1) + offset  # (..., windows, kernel)
        shape = [1] * (2 * n)
        shape[k], shape[n + k] = along.shape[-2], size
        position = position * spatial[k] + along.reshape(*along.shape[:-2], *shape)
    windows = tuple(s.shape[-1] for s in starts)
    taps = position.reshape(*position.shape[: -2 * n], *windows, prod(kernel))
    taps = taps.expand(*batch, *windows, prod(kernel))
    seen = x.detach().reshape(*batch, prod(spatial)).gather(-1, taps.flatten(len(batch))).reshape(taps.shape)
    return taps.gather(-1, seen.argmax(-1, keepdim=True)).squeeze(-1)


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: IntOrTuple,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The largest value in windows that begin at random distances (Graham 2014).

    Parameters
    ----------
    input : (batch, channels, height, width) or (channels, height, width)
    kernel_size : int or one a dimension
    output_size : how many windows, an int or one a dimension; or
    output_ratio : their number as a share of the extents, from 0 to 1
    return_indices : also return where each maximum is, in the flattened spatial dimensions
    """
    return _fractional(2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples)


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: IntOrTuple,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The same over (batch, channels, depth, height, width) or without batch."""
    return _fractional(3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples)


def fractional_max_pool2d_with_indices(
    input: Tensor,
    kernel_size: IntOrTuple,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``fractional_max_pool2d``, and where each maximum is"""
    return _fractional(2, input, kernel_size, output_size, output_ratio, True, _random_samples)


def fractional_max_pool3d_with_indices(
    input: Tensor,
    kernel_size: IntOrTuple,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``fractional_max_pool3d``, and where each maximum is"""
    return _fractional(3, input, kernel_size, output_size, output_ratio, True, _random_samples)


def window_counts(name: str, extents: tuple[int, ...], kernel: IntOrTuple, size: Any, ratio: Any) -> tuple[int, ...]:
    """How many windows there are in each dimension, by number or as a share of `extents`; all of them fit."""
    n = len(extents)
    if (size is None) == (ratio is None):
        raise ValueError(f"{name}: either output_size or output_ratio is needed")
    if size is None:
        ratios = tuple(ratio) if isinstance(ratio, (tuple, list)) else (ratio,) * n
        if len(ratios) != n or not all(0 < r < 1 for r in ratios):
            raise ValueError(f"{name}: output_ratio is one or {n} numbers between 0 and 1, got {ratio!r}")
        sizes = tuple(int(d * r) for d, r in zip(extents, ratios))
    else:
        sizes = per_dimension(name, "output_size", size, n)
    kernels = per_dimension(name, "kernel_size", kernel, n)
    if any(o < 1 or k < 1 or o + k - 1 > d for o, k, d in zip(sizes, kernels, extents)):
        raise ValueError(f"{name}: {sizes} windows of {kernels} elements do not fit in extents {extents}")
    return sizes


def _fractional(n: int, x: Tensor, kernel: Any, size: Any, ratio: Any, indices: bool, samples: Tensor | None) -> Any:
    name = f"fractional_max_pool{n}d"
    if x.ndim not in (n + 1, n + 2):
        raise ValueError(
            f"{name}: an input of {n + 2} dimensions (or {n + 1}, without a batch) is needed, got shape {tuple(x.shape)}"
        )
    extents, batch = tuple(int(d) for d in x.shape[-n:]), x.shape[:-n]
    counts = window_counts(name, extents, kernel, size, ratio)
    kernels = per_dimension(name, "kernel_size", kernel, n)
    leading = batch if len(batch) == 2 else (1, *batch)
    u = rand(*leading, n, dtype=x.dtype) if samples is None else samples
    if tuple(u.shape) != (*leading, n) or u.dtype is not x.dtype:
        raise ValueError(
            f"{name}: samples of shape {(*leading, n)} and dtype {x.dtype.name} are needed, got {u.dtype.name}{tuple(u.shape)}"
        )
    u = u.reshape(*batch, n)
    order = range(n) if n == 3 else reversed(range(n))  # PyTorch's: of images the width's number comes first
    geometry = zip(order, extents, counts, kernels)
    starts = [_starts(u.select(-1, k), extent, o, size) for k, extent, o, size in geometry]
    at = _where_largest(x, starts, None, kernels)
    y = x.reshape(*batch, prod(extents)).gather(-1, at.flatten(len(batch))).reshape(at.shape)
    return (y, at) if indices else y


def _starts(u: Tensor, extent: int, count: int, kernel: int) -> Tensor:
    """(*batch, count): where windows begin, for one random number each; the last ends with the data."""
    free = extent - kernel
    step = free / (count - 1) if count > 1 else 0.0
    i = arange(count)
    at = ((i + u.unsqueeze(-1)) * step).long() - (u.unsqueeze(-1) * step).long()
    return where(i == count - 1, free, at)
