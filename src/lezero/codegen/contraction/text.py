"""Writing LLVM IR as text: SSA values are strings, loops are structured, integers fold.

Contraction kernels are mostly address arithmetic around a few vector instructions.  Text costs microseconds to write,
and loops come out as phi nodes directly, so the optimiser has little left to do.  Operands are Python ints (i64
literals) or the names of SSA values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lezero.codegen.target import Target
from lezero.codegen.values import Builder

Operand = int | str

MEMORY = {
    "f64": "double", "f32": "float", "bf16": "i16", "f16": "i16",
    "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "u64": "i64", "u32": "i32", "u16": "i16", "u8": "i8", "bool": "i8",
    "f32 to bf16": "float", "f32 to f16": "float", "f32 rest": "float",
    "bf16 to f32": "float", "f16 to f32": "float",
}  # fmt: skip
"""Element type -> the LLVM type it is loaded and stored as (half floats as bits: not every target computes with them).

"f32 to bf16" is what lies in memory as f32 and is rounded when it is loaded, "f32 rest" what rounding it to bf16 leaves.  "bf16 to f32"
is what is rounded to bf16 and stored as f32."""

KERNEL_ARGUMENTS = "ptr %buffers, ptr %params, i64 %task, i64 %tasks, ptr %scratch"


def words(text: str) -> tuple[str, ...]:
    """The names of a kernel's params, from one line of text."""
    return tuple(text.split())


