"""Element-wise methods, and their forms that write in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from lezero.ops.base import REGISTRY as OPS
from lezero.runtime.recorder import record
from lezero.tensor.core import Core
from lezero.tensor.writing import in_place

if TYPE_CHECKING:
    from lezero.tensor import Tensor

Method = Callable[..., "Tensor"]


def _unary(name: str) -> tuple[Method, Method]:
    """The method of an operation on one tensor, and the one that writes in place."""
    op = OPS[name]

    def method(self: Core) -> Tensor:
        return record(op, (self,), op.defaults)

    return _both(method, name, f"Element-wise; see ``lezero.{name}``.")


def _binary(name: str) -> tuple[Method, Method]:
    """The method of an operation on two tensors (or one and a number), and the one that writes in place."""
    op = OPS[name]

    def method(self: Core, other: Any) -> Tensor:
        return record(op, (self, other), ())

    return _both(method, name, f"Element-wise with broadcasting and promotion; see ``lezero.{name}``.")


def _both(method: Callable, name: str, doc: str) -> tuple[Method, Method]:
    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", doc
    return method, in_place(method)


class Elementwise(Core):
    """One value for each element."""

    abs, abs_ = _unary("abs")
    neg, neg_ = _unary("neg")
    sign, sign_ = _unary("sign")
    exp, exp_ = _unary("exp")
    exp2, exp2_ = _unary("exp2")
    expm1, expm1_ = _unary("expm1")
    log, log_ = _unary("log")
    log2, log2_ = _unary("log2")
    log10, log10_ = _unary("log10")
    log1p, log1p_ = _unary("log1p")
    sqrt, sqrt_ = _unary("sqrt")
    rsqrt, rsqrt_ = _unary("rsqrt")
    reciprocal, reciprocal_ = _unary("reciprocal")
    square, square_ = _unary("square")
    sin, sin_ = _unary("sin")
    cos, cos_ = _unary("cos")
    tan, tan_ = _unary("tan")
    asin, asin_ = _unary("asin")
    acos, acos_ = _unary("acos")
    atan, atan_ = _unary("atan")
    sinh, sinh_ = _unary("sinh")
    cosh, cosh_ = _unary("cosh")
    tanh, tanh_ = _unary("tanh")
    asinh, asinh_ = _unary("asinh")
    acosh, acosh_ = _unary("acosh")
    atanh, atanh_ = _unary("atanh")
    erf, erf_ = _unary("erf")
    erfc, erfc_ = _unary("erfc")
    sigmoid, sigmoid_ = _unary("sigmoid")
    floor, floor_ = _unary("floor")
    ceil, ceil_ = _unary("ceil")
    round, round_ = _unary("round")
    trunc, trunc_ = _unary("trunc")
    frac, frac_ = _unary("frac")
    isnan, isnan_ = _unary("isnan")
    isinf, isinf_ = _unary("isinf")
    isfinite, isfinite_ = _unary("isfinite")
    logical_not, logical_not_ = _unary("logical_not")
    relu, relu_ = _unary("relu")
    lgamma, lgamma_ = _unary("lgamma")
    digamma, digamma_ = _unary("digamma")
    real, real_ = _unary("real")
    imag, imag_ = _unary("imag")
    conj, conj_ = _unary("conj")
    angle, angle_ = _unary("angle")

    mul, mul_ = _binary("mul")
    floor_divide, floor_divide_ = _binary("floor_divide")
    remainder, remainder_ = _binary("remainder")
    fmod, fmod_ = _binary("fmod")
    maximum, maximum_ = _binary("maximum")
    minimum, minimum_ = _binary("minimum")
    eq, eq_ = _binary("eq")
    ne, ne_ = _binary("ne")
    lt, lt_ = _binary("lt")
    le, le_ = _binary("le")
    gt, gt_ = _binary("gt")
    ge, ge_ = _binary("ge")
    logical_and, logical_and_ = _binary("logical_and")
    logical_or, logical_or_ = _binary("logical_or")
    logical_xor, logical_xor_ = _binary("logical_xor")
    bitwise_and, bitwise_and_ = _binary("bitwise_and")
    bitwise_or, bitwise_or_ = _binary("bitwise_or")
    bitwise_xor, bitwise_xor_ = _binary("bitwise_xor")
    atan2, atan2_ = _binary("atan2")
    copysign, copysign_ = _binary("copysign")
    hypot, hypot_ = _binary("hypot")
    logaddexp, logaddexp_ = _binary("logaddexp")

    def div(self, other: Any, *, rounding_mode: str | None = None) -> Tensor:
        """The quotient, exact or rounded towards zero ("trunc") or down ("floor"); rounded ones of integers are integers."""
        if rounding_mode is None:
            return record(OPS["div"], (self, other), ())
        if rounding_mode == "floor":
            return record(OPS["floor_divide"], (self, other), ())
        if rounding_mode != "trunc":
            raise ValueError(f"div: rounding_mode is None, 'trunc' or 'floor', got {rounding_mode!r}")
        if (
            self.is_floating_point()
            or isinstance(other, float)
            or (isinstance(other, Core) and other.is_floating_point())
        ):
            return record(OPS["trunc"], (record(OPS["div"], (self, other), ()),), ())
        return record(OPS["floor_divide"], (self - record(OPS["fmod"], (self, other), ()), other), ())

    def add(self, other: Any, *, alpha: Any = 1) -> Tensor:
        """``self + alpha * other``."""
        return self + (other if alpha == 1 else other * alpha)

    def sub(self, other: Any, *, alpha: Any = 1) -> Tensor:
        """``self - alpha * other``."""
        return self - (other if alpha == 1 else other * alpha)

    def addcmul(self, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
        """``self + value * a * b``."""
        return self + (a * b if value == 1 else a * b * value)

    def addcdiv(self, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
        """``self + value * a / b``."""
        return self + (a / b if value == 1 else a / b * value)

    def lerp(self, end: Tensor, weight: Any) -> Tensor:
        """``self + weight * (end - self)``."""
        return self + (end - self) * weight

    def pow(self, exponent: Any) -> Tensor:
        return self**exponent

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """Between `min` and `max`, either of which may be left out."""
        out = self
        if min is None and max is None:
            raise ValueError("clamp: give min, max or both")
        if min is not None:
            out = record(OPS["maximum"], (out, min), ())
        if max is not None:
            out = record(OPS["minimum"], (out, max), ())
        return out

    clip = clamp

    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """`value` where `mask` (bool, broadcast) is True."""
        return record(OPS["where"], (mask, value, self), ())._cast(self.dtype)

    def where(self, condition: Tensor, other: Any) -> Tensor:
        return record(OPS["where"], (condition, self, other), ())

    div_ = in_place(div)
    add_, sub_, addcmul_, addcdiv_ = in_place(add), in_place(sub), in_place(addcmul), in_place(addcdiv)
    lerp_, pow_, clamp_, masked_fill_ = in_place(lerp), in_place(pow), in_place(clamp), in_place(masked_fill)
    clip_ = clamp_
    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
    __ifloordiv__, __imod__, __ipow__ = floor_divide_, remainder_, pow_
    __iand__, __ior__, __ixor__ = bitwise_and_, bitwise_or_, bitwise_xor_
