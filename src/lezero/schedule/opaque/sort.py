"""Stable argsort by merging: runs of sorted elements double in length until one is left.

Elements are compared as integers: a float's bits become an integer of the same order, with -0 equal to 0 and NaN above
everything, and for a descending order all bits are turned over.  Where such a key takes at most 32 bits, key and position
share one int64, so that equal keys order by themselves and one array is all there is to move.  Wider keys move beside
their positions.
"""

from __future__ import annotations

from typing import Any

from lezero.graph.dim import Dim, same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.loops.ir import call, cast, const
from lezero.schedule.lowered import Lowered, number
from lezero.schedule.opaque.frame import Frame, around, minus, plus, replaced, times

BLOCK = 32
"""Elements sorted by counting, for each, those before it: 32 comparisons, several at a time, against five passes of merging."""
PAIRS = 29
"""Pairs of passes that are ever needed: behind the last a run has 2**61 elements."""
EFFORT = 16
"""Work on an element of a row of a thousand, in elements of a copy."""

k, row = ir.var("k"), ir.var("row")


RUN = 1 << 16
"""Elements of a long row that a task sorts or merges at a time."""
PACKED = 1 << 31
"""Shorter rows have positions that fit into an integer beside keys of 32 bits."""
CHAINS = 4
"""Places of a long merge that a task is at by turns: each is a chain of dependent steps, and a processor overlaps them."""
ENOUGH = 44
"""Steps in which a search ends, and doublings from `RUN` (to 2**60 elements) that are ever needed."""


def lower_argsort(node: Node) -> list[Lowered]:
    """Rows are tasks; a row is merged to and fro between arrays of the thread that sorts it.

    Of long rows, tasks sort runs; then, launch by launch, every two runs are merged, each task merging a part of the result.
    """
    n = node.shape[node.attrs[0]]
    if type(n) is not Dim and n <= 2 * RUN:
        return [_Sort(node).lowered()]
    runs, merged, places = _Long(node), _Long(node), _Long(node)
    merged.memory = places.memory = runs.memory
    return [runs.runs(), merged.merged(), places.places()]


