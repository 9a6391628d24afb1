"""Packing convolution weights: from (O, I, KH, KW) to the panels the tile functions read, once per call.

A panel holds `width` columns: outputs in the forward pass, inputs in the input gradient.  Its rows are (tap, channel of
the reduction) in the order the convolution walks them.  Both directions are the same walk over the weights: `outer`
slices of lines (one per column, `line` elements apart) of `length` contiguous elements; element e of a line is tap
e % taps of channel e // taps and goes to row ``place[tap] + channel + slice`` of the panel.

Where the tile takes pairs of bf16, rows 2 * i and 2 * i + 1 are the halves of row i.  They are of two slices, then, that follow
each other, and every place is even.

Lines are transposed in squares that stay in registers.  Where a line has one element per slice, slices are rows already, or,
in pairs, lines of pairs.
"""

from __future__ import annotations

from functools import lru_cache, partial

from lezero.codegen.contraction import pairs
from lezero.codegen.contraction.microkernel import Tile
from lezero.codegen.contraction.pack import load_as, transpose
from lezero.codegen.contraction.spec import ELEMENTS_PER_THREAD, tasks_for_elements, useful_threads
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch
from lezero.codegen.target import Target

AHEAD = 8
"""Slices that are fetched ahead: they lie apart in memory, which the processor does not foresee."""

PARAMS = words("groups columns outer slice line length group taps rows panels width")


