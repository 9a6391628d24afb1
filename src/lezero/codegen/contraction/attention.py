"""Attention in blocks: scores are only ever in scratch, a block of queries by a block of keys at a time.

Forward, a task takes blocks of queries of one head.  Going over the keys it keeps, for each query, the largest score so far
and the sum of exponentials relative to it; when a larger one turns up, what has been summed is scaled down (Milakov &
Gimelshein 2018).  It stores the result and the logarithm of the sum, from which the backward pass has the probabilities again
(Dao et al. 2022).  Backward, a task takes whole heads: for each block of keys it goes over the blocks of queries and adds to
all three gradients, which stay in scratch until they are complete.

Dropout draws the numbers of a block's weights where it has the block, forward and backward: each is a function of the weight's
number.  Half precision is widened as it is packed; where the processor multiplies pairs of bf16 (``pairs.py``), operands are
packed as pairs, and probabilities and gradients of scores are rounded between two products.

Legend: s scores, p probabilities, t the gradient of the probabilities, d that of the scores; "row" is a query, "column" a key.
Everything is packed into rows an odd number of cache lines apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, inf
from types import ModuleType

from lezero.codegen.contraction import pack, pairs
from lezero.codegen.contraction.epilogue import Emitter, Epilogue, Place, Prologue
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
from lezero.loops.ir import TYPES, Value

BLOCK = 128
"""Queries and keys in a block at most: what the backward pass has of a block at 64 features, some 350 KB, stays in L2."""


@dataclass(frozen=True)
class AttentionSpec:
    """softmax(q @ k.T * scale + mask) @ v, or its gradients.

    dtype : storage type of operands and results: f32, f64, bf16 or f16.  Scores, sums and logarithms are of the compute type.
    mask : storage type of the mask, "bool", `dtype` or the compute type; None without.
    is_causal : query i sees keys 0 to i.
    random : with dropout, the 32 random bits (u32) of a weight, of the variables "seed", "offset" and, added up, "row", the
        number of a row's first weight, and "col".
    """

    dtype: str = "f32"
    mask: str | None = None
    is_causal: bool = False
    random: Value | None = None

    def key(self) -> str:
        drawn = "" if self.random is None else Prologue(self.random, (), 0).key()
        return f"{self.dtype} {self.mask} {self.is_causal:d} {drawn}"

    def inputs(self, which: str) -> list[str]:
        """The names of operands that have strides."""
        return [x for x in INPUTS[which] if x != "mask" or self.mask]

    @property
    def state(self) -> tuple[str, ...]:
        """The names of operands of one number, int64: the state of the random ones."""
        return () if self.random is None else ("seed", "offset")


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

SIZES = words("batch heads queries keys features values scale rows columns least gain")
INPUTS = {"forward": words("q k v mask"), "backward": words("q k v mask dy")}
DENSE = {"forward": words("y logarithm"), "backward": words("y logarithm dq dk dv")}
"""Operands without strides of their own."""
REGIONS = {
    "forward": words("a_table s_table q panel s sums top total"),
    "backward": words(
        "q_table dy_table d_table q dy k panels_k panels_v s t dots dq dk dv q_pairs dy_pairs p d d_pairs"
    ),
}
"""The last five are of their own where products are of pairs."""
PAIRS = {"q_pairs": "q", "dy_pairs": "dy", "p": "s", "d": "t", "d_pairs": "t"}
"""What they are elsewhere."""
DRAWN = 24
"""Of a weight's random bits as many as a float32 has are compared with the share that is dropped."""


@dataclass(frozen=True)
class Numbers:
    """scale : of the scores.  p : the share of the weights that is dropped, for a spec that draws."""

    scale: float
    p: float = 0.0

    def params(self) -> tuple[int, int, int]:
        """Bits of the scale; the least random number (24 bits) of a weight that is kept; bits of what those are multiplied by."""
        share = struct.unpack("f", struct.pack("f", self.p))[0]
        return _bits(self.scale), ceil(share * (1 << DRAWN)), _bits(0.0 if self.p == 1 else 1 / (1 - self.p))


def _bits(x: float) -> int:
    return struct.unpack("q", struct.pack("d", x))[0]


def plan_attention(
    spec: AttentionSpec, extents: Extents, strides: Strides, numbers: Numbers, threads: int, target: Target
) -> Plan:
    """Plan the result; operands "q", "k", "v", "mask" if there is one, "seed" and "offset" with dropout, "y" and "logarithm".

    y : the result as (batch, queries, heads, values).
    logarithm : of the sum of exponentials of each query's scores, as (batch, heads, queries); infinity for a query that sees no
        key.
    """
    blocks = extents.batch * extents.heads * -(-extents.queries // BLOCK)
    return _plan("forward", spec, extents, strides, numbers, blocks, extents.products, threads, target)


def plan_attention_grad(
    spec: AttentionSpec, extents: Extents, strides: Strides, numbers: Numbers, threads: int, target: Target
) -> Plan:
    """Plan the gradients; operands as the result's, "dy", and the results "dq", "dk" and "dv".

    The gradients are (batch, queries or keys, heads, features or values).
    """
    heads = extents.batch * extents.heads
    return _plan("backward", spec, extents, strides, numbers, heads, 5 * extents.products // 2, threads, target)


def _plan(
    which: str, spec: AttentionSpec, extents: Extents, strides: Strides, numbers: Numbers,
    items: int, products: int, threads: int, target: Target,
) -> Plan:  # fmt: skip
    e = extents
    tile = tile_for(spec, target)
    rows, columns = even(e.queries), even(e.keys)
    inputs = spec.inputs(which)
    lengths = regions(which, tile, e, rows, columns)
    places = list(accumulate(lengths, lambda at, size: at + -(-size // 64) * 64, initial=0))
    scale, least, gain = numbers.params()
    params = (
        e.batch, e.heads, e.queries, e.keys, e.features, e.values, scale, rows, columns, least, gain,
        *(s for x in inputs for s in strides[x]), *places,
    )  # fmt: skip
    threads = useful_threads(threads, products, PRODUCTS_PER_THREAD)
    return Plan(
        [
            Launch(
                source(which, spec, tile),
                (*inputs, *spec.state, *DENSE[which]),
                params,
                tasks_for_products(items, products, threads, each=16),
            )
        ]
    )


def tile_for(spec: AttentionSpec, target: Target) -> Tile:
    itemsize = TYPES[COMPUTE[spec.dtype]]
    return choose_tile(target, itemsize, 2 * target.lanes(itemsize), pairs.supported(spec.dtype, target))


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
    if tile.pairs:
        half, p = up(rows, 2) // 2, padded(columns)
        elements += [half * f, half * v, half * p, 2 * half * p, half * p]
    else:
        elements += [0] * len(PAIRS)
    return [table, table, table, *(n * tile.itemsize for n in elements)]


@lru_cache(maxsize=64)
def source(which: str, spec: AttentionSpec, tile: Tile) -> KernelSource:
    emitter = {"forward": _Forward, "backward": _Backward}[which]
    name = "attention" if which == "forward" else "attention.grad"
    return KernelSource(
        name, f"{name} {spec.key()} {tile}", lambda target: emitter(spec, tile, target).text(), scratch=lambda p: p[-1]
    )


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


class _Kernel:
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


class _Backward(_Kernel):
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
