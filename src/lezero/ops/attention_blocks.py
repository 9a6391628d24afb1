"""Attention as the two kernels it has: what one of them gives is several nodes over the same inputs, made together.

``passes/attention.py`` puts them in the place of ``attention`` and ``attention_grad``.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from lezero.ops.attention import numpy_kept, random_and_mask
from lezero.ops.base import Contraction, op
from lezero.ops.rules import wide, wide_dtype


@op("attention_blocks")
class attention_blocks(Contraction):
    """The result of :data:`attention`, or the logarithm of the sum of exponentials of each query's scores.

    Parameters
    ----------
    q : (batch, heads, queries, features); floating dtype
    k : (batch, heads, keys, features)
    v : (batch, heads, keys, values)
    more : with dropout the state of the random numbers, two int64 of shape (1,); then the mask, if there is one: 4-d, extents as
        the scores' or 1 but for the keys
    gives : {"y", "logarithm"}
    is_causal, scale, p : as in :data:`attention`

    Returns
    -------
    y (batch, queries, heads, values), logarithm (batch, heads, queries): infinity for a query that sees no key.  The logarithm of
    half precision is float32.
    """

    attrs = {"gives": "y", "is_causal": False, "scale": None, "p": 0.0}

    def infer(q, k, v, *more, gives, is_causal, scale, p):
        batch, heads, queries, _ = q.shape
        if gives == "y":
            return (batch, queries, heads, v.shape[-1]), q.dtype
        return (batch, heads, queries), wide_dtype(q.dtype)

    def reference(q, k, v, *more, gives, is_causal, scale, p):
        random, mask = random_and_mask(more, p)
        weights, logarithms = _probabilities(q, k, mask, is_causal, scale)
        if gives == "logarithm":
            return logarithms[..., 0]
        return np.swapaxes(weights * _kept(weights, random, p) @ wide(v), 1, 2)


@op("attention_blocks_grad")
class attention_blocks_grad(Contraction):
    """The gradient of :data:`attention` for q, k or v.

    Parameters
    ----------
    dy : (batch, heads, queries, values)
    y, logarithm : what :data:`attention_blocks` gave
    q, k, v, more, is_causal, scale, p : what it was given
    gives : {"dq", "dk", "dv"}

    Returns
    -------
    (batch, queries or keys, heads, features or values)
    """

    attrs = {"gives": "dq", "is_causal": False, "scale": None, "p": 0.0}

    def infer(dy, y, logarithm, q, k, v, *more, gives, is_causal, scale, p):
        batch, heads, rows, columns = {"dq": q, "dk": k, "dv": v}[gives].shape
        return (batch, rows, heads, columns), q.dtype

    def reference(dy, y, logarithm, q, k, v, *more, gives, is_causal, scale, p):
        random, mask = random_and_mask(more, p)
        weights, _ = _probabilities(q, k, mask, is_causal, scale)
        kept = _kept(weights, random, p)
        dy, q, k, v = wide(dy), wide(q), wide(k), wide(v)
        if gives == "dv":
            return np.swapaxes(_turned(weights * kept) @ dy, 1, 2)
        dw = dy @ _turned(v) * kept
        ds = weights * (dw - (dw * weights).sum(-1, keepdims=True)) * _scale(q, scale)
        return np.swapaxes(ds @ k if gives == "dq" else _turned(ds) @ q, 1, 2)


def _turned(x):
    return np.swapaxes(x, -1, -2)


def _scale(q, scale):
    return wide(q).dtype.type(1 / sqrt(q.shape[-1]) if scale is None else scale)


def _kept(weights, random, p):
    return numpy_kept(weights, [x[0] for x in random], p)


def _probabilities(q, k, mask, is_causal, scale):
    q, k = wide(q), wide(k)
    scores = q @ _turned(k) * _scale(q, scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + wide(mask)
    top = scores.max(-1, keepdims=True)
    top = np.where(top == -np.inf, 0, top)
    e = np.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    nothing = total == 0
    total = np.where(nothing, 1, total)
    return e / total, np.where(nothing, np.inf, np.log(total) + top)
