"""Arithmetic, comparisons, logic, activations and casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import lezero as lz
from lezero.graph.dtype import as_dtype
from lezero.nn import functional as F
from lezero.onnx.operators import narrow
from lezero.onnx.program import numpy_dtype
from lezero.onnx.registry import Context, dimension, has_tensor_type, on_device, on_host, operator
from lezero.tensor import Tensor, where

# -- one function of the package each ---------------------------------------------------------------------------------


def _plain(name: str, compute: Callable[..., Any], host: Callable[..., Any] | None = None, since: int = 1) -> None:
    @operator(name, since, on_host=host)
    def call(_: Context, *operands: Any) -> Any:
        return compute(*operands)


for _name, _compute in {
    "Acos": lz.acos, "Acosh": lz.acosh, "Asin": lz.asin, "Asinh": lz.asinh, "Atan": lz.atan, "Atanh": lz.atanh,
    "Ceil": lz.ceil, "Cos": lz.cos, "Cosh": lz.cosh, "Erf": lz.erf, "Exp": lz.exp, "Log": lz.log,
    "Reciprocal": lz.reciprocal, "Round": lz.round, "Sigmoid": lz.sigmoid, "Sin": lz.sin,
    "Sinh": lz.sinh, "Sqrt": lz.sqrt, "Tan": lz.tan, "Tanh": lz.tanh, "IsNaN": lz.isnan, "Softplus": F.softplus,
    "Softsign": F.softsign, "Mish": F.mish, "HardSwish": F.hardswish, "Relu": F.relu,
}.items():  # fmt: skip
    _plain(_name, _compute)

_plain("Abs", lz.abs, np.abs)
_plain("Neg", lz.neg, np.negative)
_plain("Floor", lz.floor, np.floor)
_plain("Sign", lz.sign, np.sign)
_plain("Identity", lambda x: x, lambda x: x)
_plain("Not", lz.logical_not, np.logical_not)
_plain("And", lz.logical_and, np.logical_and, 7)
_plain("Or", lz.logical_or, np.logical_or, 7)
_plain("Xor", lz.logical_xor, np.logical_xor, 7)
_plain("BitwiseAnd", lz.bitwise_and, np.bitwise_and)
_plain("BitwiseOr", lz.bitwise_or, np.bitwise_or)
_plain("BitwiseXor", lz.bitwise_xor, np.bitwise_xor)
_plain("BitwiseNot", lz.bitwise_not, np.bitwise_not)
_plain("Equal", lz.eq, lambda a, b: np.asarray(a == b), 7)
_plain("Greater", lz.gt, np.greater, 7)
_plain("GreaterOrEqual", lz.ge, np.greater_equal)
_plain("Less", lz.lt, np.less, 7)
_plain("LessOrEqual", lz.le, np.less_equal)
_plain("Where", where, lambda c, a, b: np.where(c.astype(bool), a, b))
_plain("Add", lz.add, np.add, 7)
_plain("Sub", lz.sub, np.subtract, 7)
_plain("Mul", lz.mul, np.multiply, 7)
_plain("Sum", lambda *xs: reduce(lz.add, xs))
_plain("Mean", lambda *xs: reduce(lz.add, xs) / len(xs))
_plain("Max", lambda *xs: reduce(lz.maximum, xs), lambda *xs: reduce(np.maximum, xs))
_plain("Min", lambda *xs: reduce(lz.minimum, xs), lambda *xs: reduce(np.minimum, xs))


def _old_broadcast(name: str, compute: Callable[..., Any]) -> None:
    """Up to version 6 an attribute says whether, and from which axis on, the second operand is repeated."""

    @operator(name, 1)
    def call(
        _: Context, a: Tensor, b: Tensor, *, broadcast: int = 0, axis: int | None = None, consumed_inputs: Any = None
    ):
        if broadcast and axis is not None:
            first = dimension(axis, a.ndim)
            b = b.reshape(*b.shape, *[1] * (a.ndim - first - b.ndim))
        return compute(a, b)


def _divided(a: Any, b: Any) -> Any:
    if a.dtype.is_floating_point or a.dtype.is_complex:
        return a / b
    if a.dtype.numpy.kind == "u":
        return lz.floor_divide(a, b)
    quotient = lz.floor_divide(lz.abs(a), lz.abs(b))
    return lz.where((a < 0) == (b < 0), quotient, -quotient)


def _divided_on_host(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero, as the standard has it for integers; extents and what divides them are positive."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = abs(a) // abs(b)
    return np.where((a < 0) == (b < 0), quotient, -quotient)


for _name, _compute in {
    "Add": lz.add, "Sub": lz.sub, "Mul": lz.mul, "Div": _divided, "And": lz.logical_and, "Or": lz.logical_or,
    "Xor": lz.logical_xor, "Equal": lz.eq, "Greater": lz.gt, "Less": lz.lt,
}.items():  # fmt: skip
    _old_broadcast(_name, _compute)
_plain("Div", _divided, _divided_on_host, 7)


@operator("Pow", 1)
def power(_: Context, a: Tensor, b: Tensor, *, broadcast: int = 0, axis: int | None = None) -> Tensor:
    if broadcast and axis is not None:
        b = b.reshape(*b.shape, *[1] * (a.ndim - dimension(axis, a.ndim) - b.ndim))
    result = lz.pow(a, b)
    return result if result.dtype is a.dtype else result.to(a.dtype)


@operator("Mod", on_host=lambda a, b, fmod=0: np.fmod(a, b) if fmod else np.mod(a, b))
def modulo(_: Context, a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return lz.fmod(a, b) if fmod else lz.remainder(a, b)


@operator("BitShift")
def bit_shift(_: Context, a: Tensor, b: Tensor, *, direction: str) -> Tensor:
    return lz.bitwise_left_shift(a, b) if direction == "LEFT" else lz.bitwise_right_shift(a, b)


@operator("IsInf")
def is_inf(_: Context, x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = lz.isinf(x)
    if not detect_negative:
        found = lz.logical_and(found, x > 0)
    if not detect_positive:
        found = lz.logical_and(found, x < 0)
    return found


@operator("Clip", 1)
def clip_1(
    _: Context, x: Tensor, *, min: float = -math.inf, max: float = math.inf, consumed_inputs: Any = None
) -> Tensor:
    return lz.clamp(x, min, max)


@operator("Clip", 11, fixed=(1, 2))
def clip(_: Context, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    # the upper bound wins where it is below the lower one
    if low is not None:
        x = lz.maximum(x, low)
    return x if high is None else lz.minimum(x, high)


# -- activations ------------------------------------------------------------------------------------------------------


@operator("LeakyRelu")
def leaky_relu(_: Context, x: Tensor, *, alpha: float = 0.01, consumed_inputs: Any = None) -> Tensor:
    return F.leaky_relu(x, alpha)


@operator("Elu")
def elu(_: Context, x: Tensor, *, alpha: float = 1.0, consumed_inputs: Any = None) -> Tensor:
    return F.elu(x, alpha)


@operator("Celu")
def celu(_: Context, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.celu(x, alpha)


@operator("Selu")
def selu(
    _: Context, x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875,
    consumed_inputs: Any = None,
) -> Tensor:  # fmt: skip
    return gamma * F.elu(x, alpha)


@operator("Gelu")
def gelu(_: Context, x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


@operator("HardSigmoid")
def hard_sigmoid(
    _: Context, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Any = None
) -> Tensor:
    return lz.clamp(alpha * x + beta, 0, 1)


@operator("PRelu", 1)
def prelu(_: Context, x: Tensor, slope: Tensor, *, consumed_inputs: Any = None) -> Tensor:
    return where(x < 0, x * slope, x)


@operator("ThresholdedRelu")
def thresholded_relu(_: Context, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return where(x > alpha, x, 0)


@operator("Shrink")
def shrink(_: Context, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return where(x < -lambd, x + bias, where(x > lambd, x - bias, 0)).to(x.dtype)


@operator("Swish")
def swish(_: Context, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * lz.sigmoid(alpha * x)


# -- casts ------------------------------------------------------------------------------------------------------------


@operator("Cast", host=True)
def cast(context: Context, x: Any, *, to: int | str, saturate: int = 1, round_mode: str = "up") -> Any:
    dtype = numpy_dtype(to) if isinstance(to, int) else np.dtype(_OLD_NAMES.get(to, to.lower()))
    return _cast(x, context.converted.get(dtype, dtype), bool(saturate), round_mode)


@operator("CastLike", host=True)
def cast_like(_: Context, x: Any, like: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    dtype = like.dtype.numpy if isinstance(like, Tensor) else like.dtype
    cast = _cast(x, dtype, bool(saturate), round_mode)
    return on_device(cast) if isinstance(like, Tensor) else cast


_OLD_NAMES = {"FLOAT": "float32", "DOUBLE": "float64", "STRING": "O"}
"""Names of types as version 1 of Cast has them, where they are not NumPy's in capitals."""


def _cast(x: Any, dtype: np.dtype, saturate: bool, round_mode: str) -> Any:
    if isinstance(x, Tensor) and has_tensor_type(dtype):
        return x.to(as_dtype(dtype))
    array = narrow.cast(x, dtype, saturate, round_mode)
    return array if isinstance(x, Tensor) or not narrow.is_narrow(x.dtype) else on_device(array)


@operator("BitCast", host=True)
def bit_cast(_: Context, x: Any, *, to: int) -> Any:
    """Taken at once: kernels have no such conversion."""
    return on_device(narrow.same_bits(on_host(x), numpy_dtype(to)))
