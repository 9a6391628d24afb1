"""Sums over a convolution's pixels, taken from its tiles while they are in L1: what batch normalisation wants to know.

Every block of pixels has the mean and the sum of squared distances from it of each channel.  They come from the sums of distances
from a *pivot*, the mean of the block's first rows, and of their squares (Chan, Golub & LeVeque 1983), and a second launch joins
the blocks in double precision.  So a large mean does not swallow the variance: pivot and mean of a block can lie apart only if the
first rows lie apart from the others, which then have a variance of that size.  Since blocks follow from the sizes alone, the
bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from lezero.codegen.contraction.microkernel import Tile
from lezero.codegen.contraction.spec import ELEMENTS_PER_THREAD, tasks_for_elements, useful_threads
from lezero.codegen.contraction.text import Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch
from lezero.codegen.target import Target

BLOCKS = 8
"""Blocks there are at least where sums are taken block by block: not the number of threads, which their bits do not follow."""


def blocks_wanted(sums: bool, threads: int) -> int:
    """Into how many blocks a convolution's results are divided at least, with `sums` or without."""
    if sums:
        return BLOCKS
    return 1 if threads == 1 else 4 * threads


class Block:
    """Emits the statistics of one block of pixels in one panel of channels.

    memory : of the function that emits them, or where those of a block lie that several functions add to.
    """

    def __init__(self, c: Code, tile: Tile, memory: str | None = None) -> None:
        self.c, self.tile = c, tile
        self.memory = memory or c.slot(tile.type, 3 * tile.width)

    def add(self, rows: str, stride: Operand, count: Operand, before: Operand) -> None:
        """Join the first `count` rows of a tile, `stride` elements apart from `rows` on, to the `before` pixels there are."""
        c, tile = self.c, self.tile

        def of(r: int, v: int) -> str:
            place = c.add(c.mul(stride, r), v * tile.lanes)
            return c.vector_load(tile.type, tile.lanes, c.gep(rows, place, tile.type))

        def some() -> None:
            self.join(of, [c.less(r, count) for r in range(tile.height)], count, before)

        c.when(c.less(tile.height - 1, count), lambda: self.join(of, [None] * tile.height, tile.height, before), some)

    def join(self, of: Callable[[int, int], str], there: Sequence[str | None], count: Operand, before: Operand) -> None:
        """Join rows, of which ``of(r, v)`` is a register, to the `before` pixels there are.

        there : which of them are (an i1, None for true); count : how many.
        """
        c, tile = self.c, self.tile
        first = c.less(before, 1)
        for v in range(tile.vectors):
            values = [of(r, v) for r in range(len(there))]
            c.when(first, partial(self._begin, v, values, there, count))
            pivot, total, squares = (c.load(tile.register, self._at(k, v), tile.itemsize) for k in range(3))
            gaps = [self._only(x, c.value(f"fsub {tile.register} {value}, {pivot}")) for value, x in zip(values, there)]
            c.store(tile.register, self._sum([total, self._sum(gaps)]), self._at(1, v), tile.itemsize)
            c.store(tile.register, self._sum([squares, self._squares(gaps)]), self._at(2, v), tile.itemsize)

    def _begin(self, v: int, values: list[str], there: Sequence[str | None], count: Operand) -> None:
        c, tile = self.c, self.tile
        total = self._sum([self._only(x, value) for value, x in zip(values, there)])
        inverse = c.value(f"fdiv {tile.type} 1.0, {self._number(count)}")
        pivot = c.value(f"fmul {tile.register} {total}, {self._splat(inverse)}")
        for k, value in enumerate((pivot, "zeroinitializer", "zeroinitializer")):
            c.store(tile.register, value, self._at(k, v), tile.itemsize)

    def _only(self, there: str | None, value: str) -> str:
        if there is None:
            return value
        every = self.c.splat(there, "i1", self.tile.lanes)
        return self.c.value(
            f"select <{self.tile.lanes} x i1> {every}, {self.tile.register} {value}, {self.tile.register} zeroinitializer"
        )

    def _sum(self, terms: list[str]) -> str:
        """Of neighbours first, so that nothing waits and errors stay small."""
        while len(terms) > 1:
            odd = terms[-1:] if len(terms) % 2 else []
            terms = [self._add(a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)] + odd
        return terms[0]

    def _squares(self, gaps: list[str]) -> str:
        """The sum of their squares, in two chains."""
        c, tile = self.c, self.tile
        totals = [c.value(f"fmul {tile.register} {gap}, {gap}") for gap in gaps[:2]]
        for i, gap in enumerate(gaps[2:]):
            totals[i % 2] = c.fma(tile.type, tile.lanes, gap, gap, totals[i % 2])
        return self._sum(totals)

    def put(self, out: str, row: Operand, count: Operand) -> None:
        """Store the means of `count` pixels, the sums of squares and the count, `row` elements apart."""
        c, tile = self.c, self.tile
        vector, number = tile.register, self._splat(self._number(count))
        for v in range(tile.vectors):
            pivot, total, squares = (c.load(vector, self._at(k, v), tile.itemsize) for k in range(3))
            gap = c.value(f"fdiv {vector} {total}, {number}")
            squares = c.value(f"fsub {vector} {squares}, {c.value(f'fmul {vector} {total}, {gap}')}")
            below = c.value(f"fcmp olt {vector} {squares}, zeroinitializer")
            squares = c.value(f"select <{tile.lanes} x i1> {below}, {vector} zeroinitializer, {vector} {squares}")
            for k, value in enumerate((self._add(pivot, gap), squares, number)):
                here = c.gep(out, c.add(c.mul(row, k), v * tile.lanes), tile.type)
                c.vector_store(tile.type, tile.lanes, value, here)

    def _at(self, k: int, v: int) -> str:
        return self.c.gep(self.memory, k * self.tile.width + v * self.tile.lanes, self.tile.type)

    def _add(self, a: str, b: str) -> str:
        return self.c.value(f"fadd {self.tile.register} {a}, {b}")

    def _number(self, value: Operand) -> str:
        return self.c.value(f"sitofp i64 {value} to {self.tile.type}")

    def _splat(self, scalar: str) -> str:
        return self.c.splat(scalar, self.tile.type, self.tile.lanes)


