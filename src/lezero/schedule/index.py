"""Index expressions: which element of what is read, in terms of a kernel's loop variables.

An :class:`Ix` is a sum of terms ``coefficient * atom`` and a constant; coefficients are extents (int or Dim), atoms are loop
variables, floor divisions and remainders that did not simplify, products, and values read from index tensors.  Equal
expressions are equal objects as far as ``==`` on their ``key`` goes, which is how the scheduler sees that two accesses are
the same.  View rules (``ops.base.View.index``) are called with these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lezero.graph.dim import Dim, same
from lezero.graph.dim import _of as poly
from lezero.loops import ir


class Var:
    """A loop variable, 0 ≤ var < extent."""

    __slots__ = ("extent", "ix", "name")

    def __init__(self, name: str, extent: int):
        self.name, self.extent = name, extent
        self.ix: Ix | None = None  # it as an expression, once asked for

    def __repr__(self) -> str:
        return self.name


Atom = Any  # Var, or ("//", Ix, int), ("%", Ix, int), ("*", Ix, Ix), ("read", node, (Ix, ...)), ("max"/"min", Ix, Ix)


def _atom_key(atom: Atom) -> Any:
    if isinstance(atom, Var):
        return ("v", atom.name)
    if atom[0] == "read":
        return read_key(atom[1], atom[2])
    return (atom[0], *(a.key if isinstance(a, Ix) else poly(a) for a in atom[1:]))


def read_key(node: Any, position: tuple[Ix, ...]) -> Any:
    """What tells an element of an index tensor from others."""
    return ("read", id(node), tuple(i.key for i in position))


def _is_number(x: Any) -> bool:
    return isinstance(x, int)


class Ix:
    """An integer expression (see the module)."""

    __slots__ = ("_key", "constant", "terms")

    def __init__(self, terms: dict[Any, tuple[Atom, int]], constant: int):
        self.terms = {k: t for k, t in terms.items() if t[1].__class__ is Dim or t[1]}  # a Dim is never 0
        self.constant = constant
        self._key: Any = None

    @property
    def key(self) -> Any:
        """Equal for equal expressions."""
        if self._key is None:
            self._key = (tuple(sorted([(repr(k), poly(c)) for k, (_, c) in self.terms.items()])), poly(self.constant))
        return self._key

    @staticmethod
    def of(x: Any) -> Ix:
        if isinstance(x, Ix):
            return x
        if isinstance(x, Var):
            if x.ix is None:
                alike = Var(x.name, x.extent)  # an expression that its own variable refers to would be a cycle
                x.ix = Ix({_atom_key(x): (alike, 1)}, 0) if not same(x.extent, 1) else Ix({}, 0)
            return x.ix
        if _is_number(x):
            return Ix({}, x)
        raise TypeError(f"{x!r} is not an index")

    @staticmethod
    def atom(a: Atom) -> Ix:
        return Ix({_atom_key(a): (a, 1)}, 0)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def __hash__(self) -> int:
        return hash(self.key)

    def same(self, other: Ix) -> bool:
        return self.key == other.key

    def __add__(self, other: Any) -> Ix:
        o = Ix.of(other)
        if not o.terms and o.constant.__class__ is int and o.constant == 0:
            return self
        terms = dict(self.terms)
        for k, (a, c) in o.terms.items():
            terms[k] = (a, terms[k][1] + c) if k in terms else (a, c)
        return Ix(terms, self.constant + o.constant)._rejoined()

    def _rejoined(self) -> Ix:
        """n * (e // n) + e % n is e: a dimension that was split, and is one again."""
        for key, (a, c) in self.terms.items():
            if key[0] != "%" or not _is_number(a[2]):
                continue
            quotient = a[1] // a[2]
            if len(quotient.terms) != 1 or not same(quotient.constant, 0):
                continue
            ((whole, (_, times)),) = quotient.terms.items()
            if whole in self.terms and same(self.terms[whole][1], c * a[2] * times):
                return Ix({k: t for k, t in self.terms.items() if k not in (key, whole)}, self.constant) + a[1] * c
        return self

    __radd__ = __add__

    def __neg__(self) -> Ix:
        return self * -1

    def __sub__(self, other: Any) -> Ix:
        return self + (Ix.of(other) * -1)

    def __rsub__(self, other: Any) -> Ix:
        return Ix.of(other) - self

    def __mul__(self, other: Any) -> Ix:
        o = Ix.of(other)
        if self.is_constant and not o.is_constant:
            return o * self.constant
        if o.is_constant:
            if o.constant.__class__ is int and o.constant == 1:
                return self
            return Ix({k: (a, c * o.constant) for k, (a, c) in self.terms.items()}, self.constant * o.constant)
        return Ix.atom(("*", self, o))

    __rmul__ = __mul__

    def __floordiv__(self, n: Any) -> Ix:
        n = n.constant if isinstance(n, Ix) and n.is_constant else n
        if not _is_number(n):
            return Ix.atom(("//", self, Ix.of(n)))
        if same(n, 1):
            return self
        quotient, rest = self._split(n)
        if rest.is_constant and not isinstance(rest.constant, Dim) and not isinstance(n, Dim):
            return quotient + rest.constant // n
        if within(rest, n):
            return quotient
        if len(rest.terms) == 1 and same(rest.constant, 0):
            ((a, c),) = rest.terms.values()
            if not isinstance(a, Var) and a[0] == "//" and same(c, 1) and _is_number(a[2]):
                return quotient + a[1] // (a[2] * n)
        return quotient + Ix.atom(("//", rest, n))

    def __mod__(self, n: Any) -> Ix:
        n = n.constant if isinstance(n, Ix) and n.is_constant else n
        if not _is_number(n):
            return Ix.atom(("%", self, Ix.of(n)))
        if same(n, 1):
            return Ix({}, 0)
        _, rest = self._split(n)
        if rest.is_constant and not isinstance(rest.constant, Dim) and not isinstance(n, Dim):
            return Ix({}, rest.constant % n)
        if within(rest, n):
            return rest
        return Ix.atom(("%", rest, n))

    def _split(self, n: int) -> tuple[Ix, Ix]:
        """self = quotient*n + rest, moving whole multiples of n into the quotient."""
        quotient: dict = {}
        rest: dict = {}
        for k, (a, c) in self.terms.items():
            q, r = _divide(c, n)
            if q is not None:
                quotient[k] = (a, q)
            else:
                rest[k] = (a, r)
        q, r = _divide(self.constant, n)
        if q is None and not isinstance(n, Dim) and not isinstance(self.constant, Dim):
            q, r = self.constant // n, self.constant % n
            return Ix(quotient, q), Ix(rest, r)
        return Ix(quotient, 0 if q is None else q), Ix(rest, self.constant if q is None else 0)

    def __ge__(self, other: Any) -> Any:
        return Mask.compare("ge", self, Ix.of(other))

    def __lt__(self, other: Any) -> Any:
        return Mask.compare("lt", self, Ix.of(other))

    def __gt__(self, other: Any) -> Any:
        return Mask.compare("lt", Ix.of(other), self)

    def __le__(self, other: Any) -> Any:
        return Mask.compare("ge", Ix.of(other), self)

    def __eq__(self, other: Any) -> Any:
        return Mask.compare("eq", self, Ix.of(other))

    def __ne__(self, other: Any) -> Any:
        return ~Mask.compare("eq", self, Ix.of(other))

    def variables(self) -> dict[str, Var]:
        found: dict[str, Var] = {}
        for a, _ in self.terms.values():
            _collect(a, found)
        return found

    def reads(self) -> Iterator[Any]:
        """Keys of the elements of index tensors in it."""
        for key, (a, _) in self.terms.items():
            if isinstance(a, Var):
                continue
            if a[0] == "read":
                yield key
            for part in a[2] if a[0] == "read" else a[1:]:
                if isinstance(part, Ix):
                    yield from part.reads()

    @property
    def has_reads(self) -> bool:
        """Whether it depends on an index tensor's elements."""
        return next(self.reads(), None) is not None

    def affine(self) -> dict[str, int] | None:
        """variable -> coefficient, or None if there is more than variables in it."""
        if any(not isinstance(a, Var) for a, _ in self.terms.values()):
            return None
        return {a.name: c for a, c in self.terms.values()}

    def __repr__(self) -> str:
        parts = [f"{int(c)}*{a}" for a, c in self.terms.values()]
        return " + ".join([*parts, str(int(self.constant))])


def _collect(a: Atom, found: dict[str, Var]) -> None:
    if isinstance(a, Var):
        found[a.name] = a
        return
    for part in a[2] if a[0] == "read" else a[1:]:
        if isinstance(part, Ix):
            found.update(part.variables())


def _divide(c: int, n: int) -> tuple[int | None, int]:
    """(c / n, 0) if it comes out even for every extent, else (None, c)."""
    if same(c, 0):
        return 0, 0
    if not isinstance(c, Dim) and not isinstance(n, Dim):
        return (c // n, 0) if c % n == 0 else (None, c)
    if same((c // n) * n, c):
        return c // n, 0
    return None, c


def _nonnegative(d: int) -> bool:
    """Whether an extent expression is ≥ 0 for all symbols ≥ 2 (may fail to see it)."""
    if not isinstance(d, Dim):
        return d >= 0
    constant, low = 0, 0
    for mono, c in d.expr:
        if any(a[0] != "s" for a in mono):
            return False
        if not mono:
            constant = c
        elif c < 0:
            return False
        else:
            low += c * 2 ** len(mono)
    return low + constant >= 0


def upper(e: Ix) -> int | None:
    """The largest value, or None if unknown; only for expressions that cannot be negative."""
    total: int = e.constant
    for a, c in e.terms.values():
        if not _nonnegative(c):
            return None
        if isinstance(a, Var):
            total = total + c * (a.extent - 1)
        elif a[0] == "%" and _is_number(a[2]):
            total = total + c * (a[2] - 1)
        elif a[0] == "//" and _is_number(a[2]):
            inner = upper(a[1])
            if inner is None or isinstance(inner, Dim) or isinstance(a[2], Dim):
                return None
            total = total + c * (inner // a[2])
        else:
            return None
    return total


def lower_is_zero(e: Ix) -> bool:
    """Whether the expression is ≥ 0 by its form."""
    for a, c in e.terms.values():
        if not _nonnegative(c):
            return False
        if isinstance(a, Var) or (a[0] == "%"):
            continue
        if a[0] == "//" and lower_is_zero(a[1]):
            continue
        return False
    return _nonnegative(e.constant)


def within(e: Ix, n: int) -> bool:
    """Whether 0 ≤ e < n for every extent."""
    if not lower_is_zero(e):
        return False
    top = upper(e)
    return top is not None and _nonnegative(n - top - 1)


class Mask:
    """A condition on indices: None stands for "always" wherever a Mask is expected."""

    __slots__ = ("key", "parts")

    def __init__(self, *parts: Any):
        self.parts = (
            parts  # ("ge"|"lt"|"eq", Ix, Ix) or ("and"|"or", Mask, Mask) or ("not", Mask) or (True,) or (False,)
        )
        self.key: tuple = tuple(p.key if isinstance(p, (Ix, Mask)) else p for p in parts)

    @staticmethod
    def compare(op: str, a: Ix, b: Ix) -> Mask:
        d = a - b
        if op == "ge" and lower_is_zero(d):
            return TRUE
        if op == "lt":
            e = b - a - 1
            if lower_is_zero(e) or (b.is_constant and within(a, b.constant)):
                return TRUE
            if lower_is_zero(d):
                return FALSE
        if d.is_constant and not isinstance(d.constant, Dim):
            return TRUE if {"ge": d.constant >= 0, "lt": d.constant < 0, "eq": d.constant == 0}[op] else FALSE
        return Mask(op, a, b)

    def __and__(self, other: Mask | None) -> Mask:
        if other is None or other is TRUE or self is FALSE:
            return self
        if self is TRUE or other is FALSE:
            return other
        return Mask("and", self, other)

    __rand__ = __and__

    def __or__(self, other: Mask) -> Mask:
        if self is TRUE or other is FALSE:
            return self
        if self is FALSE or other is TRUE:
            return other
        return Mask("or", self, other)

    def __invert__(self) -> Mask:
        return FALSE if self is TRUE else TRUE if self is FALSE else Mask("not", self)

    def indices(self) -> list[Ix]:
        out: list[Ix] = []
        for p in self.parts[1:]:
            out += [p] if isinstance(p, Ix) else p.indices()
        return out


TRUE = Mask(True)
FALSE = Mask(False)


class Params:
    """The run-time integers of a kernel: each distinct extent expression gets a number."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._numbers: dict[Any, int] = {}

    def named(self, name: str) -> ir.Value:
        """A number that is not an extent: "tasks" is how many tasks the kernel's body ran as."""
        if name not in self._numbers:
            self._numbers[name] = len(self.values)
            self.values.append(name)  # type: ignore[arg-type]
        return ir.param(self._numbers[name])

    def value(self, d: int) -> ir.Value:
        """An extent as a loop-IR value: 0, 1 and -1 are constants, everything else is read at run time."""
        if not isinstance(d, Dim) and -1 <= d <= 1:
            return ir.const(int(d))
        key = poly(d)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(d)
        return ir.param(self._numbers[key])


SMALL_DIVISOR = 16
"""Divisors up to this (strides of pooling) are part of the code, where the compiler makes shifts and multiplications of them."""


class Emit:
    """Turns index expressions into loop-IR values.

    read : (node, position) -> an element of an index tensor
    bound : loop variables that are computed from others
    """

    def __init__(self, params: Params, read) -> None:
        self.params, self.read = params, read
        self.bound: dict[str, ir.Value] = {}

    def ix(self, e: Ix) -> ir.Value:
        total = None
        for _, (a, c) in sorted(e.terms.items(), key=lambda t: repr(t[0])):
            v = self.atom(a)
            if not same(c, 1):
                # Every other element is loaded as whole vectors, which takes a stride that is part of the code.
                two = not isinstance(c, Dim) and c == 2
                v = ir.call("mul", v, ir.const(2) if two else self.params.value(c))
            total = v if total is None else ir.call("add", total, v)
        if total is None:
            return self.params.value(e.constant)
        if not same(e.constant, 0):
            total = ir.call("add", total, self.params.value(e.constant))
        return total

    def atom(self, a: Atom) -> ir.Value:
        if isinstance(a, Var):
            return self.bound.get(a.name) or ir.var(a.name)
        if a[0] == "read":
            return self.read(a[1], a[2])
        left = self.ix(a[1])
        if isinstance(a[2], Ix):
            right = self.ix(a[2])
        elif not isinstance(a[2], Dim) and 0 < a[2] <= SMALL_DIVISOR:
            right = ir.const(int(a[2]))
        else:
            right = self.params.value(a[2])
        return ir.call({"//": "floordiv", "%": "mod", "*": "mul"}.get(a[0], a[0]), left, right)

    def mask(self, m: Mask) -> ir.Value:
        kind = m.parts[0]
        if kind is True or kind is False:
            return ir.const(kind, "bool")
        if kind == "not":
            return ir.call("not", self.mask(m.parts[1]))
        if kind in ("and", "or"):
            return ir.call(kind, self.mask(m.parts[1]), self.mask(m.parts[2]))
        return ir.call(kind, self.ix(m.parts[1]), self.ix(m.parts[2]))
