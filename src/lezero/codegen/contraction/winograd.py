"""3x3 convolutions of stride 1 by Winograd's minimal filtering, F(2x2, 3x3) (Lavin & Gray 2016): forward and input gradient.

A *patch* of 4 x 4 pixels gives 2 x 2 results.  Patches d, weights g and results y are related by

    y = A' [(G g G') * (B' d B)] A,

where the product * is one of 4 x 4 *points*, each on its own.  Summed over channels, each point is a matrix product of patches
by channels with channels by columns: 16 products for 4 results where the direct way has 36.  The transformations add and
subtract (G also halves), so sums are shorter than the direct way's and errors no larger.  What they do not keep is how far an
infinity or a NaN reaches: it spoils all four results of its patches.

A task transforms a block of patches, multiplies them panel by panel with the weights, and transforms back, all in scratch
that stays in L2; the image, the result and the epilogue are those of the direct way.

Where the processor multiplies pairs of bf16, so are images and weights of bf16: transformed in f32, and rounded once before
they are multiplied.  With weights and patches of independent numbers that adds errors of 1.7 times those of rounding each
operand, to a result that is rounded itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from lezero.codegen.contraction import pairs, patches, statistics
from lezero.codegen.contraction.conv_weights import pack_weights
from lezero.codegen.contraction.epilogue import Emitter, Epilogue, Place, plain, stores_only
from lezero.codegen.contraction.microkernel import Tile, call_tile, choose_tile, emit_rows_tiles, entry_words
from lezero.codegen.contraction.narrow import narrowed, round_vector
from lezero.codegen.contraction.pack import load_as
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

POINTS = 16
DIRECT = 36
"""Products of a patch, a channel and a column the direct way, by which work is counted."""
LEAST_CHANNELS = 32
"""With fewer, the transformations cost what the products save."""
LEAST_PATCHES = 56
FEW_WEIGHTS = 256
"""Up to so many channels, products of pairs on images of even size need not wait for the weights, however few the patches."""
MOST_PAIRED_CHANNELS = 512
"""With more they do, however many: 1,024 channels took 1.0 to 1.3 of the time."""
PATCHES_OF_MANY = 128
"""With so many patches, products of up to `MOST_PAIRED_CHANNELS` took 0.55 to 0.9 of the time."""
PATCHES_OF_ODD = 256
"""The same for images of odd size (7x7: 0.7 to 0.9), whose last patches are half empty, from `FEW_WEIGHTS` channels on."""
BLOCK_BYTES = 480 << 10
"""Transformed patches of a task: with a panel of weights and its products they stay in L2."""

PARAMS = words(
    "images height width depth columns result_height result_width top left down across panels block blocks plane steps"
)
"""steps: of a product, of numbers or pairs; down, across: patches of an image; plane: elements between the points of the transformed block."""


def suits(spec: ConvSpec, n: int, h: int, w: int, target: Target | None = None) -> bool:
    """Whether the result of a convolution, or its gradient, of `n` images of `h` x `w` pixels is computed this way.

    target : given where pairs of bf16 may be multiplied.
    """
    same = spec.kernel == (3, 3) and spec.stride == spec.dilation == (1, 1) and spec.groups == 1
    even = h % 2 == w % 2 == 0
    patches = n * -(-h // 2) * -(-w // 2)
    # AMX makes products of pairs cheaper than the transformations that would save some of them.
    usable = target is not None and pairs.supported(spec.dtype, target) and not target.amx
    paired = usable and _pays_in_pairs(spec, patches, even)
    return (
        spec.minimal and same and not spec.planar and (spec.dtype in ("f32", "f64") or paired) and min(spec.channels) >= LEAST_CHANNELS
        and patches >= LEAST_PATCHES
    )  # fmt: skip


def _pays_in_pairs(spec: ConvSpec, patches: int, even: bool) -> bool:
    if any(c % 2 or c > MOST_PAIRED_CHANNELS for c in spec.channels):
        return False
    if even:
        return max(spec.channels) <= FEW_WEIGHTS or patches >= PATCHES_OF_MANY
    return min(spec.channels) >= FEW_WEIGHTS and patches >= PATCHES_OF_ODD


def plan_forward(
    spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target, epilogue_params: tuple[int, ...]
) -> Plan:
    """As ``plan_conv_forward``."""
    ci, co = spec.channels
    tile = _choose_tile(spec.dtype, co, target)
    packed = pack_weights(
        spec.dtype, tile, groups=1, columns=co, outer=1, slice=0, line=ci * 9, length=ci * 9, group=0, rows=ci * 9,
        places=[t * ci for t in range(9)], threads=threads,
    )  # fmt: skip
    top, left, _, _ = spec.padding
    result = spec.out_size(h, w)
    plan = _plan(
        spec.dtype,
        packed,
        "x",
        (n, h, w),
        ci,
        co,
        result,
        (top, left),
        spec.tail,
        tile,
        threads,
        epilogue_params,
        spec.statistics,
    )
    if spec.statistics:
        p = dict(zip(PARAMS, plan.launches[-1].params))
        plan.launches.append(statistics.join(tile, p["blocks"], 1, co, p["panels"], threads))
        plan.workspaces["w:parts"] = p["blocks"] * 3 * p["panels"] * tile.width * tile.itemsize
    return plan


def plan_input_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """As ``plan_conv_input_grad``: the convolution of the result's gradient with the weights turned around."""
    ci, co = spec.channels
    tile = _choose_tile(spec.dtype, ci, target)
    packed = pack_weights(
        spec.dtype, tile, groups=1, columns=ci, outer=co, slice=ci * 9, line=9, length=9, group=0, rows=co * 9,
        places=[(8 - t) * co for t in range(9)], threads=threads,
    )  # fmt: skip
    top, left, _, _ = spec.padding
    ((_, stored, value),) = plain(spec.out_dtype, COMPUTE[spec.dtype]).outputs
    tail = Epilogue((("dx", stored, value),))
    image = (n, *spec.out_size(h, w))
    return _plan(spec.dtype, packed, "dy", image, co, ci, (h, w), (2 - top, 2 - left), tail, tile, threads, ())


