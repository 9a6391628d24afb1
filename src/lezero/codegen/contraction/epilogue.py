"""What happens to a finished tile: element-wise work fused behind a contraction, then the stores.

Values are loop-IR expressions over ``acc "tile"`` (the result), ``var "row"``, ``var "col"``, ``var "batch"``, ``param k``
(the plan's epilogue params) and loads from extra operands; planar convolutions also have ``var "channel"``.  A load whose
index moves by one with the column is a vector load, one that does not move with it is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lezero.codegen import arithmetic
from lezero.codegen.contraction.microkernel import Tile
from lezero.codegen.contraction.text import MEMORY, Code, Operand
from lezero.codegen.values import X
from lezero.loops.ir import BINARY, TYPES, UNARY, Value, acc, cast, number


@dataclass(frozen=True)
class Epilogue:
    """
    outputs : (operand name, type in memory, value) of each result; all have the geometry of the contraction's result.
    operands : (name, type in memory) of what the values load; ``load``'s buffer number counts here.
    """

    outputs: tuple[tuple[str, str, Value], ...]
    operands: tuple[tuple[str, str], ...] = ()

    def key(self) -> str:
        """Text that determines the code; operand names do not."""
        numbers: dict[Value, int] = {}
        lines: list[str] = []

        def write(value: Value) -> int:
            if value not in numbers:
                arguments = [write(a) for a in value.args]
                numbers[value] = len(lines)
                lines.append(f"{value.op}:{value.type}:{value.attr}{arguments}")
            return numbers[value]

        results = [f"{type}={write(value)}" for _, type, value in self.outputs]
        return " ".join([*lines, *results, *(type for _, type in self.operands)])

    @property
    def names(self) -> tuple[str, ...]:
        return (*(name for name, *_ in self.outputs), *(name for name, _ in self.operands))


@dataclass(frozen=True)
class Prologue:
    """An operand that is computed while it is packed, from values of the same geometry.

    value : an expression as in an epilogue, of the operand's matrix as it would be stored, without ``acc`` and "batch"
    operands : (name, type in memory) of what it loads
    params : how many params of its own it has; they come before the epilogue's
    """

    value: Value
    operands: tuple[tuple[str, str], ...]
    params: int

    def key(self) -> str:
        """Text that determines the code; operand names do not."""
        return Epilogue((("", self.value.type, self.value),), self.operands).key()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.operands)


def stores_only(epilogue: Epilogue, type: str) -> bool:
    """Whether the epilogue is nothing but a store of the result as it is, of LLVM type `type`."""
    (_, stored, value), *others = epilogue.outputs
    return not others and value.op == "acc" and MEMORY[stored] == type


def plain(out_dtype: str, compute: str) -> Epilogue:
    """The epilogue of a contraction without one: store the result."""
    return Epilogue((("out", out_dtype, cast(acc("tile", compute), out_dtype)),))


@dataclass
class Place:
    """Where one vector of a tile belongs: the epilogue's variables, and its first element's index in the outputs."""

    row: Operand
    col: Operand
    batch: Operand
    index: Operand
    mask: str | None = None
    channel: Operand = 0


class Emitter:
    """Emits an epilogue's values and stores for one vector of columns at a time."""

    def __init__(self, c: Code, epilogue: Epilogue, lanes: int, first_buffer: int, first_param: int) -> None:
        self.c, self.epilogue, self.lanes, self.first_param = c, epilogue, lanes, first_param
        buffers = [c.buffer(first_buffer + i) for i in range(len(epilogue.names))]
        self.outputs, self.operands = buffers[: len(epilogue.outputs)], buffers[len(epilogue.outputs) :]

    def row(self, tile: Tile, total: str, start: Place, end: Operand) -> None:
        """One row of a finished tile: `total` points at it, columns are valid below `end`."""
        self.columns(tile, total, start, self.c.min(self.c.sub(end, start.col), tile.width))

    def columns(self, tile: Tile, total: str, start: Place, count: Operand) -> None:
        """`count` columns of a row from `start` on: `total` points at them, with room for whole vectors."""
        c, lanes = self.c, tile.lanes

        def vector(j: Operand, mask: str | None) -> None:
            value = c.vector_load(tile.type, lanes, c.gep(total, j, tile.type))
            place = replace(start, col=c.add(start.col, j), index=c.add(start.index, j), mask=mask)
            self.run(value, tile.type, place)

        c.over_vectors(count, lanes, vector)

    def expect(self, place: Place, columns: int, level: int = 1) -> None:
        """Have fetched what `run` will write, and read at this row only, in `columns` columns from `place` on.

        Rows of a tile lie apart, so the processor does not foresee them; kernels of several results wait for little else.
        """
        c = self.c
        for pointer, (_, stored, _) in zip(self.outputs, self.epilogue.outputs, strict=True):
            self._fetch(c.gep(pointer, place.index, MEMORY[stored]), columns * TYPES[stored], write=True)
        for load in _loads(self.epilogue):
            if column_step(load.args[0]) == 1 and _moves(load.args[0]):
                stored = self.epilogue.operands[load.attr][1]
                start = c.gep(self.operands[load.attr], self._index(load.args[0], place), MEMORY[stored])
                self._fetch(start, columns * TYPES[stored], level=level)

    def _fetch(self, start: str, size: int, write: bool = False, level: int = 1) -> None:
        for at in range(0, size, 64):
            self.c.prefetch(self.c.gep(start, at, "i8"), write, level)

    def run(self, total: str, type: str, place: Place) -> None:
        """Compute and store every output of the vector `total` of LLVM type `type`."""
        done: dict[Value, X] = {}
        for pointer, (_, stored, value) in zip(self.outputs, self.epilogue.outputs, strict=True):
            result = self._vector(cast(value, stored), X(self.c.values, total, type, self.lanes), place, done)
            if result.type == "i1":
                result = result.convert("zext", "i8")
            memory = MEMORY[stored]
            self.c.vector_store(memory, self.lanes, result.name, self.c.gep(pointer, place.index, memory), place.mask)

    def value(self, value: Value, place: Place) -> X:
        """A vector of an expression without ``acc``."""
        return self._vector(value, None, place, {})

    def _vector(self, value: Value, total: X | None, place: Place, done: dict[Value, X]) -> X:
        if value not in done:
            done[value] = self._compute(value, total, place, done)
        return done[value]

    def _compute(self, value: Value, total: X | None, place: Place, done: dict[Value, X]) -> X:
        b = self.c.values
        if value.op == "acc":
            assert total is not None
            return total
        if value.op == "const":
            return arithmetic.constant(b, number(value), value.type, self.lanes)
        if value.op == "load":
            return self._load(value, place)
        if value.op in ("param", "var"):
            scalar = X(b, str(self._index(value, place)), "i64", 1)
            vector = b.splat(scalar, self.lanes)
            return vector + b.iota("i64", self.lanes) if value.attr == "col" else vector
        x = [self._vector(a, total, place, done) for a in value.args]
        source = value.args[0].type
        if value.op == "cast":
            return arithmetic.cast(b, source, value.type, x[0])
        if value.op == "bitcast":
            return arithmetic.bitcast(source, value.type, x[0])
        if value.op == "where":
            return arithmetic.where(*x)
        if value.op == "fma":
            return arithmetic.fma(b, *x)
        if value.op in UNARY:
            return arithmetic.unary(b, value.op, source, *x)
        if value.op in BINARY:
            return arithmetic.binary(b, value.op, source, *x)
        raise ValueError(f"{value.op} has no meaning in an epilogue")

    def _load(self, value: Value, place: Place) -> X:
        c = self.c
        stored = self.epilogue.operands[value.attr][1]
        memory = MEMORY[stored]
        pointer = c.gep(self.operands[value.attr], self._index(value.args[0], place), memory)
        step = column_step(value.args[0])
        if step == 1:
            result = X(c.values, c.vector_load(memory, self.lanes, pointer, place.mask), memory, self.lanes)
        elif step == 0:
            result = c.values.splat(X(c.values, c.load(memory, pointer), memory, 1), self.lanes)
        else:
            raise ValueError("a load in an epilogue moves with the column by one element or not at all")
        return result.ne(0) if stored == "bool" else result

    def _index(self, value: Value, place: Place) -> Operand:
        """An i64 expression at the vector's first column, as a scalar."""
        c = self.c
        match value.op:
            case "const":
                return value.attr
            case "param":
                return c.param(self.first_param + value.attr)
            case "var":
                return getattr(place, value.attr)
        a, b = (self._index(x, place) for x in value.args)
        match value.op:
            case "add":
                return c.add(a, b)
            case "sub":
                return c.sub(a, b)
            case "mul":
                return c.mul(a, b)
            case "floordiv":
                return c.div(a, b)
            case "mod":
                return c.rem(a, b)
        raise ValueError(f"{value.op} cannot be part of an index in an epilogue")


