"""Attention that has a tiled kernel is computed by it, and so are its gradients (``codegen/contraction/attention/``)."""

from __future__ import annotations

from typing import Any

from lezero.graph.dim import same
from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.attention import random_and_mask
from lezero.ops.base import REGISTRY
from lezero.ops.expr import Expr
from lezero.ops.rules import wide_dtype

LEAST_SCORES = 1 << 13
"""Scores of a head from which on the kernels are used.  With gradients, 12 heads of 64 features in float32, they take 0.6 of the
time of products and softmax in parts at 512 queries and keys, 0.9 to 0.97 at 128, and 0.92 at 64, where forward alone takes 1.1."""
MOST_PRODUCTS = 1 << 31
"""Products of a head's gradient at most: a task takes whole heads, and must not be long."""


def attention(graph: Graph) -> Graph:
    """Replace ``attention`` and ``attention_grad`` where the kernels take what they are given; the rest is taken apart later.

    A gradient whose result is computed in the same graph has its logarithms; one of a past computes them again.
    """
    made: dict[Any, Node] = {}

    def once(name: str, operands: list[Expr], attrs: dict[str, Any], like: Node) -> Expr:
        key = name, tuple(x.node for x in operands), tuple(attrs.values())
        if key not in made:
            made[key] = REGISTRY[name](*operands, **attrs).node
            made[key].site = like.site
        return Expr(made[key])

    def four(node: Node) -> Expr:
        """With all four dimensions."""
        return shaped(node, (1,) * (4 - node.ndim) + tuple(node.shape))

    def line(node: Node) -> Expr:
        return shaped(node, (1,))

    def shaped(node: Node, shape: tuple[int, ...]) -> Expr:
        """The same node whoever asks."""
        key = node, shape
        if key not in made:
            made[key] = _to(Expr(node), shape).node
        return Expr(made[key])

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = node if node.op.is_leaf else with_inputs(node, inputs)
        first = {"attention": 0, "attention_grad": 2}.get(node.op.name)
        if first is None:
            return node
        attrs = node.named_attrs()
        q, k, v, *more = node.inputs[first:]
        random, mask = random_and_mask(more, attrs["p"])
        wrt = attrs.get("wrt")
        if wrt == "mask" or not _taken(q, k, v, mask):
            return node
        operands = [*map(four, (q, k, v)), *map(line, random), *([] if mask is None else [four(mask)])]
        what = {name: attrs[name] for name in ("is_causal", "scale", "p")}
        y = once("attention_blocks", operands, {"gives": "y", **what}, node)
        if wrt is None:
            return _as(y, node)
        logarithm = once("attention_blocks", operands, {"gives": "logarithm", **what}, node)
        given = [four(node.inputs[0]), y, logarithm, *operands]
        return _as(once("attention_blocks_grad", given, {"gives": f"d{wrt}", **what}, node), node)

    return graph.rebuild(change)


def _taken(q: Node, k: Node, v: Node, mask: Node | None) -> bool:
    """Whether there is a kernel: for heads that have keys of their own and masks with a number for each key."""
    if not 2 <= q.ndim <= 4 or any(x.dtype is not q.dtype for x in (k, v)):
        return False
    if int(q.shape[-2]) * int(k.shape[-2]) <= LEAST_SCORES:
        return False
    if 5 * int(q.shape[-2]) * int(k.shape[-2]) * int(q.shape[-1] + v.shape[-1]) > 2 * MOST_PRODUCTS:
        return False
    if any(not same(a, b) for a, b in zip(q.shape[:-2], k.shape[:-2])) or any(
        same(d, 0) for x in (q, k, v) for d in x.shape
    ):
        return False
    return mask is None or (
        mask.ndim >= 1
        and same(mask.shape[-1], k.shape[-2])
        and (mask.dtype.kind == "b" or mask.dtype in (q.dtype, wide_dtype(q.dtype)))
    )


def _to(x: Expr, shape: tuple[int, ...]) -> Expr:
    return REGISTRY["reshape"](x, shape=shape)


def _as(made: Expr, node: Node) -> Node:
    """What a kernel gives, (batch, rows, heads, columns), as what `node` gives."""
    return _to(REGISTRY["permute"](made, axes=(0, 2, 1, 3)), tuple(node.shape)).node
