"""Comparisons, logic, bits, and choosing by a condition."""

from __future__ import annotations

from typing import Any

import numpy as np

from lezero.graph.dtype import bool_, float64
from lezero.loops.ir import call, const
from lezero.ops.base import REGISTRY, Composite, Elementwise, broadcast_shapes, op, promoted
from lezero.ops.creation import filled


class Comparison(Elementwise):
    """Operands of a common dtype in, bool out; constant almost everywhere, so without a gradient."""

    domain = "compare"
    differentiable = False

    @staticmethod
    def gradient(dy: Any, y: Any, *inputs: Any) -> tuple:
        return (None,) * len(inputs)


@op("eq", onnx="Equal")
class eq(Comparison):
    """a == b."""

    def element(a, b):
        return call("eq", a, b)

    def reference(a, b):
        return a == b


@op("ne")
class ne(Comparison):
    """a != b (NaN differs from everything)."""

    def element(a, b):
        return call("ne", a, b)

    def reference(a, b):
        return a != b


class Ordering(Comparison):
    """A comparison that complex numbers do not have."""

    def compute_dtype(self, nodes: tuple):
        dtype = promoted(*nodes)
        if dtype.is_complex:
            raise TypeError(f"{self.name}: complex numbers have no order; compare abs() or real and imaginary parts")
        return dtype

    def infer_nodes(self, nodes: tuple, attrs: tuple):
        self.compute_dtype(nodes)
        return super().infer_nodes(nodes, attrs)


@op("lt", onnx="Less")
class lt(Ordering):
    """a < b."""

    def element(a, b):
        return call("lt", a, b)

    def reference(a, b):
        return a < b


@op("le", onnx="LessOrEqual")
class le(Ordering):
    """a <= b."""

    def element(a, b):
        return call("le", a, b)

    def reference(a, b):
        return a <= b


@op("gt", onnx="Greater")
class gt(Ordering):
    """a > b."""

    def element(a, b):
        return call("gt", a, b)

    def reference(a, b):
        return a > b


@op("ge", onnx="GreaterOrEqual")
class ge(Ordering):
    """a >= b."""

    def element(a, b):
        return call("ge", a, b)

    def reference(a, b):
        return a >= b


def _floating(code: str) -> bool:
    return code[0] == "f" or code == "bf16"


def _either_part(kind: str, x: Any) -> Any:
    """A test of floats on a Value of any type: complex if either part passes, integers never do."""
    if x.type[0] == "c":
        return call("or", call(kind, call("real", x)), call(kind, call("imag", x)))
    return call(kind, x) if _floating(x.type) else const(False, "bool")


@op("isnan", onnx="IsNaN")
class isnan(Comparison):
    """Whether x is not a number; of a complex number, either part."""

    def element(x):
        return _either_part("isnan", x)

    def reference(x):
        return np.isnan(x)


@op("isinf", onnx="IsInf")
class isinf(Comparison):
    """Whether x is infinite, of either sign; of a complex number, either part."""

    def element(x):
        return _either_part("isinf", x)

    def reference(x):
        return np.isinf(x)


@op("isfinite")
class isfinite(Comparison):
    """Whether x is neither infinite nor NaN; of a complex number, both parts."""

    def element(x):
        if x.type[0] == "c":
            return call("and", call("isfinite", call("real", x)), call("isfinite", call("imag", x)))
        return call("isfinite", x) if _floating(x.type) else const(True, "bool")

    def reference(x):
        return np.isfinite(x)


@op("isclose")
class isclose(Comparison):
    """``|a - b| <= atol + rtol * |b|``; equal infinities are close, NaNs only with `equal_nan`."""

    attrs = {"rtol": 1e-5, "atol": 1e-8, "equal_nan": False}

    def decompose(a, b, rtol, atol, equal_nan):
        if not a.dtype.is_floating_point and not a.dtype.is_complex:  # unsigned differences would wrap
            a, b = (REGISTRY["cast"](x, dtype=float64) for x in (a, b))
        close = (a == b) | (isfinite(b) & (abs(a - b) <= atol + rtol * abs(b)))
        return close | (isnan(a) & isnan(b)) if equal_nan else close

    def reference(a, b, rtol, atol, equal_nan):
        return np.isclose(a, b, rtol, atol, equal_nan)

    def gradient(dy, y, a, b, rtol, atol, equal_nan):
        return None, None


# -- logic: every operand is tested against zero first ---------------------------------------------------------


class Logic(Comparison):
    """Operands tested against zero, then combined; bool out."""

    domain = "bool"


@op("logical_and", onnx="And")
class logical_and(Logic):
    """Whether both are non-zero."""

    def element(a, b):
        return call("and", a, b)

    def reference(a, b):
        return a & b


@op("logical_or", onnx="Or")
class logical_or(Logic):
    """Whether at least one is non-zero."""

    def element(a, b):
        return call("or", a, b)

    def reference(a, b):
        return a | b


