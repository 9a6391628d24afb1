"""The gradient of a convolution with respect to its weights.

For every tap, dw[c, o] is a product over pixels: A is the image (its channels broadcast, read in place with a stride per
pixel), B the output's gradient (packed, a panel of outputs at a time).  A *run* is the part of one image row that a tap
meets, so edges only shorten runs and nothing is padded.  A task takes some panels and some image rows, block by block;
its sums stay in its own part of a workspace, and a second launch adds the parts and writes (O, I, KH, KW).

Images of few channels are copied with their padding around them first; a row of taps is then one long row of A.

Where the processor multiplies pairs of bf16, a pair is two neighbouring pixels of a run.  Runs begin at even and at odd
pixels, so a task pairs every pixel of its block with the next one, in the image and in the output's gradient alike.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from lezero.codegen.contraction import (
    depthwise,
    pairs,
    planar_weight_grad,
    pointwise_weight_grad,
    winograd,
    winograd_weight_grad,
)
from lezero.codegen.contraction.conv import FEW_CHANNELS, pad_image, unfolds
from lezero.codegen.contraction.microkernel import Tile, call_tile, choose_tile, emit_panel_tiles, heights
from lezero.codegen.contraction.pack import copy_panel
from lezero.codegen.contraction.spec import (
    COMPUTE,
    PRODUCTS_PER_THREAD,
    ConvSpec,
    parts_of_panels,
    useful_threads,
)
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.contraction.weight_sums import sum_parts
from lezero.codegen.launch import MOST_PRODUCTS, KernelSource, Launch, Plan, divided
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES

PARAMS = words(
    "images height width pixel group_in rows_in out_height out_width out_pixel group_out columns step_y step_x "
    "taps panels groups pixel_parts panel_parts block last shift top bottom pair_rows"
)
"""rows_in: rows of A per tap; last, shift: the last tile of rows starts at `last` but reads (and stores) from `last` - `shift`.
top, bottom: the first and the last row a tap meets, relative to an output's first; pair_rows: how
many rows of the image a block meets at most."""

BLOCK_BYTES = 384 << 10


def plan_conv_weight_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """Plan dw (O, I, KH, KW) of the spec's `out_dtype` from "x" (n, h, w, C) and "dy" (n, oh, ow, O)."""
    if spec.planar:
        return planar_weight_grad.plan_weight_grad(spec, n, h, w, threads, target)
    if spec.depthwise:
        return depthwise.plan_weight_grad(spec, n, h, w, threads, target)
    if winograd.suits(spec, n, *spec.out_size(h, w), target):
        return winograd_weight_grad.plan_weight_grad(spec, n, h, w, threads, target)
    if spec.channels[0] >= FEW_CHANNELS and pointwise_weight_grad.suits(spec, target):
        return pointwise_weight_grad.plan_weight_grad(spec, n, h, w, threads, target)
    if unfolds(spec, target) and pointwise_weight_grad.suits_unfolded(spec):
        return pointwise_weight_grad.plan_unfolded(spec, n, h, w, threads, target)
    (ci, co), (kh, kw), (dilate_y, dilate_x) = spec.per_group, spec.kernel, spec.dilation
    oh, ow = spec.out_size(h, w)
    paired = pairs.supported(spec.dtype, target) and ci >= FEW_CHANNELS and spec.groups == 1
    tile = choose_tile(target, TYPES[COMPUTE[spec.dtype]], co, paired)
    top, left, *_ = spec.padding
    launches, workspaces = [], {}
    image, operand, dtype = (n, h, w), "x", spec.dtype
    in_place = ci >= FEW_CHANNELS
    padding = (0, 0, 0, 0) if in_place else spec.padding
    if not in_place or not (paired or dtype == COMPUTE[dtype]):
        image, operand = (n, h + padding[0] + padding[2], w + padding[1] + padding[3]), "w:padded"
        launches.append(pad_image(dtype, "x", (n, h, w), spec.channels[0], padding, threads, spec.planes))
        # The last tile of rows may read past the last pixel.
        workspaces[operand] = (n * image[1] * image[2] * spec.channels[0] + tile.height) * tile.itemsize
        top, left = top - padding[0], left - padding[1]
    runs = not in_place and spec.groups == 1 and dilate_x == 1
    taps = [(y * dilate_y - top, x * dilate_x - left) for y in range(kh) for x in ([0] if runs else range(kw))]
    rows = kw * ci if runs else ci
    result = (oh, ow)
    if in_place and spec.taps == 1 and spec.stride == (1, 1) and not any(spec.padding):
        # Pixels in a row are all alike: longer rows make longer runs.
        image, result = _fold(n, h, w)
    last = (rows - 1) // tile.height * tile.height
    covered = min(x for x in heights(tile) if x >= rows - last)
    shift = max(0, last + covered - rows) if in_place else 0
    padded_rows = last + tile.height
    panels = -(-co // tile.width)
    products = n * oh * ow * ci * spec.channels[1] * spec.taps
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    part = spec.groups * panels * len(taps) * padded_rows * tile.width
    pixels = image[0] * image[1] * image[2] * spec.channels[0]
    rows_of_image = image[0] * result[0]
    pixel_parts = _pixel_parts(rows_of_image, pixels, part)
    least = divided(panels, 1, products, MOST_PRODUCTS * spec.groups * pixel_parts)
    # Parts of the pixels take memory: together no more than the image.
    most_parts = max(pixel_parts, min(rows_of_image, pixels // part))
    pixel_parts = divided(most_parts, pixel_parts, products, MOST_PRODUCTS * spec.groups * least)
    panel_parts = max(least, parts_of_panels(panels, spec.groups * pixel_parts, threads))
    # At least one image row of a block; the image and the panel of B share L2.
    row_bytes = result[1] * (spec.channels[0] * spec.stride[0] * spec.stride[1] + tile.width) * tile.itemsize
    block = max(1, min(BLOCK_BYTES // max(1, row_bytes), -(-rows_of_image // pixel_parts)))
    first_row, last_row = taps[0][0], taps[-1][0]
    params = (
        *image, spec.channels[0], ci, rows, *result, spec.channels[1], co, co, *spec.stride,
        len(taps), panels, spec.groups, pixel_parts, panel_parts, block, last, shift, first_row, last_row,
        _rows_met(image[1], result[0], spec.stride[0], last_row - first_row, block), *(x for tap in taps for x in tap),
    )  # fmt: skip
    workspaces["w:parts"] = pixel_parts * part * tile.itemsize
    tasks = spec.groups * pixel_parts * panel_parts
    launches.append(Launch(source(dtype, tile), (operand, "dy", "w:parts"), params, tasks))

    places = [
        (y * padded_rows, x * ci) if runs else ((y * kw + x) * padded_rows, 0) for y in range(kh) for x in range(kw)
    ]
    panel_rows = len(taps) * padded_rows
    add = sum_parts(
        spec.out_dtype, tile, spec.groups, co, ci, panel_rows, pixel_parts, part, (last, shift), places, threads
    )
    launches.append(add)
    return Plan(launches, workspaces)


def _fold(n: int, h: int, w: int) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """The pixels of a pointwise convolution as rows of a few hundred, of which parts take equally many where that is possible."""
    total = n * h * w
    widths = [d for d in range(1, min(total, 512) + 1) if total % d == 0]
    even = ([d for d in widths if d >= 128 and total // d % parts == 0] for parts in (16, 8, 4, 2))
    width = max(next(filter(None, even), widths))
    if width < w:
        width = w * gcd(n * h, max(1, 512 // w))
    return (1, total // width, width), (total // width, width)


def _rows_met(height: int, out_height: int, step: int, reach: int, block: int) -> int:
    """How many rows of the image `block` rows of the output meet at most, which may belong to several images."""
    borders = (block + out_height - 2) // out_height
    return (block - 1) * step + reach + 1 + max(0, borders * (height - out_height * step))


def _pixel_parts(rows: int, image: int, part: int) -> int:
    """Into how many parts to divide the image's `rows`, from the sizes alone, so that the bits do not depend on the threads.

    A part of the pixels has a sum of its own (`part` elements) for the second launch to read; parts of the panels, which are
    the alternative, read the whole image (`image` elements) each.
    """
    for parts in (16, 8):
        if 128 * parts * part <= image:
            return min(parts, rows)
    return min(4, rows) if 3 * image > 8 * part else 1


@lru_cache(maxsize=64)
def source(dtype: str, tile: Tile) -> KernelSource:
    key = f"conv weight gradient {dtype} {tile}"
    return KernelSource("conv.dw", key, lambda target: emit(dtype, tile, target), scratch=lambda p: layout(tile, p)[-1])


def layout(tile: Tile, params: tuple[int, ...]) -> tuple[int, ...]:
    """Byte offsets in scratch of the runs (the packed panel of B comes first) and of the paired image, and the end."""
    p = dict(zip(PARAMS, params))
    runs = p["block"] * p["out_width"] * tile.width * tile.itemsize
    image = runs + p["taps"] * (p["block"] + 1) * 24
    paired = (p["pair_rows"] * p["width"] * p["pixel"] + tile.height) * tile.itemsize if tile.pairs else 0
    return runs, image, image + paired


def emit(dtype: str, tile: Tile, target: Target) -> str:
    module = Module(target)
    emit_panel_tiles(module, tile)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    moves = c.gep("%params", len(PARAMS), "i64")
    image, dy, parts = c.buffer(0), c.buffer(1), c.buffer(2)
    memory, to, height = MEMORY[dtype], tile.type, tile.height
    # Runs of the block: per tap a count, then (A, B, length) each.
    runs = c.gep("%scratch", c.mul(c.mul(p["block"], p["out_width"]), tile.width), to)
    per_tap = c.mul(c.add(p["block"], 1), 3)
    paired_image = c.gep(runs, c.mul(p["taps"], per_tap), "i64")

    pixel_part = c.rem("%task", p["pixel_parts"])
    rest = c.div("%task", p["pixel_parts"])
    panel_part, group = c.rem(rest, p["panel_parts"]), c.div(rest, p["panel_parts"])
    all_rows = c.mul(p["images"], p["out_height"])
    first_row = c.div(c.mul(all_rows, pixel_part), p["pixel_parts"])
    end_row = c.div(c.mul(all_rows, c.add(pixel_part, 1)), p["pixel_parts"])
    first_panel = c.div(c.mul(p["panels"], panel_part), p["panel_parts"])
    end_panel = c.div(c.mul(p["panels"], c.add(panel_part, 1)), p["panel_parts"])
    tap_size = c.mul(c.add(p["last"], height), tile.width)
    panel_size = c.mul(tap_size, p["taps"])
    panels_before = c.mul(c.add(c.mul(pixel_part, p["groups"]), group), p["panels"])
    part = c.gep(parts, c.mul(panels_before, panel_size), to)
    vector = f"<{tile.lanes} x {to}>"

    def clear(i: str) -> None:
        c.store(vector, "zeroinitializer", c.gep(part, i, to), align=tile.itemsize)

    c.loop(c.mul(first_panel, panel_size), c.mul(end_panel, panel_size), clear, step=tile.lanes)
    image_group = c.gep(image, c.mul(group, p["group_in"]), to)
    dy_group = c.gep(dy, c.mul(group, p["group_out"]), memory)

    def block(first: str) -> None:
        count = c.min(p["block"], c.sub(end_row, first))
        top = pair_image(first, count) if tile.pairs else 0
        c.loop(0, p["taps"], lambda t: find_runs(t, first, count, top))
        start = c.gep(dy_group, c.mul(c.mul(first, p["out_width"]), p["out_pixel"]), memory)

        def panel(i: str) -> None:
            col = c.mul(i, tile.width)
            left, pixels = c.sub(p["columns"], col), c.mul(count, p["out_width"])
            b = c.gep(start, col, memory)
            operands = (c, dtype, to, tile.lanes, tile.vectors, b, p["out_pixel"], pixels, left, "%scratch")
            if tile.pairs:
                pairs.copy_panel(*operands, hop=1)
            else:
                copy_panel(*operands)
            out = c.gep(part, c.mul(i, panel_size), to)
            # While this panel is worked on, the next one is fetched, and with the last one the image's next rows.
            more = c.less(c.add(i, 1), end_panel)
            next_start = c.gep(start, c.mul(first_panel, tile.width), memory)
            next_start = c.gep(next_start, c.mul(pixels, p["out_pixel"]), memory)
            following = c.select(more, c.gep(b, tile.width, memory), next_start, "ptr")
            # Pairs are no image, of which the next rows could be fetched.
            rows = 0 if tile.pairs else c.mul(count, p["step_y"])
            ahead = c.select(more, 0, c.mul(c.mul(rows, p["width"]), p["pixel"]))

            def tap(t: str) -> None:
                here = c.gep(runs, c.mul(t, per_tap), "i64")
                number = c.load("i64", here)

                def tiles(r: str) -> None:
                    left = c.min(c.sub(p["rows_in"], r), height)
                    shift = c.select(c.less(r, p["last"]), 0, p["shift"])
                    to_here = c.gep(out, c.add(c.mul(t, tap_size), c.mul(r, tile.width)), to)
                    entries = 2 if tile.pairs else 1
                    stride, step = c.mul(c.mul(p["pixel"], p["step_x"]), entries), c.mul(entries, tile.width)
                    list_ = c.gep(here, 3, "i64")
                    # Tiles after each other fetch a line of each of a step's pixels.
                    turn, pixel = c.add(c.div(r, height), t), c.mul(p["out_pixel"], TYPES[dtype])
                    line = c.mul(c.div(turn, entries), 64)
                    fetched = c.less(line, tile.width * TYPES[dtype])
                    next_line = c.gep(following, c.add(c.mul(c.rem(turn, entries), pixel), line), "i8")
                    next_line = c.select(fetched, next_line, to_here, "ptr")
                    next_stride = c.select(fetched, c.mul(pixel, entries), 0)
                    operands = f"ptr {list_}, i64 {number}, i64 {c.sub(r, shift)}, i64 {stride}, i64 {step}"
                    arguments = f"{operands}, i64 {ahead}, ptr {next_line}, i64 {next_stride}, ptr {to_here}"
                    call_tile(c, tile, "panel", left, arguments)

                c.when(c.less(0, number), lambda: c.loop(0, p["rows_in"], tiles, step=height))

            c.loop(0, p["taps"], tap)

        c.loop(first_panel, end_panel, panel)

    def pair_image(first: Operand, count: Operand) -> Operand:
        """Pair what `count` rows of the output from `first` on meet of the image; give the first row of that."""

        def meets(line: Operand, move: Operand) -> Operand:
            n, y = c.div(line, p["out_height"]), c.rem(line, p["out_height"])
            row = c.add(c.add(c.mul(n, p["height"]), c.mul(y, p["step_y"])), move)
            return c.min(c.max(row, 0), c.mul(p["images"], p["height"]))

        top, end = meets(first, p["top"]), meets(c.sub(c.add(first, count), 1), c.add(p["bottom"], 1))
        total = c.mul(c.mul(p["images"], p["height"]), p["width"])
        pixels = (c.mul(top, p["width"]), c.mul(end, p["width"]), total, p["step_x"])
        pairs.join_pixels(c, tile.lanes, image, p["pixel"], *pixels, paired_image)
        return top

    def find_runs(t: Operand, first: Operand, count: Operand, top: Operand) -> None:
        """List what tap `t` meets in `count` rows from row `first` on; of the image, pairs are there from row `top` on."""
        move = c.gep(moves, c.mul(t, 2), "i64")
        move_y, move_x = c.load("i64", move), c.load("i64", c.gep(move, 1, "i64"))
        # Outputs x with 0 <= x * step + move < width.
        begin = c.div(c.add(c.max(c.sub(0, move_x), 0), c.sub(p["step_x"], 1)), p["step_x"])
        end = c.div(c.max(c.add(c.sub(p["width"], move_x), c.sub(p["step_x"], 1)), 0), p["step_x"])
        length = c.max(c.sub(c.min(end, p["out_width"]), begin), 0)
        at_x = c.add(c.mul(begin, p["step_x"]), move_x)
        here = c.gep(runs, c.mul(t, per_tap), "i64")

        def row(i: str, number: str) -> list[Operand]:
            line = c.add(first, i)
            n, y = c.div(line, p["out_height"]), c.rem(line, p["out_height"])
            at_y = c.add(c.mul(y, p["step_y"]), move_y)
            pixel = c.add(c.mul(c.add(c.mul(n, p["height"]), at_y), p["width"]), at_x)
            entry = c.gep(here, c.mul(c.add(number, 1), 3), "i64")
            column = c.add(c.mul(i, p["out_width"]), begin)
            if tile.pairs:
                pixel = c.sub(pixel, c.mul(top, p["width"]))
            from_image = paired_image if tile.pairs else image_group
            c.store("ptr", c.gep(from_image, c.mul(pixel, p["pixel"]), to), entry)
            b = c.gep("%scratch", c.mul(column, tile.width), to)
            c.store("ptr", b, c.gep(entry, 1, "i64"))
            c.store("i64", length, c.gep(entry, 2, "i64"))
            inside = c.value(f"and i1 {c.below(at_y, p['height'])}, {c.less(0, length)}")
            return [c.add(number, c.value(f"zext i1 {inside} to i64"))]

        # A row outside is overwritten by the next; there is room for one more than there are rows.
        c.store("i64", c.loop(0, count, row, carried=[("i64", 0)])[0], here)

    c.loop(first_row, end_row, block, step=p["block"])
    c.finish()
    return module.text()
