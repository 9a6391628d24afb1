"""Operations with inputs to try them on, and ways to run their rules without any backend.

``CASES`` maps a name to a :class:`Case`: the operation, a strategy that draws (arrays, attributes), and the same thing in PyTorch.
``finite_differences`` checks gradients of any function of Exprs; ``run_loops``, ``run_index`` and ``run_source`` execute the
rules ``element`` and ``index`` with NumPy.
"""

# ruff: noqa: PLW0108 -- torch is looked up when a case runs, since it may be missing

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import lezero.ops  # noqa: F401
from lezero.autograd.walk import walk
from lezero.graph.dtype import as_dtype, by_name
from lezero.graph.node import Node, toposort
from lezero.loops import ir
from lezero.ops.base import REGISTRY
from lezero.ops.expr import Expr, evaluate, leaf
from lezero.ops.functions import _digamma, _lgamma


@dataclass(frozen=True)
class Case:
    """One way to use an operation.

    draw : strategy of (list of arrays, dict of attributes); floats are float64, away from kinks (multiples of 1/8)
    torch : the same function of torch tensors and the attributes, or None
    order : up to which order it has derivatives
    frozen : inputs that are not differentiated
    """

    op: str
    draw: st.SearchStrategy
    torch: Callable | None = None
    order: int = 2
    frozen: tuple[int, ...] = ()

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        return REGISTRY[self.op](*operands, **attrs)


# -- drawing -----------------------------------------------------------------------------------------------------

sides = st.sampled_from([1, 2, 3, 5, 0, 4, 7])
shapes = st.lists(sides, max_size=3).map(tuple)
seeds = st.integers(0, 2**16)


def numbers(shape: tuple[int, ...], seed: int, low: float = -2, high: float = 2) -> np.ndarray:
    """float64, at least 1/32 away from every multiple of 1/8, where functions here have their kinks."""
    x = np.random.default_rng(seed).uniform(low, high, shape)
    return np.asarray(np.floor(x * 8) / 8 + 1 / 32 + (x * 8 % 1) / 16)


def distinct(shape: tuple[int, ...], seed: int, low: float = -2, high: float = 2) -> np.ndarray:
    """float64 in random order, all different and none 0, by more than the steps of finite differences."""
    n = math.prod(shape)
    return (np.random.default_rng(seed).permutation(n).reshape(shape) + 0.37) * ((high - low) / max(n, 1)) + low


def whole(shape: tuple[int, ...], seed: int, low: int, high: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape))


@st.composite
def one(draw: Any, low: float = -2, high: float = 2, attrs: Any = None, min_dims: int = 0, min_side: int = 0):
    shape = draw(shapes.filter(lambda s: len(s) >= min_dims and all(d >= min_side for d in s)))
    return [numbers(shape, draw(seeds), low, high)], draw(attrs) if attrs is not None else {}


@st.composite
def several(draw: Any, *bounds: tuple[float, float], attrs: Any = None):
    """Operands that broadcast: each misses some axes, or has them with extent 1."""
    shape = draw(shapes)
    arrays = []
    for k, (low, high) in enumerate(bounds):
        own = tuple(draw(st.sampled_from([d, d, 1])) for d in shape)
        own = own[draw(st.integers(0, len(own))) :] if k else own
        arrays.append(numbers(own, 8 * draw(seeds) + k, low, high))  # never two equal operands
    return arrays, draw(attrs) if attrs is not None else {}


def either(**choices: list) -> st.SearchStrategy:
    return st.fixed_dictionaries({k: st.sampled_from(v) for k, v in choices.items()})


@st.composite
def reduced(draw: Any, low: float = -2, high: float = 2, empty: bool = True, single: bool = False, **more: list):
    shape = draw(shapes.filter(lambda s: empty or 0 not in s))
    if single:
        options = [tuple(range(len(shape))), *((a,) for a in range(len(shape)))]
        axes = draw(st.sampled_from(options))
    else:
        axes = tuple(a for a in range(len(shape)) if draw(st.booleans()))
    attrs = {"axes": axes, "keepdim": draw(st.booleans()), **draw(either(**more))}
    return [distinct(shape, draw(seeds), low, high)], attrs


