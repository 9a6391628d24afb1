"""Writing at positions that are data: a copy of the base, then the source's elements one by one.

A dimension of the source is *free* where its own index is one of the coordinates written to.  Elements with different free
indices never meet, so free dimensions are what tasks and vectors run over; the others are walked in row-major order by
every task.  Results therefore do not depend on how many threads there are, and of several elements written to one place
the last stays.
"""

from __future__ import annotations

from math import prod
from typing import Any

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.passes.scatters import filling
from lezero.schedule.index import TRUE, Emit, Ix, Mask, Var
from lezero.schedule.layout import Seen, linear, now, row_major
from lezero.schedule.lowered import Lowered
from lezero.schedule.opaque.frame import Frame, blocks, minus, plus, replaced, times

SHARE = 16
"""Elements of the vectorized dimension, at least, that a task takes when tasks share it: a cache line of float32."""
ROWS_FOR_ALL = 8
"""Free rows from which on tasks share those and not the vectorized dimension."""


def lower_scatter(node: Node) -> list[Lowered]:
    compute, code = compute_code(node.dtype), node.dtype.code
    adds = node.op.mode == "add"  # type: ignore[attr-defined]
    if not adds or compute == code:
        return [_copy(node, node.inputs[0], node, code), _updates(node, node, code, adds)]
    # half precision adds up in float32 and rounds once
    sums = ("work", "sums", prod(node.shape), ir.TYPES[compute])
    return [
        _copy(node, node.inputs[0], sums, compute),
        _updates(node, sums, compute, adds),
        _copy(node, sums, node, code),
    ]


def _copy(node: Node, source: Any, target: Any, code: str) -> Lowered:
    """Every element of the base (or of the float32 sums) to where updates go (or to the result).

    The usual base of a gradient is zeros, which need not be read.
    """
    frame, i, n = Frame(), ir.var("i"), prod(node.shape)
    compute = compute_code(node.dtype)
    if not isinstance(source, Node):
        value = ir.load(frame.buffer(source, compute), compute, i)
    elif source is node.inputs[0] and (number := filling(node)) is not None:
        value = ir.const(number, compute)
    else:
        value = frame.load(source, i)
    loop = ir.Loop("i", frame.values(n), [frame.store(target, code, i, value)], vector=True, task=True)
    copies = (node, now(source)) if target is node and isinstance(source, Node) and len(frame.operands) == 2 else None
    return frame.lowered("copy", [loop], n, n, copies=copies)


def _updates(node: Node, into: Any, code: str, adds: bool) -> Lowered:
    source = node.inputs[node.op.source]  # type: ignore[attr-defined]
    j = [Var(f"j{k}", d) for k, d in enumerate(source.shape)]
    here = tuple(Ix.of(v) for v in j)
    position, mask = node.op.target(here, *(Seen(x) for x in node.inputs), **node.named_attrs())  # type: ignore[attr-defined]
    position = tuple(Ix.of(p) for p in position)
    written = {p.key for p in position}
    loops = [v for v in j if not same(v.extent, 1)]
    free = [v for v in loops if Ix.of(v).key in written]

    frame = Frame()

    def read(index: Node, at: tuple[Ix, ...]) -> ir.Value:
        at = tuple(Ix.of(p) for p in at)
        return ir.cast(frame.load(index, emit.ix(linear(at, index.shape, row_major(index.ndim)))), "i64")

    emit = Emit(frame.params, read)
    inner = loops[-1] if free and free[-1] is loops[-1] else None
    rows = [v for v in free if v is not inner]
    shared = max(rows, key=lambda v: int(v.extent), default=None)
    if shared is not None and inner is not None and int(shared.extent) < min(ROWS_FOR_ALL, int(inner.extent)):
        shared = None  # too few rows: tasks share the vectorized dimension

    condition = None if mask is None or mask is TRUE else emit.mask(mask)
    value = frame.load(source, emit.ix(linear(here, source.shape, row_major(source.ndim))))
    at = emit.ix(linear(position, node.shape, row_major(node.ndim)))
    limit: int = 1
    if inner is None:
        body: list[ir.Stmt] = [frame.store(into, code, at, value, condition, adds)]
    else:
        extent = frame.values(inner.extent)
        first: ir.Value = ir.const(0)
        if shared is None:
            first, extent = _share(extent)
            limit = blocks(inner.extent, SHARE)
        bound = {ir.var(inner.name): plus(first, ir.var(inner.name))}
        if condition is not None and inner.name not in _variables(mask):
            # an index that is out of range: no iterations, rather than masked ones
            extent, condition = ir.call("where", condition, extent, ir.const(0)), None
        if condition is not None:
            condition = replaced(condition, bound)
        store = frame.store(into, code, replaced(at, bound), replaced(value, bound), condition, adds)
        body = [ir.Loop(inner.name, extent, [store], vector=True)]
    # the shared rows outside, then everything else in row-major order
    for v in reversed([v for v in loops if v is not inner and v is not shared]):
        body = [ir.Loop(v.name, frame.values(v.extent), body)]
    if shared is not None:
        body = [ir.Loop(shared.name, frame.values(shared.extent), body, task=True)]
        limit = shared.extent
    return frame.lowered(node.op.name, body, prod(source.shape), limit)


def _share(extent: ir.Value) -> tuple[ir.Value, ir.Value]:
    """This task's part of a dimension, in whole cache lines: where it begins and how long it is."""
    lines = ir.call("floordiv", plus(extent, ir.const(SHARE - 1)), ir.const(SHARE))
    first = times(ir.call("floordiv", times(lines, ir.TASK), ir.TASKS), ir.const(SHARE))
    last = times(ir.call("floordiv", times(lines, plus(ir.TASK, ir.const(1))), ir.TASKS), ir.const(SHARE))
    return first, minus(ir.call("min", last, extent), first)


def _variables(mask: Mask) -> set[str]:
    return {name for ix in mask.indices() for name in ix.variables()}
