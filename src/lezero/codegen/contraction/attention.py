"""Attention in blocks: scores are only ever in scratch, a block of queries by a block of keys at a time.

Forward, a task takes blocks of queries of one head.  Going over the keys it keeps, for each query, the largest score so far
and the sum of exponentials relative to it; when a larger one turns up, what has been summed is scaled down (Milakov &
Gimelshein 2018).  It stores the result and the logarithm of the sum, from which the backward pass has the probabilities again
(Dao et al. 2022).  Backward, a task takes whole heads: for each block of keys it goes over the blocks of queries and adds to
all three gradients, which stay in scratch until they are complete.

Legend: s scores, p probabilities, t the gradient of the probabilities, then of the scores; "row" is a query, "column" a key.
Everything is packed into rows an odd number of cache lines apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import inf

from lezero.codegen.contraction import pack
from lezero.codegen.contraction.microkernel import (
    Tile,
    call_tile,
    choose_tile,
    emit_panel_tiles,
    emit_rows_tiles,
    entry_words,
)
from lezero.codegen.contraction.spec import COMPUTE, PRODUCTS_PER_THREAD, tasks_for_products, useful_threads
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch, Plan
from lezero.codegen.target import Target
from lezero.codegen.values import X
from lezero.codegen.vector_math import apply
from lezero.loops.ir import TYPES

BLOCK = 128
"""Queries and keys in a block at most: what the backward pass has of a block at 64 features, some 350 KB, stays in L2."""


@dataclass(frozen=True)
class AttentionSpec:
    """softmax(q @ k.T * scale + mask) @ v, or its gradients.

    dtype : storage type of everything but the mask: f32 or f64.
    mask : storage type of the mask, "bool" or `dtype`; None without.
    is_causal : query i sees keys 0 to i.
    """

    dtype: str = "f32"
    mask: str | None = None
    is_causal: bool = False

    def key(self) -> str:
        return f"{self.dtype} {self.mask} {self.is_causal:d}"


@dataclass(frozen=True)
class Extents:
    batch: int
    heads: int
    queries: int
    keys: int
    features: int
    values: int

    @property
    def products(self) -> int:
        """Multiply-adds of the forward pass."""
        return self.batch * self.heads * self.queries * self.keys * (self.features + self.values)


Strides = Mapping[str, Sequence[int]]
"""For "q", "k", "v", "dy" and "mask": elements between batches, heads and rows; elements of a row are adjacent."""

SIZES = words("batch heads queries keys features values scale rows columns")
INPUTS = {"forward": words("q k v mask"), "backward": words("q k v mask dy")}
DENSE = {"forward": words("y logarithm"), "backward": words("y logarithm dq dk dv")}
"""Operands without strides of their own."""
REGIONS = {
    "forward": words("a_table s_table q panel s sums top total"),
    "backward": words("q_table dy_table t_table q dy k panels_k panels_v s t dots dq dk dv"),
}


def plan_attention(
    spec: AttentionSpec, extents: Extents, strides: Strides, scale: float, threads: int, target: Target
) -> Plan:
    """Plan the result; operands "q", "k", "v", "mask" if there is one, "y" and "logarithm".

    y : the result as (batch, queries, heads, values).
    logarithm : of the sum of exponentials of each query's scores, as (batch, heads, queries); infinity for a query that sees no
        key.
    """
    blocks = extents.batch * extents.heads * -(-extents.queries // BLOCK)
    return _plan("forward", spec, extents, strides, scale, blocks, extents.products, threads, target)


def plan_attention_grad(
    spec: AttentionSpec, extents: Extents, strides: Strides, scale: float, threads: int, target: Target
) -> Plan:
    """Plan the gradients; operands as the result's, "dy", and the results "dq", "dk" and "dv".

    The gradients are (batch, queries or keys, heads, features or values).
    """
    heads = extents.batch * extents.heads
    return _plan("backward", spec, extents, strides, scale, heads, 5 * extents.products // 2, threads, target)


def _plan(
    which: str, spec: AttentionSpec, extents: Extents, strides: Strides, scale: float,
    items: int, products: int, threads: int, target: Target,
) -> Plan:  # fmt: skip
    e = extents
    tile = tile_for(spec, target)
    rows, columns = even(e.queries), even(e.keys)
    inputs = [x for x in INPUTS[which] if x != "mask" or spec.mask]
    lengths = regions(which, tile, e, rows, columns)
    places = list(accumulate(lengths, lambda at, size: at + -(-size // 64) * 64, initial=0))
    bits = struct.unpack("q", struct.pack("d", scale))[0]
    params = (
        e.batch, e.heads, e.queries, e.keys, e.features, e.values, bits, rows, columns,
        *(s for x in inputs for s in strides[x]), *places,
    )  # fmt: skip
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    return Plan(
        [
            Launch(
                source(which, spec, tile),
                (*inputs, *DENSE[which]),
                params,
                tasks_for_products(items, products, threads, each=16),
            )
        ]
    )


def tile_for(spec: AttentionSpec, target: Target) -> Tile:
    itemsize = TYPES[COMPUTE[spec.dtype]]
    return choose_tile(target, itemsize, 2 * target.lanes(itemsize))


def even(extent: int) -> int:
    """The size of blocks that divide `extent` evenly."""
    return -(-extent // -(-extent // BLOCK))


def regions(which: str, tile: Tile, e: Extents, rows: int, columns: int) -> list[int]:
    """Bytes of each region of scratch."""

    def padded(extent: int) -> int:
        return -(-extent // tile.width) * tile.width + tile.lanes

    def up(extent: int, to: int) -> int:
        return -(-extent // to) * to

    row, column = up(rows, tile.height), up(columns, tile.height)
    table = row // tile.height * entry_words(tile) * 8
    scores = row * padded(columns)
    f, v = padded(e.features), padded(e.values)
    panels = up(columns, tile.width)
    if which == "forward":
        panel = max(up(e.features, tile.lanes), columns) * tile.width
        elements = [rows * f, panel, scores, row * v, row, row]
        return [table, table, *(n * tile.itemsize for n in elements)]
    queries = -(-e.queries // rows) * row
    elements = [
        rows * f, rows * v, columns * f, panels * up(e.features, tile.lanes), panels * up(e.values, tile.lanes),
        scores, scores, e.queries, queries * f, column * up(e.features, tile.width), column * up(e.values, tile.width),
    ]  # fmt: skip
    return [table, table, table, *(n * tile.itemsize for n in elements)]


@lru_cache(maxsize=64)
def source(which: str, spec: AttentionSpec, tile: Tile) -> KernelSource:
    emitter = {"forward": _Forward, "backward": _Backward}[which]
    name = "attention" if which == "forward" else "attention.grad"
    return KernelSource(
        name, f"{name} {spec.key()} {tile}", lambda target: emitter(spec, tile, target).text(), scratch=lambda p: p[-1]
    )


class _Kernel:
    """What both kernels are made of."""

    which = ""

    def __init__(self, spec: AttentionSpec, tile: Tile, target: Target) -> None:
        self.spec, self.tile = spec, tile
        self.module = Module(target)
        emit_rows_tiles(self.module, tile)
        emit_rows_tiles(self.module, tile, add=True)
        self.c = c = Code(self.module)
        inputs = [x for x in INPUTS[self.which] if x != "mask" or spec.mask]
        names = [*SIZES, *(f"{x}_{s}" for x in inputs for s in ("batch", "head", "row"))]
        self.p = {name: c.param(i) for i, name in enumerate(names)}
        self.memory = {x: c.buffer(i) for i, x in enumerate(inputs)}
        self.dense = {x: c.buffer(len(inputs) + i) for i, x in enumerate(DENSE[self.which])}
        self.at = {name: c.gep("%scratch", c.param(len(names) + i), "i8") for i, name in enumerate(REGIONS[self.which])}
        self.f, self.v, self.s = (self._padded(self.p[x]) for x in ("features", "values", "columns"))
        self.scale = self._scalar_param("scale")

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

    def pack_rows(
        self, name: str, start: str, rows: Operand, length: Operand, region: str, stride: Operand, scaled: bool = False
    ) -> None:
        """Rows of an input into scratch, times the scale if `scaled`."""
        c, t, dtype = self.c, self.tile, self.spec.dtype

        def one(r: str) -> None:
            line = c.gep(start, c.mul(r, self.p[f"{name}_row"]), MEMORY[dtype])

            out = self.place(self.at[region], c.mul(r, stride))

            def vector(i: str, mask: str | None) -> None:
                at = c.gep(line, i, MEMORY[dtype])
                x = X(c.values, pack.load_as(c, dtype, t.type, t.lanes, at, mask), t.type, t.lanes)
                self.store(x * self.splat(self.scale) if scaled else x, self.place(out, i))

            self.vectors(length, vector)

        c.loop(0, rows, one)

    def transposed_panel(
        self, name: str, start: str, column: Operand, columns: Operand, length: Operand, out: str
    ) -> None:
        """A panel of keys from `column` on: rows of an input become its columns."""
        c, t = self.c, self.tile
        stride = self.p[f"{name}_row"]
        here = c.gep(start, c.mul(column, stride), MEMORY[self.spec.dtype])
        pack.transpose_panel(
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
        s = self.load(self.place(line, i))
        if mask_line is not None:
            kind = self.spec.mask or ""
            at = c.gep(mask_line, i, MEMORY[kind])
            raw = c.vector_load(MEMORY[kind], t.lanes, at, lanes)
            if kind == "bool":
                shown = X(b, raw, "i8", t.lanes).ne(0)  # nothing is loaded, and so shown, behind the end
            else:
                s = s + X(b, raw, t.type, t.lanes)
        return s if shown is None else shown.where(s, -inf)

    def mask_line(self, batch: Operand, head: Operand, row: Operand, first: Operand) -> str | None:
        if self.spec.mask is None:
            return None
        return self.c.gep(self.row_of("mask", batch, head, row), first, MEMORY[self.spec.mask])

    def clear(self, line: str, count: Operand, columns: Operand) -> None:
        """Zeros in the columns that a query does not see, as far as whole vectors did not put them there."""
        if self.spec.is_causal:
            start = self.c.round_up(count, self.tile.lanes)
            self.c.loop(
                start, columns, lambda i: self.store(self.constant(0.0), self.place(line, i)), step=self.tile.lanes
            )

    def dense_row(self, name: str, batch: Operand, head: Operand, row: Operand) -> str:
        """A row of a result or its gradient, (batch, rows, heads, columns)."""
        c, p = self.c, self.p
        extent = p["keys" if name in ("dk", "dv") else "queries"]
        columns = p["features" if name in ("dq", "dk") else "values"]
        line = c.add(c.mul(c.add(c.mul(batch, extent), row), p["heads"]), head)
        return self.place(self.dense[name], c.mul(line, columns))

    def logarithm(self, batch: Operand, head: Operand, row: Operand) -> str:
        c, p = self.c, self.p
        return self.place(
            self.dense["logarithm"], c.add(c.mul(c.add(c.mul(batch, p["heads"]), head), p["queries"]), row)
        )

    def head(self, i: Operand) -> tuple[Operand, Operand]:
        return self.c.div(i, self.p["heads"]), self.c.rem(i, self.p["heads"])


class _Forward(_Kernel):
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
        self.pack_rows("q", self.row_of("q", batch, head, q0), rows, p["features"], "q", self.f, scaled=True)
        self.table("a_table", self.at["q"], rows, self.f)
        self.table("s_table", self.at["s"], rows, self.s)
        c.loop(0, rows, self._start)
        end = c.min(p["keys"], c.add(q0, rows)) if self.spec.is_causal else p["keys"]

        def block(k0: str) -> None:
            columns = c.min(p["columns"], c.sub(end, k0))
            self._scores(self.row_of("k", batch, head, k0), rows, columns)

            def softmax(r: str) -> None:
                row = c.add(q0, r)
                self._softmax(r, self.seen(row, k0, columns), columns, self.mask_line(batch, head, row, k0))

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
            self.product("a_table", self.f, rows, self.p["features"], self.at["panel"], self.tile.width, out, self.s)

        self.c.loop(0, columns, panel, step=self.tile.width)

    def _softmax(self, r: str, count: Operand, columns: Operand, mask_line: str | None) -> None:
        """Scores of a row become exponentials relative to the largest so far, to which what has been summed is adapted."""
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
            self.store(e, self.place(line, i))
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
            pack.copy_panel(c, dtype, t.type, t.lanes, t.vectors, here, p["v_row"], columns, left, self.at["panel"])
            out = self.place(self.at["sums"], j)
            operands = ("s_table", self.s, rows, columns, self.at["panel"], t.width, out, self.v)
            c.when(first, lambda: self.product(*operands), lambda: self.product(*operands, add=True))

        c.loop(0, p["values"], panel, step=t.width)

    def _finish(self, r: str, batch: Operand, head: Operand, row: Operand) -> None:
        c, p, b = self.c, self.p, self.c.values
        top, total = (self.load_one(self.place(self.at[x], r)) for x in ("top", "total"))
        nothing = total.eq(0.0)
        share = self.splat(1.0 / nothing.where(1.0, total))
        sums = self.place(self.at["sums"], c.mul(r, self.v))
        out = self.dense_row("y", batch, head, row)

        def one(i: str, mask: str | None) -> None:
            self.store(self.load(self.place(sums, i)) * share, self.place(out, i), mask)

        self.vectors(p["values"], one)
        logarithm = b.lane(apply(b, "log", self.splat(total)), 0) + top
        self.store_one(nothing.where(inf, logarithm), self.logarithm(batch, head, row))


class _Backward(_Kernel):
    which = "backward"

    def __init__(self, spec: AttentionSpec, tile: Tile, target: Target) -> None:
        super().__init__(spec, tile, target)
        emit_panel_tiles(self.module, tile)
        c, p = self.c, self.p
        self.row = c.round_up(p["rows"], tile.height)
        self.runs = c.slot("ptr", 3)
        self.wide = {x: c.round_up(p[x], tile.width) for x in ("features", "values")}
        self.deep = {x: c.round_up(p[x], tile.lanes) for x in ("features", "values")}

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
            product = self.load(self.place(dy, i), mask) * self.load(self.place(y, i), mask)
            return [(X(b, sum, t.type, t.lanes) + product).name]

        (sums,) = self.vectors(p["values"], step, [(t.register, "zeroinitializer")])
        self.store_one(self.fold(X(b, sums, t.type, t.lanes), X.__add__), self.place(self.at["dots"], row))

    def _pack_keys(self, batch: Operand, head: Operand, k0: Operand, columns: Operand) -> None:
        c, p, t = self.c, self.p, self.tile
        k, v = (self.row_of(x, batch, head, k0) for x in ("k", "v"))
        self.pack_rows("k", k, columns, p["features"], "k", self.f)

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
        self.pack_rows("q", self.row_of("q", batch, head, q0), rows, p["features"], "q", self.f, scaled=True)
        self.pack_rows("dy", self.row_of("dy", batch, head, q0), rows, p["values"], "dy", self.v)
        self.table("q_table", self.at["q"], rows, self.f)
        self.table("dy_table", self.at["dy"], rows, self.v)
        self.table("t_table", self.at["t"], rows, self.s)
        self._by_keys("q_table", self.f, "features", "panels_k", "s", rows, columns)
        self._by_keys("dy_table", self.v, "values", "panels_v", "t", rows, columns)

        def softmax(r: str) -> None:
            row = c.add(q0, r)
            count = self.seen(row, k0, columns)
            self._softmax(
                r,
                self.load_one(self.logarithm(batch, head, row)),
                row,
                count,
                columns,
                self.mask_line(batch, head, row, k0),
            )

        c.loop(0, rows, softmax)
        self._by_queries("s", "dy", self.v, "values", "dv", rows, columns)
        self._by_queries("t", "q", self.f, "features", "dk", rows, columns)
        dq = self.place(self.at["dq"], c.mul(c.mul(block, self.row), self.f))

        def panel(j: str) -> None:
            b = self.place(self.at["k"], j)
            operands = ("t_table", self.s, rows, columns, b, self.f, self.place(dq, j), self.f)
            c.when(c.less(k0, 1), lambda: self.product(*operands), lambda: self.product(*operands, add=True))

        c.loop(0, p["features"], panel, step=self.tile.width)

    def _by_keys(
        self, table: str, stride: Operand, size: str, panels: str, out: str, rows: Operand, columns: Operand
    ) -> None:
        """out = rows @ transposed keys (or values)."""

        def panel(j: str) -> None:
            b = self.place(self.at[panels], self.c.mul(j, self.deep[size]))
            here = self.place(self.at[out], j)
            self.product(table, stride, rows, self.p[size], b, self.tile.width, here, self.s)

        self.c.loop(0, columns, panel, step=self.tile.width)

    def _softmax(
        self, r: str, logarithm: X, row: Operand, count: Operand, columns: Operand, mask_line: str | None
    ) -> None:
        """s becomes the probabilities, t the gradient of the scores."""
        b = self.c.values
        s, g = (self.place(self.at[x], self.c.mul(r, self.s)) for x in ("s", "t"))
        dot = self.splat(self.load_one(self.place(self.at["dots"], row)))

        def one(i: str, lanes: str | None) -> None:
            probability = apply(b, "exp", self.scores(s, i, lanes, mask_line) - self.splat(logarithm))
            self.store(probability, self.place(s, i))
            self.store(probability * (self.load(self.place(g, i)) - dot), self.place(g, i))

        self.vectors(count, one)
        self.clear(s, count, columns)
        self.clear(g, count, columns)

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
            self._write(self.place(tile, c.mul(inside, t.width)), self.place(out, j), c.min(c.sub(p[size], j), t.width))

        c.loop(0, p[size], panel, step=t.width)

    def _write_query(self, batch: Operand, head: Operand, row: Operand) -> None:
        c, p = self.c, self.p
        place = c.add(c.mul(c.div(row, p["rows"]), self.row), c.rem(row, p["rows"]))
        line = self.place(self.at["dq"], c.mul(place, self.f))
        self._write(line, self.dense_row("dq", batch, head, row), p["features"], scaled=True)

    def _write(self, line: str, out: str, count: Operand, scaled: bool = False) -> None:
        def one(i: str, mask: str | None) -> None:
            x = self.load(self.place(line, i))
            self.store(x * self.splat(self.scale) if scaled else x, self.place(out, i), mask)

        self.vectors(count, one)
