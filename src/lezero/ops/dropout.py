"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

import numpy as np

from lezero.graph.dtype import float32
from lezero.ops.base import Composite, op
from lezero.ops.elementwise import where
from lezero.ops.random import uniform
from lezero.ops.rules import narrow, need_floating, wide, widen


@op("dropout", onnx="Dropout")
class dropout(Composite):
    """Zeros with probability `p`, elsewhere ``x / (1 - p)``.

    Parameters
    ----------
    x : any shape, floating dtype
    seed, offset : 0-d int64
        The state of the random numbers.  The same state gives the same zeros, which is how the gradient gets them again:
        no mask is stored.
    p : float, 0 to 1
    """

    attrs = {"p": 0.5}
    keeps = ("seed", "offset")

    def infer(x, seed, offset, p):
        need_floating("dropout", x)
        if not 0 <= p <= 1:
            raise ValueError(f"dropout: p has to be between 0 and 1, got {p}")
        return tuple(x.shape), x.dtype

    def reference(x, seed, offset, p):
        kept = uniform.reference(seed, offset, x.shape, float32) >= np.float32(p)
        return np.where(kept, wide(x) * dropout_scale(p), 0)

    def decompose(x, seed, offset, p):
        kept = uniform(seed, offset, shape=tuple(x.shape), dtype=float32) >= p
        return narrow(where(kept, widen(x) * dropout_scale(p), 0), x.dtype)

    def gradient(dy, y, x, seed, offset, p):
        return dropout(dy, seed, offset, p=p), None, None


def dropout_scale(p):
    """What those are multiplied by that are not dropped with probability `p`."""
    return 0.0 if p == 1 else 1 / (1 - p)
