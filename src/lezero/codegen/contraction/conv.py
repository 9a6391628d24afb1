"""Convolutions as batch-reduce products: forward, and the gradient with respect to the input.

A tile's rows are output pixels, wherever they lie; its blocks are the kernel's taps.  A table of pointers says where
each tap of each pixel reads: in the image, in place, or on a row of zeros where the tap hangs over the edge.  So the
code knows nothing of kernel size, stride, dilation or padding, and every layer of a network shares it.

The input gradient is the same computation on the output's gradient.  With stride s, the input's pixels fall into s * s
phases; a phase meets only the taps that hit it, and is a convolution with stride 1 of its own.

Images of few channels are first copied with their padding around them, so that a whole row of taps is one contiguous run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lezero.codegen.contraction import depthwise, pairs, planar, statistics, unfolded, winograd
from lezero.codegen.contraction.conv_weights import forward_slices, pack_weights
from lezero.codegen.contraction.epilogue import Emitter, Epilogue, Place, plain, stores_only
from lezero.codegen.contraction.microkernel import Tile, call_tile, choose_tile, emit_rows_tiles, entry_words
from lezero.codegen.contraction.narrow import emit_narrow_tile, narrowed, round_rows
from lezero.codegen.contraction.pack import copy_row, load_as
from lezero.codegen.contraction.phases import phases
from lezero.codegen.contraction.spec import (
    COMPUTE,
    ELEMENTS_PER_THREAD,
    PRODUCTS_PER_THREAD,
    ConvSpec,
    tasks_for_elements,
    tasks_for_products,
    useful_threads,
)
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch, Plan
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES

FEW_CHANNELS = 16
"""Below this many channels a tap alone is too short a run of the reduction."""

BLOCK_BYTES = 256 << 10
"""How much of the image a task works on at a time: it stays in L2 beside a panel of weights."""

ROWS_BYTES = 384 << 10
"""Up to so many bytes of weights, work behind the product goes through memory row by row, not panel by panel."""


@dataclass(frozen=True)
class Phase:
    """Output pixels (first + step * i) that share their taps: how many there are, and the range of taps."""

    first: tuple[int, int]
    count: tuple[int, int]
    taps: tuple[int, int]


@dataclass(frozen=True)
class Walk:
    """A convolution as the kernel sees it.

    image : (N, H, W) of what is read, image_channels : elements from pixel to pixel there.
    result : (H, W) of what is written.
    depth : contiguous elements a tap reads; columns : channels written; both per group.
    step : how far the image moves per pixel of a phase; spread : how far the result does.
    taps : displacement (rows, columns) of each tap.
    """

    image: tuple[int, int, int]
    image_channels: int
    result: tuple[int, int]
    groups: int
    depth: int
    group_offset: int
    columns: int
    step: tuple[int, int]
    spread: tuple[int, int]
    taps: tuple[tuple[int, int], ...]
    phases: tuple[Phase, ...]


PARAMS = words(
    "images height width pixel groups depth group columns result_height result_width step_y step_x spread_y spread_x "
    "taps panels phases block blocks most"
)
PHASE = words("first_y first_x count_y count_x begin end")


def plan_conv_forward(
    spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target, epilogue_params: tuple[int, ...] = ()
) -> Plan:
    """Plan out = conv(x, w); operands "x" (n, h, w, C), "w" (O, I, KH, KW), then the epilogue's."""
    oh, ow = spec.out_size(h, w)
    if min(n, oh, ow) <= 0:
        return Plan([])
    if spec.planar:
        return planar.plan_forward(spec, n, h, w, threads, target, epilogue_params)
    if spec.depthwise:
        return depthwise.plan_forward(spec, n, h, w, threads, target, epilogue_params)
    if winograd.suits(spec, n, oh, ow, target):
        return winograd.plan_forward(spec, n, h, w, threads, target, epilogue_params)
    if unfolds(spec, target):
        return _plan_unfolded(spec, n, h, w, threads, target, epilogue_params)
    (ci, co), (kh, kw), (dy, dx) = spec.per_group, spec.kernel, spec.dilation
    top, left, bottom, right = spec.padding
    paired = pairs.supported(spec.dtype, target) and ci % 2 == 0 and not spec.planes
    tile = choose_tile(target, TYPES[COMPUTE[spec.dtype]], co, paired, stored=True)
    launches, workspaces = [], {}
    image, operand, dtype = (n, h, w), "x", spec.dtype
    pixel = spec.channels[0]
    if paired:
        # An image of pairs is one of f32 with half as many channels.
        dtype, pixel = "f32", pixel // 2
    runs = copies_image(ci, spec.groups, spec.kernel, spec.dilation)
    if runs or dtype != COMPUTE[dtype]:
        image, operand, dtype = (n, h + top + bottom, w + left + right), "w:padded", COMPUTE[dtype]
        stored = "f32" if paired else spec.dtype
        launches.append(pad_image(stored, "x", (n, h, w), pixel, spec.padding, threads, spec.planes))
        workspaces[operand] = n * image[1] * image[2] * pixel * tile.itemsize
        top = left = 0
    if runs:
        taps = [(y * dy - top, 0) for y in range(kh)]
        depth, places = kw * ci, [y * kw * ci + x * ci for y in range(kh) for x in range(kw)]
    else:
        taps = [(y * dy - top, x * dx - left) for y in range(kh) for x in range(kw)]
        depth, places = ci, [t * ci for t in range(spec.taps)]
    launch, workspaces["w:weights"] = pack_weights(
        spec.dtype, tile, groups=spec.groups, columns=co, **forward_slices(ci, spec.taps, paired), line=ci * spec.taps,
        group=co * ci * spec.taps, rows=ci * spec.taps, places=places, threads=threads,
    )  # fmt: skip
    launches.append(launch)
    walk = Walk(
        image,
        pixel,
        (oh, ow),
        spec.groups,
        depth // 2 if paired else depth,
        ci // 2 if paired else ci,
        co,
        spec.stride,
        (1, 1),
        tuple(taps),
        (Phase((0, 0), (oh, ow), (0, len(taps))),),
    )
    return _convolved(Plan(launches, workspaces), spec, walk, dtype, tile, operand, threads, epilogue_params)


