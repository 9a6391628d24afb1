"""Softmax and its logarithm along one axis."""

from __future__ import annotations

import numpy as np

from lezero.ops.base import Composite, op
from lezero.ops.elementwise import exp, log
from lezero.ops.reduce import max, sum
from lezero.ops.rules import narrow, need_floating, shown, wide, widen


def _infer(name, x, axis):
    need_floating(name, x)
    if x.shape and not 0 <= axis < len(x.shape):
        raise IndexError(f"{name}: axis {axis} is out of range for shape {shown(x.shape)}")
    return tuple(x.shape), x.dtype


def shifted(x, axis):
    """``x - max(x)``: what can be exponentiated without overflow."""
    return x - max(x, axes=(axis,), keepdim=True)


def _shifted(x, axis):
    """The same for arrays; a 0-d one counts as one element."""
    return x - x.max(axis if x.ndim else None, keepdims=True)


def _rests(x, axis):
    """Whether there is nothing to sum along: no dimensions, or none of the axis' elements."""
    return not x.shape or x.shape[axis] == 0


@op("softmax", onnx="Softmax")
class softmax(Composite):
    """``exp(x) / sum(exp(x))`` along an axis, computed from ``x - max(x)`` (in float32 for half precision).

    Parameters
    ----------
    x : any shape, floating dtype
    axis : int, non-negative

    Notes
    -----
    A row of minus infinities gives NaNs, as in PyTorch.
    """

    attrs = {"axis": 0}
    keeps = ("y",)

    def infer(x, axis):
        return _infer("softmax", x, axis)

    def reference(x, axis):
        if x.size == 0:
            return x
        e = np.exp(_shifted(wide(x), axis))
        return e / e.sum(axis if x.ndim else None, keepdims=True)

    def decompose(x, axis):
        if _rests(x, axis):
            return exp(x - x)
        e = exp(shifted(widen(x), axis))
        return narrow(e / sum(e, axes=(axis,), keepdim=True), x.dtype)

    def gradient(dy, y, x, axis):
        return softmax_grad(dy, y, axis=axis)


@op("softmax_grad")
class softmax_grad(Composite):
    """The gradient of :data:`softmax` from its result: ``y * (dy - sum(dy * y))``."""

    attrs = {"axis": 0}
    keeps = ("dy", "y")

    def infer(dy, y, axis):
        return _infer("softmax_grad", y, axis)

    def reference(dy, y, axis):
        dy, y = wide(dy), wide(y)
        return y * (dy - (dy * y).sum(axis if y.ndim else None, keepdims=True))

    def decompose(dy, y, axis):
        if _rests(y, axis):
            return dy * (y - y)
        g, p = widen(dy), widen(y)
        return narrow(p * (g - sum(g * p, axes=(axis,), keepdim=True)), y.dtype)


@op("log_softmax", onnx="LogSoftmax")
class log_softmax(Composite):
    """``x - log(sum(exp(x)))`` along an axis, without overflow (in float32 for half precision).

    Parameters
    ----------
    x : any shape, floating dtype
    axis : int, non-negative
    """

    attrs = {"axis": 0}
    keeps = ("y",)

    def infer(x, axis):
        return _infer("log_softmax", x, axis)

    def reference(x, axis):
        if x.size == 0:
            return x
        z = _shifted(wide(x), axis)
        return z - np.log(np.exp(z).sum(axis if x.ndim else None, keepdims=True))

    def decompose(x, axis):
        if _rests(x, axis):
            return x - x
        z = shifted(widen(x), axis)
        return narrow(z - log(sum(exp(z), axes=(axis,), keepdim=True)), x.dtype)

    def gradient(dy, y, x, axis):
        return log_softmax_grad(dy, y, axis=axis)


@op("log_softmax_grad")
class log_softmax_grad(Composite):
    """The gradient of :data:`log_softmax` from its result: ``dy - exp(y) * sum(dy)``."""

    attrs = {"axis": 0}
    keeps = ("dy", "y")

    def infer(dy, y, axis):
        return _infer("log_softmax_grad", y, axis)

    def reference(dy, y, axis):
        dy, y = wide(dy), wide(y)
        return dy - np.exp(y) * dy.sum(axis if y.ndim else None, keepdims=True)

    def decompose(dy, y, axis):
        if _rests(y, axis):
            return dy * (y - y)
        g = widen(dy)
        return narrow(g - exp(widen(y)) * sum(g, axes=(axis,), keepdim=True), y.dtype)


def softmin(x, axis):
    """``softmax(-x)``."""
    return softmax(-x, axis=axis)
