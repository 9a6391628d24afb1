"""Element-wise functions of the standard; operands broadcast, dtypes promote, gradients are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lezero import composed, special
from lezero.array_api.operands import need_tensor, number, promoted
from lezero.graph import dtype as dt
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import broadcast_shapes
from lezero.runtime.recorder import record
from lezero.tensor import Tensor
from lezero.tensor.complex_functions import complex_number


def _named(function: Callable, name: str, doc: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "lezero.array_api"
    function.__doc__ = doc
    return function


def _unary(name: str, ours: str) -> Any:
    method = getattr(Tensor, ours)

    def function(x: Tensor, /) -> Tensor:
        return method(need_tensor(name, x))

    return _named(function, name, f"Element-wise; see ``lezero.{ours}``.")


def _whole(name: str) -> Any:
    """A rounding, which leaves integers as they are."""
    op = OPS[name]

    def function(x: Tensor, /) -> Tensor:
        return x.clone() if need_tensor(name, x).dtype.kind in "biu" else record(op, (x,), op.defaults)

    return _named(function, name, f"Element-wise; see ``lezero.{name}``.  Integers stay what they are.")


def _binary(name: str, ours: str) -> Any:
    op = OPS[ours]

    def function(x1: Tensor | complex, x2: Tensor | complex, /) -> Tensor:
        return record(op, tuple(promoted(name, x1, x2)), op.defaults)

    return _named(function, name, f"Element-wise, of two tensors or one and a number; see ``lezero.{ours}``.")


abs, acos, acosh, asin, asinh = (_unary(n, n) for n in ("abs", "acos", "acosh", "asin", "asinh"))
atan, atanh, cos, cosh, exp = (_unary(n, n) for n in ("atan", "atanh", "cos", "cosh", "exp"))
expm1, isfinite, isinf, isnan, log = (_unary(n, n) for n in ("expm1", "isfinite", "isinf", "isnan", "log"))
log1p, log2, log10, logical_not = (_unary(n, n) for n in ("log1p", "log2", "log10", "logical_not"))
reciprocal, sin, sinh, sqrt = (_unary(n, n) for n in ("reciprocal", "sin", "sinh", "sqrt"))
square, tan, tanh = (_unary(n, n) for n in ("square", "tan", "tanh"))
negative, bitwise_invert = _unary("negative", "neg"), _unary("bitwise_invert", "bitwise_not")
ceil, floor, trunc = _whole("ceil"), _whole("floor"), _whole("trunc")

add, subtract, multiply, divide = (
    _binary(name, ours) for name, ours in (("add", "add"), ("subtract", "sub"), ("multiply", "mul"), ("divide", "div"))
)
atan2, copysign, hypot, logaddexp = (_binary(n, n) for n in ("atan2", "copysign", "hypot", "logaddexp"))
maximum, minimum = _binary("maximum", "maximum"), _binary("minimum", "minimum")
bitwise_and, bitwise_or, bitwise_xor = (_binary(n, n) for n in ("bitwise_and", "bitwise_or", "bitwise_xor"))
bitwise_left_shift, bitwise_right_shift = (_binary(n, n) for n in ("bitwise_left_shift", "bitwise_right_shift"))
logical_and, logical_or, logical_xor = (_binary(n, n) for n in ("logical_and", "logical_or", "logical_xor"))
equal, not_equal = _binary("equal", "eq"), _binary("not_equal", "ne")
less, less_equal = _binary("less", "lt"), _binary("less_equal", "le")
greater, greater_equal = _binary("greater", "gt"), _binary("greater_equal", "ge")


def _operator(name: str, compute: Callable[[Any, Any], Any], doc: str) -> Any:
    def function(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
        return compute(*promoted(name, x1, x2))

    return _named(function, name, doc)


floor_divide = _operator(
    "floor_divide",
    lambda a, b: a // b,
    "Quotients rounded down; see ``Tensor.floor_divide`` for integers divided by 0.",
)
remainder = _operator(
    "remainder", lambda a, b: a % b, "Remainders with the divisor's sign; see ``Tensor.remainder`` for integers and 0."
)
pow = _operator("pow", lambda a, b: a**b, "Powers; integers have no powers of negative exponents.")


def positive(x: Tensor, /) -> Tensor:
    """A copy."""
    return need_tensor("positive", x).clone()


def conj(x: Tensor, /) -> Tensor:
    """Complex conjugates; of real numbers a copy."""
    return x.conj() if need_tensor("conj", x).is_complex() else x.clone()


def real(x: Tensor, /) -> Tensor:
    """Real parts; of real numbers a copy."""
    return x.real() if need_tensor("real", x).is_complex() else x.clone()


def imag(x: Tensor, /) -> Tensor:
    """Imaginary parts; of real numbers zeros."""
    return x.imag() if need_tensor("imag", x).is_complex() else record(OPS["full"], (), (tuple(x.shape), 0, x.dtype))


def round(x: Tensor, /) -> Tensor:
    """To the nearest integer, halves to the even one; the parts of complex numbers each."""
    if need_tensor("round", x).dtype.kind in "biu":
        return x.clone()
    return complex_number(x.real().round(), x.imag().round()) if x.is_complex() else x.round()


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1, NaN of NaN (which is 0 in PyTorch); of complex numbers ``z / abs(z)``."""
    signs = composed.sgn(need_tensor("sign", x))
    return record(OPS["where"], (x.isnan(), x, signs), ()) if x.is_floating_point() else signs


def signbit(x: Tensor, /) -> Tensor:
    """Whether the sign bit is set, also that of -0.0 and of NaN."""
    return composed.signbit(need_tensor("signbit", x))


def nextafter(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """The next numbers that can be represented, from x1 towards x2.  Values are read."""
    a, b = promoted("nextafter", x1, x2)
    dtype = (a if isinstance(a, Tensor) else b).dtype
    a, b = (x if isinstance(x, Tensor) else record(OPS["full"], (), ((), x, dtype)) for x in (a, b))
    return special.nextafter(a, b)


def clip(x: Tensor, /, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """Between `min` and `max` (numbers, or tensors that broadcast to the shape of x), in the dtype of x; NaN stays NaN."""
    out = need_tensor("clip", x)
    for name, bound, limit in (("clamp_min", min, "min"), ("clamp_max", max, "max")):
        if bound is None:
            continue
        if isinstance(bound, Tensor):
            if broadcast_shapes(f"array_api.clip: {limit}", x.shape, bound.shape) != tuple(x.shape):
                raise ValueError(f"array_api.clip: {limit} of shape {_plain(bound)} does not fit into {_plain(x)}")
        elif x.dtype.kind in "iu":
            bound = _within(number("clip", bound), x.dtype)
        out = record(OPS[name], tuple(promoted("clip", out, bound)), ())
    return x.clone() if out is x else out._cast(x.dtype)


def _plain(x: Tensor) -> tuple[int, ...]:
    return tuple(map(int, x.shape))


def _within(bound: Any, dtype: dt.DType) -> Any:
    """A bound beyond what an integer dtype holds bounds nothing."""
    limits = dt.iinfo(dtype)
    return limits.min if bound < limits.min else limits.max if bound > limits.max else bound
