"""The error bounds of vector math, in units in the last place, against wider arithmetic; and the values at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jit_helper import LEVELS as ALL_LEVELS
from jit_helper import Compiled
from lezero.codegen.emit import emit
from lezero.codegen.target import TARGETS
from lezero.loops.ir import Buffer, Kernel, Loop, Store, call, load, param, var

# Code for "generic" is that for "x86-64", and the bf16 instructions of the highest levels are no part of this.
LEVELS = [level for level in ALL_LEVELS if level in ("x86-64", "avx2", "avx512")]
TYPES = {"f32": np.float32, "f64": np.float64}
_compiled: dict = {}


def run(level, op, type, *inputs):
    """`op` of the arrays, by generated code."""
    key = (level, op, type)
    if key not in _compiled:
        i, k = var("i"), len(inputs)
        body = [Store(k, i, call(op, *(load(j, type, i) for j in range(k))))]
        buffers = (*(Buffer(type) for _ in inputs), Buffer(type, "w"))
        kernel = Kernel(op, buffers, 1, [Loop("i", param(0), body, vector=True)])
        _compiled[key] = Compiled(emit(kernel, TARGETS[level]), TARGETS[level])
    inputs = [np.ascontiguousarray(x, TYPES[type]) for x in inputs]
    result = np.full_like(inputs[0], np.nan)
    _compiled[key]([*inputs, result], [result.size])
    return result


def ulps(got, exact):
    """Largest error in units in the last place of the exact value's type; overflow must agree."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(got.dtype)
        finite = np.isfinite(rounded) & np.isfinite(got)
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        # At the border of overflow the last finite value and infinity are neighbours.
        border = np.abs(exact) > np.finfo(got.dtype).max * (1 - 1e-6 if got.dtype == np.float32 else 1 - 1e-14)
    assert np.all(finite | same | border)
    unit = np.spacing(np.abs(rounded[finite])).astype(np.longdouble)
    return float(np.max(np.abs(got[finite].astype(np.longdouble) - exact[finite]) / unit, initial=0))


def spread(low, high, near=()):
    """Arguments over an interval, dense about some points, and on a logarithmic scale about zero."""
    rng = np.random.default_rng(0)
    parts = [rng.uniform(low, high, 4000), np.linspace(low, high, 501)]
    parts += [p + rng.uniform(-1e-3, 1e-3, 200) for p in near]
    tiny = np.exp(rng.uniform(-80, 0, 500))
    parts += [np.concatenate([tiny, -tiny])]
    x = np.concatenate(parts)
    return x[(x >= low) & (x <= high)]


def positive():
    rng = np.random.default_rng(1)
    return np.concatenate(
        [np.exp(rng.uniform(-87, 87, 3000)), rng.uniform(0.4, 2.5, 3000), 1 + rng.uniform(-1e-4, 1e-4, 500)]
    )


