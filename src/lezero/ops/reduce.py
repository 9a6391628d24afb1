"""Reductions.  ``axes`` is a sorted tuple of non-negative axes, ``()`` reduces over none; ``keepdim`` keeps them with extent 1.

A reduction accumulates in its result's dtype (half precision: in float32).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lezero.graph.dtype import bool_, int64
from lezero.ops.arithmetic import abs, sign, square
from lezero.ops.base import Composite, Reduce, op, reduced_shape
from lezero.ops.comparison import isinf, isnan, where
from lezero.ops.creation import number_of
from lezero.ops.functions import exp, log, sqrt
from lezero.ops.movement import expand, permute, reshape
from lezero.ops.rules import conj as conjugate
from lezero.ops.rules import count, narrow, rounded_once, wide

AXES = {"axes": (), "keepdim": False}


def spread(g: Any, x: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
    """A reduction's result (or its gradient) with the reduced axes back as extents of 1, ready to broadcast with `x`."""
    return g if keepdim else reshape(g, shape=reduced_shape(tuple(x.shape), axes, True))


def _needs_elements(name: str, x: Any, axes: tuple[int, ...]) -> None:
    for axis in axes:
        if x.shape[axis] == 0:
            raise ValueError(
                f"{name}: dimension {axis} of shape {tuple(x.shape)} is empty, and the {name} of nothing is undefined"
            )


def _real_only(name: str, x: Any) -> None:
    if x.dtype.is_complex:
        raise TypeError(f"{name}: complex numbers have no order, got {x.dtype.name}")


def _summed_dtype(x: Any):
    return x.dtype if x.dtype.kind in "fc" else int64


@op("sum", onnx="ReduceSum")
class sum(Reduce):
    """The sum; integers and bools add up in int64."""

    reduction = "sum"

    def infer(x, axes, keepdim):
        return reduced_shape(x.shape, axes, keepdim), _summed_dtype(x)

    def reference(x, axes, keepdim):
        x = wide(x)
        return np.sum(x, axis=axes, keepdims=keepdim, dtype=x.dtype if x.dtype.kind in "fc" else np.int64)

    def gradient(dy, y, x, axes, keepdim):
        return expand(spread(dy, x, axes, keepdim), shape=tuple(x.shape))


@op("prod", onnx="ReduceProd")
class prod(Reduce):
    """The product; integers and bools multiply up in int64.

    The gradient is the product of the others, made of the products before and after each element, so that zeros do not matter.
    """

    reduction = "prod"
    keeps = ("x",)

    def infer(x, axes, keepdim):
        return reduced_shape(x.shape, axes, keepdim), _summed_dtype(x)

    def reference(x, axes, keepdim):
        x = wide(x)
        return np.prod(x, axis=axes, keepdims=keepdim, dtype=x.dtype if x.dtype.kind in "fc" else np.int64)

    def gradient(dy, y, x, axes, keepdim):
        from lezero.ops.scan import exclusive_cumprod

        shape, rest = tuple(x.shape), tuple(a for a in range(len(x.shape)) if a not in axes)
        order = rest + axes
        rows = permute(x, axes=order)
        flat = reshape(rows, shape=(*(shape[a] for a in rest), count(x, axes)))
        others = exclusive_cumprod(flat, len(rest)) * exclusive_cumprod(flat, len(rest), reverse=True)
        others = reshape(others, shape=tuple(rows.shape))
        others = permute(others, axes=tuple(order.index(a) for a in range(len(shape))))
        return spread(dy, x, axes, keepdim) * conjugate(others)


