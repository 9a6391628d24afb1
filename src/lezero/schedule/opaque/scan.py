"""Running results along an axis: the state is an accumulator, each of its values is stored."""

from __future__ import annotations

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.schedule.lower import Lowered
from lezero.schedule.opaque.frame import Frame, around, blocks, minus, plus, times

ROWS_FOR_ALL = 16
"""Rows from which on they, and not the columns, are divided among tasks (each walks the columns in long vectors)."""
TOGETHER = 4
"""Rows scanned side by side where there are no columns: a step waits for the one before it, but not for other rows."""


def lower_scan(node: Node) -> list[Lowered]:
    """As rows x axis x columns: vectors over the columns; along the axis one element after the other."""
    rows, n, columns = around(node.shape, node.attrs[0])
    if same(columns, 1):
        return [_by_rows(node, rows, n)]
    return [_by_columns(node, rows, n, columns)]


def _by_rows(node: Node, rows: int, n: int) -> Lowered:
    frame, together = Frame(), TOGETHER if int(rows) >= TOGETHER else 1
    group = ir.var("group")
    starts, steps = [], []
    for u in range(together):
        row = plus(times(group, ir.const(together)), ir.const(u))
        if u:
            row = ir.call("min", row, minus(frame.values(rows), ir.const(1)))  # the last group repeats the last row
        start, step = _scan(node, frame, f"state{u}", plus(times(row, frame.values(n)), _place(node, frame, n)))
        starts.append(start)
        steps += step
    groups = blocks(rows, together)
    body = [*starts, ir.Loop("k", frame.values(n), steps)]
    loop = ir.Loop("group", frame.values(groups), body, task=True)
    return frame.lowered(node.op.name, [loop], rows * n, groups)


def _by_columns(node: Node, rows: int, n: int, columns: int) -> Lowered:
    frame, row, column = Frame(), ir.var("row"), ir.var("column")
    line = plus(times(row, frame.values(n)), _place(node, frame, n))
    start, steps = _scan(node, frame, "state", plus(times(line, frame.values(columns)), column))
    body: list[ir.Stmt] = [start, ir.Loop("k", frame.values(n), steps)]
    work = rows * n * columns
    if int(rows) < min(ROWS_FOR_ALL, int(columns)):
        inside: list[ir.Stmt] = [ir.Loop("row", frame.values(rows), body)]
        loop = ir.Loop("column", frame.values(columns), inside, vector=True, task=True)
        return frame.lowered(node.op.name, [loop], work, blocks(columns))
    inside = [ir.Loop("column", frame.values(columns), body, vector=True)]
    return frame.lowered(node.op.name, [ir.Loop("row", frame.values(rows), inside, task=True)], work, rows)


def _place(node: Node, frame: Frame, n: int) -> ir.Value:
    """The k-th position along the axis that the scan meets."""
    k, reverse = ir.var("k"), node.attrs[1]
    return minus(minus(frame.values(n), ir.const(1)), k) if reverse else k


def _scan(node: Node, frame: Frame, name: str, at: ir.Value) -> tuple[ir.Stmt, list[ir.Stmt]]:
    """The state's declaration, and one step: the next state and where it is stored."""
    type = compute_code(node.dtype)
    state = ir.acc(name, type)
    elements = [ir.cast(frame.load(x, at), type) for x in node.inputs]
    step = ir.Assign(name, node.op.step(state, *elements))  # type: ignore[attr-defined]
    return ir.Acc(name, type, node.op.start(type)), [step, frame.store(node, node.dtype.code, at, state)]  # type: ignore[attr-defined]
