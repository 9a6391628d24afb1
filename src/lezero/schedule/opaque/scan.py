"""Running results along an axis: the state is an accumulator, each of its values is stored.

A long axis is cut into stretches.  Where states can be joined (sums, extremes) there are three launches: what each stretch
comes to, from there the state that each begins with, and the stretches themselves, all at once.  The product of a stretch can
overflow where the running product does not; such scans take one stretch after the other, a launch each.
Where the axis is cut follows from its length, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

from lezero.graph.dim import Dim, same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.loops.ir import call, const
from lezero.ops.creation import compute_code
from lezero.schedule.lowered import Lowered, number
from lezero.schedule.opaque.frame import Frame, around, blocks, minus, plus, times

SHARE = 64
"""Columns, at the most, that are walked together: whole cache lines, so that two threads do not write into one."""
TOGETHER = 4
"""Rows scanned side by side where there are no columns: a step waits for the one before it, but not for other rows."""
STRETCH = 1 << 16
"""Steps in a stretch: with `SHARE` columns, as much as a task should take."""


def lower_scan(node: Node) -> list[Lowered]:
    """As rows x axis x columns: vectors over the columns; along the axis one element after the other."""
    n = node.shape[node.attrs[0]]
    if type(n) is not Dim and n <= STRETCH:
        return [_Scan(node, "whole").scan()]
    if node.op.reduction is None:  # type: ignore[attr-defined]
        return [_Scan(node, "in turn").scan()]
    totals, beginnings, scan = _Scan(node, "at once"), _Scan(node, "at once"), _Scan(node, "at once")
    beginnings.states = scan.states = totals.states
    return [totals.totals(), beginnings.beginnings(), scan.scan()]


class _Scan:
    """One kernel of a scan whose axis is taken as a "whole", or in stretches "in turn" or "at once"."""

    def __init__(self, node: Node, order: str):
        self.node, self.order, self.frame = node, order, Frame()
        self.rows, self.n, self.columns = around(node.shape, node.attrs[0])
        self.op: Any = node.op
        self.type = compute_code(node.dtype)
        self.start = node.op.start(self.type)  # type: ignore[attr-defined]
        self.count = 1 if order == "whole" else (self.n + (STRETCH - 1)) // STRETCH
        self.kept = self.count - 1 if order == "at once" else 1  # states kept for each row and column
        self.states = "work", "states", self.rows * self.kept * self.columns, ir.TYPES[self.type]
        self.first = self.column = const(0)

    # -- the kernels -------------------------------------------------------------------------------------------

    def totals(self) -> Lowered:
        """What every stretch but the last comes to."""
        item, items = self._item(self.rows * self.kept)
        row, stretch = self._parted(item, self.kept)
        value = self._elements(self._at(row, stretch))[0]
        add = ir.Reduce("total", self.op.reduction, value)
        body: list[ir.Stmt] = [
            ir.Acc("total", self.type, self.start),
            ir.Loop("k", const(STRETCH), [add], vector=same(self.columns, 1)),
            self._keep(row, stretch, ir.acc("total", self.type)),
        ]
        return self._lowered(body, items, self.rows * self.kept * STRETCH * self.columns, items)

    def beginnings(self) -> Lowered:
        """From totals to the states that the next stretches begin with."""
        row, items = self._item(self.rows)
        stretch, state = ir.var("stretch"), ir.acc("state", self.type)
        add = ir.Assign("state", self.op.step(state, self._kept(row, stretch)))
        body: list[ir.Stmt] = [
            ir.Acc("state", self.type, self.start),
            ir.Loop("stretch", self.frame.values(self.kept), [add, self._keep(row, stretch, state)]),
        ]
        return self._lowered(body, items, self.rows * self.kept * self.columns, items * self.kept)

    def scan(self) -> Lowered:
        """Every state of every stretch, or of one stretch of each row and column."""
        together = TOGETHER if same(self.columns, 1) and int(self.rows) >= TOGETHER else 1
        lines = blocks(self.rows, together)
        item, items = self._item(lines * self.count if self.order == "at once" else lines)
        line, stretch = item, const(0)
        if self.order == "at once":
            line, stretch = self._parted(item, self.count)
        elif self.order == "in turn":
            stretch = self.frame.params.named("round")
        begins: list[ir.Stmt] = []
        steps: list[ir.Stmt] = []
        ends: list[ir.Stmt] = []
        for u in range(together):
            row = plus(times(line, const(together)), const(u))
            if u:  # the last rows repeat the very last
                row = call("min", row, minus(self.frame.values(self.rows), const(1)))
            begin, step, end = self._run(f"state{u}", row, stretch)
            begins.append(begin)
            steps += step
            ends += end
        length = self.frame.values(self.n)
        if self.order != "whole":
            length = call("min", minus(length, times(stretch, const(STRETCH))), const(STRETCH))
        body = [*begins, ir.Loop("k", length, steps), *ends]
        if self.order == "in turn":
            return self._lowered(
                body, items, self.rows * STRETCH * self.columns, items, rounds=lambda b: number(self.count, b)
            )
        return self._lowered(body, items, self.rows * self.n * self.columns, items)

    # -- their parts -------------------------------------------------------------------------------------------

    def _item(self, outer: int) -> tuple[ir.Value, int]:
        """Which of `outer` an iteration of the task loop is about, and how many iterations there are: they share columns."""
        item = ir.var("item")
        if same(self.columns, 1):
            return item, outer
        shares = blocks(self.columns, SHARE)
        outside, share = self._parted(item, shares)
        self.first = times(share, const(SHARE))
        self.column = plus(self.first, ir.var("column"))
        return outside, outer * shares

    def _parted(self, item: ir.Value, extent: int) -> tuple[ir.Value, ir.Value]:
        of = self.frame.values(extent)
        return call("floordiv", item, of), call("mod", item, of)

    def _lowered(self, body: list[ir.Stmt], items: int, work: int, limit: int, **more: Any) -> Lowered:
        if not same(self.columns, 1):
            extent = call("min", minus(self.frame.values(self.columns), self.first), const(SHARE))
            body = [ir.Loop("column", extent, body, vector=True)]
        loop = ir.Loop("item", self.frame.values(items), body, task=True)
        return self.frame.lowered(self.op.name, [loop], work, limit, **more)

    def _run(self, name: str, row: ir.Value, stretch: ir.Value) -> tuple[ir.Stmt, list[ir.Stmt], list[ir.Stmt]]:
        """The state's declaration, one step (the next state and where it is stored), and what follows the last."""
        start, state = self.start, ir.acc(name, self.type)
        end: list[ir.Stmt] = []
        if self.order != "whole":
            later = call("gt", stretch, const(0))
            kept = const(0) if self.order == "in turn" else minus(stretch, const(1))
            start = call("where", later, self._kept(row, kept, later), start)
        if self.order == "in turn":
            end = [self._keep(row, const(0), state)]
        at = self._at(row, stretch)
        step = ir.Assign(name, self.op.step(state, *self._elements(at)))
        return ir.Acc(name, self.type, start), [step, self.frame.store(self.node, self.node.dtype.code, at, state)], end

    def _at(self, row: ir.Value, stretch: ir.Value) -> ir.Value:
        """Where the k-th element of a stretch lies."""
        n, k = self.frame.values(self.n), plus(times(stretch, const(STRETCH)), ir.var("k"))
        place = minus(minus(n, const(1)), k) if self.node.attrs[1] else k
        return plus(times(plus(times(row, n), place), self.frame.values(self.columns)), self.column)

    def _elements(self, at: ir.Value) -> list[ir.Value]:
        return [ir.cast(self.frame.load(x, at), self.type) for x in self.node.inputs]

    def _kept(self, row: ir.Value, k: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        """The k-th of a row's states in memory."""
        return ir.load(self.frame.buffer(self.states, self.type), self.type, self._place(row, k), mask)

    def _keep(self, row: ir.Value, k: ir.Value, state: ir.Value) -> ir.Store:
        return self.frame.store(self.states, self.type, self._place(row, k), state)

    def _place(self, row: ir.Value, k: ir.Value) -> ir.Value:
        line = plus(times(row, self.frame.values(self.kept)), k)
        return plus(times(line, self.frame.values(self.columns)), self.column)
