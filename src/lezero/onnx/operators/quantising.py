"""Quantisation: y = round(x / scale) + zero point, and products of such integers.

Products are computed in floating point wide enough that every sum is an exact integer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.graph.dtype import as_dtype
from lezero.onnx.operators import narrow
from lezero.onnx.program import OnnxError, numpy_dtype
from lezero.onnx.registry import Context, dimension, find, on_device, operator
from lezero.tensor import Tensor

_FLOAT32 = 1 << 24
"""Integers up to here are float32 numbers."""


def spread(scale: Any, x: Any, axis: int, block_size: int = 0) -> Any:
    """Scales or zero points, of which there is one, or one for each position or block along an axis, for all of `x`."""
    if scale is None:
        return None
    if block_size:
        axis = dimension(axis, x.ndim)
        if scale.ndim != x.ndim or scale.shape[axis] != -(-x.shape[axis] // block_size):
            raise OnnxError(f"scales of shape {list(scale.shape)} do not fit blocks of {block_size} in {list(x.shape)}")
        return lz.repeat_interleave(scale, block_size, dim=axis).narrow(axis, 0, x.shape[axis])
    if int(np.prod([int(d) for d in scale.shape])) == 1:
        return scale.reshape(())
    if scale.ndim != 1:
        return scale
    return scale.reshape([-1 if k == dimension(axis, x.ndim) else 1 for k in range(x.ndim)])


def widened(x: Any) -> Tensor:
    """Elements of a narrow type as float32, others as they are."""
    return x if isinstance(x, Tensor) else on_device(x.astype(np.float32))


def rounded_to(y: Tensor, zero: Tensor | None, dtype: np.dtype, saturate: bool = True) -> Any:
    """Quotients as elements of a quantised type."""
    if dtype in narrow.FLOAT8 or dtype == narrow.FLOAT4:
        return narrow.cast(y if zero is None else y + zero, dtype, saturate)
    y = lz.round(y.float() if y.dtype in (lz.float16, lz.bfloat16) else y)
    if zero is not None:
        y = y + zero.to(y.dtype)
    if dtype in narrow.BITS:
        bits, signed = narrow.BITS[dtype], not dtype.name.startswith("u")
        y = lz.clamp(y, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)
        return y.to(lz.int8 if signed else lz.uint8).numpy().astype(dtype)
    info = np.iinfo(dtype)
    return lz.clamp(y, int(info.min), int(info.max)).to(as_dtype(dtype))


@operator("QuantizeLinear", 10, fixed=(1, 2))
def quantize_linear(
    _: Context, x: Tensor, scale: Tensor, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    precision: int = 0, saturate: int = 1,
) -> Any:  # fmt: skip
    if zero is not None:
        dtype = zero.dtype.numpy if isinstance(zero, Tensor) else zero.dtype
    else:
        dtype = numpy_dtype(output_dtype) if output_dtype else np.dtype(np.uint8)
    quotient_type = as_dtype(numpy_dtype(precision)) if precision else scale.dtype
    s, z = (spread(v, x, axis, block_size) for v in (widened(scale), None if zero is None else widened(zero)))
    return rounded_to(x.to(quotient_type) / s.to(quotient_type), z, dtype, bool(saturate))


@operator("DequantizeLinear", 10, fixed=(1, 2))
def dequantize_linear(
    _: Context, x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
    result = scale.dtype if isinstance(scale, Tensor) else lz.float32
    if output_dtype:
        result = as_dtype(numpy_dtype(output_dtype))
    x = widened(x)
    s, z = (spread(v, x, axis, block_size) for v in (widened(scale), None if zero is None else widened(zero)))
    return from_zero(x, z).to(result) * s.to(result)


@operator("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(_: Context, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = lz.clamp(lz.amin(x), max=0), lz.clamp(lz.amax(x), min=0)
    scale = (high - low) / 255
    scale = lz.where(scale == 0, 1.0, scale)
    zero = lz.round(lz.clamp(-low / scale, 0, 255))
    y = lz.clamp(lz.round(x / scale) + zero, 0, 255)
    return y.to(lz.uint8), scale, zero.to(lz.uint8)


# -- products ---------------------------------------------------------------------------------------------------------


def from_zero(x: Tensor, zero: Tensor | None) -> Tensor:
    """Differences from the zero point; of 16 bits more than `x` has, where these are integers."""
    if zero is None:
        return x
    if x.dtype.is_floating_point:
        return x - zero
    return x.to(lz.int32) - zero.to(lz.int32)


def exact(a: Tensor, b: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Two operands of a product in a floating type in which sums of `terms` products are exact.

    Differences of 8-bit integers are less than 256 in size.
    """
    dtype = lz.float32 if terms * 255 * 255 < _FLOAT32 else lz.float64
    return a.to(dtype), b.to(dtype)


