"""Complex arithmetic on pairs of real vectors."""

from __future__ import annotations

from dataclasses import dataclass

from lezero.codegen import vector_math
from lezero.codegen.values import Builder, X

REAL = {"c64": "f32", "c128": "f64"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex value: real and imaginary lanes."""

    re: X
    im: X

    @property
    def n(self) -> int:
        return self.re.n

    def __add__(self, o: Pair) -> Pair:
        return Pair(self.re + o.re, self.im + o.im)

    def __sub__(self, o: Pair) -> Pair:
        return Pair(self.re - o.re, self.im - o.im)

    def __mul__(self, o: Pair) -> Pair:
        return Pair(self.re * o.re - self.im * o.im, self.re * o.im + self.im * o.re)


def divide(x: Pair, y: Pair) -> Pair:
    """Smith's method: scaled by the larger part of the divisor, so that its square cannot overflow (R. Smith 1962)."""
    wide = y.re.abs() >= y.im.abs()
    large, small = wide.where(y.re, y.im), wide.where(y.im, y.re)
    ratio = small / large
    ratio = ratio.isnan().where(0.0, ratio)
    scale = 1.0 / (large + small * ratio)
    a, c = wide.where(x.re, x.im), wide.where(x.im, x.re)
    re = (a + c * ratio) * scale
    im = (c - a * ratio) * scale
    return Pair(re, wide.where(im, -im))


def magnitude(x: Pair) -> X:
    """sqrt(re**2 + im**2) without overflow."""
    a, c = x.re.abs(), x.im.abs()
    large, small = (a > c).where(a, c), (a > c).where(c, a)
    ratio = small / large
    ratio = (large.eq(0.0) | small.eq(large)).where(large.ne(0.0).where(large.like(1.0), 0.0), ratio)
    result = large * (ratio * ratio + 1.0).sqrt()
    infinite = a.eq(float("inf")) | c.eq(float("inf"))
    result = (x.re.isnan() | x.im.isnan()).where(float("nan"), result)
    return infinite.where(float("inf"), result)


def power(b: Builder, x: Pair, y: Pair) -> Pair:
    """exp(y * log(x)); of x = 0 it is 1 for y = 0, 0 for other y of positive real part, and NaN else, as in NumPy."""
    exponent = y * unary(b, "log", x)  # type: ignore[operator]
    result = unary(b, "exp", exponent)
    assert isinstance(result, Pair)
    zero = x.re.eq(0.0) & x.im.eq(0.0)
    one, nothing = zero & y.re.eq(0.0) & y.im.eq(0.0), zero & (y.re > 0.0)
    return Pair(one.where(1.0, nothing.where(0.0, result.re)), (one | nothing).where(0.0, result.im))


def unary(b: Builder, op: str, x: Pair) -> X | Pair:
    match op:
        case "neg":
            return Pair(-x.re, -x.im)
        case "real":
            return x.re
        case "imag":
            return x.im
        case "conj":
            return Pair(x.re, -x.im)
        case "abs":
            return magnitude(x)
        case "reciprocal":
            return divide(Pair(x.re.like(1.0), x.re.like(0.0)), x)
        case "exp":
            size = vector_math.apply(b, "exp", x.re)
            real = x.im.eq(0.0)
            sine = size * vector_math.apply(b, "sin", x.im)
            return Pair(size * vector_math.apply(b, "cos", x.im), real.where(x.im, sine))
        case "log":
            return Pair(vector_math.apply(b, "log", magnitude(x)), vector_math.apply(b, "atan2", x.im, x.re))
        case "sqrt":
            size = magnitude(x)
            t = ((size + x.re.abs()) * 0.5).sqrt()
            other = x.im.abs() / (t * 2.0)
            other = t.eq(0.0).where(0.0, other)
            right = x.re >= 0.0
            return Pair(right.where(t, other), right.where(other, t).copysign(x.im))
        case "isnan":
            return x.re.isnan() | x.im.isnan()
        case "isinf":
            return x.re.abs().eq(float("inf")) | x.im.abs().eq(float("inf"))
        case "isfinite":
            return (x.re.abs() < float("inf")) & (x.im.abs() < float("inf"))
    raise NotImplementedError(f"{op} of complex values")


def binary(b: Builder, op: str, x: Pair, y: Pair) -> X | Pair:
    match op:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "div":
            return divide(x, y)
        case "pow":
            return power(b, x, y)
        case "eq":
            return x.re.eq(y.re) & x.im.eq(y.im)
        case "ne":
            return x.re.ne(y.re) | x.im.ne(y.im)
    raise NotImplementedError(f"{op} of complex values")
