"""Functions of probability and number theory, element by element; installed like ``composed``.

Names, arguments and results follow PyTorch.  Those of integers and of the bits of numbers (``gcd``, ``lcm``, ``nextafter``, the
exponents of ``frexp``), ``histogram``, ``mode`` and the incomplete gamma functions are computed by NumPy when they are called: the value is read, so what has been recorded
runs, and they are refused inside ``lz.jit``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lezero.composed import between, median, need_quantiles
from lezero.function import Function, custom_op
from lezero.graph import dtype as dt
from lezero.misspelt import suggest_names
from lezero.ops.base import broadcast_shapes, normalize_axis
from lezero.ops.functions import trigamma
from lezero.rearranged import _values
from lezero.tensor import Pair, Tensor, cat, tensor, where
from lezero.tensor.computing import also_of_scalars
from lezero.tensor.writing import in_place

# -- errors and Bessel functions --------------------------------------------------------------------------------------


def _wide(x: Tensor) -> Tensor:
    """In float32 or float64."""
    return x if x.dtype is dt.float64 else x._cast(dt.float32)


@custom_op
def _erfinv(y: Tensor) -> Tensor:
    size = y.abs()
    # Winitzki (2008), "A handy approximation for the error function and its inverse": two digits to start from
    log = (-size * size).log1p()
    half = 2 / (math.pi * 0.147) + log / 2
    x = ((half * half - log / 0.147).sqrt() - half).clamp(min=0).sqrt()
    for _ in range(3):  # Halley's steps; near 1 the complement keeps the digits
        error = where(size < 0.5, x.erf() - size, (1 - size) - x.erfc())
        newton = error * (math.sqrt(math.pi) / 2) * (x * x).exp()
        x = x - newton / (1 + x * newton)
    x = where(size < 1, x, where(size == 1, math.inf, math.nan))
    return x.copysign(y)


@_erfinv.gradient
def _(dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return dy * (math.sqrt(math.pi) / 2) * (x * x).exp()


def erfinv(input: Tensor) -> Tensor:
    """The inverse of ``erf``: infinite at -1 and 1, NaN beyond."""
    x = input if input.is_floating_point() else input._cast(dt.default_dtype())
    return _erfinv(_wide(x))._cast(x.dtype)


# Chebyshev series of exp(-x) I0(x) and exp(-x) I1(x) / x in x / 4 - 1 for x up to 8, and of sqrt(x) exp(-x) times either in
# 16 / x - 1 beyond; computed to 40 digits from their definition.
_I0_SMALL = (
    0.33839763720473804, -0.3046826723431984, 0.17162090152220878, -0.094901097048047644, 0.049305284239670708,
    -0.023737414805899469, 0.010546460394594998, -0.0043243099950505759, 0.0016394756169413358,
    -0.00057637557453858237, 0.00018850288509584166, -5.7541950100821037e-5, 1.6448448070728897e-5,
    -4.4167383584587506e-6, 1.1173875391201037e-6, -2.6707938539406117e-7, 6.0469950225419189e-8,
    -1.300025009986248e-8, 2.6598237246823867e-9, -5.1897956016352629e-10, 9.6758090353732369e-11,
    -1.7268262914415557e-11, 2.9550526631296398e-12, -4.8564467831119295e-13, 7.6761854986049356e-14,
    -1.1685332877993452e-14, 1.715391285555133e-15, -2.4312798465479547e-16, 3.3307945188222381e-17,
    -4.4153416464793394e-18,
)  # fmt: skip
_I0_LARGE = (
    0.40224520550705442, 0.0033691164782556941, 6.889758346916824e-5, 2.8913705208347565e-6, 2.0489185894690637e-7,
    2.2666689904981781e-8, 3.3962320257083863e-9, 4.9406023882249696e-10, 1.1889147107846438e-11,
    -3.1499165279632414e-11, -1.3215811840447713e-11, -1.7941785315068061e-12, 7.1801244513836662e-13,
    3.8527783827421427e-13, 1.5400862175214098e-14, -4.1505693472872221e-14, -9.5548466988283076e-15,
    3.8116806693526224e-15, 1.7725601330565264e-15, -3.4254856196772191e-16, -2.8276239805165835e-16,
    3.4612228676974609e-17, 4.4656214202967624e-17, -4.8305044859442179e-18, -7.2331804878747736e-18,
)  # fmt: skip
_I1_SMALL = (
    0.12629359322181683, -0.17641651835783406, 0.1026436586898471, -0.052945981208094991, 0.024726449030626517,
    -0.010564084894626198, 0.0041564229443128882, -0.0015135724506312531, 0.00051228595616857577,
    -0.00016176081582589675, 4.7815651075500542e-5, -1.3273163656039436e-5, 3.4702513081376785e-6,
    -8.5687202646954547e-7, 2.0032947535521353e-7, -4.4450591287963281e-8, 9.3815373864957718e-9,
    -1.8872497517228293e-9, 3.625590281552117e-10, -6.6634897235020277e-11, 1.1736186298890902e-11,
    -1.9839743977649437e-12, 3.2237933659455747e-13, -5.0421855047279117e-14, 7.6006842947354069e-15,
    -1.1055969477353863e-15, 1.5536319577362005e-16, -2.1114212143581661e-17, 2.7779141127610464e-18,
)  # fmt: skip
_I1_LARGE = (
    0.38928811750914006, -0.0097610974913614684, -0.00011058893876262372, -3.8825648088776904e-6,
    -2.5122362378702089e-7, -2.6314688468895195e-8, -3.835380385964237e-9, -5.5897434621965838e-10,
    -1.8974958123505412e-11, 3.2526035830154882e-11, 1.4125807436613781e-11, 2.0356285441470895e-12,
    -7.1985517762459085e-13, -4.0835511110921973e-13, -2.1015418427726643e-14, 4.2724400167119514e-14,
    1.0420276984128803e-14, -3.8144030724370078e-15, -1.8803547755107824e-15, 3.3082023109209282e-16,
    2.9626289976459502e-16, -3.2095259219934237e-17, -4.6503053684893608e-17, 4.4143483230717448e-18,
    7.5172963108421231e-18,
)  # fmt: skip


def _chebyshev(t: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Clenshaw's sum of a series in `t`, from -1 to 1."""
    later, last = t * 0, t * 0
    for c in reversed(coefficients[1:]):
        later, last = t * 2 * later - last + c, later
    return t * later - last + coefficients[0]


