"""Arithmetic: operators, rounding, extremes, and the operations that only pass a value on."""

from __future__ import annotations

from typing import Any

import numpy as np

from lezero.graph.dtype import bool_, float32
from lezero.loops.ir import Value, call, const
from lezero.loops.ir import cast as convert
from lezero.ops.base import Elementwise, op
from lezero.ops.comparison import where
from lezero.ops.complexes import real
from lezero.ops.creation import zeros_like
from lezero.ops.rules import conj as conjugate
from lezero.ops.rules import rounded_once


class NotOfBools(Elementwise):
    """Operations that have no meaning for bools."""

    def infer_nodes(self, nodes: tuple, attrs: tuple):
        shape, dtype = super().infer_nodes(nodes, attrs)
        if dtype is bool_:
            raise TypeError(
                f"{self.name}: bool operands are not supported; use logical_xor, logical_not, or cast to integers"
            )
        return shape, dtype


# -- passing on --------------------------------------------------------------------------------------------------


@op("identity", onnx="Identity")
class identity(Elementwise):
    """x."""

    def element(x):
        return x

    def reference(x):
        return x

    def gradient(dy, y, x):
        return dy


@op("variable", onnx="Identity")
class variable(Elementwise):
    """x, as a value of its own: where a gradient is asked for, the walk ends here."""

    begins = True

    def element(x):
        return x

    def reference(x):
        return x

    def gradient(dy, y, x):
        return dy


@op("detach", onnx="Identity")
class detach(Elementwise):
    """x, through which no gradient passes."""

    differentiable = False

    def element(x):
        return x

    def reference(x):
        return x

    def gradient(dy, y, x):
        return None


@op("cast", onnx="Cast")
class cast(Elementwise):
    """x in another dtype.  Floats to integers truncate, anything to bool is ``!= 0``, complex to real drops the imaginary part.

    Parameters
    ----------
    dtype : DType
    """

    attrs = {"dtype": float32}

    def infer(x, dtype):
        return x.shape, dtype

    def element(x, dtype):
        if x.type[0] == "c" and not dtype.is_complex:
            if dtype is bool_:
                return call("ne", x, const(0, x.type))
            x = call("real", x)
        return convert(x, dtype.code)

    def reference(x, dtype):
        if np.iscomplexobj(x) and not dtype.is_complex:
            x = x != 0 if dtype is bool_ else x.real
        return x.astype(dtype.numpy)

    def gradient(dy, y, x, dtype):
        return dy if dtype.differentiable and x.dtype.differentiable else None


# -- operators ---------------------------------------------------------------------------------------------------


def _of_bools(kind: str, on_bools: str, a: Value, b: Value) -> Value:
    """Arithmetic on bools stays in bools: + and max are "or", * and min are "and"."""
    return call(on_bools if a.type == "bool" else kind, a, b)


@op("add", onnx="Add")
class add(Elementwise):
    """a + b."""

    def element(a, b):
        return _of_bools("add", "or", a, b)

    def reference(a, b):
        return a + b

    def gradient(dy, y, a, b):
        return dy, dy


@op("sub", onnx="Sub")
class sub(NotOfBools):
    """a - b."""

    def element(a, b):
        return call("sub", a, b)

    def reference(a, b):
        return a - b

    def gradient(dy, y, a, b):
        return dy, -dy


@op("mul", onnx="Mul")
class mul(Elementwise):
    """a * b."""

    keeps = ("a", "b")

    def element(a, b):
        return _of_bools("mul", "and", a, b)

    def reference(a, b):
        return a * b

    def gradient(dy, y, a, b):
        return dy * conjugate(b), dy * conjugate(a)


@op("div", onnx="Div")
class div(Elementwise):
    """a / b; integers are divided as floats."""

    domain = "float"
    keeps = ("b", "y")

    def element(a, b):
        return call("div", a, b)

    def reference(a, b):
        return a / b

    def gradient(dy, y, a, b):
        return dy / conjugate(b), -dy * conjugate(y / b)


@op("floor_divide")
class floor_divide(NotOfBools):
    """a / b rounded to minus infinity, in the operands' common dtype.  Without a gradient."""

    differentiable = False

    def element(a, b):
        return call("floordiv", a, b)

    def reference(a, b):
        return np.floor_divide(a, b)

    def gradient(dy, y, a, b):
        return None, None


@op("remainder", onnx="Mod")
class remainder(NotOfBools):
    """a - b * floor(a / b): the sign of b, as Python's %."""

    keeps = ("a", "b")

    def element(a, b):
        return call("mod", a, b)

    def reference(a, b):
        return np.remainder(a, b)

    def gradient(dy, y, a, b):
        return dy, -dy * floor_divide(a, b)


@op("fmod")
class fmod(NotOfBools):
    """a - b * trunc(a / b): the sign of a, as C's fmod."""

    keeps = ("a", "b")

    def element(a, b):
        return call("fmod", a, b)

    def reference(a, b):
        return np.fmod(a, b)

    def gradient(dy, y, a, b):
        return dy, -dy * trunc(a / b)


