"""The gradients of queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from lezero.codegen.contraction import pairs
from lezero.codegen.contraction.attention.kernel import AttentionKernel
from lezero.codegen.contraction.attention.spec import (
    PAIRS,
    AttentionSpec,
)
from lezero.codegen.contraction.microkernel import (
    Tile,
    call_tile,
    emit_panel_tiles,
)
from lezero.codegen.contraction.text import Operand
from lezero.codegen.target import Target
from lezero.codegen.values import X
from lezero.codegen.vector_math import apply


@dataclass(frozen=True)
class _Line:
    """A query's row of a block: where its scores, the gradients of its probabilities and those of its scores are; how many keys
    it sees; the number of its first weight."""

    s: str
    t: str
    d: str
    count: Operand
    logarithm: X
    dot: X
    mask: str | None
    number: Operand


class Backward(AttentionKernel):
    which = "backward"

    def __init__(self, spec: AttentionSpec, tile: Tile, target: Target) -> None:
        super().__init__(spec, tile, target)
        emit_panel_tiles(self.module, tile)
        c, p = self.c, self.p
        self.row = c.round_up(p["rows"], tile.height)
        self.together = 2 if tile.pairs else 1
        self.runs = c.slot("ptr", 3)
        self.wide = {x: c.round_up(p[x], tile.width) for x in ("features", "values")}
        self.deep = {x: c.round_up(p[x], tile.lanes) for x in ("features", "values")}
        if not tile.pairs:
            self.at |= {name: self.at[other] for name, other in PAIRS.items()}

    def items(self) -> Operand:
        return self.c.mul(self.p["batch"], self.p["heads"])

    def item(self, i: str) -> None:
        c, p = self.c, self.p
        batch, head = self.head(i)
        blocks = c.div(c.add(p["queries"], c.sub(p["rows"], 1)), p["rows"])
        c.loop(0, p["queries"], lambda row: self._dot(batch, head, row))

        def keys(k0: str) -> None:
            columns = c.min(p["columns"], c.sub(p["keys"], k0))
            self._pack_keys(batch, head, k0, columns)
            # a query sees no keys behind it: blocks before the diagonal have nothing to do
            first = c.div(c.min(k0, c.sub(p["queries"], 1)), p["rows"]) if self.spec.is_causal else 0
            c.loop(first, blocks, lambda block: self._block(batch, head, block, k0, columns))
            for x, size in (("dk", "features"), ("dv", "values")):
                c.loop(0, columns, lambda r, x=x, size=size: self._write_key(x, size, batch, head, r, c.add(k0, r)))

        c.loop(0, p["keys"], keys, step=p["columns"])
        c.loop(0, p["queries"], lambda row: self._write_query(batch, head, row))

    def _dot(self, batch: Operand, head: Operand, row: Operand) -> None:
        """sum(dy * y) of a query."""
        p, t, b = self.p, self.tile, self.c.values
        dy = self.row_of("dy", batch, head, row)
        y = self.dense_row("y", batch, head, row)

        def step(i: str, mask: str | None, sum: str) -> list[Operand]:
            a, b_ = (self.load_stored(self.c.gep(x, i, self.stored), mask) for x in (dy, y))
            product = a * b_
            return [(X(b, sum, t.type, t.lanes) + product).name]

        (sums,) = self.vectors(p["values"], step, [(t.register, "zeroinitializer")])
        self.store_one(self.fold(X(b, sums, t.type, t.lanes), X.__add__), self.place(self.at["dots"], row))

    def _pack_keys(self, batch: Operand, head: Operand, k0: Operand, columns: Operand) -> None:
        c, p, t = self.c, self.p, self.tile
        k, v = (self.row_of(x, batch, head, k0) for x in ("k", "v"))
        (self.pack_pairs if t.pairs else self.pack_rows)("k", k, columns, p["features"], "k", self.f)

        def panel(j: str) -> None:
            for name, start, size in (("k", k, "features"), ("v", v, "values")):
                out = self.place(self.at[f"panels_{name}"], c.mul(j, self.deep[size]))
                self.transposed_panel(name, start, j, columns, p[size], out)

        c.loop(0, columns, panel, step=t.width)
        for x, size in (("dk", "features"), ("dv", "values")):
            self.zero(x, c.mul(c.round_up(columns, t.height), self.wide[size]))

    def _block(self, batch: Operand, head: Operand, block: Operand, k0: Operand, columns: Operand) -> None:
        c, p = self.c, self.p
        q0 = c.mul(block, p["rows"])
        rows = c.min(p["rows"], c.sub(p["queries"], q0))
        for x, size, stride in (("q", "features", self.f), ("dy", "values", self.v)):
            start = self.row_of(x, batch, head, q0)
            self.pack_rows(x, start, rows, p[size], x, stride)
            if self.tile.pairs:
                self.pack_pairs(x, start, rows, p[size], f"{x}_pairs", stride)
            self.table(f"{x}_table", self.at[x], rows, stride)
        self.table("d_table", self.at["d"], rows, self.s)
        self._by_keys("q_table", self.f, "features", "panels_k", "s", rows, columns)
        self._by_keys("dy_table", self.v, "values", "panels_v", "t", rows, columns)

        def softmax(r: str) -> None:
            lines = [self._line(batch, head, q0, c.add(r, i), rows, k0, columns) for i in range(self.together)]
            self._softmax(r, lines, columns)

        c.loop(0, rows, softmax, step=self.together)
        self._by_queries("p", "dy_pairs", self.v, "values", "dv", rows, columns)
        self._by_queries("d_pairs", "q_pairs", self.f, "features", "dk", rows, columns)
        dq = self.place(self.at["dq"], c.mul(c.mul(block, self.row), self.f))

        def panel(j: str) -> None:
            b = self.place(self.at["k"], j)
            operands = ("d_table", self.s, rows, self.steps(columns), b, self.f, self.place(dq, j), self.f)
            c.when(c.less(k0, 1), lambda: self.product(*operands), lambda: self.product(*operands, add=True))

        c.loop(0, p["features"], panel, step=self.tile.width)

    def _by_keys(
        self, table: str, stride: Operand, size: str, panels: str, out: str, rows: Operand, columns: Operand
    ) -> None:
        """out = rows @ transposed keys (or values)."""

        def panel(j: str) -> None:
            b = self.place(self.at[panels], self.c.mul(j, self.deep[size]))
            here = self.place(self.at[out], j)
            self.product(table, stride, rows, self.steps(self.p[size]), b, self.tile.width, here, self.s)

        self.c.loop(0, columns, panel, step=self.tile.width)

    def _line(
        self, batch: Operand, head: Operand, q0: Operand, r: Operand, rows: Operand, k0: Operand, columns: Operand
    ) -> _Line:
        """Row `r` of a block; behind the last one what is read is that of the last one."""
        c = self.c
        row = c.add(q0, c.min(r, c.sub(rows, 1)))
        s, t, d = (self.place(self.at[x], c.mul(r, self.s)) for x in ("s", "t", "d"))
        return _Line(
            s,
            t,
            d,
            self.seen(row, k0, columns),
            self.splat(self.load_one(self.logarithm(batch, head, row))),
            self.splat(self.load_one(self.place(self.at["dots"], row))),
            self.mask_line(batch, head, row, k0),
            self.number(batch, head, row, k0),
        )

    def _softmax(self, r: str, lines: list[_Line], columns: Operand) -> None:
        """s becomes the probabilities, t the gradient of the scores; of pairs of rows, pairs of these."""
        c, t = self.c, self.tile
        count = lines[-1].count
        p, d = (self.place(self.at[x], c.mul(c.div(r, self.together), self.s)) for x in ("p", "d_pairs"))

        def one(i: str, lanes: str | None) -> None:
            if self.together == 1:
                probability, gradient = self._weights(lines[0], i, lanes)
                self.put(probability, p, i)
                self.put(gradient, d, i)
                return
            # the first of two rows may see one key less
            masks = [c.mask(c.sub(x.count, i), t.lanes) if self.spec.is_causal else lanes for x in lines]
            found = [self._weights(x, i, mask) for x, mask in zip(lines, masks, strict=True)]
            for out, both in zip((p, d), zip(*found, strict=True), strict=True):
                pair = pairs.rounded_pair(c, t.lanes, *(x.name for x in both))
                c.vector_store(t.type, t.lanes, pair, self.place(out, i))
            for x, (_, gradient) in zip(lines, found, strict=True):
                self.put(gradient, x.d, i)

        self.vectors(count, one)
        self.clear(p, count, columns, self.put_whole)
        self.clear(d, count, columns, self.put_whole)
        if self.together == 2:
            for x in lines:
                self.clear(x.d, count, columns)

    def _weights(self, line: _Line, i: Operand, lanes: str | None) -> tuple[X, X]:
        """Probabilities, with dropout, and gradients of the scores before they were scaled."""
        p = apply(self.c.values, "exp", self.scores(line.s, i, lanes, line.mask) - line.logarithm)
        t, dropped = self.load(self.place(line.t, i)), p
        if self.draw:
            factor = self.draw.kept(line.number, i).where(self.gain, 0.0)
            t, dropped = t * factor, p * factor
        return dropped, p * (t - line.dot) * self.scale

    def _by_queries(
        self, a: str, b: str, stride: Operand, size: str, out: str, rows: Operand, columns: Operand
    ) -> None:
        """Tiles of `out` += transposed a @ b, over the queries of a block."""
        c, t = self.c, self.tile
        c.store("ptr", self.at[a], self.runs)
        c.store("i64", rows, c.gep(self.runs, 2, "ptr"))

        def panel(j: str) -> None:
            here = self.place(self.at[b], j)
            c.store("ptr", here, c.gep(self.runs, 1, "ptr"))

            def tiles(r: str) -> None:
                place = self._tile(out, size, r, j)
                arguments = f"ptr {self.runs}, i64 1, i64 {r}, i64 {self.s}, i64 {stride}, i64 0, ptr {here}, i64 0, ptr {place}"
                call_tile(c, t, "panel", c.min(c.sub(columns, r), t.height), arguments)

            c.loop(0, columns, tiles, step=t.height)

        c.loop(0, self.p[size], panel, step=t.width)

    def _tile(self, region: str, size: str, row: Operand, column: Operand) -> str:
        """Where the tile that begins at a key and a column is: tiles of one row lie one after the other."""
        c = self.c
        return self.place(self.at[region], c.add(c.mul(row, self.wide[size]), c.mul(column, self.tile.height)))

    def _write_key(self, region: str, size: str, batch: Operand, head: Operand, r: Operand, key: Operand) -> None:
        c, p, t = self.c, self.p, self.tile
        out = self.dense_row(region, batch, head, key)
        inside = c.rem(r, t.height)

        def panel(j: str) -> None:
            tile = self._tile(region, size, c.sub(r, inside), j)
            self._write(
                self.place(tile, c.mul(inside, t.width)), c.gep(out, j, self.stored), c.min(c.sub(p[size], j), t.width)
            )

        c.loop(0, p[size], panel, step=t.width)

    def _write_query(self, batch: Operand, head: Operand, row: Operand) -> None:
        c, p = self.c, self.p
        place = c.add(c.mul(c.div(row, p["rows"]), self.row), c.rem(row, p["rows"]))
        line = self.place(self.at["dq"], c.mul(place, self.f))
        self._write(line, self.dense_row("dq", batch, head, row), p["features"])

    def _write(self, line: str, out: str, count: Operand) -> None:
        def one(i: str, mask: str | None) -> None:
            self.store_rounded(self.load(self.place(line, i)), self.c.gep(out, i, self.stored), mask)

        self.vectors(count, one)
