"""How many floating-point operations there are to do.

As is usual: a multiply-add of a product or a convolution is two, also where it meets padding; everything else, a division or an
exponential as well, is one for each element of its result, or of what a reduction or a running sum reads.  Moving, comparing and
integers are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lezero.codegen.launch import KernelSource, Launch
from lezero.graph.node import Node
from lezero.ops.scan import Scan
from lezero.schedule.lowered import number

MOVES = frozenset(("cast", "identity", "where"))


def flops(node: Node, bindings: Sequence[int]) -> int:
    """Floating-point operations of a primitive node, for given values of the symbols."""

    def elements(n: Node) -> int:
        return prod(number(d, bindings) for d in n.shape)

    if node.dtype.kind not in "fc":
        return 0
    match node.op.kind:
        case "contraction":
            return 2 * _products(node, elements, bindings)
        case "reduce":
            return elements(node.inputs[0])
        case "elementwise":
            return 0 if node.op.name in MOVES else elements(node)
        case "opaque":
            return elements(node) if isinstance(node.op, Scan) else 0
    return 0


def _products(node: Node, elements, bindings: Sequence[int]) -> int:
    """Multiply-adds of a contraction: for each element of the result (a convolution's, of its gradients too) a sum's length."""
    if node.op.name in ("attention_blocks", "attention_blocks_grad"):
        return _products_of_attention(node, elements, bindings)
    x, w = node.inputs
    if node.op.name == "dot":
        return elements(node) * number(x.shape[-2 if node.attrs[0] else -1], bindings)
    if node.op.name == "conv2d_weight_grad":
        return elements(w) * prod(number(d, bindings) for d in node.shape[1:])
    pixels = node if node.op.name == "conv2d" else x
    return elements(pixels) * prod(number(d, bindings) for d in w.shape[1:])


def _products_of_attention(node: Node, elements, bindings: Sequence[int]) -> int:
    """Two products forward, and five backward: those of both kinds of scores are counted with the gradients of q and k."""
    q, _, v = node.inputs[3:6] if node.op.name == "attention_blocks_grad" else node.inputs[:3]
    keys = number(v.shape[-2], bindings)
    features = elements(q) * keys
    values = features // number(q.shape[-1], bindings) * number(v.shape[-1], bindings)
    gives = str(node.named_attrs()["gives"])
    return {"y": features + values, "logarithm": 0, "dq": 2 * features, "dk": features + values, "dv": values}[gives]


def products(source: KernelSource) -> str:
    """How a kernel multiplies: "plain", in "pairs" of bf16, "filtered", with 16 products for the 36 that are counted, or
    in "filtered pairs"."""
    filtered = source.name.startswith("winograd")
    if "pairs=True" in source.key:
        return "filtered pairs" if filtered else "pairs"
    return "filtered" if filtered else "plain"


def multiplies(launch: Launch) -> bool:
    """Whether a contraction's launch does its products: others copy one operand, or add up parts that lie in a workspace."""
    return len(launch.operands) > 2 and launch.operands[0] != "w:parts"