class Extreme(Reduce):
    """The greatest or least; NaN if any is.  Equal extremes share the gradient (as ``torch.amax``), NaN too (as ``torch.max``)."""

    keeps = ("x", "y")

    @staticmethod
    def gradient(dy: Any, y: Any, x: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
        hit = x == spread(y, x, axes, keepdim)
        if x.dtype.is_floating_point:
            hit = hit | isnan(x)
        share = spread(dy, x, axes, keepdim) / narrow(sum(hit, axes=axes, keepdim=True), dy.dtype)
        return where(hit, share, 0)


@op("max", onnx="ReduceMax")
class max(Extreme):
    """The greatest element; an empty reduction is refused."""

    reduction = "max"

    def infer(x, axes, keepdim):
        _real_only("max", x)
        _needs_elements("max", x, axes)
        return reduced_shape(x.shape, axes, keepdim), x.dtype

    def reference(x, axes, keepdim):
        return np.max(wide(x), axis=axes, keepdims=keepdim)


@op("min", onnx="ReduceMin")
class min(Extreme):
    """The least element; an empty reduction is refused."""

    reduction = "min"

    def infer(x, axes, keepdim):
        _real_only("min", x)
        _needs_elements("min", x, axes)
        return reduced_shape(x.shape, axes, keepdim), x.dtype

    def reference(x, axes, keepdim):
        return np.min(wide(x), axis=axes, keepdims=keepdim)


# -- truth -------------------------------------------------------------------------------------------------------


class Truth(Reduce):
    """Elements are tested against zero; bool out."""

    differentiable = False

    @staticmethod
    def infer(x: Any, axes: tuple[int, ...], keepdim: bool):
        return reduced_shape(x.shape, axes, keepdim), bool_

    @staticmethod
    def gradient(dy: Any, y: Any, x: Any, axes: tuple[int, ...], keepdim: bool) -> None:
        return None


@op("any")
class any(Truth):
    """Whether at least one element is not zero."""

    reduction = "any"

    def reference(x, axes, keepdim):
        return np.any(x != 0, axis=axes, keepdims=keepdim)


@op("all")
class all(Truth):
    """Whether no element is zero."""

    reduction = "all"

    def reference(x, axes, keepdim):
        return np.all(x != 0, axis=axes, keepdims=keepdim)


@op("count_nonzero")
class count_nonzero(Composite):
    """How many elements are not zero, int64."""

    attrs = AXES
    differentiable = False

    def infer(x, axes, keepdim):
        return reduced_shape(x.shape, axes, keepdim), int64

    def decompose(x, axes, keepdim):
        return sum(x != 0, axes=axes, keepdim=keepdim)

    def reference(x, axes, keepdim):
        return np.count_nonzero(x, axis=axes, keepdims=keepdim)

    def gradient(dy, y, x, axes, keepdim):
        return None


# -- where the extreme is ----------------------------------------------------------------------------------------


class ArgExtreme(Reduce):
    """int64 position of the first extreme, NaN before everything.

    `axes` is one axis, or all of them: then the position counts the elements in row-major order.
    """

    differentiable = False

    def infer_nodes(self, nodes: tuple, attrs: tuple):
        (x,), (axes, keepdim) = nodes, attrs
        _real_only(self.name, x)
        _needs_elements(self.name, x, axes)
        if len(axes) not in (1, len(x.shape)):
            raise ValueError(
                f"{self.name}: one axis or all of them are needed, got {axes} of {len(x.shape)} dimensions"
            )
        return reduced_shape(x.shape, axes, keepdim), int64

    @staticmethod
    def infer(x: Any, axes: tuple[int, ...], keepdim: bool):
        raise NotImplementedError

    @staticmethod
    def gradient(dy: Any, y: Any, x: Any, axes: tuple[int, ...], keepdim: bool) -> None:
        return None


def _position(find: Any, x: np.ndarray, axes: tuple[int, ...], keepdim: bool) -> np.ndarray:
    x = wide(x)
    if len(axes) == 1:
        return find(x, axis=axes[0], keepdims=keepdim)
    return np.reshape(find(x), (1,) * x.ndim if keepdim else ())


@op("argmax", onnx="ArgMax")
class argmax(ArgExtreme):
    """Where the greatest element is."""

    reduction = "argmax"

    def reference(x, axes, keepdim):
        return _position(np.argmax, x, axes, keepdim)


@op("argmin", onnx="ArgMin")
class argmin(ArgExtreme):
    """Where the least element is."""

    reduction = "argmin"

    def reference(x, axes, keepdim):
        return _position(np.argmin, x, axes, keepdim)


# -- composed ----------------------------------------------------------------------------------------------------


def _floating_only(name: str, x: Any) -> None:
    if x.dtype.kind not in "fc":
        raise TypeError(
            f"{name}: a floating or complex dtype is needed, got {x.dtype.name}; cast it first, as x.float()"
        )


@op("mean", onnx="ReduceMean")
class mean(Composite):
    """The sum divided by the count; NaN of nothing.  Integers are refused (as in PyTorch)."""

    attrs = AXES

    def infer(x, axes, keepdim):
        _floating_only("mean", x)
        return reduced_shape(x.shape, axes, keepdim), x.dtype

    @rounded_once
    def decompose(x, axes, keepdim):
        return sum(x, axes=axes, keepdim=keepdim) / number_of(x, count(x, axes))

    def reference(x, axes, keepdim):
        total = np.sum(wide(x), axis=axes, keepdims=keepdim)
        return total / total.dtype.type(count(x, axes))

    def gradient(dy, y, x, axes, keepdim):
        return expand(spread(dy / number_of(x, count(x, axes)), x, axes, keepdim), shape=tuple(x.shape))


def _freedom(x: Any, axes: tuple[int, ...], correction: int) -> int:
    n = count(x, axes) - correction
    return n if n > 0 else 0


@op("var")
class var(Composite):
    """The sum of squared distances from the mean, divided by (count - correction); NaN or infinite where that is 0.

    Two passes over the data: the mean first, so that a large mean does not swallow the variance.

    Parameters
    ----------
    correction : int
        1 (the default) is Bessel's, 0 the population's variance.
    """

    attrs = {"axes": (), "keepdim": False, "correction": 1}
    keeps = ("x",)

    def infer(x, axes, keepdim, correction):
        _floating_only("var", x)
        return reduced_shape(x.shape, axes, keepdim), x.dtype.to_real()

    @rounded_once
    def decompose(x, axes, keepdim, correction):
        gap = x - mean(x, axes=axes, keepdim=True)
        squares = square(abs(gap)) if x.dtype.is_complex else square(gap)
        return sum(squares, axes=axes, keepdim=keepdim) / number_of(x, _freedom(x, axes, correction))

    def reference(x, axes, keepdim, correction):
        x = wide(x)
        n = math.prod(x.shape[a] for a in axes)
        squares = np.abs(x - np.mean(x, axis=axes, keepdims=True)) ** 2
        return np.sum(squares, axis=axes, keepdims=keepdim) / squares.dtype.type(np.maximum(n - correction, 0))

    def gradient(dy, y, x, axes, keepdim, correction):
        scale = spread(dy * 2 / number_of(x, _freedom(x, axes, correction)), x, axes, keepdim)
        return scale * (x - mean(x, axes=axes, keepdim=True))


@op("std")
class std(Composite):
    """The square root of the variance; gradient 0 where that is 0."""

    attrs = {"axes": (), "keepdim": False, "correction": 1}
    keeps = ("x", "y")

    def infer(x, axes, keepdim, correction):
        _floating_only("std", x)
        return reduced_shape(x.shape, axes, keepdim), x.dtype.to_real()

    @rounded_once
    def decompose(x, axes, keepdim, correction):
        return sqrt(var(x, axes=axes, keepdim=keepdim, correction=correction))

    def reference(x, axes, keepdim, correction):
        x = wide(x)
        return np.sqrt(var.reference(x, axes, keepdim, correction))

    def gradient(dy, y, x, axes, keepdim, correction):
        return var.gradient(where(y == 0, 0, dy / (2 * y)), y, x, axes, keepdim, correction)


@op("logsumexp", onnx="ReduceLogSumExp")
class logsumexp(Composite):
    """log(sum(exp(x))), shifted by the maximum so that nothing overflows."""

    attrs = AXES
    keeps = ("x", "y")

    def infer(x, axes, keepdim):
        _floating_only("logsumexp", x)
        _real_only("logsumexp", x)
        _needs_elements("logsumexp", x, axes)
        return reduced_shape(x.shape, axes, keepdim), x.dtype

    @rounded_once
    def decompose(x, axes, keepdim):
        top = max(x, axes=axes, keepdim=True)
        top = where(isinf(top), 0, top)
        total = log(sum(exp(x - top), axes=axes, keepdim=True)) + top
        return total if keepdim else reshape(total, shape=reduced_shape(tuple(x.shape), axes, False))

    def reference(x, axes, keepdim):
        x = wide(x)
        top = np.max(x, axis=axes, keepdims=True)
        top = np.where(np.isinf(top), 0, top)
        total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
        return total if keepdim else np.reshape(total, reduced_shape(x.shape, axes, False))

    def gradient(dy, y, x, axes, keepdim):
        return spread(dy, x, axes, keepdim) * exp(x - spread(y, x, axes, keepdim))


@op("norm")
class norm(Composite):
    """The p-norm of the reduced elements as one vector, (sum |x|**p) ** (1/p); its gradient is 0 where it is 0.

    Parameters
    ----------
    p : float
        ``inf`` and ``-inf`` give the greatest and least magnitude, 0 the number of elements that are not 0.
    """

    attrs = {"axes": (), "keepdim": False, "p": 2.0}
    keeps = ("x", "y")

    def infer(x, axes, keepdim, p):
        _floating_only("norm", x)
        if math.isinf(p):
            _needs_elements("norm", x, axes)
        return reduced_shape(x.shape, axes, keepdim), x.dtype.to_real()

    @rounded_once
    def decompose(x, axes, keepdim, p):
        size = abs(x)
        if p == math.inf:
            return max(size, axes=axes, keepdim=keepdim)
        if p == -math.inf:
            return min(size, axes=axes, keepdim=keepdim)
        if p == 0:
            return narrow(sum(x != 0, axes=axes, keepdim=keepdim), x.dtype.to_real())
        if p == 1:
            return sum(size, axes=axes, keepdim=keepdim)
        if p == 2:
            return sqrt(sum(square(size), axes=axes, keepdim=keepdim))
        return sum(size**p, axes=axes, keepdim=keepdim) ** (1 / p)

    def reference(x, axes, keepdim, p):
        size = np.abs(wide(x))
        if math.isinf(p):
            return (np.max if p > 0 else np.min)(size, axis=axes, keepdims=keepdim)
        if p == 0:
            return np.count_nonzero(size, axis=axes, keepdims=keepdim)
        return np.sum(size**p, axis=axes, keepdims=keepdim) ** (1 / p)

    def gradient(dy, y, x, axes, keepdim, p):
        if p == 0:
            return None
        dy, y = spread(dy, x, axes, keepdim), spread(y, x, axes, keepdim)
        if math.isinf(p):
            hit = abs(x) == y
            return where(hit, dy / narrow(sum(hit, axes=axes, keepdim=True), dy.dtype), 0) * sign(x)
        if p == 1:
            return dy * sign(x)
        scale = where(y == 0, 0, dy / y)
        if p == 2:
            return scale * x
        # |x|**(p-2) * x / y**(p-1); the ratio first, since powers of the parts may overflow
        ratio = abs(x) / where(y == 0, 1, y)
        flat = (x == 0) | (y == 0)  # of negative powers y is 0 where any x is
        return where(flat, 0, dy * sign(x) * where(flat, 1, ratio) ** (p - 1))
