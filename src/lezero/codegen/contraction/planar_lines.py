"""Laying an image out so that every tap of a convolution reads the result's pixels one behind the other.

A *plane* of lines is the image moved by one tap's column: line r holds, for each pixel x of a result row, what the tap
reads there, zeros where it hangs over the edge.  The result's rows follow each other without gaps, so a vector may begin
in one row and end in the next, and rows of 10 pixels use all lanes.  With a vertical stride of one, the taps of a kernel
column share a plane and differ only in the line they start from.

Lines live in thread-private scratch, a few image rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from lezero.codegen.contraction.pack import load_as
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand


@dataclass(frozen=True)
class Steps:
    """Pixel i of the result reads (i * step + move) / up where that is whole; `up` > 1 is a gradient of a stride."""

    step: tuple[int, int]
    up: tuple[int, int] = (1, 1)

    @property
    def contiguous(self) -> bool:
        """Whether neighbours in the result read neighbours in the image."""
        return self.step[1] == 1 and self.up == (1, 1)


@dataclass(frozen=True)
class Lines:
    """
    moves : displacement (rows, columns) of each plane.
    extra : lines of a plane beyond the result's rows.
    taps : (plane, first line) of each tap, in the kernel's order.
    """

    moves: tuple[tuple[int, int], ...]
    extra: int
    taps: tuple[tuple[int, int], ...]


def lines_of(kernel: tuple[int, int], step: int, dilation: tuple[int, int], before: tuple[int, int]) -> Lines:
    """The lines of a convolution with vertical stride `step` and padding `before` (top, left)."""
    (kh, kw), (dy, dx), (top, left) = kernel, dilation, before
    columns = [x * dx - left for x in range(kw)]
    if step == 1:
        taps = [(x, y * dy) for y in range(kh) for x in range(kw)]
        return Lines(tuple((-top, move) for move in columns), (kh - 1) * dy, tuple(taps))
    moves = [(y * dy - top, move) for y in range(kh) for move in columns]
    return Lines(tuple(moves), 0, tuple((t, 0) for t in range(kh * kw)))


FILL_ARGUMENTS = (
    "ptr %image, i64 %slices, i64 %pitch, i64 %height, i64 %width, i64 %planes, ptr %moves, i64 %first, i64 %count, "
    "i64 %lines, i64 %room, i64 %result_width, ptr %out, i1 %edges"
)


def emit_fill(module: Module, dtype: str, to: str, lanes: int, steps: Steps) -> None:
    """Define ``@fill``, which writes out[plane, slice, line, x] for lines 0 to `count` - 1.

    Its arguments: `slices` images, `pitch` elements apart from `image` on, each `height` by `width`; a plane for each
    of `planes` moves in `moves`; line 0 is that of the result's row `first`, which has `result_width` pixels.  A plane
    has room for `room` slices of `lines` lines, and up to a vector is written behind the end.

    Lines that lie above or below the image are left alone unless `edges`: a call with the same `first` zeroed them.
    """
    (step_y, step_x), (up_y, up_x) = steps.step, steps.up
    memory = MEMORY[dtype]
    if steps.contiguous:
        _emit_column(module, dtype, to, lanes)
    c = Code(module, "fill", FILL_ARGUMENTS, internal=True)
    width, source_width, source_height, count = "%result_width", "%width", "%height", "%count"
    slice_size = c.mul("%lines", width)
    plane_size = c.mul("%room", slice_size)

    def plane(j: str) -> None:
        move = c.gep("%moves", c.mul(j, 2), "i64")
        move_y, move_x = c.load("i64", move), c.load("i64", c.gep(move, 1, "i64"))
        start = c.add(c.mul("%first", step_y), move_y)
        here = c.gep("%out", c.mul(j, plane_size), to)
        if steps.contiguous:
            columns(start, move_x, here)
        else:
            c.loop(0, "%slices", lambda s: gather(start, move_x, s, here))

    def columns(start: Operand, move_x: Operand, here: str) -> None:
        # Lines of the image: 0 <= start + line * step_y < height.
        begin = c.min(c.ceil_div(c.max(c.sub(0, start), 0), step_y), count)
        end = c.ceil_div(c.max(c.sub(source_height, start), 0), step_y)
        end = c.max(c.min(end, count), begin)
        last = c.mul(c.div(c.sub(width, 1), lanes), lanes)
        step = c.mul(source_width, step_y)

        def column(i: str) -> None:
            # The last column comes first: the zeros that a whole vector writes past its line, later ones overwrite.
            x = c.sub(last, i)
            at_x = c.add(x, move_x)
            least, most = c.sub(0, at_x), c.min(c.sub(source_width, at_x), c.sub(width, x))
            image = c.gep("%image", c.add(c.mul(start, source_width), at_x), memory)
            c.emit(
                f"call void @column(ptr {image}, i64 %pitch, i64 {step}, i64 {least}, i64 {most}, i64 %slices, "
                f"i64 {begin}, i64 {end}, i64 %count, ptr {c.gep(here, x, to)}, i64 {slice_size}, i64 {width}, i1 %edges)"
            )

        c.loop(0, width, column, step=lanes)

    def gather(start: Operand, move_x: Operand, s: str, here: str) -> None:
        image = c.gep("%image", c.mul(s, "%pitch"), memory)
        to_slice = c.gep(here, c.mul(s, slice_size), to)

        def line(r: str) -> None:
            at_y, row_met = _whole(c, c.add(start, c.mul(r, step_y)), up_y, source_height)
            row = c.gep(image, c.mul(at_y, source_width), memory)
            to_line = c.gep(to_slice, c.mul(r, width), to)

            def pixel(x: str) -> None:
                at_x, met = _whole(c, c.add(c.mul(x, step_x), move_x), up_x, source_width)
                met = c.value(f"and i1 {met}, {row_met}")
                c.store(to, "0.0", c.gep(to_line, x, to))

                def copy() -> None:
                    c.store(to, load_as(c, dtype, to, 1, c.gep(row, at_x, memory)), c.gep(to_line, x, to))

                c.when(met, copy)

            c.loop(0, width, pixel)

        c.loop(0, count, line)

    c.loop(0, "%planes", plane)
    c.finish()


COLUMN_ARGUMENTS = (
    "ptr %image, i64 %pitch, i64 %step, i64 %least, i64 %most, i64 %slices, i64 %begin, i64 %end, i64 %count, ptr %out, "
    "i64 %slice_size, i64 %width, i1 %edges"
)


def _emit_column(module: Module, dtype: str, to: str, lanes: int) -> None:
    """Define ``@column``: one vector of each line, of whose lanes those from `least` to below `most` lie in the image.

    Lines from `begin` to below `end` do.  A function of its own takes LLVM half the time that one nest of loops takes.
    """
    c = Code(module, "column", COLUMN_ARGUMENTS, internal=True)
    memory, vector = MEMORY[dtype], f"<{lanes} x {to}>"
    numbers = ", ".join(f"i64 {i}" for i in range(lanes))
    above = c.value(f"icmp sge <{lanes} x i64> <{numbers}>, {c.splat('%least', 'i64', lanes)}")
    below = c.value(f"icmp slt <{lanes} x i64> <{numbers}>, {c.splat('%most', 'i64', lanes)}")
    mask = c.value(f"and <{lanes} x i1> {above}, {below}")
    inside = c.sub("%end", "%begin")
    outside = c.select("%edges", c.sub("%count", inside), 0)

    def slice(_: str, image: str, out: str) -> list[str]:
        def zero(i: str) -> None:
            r = c.add(i, c.select(c.less(i, "%begin"), 0, inside))
            c.store(vector, "zeroinitializer", c.gep(out, c.mul(r, "%width"), to), align=4)

        def copy(r: str) -> None:
            value = load_as(c, dtype, to, lanes, c.gep(image, c.mul(r, "%step"), memory), mask)
            c.vector_store(to, lanes, value, c.gep(out, c.mul(r, "%width"), to))

        # In this order what a line's end writes into the next line is zeros or is overwritten.
        c.loop(0, outside, zero)
        c.loop("%begin", "%end", copy)
        return [c.gep(image, "%pitch", memory), c.gep(out, "%slice_size", to)]

    c.loop(0, "%slices", slice, carried=[("ptr", "%image"), ("ptr", "%out")])
    c.finish()


def _whole(c: Code, place: Operand, up: int, extent: Operand) -> tuple[Operand, str]:
    """place / up, and whether that is a whole number from 0 to `extent` - 1."""
    if up == 1:
        return place, c.below(place, extent)
    inside = c.below(place, c.mul(extent, up))
    return c.div(place, up), c.value(f"and i1 {inside}, {c.value(f'icmp eq i64 {c.rem(place, up)}, 0')}")