PARAMS = words("blocks columns width row")
"""columns: of a group, which has `width` of the `row` that a block's means take, its squares after them, and its counts."""


def join(tile: Tile, blocks: int, groups: int, columns: int, panels: int, threads: int) -> Launch:
    """The launch from "w:parts" to "sum" and "squares": of each channel, and of its distances from the mean."""
    width = panels * tile.width
    work = blocks * groups * columns
    params = (blocks, columns, width, groups * width)
    tasks = tasks_for_elements(groups * width // tile.lanes, work, useful_threads(threads, work, ELEMENTS_PER_THREAD))
    return Launch(source(tile.type, tile.lanes), ("w:parts", "sum", "squares"), params, tasks)


@lru_cache(maxsize=8)
def source(type: str, lanes: int) -> KernelSource:
    return KernelSource("conv.statistics", f"conv statistics {type} {lanes}", lambda target: emit(type, lanes, target))


def emit(type: str, lanes: int, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    parts, sums, squares = (c.buffer(i) for i in range(3))
    vector, wide = f"<{lanes} x {type}>", f"<{lanes} x double>"

    def widened(pointer: str) -> str:
        value = c.vector_load(type, lanes, pointer)
        return value if type == "double" else c.value(f"fpext {vector} {value} to {wide}")

    def narrowed(value: str) -> str:
        return value if type == "double" else c.value(f"fptrunc {wide} {value} to {vector}")

    def count(pointer: str) -> str:
        return widened(c.gep(pointer, c.mul(p["row"], 2), type))

    def channels(i: str) -> None:
        place = c.mul(i, lanes)
        line = c.mul(p["row"], 3)

        def add(k: str, pointer: str, total: str, pixels: str) -> list[str]:
            here = count(pointer)
            value = c.value(f"fmul {wide} {widened(pointer)}, {here}")
            sums = [c.value(f"fadd {wide} {a}, {b}") for a, b in ((total, value), (pixels, here))]
            return [c.gep(pointer, line, type), *sums]

        first = c.gep(parts, place, type)
        carried = [("ptr", first), (wide, "zeroinitializer")]
        _, total, pixels = c.loop(0, p["blocks"], add, carried=[*carried, carried[1]])
        mean = c.value(f"fdiv {wide} {total}, {pixels}")

        def spread(k: str, pointer: str, total: str) -> list[str]:
            gap = c.value(f"fsub {wide} {widened(pointer)}, {mean}")
            between = c.value(f"fmul {wide} {c.value(f'fmul {wide} {gap}, {gap}')}, {count(pointer)}")
            within = widened(c.gep(pointer, p["row"], type))
            value = c.value(f"fadd {wide} {between}, {within}")
            return [c.gep(pointer, line, type), c.value(f"fadd {wide} {total}, {value}")]

        distances = c.loop(0, p["blocks"], spread, carried=carried)[1]
        group, column = c.div(place, p["width"]), c.rem(place, p["width"])
        mask = c.mask(c.sub(p["columns"], column), lanes)
        index = c.add(c.mul(group, p["columns"]), column)
        c.vector_store(type, lanes, narrowed(total), c.gep(sums, index, type), mask)
        c.vector_store(type, lanes, narrowed(distances), c.gep(squares, index, type), mask)

    items = c.div(p["row"], lanes)
    c.loop(c.div(c.mul("%task", items), "%tasks"), c.div(c.mul(c.add("%task", 1), items), "%tasks"), channels)
    c.finish()
    return module.text()
