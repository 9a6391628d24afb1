"""The tile functions of :mod:`~lezero.codegen.contraction.microkernel` for processors with AMX, whose registers hold whole tiles.

Eight registers of 16 rows of 64 bytes: four hold 32 by 32 sums in f32, two take 16 rows of 16 pairs of A each, two 16 pairs of
16 columns of B each, so that a *chunk* of 16 pairs takes four loads and four instructions of 16 * 16 * 32 products.  Panels of
pairs (:mod:`~lezero.codegen.contraction.pairs`) are tiles of B as they are, and evenly spaced rows of pairs are tiles of A.  What
is not (rows around the edge of an image, A across its lines, the rest of a reduction) is copied to memory of the function first,
with zeros for what is not there.

The instructions take numbers of registers.  The kernel configures the registers when it starts and releases them when it ends.
Instructions and their arithmetic: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lezero.codegen.contraction.pack import transpose
from lezero.codegen.contraction.text import Code, Module, Operand

if TYPE_CHECKING:
    from lezero.codegen.contraction.microkernel import Tile

SIDE = 16
"""Rows of a register, and numbers of f32 or pairs of bf16 in one of them."""
ROW_BYTES = 64
A, B = 4, 6
"""The first registers of A and of B; the sums come first."""

# Palette 1; from byte 16 the bytes of a row of each register, from byte 48 its rows.
CONFIGURATION = [1, *[0] * 15, *[ROW_BYTES, 0] * 8, *[0] * 16, *[SIDE] * 8, *[0] * 8]


def configure(module: Module) -> None:
    """Have the kernel configure the registers."""
    bytes = ", ".join(f"i8 {x}" for x in CONFIGURATION)
    module.declarations["amx"] = f"@amx = private unnamed_addr constant [64 x i8] [{bytes}], align 64"
    module.declarations["llvm.x86.ldtilecfg"] = "declare void @llvm.x86.ldtilecfg(ptr)"
    module.declarations["llvm.x86.tilerelease"] = "declare void @llvm.x86.tilerelease()"
    module.opening = "  call void @llvm.x86.ldtilecfg(ptr @amx)"
    module.closing = "  call void @llvm.x86.tilerelease()"


def emit_rows_tile(module: Module, tile: Tile, height: int, name: str, arguments: str, add: bool) -> None:
    """Define a tile function of ``rows``, which takes the whole reduction in one go."""
    c = Code(module, name, arguments, internal=True)
    groups = height // SIDE
    _start_sums(c, tile, groups, "%out", "%stride", load=add)
    a, b_rest = c.slot(tile.type, SIDE * SIDE), c.slot(tile.type, SIDE * tile.width)
    whole = c.mul(c.div("%k", SIDE), SIDE)

    def block(i: str) -> None:
        entry = c.gep("%table", c.mul(i, 1 + -(-tile.height // 8) * 8), "ptr")
        b = c.gep("%b", c.load("i64", entry), tile.type)
        rows = [c.gep(entry, 1 + g * SIDE, "ptr") for g in range(groups)]
        first, strides, even = zip(*(_spacing(c, x) for x in rows))

        def in_place(g: int, k: Operand) -> None:
            _load(c, A + g, c.gep(first[g], k, tile.type), strides[g])

        def copied(g: int, k: Operand, count: Operand = SIDE) -> None:
            mask = None if count == SIDE else c.mask(count, SIDE)

            def row(r: str) -> None:
                here = c.gep(c.load("ptr", c.gep(rows[g], r, "ptr")), k, tile.type)
                value = c.vector_load(tile.type, SIDE, here, mask)
                c.vector_store(tile.type, SIDE, value, c.gep(a, c.mul(r, SIDE), tile.type))

            c.loop(0, SIDE, row)
            _load(c, A + g, a, ROW_BYTES)

        def chunks(load_a: Callable[[int, Operand], None]) -> None:
            def chunk(k: str) -> None:
                _load_b(c, tile, c.gep(b, c.mul(k, "%step"), tile.type), "%step")
                _multiply(c, tile, groups, lambda g: load_a(g, k))

            c.loop(0, whole, chunk, step=SIDE)

        def rest() -> None:
            count = c.sub("%k", whole)

            def row(k: str) -> None:
                here = c.gep(b, c.mul(c.add(whole, k), "%step"), tile.type)
                for v in range(tile.vectors):
                    mask = c.splat(c.less(k, count), "i1", SIDE)
                    value = c.vector_load(tile.type, SIDE, c.gep(here, v * SIDE, tile.type), mask)
                    place = c.gep(b_rest, c.add(c.mul(k, tile.width), v * SIDE), tile.type)
                    c.vector_store(tile.type, SIDE, value, place)

            c.loop(0, SIDE, row)
            _load_b(c, tile, b_rest, tile.width)
            _multiply(c, tile, groups, lambda g: copied(g, whole, count))

        all_even = even[0] if groups == 1 else c.value(f"and i1 {even[0]}, {even[1]}")
        c.when(all_even, lambda: chunks(in_place), lambda: chunks(copied))
        c.when(c.less(whole, "%k"), rest)

    c.loop(0, "%blocks", block)
    _store_sums(c, tile, groups, "%out", "%stride")
    c.finish()


def emit_panel_tile(module: Module, tile: Tile, height: int, name: str, arguments: str) -> None:
    """Define a tile function of ``panel``."""
    c = Code(module, name, arguments, internal=True)
    groups = height // SIDE
    _start_sums(c, tile, groups, "%out", tile.width, load=True)
    slots = c.slot(tile.type, SIDE * SIDE), c.slot(tile.type, SIDE * tile.width)

    def run(i: str) -> None:
        entry = c.gep("%runs", c.mul(i, 3), "ptr")
        a = c.gep(c.load("ptr", entry), "%offset", tile.type)
        b = c.load("ptr", c.gep(entry, 1, "ptr"))
        length = c.load("i64", c.gep(entry, 2, "ptr"))
        _add_across(c, tile, groups, slots, (a, "%stride"), (b, "%step"), length)

    c.loop(0, "%count", run)
    _store_sums(c, tile, groups, "%out", tile.width)
    c.finish()


def emit_sum_tile(module: Module, tile: Tile, height: int, name: str, arguments: str) -> None:
    """Define a tile function of ``sums``."""
    c = Code(module, name, arguments, internal=True)
    groups = height // SIDE
    slots = c.slot(tile.type, SIDE * SIDE), c.slot(tile.type, SIDE * tile.width)
    start = partial(_start_sums, c, tile, groups, "%out", tile.width)
    c.when(c.less(0, "%first"), lambda: start(load=False), lambda: start(load=True))
    _add_across(c, tile, groups, slots, ("%a", "%stride"), ("%b", tile.width), c.mul("%k", 2))
    _store_sums(c, tile, groups, "%out", tile.width)
    c.finish()


def _add_across(
    c: Code, tile: Tile, groups: int, slots: tuple[str, str], a: tuple[str, Operand], b: tuple[str, Operand], length: Operand
) -> None:  # fmt: skip
    """Add A^T B over `length` numbers, two to a pair; a, b: where they begin, and elements from pair to pair.

    slots : memory for a register of A, and for a chunk of B
    """
    (a_run, stride), (b_run, step), (a_slot, b_slot) = a, b, slots
    whole = c.mul(c.div(length, 2 * SIDE), SIDE)

    def across(g: int, rows: list[str]) -> None:
        for r, row in enumerate(transpose(c, tile.type, SIDE, rows)):
            c.vector_store(tile.type, SIDE, row, c.gep(a_slot, r * SIDE, tile.type))
        _load(c, A + g, a_slot, ROW_BYTES)

    def chunk(k: str) -> None:
        def load_a(g: int) -> None:
            here = c.gep(a_run, c.add(c.mul(k, stride), g * SIDE), tile.type)
            lines = [c.gep(here, c.mul(r, stride), tile.type) for r in range(SIDE)]
            across(g, [c.vector_load(tile.type, SIDE, x) for x in lines])

        _load_b(c, tile, c.gep(b_run, c.mul(k, step), tile.type), step)
        _multiply(c, tile, groups, load_a)

    def rest() -> None:
        """The last pairs, of which the very last may have a first half only: zeros for everything else."""
        left = c.sub(length, c.mul(whole, 2))

        def copy(source: str, stride: Operand, out: str, width: int) -> None:
            def row(k: str) -> None:
                halves = c.sub(left, c.mul(k, 2))
                there, both = c.splat(c.less(0, halves), "i1", SIDE), c.less(1, halves)
                bits = c.splat(c.select(both, -1, 0xFFFF, "i32"), "i32", SIDE)
                for v in range(width // SIDE):
                    here = c.gep(source, c.add(c.mul(k, stride), v * SIDE), tile.type)
                    value = c.vector_load(tile.type, SIDE, here, there)
                    value = c.value(f"bitcast <16 x float> {value} to <16 x i32>")
                    value = c.value(f"and <16 x i32> {value}, {bits}")
                    value = c.value(f"bitcast <16 x i32> {value} to <16 x float>")
                    c.vector_store(tile.type, SIDE, value, c.gep(out, c.add(c.mul(k, width), v * SIDE), tile.type))

            c.loop(0, SIDE, row)

        def load_a(g: int) -> None:
            copy(c.gep(a_run, c.add(c.mul(whole, stride), g * SIDE), tile.type), stride, a_slot, SIDE)
            across(g, [c.vector_load(tile.type, SIDE, c.gep(a_slot, r * SIDE, tile.type)) for r in range(SIDE)])

        copy(c.gep(b_run, c.mul(whole, step), tile.type), step, b_slot, tile.width)
        _load_b(c, tile, b_slot, tile.width)
        _multiply(c, tile, groups, load_a)

    c.loop(0, whole, chunk, step=SIDE)
    c.when(c.less(c.mul(whole, 2), length), rest)


def _spacing(c: Code, rows: str) -> tuple[str, str, str]:
    """Of 16 pointers: the first, the bytes from the first to the second, and whether all are as far apart."""
    numbers = f"<{SIDE} x i64>"
    first, second = (c.load("i64", c.gep(rows, r, "i64")) for r in (0, 1))
    stride = c.value(f"sub i64 {second}, {first}")
    places = ", ".join(f"i64 {r}" for r in range(SIDE))
    even = c.value(f"mul {numbers} {c.splat(stride, 'i64', SIDE)}, <{places}>")
    even = c.value(f"add {numbers} {even}, {c.splat(first, 'i64', SIDE)}")
    same = c.value(f"icmp eq {numbers} {even}, {c.load(numbers, rows, 8)}")
    same = c.value(f"bitcast <{SIDE} x i1> {same} to i{SIDE}")
    return c.load("ptr", rows), stride, c.value(f"icmp eq i{SIDE} {same}, -1")


def _load_b(c: Code, tile: Tile, b: str, step: Operand) -> None:
    for v in range(tile.vectors):
        _load(c, B + v, c.gep(b, v * SIDE, tile.type), c.mul(step, tile.itemsize))


def _multiply(c: Code, tile: Tile, groups: int, load_a: Callable[[int], None]) -> None:
    """Add a chunk's products to all sums."""
    c.declare("void", "llvm.x86.tdpbf16ps", *["i8 immarg"] * 3)
    for g in range(groups):
        load_a(g)
        for v in range(tile.vectors):
            c.emit(f"call void @llvm.x86.tdpbf16ps(i8 {g * tile.vectors + v}, i8 {A + g}, i8 {B + v})")