LD = np.longdouble
math_function = lambda f: lambda x: np.array([f(float(v)) for v in x], LD)
# op: (arguments, reference in wider arithmetic, bound in f32, bound in f64)
BOUNDS = {
    "exp": (lambda: spread(-104, 89), np.exp, 2, 2),
    "exp2": (lambda: spread(-150, 128), np.exp2, 2, 2),
    "expm1": (lambda: spread(-30, 88), np.expm1, 2, 3),
    "log": (positive, np.log, 2, 2),
    "log2": (positive, np.log2, 2, 2),
    "log10": (positive, np.log10, 2, 4),
    "log1p": (lambda: np.concatenate([spread(-0.9999, 4), positive()]), np.log1p, 2, 2),
    "sin": (lambda: spread(-1e5, 1e5, (0, np.pi, 100 * np.pi)), np.sin, 2, 2),
    "cos": (lambda: spread(-1e5, 1e5, (np.pi / 2, 99.5 * np.pi)), np.cos, 2, 2),
    "tan": (lambda: spread(-100, 100, (np.pi / 2, np.pi)), np.tan, 2, 4),
    "asin": (lambda: spread(-1, 1, (0.5, -0.5, 1, -1)), np.arcsin, 2, 4),
    "acos": (lambda: spread(-1, 1, (0.5, -0.5, 1, -1)), np.arccos, 2, 4),
    "atan": (lambda: spread(-50, 50, (1, -1, 0.41)), np.arctan, 2, 4),
    "sinh": (lambda: spread(-88, 88), np.sinh, 2, 4),
    "cosh": (lambda: spread(-88, 88), np.cosh, 2, 4),
    "tanh": (lambda: spread(-12, 12), np.tanh, 3, 4),
    "asinh": (lambda: spread(-1e4, 1e4, (0,)), np.arcsinh, 2, 4),
    "acosh": (lambda: 1 + np.abs(spread(-1e4, 1e4)), np.arccosh, 2, 4),
    "atanh": (lambda: spread(-0.9999, 0.9999), np.arctanh, 2, 4),
    "sigmoid": (lambda: spread(-87, 87), lambda x: 1 / (1 + np.exp(-x)), 3, 3),
    "erf": (lambda: spread(-6, 6, (1, -1)), math_function(math.erf), 3, 3),
    "erfc": (lambda: spread(-6, 26), math_function(math.erfc), 2, 7),
    "rsqrt": (positive, lambda x: 1 / np.sqrt(x), 2, 2),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("op", BOUNDS)
def test_error_bound(level, type, op):
    arguments, reference, *bounds = BOUNDS[op]
    x = arguments().astype(TYPES[type])
    if type == "f32" and op == "acosh":
        x = x[x > 1]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(LD))
    assert ulps(run(level, op, type, x), exact) <= bounds[type == "f64"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", ["sin", "cos"])
def test_sine_of_large_arguments(level, op):
    x = np.random.default_rng(2).uniform(-1e9, 1e9, 2000)
    reference = np.sin if op == "sin" else np.cos
    np.testing.assert_allclose(run(level, op, "f64", x), reference(x), rtol=1e-13, atol=1e-15)
    single = x.astype(np.float32)
    np.testing.assert_allclose(run(level, op, "f32", single), reference(single.astype(float)), rtol=2e-7, atol=1e-9)
    huge = run(level, op, "f64", np.array([1e18, 1e300, -1e200]))
    assert np.all(np.abs(huge) <= 1)


@pytest.mark.parametrize("level", [level for level in LEVELS if level == "avx512"])
def test_the_error_function_by_table_never_falls(level):
    """All floats about the borders of its pieces, and stretches of them elsewhere."""
    for low in [(k + 0.5) * 33 / 128 for k in range(16)] + [1e-3, 0.11, 0.5, 1.0, 1.9, 2.56, 3.3, 3.9]:
        middle = int(np.float32(low).view(np.int32))
        x = np.arange(middle - 20_000, middle + 20_000, dtype=np.int32).view(np.float32)
        assert (np.diff(run(level, "erf", "f32", x)) >= 0).all(), low


@pytest.mark.parametrize("level", LEVELS)
def test_the_error_function_stays_within_one_and_does_not_depend_on_lanes(level):
    x = np.linspace(-6, 6, 20_001, dtype=np.float32)
    lanes = run(level, "erf", "f32", x)
    assert np.abs(lanes).max() == 1
    body = [Loop("i", param(0), [Store(1, var("i"), call("erf", load(0, "f32", var("i"))))])]
    kernel = Kernel("erf", (Buffer("f32"), Buffer("f32", "w")), 1, body)
    single = np.empty_like(x)
    Compiled(emit(kernel, TARGETS[level]), TARGETS[level])([x, single], [x.size])
    np.testing.assert_array_equal(lanes, single)


@pytest.mark.parametrize("level", LEVELS)
def test_gamma_functions(level):
    x = np.concatenate([spread(-6, 30), np.geomspace(30, 1e10, 100)])
    x = x[np.abs(x - np.round(x)) > 1e-6]
    want = np.array([math.lgamma(v) for v in x])
    np.testing.assert_allclose(run(level, "lgamma", "f64", x), want, rtol=1e-13, atol=1e-13)
    # Recurrence and reflection hold digamma to account without another implementation.
    digamma = lambda v: run(level, "digamma", "f64", v)
    scale = 1e-12 * (1 + np.abs(digamma(x)) + 1 / np.abs(x))
    assert np.all(np.abs(digamma(x + 1) - digamma(x) - 1 / x) < scale + 1e-12 / np.abs(x))
    np.testing.assert_allclose(
        digamma(np.array([1.0, 0.5])), [-np.euler_gamma, -np.euler_gamma - 2 * math.log(2)], rtol=1e-14
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("type", TYPES)
def test_two_argument_functions_and_their_special_values(level, type):
    """Every pair of special values agrees with NumPy (C99), and random pairs to a few ulp."""
    special = [
        0.0,
        -0.0,
        1,
        -1,
        2,
        -2,
        0.5,
        -0.5,
        3,
        -3,
        np.inf,
        -np.inf,
        np.nan,
        1e30,
        -1e30,
        1e-30,
        1e300,
        -1e300,
        5e-324,
    ]
    rng = np.random.default_rng(3)
    pairs = {
        "pow": (np.exp(rng.uniform(-10, 10, 2000)), rng.uniform(-8, 8, 2000), np.power),
        "atan2": (rng.normal(size=2000), rng.normal(size=2000), np.arctan2),
        "fmod": (np.exp(rng.uniform(-60, 60, 2000)), np.exp(rng.uniform(-60, 60, 2000)), np.fmod),
        "mod": (rng.normal(size=2000) * 100, rng.normal(size=2000), np.mod),
        "floordiv": (rng.normal(size=2000) * 100, rng.normal(size=2000), np.floor_divide),
    }
    with np.errstate(all="ignore"):
        edge = np.array(special).astype(TYPES[type])
        for op, (x, y, reference) in pairs.items():
            x = np.concatenate([np.repeat(edge, edge.size), x.astype(edge.dtype)])
            y = np.concatenate([np.tile(edge, edge.size), y.astype(edge.dtype)])
            got, want = run(level, op, type, x, y), reference(x, y)
            tolerance = 3 * np.finfo(edge.dtype).eps if op in ("pow", "atan2") else 0
            np.testing.assert_allclose(got, want, rtol=tolerance, err_msg=op)
            number = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]), err_msg=op)


