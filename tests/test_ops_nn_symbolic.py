"""Extents stay symbols through every rule: a graph recorded for one batch size is the graph for another.

Each operation, its gradient and the gradient's gradient are built and taken apart twice, with other numbers behind the same
symbols.  Were an extent turned into a plain number on the way, the two graphs would differ.
"""

from __future__ import annotations

import numpy as np
import pytest

from lezero.autograd.walk import walk
from lezero.graph.dim import Dim, noting_guards
from lezero.graph.dtype import float64, int64
from lezero.graph.node import toposort
from lezero.ops.attention import attention
from lezero.ops.conv import convolution
from lezero.ops.dropout import dropout
from lezero.ops.einsum import einsum
from lezero.ops.embedding import embedding
from lezero.ops.expr import Expr, evaluate, leaf
from lezero.ops.losses import bce_with_logits, cross_entropy, kl_div, mse_loss, nll_loss
from lezero.ops.matmul import linear, matmul
from lezero.ops.normalization import batch_norm, batch_var, group_norm, layer_norm, rms_norm
from lezero.ops.optimizer import adam_param
from lezero.ops.pooling import adaptive_avg_pool, avg_pool, max_pool
from lezero.ops.resample import resample
from lezero.ops.softmax import log_softmax, softmax
from op_parity import make_leaves, take_apart, track

CASES = {
    "matmul": (matmul, "n4", "45"),
    "matmul batched": (matmul, "n3s4", "n345"),
    "matmul broadcast": (matmul, "n3s4", "45"),
    "linear": (linear, "ns4", "54", "5"),
    "einsum": (lambda a, b: einsum(a, b, equation="bsi,bti->bst"), "ns4", "ns4"),
    "einsum of many": (lambda a, b, c: einsum(a, b, c, equation="...i,ij,...j->..."), "ns4", "45", "ns5"),
    "conv2d": (lambda x, w, b: convolution(x, w, b, padding=((1, 1), (1, 1)), stride=(2, 2)), "n3st", "4333", "4"),
    "conv1d": (lambda x, w: convolution(x, w, stride=(1,), padding=((0, 0),), dilation=(2,)), "n3s", "432"),
    "max_pool": (lambda x: max_pool(x, kernel=(3, 3), stride=(2, 2), padding=(1, 1)), "n3st"),
    "avg_pool": (lambda x: avg_pool(x, kernel=(2, 2), stride=(2, 2), ceil_mode=True), "n3st"),
    "adaptive_avg_pool": (lambda x: adaptive_avg_pool(x, output=(1, 1)), "n3st"),
    "adaptive_avg_pool in bins": (lambda x: adaptive_avg_pool(x, output=(3, 4)), "n366"),
    "resample": (lambda x: resample(x, axis=2, size=7, mode="linear", step=0.5), "n3s"),
    "resample to the nearest": (lambda x: resample(x, axis=1, size=3, mode="nearest-exact", step=1.5), "ns4"),
    "batch_norm": (batch_norm, "n3st", "3", "3"),
    "batch_var": (lambda x: batch_var(x, correction=1), "n3st"),
    "layer_norm": (layer_norm, "ns4", "4", "4"),
    "rms_norm": (rms_norm, "ns4", "4"),
    "group_norm": (lambda *xs: group_norm(*xs, groups=2), "n4st", "4", "4"),
    "softmax": (lambda x: softmax(x, axis=2), "nst"),
    "log_softmax": (lambda x: log_softmax(x, axis=1), "n4"),
    "attention": (lambda *xs: attention(*xs, is_causal=True), "n2s4", "n2s4", "n2s4"),
    "attention of symbolic features": (attention, "2st", "2st", "2s4"),
    "attention with shared keys": (attention, "n4s4", "n2t4", "n2t4"),
    "cross_entropy": (lambda *xs: cross_entropy(*xs, label_smoothing=0.1), "n4s", "i:ns", "4"),
    "cross_entropy of a symbol": (lambda *xs: cross_entropy(*xs, label_smoothing=0.1), "ns", "i:n"),
    "cross_entropy of probabilities": (lambda *xs: cross_entropy(*xs, label_smoothing=0.1), "ns", "ns"),
    "nll_loss": (nll_loss, "n4", "i:n"),
    "mse_loss": (mse_loss, "ns", "ns"),
    "kl_div": (lambda *xs: kl_div(*xs, reduction="batchmean"), "n4", "n4"),
    "bce_with_logits": (bce_with_logits, "n4", "n4"),
    "dropout": (lambda x, seed, offset: dropout(x, seed, offset, p=0.5), "ns", "i:", "i:"),
    "embedding": (lambda w, i: embedding(w, i, padding_idx=0), "54", "i:ns"),
    "adam": (adam_param, "n4", "n4", "n4", "", "", "", "", "", ""),
}


def build(case, numbers):
    """The primitives of an operation and its first and second derivatives, with n, s and t standing for `numbers`."""
    op, *shapes = case
    symbols = {c: Dim.symbol(k, n) for k, (c, n) in enumerate(zip("nst", numbers))}
    leaves = []
    for text in shapes:
        integers, _, dims = text.rpartition(":")
        x = leaf(tuple(symbols[c] if c in symbols else int(c) for c in dims), int64 if integers else float64)
        x.node.tracks = not integers
        leaves.append(x)
    y = op(*leaves)
    outputs = [y.node]
    seeds = {y.node: leaf(y.shape, y.dtype)}
    track(outputs)
    for _ in range(2):
        grads = list(walk(seeds, Expr).values()) if any(node.tracks for node in seeds) else []
        outputs += [g.node for g in grads]
        track(outputs)
        seeds = {g.node: leaf(g.shape, g.dtype) for g in grads if g.node.tracks}
    return toposort(take_apart(outputs))


def spelled(x):
    """An attribute or shape with extents as expressions, and NaN as something that equals itself."""
    if isinstance(x, tuple):
        return tuple(spelled(v) for v in x)
    if isinstance(x, float) and np.isnan(x):
        return "nan"
    return ("extent", x.expr) if isinstance(x, Dim) else x


@pytest.mark.parametrize("name", CASES)
def test_no_extent_becomes_a_number(name):
    with noting_guards():
        small, large = build(CASES[name], (4, 7, 9)), build(CASES[name], (6, 11, 13))
    assert len(small) == len(large)
    for a, b in zip(small, large):
        assert a.op is b.op
        assert spelled(a.shape) == spelled(b.shape), f"{a!r} and {b!r}"
        assert spelled(a.attrs) == spelled(b.attrs), f"{a!r} and {b!r}"


def test_half_precision_is_computed_in_float32_and_rounded_once():
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float16) for s in ((4, 3, 8), (8,), (8,)))
    cases = [
        (layer_norm, (x, w, b)),
        (lambda x: softmax(x, axis=2), (x,)),
        (lambda x: log_softmax(x, axis=2), (x,)),
        (rms_norm, (x,)),
        (mse_loss, (x, w)),
        (lambda x: avg_pool(x, kernel=(2,), stride=(2,), padding=(0,)), (x,)),
    ]
    for op, arrays in cases:
        half, values = make_leaves(arrays)
        exact, more = make_leaves([a.astype(np.float64) for a in arrays])
        y = op(*half)
        assert y.dtype is half[0].dtype
        (expected,) = evaluate([op(*exact).node], more)
        for road in ([y.node], take_apart([y.node])):
            (found,) = evaluate(road, values)
            np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-11, atol=2**-13)
