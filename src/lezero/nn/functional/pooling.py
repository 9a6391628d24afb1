"""Pooling over windows and over adaptive bins."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from lezero.graph.dim import Dim
from lezero.nn.functional.geometry import per_dimension
from lezero.ops import pooling
from lezero.ops.movement import concatenate
from lezero.runtime.recorder import record
from lezero.runtime.whole import WHOLE
from lezero.tensor import Tensor, arange, where

IntOrTuple = int | tuple[int, ...]


def _spatial(name: str, x: Tensor, n: int) -> None:
    if x.ndim not in (n + 1, n + 2):
        raise ValueError(
            f"{name}: an input (batch, channels, {'*' * n}) or without batch is needed, got shape {tuple(x.shape)}"
        )
    if any(type(d) is int and d == 0 for d in x.shape[-n - 1 :]):
        raise ValueError(f"{name}: only the batch may be empty, got shape {tuple(x.shape)}")


def is_empty(stride: Any) -> bool:
    """No stride given, as PyTorch's functions write it."""
    return isinstance(stride, tuple) and not stride


def _spelt_out(n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> dict[str, Any]:
    name = f"max_pool{n}d"
    sizes = per_dimension(name, "kernel_size", kernel, n)
    return {
        "kernel": sizes,
        "stride": sizes if stride is None or is_empty(stride) else per_dimension(name, "stride", stride, n),
        "padding": per_dimension(name, "padding", padding, n),
        "dilation": per_dimension(name, "dilation", dilation, n),
        "ceil_mode": bool(ceil_mode),
    }


@lru_cache(maxsize=4096)
def _windows(*windows: Any) -> dict[str, Any]:
    """Numbers only: an extent equals its number, and is a symbol of one recording."""
    named = _spelt_out(*windows)
    return {k: v if k == "ceil_mode" else tuple(map(int, v)) for k, v in named.items()}


@lru_cache(maxsize=4096)
def _max_pool_attrs(*windows: Any) -> tuple:
    """The operation's attributes, remembered: checking and spelling them out costs four times what recording does."""
    return pooling.max_pool.bind(_windows(*windows))


def _max_pool(n: int, x: Tensor, *windows: Any, indices: bool) -> Any:
    if x.ndim not in (n + 1, n + 2) or 0 in x.shape[-n - 1 :]:
        _spatial(f"max_pool{n}d", x, n)
    windows = tuple(tuple(w) if type(w) is list else w for w in windows)
    attrs = pooling.max_pool.bind(_spelt_out(n, *windows)) if WHOLE.parts else _max_pool_attrs(n, *windows)
    y = record(pooling.max_pool, (x,), attrs)
    if not indices:
        return y
    named = _windows(n, *windows)
    return y, _flat_positions(pooling.max_pool_index(x, **named), x, named)


def _flat_positions(taps: Tensor, x: Tensor, windows: dict[str, Any]) -> Tensor:
    """Window taps as positions in the flattened spatial dimensions, which is what PyTorch returns."""
    from lezero.tensor import arange

    n = len(windows["kernel"])
    position: Any = 0
    for k in range(n):
        after = 1
        for size in windows["kernel"][k + 1 :]:
            after *= size
        tap = (taps // after) % windows["kernel"][k]
        shape = [1] * taps.ndim
        shape[taps.ndim - n + k] = int(taps.shape[taps.ndim - n + k])
        start = arange(shape[taps.ndim - n + k]).reshape(*shape) * windows["stride"][k] - windows["padding"][k]
        position = position * x.shape[x.ndim - n + k] + (start + tap * windows["dilation"][k])
    return position


def max_pool1d(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value in each window over (batch, channels, length); `stride` is the kernel's size unless given.

    Further parameters are those of :class:`~lezero.nn.MaxPool1d`.
    """
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, indices=return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value in each window over (batch, channels, height, width).

    Further parameters are those of :class:`~lezero.nn.MaxPool2d`.
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, indices=return_indices)


def _avg_pool(
    n: int, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include: bool, divisor: int | None
) -> Tensor:
    name = f"avg_pool{n}d"
    _spatial(name, x, n)
    kernel = per_dimension(name, "kernel_size", kernel, n)
    stride = kernel if stride is None or is_empty(stride) else per_dimension(name, "stride", stride, n)
    whole = x.dtype.kind in "iu"
    means = pooling.avg_pool(
        x.double() if whole else x,
        kernel=kernel,
        stride=stride,
        padding=per_dimension(name, "padding", padding, n),
        ceil_mode=ceil_mode,
        count_include_pad=include,
        divisor_override=divisor,
    )
    return means.to(x.dtype) if whole else means


def avg_pool1d(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over (batch, channels, length).

    Further parameters are those of :class:`~lezero.nn.AvgPool1d`.
    """
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over (batch, channels, height, width).

    Further parameters are those of :class:`~lezero.nn.AvgPool2d`.
    """
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _output_size(name: str, x: Tensor, size: Any, n: int) -> tuple[int, ...]:
    """None stands for the input's own extent."""
    _spatial(name, x, n)
    sizes = (size,) * n if isinstance(size, int) or size is None else tuple(size)
    if len(sizes) != n:
        raise ValueError(f"{name}: output_size is one or {n} ints (or None), got {size!r}")
    return tuple(x.shape[x.ndim - n + i] if s is None else s for i, s in enumerate(sizes))


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Means over `output_size` bins of (batch, channels, length)."""
    return pooling.adaptive_avg_pool(input, output=_output_size("adaptive_avg_pool1d", input, output_size, 1))


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means over `output_size` bins of (batch, channels, height, width)."""
    return pooling.adaptive_avg_pool(input, output=_output_size("adaptive_avg_pool2d", input, output_size, 2))


def _adaptive_max(x: Tensor, output: tuple[int, ...]) -> Tensor:
    n = len(output)
    extents = x.shape[x.ndim - n :]
    if any(o < 1 for o in output) or any(d < 1 for d in extents):
        raise ValueError(
            f"adaptive_max_pool{n}d: {tuple(x.shape)} cannot be pooled to {output}; both have to be 1 or more"
        )
    if WHOLE.parts and any(type(d) is Dim for d in extents):
        return _max_of_bins(x, output)
    if all(d % o == 0 for d, o in zip(extents, output)):
        kernel = tuple(int(d // o) for d, o in zip(extents, output))
        return _max_pool(n, x, kernel, None, 0, 1, False, indices=False)
    # Bins of unequal size, one dimension after the other, the last first (see ``_apart`` in ops/pooling.py).
    for k, bins in reversed(list(enumerate(output))):
        axis, extent = x.ndim - n + k, int(extents[k])
        starts = [i * extent // bins for i in range(bins)]
        stops = [-(-(i + 1) * extent // bins) for i in range(bins)]
        x = concatenate(*(_max_along(x.narrow(axis, a, b - a), n, k) for a, b in zip(starts, stops)), axis=axis)
    return x


def _max_of_bins(x: Tensor, output: tuple[int, ...]) -> Tensor:
    """The form for any extents, where a file is written: whether they divide is not known."""
    for axis, bins in zip(range(x.ndim - len(output), x.ndim), output):
        n = x.shape[axis]
        i, after = arange(bins).unsqueeze(-1), (1,) * (x.ndim - 1 - axis)
        inside = (arange(n) >= i * n // bins) & (arange(n) < ((i + 1) * n + bins - 1) // bins)
        seen = where(inside.reshape(bins, n, *after), x.unsqueeze(axis), pooling._lowest(x.dtype))
        x = seen._cast(x.dtype).amax(axis + 1)
    return x


def _max_along(x: Tensor, n: int, k: int) -> Tensor:
    """The maximum along the k-th of n spatial dimensions, by the rules of pooling for equal maxima and NaN."""
    kernel = tuple(int(d) if j == k else 1 for j, d in enumerate(x.shape[x.ndim - n :]))
    return _max_pool(n, x, kernel, None, 0, 1, False, indices=False)
