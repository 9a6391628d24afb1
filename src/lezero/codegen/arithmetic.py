"""What each operation of the loop IR is in instructions, lane by lane: arithmetic, comparisons and casts."""

from __future__ import annotations

import math
from typing import Any

from lezero.codegen import complex_numbers, half, vector_math
from lezero.codegen.complex_numbers import Pair
from lezero.codegen.values import BITS, Builder, X

LLVM_TYPE = {
    "f64": "double", "f32": "float", "bf16": "i16", "f16": "i16",
    "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "u64": "i64", "u32": "i32", "u16": "i16", "u8": "i8", "bool": "i1",
}  # fmt: skip
"""Loop IR type -> the LLVM type of a value in registers (half floats stay bits until they are cast)."""

FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
PLAIN = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}


def constant(b: Builder, value: Any, type: str, n: int = 1) -> Any:
    if type in complex_numbers.REAL:
        real = LLVM_TYPE[complex_numbers.REAL[type]]
        return Pair(b.const(value.real, real, n), b.const(value.imag, real, n))
    if type in ("f16", "bf16"):
        return b.const(half.encode(value, type), "i16", n)
    return b.const(value, LLVM_TYPE[type], n)


def unary(b: Builder, op: str, type: str, x: Any) -> Any:
    """`op` applied to `x`, whose loop IR type is `type`."""
    if isinstance(x, Pair):
        return complex_numbers.unary(b, op, x)
    if op in ("real", "conj"):
        return x
    if op == "imag":
        return x.like(0)
    return _float_unary(b, op, x) if x.floating else _integer_unary(op, type, x)


def _float_unary(b: Builder, op: str, x: X) -> X:
    match op:
        case "neg":
            return -x
        case "abs":
            return x.abs()
        case "sqrt":
            return x.sqrt()
        case "rsqrt":
            return 1.0 / x.sqrt()
        case "reciprocal":
            return 1.0 / x
        case "floor":
            return b.floor(x)
        case "ceil":
            return b.ceil(x)
        case "round":
            return b.round(x)
        case "trunc":
            return b.trunc(x)
        case "sign":
            return (x.abs() > 0.0).where(x.like(1.0).copysign(x), x)
        case "isnan":
            return x.isnan()
        case "isinf":
            return x.abs().eq(math.inf)
        case "isfinite":
            return x.abs() < math.inf
        case "not":
            return x.eq(0.0)
    return vector_math.apply(b, op, x)


def _integer_unary(op: str, type: str, x: X) -> X:
    unsigned = type[0] in "ub"
    match op:
        case "neg":
            return -x
        case "abs":
            return x if unsigned else (x < 0).where(-x, x)
        case "not":
            return ~x
        case "sign":
            if unsigned:
                return x.ne(0).where(x.like(1), 0)
            return (x >> (BITS[x.type] - 1)) | (x > 0).where(x.like(1), 0)
        case "floor" | "ceil" | "round" | "trunc":
            return x
        case "isnan" | "isinf":
            return x.ne(x)
        case "isfinite":
            return x.eq(x)
    raise NotImplementedError(f"{op} of {type}: cast to a floating type first")


def binary(b: Builder, op: str, type: str, x: Any, y: Any) -> Any:
    """`op` applied to `x` and `y`, both of loop IR type `type`."""
    if op == "complex":
        return Pair(x, y)
    if isinstance(x, Pair):
        return complex_numbers.binary(b, op, x, y)
    if op in FLOAT_COMPARE:
        return compare(op, type, x, y)
    if op in ("add", "sub", "mul") and type != "bool":
        return x.op("f" + op if x.floating else op, y)
    return _float_binary(b, op, x, y) if x.floating else _integer_binary(b, op, type, x, y)


def compare(op: str, type: str, x: X, y: X) -> X:
    if x.floating:
        return x.compare(FLOAT_COMPARE[op], y)
    if type in ("f16", "bf16"):
        raise NotImplementedError(f"{op} of {type}: cast to f32 first")
    sign = "" if op in ("eq", "ne") else "u" if type[0] in "ub" else "s"
    return x.compare(sign + op, y)


def maximum(x: X, y: X, predicate: str = "ogt") -> X:
    """The larger one (or, with ``olt``, the smaller), NaN if either is NaN."""
    # max(x, y) of SSE and AVX gives y when they are unordered, so only a NaN in x is left to pass on.
    return x.isnan().where(x, x.compare(predicate, y).where(x, y))


def _float_binary(b: Builder, op: str, x: X, y: X) -> X:
    match op:
        case "div":
            return x / y
        case "max":
            return maximum(x, y, "ogt")
        case "min":
            return maximum(x, y, "olt")
        case "copysign":
            return x.copysign(y)
        case "mod" | "floordiv":
            remainder = vector_math.apply(b, "fmod", x, y)
            opposite = remainder.ne(0.0) & (remainder.bits() ^ y.bits()).compare("slt", 0)
            if op == "mod":
                return remainder.eq(0.0).where(remainder.copysign(y), opposite.where(remainder + y, remainder))
            quotient = (x - remainder) / y
            quotient = b.round(opposite.where(quotient - 1.0, quotient))
            quotient = quotient.eq(0.0).where(quotient.copysign(x / y), quotient)
            return y.eq(0.0).where(x / y, quotient)
        case "and" | "or" | "xor" | "shl" | "shr":
            raise NotImplementedError(f"{op} of floating values")
    return vector_math.apply(b, op, x, y)


