"""Sines, cosines and their inverses.

f64 arguments are right to about 3e9 (pi/2 in four parts of 22 bits, so that up to 31-bit multiples are exact); beyond,
results stay between -1 and 1 but lose their meaning.  f32 is computed in f64 lanes with short polynomials.
"""

from __future__ import annotations

from lezero.codegen.math_tools import clamp, function, nearest, polynomial, two_sum
from lezero.codegen.values import Builder, X

HALF_PI_PARTS = (1.570796012878418, 3.139164164167596e-07, 6.223371969669989e-14, 2.0222662487959506e-21)
TWO_OVER_PI = 0.6366197723675814
HALF_PI, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17
QUARTER_PI = 0.7853981633974483
TAN_PI_8 = 0.41421356237309503


def reduce_to_quadrant(b: Builder, x: X) -> tuple[X, X, X]:
    """The quadrant of f64 `x` and its distance from that quadrant's axis, as a value and a correction."""
    k, quadrant = nearest(b, x * TWO_OVER_PI)
    p1, p2, p3, p4 = HALF_PI_PARTS
    r, e = two_sum(x - k * p1, -(k * p2))
    r, e2 = two_sum(r, -(k * p3))
    low = (e + e2) - k * p4
    high = r + low
    low = (high.abs() > 0.8).where(0.0, (r - high) + low)  # so only for arguments that are too large
    return quadrant, clamp(high, -0.8, 0.8), low


def sine(b: Builder, r: X, low: X) -> X:
    z = r * r
    return r + (r * z * polynomial(b, "sin", z) + low * (1.0 - z * 0.5))


def cosine(b: Builder, r: X, low: X) -> X:
    z = r * r
    half = z * 0.5
    w = 1.0 - half
    return w + (((1.0 - w) - half) + (z * z * polynomial(b, "cos", z) - r * low))


def _wave(b: Builder, x: X, shift: int) -> X:
    """sin(x + shift * pi/2)."""
    if x.type == "float":
        wide = x.convert("fpext", "double")
        k, quadrant = nearest(b, wide * TWO_OVER_PI)
        p1, p2, p3, _ = HALF_PI_PARTS
        r = clamp(((wide - k * p1) - k * p2) - k * p3, -0.8, 0.8)
        z = r * r
        s = b.fma(r * z, polynomial(b, "sin", z, "float"), r)
        c = b.fma(z * z, polynomial(b, "cos", z, "float"), 1.0 - z * 0.5)
    else:
        quadrant, r, low = reduce_to_quadrant(b, x)
        s, c = sine(b, r, low), cosine(b, r, low)
    if shift:
        quadrant = quadrant + shift
    result = (quadrant & 1).ne(0).where(c, s)
    # Bit 1 of the quadrant becomes the sign.
    result = (result.bits() ^ ((quadrant & 2) << 62)).floats()
    if x.type == "float":
        result = result.convert("fptrunc", "float")
    if shift:
        return result
    return x.eq(0.0).where(x, result)


@function
def sin(b: Builder, x: X) -> X:
    return _wave(b, x, 0)


@function
def cos(b: Builder, x: X) -> X:
    return _wave(b, x, 1)


@function
def tan(b: Builder, x: X) -> X:
    quadrant, r, low = reduce_to_quadrant(b, x)
    s, c = sine(b, r, low), cosine(b, r, low)
    odd = (quadrant & 1).ne(0)
    return x.eq(0.0).where(x, odd.where(-c, s) / odd.where(s, c))


def _half_angle(b: Builder, x: X) -> tuple[X, X]:
    """Whether |x| > 1/2, and asin(|x|) or, there, asin(sqrt((1 - |x|) / 2))."""
    a = x.abs()
    far = a > 0.5
    z = far.where((1.0 - a) * 0.5, a * a)
    s = far.where(z.sqrt(), a)
    return far, b.fma(s * z, polynomial(b, "asin", z), s)


@function
def asin(b: Builder, x: X) -> X:
    far, r = _half_angle(b, x)
    return far.where(HALF_PI - (r * 2.0 - HALF_PI_LOW), r).copysign(x)


@function
def acos(b: Builder, x: X) -> X:
    far, r = _half_angle(b, x)
    near = HALF_PI - (r.copysign(x) - HALF_PI_LOW)
    return far.where((x < 0.0).where((HALF_PI - (r - HALF_PI_LOW)) * 2.0, r * 2.0), near)


def _angle(b: Builder, y: X, x: X) -> X:
    """The angle of (x, y) in the first quadrant."""
    steep = y > x
    small, large = steep.where(x, y), steep.where(y, x)
    diagonal = small > large * TAN_PI_8
    top, bottom = diagonal.where(small - large, small), diagonal.where(small + large, large)
    q = top / bottom
    r = b.fma(q * q * q, polynomial(b, "atan", q * q), q)
    r = diagonal.where(r + QUARTER_PI, r)
    return steep.where(HALF_PI - (r - HALF_PI_LOW), r)


@function
def atan(b: Builder, x: X) -> X:
    return _angle(b, x.abs(), x.like(1.0)).copysign(x)


@function
def atan2(b: Builder, y: X, x: X) -> X:
    ay, ax = y.abs(), x.abs()
    infinite = ay.eq(float("inf")) & ax.eq(float("inf"))
    zero = ay.eq(0.0) & ax.eq(0.0)
    # Halved where the sum of both could overflow; the angle does not change.
    large = (ay > 2.0**1000) | (ax > 2.0**1000)
    ay, ax = large.where(ay * 0.25, ay), large.where(ax * 0.25, ax)
    ay, ax = infinite.where(1.0, ay), (infinite | zero).where(1.0, ax)
    r = _angle(b, ay, ax)
    r = x.bits().compare("slt", 0).where(HALF_PI * 2.0 - (r - HALF_PI_LOW * 2.0), r)
    return r.copysign(y)