@op("logical_xor", onnx="Xor")
class logical_xor(Logic):
    """Whether exactly one is non-zero."""

    def element(a, b):
        return call("xor", a, b)

    def reference(a, b):
        return a ^ b


@op("logical_not", onnx="Not")
class logical_not(Logic):
    """Whether x is zero."""

    def element(x):
        return call("not", x)

    def reference(x):
        return ~x


# -- bits --------------------------------------------------------------------------------------------------------


class Bits(Elementwise):
    """On integers bit by bit, on bools logically; floating dtypes are refused."""

    differentiable = False

    def infer_nodes(self, nodes: tuple, attrs: tuple):
        shape, dtype = super().infer_nodes(nodes, attrs)
        if dtype.kind not in "bui" or (dtype is bool_ and "shift" in self.name):
            raise TypeError(f"{self.name}: integer operands are needed, got {', '.join(n.dtype.name for n in nodes)}")
        return shape, dtype

    @staticmethod
    def gradient(dy: Any, y: Any, *inputs: Any) -> tuple:
        return (None,) * len(inputs)


@op("bitwise_and", onnx="BitwiseAnd")
class bitwise_and(Bits):
    """a & b."""

    def element(a, b):
        return call("and", a, b)

    def reference(a, b):
        return a & b


@op("bitwise_or", onnx="BitwiseOr")
class bitwise_or(Bits):
    """a | b."""

    def element(a, b):
        return call("or", a, b)

    def reference(a, b):
        return a | b


@op("bitwise_xor", onnx="BitwiseXor")
class bitwise_xor(Bits):
    """a ^ b."""

    def element(a, b):
        return call("xor", a, b)

    def reference(a, b):
        return a ^ b


@op("logical_or_bitwise_not", onnx="BitwiseNot")
class logical_or_bitwise_not(Bits):
    """~x: logical on bools, bit by bit on integers."""

    def element(x):
        return call("not", x)

    def reference(x):
        return ~x


@op("bitwise_left_shift")
class bitwise_left_shift(Bits):
    """a << b, for 0 <= b < the number of bits."""

    def element(a, b):
        return call("shl", a, b)

    def reference(a, b):
        return a << b


@op("bitwise_right_shift")
class bitwise_right_shift(Bits):
    """a >> b, for 0 <= b < the number of bits; signed integers keep their sign."""

    def element(a, b):
        return call("shr", a, b)

    def reference(a, b):
        return a >> b


# -- choosing ----------------------------------------------------------------------------------------------------


@op("where", onnx="Where")
class where(Elementwise):
    """a where the condition holds, else b.  What is not chosen does not matter, not even NaN, and gets no gradient.

    Parameters
    ----------
    condition : bool, broadcast with a and b
    a, b : any dtypes, promoted to a common one
    """

    keep_dtype = (0,)
    keeps = ("condition",)

    def infer(condition, a, b):
        if condition.dtype is not bool_:
            raise TypeError(f"where: the condition must be bool, got {condition.dtype.name}; compare it with something")
        return broadcast_shapes("where", condition.shape, a.shape, b.shape), promoted(a, b)

    def element(condition, a, b):
        return call("where", condition, a, b)

    def reference(condition, a, b):
        return np.where(condition, a, b)

    def gradient(dy, y, condition, a, b):
        return None, where(condition, dy, 0), where(condition, 0, dy)


@op("masked_fill")
class masked_fill(Composite):
    """x, with `value` (a number or a 0-d tensor) where the mask holds; the dtype stays x's."""

    keeps = ("mask",)

    def infer(x, mask, value):
        if mask.dtype is not bool_:
            raise TypeError(f"masked_fill: the mask must be bool, got {mask.dtype.name}")
        if value.shape:
            raise ValueError(f"masked_fill: the value must be a number or 0-d, got shape {tuple(value.shape)}")
        return broadcast_shapes("masked_fill", x.shape, mask.shape), x.dtype

    def decompose(x, mask, value):
        from lezero.ops.arithmetic import cast

        return where(mask, cast(value, dtype=x.dtype) if value.dtype is not x.dtype else value, x)

    def reference(x, mask, value):
        return np.where(mask, value.astype(x.dtype), x)

    def gradient(dy, y, x, mask, value):
        return where(mask, 0, dy), None, where(mask, dy, 0)


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """NaN and the infinities replaced by numbers (by default 0 and the largest finite ones of the dtype)."""
    if not x.dtype.is_floating_point:
        return x
    import ml_dtypes

    largest = float(ml_dtypes.finfo(x.dtype.numpy).max)
    high, low = (largest if posinf is None else posinf), (-largest if neginf is None else neginf)
    infinite = where(x > 0, filled(x, high), filled(x, low))
    return where(isnan(x), filled(x, nan), where(isinf(x), infinite, x))
