"""The building block of every contraction: a tile of C in registers, C = sum over blocks and k of A[r, k] * B[k, :].

It is the batch-reduce kernel of Georganas et al. (2019): the reduction runs over a list of blocks (the taps of a
convolution, or one block for a matrix product), so a tile never leaves the registers before it is complete.

``rows``
    A is a table of pointers, one per block and row; k is contiguous behind each.  Rows may lie anywhere: in a packed
    block, in an image, on a row of zeros.
``panel``
    A and B are read in place with a stride per k and the tile's rows side by side: A[k * stride + r].

An element of A and B is a number, or a pair of bf16 (``pairs``): what follows speaks of steps of k and means either.

B is ``vectors`` registers wide.  The finished tile is written to thread-private scratch, where it is still in L1 when
the epilogue reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lezero.codegen.contraction import amx, pairs
from lezero.codegen.contraction.text import Code, Module, Operand
from lezero.codegen.target import Target


@dataclass(frozen=True)
class Tile:
    """A register tile: `height` rows of `vectors` registers of `lanes` elements of `type` (an LLVM name).

    pairs : A and B are packed as pairs of bf16, which take the place of numbers of `type`.
    amx : and they are multiplied in registers that hold tiles.
    """

    height: int
    vectors: int
    lanes: int
    type: str
    pairs: bool = False
    amx: bool = False

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def itemsize(self) -> int:
        return 8 if self.type == "double" else 4

    @property
    def register(self) -> str:
        """The LLVM type of one register."""
        return f"<{self.lanes} x {self.type}>"

    @property
    def bytes(self) -> int:
        return self.height * self.width * self.itemsize


SPLIT_LINES = 1.08
"""What it costs to store rows of bf16 that are no whole lines of the cache: three registers took 1.03 to 1.05 of the time of two."""


def choose_tile(target: Target, itemsize: int, columns: int, paired: bool = False, stored: bool = False) -> Tile:
    """The tile for `target` that wastes fewest columns; `paired`: its operands are pairs of bf16, and if `stored` so are most
    often its results.

    With 32 registers: 28 accumulators, two of B, one of A.  With 16: 12 accumulators.  Columns that fit into half a
    512-bit register get the half: no processor adds up fewer of the short ones in a cycle, and some twice as many.
    """
    lanes = target.lanes(itemsize)
    type = "double" if itemsize == 8 else "float"
    if paired and target.amx:
        return Tile(2 * amx.SIDE, 1 if columns <= lanes else 2, lanes, type, paired, amx=True)
    many = target.registers == 32
    if target.vector_bytes == 64 and columns <= lanes // 2:
        return Tile(14, 1, lanes // 2, type, paired)
    shapes = [(14, 2), (9, 3), (14, 1)] if many else [(6, 2), (4, 3), (6, 1)]

    def cost(shape: tuple[int, int]) -> float:
        # Per row: accumulator updates, and a share of the loads that fewer accumulators cannot hide.
        height, vectors = shape
        panels = -(-columns // (vectors * lanes))
        split = SPLIT_LINES if paired and stored and vectors % 2 else 1.0
        return panels * vectors * (1 + 0.5 / vectors + 0.5 / height) * split

    height, vectors = min(shapes, key=cost)
    return Tile(height, vectors, lanes, type, paired)


def heights(tile: Tile) -> list[int]:
    """Row counts the tile function is generated for, so that a last tile of few rows does not pay for all."""
    if tile.amx:
        return [tile.height, amx.SIDE]
    # With 14, 8 and 4, row counts that are powers of two waste nothing.
    return sorted({tile.height, (tile.height + 2) // 2, (tile.height + 4) // 4}, reverse=True)


def entry_words(tile: Tile) -> int:
    """Words of a block in a table of rows: the offset of its B, then a pointer per row, in whole vectors of pointers."""
    return 1 + -(-tile.height // 8) * 8


def emit_rows_tiles(module: Module, tile: Tile, stretch: int | None = None, add: bool = False) -> None:
    """Define ``@rows<h>(ptr table, i64 blocks, ptr b, i64 step, i64 k, i64 ahead, ptr out, i64 stride)`` for each height.

    A block's entry in the table is an offset from `b` in elements, then pointers to A's rows.  Rows of B are `step`
    elements apart; rows of the result go to `out`, `stride` elements apart.  What lies `ahead` elements behind a block's
    first row, where the next tile most often begins, is fetched into L2, a line with every step of k: fourteen short rows
    at a time are more than the processor foresees by itself (pointwise convolutions gain up to a third).

    With `stretch`, sums are taken over so many steps of k at most before they are added to the result.  With `add` the
    functions are called ``@add<h>``, and add to what is there.
    """
    arguments = "ptr %table, i64 %blocks, ptr %b, i64 %step, i64 %k, i64 %ahead, ptr %out, i64 %stride"
    if tile.amx:
        amx.configure(module)
    for height in heights(tile):
        name = f"{'add' if add else 'rows'}{height}"
        if tile.amx:
            amx.emit_rows_tile(module, tile, height, name, arguments, add)
            continue
        c = Code(module, name, arguments, internal=True)
        _expect_tile(c, tile, height, "%stride")
        if stretch is None:
            _store_tile(c, tile, rows_sums(c, tile, height, 0, "%k"), "%stride", add)
        else:
            _sum_in_stretches(c, tile, height, stretch)
        c.finish()


def _sum_in_stretches(c: Code, tile: Tile, height: int, stretch: int) -> None:
    def one(start: str) -> None:
        sums = rows_sums(c, tile, height, start, c.min(c.add(start, stretch), "%k"))
        _store_first(c, tile, sums, c.less(start, 1), "%stride")

    c.loop(0, c.max("%k", 1), one, step=stretch)


def rows_sums(c: Code, tile: Tile, height: int, start: Operand, end: Operand) -> list[str]:
    """The tile, over elements `start` to `end` of every block."""
    zeros = [(tile.register, "zeroinitializer")] * (height * tile.vectors)
    return c.loop(0, "%blocks", partial(_rows_block, c, tile, height, start, end), carried=zeros)


def _rows_block(
    c: Code, tile: Tile, height: int, start: Operand, end: Operand, i: str, *accumulators: str
) -> list[str]:
    """The accumulators after elements `start` to `end` of block `i`."""
    entry = c.gep("%table", c.mul(i, entry_words(tile)), "ptr")
    b = c.gep("%b", c.add(c.load("i64", entry), c.mul(start, "%step")), tile.type)
    rows = [c.load("ptr", c.gep(entry, 1 + r, "ptr")) for r in range(height)]
    next_tile = c.gep(rows[0], "%ahead", tile.type)

    def step(k: str, b: str, *accumulators: str) -> list[str]:
        c.prefetch(c.gep(next_tile, c.mul(k, 64), "i8"), level=2)
        columns = _load_b(c, tile, b)
        elements = [c.load(tile.type, c.gep(row, k, tile.type)) for row in rows]
        return [c.gep(b, "%step", tile.type), *_rank_one(c, tile, elements, columns, accumulators)]

    return c.loop(start, end, step, carried=[("ptr", b), *((tile.register, a) for a in accumulators)])[1:]


def _load_b(c: Code, tile: Tile, b: str) -> list[str]:
    return [c.vector_load(tile.type, tile.lanes, c.gep(b, v * tile.lanes, tile.type)) for v in range(tile.vectors)]


def _rank_one(c: Code, tile: Tile, elements: list[str], columns: list[str], accumulators: tuple[str, ...]) -> list[str]:
    result = []
    for r, element in enumerate(elements):
        row = c.splat(element, tile.type, tile.lanes)
        for v, column in enumerate(columns):
            total = accumulators[r * tile.vectors + v]
            if tile.pairs:
                result.append(pairs.multiply_add(c, tile.lanes, row, column, total))
            else:
                result.append(c.fma(tile.type, tile.lanes, row, column, total))
    return result


def _store_tile(c: Code, tile: Tile, accumulators: list[str], stride: Operand, add: bool = False) -> None:
    """Write the tile to %out, or add it to what is there."""
    row = "%out"
    for i, a in enumerate(accumulators):
        if i and i % tile.vectors == 0:
            row = c.gep(row, stride, tile.type)
        place = c.gep(row, i % tile.vectors * tile.lanes, tile.type)
        if add:
            a = c.value(f"fadd {tile.register} {c.load(tile.register, place, align=tile.itemsize)}, {a}")
        c.store(tile.register, a, place, align=tile.itemsize)


def _store_first(c: Code, tile: Tile, sums: list[str], first: str, stride: Operand) -> None:
    """Write the tile to %out if it is the `first` part of its sums, and add it to what is there if not."""
    c.when(first, lambda: _store_tile(c, tile, sums, stride), lambda: _store_tile(c, tile, sums, stride, True))


def _expect_tile(c: Code, tile: Tile, height: int, stride: Operand) -> None:
    """Have the lines of the result fetched while the tile is computed: stores wait for the memory they replace a part of."""
    for r in range(height):
        row = c.gep("%out", c.mul(r, stride), tile.type)
        for start in range(0, tile.width * tile.itemsize, 64):
            c.prefetch(c.gep(row, start, "i8"), write=True)


def call_tile(c: Code, tile: Tile, kind: str, rows: Operand, arguments: str) -> None:
    """Call the smallest tile function of `kind` ("rows", "add" or "panel") that covers `rows`."""

    def choose(sizes: list[int]) -> None:
        if len(sizes) == 1:
            c.emit(f"call void @{kind}{sizes[0]}({arguments})")
            return
        larger = c.less(sizes[1], rows)
        c.when(larger, lambda: c.emit(f"call void @{kind}{sizes[0]}({arguments})"), lambda: choose(sizes[1:]))

    choose(heights(tile))


def emit_panel_tiles(module: Module, tile: Tile) -> None:
    """Define ``@panel<h>(ptr runs, i64 count, i64 offset, i64 stride, i64 step, i64 ahead, ptr next, i64 next_stride, ptr out)``
    for each height: out += A^T B.

    ``runs`` holds (A, B, length) per run; A's element (k, r) is ``A[offset + k * stride + r]``, B is packed and its rows are
    `step` elements apart.  A length counts numbers: of the last pair of an odd one only the first half is taken.  With every
    step of k two lines are fetched into L2: of A, `ahead` elements further on, and at `next`, which moves by `next_stride`
    bytes a step: rows that lie apart in memory are not foreseen by the processor.
    """
    arguments = (
        "ptr %runs, i64 %count, i64 %offset, i64 %stride, i64 %step, i64 %ahead, ptr %next, i64 %next_stride, ptr %out"
    )
    if tile.amx:
        amx.configure(module)
    for height in heights(tile):
        if tile.amx:
            amx.emit_panel_tile(module, tile, height, f"panel{height}", arguments)
            continue
        c = Code(module, f"panel{height}", arguments, internal=True)

        def run(i: str, next: str, *accumulators: str, c: Code = c, height: int = height) -> list[str]:
            entry = c.gep("%runs", c.mul(i, 3), "ptr")
            a = c.gep(c.load("ptr", entry), "%offset", tile.type)
            b = c.load("ptr", c.gep(entry, 1, "ptr"))
            length = c.load("i64", c.gep(entry, 2, "ptr"))

            def step(k: str, a: str, b: str, next: str, *accumulators: str, whole: bool = True) -> list[str]:
                c.prefetch(c.gep(a, "%ahead", tile.type), level=2)
                c.prefetch(next, level=2)
                elements = [c.load(tile.type, c.gep(a, r, tile.type)) for r in range(height)]
                columns = _load_b(c, tile, b)
                if not whole:
                    elements = [pairs.first_half(c, 1, x) for x in elements]
                    columns = [pairs.first_half(c, tile.lanes, x) for x in columns]
                following = _rank_one(c, tile, elements, columns, accumulators)
                moved = (
                    c.gep(a, "%stride", tile.type),
                    c.gep(b, "%step", tile.type),
                    c.gep(next, "%next_stride", "i8"),
                )
                return [*moved, *following]

            carried = [("ptr", a), ("ptr", b), ("ptr", next), *((tile.register, x) for x in accumulators)]
            if not tile.pairs:
                return c.loop(0, length, step, carried=carried)[2:]
            values = c.loop(0, c.div(length, 2), step, carried=carried)
            carried = [(type, value) for (type, _), value in zip(carried, values, strict=True)]
            return c.loop(0, c.rem(length, 2), partial(step, whole=False), carried=carried)[2:]

        start = [
            (tile.register, c.load(tile.register, c.gep("%out", i * tile.lanes, tile.type), align=tile.itemsize))
            for i in range(height * tile.vectors)
        ]
        sums = c.loop(0, "%count", run, carried=[("ptr", "%next"), *start])[1:]
        _store_tile(c, tile, sums, tile.width)
        c.finish()


def emit_sum_tiles(module: Module, tile: Tile) -> None:
    """Define ``@sums<h>(ptr a, i64 stride, ptr b, i64 k, i64 first, ptr next_a, i64 stride_a, ptr next_b, i64 stride_b, ptr out)`` for each
    height: out = A^T B where `first` is not 0, and out += A^T B otherwise.

    A step's rows are `stride` elements from the last step's, those of B follow each other.  With every step of k a line is
    fetched from `next_a` into L2 and one from `next_b` into L1; these move by their strides in bytes.
    """
    fetched = "ptr %next_a, i64 %stride_a, ptr %next_b, i64 %stride_b"
    arguments = f"ptr %a, i64 %stride, ptr %b, i64 %k, i64 %first, {fetched}, ptr %out"
    if tile.amx:
        amx.configure(module)
    for height in heights(tile):
        if tile.amx:
            amx.emit_sum_tile(module, tile, height, f"sums{height}", arguments)
            continue
        c = Code(module, f"sums{height}", arguments, internal=True)

        def step(k: str, *carried: str, c: Code = c, height: int = height) -> list[str]:
            a, b, next_a, next_b, *accumulators = carried
            c.prefetch(next_a, level=2)
            c.prefetch(next_b, level=1)
            elements = [c.load(tile.type, c.gep(a, r, tile.type)) for r in range(height)]
            sums = _rank_one(c, tile, elements, _load_b(c, tile, b), tuple(accumulators))
            moved = (c.gep(next_a, "%stride_a", "i8"), c.gep(next_b, "%stride_b", "i8"))
            return [c.gep(a, "%stride", tile.type), c.gep(b, tile.width, tile.type), *moved, *sums]

        _expect_tile(c, tile, height, tile.width)
        pointers = [("ptr", x) for x in ("%a", "%b", "%next_a", "%next_b")]
        zeros = [(tile.register, "zeroinitializer")] * (height * tile.vectors)
        sums = c.loop(0, "%k", step, carried=[*pointers, *zeros])[len(pointers) :]
        _store_first(c, tile, sums, c.less(0, "%first"), tile.width)
        c.finish()
