"""Symbolic extents.

A :class:`Dim` is an ``int`` that remembers where it came from: its value is the extent in the recording at hand, its
`expr` says how to get that extent for other inputs.  Shape inference is therefore written as ordinary integer code.
Every yes-or-no answer inference takes from a Dim (``a == b``, ``a < 3``) is noted as a *guard*, so that a trace is only
followed again where the answers would be the same.

Expressions are polynomials with integer coefficients over atoms; an atom is a symbol ``("s", k)`` or a floor division or
remainder of a polynomial that did not come out even, ``("//", poly, poly)`` and ``("%", poly, poly)``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence

from lezero.switched import switched

Atom = tuple
Poly = tuple  # sorted ((monomial: sorted tuple of atoms, coefficient), ...)

_CONST: tuple = ()


def _poly(terms: dict) -> Poly:
    return tuple(sorted(((m, c) for m, c in terms.items() if c), key=repr))


def _of(x: int) -> Poly:
    if isinstance(x, Dim):
        return x.expr
    return ((_CONST, int(x)),) if x else ()


@functools.lru_cache(4096)
def _add(a: Poly, b: Poly, sign: int = 1) -> Poly:
    terms = dict(a)
    for m, c in b:
        terms[m] = terms.get(m, 0) + sign * c
    return _poly(terms)


@functools.lru_cache(4096)
def _mul(a: Poly, b: Poly) -> Poly:
    terms: dict = {}
    for m, c in a:
        for n, d in b:
            key = tuple(sorted(m + n, key=repr))
            terms[key] = terms.get(key, 0) + c * d
    return _poly(terms)


def _divide(a: Poly, b: Poly) -> tuple[Poly, Poly] | None:
    """(quotient, rest) such that a = quotient*b + rest exactly, for a divisor of one term; rest is what did not divide."""
    if len(b) != 1:
        return (((_CONST, 1),), ()) if a == b else None
    ((mono, coefficient),) = b
    quotient, rest = {}, {}
    for m, c in a:
        left = list(m)
        for atom in mono:
            if atom in left:
                left.remove(atom)
            else:
                break
        else:
            if c % coefficient == 0:
                quotient[tuple(left)] = c // coefficient
                continue
        rest[m] = c
    return _poly(quotient), _poly(rest)


def evaluate(expr: Poly, bindings: Sequence[int] | Mapping[int, int]) -> int:
    """The number of a polynomial when symbol k has the value bindings[k]; an extent if those are."""
    total = 0
    for mono, coefficient in expr:
        for atom in mono:
            coefficient *= _atom(atom, bindings)
        total += coefficient
    return total


def _atom(atom: Atom, bindings: Sequence[int] | Mapping[int, int]) -> int:
    if atom[0] == "s":
        return bindings[atom[1]]
    a, b = evaluate(atom[1], bindings), evaluate(atom[2], bindings)
    return a // b if atom[0] == "//" else a % b


def symbols(expr: Poly) -> set[int]:
    found = set()
    for mono, _ in expr:
        for atom in mono:
            found |= {atom[1]} if atom[0] == "s" else symbols(atom[1]) | symbols(atom[2])
    return found


# -- guards ---------------------------------------------------------------------------------------------------

Guard = tuple  # (comparison, poly, poly, outcome)


class _Noting(threading.local):
    guards: list[Guard] | None = None


_noting = _Noting()


def note(guards: Sequence[Guard]) -> None:
    """Add guards found earlier to those being collected."""
    if _noting.guards is not None:
        _noting.guards.extend(guards)


def noting_guards(into: list | None = None) -> switched:
    """Context: collect the guards of every Dim comparison made inside."""
    return switched(_noting, "guards", [] if into is None else into)


_COMPARE = {"==": int.__eq__, "<": int.__lt__, "<=": int.__le__}


def holds(guard: Guard, bindings: Sequence[int]) -> bool:
    """Whether a guard's answer is the same under `bindings` (it is not, where a symbol has no value there yet)."""
    comparison, a, b, outcome = guard
    try:
        return _COMPARE[comparison](evaluate(a, bindings), evaluate(b, bindings)) is outcome
    except IndexError:
        return False


def _compare(comparison: str, a: int, b: int) -> bool:
    answer = _COMPARE[comparison](int(a), int(b))
    guards = _noting.guards
    if guards is not None:
        x, y = _of(a), _of(b)
        if x != y and not _decided(comparison, _add(x, y, -1)):
            guards.append((comparison, x, y, answer))
    return answer


def _decided(comparison: str, difference: Poly) -> bool:
    """Whether the comparison of `difference` with 0 has the same answer for every extent (symbols are at least 2)."""
    constant = dict(difference).get(_CONST, 0)
    rest = [(m, c) for m, c in difference if m != _CONST]
    if not rest:
        return True
    if any(atom[0] != "s" for m, _ in rest for atom in m):
        return False
    if all(c > 0 for _, c in rest):
        low = constant + sum(c * 2 ** len(m) for m, c in rest)
        return low > 0 or (low == 0 and comparison == "<")  # the difference is positive: not ==, not <, not <=
    if all(c < 0 for _, c in rest):
        high = constant + sum(c * 2 ** len(m) for m, c in rest)
        return high < 0 or (high == 0 and comparison == "<=")
    return False


