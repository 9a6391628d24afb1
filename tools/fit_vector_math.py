"""Derive the polynomials of ``lezero.codegen.vector_math`` and write ``codegen/coefficients.py``.

Each polynomial interpolates its function at Chebyshev nodes in 60-digit arithmetic, which is within a small factor of
the minimax polynomial (Trefethen, *Approximation Theory and Approximation Practice*, 2013, chapter 16).  Needs mpmath::

    python tools/fit_vector_math.py src/lezero/codegen/coefficients.py
"""

from __future__ import annotations

import struct
import sys

import mpmath as mp

mp.mp.dps = 60


def interpolate(f, low, high, degree) -> list:
    """Monomial coefficients, lowest first, of the interpolant of `f` on [low, high]."""
    n = degree + 1
    low, high = mp.mpf(low), mp.mpf(high)
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * n)) for k in range(n)]
    # Newton's divided differences, then expansion.
    # A node in the middle may be zero but for rounding, where tails are 0/0; beside it they are the same to 20 digits.
    table = [f(x if abs(x) > mp.mpf(10) ** -20 else mp.mpf(10) ** -20) for x in nodes]
    for j in range(1, n):
        for i in range(n - 1, j - 1, -1):
            table[i] = (table[i] - table[i - 1]) / (nodes[i] - nodes[i - j])
    result = [mp.mpf(0)]
    for i in range(n - 1, -1, -1):
        shifted = [mp.mpf(0), *result]
        result = [s - nodes[i] * r for s, r in zip(shifted, [*result, mp.mpf(0)])]
        result[0] += table[i]
    return result[:n]


def root(f, at_zero):
    """`f` of sqrt(z), with its limit at zero."""
    return lambda z: at_zero if z == 0 else f(mp.sqrt(z))


def log_tail(z):
    s = mp.sqrt(z)
    return (mp.log((1 + s) / (1 - s)) - 2 * s) / (s * z)


def scaled_erfc(t):
    x = mp.mpf("3.75") * (1 + t) / (1 - t)
    if x > 200:  # asymptotic: erfc(x) exp(x^2) = 1/(x sqrt(pi)) * (1 - 1/(2x^2) + ...)
        total, term = mp.mpf(0), mp.mpf(1)
        for k in range(1, 20):
            total, term = total + term, -term * (2 * k - 1) / (2 * x * x)
        return (1 + 2 * x) * total / (x * mp.sqrt(mp.pi))
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.01")
QUARTER_PI = mp.pi / 4 * mp.mpf("1.001")
S_MAX = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2
TAN_PI_8 = (mp.sqrt(2) - 1) * mp.mpf("1.001")

exp_tail = lambda r: (mp.exp(r) - 1 - r) / r**2
log_cubic = lambda f: (mp.log(1 + f) - f + f * f / 2) / f**3
sin_tail = root(lambda r: (mp.sin(r) - r) / r**3, mp.mpf(-1) / 6)
cos_tail = root(lambda r: (mp.cos(r) - 1 + r * r / 2) / r**4, mp.mpf(1) / 24)
asin_tail = root(lambda x: (mp.asin(x) - x) / x**3, mp.mpf(1) / 6)
atan_tail = root(lambda x: (mp.atan(x) - x) / x**3, mp.mpf(-1) / 3)
erf_near = root(lambda x: mp.erf(x) / x, 2 / mp.sqrt(mp.pi))
erf_far = lambda x: mp.log(mp.erfc(x))
sinpi_tail = root(lambda x: (mp.sin(mp.pi * x) - mp.pi * x) / x**3, -(mp.pi**3) / 6)

# erf about multiples of a step, for processors that pick coefficients by a shuffle of 16 lanes.
ERF_STEP = mp.mpf(33) / 128
ERF_REACH = ERF_STEP / 2 * mp.mpf("1.0001")


def erf_about(k):
    """The slope of erf between x = k * ERF_STEP and x + t, as a function of t, and the interval of t; 1 less about zero."""
    x = k * ERF_STEP
    return lambda t: (mp.erf(x + t) - mp.erf(x)) / t - (k == 0), (-ERF_REACH if k else 0, ERF_REACH)


def erf_at():
    """erf of the multiples of ERF_STEP, and what rounding to f32 leaves of them."""
    exact = [mp.erf(k * ERF_STEP) for k in range(16)]
    rounded = [single(value) for value in exact]
    return rounded, [single(value - r) for value, r in zip(exact, rounded)]


FITS = {
    # name: (function, interval, degree in f64, interval and degree in f32 or None)
    "exp": (exp_tail, (-HALF_LN2, HALF_LN2), 9, 4),
    "log": (log_tail, (0, S_MAX), 7, None),
    "log_cubic": (log_cubic, (mp.sqrt("0.5") - 1, mp.sqrt(2) - 1), None, 7),
    "sin": (sin_tail, (0, QUARTER_PI**2), 6, 2),
    "cos": (cos_tail, (0, QUARTER_PI**2), 6, 2),
    "asin": (asin_tail, (0, mp.mpf("0.25")), 13, None),
    "atan": (atan_tail, (0, TAN_PI_8**2), 12, None),
    "erf_near": (erf_near, (0, 1), 13, 6),
    "erf_far": (erf_far, (1, 4), None, 8),
    "erfc": (scaled_erfc, (-1, 1 - mp.mpf(10) ** -9), 24, None),
    "sinpi": (sinpi_tail, (0, mp.mpf("0.25")), 8, None),
    **{f"erf_about_{k}": (*erf_about(k), None, 5) for k in range(16)},
}


def text(value) -> str:
    return repr(float(value))


def single(value) -> float:
    return struct.unpack("f", struct.pack("f", float(value)))[0]


def main(path: str) -> None:
    lines = [
        '"""Polynomial coefficients, lowest power first.  Written by tools/fit_vector_math.py; do not edit."""',
        "",
        "COEFFICIENTS: dict[tuple[str, str], tuple[float, ...]] = {",
    ]
    for name, (f, interval, *degrees) in FITS.items():
        for type, degree in zip(("double", "float"), degrees):
            if degree is None:
                continue
            values = interpolate(f, *interval, degree)
            lines.append(f'    ("{name}", "{type}"): (')
            lines += [f"        {text(v if type == 'double' else single(v))}," for v in values]
            lines.append("    ),")
    for name, values in zip(("erf_at", "erf_at_rest"), erf_at()):
        lines += [f'    ("{name}", "float"): (', *(f"        {text(v)}," for v in values), "    ),"]
    lines.append("}")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
