"""Scaled dot-product attention (Vaswani et al. 2017)."""

from __future__ import annotations

from math import sqrt

import numpy as np

from lezero.graph.dim import Dim
from lezero.graph.dtype import float32, int64
from lezero.ops.base import Composite, broadcast_shapes, op
from lezero.ops.creation import arange, number_of
from lezero.ops.dropout import dropout_scale
from lezero.ops.elementwise import cast, exp, rsqrt, where
from lezero.ops.matmul import dot
from lezero.ops.movement import expand, reshape
from lezero.ops.random import uniform
from lezero.ops.reduce import max, sum
from lezero.ops.rules import narrow, need_floating, shown, wide, wide_dtype, widen
from lezero.ops.shaping import later
from lezero.ops.slicing import concatenate, slice


@op("attention", onnx="Attention")
class attention(Composite):
    """``softmax(q @ k.T * scale + mask) @ v``.

    Parameters
    ----------
    q : (*batch, heads, queries, features); floating dtype
    k : (*batch, key heads, keys, features)
    v : (*batch, key heads, keys, value features)
        Key heads are as many as heads, or divide them: each then serves heads / key heads neighbouring heads.
    more : with dropout the state of the random numbers, two 0-d int64; then the mask, if there is one
        The mask broadcasts to (*batch, heads, queries, keys).  bool: which keys a query sees; floating: added to the scores.
    is_causal : bool
        Query i sees keys 0 to i.
    scale : float or None
        By default ``1 / sqrt(features)``.
    blocks : int
        How many parts the queries are taken in, one after the other: only one part's scores are in memory at a time.  See
        :func:`blocks_of`.
    p : float, 0 to 1
        The share of the probabilities that is dropped; the others are divided by 1 - p.  The gradient draws the same again.

    Returns
    -------
    (*batch, heads, queries, value features).  A query that sees no key gives zeros.  Half precision is computed in float32
    between the two products.

    Notes
    -----
    The gradient computes the probabilities p again from q and k, and uses ``sum(dp * p) = sum(dy * y)`` (Dao et al. 2022).
    """

    attrs = {"is_causal": False, "scale": None, "blocks": 1, "p": 0.0}
    keeps = ("q", "k", "v", "more", "y")

    def infer(q, k, v, *more, is_causal, scale, blocks, p):
        _, mask = random_and_mask(more, p)
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

    def reference(q, k, v, *more, is_causal, scale, blocks, p):
        random, mask = random_and_mask(more, p)
        q, k, v = wide(q), wide(k), wide(v)
        if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
            k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
        weights = _numpy_probabilities(q, k, mask, is_causal, scale)
        return weights * numpy_kept(weights, random, p) @ v

    def decompose(q, k, v, *more, is_causal, scale, blocks, p):
        random, mask = random_and_mask(more, p)
        k, v = _for_heads(q, k), _for_heads(q, v)

        def one(part, _, weights):
            return dot(narrow(_dropped(weights, part, q, k, random, p), v.dtype), v)

        return _joined([one(*x) for x in _each(q, k, mask, is_causal, scale, blocks)])

    def gradient(dy, y, q, k, v, *more, p, **attrs):
        random, mask = random_and_mask(more, p)
        given = (dy, y, q, k, v, *more)
        grads = [attention_grad(*given, wrt=name, p=p, **attrs) for name in ("q", "k", "v")]
        grads += [None] * len(random)
        if mask is not None:
            grads.append(None if mask.dtype.kind == "b" else attention_grad(*given, wrt="mask", p=p, **attrs))
        return tuple(grads)


@op("attention_grad")
class attention_grad(Composite):
    """The gradient of :data:`attention` with respect to one of its inputs; several share the probabilities.

    Parameters
    ----------
    dy, y : the result's gradient, and the result
    q, k, v, more, and the other attributes : the attention's
    wrt : {"q", "k", "v", "mask"}
    """

    attrs = {"wrt": "q", "is_causal": False, "scale": None, "blocks": 1, "p": 0.0}
    keeps = ("dy", "y", "q", "k", "v", "more")

    def infer(dy, y, q, k, v, *more, wrt, is_causal, scale, blocks, p):
        if wrt == "mask":
            return (*q.shape[:-1], k.shape[-2]), q.dtype
        x = {"q": q, "k": k, "v": v}[wrt]
        return tuple(x.shape), x.dtype

    def reference(dy, y, q, k, v, *more, wrt, is_causal, scale, blocks, p):
        random, mask = random_and_mask(more, p)
        dy, q, k, v = wide(dy), wide(q), wide(k), wide(v)
        heads = None
        if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
            heads = q.shape[-3] // k.shape[-3]
            k, v = np.repeat(k, heads, -3), np.repeat(v, heads, -3)
        weights = _numpy_probabilities(q, k, mask, is_causal, scale)
        kept = numpy_kept(weights, random, p)
        dw = dy @ np.swapaxes(v, -1, -2) * kept
        ds = weights * (dw - (dw * weights).sum(-1, keepdims=True))
        if wrt == "mask":
            return ds
        if wrt == "q":
            return ds @ k * _scale(q, scale)
        dx = np.swapaxes(weights * kept, -1, -2) @ dy if wrt == "v" else np.swapaxes(ds, -1, -2) @ q * _scale(q, scale)
        if heads is None:
            return dx
        return dx.reshape(*dx.shape[:-3], -1, heads, *dx.shape[-2:]).sum(-3)

    def decompose(dy, y, q, k, v, *more, wrt, is_causal, scale, blocks, p):
        random, mask = random_and_mask(more, p)
        wide_k, wide_v = _for_heads(q, k), _for_heads(q, v)

        def one(part, q_, weights):
            dy_, y_ = part.of(dy), part.of(y)
            if wrt == "v":
                return dot(narrow(_dropped(weights, part, q, wide_k, random, p), dy.dtype), dy_, trans_a=True)
            dw = _dropped(widen(dot(dy_, wide_v, trans_b=True)), part, q, wide_k, random, p)
            ds = weights * (dw - sum(widen(dy_) * widen(y_), axes=(len(dy.shape) - 1,), keepdim=True))
            if wrt == "mask":
                return narrow(ds, q.dtype)
            scaled = narrow(ds * _scale(q, scale), q.dtype)
            return dot(scaled, wide_k) if wrt == "q" else dot(scaled, q_, trans_a=True)

        # after dy: otherwise these would be the scores of the forward pass, kept in memory until now
        found = [one(*x) for x in _each(q, wide_k, mask, is_causal, scale, blocks, dy)]
        if wrt in ("q", "mask"):
            return _joined(found)
        return _from_heads(_added(found), k if wrt == "k" else v)