def _choose_tile(dtype: str, columns: int, target: Target) -> Tile:
    """The tile as it is for weights, which become pairs when they are transformed."""
    return replace(choose_tile(target, TYPES[COMPUTE[dtype]], columns, dtype == "bf16", stored=True), pairs=False)


def _plan(
    dtype: str, packed: tuple[Launch, int], operand: str, image: tuple[int, int, int], depth: int, columns: int,
    result: tuple[int, int], padding: tuple[int, int], tail: Epilogue, tile: Tile, threads: int,
    epilogue_params: tuple[int, ...], sums: bool = False,
) -> Plan:  # fmt: skip
    launch, bytes = packed
    steps, tile = (depth // 2, replace(tile, pairs=True)) if dtype == "bf16" else (depth, tile)
    down, across = -(-result[0] // 2), -(-result[1] // 2)
    number = image[0] * down * across
    products = number * DIRECT * depth * columns
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    block = _block(tile, steps, number, statistics.blocks_wanted(sums, threads))
    blocks = -(-number // block)
    plane = block * steps + tile.lanes  # planes a multiple of 4 KiB apart would share the same few lines of L1
    params = (
        *image, depth, columns, *result, *padding, down, across, -(-columns // tile.width), block, blocks, plane, steps,
        *epilogue_params,
    )  # fmt: skip
    tasks = tasks_for_products(blocks, products, threads, each=16)
    names = (operand, "w:points", *tail.names, *["w:parts"] * sums)
    weights = _transform_weights(tile, depth, params[PARAMS.index("panels")], threads)
    split = tile.pairs and patches.suits(depth)
    return Plan(
        [launch, weights, Launch(_source(dtype, tail, tile, sums, split), names, params, tasks)],
        {"w:weights": bytes, "w:points": bytes // 9 * POINTS * steps // depth},
    )


def _block(tile: Tile, steps: int, patches: int, wanted: int) -> int:
    """Patches of a block, in whole tiles, if there are to be at least `wanted` blocks."""
    # Patches of pairs are no larger than their products, which then count.
    row = steps + tile.width if tile.pairs else steps
    fit = max(1, BLOCK_BYTES // (POINTS * row * tile.itemsize * tile.height))
    shared = max(1, patches // (tile.height * wanted))
    return min(fit, shared, 16) * tile.height


# -- the weights -------------------------------------------------------------------------------------------------------


def _transform_weights(tile: Tile, depth: int, panels: int, threads: int) -> Launch:
    elements = POINTS * panels * depth * tile.width
    threads = useful_threads(threads, elements, ELEMENTS_PER_THREAD)
    tasks = tasks_for_elements(panels * depth, elements, threads)
    split = tile.pairs and patches.suits(depth)
    kind = " of split channels" if split else " pairs" if tile.pairs else ""
    key = f"winograd weights {tile.type} {tile.lanes} {tile.vectors}{kind}"
    source = KernelSource("winograd.weights", key, lambda target: _emit_weights(tile, split, target))
    return Launch(source, ("w:weights", "w:points"), (depth, panels), tasks)


def _emit_weights(tile: Tile, split: bool, target: Target) -> str:
    """Panels of 9 taps by depth become panels of 16 points by depth: G g G'."""
    module = Module(target)
    c = Code(module)
    depth, panels = c.param(0), c.param(1)
    taps, points = c.buffer(0), c.buffer(1)
    math = Adding(c, tile)
    steps = c.div(depth, 2) if tile.pairs else depth
    tap, point = c.mul(depth, tile.width), c.mul(steps, tile.width)

    def transformed(line: Operand, v: int) -> list[str]:
        """The points of one line of a panel of taps, of which `line` counts all."""
        first = c.add(c.mul(c.mul(c.div(line, depth), 9), tap), c.mul(c.rem(line, depth), tile.width))
        start = c.gep(taps, c.add(first, v * tile.lanes), tile.type)
        g = [math.load(start, c.mul(tap, t)) for t in range(9)]
        return two_ways(g, 3, lambda line: _weights_line(math, line))

    def channel(i: str, half: int) -> Operand:
        return patches.channel_of(c, i, half) if split else c.add(c.mul(i, 2), half)

    def row(i: str) -> None:
        out = c.gep(
            points, c.add(c.mul(c.mul(c.div(i, steps), POINTS), point), c.mul(c.rem(i, steps), tile.width)), tile.type
        )
        for v in range(tile.vectors):
            if tile.pairs:
                first, second = (transformed(channel(i, half), v) for half in (0, 1))
                values = [pairs.rounded_pair(c, tile.lanes, a, b) for a, b in zip(first, second, strict=True)]
            else:
                values = transformed(i, v)
            for k, value in enumerate(values):
                math.store(value, out, c.add(c.mul(point, k), v * tile.lanes))

    total = c.mul(panels, steps)
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), row)
    c.finish()
    return module.text()


# -- products ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _source(dtype: str, tail: Epilogue, tile: Tile, sums: bool, split: bool) -> KernelSource:
    key = f"winograd {dtype} {tile} {tail.key()}{' statistics' if sums else ''}{' split' if split else ''}"
    return KernelSource(
        "winograd",
        key,
        lambda target: _emit(dtype, tail, tile, sums, split, target),
        scratch=lambda p: layout(tile, p)[-1],
    )


def layout(tile: Tile, params: tuple[int, ...]) -> tuple[int, ...]:
    """Byte offsets in scratch, after the transformed patches: their products, a row of results, zeros, table; the end."""
    p = dict(zip(PARAMS, params))
    products = POINTS * p["plane"] * tile.itemsize
    rows = products + POINTS * _product_plane(tile, p["block"]) * tile.itemsize
    zeros = rows + tile.width * tile.itemsize
    table = zeros + (p["depth"] * tile.itemsize + 63) // 64 * 64
    return products, rows, zeros, table, table + POINTS * (p["block"] // tile.height) * entry_words(tile) * 8


def _product_plane(tile: Tile, block: int) -> int:
    return block * tile.width + tile.lanes


def _emit(dtype: str, tail: Epilogue, tile: Tile, sums: bool, split: bool, target: Target) -> str:
    module = Module(target)
    emit_rows_tiles(module, tile)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    image, weights = c.buffer(0), c.buffer(1)
    memory, to, height = MEMORY[dtype], tile.type, tile.height
    narrow, stored = narrowed(tail), MEMORY[tail.outputs[0][1]]
    at_once = bool(narrow) or stores_only(tail, to)
    epilogue = Emitter(c, tail, tile.lanes, first_buffer=2, first_param=len(PARAMS))
    math = Adding(c, tile)
    found = statistics.Block(c, tile) if sums else None
    parts = c.buffer(2 + len(tail.names)) if sums else ""

    # The same layout as `layout`, with sizes in registers.
    product_plane = c.add(c.mul(p["block"], tile.width), tile.lanes)
    products = c.gep("%scratch", c.mul(p["plane"], POINTS), to)
    rows = c.gep(products, c.mul(product_plane, POINTS), to)
    zeros = c.gep(rows, tile.width, to)
    table = c.gep(zeros, c.round_up(c.mul(p["depth"], tile.itemsize), 64), "i8")
    tiles = c.div(p["block"], height)
    point_size = c.mul(p["steps"], tile.width)

    c.loop(0, p["depth"], lambda i: c.store(to, "0.0", c.gep(zeros, i, to)))
    number_of_patches = c.mul(p["images"], c.mul(p["down"], p["across"]))

    def list_rows(point: str) -> None:
        """Where each row of each tile of a point is read: the same for every block."""

        def of_tile(t: str) -> None:
            entry = c.gep(table, c.mul(c.add(c.mul(point, tiles), t), entry_words(tile)), "ptr")
            c.store("i64", 0, entry)
            start = c.add(c.mul(point, p["plane"]), c.mul(c.mul(t, height), p["steps"]))
            for r in range(height):
                c.store("ptr", c.gep("%scratch", c.add(start, c.mul(p["steps"], r)), to), c.gep(entry, 1 + r, "ptr"))

        c.loop(0, tiles, of_tile)

    c.loop(0, POINTS, list_rows)

    def transform(t: str, n: str, y: str, x: str) -> None:
        """One patch of the block, B' d B."""
        size = (p["height"], p["width"], p["depth"])
        y, x = c.sub(y, p["top"]), c.sub(x, p["left"])  # type: ignore[assignment]
        out = c.gep("%scratch", c.mul(t, p["steps"]), to)

        def whole() -> None:
            first = c.mul(c.add(c.mul(c.add(c.mul(n, p["height"]), y), p["width"]), x), p["depth"])
            rows = [c.gep(image, c.add(first, c.mul(c.mul(p["width"], p["depth"]), i)), memory) for i in range(4)]
            patches.transform_rows(c, rows, p["depth"], out, p["plane"])

        def ragged() -> None:
            pixels = patch_pixels(c, (image, zeros, memory), size, n, y, x, 4)
            patches.transform_pixels(c, pixels, p["depth"], out, p["plane"])

        if split:
            c.when(patches.within(c, size[:2], y, x), whole, ragged)
            return
        pixels = patch_pixels(c, (image, zeros, memory), size, n, y, x, 4)

        def channels(j: Operand, mask: str | None) -> None:
            d = [load_as(c, dtype, to, tile.lanes, c.gep(pixel, j, memory), mask) for pixel in pixels]
            for k, value in enumerate(two_ways(d, 4, lambda line: patch_line(math, line))):
                plane = c.gep(out, c.mul(p["plane"], k), to)
                if tile.pairs:
                    c.vector_store("i16", tile.lanes, pairs.rounded(c, tile.lanes, value), c.gep(plane, j, "i16"), mask)
                else:
                    math.store(value, plane, j, mask)

        c.over_vectors(p["depth"], tile.lanes, channels)

    def back(t: str, n: str, y: str, x: str, col: Operand) -> None:
        """The results of one patch, A' m A, for a panel of columns."""
        start = c.gep(products, c.mul(t, tile.width), to)
        results: list[list[str]] = [[] for _ in range(4)]
        for v in range(tile.vectors):
            m = [math.load(start, c.add(c.mul(product_plane, k), v * tile.lanes)) for k in range(POINTS)]
            for k, value in enumerate(two_ways(m, 4, lambda line: _result_line(math, line))):
                results[k].append(value)
        rounded = [[round_vector(c, tile, narrow, value) for value in vectors] for vectors in results] if narrow else []
        whole = c.less(tile.width - 1, c.sub(p["columns"], col))
        there = []

        def put(pixel: Operand, k: int) -> None:
            index = c.add(c.mul(pixel, p["columns"]), col)

            def direct() -> None:
                for v, value in enumerate([bits for bits, _ in rounded[k]] if narrow else results[k]):
                    here = c.gep(epilogue.outputs[0], c.add(index, v * tile.lanes), stored)
                    c.vector_store(stored, tile.lanes, value, here)

            def by_row() -> None:
                for v, value in enumerate(results[k]):
                    math.store(value, rows, v * tile.lanes)
                epilogue.row(tile, rows, Place(pixel, col, 0, index), p["columns"])

            if at_once:
                c.when(whole, direct, by_row)
            else:
                by_row()

        for k, (down, across) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            here_y, here_x = c.add(y, down), c.add(x, across)
            inside = c.value(f"and i1 {c.less(here_y, p['result_height'])}, {c.less(here_x, p['result_width'])}")
            pixel = c.add(c.mul(c.add(c.mul(n, p["result_height"]), here_y), p["result_width"]), here_x)
            there.append(inside)
            c.when(inside, partial(put, pixel, k))
        if found:
            number: Operand = 0
            for inside in there:
                number = c.add(number, c.value(f"zext i1 {inside} to i64"))
            found.join(lambda r, v: rounded[r][v][1] if narrow else results[r][v], there, number, t)

    def pixels_before(patch: Operand) -> Operand:
        n, y, x = first_corner(c, p, patch)
        of_row = c.mul(x, c.min(c.sub(p["result_height"], y), 2))
        return c.add(c.mul(c.add(c.mul(n, p["result_height"]), y), p["result_width"]), of_row)

    def item(i: str) -> None:
        first = c.mul(i, p["block"])
        count = c.min(p["block"], c.sub(number_of_patches, first))
        corner = first_corner(c, p, first)
        pixels = c.sub(pixels_before(c.add(first, count)), pixels_before(first)) if found else 0
        over_patches(c, p, count, corner, transform)

        def panel(number: str) -> None:
            panel_weights = c.gep(weights, c.mul(c.mul(number, POINTS), point_size), to)

            def point(k: str) -> None:
                b, out = c.gep(panel_weights, c.mul(k, point_size), to), c.gep(products, c.mul(k, product_plane), to)

                def one_tile(t: str) -> None:
                    entry = c.gep(table, c.mul(c.add(c.mul(k, tiles), c.div(t, height)), entry_words(tile)), "ptr")
                    ahead = c.mul(p["steps"], height)
                    here = c.gep(out, c.mul(t, tile.width), to)
                    arguments = f"ptr {entry}, i64 1, ptr {b}, i64 {tile.width}, i64 {p['steps']}, i64 {ahead}, ptr {here}, i64 {tile.width}"
                    call_tile(c, tile, "rows", c.sub(count, t), arguments)

                c.loop(0, count, one_tile, step=height)

            c.loop(0, POINTS, point)
            col = c.mul(number, tile.width)
            over_patches(c, p, count, corner, lambda t, n, y, x: back(t, n, y, x, col))
            if found:
                line = c.mul(p["panels"], tile.width)
                means = c.gep(parts, c.add(c.mul(c.mul(i, 3), line), col), to)
                found.put(means, line, pixels)

        c.loop(0, p["panels"], panel)

    total = p["blocks"]
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), item)
    c.finish()
    return module.text()


Corner = tuple[Operand, Operand, Operand]
"""Where a patch lies: its image, and the first row and column of its results."""


def first_corner(c: Code, p: dict[str, str], number: Operand) -> Corner:
    """The corner of a patch by its number."""
    of_image = c.mul(p["down"], p["across"])
    n, rest = c.div(number, of_image), c.rem(number, of_image)
    return n, c.mul(c.div(rest, p["across"]), 2), c.mul(c.rem(rest, p["across"]), 2)


def over_patches(c: Code, p: dict[str, str], count: Operand, first: Corner, body: Callable[..., None]) -> None:
    """Run ``body(t, n, y, x)`` for `count` patches from the one at `first` on."""

    def step(t: str, n: str, y: str, x: str) -> list[str]:
        body(t, n, y, x)
        return next_corner(c, p, n, y, x)

    c.loop(0, count, step, carried=[("i64", place) for place in first])


def next_corner(c: Code, p: dict[str, str], n: Operand, y: Operand, x: Operand) -> list[str]:
    next_x = c.add(x, 2)
    row_goes_on = c.less(next_x, p["result_width"])
    next_y = c.select(row_goes_on, y, c.add(y, 2))
    image_goes_on = c.less(next_y, p["result_height"])
    return [
        c.select(image_goes_on, n, c.add(n, 1)),
        c.select(image_goes_on, next_y, 0),
        c.select(row_goes_on, next_x, 0),
    ]


def patch_pixels(
    c: Code, memory: tuple[str, str, str], size: tuple[str, str, str], n: Operand, y: Operand, x: Operand, side: int
) -> list[str]:
    """Where the pixels of a square are read, row by row: in image `n` from (y, x) on, or on zeros beside it.

    memory : the images, the zeros, and the LLVM type of both.
    size : height, width and channels of an image.
    """
    (images, zeros, to), (height, width, channels) = memory, size
    columns = [(c.below(c.add(x, j), width), c.add(x, j)) for j in range(side)]
    found = []
    for i in range(side):
        inside_y, start = c.below(c.add(y, i), height), c.mul(c.add(c.mul(n, height), c.add(y, i)), width)
        for inside_x, column in columns:
            inside = c.value(f"and i1 {inside_y}, {inside_x}")
            pixel = c.gep(images, c.mul(c.add(start, column), channels), to)
            found.append(c.select(inside, pixel, zeros, "ptr"))
    return found


# -- the transformations, along one axis -------------------------------------------------------------------------------


class Adding:
    """Sums and differences of the vectors of a tile's type."""

    def __init__(self, c: Code, tile: Tile) -> None:
        self.c, self.tile = c, tile

    def load(self, pointer: str, index: Operand, mask: str | None = None) -> str:
        return self.c.vector_load(self.tile.type, self.tile.lanes, self.c.gep(pointer, index, self.tile.type), mask)

    def store(self, value: str, pointer: str, index: Operand, mask: str | None = None) -> None:
        here = self.c.gep(pointer, index, self.tile.type)
        self.c.vector_store(self.tile.type, self.tile.lanes, value, here, mask)

    def add(self, a: str, b: str) -> str:
        return self.c.value(f"fadd {self.tile.register} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.c.value(f"fsub {self.tile.register} {a}, {b}")

    def negative(self, a: str) -> str:
        return self.c.value(f"fneg {self.tile.register} {a}")

    def half(self, a: str) -> str:
        return self.c.value(f"fmul {self.tile.register} {a}, {self.c.splat('0.5', self.tile.type, self.tile.lanes)}")


def two_ways(values: Sequence[str], side: int, line: Callable[[Sequence[str]], list[str]]) -> list[str]:
    """Apply `line` to the columns of a square of `side` (row by row), then to the rows of what comes out."""
    columns = [line(values[j::side]) for j in range(side)]
    return [value for i in range(len(columns[0])) for value in line([column[i] for column in columns])]


def _weights_line(math: Adding, g: Sequence[str]) -> list[str]:
    ends, middle = math.half(math.add(g[0], g[2])), math.half(g[1])
    return [g[0], math.add(ends, middle), math.sub(ends, middle), g[2]]


def patch_line(math: Adding, d: Sequence[str]) -> list[str]:
    return [math.sub(d[0], d[2]), math.add(d[1], d[2]), math.sub(d[2], d[1]), math.sub(d[1], d[3])]


def _result_line(math: Adding, m: Sequence[str]) -> list[str]:
    return [math.add(math.add(m[0], m[1]), m[2]), math.sub(math.sub(m[1], m[2]), m[3])]
