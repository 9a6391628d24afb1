"""A small textual builder for LLVM IR with explicit lanes.

An :class:`X` is one SSA value: a scalar (``n == 1``) or a vector of ``n`` lanes.  Arithmetic on it appends a line to
the region the :class:`Builder` currently writes to.  Text is written instead of an object tree because one kernel is
parsed exactly once, and formatting a line is several times cheaper than building and printing an instruction object.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from lezero.codegen.target import Target

BITS = {"float": 32, "double": 64, "half": 16, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
SHORT = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
INTEGER_OF = {"float": "i32", "double": "i64"}


def vector(type: str, n: int) -> str:
    """The LLVM spelling of `n` lanes of `type`."""
    return type if n == 1 else f"<{n} x {type}>"


def suffix(type: str, n: int) -> str:
    """The mangling of a type in an intrinsic's name."""
    short = SHORT.get(type, type)
    return short if n == 1 else f"v{n}{short}"


def literal(value: float, type: str) -> str:
    if type in ("float", "double"):
        if type == "float":
            value = struct.unpack("f", struct.pack("f", value))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if type == "i1":
        return "true" if value else "false"
    bits = BITS[type]
    value = int(value) & ((1 << bits) - 1)
    return str(value - (1 << bits) if value >> (bits - 1) else value)


class Region:
    """Lines of straight-line code (or of whole loops), and the label of the block its end is in."""

    __slots__ = ("label", "lines", "start")

    def __init__(self, start: str = "entry") -> None:
        self.lines: list[str] = []
        self.start = self.label = start


class X:
    """One SSA value of `n` lanes of the LLVM type `type`; operators emit instructions (signed for integers)."""

    __slots__ = ("b", "n", "name", "type")

    def __init__(self, b: Builder, name: str, type: str, n: int) -> None:
        self.b, self.name, self.type, self.n = b, name, type, n

    @property
    def spelled(self) -> str:
        return self.type if self.n == 1 else f"<{self.n} x {self.type}>"

    @property
    def typed(self) -> str:
        return f"{self.spelled} {self.name}"

    @property
    def floating(self) -> bool:
        return self.type in ("float", "double")

    def like(self, value: float | X) -> X:
        """`value` as a constant of this value's type and lanes."""
        return value if isinstance(value, X) else self.b.const(value, self.type, self.n)

    def op(self, name: str, other: float | X) -> X:
        return self.b.ins(f"{name} {self.spelled} {self.name}, {self.like(other).name}", self.type, self.n)

    def __add__(self, o: float | X) -> X:
        return self.op("fadd" if self.floating else "add", o)

    def __sub__(self, o: float | X) -> X:
        return self.op("fsub" if self.floating else "sub", o)

    def __mul__(self, o: float | X) -> X:
        return self.op("fmul" if self.floating else "mul", o)

    def __truediv__(self, o: float | X) -> X:
        return self.op("fdiv", o)

    def __rtruediv__(self, o: float) -> X:
        return self.like(o).op("fdiv", self)

    def __rsub__(self, o: float) -> X:
        return self.like(o) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> X:
        if self.floating:
            return self.b.ins(f"fneg {self.spelled} {self.name}", self.type, self.n)
        return self.like(0) - self

    def __and__(self, o: float | X) -> X:
        return self.op("and", o)

    def __or__(self, o: float | X) -> X:
        return self.op("or", o)

    def __xor__(self, o: float | X) -> X:
        return self.op("xor", o)

    def __invert__(self) -> X:
        return self.op("xor", -1 if self.type != "i1" else 1)

    def __lshift__(self, o: float | X) -> X:
        return self.op("shl", o)

    def __rshift__(self, o: float | X) -> X:
        return self.op("ashr", o)

    def lshr(self, o: float | X) -> X:
        return self.op("lshr", o)

    def compare(self, predicate: str, other: float | X) -> X:
        kind = "fcmp" if self.floating else "icmp"
        return self.b.ins(f"{kind} {predicate} {self.spelled} {self.name}, {self.like(other).name}", "i1", self.n)

    def __lt__(self, o: float | X) -> X:
        return self.compare("olt" if self.floating else "slt", o)

    def __le__(self, o: float | X) -> X:
        return self.compare("ole" if self.floating else "sle", o)

    def __gt__(self, o: float | X) -> X:
        return self.compare("ogt" if self.floating else "sgt", o)

    def __ge__(self, o: float | X) -> X:
        return self.compare("oge" if self.floating else "sge", o)

    def eq(self, o: float | X) -> X:
        return self.compare("oeq" if self.floating else "eq", o)

    def ne(self, o: float | X) -> X:
        return self.compare("une" if self.floating else "ne", o)

    def isnan(self) -> X:
        return self.compare("uno", self)

    def where(self, a: float | X, b: float | X) -> X:
        """This condition (i1) ? a : b; at least one of them is a value."""
        if not isinstance(a, X):
            assert isinstance(b, X)
            a = b.like(a)
        return self.b.ins(f"select {self.typed}, {a.typed}, {a.spelled} {a.like(b).name}", a.type, a.n)

    def convert(self, op: str, type: str) -> X:
        """A conversion instruction: sext, zext, trunc, sitofp, fpext, bitcast, ..."""
        return self.b.ins(f"{op} {self.typed} to {vector(type, self.n)}", type, self.n)

    def bits(self) -> X:
        return self.convert("bitcast", INTEGER_OF[self.type])

    def floats(self) -> X:
        return self.convert("bitcast", "float" if self.type == "i32" else "double")

    def abs(self) -> X:
        return self.b.intrinsic("fabs", self)

    def sqrt(self) -> X:
        return self.b.intrinsic("sqrt", self)

    def copysign(self, sign: X) -> X:
        return self.b.intrinsic("copysign", self, sign)