def _loads(epilogue: Epilogue) -> list[Value]:
    """Everything the values of an epilogue load."""
    seen = dict.fromkeys(value for *_, value in epilogue.outputs)
    todo = list(seen)
    while todo:
        value = todo.pop()
        if value.op != "load":
            new = [a for a in value.args if a not in seen]
            seen |= dict.fromkeys(new)
            todo += new
    return [value for value in seen if value.op == "load"]


def _moves(index: Value) -> bool:
    """Whether an index differs from row to row."""
    return (index.op == "var" and index.attr != "col") or any(map(_moves, index.args))


def elements(
    c: Code, prologue: Prologue | None, lanes: int, first_buffer: int, first_param: int
) -> Callable[[Operand, Operand, str | None], str] | None:
    """What gives the vector of a computed operand at (row, first column, mask); None if it is in memory."""
    if prologue is None:
        return None
    emitter = Emitter(c, Epilogue((), prologue.operands), lanes, first_buffer, first_param)
    return lambda row, col, mask: emitter.value(prologue.value, Place(row, col, 0, 0, mask)).name


def column_step(index: Value) -> int | None:
    """By how much `index` grows from one column to the next; None if that is not a known constant."""
    if index.op == "var":
        return int(index.attr == "col")
    steps = [column_step(a) for a in index.args]
    if all(s == 0 for s in steps):
        return 0
    if None in steps:
        return None
    if index.op in ("add", "sub"):
        return steps[0] + steps[1] if index.op == "add" else steps[0] - steps[1]  # type: ignore[operator]
    if index.op == "mul":
        for step, other in ((steps[0], index.args[1]), (steps[1], index.args[0])):
            if other.op == "const":
                return step * number(other)  # type: ignore[operator,return-value]
    return None
