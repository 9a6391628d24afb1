"""The gradient of a 3x3 convolution with respect to its weights by minimal filtering, F(3x3, 2x2): see ``winograd.py``.

As the result is A' [(G g G') * (B' d B)] A of weights g and a patch d, the weights' gradient is G' S G with

    S = sum over patches of (A dy A') * (B' d B),

for each of the 16 points a matrix product of channels by patches with patches by columns.  A task takes some panels of
columns and a part of the patches, block by block; its sums stay in its own part of a workspace.  A second launch adds the
parts and transforms them, a third writes (O, I, 3, 3).  Into how many parts the patches are cut follows from the sizes, so
the sums do not depend on the number of threads.

Where the processor multiplies pairs of bf16, a pair is two patches that follow one another, rounded when they are transformed;
the last of an odd number is paired with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from lezero.codegen.contraction import pairs, patches
from lezero.codegen.contraction.microkernel import Tile, call_tile, choose_tile, emit_panel_tiles
from lezero.codegen.contraction.pack import load_as
from lezero.codegen.contraction.spec import (
    COMPUTE,
    ELEMENTS_PER_THREAD,
    PRODUCTS_PER_THREAD,
    ConvSpec,
    tasks_for_elements,
    useful_threads,
)
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.contraction.weight_sums import sum_parts
from lezero.codegen.contraction.winograd import (
    DIRECT,
    POINTS,
    Adding,
    Corner,
    first_corner,
    next_corner,
    over_patches,
    patch_line,
    patch_pixels,
    two_ways,
)
from lezero.codegen.launch import MOST_PRODUCTS, KernelSource, Launch, Plan, divided
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES

PARAMS = words(
    "images height width depth columns result_height result_width top left down across panels block plane rows "
    "patch_parts panel_parts"
)
"""rows: of a panel's point, `depth` rounded up to whole tiles."""

BLOCK_BYTES = 1 << 20
"""Transformed patches of a task; more of them save more reading and writing of sums than they cost in L2."""
FEW_PANELS = 8
PARTS = 4
"""Into so many parts the patches are cut where there are few panels to divide among threads."""