def _load(c: Code, register: int, pointer: str, stride: Operand) -> None:
    """Load 16 rows of 64 bytes, `stride` bytes apart."""
    c.declare("void", "llvm.x86.tileloadd64", "i8 immarg", "ptr", "i64")
    c.emit(f"call void @llvm.x86.tileloadd64(i8 {register}, ptr {pointer}, i64 {stride})")


def _start_sums(c: Code, tile: Tile, groups: int, out: str, stride: Operand, load: bool) -> None:
    """Zeros, or with `load` what is there; rows of the result are `stride` elements apart."""
    c.declare("void", "llvm.x86.tilezero", "i8 immarg")
    for i, place in enumerate(_places(c, tile, groups, out, stride)):
        if load:
            _load(c, i, place, c.mul(stride, tile.itemsize))
        else:
            c.emit(f"call void @llvm.x86.tilezero(i8 {i})")


def _store_sums(c: Code, tile: Tile, groups: int, out: str, stride: Operand) -> None:
    c.declare("void", "llvm.x86.tilestored64", "i8 immarg", "ptr", "i64")
    for i, place in enumerate(_places(c, tile, groups, out, stride)):
        c.emit(f"call void @llvm.x86.tilestored64(i8 {i}, ptr {place}, i64 {c.mul(stride, tile.itemsize)})")


def _places(c: Code, tile: Tile, groups: int, out: str, stride: Operand) -> list[str]:
    """Where each register of sums begins in memory."""
    rows = [c.gep(out, c.mul(g * SIDE, stride), tile.type) for g in range(groups)]
    return [c.gep(row, v * SIDE, tile.type) for row in rows for v in range(tile.vectors)]