def pack_weights(
    dtype: str,
    tile: Tile,
    *,
    groups: int,
    columns: int,
    outer: int,
    slice: int,
    line: int,
    length: int,
    group: int,
    rows: int,
    places: list[int],
    threads: int,
) -> tuple[Launch, int]:
    """The launch from operand "w" to workspace "w:weights" and the bytes it fills.

    columns, rows : of a group's panels together, and of each panel.
    outer, slice, line, length, group : the walk described above, and elements between groups.
    places : first row of each tap in a panel.
    """
    panels = -(-columns // tile.width)
    steps = rows // 2 if tile.pairs else rows
    params = (groups, columns, outer, slice, line, length, group, len(places), steps, panels, tile.width, *places)
    threads = useful_threads(threads, groups * columns * rows, ELEMENTS_PER_THREAD)
    tasks = tasks_for_elements(groups * panels * tile.vectors, groups * columns * rows, threads)
    bytes = groups * panels * steps * tile.width * tile.itemsize
    return Launch(source(dtype, tile.type, tile.lanes, tile.pairs), ("w", "w:weights"), params, tasks), bytes


def forward_slices(channels: int, taps: int, paired: bool) -> dict[str, int]:
    """How the weights of an output are divided in the forward pass: not at all, or for pairs into channels."""
    outer = channels if paired else 1
    return {"outer": outer, "slice": taps, "length": channels * taps // outer}


def next_tap(c: Code, tap: Operand, channel: Operand, taps: Operand) -> list[Operand]:
    """The tap and the channel of the element behind one: a division for each would take longer than the rest."""
    more = c.less(c.add(tap, 1), taps)
    return [c.select(more, c.add(tap, 1), 0), c.select(more, channel, c.add(channel, 1))]


@lru_cache(maxsize=16)
def source(dtype: str, to: str, lanes: int, paired: bool) -> KernelSource:
    key = f"conv weights {dtype} {lanes} {to}{' pairs' if paired else ''}"
    return KernelSource("conv.weights", key, lambda target: emit(dtype, to, lanes, paired, target))


def emit(dtype: str, to: str, lanes: int, paired: bool, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    places = c.gep("%params", len(PARAMS), "i64")
    weights, packed = c.buffer(0), c.buffer(1)
    memory, width = MEMORY[dtype], p["width"]
    registers = c.div(width, lanes)

    def column_block(i: str) -> None:
        """One register of columns of one panel."""
        panel, v = c.div(i, registers), c.rem(i, registers)
        first = c.add(c.mul(c.rem(panel, p["panels"]), width), c.mul(v, lanes))
        start = c.gep(weights, c.mul(c.div(panel, p["panels"]), p["group"]), memory)
        out = c.gep(packed, c.add(c.mul(c.mul(panel, p["rows"]), width), c.mul(v, lanes)), to)

        def rows() -> None:
            if not paired:
                copy(start, first, out)
                return
            adjacent = c.value(f"icmp eq i64 {p['slice']}, 1")
            c.when(adjacent, lambda: transpose_pairs(start, first, out), lambda: copy(start, first, out))

        c.when(c.value(f"icmp eq i64 {p['length']}, 1"), rows, lambda: slices(start, first, out))

    def copy(start: str, first: Operand, out: str) -> None:
        """Lines of one element: a slice is a row of the panel already."""
        mask = c.mask(c.sub(p["columns"], first), lanes)

        def row(s: str) -> None:
            here = c.gep(start, c.add(c.mul(s, p["slice"]), first), memory)
            c.prefetch(c.gep(here, c.mul(p["slice"], AHEAD), memory))
            if paired:
                value = pairs.join(c, lanes, here, c.gep(here, p["slice"], memory), mask)
            else:
                value = load_as(c, dtype, to, lanes, here, mask)
            c.vector_store(to, lanes, value, c.gep(out, c.mul(c.div(s, 2) if paired else s, width), to))

        c.loop(0, p["outer"], row, step=2 if paired else 1)

    def lines_of(start: str, first: Operand) -> list[str]:
        """The register's lines; behind the last one it is repeated."""
        last = c.sub(p["columns"], 1)
        return [c.gep(start, c.mul(c.min(c.add(first, r), last), p["line"]), memory) for r in range(lanes)]

    def transpose_pairs(start: str, first: Operand, out: str) -> None:
        """Lines of pairs, which are slices that follow each other."""
        lines = lines_of(start, first)

        def square(i: Operand, mask: str | None) -> None:
            loaded = [pairs.load(c, dtype, 2 * lanes, c.gep(line, i, memory), mask) for line in lines]
            loaded = [c.value(f"bitcast <{2 * lanes} x i16> {x} to {vector}") for x in loaded]
            for r, row in enumerate(transpose(c, to, lanes, loaded)):
                step = c.add(c.div(i, 2), r)
                place = c.gep(out, c.mul(step, width), to)
                c.when(c.less(step, p["rows"]), partial(c.vector_store, to, lanes, row, place))

        c.over_vectors(p["outer"], 2 * lanes, square)

    vector = f"<{lanes} x {to}>"

    def slices(start: str, first: Operand, out: str) -> None:
        lines = lines_of(start, first)

        def one(s: str) -> None:
            offset = c.mul(s, p["slice"])
            following = c.add(offset, p["slice"])

            def load(r: int, e: Operand, mask: str | None) -> str:
                here, there = (c.gep(lines[r], c.add(x, e), memory) for x in (offset, following))
                # Lines lie close to each other, or their slices do: every other one is enough of either slice.
                ahead = there if paired and r % 2 else here
                c.prefetch(c.gep(ahead, c.mul(p["slice"], AHEAD), memory))
                return pairs.join(c, lanes, here, there, mask) if paired else load_as(c, dtype, to, lanes, here, mask)

            def square(e: Operand, mask: str | None) -> None:
                """Lines by elements, transposed; then its rows one by one to their places."""
                rows = transpose(c, to, lanes, [load(r, e, mask) for r in range(lanes)])
                tap, channel = c.rem(e, p["taps"]), c.div(e, p["taps"])
                for r, value in enumerate(rows):
                    row = c.add(c.add(c.load("i64", c.gep(places, tap, "i64")), channel), s)
                    place = c.gep(out, c.mul(c.div(row, 2) if paired else row, width), to)
                    c.when(c.less(c.add(e, r), p["length"]), partial(c.vector_store, to, lanes, value, place))
                    tap, channel = next_tap(c, tap, channel, p["taps"])

            c.over_vectors(p["length"], lanes, square)

        c.loop(0, p["outer"], one, step=2 if paired else 1)

    total = c.mul(c.mul(p["groups"], p["panels"]), registers)
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), column_block)
    c.finish()
    return module.text()
