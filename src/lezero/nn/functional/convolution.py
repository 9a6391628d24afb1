"""Linear layers and convolutions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from lezero.nn.functional.geometry import batched, per_dimension
from lezero.ops import matmul as products
from lezero.ops.conv import convolution
from lezero.runtime.recorder import record
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``; weight (out_features, in_features), or (in_features,) for one output without its axis."""
    if weight.ndim == 1:
        y = products.matmul(input, weight)
        return y if bias is None else y + bias
    return record(products.linear, (input, weight) if bias is None else (input, weight, bias), ())


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y[..., o] = sum over i, j of input1[..., i] weight[o, i, j] input2[..., j] + bias[o]``."""
    if weight.ndim != 3 or input1.shape[-1] != weight.shape[1] or input2.shape[-1] != weight.shape[2]:
        raise ValueError(
            f"bilinear: inputs (..., in1) and (..., in2) and a weight (out, in1, in2) are needed, got {tuple(input1.shape)}, "
            f"{tuple(input2.shape)} and {tuple(weight.shape)}"
        )
    out, in1, in2 = weight.shape
    # (..., in1) x (in1, out * in2) -> (..., out, in2), then contracted with input2
    rows = products.matmul(input1, weight.permute(1, 0, 2).reshape(in1, out * in2))
    rows = rows.reshape(*input1.shape[:-1], out, in2)
    y = products.matmul(rows, input2.unsqueeze(-1)).squeeze(-1)
    return y if bias is None else y + bias


def same_padding(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(before, after) of each dimension for an output as large as the input; an odd one is put after."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
    return tuple((t // 2, t - t // 2) for t in totals)


def conv_padding(
    name: str, padding: Any, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple:
    """The padding argument of a convolution as (before, after) of each dimension."""
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * len(kernel)
        if padding != "same":
            raise ValueError(f"{name}: padding is 'same', 'valid' or numbers, got {padding!r}")
        if any(s != 1 for s in stride):
            raise ValueError(f"{name}: padding='same' needs stride 1, got {stride}")
        return same_padding(tuple(int(k) for k in kernel), dilation)
    widths = per_dimension(name, "padding", padding, len(kernel))
    if min(widths) < 0:
        raise ValueError(f"{name}: padding is 0 or more, got {padding!r}")
    return tuple((p, p) for p in widths)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTuple = 1,
    padding: str | IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over (batch, channels, length) or (channels, length); weight (out, in / groups, kernel).

    bias : (out,)
    stride, padding, dilation : a number, or one a spatial dimension; padding may be "same" (with stride 1) or "valid"
    """
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTuple = 1,
    padding: str | IntOrTuple = 0,
    dilation: IntOrTuple = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over (batch, channels, height, width) or without batch; weight (out, in / groups, kernel height, width).

    bias : (out,)
    stride, padding, dilation : a number, or one a spatial dimension; padding may be "same" (with stride 1) or "valid"
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def _conv(
    n: int, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    kernel = tuple(weight.shape[2:]) if type(padding) is str else None
    try:
        attrs = _geometry(n, kernel, stride, padding, dilation, groups)
    except TypeError:  # lists cannot be remembered
        stride, padding, dilation = (tuple(v) if isinstance(v, list) else v for v in (stride, padding, dilation))
        attrs = _geometry(n, kernel, stride, padding, dilation, groups)
    added = False
    if x.ndim != n + 2:
        x, added = batched(f"conv{n}d", x, n + 2)
        if added and weight.ndim == n + 2:
            check_unbatched(f"conv{n}d", x, weight, int(weight.shape[1]) * groups)
    y = record(convolution, (x, weight) if bias is None else (x, weight, bias), attrs)
    return y.squeeze(0) if added else y


def check_unbatched(name: str, x: Tensor, weight: Tensor, channels: int) -> None:
    """Say how an input without batch was read if it does not fit: it may be a batch without channels."""
    if x.shape[1] == channels:
        return
    read = "(channels, length)" if x.ndim == 3 else "(channels, height, width)"
    raise ValueError(
        f"{name}: an input of shape {tuple(x.shape[1:])} was taken for {read} without batch, and a weight of shape "
        f"{tuple(weight.shape)} takes {channels} channels"
        + ("; for a batch of one channel, give x.unsqueeze(1)" if channels == 1 else "")
    )


@lru_cache(maxsize=4096)
def _geometry(n: int, kernel: tuple[int, ...] | None, stride: Any, padding: Any, dilation: Any, groups: int) -> tuple:
    """The operation's attributes, remembered: checking and spelling them out costs four times what recording does."""
    name = f"conv{n}d"
    strides, dilations = per_dimension(name, "stride", stride, n), per_dimension(name, "dilation", dilation, n)
    pads = conv_padding(name, padding, kernel or (1,) * n, strides, dilations)
    return convolution.bind({"stride": strides, "padding": pads, "dilation": dilations, "groups": groups})
