"""What vector math is made of: functions written into the module on first use, and the steps they share.

:func:`apply` calls an internal function of the module being written, one per operation, type and lane count, and
writes it on first use; LLVM inlines the short ones.  Error bounds, tested in ``tests/test_vector_math.py``: f32 exp,
log and their relatives 2 ulp, tanh, sigmoid and erf 3; f64 4 ulp, unless said otherwise at the function.  Infinities,
NaN, signed zeros and subnormals follow C99's annex F.

Techniques (textbook: Muller, *Elementary Functions*, 3rd ed., 2016): additive argument reduction with split constants
(Cody & Waite 1980), rounding by adding 1.5 * 2**52 instead of converting, and products made exact with fused
multiply-add or Dekker's splitting (1971).  f32 functions that are rarely hot are computed in f64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from lezero.codegen.coefficients import COEFFICIENTS
from lezero.codegen.target import Target
from lezero.codegen.values import Builder, Region, X, literal, suffix

Function = Callable[..., X]
FUNCTIONS: dict[str, Function] = {}
NATIVE_F32 = frozenset(("exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "sigmoid", "erf", "sin", "cos"))
INLINE_LINES = 130  # longer functions are called: inlining them four times over costs more to compile than it saves

# name: f64, f32
LIMITS = {
    "mantissa": (52, 23), "bias": (1023, 127), "magic": (6755399441055744.0, 12582912.0),
    "ln2_high": (0.6931471805592082, 0.693115234375), "ln2_low": (7.371002565167799e-13, 3.1946184945309415e-05),
    "exp_high": (710.0, 89.0), "exp_low": (-746.0, -104.0), "exp2_high": (1025.0, 129.0), "exp2_low": (-1080.0, -151.0),
    "expm1_high": (709.79, 88.73), "expm1_low": (-40.0, -20.0), "tanh_high": (20.0, 10.0),
    "normal": (2.0**-1022, 2.0**-126), "lift": (2.0**54, 2.0**25), "lifted": (54.0, 25.0),
}  # fmt: skip
LOG2E = 1.4426950408889634


def function(f: Function) -> Function:
    FUNCTIONS[f.__name__] = f
    return f


def apply(b: Builder, op: str, *args: X) -> X:
    """`op` of the lanes of `args` (all float or all double)."""
    x = args[0]
    name = f"lz.{op}.{suffix(x.type, x.n)}"
    if name not in b.definitions:
        definitions, declarations = _define(op, x.type, x.n, len(args), b.target)
        b.definitions.update(definitions)
        b.declarations.update(declarations)
    return b.call(name, x.type, x.n, args)


@functools.lru_cache(maxsize=1024)
def _define(op: str, type: str, n: int, arity: int, target: Target) -> tuple[dict[str, str], dict[str, str]]:
    """The text of one function and of everything it calls."""
    b = Builder(target)
    b.at = Region()
    args = [X(b, f"%x{k}", type, n) for k in range(arity)]
    if op not in FUNCTIONS:
        raise NotImplementedError(f"no vector function for {op}")
    if type == "float" and op not in NATIVE_F32:
        result = apply(b, op, *(x.convert("fpext", "double") for x in args)).convert("fptrunc", "float")
    else:
        result = FUNCTIONS[op](b, *args)
    lines = b.at.lines
    attributes = "#1" if len(lines) <= INLINE_LINES else "#0"
    head = (
        f"define internal {result.spelled} @lz.{op}.{suffix(type, n)}({', '.join(x.typed for x in args)}) {attributes}"
    )
    body = "\n".join([*lines, f"ret {result.typed}"])
    return {**b.definitions, f"lz.{op}.{suffix(type, n)}": f"{head} {{\nentry:\n{body}\n}}"}, b.declarations


# -- shared pieces ----------------------------------------------------------------------------------------------


def limit(name: str, x: X):
    return LIMITS[name][x.type == "float"]


def polynomial(b: Builder, name: str, x: X, type: str = "") -> X:
    """Horner's scheme; `type` picks a shorter polynomial than the lanes' own."""
    *rest, last = COEFFICIENTS[name, type or x.type]
    result = x.like(last)
    for c in reversed(rest):
        result = b.fma(result, x, c)
    return result


def clamp(x: X, low: float, high: float) -> X:
    """NaN stays NaN."""
    x = (x > high).where(high, x)
    return (x < low).where(low, x)


def nearest(b: Builder, x: X) -> tuple[X, X]:
    """The nearest integer, as a float and (in its low bits) as an integer."""
    magic = limit("magic", x)
    shifted = x + magic
    return shifted - magic, shifted.bits() - int(literal_bits(magic, x.type))


def literal_bits(value: float, type: str) -> int:
    """The bits of a float of the LLVM type `type`."""
    double = int(literal(value, type), 16)
    if type == "double":
        return double
    return (double >> 32 & 0x80000000) | ((double >> 52 & 0x7FF) - 1023 + 127) << 23 | double >> 29 & 0x7FFFFF


def power_of_two(x: X, k: X) -> X:
    """2**k as lanes like `x`, for k in the normal range."""
    return ((k + limit("bias", x)) << limit("mantissa", x)).floats()


def scale(b: Builder, x: X, k: X, k_integer: X) -> X:
    """x * 2**k with gradual underflow and overflow to infinity."""
    bits = 512 if x.n > 1 and x.n * (8 if x.type == "double" else 4) == 64 else 0
    if bits and b.target.level.startswith(("avx512", "amx")):
        letter, mask = ("d", "i8") if x.type == "double" else ("s", "i16")
        name = f"llvm.x86.avx512.mask.scalef.p{letter}.512"
        b.declarations[name] = f"declare {x.spelled} @{name}({x.spelled}, {x.spelled}, {x.spelled}, {mask}, i32)"
        return b.ins(f"call {x.spelled} @{name}({x.typed}, {k.typed}, {x.typed}, {mask} -1, i32 4)", x.type, x.n)
    # In two halves; the logical shift of a value made positive stands in for the arithmetic one AVX2 lacks.
    half = (k_integer + 4096).lshr(1) - 2048
    return x * power_of_two(x, half) * power_of_two(x, k_integer - half)


def two_product(b: Builder, x: X, y: X) -> tuple[X, X]:
    """x*y as a rounded product and its error."""
    p = x * y
    if b.target.fma:
        return p, b.fma(x, y, -p)

    def split(v: X) -> tuple[X, X]:
        t = v * 134217729.0
        high = t - (t - v)
        return high, v - high

    (a, c), (d, e) = split(x), split(y)
    return p, ((a * d - p) + a * e + c * d) + c * e


def two_sum(x: X, y: X) -> tuple[X, X]:
    s = x + y
    t = s - x
    return s, (x - (s - t)) + (y - t)


def repeat_while(b: Builder, start: tuple[X, ...], wanted, step) -> tuple[X, ...]:
    """Replace the values by ``step(*values)`` while ``wanted(*values)`` holds in any lane."""
    before = b.at.label
    again, body, done = (b.fresh(word) for word in ("again", "body", "done"))
    values = tuple(X(b, "%" + b.fresh("phi"), x.type, x.n) for x in start)
    b.line(f"br label %{again}")
    b.line(f"{again}:")
    heads = len(b.at.lines)
    some = wanted(*values)
    if some.n > 1:
        some = b.call(f"llvm.vector.reduce.or.{suffix('i1', some.n)}", "i1", 1, [some])
    b.line(f"br i1 {some.name}, label %{body}, label %{done}")
    b.line(f"{body}:")
    after = step(*values)
    b.line(f"br label %{again}")
    b.line(f"{done}:")
    b.at.lines[heads:heads] = [
        f"{v.name} = phi {v.spelled} [ {x.name}, %{before} ], [ {y.name}, %{body} ]"
        for v, x, y in zip(values, start, after)
    ]
    b.at.label = done
    return values
