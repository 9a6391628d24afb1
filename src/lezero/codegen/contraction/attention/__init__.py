"""Attention in blocks: scores are only ever in scratch, a block of queries by a block of keys at a time.

Forward, a task takes blocks of queries of one head.  Going over the keys it keeps, for each query, the largest score so far
and the sum of exponentials relative to it; when a larger one turns up, what has been summed is scaled down (Milakov &
Gimelshein 2018).  It stores the result and the logarithm of the sum, from which the backward pass has the probabilities again
(Dao et al. 2022).  Backward, a task takes whole heads: for each block of keys it goes over the blocks of queries and adds to
all three gradients, which stay in scratch until they are complete.

Dropout draws the numbers of a block's weights where it has the block, forward and backward: each is a function of the weight's
number.  Half precision is widened as it is packed; where the processor multiplies pairs of bf16 (``pairs.py``), operands are
packed as pairs, and probabilities and gradients of scores are rounded between two products.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from lezero.codegen.contraction import pairs
from lezero.codegen.contraction.attention.backward import Backward
from lezero.codegen.contraction.attention.forward import Forward
from lezero.codegen.contraction.attention.spec import (
    BLOCK,
    DENSE,
    PAIRS,
    AttentionSpec,
    Extents,
    Numbers,
    Strides,
)
from lezero.codegen.contraction.microkernel import (
    Tile,
    choose_tile,
    entry_words,
)
from lezero.codegen.contraction.spec import COMPUTE, PRODUCTS_PER_THREAD, tasks_for_products, useful_threads
from lezero.codegen.launch import KernelSource, Launch, Plan
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES


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
    emitter = {"forward": Forward, "backward": Backward}[which]
    name = "attention" if which == "forward" else "attention.grad"
    return KernelSource(
        name, f"{name} {spec.key()} {tile}", lambda target: emitter(spec, tile, target).text(), scratch=lambda p: p[-1]
    )
