"""Functions that compute, made of other operations; those of one tensor are also methods (``functions.py`` installs them).

Names, arguments and results follow PyTorch.
"""

from __future__ import annotations

import builtins
import math
from math import prod as _prod
from typing import Any

from lezero.graph import dtype as dt
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import broadcast_shapes, normalize_axis
from lezero.ops.rules import narrow, widen
from lezero.rearranged import diagonal, roll
from lezero.runtime.recorder import record
from lezero.tensor import Pair, Tensor, cat, linspace, rand, randn, tensor, where
from lezero.tensor.computing import also_of_scalars

# -- element by element -----------------------------------------------------------------------------------------------


def bitwise_not(input: Tensor) -> Tensor:
    """Each bit turned round; logical for bools."""
    return ~input


def bitwise_left_shift(input: Tensor, other: Any) -> Tensor:
    """Integers with their bits moved up by `other` places."""
    return record(OPS["bitwise_left_shift"], (input, other), ())


def bitwise_right_shift(input: Tensor, other: Any) -> Tensor:
    """Integers with their bits moved down by `other` places, the sign kept."""
    return record(OPS["bitwise_right_shift"], (input, other), ())


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """At least `min`."""
    return input.clamp(min=min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """At most `max`."""
    return input.clamp(max=max)


def deg2rad(input: Tensor) -> Tensor:
    """Degrees in radians."""
    return input * (math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians in degrees."""
    return input * (180 / math.pi)


def float_power(input: Tensor, exponent: Any) -> Tensor:
    """The power, computed in float64, or in complex128 where one of the two is complex."""
    parts = [x for x in (input, exponent) if isinstance(x, Tensor)]
    is_complex = isinstance(exponent, builtins.complex) or builtins.any(x.is_complex() for x in parts)
    wide = dt.complex128 if is_complex else dt.float64
    return input._cast(wide) ** (exponent._cast(wide) if isinstance(exponent, Tensor) else exponent)


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger, `input` of equals; where one is NaN, the other."""
    return where((input >= other) | other.isnan(), input, other)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller, `input` of equals; where one is NaN, the other."""
    return where((input <= other) | other.isnan(), input, other)


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above it, `values` at it."""
    return where(input == 0, values, (input > 0)._cast(input.dtype))


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """``|input - other| <= atol + rtol * |other|``."""
    for name, bound in (("rtol", rtol), ("atol", atol)):
        if bound < 0:
            raise ValueError(f"isclose: {name} is 0 or more, got {bound}")
    op = OPS["isclose"]
    attrs = {k: v for k, v in (("rtol", rtol), ("atol", atol), ("equal_nan", equal_nan)) if k in op.attrs}
    return record(op, (input, other), op.bind(attrs))


def isneginf(input: Tensor) -> Tensor:
    """Whether each element is minus infinity."""
    return input.isinf() & (input < 0)


def isposinf(input: Tensor) -> Tensor:
    """Whether each element is plus infinity."""
    return input.isinf() & (input > 0)


def isreal(input: Tensor) -> Tensor:
    """Whether each element has no imaginary part."""
    return input.imag() == 0 if input.is_complex() else record(OPS["full"], (), (tuple(input.shape), True, dt.bool_))


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """``input * 2 ** other``."""
    return input * (2.0**other)


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """``log2(2 ** input + 2 ** other)``, without overflow."""
    return (input * math.log(2)).logaddexp(other * math.log(2)) * (1 / math.log(2))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """``log(x / (1 - x))``, with x clamped to [eps, 1 - eps] where `eps` is given."""
    given = input if input.is_floating_point() else input._cast(dt.default_dtype())
    x = widen(given if eps is None else given.clamp(eps, 1 - eps))
    return narrow(x.log() - (-x).log1p(), given.dtype)


def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and infinities replaced, infinities by the largest finite numbers unless told otherwise."""
    if input.dtype.kind != "f":
        return input
    import ml_dtypes

    limit = ml_dtypes.finfo(input.dtype.numpy)
    high, low = (float(limit.max) if posinf is None else posinf), (float(limit.min) if neginf is None else neginf)
    out = where(input.isnan(), nan, input)
    return where(isposinf(input), high, where(isneginf(input), low, out))._cast(input.dtype)


def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
    return input


def sgn(input: Tensor) -> Tensor:
    """The sign; for complex numbers ``z / |z|``."""
    if not input.is_complex():
        return input.sign()
    size = input.abs()
    return where(size == 0, 0, input / where(size == 0, 1, size))._cast(input.dtype)


def signbit(input: Tensor) -> Tensor:
    """Whether the sign bit is set (also that of -0.0)."""
    if input.dtype.kind != "f":
        return input < 0
    return record(OPS["copysign"], (record(OPS["full"], (), ((), 1, input.dtype)), input), ()) < 0


def sinc(input: Tensor) -> Tensor:
    """``sin(pi x) / (pi x)``, 1 at 0."""
    x = input * math.pi
    small = x.abs() < 1e-4  # where the quotient's gradient is the difference of two large numbers
    return where(small, 1 - x * x / 6, x.sin() / where(small, 1, x))._cast(x.dtype)


def true_divide(input: Tensor, other: Any) -> Tensor:
    """``input / other``; of integers floating."""
    return input / other


def xlogy(input: Tensor, other: Any) -> Tensor:
    """``input * log(other)``, 0 where `input` is 0 (unless `other` is NaN)."""
    other = other if isinstance(other, Tensor) else tensor(other, dtype=dt.floating(input.dtype))
    zero = (input == 0) & ~other.isnan()
    regular = ~zero | ((other > 0) & (other < math.inf))
    product = input * where(regular, other, 1).log()
    return where(regular, product, 0)


# -- sums of products -------------------------------------------------------------------------------------------------


def _weighted(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta * input + alpha * product``; what `input` holds does not matter where beta is 0, and weights of integers are cut off."""
    if product.dtype is dt.bool_ and input.dtype is dt.bool_:
        beta, alpha = builtins.bool(beta), builtins.bool(alpha)
    elif product.dtype.kind in "biu" and input.dtype.kind in "biu":
        beta, alpha = int(beta), int(alpha)
    weighted = product if alpha == 1 else product * alpha
    if beta == 0:
        shape = broadcast_shapes("addmm", input.shape, product.shape)
        return weighted.expand(shape)._cast(dt.promote(input.dtype, weighted.dtype))
    return (input if beta == 1 else input * beta) + weighted


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (mat1 @ mat2)``."""
    return _weighted(input, mat1.mm(mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (mat @ vec)``."""
    return _weighted(input, mat.mv(vec), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (batch1 @ batch2)``."""
    return _weighted(input, batch1.bmm(batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * sum over the batch of (batch1 @ batch2)``."""
    return _weighted(input, batch1.bmm(batch2).sum(0, dtype=batch1.dtype), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * outer(vec1, vec2)``."""
    return _weighted(input, outer(vec1, vec2), beta, alpha)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Products of all elements of two vectors."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise ValueError(f"outer: two vectors are needed, got tensors of {input.ndim} and {vec2.ndim} dimensions")
    return input.reshape(-1, 1) * vec2.reshape(1, -1)


ger = outer


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Sums of products along the last dimensions."""
    if not input.ndim or not other.ndim:
        return input * other
    return tensordot(input, other, ([-1], [-1]))


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The sum of ``conj(input) * other`` of two vectors."""
    return (input.conj() if input.is_complex() else input).matmul(other)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sums of products over the last `dims` dimensions of a and the first of b, or over the dimensions listed for each."""
    if isinstance(dims, int):
        over_a, over_b = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        over_a, over_b = ([d] if isinstance(d, int) else list(d) for d in dims)
    over_a = [normalize_axis("tensordot", d, a.ndim) for d in over_a]
    over_b = [normalize_axis("tensordot", d, b.ndim) for d in over_b]
    for d, e in zip(over_a, over_b):  # an extent of 1 meets any other, as in PyTorch
        if a.shape[d] == 1 != b.shape[e]:
            b = b.sum(e, keepdim=True, dtype=b.dtype)
        elif b.shape[e] == 1 != a.shape[d]:
            a = a.sum(d, keepdim=True, dtype=a.dtype)
    keep_a = [d for d in range(a.ndim) if d not in over_a]
    keep_b = [d for d in range(b.ndim) if d not in over_b]
    shape = (*(a.shape[d] for d in keep_a), *(b.shape[d] for d in keep_b))
    k = _prod(a.shape[d] for d in over_a)
    left = a.permute((*keep_a, *over_a)).reshape((_prod(a.shape[d] for d in keep_a), k))
    right = b.permute((*over_b, *keep_b)).reshape((k, _prod(b.shape[d] for d in keep_b)))
    return (left @ right).reshape(shape)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product."""
    n = builtins.max(input.ndim, other.ndim)
    a = (1,) * (n - input.ndim) + tuple(input.shape)
    b = (1,) * (n - other.ndim) + tuple(other.shape)
    left, right = input.reshape(tuple(x for d in a for x in (d, 1))), other.reshape(tuple(x for d in b for x in (1, d)))
    return (left * right).reshape(tuple(x * y for x, y in zip(a, b)))


def cross(input: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """The vector product of 3-vectors along `dim`."""
    if input.ndim != other.ndim:
        raise ValueError(f"cross: tensors of as many dimensions are needed, got {input.ndim} and {other.ndim}")
    d = normalize_axis("cross", dim, input.ndim)
    if input.shape[d] != 3 or other.shape[d] != 3:
        raise ValueError(
            f"cross: dimension {dim} must have extent 3, got {int(input.shape[d])} and {int(other.shape[d])}"
        )
    return roll(input, -1, d) * roll(other, 1, d) - roll(input, 1, d) * roll(other, -1, d)


def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if input.ndim != 2:
        raise ValueError(f"trace: a matrix is needed, got a tensor of {input.ndim} dimensions")
    return diagonal(input).sum()


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of ``input - other``."""
    return (input - other).norm(p)


_CDIST = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


def cdist(x1: Tensor, x2: Tensor, p: float = 2, compute_mode: str | None = None) -> Tensor:
    """Distances, as p-norms, of all rows of x1 and all of x2; `compute_mode` (PyTorch's) changes nothing: differences are taken."""
    if compute_mode is not None and compute_mode not in _CDIST:
        raise ValueError(f"cdist: compute_mode is one of {', '.join(_CDIST)}, got {compute_mode!r}")
    return (x1.unsqueeze(-2) - x2.unsqueeze(-3)).norm(p, dim=-1)


# -- reductions and scans ---------------------------------------------------------------------------------------------


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(the smallest, the largest) of all elements, or along `dim`."""
    return input.amin(dim, keepdim), input.amax(dim, keepdim)


def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """How many elements are not zero (int64), of all or along dimensions."""
    return input._reduce("count_nonzero", dim, False)


@also_of_scalars
def cummax(input: Tensor, dim: int) -> Pair:
    """(the largest so far, where it is)."""
    return _cumulative("cummax", input, dim)


@also_of_scalars
def cummin(input: Tensor, dim: int) -> Pair:
    """(the smallest so far, where it is)."""
    return _cumulative("cummin", input, dim)


def _cumulative(name: str, x: Tensor, dim: int) -> Pair:
    from lezero.ops.scan import extreme_positions

    op, axis = OPS[name], normalize_axis(name, dim, x.ndim)
    y = record(op, (x,), op.bind({"axis": axis}))
    return Pair(y, extreme_positions(y, x, axis))


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours, n times, `prepend` and `append` being joined to the elements first; of bools, which differ."""
    if n < 0 or not input.ndim:
        raise ValueError(f"diff: an order of 0 or more, of one dimension or more; got {n} of {input.ndim} dimensions")
    d = normalize_axis("diff", dim, input.ndim)
    if n and not (prepend is None and append is None):
        input = cat([x for x in (prepend, input, append) if x is not None], d)
    for _ in range(n):
        extent = builtins.max(input.shape[d] - 1, 0)
        later, earlier = input.narrow(d, builtins.min(1, input.shape[d]), extent), input.narrow(d, 0, extent)
        input = later ^ earlier if input.dtype.kind == "b" else later - earlier
    return input


@also_of_scalars
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The k-th smallest element (from 1), and where it is."""
    d = normalize_axis("kthvalue", dim, input.ndim)
    if not 1 <= k <= int(input.shape[d]):
        raise ValueError(f"kthvalue: k={k} is out of range for the extent {int(input.shape[d])} of dimension {dim}")
    index = input.argsort(d).narrow(d, k - 1, 1)
    values = record(OPS["gather"], (input, index), (d,))
    return Pair(values, index) if keepdim else Pair(values.squeeze(d), index.squeeze(d))


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element (the lower of two), NaN if there is one; with `dim`, (values, indices)."""
    if dim is None:
        return median(input.reshape(-1), 0).values
    return _median(input, dim, keepdim)


@also_of_scalars
def _median(input: Tensor, dim: int, keepdim: bool) -> Pair:
    d = normalize_axis("median", dim, input.ndim)
    n = int(input.shape[d])
    if not n or not input.is_floating_point():
        return kthvalue(input, (n + 1) // 2, d, keepdim)
    nans = input.isnan().sum(d, keepdim=True)  # sorted last
    index = input.argsort(d).gather(d, where(nans > 0, n - nans, (n + 1) // 2 - 1))
    values = input.gather(d, index)
    return Pair(values, index) if keepdim else Pair(values.squeeze(d), index.squeeze(d))


INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def between(place: Tensor, interpolation: str) -> tuple[Tensor, Tensor, Tensor]:
    """(below, above, weight of above) : the places among ordered elements that a quantile at `place` is made of."""
    if interpolation == "nearest":
        return place.round(), place.round(), place * 0
    low, high = place.floor(), place.ceil()
    weight = {"lower": lambda: place * 0, "higher": lambda: place * 0 + 1, "midpoint": lambda: place * 0 + 0.5}
    return low, high, weight.get(interpolation, lambda: place - low)()


def need_quantiles(name: str, input: Tensor, q: Any, interpolation: str) -> Tensor:
    """`q` as a tensor, after a look at what else quantiles are asked for with."""
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"{name}: interpolation is one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}")
    if input.dtype not in (dt.float32, dt.float64):
        raise TypeError(f"{name}: float32 or float64 is needed, got {input.dtype.name}")
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise ValueError(f"{name}: q is from 0 to 1, got {q}")
        return tensor(float(q), dtype=input.dtype)
    if q.ndim > 1 or q.dtype is not input.dtype:
        raise ValueError(
            f"{name}: q is a number, or a vector of dtype {input.dtype.name}; got {q.dtype.name}{list(map(int, q.shape))}"
        )
    return q


def quantile(
    input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The `q`-quantile; several `q` (1-D) come first in the result.

    interpolation : "linear", "lower", "higher", "midpoint" or "nearest", for quantiles between two elements
    """
    q = need_quantiles("quantile", input, q, interpolation)
    x = input.reshape(-1) if dim is None or not input.ndim else input
    d = normalize_axis("quantile", 0 if dim is None else dim, x.ndim)
    ordered = x.sort(d).values.movedim(d, 0)
    low, high, weight = between(q * (ordered.shape[0] - 1), interpolation)
    a, b = ordered[low.long()], ordered[high.long()]
    out = a.lerp(b, weight.reshape((*q.shape, *(1,) * (ordered.ndim - 1))))
    out = where(ordered[-1].isnan(), float("nan"), out)  # NaN is sorted last
    if not keepdim:
        return out
    if dim is None or not input.ndim:
        return out.reshape((*q.shape, *(1,) * input.ndim))
    return out.unsqueeze(q.ndim + d)


def msort(input: Tensor) -> Tensor:
    """The values in order along the first dimension."""
    return input.sort(0).values


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum, NaN counting as 0."""
    return where(input.isnan(), 0, input)._cast(input.dtype).sum(dim, keepdim, dtype)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean of what is not NaN."""
    return nansum(input, dim, keepdim, dtype=dtype) / (~input.isnan()).sum(dim, keepdim)


def var_mean(
    input: Tensor, dim: Any = None, correction: float | None = 1, keepdim: bool = False, unbiased: bool | None = None
) -> tuple[Tensor, Tensor]:
    """(``var``, ``mean``) along the same dimensions."""
    over = None if isinstance(dim, builtins.bool) else dim
    return input.var(dim, correction, keepdim, unbiased), input.mean(over, keepdim)


def std_mean(
    input: Tensor, dim: Any = None, correction: float | None = 1, keepdim: bool = False, unbiased: bool | None = None
) -> tuple[Tensor, Tensor]:
    """(``std``, ``mean``) along the same dimensions."""
    over = None if isinstance(dim, builtins.bool) else dim
    return input.std(dim, correction, keepdim, unbiased), input.mean(over, keepdim)


# -- by dtype, and by chance --------------------------------------------------------------------------------------------


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is a floating one."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is a complex one."""
    return input.is_complex()


def result_type(*operands: Any) -> dt.DType:
    """The dtype of an element-wise result of tensors, dtypes and Python numbers."""
    ranks = []
    for x in operands:
        if isinstance(x, Tensor):
            ranks.append((x.dtype, 2 if x.ndim else 1))
        elif isinstance(x, (builtins.bool, builtins.int, builtins.float, builtins.complex)):
            ranks.append((dt.number_dtype(x), 0))
        else:
            ranks.append((dt.as_dtype(x), 2))
    if not ranks:
        raise TypeError("result_type: at least one tensor, dtype or number is needed")
    return dt.result_type(ranks)


def normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, dtype: Any = None, device: Any = None
) -> Tensor:
    """Normal random numbers: of a mean and a standard deviation for all (with `size`), or of one for each (tensors)."""
    if size is None:
        shape = [x.shape for x in (mean, std) if isinstance(x, Tensor)]
        if not shape:
            raise TypeError("normal: give size where neither mean nor std is a tensor")
        size = broadcast_shapes("normal", *shape)
        dtype = dtype or result_type(*(x for x in (mean, std) if isinstance(x, Tensor)))
    if not isinstance(std, Tensor) and std < 0:
        raise ValueError(f"normal: std must be 0 or more, got {std}")
    return randn(size, generator=generator, dtype=dtype, device=device) * std + mean


def bernoulli(input: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """1 with the probabilities given (or with probability `p` for all), else 0.

    Raises
    ------
    ValueError
        For probabilities that are there and not from 0 to 1; those still to be computed count as 0 below and 1 above.
    """
    if p is not None:
        return input.clone().bernoulli_(p, generator=generator)
    if not input.is_floating_point():
        raise TypeError(f"bernoulli: probabilities are floating-point numbers, got {input.dtype.name}")
    buffer = input._buffer
    if buffer is not None and not ((buffer.array >= 0) & (buffer.array <= 1)).all():
        raise ValueError("bernoulli: probabilities must be from 0 to 1")
    return (rand(input.shape, generator=generator, dtype=input.dtype) < input)._cast(input.dtype)


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers from ``base ** start`` to ``base ** end``, evenly spaced on a logarithmic scale.

    Those of an integer `dtype` lie between powers of integers, and are cut off.
    """
    wanted = dt.as_dtype(dtype or dt.default_dtype())
    if wanted.kind in "iu":
        places = linspace(int(start), int(end), steps, dtype=dt.float64, device=device)
        return (tensor(float(base), dtype=dt.float64) ** places)._cast(wanted)
    powers = tensor(float(base), dtype=wanted) ** linspace(start, end, steps, dtype=wanted, device=device)
    return powers.requires_grad_() if requires_grad else powers


METHODS = """
addbmm addmm addmv addr aminmax baddbmm bernoulli bitwise_left_shift bitwise_not bitwise_right_shift clamp_max
clamp_min count_nonzero cross cummax cummin deg2rad diff dist float_power fmax fmin ger heaviside inner isclose isneginf
isposinf isreal kron kthvalue ldexp logaddexp2 logit median msort nan_to_num nanmean nansum outer positive
quantile rad2deg sgn signbit sinc trace true_divide vdot xlogy
"""  # which are methods of Tensor too
IN_PLACE = """
addbmm addmm addmv addr baddbmm bitwise_left_shift bitwise_not bitwise_right_shift clamp_max clamp_min deg2rad
float_power heaviside ldexp logit nan_to_num rad2deg sgn sinc true_divide xlogy
"""  # which of them have a form that writes in place
FUNCTIONS = """
addbmm addmm addmv addr aminmax baddbmm bernoulli bitwise_left_shift bitwise_not bitwise_right_shift cdist
clamp_max clamp_min count_nonzero cross cummax cummin deg2rad diff dist float_power fmax fmin ger heaviside
inner is_complex is_floating_point isclose isneginf isposinf isreal kron kthvalue ldexp logaddexp2 logit
logspace median msort nan_to_num nanmean nansum normal outer positive quantile rad2deg result_type sgn signbit sinc std_mean tensordot trace true_divide var_mean vdot xlogy
"""  # for the top level
