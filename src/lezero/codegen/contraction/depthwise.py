"""Depthwise convolutions: one filter per channel, so vectors run over channels and there is no product to tile.

Forward and input gradient share one kernel: for each pixel of the result, a weighted sum of a small window of pixels.
The window's shape is part of the code, so a block of neighbouring results reads each pixel of a row once.  With stride s
the input gradient is s * s such sums, one launch per phase of the input's pixels.

A row of the window that hangs over the edge reads zeros with a stride of zero; columns that do are chosen pixel by pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lezero.codegen.contraction.epilogue import Emitter, Epilogue, Place, plain, stores_only
from lezero.codegen.contraction.narrow import narrowed
from lezero.codegen.contraction.pack import load_as, store_as
from lezero.codegen.contraction.phases import phases
from lezero.codegen.contraction.spec import COMPUTE, PRODUCTS_PER_THREAD, ConvSpec, tasks_for_products, useful_threads
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import MOST_PRODUCTS, KernelSource, Launch, Plan, divided
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES


@dataclass(frozen=True)
class Window:
    """rows : how many rows it has (where they lie is known at run time); columns : displacements of its columns;
    step : how far the window moves from one result to the next."""

    rows: int
    columns: tuple[int, ...]
    step: int


PARAMS = words(
    "images height width channels result_height result_width first_y first_x spread_y spread_x count_y count_x "
    "step_y move_x taps epilogue_params"
)
"""Then: the epilogue's params, a displacement per row of the window, and per tap which tap of the weights it is."""


def plan_forward(
    spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target, epilogue_params: tuple[int, ...] = ()
) -> Plan:
    oh, ow = spec.out_size(h, w)
    (kh, kw), (sy, sx), (dy, dx) = spec.kernel, spec.stride, spec.dilation
    window = Window(kh, tuple(x * dx for x in range(kw)), sx)
    params = (
        n, h, w, spec.channels[0], oh, ow, 0, 0, 1, 1, oh, ow, sy, -spec.padding[1], spec.taps, len(epilogue_params),
        *epilogue_params, *(y * dy - spec.padding[0] for y in range(kh)), *range(spec.taps),
    )  # fmt: skip
    made = source(spec.dtype, spec.tail, window, len(epilogue_params))
    return Plan(
        [
            Launch(
                made,
                ("x", "w", *spec.tail.names),
                params,
                _tasks(n * oh, n * oh * ow * spec.channels[0] * spec.taps, threads),
            )
        ]
    )


def plan_input_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    oh, ow = spec.out_size(h, w)
    c, (kh, kw) = spec.channels[0], spec.kernel
    ((_, stored, value),) = plain(spec.out_dtype, COMPUTE[spec.dtype]).outputs
    tail = Epilogue((("dx", stored, value),))
    launches = []
    for first_y, count_y, taps_y in phases(h, kh, spec.stride[0], spec.padding[0], spec.dilation[0]):
        for first_x, count_x, taps_x in phases(w, kw, spec.stride[1], spec.padding[1], spec.dilation[1]):
            # Displacements fall with the tap's number; the window counts them upwards from the least.
            down, across = sorted(taps_y, key=lambda tap: tap[1]), sorted(taps_x, key=lambda tap: tap[1])
            least = across[0][1] if across else 0
            window = Window(len(taps_y), tuple(move - least for _, move in across), 1)
            params = (
                n, oh, ow, c, h, w, first_y, first_x, *spec.stride, count_y, count_x, 1, least, spec.taps, 0,
                *(move for _, move in down), *(y * kw + x for y, _ in down for x, _ in across),
            )  # fmt: skip
            made = source(spec.dtype, tail, window, 0)
            launches.append(
                Launch(made, ("dy", "w", "dx"), params, _tasks(n * count_y, n * h * w * c * spec.taps, threads))
            )
    return Plan(launches)


def _tasks(rows: int, products: int, threads: int) -> int:
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    return tasks_for_products(rows, products, threads)