def _integer_binary(b: Builder, op: str, type: str, x: X, y: X) -> X:
    unsigned = type[0] in "ub"
    match op:
        case "and" | "or" | "xor":
            return x.op(op, y)
        case "add" if type == "bool":
            return x | y
        case "sub" if type == "bool":
            return x ^ y
        case "mul" if type == "bool":
            return x & y
        case "max":
            return x.compare("ugt" if unsigned else "sgt", y).where(x, y)
        case "min":
            return x.compare("ult" if unsigned else "slt", y).where(x, y)
        case "shl" | "shr":
            # A shift by the width or more is undefined in LLVM; here it shifts everything out.
            bits = BITS[x.type]
            inside = y.compare("ult", bits)
            amount = inside.where(y, 0 if op == "shl" or unsigned else bits - 1)
            shifted = x.op("shl" if op == "shl" else "lshr" if unsigned else "ashr", amount)
            return shifted if op == "shr" and not unsigned else inside.where(shifted, 0)
        case "floordiv" | "mod" | "fmod" | "div":
            return divide(op, type, x, y)
        case "pow":
            return vector_math.integer_power(b, x, y, unsigned)
    raise NotImplementedError(f"{op} of {type}: cast to a floating type first")


def divide(op: str, type: str, x: X, y: X) -> X:
    """Integer division; by zero it gives 0, and the most negative number by -1 wraps (neither may trap)."""
    if type == "bool":
        raise NotImplementedError(f"{op} of bool")
    known = y.name.lstrip("-").isdigit() and int(y.name) not in (0, -1)
    if type[0] == "u":
        if known:
            return x.op("udiv" if op in ("floordiv", "div") else "urem", y)
        safe = y.eq(0).where(y.like(1), y)
        return y.eq(0).where(0, x.op("udiv" if op in ("floordiv", "div") else "urem", safe))
    if known:
        safe = y
    else:
        minimum = -(1 << (BITS[x.type] - 1))
        safe = (y.eq(0) | (y.eq(-1) & x.eq(minimum))).where(y.like(1), y)
    quotient = x.op("sdiv", safe)
    remainder = x - quotient * safe
    if op in ("floordiv", "mod"):
        opposite = remainder.ne(0) & ((remainder ^ safe) < 0)
        if op == "floordiv":
            quotient = quotient + opposite.convert("sext", x.type)
        else:
            remainder = remainder + opposite.where(safe, 0)
    result = remainder if op in ("mod", "fmod") else quotient
    return result if known else y.eq(0).where(0, result)


def fma(b: Builder, x: Any, y: Any, z: Any) -> Any:
    if isinstance(x, X) and x.floating:
        return b.fma(x, y, z)
    return x * y + z


def where(condition: X, x: Any, y: Any) -> Any:
    if isinstance(x, Pair):
        return Pair(condition.where(x.re, y.re), condition.where(x.im, y.im))
    return condition.where(x, y)


def bitcast(source: str, target: str, x: X) -> X:
    return x if LLVM_TYPE[source] == LLVM_TYPE[target] else x.convert("bitcast", LLVM_TYPE[target])


def cast(b: Builder, source: str, target: str, x: Any) -> Any:
    """Convert between loop IR types.

    Floats truncate towards zero and saturate (NaN gives 0); types of 8 and 16 bits then wrap from 32.
    """
    if source == target:
        return x
    if target in complex_numbers.REAL:
        real = complex_numbers.REAL[target]
        if isinstance(x, Pair):
            from_ = complex_numbers.REAL[source]
            return Pair(cast(b, from_, real, x.re), cast(b, from_, real, x.im))
        part = cast(b, source, real, x)
        return Pair(part, part.like(0.0))
    if isinstance(x, Pair):
        if target == "bool":
            return x.re.ne(0.0) | x.im.ne(0.0)
        return cast(b, complex_numbers.REAL[source], target, x.re)
    if source in ("f16", "bf16"):
        return cast(b, "f32", target, half.decode(b, x, source))
    if target in ("f16", "bf16"):
        return half.round_to(b, cast(b, source, "f32", x), target)
    to = LLVM_TYPE[target]
    if target == "bool":
        return x.ne(0)
    if source == "bool":
        return x.convert("uitofp" if to in ("float", "double") else "zext", to)
    if x.floating:
        return _from_float(b, target, to, x)
    if to in ("float", "double"):
        return x.convert("uitofp" if source[0] == "u" else "sitofp", to)
    if BITS[to] == BITS[x.type]:
        return x
    if BITS[to] < BITS[x.type]:
        return x.convert("trunc", to)
    return x.convert("zext" if source[0] == "u" else "sext", to)


def _from_float(b: Builder, target: str, to: str, x: X) -> X:
    if to in ("float", "double"):
        return x.convert("fpext" if to == "double" else "fptrunc", to)

    def saturate(kind: str, type: str) -> X:
        n = x.n
        short = ("" if n == 1 else f"v{n}") + type
        source = ("" if n == 1 else f"v{n}") + ("f32" if x.type == "float" else "f64")
        return b.call(f"llvm.{kind}.sat.{short}.{source}", type, n, [x])

    if target == "u64":
        return (x < 0.0).where(saturate("fptosi", "i64"), saturate("fptoui", "i64"))
    if target == "u32":
        return saturate("fptosi", "i64").convert("trunc", "i32")
    if to in ("i64", "i32"):
        return saturate("fptosi", to)
    return saturate("fptosi", "i32").convert("trunc", to)