@op("pow", onnx="Pow")
class pow(Elementwise):
    """a ** b.

    The gradient with respect to `a` is 0 where b is 0, and that with respect to `b` is 0 where a is 0 and b is not negative
    (as in PyTorch), so that neither is NaN by way of 0 * log(0).  A negative base has no gradient with respect to the exponent.
    """

    keeps = ("a", "b", "y")

    def element(a, b):
        return call("pow", a, b)

    def reference(a, b):
        return np.power(a, b)

    def gradient(dy, y, a, b):
        from lezero.ops.complexes import imag, real
        from lezero.ops.functions import log

        da = where(b == 0, 0, dy * conjugate(b * a ** (b - 1)))
        not_negative = (real(b) >= 0) & (imag(b) == 0) if b.dtype.is_complex else b >= 0
        exponent_counts = (a == 0) & not_negative
        db = where(exponent_counts, 0, dy * conjugate(y * log(where(exponent_counts, 1, a))))
        return da, db


@op("integer_power")
class integer_power(Elementwise):
    """x to a fixed small power, by repeated squaring.

    Parameters
    ----------
    exponent : int, at least 0
    """

    attrs = {"exponent": 2}
    keeps = ("x",)

    @rounded_once
    def decompose(x, exponent):
        if exponent == 0:
            return zeros_like(x) + 1
        power, square_, rest = None, x, exponent
        while True:
            if rest & 1:
                power = square_ if power is None else power * square_
            rest >>= 1
            if not rest:
                return identity(power) if exponent == 1 else power
            square_ = square_ * square_

    def reference(x, exponent):
        return x**exponent

    def gradient(dy, y, x, exponent):
        if exponent == 0:
            return zeros_like(x)
        if exponent == 1:
            return dy
        return dy * conjugate(exponent * (x if exponent == 2 else integer_power(x, exponent=exponent - 1)))


@op("neg", onnx="Neg")
class neg(NotOfBools):
    """-x."""

    def element(x):
        return call("neg", x)

    def reference(x):
        return -x

    def gradient(dy, y, x):
        return -dy


@op("abs", onnx="Abs")
class abs(Elementwise):
    """|x|; of a complex number the magnitude, which is real.  Gradient 0 at 0."""

    keeps = ("x", "y")

    def infer(x):
        return x.shape, x.dtype.to_real()

    def element(x):
        return x if x.type[0] == "u" or x.type == "bool" else call("abs", x)

    def reference(x):
        return np.abs(x)

    def gradient(dy, y, x):
        return dy * where(y == 0, 0, x / y) if x.dtype.is_complex else dy * sign(x)


@op("sign", onnx="Sign")
class sign(Elementwise):
    """-1, 0 or 1, and 0 for NaN (as in PyTorch); of a complex number x / |x|, and 0 at 0."""

    keeps = ("x", "y")

    def element(x):
        if x.type == "bool":
            return x
        if x.type[0] == "u":
            return convert(call("ne", x, const(0, x.type)), x.type)
        if x.type[0] == "c":
            size = call("abs", x)
            at_zero = call("eq", size, const(0, size.type))
            safe = call("where", at_zero, const(1, size.type), size)
            return call("complex", call("div", call("real", x), safe), call("div", call("imag", x), safe))
        zero, one = const(0, x.type), const(1, x.type)
        return call("where", call("gt", x, zero), one, call("where", call("lt", x, zero), const(-1, x.type), zero))

    def reference(x):
        if np.iscomplexobj(x):
            size = np.abs(x)
            return x / np.where(size == 0, 1, size)
        return x if x.dtype == bool else np.where(x > 0, 1, 0) - np.where(x < 0, 1, 0)

    def gradient(dy, y, x):
        if not x.dtype.is_complex:
            return zeros_like(x)
        # (dy - Re(dy * conj(y)) * y) / |x|: what of dy turns the direction of x
        size = abs(x)
        return where(size == 0, 0, (dy - real(dy * conjugate(y)) * y) / size)


@op("reciprocal", onnx="Reciprocal")
class reciprocal(Elementwise):
    """1 / x."""

    domain = "float"
    keeps = ("y",)

    def element(x):
        return call("div", const(1, x.type), x)

    def reference(x):
        return 1 / x

    def gradient(dy, y, x):
        return -dy * conjugate(y * y)


@op("square")
class square(Elementwise):
    """x * x."""

    keeps = ("x",)

    def element(x):
        return _of_bools("mul", "and", x, x)

    def reference(x):
        return x * x

    def gradient(dy, y, x):
        return dy * conjugate(2 * x)


# -- rounding ----------------------------------------------------------------------------------------------------


class Rounding(Elementwise):
    """To a whole number in the same dtype; integers stay as they are.  The gradient is 0."""

    @staticmethod
    def gradient(dy: Any, y: Any, x: Any) -> Any:
        return zeros_like(x)


def _rounded(kind: str, x: Value) -> Value:
    return call(kind, x) if x.type[0] == "f" else x


def _whole(x: np.ndarray) -> bool:
    return x.dtype.kind in "bui"


