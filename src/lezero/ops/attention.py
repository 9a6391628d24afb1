"""Scaled dot-product attention (Vaswani et al. 2017)."""

from __future__ import annotations

from math import sqrt

import numpy as np

from lezero.graph.dim import Dim
from lezero.graph.dtype import int64
from lezero.ops.base import Composite, broadcast_shapes, op
from lezero.ops.creation import arange, number_of
from lezero.ops.elementwise import cast, exp, rsqrt, where
from lezero.ops.matmul import dot
from lezero.ops.movement import expand, reshape
from lezero.ops.reduce import max, sum
from lezero.ops.rules import narrow, need_floating, shown, wide, wide_dtype, widen


@op("attention", onnx="Attention")
class attention(Composite):
    """``softmax(q @ k.T * scale + mask) @ v``.

    Parameters
    ----------
    q : (*batch, heads, queries, features); floating dtype
    k : (*batch, key heads, keys, features)
    v : (*batch, key heads, keys, value features)
        Key heads are as many as heads, or divide them: each then serves heads / key heads neighbouring heads.
    mask : broadcasts to (*batch, heads, queries, keys), optional
        bool: which keys a query sees; floating: added to the scores.
    is_causal : bool
        Query i sees keys 0 to i.
    scale : float or None
        By default ``1 / sqrt(features)``.

    Returns
    -------
    (*batch, heads, queries, value features).  A query that sees no key gives zeros.  Half precision is computed in float32
    between the two products.

    Notes
    -----
    The gradient computes the probabilities p again from q and k, and uses ``sum(dp * p) = sum(dy * y)`` (Dao et al. 2022).
    """

    attrs = {"is_causal": False, "scale": None}
    keeps = ("q", "k", "v", "mask", "y")

    def infer(q, k, v, mask=None, *, is_causal, scale):
        need_floating("attention", q, k, v)
        fits = (
            len(q.shape) == len(k.shape) == len(v.shape) >= 2
            and q.shape[-1] == k.shape[-1]
            and tuple(k.shape[:-1]) == tuple(v.shape[:-1])
            and tuple(q.shape[:-3]) == tuple(k.shape[:-3])
            and (len(q.shape) == 2 or q.shape[-3] == k.shape[-3] or q.shape[-3] % k.shape[-3] == 0)
        )
        if not fits:
            raise ValueError(
                f"attention: q (*batch, heads, queries, features), k (*batch, key heads, keys, features) and v (*batch, "
                f"key heads, keys, value features) are needed, with heads a multiple of key heads; got {shown(q.shape)}, "
                f"{shown(k.shape)} and {shown(v.shape)}"
            )
        scores = (*q.shape[:-1], k.shape[-2])
        if mask is not None:
            if mask.dtype.kind not in "bf":
                raise TypeError(f"attention: the mask is bool or floating, got {mask.dtype.name}")
            if broadcast_shapes("attention", mask.shape, scores) != scores:
                raise ValueError(
                    f"attention: a mask {shown(mask.shape)} does not broadcast to the scores {shown(scores)}"
                )
        return (*q.shape[:-1], v.shape[-1]), q.dtype

    def reference(q, k, v, mask=None, *, is_causal, scale):
        q, k, v = wide(q), wide(k), wide(v)
        if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
            k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
        return _numpy_probabilities(q, k, mask, is_causal, scale) @ v

    def decompose(q, k, v, mask=None, *, is_causal, scale):
        k, v = _for_heads(q, k), _for_heads(q, v)
        return dot(narrow(_probabilities(q, k, mask, is_causal, scale), v.dtype), v)

    def gradient(dy, y, q, k, v, mask=None, **attrs):
        given = (dy, y, q, k, v) if mask is None else (dy, y, q, k, v, mask)
        grads = [attention_grad(*given, wrt=name, **attrs) for name in ("q", "k", "v")]
        if mask is not None:
            grads.append(None if mask.dtype.kind == "b" else attention_grad(*given, wrt="mask", **attrs))
        return tuple(grads)


