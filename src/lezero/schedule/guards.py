"""Steps of a short reduction that give nothing are not taken.

A window of pooling looks beyond the border, and its gradient looks at windows that a stride has left out: of nine taps,
positions between the windows of stride 2 have one to four.  Where a condition is the same for all lanes, what it guards is
jumped over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from lezero.loops import ir

ALWAYS = ir.const(True, "bool")
NEVER = ir.const(False, "bool")
INFINITIES = (float("inf"), float("-inf"))
INDEX = frozenset("var param const add sub mul floordiv mod max min neg eq ne lt le gt ge not and or".split())
"""What conditions are made of that depend on where an element is and nothing else."""


def guarded(body: list[ir.Stmt], lanes: str, start: Callable[[str, str], ir.Value]) -> list[ir.Stmt]:
    """The statements with reductions behind what must hold for them to change anything, if that is the same for all `lanes`."""
    found = [_guard(s, lanes, start) if isinstance(s, ir.Reduce) else (None, s) for s in body]
    out: list[ir.Stmt] = []
    for guard, together in groupby(found, key=lambda f: f[0]):
        statements = [s for _, s in together]
        if guard is None:
            out += statements
        else:
            once = ir.call("where", guard, ir.const(1), ir.const(0))
            out.append(ir.Loop(f"once{len(out)}", once, statements))
    return out


def _guard(s: ir.Reduce, lanes: str, start: Callable[[str, str], ir.Value]) -> tuple[ir.Value | None, ir.Reduce]:
    nothing = start(ir.POSITIONS.get(s.kind, s.kind), s.value.type)
    guard, value = None, s.value
    for c in dict.fromkeys(_conditions(s.value)):
        if _uniform(c, lanes) and _assuming(value, c, NEVER) == nothing:
            guard = c if guard is None else ir.call("and", guard, c)
            value = _assuming(value, c, ALWAYS)
    return guard, ir.Reduce(s.acc, s.kind, value, s.index_acc, s.index)


def _parts(value: ir.Value) -> Iterator[ir.Value]:
    """Everything an expression is made of, once."""
    seen: set[ir.Value] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        if v not in seen:
            seen.add(v)
            todo += v.args
            yield v


def _conditions(value: ir.Value) -> Iterator[ir.Value]:
    """What must all hold for something in it to be chosen or loaded."""
    for v in _parts(value):
        if v.op == "where" or (v.op == "load" and len(v.args) == 2):
            todo = [v.args[0] if v.op == "where" else v.args[1]]
            while todo:
                c = todo.pop()
                if c.op == "and":
                    todo += c.args
                else:
                    yield c


def _uniform(condition: ir.Value, lanes: str) -> bool:
    return all(v.op in INDEX and (v.op, v.attr) != ("var", lanes) for v in _parts(condition))


def _assuming(value: ir.Value, condition: ir.Value, truth: ir.Value) -> ir.Value:
    """The value where a condition is known."""
    memo: dict[ir.Value, ir.Value] = {condition: truth}

    def go(v: ir.Value) -> ir.Value:
        if v not in memo:
            args = tuple(map(go, v.args))
            memo[v] = _folded(v if args == v.args else ir.Value(v.op, v.type, args, v.attr))
        return memo[v]

    return go(value)


def _folded(v: ir.Value) -> ir.Value:
    first, *rest = v.args or (v,)
    match v.op:
        case "and":
            return NEVER if NEVER in v.args else rest[0] if first == ALWAYS else first if rest[0] == ALWAYS else v
        case "where":
            chosen = {ALWAYS: rest[0], NEVER: rest[1]}.get(first)
            return chosen if chosen is not None else rest[0] if rest[0] == rest[1] else v
        case "load":
            if rest == [ALWAYS]:
                return ir.load(v.attr, v.type, first)
            return ir.const(0, v.type) if rest == [NEVER] else v
        case "cast" if first.op == "const" and first.type[0] != "c" and v.type != "bool":
            # zero and, among floating types, infinities are what they are in every type
            number = ir.number(first)
            exact = number == 0 or (number in INFINITIES and v.type[0] in "fb")
            return ir.const(number, v.type) if exact else v
    return v
