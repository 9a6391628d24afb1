"""The gradient of a planar convolution with respect to its weights.

dw[o, c, tap] is a dot product over the result's pixels: of the output's gradient, dense in memory, and of channel c laid
out as lines (see ``planar_lines``), where the tap's pixels are dense too.  A tile keeps a vector of partial sums for each
of a few output channels and taps.  A task takes some images and keeps its sums, still vectors, in its own part of a
workspace; a second launch adds the parts and the lanes, always in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lezero.codegen.contraction.pack import load_as, store_as
from lezero.codegen.contraction.planar_lines import Steps, emit_fill, lines_of
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

BLOCK_BYTES = 32 << 10
"""One channel's lines and one tile's rows of the gradient: they stay in L1 while all taps pass over them."""

PARAMS = words("images height width channels result_height result_width columns group rows blocks planes extra taps")
"""group: images per block, rows: rows of the result per block, blocks: blocks per image.  Then: a move (rows, columns)
per plane, and per tap (plane, line)."""


@dataclass(frozen=True)
class Square:
    """A tile of the gradient: vectors of partial sums for `outputs` channels and `taps` taps."""

    outputs: int
    taps: int
    lanes: int
    type: str

    @property
    def sums(self) -> int:
        return self.outputs * self.taps

    @property
    def itemsize(self) -> int:
        return 8 if self.type == "double" else 4

    @property
    def register(self) -> str:
        return f"<{self.lanes} x {self.type}>"


def choose_square(target: Target, itemsize: int, outputs: int, taps: int) -> Square:
    """The tile that costs least: what it computes in vain, and loads that cross a cache line and take two cycles."""

    def cost(shape: tuple[int, int]) -> float:
        o, t = shape
        return -(-outputs // o) * -(-taps // t) * max(o * t, 2.0 * (o + t))

    shapes = [(o, t) for o in range(1, 9) for t in range(1, 9) if o * t + o + 1 <= target.registers - 1]
    outputs_, taps_ = min(shapes, key=cost)
    return Square(outputs_, taps_, target.lanes(itemsize), "double" if itemsize == 8 else "float")


def plan_weight_grad(spec: ConvSpec, n: int, h: int, w: int, threads: int, target: Target) -> Plan:
    """Plan "dw" (O, C, KH, KW) from "x" (n, C, h, w) and "dy" (n, O, oh, ow)."""
    oh, ow = (max(size, 0) for size in spec.out_size(h, w))
    (c, o), itemsize = spec.channels, TYPES[COMPUTE[spec.dtype]]
    square = choose_square(target, itemsize, o, spec.taps)
    lines = lines_of(spec.kernel, spec.stride[0], spec.dilation, spec.padding[:2])
    products = n * oh * ow * o * c * spec.taps
    busy = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    per_row = (len(lines.moves) + square.outputs) * max(1, ow) * itemsize
    rows = min(max(1, oh), max(BLOCK_BYTES // per_row, 2 * lines.extra, 1))
    blocks = -(-oh // rows)
    group = max(1, min(BLOCK_BYTES // (per_row * (rows + lines.extra)), -(-n // (4 * busy if busy > 1 else 1))))
    if blocks > 1:
        group = 1
    params = (
        n, h, w, c, oh, ow, o, group, rows, blocks, len(lines.moves), lines.extra, spec.taps,
        *(x for move in lines.moves for x in move), *(x for tap in lines.taps for x in tap),
    )  # fmt: skip
    items = -(-n // group) * blocks
    tasks = tasks_for_products(items, products, busy)
    part = c * -(-o // square.outputs) * -(-spec.taps // square.taps) * square.sums * square.lanes
    made = source(spec.dtype, square, Steps(spec.stride))
    launches = [Launch(made, ("x", "dy", "w:parts"), params, tasks)]
    busy = useful_threads(threads, tasks * part, ELEMENTS_PER_THREAD)
    sums = tasks_for_elements(o, tasks * part, busy)
    launches.append(Launch(sum_source(spec.out_dtype, square), ("w:parts", "dw"), (c, o, spec.taps, tasks, part), sums))
    return Plan(launches, {"w:parts": tasks * part * itemsize})


@lru_cache(maxsize=64)
def source(dtype: str, square: Square, steps: Steps) -> KernelSource:
    key = f"planar weight gradient {dtype} {square} {steps}"
    return KernelSource(
        "conv.planar.dw", key, lambda target: emit(dtype, square, steps, target),
        scratch=lambda p: layout(square, p)[-1],
    )  # fmt: skip


def layout(square: Square, params: tuple[int, ...]) -> tuple[int, int]:
    """Byte offset in scratch of the lines (a place per tap comes first), and the end."""
    p = dict(zip(PARAMS, params))
    lines = -(-p["taps"] // square.taps) * square.taps * 8
    elements = p["planes"] * p["group"] * (p["rows"] + p["extra"]) * p["result_width"]
    return lines, lines + elements * square.itemsize + 2 * square.lanes * square.itemsize


def emit(dtype: str, square: Square, steps: Steps, target: Target) -> str:
    module = Module(target)
    _emit_square(module, dtype, square)
    emit_fill(module, dtype, square.type, square.lanes, steps)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    move_table = c.gep("%params", len(PARAMS), "i64")
    tap_table = c.gep(move_table, c.mul(p["planes"], 2), "i64")
    image, dy, parts = c.buffer(0), c.buffer(1), c.buffer(2)
    memory, to, lanes = MEMORY[dtype], square.type, square.lanes

    over_outputs, over_taps = c.ceil_div(p["columns"], square.outputs), c.ceil_div(p["taps"], square.taps)
    padded_taps = c.mul(over_taps, square.taps)
    # The same layout as `layout`, with sizes in registers.
    places, laid_out = "%scratch", c.gep("%scratch", padded_taps, "i64")
    lines = c.add(p["rows"], p["extra"])
    slice_size = c.mul(lines, p["result_width"])

    def place(t: str) -> None:
        # Taps past the last repeat it; the second launch ignores their sums.
        tap = c.gep(tap_table, c.mul(c.min(t, c.sub(p["taps"], 1)), 2), "i64")
        at_plane, line = c.load("i64", tap), c.load("i64", c.gep(tap, 1, "i64"))
        slice = c.mul(at_plane, p["group"])
        offset = c.mul(c.add(c.mul(slice, lines), line), p["result_width"])
        c.store("i64", offset, c.gep(places, t, "i64"))

    c.loop(0, padded_taps, place)

    per_square = square.sums * lanes
    part_size = c.mul(c.mul(p["channels"], c.mul(over_outputs, over_taps)), per_square)
    part = c.gep(parts, c.mul("%task", part_size), to)
    c.loop(
        0, part_size, step=lanes,
        body=lambda i: c.store(square.register, "zeroinitializer", c.gep(part, i, to), align=square.itemsize),
    )  # fmt: skip

    size, result = c.mul(p["height"], p["width"]), c.mul(p["result_height"], p["result_width"])
    pitch, dy_pitch = c.mul(p["channels"], size), c.mul(p["columns"], result)

    groups = c.div(c.add(p["images"], c.sub(p["group"], 1)), p["group"])
    total = c.mul(groups, p["blocks"])
    first_item = c.div(c.mul("%task", total), "%tasks")
    several_blocks = c.less(1, p["blocks"])

    def item(i: str) -> None:
        n, first = c.mul(c.div(i, p["blocks"]), p["group"]), c.mul(c.rem(i, p["blocks"]), p["rows"])
        count = c.min(p["group"], c.sub(p["images"], n))
        rows = c.min(p["rows"], c.sub(p["result_height"], first))
        pixels = c.mul(rows, p["result_width"])
        dy_here = c.gep(dy, c.add(c.mul(n, dy_pitch), c.mul(first, p["result_width"])), memory)

        def channel(ch: str) -> None:
            start = c.gep(image, c.add(c.mul(n, pitch), c.mul(ch, size)), memory)
            edges = c.value(f"and i1 {c.value(f'icmp eq i64 {i}, {first_item}')}, {c.value(f'icmp eq i64 {ch}, 0')}")
            edges = c.value(f"or i1 {several_blocks}, {edges}")
            c.emit(
                f"call void @fill(ptr {start}, i64 {count}, i64 {pitch}, i64 {p['height']}, i64 {p['width']}, "
                f"i64 {p['planes']}, ptr {move_table}, i64 {first}, i64 {c.add(rows, p['extra'])}, i64 {lines}, "
                f"i64 {p['group']}, i64 {p['result_width']}, ptr {laid_out}, i1 {edges})"
            )

            def outputs(j: str) -> None:
                o = c.mul(j, square.outputs)
                gradient = c.gep(dy_here, c.mul(o, result), memory)
                left = c.sub(c.sub(p["columns"], 1), o)

                def taps(t: str) -> None:
                    number = c.add(c.mul(c.add(c.mul(ch, over_outputs), j), over_taps), t)
                    sums = c.gep(part, c.mul(number, per_square), to)
                    its_places = c.gep(places, c.mul(t, square.taps), "i64")
                    c.emit(
                        f"call void @square(ptr {gradient}, i64 {left}, i64 {result}, i64 {dy_pitch}, ptr {laid_out}, "
                        f"ptr {its_places}, i64 {slice_size}, i64 {count}, i64 {pixels}, ptr {sums})"
                    )

                c.loop(0, over_taps, taps)

            c.loop(0, over_outputs, outputs)

        c.loop(0, p["channels"], channel)

    c.loop(first_item, c.div(c.mul(c.add("%task", 1), total), "%tasks"), item)
    c.finish()
    return module.text()


def _emit_square(module: Module, dtype: str, square: Square) -> None:
    """Define ``@square``: sums[o, t] += gradient[i, o, x] * lines[places[t] + i, x] over `count` images i and pixels x.

    ``left`` is the number of the last row of the gradient; rows past it repeat it.
    """
    arguments = (
        "ptr %gradient, i64 %left, i64 %plane, i64 %pitch, ptr %lines, ptr %places, i64 %slice, i64 %count, i64 %pixels, "
        "ptr %sums"
    )
    c = Code(module, "square", arguments, internal=True)
    memory, to, lanes = MEMORY[dtype], square.type, square.lanes
    rows = [c.gep("%gradient", c.mul(c.min(o, "%left"), "%plane"), memory) for o in range(square.outputs)]
    taps = [c.gep("%lines", c.load("i64", c.gep("%places", t, "i64")), to) for t in range(square.taps)]
    whole = c.mul(c.div("%pixels", lanes), lanes)

    def image(i: str, *before: str) -> list[str]:
        to_row, to_line = c.mul(i, "%pitch"), c.mul(i, "%slice")

        def step(x: str, sums: tuple[str, ...], mask: str | None) -> list[str]:
            at_row, at_line = c.add(to_row, x), c.add(to_line, x)
            gradients = [load_as(c, dtype, to, lanes, c.gep(row, at_row, memory), mask) for row in rows]
            result = list(sums)
            for t, tap in enumerate(taps):
                pixels = c.vector_load(to, lanes, c.gep(tap, at_line, to), mask)
                for o, gradient in enumerate(gradients):
                    k = o * square.taps + t
                    result[k] = c.fma(to, lanes, gradient, pixels, result[k])
            return result

        def carry(sums: list[str] | tuple[str, ...]) -> list[tuple[str, Operand]]:
            return [(square.register, x) for x in sums]

        sums = c.loop(0, whole, lambda x, *sums: step(x, sums, None), step=lanes, carried=carry(before))

        def rest(x: str, *sums: str) -> list[str]:
            return step(x, sums, c.mask(c.sub("%pixels", x), lanes))

        return c.loop(whole, "%pixels", rest, step=lanes, carried=carry(sums))

    pointers = [c.gep("%sums", k * lanes, to) for k in range(square.sums)]
    start = [(square.register, c.load(square.register, x, align=square.itemsize)) for x in pointers]
    for pointer, total in zip(pointers, c.loop(0, "%count", image, carried=start), strict=True):
        c.store(square.register, total, pointer, align=square.itemsize)
    c.finish()


@lru_cache(maxsize=64)
def sum_source(out_dtype: str, square: Square) -> KernelSource:
    key = f"planar weight gradient sum {out_dtype} {square}"
    return KernelSource("conv.planar.dw.sum", key, lambda target: emit_sum(out_dtype, square, target))


def emit_sum(out_dtype: str, square: Square, target: Target) -> str:
    """dw[o, c, t] = the sum over parts and lanes of (c, tile, o, t)."""
    module = Module(target)
    c = Code(module)
    channels, columns, taps, count, part_size = (c.param(i) for i in range(5))
    parts, dw = c.buffer(0), c.buffer(1)
    to, lanes, register = square.type, square.lanes, square.register
    over_outputs, over_taps = c.ceil_div(columns, square.outputs), c.ceil_div(taps, square.taps)
    reduce = f"llvm.vector.reduce.fadd.v{lanes}{'f64' if to == 'double' else 'f32'}"
    c.declare(to, reduce, to, register)

    def output(o: str) -> None:
        def channel(ch: str) -> None:
            def tap(t: str) -> None:
                row = c.add(c.mul(ch, over_outputs), c.div(o, square.outputs))
                number = c.add(c.mul(row, over_taps), c.div(t, square.taps))
                inside = c.add(c.mul(c.rem(o, square.outputs), square.taps), c.rem(t, square.taps))
                start = c.gep(parts, c.mul(c.add(c.mul(number, square.sums), inside), lanes), to)

                def add(_: str, pointer: str, total: str) -> list[str]:
                    value = c.load(register, pointer, align=square.itemsize)
                    return [c.gep(pointer, part_size, to), c.value(f"fadd {register} {total}, {value}")]

                vector = c.loop(0, count, add, carried=[("ptr", start), (register, "zeroinitializer")])[1]
                # `reassoc` makes this a tree of fixed shape.
                total = c.value(f"call reassoc {to} @{reduce}({to} -0.0, {register} {vector})")
                index = c.add(c.mul(c.add(c.mul(o, channels), ch), taps), t)
                store_as(c, out_dtype, 1, total, c.gep(dw, index, MEMORY[out_dtype]))

            c.loop(0, taps, tap)

        c.loop(0, channels, channel)

    c.loop(c.div(c.mul("%task", columns), "%tasks"), c.div(c.mul(c.add("%task", 1), columns), "%tasks"), output)
    c.finish()
    return module.text()
