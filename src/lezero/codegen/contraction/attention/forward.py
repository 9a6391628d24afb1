"""Attention's result, and the logarithms of the sums of exponentials."""

from __future__ import annotations

from math import inf

from lezero.codegen.contraction.attention.kernel import AttentionKernel
from lezero.codegen.contraction.text import MEMORY, Operand
from lezero.codegen.values import X
from lezero.codegen.vector_math import apply


class Forward(AttentionKernel):
    which = "forward"

    def items(self) -> Operand:
        c, p = self.c, self.p
        self.blocks = c.div(c.add(p["queries"], c.sub(p["rows"], 1)), p["rows"])
        return c.mul(c.mul(p["batch"], p["heads"]), self.blocks)

    def item(self, i: str) -> None:
        c, p = self.c, self.p
        batch, head = self.head(c.div(i, self.blocks))
        q0 = c.mul(c.rem(i, self.blocks), p["rows"])
        rows = c.min(p["rows"], c.sub(p["queries"], q0))
        self.pack_rows("q", self.row_of("q", batch, head, q0), rows, p["features"], "q", self.f)
        self.table("a_table", self.at["q"], rows, self.f)
        self.table("s_table", self.at["s"], rows, self.s)
        c.loop(0, rows, self._start)
        end = c.min(p["keys"], c.add(q0, rows)) if self.spec.is_causal else p["keys"]

        def block(k0: str) -> None:
            columns = c.min(p["columns"], c.sub(end, k0))
            self._scores(self.row_of("k", batch, head, k0), rows, columns)

            def softmax(r: str) -> None:
                row = c.add(q0, r)
                number = self.number(batch, head, row, k0)
                self._softmax(r, self.seen(row, k0, columns), columns, self.mask_line(batch, head, row, k0), number)

            c.loop(0, rows, softmax)
            self._add_values(self.row_of("v", batch, head, k0), rows, columns, first=c.less(k0, 1))

        c.loop(0, end, block, step=p["columns"])
        c.loop(0, rows, lambda r: self._finish(r, batch, head, c.add(q0, r)))

    def _start(self, r: str) -> None:
        self.store_one(self.constant(-inf, 1), self.place(self.at["top"], r))
        self.store_one(self.constant(0.0, 1), self.place(self.at["total"], r))

    def _scores(self, k: str, rows: Operand, columns: Operand) -> None:
        def panel(j: str) -> None:
            self.transposed_panel("k", k, j, columns, self.p["features"], self.at["panel"])
            out = self.place(self.at["s"], j)
            depth = self.steps(self.p["features"])
            self.product("a_table", self.f, rows, depth, self.at["panel"], self.tile.width, out, self.s)

        self.c.loop(0, columns, panel, step=self.tile.width)

    def _softmax(self, r: str, count: Operand, columns: Operand, mask_line: str | None, number: Operand) -> None:
        """Scores of a row become exponentials relative to the largest so far, to which what has been summed is adapted.

        number : of the first weight; with dropout, what is left of the exponentials is not what is summed.
        """
        c, t, b = self.c, self.tile, self.c.values
        line = self.place(self.at["s"], c.mul(r, self.s))

        def largest(i: str, lanes: str | None, best: str) -> list[Operand]:
            s = self.scores(line, i, lanes, mask_line)
            self.store(s, self.place(line, i))
            have = X(b, best, t.type, t.lanes)
            return [(s > have).where(s, have).name]

        (best,) = self.vectors(count, largest, [(t.register, self.constant(-inf).name)])
        found = self.fold(X(b, best, t.type, t.lanes), lambda x, y: (x > y).where(x, y))
        top, total = (self.place(self.at[x], r) for x in ("top", "total"))
        before = self.load_one(top)
        new = (found > before).where(found, before)
        base = new.eq(-inf).where(0.0, new)

        def exponentials(i: str, sum: str) -> list[Operand]:
            e = apply(b, "exp", self.load(self.place(line, i)) - self.splat(base))
            self.put(self.draw.kept(number, i).where(e, 0.0) if self.draw else e, line, i)
            return [(X(b, sum, t.type, t.lanes) + e).name]

        (sums,) = c.loop(0, count, exponentials, step=t.lanes, carried=[(t.register, "zeroinitializer")])
        self.clear(line, count, columns)
        c.when(
            (found > before).where(before.ne(-inf), X(b, "false", "i1", 1)).name, lambda: self._adapt(r, before - base)
        )
        self.store_one(new, top)
        self.store_one(self.load_one(total) + self.fold(X(b, sums, t.type, t.lanes), X.__add__), total)

    def _adapt(self, r: str, less: X) -> None:
        """What has been summed, relative to a larger score: `less` is the difference, below zero."""
        share = self.c.values.lane(apply(self.c.values, "exp", self.splat(less)), 0)
        total = self.place(self.at["total"], r)
        self.store_one(self.load_one(total) * share, total)
        self._scale_row(r, share)

    def _scale_row(self, r: str, share: X) -> None:
        row = self.place(self.at["sums"], self.c.mul(r, self.v))

        def one(i: str) -> None:
            self.store(self.load(self.place(row, i)) * self.splat(share), self.place(row, i))

        self.c.loop(0, self.p["values"], one, step=self.tile.lanes)

    def _add_values(self, v: str, rows: Operand, columns: Operand, first: str) -> None:
        c, p, t = self.c, self.p, self.tile

        def panel(j: str) -> None:
            dtype, left = self.spec.dtype, c.sub(p["values"], j)
            here = c.gep(v, j, MEMORY[dtype])
            panel = self.at["panel"]
            self.packing.copy_panel(c, dtype, t.type, t.lanes, t.vectors, here, p["v_row"], columns, left, panel)
            out = self.place(self.at["sums"], j)
            operands = ("s_table", self.s, rows, self.steps(columns), panel, t.width, out, self.v)
            c.when(first, lambda: self.product(*operands), lambda: self.product(*operands, add=True))

        c.loop(0, p["values"], panel, step=t.width)

    def _finish(self, r: str, batch: Operand, head: Operand, row: Operand) -> None:
        c, p, b = self.c, self.p, self.c.values
        top, total = (self.load_one(self.place(self.at[x], r)) for x in ("top", "total"))
        nothing = total.eq(0.0)
        share = self.splat(1.0 / nothing.where(1.0, total))
        share = share * self.gain if self.draw else share
        sums = self.place(self.at["sums"], c.mul(r, self.v))
        out = self.dense_row("y", batch, head, row)

        def one(i: str, mask: str | None) -> None:
            self.store_rounded(self.load(self.place(sums, i)) * share, self.c.gep(out, i, self.stored), mask)

        self.vectors(p["values"], one)
        logarithm = b.lane(apply(b, "log", self.splat(total)), 0) + top
        self.store_one(nothing.where(inf, logarithm), self.logarithm(batch, head, row))
