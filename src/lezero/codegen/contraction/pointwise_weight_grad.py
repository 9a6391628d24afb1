"""The weight gradient of pointwise convolutions, in pairs of bf16.

dw[o, c] is a product over the output's pixels.  Two pixels that follow each other there make a pair, in the output's gradient
as in the image, wherever in the image they are: tables say where each pixel is.  A task takes some pixels, some rows of the
product and some panels of its columns.  It pairs a block of its rows and keeps that in L2; then, panel by panel, it pairs the
panel and sweeps the tiles over it.  Tiles begin at zero and are added to a workspace; a second launch adds the parts of the
pixels and writes (O, I, 1, 1).

Pairing waits for memory, and products do not, so what is paired next is fetched meanwhile, a line or two with every step.
"""

from __future__ import annotations

from functools import lru_cache, partial

from lezero.codegen.contraction import unfolded
from lezero.codegen.contraction.microkernel import Tile, call_tile, choose_tile, emit_sum_tiles
from lezero.codegen.contraction.pack import store_as
from lezero.codegen.contraction.pairs import interleave, supported
from lezero.codegen.contraction.spec import (
    ELEMENTS_PER_THREAD,
    PRODUCTS_PER_THREAD,
    ConvSpec,
    parts_of_panels,
    tasks_for_elements,
    useful_threads,
)
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.contraction.weight_sums import sum_parts
from lezero.codegen.launch import MOST_PRODUCTS, KernelSource, Launch, Plan, divided
from lezero.codegen.target import Target

PARAMS = words(
    "images height width out_height out_width step_y step_x rows columns panels tiles parts row_parts panel_parts "
    "block tiles_most turned rows_dense columns_dense segments segment_pitch"
)
"""tiles: of rows, tiles_most: in one task.  block: pairs paired at a time.  turned: rows are the image's channels and columns the
outputs, not the other way about.  rows_dense, columns_dense: whether pixels lie in memory in the order of the output's.
segments: pieces that the rows of a pixel are in, `segment_pitch` elements apart."""

BLOCK_PAIRS = 200
"""Steps of a tile, at most: a panel of so many is in L1 (with twice as many, products took 15 % longer) and loading and adding
up the tile's sums takes 3 % of the time."""

ROWS_BYTES = 320 << 10
"""How much of the rows is paired at a time: it stays in L2 beside what is fetched to be paired next (with 480 KiB, up to 10 %
slower)."""

MOST_ROWS = ROWS_BYTES // (BLOCK_PAIRS * 4)

PART_PIXELS = 4096
"""A part of the pixels is at least so long: each has sums of its own to write and to read."""

MOST_PARTS = 8

LINE = 16
"""Pairs in a line of the cache."""


def suits(spec: ConvSpec, target: Target) -> bool:
    """Whether the plan below is for such a convolution."""
    pointwise = spec.taps == 1 and spec.groups == 1 and not any(spec.padding)
    return pointwise and supported(spec.dtype, target)


def plan_weight_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """Plan dw (O, I, 1, 1) of the spec's `out_dtype` from "x" (n, h, w, C) and "dy" (n, oh, ow, O), both bf16."""
    ci, co = spec.channels
    image, result = (n, h, w), spec.out_size(h, w)
    if dense := spec.stride == (1, 1):
        pixels = n * h * w
        image, result = (1, 1, pixels), (1, pixels)
    # Panels are paired anew for every block of rows: few outputs would not fill a block.
    turned = co < min(ci, MOST_ROWS)
    rows, columns = (ci, co) if turned else (co, ci)
    tile = choose_tile(target, 4, columns, paired=True)
    product, parts = _product("x", image, result, spec.stride, (rows, columns), turned, dense, (1, 0), tile, threads)
    if turned:
        total, size = _sum_turned(spec.out_dtype, tile, rows, columns, [0], ci, parts, threads)
    else:
        total, size = _sum(spec.out_dtype, tile, rows, columns, parts, threads)
    return Plan([product, total], {"w:parts": size})


def suits_unfolded(spec: ConvSpec) -> bool:
    """Whether one block holds all taps of an unfolded image."""
    return unfolded.depth(spec) * spec.kernel[0] <= MOST_ROWS