@st.composite
def scanned(draw: Any, count: int = 1):
    shape = draw(shapes.filter(len))
    arrays = [distinct(shape, draw(seeds)) for _ in range(count)]
    return arrays, {"axis": draw(st.integers(0, len(shape) - 1)), "reverse": draw(st.booleans())}


# -- PyTorch's words ---------------------------------------------------------------------------------------------


def _torch():
    try:
        import torch
    except ImportError:
        return None
    return torch


T = _torch()
F = T.nn.functional if T else None
needs_torch = pytest.mark.skipif(T is None, reason="PyTorch is not installed")


def same_name(name: str) -> Callable | None:
    return getattr(T, name, None) or getattr(F, name, None) if T else None


def over(name: str, **fixed: Any) -> Callable:
    """A torch reduction over several axes with our attributes."""

    def call(x: Any, axes: tuple, keepdim: bool, **attrs: Any) -> Any:
        if not axes:
            x, axes = x.unsqueeze(-1), (-1,)
            return getattr(T, name)(x, dim=axes, keepdim=False, **attrs, **fixed)
        return getattr(T, name)(x, dim=axes, keepdim=keepdim, **attrs, **fixed)

    return call


def one_by_one(name: str) -> Callable:
    """A torch reduction that takes one axis at a time."""

    def call(x: Any, axes: tuple, keepdim: bool) -> Any:
        x = x.bool() if name in ("any", "all") else x
        for a in sorted(axes, reverse=True):
            x = getattr(T, name)(x, dim=a, keepdim=keepdim)
        return x

    return call


def position(name: str) -> Callable:
    def call(x: Any, axes: tuple, keepdim: bool) -> Any:
        if len(axes) == 1:
            return getattr(T, name)(x, dim=axes[0], keepdim=keepdim)
        y = getattr(T, name)(x)
        return y.reshape((1,) * x.ndim) if keepdim else y

    return call


def running(name: str) -> Callable:
    def call(x: Any, axis: int, reverse: bool) -> Any:
        x = x.flip(axis) if reverse else x
        y = getattr(T, name)(x, axis)
        y = y.values if hasattr(y, "values") and not isinstance(y, T.Tensor) else y
        return y.flip(axis) if reverse else y

    return call


# -- the table ---------------------------------------------------------------------------------------------------

CASES: dict[str, Case] = {}


def add(name: str, draw: Any, torch: Any = None, order: int = 2, op: str | None = None, frozen: tuple = ()) -> None:
    CASES[name] = Case(op or name, draw, torch if torch is not None else same_name(op or name), order, frozen)


REAL = (-2.0, 2.0)
POSITIVE = (0.125, 3.0)

for _name in [
    "neg",
    "abs",
    "exp",
    "exp2",
    "expm1",
    "square",
    "sin",
    "cos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "erf",
    "erfc",
    "sigmoid",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
]:
    add(_name, one())
for _name in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"]:
    add(_name, one(*POSITIVE))
for _name in ["asin", "acos", "atanh"]:
    add(_name, one(-0.875, 0.875))
add("tan", one(-1.25, 1.25))
add("acosh", one(1.25, 4))
add("lgamma", one(0.25, 6))
add("digamma", one(0.25, 6))
add("digamma of negatives", one(-3.875, -3.125), op="digamma")  # between poles
add("lgamma of negatives", one(-3.875, -0.25), op="lgamma")
add("angle", one())
for _name in ["isnan", "isinf", "isfinite", "logical_not"]:
    add(_name, one(), order=0)
add("identity", one(), lambda x: x * 1)
add("variable", one(), lambda x: x * 1)
add("detach", one(), lambda x: x.detach(), order=0)
add("cast", one(attrs=either(dtype=[by_name(n) for n in ("float32", "int32", "bool", "float16", "bfloat16", "uint8")])),
    lambda x, dtype: x.to(getattr(T, dtype.name)).double(), order=0)  # fmt: skip
add("integer_power", one(attrs=either(exponent=[0, 1, 2, 3, 4, 5, 8])), lambda x, exponent: x**exponent)

for _name in ["add", "sub", "mul", "maximum", "minimum", "atan2", "hypot", "logaddexp", "copysign"]:
    add(_name, several(REAL, (-1.75, 2.25)), order=2 if _name != "copysign" else 1)
