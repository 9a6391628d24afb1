"""What every opaque kernel is built in: its arguments and run-time integers, numbered as they are used."""

from __future__ import annotations

from math import prod
from typing import Any

from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.schedule.index import Params
from lezero.schedule.layout import now
from lezero.schedule.lowered import Lowered


class Frame:
    """The arguments of a kernel being written."""

    def __init__(self) -> None:
        self.params = Params()
        self.operands: list[Any] = []
        self.types: list[str] = []
        self.written: set[int] = set()
        self.values = self.params.value

    def buffer(self, operand: Any, type: str) -> int:
        """The number of a buffer: a node, or a ("work", …) tuple."""
        if isinstance(operand, Node):
            operand = now(operand)
        if operand not in self.operands:
            self.operands.append(operand)
            self.types.append(type)
        return self.operands.index(operand)

    def load(self, node: Node, index: ir.Value) -> ir.Value:
        """An element of a node's memory, in the type that computes for its dtype."""
        code = node.dtype.code
        return ir.cast(ir.load(self.buffer(node, code), code, index), compute_code(node.dtype))

    def store(
        self, operand: Any, type: str, index: ir.Value, value: ir.Value, mask: ir.Value | None = None, add: bool = False
    ) -> ir.Store:
        """buffer[index] = value (``add``: plus what is there), cast to the buffer's type."""
        k = self.buffer(operand, type)
        self.written.add(k)
        return ir.Store(k, index, ir.cast(value, type), mask, add)

    def lowered(
        self, name: str, body: list[ir.Stmt], work: int, limit: int, scratch: tuple[ir.Scratch, ...] = (), **more: Any
    ) -> Lowered:
        buffers = tuple(ir.Buffer(t, "rw" if k in self.written else "r") for k, t in enumerate(self.types))
        kernel = ir.Kernel(name, buffers, len(self.params.values), body, scratch=scratch)
        return Lowered(kernel, self.operands, self.params.values, work, limit, [], **more)


def plus(*terms: ir.Value) -> ir.Value:
    total = terms[0]
    for t in terms[1:]:
        total = ir.call("add", total, t)
    return total


def times(a: ir.Value, b: ir.Value) -> ir.Value:
    return ir.call("mul", a, b)


def minus(a: ir.Value, b: ir.Value) -> ir.Value:
    return ir.call("sub", a, b)


def around(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """(elements before, along and after the axis): a tensor as three dimensions."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def blocks(extent: int, of: int = 64) -> int:
    """How many tasks at most share a vector loop: each takes whole cache lines."""
    return (extent + (of - 1)) // of


def replaced(value: ir.Value, by: dict[ir.Value, ir.Value]) -> ir.Value:
    """The expression with some of its parts replaced."""
    if value in by:
        return by[value]
    if not value.args:
        return value
    return ir.Value(value.op, value.type, tuple(replaced(a, by) for a in value.args), value.attr)