@op("attention_grad")
class attention_grad(Composite):
    """The gradient of :data:`attention` with respect to one of its inputs; several share the probabilities.

    Parameters
    ----------
    dy, y : the result's gradient, and the result
    q, k, v, mask, is_causal, scale : the attention's
    wrt : {"q", "k", "v", "mask"}
    """

    attrs = {"wrt": "q", "is_causal": False, "scale": None}
    keeps = ("dy", "y", "q", "k", "v", "mask")

    def infer(dy, y, q, k, v, mask=None, *, wrt, is_causal, scale):
        if wrt == "mask":
            return (*q.shape[:-1], k.shape[-2]), q.dtype
        x = {"q": q, "k": k, "v": v}[wrt]
        return tuple(x.shape), x.dtype

    def reference(dy, y, q, k, v, mask=None, *, wrt, is_causal, scale):
        dy, q, k, v = wide(dy), wide(q), wide(k), wide(v)
        heads = None
        if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
            heads = q.shape[-3] // k.shape[-3]
            k, v = np.repeat(k, heads, -3), np.repeat(v, heads, -3)
        p = _numpy_probabilities(q, k, mask, is_causal, scale)
        dp = dy @ np.swapaxes(v, -1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True))
        if wrt == "mask":
            return ds
        if wrt == "q":
            return ds @ k * _scale(q, scale)
        dx = np.swapaxes(p, -1, -2) @ dy if wrt == "v" else np.swapaxes(ds, -1, -2) @ q * _scale(q, scale)
        if heads is None:
            return dx
        return dx.reshape(*dx.shape[:-3], -1, heads, *dx.shape[-2:]).sum(-3)

    def decompose(dy, y, q, k, v, mask=None, *, wrt, is_causal, scale):
        wide_k, wide_v = _for_heads(q, k), _for_heads(q, v)
        p = _probabilities(q, wide_k, mask, is_causal, scale)
        if wrt == "v":
            return _from_heads(dot(narrow(p, dy.dtype), dy, trans_a=True), v)
        dp = widen(dot(dy, wide_v, trans_b=True))
        ds = p * (dp - sum(widen(dy) * widen(y), axes=(len(dy.shape) - 1,), keepdim=True))
        if wrt == "mask":
            return narrow(ds, q.dtype)
        scaled = narrow(ds * _scale(q, scale), q.dtype)
        return dot(scaled, wide_k) if wrt == "q" else _from_heads(dot(scaled, q, trans_a=True), k)


def _scale(q, scale):
    """A number, or an operand where the features are a symbol."""
    features = q.shape[-1]
    if scale is not None:
        return scale
    if isinstance(features, Dim):
        return rsqrt(cast(number_of(q, features), dtype=wide_dtype(q.dtype)))
    return 1 / sqrt(features)


def _probabilities(q, k, mask, is_causal, scale):
    """(*batch, heads, queries, keys), wide; rows that see nothing are zeros."""
    scores = widen(dot(q, k, trans_b=True)) * _scale(q, scale)
    rows, columns = scores.shape[-2:]
    if columns == 0:
        return scores
    minus_infinity = -float("inf")
    if is_causal:
        row = reshape(arange(start=0, stop=rows, step=1, dtype=int64, like=q), shape=(rows, 1))
        column = arange(start=0, stop=columns, step=1, dtype=int64, like=q)
        scores = where(column <= row, scores, minus_infinity)
    if mask is not None:
        scores = where(mask, scores, minus_infinity) if mask.dtype.kind == "b" else scores + widen(mask)
    axes = (len(scores.shape) - 1,)
    top = max(scores, axes=axes, keepdim=True)
    e = exp(scores - where(top == minus_infinity, 0, top))
    total = sum(e, axes=axes, keepdim=True)
    return e / where(total == 0, 1, total)


def _numpy_probabilities(q, k, mask, is_causal, scale):
    scores = q @ np.swapaxes(k, -1, -2) * q.dtype.type(_scale(q, scale))
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + wide(mask)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def _shares(q, x):
    """How many heads one key head serves."""
    return 1 if len(q.shape) == 2 or q.shape[-3] == x.shape[-3] else q.shape[-3] // x.shape[-3]


def _for_heads(q, x):
    """Key heads repeated for the heads they serve."""
    n = _shares(q, x)
    if n == 1:
        return x
    lead, heads, tail = tuple(x.shape[:-3]), x.shape[-3], tuple(x.shape[-2:])
    x = expand(reshape(x, shape=(*lead, heads, 1, *tail)), shape=(*lead, heads, n, *tail))
    return reshape(x, shape=(*lead, heads * n, *tail))


def _from_heads(d, x):
    """The gradient of :func:`_for_heads`."""
    if tuple(d.shape) == tuple(x.shape):
        return d
    heads = x.shape[-3]
    d = reshape(d, shape=(*d.shape[:-3], heads, d.shape[-3] // heads, *d.shape[-2:]))
    return sum(d, axes=(len(d.shape) - 3,), keepdim=False)