@lru_cache(maxsize=64)
def source(dtype: str, tail: Epilogue, window: Window, extra: int) -> KernelSource:
    def scratch(p: tuple[int, ...]) -> int:
        # A row of zeros, the weights, a block of results; all in f64 at most and in whole vectors.
        return (p[3] + 64) * 8 * (1 + window.rows * len(window.columns)) + BLOCKS[0] * 64

    key = f"depthwise {dtype} {window} {extra} {tail.key()}"
    return KernelSource("conv.depthwise", key, lambda target: emit(dtype, tail, window, extra, target), scratch=scratch)


BLOCKS = 8, 2
"""Results computed side by side: with 3 x 3, each loaded pixel serves up to three of them; and what a row leaves over."""


def emit(dtype: str, tail: Epilogue, window: Window, extra: int, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    row_table = c.gep("%params", len(PARAMS) + extra, "i64")
    tap_table = c.gep(row_table, window.rows, "i64")
    image, weights = c.buffer(0), c.buffer(1)
    memory, to = MEMORY[dtype], MEMORY[COMPUTE[dtype]]
    lanes = target.lanes(TYPES[COMPUTE[dtype]])
    vector = f"<{lanes} x {to}>"
    epilogue = Emitter(c, tail, lanes, first_buffer=2, first_param=len(PARAMS))
    stored = tail.outputs[0][1]
    at_once = stores_only(tail, to) or narrowed(tail) is not None

    padded = c.round_up(p["channels"], lanes)
    results = "%scratch"
    zeros = c.gep("%scratch", BLOCKS[0] * 64, "i8")
    filters = c.gep(zeros, padded, to)
    c.loop(0, padded, lambda i: c.store(vector, "zeroinitializer", c.gep(zeros, i, to), align=8), step=lanes)
    for t in range(window.rows * len(window.columns)):
        from_tap = c.load("i64", c.gep(tap_table, t, "i64"))

        def transpose(i: str, from_tap: str = from_tap, t: int = t) -> None:
            value = load_as(c, dtype, to, 1, c.gep(weights, c.add(c.mul(i, p["taps"]), from_tap), memory))
            c.store(to, value, c.gep(filters, c.add(c.mul(padded, t), i), to))

        c.loop(0, p["channels"], transpose)

    # Results whose columns all lie inside: 0 <= x * step + move and x * step + move + widest < width.
    widest = max(window.columns, default=0)
    inside_from = c.min(c.div(c.add(c.max(c.sub(0, p["move_x"]), 0), window.step - 1), window.step), p["count_x"])
    room = c.sub(c.sub(p["width"], p["move_x"]), widest)
    inside_to = c.max(c.min(c.div(c.max(c.add(room, window.step - 1), 0), window.step), p["count_x"]), inside_from)

    def row(i: str) -> None:
        n, y = c.div(i, p["count_y"]), c.rem(i, p["count_y"])
        out_y = c.add(p["first_y"], c.mul(y, p["spread_y"]))
        out_row = c.mul(c.add(c.mul(n, p["result_height"]), out_y), p["result_width"])
        lines, strides = [], []
        for r in range(window.rows):
            at_y = c.add(c.mul(y, p["step_y"]), c.load("i64", c.gep(row_table, r, "i64")))
            valid = c.below(at_y, p["height"])
            start = c.gep(image, c.mul(c.mul(c.add(c.mul(n, p["height"]), at_y), p["width"]), p["channels"]), memory)
            lines.append(c.select(valid, start, zeros, "ptr"))
            strides.append(c.select(valid, p["channels"], 0))

        def number(x: Operand) -> Operand:
            """The result's pixel."""
            return c.add(out_row, c.add(p["first_x"], c.mul(x, p["spread_x"])))

        def finish(x: Operand, ch: Operand, mask: str | None, totals: list[str]) -> None:
            if at_once:
                out = c.gep(epilogue.outputs[0], c.add(c.mul(number(x), p["channels"]), ch), MEMORY[stored])
                for j, total in enumerate(totals):
                    away = c.mul(c.mul(p["spread_x"], p["channels"]), j)
                    store_as(c, stored, lanes, total, c.gep(out, away, MEMORY[stored]), mask)
                return
            for j, total in enumerate(totals):
                c.store(vector, total, c.gep(results, j * lanes, to), align=8)

            def one(j: Operand) -> None:
                pixel = number(c.add(x, j))
                total = c.load(vector, c.gep(results, c.mul(j, lanes), to), align=8)
                epilogue.run(total, to, Place(pixel, ch, 0, c.add(c.mul(pixel, p["channels"]), ch), mask))

            c.loop(0, len(totals), one)

        def filter_tap(ch: Operand, r: int, k: int) -> str:
            return c.load(vector, c.gep(filters, c.add(c.mul(padded, r * len(window.columns) + k), ch), to), align=8)

        def inner(x: str, ch: Operand, mask: str | None, block: int) -> None:
            totals = ["zeroinitializer"] * block
            if window.rows:
                # Only the lowest row is new; blocks of it are too short and too far apart for the processor to foresee.
                following = c.mul(c.add(c.mul(c.add(x, 2 * block), window.step), p["move_x"]), strides[-1])
                for j in range(block * window.step):
                    c.prefetch(c.gep(lines[-1], c.add(c.add(following, c.mul(strides[-1], j)), ch), memory))
                if not at_once:
                    for j in range(block):
                        pixel = number(c.add(x, block + j))
                        epilogue.expect(Place(pixel, ch, 0, c.add(c.mul(pixel, p["channels"]), ch)), lanes)
            for r in range(window.rows):
                at = c.add(c.mul(c.add(c.mul(x, window.step), p["move_x"]), strides[r]), ch)
                start, loaded = c.gep(lines[r], at, memory), {}
                taps = [filter_tap(ch, r, k) for k in range(len(window.columns))]
                for j in range(block):
                    for k, move in enumerate(window.columns):
                        pixel = j * window.step + move
                        if pixel not in loaded:
                            loaded[pixel] = load_as(
                                c, dtype, to, lanes, c.gep(start, c.mul(pixel, strides[r]), memory), mask
                            )
                        totals[j] = c.fma(to, lanes, loaded[pixel], taps[k], totals[j])
            finish(x, ch, mask, totals)

        def edge(x: str, ch: Operand, mask: str | None) -> None:
            total = "zeroinitializer"
            for r in range(window.rows):
                for k, move in enumerate(window.columns):
                    at_x = c.add(c.add(c.mul(x, window.step), p["move_x"]), move)
                    place = c.gep(lines[r], c.add(c.mul(at_x, strides[r]), ch), memory)
                    pointer = c.select(c.below(at_x, p["width"]), place, zeros, "ptr")
                    value = load_as(c, dtype, to, lanes, pointer, mask)
                    total = c.fma(to, lanes, value, filter_tap(ch, r, k), total)
            finish(x, ch, mask, [total])

        def edges(begin: Operand, end: Operand) -> None:
            c.loop(begin, end, lambda x: c.over_vectors(p["channels"], lanes, lambda ch, mask: edge(x, ch, mask)))

        # Pixels outside, channels inside: memory is read in order.
        edges(0, inside_from)
        begin = inside_from
        for block in BLOCKS:
            end = c.add(begin, c.mul(c.div(c.sub(inside_to, begin), block), block))

            def one_block(x: str, block: int = block) -> None:
                c.over_vectors(p["channels"], lanes, lambda ch, mask: inner(x, ch, mask, block))

            c.loop(begin, end, one_block, step=block)
            begin = end
        edges(begin, p["count_x"])

    total = c.mul(p["images"], p["count_y"])
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), row)
    c.finish()
    return module.text()