class Builder:
    """Writes the functions of one module; `at` is the region new lines go to."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.at = Region()
        self.declarations: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.loops: list[str] = []  # metadata, one node a loop
        self.counter = 0
        # roundps and friends came with SSE4.1; below that LLVM would call libm.
        self.rounds_inline = target.level not in ("generic", "x86-64")

    def fresh(self, stem: str = "v") -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def line(self, text: str) -> None:
        self.at.lines.append(text)

    def ins(self, text: str, type: str, n: int) -> X:
        self.counter += 1
        name = f"%v{self.counter}"
        self.at.lines.append(f"{name} = {text}")
        return X(self, name, type, n)

    def const(self, value: float, type: str, n: int = 1) -> X:
        text = literal(value, type)
        return X(self, text if n == 1 else f"splat ({type} {text})", type, n)

    def call(self, name: str, type: str, n: int, args: Sequence[X]) -> X:
        """Call `name`, declaring it if it is an intrinsic."""
        if name not in self.declarations and name.startswith("llvm."):
            self.declarations[name] = f"declare {vector(type, n)} @{name}({', '.join(a.spelled for a in args)})"
        return self.ins(f"call {vector(type, n)} @{name}({', '.join(a.typed for a in args)})", type, n)

    def intrinsic(self, name: str, *args: X) -> X:
        """An intrinsic overloaded on its first argument's type, which is also its result."""
        x = args[0]
        return self.call(f"llvm.{name}.{suffix(x.type, x.n)}", x.type, x.n, args)

    def fma(self, a: X, b: float | X, c: float | X) -> X:
        """a*b + c, in one rounding where the target can (an emulated fma would be a call into libm)."""
        b, c = a.like(b), a.like(c)
        if self.target.fma:
            return self.intrinsic("fma", a, b, c)
        return a * b + c

    def splat(self, x: X, n: int) -> X:
        if n == 1 or x.n == n:
            return x
        if x.name[0] not in "%@":
            return X(self, f"splat ({x.type} {x.name})", x.type, n)
        one = self.ins(f"insertelement {vector(x.type, n)} poison, {x.typed}, i64 0", x.type, n)
        return self.ins(f"shufflevector {one.typed}, {one.spelled} poison, <{n} x i32> zeroinitializer", x.type, n)

    def iota(self, type: str, n: int, start: int = 0, step: int = 1) -> X:
        """start, start + step, ... in the lanes."""
        return self.vector(type, range(start, start + step * n, step)) if step else self.const(start, type, n)

    def vector(self, type: str, numbers: Sequence[int]) -> X:
        """Given integers in the lanes."""
        lanes = ", ".join(f"{type} {k}" for k in numbers)
        return X(self, f"<{lanes}>" if len(numbers) > 1 else str(numbers[0]), type, len(numbers))

    def floats(self, numbers: Sequence[float]) -> X:
        """Given f32 numbers in the lanes."""
        lanes = ", ".join(f"float {literal(v, 'float')}" for v in numbers)
        return X(self, f"<{lanes}>", "float", len(numbers))

    def picks(self, x: X) -> bool:
        """Whether :meth:`pick` can choose for the lanes of `x`."""
        wide = self.target.level.startswith(("avx512", "amx"))
        return wide and x.type == "float" and x.n in (1, 16)

    def pick(self, table: X, lane: X) -> X:
        """For each of `lane` (i32; its low 4 bits count) that lane of 16 f32 numbers."""
        name = "llvm.x86.avx512.permvar.sf.512"
        found = self.call(name, "float", 16, [table, self.splat(lane, 16)])
        return found if lane.n == 16 else self.lane(found, 0)

    def shuffle(self, a: X, b: X | None, lanes: Sequence[int]) -> X:
        other = b.name if b is not None else "poison"
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.ins(
            f"shufflevector {a.typed}, {a.spelled} {other}, <{len(lanes)} x i32> <{mask}>", a.type, len(lanes)
        )

    def lane(self, x: X, i: int) -> X:
        return x if x.n == 1 else self.ins(f"extractelement {x.typed}, i64 {i}", x.type, 1)

    def floor(self, x: X) -> X:
        if self.rounds_inline:
            return self.intrinsic("floor", x)
        r = self.round(x)
        return (r > x).where(r - 1.0, r).copysign(x)

    def ceil(self, x: X) -> X:
        if self.rounds_inline:
            return self.intrinsic("ceil", x)
        r = self.round(x)
        return (r < x).where(r + 1.0, r).copysign(x)

    def trunc(self, x: X) -> X:
        return self.intrinsic("trunc", x) if self.rounds_inline else self.floor(x.abs()).copysign(x)

    def round(self, x: X) -> X:
        """To the nearest integer, halves to even."""
        if self.rounds_inline:
            return self.intrinsic("roundeven", x)
        # Adding 2**(mantissa bits) leaves no room for a fraction; the addition itself rounds to even.
        big = 2.0**23 if x.type == "float" else 2.0**52
        a = x.abs()
        return (a < big).where((a + big) - big, a).copysign(x)