for _name in ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"]:
    add(_name, several(REAL, REAL), order=0)
add("isclose", several(REAL, REAL, attrs=either(rtol=[1e-5, 0.5], atol=[1e-8, 0.5], equal_nan=[True, False])), order=0)
add("div", several(REAL, POSITIVE))
add("floor_divide", several((-5, 5), POSITIVE), order=0)
add("remainder", several((-5, 5), POSITIVE), order=1)
add("fmod", several((-5, 5), POSITIVE), order=1)
add("pow", several(POSITIVE, REAL))
add("clamp", several(REAL, (-1.5, -0.5), (0.5, 1.5)), lambda x, low, high: T.minimum(T.maximum(x, low), high), order=1)
add("clamp_min", several(REAL, REAL), order=1)
add("clamp_max", several(REAL, REAL), order=1)
add("lerp", several(REAL, REAL, (0, 1)), lambda a, b, w: a + w * (b - a))
add("addcmul", several(REAL, REAL, REAL, REAL), lambda x, a, b, v: x + v * a * b)

for _name in [
    "relu",
    "relu6",
    "selu",
    "silu",
    "mish",
    "softsign",
    "tanhshrink",
    "hardswish",
    "hardsigmoid",
    "logsigmoid",
]:
    add(_name, one(-8, 8))
add("hardtanh", one(attrs=either(low=[-1.0], high=[1.0, 0.5])), lambda x, low, high: F.hardtanh(x, low, high))
add("threshold", one(attrs=either(limit=[0.5], value=[2.0])), lambda x, limit, value: F.threshold(x, limit, value))
add(
    "leaky_relu",
    one(attrs=either(negative_slope=[0.01, 0.3])),
    lambda x, negative_slope: F.leaky_relu(x, negative_slope),
)
add("elu", one(attrs=either(alpha=[1.0, 0.7])), lambda x, alpha: F.elu(x, alpha))
add("celu", one(attrs=either(alpha=[1.0, 0.7])), lambda x, alpha: F.celu(x, alpha))
add("gelu", one(attrs=either(approximate=["none", "tanh"])), lambda x, approximate: F.gelu(x, approximate=approximate))
add(
    "softplus",
    one(-30, 30, attrs=either(beta=[1.0, 2.0], limit=[20.0, 5.0])),
    lambda x, beta, limit: F.softplus(x, beta, limit),
)
add("hardshrink", one(attrs=either(limit=[0.5])), lambda x, limit: F.hardshrink(x, limit))
add("softshrink", one(attrs=either(limit=[0.5])), lambda x, limit: F.softshrink(x, limit))
add("prelu", several(REAL, REAL), lambda x, w: T.where(x > 0, x, w * x))

add("sum", reduced(), over("sum"))
add("prod", reduced(), one_by_one("prod"))
add("max", reduced(empty=False), over("amax"))
add("min", reduced(empty=False), over("amin"))
add("mean", reduced(empty=False), over("mean"))
add(
    "var",
    reduced(empty=False, correction=[0, 1]),
    lambda x, axes, keepdim, correction: _moments(x, axes, keepdim, correction),
)
add(
    "std",
    reduced(empty=False, correction=[0, 1]),
    lambda x, axes, keepdim, correction: _moments(x, axes, keepdim, correction) ** 0.5,
)
add("logsumexp", reduced(empty=False), over("logsumexp"))
add("any", reduced(), one_by_one("any"), order=0)
add("all", reduced(), one_by_one("all"), order=0)
add(
    "count_nonzero",
    reduced(),
    lambda x, axes, keepdim: (x != 0).sum(axes, keepdim) if axes else (x != 0).long(),
    order=0,
)
add("argmax", reduced(empty=False, single=True), position("argmax"), order=0)
add("argmin", reduced(empty=False, single=True), position("argmin"), order=0)
add(
    "norm",
    reduced(empty=False, p=[2.0, 1.0, 3.0, math.inf, -math.inf]),
    lambda x, axes, keepdim, p: _norm(x, axes, keepdim, p),
)