def _bessel(x: Tensor, small: tuple[float, ...], large: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(|x|, the series below 8, that beyond it) of one order, each without its factor."""
    size = x.abs()
    below, beyond = size.clamp(max=8.0), size.clamp(min=8.0)
    return size, _chebyshev(below / 4 - 1, small), _chebyshev(16 / beyond - 1, large) / beyond.sqrt()


@custom_op
def _i0(x: Tensor) -> Tensor:
    size, below, beyond = _bessel(x, _I0_SMALL, _I0_LARGE)
    half = (size / 2).exp()  # twice, since exp overflows before the result does
    return where(size <= 8, below, beyond) * half * half


@_i0.gradient
def _(dy: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return dy * _i1(x)


@custom_op
def _i1(x: Tensor) -> Tensor:
    size, below, beyond = _bessel(x, _I1_SMALL, _I1_LARGE)
    half = (size / 2).exp()
    return (where(size <= 8, below * size, beyond) * half * half).copysign(x)


@_i1.gradient
def _(dy: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return dy * (_i0(x) - where(x == 0, 0.5, y / where(x == 0, 1.0, x)))


def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind of order 0."""
    x = input if input.is_floating_point() else input._cast(dt.default_dtype())
    return _i0(_wide(x))._cast(x.dtype)


# -- relatives of the gamma function ----------------------------------------------------------------------------------

# Bernoulli numbers B(2 j) / (2 j)!, of Euler and Maclaurin's sum
_BERNOULLI = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000,
)  # fmt: skip


def _zeta(s: int, x: Tensor) -> Tensor:
    """The sum of ``(x + k) ** -s`` over k = 0, 1, …, for positive x: ten terms, and Euler and Maclaurin's of the rest."""
    total = x ** float(-s)
    for k in range(1, 10):
        total = total + (x + k) ** float(-s)
    a = x + 10
    rest = a ** float(1 - s) / (s - 1) + a ** float(-s) / 2
    factor = float(s)
    for j, b in enumerate(_BERNOULLI):
        rest = rest + b * factor * a ** float(-s - 2 * j - 1)
        factor *= (s + 2 * j + 1) * (s + 2 * j + 2)
    return where(x > 0, total + rest, where(x == 0, math.inf, math.nan))