def plan_unfolded(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """The same for images of few channels and larger kernels: rows are what all taps meet of the unfolded image."""
    co, high = spec.channels[1], spec.kernel[0]
    unfold, image, bytes = unfolded.unfold(spec, n, h, w, threads)
    depth = unfolded.depth(spec)
    tile = choose_tile(target, 4, co, paired=True)
    pieces = (high, spec.dilation[0] * image[2] * depth)
    product, parts = _product(
        "w:unfolded",
        image,
        spec.out_size(h, w),
        (spec.stride[0], 1),
        (high * depth, co),
        True,
        False,
        pieces,
        tile,
        threads,
    )
    total, size = _sum_turned(spec.out_dtype, tile, high * depth, co, unfolded.places(spec), 1, parts, threads)
    return Plan([unfold, product, total], {"w:unfolded": bytes, "w:parts": size})


def _product(
    operand: str, image: tuple[int, int, int], result: tuple[int, int], step: tuple[int, int], size: tuple[int, int],
    turned: bool, dense: bool, pieces: tuple[int, int], tile: Tile, threads: int,
) -> tuple[Launch, int]:  # fmt: skip
    """The launch from the image in `operand` and "dy" to "w:parts", and how many parts there are; size: rows and columns."""
    rows, columns = size
    pixels = image[0] * result[0] * result[1]
    panels, tiles = -(-columns // tile.width), -(-rows // tile.height)
    products = pixels * rows * columns
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    parts, block = _parts_and_block(pixels, products, panels)
    row_parts = -(-tiles * block * tile.height * 4 // ROWS_BYTES)
    even = -(-row_parts * parts // threads) * threads // parts
    if 1 < row_parts < even <= min(tiles, 2 * row_parts):
        row_parts = even
    panel_parts = parts_of_panels(panels, parts * row_parts, threads)
    panel_parts = divided(panels, panel_parts, products, MOST_PRODUCTS * parts * row_parts)
    params = (
        *image, *result, *step, rows, columns, panels, tiles, parts, row_parts, panel_parts,
        block, -(-tiles // row_parts), int(turned), int(dense or not turned), int(dense or turned), *pieces,
    )  # fmt: skip
    return Launch(source(tile), (operand, "dy", "w:parts"), params, parts * row_parts * panel_parts), parts


def _parts_and_block(pixels: int, products: int, panels: int) -> tuple[int, int]:
    """Into how many parts to divide the pixels, and how many pairs to take at a time: from the sizes alone, so that the bits do
    not depend on the threads."""
    parts = max(1, min(MOST_PARTS, pixels // PART_PIXELS))
    parts = divided(pixels, 1 << parts.bit_length() - 1, products, MOST_PRODUCTS * panels)
    pairs = -(-pixels // (2 * parts))
    return parts, -(-pairs // -(-pairs // BLOCK_PAIRS))


@lru_cache(maxsize=16)
def source(tile: Tile) -> KernelSource:
    return KernelSource(
        "conv.dw",
        f"pointwise weight gradient {tile}",
        lambda target: emit(tile, target),
        scratch=lambda p: layout(tile, p)[-1],
    )


def layout(tile: Tile, params: tuple[int, ...]) -> tuple[int, ...]:
    """Byte offsets in scratch, behind the panel, of the rows, the table of pixels and the zeros, and the end."""
    p = dict(zip(PARAMS, params))
    rows = p["block"] * tile.width * 4
    table = rows + p["block"] * row_lines(tile, p["tiles_most"]) * 64
    zeros = table + 2 * (2 * p["block"] + 1) * 8
    return rows, table, zeros, zeros + (max(p["rows"], p["columns"]) + 4 * LINE) * 2


def row_lines(tile: Tile, tiles: int) -> int:
    """Lines of the cache that a pair of pixels takes in a block of rows; steps of a power of two would fall into few sets."""
    return (tiles * tile.height + 2 * LINE - 1) // LINE | 1


def emit(tile: Tile, target: Target) -> str:
    module = Module(target)
    emit_sum_tiles(module, tile)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    image, dy, sums = c.buffer(0), c.buffer(1), c.buffer(2)
    to, height, width = tile.type, tile.height, tile.width
    turned = c.less(0, p["turned"])
    row_operand, column_operand = c.select(turned, image, dy, "ptr"), c.select(turned, dy, image, "ptr")

    # The same layout as `layout`, with sizes in registers.
    rows = c.gep("%scratch", c.mul(p["block"], width), to)
    row_size = c.div(c.add(c.mul(p["tiles_most"], height), 2 * LINE - 1), LINE)
    row_size = c.mul(c.value(f"or i64 {row_size}, 1"), LINE)
    row_table = c.gep(rows, c.mul(p["block"], row_size), to)
    entries = c.add(c.mul(p["block"], 2), 1)
    column_table = c.gep(row_table, entries, "ptr")
    zeros = c.gep(column_table, entries, "ptr")
    image_table = c.select(turned, row_table, column_table, "ptr")
    dy_table = c.select(turned, column_table, row_table, "ptr")
    piece = c.div(p["rows"], p["segments"])
    channels, outputs = c.select(turned, piece, p["columns"]), c.select(turned, p["columns"], p["rows"])
    c.loop(0, c.add(c.max(channels, outputs), 4 * LINE), lambda i: c.store("i16", 0, c.gep(zeros, i, "i16")))

    def share(what: Operand, part: Operand, parts: Operand) -> tuple[Operand, Operand]:
        return c.div(c.mul(what, part), parts), c.div(c.mul(what, c.add(part, 1)), parts)

    part, rest = c.rem("%task", p["parts"]), c.div("%task", p["parts"])
    row_part, panel_part = c.rem(rest, p["row_parts"]), c.div(rest, p["row_parts"])
    pixels = c.mul(p["images"], c.mul(p["out_height"], p["out_width"]))
    first_pair, end_pair = share(c.ceil_div(pixels, 2), part, p["parts"])
    first_panel, end_panel = share(p["panels"], panel_part, p["panel_parts"])
    first_tile, end_tile = share(p["tiles"], row_part, p["row_parts"])
    first_row, number = c.mul(first_tile, height), c.sub(end_tile, first_tile)
    panel_size = c.mul(p["tiles"], height * width)
    sums = c.gep(sums, c.mul(part, c.mul(p["panels"], panel_size)), to)
    sums = c.gep(sums, c.mul(first_row, width), to)

    def block(start: str) -> None:
        count = c.min(p["block"], c.sub(end_pair, start))
        pixel = c.mul(start, 2)
        met = c.min(c.mul(count, 2), c.sub(pixels, pixel))
        beyond = c.add(pixel, c.mul(count, 2))
        next_rows = c.gep(row_operand, c.add(c.mul(beyond, p["rows"]), first_row), "i16")
        is_first = c.value(f"zext i1 {c.less(start, c.add(first_pair, 1))} to i64")
        find_pixels(pixel, met)
        pair_rows(count)

        def panel(i: str) -> None:
            column = c.mul(i, width)
            pair_panel(column, count)
            out = c.gep(sums, c.mul(i, panel_size), to)
            # While this panel is worked on the next is fetched, and with the last one the next block's rows.
            more = c.less(c.add(i, 1), end_panel)
            next_pixel = c.mul(c.select(more, pixel, beyond), p["columns"])
            next_column = c.select(more, c.add(column, width), c.mul(first_panel, width))
            following = c.gep(column_operand, c.add(next_pixel, next_column), "i16")
            last = c.value(f"and i1 {c.less(0, p['rows_dense'])}, {c.value(f'xor i1 {more}, true')}")

            def one(r: str) -> None:
                here = c.gep(out, c.mul(r, height * width), to)

                def fetched(first: str, number: Operand, channels: Operand, wanted: str) -> str:
                    """Line `number` of a pair of pixels from `first` on, and how far it is to that of the next."""
                    at = c.add(c.mul(c.rem(number, 2), channels), c.mul(c.div(number, 2), 32))
                    stride = c.select(wanted, c.mul(channels, 4), 0)
                    return f"ptr {c.select(wanted, c.gep(first, at, 'i16'), here, 'ptr')}, i64 {stride}"

                back = c.sub(c.sub(number, 1), r)
                wanted = c.value(f"and i1 {c.less(back, width // 16)}, {c.less(0, p['columns_dense'])}")
                next_lines = (
                    f"{fetched(next_rows, r, p['rows'], last)}, {fetched(following, back, p['columns'], wanted)}"
                )
                operands = f"ptr {c.gep(rows, c.mul(r, height), to)}, i64 {row_size}, ptr %scratch"
                left = c.sub(p["rows"], c.add(first_row, c.mul(r, height)))
                call_tile(c, tile, "sums", left, f"{operands}, i64 {count}, i64 {is_first}, {next_lines}, ptr {here}")

            c.loop(0, number, one)

        c.loop(first_panel, end_panel, panel)

    def pair_rows(count: Operand) -> None:
        """Pair a block of rows, segment by segment."""
        end_row = c.min(c.add(first_row, c.mul(number, height)), p["rows"])

        def segment(s: str) -> None:
            start = c.mul(s, piece)
            begin, end = c.max(start, first_row), c.min(c.add(start, piece), end_row)
            offset = c.add(c.mul(s, p["segment_pitch"]), c.sub(begin, start))
            wanted = c.sub(end, begin)
            whole = c.mul(c.div(c.max(wanted, 0), 32), 32)
            mask = c.mask(c.sub(wanted, whole), 32)

            def pair(j: str, entry: str, out: str) -> list[str]:
                first, second = (c.load("ptr", c.gep(entry, i, "ptr")) for i in range(2))
                there = c.value(f"icmp ne ptr {second}, {zeros}")
                moved = c.select(there, c.gep(second, offset, "i16"), zeros, "ptr")
                pointers = (c.gep(first, offset, "i16"), moved)

                def line(r: Operand, mask: str | None) -> None:
                    low, high = (c.vector_load("i16", 32, c.gep(x, r, "i16"), mask) for x in pointers)
                    for first in (0, LINE):
                        here = c.gep(out, c.add(r, first), to)
                        store = partial(c.vector_store, to, LINE, interleave(c, 32, low, high, first, LINE), here)
                        if mask is None or not first:
                            store()
                        else:  # a line at most is written behind a segment: after the last one comes the next pair
                            c.when(c.less(c.add(r, first), wanted), store)

                c.loop(0, whole, lambda r: line(r, None), step=32)
                c.when(c.less(whole, wanted), lambda: line(whole, mask))
                return [c.gep(entry, 2, "ptr"), c.gep(out, row_size, to)]

            c.loop(0, count, pair, carried=[("ptr", row_table), ("ptr", c.gep(rows, c.sub(begin, first_row), to))])

        c.loop(0, p["segments"], segment)

    def pair_panel(column: Operand, count: Operand) -> None:
        halves = [(v, min(2 * tile.lanes, width - v)) for v in range(0, width, 2 * tile.lanes)]
        masks = [c.mask(c.sub(c.sub(p["columns"], column), v), n) for v, n in halves]

        def pair(j: str, entry: str, out: str) -> list[str]:
            pointers = [c.gep(c.load("ptr", c.gep(entry, i, "ptr")), column, "i16") for i in range(2)]
            for (v, n), mask in zip(halves, masks, strict=True):
                low, high = (c.vector_load("i16", n, c.gep(x, v, "i16"), mask) for x in pointers)
                for first in range(0, n, tile.lanes):
                    pairs = interleave(c, n, low, high, first, tile.lanes)
                    c.vector_store(to, tile.lanes, pairs, c.gep(out, v + first, to))
            return [c.gep(entry, 2, "ptr"), c.gep(out, width, to)]

        c.loop(0, count, pair, carried=[("ptr", column_table), ("ptr", "%scratch")])

    def find_pixels(pixel: Operand, met: Operand) -> None:
        """Where `met` pixels from `pixel` on are in the image and in the output's gradient, and zeros behind them."""
        x, line = c.rem(pixel, p["out_width"]), c.div(pixel, p["out_width"])
        y, n = c.rem(line, p["out_height"]), c.div(line, p["out_height"])

        def one(i: str, there: str, n: str, y: str, x: str) -> list[str]:
            row = c.add(c.mul(n, p["height"]), c.mul(y, p["step_y"]))
            at = c.add(c.mul(row, p["width"]), c.mul(x, p["step_x"]))
            c.store("ptr", c.gep(image, c.mul(at, channels), "i16"), c.gep(image_table, i, "ptr"))
            c.store("ptr", there, c.gep(dy_table, i, "ptr"))
            next_x = c.add(x, 1)
            in_row = c.less(next_x, p["out_width"])
            next_y = c.select(in_row, y, c.add(y, 1))
            in_image = c.less(next_y, p["out_height"])
            following = (
                c.select(in_image, n, c.add(n, 1)), c.select(in_image, next_y, 0), c.select(in_row, next_x, 0),
            )  # fmt: skip
            return [c.gep(there, outputs, "i16"), *following]

        start = c.gep(dy, c.mul(pixel, outputs), "i16")
        c.loop(0, met, one, carried=[("ptr", start), ("i64", n), ("i64", y), ("i64", x)])
        for table in (image_table, dy_table):
            c.store("ptr", zeros, c.gep(table, met, "ptr"))

    c.loop(first_pair, end_pair, block, step=p["block"])
    c.finish()
    return module.text()


# -- adding up --------------------------------------------------------------------------------------------------------


def _sum_turned(
    dtype: str, tile: Tile, rows: int, columns: int, places: list[int], channels: int, parts: int, threads: int
) -> tuple[Launch, int]:
    """The launch for sums whose columns are outputs, and the bytes of the sums; places: the first row of each tap."""
    padded = -(-rows // tile.height) * tile.height
    size = -(-columns // tile.width) * tile.width * padded
    at = [(place, 0) for place in places]
    launch = sum_parts(dtype, tile, 1, columns, channels, padded, parts, size, (padded, 0), at, threads)
    return launch, parts * size * tile.itemsize


def _sum(dtype: str, tile: Tile, rows: int, columns: int, parts: int, threads: int) -> tuple[Launch, int]:
    """The launch for sums whose rows are outputs, and the bytes of the sums."""
    threads = useful_threads(threads, rows * columns * parts, ELEMENTS_PER_THREAD)
    tasks = tasks_for_elements(rows, rows * columns * parts, threads)
    panels, tiles = -(-columns // tile.width), -(-rows // tile.height)
    launch = Launch(sum_source(dtype, tile), ("w:parts", "dw"), (rows, columns, panels, tiles, parts), tasks)
    return launch, parts * panels * tile.width * tiles * tile.height * tile.itemsize


SUM_PARAMS = words("rows columns panels tiles parts")


@lru_cache(maxsize=16)
def sum_source(dtype: str, tile: Tile) -> KernelSource:
    key = f"pointwise weight gradient sum {dtype} {tile}"
    return KernelSource("conv.dw.sum", key, lambda target: emit_sum(dtype, tile, target))


def emit_sum(dtype: str, tile: Tile, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(SUM_PARAMS)}
    sums, dw = c.buffer(0), c.buffer(1)
    to, lanes, width, vector = tile.type, tile.lanes, tile.width, tile.register
    panel_size = c.mul(p["tiles"], tile.height * width)
    part_size = c.mul(p["panels"], panel_size)

    def total(here: str) -> str:
        def add(_: str, pointer: str, total: str) -> list[str]:
            value = c.load(vector, pointer, 4)
            return [c.gep(pointer, part_size, to), c.value(f"fadd {vector} {total}, {value}")]

        carried = [("ptr", c.gep(here, part_size, to)), (vector, c.load(vector, here, 4))]
        return c.loop(1, p["parts"], add, carried=carried)[1]

    def row(r: str) -> None:
        out = c.gep(dw, c.mul(r, p["columns"]), MEMORY[dtype])

        def panel(i: str) -> None:
            here = c.gep(sums, c.add(c.mul(i, panel_size), c.mul(r, width)), to)
            for v in range(0, width, lanes):
                column = c.add(c.mul(i, width), v)
                mask = c.mask(c.sub(p["columns"], column), lanes)
                store_as(c, dtype, lanes, total(c.gep(here, v, to)), c.gep(out, column, MEMORY[dtype]), mask)

        c.loop(0, p["panels"], panel)

    c.loop(c.div(c.mul("%task", p["rows"]), "%tasks"), c.div(c.mul(c.add("%task", 1), p["rows"]), "%tasks"), row)
    c.finish()
    return module.text()
