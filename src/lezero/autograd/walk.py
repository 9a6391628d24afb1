"""The gradient walk: apply every operation's ``gradient`` rule from the outputs back to the leaves.

The walk knows nodes only and leaves it to its caller what a gradient is, so it serves recordings (gradients are nodes, see
``runtime.gradient``) and graphs under construction (they are Exprs) alike.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from operator import add
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


def propagate(
    seeds: dict[Node, Any],
    pull: Callable[[Node, Any], Iterable[Any]],
    add: Callable[[Any, Any], Any],
    arrived: Callable[[Node, Any, dict[Node, Any]], Any] | None = None,
    boundary: Container[Node] = (),
) -> dict[Node, Any]:
    """Gradients of every tracked leaf the seeds depend on, in whatever form `pull` and `add` deal in.

    seeds : output node -> its gradient
    pull : (node, its gradient) -> the gradient of each input, None where there is none
    arrived : called with each node, its complete gradient and those still on their way, before it is passed on; returns
        the gradient or a replacement (hooks)
    boundary : nodes to stop at, as if they were leaves
    """
    grads: dict[Node, Any] = dict(seeds)
    leaves: dict[Node, Any] = {}
    for node in reversed(reachable(seeds, boundary)):
        dy = grads.pop(node, None)
        if dy is None:
            continue
        if arrived is not None:
            dy = arrived(node, dy, grads)
        if not node.inputs or node in boundary:
            leaves[node] = dy
            continue
        for n, dx in zip(node.inputs, pull(node, dy)):
            if dx is not None:
                before = grads.get(n)
                grads[n] = dx if before is None else add(before, dx)
    return leaves


def walk(seeds: dict[Node, Any], operand: Callable[[Node], Any]) -> dict[Node, Any]:
    """Gradients of every tracked leaf the seeds depend on, as operands; ``operand(node)`` stands for a node's value."""

    def pull(node: Node, dy: Any) -> list[Any]:
        inputs = [operand(n) for n in node.inputs]
        return pulled(node.op, dy, operand(node), inputs, node.named_attrs(), [n.tracks for n in node.inputs])

    return propagate(seeds, pull, add)


def pulled(op: Op, dy: Any, y: Any, inputs: Sequence[Any], attrs: dict[str, Any], tracks: Iterable[bool]) -> list[Any]:
    """The gradient of each input that tracks one, in its shape and dtype, by the operation's rule."""
    rule = op.gradient or by_decomposition(op)
    results = rule(dy, y, *inputs, **attrs)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    if len(results) != len(inputs):
        raise GradientError(f"{op.name}: the gradient rule gave {len(results)} results for {len(inputs)} inputs")
    found: list[Any] = []
    for x, dx, wanted in zip(inputs, results, tracks):
        if dx is None or not wanted:
            found.append(None)
        elif dx.dtype is not x.dtype or not identical(dx.shape, x.shape):
            found.append(fit(dx, x.shape, x.dtype))
        else:
            found.append(dx)
    return found


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
