"""What a loop touches and how heavy its body is: what decides lanes, unrolling and the shape of its tail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lezero.codegen.target import Target
from lezero.loops import ir

WEIGHT = {
    "exp": 14, "exp2": 12, "sigmoid": 18, "log": 20, "log2": 20, "expm1": 24, "log1p": 30, "tanh": 24, "erf": 18,
    "sin": 40, "cos": 40, "div": 4, "reciprocal": 4, "sqrt": 4, "rsqrt": 6, "floordiv": 10, "mod": 10,
}  # fmt: skip
"""Instructions of an operation per vector, roughly; other functions are `HEAVY` and plain operations 1."""
HEAVY = frozenset(
    (
        "log10", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "lgamma", "digamma", "pow",
        "atan2", "fmod",
    )
)  # fmt: skip
BUDGET = 32  # instructions in the body of an unrolled loop, per unit of unrolling

COLUMNS = 4
"""Vectors side by side that a loop over rows reduces: memory is read in pieces of several cache lines."""


def statements(body: list[ir.Stmt]) -> Iterator[ir.Stmt]:
    for s in body:
        yield s
        if isinstance(s, ir.Loop):
            yield from statements(s.body)


def innermost(loop: ir.Loop) -> ir.Loop | None:
    """The vector loop that `loop` is or directly consists of, through loops that contain nothing else."""
    while not loop.vector and len(loop.body) == 1 and isinstance(loop.body[0], ir.Loop):
        loop = loop.body[0]
    return loop if loop.vector else None


def effects(body: list[ir.Stmt]) -> frozenset:
    """The buffers and "@accumulators" that `body` writes."""
    found: set = set()
    for s in statements(body):
        match s:
            case ir.Store():
                found.add(s.buffer)
            case ir.Reduce():
                found.update("@" + a for a in (s.acc, s.index_acc) if a)
            case ir.Assign() | ir.Acc():
                found.add("@" + (s.acc if isinstance(s, ir.Assign) else s.name))
    return frozenset(found)


def reductions(body: list[ir.Stmt]) -> dict[str, ir.Reduce]:
    """The reductions in `body` into accumulators declared outside it, by accumulator."""
    inside = {s.name for s in statements(body) if isinstance(s, ir.Acc)}
    return {s.acc: s for s in statements(body) if isinstance(s, ir.Reduce) and s.acc not in inside}


def roots(s: ir.Stmt) -> tuple[ir.Value, ...]:
    """The expressions a statement evaluates itself."""
    match s:
        case ir.Loop():
            return (s.extent,)
        case ir.Acc():
            return (s.init,)
        case ir.Reduce():
            return (s.value,) if s.index is None else (s.value, s.index)
        case ir.Assign():
            return (s.value,)
    return (s.index, s.value) if s.mask is None else (s.index, s.value, s.mask)


def values(body: list[ir.Stmt]) -> set[ir.Value]:
    """Every expression in `body`, once."""
    seen: set[ir.Value] = set()
    stack = [v for s in statements(body) for v in roots(s)]
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            stack.extend(v.args)
    return seen


@dataclass(frozen=True)
class VectorPlan:
    """`lanes` per vector, `unroll` vectors an iteration; `single`: one masked loop, without an unmasked one.

    Only short loops are single: masked stores take three times as long where they miss the caches.
    """

    lanes: int
    unroll: int
    single: bool


def plan(loop: ir.Loop, target: Target) -> VectorPlan:
    """Lanes by the size of what is computed (f32 fills registers; wider types take several), unrolling by weight."""
    everything = values(loop.body)
    sizes = set()
    weight = 0.0
    for v in everything:
        data = v.type != "i64" or v.op in ("load", "cast", "acc")
        size = ir.TYPES[v.type]
        size = size // 2 if v.type[0] == "c" else size
        if data and v.op != "const" and (v.type != "bool" or v.op == "load"):
            sizes.add(size)
        if v.op not in ("const", "param", "var") and data:
            scale = 2.5 if v.op in HEAVY else 1
            cost = 40 if v.op in HEAVY else WEIGHT.get(v.op, 1)
            weight += cost * scale * (2 if size == 8 and v.op in WEIGHT else 1)
    positions = any(isinstance(s, ir.Reduce) and s.index is not None for s in statements(loop.body))
    divided = any(v.type == "i64" and v.op in ("floordiv", "mod") for v in everything)
    if (positions or divided) and not sizes & {4, 8}:
        sizes.add(4)  # positions and divided indices are vectors of i64: as many as narrow data fill every register
    size = next((s for s in (4, 8, 2, 1) if s in sizes), 8)
    lanes = target.lanes(size)
    weight *= max(1.0, max(sizes, default=size) / size)
    nested = sum(isinstance(s, ir.Loop) for s in statements(loop.body))
    weight += 4 * nested
    unroll = 4 if weight <= BUDGET / 2 else 2 if weight <= BUDGET * 2 else 1
    columns = nested and any(isinstance(s, ir.Acc) for s in statements(loop.body))
    if columns:
        unroll = COLUMNS
    short = loop.extent.op == "const" and loop.extent.attr <= lanes
    while unroll > 1 and loop.extent.op == "const" and loop.extent.attr < lanes * unroll:
        unroll //= 2
    return VectorPlan(lanes, 1 if short else unroll, short)
