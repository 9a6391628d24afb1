"""Functions of real and complex numbers; integers and bools become the default floating dtype first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lezero.graph.dtype import floating
from lezero.loops.ir import call, const
from lezero.ops.arithmetic import maximum, square
from lezero.ops.base import Elementwise, op
from lezero.ops.comparison import isnan, where
from lezero.ops.complexes import complex, imag, real
from lezero.ops.creation import zeros_like
from lezero.ops.rules import conj as conjugate
from lezero.ops.rules import gradient_rounded_once, rounded_once


class Function(Elementwise):
    """Computed in a floating or complex dtype."""

    domain = "float"


class RealFunction(Function):
    """A function that complex numbers are refused for."""

    def infer_nodes(self, nodes: tuple, attrs: tuple):
        shape, dtype = super().infer_nodes(nodes, attrs)
        if dtype.is_complex:
            raise TypeError(f"{self.name}: a real dtype is needed, got {', '.join(n.dtype.name for n in nodes)}")
        return shape, dtype


def _each(function: Any) -> Any:
    """A Python function of one float as one of arrays (in float64)."""
    vectorized = np.vectorize(function, otypes=[np.float64])
    return lambda x: vectorized(x) if x.size else x


# -- exponentials and logarithms ---------------------------------------------------------------------------------


@op("exp", onnx="Exp")
class exp(Function):
    """e ** x."""

    keeps = ("y",)

    def element(x):
        return call("exp", x)

    def reference(x):
        return np.exp(x)

    def gradient(dy, y, x):
        return dy * conjugate(y)


@op("exp2")
class exp2(RealFunction):
    """2 ** x."""

    keeps = ("y",)

    def element(x):
        return call("exp2", x)

    def reference(x):
        return np.exp2(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (y * math.log(2))


@op("expm1")
class expm1(RealFunction):
    """e ** x - 1, exact near 0."""

    keeps = ("y",)

    def element(x):
        return call("expm1", x)

    def reference(x):
        return np.expm1(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (y + 1)


@op("log", onnx="Log")
class log(Function):
    """The natural logarithm; NaN below 0."""

    keeps = ("x",)

    def element(x):
        return call("log", x)

    def reference(x):
        return np.log(x)

    def gradient(dy, y, x):
        return dy / conjugate(x)


@op("log2")
class log2(RealFunction):
    """The logarithm to base 2."""

    keeps = ("x",)

    def element(x):
        return call("log2", x)

    def reference(x):
        return np.log2(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy / (x * math.log(2))


@op("log10")
class log10(RealFunction):
    """The logarithm to base 10."""

    keeps = ("x",)

    def element(x):
        return call("log10", x)

    def reference(x):
        return np.log10(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy / (x * math.log(10))


@op("log1p")
class log1p(RealFunction):
    """log(1 + x), exact near 0."""

    keeps = ("x",)

    def element(x):
        return call("log1p", x)

    def reference(x):
        return np.log1p(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy / (x + 1)


@op("logaddexp")
class logaddexp(RealFunction):
    """log(exp(a) + exp(b)) without overflow; equal infinities give themselves."""

    keeps = ("a", "b")

    @rounded_once
    def decompose(a, b):
        return where(a == b, a + math.log(2), maximum(a, b) + log1p(exp(-abs(a - b))))

    def reference(a, b):
        return np.logaddexp(a, b)

    @gradient_rounded_once
    def gradient(dy, y, a, b):
        # sigmoid of the difference: it stays right where y itself has lost a or b to rounding
        return dy * sigmoid(a - b), dy * sigmoid(b - a)


# -- roots -------------------------------------------------------------------------------------------------------


@op("sqrt", onnx="Sqrt")
class sqrt(Function):
    """The square root; NaN below 0."""

    keeps = ("y",)

    def element(x):
        return call("sqrt", x)

    def reference(x):
        return np.sqrt(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy / conjugate(2 * y)


@op("rsqrt")
class rsqrt(Function):
    """1 / sqrt(x)."""

    keeps = ("y",)

    def element(x):
        if x.type[0] == "c":
            return call("div", const(1, x.type), call("sqrt", x))
        return call("rsqrt", x)

    def reference(x):
        return 1 / np.sqrt(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * conjugate(-0.5 * (y * y * y))


@op("hypot")
class hypot(RealFunction):
    """sqrt(a² + b²); gradient 0 where both are 0."""

    keeps = ("a", "b", "y")

    @rounded_once
    def decompose(a, b):
        # scaled by the greater, so that the squares neither overflow nor vanish
        a, b = abs(a), abs(b)
        big = maximum(a, b)
        scale = where(big == 0, 1, big)
        infinite = (a == math.inf) | (b == math.inf)
        return where(infinite, math.inf, big * sqrt(square(a / scale) + square(b / scale)))

    def reference(a, b):
        return np.hypot(a, b)

    @gradient_rounded_once
    def gradient(dy, y, a, b):
        return dy * where(y == 0, 0, a / y), dy * where(y == 0, 0, b / y)  # 1 / y alone may overflow


# -- trigonometry ------------------------------------------------------------------------------------------------


@op("sin", onnx="Sin")
class sin(RealFunction):
    """The sine of an angle in radians."""

    keeps = ("x",)

    def element(x):
        return call("sin", x)

    def reference(x):
        return np.sin(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * cos(x)


@op("cos", onnx="Cos")
class cos(RealFunction):
    """The cosine of an angle in radians."""

    keeps = ("x",)

    def element(x):
        return call("cos", x)

    def reference(x):
        return np.cos(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return -dy * sin(x)


@op("tan", onnx="Tan")
class tan(RealFunction):
    """The tangent of an angle in radians."""

    keeps = ("y",)

    def element(x):
        return call("tan", x)

    def reference(x):
        return np.tan(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (y * y + 1)


@op("asin", onnx="Asin")
class asin(RealFunction):
    """The angle in [-pi/2, pi/2] whose sine is x."""

    keeps = ("x",)

    def element(x):
        return call("asin", x)

    def reference(x):
        return np.arcsin(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * rsqrt(1 - x * x)


@op("acos", onnx="Acos")
class acos(RealFunction):
    """The angle in [0, pi] whose cosine is x."""

    keeps = ("x",)

    def element(x):
        return call("acos", x)

    def reference(x):
        return np.arccos(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return -dy * rsqrt(1 - x * x)


@op("atan", onnx="Atan")
class atan(RealFunction):
    """The angle in [-pi/2, pi/2] whose tangent is x."""

    keeps = ("x",)

    def element(x):
        return call("atan", x)

    def reference(x):
        return np.arctan(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy / (x * x + 1)


@op("atan2")
class atan2(RealFunction):
    """The angle of the point (x = b, y = a), in [-pi, pi]; gradient 0 at the origin."""

    keeps = ("a", "b")

    def element(a, b):
        return call("atan2", a, b)

    def reference(a, b):
        return np.arctan2(a, b)

    @gradient_rounded_once
    def gradient(dy, y, a, b):
        size = a * a + b * b
        dy = where(size == 0, 0, dy / size)
        return dy * b, -dy * a


@op("angle")
class angle(Function):
    """The argument of a complex number; of a real one 0 or, below 0, pi.  Gradient 0 at 0."""

    keeps = ("x",)

    def infer(x):
        return x.shape, floating(x.dtype).to_real()

    def decompose(x):
        if x.dtype.is_complex:
            return atan2(imag(x), real(x))
        return where(x < 0, math.pi, where(isnan(x), x, 0))

    def reference(x):
        return np.angle(x)

    def gradient(dy, y, x):
        if not x.dtype.is_complex:
            return zeros_like(x) if x.dtype.differentiable else None
        re, im = real(x), imag(x)
        size = re * re + im * im
        dy = where(size == 0, 0, dy / size)
        return complex(-dy * im, dy * re)


# -- hyperbolic --------------------------------------------------------------------------------------------------


@op("sinh", onnx="Sinh")
class sinh(RealFunction):
    """(e**x - e**-x) / 2."""

    keeps = ("x",)

    def element(x):
        return call("sinh", x)

    def reference(x):
        return np.sinh(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * cosh(x)


@op("cosh", onnx="Cosh")
class cosh(RealFunction):
    """(e**x + e**-x) / 2."""

    keeps = ("x",)

    def element(x):
        return call("cosh", x)

    def reference(x):
        return np.cosh(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * sinh(x)


@op("tanh", onnx="Tanh")
class tanh(RealFunction):
    """sinh(x) / cosh(x)."""

    keeps = ("y",)

    def element(x):
        return call("tanh", x)

    def reference(x):
        return np.tanh(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (1 - y * y)


@op("asinh", onnx="Asinh")
class asinh(RealFunction):
    """The inverse of sinh."""

    keeps = ("x",)

    def element(x):
        return call("asinh", x)

    def reference(x):
        return np.arcsinh(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * rsqrt(x * x + 1)


@op("acosh", onnx="Acosh")
class acosh(RealFunction):
    """The inverse of cosh, for x >= 1."""

    keeps = ("x",)

    def element(x):
        return call("acosh", x)

    def reference(x):
        return np.arccosh(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * rsqrt(x * x - 1)


@op("atanh", onnx="Atanh")
class atanh(RealFunction):
    """The inverse of tanh, for -1 <= x <= 1."""

    keeps = ("x",)

    def element(x):
        return call("atanh", x)

    def reference(x):
        return np.arctanh(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy / (1 - x * x)


@op("sigmoid", onnx="Sigmoid")
class sigmoid(RealFunction):
    """1 / (1 + e**-x)."""

    keeps = ("y",)

    def element(x):
        return call("sigmoid", x)

    def reference(x):
        small = np.exp(-np.abs(x))  # never overflows
        return np.where(x >= 0, 1, small) / (1 + small)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (y * (1 - y))


# -- special functions -------------------------------------------------------------------------------------------


@op("erf", onnx="Erf")
class erf(RealFunction):
    """2 / sqrt(pi) times the integral of e**-t² from 0 to x."""

    keeps = ("x",)

    def element(x):
        return call("erf", x)

    def reference(x):
        return _each(math.erf)(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (exp(-x * x) * (2 / math.sqrt(math.pi)))


@op("erfc")
class erfc(RealFunction):
    """1 - erf(x), exact where that is small."""

    keeps = ("x",)

    def element(x):
        return call("erfc", x)

    def reference(x):
        return _each(math.erfc)(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (exp(-x * x) * (-2 / math.sqrt(math.pi)))


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


@op("lgamma")
class lgamma(RealFunction):
    """log |gamma(x)|; infinite at 0 and the negative whole numbers."""

    keeps = ("x",)

    def element(x):
        return call("lgamma", x)

    def reference(x):
        return _each(_lgamma)(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * digamma(x)


def _digamma(x: float) -> float:
    """Recurrence up to 10, then the asymptotic series (Abramowitz & Stegun 6.3.5, 6.3.7, 6.3.18)."""
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return x
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        return math.nan if x == math.floor(x) else _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1))
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    z = 1 / (x * x)
    series = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * (691 / 32760 - z / 12))))))
    return total + math.log(x) - 0.5 / x - series


@op("digamma")
class digamma(RealFunction):
    """The derivative of lgamma."""

    keeps = ("x",)

    def element(x):
        return call("digamma", x)

    def reference(x):
        return _each(_digamma)(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * trigamma(x)


def trigamma(x: Any) -> Any:
    """The derivative of digamma (Abramowitz & Stegun 6.4.6, 6.4.7, 6.4.12).

    Reflected to x >= 1/2, then eight steps of the recurrence, then the asymptotic series: relative error under 1e-12.
    """
    low = x < 0.5
    z = where(low, 1 - x, x)
    total: Any = 0
    for k in range(8):
        total = total + 1 / square(z + k)
    z = z + 8
    w = 1 / square(z)
    series = 1 / 6 - w * (1 / 30 - w * (1 / 42 - w * (1 / 30 - w * (5 / 66 - w * (691 / 2730 - w * (7 / 6))))))
    total = total + 1 / z + w / 2 + series * w / z
    reflected = square(math.pi / sin(math.pi * where(low, x, 0.5)))
    return where(low, reflected - total, total)
