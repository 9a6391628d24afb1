"""Reducing into accumulators: one step, the neutral element, and folding lanes into one value."""

from __future__ import annotations

import math
from typing import Any

from lezero.codegen import arithmetic
from lezero.codegen.complex_numbers import Pair
from lezero.codegen.values import BITS, Builder, X
from lezero.loops.ir import POSITIONS

NO_INDEX = (1 << 63) - 1


def neutral(kind: str, type: str) -> complex:
    """The value that changes nothing (a lane that saw no element keeps it)."""
    floating = type in ("f32", "f64")
    match kind:
        case "sum":
            return -0.0 if floating else 0
        case "prod":
            return 1
        case "any":
            return 0
        case "all":
            return 1
    highest = POSITIONS.get(kind, kind) == "min"
    if floating:
        return math.inf if highest else -math.inf
    if type == "bool":
        return int(highest)
    bits = BITS[arithmetic.LLVM_TYPE[type]]
    if type[0] == "u":
        return (1 << bits) - 1 if highest else 0
    return (1 << (bits - 1)) - 1 if highest else -(1 << (bits - 1))


def step(b: Builder, kind: str, type: str, new: Any, old: Any) -> Any:
    match kind:
        case "sum":
            return arithmetic.binary(b, "add", type, old, new)
        case "prod":
            return arithmetic.binary(b, "mul", type, old, new)
        case "any":
            return old | new
        case "all":
            return old & new
    return arithmetic.binary(b, kind, type, new, old)


def better(kind: str, type: str, new: X, old: X) -> X:
    """Whether `new` replaces `old` in a search for an extreme that has seen `old` first."""
    order = "gt" if POSITIONS[kind] == "max" else "lt"
    if not new.floating:
        return arithmetic.compare(order, type, new, old)
    if kind == "argmax_of_window":  # greater or NaN
        return new.compare("ogt", old) | new.isnan()
    return new.compare("u" + order, old) & old.compare("ord", old)  # greater or NaN, and not after a NaN


def step_with_index(b: Builder, kind: str, type: str, new: tuple[X, X], old: tuple[X, X], ordered: bool) -> tuple[X, X]:
    """One step of a search for an extreme; unless `ordered`, `new` may have come first: ties are decided by the indices."""
    wins = better(kind, type, new[0], old[0])
    if not ordered:
        earlier = new[1] < old[1]
        wins = wins | (arithmetic.compare("eq", type, new[0], old[0]) & earlier)
        if new[0].floating:
            two = new[0].isnan() & old[0].isnan()
            wins = (wins & ~(two & earlier)) if kind == "argmax_of_window" else (wins | (two & earlier))
    return wins.where(new[0], old[0]), wins.where(new[1], old[1])


def _halves(b: Builder, x: X | Pair) -> tuple:
    if isinstance(x, Pair):
        (a, c), (d, e) = _halves(b, x.re), _halves(b, x.im)
        return Pair(a, d), Pair(c, e)
    if x.n == 2:
        return b.lane(x, 0), b.lane(x, 1)
    half = x.n // 2
    return b.shuffle(x, None, range(half)), b.shuffle(x, None, range(half, x.n))


def fold(b: Builder, kind: str, type: str, parts: list) -> Any:
    """All parts and lanes as one scalar, in a tree."""
    while len(parts) > 1:
        parts = [step(b, kind, type, c, a) for a, c in zip(parts[::2], parts[1::2])]
    x = parts[0]
    while x.n > 1:
        low, high = _halves(b, x)
        x = step(b, kind, type, high, low)
    return x


def fold_with_index(b: Builder, kind: str, type: str, values: list[X], indices: list[X]) -> tuple[X, X]:
    pairs = list(zip(values, indices))
    while len(pairs) > 1:
        pairs = [step_with_index(b, kind, type, c, a, False) for a, c in zip(pairs[::2], pairs[1::2])]
    value, index = pairs[0]
    while value.n > 1:
        (v0, v1), (i0, i1) = _halves(b, value), _halves(b, index)
        value, index = step_with_index(b, kind, type, (v1, i1), (v0, i0), False)
    return value, index