def polygamma(input: Tensor | int, n: Tensor | int) -> Tensor:
    """The `n`-th derivative of ``digamma``.

    Called as ``x.polygamma(n)`` or ``lz.polygamma(n, x)``.
    """
    order, x = (n, input) if isinstance(input, Tensor) else (input, n)
    if not isinstance(order, int) or not isinstance(x, Tensor):
        raise TypeError("polygamma: an order and a tensor are needed")
    if order < 0:
        raise ValueError(f"polygamma: the order is not negative, got {order}")
    x = x if x.is_floating_point() else x._cast(dt.default_dtype())
    if order == 0:
        return x.digamma()
    if order == 1:
        return trigamma(_wide(x))._cast(x.dtype)
    return _polygamma(order, _wide(x))._cast(x.dtype)


def _polygamma(order: int, x: Tensor) -> Tensor:
    """Of an order of 2 or more; below 0 by reflection (NIST DLMF 5.15.6)."""
    sign = 1.0 if order % 2 else -1.0
    at_positive = _zeta(order + 1, where(x > 0, x, 1 - x)) * (sign * math.factorial(order))
    from_pole = x - x.detach().round()
    # of sines, so that half-way between poles it is 0
    cotangent = ((0.5 - from_pole.abs()) * math.pi).sin() / (from_pole.abs() * math.pi).sin() * from_pole.sign()
    reflected = at_positive * -sign
    for k, c in enumerate(_cotangent_derivative(order)):
        reflected = reflected - cotangent**k * (c * math.pi ** (order + 1))
    below = where(from_pole == 0, sign * math.inf, reflected)
    return where(x > 0, at_positive, below)


