"""Products whose reduction is long: the reduction in parts, and a second launch that adds them up.

A panel of B as long as a long reduction falls out of the cache between two tiles, and a small result has too few tiles
for all threads.  Either way the remedy is to cut the reduction: each part is a product of its own into a workspace.

How it is cut is decided by the product's sizes alone, and parts are added in order, so the result does not depend on
the number of threads.
"""

from __future__ import annotations

from functools import lru_cache

from lezero.codegen.contraction.epilogue import Emitter, Epilogue, Place
from lezero.codegen.contraction.microkernel import Tile
from lezero.codegen.contraction.spec import ELEMENTS_PER_THREAD, tasks_for_elements, useful_threads
from lezero.codegen.contraction.text import Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch
from lezero.codegen.target import Target

ENOUGH_ELEMENTS = 1 << 15
"""Elements of the result, parts counted, from which on there are tiles for every thread."""

LEAST_DEPTH = 1024
"""A part's share of the reduction at the least: per element of the result it pays for writing a sum and reading it."""

MOST_BYTES = 32 << 20
"""Parts together should stay in cache until they are added up: a result with many elements gets fewer and longer ones."""


def depth(tile: Tile, target: Target, batch: int, m: int, n: int, k: int) -> int:
    """How much of the reduction a part covers: `k` if it is not to be cut."""
    each = tile.itemsize // 2 if tile.pairs else tile.itemsize
    longest = max(LEAST_DEPTH, target.l2_bytes // 4 // (tile.width * each))
    elements = batch * m * n
    parts = max(k // longest, min(k // LEAST_DEPTH, ENOUGH_ELEMENTS // elements))
    parts = min(parts, MOST_BYTES // (elements * tile.itemsize))
    if parts < 2:
        return k
    line = 64 // tile.itemsize
    return -(-k // (parts * line)) * line


PARAMS = words("batch m n parts ldc sc")


def add_parts(
    tail: Epilogue, tile: Tile, sizes: tuple[int, ...], epilogue_params: tuple[int, ...], threads: int
) -> Launch:
    """The launch that adds the parts in "w:parts" and runs the epilogue; `sizes` are PARAMS."""
    batch, m, n, parts = sizes[:4]
    threads = useful_threads(threads, batch * m * n * parts, ELEMENTS_PER_THREAD)
    tasks = tasks_for_elements(batch * m, batch * m * n * parts, threads)
    return Launch(source(tail, tile.type, tile.lanes), ("w:parts", *tail.names), (*sizes, *epilogue_params), tasks)


@lru_cache(maxsize=256)
def source(tail: Epilogue, type: str, lanes: int) -> KernelSource:
    key = f"matmul sum {lanes} {type} {tail.key()}"
    return KernelSource("matmul.sum", key, lambda target: emit(tail, type, lanes, target))


def emit(tail: Epilogue, to: str, lanes: int, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    epilogue = Emitter(c, tail, lanes, first_buffer=1, first_param=len(PARAMS))
    parts = c.buffer(0)
    vector, size = f"<{lanes} x {to}>", c.mul(p["m"], p["n"])

    def row(i: str) -> None:
        batch, r = c.div(i, p["m"]), c.rem(i, p["m"])
        line = c.gep(parts, c.add(c.mul(c.mul(batch, p["parts"]), size), c.mul(r, p["n"])), to)
        start = c.add(c.mul(batch, p["sc"]), c.mul(r, p["ldc"]))

        def columns(col: Operand, mask: str | None) -> None:
            first = c.gep(line, col, to)

            def add(_: str, pointer: str, total: str) -> list[str]:
                value = c.vector_load(to, lanes, pointer, mask)
                return [c.gep(pointer, size, to), c.value(f"fadd {vector} {total}, {value}")]

            carried = [("ptr", c.gep(first, size, to)), (vector, c.vector_load(to, lanes, first, mask))]
            total = c.loop(1, p["parts"], add, carried=carried)[1]
            epilogue.run(total, to, Place(r, col, batch, c.add(start, col), mask))

        c.over_vectors(p["n"], lanes, columns)

    total = c.mul(p["batch"], p["m"])
    c.loop(c.div(c.mul("%task", total), "%tasks"), c.div(c.mul(c.add("%task", 1), total), "%tasks"), row)
    c.finish()
    return module.text()
