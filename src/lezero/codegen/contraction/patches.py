"""Transforming patches of bf16 for minimal filtering (``winograd.py``) with few instructions.

A register of 32 channels of bf16 is one of the even ones in f32 and one of the odd, a shift or a mask apart; transformed and
rounded they are a register of bf16 again, first the even ones, then the odd.  So channels are multiplied in another order
(`channel_of`), in which the weights are transformed as well.  Patches inside the image are found by four rows and a stride,
where those around its edge take a pointer for every pixel.
"""

from __future__ import annotations

from collections.abc import Callable

from lezero.codegen.contraction import pairs
from lezero.codegen.contraction.text import Code, Operand

CHANNELS = 32
SIDE = 4


def suits(depth: int) -> bool:
    """Whether so many channels fill whole registers."""
    return depth % CHANNELS == 0


def channel_of(c: Code, step: Operand, half: int) -> Operand:
    """The channel that is the first or the second `half` of a pair."""
    before, place = c.mul(c.div(step, CHANNELS // 2), CHANNELS), c.rem(step, CHANNELS // 2)
    odd = c.less(CHANNELS // 4 - 1, place)
    return c.add(c.add(before, c.mul(place, 4)), c.add(c.select(odd, 1 - CHANNELS, 0), 2 * half))


def within(c: Code, size: tuple[str, str], y: Operand, x: Operand, columns: int = SIDE) -> str:
    """Whether all of a patch of so many columns from (y, x) on is in an image of that height and width."""
    height, width = size
    inside = [c.less(-1, y), c.less(c.add(y, SIDE - 1), height), c.less(-1, x), c.less(c.add(x, columns - 1), width)]
    first, second = (c.value(f"and i1 {a}, {b}") for a, b in (inside[:2], inside[2:]))
    return c.value(f"and i1 {first}, {second}")


def transform_rows(c: Code, rows: list[str], depth: Operand, out: str, plane: Operand) -> None:
    """B' d B of a patch of four rows of pixels that follow each other; its points go to `out`, `plane` pairs apart."""

    def channels(j: str, *carried: str) -> list[str]:
        rows, outs = carried[:SIDE], carried[SIDE:]
        _points(c, lambda i, k: c.gep(rows[i], c.mul(depth, k), "i16"), outs, plane)
        return [c.gep(x, CHANNELS, "i16") for x in carried]

    starts = [("ptr", x) for x in (*rows, *_lines(c, out, plane))]
    c.loop(0, depth, channels, step=CHANNELS, carried=starts)


def transform_pixels(c: Code, pixels: list[str], depth: Operand, out: str, plane: Operand) -> None:
    """The same of sixteen pixels wherever they are."""

    def channels(j: str, *outs: str) -> list[str]:
        _points(c, lambda i, k: c.gep(pixels[SIDE * i + k], j, "i16"), outs, plane)
        return [c.gep(x, CHANNELS, "i16") for x in outs]

    c.loop(0, depth, channels, step=CHANNELS, carried=[("ptr", x) for x in _lines(c, out, plane)])


def transform_neighbours(c: Code, rows: list[str], depth: Operand, out: str, plane: Operand) -> None:
    """B' d B of two patches side by side, of four rows of pixels: pairs of their points, `plane` elements apart.

    A register has the neighbours of 16 channels in their order.
    """
    lanes = CHANNELS // 2

    def channels(j: str, *carried: str) -> list[str]:
        rows, outs = carried[:SIDE], carried[SIDE:]

        def pixel(i: int, k: int) -> str:
            half = c.vector_load("i16", lanes, c.gep(rows[i], c.mul(depth, k), "i16"))
            wide = c.value(f"zext <{lanes} x i16> {half} to <{lanes} x i32>")
            wide = c.value(f"shl <{lanes} x i32> {wide}, {c.splat(16, 'i32', lanes)}")
            return c.value(f"bitcast <{lanes} x i32> {wide} to <{lanes} x float>")

        pixels = [[pixel(i, k) for k in range(SIDE + 2)] for i in range(SIDE)]
        for i, (operation, a, b) in enumerate(LINE):
            columns = [_combined(c, operation, x, y) for x, y in zip(pixels[a], pixels[b], strict=True)]
            for k, (across, a, b) in enumerate(LINE):
                first, second = (_combined(c, across, columns[a + at], columns[b + at]) for at in (0, 2))
                low, high = pairs.halves(c, lanes, pairs.rounded_both(c, lanes, first, second))
                here = c.gep(outs[i], c.mul(plane, k), "i32")
                c.vector_store("float", lanes, pairs.interleave(c, lanes, low, high, 0, lanes), here)
        return [c.gep(x, lanes, "i16") for x in rows] + [c.gep(x, lanes, "i32") for x in outs]

    starts = [("ptr", x) for x in (*rows, *_lines(c, out, plane))]
    c.loop(0, depth, channels, step=lanes, carried=starts)


def _combined(c: Code, operation: str, a: str, b: str) -> str:
    return c.value(f"{operation} <{CHANNELS // 2} x float> {a}, {b}")


def _lines(c: Code, out: str, plane: Operand) -> list[str]:
    """Where each row of points begins."""
    return [c.gep(out, c.mul(plane, SIDE * i), "i32") for i in range(SIDE)]


def _points(
    c: Code, pixel: Callable[[int, int], str], outs: tuple[str, ...] | list[str], plane: Operand
) -> None:  # fmt: skip
    """Row by row of the points, so that all that is needed stays in registers."""
    lanes = CHANNELS // 2
    words, vector = f"<{lanes} x i32>", f"<{lanes} x float>"
    widened: dict[tuple[int, int], tuple[str, str]] = {}

    def halves(i: int, k: int) -> tuple[str, str]:
        if (i, k) not in widened:
            both = c.value(f"load {words}, ptr {pixel(i, k)}, align 2")
            even = c.value(f"shl {words} {both}, {c.splat(16, 'i32', lanes)}")
            odd = c.value(f"and {words} {both}, {c.splat(-65536, 'i32', lanes)}")
            widened[i, k] = tuple(c.value(f"bitcast {words} {x} to {vector}") for x in (even, odd))  # type: ignore[assignment]
        return widened[i, k]

    for i, (operation, a, b) in enumerate(LINE):
        columns = [
            [_combined(c, operation, x, y) for x, y in zip(halves(a, k), halves(b, k), strict=True)]
            for k in range(SIDE)
        ]
        for k, (across, a, b) in enumerate(LINE):
            even, odd = (_combined(c, across, x, y) for x, y in zip(columns[a], columns[b], strict=True))
            here = c.gep(outs[i], c.mul(plane, k), "i32")
            c.vector_store("i16", CHANNELS, pairs.rounded_both(c, lanes, even, odd), here)


LINE = (("fsub", 0, 2), ("fadd", 1, 2), ("fsub", 2, 1), ("fsub", 1, 3))
"""B' along one axis: an operation and what of four numbers it takes, for each of four results."""