def _rows(zero: Any, x: Tensor) -> Any:
    """One number for each row, as a column."""
    if zero is None or zero.ndim != 1 or zero.shape[0] == 1:
        return zero
    return zero.reshape(-1, 1) if x.ndim > 1 else zero


def integer_product(a: Tensor, b: Tensor, za: Tensor | None = None, zb: Tensor | None = None) -> Tensor:
    """int32 sums of products of differences from the zero points."""
    a, b = exact(from_zero(a, _rows(za, a)), from_zero(b, zb), int(a.shape[-1]))
    return lz.matmul(a, b).to(lz.int32)


@operator("MatMulInteger", 10)
def matmul_integer(_: Context, a: Tensor, b: Tensor, za: Tensor | None = None, zb: Tensor | None = None) -> Tensor:
    return integer_product(a, b, za, zb)


@operator("QLinearMatMul", 10, fixed=(1, 4, 6))
def qlinear_matmul(
    _: Context, a: Tensor, sa: Tensor, za: Tensor, b: Tensor, sb: Tensor, zb: Tensor, sy: Tensor, zy: Tensor
) -> Tensor:
    y = integer_product(a, b, za, zb)
    scale = _rows(sa, a) * sb.float() / sy.float()
    return rounded_to(y.float() * scale, zy, zy.dtype.numpy)


def integer_convolution(
    ctx: Context, x: Tensor, w: Tensor, zx: Tensor | None, zw: Tensor | None, attributes: dict[str, Any]
) -> Tensor:
    """int32 sums; positions beyond the border count as zero points."""
    terms = int(np.prod([int(d) for d in w.shape[1:]]))
    a, b = exact(from_zero(x, zx), from_zero(w, spread(zw, w, 0)), terms)
    return standard(ctx, "Conv", a, b, None, **attributes).to(lz.int32)


@operator("ConvInteger", 10)
def conv_integer(
    ctx: Context, x: Tensor, w: Tensor, zx: Tensor | None = None, zw: Tensor | None = None, **attributes: Any
) -> Tensor:
    return integer_convolution(ctx, x, w, zx, zw, attributes)


@operator("QLinearConv", 10, fixed=(1, 4, 6))
def qlinear_conv(
    ctx: Context, x: Tensor, sx: Tensor, zx: Tensor, w: Tensor, sw: Tensor, zw: Tensor, sy: Tensor, zy: Tensor,
    bias: Tensor | None = None, **attributes: Any,
) -> Tensor:  # fmt: skip
    y = integer_convolution(ctx, x, w, zx, zw, attributes)
    if bias is not None:
        y = y + spread(bias, y, 1)
    return rounded_to(y.float() * spread(sx * sw / sy, y, 1), zy, zy.dtype.numpy)


def standard(ctx: Context, name: str, *operands: Any, **attributes: Any) -> Any:
    """What the newest version of an operator of the standard gives."""
    found = find("", name, 1 << 30)
    assert found is not None, name
    return found.compute(ctx, *operands, **attributes)
