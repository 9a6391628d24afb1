"""Matrix products: ``dot``, the primitive contraction, and what is made of it."""

from __future__ import annotations

import numpy as np

from lezero.graph.dim import identical
from lezero.ops.base import Composite, Contraction, broadcast_shapes, op
from lezero.ops.movement import expand, reshape
from lezero.ops.reduce import sum
from lezero.ops.rules import conj, shown, wide


def _same_dtype(name, *nodes):
    if any(n.dtype is not nodes[0].dtype for n in nodes) or nodes[0].dtype.kind == "b":
        listed = ", ".join(n.dtype.name for n in nodes)
        raise TypeError(
            f"{name}: inputs of one dtype other than bool are needed, got {listed}; convert with .to(dtype)"
        )


@op("dot", onnx="MatMul")
class dot(Contraction):
    """Products of matrices in the last two dimensions, one for each position of the others, which are equal.

    Parameters
    ----------
    a : (*batch, m, k), or (*batch, k, m) with `trans_a`
    b : (*batch, k, n), or (*batch, n, k) with `trans_b`; of the dtype of `a`
    trans_a, trans_b : bool
        Read the matrices transposed.  The gradients of all four cases are again such cases, so no transpose is ever
        written to memory.

    Returns
    -------
    (*batch, m, n).  float16 and bfloat16 accumulate in float32.
    """

    attrs = {"trans_a": False, "trans_b": False}
    keeps = ("a", "b")

    def infer(a, b, trans_a, trans_b):
        _same_dtype("dot", a, b)
        if len(a.shape) < 2 or len(a.shape) != len(b.shape) or tuple(a.shape[:-2]) != tuple(b.shape[:-2]):
            raise ValueError(
                f"dot: two or more dimensions, equal up to the last two, are needed; got {shown(a.shape)} and {shown(b.shape)}"
            )
        m, k = (a.shape[-1], a.shape[-2]) if trans_a else (a.shape[-2], a.shape[-1])
        k2, n = (b.shape[-1], b.shape[-2]) if trans_b else (b.shape[-2], b.shape[-1])
        if k != k2:
            raise ValueError(
                f"dot: the inner extents {int(k)} and {int(k2)} differ, for shapes {shown(a.shape)}{' transposed' * trans_a} "
                f"and {shown(b.shape)}{' transposed' * trans_b}"
            )
        return (*a.shape[:-2], m, n), a.dtype

    def reference(a, b, trans_a, trans_b):
        a, b = wide(a), wide(b)
        return np.matmul(np.swapaxes(a, -1, -2) if trans_a else a, np.swapaxes(b, -1, -2) if trans_b else b)

    def gradient(dy, y, a, b, trans_a, trans_b):
        ca, cb = conj(a), conj(b)
        da = dot(cb, dy, trans_a=trans_b, trans_b=True) if trans_a else dot(dy, cb, trans_b=not trans_b)
        db = dot(dy, ca, trans_a=True, trans_b=trans_a) if trans_b else dot(ca, dy, trans_a=not trans_a)
        return da, db


def _plan(a, b):
    """How a product of any two ranks is a ``dot``: the shapes both are brought to, and the result's shape.

    Returns (shape of a before expanding, of b, batch shape or None when nothing has to be expanded, result shape).
    """
    rows = () if len(a.shape) == 1 else (a.shape[-2],)
    columns = () if len(b.shape) == 1 else (b.shape[-1],)
    k, n = a.shape[-1], columns[0] if columns else 1
    if len(b.shape) <= 2:
        # One matrix on the right: all dimensions of a but the last are rows of a single large product.
        m = 1
        for d in a.shape[:-1]:
            m = m * d
        return (m, k), (k, n), None, (*a.shape[:-1], *columns)
    left = (*a.shape[:-2], rows[0] if rows else 1, k)
    batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
    lead = len(batch)
    left = (1,) * (lead + 2 - len(left)) + left
    right = (1,) * (lead + 2 - len(b.shape)) + tuple(b.shape)
    return left, right, batch, (*batch, *rows, *columns)


def _lift(a, b):
    """The operands of matmul as operands of dot."""
    left, right, batch, _ = _plan(a, b)
    a, b = _reshaped(a, left), _reshaped(b, right)
    if batch is not None:
        a, b = _expanded(a, (*batch, *left[-2:])), _expanded(b, (*batch, *right[-2:]))
    return a, b


