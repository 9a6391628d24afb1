"""Evaluating expressions of the loop IR inside nested scopes: sharing, hoisting, and what stays scalar.

Every expression is computed once per scope, in the outermost scope where its inputs exist.  In a vector loop a value
is *uniform* (one scalar for all lanes), *affine* (base + stride * lane, kept as two scalars: index arithmetic never
occupies vector registers) or *lanes* (vectors).  A loop works on ``u`` vectors of ``n`` lanes at a time.

Levels number the places code can go: ``2*d`` is the body of the d-th scope, ``2*d - 1`` the preheader that runs once
before it, and only if the loop runs at all.  So a load may move to a preheader, where arithmetic may move anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lezero.codegen import arithmetic
from lezero.codegen.complex_numbers import REAL, Pair
from lezero.codegen.values import Builder, Region, X
from lezero.loops import ir

NOTHING: frozenset = frozenset()
CLAMP = 1 << 30  # lane offsets are far smaller, so a limit clamped to this compares like the limit itself


class V:
    """An evaluated expression: uniform (only `base`), affine (`base` and `stride`) or lanes (`parts`).

    Lanes may also be known to be ``first + lane // count``, with `repeat` = (first, count): what pooling reads.
    """

    __slots__ = ("base", "index", "level", "parts", "reads", "repeat", "stride")

    def __init__(
        self, level: int, base: Any = None, stride: Any = None, parts: list | None = None,
        reads: frozenset = NOTHING, index: bool = False, repeat: tuple[X, int] | None = None,
    ) -> None:  # fmt: skip
        self.level = level
        self.repeat = repeat
        self.base = base  # X or Pair
        self.stride = stride  # int, X or None
        self.parts = parts
        self.reads = reads  # buffers and "@accumulators" it was read from
        self.index = index  # made of loop variables and params only, so well below 2**51

    @property
    def uniform(self) -> bool:
        return self.parts is None and self.stride is None


class Scope:
    """One loop being written (or, at the bottom, the function)."""

    def __init__(self, stem: str, effects: frozenset = NOTHING, nonempty: bool = False) -> None:
        self.pre, self.body = Region(stem + ".pre"), Region(stem + ".body")
        self.pre_memo: dict = {}
        self.body_memo: dict = {}
        self.effects = effects
        self.nonempty = nonempty


class Slot:
    """Where an accumulator lives: one stack slot per part, turned into registers by LLVM."""

    def __init__(self, type: str, level: int, slots: list, lanes: bool, partial: bool = False) -> None:
        self.type, self.level, self.slots = type, level, slots
        self.lanes = lanes  # one value per lane
        self.partial = partial  # lanes of an accumulator that lives outside the vector loop


class Expressions:
    """Scopes, and the evaluation of values in them; statements are added by :class:`~lezero.codegen.emit.Emitter`."""

    def __init__(self, b: Builder, kernel: ir.Kernel) -> None:
        self.b, self.kernel = b, kernel
        self.scopes = [Scope("function")]
        self.vars: dict[str, V] = {}
        self.accs: dict[str, Slot] = {}
        self.buffers: list[X] = []
        self.types = [x.type for x in kernel.buffers] + [x.type for x in kernel.scratch]
        self.entry = Region()
        self.n = self.u = 1
        self.mask: list[Any] | None = None  # which lanes exist, in the masked tail of a vector loop
        self.remaining: Any = None  # how many iterations are left there
        self.vector_level: int | None = None

    # -- places ---------------------------------------------------------------------------------------------

    @property
    def top(self) -> int:
        return 2 * (len(self.scopes) - 1)

    def go(self, level: int) -> None:
        """Write at the end of the region of `level` from now on."""
        scope = self.scopes[(level + 1) >> 1]
        self.b.at = scope.pre if level & 1 else scope.body

    def memo(self, level: int) -> dict:
        scope = self.scopes[(level + 1) >> 1]
        return scope.pre_memo if level & 1 else scope.body_memo

    def find(self, value: ir.Value) -> V | None:
        for scope in reversed(self.scopes):
            found = scope.body_memo.get(value)
            if found is None:
                found = scope.pre_memo.get(value)
            if found is not None:
                return found
        return None

    def forget(self, effects: Iterable) -> None:
        """Drop what was read from places that have been, or are about to be, written."""
        effects = frozenset(effects)
        if not effects:
            return
        for scope in self.scopes:
            for memo in (scope.pre_memo, scope.body_memo):
                for key in [k for k, v in memo.items() if isinstance(v, V) and v.reads & effects]:
                    del memo[key]

    def changes_at(self, place) -> int:
        """The level of the innermost open loop that writes `place`."""
        for d in range(len(self.scopes) - 1, 0, -1):
            if place in self.scopes[d].effects:
                return 2 * d
        return 0

    def hoist(self, level: int) -> int:
        """The outermost place, at `level` or inside it, that runs only if this point is reached."""
        for d in range(len(self.scopes) - 1, 0, -1):
            if 2 * d <= level:
                break
            if 2 * d - 1 == level or not self.scopes[d].nonempty:
                return 2 * d - 1
        return level

    # -- evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, value: ir.Value) -> V:
        found = self.find(value)
        if found is not None:
            return found
        stack = [value]
        while stack:
            v = stack[-1]
            if self.find(v) is not None:
                stack.pop()
                continue
            args: list[Any] = [self.find(a) for a in v.args]
            missing = [a for a, known in zip(v.args, args) if known is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            found = self.compute(v, args)
            self.memo(found.level)[v] = found
        assert found is not None
        return found

    def compute(self, value: ir.Value, args: list[V]) -> V:
        b = self.b
        match value.op:
            case "const":
                return V(0, arithmetic.constant(b, ir.number(value), value.type), index=value.type == "i64")
            case "param":
                self.go(0)
                pointer = b.ins(f"getelementptr i64, ptr %params, i64 {value.attr}", "ptr", 1)
                return V(0, b.ins(f"load i64, {pointer.typed}, align 8", "i64", 1), index=True)
            case "var":
                return self.vars[value.attr]
            case "task" | "tasks":
                return V(0, X(b, "%" + value.op, "i64", 1), index=True)
            case "acc":
                return self.read(value.attr)
            case "load":
                return self.load(value, args)
        special = self.index_arithmetic(value, args) if args[0].index and args[-1].index else None
        return special or self.elementwise(value, args)

    def elementwise(self, value: ir.Value, args: list[V]) -> V:
        b, op, types = self.b, value.op, [a.type for a in value.args]

        def one(*x):
            if op == "cast":
                return arithmetic.cast(b, types[0], value.type, *x)
            if op == "bitcast":
                return arithmetic.bitcast(types[0], value.type, *x)
            if op == "where":
                return arithmetic.where(*x)
            if op == "fma":
                return arithmetic.fma(b, *x)
            return arithmetic.unary(b, op, types[0], *x) if len(x) == 1 else arithmetic.binary(b, op, types[0], *x)

        level = max(a.level for a in args)
        reads = frozenset().union(*(a.reads for a in args))
        index = value.type == "i64" and op in ("add", "sub", "mul", "min", "max", "where", "floordiv", "mod", "neg")
        index = index and all(a.index for a in args[op == "where" :])
        if all(a.uniform for a in args):
            self.go(level)
            return V(level, one(*(a.base for a in args)), reads=reads, index=index)
        columns = [self.lanes(a) for a in args]
        self.go(level)
        repeat = self._moved_repeat(op, args) if index else None
        return V(level, parts=[one(*row) for row in zip(*columns)], reads=reads, index=index, repeat=repeat)

    @staticmethod
    def _moved_repeat(op: str, args: list[V]) -> tuple[X, int] | None:
        """Repeated lanes with a uniform value added are still repeated lanes."""
        if op == "add":
            for a, other in (args, args[::-1]):
                if a.repeat is not None and other.uniform:
                    return a.repeat[0] + other.base, a.repeat[1]
        return None

    def _block(self, values: tuple[ir.Value, ...], dividend: V) -> int:
        """The divisor if it divides the lanes into blocks: the vector variable by a small constant.  Vectors begin at multiples
        of their length, so whole runs of lanes share a quotient and every vector has the same remainders."""
        count = values[1].attr if values[1].op == "const" else 1
        return count if values[0].op == "var" and dividend.stride == 1 and count > 1 and self.n % count == 0 else 0

    def _in_blocks(self, op: str, dividend: V, count: int, level: int) -> V:
        b, n = self.b, self.n
        numbers = range(n * self.u)
        rows = [numbers[p * n : (p + 1) * n] for p in range(self.u)]
        if op == "mod":
            return V(level, parts=[b.vector("i64", [k % count for k in row]) for row in rows], index=True)
        self.go(level)
        first = dividend.base.op("sdiv", count)
        base = b.splat(first, n)
        parts = [base + b.vector("i64", [k // count for k in row]) for row in rows]
        return V(level, parts=parts, index=True, repeat=(first, count) if count < n else None)

    def lanes(self, v: V) -> list:
        """The vectors of a value, one per part."""
        if v.parts is not None:
            return v.parts
        memo = self.memo(v.level)
        key = ("lanes", id(v), self.n, self.u)
        if key not in memo:
            self.go(v.level)
            # The V is kept beside its lanes so that its id stays its own.
            memo[key] = (v, [self.splat(v.base)] * self.u if v.stride is None else self._affine_lanes(v))
        return memo[key][1]

    def splat(self, x: X | Pair):
        if isinstance(x, Pair):
            return Pair(self.b.splat(x.re, self.n), self.b.splat(x.im, self.n))
        return self.b.splat(x, self.n)

    def _affine_lanes(self, v: V) -> list[X]:
        b, n = self.b, self.n
        base = b.splat(v.base, n)
        if isinstance(v.stride, int):
            return [base + b.iota("i64", n, p * n * v.stride, v.stride) for p in range(self.u)]
        stride: Any = b.splat(v.stride, n)
        return [base + stride * b.iota("i64", n, p * n) for p in range(self.u)]

    # -- index arithmetic -----------------------------------------------------------------------------------

    def index_arithmetic(self, value: ir.Value, args: list[V]) -> V | None:
        """Affine results, comparisons of affine values, and division of lanes by a uniform value."""
        if value.type not in ("i64", "bool") or any(a.type != "i64" for a in value.args):
            return None
        if all(a.uniform for a in args):
            return None
        op, level = value.op, max(a.level for a in args)
        if op in ("floordiv", "mod"):
            count = self._block(value.args, args[0])
            if count:
                return self._in_blocks(op, args[0], count, level)
            if args[1].uniform and args[1].index and self.b.rounds_inline:
                quotient, remainder = self._divide(value.args, args, level)
                return V(level, parts=quotient if op == "floordiv" else remainder, index=True)
        if any(a.parts is not None for a in args):
            return None
        if op == "neg":
            args = [V(0, self.b.const(0, "i64")), args[0]]
            op = "sub"
        if len(args) != 2:
            return None
        x, y = args
        self.go(level)
        if op in ("add", "sub"):
            base = x.base + y.base if op == "add" else x.base - y.base
            return V(level, base, self._strides(op, x.stride or 0, y.stride or 0), index=True)
        if op == "mul":
            if y.stride is not None:
                x, y = y, x
            if y.stride is not None:
                return None
            factor = int(y.base.name) if y.base.name.lstrip("-").isdigit() else y.base
            if isinstance(x.stride, int) and isinstance(factor, int):
                stride = x.stride * factor
            elif x.stride == 1:
                stride = y.base
            else:
                stride = y.base * x.stride
            return V(level, x.base * y.base, stride, index=True)
        if op in ("eq", "ne", "lt", "le", "gt", "ge"):
            return self._compare(op, x, y, level)
        return None

    def _strides(self, op: str, s: int | X, t: int | X) -> int | X:
        if isinstance(s, int) and isinstance(t, int):
            return s + t if op == "add" else s - t
        if isinstance(s, int):
            s = self.b.const(s, "i64")
        return s + t if op == "add" else s - t

    def _compare(self, op: str, x: V, y: V, level: int) -> V | None:
        """(base + stride*lane) against another: small integers against one scalar limit, in 32 bits."""
        s, t = x.stride or 0, y.stride or 0
        if not isinstance(s, int) or not isinstance(t, int) or abs(s - t) > 1 << 16:
            return None
        b, stride = self.b, s - t
        limit = y.base - x.base
        if stride == 0:
            return V(level, arithmetic.compare(op, "i64", limit.like(0), limit))
        limit = (limit > CLAMP).where(CLAMP, (limit < -CLAMP).where(-CLAMP, limit)).convert("trunc", "i32")
        wide = b.splat(limit, self.n)
        parts = [
            arithmetic.compare(op, "i32", b.iota("i32", self.n, p * self.n * stride, stride), wide)
            for p in range(self.u)
        ]
        return V(level, parts=parts)

    def _divide(self, values: tuple, args: list[V], level: int) -> tuple[list[X], list[X]]:
        """Lanes divided by a uniform value in f64: exact, since indices stay below 2**51 and one step corrects."""
        memo, key = self.memo(level), ("divmod", *values)
        if key in memo:
            return memo[key]
        b, n, divisor = self.b, self.n, args[1]
        numerators = self.lanes(args[0])
        self.go(divisor.level)
        scalar = divisor.base.convert("sitofp", "double")
        d, reciprocal = b.splat(scalar, n), b.splat(1.0 / scalar, n)
        self.go(level)
        quotients, remainders = [], []
        for x in numerators:
            wide = self._to_double(x)
            q = b.floor(wide * reciprocal)
            r = wide - q * d
            low, high = (r * reciprocal) < 0.0, r.abs() >= d.abs()
            q = low.where(q - 1.0, high.where(q + 1.0, q))
            r = low.where(r + d, high.where(r - d, r))
            quotients.append(self._to_integer(q))
            remainders.append(self._to_integer(r))
        memo[key] = quotients, remainders
        return memo[key]

    # AVX-512 converts 64-bit integers; elsewhere adding 1.5 * 2**52 puts an integer into the mantissa.
    def _to_double(self, x: X) -> X:
        if self.b.target.vector_bytes == 64:
            return x.convert("sitofp", "double")
        return (x + 0x4338000000000000).floats() - 6755399441055744.0

    def _to_integer(self, x: X) -> X:
        if self.b.target.vector_bytes == 64:
            return x.convert("fptosi", "i64")
        return (x + 6755399441055744.0).bits() - 0x4338000000000000

    # -- accumulators ---------------------------------------------------------------------------------------

    def allocate(self, type: str, n: int) -> Any:
        """A stack slot for `n` lanes, in the entry block."""
        if type in REAL:
            return Pair(self.allocate(REAL[type], n), self.allocate(REAL[type], n))
        kind = arithmetic.LLVM_TYPE[type]
        name = "%" + self.b.fresh("slot")
        self.entry.lines.append(f"{name} = alloca {kind if n == 1 else f'<{n} x {kind}>'}")
        return X(self.b, name, "ptr", 1)

    def get(self, slot: X | Pair, type: str, n: int) -> Any:
        if isinstance(slot, Pair):
            return Pair(self.get(slot.re, REAL[type], n), self.get(slot.im, REAL[type], n))
        kind = arithmetic.LLVM_TYPE[type]
        return self.b.ins(f"load {kind if n == 1 else f'<{n} x {kind}>'}, {slot.typed}", kind, n)

    def put(self, slot: X | Pair, x: Any) -> None:
        if isinstance(slot, Pair):
            self.put(slot.re, x.re)
            self.put(slot.im, x.im)
        else:
            self.b.line(f"store {x.typed}, {slot.typed}")

    def read(self, name: str) -> V:
        slot = self.accs[name]
        level = max(slot.level, self.changes_at("@" + name))
        self.go(level)
        n = self.n if slot.lanes else 1
        values = [self.get(s, slot.type, n) for s in slot.slots]
        reads = frozenset(("@" + name,))
        return V(level, parts=values, reads=reads) if slot.lanes else V(level, values[0], reads=reads)

    def load(self, value: ir.Value, args: list[V]) -> V:
        raise NotImplementedError