def _cotangent_derivative(order: int) -> list[float]:
    """The coefficients, from the constant on, of the derivative of that order as a polynomial in the cotangent."""
    p = [0.0, 1.0]
    for _ in range(order):  # of cot**k: -k * (cot**(k - 1) + cot**(k + 1))
        q = [0.0] * (len(p) + 1)
        for k, c in enumerate(p):
            if k:
                q[k - 1] -= k * c
                q[k + 1] -= k * c
        p = q
    return p


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension `p`, of elements above (p - 1) / 2."""
    if p < 1:
        raise ValueError(f"mvlgamma: p is 1 or more, got {p}")
    x = input if input.is_floating_point() else input._cast(dt.default_dtype())
    total = x.lgamma() + p * (p - 1) / 4 * math.log(math.pi)
    for j in range(1, p):
        total = total + (x - j / 2).lgamma()
    return total


class _LowerGamma(Function):
    """The regularised lower incomplete gamma function; only its second operand has a gradient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(a, x)
        factor = (a * x.log() - x - (a + 1).lgamma()).exp()
        y = _incomplete(*(t.numpy() for t in (a, x, factor)))[0]
        return tensor(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        a, x = ctx.saved_tensors
        return None, dy * ((a - 1) * x.log() - x - a.lgamma()).exp()


class _UpperGamma(Function):
    """One minus the lower, without its rounding."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(a, x)
        factor = (a * x.log() - x - (a + 1).lgamma()).exp()
        return tensor(_incomplete(*(t.numpy() for t in (a, x, factor)))[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        a, x = ctx.saved_tensors
        return None, -dy * ((a - 1) * x.log() - x - a.lgamma()).exp()


def _incomplete(a: np.ndarray, x: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) of float64: the series below a + 1, Lentz's continued fraction beyond (NIST DLMF 8.7.1 and 8.9.2).

    factor : ``x ** a * exp(-x) / gamma(a + 1)``
    """
    with np.errstate(all="ignore"):
        below = x < a + 1
        series = factor * _series(np.where(below, a, 1.0), np.where(below, x, 0.0))
        fraction = factor * a * _fraction(np.where(below, 1.0, a), np.where(below, 3.0, x))
        lower, upper = np.where(below, series, 1 - fraction), np.where(below, 1 - series, fraction)
        wrong = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | np.isnan(a) | np.isnan(x) | (np.isinf(a) & np.isinf(x))
        full = ~wrong & ((a == 0) | np.isinf(x))
        none = ~wrong & ((x == 0) | np.isinf(a))
        lower = np.select([wrong, full, none], [np.nan, 1.0, 0.0], lower)
        return lower, np.select([wrong, full, none], [np.nan, 0.0, 1.0], upper)


_TERMS = 10_000  # more than are needed for `a` of some million


def _series(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    term = np.ones_like(x)
    total = term
    for k in range(1, _TERMS):
        term = term * x / (a + k)
        total = total + term
        if not (term > total * 1e-17).any():
            break
    return total


def _fraction(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    b = x + 1 - a
    c, d = np.full_like(x, np.inf), 1 / b
    y = d
    for k in range(1, _TERMS):
        numerator = -k * (k - a)
        b = b + 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        y = y * c * d
        if not (np.abs(c * d - 1) > 1e-16).any():
            break
    return y


def igamma(input: Tensor, other: Tensor) -> Tensor:
    """The regularised lower incomplete gamma function P(input, other), with a gradient for `other` only."""
    return _regularised(_LowerGamma, input, other)


def igammac(input: Tensor, other: Tensor) -> Tensor:
    """The regularised upper incomplete gamma function, ``1 - igamma(input, other)``."""
    return _regularised(_UpperGamma, input, other)


def _regularised(function: Any, a: Tensor, x: Tensor) -> Tensor:
    if not a.is_floating_point() or a.dtype is not x.dtype:
        raise TypeError(f"igamma: operands of one floating dtype are needed, got {a.dtype.name} and {x.dtype.name}")
    shape = broadcast_shapes("igamma", a.shape, x.shape)
    return function.apply(a.expand(*shape).double(), x.expand(*shape).double())._cast(a.dtype)


# -- integers and bits ------------------------------------------------------------------------------------------------


def _by_numpy(name: str, function: Any, x: Tensor, y: Any) -> Tensor:
    other = y if isinstance(y, Tensor) else tensor(y, dtype=x.dtype)
    a, b = _values(name, x), _values(name, other)
    return tensor(np.asarray(function(a, b)))


def _integers(name: str, *operands: Any) -> None:
    for x in operands:
        if isinstance(x, Tensor) and x.dtype.kind not in "iu":
            raise TypeError(f"{name}: integers are needed, got {x.dtype.name}")


def gcd(input: Tensor, other: Any) -> Tensor:
    """Greatest common divisors."""
    _integers("gcd", input, other)
    return _by_numpy("gcd", np.gcd, input, other)


def lcm(input: Tensor, other: Any) -> Tensor:
    """Least common multiples."""
    _integers("lcm", input, other)
    return _by_numpy("lcm", np.lcm, input, other)


class _Nextafter(Function):
    """A step from `input`, or `other` where both are one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor) -> Tensor:
        ctx.save_for_backward(x, other)
        return _by_numpy("nextafter", np.nextafter, x, other)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, other = ctx.saved_tensors
        same = x == other
        return where(same, 0, dy).sum_to_size(x.shape), where(same, dy, 0).sum_to_size(other.shape)


def nextafter(input: Tensor, other: Any) -> Tensor:
    """The next numbers that can be represented, towards `other`."""
    return _Nextafter.apply(input, other if isinstance(other, Tensor) else tensor(other, dtype=input.dtype))


class Frexp(NamedTuple):
    """``mantissa * 2 ** exponent``."""

    mantissa: Tensor
    exponent: Tensor


def frexp(input: Tensor) -> Frexp:
    """Mantissas of a size from 0.5 to below 1, and exponents (int32)."""
    if not input.is_floating_point():
        raise TypeError(f"frexp: a floating dtype is needed, got {input.dtype.name}")
    exponents = np.frexp(_values("frexp", input))[1].astype(np.int32)
    half = exponents // 2
    scales = (np.ldexp(np.float64(1), -e).astype(input.dtype.numpy) for e in (half, exponents - half))
    mantissa = input
    for scale in scales:  # one alone may not be representable
        mantissa = mantissa * tensor(np.asarray(scale))
    return Frexp(mantissa, tensor(np.asarray(exponents)))


class Histogram(NamedTuple):
    """How much lies in each bin, and the bins' edges."""

    hist: Tensor
    bin_edges: Tensor


def histogram(
    input: Tensor, bins: int | Tensor, *, range: tuple[float, float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:  # fmt: skip
    """How many elements (or the sum of what `weight` of them) lie in bins: so many of equal width, or between given edges."""
    x = _values("histogram", input)
    edges = _values("histogram", bins) if isinstance(bins, Tensor) else bins
    weights = None if weight is None else _values("histogram", weight).reshape(-1)
    counts, found = np.histogram(x.reshape(-1), edges, range, density, weights)
    return Histogram(tensor(counts.astype(x.dtype)), tensor(found.astype(x.dtype)))


# -- along a dimension ------------------------------------------------------------------------------------------------


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Logarithms of the sums of exponentials so far, in a number of steps that grows with the logarithm of the extent."""
    d = normalize_axis("logcumsumexp", dim, input.ndim)
    n, y, step = int(input.shape[d]) if input.ndim else 1, input, 1
    while step < n:
        later = y.narrow(d, step, n - step).logaddexp(y.narrow(d, 0, n - step))
        y = cat([y.narrow(d, 0, step), later], d)
        step *= 2
    return y


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element (the lower of two) of those that are not NaN; with `dim`, (values, indices)."""
    if dim is None:
        return nanmedian(input.reshape(-1), 0).values
    return _nanmedian(input, dim, keepdim)


@also_of_scalars
def _nanmedian(input: Tensor, dim: int, keepdim: bool) -> Pair:
    d = normalize_axis("nanmedian", dim, input.ndim)
    n = int(input.shape[d])
    if not input.is_floating_point():
        return median(input, d, keepdim)
    count = n - input.isnan().sum(d, keepdim=True)
    place = where(count > 0, (count - 1) // 2, (n - 1) // 2)
    index = input.argsort(d).gather(d, place)  # NaN is sorted last
    values = input.gather(d, index)
    return Pair(values, index) if keepdim else Pair(values.squeeze(d), index.squeeze(d))


def nanquantile(
    input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The `q`-quantile of what is not NaN; several `q` (1-D) come first in the result.  See ``quantile``."""
    q = need_quantiles("nanquantile", input, q, interpolation)
    x = input.reshape(-1) if dim is None or not input.ndim else input
    d = normalize_axis("nanquantile", 0 if dim is None else dim, x.ndim)
    ordered = x.sort(d).values.movedim(d, -1)
    count = (~ordered.isnan()).sum(-1, keepdim=True)
    place = q.reshape(-1)._cast(x.dtype) * (count - 1).clamp(min=0)._cast(x.dtype)
    low, high, weight = between(place, interpolation)
    a, b = ordered.gather(-1, low.long()), ordered.gather(-1, high.long())
    out = a.lerp(b, weight).movedim(-1, 0)
    if keepdim:
        out = out.unsqueeze(d + 1) if dim is not None and input.ndim else out.reshape((-1, *(1,) * input.ndim))
    return out if q.ndim else out.squeeze(0)


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    """(the most frequent element along `dim`, the smallest of several, and the last place where it is)."""
    d = normalize_axis("mode", dim, input.ndim)
    if not input.ndim:
        return Pair(input, tensor(0))
    index = np.apply_along_axis(_place_of_mode, d, _values("mode", input))
    places = tensor(np.expand_dims(index, d))
    values = input.gather(d, places)
    return Pair(values, places) if keepdim else Pair(values.squeeze(d), places.squeeze(d))


def _place_of_mode(x: np.ndarray) -> int:
    values, counts = np.unique(x, return_counts=True)
    return (
        int(np.nonzero(x == values[counts.argmax()])[0][-1]) if len(x) and not np.isnan(values[counts.argmax()]) else 0
    )


# The function has the order first, so the method is not made from it as the others are.
Tensor.polygamma, Tensor.polygamma_ = polygamma, in_place(polygamma)  # type: ignore[attr-defined]

METHODS = """
erfinv frexp gcd histogram i0 igamma igammac lcm logcumsumexp mode mvlgamma nanmedian nanquantile nextafter
"""  # which are methods of Tensor too
IN_PLACE = """
erfinv gcd i0 igamma igammac lcm mvlgamma nextafter
"""  # which of them have a form that writes in place
FUNCTIONS = """
erfinv frexp gcd histogram i0 igamma igammac lcm logcumsumexp mode mvlgamma nanmedian nanquantile nextafter polygamma
"""  # for the top level

__all__ = FUNCTIONS.split()  # noqa: PLE0605 -- a list all the same

ELSEWHERE = {
    "expit": "lz.sigmoid is the same",
    "gammainc": "lz.igamma is the same",
    "gammaincc": "lz.igammac is the same",
    "gammaln": "lz.lgamma is the same",
    "modified_bessel_i0": "lz.i0 is the same",
    "multigammaln": "lz.mvlgamma is the same",
    "psi": "lz.digamma is the same",
    **dict.fromkeys(
        """airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u
            chebyshev_polynomial_v chebyshev_polynomial_w entr erfcx hermite_polynomial_h hermite_polynomial_he i0e i1 i1e
            laguerre_polynomial_l legendre_polynomial_p log_ndtr modified_bessel_i1 modified_bessel_k0 modified_bessel_k1
            ndtr ndtri scaled_modified_bessel_k0 scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t
            shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
            spherical_bessel_j0 xlog1py zeta""".split(),
        "it is not there; scipy.special works on x.numpy() where no gradient is needed",
    ),
}

suggest_names(__name__, ELSEWHERE)