def _reshaped(x, shape):
    return x if identical(x.shape, shape) else reshape(x, shape=tuple(shape))


def _expanded(x, shape):
    return x if identical(x.shape, shape) else expand(x, shape=tuple(shape))


@op("matmul", onnx="MatMul")
class matmul(Composite):
    """Matrix product with PyTorch's rules: vectors, matrices, and broadcast batches of matrices.

    Parameters
    ----------
    a : (*batch, m, k) or (k,)
    b : (*batch, k, n) or (k,); the batch dimensions broadcast

    Returns
    -------
    (*batch, m, n), without m or n where that operand is a vector; of the operands' dtype.
    """

    keeps = ("a", "b")

    def infer(a, b):
        _same_dtype("matmul", a, b)
        if not a.shape or not b.shape:
            raise ValueError(
                f"matmul: both inputs need one or more dimensions, got {shown(a.shape)} and {shown(b.shape)}; use * for scalars"
            )
        k = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
        if a.shape[-1] != k:
            raise ValueError(
                f"matmul: shapes {shown(a.shape)} and {shown(b.shape)} do not fit: the last extent of the first is "
                f"{int(a.shape[-1])}, and the {'last but one' if len(b.shape) > 1 else 'only'} of the second is {int(k)}"
            )
        return _plan(a, b)[3], a.dtype

    def reference(a, b):
        return np.matmul(wide(a), wide(b))

    def decompose(a, b):
        return _reshaped(dot(*_lift(a, b)), _plan(a, b)[3])

    def gradient(dy, y, a, b):
        left, right = _lift(a, b)
        dy = _reshaped(dy, (*left.shape[:-1], right.shape[-1]))
        da, db = dot.gradient(dy, None, left, right, trans_a=False, trans_b=False)
        return _unlift(da, a, _plan(a, b)[0]), _unlift(db, b, _plan(a, b)[1])


def _unlift(d, x, lifted):
    """A gradient of an operand of dot as that of the operand of matmul it was made from."""
    axes = tuple(i for i, (e, o) in enumerate(zip(d.shape, lifted)) if o == 1 and e != 1)
    if axes:
        d = sum(d, axes=axes, keepdim=True)
    return _reshaped(d, x.shape)


@op("linear", onnx="Gemm")
class linear(Composite):
    """``x @ weight.T + bias``, a fully connected layer.

    Parameters
    ----------
    x : (*, in_features)
    weight : (out_features, in_features), of the dtype of `x`
    bias : (out_features,), optional
    """

    keeps = ("x", "weight")

    def infer(x, weight, bias=None):
        given = (x, weight) if bias is None else (x, weight, bias)
        _same_dtype("linear", *given)
        if len(weight.shape) != 2 or not x.shape:
            raise ValueError(
                f"linear: an input (*, in_features) and a weight (out_features, in_features) are needed, got "
                f"{shown(x.shape)} and {shown(weight.shape)}"
            )
        if x.shape[-1] != weight.shape[1]:
            raise ValueError(
                f"linear: an input {shown(x.shape)} has {int(x.shape[-1])} features, the weight {shown(weight.shape)} takes "
                f"{int(weight.shape[1])}"
            )
        if bias is not None and tuple(bias.shape) != (weight.shape[0],):
            raise ValueError(f"linear: the bias has shape {shown(bias.shape)}, not ({int(weight.shape[0])},)")
        return (*x.shape[:-1], weight.shape[0]), x.dtype

    def reference(x, weight, bias=None):
        y = np.matmul(wide(x), wide(weight).T)
        return y if bias is None else y + wide(bias)

    def decompose(x, weight, bias=None):
        y = dot(_rows(x), weight, trans_b=True)
        if bias is not None:
            y = y + bias
        return _reshaped(y, (*x.shape[:-1], weight.shape[0]))

    def gradient(dy, y, x, weight, bias=None):
        rows = _rows(dy)
        dx = _reshaped(dot(rows, conj(weight)), x.shape)
        dw = dot(rows, conj(_rows(x)), trans_a=True)
        return (dx, dw) if bias is None else (dx, dw, sum(rows, axes=(0,)))


def _rows(x):
    """All dimensions but the last as one."""
    m = 1
    for d in x.shape[:-1]:
        m = m * d
    return _reshaped(x, (m, x.shape[-1]))
