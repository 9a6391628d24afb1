"""Stable argsort by merging: runs of sorted elements double in length until one is left.

Elements are compared as integers: a float's bits become an integer of the same order, with -0 equal to 0 and NaN above
everything, and for a descending order all bits are turned over.  Where such a key takes at most 32 bits, key and position
share one int64, so that equal keys order by themselves and one array is all there is to move.  Wider keys move beside
their positions.
"""

from __future__ import annotations

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.loops.ir import call, cast, const
from lezero.schedule.lower import Lowered
from lezero.schedule.opaque.frame import Frame, around, minus, plus, times

BLOCK = 32
"""Elements sorted by counting, for each, those before it: 32 comparisons, several at a time, against five passes of merging."""
PAIRS = 29
"""Pairs of passes that are ever needed: behind the last a run has 2**61 elements."""
EFFORT = 16
"""Work on an element of a row of a thousand, in elements of a copy."""

k, row = ir.var("k"), ir.var("row")


def lower_argsort(node: Node) -> list[Lowered]:
    """Rows are tasks; a row is merged to and fro between arrays of the thread that sorts it."""
    return [_Sort(node).lowered()]


class _Sort:
    """Kernel buffers 0 and 1 are the input and the result; behind them lie the scratch arrays."""

    def __init__(self, node: Node):
        self.node, self.x, self.frame = node, node.inputs[0], Frame()
        axis, self.descending = node.attrs
        self.outer, self.n, self.inner = around(node.shape, axis)
        self.length = self.frame.values(self.n)
        self.frame.buffer(self.x, self.x.dtype.code)
        self.frame.buffer(node, "i64")
        self.packed = self.x.dtype.code not in ("f64", "i64", "u64", "u32") and int(self.n) < 1 << 31
        # (keys, positions): one array for both where they are packed
        self.one, self.two = ((2, 2), (3, 3)) if self.packed else ((2, 3), (4, 5))

    def lowered(self) -> Lowered:
        keys, positions = self.one
        begin: list[ir.Stmt] = [ir.Store(keys, k, self.key())]
        if not self.packed:
            begin.append(ir.Store(positions, k, k))
        place = ir.load(self.two[1], "i64", k)
        if self.packed:
            place = call("and", place, const((1 << 32) - 1))
        body: list[ir.Stmt] = [
            ir.Loop("k", self.length, begin, vector=True),
            self.blocks(self.one, self.two),
            *self.passes(self.two, self.one),
            ir.Loop("k", self.length, [self.frame.store(self.node, "i64", self.at(), place)], vector=True),
        ]
        rows = self.outer * self.inner
        loop = ir.Loop("row", self.frame.values(rows), body, task=True)
        scratch = (ir.Scratch("i64", self.length),) * (2 if self.packed else 4)
        return self.frame.lowered("argsort", [loop], rows * self.n * EFFORT, rows, scratch)

    def at(self) -> ir.Value:
        """Where the row's k-th element lies in memory."""
        if same(self.inner, 1):
            return plus(times(row, self.length), k)
        inner = self.frame.values(self.inner)
        across, along = call("floordiv", row, inner), call("mod", row, inner)
        return plus(times(plus(times(across, self.length), k), inner), along)

    def key(self) -> ir.Value:
        """The key of the row's k-th element, with its position if both fit."""
        key = _ordered(self.frame.load(self.x, self.at()), "i32" if self.packed else "i64")
        if self.descending:
            key = call("not", key)
        return call("or", call("shl", cast(key, "i64"), const(32)), k) if self.packed else key

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


def _ordered(x: ir.Value, type: str) -> ir.Value:
    """An integer that orders like the element."""
    if x.type == "u64":
        return call("xor", ir.Value("bitcast", "i64", (x,)), const(-(1 << 63)))
    if x.type[0] != "f":
        return cast(x, type)
    highest, sign = const((1 << (8 * ir.TYPES[type] - 1)) - 1, type), const(8 * ir.TYPES[type] - 1, type)
    zero = const(0, x.type)
    bits = ir.Value("bitcast", type, (call("where", call("eq", x, zero), zero, x),))
    # negative numbers grow as their bits shrink
    ordered = call("xor", bits, call("and", call("shr", bits, sign), highest))
    return call("where", call("isnan", x), highest, ordered)
