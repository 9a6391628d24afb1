"""Exponentials, logarithms, and the hyperbolic functions made of them."""

from __future__ import annotations

import math

from lezero.codegen.math_tools import (
    LOG2E,
    apply,
    clamp,
    function,
    limit,
    nearest,
    polynomial,
    power_of_two,
    scale,
    two_product,
    two_sum,
)
from lezero.codegen.values import Builder, X

SQRT_HALF_BITS = {"double": 0x3FE6A09E667F3BCD, "float": 0x3F3504F3}
ONE_BITS = {"double": 0x3FF0000000000000, "float": 0x3F800000}

# -- exponentials -----------------------------------------------------------------------------------------------


def exp_reduced(b: Builder, x: X) -> tuple[X, X, X]:
    """k (float and integer) and e**r - 1, where x = k ln 2 + r."""
    k, k_integer = nearest(b, x * LOG2E)
    r = b.fma(k, -limit("ln2_high", x), x)
    r = b.fma(k, -limit("ln2_low", x), r)
    return k, k_integer, b.fma(r * r, polynomial(b, "exp", r), r)


@function
def exp(b: Builder, x: X) -> X:
    k, k_integer, m = exp_reduced(b, clamp(x, limit("exp_low", x), limit("exp_high", x)))
    return scale(b, m + 1.0, k, k_integer)


@function
def exp2(b: Builder, x: X) -> X:
    x = clamp(x, limit("exp2_low", x), limit("exp2_high", x))
    k, k_integer = nearest(b, x)
    r = (x - k) * math.log(2)
    return scale(b, b.fma(r * r, polynomial(b, "exp", r), r) + 1.0, k, k_integer)


@function
def expm1(b: Builder, x: X) -> X:
    _, k_integer, m = exp_reduced(b, clamp(x, limit("expm1_low", x), limit("expm1_high", x)))
    half = power_of_two(x, k_integer - 1)
    return (b.fma(m, half, half - 0.5) * 2.0).copysign(x)


@function
def sigmoid(b: Builder, x: X) -> X:
    e = apply(b, "exp", -x.abs())
    return (x < 0.0).where(e, 1.0) / (e + 1.0)


@function
def tanh(b: Builder, x: X) -> X:
    t = apply(b, "expm1", clamp(x.abs(), 0.0, limit("tanh_high", x)) * 2.0)
    return (t / (t + 2.0)).copysign(x)


@function
def sinh(b: Builder, x: X) -> X:
    a = x.abs()
    t = apply(b, "expm1", a)
    h = apply(b, "exp", a * 0.5)
    return (a < 20.0).where((t + t / (t + 1.0)) * 0.5, h * 0.5 * h).copysign(x)


@function
def cosh(b: Builder, x: X) -> X:
    a = x.abs()
    e = apply(b, "exp", a)
    h = apply(b, "exp", a * 0.5)
    return (a < 20.0).where((e + 1.0 / e) * 0.5, h * 0.5 * h)


# -- logarithms -------------------------------------------------------------------------------------------------


def log_reduced(x: X) -> tuple[X, X]:
    """k and f, where x = 2**k (1 + f) and 1 + f lies between sqrt(1/2) and sqrt(2), for positive finite x."""
    mantissa, bias = limit("mantissa", x), limit("bias", x)
    tiny = x < limit("normal", x)
    bits = tiny.where(x * limit("lift", x), x).bits() + (ONE_BITS[x.type] - SQRT_HALF_BITS[x.type])
    exponent = bits.lshr(mantissa)
    if x.type == "double":  # the exponent in the low bits of 2**52
        k = (exponent | 0x4330000000000000).floats() - (2.0**52 + bias)
    else:
        k = exponent.convert("sitofp", "float") - float(bias)
    k = tiny.where(k - limit("lifted", x), k)
    m = ((bits & ((1 << mantissa) - 1)) + SQRT_HALF_BITS[x.type]).floats()
    return k, m - 1.0


def log_of_one_plus(b: Builder, f: X) -> tuple[X, X]:
    """log(1 + f) for small f as f plus a correction."""
    half_square = f * f * 0.5
    if f.type == "float":
        return f, b.fma(f * f * f, polynomial(b, "log_cubic", f), -half_square)
    s = f / (f + 2.0)
    z = s * s
    return f, s * (half_square + z * polynomial(b, "log", z)) - half_square


