"""Matrix products: one launch, packed block by block.

A task takes blocks of `mc` rows by `nc` columns.  It copies its rows of A into scratch once (rows an odd number of
cache lines apart, so that powers of two do not fall into one cache set), then, for every panel of B, copies the panel
(it stays in L2) and sweeps the rows' tiles over it.  A tile's sum leaves the registers every `STRETCH` steps; where the
reduction is so long that it is cut (`split`), the parts are products of their own, and a second launch adds them up.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd

from lezero.codegen.contraction import gemv, pack, pairs, split
from lezero.codegen.contraction.epilogue import Emitter, Place, elements, stores_only
from lezero.codegen.contraction.microkernel import Tile, call_tile, choose_tile, emit_rows_tiles, entry_words
from lezero.codegen.contraction.spec import (
    COMPUTE,
    PRODUCTS_PER_THREAD,
    MatmulSpec,
    tasks_for_elements,
    tasks_for_products,
    useful_threads,
)
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import MOST_PRODUCTS, KernelSource, Launch, Plan
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES

PARAMS = words("batch m n k lda ldb ldc sa sb sc mc nc mblocks nblocks in_place parts depth")
STRETCH = 256
"""The longest sum taken in one go.  An addition rounds to the precision of the sum so far, so that one sum of 1,000 products is
twice as far from exact as four that are then added, which take 1 to 3 % of the time."""

A_BLOCK_BYTES = 8 << 20
"""How much of A a task packs at a time: more means fewer packings of B; it is read as a stream, from L3 if need be."""


def plan_matmul(
    spec: MatmulSpec,
    batch: int,
    m: int,
    n: int,
    k: int,
    threads: int,
    target: Target,
    *,
    lda: int | None = None,
    ldb: int | None = None,
    ldc: int | None = None,
    stride_a: int | None = None,
    stride_b: int | None = None,
    stride_c: int | None = None,
    epilogue_params: tuple[int, ...] = (),
    prologue_params: tuple[int, ...] = (),
) -> Plan:
    """Plan C[i] (m x n) = A[i] (m x k) @ B[i] (k x n) for i < batch; operands "a", "b", the epilogue's, the prologue's.

    lda, ldb, ldc : elements between the rows of the stored matrices (default: dense).
    stride_a, stride_b, stride_c : elements between matrices of the batch (default: dense; 0 repeats one matrix).
    """
    if min(batch, m, n) == 0:
        return Plan([])
    lda = lda if lda is not None else (m if spec.trans_a else k)
    ldb = ldb if ldb is not None else (k if spec.trans_b else n)
    ldc = ldc if ldc is not None else n
    stride_a = stride_a if stride_a is not None else m * k
    stride_b = stride_b if stride_b is not None else k * n
    stride_c = stride_c if stride_c is not None else m * n
    if min(m, n) == 1 and m * n * k >= gemv.LEAST_PRODUCTS:
        params = (batch, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, *epilogue_params)
        return Plan([gemv.launch(replace(spec, bf16_products=0), params, threads)])
    compute = COMPUTE[spec.dtype]
    paired = pairs.supported("bf16" if spec.bf16_products else spec.dtype, target) and spec.prologue is None
    if not paired:
        spec = replace(spec, bf16_products=0)
    tile = choose_tile(target, TYPES[compute], n, paired)
    depth = split.depth(tile, target, batch, m, n, k)
    if depth == k:
        launch = product(
            spec, tile, target, (batch, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c), k, threads,
            ("a", "b", *spec.tail.names, *spec.head_names), (*prologue_params, *epilogue_params),
        )  # fmt: skip
        return Plan([launch])
    partial = replace(spec, out_dtype=compute, epilogue=None)
    sizes = (batch, m, n, k, lda, ldb, n, stride_a, stride_b, m * n)
    parts = -(-k // depth)
    launch = product(
        partial, tile, target, sizes, depth, threads, ("a", "b", "w:parts", *spec.head_names), prologue_params
    )
    total = split.add_parts(spec.tail, tile, (batch, m, n, parts, ldc, stride_c), epilogue_params, threads)
    return Plan([launch, total], {"w:parts": parts * batch * m * n * tile.itemsize})


def product(
    spec: MatmulSpec, tile: Tile, target: Target, sizes: tuple[int, ...], depth: int, threads: int,
    operands: tuple[str, ...], tail_params: tuple[int, ...],
) -> Launch:  # fmt: skip
    """The launch for `sizes` (PARAMS up to "sc"), the reduction in parts of `depth`, each a matrix of the result's batch."""
    batch, m, n, k, _, ldb = sizes[:6]
    threads = useful_threads(threads, batch * m * n * k, PRODUCTS_PER_THREAD)
    parts = -(-k // depth) if k else 1
    mc, nc = blocks(tile, target, batch * parts, m, n, row_elements(tile, depth, terms(spec)), depth, threads)
    mblocks, nblocks = -(-m // mc), -(-n // nc)
    in_place = reads_in_place(spec, tile, target, mc, depth, ldb)
    params = (*sizes, mc, nc, mblocks, nblocks, in_place, parts, depth, *tail_params)
    items = batch * parts * mblocks * nblocks
    packed = batch * k * (m * nblocks + n * mblocks)
    tasks = max(tasks_for_products(items, batch * m * n * k, threads), tasks_for_elements(items, packed, threads))
    return Launch(source(spec, tile), operands, params, tasks)


def terms(spec: MatmulSpec) -> int:
    """How often the reduction is gone through."""
    return len(spec.sources[0])


def blocks(
    tile: Tile, target: Target, batch: int, m: int, n: int, row: int, k: int, threads: int
) -> tuple[int, int]:  # fmt: skip
    """Rows and columns of a block, of rows of `row` elements: as large as scratch allows, and enough blocks for every thread."""

    def split_up(extent: int, unit: int, parts: int) -> int:
        units = -(-extent // unit)
        return -(-units // max(1, min(parts, units))) * unit

    # With one panel A is read once, so the copy should not leave L2.
    budget = A_BLOCK_BYTES if n > tile.width else target.l2_bytes // 2
    mc = split_up(m, tile.height, -(-m * row * tile.itemsize // budget))
    nc = split_up(n, tile.width, 1)
    if threads > 1:
        have = -(-m // mc)
        wanted = have
        while batch * wanted < 4 * threads and batch * wanted % threads:
            wanted += 1  # the last round should keep everybody busy, too
        # Splitting rows repeats the packing of B, splitting columns that of A.
        if m >= n or have > 1 or n < tile.width * wanted:
            mc = split_up(m, tile.height, wanted)
        else:
            nc = split_up(n, tile.width, wanted)
    return mc, min(nc, split_up(n, tile.width, -(-mc * n * k // MOST_PRODUCTS)))


def reads_in_place(spec: MatmulSpec, tile: Tile, target: Target, mc: int, k: int, ldb: int) -> bool:
    """Whether to read panels of B where they are, because copying them costs more than it saves.

    It does when few tiles share a panel, provided that its rows do not fall into a few sets of L2 (taken to have 8 ways).
    """
    if spec.trans_b or tile.pairs or spec.dtype != COMPUTE[spec.dtype]:
        return False
    sets = target.l2_bytes // (8 * 64)
    distinct = sets // gcd(sets, max(1, ldb * tile.itemsize // 64))
    return mc <= tile.height or (mc <= 10 * tile.height and k <= 4 * distinct)


@lru_cache(maxsize=256)
def source(spec: MatmulSpec, tile: Tile) -> KernelSource:
    sources = " ".join((*spec.sources[0], *spec.sources[1]))
    key = f"matmul {sources} {spec.trans_a:d}{spec.trans_b:d} {tile} {spec.tail.key()}"
    if spec.prologue is not None:
        key += f" of {spec.prologue.params} {spec.prologue.key()}"
    return KernelSource(
        "matmul",
        key,
        lambda target: emit(spec, tile, target),
        scratch=lambda p: layout(tile, terms(spec), p[16], p[10])[-1],
    )


def layout(tile: Tile, terms: int, k: int, mc: int) -> tuple[int, ...]:
    """Byte offsets in scratch of the table of rows, the panel of B and the block of A, and the end."""
    table = tile.bytes
    panel = table + -(-mc // tile.height * entry_words(tile) * 8 // 64) * 64
    block = panel + packed_steps(tile, k, terms) * tile.width * tile.itemsize
    end = block + -(-mc // tile.lanes) * tile.lanes * row_elements(tile, k, terms) * tile.itemsize
    return table, panel, block, end


def row_elements(tile: Tile, k: int, terms: int) -> int:
    """Elements (or pairs) of a packed row of A, `terms` times `k` numbers: an odd number of cache lines."""
    line = 64 // tile.itemsize
    return (-(-packed_steps(tile, k, terms) // line) | 1) * line


def packed_steps(tile: Tile, k: int, terms: int) -> int:
    """Steps there is room for: the last term is packed in whole vectors, the others close up."""
    steps = -(-k // 2) if tile.pairs else k
    return (terms - 1) * steps + -(-steps // tile.lanes) * tile.lanes


def emit(spec: MatmulSpec, tile: Tile, target: Target) -> str:
    module = Module(target)
    emit_rows_tiles(module, tile, STRETCH)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    to, height = tile.type, tile.height
    a_sources, b_sources = spec.sources
    a_memory, b_memory = MEMORY[a_sources[0]], MEMORY[b_sources[0]]
    packing = pairs if tile.pairs else pack
    steps = (lambda k: pairs.steps(c, k)) if tile.pairs else (lambda k: k)
    all_steps = lambda k: c.mul(steps(k), len(a_sources))
    own = spec.prologue.params if spec.prologue else 0
    epilogue = Emitter(c, spec.tail, tile.lanes, first_buffer=2, first_param=len(PARAMS) + own)
    element = elements(c, spec.prologue, tile.lanes, first_buffer=2 + len(spec.tail.names), first_param=len(PARAMS))
    a, b = c.buffer(0), c.buffer(1)

    # The same layout as `layout`, with sizes in registers.
    line = 64 // tile.itemsize
    table = c.gep("%scratch", tile.bytes, "i8")
    panel = c.gep(table, c.round_up(c.mul(c.div(p["mc"], height), entry_words(tile) * 8), 64), "i8")
    room = c.round_up(steps(p["depth"]), tile.lanes)
    room = c.add(c.mul(steps(p["depth"]), len(a_sources) - 1), room)
    block = c.gep(panel, c.mul(room, tile.width), to)
    row = c.mul(c.value(f"or i64 {c.ceil_div(room, line)}, 1"), line)

    def item(i: str) -> None:
        per_batch = c.mul(p["mblocks"], p["nblocks"])
        batch, rest = c.div(i, per_batch), c.rem(i, per_batch)
        m0 = c.mul(c.div(rest, p["nblocks"]), p["mc"])
        n0 = c.mul(c.rem(rest, p["nblocks"]), p["nc"])
        rows = c.min(p["mc"], c.sub(p["m"], m0))
        matrix, part = c.div(batch, p["parts"]), c.rem(batch, p["parts"])
        k0 = c.mul(part, p["depth"])
        k = c.min(p["depth"], c.sub(p["k"], k0))
        a_from = c.add(c.mul(matrix, p["sa"]), c.mul(k0, p["lda"] if spec.trans_a else 1))
        b_from = c.add(c.mul(matrix, p["sb"]), c.mul(k0, 1 if spec.trans_b else p["ldb"]))
        pack_a(m0, rows, k0, k, c.gep(a, a_from, a_memory))
        b_here = c.gep(b, b_from, b_memory)
        n1 = c.min(c.add(n0, p["nc"]), p["n"])

        def columns(col: str) -> None:
            left = c.sub(p["n"], col)
            if spec.trans_b:
                start = c.gep(b_here, c.mul(col, p["ldb"]), b_memory)
                for j, source in enumerate(b_sources):
                    here = c.gep(panel, c.mul(c.mul(steps(k), j), tile.width), to)
                    packing.transpose_panel(c, source, to, tile.lanes, tile.width, start, p["ldb"], k, left, here)
                b_panel, step = panel, str(tile.width)
            else:
                start = c.gep(b_here, col, b_memory)
                whole_panel = c.value(f"icmp sge i64 {left}, {tile.width}")
                in_place = c.value(f"and i1 {whole_panel}, {c.less(0, p['in_place'])}")
                b_panel, step = c.select(in_place, start, panel, "ptr"), c.select(in_place, p["ldb"], tile.width)

                def copy() -> None:
                    for j, source in enumerate(b_sources):
                        here = c.gep(panel, c.mul(c.mul(steps(k), j), tile.width), to)
                        packing.copy_panel(c, source, to, tile.lanes, tile.vectors, start, p["ldb"], k, left, here)

                c.when(in_place, lambda: None, copy)

            def tiles(r: str) -> None:
                count = c.min(c.sub(rows, r), height)
                entry = c.gep(table, c.mul(c.div(r, height), entry_words(tile)), "ptr")
                operands = (
                    f"ptr {entry}, i64 1, ptr {b_panel}, i64 {step}, i64 {all_steps(k)}, i64 {c.mul(row, height)}"
                )

                def direct() -> None:
                    start = c.add(c.add(c.mul(batch, p["sc"]), c.mul(c.add(m0, r), p["ldc"])), col)
                    out = c.gep(epilogue.outputs[0], start, to)
                    c.emit(f"call void @rows{height}({operands}, ptr {out}, i64 {p['ldc']})")

                def by_rows() -> None:
                    call_tile(c, tile, "rows", count, f"{operands}, ptr %scratch, i64 {tile.width}")
                    finish(batch, c.add(m0, r), count, col)

                if stores_only(spec.tail, to):
                    whole = c.value(f"and i1 {c.less(height - 1, count)}, {c.less(tile.width - 1, left)}")
                    c.when(whole, direct, by_rows)
                else:
                    by_rows()

            c.loop(0, rows, tiles, step=height)

        c.loop(n0, n1, columns, step=tile.width)

    def pack_a(m0: Operand, rows: Operand, k0: Operand, k: Operand, a_here: str) -> None:
        if spec.trans_a:
            start = c.gep(a_here, m0, a_memory)
            computed = {"computed": lambda j, i, mask: element(c.add(k0, j), c.add(m0, i), mask)} if element else {}

            def across() -> None:
                # What is written beyond a term is overwritten by the next one.
                for i, source in enumerate(a_sources):
                    here = c.gep(block, c.mul(steps(k), i), to)
                    packing.transpose_rows(c, source, to, tile.lanes, row, start, p["lda"], rows, k, here, **computed)

            c.when(c.less(0, k), across)
        else:

            def one(r: str) -> None:
                start = c.gep(a_here, c.mul(c.add(m0, r), p["lda"]), a_memory)
                computed = {"computed": lambda i, mask: element(c.add(m0, r), c.add(k0, i), mask)} if element else {}
                for i, source in enumerate(a_sources):
                    here = c.gep(block, c.add(c.mul(r, row), c.mul(steps(k), i)), to)
                    packing.copy_row(c, source, to, tile.lanes, start, k, here, **computed)

            c.loop(0, rows, one)

        def entry(r: str) -> None:
            words = c.gep(table, c.mul(c.div(r, height), entry_words(tile)), "ptr")
            c.store("i64", 0, words)
            for i in range(height):
                source_row = c.gep(block, c.mul(c.min(c.add(r, i), c.sub(rows, 1)), row), to)
                c.store("ptr", source_row, c.gep(words, 1 + i, "ptr"))

        c.loop(0, rows, entry, step=height)

    def finish(batch: Operand, m0: Operand, count: Operand, col: Operand) -> None:
        def one(r: str) -> None:
            here = c.add(m0, r)
            start = c.add(c.add(c.mul(batch, p["sc"]), c.mul(here, p["ldc"])), col)
            epilogue.row(tile, c.gep("%scratch", c.mul(r, tile.width), to), Place(here, col, batch, start), p["n"])

        c.loop(0, count, one)

    per_task = c.mul(c.mul(c.mul(p["batch"], p["parts"]), p["mblocks"]), p["nblocks"])
    first = c.div(c.mul("%task", per_task), "%tasks")
    last = c.div(c.mul(c.add("%task", 1), per_task), "%tasks")
    c.loop(first, last, item)
    c.finish()
    return module.text()
