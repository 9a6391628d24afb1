"""Building graphs from operations: what passes hand to ``decompose`` and ``gradient`` rules, and an evaluator for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from lezero.graph.dtype import DType, number_dtype
from lezero.graph.node import Node, toposort
from lezero.ops.base import LEAF, REGISTRY, Op
from lezero.ops.operand import Operand


class Expr(Operand):
    """A node under construction: applying an operation to Exprs gives an Expr, Python scalars become constants."""

    __slots__ = ("node",)

    def __init__(self, node: Node):
        self.node = node

    shape = property(lambda self: self.node.shape)
    dtype = property(lambda self: self.node.dtype)
    ndim = property(lambda self: len(self.node.shape))
    weak = property(lambda self: self.node.weak)

    def _apply(self, op: Op, operands: tuple, attrs: tuple) -> Expr:
        return apply(op, operands, attrs, self.node.device)

    def __repr__(self) -> str:
        return repr(self.node)


def apply(op: Op, operands: Iterable[Any], attrs: tuple, device: str = "cpu") -> Expr:
    nodes = tuple(o.node if isinstance(o, Expr) else scalar(o, device) for o in operands)
    shape, dtype = op.infer_nodes(nodes, attrs)
    weak = bool(nodes) and op.kind == "elementwise" and all(n.weak for n in nodes)
    return Expr(Node(op, nodes, attrs, tuple(shape), dtype, device, weak=weak))


def scalar(value: bool | int | float | complex, device: str = "cpu") -> Node:
    """A Python number as a constant node."""
    op = REGISTRY["constant"]
    return Node(op, (), (value,), (), number_dtype(value), device, weak=True)


def leaf(shape: tuple[int, ...], dtype: DType, device: str = "cpu") -> Expr:
    return Expr(Node(LEAF, (), ("tensor",), shape, dtype, device))


def evaluate(outputs: Iterable[Node], values: dict[Node, np.ndarray]) -> list[np.ndarray]:
    """Compute nodes with the operations' NumPy references; `values` holds the leaves'."""
    outputs = list(outputs)
    values = dict(values)
    order = toposort(outputs)
    uses: dict[Node, int] = {}
    for node in order:
        for n in node.inputs:
            uses[n] = uses.get(n, 0) + 1
    for n in outputs:
        uses[n] = uses.get(n, 0) + 1
    for node in order:
        if node not in values:
            values[node] = reference(node, [values[n] for n in node.inputs])
        for n in node.inputs:
            uses[n] -= 1
            if not uses[n]:
                values.pop(n, None)
    return [values[n] for n in outputs]


def reference(node: Node, inputs: list[np.ndarray]) -> np.ndarray:
    """One node's value by its reference rule, checked against what inference promised."""
    op = node.op
    if op.kind == "elementwise" and (len(inputs) > 1 or op.domain != "same"):
        inputs = _promote_inputs(node, inputs)
    with np.errstate(all="ignore"):
        if op.kind == "source":
            value = op.reference(
                *inputs, shape_=tuple(int(d) for d in node.shape), dtype_=node.dtype, **node.named_attrs()
            )
        else:
            value = op.reference(*inputs, **{k: _plain(v) for k, v in node.named_attrs().items()})
    value = np.asarray(value)
    if value.dtype != node.dtype.numpy:
        value = value.astype(node.dtype.numpy)
    if value.shape != tuple(int(d) for d in node.shape):
        raise AssertionError(f"{node!r}: the reference gives shape {value.shape}")
    return value


def _plain(v: Any) -> Any:
    if isinstance(v, tuple):
        return tuple(_plain(x) for x in v)
    return int(v) if isinstance(v, int) and not isinstance(v, bool) else v


_HALF = ("float16", "bfloat16")


def _promote_inputs(node: Node, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Element-wise operands in the dtype they are computed in (half precision computes in float32)."""
    op: Any = node.op
    keep = getattr(op, "keep_dtype", ())
    movable = tuple(n for i, n in enumerate(node.inputs) if i not in keep)
    dtype = op.compute_dtype(movable)
    compute = np.float32 if dtype.name in _HALF else dtype.numpy
    if op.domain == "bool":
        return [x != 0 for x in inputs]
    return [x if i in keep else np.asarray(x).astype(compute) for i, x in enumerate(inputs)]
