"""Products of bf16 in hardware: two neighbours along the reduction make one element, a *pair*.

`vdpbf16ps` multiplies pairs and adds both products to a sum in f32.  A pair is as wide as a sum, so the tile functions
and the layout of scratch are those of f32, with half as many steps: A and B are packed as pairs, which stand in registers
of `float` that nobody computes with.  The second half of the last pair of an odd reduction is zero in both operands.

Packing has the names and the arguments of :mod:`lezero.codegen.contraction.pack`; lengths of the reduction count bf16.  What
is packed may be f32, too: it is rounded on the way.
"""

from __future__ import annotations

from lezero.codegen.contraction.pack import transpose
from lezero.codegen.contraction.text import MEMORY, Code, Operand
from lezero.codegen.target import Target

TO = "float"


def supported(dtype: str, target: Target) -> bool:
    return dtype == "bf16" and target.bf16_dot


def steps(c: Code, k: Operand) -> Operand:
    """How many pairs a reduction over `k` takes."""
    return c.div(c.add(k, 1), 2)


def multiply_add(c: Code, lanes: int, row: str, column: str, total: str) -> str:
    """`total` plus both products of each pair; subnormal numbers count as zero."""
    sums, operands = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    c.declare(sums, name, sums, operands, operands)
    a, b = (c.value(f"bitcast {sums} {x} to {operands}") for x in (row, column))
    return c.value(f"call {sums} @{name}({sums} {total}, {operands} {a}, {operands} {b})")


def load(c: Code, source: str, lanes: int, pointer: str, mask: str | None) -> str:
    """A register of bf16 (i16) from memory of bf16 or, rounded, of f32 or of what is left of f32 after rounding."""
    raw = c.vector_load(MEMORY[source], lanes, pointer, mask)
    if source == "bf16":
        return raw
    nearest = rounded(c, lanes, raw)
    if source != "f32 rest":
        return nearest
    bits = c.value(f"zext <{lanes} x i16> {nearest} to <{lanes} x i32>")
    bits = c.value(f"shl <{lanes} x i32> {bits}, {c.splat(16, 'i32', lanes)}")
    nearest = c.value(f"bitcast <{lanes} x i32> {bits} to <{lanes} x float>")
    return rounded(c, lanes, c.value(f"fsub <{lanes} x float> {raw}, {nearest}"))


def rounded(c: Code, lanes: int, value: str) -> str:
    """f32 to bf16 (i16) in one instruction, which takes subnormal numbers for zero; so does multiplying."""
    bits = 32 * lanes
    if bits > 512:
        n, bits = lanes // 2, bits // 2
        halves = [
            c.value(
                f"shufflevector <{lanes} x float> {value}, <{lanes} x float> poison, "
                f"<{n} x i32> <{', '.join(f'i32 {first + i}' for i in range(n))}>"
            )
            for first in (n, 0)
        ]
        name, parts = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{bits}", halves
    else:
        n, name, parts = lanes, f"llvm.x86.avx512bf16.cvtneps2bf16.{bits}", [value]
    result, operand = f"<{lanes} x bfloat>", f"<{n} x float>"
    c.declare(result, name, *[operand] * len(parts))
    call = c.value(f"call {result} @{name}({', '.join(f'{operand} {x}' for x in parts)})")
    return c.value(f"bitcast {result} {call} to <{lanes} x i16>")


def rounded_both(c: Code, lanes: int, first: str, second: str) -> str:
    """Two registers of f32 rounded to one of bf16 (i16), `first` in front."""
    result, operand = f"<{2 * lanes} x bfloat>", f"<{lanes} x float>"
    name = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * lanes}"
    c.declare(result, name, operand, operand)
    call = c.value(f"call {result} @{name}({operand} {second}, {operand} {first})")
    return c.value(f"bitcast {result} {call} to <{2 * lanes} x i16>")


