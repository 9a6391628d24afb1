"""Images of few channels for products in pairs of bf16: a row of taps becomes channels.

A copy of the image has for every pixel of a row of results, and for every row of the padded image, what a row of the kernel
meets there: `depth` elements, the last of them zero where they would be odd.  On that a convolution has kernels of one column,
no padding, and a step of one along the row.  Where the image lies in planes, elements that follow each other are of one
channel, and otherwise of one pixel.
"""

from __future__ import annotations

from functools import lru_cache

from lezero.codegen.contraction.microkernel import Tile
from lezero.codegen.contraction.pack import copy_row
from lezero.codegen.contraction.pairs import supported
from lezero.codegen.contraction.spec import ELEMENTS_PER_THREAD, ConvSpec, tasks_for_elements, useful_threads
from lezero.codegen.contraction.text import Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch
from lezero.codegen.target import Target

LEAST_OUTPUTS = 16
"""With fewer outputs the copy, which is `kernel / step` times as large as the image, would cost more than it saves."""

LANES = 32


def suits(spec: ConvSpec, target: Target) -> bool:
    """Whether to unfold the image of a convolution of few channels, which is copied in any case."""
    return supported(spec.dtype, target) and spec.channels[1] >= LEAST_OUTPUTS


def depth(spec: ConvSpec) -> int:
    """Channels of the unfolded image."""
    run = spec.kernel[1] * spec.channels[0]
    return run + run % 2


def places(spec: ConvSpec) -> list[int]:
    """For each element of an output's weights, in the order (channel, vertical, horizontal), which of all taps' unfolded channels
    it multiplies."""
    channels, (high, wide) = spec.channels[0], spec.kernel
    along = [wide, 1] if spec.planes else [1, channels]
    return [
        y * depth(spec) + channel * along[0] + x * along[1]
        for channel in range(channels)
        for y in range(high)
        for x in range(wide)
    ]


# -- the image --------------------------------------------------------------------------------------------------------

PARAMS = words("images height width top left padded out_width")
"""padded: rows of the padded image."""


def unfold(spec: ConvSpec, n: int, h: int, w: int, threads: int) -> tuple[Launch, tuple[int, int, int], int]:
    """The launch from "x" to workspace "w:unfolded", its (N, H, W), and its bytes."""
    top, left, bottom, _ = spec.padding
    _, wide = spec.out_size(h, w)
    padded, elements = h + top + bottom, wide * depth(spec)
    rows = n * padded
    threads = useful_threads(threads, rows * elements, ELEMENTS_PER_THREAD)
    tasks = tasks_for_elements(rows, rows * elements, threads)
    made = _source(spec.channels[0], spec.kernel[1], spec.stride[1], spec.planes)
    launch = Launch(made, ("x", "w:unfolded"), (n, h, w, top, left, padded, wide), tasks)
    return launch, (n, padded, wide), rows * elements * 2


@lru_cache(maxsize=16)
def _source(channels: int, wide: int, step: int, planes: bool) -> KernelSource:
    key = f"conv unfold {channels} {wide} {step}{' planes' if planes else ''}"
    return KernelSource(
        "conv.unfold",
        key,
        lambda target: _emit(channels, wide, step, planes, target),
        scratch=lambda p: 2 * channels * _row_elements(step, wide, dict(zip(PARAMS, p))),
    )


def _row_elements(step: int, wide: int, p: dict[str, int]) -> int:
    """Elements of a row in scratch, of one channel, and what a vector may read behind them."""
    return max(p["left"] + p["width"], step * p["out_width"] + wide) + LANES