def _plan_unfolded(
    spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target, epilogue_params: tuple[int, ...]
) -> Plan:
    """As ``plan_conv_forward``: on an image that has a row of taps as channels, in pairs."""
    co, high = spec.channels[1], spec.kernel[0]
    tile = choose_tile(target, TYPES["f32"], co, paired=True, stored=True)
    unfold, image, bytes = unfolded.unfold(spec, n, h, w, threads)
    weights, weight_bytes = unfolded.pack_weights(spec, tile, threads)
    pixel = unfolded.depth(spec) // 2
    taps = tuple((y * spec.dilation[0], 0) for y in range(high))
    size = spec.out_size(h, w)
    walk = Walk(
        image, pixel, size, 1, pixel, pixel, co, (spec.stride[0], 1), (1, 1), taps, (Phase((0, 0), size, (0, high)),)
    )
    plan = Plan([unfold, weights], {"w:unfolded": bytes, "w:weights": weight_bytes})
    return _convolved(plan, spec, walk, "f32", tile, "w:unfolded", threads, epilogue_params)


def _convolved(
    plan: Plan, spec: ConvSpec, walk: Walk, dtype: str, tile: Tile, operand: str, threads: int,
    epilogue_params: tuple[int, ...],
) -> Plan:  # fmt: skip
    """`plan`, which makes the operands, with the forward pass behind it."""
    plan.launches.append(convolve(walk, dtype, spec.tail, tile, operand, threads, epilogue_params, spec.statistics))
    if spec.statistics:
        p = dict(zip(PARAMS, plan.launches[-1].params))
        join = statistics.join(tile, p["blocks"], spec.groups, walk.columns, p["panels"], threads)
        plan.launches.append(join)
        plan.workspaces["w:parts"] = p["blocks"] * 3 * spec.groups * p["panels"] * tile.width * tile.itemsize
    return plan