add("cumsum", scanned(), running("cumsum"))
add("cumprod", scanned(), running("cumprod"))
add("cummax", scanned(), running("cummax"))
add("cummin", scanned(), running("cummin"))
add("linear_scan", scanned(2), lambda a, b, axis, reverse: _recurrence(a, b, axis, reverse))


def _moments(x: Any, axes: tuple, keepdim: bool, correction: int) -> Any:
    n = math.prod(x.shape[a] for a in axes)
    gap = x - (x.mean(axes, keepdim=True) if axes else x)
    return ((gap * gap).sum(axes, keepdim=keepdim) if axes else gap * gap) / max(n - correction, 0)


def _norm(x: Any, axes: tuple, keepdim: bool, p: float) -> Any:
    return T.linalg.vector_norm(x, p, axes, keepdim) if axes else x.abs()


def _recurrence(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    states, order = {}, range(a.shape[axis])
    state = T.zeros_like(a.select(axis, 0)) if order else None
    for k in reversed(order) if reverse else order:
        state = states[k] = a.select(axis, k) * state + b.select(axis, k)
    return T.stack([states[k] for k in order], axis) if order else a * b


@st.composite
def masked(draw: Any):
    (a, b), _ = draw(several(REAL, REAL))
    mask = np.random.default_rng(draw(seeds)).random(np.broadcast_shapes(a.shape, b.shape)) < 0.5
    return [mask, a, b], {}


@st.composite
def filled(draw: Any):
    (x,), _ = draw(one())
    return [x, np.random.default_rng(draw(seeds)).random(x.shape) < 0.5, numbers((), draw(seeds))], {}


add("where", masked())
add("masked_fill", filled())


# -- views -------------------------------------------------------------------------------------------------------


@st.composite
def reshaped(draw: Any):
    shape = draw(shapes)
    (x,) = [numbers(shape, draw(seeds))]
    if x.size == 0:
        return [x], {"shape": draw(st.sampled_from([(0,), (2, 0), x.shape]))}
    factors = [p for d in shape for p in _primes(d)]
    factors = draw(st.permutations(factors))
    new, group = [], 1
    for f in factors:
        group *= f
        if draw(st.booleans()):
            new.append(group)
            group = 1
    new.append(group)
    return [x], {"shape": tuple(new)}


def _primes(n: int) -> list[int]:
    return [n] if n in (2, 3, 5, 7) else [2, 2] if n == 4 else []


@st.composite
def permuted(draw: Any):
    (x,), _ = draw(one())
    return [x], {"axes": tuple(draw(st.permutations(range(x.ndim))))}


@st.composite
def expanded(draw: Any):
    shape = draw(shapes)
    own = tuple(draw(st.sampled_from([d, 1])) for d in shape)
    own = own[draw(st.integers(0, len(own))) :]
    return [numbers(own, draw(seeds))], {"shape": shape}


@st.composite
def flipped(draw: Any):
    (x,), _ = draw(one())
    return [x], {"axes": tuple(a for a in range(x.ndim) if draw(st.booleans()))}


@st.composite
def rolled(draw: Any):
    (x,), _ = draw(one())
    axes = tuple(a for a in range(x.ndim) if draw(st.booleans()))
    return [x], {"shifts": tuple(draw(st.integers(-9, 9)) for _ in axes), "axes": axes}


@st.composite
def slices(draw: Any, shape: tuple[int, ...]):
    """starts, stops, steps within `shape`."""
    from lezero.ops.slicing import slice_bounds

    ends = st.one_of(st.none(), st.integers(-9, 9))
    keys = [slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))) for _ in shape]
    bounds = [slice_bounds(key, d) for key, d in zip(keys, shape)]
    return tuple(keys), {k: tuple(b[j] for b in bounds) for j, k in enumerate(("starts", "stops", "steps"))}


@st.composite
def sliced(draw: Any):
    (x,), _ = draw(one())
    return [x], draw(slices(x.shape))[1]


@st.composite
def embedded(draw: Any):
    shape = draw(shapes)
    keys, attrs = draw(slices(shape))
    return [numbers(np.empty(shape)[keys].shape, draw(seeds))], {
        "shape": shape,
        "starts": attrs["starts"],
        "steps": attrs["steps"],
    }