# Values at 0, -0, inf, -inf, NaN.
I, N, Z = np.inf, np.nan, 0.0
EDGES = {
    "exp": (1, 1, I, 0, N), "exp2": (1, 1, I, 0, N), "expm1": (0, -Z, I, -1, N), "log": (-I, -I, I, N, N),
    "log2": (-I, -I, I, N, N), "log10": (-I, -I, I, N, N), "log1p": (0, -Z, I, N, N), "sin": (0, -Z, N, N, N),
    "cos": (1, 1, N, N, N), "tan": (0, -Z, N, N, N), "asin": (0, -Z, N, N, N), "atan": (0, -Z, np.pi / 2, -np.pi / 2, N),
    "sinh": (0, -Z, I, -I, N), "cosh": (1, 1, I, I, N), "tanh": (0, -Z, 1, -1, N), "asinh": (0, -Z, I, -I, N),
    "acosh": (N, N, I, N, N), "atanh": (0, -Z, N, N, N), "sigmoid": (0.5, 0.5, 1, 0, N), "erf": (0, -Z, 1, -1, N),
    "erfc": (1, 1, 0, 2, N), "lgamma": (I, I, I, I, N), "digamma": (-I, I, I, N, N), "rsqrt": (I, -I, 0, N, N),
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("op", EDGES)
def test_edges(level, type, op):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan] * 4)
    got, want = run(level, op, type, x), np.array(EDGES[op] * 4)
    np.testing.assert_allclose(got, want, rtol=3e-7)
    number = ~np.isnan(want)
    if op != "digamma":
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("type", TYPES)
def test_subnormal_results_and_arguments(level, type):
    kind = TYPES[type]
    tiny = np.finfo(kind).tiny
    x = np.log(np.array([tiny / 4, tiny / 1000, tiny], LD)).astype(kind)
    assert ulps(run(level, "exp", type, x), np.exp(x.astype(LD))) <= 2
    small = np.array([tiny / 3, tiny / 777, np.finfo(kind).smallest_subnormal], kind)
    assert ulps(run(level, "log", type, small), np.log(small.astype(LD))) <= 2
    assert ulps(run(level, "sin", type, small), small.astype(LD)) <= 1
