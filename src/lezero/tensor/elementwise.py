"""Element-wise methods, and their forms that write in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import promoted
from lezero.ops.rules import wide_dtype, widen
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.tensor.complex_functions import OF_COMPLEX
from lezero.tensor.core import Core
from lezero.tensor.creation import need_fit
from lezero.tensor.writing import in_place

if TYPE_CHECKING:
    from lezero.tensor import Tensor

Method = Callable[..., "Tensor"]


def _unary(name: str) -> tuple[Method, Method]:
    """The method of an operation on one tensor, and the one that writes in place."""
    op, of_complex = OPS[name], OF_COMPLEX.get(name)

    def method(self: Core) -> Tensor:
        try:  # complex numbers are refused at no cost to the others
            return record(op, (self,), op.defaults)
        except TypeError:
            if of_complex is None or not self.is_complex():
                raise
            return of_complex(self)  # type: ignore[arg-type]

    return _both(method, name, f"Element-wise; see ``lezero.{name}``.")


def _binary(name: str) -> tuple[Method, Method]:
    """The method of an operation on two tensors (or one and a number), and the one that writes in place."""
    op = OPS[name]

    def method(self: Core, other: Any) -> Tensor:
        return record(op, (self, other), ())

    return _both(method, name, f"Element-wise with broadcasting and promotion; see ``lezero.{name}``.")


def _dividing(name: str) -> tuple[Method, Method]:
    """The same for a division that gives integers of integers."""
    op = OPS[name]

    def method(self: Core, other: Any) -> Tensor:
        _need_divisors(name, self, other)
        return record(op, (self, other), ())

    doc = f"""Element-wise with broadcasting and promotion; see ``lezero.{name}``.

    Raises
    ------
    ZeroDivisionError
        When integers are divided by a number 0, or by a tensor that is there and holds one.  Integers that are still to be
        computed, and all under ``lz.jit``, give 0 where they are divided by 0.
    """
    return _both(method, name, doc)


def _need_divisors(name: str, dividend: Any, divisor: Any) -> None:
    """Refuse 0 among the integers that integers are divided by, as far as they are there."""
    if isinstance(divisor, Core):
        buffer = divisor._buffer
        if divisor.dtype.kind not in "iu" or buffer is None or STATE.capture is not None:
            return
        zero = not buffer.array.all()
    elif isinstance(divisor, np.ndarray):
        zero = divisor.dtype.kind in "iu" and not divisor.all()
    else:
        zero = isinstance(divisor, int) and divisor == 0
    if zero and _gives_integers(dividend):
        raise ZeroDivisionError(f"{name}: integers divided by 0; of floating-point numbers the result is inf or NaN")


def _gives_integers(dividend: Any) -> bool:
    return dividend.dtype.kind in "biu" if isinstance(dividend, (Core, np.ndarray)) else isinstance(dividend, int)


def _both(method: Callable, name: str, doc: str) -> tuple[Method, Method]:
    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", doc
    return method, in_place(method)


def _rounded_once(rule: Callable) -> Callable:
    """A method made of several operations, which computes in float32 what is of half precision."""

    @wraps(rule)
    def method(self: Core, *operands: Any, **options: Any) -> Tensor:
        tensors = [x for x in (self, *operands) if isinstance(x, Core)]
        dtype = promoted(*tensors)
        if wide_dtype(dtype) is dtype:
            return rule(self, *operands, **options)
        return rule(*(widen(x) if isinstance(x, Core) else x for x in (self, *operands)), **options)._cast(dtype)

    return method


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
    floor_divide, floor_divide_ = _dividing("floor_divide")
    remainder, remainder_ = _dividing("remainder")
    fmod, fmod_ = _dividing("fmod")
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

    def __floordiv__(self, other: Any) -> Any:
        _need_divisors("floor_divide", self, other)
        return super().__floordiv__(other)

    def __mod__(self, other: Any) -> Any:
        _need_divisors("remainder", self, other)
        return super().__mod__(other)

    def __rfloordiv__(self, other: Any) -> Any:
        _need_divisors("floor_divide", other, self)
        return super().__rfloordiv__(other)

    def __rmod__(self, other: Any) -> Any:
        _need_divisors("remainder", other, self)
        return super().__rmod__(other)

    def div(self, other: Any, *, rounding_mode: str | None = None) -> Tensor:
        """``self / other``, rounded towards zero ("trunc") or down ("floor") if that is asked for; integers stay integers then.

        Integers divided by 0 as :meth:`floor_divide` says.
        """
        if rounding_mode is None:
            return record(OPS["div"], (self, other), ())
        if rounding_mode == "floor":
            return self.floor_divide(other)
        if rounding_mode != "trunc":
            raise ValueError(f"div: rounding_mode is None, 'trunc' or 'floor', got {rounding_mode!r}")
        if self._is_whole() and (other._is_whole() if isinstance(other, Core) else isinstance(other, int)):
            return record(OPS["floor_divide"], (self - self.fmod(other), other), ())  # what is left divides evenly
        return record(OPS["div"], (self, other), ()).trunc()

    def _is_whole(self) -> bool:
        return self.dtype.kind in "biu"

    def square(self) -> Tensor:
        """Each element times itself; bools become int64."""
        return record(OPS["square"], (self.long() if self.dtype.kind == "b" else self,), ())

    def round(self, *, decimals: int = 0) -> Tensor:
        """The nearest integers, or multiples of ``10 ** -decimals``; half-way to even."""
        if decimals == 0:
            return record(OPS["round"], (self,), ())
        if not self.is_floating_point():
            raise TypeError(f"round: decimals are for floating dtypes, got {self.dtype.name}")
        scale = 10.0 ** abs(decimals)
        return (self * scale).round() / scale if decimals > 0 else (self / scale).round() * scale

    def add(self, other: Any, *, alpha: Any = 1) -> Tensor:
        """``self + alpha * other``."""
        return self + other if alpha == 1 else self._add_scaled(other, alpha)

    def sub(self, other: Any, *, alpha: Any = 1) -> Tensor:
        """``self - alpha * other``."""
        return self - other if alpha == 1 else self._add_scaled(other, -alpha)

    @_rounded_once
    def _add_scaled(self, other: Any, alpha: Any) -> Tensor:
        return self + other * alpha

    @_rounded_once
    def addcmul(self, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
        """``self + value * tensor1 * tensor2``."""
        product = tensor1 * tensor2
        return self + (product if value == 1 else product * value)

    @_rounded_once
    def addcdiv(self, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
        """``self + value * tensor1 / tensor2``."""
        quotient = tensor1 / tensor2
        return self + (quotient if value == 1 else quotient * value)

    def lerp(self, end: Tensor, weight: Any) -> Tensor:
        """``self + weight * (end - self)``, computed from the nearer end: weight 1 gives exactly `end`."""
        return record(OPS["lerp"], (self, end, weight), ())

    def pow(self, exponent: Any) -> Tensor:
        """``self ** exponent``, element by element."""
        return self**exponent

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """Between `min` and `max`, either of which may be left out."""
        if min is None and max is None:
            raise ValueError("clamp: give min, max or both")
        if self.dtype.kind in "iu":
            for name, bound in (("min", min), ("max", max)):
                if type(bound) is int:
                    need_fit(f"clamp: {name}", bound, self.dtype)
        if min is None:
            return record(OPS["clamp_max"], (self, max), ())
        if max is None:
            return record(OPS["clamp_min"], (self, min), ())
        return record(OPS["clamp"], (self, min, max), ())

    clip = clamp

    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """`value` (a number, or a tensor without dimensions) where `mask` (bool, broadcast) is True."""
        if isinstance(value, Core) and value.ndim:
            raise ValueError(
                f"masked_fill: a value without dimensions is needed, got shape {tuple(map(int, value.shape))}"
            )
        is_complex = isinstance(value, complex) or (isinstance(value, Core) and value.is_complex())
        if is_complex and not self.is_complex():
            raise TypeError(f"masked_fill: complex numbers do not fit {self.dtype.name}")
        if self.dtype.kind in "iu":
            need_fit("masked_fill", value, self.dtype)
        return record(OPS["where"], (mask, value, self), ())._cast(self.dtype)

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """Its elements where `condition` (bool, broadcast) is True, those of `other` elsewhere."""
        return record(OPS["where"], (condition, self, other), ())

    div_, square_, round_ = in_place(div), in_place(square), in_place(round)
    add_, sub_, addcmul_, addcdiv_ = in_place(add), in_place(sub), in_place(addcmul), in_place(addcdiv)
    lerp_, pow_, clamp_, masked_fill_ = in_place(lerp), in_place(pow), in_place(clamp), in_place(masked_fill)
    clip_ = clamp_
    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
    __ifloordiv__, __imod__, __ipow__ = floor_divide_, remainder_, pow_
    __iand__, __ior__, __ixor__ = bitwise_and_, bitwise_or_, bitwise_xor_
