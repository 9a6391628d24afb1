"""Copying operands into the form the tile functions read, converting the element type on the way.

Everything here works on whole vectors and fills up ragged ends: scratch blocks are sized in whole vectors, and what
lies beyond the operand is zero or repeats its last row, so it only reaches elements of the tile that nobody stores.
"""

from __future__ import annotations

from collections.abc import Callable

from lezero.codegen import half
from lezero.codegen.contraction.text import MEMORY, Code, Operand
from lezero.codegen.values import X


def load_as(c: Code, source: str, to: str, lanes: int, pointer: str, mask: str | None = None) -> str:
    """Load `lanes` elements stored as `source`; half floats are widened to f32, which `to` (an LLVM type) then is, and what is
    to be rounded is."""
    memory = MEMORY[source]
    if lanes == 1:
        raw = c.load(memory, pointer)
    else:
        raw = c.vector_load(memory, lanes, pointer, mask)
    if source in ("f16", "bf16") and to == "float":
        return half.decode(c.values, X(c.values, raw, memory, lanes), source).name
    if source.startswith("f32 to "):
        rounded = source.removeprefix("f32 to ")
        bits = half.round_to(c.values, X(c.values, raw, memory, lanes), rounded)
        return half.decode(c.values, bits, rounded).name
    return raw


def store_as(c: Code, stored: str, lanes: int, value: str, pointer: str, mask: str | None = None) -> None:
    """Store a vector of the compute type as `stored`, rounding to half floats."""
    if stored.endswith(" to f32"):
        rounded = stored.removesuffix(" to f32")
        value = half.decode(
            c.values, half.round_to(c.values, X(c.values, value, "float", lanes), rounded), rounded
        ).name
    if stored in ("f16", "bf16"):
        value = half.round_to(c.values, X(c.values, value, "float", lanes), stored).name
    c.vector_store(MEMORY[stored], lanes, value, pointer, mask)


def copy_row(
    c: Code, source: str, to: str, lanes: int, a: str, length: Operand, out: str, exact: bool = False,
    computed: Callable[[Operand, str | None], str] | None = None,
) -> None:  # fmt: skip
    """out[0:length] = a[0:length], and anything up to a whole vector unless `exact`.

    With `computed` what is copied are the vectors ``computed(i, mask)`` instead.
    """

    def step(i: Operand, mask: str | None) -> None:
        value = computed(i, mask) if computed else load_as(c, source, to, lanes, c.gep(a, i, MEMORY[source]), mask)
        c.vector_store(to, lanes, value, c.gep(out, i, to), mask if exact else None)

    c.over_vectors(length, lanes, step)


def copy_panel(
    c: Code,
    source: str,
    to: str,
    lanes: int,
    vectors: int,
    b: str,
    stride: Operand,
    k: Operand,
    columns: Operand,
    out: str,
) -> None:
    """out[i, 0:width] = b[i * stride + 0:width] for i < k; columns from `columns` on are zero."""
    width = vectors * lanes

    def rows(masks: list[str | None]) -> None:
        def step(i: str, source_row: str, out_row: str) -> list[str]:
            for v, mask in enumerate(masks):
                value = load_as(c, source, to, lanes, c.gep(source_row, v * lanes, MEMORY[source]), mask)
                c.vector_store(to, lanes, value, c.gep(out_row, v * lanes, to))
            return [c.gep(source_row, stride, MEMORY[source]), c.gep(out_row, width, to)]

        c.loop(0, k, step, carried=[("ptr", b), ("ptr", out)])

    def ragged() -> None:
        rows([c.mask(c.sub(columns, v * lanes), lanes) for v in range(vectors)])

    if c.masks_are_free:
        ragged()
    else:
        c.when(c.less(columns, width), ragged, lambda: rows([None] * vectors))


def transpose(c: Code, type: str, lanes: int, rows: list[str]) -> list[str]:
    """Transpose `lanes` vectors of `lanes` elements: log2(lanes) rounds of interleaving row i with row i + lanes/2."""
    vector = f"<{lanes} x {type}>"
    half = lanes // 2
    low = ", ".join(f"i32 {i // 2 + (lanes if i % 2 else 0)}" for i in range(lanes))
    high = ", ".join(f"i32 {half + i // 2 + (lanes if i % 2 else 0)}" for i in range(lanes))
    for _ in range(lanes.bit_length() - 1):
        mixed = []
        for i in range(half):
            for order in (low, high):
                pair = f"{vector} {rows[i]}, {vector} {rows[i + half]}"
                mixed.append(c.value(f"shufflevector {pair}, <{lanes} x i32> <{order}>"))
        rows = mixed
    return rows


def transpose_panel(
    c: Code,
    source: str,
    to: str,
    lanes: int,
    width: Operand,
    b: str,
    stride: Operand,
    k: Operand,
    columns: Operand,
    out: str,
    computed: Callable[[Operand, Operand, str | None], str] | None = None,
) -> None:
    """out[i, j] = b[j * stride + i] for i < k and j < width; column numbers stop at `columns` - 1.

    Writes whole vectors of k: `out` has room for k rounded up to `lanes` rows.  With `computed` the elements behind
    b[j * stride + i] are the vector ``computed(j, i, mask)`` instead.
    """
    last = c.sub(columns, 1)
    places = c.slot(to, lanes * lanes) if computed else ""

    def in_turn(vector: Callable[[str], str]) -> list[str]:
        """Vectors made by one piece of code, however long."""

        def one(r: str) -> None:
            c.vector_store(to, lanes, vector(r), c.gep(places, c.mul(r, lanes), to))

        c.loop(0, lanes, one)
        return [c.vector_load(to, lanes, c.gep(places, r * lanes, to)) for r in range(lanes)]

    def column_block(j: str) -> None:
        if computed is None:
            lines = [c.gep(b, c.mul(c.min(c.add(j, r), last), stride), MEMORY[source]) for r in range(lanes)]

        def square(i: Operand, mask: str | None) -> None:
            if computed is None:
                loaded = [load_as(c, source, to, lanes, c.gep(line, i, MEMORY[source]), mask) for line in lines]
            else:
                loaded = in_turn(lambda r: computed(c.min(c.add(j, r), last), i, mask))
            here = c.gep(out, c.add(c.mul(i, width), j), to)
            for r, row in enumerate(transpose(c, to, lanes, loaded)):
                c.vector_store(to, lanes, row, c.gep(here, c.mul(r, width), to))

        c.over_vectors(k, lanes, square)

    c.loop(0, width, column_block, step=lanes)


transpose_rows = transpose_panel
"""The same for rows of A, which lie across its lines: out[r, i] = a[i * stride + r]."""
