"""Tiles of sums in f32 that are stored as half floats and nothing else: rounded in registers, straight to their place."""

from __future__ import annotations

from collections.abc import Sequence

from lezero.codegen import half
from lezero.codegen.contraction import pairs, statistics
from lezero.codegen.contraction.epilogue import Epilogue
from lezero.codegen.contraction.microkernel import Tile, rows_sums
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand
from lezero.codegen.values import X


def narrowed(epilogue: Epilogue) -> str | None:
    """The half float that the epilogue rounds the result to, if it does nothing else."""
    (_, stored, value), *others = epilogue.outputs
    only = not others and value.op == "cast" and value.args[0].op == "acc"
    return stored if only and stored in ("f16", "bf16") else None


def emit_narrow_tile(module: Module, tile: Tile, stored: str, sums: bool) -> None:
    """Define ``@narrow(...)`` with the arguments of ``@rows<h>`` and ``ptr numbers, ptr room, ptr found, i64 before``: a whole tile,
    in memory as `stored`, its rows `stride` times their numbers from `out` on.

    With `sums`, what was stored is joined to the statistics of the `before` pixels at `%found`.  At `%room` there is some for a tile.
    """
    product = "ptr %table, i64 %blocks, ptr %b, i64 %step, i64 %k, i64 %ahead, ptr %out, i64 %stride"
    arguments = f"{product}, ptr %numbers, ptr %room, ptr %found, i64 %before"
    c = Code(module, "narrow", arguments, internal=True)
    memory = MEMORY[stored]
    found = statistics.Block(c, tile, "%found") if sums else None
    if tile.amx:
        _narrow_in_memory(c, tile, stored, found)
        return
    rows = [_row(c, r, memory) for r in range(tile.height)]
    for row in rows:
        for start in range(0, tile.width, 32):
            c.prefetch(c.gep(row, start, memory), write=True)
    totals = rows_sums(c, tile, tile.height, 0, "%k")
    values = [
        _store_row(c, tile, stored, totals[r * tile.vectors :][: tile.vectors], row) for r, row in enumerate(rows)
    ]
    if found:
        found.join(lambda r, v: values[r][v], [None] * tile.height, tile.height, "%before")
    c.finish()


def _store_row(c: Code, tile: Tile, stored: str, totals: Sequence[str], out: str) -> list[str]:
    """Store a row rounded, two registers at once where one instruction rounds both; give it in f32 again."""
    values, lanes, memory = [], tile.lanes, MEMORY[stored]
    both = tile.pairs and stored == "bf16"
    for v in range(0, len(totals), 2 if both else 1):
        place = c.gep(out, v * lanes, memory)
        if both and v + 1 < len(totals):
            bits = pairs.rounded_both(c, lanes, totals[v], totals[v + 1])
            c.vector_store(memory, 2 * lanes, bits, place)
            values += [
                half.decode(c.values, X(c.values, x, memory, lanes), stored).name for x in pairs.halves(c, lanes, bits)
            ]
        else:
            bits, value = round_vector(c, tile, stored, totals[v])
            c.vector_store(memory, lanes, bits, place)
            values.append(value)
    return values


def _row(c: Code, r: Operand, memory: str) -> str:
    """Where row `r` of the tile is stored."""
    return c.gep("%out", c.mul(c.load("i64", c.gep("%numbers", r, "i64")), "%stride"), memory)


def _narrow_in_memory(c: Code, tile: Tile, stored: str, found: statistics.Block | None) -> None:
    """The same where sums leave their registers for memory only."""
    operands = "ptr %table, i64 %blocks, ptr %b, i64 %step, i64 %k, i64 %ahead"
    c.emit(f"call void @rows{tile.height}({operands}, ptr %room, i64 {tile.width})")

    def row(r: str) -> None:
        for v in range(tile.vectors):
            here = c.gep("%room", c.add(c.mul(r, tile.width), v * tile.lanes), tile.type)
            rounded, value = round_vector(c, tile, stored, c.vector_load(tile.type, tile.lanes, here))
            place = c.gep(_row(c, r, MEMORY[stored]), v * tile.lanes, MEMORY[stored])
            c.vector_store(MEMORY[stored], tile.lanes, rounded, place)
            if found:
                c.vector_store(tile.type, tile.lanes, value, here)

    c.loop(0, tile.height, row)
    if found:
        found.add("%room", tile.width, tile.height, "%before")
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
    if tile.pairs and stored == "bf16":
        # Sums of pairs are no subnormal numbers, which is all that the instruction rounds differently.
        bits = pairs.rounded(c, tile.lanes, value)
        return bits, half.decode(c.values, X(c.values, bits, "i16", tile.lanes), stored).name
    rounded = half.round_to(c.values, X(c.values, value, tile.type, tile.lanes), stored)
    return rounded.name, half.decode(c.values, rounded, stored).name