BLOCK = 256
"""Queries whose scores are in memory at a time, about: fewer make the products small, more take memory."""


def blocks_of(queries, keys):
    """In how many parts to take the queries, so that memory grows no faster than their number: a power of two."""
    blocks = 1
    while queries > BLOCK * blocks and keys > BLOCK:
        blocks *= 2
    return blocks


def _each(q, k, mask, is_causal, scale, blocks, after=None):
    """Each part of the queries, its rows of q, and its probabilities; the scores of one wait for those of the one before."""
    for part in _parts(q, blocks):
        rows = part.of(q) if after is None or blocks == 1 else later(part.of(q), after)
        weights, after = _probabilities(rows, k, part.of_mask(mask), is_causal, scale, part.start)
        yield part, rows, weights


def random_and_mask(more, p):
    """The state of the random numbers, if there is dropout, and the mask or None."""
    count = 2 if p else 0
    return more[:count], more[count] if len(more) > count else None


def _dropped(x, part, q, k, random, p):
    """x, of the shape of a part's scores, with dropout."""
    if not random:
        return x
    drawn = uniform(*random, shape=(*q.shape[:-1], k.shape[-2]), dtype=float32)
    return where(part.of(drawn) >= p, x * dropout_scale(p), 0)


def numpy_kept(weights, random, p):
    """What dropout multiplies by."""
    if not random:
        return 1
    return np.where(uniform.reference(*random, weights.shape, float32) >= np.float32(p), dropout_scale(p), 0)


class _Part:
    """Queries `start` to `stop`, of all."""

    def __init__(self, start, stop, all):
        self.start, self.stop, self.all = start, stop, all

    def of(self, x):
        """Their rows of (*, queries, features)."""
        return x if self.all else _slice_rows(x, self.start, self.stop)

    def of_mask(self, mask):
        if mask is None or len(mask.shape) < 2 or mask.shape[-2] == 1:
            return mask
        return self.of(mask)


def _parts(q, blocks):
    rows = q.shape[-2]
    step = rows // blocks
    ends = [step * i for i in range(1, blocks)] + [rows]
    return [_Part(start, stop, blocks == 1) for start, stop in zip([0, *ends], ends)]


def _slice_rows(x, start, stop):
    axes = len(x.shape)
    starts = (*(0,) * (axes - 2), start, 0)
    return slice(x, starts=starts, stops=(*x.shape[:-2], stop, x.shape[-1]), steps=(1,) * axes)


def _joined(parts):
    """Parts of the queries as one."""
    return parts[0] if len(parts) == 1 else concatenate(*parts, axis=len(parts[0].shape) - 2)


def _added(parts):
    """The sum of what each part of the queries contributes, rounded to half precision once."""
    total = parts[0] if len(parts) == 1 else widen(parts[0])
    for part in parts[1:]:
        total = total + widen(part)
    return narrow(total, parts[0].dtype)


def _scale(q, scale):
    """A number, or an operand where the features are a symbol."""
    features = q.shape[-1]
    if scale is not None:
        return scale
    if isinstance(features, Dim):
        return rsqrt(cast(number_of(q, features), dtype=wide_dtype(q.dtype)))
    return 1 / sqrt(features)


def _probabilities(q, k, mask, is_causal, scale, first=0):
    """(*batch, heads, queries, keys), wide, of queries from the `first` on, and what they were divided by.

    Rows that see nothing are zeros.
    """
    scores = widen(dot(q, k, trans_b=True)) * _scale(q, scale)
    rows, columns = scores.shape[-2:]
    if columns == 0:
        return scores, scores
    minus_infinity = -float("inf")
    if is_causal:
        row = reshape(arange(start=first, stop=first + rows, step=1, dtype=int64, like=q), shape=(rows, 1))
        column = arange(start=0, stop=columns, step=1, dtype=int64, like=q)
        scores = where(column <= row, scores, minus_infinity)
    if mask is not None:
        scores = where(mask, scores, minus_infinity) if mask.dtype.kind == "b" else scores + widen(mask)
    axes = (len(scores.shape) - 1,)
    top = max(scores, axes=axes, keepdim=True)
    e = exp(scores - where(top == minus_infinity, 0, top))
    total = sum(e, axes=axes, keepdim=True)
    return e / where(total == 0, 1, total), total


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
