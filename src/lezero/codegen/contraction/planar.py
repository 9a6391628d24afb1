"""Convolutions of few channels on planar (N, C, H, W) activations: forward, and the gradient of the input.

With 6 or 16 channels, vectors along channels are mostly empty.  Here vectors run along the pixels of the result, each
multiplied with one broadcast weight per output channel: a matrix product whose right side, (taps of all channels) x
pixels, is the image laid out as lines (see ``planar_lines``), each read at an offset of its own.

The input gradient is the same with the weights turned round, and with lines that have zeros between the pixels where
the convolution had a stride.  Taps that meet only zeros for a whole tile are left out: rows at the edge of a gradient
meet few.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lezero.codegen.contraction.epilogue import Emitter, Epilogue, Place, plain, stores_only
from lezero.codegen.contraction.microkernel import Tile
from lezero.codegen.contraction.pack import load_as
from lezero.codegen.contraction.planar_lines import Lines, Steps, emit_fill, lines_of
from lezero.codegen.contraction.spec import COMPUTE, PRODUCTS_PER_THREAD, ConvSpec, tasks_for_products, useful_threads
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch, Plan
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES

LINES_BYTES = 192 << 10
"""Lines a task works on at a time: they stay in L2, whence a tile reads them once for all output channels."""

PARAMS = words(
    "images height width channels result_height result_width columns rows blocks planes extra kernel_height "
    "kernel_width dilation top weight_column weight_channel"
)
"""columns: output channels; rows: of the result per block.  Then: the epilogue's params, a move (rows, columns) per
plane, and per tap (plane, line, place in the weights)."""


@dataclass(frozen=True)
class Weights:
    """Where the weight of (output channel, input channel, tap) lies: column * o + channel * c + places[tap]."""

    column: int
    channel: int
    places: tuple[int, ...]


def plan_forward(
    spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target, epilogue_params: tuple[int, ...] = ()
) -> Plan:
    """Plan out = conv(x, w) for "x" (n, C, h, w) and "w" (O, C, KH, KW), then the epilogue's operands."""
    oh, ow = spec.out_size(h, w)
    if min(n, oh, ow) <= 0:
        return Plan([])
    c, o = spec.channels
    weights = Weights(c * spec.taps, spec.taps, tuple(range(spec.taps)))
    return Plan(
        [
            _launch(
                spec, ("x", "w"), (n, h, w, c), (oh, ow, o), Steps(spec.stride), spec.padding[:2], weights, spec.tail,
                threads, target, epilogue_params,
            )
        ]
    )  # fmt: skip


def plan_input_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """Plan "dx" (n, C, h, w) from "dy" (n, O, oh, ow) and "w" (O, C, KH, KW)."""
    if min(n, h, w) == 0:
        return Plan([])
    oh, ow = spec.out_size(h, w)
    c, o = spec.channels
    weights = Weights(spec.taps, c * spec.taps, tuple(reversed(range(spec.taps))))
    before = (
        spec.dilation[0] * (spec.kernel[0] - 1) - spec.padding[0],
        spec.dilation[1] * (spec.kernel[1] - 1) - spec.padding[1],
    )
    ((_, stored, value),) = plain(spec.out_dtype, COMPUTE[spec.dtype]).outputs
    tail = Epilogue((("dx", stored, value),))
    return Plan(
        [
            _launch(
                spec, ("dy", "w"), (n, max(oh, 0), max(ow, 0), o), (h, w, c), Steps((1, 1), spec.stride), before,
                weights, tail, threads, target, (),
            )
        ]
    )  # fmt: skip