class Module:
    """The functions and declarations of one kernel."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}
        self.definitions: dict[str, str] = {}  # of mathematical functions that an epilogue calls
        self.opening = self.closing = ""  # lines at the kernel's beginning and at its end
        self.loops = 0

    def text(self) -> str:
        # Loops here are as long as they should be; unrolling them only costs compile time.
        marks = [f"!{i} = distinct !{{!{i}, !{self.loops}}}" for i in range(self.loops)]
        marks.append(f'!{self.loops} = !{{!"llvm.loop.unroll.disable"}}')
        inlined = f'attributes #1 = {{ alwaysinline nounwind "target-cpu"="{self.target.cpu}" "target-features"="{self.target.features}" }}'
        shared = [*self.definitions.values(), inlined] if self.definitions else []
        return "\n".join([*self.functions, *shared, *self.declarations.values(), *marks]) + "\n"


class Code:
    """The body of one function under construction.

    ``values`` writes typed vector arithmetic (see ``codegen.values``) to the same lines.
    """

    def __init__(self, module: Module, name: str = "kernel", arguments: str = KERNEL_ARGUMENTS, internal: bool = False):
        self.module = module
        self.target = module.target
        self.head = f"define {'internal ' if internal else ''}void @{name}({arguments})"
        self.internal = internal
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.count = 0
        self.block = "entry"
        self.values = Builder(self.target)
        self.values.at.lines = self.lines

    # -- the function as a whole ---------------------------------------------------------------------------------

    def finish(self) -> None:
        opening = [] if self.internal else [self.module.opening]
        self.lines += [*([] if self.internal else [self.module.closing]), "  ret void"]
        self.module.declarations.update(self.values.declarations)
        self.module.definitions.update(self.values.definitions)
        attributes = f'{"noinline " * self.internal}nounwind "target-cpu"="{self.target.cpu}" "target-features"="{self.target.features}"'
        if self.target.vector_bytes == 64:
            attributes += ' "prefer-vector-width"="512"'
        self.module.functions.append(
            "\n".join([f"{self.head} {attributes} {{", "entry:", *self.slots, *opening, *self.lines, "}"])
        )

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def value(self, expression: str) -> str:
        self.count += 1
        name = f"%c{self.count}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def declare(self, result: str, name: str, *arguments: str) -> None:
        self.module.declarations[name] = f"declare {result} @{name}({', '.join(arguments)})"

    def slot(self, type: str, count: int) -> str:
        """Memory of the function for `count` elements."""
        self.count += 1
        self.slots.append(f"  %c{self.count} = alloca [{count} x {type}], align 64")
        return f"%c{self.count}"

    @property
    def masks_are_free(self) -> bool:
        """Whether masked loads and stores cost what plain ones do, so that a ragged end needs no code of its own."""
        return self.target.vector_bytes == 64

    # -- integers and addresses --------------------------------------------------------------------------------------

    def add(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        if b == 0:
            return a
        return self.value(f"add nsw i64 {a}, {b}")

    def sub(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.value(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if 0 in (a, b):
            return 0
        if 1 in (a, b):
            return b if a == 1 else a
        return self.value(f"mul nsw i64 {a}, {b}")

    def div(self, a: Operand, b: Operand) -> Operand:
        """a // b for b > 0 and a >= 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self.value(f"udiv i64 {a}, {b}")

    def rem(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self.value(f"urem i64 {a}, {b}")

    def ceil_div(self, a: Operand, b: int) -> Operand:
        return self.div(self.add(a, b - 1), b)

    def round_up(self, a: Operand, b: int) -> Operand:
        return self.mul(self.ceil_div(a, b), b)

    def less(self, a: Operand, b: Operand) -> str:
        return self.value(f"icmp slt i64 {a}, {b}")

    def below(self, a: Operand, b: Operand) -> str:
        """0 <= a < b in one comparison."""
        return self.value(f"icmp ult i64 {a}, {b}")

    def select(self, condition: str, a: Operand, b: Operand, type: str = "i64") -> str:
        return self.value(f"select i1 {condition}, {type} {a}, {type} {b}")

    def min(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.select(self.less(a, b), a, b)

    def max(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.select(self.less(a, b), b, a)

    def gep(self, pointer: str, index: Operand, type: str) -> str:
        if index == 0:
            return pointer
        return self.value(f"getelementptr {type}, ptr {pointer}, i64 {index}")

    def load(self, type: str, pointer: str, align: int | None = None) -> str:
        return self.value(f"load {type}, ptr {pointer}, align {align or _natural(type)}")

    def store(self, type: str, value: Operand, pointer: str, align: int | None = None) -> None:
        self.emit(f"store {type} {value}, ptr {pointer}, align {align or _natural(type)}")

    def buffer(self, k: int) -> str:
        return self.load("ptr", self.gep("%buffers", k, "ptr"))

    def param(self, k: int) -> str:
        return self.load("i64", self.gep("%params", k, "i64"))

    # -- control -------------------------------------------------------------------------------------------------------

    def label(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def loop(
        self,
        begin: Operand,
        end: Operand,
        body: Callable[..., Sequence[Operand] | None],
        step: Operand = 1,
        carried: Sequence[tuple[str, Operand]] = (),
    ) -> list[str]:
        """Run ``body(i, *values) -> next values`` for i = begin, begin + step, ... < end; give the last values.

        `carried` holds (LLVM type, initial value) of what an iteration hands to the next.
        """
        head, inside, after = self.label("head"), self.label("body"), self.label("after")
        before = self.block
        self.emit(f"br label %{head}")
        self.start(head)
        names = []
        for _ in range(len(carried) + 1):
            self.count += 1
            names.append(f"%c{self.count}")
        phis = len(self.lines)
        self.lines.extend([""] * len(names))
        self.emit(f"br i1 {self.less(names[0], end)}, label %{inside}, label %{after}")
        self.start(inside)
        following = list(body(names[0], *names[1:]) or ())
        index = self.value(f"add nsw i64 {names[0]}, {step}")
        starts = [("i64", begin), *carried]
        for j, (name, (type, first), last) in enumerate(zip(names, starts, [index, *following], strict=True)):
            self.lines[phis + j] = f"  {name} = phi {type} [ {first}, %{before} ], [ {last}, %{self.block} ]"
        self.emit(f"br label %{head}, !llvm.loop !{self.module.loops}")
        self.module.loops += 1
        self.start(after)
        return names[1:]

    def when(self, condition: str, then: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
        yes, no, after = self.label("then"), self.label("else"), self.label("after")
        self.emit(f"br i1 {condition}, label %{yes}, label %{no if otherwise else after}")
        self.start(yes)
        then()
        self.emit(f"br label %{after}")
        if otherwise:
            self.start(no)
            otherwise()
            self.emit(f"br label %{after}")
        self.start(after)

    def over_vectors(self, end: Operand, lanes: int, body: Callable[[Operand, str | None], None]) -> None:
        """Run ``body(i, mask)`` for i = 0, lanes, ... < end; the mask is None where the vector is whole for certain."""
        if self.masks_are_free:
            self.loop(0, end, lambda i: body(i, self.mask(self.sub(end, i), lanes)), step=lanes)
            return
        whole = self.mul(self.div(end, lanes), lanes)
        self.loop(0, whole, lambda i: body(i, None), step=lanes)
        self.when(self.less(whole, end), lambda: body(whole, self.mask(self.sub(end, whole), lanes)))

    # -- vectors -------------------------------------------------------------------------------------------------------

    def splat(self, scalar: Operand, type: str, lanes: int) -> str:
        first = self.value(f"insertelement <{lanes} x {type}> poison, {type} {scalar}, i64 0")
        return self.value(
            f"shufflevector <{lanes} x {type}> {first}, <{lanes} x {type}> poison, <{lanes} x i32> zeroinitializer"
        )

    def mask(self, count: Operand, lanes: int) -> str:
        """The first `count` of `lanes` lanes; `count` may be outside 0..lanes."""
        lanes_wanted = self.value(f"trunc i64 {self.max(self.min(count, lanes), 0)} to i32")
        numbers = ", ".join(f"i32 {i}" for i in range(lanes))
        wanted = self.splat(lanes_wanted, "i32", lanes)
        return self.value(f"icmp slt <{lanes} x i32> <{numbers}>, {wanted}")

    def vector_load(self, type: str, lanes: int, pointer: str, mask: str | None = None) -> str:
        vector = f"<{lanes} x {type}>"
        if mask is None:
            return self.load(vector, pointer, _natural(type))
        name = f"llvm.masked.load.v{lanes}{_short(type)}.p0"
        self.declare(vector, name, "ptr", f"<{lanes} x i1>", vector)
        return self.value(f"call {vector} @{name}(ptr {pointer}, <{lanes} x i1> {mask}, {vector} zeroinitializer)")

    def vector_store(self, type: str, lanes: int, value: str, pointer: str, mask: str | None = None) -> None:
        vector = f"<{lanes} x {type}>" if lanes > 1 else type
        if mask is None:
            self.store(vector, value, pointer, _natural(type))
            return
        name = f"llvm.masked.store.v{lanes}{_short(type)}.p0"
        self.declare("void", name, vector, "ptr", f"<{lanes} x i1>")
        self.emit(f"call void @{name}({vector} {value}, ptr {pointer}, <{lanes} x i1> {mask})")

    def prefetch(self, pointer: str, write: bool = False, level: int = 1) -> None:
        """Ask for the cache line at `pointer`, to be written, or to be read from L1 or L2; any address will do."""
        self.declare("void", "llvm.prefetch.p0", "ptr", "i32", "i32", "i32")
        self.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(write)}, i32 {4 - level}, i32 1)")

    def fma(self, type: str, lanes: int, a: str, b: str, c: str) -> str:
        """a * b + c, in one rounding only where the target has the instruction (elsewhere it would be a call)."""
        vector = f"<{lanes} x {type}>" if lanes > 1 else type
        if not self.target.fma:
            return self.value(f"fadd {vector} {self.value(f'fmul {vector} {a}, {b}')}, {c}")
        name = f"llvm.fma.v{lanes}{_short(type)}" if lanes > 1 else f"llvm.fma.{_short(type)}"
        self.declare(vector, name, vector, vector, vector)
        return self.value(f"call {vector} @{name}({vector} {a}, {vector} {b}, {vector} {c})")


_SHORT = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}


def _short(type: str) -> str:
    return _SHORT.get(type, type)


def _natural(type: str) -> int:
    if type.startswith("<"):
        type = type.split(" x ")[1][:-1]
    return {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}.get(type) or max(1, int(type[1:]) // 8)
