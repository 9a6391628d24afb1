"""Sums over a convolution's pixels, taken from its tiles while they are in L1: what batch normalisation wants to know.

Every block of pixels has the mean and the sum of squared distances from it of each channel.  Within a tile they are taken in
two passes, tiles are joined as Chan, Golub & LeVeque (1979) join samples, and a second launch joins the blocks in double
precision.  So a large mean does not swallow the variance, and since blocks follow from the sizes alone, the bits do not
depend on the number of threads.
"""

from __future__ import annotations

from functools import lru_cache

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
    """Emits the statistics of one block of pixels in one panel of channels."""

    def __init__(self, c: Code, tile: Tile) -> None:
        self.c, self.tile = c, tile
        self.mean, self.squares = c.slot(tile.type, tile.width), c.slot(tile.type, tile.width)

    def clear(self) -> None:
        for v in range(self.tile.vectors):
            for slot in (self.mean, self.squares):
                self.c.store(self.tile.register, "zeroinitializer", self._at(slot, v), self.tile.itemsize)

    def add(self, rows: str, stride: Operand, count: Operand, before: Operand) -> None:
        """Join the first `count` rows of a tile, `stride` elements apart from `rows` on, to the `before` pixels there are."""
        c, height = self.c, self.tile.height
        c.when(
            c.less(height - 1, count),
            lambda: self._join(rows, stride, height, before),
            lambda: self._join(rows, stride, count, before),
        )

    def _join(self, rows: str, stride: Operand, count: Operand, before: Operand) -> None:
        c, tile = self.c, self.tile
        vector = tile.register
        here, there = self._number(count), self._number(before)
        share = c.value(f"fdiv {tile.type} {here}, {c.value(f'fadd {tile.type} {here}, {there}')}")
        weight = self._splat(c.value(f"fmul {tile.type} {share}, {there}"))
        inverse, share = self._splat(c.value(f"fdiv {tile.type} 1.0, {here}")), self._splat(share)
        for v in range(tile.vectors):
            first = c.gep(rows, v * tile.lanes, tile.type)
            mean = c.value(f"fmul {vector} {self._sum(first, stride, count, None)}, {inverse}")
            squares = self._sum(first, stride, count, mean)
            old = c.load(vector, self._at(self.mean, v), tile.itemsize)
            gap = c.value(f"fsub {vector} {mean}, {old}")
            c.store(vector, c.fma(tile.type, tile.lanes, gap, share, old), self._at(self.mean, v), tile.itemsize)
            old = c.load(vector, self._at(self.squares, v), tile.itemsize)
            total = c.value(f"fadd {vector} {old}, {squares}")
            square = c.value(f"fmul {vector} {gap}, {gap}")
            total = c.fma(tile.type, tile.lanes, square, weight, total)
            c.store(vector, total, self._at(self.squares, v), tile.itemsize)

    def _sum(self, first: str, stride: Operand, count: Operand, mean: str | None) -> str:
        """The sum of `count` rows, or of their squared distances from `mean`; in pairs where the count is known."""
        c, tile = self.c, self.tile
        vector = tile.register

        def term(r: Operand) -> str:
            value = c.vector_load(tile.type, tile.lanes, c.gep(first, c.mul(r, stride), tile.type))
            if mean is None:
                return value
            gap = c.value(f"fsub {vector} {value}, {mean}")
            return c.value(f"fmul {vector} {gap}, {gap}")

        if isinstance(count, int):
            terms = [term(r) for r in range(count)]
            while len(terms) > 1:
                pairs = zip(terms[::2], terms[1::2], strict=False)
                odd = terms[-1:] if len(terms) % 2 else []
                terms = [c.value(f"fadd {vector} {a}, {b}") for a, b in pairs] + odd
            return terms[0]
        return c.loop(
            0, count, lambda r, total: [c.value(f"fadd {vector} {total}, {term(r)}")],
            carried=[(vector, "zeroinitializer")],
        )[0]  # fmt: skip

    def put(self, means: str, squares: str) -> None:
        for v in range(self.tile.vectors):
            for slot, out in ((self.mean, means), (self.squares, squares)):
                value = self.c.load(self.tile.register, self._at(slot, v), self.tile.itemsize)
                self.c.vector_store(self.tile.type, self.tile.lanes, value, self._at(out, v))

    def _at(self, pointer: str, v: int) -> str:
        return self.c.gep(pointer, v * self.tile.lanes, self.tile.type)

    def _number(self, value: Operand) -> str:
        return self.c.value(f"sitofp i64 {value} to {self.tile.type}")

    def _splat(self, scalar: str) -> str:
        return self.c.splat(scalar, self.tile.type, self.tile.lanes)


PARAMS = words("pixels block blocks columns width row")
"""columns: of a group, which has `width` of the `row` that a block's means take, and its squares after them."""


def join(tile: Tile, pixels: int, block: int, groups: int, columns: int, panels: int, threads: int) -> Launch:
    """The launch from "w:parts" to "sum" and "squares": of each channel, and of its distances from the mean."""
    blocks, width = -(-pixels // block), panels * tile.width
    work = blocks * groups * columns
    params = (pixels, block, blocks, columns, width, groups * width)
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

    def count(k: str) -> str:
        pixels = c.min(p["block"], c.sub(p["pixels"], c.mul(k, p["block"])))
        return c.splat(c.value(f"sitofp i64 {pixels} to double"), "double", lanes)

    def channels(i: str) -> None:
        place = c.mul(i, lanes)
        line = c.mul(p["row"], 2)

        def add(k: str, pointer: str, total: str) -> list[str]:
            value = c.value(f"fmul {wide} {widened(pointer)}, {count(k)}")
            return [c.gep(pointer, line, type), c.value(f"fadd {wide} {total}, {value}")]

        first = c.gep(parts, place, type)
        carried = [("ptr", first), (wide, "zeroinitializer")]
        total = c.loop(0, p["blocks"], add, carried=carried)[1]
        pixels = c.splat(c.value(f"sitofp i64 {p['pixels']} to double"), "double", lanes)
        mean = c.value(f"fdiv {wide} {total}, {pixels}")

        def spread(k: str, pointer: str, total: str) -> list[str]:
            gap = c.value(f"fsub {wide} {widened(pointer)}, {mean}")
            between = c.value(f"fmul {wide} {c.value(f'fmul {wide} {gap}, {gap}')}, {count(k)}")
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
