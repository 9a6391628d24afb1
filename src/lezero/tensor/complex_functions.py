"""Elementary functions of complex numbers, made of those of real ones; ``elementwise`` has them as methods.

The inverse functions are those of Kahan (1987), "Branch cuts for complex elementary functions".  Results are as near as the
real functions' for finite arguments; at infinities and NaN they are what the formulas give.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lezero.ops.base import REGISTRY as OPS
from lezero.runtime.recorder import record

if TYPE_CHECKING:
    from lezero.tensor import Tensor


def complex_number(real: Tensor, imag: Tensor) -> Tensor:
    return record(OPS["complex"], (real, imag), ())


def _turned(z: Tensor) -> Tensor:
    """``i * z``, exactly."""
    return complex_number(-z.imag(), z.real())


def _turned_back(z: Tensor) -> Tensor:
    """``-i * z``, exactly."""
    return complex_number(z.imag(), -z.real())


def _plus(z: Tensor, number: float) -> Tensor:
    """``z + number``; complex addition would make an imaginary part of -0.0 positive, which is on the other side of a cut."""
    return complex_number(z.real() + number, z.imag())


def sin(z: Tensor) -> Tensor:
    x, y = z.real(), z.imag()
    return complex_number(x.sin() * y.cosh(), x.cos() * y.sinh())


def cos(z: Tensor) -> Tensor:
    x, y = z.real(), z.imag()
    return complex_number(x.cos() * y.cosh(), -(x.sin() * y.sinh()))


def sinh(z: Tensor) -> Tensor:
    return _turned_back(sin(_turned(z)))


def cosh(z: Tensor) -> Tensor:
    return cos(_turned(z))


def tanh(z: Tensor) -> Tensor:
    t, u = z.real().tanh(), z.imag().tan()
    below = 1 + (t * u).square()
    return complex_number(t * (1 + u.square()) / below, u * (1 - t.square()) / below)


def tan(z: Tensor) -> Tensor:
    return _turned_back(tanh(_turned(z)))


def expm1(z: Tensor) -> Tensor:
    x, y = z.real(), z.imag()
    return complex_number(x.expm1() * y.cos() - 2 * (y / 2).sin().square(), x.exp() * y.sin())


def log1p(z: Tensor) -> Tensor:
    x, y = z.real(), z.imag()
    return complex_number((x * (2 + x) + y.square()).log1p() / 2, y.atan2(1 + x))


def exp2(z: Tensor) -> Tensor:
    return (z * math.log(2)).exp()


def sigmoid(z: Tensor) -> Tensor:
    return ((-z).exp() + 1).reciprocal()


def log2(z: Tensor) -> Tensor:
    return z.log() / math.log(2)


def log10(z: Tensor) -> Tensor:
    return z.log() / math.log(10)


def asin(z: Tensor) -> Tensor:
    less, more = _plus(-z, 1).sqrt(), _plus(z, 1).sqrt()
    return complex_number(z.real().atan2((less * more).real()), (less.conj() * more).imag().asinh())


def acos(z: Tensor) -> Tensor:
    less, more = _plus(-z, 1).sqrt(), _plus(z, 1).sqrt()
    return complex_number(2 * less.real().atan2(more.real()), (more.conj() * less).imag().asinh())


def asinh(z: Tensor) -> Tensor:
    return _turned_back(asin(_turned(z)))


def acosh(z: Tensor) -> Tensor:
    less, more = _plus(z, -1).sqrt(), _plus(z, 1).sqrt()
    return complex_number((less.conj() * more).real().asinh(), 2 * less.imag().atan2(more.real()))


def atanh(z: Tensor) -> Tensor:
    x, y = z.real(), z.imag()
    real = (4 * x / ((1 - x).square() + y.square())).log1p() / 4
    return complex_number(real, (2 * y).atan2((1 - x) * (1 + x) - y.square()) / 2)


def atan(z: Tensor) -> Tensor:
    return _turned_back(atanh(_turned(z)))


OF_COMPLEX = {
    f.__name__: f
    for f in (
        acos,
        acosh,
        asin,
        asinh,
        atan,
        atanh,
        cos,
        cosh,
        exp2,
        expm1,
        log10,
        log1p,
        log2,
        sigmoid,
        sin,
        sinh,
        tan,
        tanh,
    )
}
"""By name, those whose operations compute with real numbers only."""