def plan_conv_input_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """Plan dx from "dy" (n, oh, ow, O) and "w" (O, I, KH, KW) into "dx" (n, h, w, C) of the spec's `out_dtype`."""
    oh, ow = spec.out_size(h, w)
    if min(n, h, w) == 0:
        return Plan([])
    if spec.planar:
        return planar.plan_input_grad(spec, n, h, w, threads, target)
    if spec.depthwise:
        return depthwise.plan_input_grad(spec, n, h, w, threads, target)
    if winograd.suits(spec, n, h, w, target):
        return winograd.plan_input_grad(spec, n, h, w, threads, target)
    (ci, co), (kh, kw) = spec.per_group, spec.kernel
    paired = pairs.supported(spec.dtype, target) and co % 2 == 0
    tile = choose_tile(target, TYPES[COMPUTE[spec.dtype]], ci, paired, stored=True)
    vertical = phases(h, kh, spec.stride[0], spec.padding[0], spec.dilation[0])
    horizontal = phases(w, kw, spec.stride[1], spec.padding[1], spec.dilation[1])
    taps: list[tuple[int, int]] = []
    places = [0] * spec.taps
    walks = []
    for first_y, count_y, taps_y in vertical:
        for first_x, count_x, taps_x in horizontal:
            begin = len(taps)
            for y, move_y in taps_y:
                for x, move_x in taps_x:
                    places[y * kw + x] = len(taps) * co
                    taps.append((move_y, move_x))
            walks.append(Phase((first_y, first_x), (count_y, count_x), (begin, len(taps))))
    # What takes longest begins first, so that threads end together.
    walks.sort(key=lambda phase: phase.taps[0] - phase.taps[1])
    # Taps that meet no pixel share a place behind all others.
    unmet = sorted(
        set(range(spec.taps))
        - {y * kw + x for _, _, ys in vertical for y, _ in ys for _, _, xs in horizontal for x, _ in xs}
    )
    for t in unmet:
        places[t] = len(taps) * co
    if unmet:
        taps.append((0, 0))
    launch, size = pack_weights(
        spec.dtype, tile, groups=spec.groups, columns=ci, outer=co, slice=ci * spec.taps, line=spec.taps,
        length=spec.taps, group=co * ci * spec.taps, rows=co * len(taps), places=places, threads=threads,
    )  # fmt: skip
    pixel, depth = (spec.channels[1] // 2, co // 2) if paired else (spec.channels[1], co)
    walk = Walk(
        (n, oh, ow), pixel, (h, w), spec.groups, depth, depth, ci, (1, 1), spec.stride, tuple(taps), tuple(walks)
    )
    ((_, stored, value),) = plain(spec.out_dtype, COMPUTE[spec.dtype]).outputs
    tail = Epilogue((("dx", stored, value),))
    launches, workspaces, operand, dtype = [launch], {"w:weights": size}, "dy", "f32" if paired else spec.dtype
    if dtype != COMPUTE[dtype]:
        operand, dtype = "w:padded", COMPUTE[dtype]
        launches.append(pad_image(spec.dtype, "dy", (n, oh, ow), spec.channels[1], (0, 0, 0, 0), threads))
        workspaces[operand] = n * oh * ow * spec.channels[1] * tile.itemsize
    launches.append(convolve(walk, dtype, tail, tile, operand, threads, ()))
    return Plan(launches, workspaces)


def convolve(
    walk: Walk, dtype: str, tail: Epilogue, tile: Tile, operand: str, threads: int, epilogue_params: tuple[int, ...],
    sums: bool = False,
) -> Launch:  # fmt: skip
    """The launch that computes `walk` from `operand` and the packed weights."""
    pixels = max(walk.image[0] * phase.count[0] * phase.count[1] for phase in walk.phases)
    products = pixels * walk.groups * walk.columns * walk.depth * len(walk.taps)
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    block = block_pixels(walk, tile, pixels, statistics.blocks_wanted(sums, threads))
    most = max(phase.taps[1] - phase.taps[0] for phase in walk.phases)
    params = (
        *walk.image, walk.image_channels, walk.groups, walk.depth, walk.group_offset, walk.columns, *walk.result,
        *walk.step, *walk.spread, len(walk.taps),
        -(-walk.columns // tile.width), len(walk.phases), block, -(-pixels // block), most,
    )  # fmt: skip
    flat = [x for phase in walk.phases for x in (*phase.first, *phase.count, *phase.taps)]
    moves = [x for tap in walk.taps for x in tap]
    items = len(walk.phases) * walk.groups * -(-pixels // block)
    tasks = tasks_for_products(items, products, threads, each=16 * len(walk.phases))
    # Tables of variable length come last, so that everything before them has a fixed place.
    everything = (*params, len(epilogue_params), *epilogue_params, *flat, *moves)
    made = source(dtype, tail, tile, len(epilogue_params), sums)
    return Launch(made, (operand, "w:weights", *tail.names, *["w:parts"] * sums), everything, tasks)


def block_pixels(walk: Walk, tile: Tile, pixels: int, wanted: int) -> int:
    """Pixels of a block, if there are to be at least so many blocks."""
    per_pixel = walk.image_channels * tile.itemsize * walk.step[0] * walk.step[1]
    tiles = max(4, min(16, BLOCK_BYTES // (per_pixel * tile.height)))
    tiles = max(1, min(tiles, pixels * walk.groups * len(walk.phases) // (tile.height * wanted)))
    return tiles * tile.height


@lru_cache(maxsize=256)
def source(dtype: str, tail: Epilogue, tile: Tile, extra: int, sums: bool = False) -> KernelSource:
    key = f"conv {dtype} {tile} {extra} {tail.key()}{' statistics' if sums else ''}"
    return KernelSource(
        "conv", key, lambda target: emit(dtype, tail, tile, extra, sums, target), scratch=lambda p: layout(tile, p)[-1]
    )


def layout(tile: Tile, params: tuple[int, ...]) -> tuple[int, ...]:
    """Byte offsets in scratch, after the tile: the pixels' numbers, blocks per tile, coordinates, zeros, table, finished rows;
    the end."""
    p = dict(zip(PARAMS, params))
    tiles = p["block"] // tile.height
    numbers = tile.bytes
    counts = numbers + p["block"] * 8
    corners = counts + tiles * 8
    zeros = corners + entry_words(tile) * 16
    table = zeros + (p["depth"] * tile.itemsize + 63) // 64 * 64
    finished = table + (tiles * p["most"] * entry_words(tile) * 8 + 63) // 64 * 64
    rows = tile.height * p["panels"] * tile.width * tile.itemsize
    return numbers, counts, corners, zeros, table, finished, finished + (rows if in_rows(tile, p) else 0)


def in_rows(tile: Tile, p: dict[str, int]) -> bool:
    """Whether tiles are finished a row at a time, all panels of weights in turn: these stay in L2."""
    return p["panels"] * p["taps"] * p["depth"] * tile.width * tile.itemsize <= ROWS_BYTES


def emit(dtype: str, tail: Epilogue, tile: Tile, extra: int, sums: bool, target: Target) -> str:
    module = Module(target)
    memory, to, height, words = MEMORY[dtype], tile.type, tile.height, entry_words(tile)
    emit_rows_tiles(module, tile)
    narrow = narrowed(tail)
    if narrow:
        emit_narrow_tile(module, tile, narrow, sums)
    at_once = bool(narrow) or stores_only(tail, to)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    phase_table = c.gep("%params", len(PARAMS) + 1 + extra, "i64")
    move_table = c.gep(phase_table, c.mul(p["phases"], len(PHASE)), "i64")
    image, weights = c.buffer(0), c.buffer(1)
    rows_padded = words - 1
    epilogue = Emitter(c, tail, tile.lanes, first_buffer=2, first_param=len(PARAMS) + 1)
    found = statistics.Block(c, tile) if sums else None
    parts = c.buffer(2 + len(tail.names)) if sums else ""

    # The same layout as `layout`, with sizes in registers.
    tiles_of_block = c.div(p["block"], height)
    numbers = c.gep("%scratch", tile.bytes, "i8")
    counts = c.gep(numbers, p["block"], "i64")
    corners = c.gep(counts, tiles_of_block, "i64")
    zeros = c.gep(corners, words * 16, "i8")
    table = c.gep(zeros, c.round_up(c.mul(p["depth"], tile.itemsize), 64), "i8")
    per_tile = c.mul(p["most"], words)
    finished = c.gep(table, c.round_up(c.mul(c.mul(tiles_of_block, per_tile), 8), 64), "i8")
    weight_bytes = c.mul(c.mul(p["panels"], p["taps"]), c.mul(p["depth"], tile.width * tile.itemsize))
    channels = c.mul(p["columns"], p["groups"])
    ahead = c.mul(c.mul(p["pixel"], p["step_x"]), height)
    c.loop(0, p["depth"], lambda i: c.store(to, "0.0", c.gep(zeros, i, to)))

    def item(i: str) -> None:
        blocks = p["blocks"]
        group, rest = c.div(i, c.mul(p["phases"], blocks)), c.rem(i, c.mul(p["phases"], blocks))
        line = c.gep(phase_table, c.mul(c.div(rest, blocks), len(PHASE)), "i64")
        ph = {name: c.load("i64", c.gep(line, j, "i64")) for j, name in enumerate(PHASE)}
        first = c.mul(c.rem(rest, blocks), p["block"])
        pixels = c.mul(p["images"], c.mul(ph["count_y"], ph["count_x"]))
        count = c.max(c.min(p["block"], c.sub(pixels, first)), 0)
        c.when(c.less(0, count), lambda: locate(ph, first, count, c.gep(image, c.mul(group, p["group"]), memory)))
        if at_once:
            c.loop(0, p["panels"], lambda panel: sweep(group, panel, count, c.rem(rest, blocks)))
            return
        c.when(
            c.less(weight_bytes, ROWS_BYTES + 1),
            lambda: c.loop(0, count, lambda t: whole_rows(group, t, count), step=height),
            lambda: c.loop(0, p["panels"], lambda panel: sweep(group, panel, count, c.rem(rest, blocks))),
        )

    def place_of(group: Operand, number: Operand, col: Operand) -> Place:
        pixel, channel = c.load("i64", c.gep(numbers, number, "i64")), c.add(c.mul(group, p["columns"]), col)
        return Place(pixel, channel, 0, c.add(c.mul(pixel, channels), channel))

    def whole_rows(group: Operand, t: str, count: Operand) -> None:
        """A tile's rows with all their columns, so that the epilogue goes through memory in order."""
        left = c.min(c.sub(count, t), height)
        number = c.div(t, height)
        entry, taps = c.gep(table, c.mul(number, per_tile), "ptr"), c.load("i64", c.gep(counts, number, "i64"))
        stride = c.mul(p["panels"], tile.width)

        def panel(i: str) -> None:
            b = c.gep(weights, c.mul(first_row(group, i), tile.width), to)
            operands = f"ptr {entry}, i64 {taps}, ptr {b}, i64 {tile.width}, i64 {p['depth']}, i64 {ahead}"
            col = c.mul(i, tile.width)
            c.loop(0, left, lambda r: epilogue.expect(place_of(group, c.add(t, r), col), tile.width, level=2))
            call_tile(c, tile, "rows", left, f"{operands}, ptr {c.gep(finished, col, to)}, i64 {stride}")

        def row(r: str) -> None:
            total = c.gep(finished, c.mul(r, stride), to)
            epilogue.columns(tile, total, place_of(group, c.add(t, r), 0), p["columns"])

        c.loop(0, p["panels"], panel)
        c.loop(0, left, row)

    def first_row(group: Operand, panel: Operand) -> Operand:
        """Of a panel of weights."""
        return c.mul(c.mul(c.add(c.mul(group, p["panels"]), panel), p["taps"]), p["depth"])

    def sweep(group: Operand, panel: Operand, count: Operand, number: Operand) -> None:
        """All tiles of block `number` over one panel of weights."""
        b = c.gep(weights, c.mul(first_row(group, panel), tile.width), to)
        col = c.mul(panel, tile.width)
        channel = c.add(c.mul(group, p["columns"]), col)

        def tiles(t: str) -> None:
            rows = c.min(c.sub(count, t), height)
            tile_number = c.div(t, height)
            entry, taps = (
                c.gep(table, c.mul(tile_number, per_tile), "ptr"),
                c.load("i64", c.gep(counts, tile_number, "i64")),
            )
            operands = f"ptr {entry}, i64 {taps}, ptr {b}, i64 {tile.width}, i64 {p['depth']}, i64 {ahead}"

            def direct() -> None:
                place = c.add(c.mul(c.load("i64", c.gep(numbers, t, "i64")), channels), channel)
                out = c.gep(epilogue.outputs[0], place, to)
                c.emit(f"call void @rows{height}({operands}, ptr {out}, i64 {channels})")

            def rounded() -> None:
                out = c.gep(epilogue.outputs[0], channel, MEMORY[tail.outputs[0][1]])
                more = f"ptr {found.memory}, i64 {t}" if found else "ptr null, i64 0"
                more = f"ptr {c.gep(numbers, t, 'i64')}, ptr %scratch, {more}"
                c.emit(f"call void @narrow({operands}, ptr {out}, i64 {channels}, {more})")

            def by_rows() -> None:
                c.loop(0, rows, lambda r: epilogue.expect(place_of(group, c.add(t, r), col), tile.width))
                call_tile(c, tile, "rows", rows, f"{operands}, ptr %scratch, i64 {tile.width}")
                if narrow and found:
                    round_rows(c, tile, narrow, "%scratch", rows)
                    found.add("%scratch", tile.width, rows, t)
                c.loop(0, rows, row)

            def row(r: str) -> None:
                total = c.gep("%scratch", c.mul(r, tile.width), to)
                epilogue.row(tile, total, place_of(group, c.add(t, r), col), c.mul(c.add(group, 1), p["columns"]))

            if at_once:
                # Whole, and unless it is rounded with its pixels in order: the tile goes straight to its place.
                whole = c.value(
                    f"and i1 {c.less(height - 1, rows)}, {c.less(tile.width - 1, c.sub(p['columns'], col))}"
                )
                if not narrow:
                    whole = c.value(f"and i1 {whole}, {c.less(p['spread_x'], 2)}")
                    whole = c.value(f"and i1 {whole}, {c.less(p['spread_y'], 2)}")
                c.when(whole, rounded if narrow else direct, by_rows)
                if found and not narrow:
                    out = c.gep(
                        epilogue.outputs[0],
                        c.add(c.mul(c.load("i64", c.gep(numbers, t, "i64")), channels), channel),
                        to,
                    )
                    found.add(c.select(whole, out, "%scratch", "ptr"), c.select(whole, channels, tile.width), rows, t)
            else:
                by_rows()

        c.loop(0, count, tiles, step=height)
        if found:
            row = c.mul(c.mul(p["groups"], p["panels"]), tile.width)
            column = c.mul(c.add(c.mul(group, p["panels"]), panel), tile.width)
            means = c.gep(parts, c.add(c.mul(c.mul(number, 3), row), column), to)
            found.put(means, row, count)

    def locate(ph: dict[str, str], first: Operand, count: Operand, base: str) -> None:
        """Fill the table: for every tile, the taps that meet the image at all, and where each row reads."""
        x, rest = c.rem(first, ph["count_x"]), c.div(first, ph["count_x"])
        y, n = c.rem(rest, ph["count_y"]), c.div(rest, ph["count_y"])
        corner_x, corner_at = c.gep(corners, rows_padded, "i32"), c.gep(corners, rows_padded, "i64")
        i32s, i64s = f"<{rows_padded} x i32>", f"<{rows_padded} x i64>"
        last = c.sub(count, 1)

        def one_tile(t: str, n: str, y: str, x: str) -> list[str]:
            def pixel(r: str, n: str, y: str, x: str) -> list[str]:
                out_y = c.add(ph["first_y"], c.mul(y, p["spread_y"]))
                out_x = c.add(ph["first_x"], c.mul(x, p["spread_x"]))
                flat = c.add(c.mul(c.add(c.mul(n, p["result_height"]), out_y), p["result_width"]), out_x)
                in_y, in_x = c.mul(y, p["step_y"]), c.mul(x, p["step_x"])
                at = c.mul(c.add(c.mul(c.add(c.mul(n, p["height"]), in_y), p["width"]), in_x), p["pixel"])
                i = c.add(t, r)
                c.store("i64", flat, c.gep(numbers, i, "i64"))
                c.store("i32", c.value(f"trunc i64 {in_y} to i32"), c.gep(corners, r, "i32"))
                c.store("i32", c.value(f"trunc i64 {in_x} to i32"), c.gep(corner_x, r, "i32"))
                c.store("i64", at, c.gep(corner_at, r, "i64"))
                # On to the next pixel; rows past the last one repeat it.
                more = c.less(i, last)
                next_x = c.add(x, 1)
                row_ends = c.less(next_x, ph["count_x"])
                next_y = c.select(row_ends, y, c.add(y, 1))
                image_ends = c.less(next_y, ph["count_y"])
                following = (
                    c.select(image_ends, n, c.add(n, 1)), c.select(image_ends, next_y, 0), c.select(row_ends, next_x, 0),
                )  # fmt: skip
                return [c.select(more, a, b) for a, b in zip(following, (n, y, x), strict=True)]

            coordinates = c.loop(0, height, pixel, carried=[("i64", n), ("i64", y), ("i64", x)])
            ys, xs, at = c.load(i32s, corners, 4), c.load(i32s, corner_x, 4), c.load(i64s, corner_at, 8)
            start = c.gep(table, c.mul(c.div(t, height), per_tile), "ptr")

            def vector(scalar: Operand, bits: int = 32) -> str:
                if bits == 32:
                    scalar = c.value(f"trunc i64 {scalar} to i32")
                return c.splat(scalar, f"i{bits}", rows_padded)

            def tap(j: str, entry: str) -> list[str]:
                move = c.gep(move_table, c.mul(j, 2), "i64")
                move_y, move_x = c.load("i64", move), c.load("i64", c.gep(move, 1, "i64"))
                inside = []
                for coordinate, by, extent in ((ys, move_y, p["height"]), (xs, move_x, p["width"])):
                    moved = c.value(f"add {i32s} {coordinate}, {vector(by)}")
                    inside.append(c.value(f"icmp ult {i32s} {moved}, {vector(extent)}"))
                both = c.value(f"and <{rows_padded} x i1> {inside[0]}, {inside[1]}")
                offset = c.mul(c.add(c.mul(move_y, p["width"]), move_x), p["pixel"])
                moved = c.value(f"add {i64s} {at}, {vector(offset, 64)}")
                bytes = c.value(f"shl {i64s} {moved}, {vector({2: 1, 4: 2, 8: 3}[tile.itemsize], 64)}")
                here = c.value(f"add {i64s} {bytes}, {vector(c.value(f'ptrtoint ptr {base} to i64'), 64)}")
                nowhere = vector(c.value(f"ptrtoint ptr {zeros} to i64"), 64)
                chosen = c.value(f"select <{rows_padded} x i1> {both}, {i64s} {here}, {i64s} {nowhere}")
                c.store("i64", c.mul(c.mul(j, p["depth"]), tile.width), entry)
                c.store(i64s, chosen, c.gep(entry, 1, "i64"), 8)
                bits = c.value(f"bitcast <{rows_padded} x i1> {both} to i{rows_padded}")
                met = c.value(f"icmp ne i{rows_padded} {bits}, 0")
                # An entry nobody meets is overwritten by the next.
                return [c.select(met, c.gep(entry, words, "i64"), entry, "ptr")]

            (end,) = c.loop(ph["begin"], ph["end"], tap, carried=[("ptr", start)])
            used = c.sub(c.value(f"ptrtoint ptr {end} to i64"), c.value(f"ptrtoint ptr {start} to i64"))
            c.store("i64", c.div(used, words * 8), c.gep(counts, c.div(t, height), "i64"))
            return coordinates

        c.loop(0, count, one_tile, step=height, carried=[("i64", n), ("i64", y), ("i64", x)])

    total = c.mul(p["groups"], c.mul(p["phases"], p["blocks"]))
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), item)
    c.finish()
    return module.text()


# -- images of few channels -------------------------------------------------------------------------------------------


def copies_image(channels: int, groups: int, kernel: tuple[int, int], dilation: tuple[int, int]) -> bool:
    """Whether a convolution of that many input channels, and its weight gradient, read a copy of the image."""
    return channels < FEW_CHANNELS and groups == 1 and dilation[1] == 1 and kernel[1] > 1


def unfolds(spec: ConvSpec, target: Target) -> bool:
    """Whether that copy is unfolded."""
    return copies_image(spec.channels[0], spec.groups, spec.kernel, spec.dilation) and unfolded.suits(spec, target)


def pad_image(
    dtype: str, operand: str, image: tuple[int, int, int], c: int, padding: tuple[int, int, int, int], threads: int,
    planes: bool = False,
) -> Launch:  # fmt: skip
    """Copy `operand` with its padding around it, widened to the compute type, to workspace "w:padded".

    planes : the operand is (N, C, H, W), and the copy channels-last all the same.
    """
    (n, h, w), (top, left, bottom, right) = image, padding
    params = (n, h, top, h + top + bottom, w * c, left * c, (w + left + right) * c, c)
    rows = n * (h + top + bottom)
    threads = useful_threads(threads, rows * params[6], ELEMENTS_PER_THREAD)
    tasks = tasks_for_elements(rows, rows * params[6], threads)
    return Launch(pad_source(dtype, planes), (operand, "w:padded"), params, tasks)


@lru_cache(maxsize=8)
def pad_source(dtype: str, planes: bool) -> KernelSource:
    key = f"conv pad {dtype}{' planes' if planes else ''}"
    return KernelSource("conv.pad", key, lambda target: emit_pad(dtype, planes, target))


def emit_pad(dtype: str, planes: bool, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    n, h, top, height, line, left, padded, channels = (c.param(i) for i in range(8))
    image, out = c.buffer(0), c.buffer(1)
    compute = COMPUTE[dtype]
    to, lanes = MEMORY[compute], target.lanes(TYPES[compute])
    width = c.div(line, channels)

    def row(i: str) -> None:
        y = c.sub(c.rem(i, height), top)
        here = c.gep(out, c.mul(i, padded), to)

        def zero(begin: Operand, end: Operand) -> None:
            c.loop(begin, end, lambda j: c.store(to, "0.0", c.gep(here, j, to)))

        def inside() -> None:
            copy_planes() if planes else copy_line()
            zero(0, left)
            zero(c.add(left, line), padded)

        def copy_line() -> None:
            source = c.gep(image, c.mul(c.add(c.mul(c.div(i, height), h), y), line), MEMORY[dtype])
            copy_row(c, dtype, to, lanes, source, line, c.gep(here, left, to), exact=True)

        def copy_planes() -> None:
            def plane(channel: str) -> None:
                number = c.add(c.mul(c.div(i, height), channels), channel)
                source = c.gep(image, c.mul(c.add(c.mul(number, h), y), width), MEMORY[dtype])
                first = c.gep(here, c.add(left, channel), to)

                def pixel(x: str) -> None:
                    value = load_as(c, dtype, to, 1, c.gep(source, x, MEMORY[dtype]))
                    c.store(to, value, c.gep(first, c.mul(x, channels), to))

                c.loop(0, width, pixel)

            c.loop(0, channels, plane)

        c.when(c.below(y, h), inside, lambda: zero(0, padded))

    total = c.mul(n, height)
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), row)
    c.finish()
    return module.text()