def _emit(channels: int, wide: int, step: int, planes: bool, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    image, out = c.buffer(0), c.buffer(1)
    memory = "i16"
    run, lines, each = (wide, channels, 1) if planes else (wide * channels, 1, channels)
    filler = run * lines % 2
    pixel = run * lines + filler
    reach = c.add(c.mul(p["out_width"], step), wide)
    pitch = c.mul(c.add(c.max(c.add(p["left"], p["width"]), reach), LANES), each)
    length, margin = c.mul(p["width"], each), c.mul(p["left"], each)
    c.loop(0, c.mul(pitch, lines), lambda i: c.store(memory, 0, c.gep("%scratch", i, memory)))

    def row(i: str) -> None:
        y, n = c.sub(c.rem(i, p["padded"]), p["top"]), c.div(i, p["padded"])
        to_here = c.gep(out, c.mul(c.mul(i, p["out_width"]), pixel), memory)

        def inside() -> None:
            for line in range(lines):
                number = c.add(c.mul(c.add(c.mul(n, lines), line), p["height"]), y)
                middle = c.gep("%scratch", c.add(c.mul(pitch, line), margin), memory)
                copy_row(
                    c, "bf16", memory, LANES, c.gep(image, c.mul(number, length), memory), length, middle, exact=True
                )
            c.loop(0, p["out_width"], put, carried=[("ptr", to_here)])

        def put(x: str, to_pixel: str) -> list[str]:
            for line in range(lines):
                here = c.gep("%scratch", c.add(c.mul(pitch, line), c.mul(x, step * each)), memory)
                last = filler if line == lines - 1 else 0
                for first in range(0, run, LANES):
                    met = min(LANES, run - first)
                    lanes = min(LANES, 1 << (met + last - 1).bit_length())
                    value = c.vector_load(memory, lanes, c.gep(here, first, memory), c.mask(met, lanes))
                    to_element = c.gep(to_pixel, line * run + first, memory)
                    c.vector_store(memory, lanes, value, to_element, c.mask(met + last, lanes))
            return [c.gep(to_pixel, pixel, memory)]

        def outside() -> None:
            c.loop(0, c.mul(p["out_width"], pixel), lambda j: c.store(memory, 0, c.gep(to_here, j, memory)))

        c.when(c.below(y, p["height"]), inside, outside)

    total = c.mul(p["images"], p["padded"])
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), row)
    c.finish()
    return module.text()


# -- the weights ------------------------------------------------------------------------------------------------------

WEIGHTS_PARAMS = words("columns line steps panels width")


def pack_weights(spec: ConvSpec, tile: Tile, threads: int) -> tuple[Launch, int]:
    """The launch from operand "w" to workspace "w:weights" and the bytes it fills: panels of pairs."""
    rows = depth(spec) * spec.kernel[0]
    elements = [-1] * rows
    for element, row in enumerate(places(spec)):
        elements[row] = element
    panels = -(-spec.channels[1] // tile.width)
    threads = useful_threads(threads, panels * tile.width * rows, ELEMENTS_PER_THREAD)
    params = (spec.channels[1], spec.channels[0] * spec.taps, rows // 2, panels, tile.width, *elements)
    tasks = tasks_for_elements(panels, panels * tile.width * rows, threads)
    source = KernelSource("conv.weights", "conv unfolded weights", _emit_weights)
    return Launch(source, ("w", "w:weights"), params, tasks), panels * tile.width * rows * 2


def _emit_weights(target: Target) -> str:
    """There are few: one by one will do."""
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(WEIGHTS_PARAMS)}
    elements = c.gep("%params", len(WEIGHTS_PARAMS), "i64")
    weights, packed = c.buffer(0), c.buffer(1)
    last = c.sub(p["columns"], 1)

    def half(line: str, element: Operand) -> str:
        value = c.load("i16", c.gep(line, c.max(element, 0), "i16"))
        return c.select(c.less(element, 0), 0, value, "i16")

    def panel(i: str) -> None:
        def step(k: str) -> None:
            first, second = (c.load("i64", c.gep(elements, c.add(c.mul(k, 2), h), "i64")) for h in range(2))
            out = c.gep(packed, c.mul(c.mul(c.add(c.mul(i, p["steps"]), k), p["width"]), 2), "i16")

            def column(j: str) -> None:
                line = c.gep(weights, c.mul(c.min(c.add(c.mul(i, p["width"]), j), last), p["line"]), "i16")
                for h, element in enumerate((first, second)):
                    c.store("i16", half(line, element), c.gep(out, c.add(c.mul(j, 2), h), "i16"))

            c.loop(0, p["width"], column)

        c.loop(0, p["steps"], step)

    c.loop(c.div(c.mul("%task", p["panels"]), "%tasks"), c.div(c.mul(c.add("%task", 1), p["panels"]), "%tasks"), panel)
    c.finish()
    return module.text()