@st.composite
def updated(draw: Any):
    (x,), _ = draw(one())
    keys, attrs = draw(slices(x.shape))
    return [x, numbers(x[keys].shape, draw(seeds))], attrs


@st.composite
def padded(draw: Any):
    (x,), _ = draw(one())
    before = tuple(draw(st.integers(-(d // 2), 3)) for d in x.shape)
    after = tuple(draw(st.integers(-(d - d // 2), 3)) for d in x.shape)
    return [x], {"before": before, "after": after, "fill": draw(st.sampled_from([0, 1.5]))}


@st.composite
def joined(draw: Any):
    shape = draw(shapes.filter(len))
    axis = draw(st.integers(0, len(shape) - 1))
    extents = draw(st.lists(sides, min_size=1, max_size=4))
    return [numbers((*shape[:axis], n, *shape[axis + 1 :]), draw(seeds)) for n in extents], {"axis": axis}


@st.composite
def diagonals(draw: Any):
    shape = draw(st.lists(sides, min_size=2, max_size=3).map(tuple))
    axis1, axis2 = draw(st.permutations(range(len(shape))))[:2]
    return shape, {"offset": draw(st.integers(-3, 3)), "axis1": axis1, "axis2": axis2}


@st.composite
def diagonal_of(draw: Any):
    shape, attrs = draw(diagonals())
    return [numbers(shape, draw(seeds))], attrs


@st.composite
def diagonal_into(draw: Any):
    shape, attrs = draw(diagonals())
    own = np.diagonal(np.empty(shape), **attrs).shape
    return [numbers(own, draw(seeds))], {"shape": shape, **attrs}


@st.composite
def windowed(draw: Any):
    rank = draw(st.integers(1, 2))
    shape = tuple(draw(st.integers(1, 7)) for _ in range(rank + draw(st.integers(0, 1))))
    axes = tuple(draw(st.permutations(range(len(shape))))[:rank])
    attrs = {"axes": axes}
    for name, low, high in (("sizes", 1, 3), ("strides", 1, 3), ("dilations", 1, 2), ("before", 0, 2), ("after", 0, 2)):
        attrs[name] = tuple(draw(st.integers(low, high)) for _ in axes)
    return [numbers(shape, draw(seeds))], {**attrs, "fill": draw(st.sampled_from([0, -1.5]))}


@st.composite
def windows_into(draw: Any):
    from lezero.ops.windows import window_counts

    (x,), attrs = draw(windowed())
    sizes, after = attrs.pop("sizes"), attrs.pop("after")
    del attrs["fill"]
    extents = tuple(x.shape[a] for a in attrs["axes"])
    counts = window_counts(extents, sizes, attrs["strides"], attrs["dilations"], attrs["before"], after)
    shape = list(x.shape)
    for axis, n in zip(attrs["axes"], counts):
        shape[axis] = n
    return [numbers((*shape, *sizes), draw(seeds))], {**attrs, "extents": extents}


@st.composite
def windows_from(draw: Any):
    (x,), attrs = draw(windows_into())
    lead = x.ndim - len(attrs["axes"])
    counts = tuple(x.shape[a] for a in attrs["axes"])
    shape = list(x.shape[:lead])
    for axis, n in zip(attrs["axes"], attrs.pop("extents")):
        shape[axis] = n
    return [numbers((*shape, *x.shape[lead:]), draw(seeds))], {
        **attrs,
        "counts": counts,
        "fill": draw(st.sampled_from([0, 2.5])),
    }


@st.composite
def triangle(draw: Any):
    shape = draw(st.lists(sides, min_size=2, max_size=3).map(tuple))
    return [numbers(shape, draw(seeds))], {"diagonal": draw(st.integers(-3, 3))}


@st.composite
def taken(draw: Any, source: bool = False):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    axis = draw(st.integers(0, len(shape) - 1))
    index_shape = draw(st.lists(st.integers(0, 4), max_size=2).map(tuple))
    index = whole(index_shape, draw(seeds), 0, shape[axis]).astype(draw(st.sampled_from([np.int64, np.int32])))
    arrays = [numbers(shape, draw(seeds)), index]
    if source:
        arrays.append(numbers((*shape[:axis], *index_shape, *shape[axis + 1 :]), draw(seeds)))
    return arrays, {"axis": axis}


@st.composite
def taken_together(draw: Any, source: bool = False, distinct: bool = False):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    rank = draw(st.integers(1, len(shape)))
    index_shape = draw(st.lists(st.integers(0, 4), max_size=2).map(tuple))
    indices = []
    for k in range(rank):
        own = (
            tuple(draw(st.sampled_from([d, 1])) for d in index_shape)[draw(st.integers(0, len(index_shape))) :]
            if k
            else index_shape
        )
        indices.append(whole(own, draw(seeds), 0, shape[k]))
    if distinct:  # rows in any order, each at most once
        extent = math.prod(shape[:rank])
        rows = np.random.default_rng(draw(seeds)).permutation(extent)[: draw(st.integers(0, extent))]
        index_shape, indices = rows.shape, list(np.unravel_index(rows, shape[:rank]))
    arrays = [numbers(shape, draw(seeds))]
    if source:
        arrays.append(numbers((*index_shape, *shape[rank:]), draw(seeds)))
    return [*arrays, *indices], {}


@st.composite
def gathered(draw: Any, source: bool = False, distinct: bool = False):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    axis = draw(st.integers(0, len(shape) - 1))
    index_shape = tuple(draw(st.integers(0, 6 if a == axis and not distinct else d)) for a, d in enumerate(shape))
    index = whole(index_shape, draw(seeds), 0, shape[axis])
    if distinct:  # along the axis each position at most once
        order = np.argsort(numbers(shape, draw(seeds)), axis)
        index = order[tuple(slice(n) for n in index_shape)]
    arrays = [numbers(shape, draw(seeds)), index]
    if source:
        arrays.append(numbers(index_shape, draw(seeds)))
    return arrays, {"axis": axis}


@st.composite
def hot(draw: Any):
    n = draw(st.integers(1, 6))
    return [whole(draw(shapes), draw(seeds), 0, n)], {"num_classes": n}


@st.composite
def ordered(draw: Any):
    shape = draw(shapes.filter(len))
    # few distinct values, so that the order of equal ones shows
    return [whole(shape, draw(seeds), -3, 3).astype(np.float64)], {
        "axis": draw(st.integers(0, len(shape) - 1)), "descending": draw(st.booleans()),
    }  # fmt: skip


def _numpy_index(key: tuple) -> Callable:
    return lambda x: x[key]


add("reshape", reshaped(), lambda x, shape: x.reshape(shape))
add("permute", permuted(), lambda x, axes: x.permute(axes))
add("expand", expanded(), lambda x, shape: x.expand(shape))
add("flip", flipped(), lambda x, axes: x.flip(axes))
add("roll", rolled(), lambda x, shifts, axes: x.roll(shifts, axes) if axes else x * 1)
add("slice", sliced())
add("embed", embedded())
add("slice_update", updated())
add(
    "pad",
    padded(),
    lambda x, before, after, fill: F.pad(x, [w for p in reversed(list(zip(before, after))) for w in p], value=fill),
)
add("concatenate", joined(), lambda *xs, axis: T.cat(xs, axis))
add("diagonal", diagonal_of(), lambda x, offset, axis1, axis2: x.diagonal(offset, axis1, axis2))
add("diagonal_embed", diagonal_into())
add("tril", triangle())
add("triu", triangle())
add("window", windowed(), lambda x, **a: _unfold(x, **a))
add("to_windows", windows_from())
add("from_windows", windows_into())
add("take", taken(), lambda x, i, axis: x[(slice(None),) * axis + (i.long(),)])
add("gather_nd", taken_together(), lambda x, *i: x[i])
add("gather", gathered(), lambda x, i, axis: x.gather(axis, i))
add("scatter_add", gathered(source=True), lambda x, i, s, axis: x.scatter_add(axis, i, s))
add("scatter", gathered(source=True, distinct=True))
add("index_add", taken(source=True), lambda x, i, s, axis: _index_put(x, (slice(None),) * axis + (i.long(),), s))
add("scatter_nd_add", taken_together(source=True), lambda x, s, *i: _index_put(x, i, s))
add("scatter_nd", taken_together(source=True, distinct=True))
add("one_hot", hot(), lambda i, num_classes: F.one_hot(i, num_classes), order=0)
add("argsort", ordered(), lambda x, axis, descending: x.argsort(dim=axis, descending=descending, stable=True), order=0)
for _name in (
    "slice",
    "embed",
    "slice_update",
    "diagonal_embed",
    "to_windows",
    "from_windows",
    "scatter",
    "scatter_nd",
):
    CASES[_name] = Case(_name, CASES[_name].draw)  # torch has another meaning of the name, or leaves the result open


def _unfold(
    x: Any, axes: tuple, sizes: tuple, strides: tuple, dilations: tuple, before: tuple, after: tuple, fill: float
) -> Any:
    widths = [(0, 0)] * x.ndim
    for k, axis in enumerate(axes):
        widths[axis] = (before[k], after[k])
    x = F.pad(x, [w for p in reversed(widths) for w in p], value=fill)
    for k, axis in enumerate(axes):
        reach = dilations[k] * (sizes[k] - 1) + 1
        if x.shape[axis] < reach:  # no window fits
            x = x.narrow(axis, 0, 0).unsqueeze(-1).expand(*x.narrow(axis, 0, 0).shape, sizes[k])
        else:
            x = x.unfold(axis, reach, strides[k])[..., :: dilations[k]]
    return x


def _index_put(x: Any, key: tuple, source: Any) -> Any:
    if any(isinstance(k, slice) for k in key):
        axis = len(key) - 1
        return x.movedim(axis, 0).index_put((key[-1],), source.movedim(tuple(range(axis, axis + key[-1].ndim)), tuple(range(key[-1].ndim))),
                                            accumulate=True).movedim(0, axis)  # fmt: skip
    return x.index_put(key, source, accumulate=True)


# -- gradients ---------------------------------------------------------------------------------------------------


def track(outputs: list[Node]) -> None:
    """Mark what the gradient walk goes through, from the leaves that are marked."""
    for node in toposort(outputs):
        if node.inputs:
            node.tracks = node.op.differentiable and node.dtype.differentiable and any(n.tracks for n in node.inputs)


def finite_differences(
    build: Callable, arrays: list[np.ndarray], order: int = 1, frozen: tuple = (), step: float = 1e-5
) -> None:
    """Compare the gradient of ``sum(build(*arrays) * c)`` along a random direction with central differences, then that
    derivative's own gradient, and so on up to `order`; arrays are float64 (others are not differentiated)."""
    rng = np.random.default_rng(7)
    leaves = [leaf(a.shape, as_dtype(a.dtype)) for a in arrays]
    values = {x.node: a for x, a in zip(leaves, arrays)}
    free = [x for k, x in enumerate(leaves) if x.dtype.differentiable and k not in frozen]
    for x in free:
        x.node.tracks = True

    def weighted(terms: list[tuple[Expr, np.ndarray]]) -> Expr:
        total = None
        for y, weight in terms:
            w = leaf(weight.shape, as_dtype(weight.dtype))
            values[w.node] = weight
            term = REGISTRY["sum"](y * w, axes=tuple(range(y.ndim)))
            total = term if total is None else total + term
        return total

    y = build(*leaves)
    loss = weighted([(y, rng.standard_normal(tuple(y.shape)))])
    for _ in range(order):
        track([loss.node])
        if not loss.node.tracks:
            return
        ones = leaf((), loss.dtype)
        values[ones.node] = np.ones((), loss.dtype.numpy)
        grads = walk({loss.node: ones}, Expr)
        direction = {x: rng.standard_normal(tuple(x.shape)) for x in free}
        found = [(grads[x.node], direction[x]) for x in free if x.node in grads]
        for g, v in found:
            assert tuple(g.shape) == v.shape
        ahead, behind = (
            evaluate([loss.node], values | {x.node: values[x.node] + sign * step * direction[x] for x in free})[0]
            for sign in (1, -1)
        )
        numeric = (ahead - behind) / (2 * step)
        if not found:
            assert abs(numeric) < 1e-6, "no gradient, but the value changes"
            return
        loss = weighted(found)
        (exact,) = evaluate([loss.node], values)
        scale = 1 + abs(exact) + sum(np.abs(v).sum() for v in direction.values())
        assert abs(numeric - exact) < 1e-5 * scale, f"differences give {numeric}, the gradient {exact}"


# -- running rules -----------------------------------------------------------------------------------------------

NUMPY_OF = {"bool": np.bool_, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
            "c64": np.complex64, "c128": np.complex128} | {f"{s}{n}": np.dtype(f"{s}{n // 8}").type for s in "iu" for n in (8, 16, 32, 64)}  # fmt: skip


def _vectorized(f: Callable) -> Callable:
    return np.vectorize(f, otypes=[np.float64])


LOOPS: dict[str, Callable] = {
    "neg": lambda x: -x, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": _vectorized(math.erf), "erfc": _vectorized(math.erfc), "lgamma": _vectorized(_lgamma), "digamma": _vectorized(_digamma),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "sign": np.sign, "not": lambda x: ~x, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "real": np.real,
    "imag": np.imag, "conj": np.conj, "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "floordiv": np.floor_divide, "mod": np.remainder, "fmod": np.fmod, "pow": np.power,
    "atan2": np.arctan2, "max": np.maximum, "min": np.minimum, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "copysign": np.copysign,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "complex": lambda a, b: a + 1j * b, "where": np.where,
}  # fmt: skip


def run_loops(value: ir.Value, variables: dict[str, np.ndarray]) -> np.ndarray:
    """A loop-IR expression in NumPy; ``var`` nodes are looked up by name."""
    done: dict[ir.Value, Any] = {}

    def go(v: ir.Value) -> Any:
        if v not in done:
            dtype = NUMPY_OF[v.type]
            if v.op == "var":
                result = variables[v.attr]
            elif v.op == "const":
                result = np.asarray(ir.number(v)).astype(dtype)
            elif v.op == "cast":
                x = go(v.args[0])
                result = x != 0 if v.type == "bool" else x.astype(dtype)
            else:
                result = LOOPS[v.op](*map(go, v.args))
                assert np.asarray(result).dtype == dtype or v.op in ("erf", "erfc", "lgamma", "digamma"), (
                    f"{v.op} is not {v.type}"
                )
            done[v] = np.asarray(result).astype(dtype)
        return done[v]

    with np.errstate(all="ignore"):
        return go(value)


def variable(name: str, code: str) -> ir.Value:
    return ir.Value("var", code, (), name)


class Indexed:
    """A NumPy array as an input of a view's rule."""

    def __init__(self, array: np.ndarray):
        self.shape, self.dtype, self.array = array.shape, as_dtype(array.dtype), array

    def read(self, *position: Any) -> np.ndarray:
        return self.array[tuple(np.asarray(p) for p in position)].astype(np.int64)


def run_index(view: Any, out: tuple[int, ...], arrays: list[np.ndarray], attrs: dict) -> np.ndarray:
    """A view's value by its rule ``index``; checks that pieces exclude each other and stay inside their inputs."""
    result = np.full(out, attrs.get("fill", 0), arrays[0].dtype)
    taken = np.zeros(out, bool)
    i = tuple(np.indices(out))
    for k, position, mask in view.index(out, i, *map(Indexed, arrays), **attrs):
        mask = np.broadcast_to(True if mask is None else mask, out)
        assert not (taken & mask).any(), "pieces overlap"
        taken |= mask
        place = tuple(np.broadcast_to(p, out)[mask] for p in position)
        for p, d in zip(place, arrays[k].shape):
            assert ((p >= 0) & (p < d)).all(), "read outside the input"
        result[mask] = arrays[k][place] if place else arrays[k]
    return result


def run_source(
    source: Any,
    shape: tuple[int, ...],
    dtype: Any,
    attrs: dict,
    inputs: tuple[ir.Value, ...] = (),
    variables: Any = None,
):
    """A source's value by its rule ``element``."""
    i = tuple(variable(f"i{k}", "i64") for k in range(len(shape)))
    places = {f"i{k}": p for k, p in enumerate(np.indices(shape))}
    value = source.element(i, shape, dtype, *inputs, **attrs)
    return np.broadcast_to(run_loops(value, places | (variables or {})), shape)