class _Sort:
    """Kernel buffers 0 and 1 are the input and the result; behind them lie the scratch arrays."""

    def __init__(self, node: Node):
        self.node, self.x, self.frame = node, node.inputs[0], Frame()
        axis, self.descending = node.attrs
        self.outer, self.n, self.inner = around(node.shape, axis)
        self.length = self.whole = self.frame.values(self.n)
        self.frame.buffer(self.x, self.x.dtype.code)
        self.frame.buffer(node, "i64")
        self.packed = self.x.dtype.code not in ("f64", "i64", "u64", "u32") and int(self.n) < PACKED
        # (keys, positions): one array for both where they are packed
        self.one, self.two = ((2, 2), (3, 3)) if self.packed else ((2, 3), (4, 5))

    def lowered(self) -> Lowered:
        place = ir.load(self.two[1], "i64", k)
        store = self.frame.store(self.node, "i64", self.at(), self.position(place))
        body = [*self.sorting(), ir.Loop("k", self.length, [store], vector=True)]
        rows = self.outer * self.inner
        loop = ir.Loop("row", self.frame.values(rows), body, task=True)
        return self.frame.lowered("argsort", [loop], rows * self.n * EFFORT, rows, self.scratch())

    def sorting(self) -> list[ir.Stmt]:
        """Everything in the second arrays, in order."""
        begin: list[ir.Stmt] = [ir.Store(self.one[0], k, self.key())]
        if not self.packed:
            begin.append(ir.Store(self.one[1], k, self.number()))
        return [
            ir.Loop("k", self.length, begin, vector=True),
            self.blocks(self.one, self.two),
            *self.passes(self.two, self.one),
        ]

    def scratch(self) -> tuple[ir.Scratch, ...]:
        return (ir.Scratch("i64", self.length),) * (2 if self.packed else 4)

    def number(self) -> ir.Value:
        """The row's k-th element's position."""
        return k

    def position(self, value: ir.Value) -> ir.Value:
        """The position in what an array of positions holds."""
        return call("and", value, const((1 << 32) - 1)) if self.packed else value

    def at(self) -> ir.Value:
        """Where the row's k-th element lies in memory."""
        if same(self.inner, 1):
            return plus(times(row, self.whole), self.number())
        inner = self.frame.values(self.inner)
        across, along = call("floordiv", row, inner), call("mod", row, inner)
        return plus(times(plus(times(across, self.whole), self.number()), inner), along)

    def key(self) -> ir.Value:
        """The key of the row's k-th element, with its position if both fit."""
        key = _ordered(self.frame.load(self.x, self.at()), "i32" if self.packed else "i64")
        if self.descending:
            key = call("not", key)
        return call("or", call("shl", cast(key, "i64"), const(32)), self.number()) if self.packed else key

    # -- short runs --------------------------------------------------------------------------------------------

    def blocks(self, source: tuple[int, int], target: tuple[int, int]) -> ir.Stmt:
        """Sort blocks: an element's place is the number of elements that go before it."""
        start = times(ir.var("block"), const(BLOCK))
        extent = call("min", minus(self.length, start), const(BLOCK))
        me, m = plus(start, k), ir.var("m")
        mine, other = ir.load(source[0], "i64", me), ir.load(source[0], "i64", plus(start, m))
        before = call("lt", other, mine)
        if not self.packed:
            before = call("or", before, call("and", call("eq", other, mine), call("lt", m, k)))
        count = ir.Loop("m", extent, [ir.Reduce("place", "sum", cast(before, "i64"))])
        to = plus(start, ir.acc("place", "i64"))
        body: list[ir.Stmt] = [ir.Acc("place", "i64", const(0)), count, ir.Store(target[0], to, mine)]
        if not self.packed:
            body.append(ir.Store(target[1], to, ir.load(source[1], "i64", me)))
        number = call("floordiv", plus(self.length, const(BLOCK - 1)), const(BLOCK))
        return ir.Loop("block", number, [ir.Loop("k", extent, body, vector=True)])

    # -- merging -----------------------------------------------------------------------------------------------

    def passes(self, source: tuple[int, int], other: tuple[int, int]) -> list[ir.Stmt]:
        """Passes to the other arrays and back, until one run is left (a pass with nothing to merge copies)."""

        def width(p: str) -> ir.Value:
            return call("shl", const(BLOCK), call("mul", ir.var(p), const(2)))

        more = cast(call("lt", width("q"), self.length), "i64")
        there = self.merges("there", width("p"), source, other)
        back = self.merges("back", times(width("p"), const(2)), other, source)
        return [
            ir.Acc("pairs", "i64", const(0)),
            ir.Loop("q", const(PAIRS), [ir.Reduce("pairs", "sum", more)]),
            ir.Loop("p", ir.acc("pairs", "i64"), [there, back]),
        ]

    def merges(self, name: str, width: ir.Value, source: tuple[int, int], target: tuple[int, int]) -> ir.Stmt:
        """Merge every two neighbouring runs of `width`, from both ends at once.

        The two ends are two chains of dependent steps that a processor overlaps.  They meet in the middle; the middle element
        of an odd number is placed twice.  Neither end can use up the left run, which is at least half of both.
        """
        n, step = self.length, ir.var(name + "_step")
        begin = times(ir.var(name), times(width, const(2)))
        middle = call("min", plus(begin, width), n)
        end = call("min", plus(begin, times(width, const(2))), n)
        # the next on the left is counted; the next on the right follows from how many are placed
        low, high = ir.acc(name + "_low", "i64"), ir.acc(name + "_high", "i64")
        right_low = minus(plus(middle, step), minus(low, begin))
        right_high = minus(minus(plus(middle, end), const(2)), plus(step, high))
        body = [
            *self.place(name + "_first", source, target, plus(begin, step), low, right_low, call("lt", right_low, end), True),
            *self.place(name + "_last", source, target, minus(minus(end, const(1)), step), high, right_high, call("ge", right_high, middle), False),
        ]  # fmt: skip
        half = call("shr", plus(minus(end, begin), const(1)), const(1))
        ends: list[ir.Stmt] = [
            ir.Acc(low.attr, "i64", begin),
            ir.Acc(high.attr, "i64", minus(middle, const(1))),
            ir.Loop(name + "_step", half, body),
        ]
        two = times(width, const(2))
        return ir.Loop(name, call("floordiv", plus(n, minus(two, const(1))), two), ends)

    def place(
        self, taken: str, source: tuple[int, int], target: tuple[int, int], to: ir.Value, left: ir.Value, right: ir.Value,
        exists: ir.Value, lowest: bool,
    ) -> list[ir.Stmt]:  # fmt: skip
        """Move the lesser of two elements, or the greater one, and count one on if it came from the left.

        `taken` names an accumulator that keeps the answer, since what it was computed from changes.
        """
        a, b = ir.load(source[0], "i64", left), ir.load(source[0], "i64", right, exists)
        wrong = call("and", exists, call("lt", b, a))  # the right one goes first
        from_right = wrong if lowest else call("and", exists, call("not", call("lt", b, a)))
        is_right = call("ne", ir.acc(taken, "i64"), const(0))
        moves: list[ir.Stmt] = [
            ir.Acc(taken, "i64", cast(from_right, "i64")),
            ir.Store(target[0], to, call("where", is_right, b, a)),
        ]
        if not self.packed:
            moves.append(ir.Store(target[1], to, ir.load(source[1], "i64", call("where", is_right, right, left))))
        on = minus(const(1), ir.acc(taken, "i64"))
        return [*moves, ir.Assign(left.attr, plus(left, on) if lowest else minus(left, on))]