# -- the weights' gradient -------------------------------------------------------------------------------------------

DW_PARAMS = words("images height width channels result_height result_width step_y top left dilation_y")


def plan_weight_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    oh, ow = spec.out_size(h, w)
    c, (kh, kw) = spec.channels[0], spec.kernel
    window = Window(kh, tuple(x * spec.dilation[1] for x in range(kw)), spec.stride[1])
    params = (n, h, w, c, oh, ow, spec.stride[0], spec.padding[0], spec.padding[1], spec.dilation[0])
    lanes = target.lanes(TYPES[COMPUTE[spec.dtype]])
    # From the sizes alone, so that the bits do not depend on the threads; adding up takes a hundredth of the time at most.
    few = max(1, min(16, n * oh * ow // 96))
    tasks = divided(n * oh, few, n * oh * ow * c * spec.taps, MOST_PRODUCTS)
    part = spec.taps * -(-c // lanes) * lanes
    launches = [
        Launch(dw_source(spec.dtype, window), ("x", "dy", "w:parts"), params, tasks),
        Launch(dw_sum_source(spec.dtype, spec.out_dtype), ("w:parts", "dw"), (c, spec.taps, tasks), 1),
    ]
    return Plan(launches, {"w:parts": tasks * part * TYPES[COMPUTE[spec.dtype]]})


@lru_cache(maxsize=64)
def dw_source(dtype: str, window: Window) -> KernelSource:
    key = f"depthwise weight gradient {dtype} {window}"
    return KernelSource(
        "conv.depthwise.dw", key, lambda target: emit_dw(dtype, window, target), scratch=lambda p: (p[3] + 64) * 8
    )


def emit_dw(dtype: str, window: Window, target: Target) -> str:
    """A task sums over its rows of the result into its part, (tap, channel)."""
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(DW_PARAMS)}
    image, dy, parts = c.buffer(0), c.buffer(1), c.buffer(2)
    memory, to = MEMORY[dtype], MEMORY[COMPUTE[dtype]]
    lanes = target.lanes(TYPES[COMPUTE[dtype]])
    vector = f"<{lanes} x {to}>"
    width, block = len(window.columns), 4
    # As many rows of taps at a time as leave registers for the rest.
    at_once = max(1, (target.registers - 6) // width)

    padded = c.round_up(p["channels"], lanes)
    part_size = c.mul(padded, window.rows * width)
    part = c.gep(parts, c.mul("%task", part_size), to)
    zeros = "%scratch"
    c.loop(0, padded, lambda i: c.store(vector, "zeroinitializer", c.gep(zeros, i, to), align=8), step=lanes)
    c.loop(0, part_size, lambda i: c.store(vector, "zeroinitializer", c.gep(part, i, to), align=8), step=lanes)

    widest = max(window.columns)
    inside_from = c.min(c.div(c.add(p["left"], window.step - 1), window.step), p["result_width"])
    room = c.sub(c.add(p["width"], p["left"]), widest)
    inside_to = c.div(c.max(c.add(room, window.step - 1), 0), window.step)
    inside_to = c.max(c.min(inside_to, p["result_width"]), inside_from)

    def row(i: str) -> None:
        n, y = c.div(i, p["result_height"]), c.rem(i, p["result_height"])
        dy_row = c.gep(dy, c.mul(c.mul(i, p["result_width"]), p["channels"]), memory)
        dy_next = c.gep(dy_row, c.mul(p["result_width"], p["channels"]), memory)
        lines, strides = [], []
        for r in range(window.rows):
            at_y = c.sub(c.add(c.mul(y, p["step_y"]), c.mul(p["dilation_y"], r)), p["top"])
            valid = c.below(at_y, p["height"])
            start = c.gep(image, c.mul(c.mul(c.add(c.mul(n, p["height"]), at_y), p["width"]), p["channels"]), memory)
            lines.append(c.select(valid, start, zeros, "ptr"))
            strides.append(c.select(valid, p["channels"], 0))
        image_next = c.gep(start, c.mul(c.mul(p["step_y"], p["width"]), p["channels"]), memory)

        def fetch(line: str, width: Operand, ch: Operand) -> None:
            """A share of a line that the next row needs: read in one go, where sweeps jump from pixel to pixel."""
            begin, end = (c.mul(c.mul(x, width), TYPES[dtype]) for x in (ch, c.add(ch, lanes)))
            c.loop(begin, end, lambda at: c.prefetch(c.gep(line, at, "i8"), level=2), step=64)

        def channels(ch: Operand, mask: str | None) -> None:
            fetch(dy_next, p["result_width"], ch)
            fetch(image_next, p["width"], ch)
            for first in range(0, window.rows, at_once):
                sweep(ch, mask, range(first, min(window.rows, first + at_once)))

        def sweep(ch: Operand, mask: str | None, rows: range) -> None:
            here = [c.gep(lines[r], ch, memory) for r in rows]
            dy_here = c.gep(dy_row, ch, memory)
            out = [c.gep(part, c.add(c.mul(padded, r * width + k), ch), to) for r in rows for k in range(width)]

            def gradient(x: Operand) -> str:
                return load_as(c, dtype, to, lanes, c.gep(dy_here, c.mul(x, p["channels"]), memory), mask)

            def inner(x: str, *before: str) -> list[str]:
                sums, gradients = list(before), [gradient(c.add(x, j)) for j in range(block)]
                for q, r in enumerate(rows):
                    at = c.mul(c.sub(c.mul(x, window.step), p["left"]), strides[r])
                    start, loaded = c.gep(here[q], at, memory), {}
                    for j in range(block):
                        for k, move in enumerate(window.columns):
                            pixel = j * window.step + move
                            if pixel not in loaded:
                                loaded[pixel] = load_as(
                                    c, dtype, to, lanes, c.gep(start, c.mul(pixel, strides[r]), memory), mask
                                )
                            sums[q * width + k] = c.fma(to, lanes, loaded[pixel], gradients[j], sums[q * width + k])
                return sums

            def edge(x: str, *before: str) -> list[str]:
                sums, g = list(before), gradient(x)
                for q, r in enumerate(rows):
                    for k, move in enumerate(window.columns):
                        at_x = c.add(c.sub(c.mul(x, window.step), p["left"]), move)
                        place = c.gep(here[q], c.mul(at_x, strides[r]), memory)
                        pointer = c.select(c.below(at_x, p["width"]), place, zeros, "ptr")
                        sums[q * width + k] = c.fma(
                            to, lanes, load_as(c, dtype, to, lanes, pointer, mask), g, sums[q * width + k]
                        )
                return sums

            def carry(values: list[str]) -> list[tuple[str, str]]:
                return [(vector, value) for value in values]

            blocks = c.mul(c.div(c.sub(inside_to, inside_from), block), block)
            sums = [c.load(vector, pointer, align=8) for pointer in out]
            sums = c.loop(0, inside_from, edge, carried=carry(sums))
            sums = c.loop(inside_from, c.add(inside_from, blocks), inner, step=block, carried=carry(sums))
            sums = c.loop(c.add(inside_from, blocks), p["result_width"], edge, carried=carry(sums))
            for pointer, value in zip(out, sums, strict=True):
                c.store(vector, value, pointer, align=8)

        c.over_vectors(p["channels"], lanes, channels)

    total = c.mul(p["images"], p["result_height"])
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), row)
    c.finish()
    return module.text()


@lru_cache(maxsize=8)
def dw_sum_source(dtype: str, out_dtype: str) -> KernelSource:
    key = f"depthwise weight gradient sum {dtype} {out_dtype}"
    return KernelSource("conv.depthwise.dw.sum", key, lambda target: emit_dw_sum(dtype, out_dtype, target))


def emit_dw_sum(dtype: str, out_dtype: str, target: Target) -> str:
    """dw[channel, tap] = the sum over parts of (tap, channel)."""
    module = Module(target)
    c = Code(module)
    channels, taps, count = (c.param(i) for i in range(3))
    parts, dw = c.buffer(0), c.buffer(1)
    to = MEMORY[COMPUTE[dtype]]
    padded = c.round_up(channels, target.lanes(TYPES[COMPUTE[dtype]]))
    size = c.mul(padded, taps)

    def element(i: str) -> None:
        channel, tap = c.div(i, taps), c.rem(i, taps)

        def add(_: str, pointer: str, total: str) -> list[str]:
            return [c.gep(pointer, size, to), c.value(f"fadd {to} {total}, {c.load(to, pointer)}")]

        start = c.gep(parts, c.add(c.mul(tap, padded), channel), to)
        total = c.loop(0, count, add, carried=[("ptr", start), (to, "0.0")])[1]
        store_as(c, out_dtype, 1, total, c.gep(dw, i, MEMORY[out_dtype]))

    c.loop(0, c.mul(channels, taps), element)
    c.finish()
    return module.text()
