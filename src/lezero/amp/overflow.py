"""Which gradient overflowed first, and what computed it."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple
from weakref import ref

from lezero.graph.node import Node
from lezero.tensor import Tensor, where

_PASSED_OVER = frozenset("cast expand identity permute reshape squeeze".split())
"""Operations whose result is finite where their operand is (a cast to a wider type is)."""


class Overflow(NamedTuple):
    """A gradient that was not finite, before those of other parameters.

    parameter : its name, or its number in the optimizer's groups
    operation : what computed its gradient
    line : the line that recorded it, which is the line whose gradient that is
    """

    parameter: str
    operation: str
    line: str

    def __str__(self) -> str:
        return f"the gradient of {self.parameter} overflowed first, in {self.operation} recorded at {self.line}"


class Source:
    """Where a parameter's gradient comes from.

    number : of the parameter, through all groups
    order : gradients are recorded in this order
    """

    def __init__(self, number: int, p: Tensor, grad: Tensor):
        self.number, self.parameter, self.grad = number, ref(p), grad
        self.shape = tuple(int(d) for d in p.shape)
        node = grad._node
        self.order = -1 if node is None else node.index
        self.operation, self.line = _described(node)

    def overflow(self, optimizer: Any, names: dict[int, str]) -> Overflow:
        p = self.parameter()
        name = names.get(id(p)) or _given_name(optimizer, self.number)
        return Overflow(name or f"parameter {self.number} of shape {self.shape}", self.operation, self.line)


def _described(node: Node | None) -> tuple[str, str]:
    while node is not None and node.op.name in _PASSED_OVER and node.inputs:
        node = node.inputs[0]
    if node is None or node.op.is_leaf:
        return "another computation", "a place that is not known"
    return node.op.name, f"{node.site[0]}:{node.site[1]}" if node.site else "a place that is not known"


def _given_name(optimizer: Any, number: int) -> str | None:
    for group in optimizer.param_groups:
        if number < len(group["params"]):
            names = group.get("param_names")
            return None if names is None else names[number]
        number -= len(group["params"])
    return None


def first_overflow(sources: list[Source]) -> Any:
    """The number of the parameter whose gradient is the first, in recorded order, that is not finite; -1 if all are.

    A chain of single numbers: each link is the end of the reduction of one gradient, so no kernel is added for it.
    """
    ordered = sorted(sources, key=lambda s: s.order)
    links = [where(s.grad.isfinite().all(), -1, s.number) for s in ordered]
    for s in sources:
        del s.grad  # the source is kept, and must not keep its memory
    return reduce(lambda first, link: where(first >= 0, first, link), links)


def found_in(t: Tensor | None) -> int | None:
    """The value of a number that has been computed already; None otherwise, and nothing is run."""
    if t is None or t._rec is not None or t._buffer is None:
        return None
    return int(t._buffer.array)