class _Long(_Sort):
    """Kernels for long rows.  Keys and positions lie in memory twice: a launch merges from one half to the other."""

    def __init__(self, node: Node):
        super().__init__(node)
        self.rows = self.outer * self.inner
        self.pieces = (self.n + (RUN - 1)) // RUN  # of a row: what a task works on
        names = ("keys",) if self.packed else ("keys", "positions")
        self.memory = [("work", name, self.rows * self.n * 2, 8) for name in names]
        self.piece = self.frame.values(self.pieces)

    def runs(self) -> Lowered:
        """Sorted runs, in the first halves."""
        memory = [self.frame.buffer(m, "i64") for m in self.memory]
        arrays = [len(self.frame.types) + i for i in range(2 * len(memory))]
        self.one, self.two = ((arrays[0], arrays[0]), (arrays[1], arrays[1])) if self.packed else (
            (arrays[0], arrays[1]), (arrays[2], arrays[3])
        )  # fmt: skip
        self.length = call("min", minus(self.whole, self.begin()), const(RUN))
        to = plus(self.half(const(0)), self.number())
        body: list[ir.Stmt] = self.sorting()
        out: list[ir.Stmt] = [
            self.frame.store(m, "i64", to, ir.load(a, "i64", k)) for m, a in zip(self.memory, self.two)
        ]
        body.append(ir.Loop("k", self.length, out, vector=True))
        return self.task("item", body, EFFORT, scratch=(ir.Scratch("i64", const(RUN)),) * len(arrays))

    def merged(self) -> Lowered:
        """Runs of twice the width, in the other halves: a task merges `RUN` elements of the result."""
        turn = self.frame.params.named("round")
        width, parity = call("shl", const(RUN), turn), call("and", turn, const(1))
        source, target = self.half(parity), self.half(minus(const(1), parity))
        size = call("min", minus(self.whole, self.begin()), const(RUN))
        start = call("mul", call("floordiv", self.begin(), times(width, const(2))), times(width, const(2)))
        middle = call("min", plus(start, width), self.whole)
        end = call("min", plus(start, times(width, const(2))), self.whole)
        steps = call("floordiv", plus(size, const(CHAINS - 1)), const(CHAINS))
        body: list[ir.Stmt] = []
        merge: list[ir.Stmt] = []
        for c in range(CHAINS):
            # the last begins early enough to be as long as the others
            first = plus(self.begin(), call("min", times(steps, const(c)), minus(size, steps)))
            left, search = self.split(f"{c}", source, start, middle, end, minus(first, start))
            body += search
            merge += self.advance(f"{c}", source, target, left, plus(first, ir.var("step")), start, middle, end)
        body.append(ir.Loop("step", steps, merge))
        return self.task("item", body, EFFORT, rounds=lambda b: _doublings(number(self.n, b)))

    def places(self) -> Lowered:
        """The positions to the result, from the halves that the last launch wrote."""
        more = cast(call("lt", call("shl", const(RUN), ir.var("q")), self.whole), "i64")
        parity = call("and", ir.acc("turns", "i64"), const(1))
        value = ir.load(self.frame.buffer(self.memory[-1], "i64"), "i64", plus(self.half(parity), self.number()))
        body: list[ir.Stmt] = [
            ir.Acc("turns", "i64", const(0)),
            ir.Loop("q", const(ENOUGH), [ir.Reduce("turns", "sum", more)]),
            ir.Loop(
                "k", call("min", minus(self.whole, self.begin()), const(RUN)),
                [self.frame.store(self.node, "i64", self.at(), self.position(value))], vector=True,
            ),
        ]  # fmt: skip
        return self.task("item", body, 1)

    # -- their parts -------------------------------------------------------------------------------------------

    def begin(self) -> ir.Value:
        """Where the task's piece begins in its row."""
        return times(call("mod", ir.var("item"), self.piece), const(RUN))

    def number(self) -> ir.Value:
        return plus(self.begin(), k)

    def at(self) -> ir.Value:
        return replaced(super().at(), {row: self.row()})

    def row(self) -> ir.Value:
        return call("floordiv", ir.var("item"), self.piece)

    def half(self, which: ir.Value) -> ir.Value:
        """Where one of the row's halves begins in memory."""
        return times(plus(times(self.row(), const(2)), which), self.whole)

    def task(self, name: str, body: list[ir.Stmt], effort: int, **more: Any) -> Lowered:
        items = self.rows * self.pieces
        loop = ir.Loop(name, self.frame.values(items), body, task=True)
        return self.frame.lowered("argsort", [loop], self.rows * self.n * effort, items, **more)

    def kept(self, array: int, index: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        return ir.load(self.frame.buffer(self.memory[array], "i64"), "i64", index, mask)

    def split(
        self, name: str, source: ir.Value, start: ir.Value, middle: ir.Value, end: ir.Value, taken: ir.Value
    ) -> tuple[ir.Value, list[ir.Stmt]]:
        """The next on the left when the least `taken` elements of both runs have been moved (Odeh et al. 2012)."""
        low, high = ir.acc("low" + name, "i64"), ir.acc("high" + name, "i64")
        open_, more = call("lt", low, high), ir.acc("more" + name, "i64")
        half = call("shr", plus(low, high), const(1))
        a = self.kept(0, plus(source, plus(start, half)), open_)
        b = self.kept(0, plus(source, minus(plus(middle, taken), plus(half, const(1)))), open_)
        goes = call("and", open_, call("not", call("lt", b, a)))  # the left one is among them
        stays = call("eq", more, const(0))
        search: list[ir.Stmt] = [
            ir.Acc("more" + name, "i64", cast(goes, "i64")),
            ir.Assign(high.attr, call("where", stays, call("min", high, half), high)),
            ir.Assign(low.attr, call("where", stays, low, plus(half, const(1)))),
        ]
        return low, [
            ir.Acc(low.attr, "i64", call("max", const(0), minus(taken, minus(end, middle)))),
            ir.Acc(high.attr, "i64", call("min", taken, minus(middle, start))),
            ir.Loop("search" + name, const(ENOUGH), search),
        ]

    def advance(
        self, name: str, source: ir.Value, target: ir.Value, low: ir.Value, to: ir.Value, start: ir.Value, middle: ir.Value,
        end: ir.Value,
    ) -> list[ir.Stmt]:  # fmt: skip
        """Move the lesser of the next two elements to `to`; `low` counts those that came from the left."""
        left, right = plus(start, low), minus(plus(middle, minus(to, start)), low)
        here, there = call("lt", left, middle), call("lt", right, end)
        a, b = self.kept(0, plus(source, left), here), self.kept(0, plus(source, right), there)
        from_right = call("and", there, call("or", call("not", here), call("lt", b, a)))
        is_right = call("ne", ir.acc("right" + name, "i64"), const(0))
        moves: list[ir.Stmt] = [
            ir.Acc("right" + name, "i64", cast(from_right, "i64")),
            self.frame.store(self.memory[0], "i64", plus(target, to), call("where", is_right, b, a)),
        ]
        if not self.packed:
            chosen = self.kept(1, plus(source, call("where", is_right, right, left)))
            moves.append(self.frame.store(self.memory[1], "i64", plus(target, to), chosen))
        return [*moves, ir.Assign(low.attr, plus(low, minus(const(1), ir.acc("right" + name, "i64"))))]


def _doublings(n: int) -> int:
    """How often runs are merged until one is left."""
    return max(0, (n - 1) // RUN).bit_length()


def _ordered(x: ir.Value, type: str) -> ir.Value:
    """An integer that orders like the element."""
    if x.type == "u64":
        return call("xor", ir.Value("bitcast", "i64", (x,)), const(-(1 << 63)))
    if x.type[0] != "f":
        return cast(x, type)
    same_size = "i64" if x.type == "f64" else "i32"
    width = 8 * ir.TYPES[same_size]
    highest, sign = const((1 << (width - 1)) - 1, same_size), const(width - 1, same_size)
    zero = const(0, x.type)
    bits = ir.Value("bitcast", same_size, (call("where", call("eq", x, zero), zero, x),))
    # negative numbers grow as their bits shrink
    ordered = call("xor", bits, call("and", call("shr", bits, sign), highest))
    return cast(call("where", call("isnan", x), highest, ordered), type)