def halves(c: Code, lanes: int, both: str) -> list[str]:
    """The two registers of bf16 (i16) that are in one."""
    orders = (", ".join(f"i32 {first + i}" for i in range(lanes)) for first in (0, lanes))
    type = f"<{2 * lanes} x i16>"
    return [c.value(f"shufflevector {type} {both}, {type} poison, <{lanes} x i32> <{order}>") for order in orders]


def join(
    c: Code, lanes: int, first: str, second: str, mask: str | None, more: str | None = None, source: str = "bf16"
) -> str:
    """Pairs of the elements at `first` and at `second`; zeros for the latter unless `more` (an i1, None for true)."""
    low = load(c, source, lanes, first, mask)
    if more is not None:
        every = c.splat(more, "i1", lanes)
        mask = every if mask is None else c.value(f"and <{lanes} x i1> {mask}, {every}")
    high = load(c, source, lanes, second, mask)
    return interleave(c, lanes, low, high, 0, lanes)


def interleave(c: Code, halves: int, low: str, high: str, first: int, lanes: int) -> str:
    """Pairs of elements `first` to `first` + `lanes` of two registers of `halves` bf16."""
    order = ", ".join(f"i32 {i}, i32 {halves + i}" for i in range(first, first + lanes))
    type = f"<{halves} x i16>"
    mixed = c.value(f"shufflevector {type} {low}, {type} {high}, <{2 * lanes} x i32> <{order}>")
    return c.value(f"bitcast <{2 * lanes} x i16> {mixed} to <{lanes} x {TO}>")


def rounded_pair(c: Code, lanes: int, first: str, second: str) -> str:
    """Pairs of two registers of f32, rounded."""
    return interleave(c, lanes, rounded(c, lanes, first), rounded(c, lanes, second), 0, lanes)


def copy_row(c: Code, source: str, to: str, lanes: int, a: str, length: Operand, out: str) -> None:
    """out = the pairs of a[0:length], and zeros up to a whole vector."""

    def step(i: Operand, mask: str | None) -> None:
        halves = load(c, source, 2 * lanes, c.gep(a, i, MEMORY[source]), mask)
        c.vector_store("i16", 2 * lanes, halves, c.gep(out, i, "i16"))

    c.over_vectors(length, 2 * lanes, step)


def copy_panel(
    c: Code, source: str, to: str, lanes: int, vectors: int, b: str, stride: Operand, k: Operand, columns: Operand, out: str,
    hop: Operand = 2,
) -> None:  # fmt: skip
    """out[i, 0:width] = pairs of b's rows hop * i and hop * i + 1; columns from `columns` on are zero."""
    memory = MEMORY[source]
    masks = [c.mask(c.sub(columns, v * lanes), lanes) for v in range(vectors)]

    def row(i: str, source_row: str, out_row: str) -> list[str]:
        following = c.gep(source_row, stride, memory)
        more = c.less(c.add(i, 1), k)
        for v, mask in enumerate(masks):
            first, second = (c.gep(x, v * lanes, memory) for x in (source_row, following))
            pair = join(c, lanes, first, second, mask, more, source)
            c.vector_store(to, lanes, pair, c.gep(out_row, v * lanes, to))
        return [c.gep(source_row, c.mul(stride, hop), memory), c.gep(out_row, vectors * lanes, to)]

    c.loop(0, k, row, step=hop, carried=[("ptr", b), ("ptr", out)])


