"""The gradient walk: apply every operation's ``gradient`` rule from the outputs back to the leaves.

The walk knows nodes and operands only, so it serves recordings (operands are Tensors, and the gradient is recorded) and
graphs under construction (operands are Exprs) alike.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from lezero.graph.dim import identical
from lezero.graph.dtype import DType
from lezero.graph.node import Node, toposort
from lezero.ops.base import REGISTRY, Op, broadcast_shapes
from lezero.ops.expr import Expr, leaf


class GradientError(RuntimeError):
    """A gradient that was asked for and does not exist."""


def reachable(roots: Iterable[Node], boundary: Container[Node] = ()) -> list[Node]:
    """Tracked nodes the roots depend on, inputs first, not looking behind `boundary` (iterative)."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, int]] = []
    for root in roots:
        if root in done or not root.tracks:
            continue
        done.add(root)
        stack.append((root, 0))
        while stack:
            node, k = stack.pop()
            inputs = () if node in boundary else node.inputs
            while k < len(inputs):
                n = inputs[k]
                k += 1
                if n.tracks and n not in done:
                    done.add(n)
                    stack.append((node, k))
                    stack.append((n, 0))
                    break
            else:
                order.append(node)
    return order


def walk(
    seeds: dict[Node, Any],
    operand: Callable[[Node], Any],
    arrived: Callable[[Node, Any], Any] | None = None,
    boundary: Container[Node] = (),
    attributes: Callable[[Node], dict[str, Any]] = Node.named_attrs,
) -> dict[Node, Any]:
    """Gradients of every tracked leaf the seeds depend on.

    seeds : output node -> its gradient (an operand)
    operand : node -> an operand standing for its value
    arrived : called with each node and its complete gradient, before it is passed on; may return a replacement (hooks)
    boundary : nodes to stop at, as if they were leaves
    attributes : node -> its attributes by name (with this run's extents)
    """
    grads: dict[Node, Any] = dict(seeds)
    leaves: dict[Node, Any] = {}
    for node in reversed(reachable(seeds, boundary)):
        dy = grads.pop(node, None)
        if dy is None:
            continue
        if arrived is not None:
            dy = arrived(node, dy)
        if not node.inputs or node in boundary:
            leaves[node] = dy
            continue
        rule = node.op.gradient or by_decomposition(node.op)
        inputs = [operand(n) for n in node.inputs]
        results = rule(dy, operand(node), *inputs, **attributes(node))
        if not isinstance(results, (tuple, list)):
            results = (results,)
        if len(results) != len(inputs):
            raise GradientError(
                f"{node.op.name}: the gradient rule gave {len(results)} results for {len(inputs)} inputs"
            )
        for n, x, dx in zip(node.inputs, inputs, results):
            if dx is None or not n.tracks:
                continue
            if dx.dtype is not n.dtype or not identical(dx.shape, x.shape):
                dx = fit(dx, x.shape, n.dtype)
            before = grads.get(n)
            grads[n] = dx if before is None else before + dx
    return leaves


def fit(dx: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """A gradient in the shape and dtype of what it is the gradient of: undoes broadcasting and promotion."""
    shape = tuple(shape)
    extra = len(dx.shape) - len(shape)
    # Ranks are compared first: comparing extents that do not belong together would note guards about chance equalities.
    if extra or tuple(dx.shape) != shape:
        axes = tuple(range(extra)) + tuple(
            i + extra for i, d in enumerate(shape) if i + extra >= 0 and d == 1 and dx.shape[i + extra] != 1
        )
        if axes:
            dx = REGISTRY["sum"](dx, axes=axes, keepdim=True)
        if extra > 0:
            dx = REGISTRY["reshape"](dx, shape=shape)
        elif extra < 0 or tuple(dx.shape) != shape:
            broadcasts = broadcast_shapes("gradient", dx.shape, shape) == shape
            dx = REGISTRY["expand" if broadcasts else "reshape"](dx, shape=shape)
    if dx.dtype is not dtype:
        if dx.dtype.is_complex and not dtype.is_complex:
            dx = REGISTRY["real"](dx)
        if dx.dtype is not dtype:
            dx = REGISTRY["cast"](dx, dtype=dtype)
    return dx


def by_decomposition(op: Op) -> Callable:
    """A gradient rule for an operation that has none of its own: that of what it comes apart into.

    Written for operations that are gradients themselves, so that one node stands for each and only second derivatives, which
    are rare, are derived.  The derivative is built as a graph and then applied to the operands at hand.
    """
    if op.decompose is None or not op.differentiable:
        raise GradientError(f"{op.name} has no gradient")
    decompose = op.decompose

    def rule(dy: Any, y: Any, *inputs: Any, **attrs: Any) -> tuple:
        up, *leaves = (leaf(tuple(x.shape), x.dtype) for x in (dy, *inputs))
        for x in leaves:
            x.node.tracks = x.dtype.differentiable
        result = decompose(*leaves, **attrs).node
        for node in toposort([result]):
            if node.inputs:
                node.tracks = (
                    node.op.differentiable and node.dtype.differentiable and any(n.tracks for n in node.inputs)
                )
        grads = walk({result: up}, Expr)
        found = [grads.get(x.node) for x in leaves]
        made = {up.node: dy, **{x.node: operand for x, operand in zip(leaves, inputs)}}
        for node in toposort(g.node for g in found if g is not None):
            if node in made:
                continue
            if node.op.name == "constant":
                made[node] = node.attrs[0]
            else:
                made[node] = dy._apply(node.op, tuple(made[n] for n in node.inputs), node.attrs)
        return tuple(None if g is None else made[g.node] for g in found)

    return rule