def plan_weight_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """As ``plan_conv_weight_grad``."""
    ci, co = spec.channels
    tile = choose_tile(target, TYPES[COMPUTE[spec.dtype]], co, spec.dtype == "bf16")
    together = 2 if tile.pairs else 1
    oh, ow = spec.out_size(h, w)
    down, across = -(-oh // 2), -(-ow // 2)
    number = n * down * across
    panels, rows = -(-co // tile.width), -(-ci // tile.height) * tile.height
    products = number * DIRECT * ci * co
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    part = panels * POINTS * rows * tile.width
    patch_parts = 1 if panels >= FEW_PANELS else min(PARTS, number)
    # Parts of the patches take memory: together no more than the image.
    most_parts = max(patch_parts, min(number, n * h * w * ci // part))
    patch_parts = divided(most_parts, patch_parts, products, MOST_PRODUCTS * panels)
    # Each part of the panels transforms the image anew: with two for a thread that was 17 % of the time at 256 channels.
    panel_parts = min(panels, -(-threads // patch_parts))
    panel_parts = divided(panels, panel_parts, products, MOST_PRODUCTS * patch_parts)
    block = min(max(16, together * BLOCK_BYTES // (POINTS * ci * tile.itemsize)), 256, -(-number // patch_parts))
    block = -(-block // together) * together
    plane = block // together * ci + 2 * tile.lanes  # the last tile of rows may read past the last channel
    top, left, _, _ = spec.padding
    params = (
        n, h, w, ci, co, oh, ow, top, left, down, across, panels, block, plane, rows, patch_parts, panel_parts,
    )  # fmt: skip
    side_by_side = tile.pairs and patches.suits(ci)
    sums = Launch(_source(spec.dtype, tile, side_by_side), ("x", "dy", "w:parts"), params, patch_parts * panel_parts)
    taps = _transform_back(tile, panels * rows, rows, part, patch_parts, threads)
    places = [(t * rows, 0) for t in range(9)]
    write = sum_parts(spec.out_dtype, tile, 1, co, ci, 9 * rows, 1, 0, (rows, 0), places, threads, "w:taps")
    sizes = {"w:parts": patch_parts * part * tile.itemsize, "w:taps": part // POINTS * 9 * tile.itemsize}
    return Plan([sums, taps, write], sizes)


@lru_cache(maxsize=16)
def _source(dtype: str, tile: Tile, side_by_side: bool) -> KernelSource:
    key = f"winograd weight gradient {dtype} {tile}{' side_by_side' if side_by_side else ''}"
    return KernelSource(
        "winograd.dw",
        key,
        lambda target: _emit(dtype, tile, side_by_side, target),
        scratch=lambda p: layout(tile, p)[-1],
    )


def layout(tile: Tile, params: tuple[int, ...]) -> tuple[int, ...]:
    """Byte offsets in scratch, after the transformed patches: transformed gradients, a run, zeros; the end."""
    p = dict(zip(PARAMS, params))
    gradients = POINTS * p["plane"] * tile.itemsize
    run = gradients + POINTS * _gradient_plane(tile, p["block"]) * tile.itemsize
    zeros = run + 64
    return gradients, run, zeros, zeros + max(p["depth"], tile.width) * tile.itemsize


def _gradient_plane(tile: Tile, block: int) -> int:
    return block // (2 if tile.pairs else 1) * tile.width + tile.lanes


def _emit(dtype: str, tile: Tile, side_by_side: bool, target: Target) -> str:
    module = Module(target)
    emit_panel_tiles(module, tile)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    image, dy, parts = c.buffer(0), c.buffer(1), c.buffer(2)
    memory, to, height, together = MEMORY[dtype], tile.type, tile.height, 2 if tile.pairs else 1
    math = Adding(c, tile)

    # The same layout as `layout`, with sizes in registers.
    gradient_plane = c.add(c.mul(c.div(p["block"], together), tile.width), tile.lanes)
    gradients = c.gep("%scratch", c.mul(p["plane"], POINTS), to)
    run = c.gep(gradients, c.mul(gradient_plane, POINTS), to)
    zeros = c.gep(run, 64, "i8")
    c.loop(0, c.max(p["depth"], tile.width), lambda i: c.store(to, "0.0", c.gep(zeros, i, to)))

    all_patches = c.mul(p["images"], c.mul(p["down"], p["across"]))
    patch_part, panel_part = c.rem("%task", p["patch_parts"]), c.div("%task", p["patch_parts"])
    first_patch = c.div(c.mul(all_patches, patch_part), p["patch_parts"])
    end_patch = c.div(c.mul(all_patches, c.add(patch_part, 1)), p["patch_parts"])
    first_panel = c.div(c.mul(p["panels"], panel_part), p["panel_parts"])
    end_panel = c.div(c.mul(p["panels"], c.add(panel_part, 1)), p["panel_parts"])
    point_size = c.mul(p["rows"], tile.width)
    panel_size = c.mul(point_size, POINTS)
    part = c.gep(parts, c.mul(c.mul(patch_part, p["panels"]), panel_size), to)
    c.loop(
        c.mul(first_panel, panel_size), c.mul(end_panel, panel_size),
        lambda i: c.store(tile.register, "zeroinitializer", c.gep(part, i, to), align=tile.itemsize), step=tile.lanes,
    )  # fmt: skip

    def each(count: Operand, corner: Corner, put: Callable[[Operand, list[Corner], str | None], None]) -> None:
        """Run ``put(row, corners, more)`` for every patch, or every two, of which the second is one if `more`."""
        if not tile.pairs:
            over_patches(c, p, count, corner, lambda t, n, y, x: put(t, [(n, y, x)], None))
            return

        def two(t: str, n: str, y: str, x: str) -> list[str]:
            n2, y2, x2 = next_corner(c, p, n, y, x)
            put(c.div(t, 2), [(n, y, x), (n2, y2, x2)], c.less(c.add(t, 1), count))
            return next_corner(c, p, n2, y2, x2)

        c.loop(0, count, two, step=2, carried=[("i64", place) for place in corner])

    def store(
        squares: list[list[str]], load: Callable[[str], str], line: Callable[[Sequence[str]], list[str]], side: int,
        out: str, plane: Operand, at: Operand, mask: str | None,
    ) -> None:  # fmt: skip
        """Transform a square of pixels, or two and make pairs of them, and store their points `plane` elements apart."""
        points = [two_ways([load(pixel) for pixel in pixels], side, line) for pixels in squares]
        values = [pairs.rounded_pair(c, tile.lanes, *both) for both in zip(*points)] if tile.pairs else points[0]
        for k, value in enumerate(values):
            math.store(value, out, c.add(c.mul(plane, k), at), mask)

    def squares(
        images: str, size: tuple[str, str, str], corners: list[Corner], moved: tuple[Operand, Operand], side: int,
        more: str | None,
    ) -> list[list[str]]:  # fmt: skip
        first, *second = (
            patch_pixels(c, (images, zeros, memory), size, n, c.sub(y, moved[0]), c.sub(x, moved[1]), side)
            for n, y, x in corners
        )
        return [first, *([c.select(str(more), pixel, zeros, "ptr") for pixel in pixels] for pixels in second)]

    def transform(row: Operand, corners: list[Corner], more: str | None) -> None:
        """Patches of the block, B' d B."""
        size = (p["height"], p["width"], p["depth"])
        out = c.gep("%scratch", c.mul(row, p["depth"]), to)
        if not side_by_side:
            transform_pixels(size, corners, more, out)
            return
        (n, y, x), (_, _, next_x) = corners
        top, left = c.sub(y, p["top"]), c.sub(x, p["left"])

        def neighbours() -> None:
            first = c.mul(c.add(c.mul(c.add(c.mul(n, p["height"]), top), p["width"]), left), p["depth"])
            rows = [c.gep(image, c.add(first, c.mul(c.mul(p["width"], p["depth"]), i)), memory) for i in range(4)]
            patches.transform_neighbours(c, rows, p["depth"], out, p["plane"])

        adjacent = c.value(f"and i1 {more}, {c.value(f'icmp eq i64 {next_x}, {c.add(x, 2)}')}")
        inside = patches.within(c, size[:2], top, left, columns=6)
        c.when(c.value(f"and i1 {adjacent}, {inside}"), neighbours, lambda: transform_pixels(size, corners, more, out))

    def transform_pixels(size: tuple[str, str, str], corners: list[Corner], more: str | None, out: str) -> None:
        pixels = squares(image, size, corners, (p["top"], p["left"]), 4, more)

        def channels(j: Operand, mask: str | None) -> None:
            def load(pixel: str) -> str:
                return load_as(c, dtype, to, tile.lanes, c.gep(pixel, j, memory), mask)

            store(pixels, load, lambda line: patch_line(math, line), 4, out, p["plane"], j, mask)

        c.over_vectors(p["depth"], tile.lanes, channels)

    def transform_gradient(row: Operand, corners: list[Corner], more: str | None, col: Operand) -> None:
        """The gradients of patches' results, A dy A', for a panel of columns."""
        size = (p["result_height"], p["result_width"], p["columns"])
        pixels = squares(c.gep(dy, col, memory), size, corners, (0, 0), 2, more)
        out = c.gep(gradients, c.mul(row, tile.width), to)
        for v in range(tile.vectors):
            mask = c.mask(c.sub(c.sub(p["columns"], col), v * tile.lanes), tile.lanes)

            def load(pixel: str, v: int = v, mask: str = mask) -> str:
                return load_as(c, dtype, to, tile.lanes, c.gep(pixel, v * tile.lanes, memory), mask)

            store(
                pixels, load, lambda line: _gradient_line(math, line), 2, out, gradient_plane, v * tile.lanes, None
            )  # fmt: skip

    def pixel(n: Operand, height: Operand, y: Operand, width: Operand, x: Operand, channels: Operand) -> Operand:
        return c.mul(c.add(c.mul(c.add(c.mul(n, height), y), width), x), channels)

    def block(first: str) -> None:
        count = c.min(p["block"], c.sub(end_patch, first))
        corner = first_corner(c, p, first)
        each(count, corner, transform)
        c.store("i64", c.round_up(count, together), c.gep(run, 2, "i64"))

        n, y, x = first_corner(c, p, c.add(first, count))
        next_image = c.gep(image, pixel(n, p["height"], y, p["width"], x, p["depth"]), memory)
        next_dy = c.gep(dy, pixel(n, p["result_height"], y, p["result_width"], x, p["columns"]), memory)
        # A call fetches as many lines as it has steps: a patch is new to four pixels of the image.
        per_call = 64 // TYPES[dtype] // (4 * together)
        image_calls, dy_calls = c.div(p["depth"], per_call), c.div(p["columns"], per_call)
        row_tiles = c.ceil_div(p["depth"], height)
        calls = c.mul(c.mul(c.sub(end_panel, first_panel), POINTS), row_tiles)
        turns = c.max(c.div(calls, c.max(c.add(image_calls, dy_calls), 1)), 1)

        def panel(number: str) -> None:
            col = c.mul(number, tile.width)
            each(count, corner, lambda row, corners, more: transform_gradient(row, corners, more, col))
            out = c.gep(part, c.mul(number, panel_size), to)

            def point(k: str) -> None:
                c.store("ptr", c.gep("%scratch", c.mul(p["plane"], k), to), run)
                c.store("ptr", c.gep(gradients, c.mul(gradient_plane, k), to), c.gep(run, 1, "i64"))
                here = c.gep(out, c.mul(point_size, k), to)

                def tiles(r: str) -> None:
                    sums, following = (c.gep(here, c.mul(row, tile.width), to) for row in (r, c.add(r, height)))
                    # The sums that are added to next, or of the next block what the image or the gradient has.
                    call = c.add(
                        c.mul(c.add(c.mul(c.sub(number, first_panel), POINTS), k), row_tiles), c.div(r, height)
                    )
                    turn = c.div(call, turns)
                    lines = c.mul(c.div(c.round_up(count, together), together), 64)
                    of_image = c.gep(next_image, c.mul(turn, lines), "i8")
                    of_dy = c.gep(next_dy, c.mul(c.sub(turn, image_calls), lines), "i8")
                    other = c.select(c.less(turn, image_calls), of_image, of_dy, "ptr")
                    due = c.value(f"icmp eq i64 {c.mul(turn, turns)}, {call}")
                    due = c.value(f"and i1 {due}, {c.less(turn, c.add(image_calls, dy_calls))}")
                    fetched = f"i64 0, ptr {c.select(due, other, following, 'ptr')}, i64 64"
                    arguments = f"ptr {run}, i64 1, i64 {r}, i64 {p['depth']}, i64 {tile.width}, {fetched}, ptr {sums}"
                    call_tile(c, tile, "panel", c.sub(p["depth"], r), arguments)

                c.loop(0, p["depth"], tiles, step=height)

            c.loop(0, POINTS, point)

        c.loop(first_panel, end_panel, panel)

    c.loop(first_patch, end_patch, block, step=p["block"])
    c.finish()
    return module.text()


def _gradient_line(math: Adding, d: Sequence[str]) -> list[str]:
    return [d[0], math.add(d[0], d[1]), math.sub(d[0], d[1]), math.negative(d[1])]


# -- adding the parts, and back to 3x3 ---------------------------------------------------------------------------------


def _transform_back(tile: Tile, lines: int, rows: int, part: int, parts: int, threads: int) -> Launch:
    elements = lines * tile.width * POINTS * parts
    threads = useful_threads(threads, elements, ELEMENTS_PER_THREAD)
    tasks = tasks_for_elements(lines, elements, threads)
    key = f"winograd weight gradient sum {tile.type} {tile.lanes} {tile.vectors}"
    source = KernelSource("winograd.dw.sum", key, lambda target: _emit_back(tile, target))
    return Launch(source, ("w:parts", "w:taps"), (lines, rows, part, parts), tasks)


def _emit_back(tile: Tile, target: Target) -> str:
    """Panels of 16 points by rows, in parts, become panels of 9 taps by rows: G' S G of the parts' sum."""
    module = Module(target)
    c = Code(module)
    lines, rows, part, parts = (c.param(i) for i in range(4))
    points, taps = c.buffer(0), c.buffer(1)
    math = Adding(c, tile)
    size = c.mul(rows, tile.width)

    def line(i: str) -> None:
        panel, at = c.div(i, rows), c.mul(c.rem(i, rows), tile.width)
        start = c.gep(points, c.add(c.mul(c.mul(panel, POINTS), size), at), tile.type)
        out = c.gep(taps, c.add(c.mul(c.mul(panel, 9), size), at), tile.type)
        for v in range(tile.vectors):

            def add(_: str, pointer: str, *sums: str, v: int = v) -> list[str]:
                more = [math.load(pointer, c.add(c.mul(size, k), v * tile.lanes)) for k in range(POINTS)]
                return [c.gep(pointer, part, tile.type), *map(math.add, sums, more)]

            carried = [("ptr", start), *[(tile.register, "zeroinitializer")] * POINTS]
            sums = c.loop(0, parts, add, carried=carried)[1:]
            for k, value in enumerate(two_ways(sums, 4, lambda four: _taps_line(math, four))):
                math.store(value, out, c.add(c.mul(size, k), v * tile.lanes))

    c.loop(c.div(c.mul("%task", lines), "%tasks"), c.div(c.mul(c.add("%task", 1), lines), "%tasks"), line)
    c.finish()
    return module.text()


def _taps_line(math: Adding, s: Sequence[str]) -> list[str]:
    inner = math.half(math.add(s[1], s[2]))
    return [math.add(s[0], inner), math.half(math.sub(s[1], s[2])), math.add(inner, s[3])]