def transpose_panel(
    c: Code, source: str, to: str, lanes: int, width: Operand, b: str, stride: Operand, k: Operand, columns: Operand, out: str,
) -> None:  # fmt: skip
    """out[i, j] = pair i of the k elements at b + j * stride for j < width; column numbers stop at `columns` - 1."""
    last = c.sub(columns, 1)

    def column_block(j: str) -> None:
        lines = [c.gep(b, c.mul(c.min(c.add(j, r), last), stride), MEMORY[source]) for r in range(lanes)]

        def square(i: Operand, mask: str | None) -> None:
            loaded = [load(c, source, 2 * lanes, c.gep(line, i, MEMORY[source]), mask) for line in lines]
            loaded = [c.value(f"bitcast <{2 * lanes} x i16> {x} to <{lanes} x {to}>") for x in loaded]
            here = c.gep(out, c.add(c.mul(c.div(i, 2), width), j), to)
            for r, row in enumerate(transpose(c, to, lanes, loaded)):
                c.vector_store(to, lanes, row, c.gep(here, c.mul(r, width), to))

        c.over_vectors(k, 2 * lanes, square)

    c.loop(0, width, column_block, step=lanes)


def transpose_rows(
    c: Code, source: str, to: str, lanes: int, row: Operand, a: str, stride: Operand, rows: Operand, k: Operand, out: str,
) -> None:  # fmt: skip
    """out[r, i] = the pair of a[2 * i * stride + r] and the element behind it in the reduction, for r < rows.

    Writes whole vectors in both directions: `out` has room for `rows` rounded up to `lanes`.
    """

    memory = MEMORY[source]

    def block(i: str) -> None:
        first = c.mul(i, 2)
        lines = []
        for p in range(lanes):
            at = c.add(first, 2 * p)
            begin = c.gep(a, c.mul(c.min(at, c.sub(k, 1)), stride), memory)
            more = c.less(c.add(at, 1), k)
            lines.append((begin, c.select(more, c.gep(begin, stride, memory), begin, "ptr"), more))

        def square(r: Operand, mask: str | None) -> None:
            loaded = [
                join(c, lanes, c.gep(x, r, memory), c.gep(y, r, memory), mask, more, source) for x, y, more in lines
            ]
            here = c.gep(out, c.add(c.mul(r, row), i), to)
            for j, pairs in enumerate(transpose(c, to, lanes, loaded)):
                c.vector_store(to, lanes, pairs, c.gep(here, c.mul(j, row), to))

        c.over_vectors(rows, lanes, square)

    c.loop(0, steps(c, k), block, step=lanes)


def join_pixels(
    c: Code, lanes: int, image: str, channels: Operand, begin: Operand, end: Operand, total: Operand, apart: Operand, out: str,
) -> None:  # fmt: skip
    """out[i, 0:channels] = pairs of the pixels q = begin + i and q + apart of `image`, for q < end.

    What has no partner among the `total` pixels is paired with itself: whoever reads it leaves out the second half.
    """
    whole = c.mul(c.div(channels, lanes), lanes)

    def pixel(q: str, out: str) -> list[str]:
        first = c.gep(image, c.mul(q, channels), "i16")
        partner = c.add(q, c.select(c.less(c.add(q, apart), total), apart, 0))
        second = c.gep(image, c.mul(partner, channels), "i16")

        def vector(i: Operand, mask: str | None) -> None:
            pairs = join(c, lanes, c.gep(first, i, "i16"), c.gep(second, i, "i16"), mask)
            c.vector_store(TO, lanes, pairs, c.gep(out, i, TO), mask)

        c.loop(0, whole, lambda i: vector(i, None), step=lanes)
        c.when(c.less(whole, channels), lambda: vector(whole, c.mask(c.sub(channels, whole), lanes)))
        return [c.gep(out, channels, TO)]

    c.loop(begin, end, pixel, carried=[("ptr", out)])


def first_half(c: Code, lanes: int, value: str) -> str:
    """A number or a register of `lanes` pairs without their second halves."""
    type, bits = (TO, "i32") if lanes == 1 else (f"<{lanes} x {TO}>", f"<{lanes} x i32>")
    mask = 0xFFFF if lanes == 1 else c.splat(0xFFFF, "i32", lanes)
    low = c.value(f"and {bits} {c.value(f'bitcast {type} {value} to {bits}')}, {mask}")
    return c.value(f"bitcast {bits} {low} to {type}")
