"""The loop IR: what every kernel is written in before a target is chosen.

A :class:`Kernel` is a list of buffers, a number of run-time integers (*params*) and a body of statements.
Expressions are :class:`Value` objects: immutable, compared by structure, safe to share.  Types are the short
names of :data:`TYPES`; indices and params are ``i64``.

The machine contract every compiled kernel fulfils (generated from this IR or by hand, see ``codegen``)::

    void kernel(void **buffers, const int64_t *params, int64_t task, int64_t tasks, void *scratch)

``task`` runs from 0 to ``tasks - 1`` in any order and on any thread; a task may only write what is its own.
A kernel with a ``combine`` body also exports ``combine`` with the same signature, run after a barrier.

Element types and what arithmetic means
---------------------------------------
``f16`` and ``bf16`` are storage types: load them, ``cast`` to ``f32``, compute, cast back and store.
``bool`` is one byte in memory, 0 or 1.  Integer arithmetic wraps.  ``c64``/``c128`` support add, sub, mul, div,
neg, eq, ne, exp, log, sqrt, abs (gives the real type), ``real``, ``imag``, ``conj``, ``complex`` (from two reals), cast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

TYPES: dict[str, int] = {
    "f64": 8, "f32": 4, "bf16": 2, "f16": 2, "c64": 8, "c128": 16,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1,
}  # fmt: skip
"""Type name -> bytes in memory."""

UNARY = frozenset(
    "neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc sigmoid floor ceil round trunc sign not isnan isinf isfinite lgamma digamma "
    "real imag conj".split()
)
"""One argument.  ``round`` is half to even; ``not`` is logical for bool and bitwise for integers; is* give bool."""

BINARY = frozenset(
    "add sub mul div floordiv mod fmod pow atan2 max min and or xor shl shr copysign eq ne lt le gt ge complex".split()
)
"""Two arguments of one type.  ``div`` is for floats; ``floordiv`` and ``mod`` round to minus infinity as in Python;
``fmod`` truncates; ``max`` and ``min`` return NaN if either argument is NaN; comparisons give bool."""

POSITIONS = {"argmax": "max", "argmin": "min", "argmax_of_window": "max"}
"""Reductions that say where the extreme is, and which extreme.  ``argmax_of_window`` takes the last of several NaN."""

REDUCTIONS = frozenset(("sum", "prod", "max", "min", "any", "all", *POSITIONS))


@dataclass(frozen=True, eq=False)
class Value:
    """An expression.

    ======== ==================================== =========================================================
    op       attr                                 args
    ======== ==================================== =========================================================
    const    a Python number
    param    k                                    the k-th run-time integer (i64)
    var      Loop's variable name                 (i64) the loop's current index
    task     --                                   (i64) which task this is
    tasks    --                                   (i64) how many tasks there are
    load     buffer number                        (index,) or (index, mask): masked-off elements give 0
    acc      accumulator name                     its current value (after its loops have ended: the total)
    cast     --                                   (x,); float to int truncates, anything to bool is ``!= 0``
    bitcast  --                                   (x,); same size
    where    --                                   (condition, a, b)
    fma      --                                   (a, b, c): a*b + c in one rounding where the target can
    UNARY, BINARY as named
    ======== ==================================== =========================================================
    """

    op: str
    type: str
    args: tuple[Value, ...] = ()
    attr: Any = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.type, self.attr, *(a._hash for a in self.args))))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        # Iterative: expressions can be deep, and sharing makes most comparisons end at identity.
        if self is other:
            return True
        if not isinstance(other, Value):
            return NotImplemented
        stack: list[tuple[Value, Value]] = [(self, other)]
        equal: dict[tuple[int, int], tuple[Value, Value]] = {}
        while stack:
            a, b = stack.pop()
            if a is b or (id(a), id(b)) in equal:
                continue
            if a._hash != b._hash or a.op != b.op or a.type != b.type or len(a.args) != len(b.args):
                return False
            if a.attr != b.attr or type(a.attr) is not type(b.attr):
                return False
            equal[id(a), id(b)] = a, b
            if a.args is not b.args:
                stack.extend(zip(a.args, b.args))
        for a, b in equal.values():  # so that comparing them, or what is made of them, need not go down again
            object.__setattr__(b, "args", a.args)
        return True

    def __repr__(self) -> str:
        from lezero.loops.printer import show

        return show(self)


@dataclass
class Loop:
    """Run `body` for `var` = 0 .. extent-1.

    vector : the iterations are computed several at a time.  They must not depend on each other, except through
        ``Reduce`` into an accumulator declared *outside* this loop (then partial results are kept per lane and
        combined when the loop ends).  An ``Acc`` declared *inside* a vector loop has one value per lane; serial
        loops may stand between (a column sum is: vector loop over columns { Acc; serial loop over rows { Reduce }; Store }).
        Vector loops do not nest.  A vector loop whose extent is smaller than a vector still works (masked).
    task : the iterations are divided among tasks; at most one such loop, at the top level of a body.
        Task t of n takes a contiguous range; where the loop is also a vector loop, inner range borders are multiples
        of 64 iterations, so that two threads do not write into one cache line.
    unroll : the loop is repeated in the code (its extent is a const).
    """

    var: str
    extent: Value
    body: list[Stmt]
    vector: bool = False
    task: bool = False
    unroll: bool = False


@dataclass
class Acc:
    """Declare accumulator `name` with `init`; visible in the statements that follow in the same body and below."""

    name: str
    type: str
    init: Value


@dataclass
class Reduce:
    """acc = combine(acc, value), for a kind of REDUCTIONS.

    Kinds of POSITIONS take two accumulators: `acc` (the best value) and `index_acc` (i64, where), with `index` the
    position of `value`; the first of equal values wins, and NaN wins over numbers.  Sums may be reassociated.
    """

    acc: str
    kind: str
    value: Value
    index_acc: str | None = None
    index: Value | None = None


@dataclass
class Assign:
    """acc = value (sequential: not for an accumulator declared outside a vector loop)."""

    acc: str
    value: Value


@dataclass
class Store:
    """buffer[index] = value, where `mask` (bool) holds.  `add=True` adds to what is there."""

    buffer: int
    index: Value
    value: Value
    mask: Value | None = None
    add: bool = False


Stmt = Loop | Acc | Reduce | Assign | Store


@dataclass(frozen=True)
class Buffer:
    """An argument of a kernel; different arguments never overlap unless they are the same address element for element
    (in-place), in which case every element is read before it is written by the same iteration."""

    type: str
    mode: str = "r"  # "r", "w" or "rw"


@dataclass(frozen=True)
class Scratch:
    """Memory of the thread that runs a task: numbered after the buffers, contents undefined when a task starts."""

    type: str
    length: Value  # in elements, made of consts and params


@dataclass
class Kernel:
    name: str  # a short word for listings, like "softmax" or "add.relu"; not part of the key
    buffers: tuple[Buffer, ...]
    params: int
    body: list[Stmt]
    combine: list[Stmt] | None = None
    scratch: tuple[Scratch, ...] = ()


# -- building -------------------------------------------------------------------------------------------------


def const(value: bool | int | float | complex, type: str = "i64") -> Value:
    """A constant.  -0.0 and NaN keep their identity (the attr is a hex string for floats)."""
    if type[0] in "fb" and type != "bool":
        return Value("const", type, (), float(value).hex())  # type: ignore[arg-type]
    if type[0] == "c":
        c = complex(value)
        return Value("const", type, (), (c.real.hex(), c.imag.hex()))
    return Value("const", type, (), bool(value) if type == "bool" else int(value))  # type: ignore[arg-type]


def number(value: Value) -> bool | int | float | complex:
    """The Python number of a const."""
    if isinstance(value.attr, str):
        return float.fromhex(value.attr)
    if isinstance(value.attr, tuple):
        return complex(float.fromhex(value.attr[0]), float.fromhex(value.attr[1]))
    return value.attr


def param(k: int) -> Value:
    return Value("param", "i64", (), k)


def var(name: str) -> Value:
    return Value("var", "i64", (), name)


TASK = Value("task", "i64")
TASKS = Value("tasks", "i64")

_BOOL_RESULT = frozenset("eq ne lt le gt ge isnan isinf isfinite".split())
_REAL_OF = {"c64": "f32", "c128": "f64"}
_COMPLEX_OF = {"f32": "c64", "f64": "c128"}


def call(op: str, *args: Value) -> Value:
    """Apply a UNARY or BINARY operation, or ``where``/``fma``, inferring the type; folds integer index arithmetic."""
    first = args[1] if op == "where" else args[0]
    if op in _BOOL_RESULT:
        type = "bool"
    elif op in ("abs", "real", "imag"):
        type = _REAL_OF.get(first.type, first.type)
    elif op == "complex":
        type = _COMPLEX_OF[first.type]
    else:
        type = first.type
    if type == "i64" and all(a.op == "const" for a in args):
        folded = _fold(op, *(a.attr for a in args))
        if folded is not None:
            return const(folded)
    if type == "i64" and len(args) == 2:
        a, b = args
        if op == "add" and a.op == "const" and a.attr == 0:
            return b
        if op in ("add", "sub") and b.op == "const" and b.attr == 0:
            return a
        if op == "mul":
            for x, y in ((a, b), (b, a)):
                if x.op == "const" and x.attr in (0, 1):
                    return y if x.attr == 1 else const(0)
        if op == "floordiv" and b.op == "const" and b.attr == 1:
            return a
        if op == "mod" and b.op == "const" and b.attr == 1:
            return const(0)
    return Value(op, type, args)


def _fold(op: str, *args: int) -> int | None:
    if len(args) != 2:
        return None
    a, b = args
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv" if b:
            return a // b
        case "mod" if b:
            return a % b
        case "max":
            return max(a, b)
        case "min":
            return min(a, b)
    return None


def cast(x: Value, type: str) -> Value:
    """`x` as a `type`; what was widened from half precision to f32 is what it was before."""
    if x.op == "cast" and x.type == "f32" and type in ("f16", "bf16") and x.args[0].type == type:
        return x.args[0]
    return x if x.type == type else Value("cast", type, (x,))


def load(buffer: int, type: str, index: Value, mask: Value | None = None) -> Value:
    return Value("load", type, (index,) if mask is None else (index, mask), buffer)


def acc(name: str, type: str) -> Value:
    return Value("acc", type, (), name)


def evaluate(value: Value, params: Iterable[int]) -> int:
    """The number of an i64 expression made of consts and params (a loop extent or a scratch length)."""
    params = list(params)

    def go(v: Value) -> int:
        if v.op == "const":
            return v.attr
        if v.op == "param":
            return params[v.attr]
        folded = _fold(v.op, *(go(a) for a in v.args))
        if folded is None:
            raise ValueError(f"{v.op} cannot be evaluated from params")
        return folded

    return go(value)
