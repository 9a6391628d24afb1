"""Tiles of sums in f32 that are stored as half floats and nothing else: rounded in registers, straight to their place."""

from __future__ import annotations

from lezero.codegen import half
from lezero.codegen.contraction.epilogue import Epilogue
from lezero.codegen.contraction.microkernel import Tile, rows_sums
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand
from lezero.codegen.values import X


def narrowed(epilogue: Epilogue) -> str | None:
    """The half float that the epilogue rounds the result to, if it does nothing else."""
    (_, stored, value), *others = epilogue.outputs
    only = not others and value.op == "cast" and value.args[0].op == "acc"
    return stored if only and stored in ("f16", "bf16") else None


def emit_narrow_tile(module: Module, tile: Tile, stored: str, kept: bool) -> None:
    """Define ``@narrow(...)`` with the arguments of ``@rows<h>`` and ``ptr %kept``: a whole tile, in memory as `stored`.

    With `kept`, what was stored is also left at `%kept` in f32, row by row; there is room for a tile either way.
    """
    arguments = "ptr %table, i64 %blocks, ptr %b, i64 %step, i64 %k, i64 %ahead, ptr %out, i64 %stride, ptr %kept"
    c = Code(module, "narrow", arguments, internal=True)
    memory = MEMORY[stored]
    if tile.amx:
        _narrow_in_memory(c, tile, stored, kept)
        return
    rows = [c.gep("%out", c.mul(r, "%stride"), memory) for r in range(tile.height)]
    for row in rows:
        for start in range(0, tile.width, 32):
            c.prefetch(c.gep(row, start, memory), write=True)
    for i, total in enumerate(rows_sums(c, tile, tile.height, 0, "%k")):
        rounded, value = round_vector(c, tile, stored, total)
        place = c.gep(rows[i // tile.vectors], i % tile.vectors * tile.lanes, memory)
        c.vector_store(memory, tile.lanes, rounded, place)
        if kept:
            c.vector_store(tile.type, tile.lanes, value, c.gep("%kept", i * tile.lanes, tile.type))
    c.finish()


def _narrow_in_memory(c: Code, tile: Tile, stored: str, kept: bool) -> None:
    """The same where sums leave their registers for memory only."""
    operands = "ptr %table, i64 %blocks, ptr %b, i64 %step, i64 %k, i64 %ahead"
    c.emit(f"call void @rows{tile.height}({operands}, ptr %kept, i64 {tile.width})")

    def row(r: str) -> None:
        for v in range(tile.vectors):
            here = c.gep("%kept", c.add(c.mul(r, tile.width), v * tile.lanes), tile.type)
            rounded, value = round_vector(c, tile, stored, c.vector_load(tile.type, tile.lanes, here))
            place = c.gep("%out", c.add(c.mul(r, "%stride"), v * tile.lanes), MEMORY[stored])
            c.vector_store(MEMORY[stored], tile.lanes, rounded, place)
            if kept:
                c.vector_store(tile.type, tile.lanes, value, here)

    c.loop(0, tile.height, row)
    c.finish()


def round_rows(c: Code, tile: Tile, stored: str, rows: str, count: Operand) -> None:
    """Round the first `count` rows of a tile in scratch to what `stored` has of them."""

    def vector(i: str) -> None:
        here = c.gep(rows, i, tile.type)
        _, value = round_vector(c, tile, stored, c.vector_load(tile.type, tile.lanes, here))
        c.vector_store(tile.type, tile.lanes, value, here)

    c.loop(0, c.mul(count, tile.width), vector, step=tile.lanes)


def round_vector(c: Code, tile: Tile, stored: str, value: str) -> tuple[str, str]:
    """A register rounded: as it is stored, and in f32 again."""
    rounded = half.round_to(c.values, X(c.values, value, tile.type, tile.lanes), stored)
    return rounded.name, half.decode(c.values, rounded, stored).name