@op("floor", onnx="Floor")
class floor(Rounding):
    """The largest whole number that is not greater than x."""

    def element(x):
        return _rounded("floor", x)

    def reference(x):
        return x if _whole(x) else np.floor(x)


@op("ceil", onnx="Ceil")
class ceil(Rounding):
    """The smallest whole number that is not less than x."""

    def element(x):
        return _rounded("ceil", x)

    def reference(x):
        return x if _whole(x) else np.ceil(x)


@op("round", onnx="Round")
class round(Rounding):
    """The nearest whole number, halves to even."""

    def element(x):
        return _rounded("round", x)

    def reference(x):
        return x if _whole(x) else np.rint(x)


@op("trunc")
class trunc(Rounding):
    """The whole part of x."""

    def element(x):
        return _rounded("trunc", x)

    def reference(x):
        return x if _whole(x) else np.trunc(x)


@op("frac")
class frac(Elementwise):
    """x - trunc(x), with the sign of x."""

    def decompose(x):
        return x - trunc(x)

    def reference(x):
        return x - np.trunc(x)

    def gradient(dy, y, x):
        return dy


# -- extremes ----------------------------------------------------------------------------------------------------


@op("maximum", onnx="Max")
class maximum(Elementwise):
    """The greater of a and b, NaN if either is; equal operands share the gradient, and get all of it where one is NaN."""

    keeps = ("a", "b")

    def element(a, b):
        return _of_bools("max", "or", a, b)

    def reference(a, b):
        return np.maximum(a, b)

    def gradient(dy, y, a, b):
        shared = where(a == b, dy * 0.5, dy)  # with NaN both comparisons are false, and both get the gradient
        return where(a < b, 0, shared), where(b < a, 0, shared)


@op("minimum", onnx="Min")
class minimum(Elementwise):
    """The lesser of a and b, NaN if either is; equal operands share the gradient, and get all of it where one is NaN."""

    keeps = ("a", "b")

    def element(a, b):
        return _of_bools("min", "and", a, b)

    def reference(a, b):
        return np.minimum(a, b)

    def gradient(dy, y, a, b):
        shared = where(a == b, dy * 0.5, dy)
        return where(a > b, 0, shared), where(b > a, 0, shared)


@op("clamp", onnx="Clip")
class clamp(Elementwise):
    """min where x is less, max where x is more (max wins where min > max), else x.  At the limits x gets the gradient.

    See ``clamp_min`` and ``clamp_max`` for one limit alone.
    """

    keeps = ("x", "min", "max")

    def decompose(x, min, max):
        return minimum(maximum(x, min), max)

    def reference(x, min, max):
        return np.minimum(np.maximum(x, min), max)

    def gradient(dy, y, x, min, max):
        return (
            where((x >= min) & (x <= max), dy, 0),
            where((min < max) & (x < min), dy, 0),
            where((x > max) | (max < min), dy, 0),
        )


@op("clamp_min")
class clamp_min(Elementwise):
    """min where x is less, else x.  At the limit x gets the gradient."""

    keeps = ("x", "min")

    def decompose(x, min):
        return maximum(x, min)

    def reference(x, min):
        return np.maximum(x, min)

    def gradient(dy, y, x, min):
        return where(x >= min, dy, 0), where(x < min, dy, 0)


@op("clamp_max")
class clamp_max(Elementwise):
    """max where x is more, else x.  At the limit x gets the gradient."""

    keeps = ("x", "max")

    def decompose(x, max):
        return minimum(x, max)

    def reference(x, max):
        return np.minimum(x, max)

    def gradient(dy, y, x, max):
        return where(x <= max, dy, 0), where(x > max, dy, 0)


@op("copysign")
class copysign(Elementwise):
    """|a| with the sign of b (also that of a zero)."""

    domain = "float"
    keeps = ("a", "y")

    def element(a, b):
        return call("copysign", a, b)

    def reference(a, b):
        return np.copysign(a, b)

    def gradient(dy, y, a, b):
        return dy * where(a == 0, 0, y / a), zeros_like(b)


# -- fused forms -------------------------------------------------------------------------------------------------


@op("lerp")
class lerp(Elementwise):
    """a + weight * (b - a), computed from the nearer end (as in PyTorch), so that weight 1 gives exactly b."""

    keeps = ("a", "b", "weight")

    @rounded_once
    def decompose(a, b, weight):
        gap = b - a
        return where(abs(weight) < 0.5, a + weight * gap, b - (1 - weight) * gap)

    def reference(a, b, weight):
        return np.where(np.abs(weight) < 0.5, a + weight * (b - a), b - (1 - weight) * (b - a))

    def gradient(dy, y, a, b, weight):
        return dy * conjugate(1 - weight), dy * conjugate(weight), dy * conjugate(b - a)


@op("addcmul")
class addcmul(Elementwise):
    """x + value * a * b."""

    keeps = ("a", "b", "value")

    @rounded_once
    def decompose(x, a, b, value):
        return x + value * a * b

    def reference(x, a, b, value):
        return x + value * a * b

    def gradient(dy, y, x, a, b, value):
        a, b, value = conjugate(a), conjugate(b), conjugate(value)
        return dy, dy * value * b, dy * value * a, dy * a * b