def _launch(
    spec: ConvSpec,
    operands: tuple[str, str],
    image: tuple[int, int, int, int],
    result: tuple[int, int, int],
    steps: Steps,
    before: tuple[int, int],
    weights: Weights,
    tail: Epilogue,
    threads: int,
    target: Target,
    epilogue_params: tuple[int, ...],
) -> Launch:
    n, _, _, c = image
    oh, ow, o = result
    itemsize = TYPES[COMPUTE[spec.dtype]]
    tile = choose_tile(target, itemsize, o, edges=4 * before[0] >= oh)
    lines = lines_of(spec.kernel, steps.step[0], spec.dilation, before)
    products = n * oh * ow * o * c * spec.taps
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    rows = block_rows(LINES_BYTES // itemsize, c * len(lines.moves) * ow, lines, n, oh, threads)
    blocks = -(-oh // rows)
    params = (
        *image, *result, rows, blocks, len(lines.moves), lines.extra, *spec.kernel, spec.dilation[0], before[0],
        weights.column, weights.channel, len(epilogue_params), *epilogue_params, *(x for move in lines.moves for x in move),
        *(x for tap, place in zip(lines.taps, weights.places, strict=True) for x in (*tap, place)),
    )  # fmt: skip
    tasks = tasks_for_products(n * blocks, products, threads)
    made = source(spec.dtype, tail, tile, steps, len(epilogue_params))
    return Launch(made, (*operands, *tail.names), params, tasks)


def block_rows(budget: int, per_line: int, lines: Lines, images: int, height: int, threads: int) -> int:
    """Rows of the result to work on at a time, when a line costs `per_line` of a `budget` of elements.

    Every block fills `lines.extra` lines more than it has rows, so it has at least as many rows, budget or not.
    """
    rows = max(budget // max(1, per_line) - lines.extra, lines.extra, 1)
    if threads > 1:
        rows = min(rows, -(-images * height // (2 * threads)))
    blocks = -(-height // min(rows, height))
    return -(-height // blocks)


def choose_tile(target: Target, itemsize: int, columns: int, edges: bool) -> Tile:
    """A row per output channel, so that few rows are wasted, and a dozen accumulators: more gain nothing.

    Where much of the result lies at the `edges`, a tile of a row or two of pixels leaves out more taps: the gradient of
    LeNet's second layer takes 0.91 of the time.
    """
    most = 8 if target.registers == 32 else 6
    panels = -(-columns // most)
    height = -(-columns // panels)
    lanes = target.lanes(itemsize)
    wanted = max(16 // lanes, -(-6 // height)) if edges else -(-12 // height)
    vectors = min(4, (target.registers - 1) // (height + 1), wanted)
    return Tile(height, vectors, lanes, "double" if itemsize == 8 else "float")


@lru_cache(maxsize=128)
def source(dtype: str, tail: Epilogue, tile: Tile, steps: Steps, extra: int) -> KernelSource:
    key = f"planar {dtype} {tile} {steps} {extra} {tail.key()}"
    return KernelSource(
        "conv.planar", key, lambda target: emit(dtype, tail, tile, steps, extra, target),
        scratch=lambda p: layout(tile, p)[-1],
    )  # fmt: skip


def layout(tile: Tile, params: tuple[int, ...]) -> tuple[int, int, int]:
    """Byte offsets in scratch, after the tile: a place per product, the weights, the lines; the end."""
    p = dict(zip(PARAMS, params))
    products = p["channels"] * p["kernel_height"] * p["kernel_width"]
    weights = tile.bytes + products * 8
    lines = weights + -(-p["columns"] // tile.height) * tile.height * products * tile.itemsize
    elements = p["planes"] * p["channels"] * (p["rows"] + p["extra"]) * p["result_width"]
    return weights, lines, lines + elements * tile.itemsize + tile.bytes + 64


def emit(dtype: str, tail: Epilogue, tile: Tile, steps: Steps, extra: int, target: Target) -> str:
    module = Module(target)
    for vectors in sorted({tile.vectors, 1}):
        _emit_tile(module, tile, vectors)
    emit_fill(module, dtype, tile.type, tile.lanes, steps)
    _emit_prepare(module, dtype, tile)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    move_table = c.gep("%params", len(PARAMS) + 1 + extra, "i64")
    tap_table = c.gep(move_table, c.mul(p["planes"], 2), "i64")
    image, weights = c.buffer(0), c.buffer(1)
    memory, to, height, lanes = MEMORY[dtype], tile.type, tile.height, tile.lanes
    epilogue = Emitter(c, tail, lanes, first_buffer=2, first_param=len(PARAMS) + 1)

    per_row = c.mul(p["channels"], p["kernel_width"])
    products = c.mul(per_row, p["kernel_height"])
    panels = c.ceil_div(p["columns"], height)
    lines = c.add(p["rows"], p["extra"])
    plane = c.mul(p["result_height"], p["result_width"])
    # The same layout as `layout`, with sizes in registers.
    places = c.gep("%scratch", tile.bytes, "i8")
    packed = c.gep(places, products, "i64")
    laid_out = c.gep(packed, c.mul(c.mul(panels, height), products), to)

    c.emit(
        f"call void @prepare(ptr {weights}, ptr {tap_table}, i64 {p['kernel_width']}, i64 {p['channels']}, i64 {products}, "
        f"i64 {p['columns']}, i64 {p['weight_column']}, i64 {p['weight_channel']}, i64 {lines}, i64 {p['result_width']}, "
        f"ptr {places}, ptr {packed})"
    )
    total = c.mul(p["images"], p["blocks"])
    first_item = c.div(c.mul("%task", total), "%tasks")
    several_blocks = c.less(1, p["blocks"])

    def item(i: str) -> None:
        n, first = c.div(i, p["blocks"]), c.mul(c.rem(i, p["blocks"]), p["rows"])
        rows = c.min(p["rows"], c.sub(p["result_height"], first))
        size = c.mul(p["height"], p["width"])
        start = c.gep(image, c.mul(c.mul(n, p["channels"]), size), memory)
        edges = c.value(f"or i1 {several_blocks}, {c.value(f'icmp eq i64 {i}, {first_item}')}")
        c.emit(
            f"call void @fill(ptr {start}, i64 {p['channels']}, i64 {size}, i64 {p['height']}, i64 {p['width']}, "
            f"i64 {p['planes']}, ptr {move_table}, i64 {first}, i64 {c.add(rows, p['extra'])}, i64 {lines}, "
            f"i64 {p['channels']}, i64 {p['result_width']}, ptr {laid_out}, i1 {edges})"
        )
        begin, pixels = c.mul(first, p["result_width"]), c.mul(rows, p["result_width"])
        whole = c.mul(c.div(pixels, tile.width), tile.width)
        c.loop(0, whole, lambda x: pixel_tile(n, first, begin, pixels, x, tile.vectors, None), step=tile.width)

        def rest(x: str) -> None:
            pixel_tile(n, first, begin, pixels, x, 1, c.mask(c.sub(pixels, x), lanes))

        c.loop(whole, pixels, rest, step=lanes)

    def pixel_tile(
        n: Operand, first: Operand, begin: Operand, pixels: Operand, x: str, vectors: int, mask: str | None
    ) -> None:
        # The kernel's rows that meet the image at all for some row of the tile.
        from_y = c.add(first, c.div(x, p["result_width"]))
        last = c.min(c.add(x, vectors * lanes - 1), c.sub(pixels, 1))
        to_y = c.add(first, c.div(last, p["result_width"]))
        above = c.max(c.sub(p["top"], c.mul(to_y, steps.step[0])), 0)
        below = c.sub(c.add(c.mul(p["height"], steps.up[0]), p["top"]), c.mul(from_y, steps.step[0]))
        dilation = p["dilation"]
        round_up = c.sub(dilation, 1)
        least = c.min(c.div(c.add(above, round_up), dilation), p["kernel_height"])
        most = c.min(c.div(c.add(c.max(below, 0), round_up), dilation), p["kernel_height"])
        skipped, count = c.mul(least, per_row), c.mul(c.max(c.sub(most, least), 0), per_row)
        pixel_lines, its_places = c.gep(laid_out, x, to), c.gep(places, skipped, "i64")

        def panel(j: str) -> None:
            a = c.gep(packed, c.mul(c.add(c.mul(j, products), skipped), height), to)
            o, pixel = c.mul(j, height), c.add(begin, x)
            number = c.add(c.mul(n, p["columns"]), o)
            sums = f"ptr {a}, ptr {its_places}, i64 {count}, ptr {pixel_lines}"

            def direct() -> None:
                out = c.gep(epilogue.outputs[0], c.add(c.mul(number, plane), pixel), to)
                c.emit(f"call void @tile{vectors}({sums}, ptr {out}, i64 {plane})")

            def by_rows() -> None:
                c.emit(f"call void @tile{vectors}({sums}, ptr %scratch, i64 {vectors * lanes})")
                c.loop(0, c.min(height, c.sub(p["columns"], o)), row)

            def row(r: str) -> None:
                at = c.add(number, r)
                for v in range(vectors):
                    col = c.add(pixel, v * lanes)
                    total = c.load(tile.register, c.gep("%scratch", c.mul(c.add(c.mul(r, vectors), v), lanes), to), 4)
                    place = Place(at, col, n, c.add(c.mul(at, plane), col), mask, c.add(o, r))
                    epilogue.run(total, to, place)

            if mask is None and stores_only(tail, to):
                c.when(c.less(c.add(o, height - 1), p["columns"]), direct, by_rows)
            else:
                by_rows()

        c.loop(0, panels, panel)

    c.loop(first_item, c.div(c.mul(c.add("%task", 1), total), "%tasks"), item)
    c.finish()
    return module.text()


def _emit_prepare(module: Module, dtype: str, tile: Tile) -> None:
    """Define ``@prepare``: where each product reads in the lines, and the weights as the tiles read them.

    Products are ordered by row of the kernel, channel, column of the kernel, so that a tile can leave out rows.
    """
    arguments = (
        "ptr %weights, ptr %taps, i64 %kernel_width, i64 %channels, i64 %products, i64 %columns, i64 %column_pitch, "
        "i64 %channel_pitch, i64 %lines, i64 %width, ptr %places, ptr %packed"
    )
    c = Code(module, "prepare", arguments, internal=True)
    memory, to, height = MEMORY[dtype], tile.type, tile.height
    last = c.sub("%columns", 1)

    def product(k: str) -> None:
        rest, kx = c.div(k, "%kernel_width"), c.rem(k, "%kernel_width")
        ky, channel = c.div(rest, "%channels"), c.rem(rest, "%channels")
        tap = c.gep("%taps", c.mul(c.add(c.mul(ky, "%kernel_width"), kx), 3), "i64")
        plane, line, place = (c.load("i64", c.gep(tap, j, "i64")) for j in range(3))
        slice = c.add(c.mul(plane, "%channels"), channel)
        c.store("i64", c.mul(c.add(c.mul(slice, "%lines"), line), "%width"), c.gep("%places", k, "i64"))
        start = c.gep("%weights", c.add(c.mul(channel, "%channel_pitch"), place), memory)

        def panel(o: str, out: str) -> list[str]:
            def column(r: str) -> None:
                # Columns past the last repeat it; nobody stores what they make.
                at = c.gep(start, c.mul(c.min(c.add(o, r), last), "%column_pitch"), memory)
                c.store(to, load_as(c, dtype, to, 1, at), c.gep(out, r, to))

            c.loop(0, height, column)
            return [c.gep(out, c.mul("%products", height), to)]

        c.loop(0, "%columns", panel, step=height, carried=[("ptr", c.gep("%packed", c.mul(k, height), to))])

    c.loop(0, "%products", product)
    c.finish()


def _emit_tile(module: Module, tile: Tile, vectors: int) -> None:
    """Define ``@tile<vectors>(ptr a, ptr places, i64 count, ptr lines, ptr out, i64 stride)``.

    out[r * stride + x] = sum over k of a[k, r] * lines[places[k] + x] for each row r and pixel x of the tile.
    """
    arguments = "ptr %a, ptr %places, i64 %count, ptr %lines, ptr %out, i64 %stride"
    c = Code(module, f"tile{vectors}", arguments, internal=True)
    to, lanes = tile.type, tile.lanes

    def step(k: str, a: str, *sums: str) -> list[str]:
        here = c.gep("%lines", c.load("i64", c.gep("%places", k, "i64")), to)
        pixels = [c.vector_load(to, lanes, c.gep(here, v * lanes, to)) for v in range(vectors)]
        result = []
        for r in range(tile.height):
            weight = c.splat(c.load(to, c.gep(a, r, to)), to, lanes)
            result += [c.fma(to, lanes, weight, pixels[v], sums[r * vectors + v]) for v in range(vectors)]
        return [c.gep(a, tile.height, to), *result]

    zeros = [(tile.register, "zeroinitializer")] * (tile.height * vectors)
    sums = c.loop(0, "%count", step, carried=[("ptr", "%a"), *zeros])[1:]
    for r in range(tile.height):
        row = c.gep("%out", c.mul(r, "%stride"), to)
        for v in range(vectors):
            c.store(tile.register, sums[r * vectors + v], c.gep(row, v * lanes, to), align=tile.itemsize)
    c.finish()
