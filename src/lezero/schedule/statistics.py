"""Which sums over a convolution's result its kernel can give beside it: those of batch normalisation.

With C a convolution's result (widened to f32 if it is half precision), n its pixels and m = sum(C) / n, these are sum(C) and
sum((C - m) * (C - m)), for each channel.
The second is written with a value, m, that is there only when the first is; the kernel has its own.
"""

from __future__ import annotations

from math import prod

from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.ops.rules import wide_dtype
from lezero.schedule.layout import planar

PIXELS = (0, 2, 3)


def sums_of(node: Node) -> Node | None:
    """The convolution whose channels `node` is the sum of."""
    x = node.inputs[0]
    if x.op.name == "cast" and x.dtype is wide_dtype(x.inputs[0].dtype):
        x = x.inputs[0]
    if node.op.name != "sum" or x.op.name != "conv2d" or tuple(sorted(node.attrs[0])) != PIXELS:
        return None
    channels = x.shape[1]
    depthwise = int(x.named_attrs()["groups"]) == int(x.inputs[0].shape[1]) == int(channels) > 1
    return None if planar(x) or depthwise or node.dtype is not wide_dtype(x.dtype) else x


def squares_of(node: Node) -> Node | None:
    """The sum beside which `node` is the sum of squared distances from the mean."""
    product = node.inputs[0]
    if node.op.name != "sum" or tuple(sorted(node.attrs[0])) != PIXELS or product.op.name != "mul":
        return None
    gap, other = product.inputs
    if gap is not other or gap.op.name != "sub":
        return None
    mean = _seen(gap.inputs[1])
    if mean.op.name != "div":
        return None
    total, count = mean.inputs[0], _seen(mean.inputs[1])
    x = sums_of(total) if total.op.kind == "reduce" else None
    if x is None or gap.inputs[0] is not total.inputs[0] or count.op.name != "constant" or not total.attrs[1]:
        return None
    pixels = prod((x.shape[a] for a in PIXELS[1:]), start=x.shape[0])
    return total if same(count.attrs[0], pixels) else None


def _seen(x: Node) -> Node:
    """What a value is, repeated or cast."""
    while x.op.name in ("expand", "cast"):
        x = x.inputs[0]
    return x
