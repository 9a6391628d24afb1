"""Error functions, gamma functions and the floating remainder."""

from __future__ import annotations

import math

from lezero.codegen.coefficients import COEFFICIENTS
from lezero.codegen.math_tools import apply, clamp, function, nearest, polynomial, repeat_while
from lezero.codegen.values import Builder, X

# Bernoulli numbers over 2k(2k-1) and over 2k: the asymptotic series of lgamma and digamma.
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160)
SHIFT = 8  # the recurrences move an argument up by this much, where the series above are exact to f64


ERF_STEP = 33 / 128
ERF_LAST = 3.99  # erf of more is 1 in f32


def _erf_by_table(b: Builder, x: X) -> X:
    """erf at the nearest multiple of `ERF_STEP`, and from there x - that multiple times a polynomial, picked from 16 by one
    shuffle for each coefficient: less than half the instructions of two polynomials and an exponential.

    It never falls where x rises: what is added is small, so that little but the last addition rounds (1.6 ulp in all).  About zero the
    place of erf at the multiple is x's own, and the polynomial is of erf(x)/x - 1.
    """
    a = clamp(x.abs(), 0.0, ERF_LAST)
    k, k_integer = nearest(b, a * (1 / ERF_STEP))
    t = b.fma(k, -ERF_STEP, a)
    pieces = [COEFFICIENTS[f"erf_about_{j}", "float"] for j in range(16)]
    *rest, slope = [b.pick(b.floats(column), k_integer) for column in zip(*pieces)]
    for c in reversed(rest):
        slope = b.fma(slope, t, c)
    at, at_rest = (b.pick(b.floats(COEFFICIENTS[name, "float"]), k_integer) for name in ("erf_at", "erf_at_rest"))
    result = k.eq(0.0).where(a, at) + b.fma(t, slope, at_rest)
    return (result > 1.0).where(1.0, result).copysign(x)


@function
def erf(b: Builder, x: X) -> X:
    if b.picks(x):
        return _erf_by_table(b, x)
    a = x.abs()
    near = a * polynomial(b, "erf_near", a * a)
    if x.type == "float":
        far = 1.0 - apply(b, "exp", polynomial(b, "erf_far", clamp(a, 1.0, 4.0)))
    else:
        far = 1.0 - apply(b, "erfc", a)
    return (a < 1.0).where(near, far).copysign(x)


@function
def erfc(b: Builder, x: X) -> X:
    """exp(-x*x) * Q(t) / (1 + 2x), t = (x - 3.75)/(x + 3.75) (Shepherd and Laframboise 1981); 6 ulp in f64."""
    a = clamp(x.abs(), 0.0, 28.0)
    # exp(-a*a) needs a*a to twice the precision: its upper half has an exact square.
    high = (a.bits() & ~((1 << 27) - 1)).floats()
    d = (a - high) * (a + high)
    small = 1.0 - d * (1.0 - d * (0.5 - d * (1 / 6)))
    gauss = apply(b, "exp", -(high * high)) * small
    result = gauss * polynomial(b, "erfc", (a - 3.75) / (a + 3.75)) / (a * 2.0 + 1.0)
    return (x < 0.0).where(2.0 - result, result)


def _series(b: Builder, coefficients: tuple[float, ...], z: X) -> X:
    *rest, last = coefficients
    result = z.like(last)
    for c in reversed(rest):
        result = b.fma(result, z, c)
    return result


def _sine_of_pi(b: Builder, r: X) -> X:
    """sin(pi r) for |r| <= 1/2."""
    z = r * r
    return b.fma(r * z, polynomial(b, "sinpi", z), r * math.pi)


@function
def lgamma(b: Builder, x: X) -> X:
    """log|gamma(x)|; absolute error near its zeros 1e-14."""
    reflected = x < 0.5
    y = reflected.where(1.0 - x, x)
    low = y < float(SHIFT)
    product = low.where(y, 1.0)
    for i in range(1, SHIFT):
        product = product * low.where(y + float(i), 1.0)
    w = low.where(y + float(SHIFT), y)
    inverse = 1.0 / w
    series = inverse * _series(b, STIRLING, inverse * inverse)
    constant = 0.5 * math.log(2 * math.pi) - 0.5
    result = (w - 0.5) * (apply(b, "log", w) - 1.0) + (series + constant) - apply(b, "log", product)
    sine = _sine_of_pi(b, x - b.round(x)).abs()
    result = reflected.where(apply(b, "log", math.pi / sine) - result, result)
    return x.abs().eq(math.inf).where(math.inf, result)


@function
def digamma(b: Builder, x: X) -> X:
    """The derivative of log(gamma(x)); NaN at negative integers, -inf at 0, inf at -0; absolute error near its zeros 1e-14."""
    reflected = x < 0.5
    y = reflected.where(1.0 - x, x)
    low = y < float(SHIFT)
    total = 1.0 / y
    for i in range(1, SHIFT):
        total = total + 1.0 / (y + float(i))
    w = low.where(y + float(SHIFT), y)
    inverse = 1.0 / w
    z = inverse * inverse
    result = apply(b, "log", w) - (inverse * 0.5 + z * _series(b, DIGAMMA, z)) - low.where(total, 0.0)
    r = x - b.round(x)
    cotangent = _sine_of_pi(b, 0.5 - r.abs()) / _sine_of_pi(b, r)
    result = reflected.where(result - cotangent * math.pi, result)
    result = x.eq(0.0).where(x.like(math.inf).copysign(-x), result)
    return ((x < 0.0) & r.eq(0.0)).where(math.nan, result)


def _exponent(x: X) -> X:
    """floor(log2(x)) of positive f64 `x`, subnormal or not, as integers with a bias."""
    tiny = x < 2.0**-1022
    return tiny.where(x * 2.0**54, x).bits().lshr(52) - tiny.where(x.bits().like(54), 0)


@function
def fmod(b: Builder, x: X, y: X) -> X:
    """The exact remainder, truncating: multiples of y times a power of two are taken off, up to 50 bits a round."""
    bits = 50 if b.target.fma else 24
    a, m = x.abs(), y.abs()
    valid = (m > 0.0) & (a < math.inf)
    a, m = valid.where(a, 0.0), valid.where(m, 1.0)
    exponent = _exponent(m)

    def step(r: X) -> tuple[X]:
        excess = _exponent(r) - exponent - bits
        excess = (excess > 0).where(excess, 0)
        half = excess.lshr(1)
        s = m * ((half + 1023) << 52).floats() * ((excess - half + 1023) << 52).floats()
        needed = r >= m
        q = b.trunc(needed.where(r, 0.0) / s)
        if b.target.fma:
            left = b.fma(-q, s, r)
        else:
            high = (s.bits() & ~((1 << 27) - 1)).floats()
            left = (r - q * high) - q * (s - high)
        return (needed.where((left < 0.0).where(left + s, left), r),)

    (result,) = repeat_while(b, (a,), lambda r: r >= m, step)
    return valid.where(result, math.nan).copysign(x)