class Dim(int):
    """An extent: an int with an expression (see the module)."""

    expr: Poly

    def __new__(cls, value: int, expr: Poly) -> Dim:
        self = super().__new__(cls, value)
        self.expr = expr
        return self

    @staticmethod
    def symbol(k: int, value: int) -> Dim:
        return Dim(value, ((((("s", k)),), 1),))

    def _result(self, value: int, expr: Poly) -> int:
        if not expr:
            return 0
        if len(expr) == 1 and expr[0][0] == _CONST:
            return expr[0][1]
        return Dim(value, expr)

    def __add__(self, other):
        if not isinstance(other, int):
            return int(self).__add__(other)
        return self._result(int(self) + int(other), _add(self.expr, _of(other)))

    __radd__ = __add__

    def __sub__(self, other):
        if not isinstance(other, int):
            return int(self).__sub__(other)
        return self._result(int(self) - int(other), _add(self.expr, _of(other), -1))

    def __rsub__(self, other):
        if not isinstance(other, int):
            return int(self).__rsub__(other)
        return self._result(int(other) - int(self), _add(_of(other), self.expr, -1))

    def __neg__(self):
        return self._result(-int(self), _mul(((_CONST, -1),), self.expr))

    def __mul__(self, other):
        if not isinstance(other, int):
            return int(self).__mul__(other)
        return self._result(int(self) * int(other), _mul(self.expr, _of(other)))

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return _floordiv(self, other)

    def __rfloordiv__(self, other):
        return _floordiv(other, self)

    def __mod__(self, other):
        return _mod(self, other)

    def __rmod__(self, other):
        return _mod(other, self)

    def __eq__(self, other):
        return _compare("==", self, other) if isinstance(other, int) else NotImplemented

    def __ne__(self, other):
        return not _compare("==", self, other) if isinstance(other, int) else NotImplemented

    def __lt__(self, other):
        return _compare("<", self, other) if isinstance(other, int) else int(self).__lt__(other)

    def __le__(self, other):
        return _compare("<=", self, other) if isinstance(other, int) else int(self).__le__(other)

    def __gt__(self, other):
        return _compare("<", other, self) if isinstance(other, int) else int(self).__gt__(other)

    def __ge__(self, other):
        return _compare("<=", other, self) if isinstance(other, int) else int(self).__ge__(other)

    def __bool__(self):
        return not _compare("==", self, 0)

    def __hash__(self):
        return int.__hash__(self)

    def __reduce__(self):
        return (int, (int(self),))

    def __deepcopy__(self, memo):
        return self


def _floordiv(a: int, b: int) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        return int(a) // b if isinstance(a, Dim) else a // int(b)
    value = int(a) // int(b)
    split = _divide(_of(a), _of(b))
    if split is None:
        quotient, rest = (), _of(a)
    else:
        quotient, rest = split
    if rest:
        # a constant rest smaller than a constant divisor disappears, as in (4*s + 3) // 4
        if len(rest) == 1 and rest[0][0] == _CONST and not isinstance(b, Dim) and 0 <= rest[0][1] < int(b):
            rest = ()
        else:
            quotient = _add(quotient, (((("//", rest, _of(b)),), 1),))
    if not quotient:
        return 0
    if len(quotient) == 1 and quotient[0][0] == _CONST:
        return quotient[0][1]
    return Dim(value, quotient)


def _mod(a: int, b: int) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        return int(a) % b if isinstance(a, Dim) else a % int(b)
    split = _divide(_of(a), _of(b))
    rest = _of(a) if split is None else split[1]
    if not rest:
        return 0
    if len(rest) == 1 and rest[0][0] == _CONST and not isinstance(b, Dim):
        return rest[0][1] % int(b)
    return Dim(int(a) % int(b), (((("%", rest, _of(b)),), 1),))


def rehint(shape: tuple, bindings: Sequence[int]) -> tuple:
    """The same extents with the values they have under `bindings`; other entries are left as they are."""
    for d in shape:
        if type(d) is Dim:
            return tuple([Dim(evaluate(d.expr, bindings), d.expr) if type(d) is Dim else d for d in shape])
    return shape


def same(a: int, b: int) -> bool:
    """Whether two extents are equal for every input (no guard is noted)."""
    if type(a) is int and type(b) is int:
        return a == b
    return _of(a) == _of(b)


def identical(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are equal for every input (no guard is noted)."""
    if a is b:
        return True
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if x is not y and (((type(x) is Dim or type(y) is Dim) and _of(x) != _of(y)) or int.__ne__(x, y)):
            return False
    return True


def exact(values: tuple) -> tuple:
    """Attributes or extents so that only identical ones are equal: 1, 1.0 and True differ, as do 0.0 and -0.0; symbolic
    extents compare by expression."""
    key: list = []
    for v in values:
        kind = v.__class__
        if kind is int or kind is str or v is None:
            key.append(v)
        elif kind is tuple:
            key.append(exact(v))
        elif kind is Dim:
            key.append((Dim, v.expr))
        elif kind is float or kind is complex:
            key.append((kind, repr(v)))
        else:
            key.append((kind, v))
    return tuple(key)


def show(d: int) -> str:
    """``s0*128`` for a Dim, digits for an int."""
    if not isinstance(d, Dim):
        return str(d)
    return _show(d.expr)


def _show(expr: Poly) -> str:
    terms = []
    for mono, c in expr:
        factors = [_show_atom(a) for a in mono]
        if c != 1 or not factors:
            factors.insert(0, str(c))
        terms.append("*".join(factors))
    return " + ".join(terms) or "0"


def _show_atom(atom: Atom) -> str:
    if atom[0] == "s":
        return f"s{atom[1]}"
    return f"({_show(atom[1])}{atom[0]}{_show(atom[2])})"