def log_limits(x: X, result: X) -> X:
    result = x.eq(math.inf).where(math.inf, result)
    result = x.eq(0.0).where(-math.inf, result)
    return x.compare("ult", 0.0).where(math.nan, result)


@function
def log(b: Builder, x: X) -> X:
    k, f = log_reduced(x)
    f, correction = log_of_one_plus(b, f)
    low = b.fma(k, limit("ln2_low", x), correction)
    return log_limits(x, b.fma(k, limit("ln2_high", x), low + f))


def _log_to_base(b: Builder, x: X, factor: float, high: float, low: float) -> X:
    k, f = log_reduced(x)
    f, correction = log_of_one_plus(b, f)
    return log_limits(x, k * high + b.fma(f + correction, factor, k * low))


@function
def log2(b: Builder, x: X) -> X:
    return _log_to_base(b, x, LOG2E, 1.0, 0.0)


@function
def log10(b: Builder, x: X) -> X:
    return _log_to_base(b, x, 1 / math.log(10), 0.30102999566361177, 3.694239077158931e-13)


@function
def log1p(b: Builder, x: X) -> X:
    u = x + 1.0
    lost = (x > 1.0).where(1.0 - (u - x), x - (u - 1.0))
    k, f = log_reduced(u)
    f, correction = log_of_one_plus(b, f)
    low = b.fma(k, limit("ln2_low", x), correction + lost / u)
    result = log_limits(u, b.fma(k, limit("ln2_high", x), low + f))
    return (x.abs() < limit("normal", x)).where(x, result)


@function
def asinh(b: Builder, x: X) -> X:
    a = x.abs()
    small = apply(b, "log1p", a + a * a / ((a * a + 1.0).sqrt() + 1.0))
    large = apply(b, "log", a) + math.log(2)
    return (a > 2.0**28).where(large, small).copysign(x)


@function
def acosh(b: Builder, x: X) -> X:
    t = x - 1.0
    small = apply(b, "log1p", t + (t * 2.0 + t * t).sqrt())
    large = apply(b, "log", x) + math.log(2)
    return (x > 2.0**28).where(large, (x < 1.0).where(math.nan, small))


@function
def atanh(b: Builder, x: X) -> X:
    a = x.abs()
    return (apply(b, "log1p", a * 2.0 / (1.0 - a)) * 0.5).copysign(x)


# -- powers -----------------------------------------------------------------------------------------------------


@function
def pow(b: Builder, x: X, y: X) -> X:
    """exp(y log|x|) with the logarithm in twice the precision; about 8 ulp where the result nears the f64 limits."""
    a = x.abs()
    high, low = _log_in_two(b, a)
    p, error = two_product(b, y, high)
    error = b.fma(y, low, error)
    result = apply(b, "exp", p)
    result = ((p.abs() < 1000.0) & (result < math.inf)).where(b.fma(result, error, result), result)

    positive, whole = y > 0.0, b.trunc(y).eq(y)
    half = y * 0.5
    odd = whole & b.trunc(half).ne(half)
    negative = x.bits().compare("slt", 0)
    result = (a.eq(0.0)).where(positive.where(x.like(0.0), math.inf), result)
    result = (a.eq(math.inf)).where(positive.where(x.like(math.inf), 0.0), result)
    grows = (a > 1.0) ^ (y < 0.0)
    endless = a.eq(1.0).where(1.0, grows.where(x.like(math.inf), 0.0))
    result = y.abs().eq(math.inf).where(endless, result)
    result = (negative & odd).where(-result, result)
    undefined = (x < 0.0) & ~whole & (a < math.inf) & (y.abs() < math.inf)
    result = (undefined | x.isnan() | y.isnan()).where(math.nan, result)
    return (y.eq(0.0) | x.eq(1.0)).where(1.0, result)


def _log_in_two(b: Builder, x: X) -> tuple[X, X]:
    """log(x) as an unevaluated sum, good to about 2**-62."""
    k, f = log_reduced(x)
    d, d_low = two_sum(f, f.like(2.0))
    s = f / d
    p, e = two_product(b, s, d)
    s_low = ((f - p) - e - s * d_low) / d
    z = s * s
    # log(1+f) = 2 atanh(s): the series beyond 2s is small enough for one double.
    tail = s * z * polynomial(b, "log", z) + s_low * 2.0
    high, low = two_sum(k * limit("ln2_high", x), s * 2.0)
    return two_sum(high, low + b.fma(k, limit("ln2_low", x), tail))
