"""Loop variables in two parts, where what a kernel reads lies that way.

A layer's features come as heads times features of one in attention, and the copy between the two divides the one loop over
features by a head's.  In lanes that is a division and a gather for each element.  With a loop over heads and one over
their features instead, every access is linear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lezero.graph.dim import same
from lezero.schedule.group import Group
from lezero.schedule.index import Ix, Var

SHORTEST = 16
"""Iterations that an inner part has at least: a vector of float32."""


def split(group: Group, used: Iterable[Ix]) -> Group | None:
    """The group with a variable in two wherever all of what is `used` other than linearly are its quotients and remainders by
    one number; None if there is no such variable.

    Not reduced variables: where a sum is cut shows in its bits.
    """
    found = _divisors(used)
    parts: dict[str, tuple[Var, Var]] = {}
    for v in group.variables:
        numbers = found.get(v.name)
        if numbers is None or len(numbers) != 1 or v.name in (group.reduced or ()):
            continue
        (n,) = numbers.values()
        if int(n) >= SHORTEST and not isinstance(v.extent, bool) and same((v.extent // n) * n, v.extent):
            parts[v.name] = Var(f"{v.name}h", v.extent // n), Var(f"{v.name}l", n)
    if not parts:
        return None
    by = {name: Ix.of(high) * low.extent + Ix.of(low) for name, (high, low) in parts.items()}
    variables = tuple(p for v in group.variables for p in parts.get(v.name, (v,)))
    index = {n: tuple(substituted(ix, by) for ix in at) for n, at in group.index.items()}
    return replace(group, shape=tuple(v.extent for v in variables), variables=variables, index=index)


def _divisors(used: Iterable[Ix]) -> dict[str, dict[Any, int]]:
    """Variable -> what it is divided by, by key; without those that occur in any other way."""
    found: dict[str, dict[Any, int]] = {}
    otherwise: set[str] = set()
    for ix in used:
        for a, _ in ix.terms.values():
            if isinstance(a, Var):
                continue
            of, n = (a[1], a[2]) if a[0] in ("//", "%") else (None, None)
            alone = list(of.terms.values()) if of is not None and same(of.constant, 0) else []
            if len(alone) == 1 and isinstance(alone[0][0], Var) and same(alone[0][1], 1) and isinstance(n, int):
                found.setdefault(alone[0][0].name, {})[Ix.of(n).key] = n
            else:
                otherwise.update(Ix.atom(a).variables())
    return {name: numbers for name, numbers in found.items() if name not in otherwise}


def substituted(ix: Ix, by: dict[str, Ix]) -> Ix:
    """An index with expressions in place of some variables, which occur in sums, quotients and remainders only."""
    if by.keys().isdisjoint(ix.variables()):
        return ix
    total = Ix({}, ix.constant)
    for a, c in ix.terms.values():
        if isinstance(a, Var):
            at = by.get(a.name) or Ix.of(a)
        elif a[0] == "//":
            at = substituted(a[1], by) // a[2]
        elif a[0] == "%":
            at = substituted(a[1], by) % a[2]
        else:
            at = Ix.atom(a)
        total = total + at * c
    return total
