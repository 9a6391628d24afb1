"""Sources: values that come from nothing but their attributes.

The rule ``element(i, shape_, dtype_, *inputs, **attrs)`` gives, in loop IR, the value at output position `i` (a tuple of
i64 Values); ``reference`` gives the whole array.  The underscored names are the inferred ones, so that they do not clash with
attributes of the same name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lezero.graph.dim import Dim
from lezero.graph.dtype import DType, float32, int64, number_dtype
from lezero.loops.ir import Value, call, cast, const
from lezero.ops.base import Source, op


def computed(x: Value, dtype: DType) -> Value:
    """A Value in the type that computes for `dtype` (float32 for the half-precision ones)."""
    return cast(x, compute_code(dtype))


def compute_code(dtype: DType) -> str:
    return "f32" if dtype.code in ("f16", "bf16") else dtype.code


def as_index(x: int | Value) -> Value:
    """An extent as an i64 Value, whether it is a number or already one."""
    return x if isinstance(x, Value) else const(int(x))


@op("constant", onnx="Constant")
class constant(Source):
    """A Python number, 0-d.  Used as an operand it only counts by its category (bool < integer < floating < complex).

    Parameters
    ----------
    value : bool, int (also a symbolic extent), float or complex
    """

    attrs = {"value": 0}
    shape_attrs = True

    def infer(value):
        return (), number_dtype(value)

    def reference(shape_, dtype_, value):
        return np.asarray(value, dtype_.numpy)

    def element(i, shape_, dtype_, value):
        return value if isinstance(value, Value) else const(value, compute_code(dtype_))


@op("full", onnx="ConstantOfShape")
class full(Source):
    """One number everywhere.

    Parameters
    ----------
    shape : tuple of int
    value : number
    dtype : DType
    """

    attrs = {"shape": (), "value": 0, "dtype": float32}
    shape_attrs = True

    def infer(shape, value, dtype):
        if not all(d >= 0 for d in shape):
            raise ValueError(f"full: extents must not be negative, got {shape}")
        return shape, dtype

    def reference(shape_, dtype_, shape, value, dtype):
        return np.full(shape_, value, dtype_.numpy)

    def element(i, shape_, dtype_, shape, value, dtype):
        return computed(value, dtype_) if isinstance(value, Value) else const(value, compute_code(dtype_))


@op("arange", onnx="Range")
class arange(Source):
    """``start + k * step`` for k = 0, 1, …, as long as it is before `stop`.

    Parameters
    ----------
    start, stop, step : int or float; step not 0
    dtype : DType
        Integer ranges are computed in int64, others in float64, then rounded to `dtype`.
    """

    attrs = {"start": 0, "stop": 0, "step": 1, "dtype": int64}
    shape_attrs = True

    def infer(start, stop, step, dtype):
        if step == 0:
            raise ValueError("arange: step must not be 0")
        if all(isinstance(v, int) for v in (start, stop, step)):
            n = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
        else:
            n = math.ceil((float(stop) - float(start)) / float(step))
        return (n if n > 0 else 0,), dtype

    def reference(shape_, dtype_, start, stop, step, dtype):
        (n,) = shape_
        exact = np.int64 if isinstance(start, int) and isinstance(step, int) else np.float64
        return (start + np.arange(n, dtype=exact) * step).astype(dtype_.numpy)

    def element(i, shape_, dtype_, start, stop, step, dtype):
        def number(v: Any, code: str) -> Value:
            return cast(v, code) if isinstance(v, Value) else const(v, code)

        code = "f64" if isinstance(start, float) or isinstance(step, float) else "i64"
        return computed(call("add", number(start, code), call("mul", cast(i[0], code), number(step, code))), dtype_)


@op("linspace")
class linspace(Source):
    """`steps` numbers from `start` to `stop`, both included, equally far apart.

    Counted from the nearer end, so that both ends are exact.

    Parameters
    ----------
    start, stop : float
    steps : int
    dtype : floating DType
    """

    attrs = {"start": 0.0, "stop": 1.0, "steps": 100, "dtype": float32}
    shape_attrs = True

    def infer(start, stop, steps, dtype):
        if steps < 0:
            raise ValueError(f"linspace: steps must not be negative, got {steps}")
        return (steps,), dtype

    def reference(shape_, dtype_, start, stop, steps, dtype):
        (n,) = shape_
        k = np.arange(n, dtype=np.float64)
        step = (stop - start) / max(n - 1, 1)
        return np.where(k < n // 2, start + step * k, stop - step * (n - 1 - k) if n > 1 else start).astype(
            dtype_.numpy
        )

    def element(i, shape_, dtype_, start, stop, steps, dtype):
        n = as_index(shape_[0])
        last = call("sub", n, const(1))
        gaps = cast(call("max", last, const(1)), "f64")
        first, end = const(start, "f64"), const(stop, "f64")
        step = call("div", const(stop - start, "f64"), gaps)
        up = call("add", first, call("mul", step, cast(i[0], "f64")))
        down = call("sub", end, call("mul", step, cast(call("sub", last, i[0]), "f64")))
        lower = call("or", call("lt", i[0], call("floordiv", n, const(2))), call("eq", last, const(0)))
        return computed(call("where", lower, up, down), dtype_)


@op("eye", onnx="EyeLike")
class eye(Source):
    """Ones on the main diagonal, zeros elsewhere: shape (n, m)."""

    attrs = {"n": 0, "m": 0, "dtype": float32}
    shape_attrs = True

    def infer(n, m, dtype):
        return (n, m), dtype

    def reference(shape_, dtype_, n, m, dtype):
        return np.eye(*shape_, dtype=dtype_.numpy)

    def element(i, shape_, dtype_, n, m, dtype):
        code = compute_code(dtype_)
        return call("where", call("eq", i[0], i[1]), const(1, code), const(0, code))


def filled(x: Any, value: Any, shape: tuple[int, ...] | None = None) -> Any:
    """An operand of x's dtype and (unless given) shape with one number everywhere."""
    return full(shape=tuple(x.shape) if shape is None else shape, value=value, dtype=x.dtype, like=x)


def zeros_like(x: Any) -> Any:
    """Zeros in the shape and dtype of an operand: the gradient of what is constant almost everywhere."""
    return filled(x, 0)


def number_of(x: Any, value: int | float) -> Any:
    """A number to compute with beside `x`; one that depends on symbolic extents becomes a node that remembers it."""
    return constant(value=value, like=x) if isinstance(value, Dim) else value
