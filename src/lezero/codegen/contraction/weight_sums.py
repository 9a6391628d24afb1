"""Adding the parts of a weight gradient, and writing them as the user holds weights: (O, I / groups, KH, KW)."""

from __future__ import annotations

from functools import lru_cache, partial

from lezero.codegen.contraction.conv_weights import next_tap
from lezero.codegen.contraction.microkernel import Tile
from lezero.codegen.contraction.pack import store_as, transpose
from lezero.codegen.contraction.spec import ELEMENTS_PER_THREAD, tasks_for_elements, useful_threads
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch
from lezero.codegen.target import Target


def sum_parts(
    out_dtype: str, tile: Tile, groups: int, columns: int, channels: int, panel_rows: int, parts: int, part: int,
    shifted: tuple[int, int], places: list[tuple[int, int]], threads: int, operand: str = "w:parts",
) -> Launch:  # fmt: skip
    """The launch that adds `parts` of panels, `part` elements apart, and writes "dw".

    panel_rows : rows of a panel; `places` says for each tap the first of its rows, and its first channel among them.
    shifted : rows from the first number on are read from so many rows further.
    """
    lines, taps = channels * len(places), len(places)
    panels = -(-columns // tile.width)
    params = (
        groups, columns, panels, lines, taps, panel_rows, parts, part, tile.width, *shifted,
        *(x for place in places for x in place),
    )  # fmt: skip
    threads = useful_threads(threads, groups * columns * lines * parts, ELEMENTS_PER_THREAD)
    squares = groups * panels * tile.vectors * -(-lines // tile.lanes)
    tasks = tasks_for_elements(squares, groups * columns * lines * parts, threads)
    return Launch(sum_source(out_dtype, tile.type, tile.lanes), (operand, "dw"), params, tasks)


AHEAD = 16
"""Rows that are fetched ahead: the taps' rows lie apart in memory, which the processor does not foresee."""

SUM_PARAMS = words("groups columns panels lines taps panel_rows parts part width last shift")


@lru_cache(maxsize=16)
def sum_source(out_dtype: str, type: str, lanes: int) -> KernelSource:
    key = f"conv weight gradient sum {out_dtype} {lanes} {type}"
    return KernelSource("conv.dw.sum", key, lambda target: emit_sum(out_dtype, type, lanes, target))


def emit_sum(out_dtype: str, to: str, lanes: int, target: Target) -> str:
    """dw's line of column o is `lines` long: element e is tap e % taps of channel e // taps."""
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(SUM_PARAMS)}
    places = c.gep("%params", len(SUM_PARAMS), "i64")
    parts, dw = c.buffer(0), c.buffer(1)
    width, registers = p["width"], c.div(p["width"], lanes)
    vector = f"<{lanes} x {to}>"
    chunks = c.ceil_div(p["lines"], lanes)

    def square(i: str) -> None:
        e0 = c.mul(c.rem(i, chunks), lanes)
        rest = c.div(i, chunks)
        panel, v = c.div(rest, registers), c.rem(rest, registers)
        base = c.gep(parts, c.add(c.mul(c.mul(panel, p["panel_rows"]), width), c.mul(v, lanes)), to)
        first = c.add(c.mul(c.rem(panel, p["panels"]), width), c.mul(v, lanes))
        group = c.div(panel, p["panels"])

        def row(tap: Operand, channel: Operand) -> str:
            place = c.gep(places, c.mul(tap, 2), "i64")
            m = c.add(c.load("i64", c.gep(place, 1, "i64")), channel)
            shifted = c.add(m, c.select(c.less(m, p["last"]), 0, p["shift"]))
            here = c.gep(base, c.mul(c.add(c.load("i64", place), shifted), width), to)
            c.prefetch(c.gep(here, c.mul(width, AHEAD), to))

            def add(_: str, pointer: str, total: str) -> list[str]:
                value = c.load(vector, pointer, align=4)
                return [c.gep(pointer, p["part"], to), c.value(f"fadd {vector} {total}, {value}")]

            carried = [("ptr", c.gep(here, p["part"], to)), (vector, c.load(vector, here, align=4))]
            return c.loop(1, p["parts"], add, carried=carried)[1]

        rows = []
        tap, channel = c.rem(e0, p["taps"]), c.div(e0, p["taps"])
        for r in range(lanes):
            rows.append(row(tap, channel))
            # Behind the last line it is read again: nobody stores that.
            more = c.less(c.add(e0, r + 1), p["lines"])
            tap, channel = (c.select(more, x, y) for x, y in zip(next_tap(c, tap, channel, p["taps"]), (tap, channel)))
        mask = c.mask(c.sub(p["lines"], e0), lanes)
        start = c.gep(dw, c.add(c.mul(c.add(c.mul(group, p["columns"]), first), p["lines"]), e0), MEMORY[out_dtype])
        for r, line in enumerate(transpose(c, to, lanes, rows)):
            out = c.gep(start, c.mul(p["lines"], r), MEMORY[out_dtype])
            c.prefetch(c.gep(out, 128, "i8"), write=True)
            stored = partial(store_as, c, out_dtype, lanes, line, out, mask)
            c.when(c.less(c.add(first, r), p["columns"]), stored)

    total = c.mul(c.mul(p["groups"], p["panels"]), c.mul(chunks, registers))
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), square)
    c.finish()
    return module.text()
