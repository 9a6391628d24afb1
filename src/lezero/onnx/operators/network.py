"""Matrix products, convolutions, pooling and normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, dimension, on_device, on_host, operator
from lezero.tensor import Tensor


@operator("MatMul")
def matmul(_: Context, a: Tensor, b: Tensor) -> Tensor:
    return lz.matmul(a, b)


@operator("Gemm")
def gemm(
    _: Context, a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, broadcast: int = 0,
) -> Tensor:  # fmt: skip
    a, b = a.t() if transA else a, b.t() if transB else b
    y = lz.matmul(a, b)
    if alpha != 1:
        y = (y * alpha).to(y.dtype)
    return y if c is None else y + (c if beta == 1 else (c * beta).to(c.dtype))


# -- sliding windows --------------------------------------------------------------------------------------------------


def window_pads(
    extents: list[int],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    pads: list[int] | None,
    auto_pad: str,
) -> list[tuple[int, int]]:
    """What is added before and after each axis."""
    n = len(kernel)
    if auto_pad in ("NOTSET", "VALID"):
        pads = [0] * 2 * n if pads is None or auto_pad == "VALID" else pads
        return list(zip(pads[:n], pads[n:]))
    out = []
    for extent, k, s, d in zip(extents, kernel, strides, dilations):
        whole = max(0, (-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent)
        less = whole // 2
        out.append((less, whole - less) if auto_pad == "SAME_UPPER" else (whole - less, less))
    return out


def padded(x: Tensor, pads: list[tuple[int, int]], value: float = 0.0) -> Tensor:
    if not any(a or b for a, b in pads):
        return x
    return F.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


def symmetric(x: Tensor, pads: list[tuple[int, int]], value: float = 0.0) -> tuple[Tensor, tuple[int, ...]]:
    """`x`, padded as far as the same amount before and after does not do, and that amount."""
    if all(a == b for a, b in pads):
        return x, tuple(a for a, _ in pads)
    return padded(x, pads, value), (0,) * len(pads)


_CONVOLUTIONS = {1: "conv1d", 2: "conv2d", 3: "conv3d"}


@operator("Conv")
def conv(
    _: Context, x: Tensor, w: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: list[int] | None = None,
    group: int = 1, kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    n = x.ndim - 2
    strides, dilations = strides or [1] * n, dilations or [1] * n
    kernel = list(w.shape[2:])
    around = window_pads(list(x.shape[2:]), kernel, strides, dilations, pads, auto_pad)
    x, padding = symmetric(x, around)
    convolve = getattr(F, _CONVOLUTIONS.get(n, ""), None)
    if convolve is None:
        raise OnnxError(f"convolutions over {n} axes are not supported")
    return convolve(x, w, bias, tuple(strides), padding, tuple(dilations), group)


# -- normalisation ----------------------------------------------------------------------------------------------------


@operator("BatchNormalization", 1, fixed=(3, 4))
def batch_normalization(
    ctx: Context, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5, momentum: float = 0.9,
    training_mode: int = 0, spatial: int = 1, is_test: int = 0, consumed_inputs: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Up to version 13 statistics among the results ask for those of the batch; the running ones are the second and third."""
    shape, dtype = tuple(x.shape), x.dtype
    x = x if dtype is scale.dtype else x.to(scale.dtype)
    if not spatial:  # statistics of each element
        x = lz.reshape(x, (shape[0], -1))
        scale, bias, mean, var = (lz.reshape(v, (-1,)) for v in (scale, bias, mean, var))
    batch = training_mode if ctx.version >= 14 else ctx.wanted(1)
    axes = tuple(k for k in range(x.ndim) if k != 1)
    seen = (lz.mean(x, dim=axes), lz.var(x, dim=axes, correction=0)) if batch else (mean.to(x.dtype), var.to(x.dtype))
    y = lz.reshape(F.batch_norm(x, *seen, scale, bias.to(x.dtype), False, 0.0, epsilon), shape).to(dtype)
    if not batch:
        return (y,)
    running = [old * momentum + new.to(old.dtype) * (1 - momentum) for old, new in zip((mean, var), seen)]
    return y, *running, *seen


@operator("Dropout", 1)
def dropout_1(ctx: Context, x: Tensor, *, ratio: float = 0.5, is_test: int = 0, consumed_inputs: Any = None) -> Any:
    return _dropped(x, ratio, ctx.training and not is_test)


@operator("Dropout", 12, host=True, fixed=(1, 2))
def dropout(ctx: Context, x: Any, ratio: Any = None, training_mode: Any = None, *, seed: int | None = None) -> Any:
    """A model that leaves `training_mode` to whoever runs it drops while its module is being trained."""
    share = 0.5 if ratio is None else float(np.reshape(on_host(ratio), -1)[0])
    active = ctx.training if training_mode is None else bool(np.reshape(on_host(training_mode), -1)[0])
    return _dropped(on_device(x), share, active)


def _dropped(x: Tensor, ratio: float, active: bool) -> tuple[Tensor, Tensor]:
    if not active or ratio == 0:
        return x, lz.ones(x.shape, dtype=lz.bool_)
    kept = lz.rand(tuple(x.shape)) >= ratio
    return x * kept.to(x.dtype) / (1 - ratio), kept


# -- over one axis ----------------------------------------------------------------------------------------------------


def _along(name: str, compute: Any) -> None:
    @operator(name, 1)
    def from_axis(_: Context, x: Tensor, *, axis: int = 1) -> Tensor:
        """Up to version 12: over all axes from one on."""
        axis = dimension(axis, x.ndim)
        rows = lz.reshape(x, (*x.shape[:axis], -1))
        return lz.reshape(compute(rows, -1), x.shape)

    @operator(name, 13)
    def of_axis(_: Context, x: Tensor, *, axis: int = -1) -> Tensor:
        return compute(x, axis)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    first = lz.argmax(x, dim=axis, keepdim=True)
    extents = [1] * x.ndim
    extents[axis] = x.shape[axis]
    return (lz.arange(x.shape[axis]).reshape(extents) == first).to(x.dtype)


_along("Softmax", F.softmax)
_along("LogSoftmax", F.log_softmax)
_along("Hardmax", _hardmax)
