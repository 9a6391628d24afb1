"""What both of attention's kernels are made of: memory, packing, products, and the scores of a block.

Legend: s scores, p probabilities, t the gradient of the probabilities, d that of the scores; "row" is a query, "column" a key.
Everything is packed into rows an odd number of cache lines apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from types import ModuleType

from lezero.codegen.contraction import pack, pairs
from lezero.codegen.contraction.attention.spec import (
    DENSE,
    DRAWN,
    REGIONS,
    SIZES,
    AttentionSpec,
)
from lezero.codegen.contraction.epilogue import Emitter, Epilogue, Place
from lezero.codegen.contraction.microkernel import (
    Tile,
    call_tile,
    emit_rows_tiles,
    entry_words,
)
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand
from lezero.codegen.target import Target
from lezero.codegen.values import X
from lezero.loops.ir import Value


@dataclass
class _Weight(Place):
    """What the random bits of a weight depend on."""

    seed: Operand = 0
    offset: Operand = 0


class Draw:
    """Which weights dropout keeps."""

    def __init__(self, c: Code, bits: Value, lanes: int, seed: Operand, offset: Operand, least: Operand) -> None:
        self.c, self.lanes, self.seed, self.offset, self.least = c, lanes, seed, offset, least
        self.bits, self.emitter = bits, Emitter(c, Epilogue(()), lanes, 0, 0)

    def kept(self, number: Operand, i: Operand) -> X:
        """Whether each weight is, from the `i`-th behind that with this number on."""
        b = self.c.values
        place = _Weight(number, i, 0, 0, seed=self.seed, offset=self.offset)
        drawn = self.emitter.value(self.bits, place)
        least = b.splat(X(b, str(self.least), "i64", 1).convert("trunc", "i32"), self.lanes)
        return drawn.lshr(32 - DRAWN) >= least


class AttentionKernel:
    """What both kernels are made of."""

    which = ""

    def __init__(self, spec: AttentionSpec, tile: Tile, target: Target) -> None:
        self.spec, self.tile, self.stored = spec, tile, MEMORY[spec.dtype]
        self.module = Module(target)
        emit_rows_tiles(self.module, tile)
        emit_rows_tiles(self.module, tile, add=True)
        self.c = c = Code(self.module)
        inputs = spec.inputs(self.which)
        names = [*SIZES, *(f"{x}_{s}" for x in inputs for s in ("batch", "head", "row"))]
        self.p = {name: c.param(i) for i, name in enumerate(names)}
        self.memory = {x: c.buffer(i) for i, x in enumerate(inputs)}
        behind = len(inputs) + len(spec.state)
        self.dense = {x: c.buffer(behind + i) for i, x in enumerate(DENSE[self.which])}
        self.at = {name: c.gep("%scratch", c.param(len(names) + i), "i8") for i, name in enumerate(REGIONS[self.which])}
        self.f, self.v, self.s = (self._padded(self.p[x]) for x in ("features", "values", "columns"))
        self.scale, self.gain = (self.splat(self._scalar_param(x)) for x in ("scale", "gain"))
        self.draw = None
        if spec.random is not None:
            seed, offset = (c.load("i64", c.buffer(len(inputs) + i)) for i in (0, 1))
            self.draw = Draw(c, spec.random, tile.lanes, seed, offset, self.p["least"])

    def _padded(self, extent: Operand) -> Operand:
        return self.c.add(self.c.round_up(extent, self.tile.width), self.tile.lanes)

    def _scalar_param(self, name: str) -> X:
        double = self.c.value(f"bitcast i64 {self.p[name]} to double")
        x = X(self.c.values, double, "double", 1)
        return x if self.tile.type == "double" else x.convert("fptrunc", "float")

    def text(self) -> str:
        c = self.c
        total = self.items()
        first, last = (c.div(c.mul(i, total), "%tasks") for i in ("%task", c.add("%task", 1)))
        c.loop(first, last, self.item)
        c.finish()
        return self.module.text()

    def items(self) -> Operand:
        raise NotImplementedError

    def item(self, i: str) -> None:
        raise NotImplementedError

    # -- memory ------------------------------------------------------------------------------------------------------

    def place(self, base: str, index: Operand) -> str:
        return self.c.gep(base, index, self.tile.type)

    def row_of(self, name: str, batch: Operand, head: Operand, row: Operand) -> str:
        c, p = self.c, self.p
        outer = c.add(c.mul(batch, p[f"{name}_batch"]), c.mul(head, p[f"{name}_head"]))
        kind = self.spec.mask if name == "mask" else self.spec.dtype
        return c.gep(self.memory[name], c.add(outer, c.mul(row, p[f"{name}_row"])), MEMORY[kind or ""])

    def load(self, pointer: str, mask: str | None = None) -> X:
        t = self.tile
        return X(self.c.values, self.c.vector_load(t.type, t.lanes, pointer, mask), t.type, t.lanes)

    def store(self, x: X, pointer: str, mask: str | None = None) -> None:
        self.c.vector_store(self.tile.type, x.n, x.name, pointer, mask)

    def load_stored(self, pointer: str, mask: str | None = None) -> X:
        """Of an operand."""
        t = self.tile
        return X(self.c.values, pack.load_as(self.c, self.spec.dtype, t.type, t.lanes, pointer, mask), t.type, t.lanes)

    def store_rounded(self, x: X, pointer: str, mask: str | None) -> None:
        """As a part of a result."""
        pack.store_as(self.c, self.spec.dtype, x.n, x.name, pointer, mask)

    def load_one(self, pointer: str) -> X:
        return X(self.c.values, self.c.load(self.tile.type, pointer), self.tile.type, 1)

    def store_one(self, x: X, pointer: str) -> None:
        self.c.store(self.tile.type, x.name, pointer)

    def constant(self, value: float, lanes: int | None = None) -> X:
        return self.c.values.const(value, self.tile.type, self.tile.lanes if lanes is None else lanes)

    def splat(self, x: X) -> X:
        return self.c.values.splat(x, self.tile.lanes)

    def zero(self, region: str, elements: Operand) -> None:
        """`elements` are whole vectors."""
        self.c.loop(
            0,
            elements,
            lambda i: self.store(self.constant(0.0), self.place(self.at[region], i)),
            step=self.tile.lanes,
        )

    def vectors(
        self, count: Operand, body: Callable[..., Sequence[Operand] | None], carried: Sequence[tuple[str, Operand]] = ()
    ) -> list[str]:
        """Run ``body(i, lanes left, *values) -> next values`` for every vector: None where it is whole, as most are."""
        c, lanes = self.c, self.tile.lanes
        whole = c.mul(c.div(count, lanes), lanes)
        values = c.loop(0, whole, lambda i, *v: body(i, None, *v), step=lanes, carried=carried)
        carried = [(type, v) for (type, _), v in zip(carried, values, strict=True)]
        return c.loop(
            whole, count, lambda i, *v: body(i, c.mask(c.sub(count, i), lanes), *v), step=lanes, carried=carried
        )

    def fold(self, x: X, join: Callable[[X, X], X]) -> X:
        b = self.c.values
        while x.n > 2:
            half = x.n // 2
            x = join(b.shuffle(x, None, range(half)), b.shuffle(x, None, range(half, x.n)))
        return join(b.lane(x, 0), b.lane(x, 1))

    # -- packing -----------------------------------------------------------------------------------------------------

    def pack_rows(self, name: str, start: str, rows: Operand, length: Operand, region: str, stride: Operand) -> None:
        """Rows of an input into scratch."""
        c, t = self.c, self.tile

        def one(r: str) -> None:
            line = c.gep(start, c.mul(r, self.p[f"{name}_row"]), self.stored)
            out = self.place(self.at[region], c.mul(r, stride))
            if t.pairs:
                pairs.copy_row(c, self.spec.dtype, t.type, t.lanes, line, length, out)
            else:
                self.vectors(
                    length,
                    lambda i, mask: self.store(self.load_stored(c.gep(line, i, self.stored), mask), self.place(out, i)),
                )

        c.loop(0, rows, one)

    def pack_pairs(self, name: str, start: str, rows: Operand, length: Operand, region: str, stride: Operand) -> None:
        """Pairs of two neighbouring rows each."""
        c, t = self.c, self.tile

        def two(r: str) -> None:
            first = c.gep(start, c.mul(r, self.p[f"{name}_row"]), self.stored)
            second = c.gep(first, self.p[f"{name}_row"], self.stored)
            more = c.less(c.add(r, 1), rows)
            out = self.place(self.at[region], c.mul(c.div(r, 2), stride))

            def vector(i: str, mask: str | None) -> None:
                a, b = (c.gep(x, i, self.stored) for x in (first, second))
                c.vector_store(t.type, t.lanes, pairs.join(c, t.lanes, a, b, mask, more), self.place(out, i))

            self.vectors(length, vector)

        c.loop(0, rows, two, step=2)

    def steps(self, extent: Operand) -> Operand:
        """Of a reduction over `extent` numbers."""
        return pairs.steps(self.c, extent) if self.tile.pairs else extent

    @property
    def packing(self) -> ModuleType:
        return pairs if self.tile.pairs else pack

    def transposed_panel(
        self, name: str, start: str, column: Operand, columns: Operand, length: Operand, out: str
    ) -> None:
        """A panel of keys from `column` on: rows of an input become its columns."""
        c, t = self.c, self.tile
        stride = self.p[f"{name}_row"]
        here = c.gep(start, c.mul(column, stride), self.stored)
        self.packing.transpose_panel(
            c, self.spec.dtype, t.type, t.lanes, t.width, here, stride, length, c.sub(columns, column), out
        )

    def table(self, region: str, base: str, rows: Operand, stride: Operand) -> None:
        """Where the rows of each tile are: the last one stands for those that are missing."""
        c, t = self.c, self.tile

        def entry(r: str) -> None:
            entry = c.gep(self.at[region], c.mul(c.div(r, t.height), entry_words(t)), "ptr")
            c.store("i64", 0, entry)
            for i in range(t.height):
                row = c.min(c.add(r, i), c.sub(rows, 1))
                c.store("ptr", self.place(base, c.mul(row, stride)), c.gep(entry, 1 + i, "ptr"))

        c.loop(0, rows, entry, step=t.height)

    # -- products ----------------------------------------------------------------------------------------------------

    def product(
        self, table: str, a_stride: Operand, rows: Operand, depth: Operand, b: str, step: Operand,
        out: str, out_stride: Operand, add: bool = False,
    ) -> None:  # fmt: skip
        """out (+)= A @ B for one panel of B, A's rows by their table."""
        c, t = self.c, self.tile

        def tiles(r: str) -> None:
            entry = c.gep(self.at[table], c.mul(c.div(r, t.height), entry_words(t)), "ptr")
            here = self.place(out, c.mul(r, out_stride))
            arguments = f"ptr {entry}, i64 1, ptr {b}, i64 {step}, i64 {depth}, i64 {c.mul(a_stride, t.height)}, ptr {here}, i64 {out_stride}"
            call_tile(c, t, "add" if add else "rows", c.min(c.sub(rows, r), t.height), arguments)

        c.loop(0, rows, tiles, step=t.height)

    # -- scores ------------------------------------------------------------------------------------------------------

    def seen(self, row: Operand, first: Operand, columns: Operand) -> Operand:
        """How many of a block's columns, from `first` on, a query sees."""
        if not self.spec.is_causal:
            return columns
        c = self.c
        return c.max(0, c.min(c.sub(c.add(row, 1), first), columns))

    def scores(self, line: str, i: Operand, lanes: str | None, mask_line: str | None) -> X:
        """Scores from column `i` on with the mask; minus infinity where there is nothing to see."""
        c, t, b = self.c, self.tile, self.c.values
        shown = None if lanes is None else X(b, lanes, "i1", t.lanes)
        s = self.load(self.place(line, i)) * self.scale
        if mask_line is not None:
            kind = self.spec.mask or ""
            at = c.gep(mask_line, i, MEMORY[kind])
            raw = pack.load_as(c, kind, t.type, t.lanes, at, lanes)
            if kind == "bool":
                shown = X(b, raw, "i8", t.lanes).ne(0)  # nothing is loaded, and so shown, behind the end
            else:
                s = s + X(b, raw, t.type, t.lanes)
        return s if shown is None else shown.where(s, -inf)

    def mask_line(self, batch: Operand, head: Operand, row: Operand, first: Operand) -> str | None:
        if self.spec.mask is None:
            return None
        return self.c.gep(self.row_of("mask", batch, head, row), first, MEMORY[self.spec.mask])

    def clear(
        self, line: str, count: Operand, columns: Operand, put: Callable[[X, str, Operand], None] | None = None
    ) -> None:
        """Zeros in the columns that a query does not see, as far as whole vectors did not put them there."""
        put = put or self.put
        if self.spec.is_causal:
            start = self.c.round_up(count, self.tile.lanes)
            self.c.loop(start, columns, lambda i: put(self.constant(0.0), line, i), step=self.tile.lanes)

    def put(self, x: X, line: str, i: Operand) -> None:
        """Store elements of a product's operand from the `i`-th on, each in half of a pair."""
        if self.tile.pairs:
            rounded = pairs.rounded(self.c, x.n, x.name)
            self.c.vector_store("i16", x.n, rounded, self.c.gep(line, i, "i16"))
        else:
            self.put_whole(x, line, i)

    def put_whole(self, x: X, line: str, i: Operand) -> None:
        self.store(x, self.place(line, i))

    def number(self, batch: Operand, head: Operand, row: Operand, key: Operand) -> Operand:
        """Of a weight among all."""
        c, p = self.c, self.p
        line = c.add(c.mul(c.add(c.mul(batch, p["heads"]), head), p["queries"]), row)
        return c.add(c.mul(line, p["keys"]), key)

    def dense_row(self, name: str, batch: Operand, head: Operand, row: Operand) -> str:
        """A row of a result or its gradient, (batch, rows, heads, columns)."""
        c, p = self.c, self.p
        extent = p["keys" if name in ("dk", "dv") else "queries"]
        columns = p["features" if name in ("dq", "dk") else "values"]
        line = c.add(c.mul(c.add(c.mul(batch, extent), row), p["heads"]), head)
        return c.gep(self.dense[name], c.mul(line, columns), self.stored)

    def logarithm(self, batch: Operand, head: Operand, row: Operand) -> str:
        c, p = self.c, self.p
        return self.place(
            self.dense["logarithm"], c.add(c.mul(c.add(c.mul(batch, p["heads"]), head), p["queries"]), row)
        )

    def head(self, i: Operand) -> tuple[Operand, Operand]:
        return self.c.div(i, self.p["heads"]), self.c.rem(i, self.p["heads"])
