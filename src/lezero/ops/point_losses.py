"""Losses of an input and a target, element by element.

Each is one node with its gradient in closed form, computed in float32 for half precision.
"""

from __future__ import annotations

import numpy as np

from lezero.ops.base import Composite, broadcast_shapes, op, promoted
from lezero.ops.creation import number_of
from lezero.ops.elementwise import abs, exp, log, log1p, maximum, sigmoid, sign, where
from lezero.ops.reduce import mean, sum
from lezero.ops.rules import count, narrow, wide, widen

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(name, reduction, accepted=REDUCTIONS):
    """Raise unless the reduction is one of those accepted."""
    if reduction not in accepted:
        raise ValueError(f"{name}: reduction {reduction!r} is not one of {', '.join(map(repr, accepted))}")


def total(x):
    """The sum of all elements."""
    return sum(x, axes=tuple(range(len(x.shape))), keepdim=False)


class PointLoss(Composite):
    """A loss of an input and a target that broadcast, element by element.

    Subclasses say what one element costs: ``value(x, target, *more, **attrs)`` for operands, ``numpy_value`` likewise for
    arrays, and ``slopes``, the derivatives of the value by each input (None: not differentiated).
    """

    attrs = {"reduction": "mean"}
    reductions: tuple[str, ...] = REDUCTIONS
    keeps = ("x", "target")

    def infer(self, x, target, *more, reduction, **attrs):
        check_reduction(self.name, reduction, self.reductions)
        dtype = promoted(x, target, *more)
        if not dtype.is_floating_point:
            raise TypeError(f"{self.name}: floating inputs are needed, got {x.dtype.name} and {target.dtype.name}")
        shape = broadcast_shapes(self.name, x.shape, target.shape, *(m.shape for m in more))
        return shape if reduction == "none" else (), dtype

    def reference(self, x, target, *more, reduction, **attrs):
        x, target, *more = (wide(v) for v in (x, target, *more))
        value = self.numpy_value(x, target, *more, **attrs)
        if reduction == "none":
            return value
        return value.sum() / self.divisor(value, reduction)

    def decompose(self, x, target, *more, reduction, **attrs):
        dtype = promoted(*(_Seen(v) for v in (x, target, *more)))
        value = self.value(*(widen(v) for v in (x, target, *more)), **attrs)
        if reduction == "none":
            return narrow(value, dtype)
        if reduction == "mean":
            return narrow(mean(value, axes=tuple(range(len(value.shape))), keepdim=False), dtype)
        n = self.divisor(value, reduction)
        return narrow(total(value) / number_of(value, n) if reduction != "sum" else total(value), dtype)

    def gradient(self, dy, y, *inputs, reduction, **attrs):
        wides = [widen(v) for v in inputs]
        share = widen(dy)
        if reduction not in ("none", "sum"):
            shape = broadcast_shapes(self.name, *(v.shape for v in inputs))
            share = share / number_of(share, self.divisor(_Shape(shape), reduction))
        return tuple(None if s is None else share * s for s in self.slopes(*wides, **attrs))

    def divisor(self, value, reduction):
        """What the sum over a value's elements is divided by."""
        if reduction == "batchmean":
            return value.shape[0] if value.shape else 1
        return count(value) if reduction == "mean" else 1


class _Shape:
    def __init__(self, shape):
        self.shape = shape


class _Seen:
    """What promotion looks at."""

    def __init__(self, x):
        self.shape, self.dtype, self.weak = x.shape, x.dtype, getattr(x, "weak", False)


@op("mse_loss")
class mse_loss(PointLoss):
    """Squared error, ``(x - target)**2``.

    Parameters
    ----------
    x, target : floating dtype, shapes broadcast
    reduction : {"mean", "sum", "none"}
    """

    def value(x, target):
        return (x - target) * (x - target)

    def numpy_value(x, target):
        return np.square(x - target)

    def slopes(x, target):
        slope = 2 * (x - target)
        return slope, -slope


@op("l1_loss")
class l1_loss(PointLoss):
    """Absolute error, ``|x - target|``; the derivative where they are equal is 0.

    Parameters
    ----------
    x, target : floating dtype, shapes broadcast
    reduction : {"mean", "sum", "none"}
    """

    def value(x, target):
        return abs(x - target)

    def numpy_value(x, target):
        return np.abs(x - target)

    def slopes(x, target):
        slope = sign(x - target)
        return slope, -slope


@op("smooth_l1_loss")
class smooth_l1_loss(PointLoss):
    """Squared error near the target, absolute error far from it (Girshick 2015): with d = |x - target|,
    ``d**2 / (2*beta)`` where d < beta, else ``d - beta/2``.

    Parameters
    ----------
    x, target : floating dtype, shapes broadcast
    beta : float, 0 or more; 0 is the absolute error
    reduction : {"mean", "sum", "none"}
    """

    attrs = {"reduction": "mean", "beta": 1.0}

    def value(x, target, beta):
        d = abs(x - target)
        return d if beta == 0 else where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta)

    def numpy_value(x, target, beta):
        d = np.abs(x - target)
        return d if beta == 0 else np.where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta)

    def slopes(x, target, beta):
        e = x - target
        slope = sign(e) if beta == 0 else where(abs(e) < beta, e * (1 / beta), sign(e))
        return slope, -slope


@op("huber_loss")
class huber_loss(PointLoss):
    """Huber's loss (1964): with d = |x - target|, ``d**2 / 2`` where d < delta, else ``delta * (d - delta/2)``.

    Parameters
    ----------
    x, target : floating dtype, shapes broadcast
    delta : float, positive
    reduction : {"mean", "sum", "none"}
    """

    attrs = {"reduction": "mean", "delta": 1.0}

    def value(x, target, delta):
        d = abs(x - target)
        return where(d < delta, 0.5 * d * d, delta * (d - 0.5 * delta))

    def numpy_value(x, target, delta):
        d = np.abs(x - target)
        return np.where(d < delta, 0.5 * d * d, delta * (d - 0.5 * delta))

    def slopes(x, target, delta):
        e = x - target
        slope = where(abs(e) < delta, e, delta * sign(e))
        return slope, -slope


@op("bce_with_logits")
class bce_with_logits(PointLoss):
    """Binary cross-entropy of logits: ``-(t log s(x) + (1-t) log(1-s(x)))`` with the logistic function s.

    Computed as ``(1-t)*x + (1 + (p-1)*t) * softplus(-x)``, which neither overflows nor cancels; p is `pos_weight`.

    Parameters
    ----------
    x, target : floating dtype, shapes broadcast; targets are probabilities
    pos_weight : broadcasts, optional
        Weight of the positive class; 1 by default.
    reduction : {"mean", "sum", "none"}
    """

    def value(x, target, pos_weight=None):
        softplus = log1p(exp(-abs(x))) + maximum(-x, 0)
        return (1 - target) * x + _positive(target, pos_weight, softplus)

    def numpy_value(x, target, pos_weight=None):
        softplus = np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)
        return (1 - target) * x + _positive(target, pos_weight, softplus)

    def slopes(x, target, pos_weight=None):
        down = sigmoid(-x)  # minus the derivative of softplus(-x)
        dx = (1 - target) - _positive(target, pos_weight, down)
        if pos_weight is None:
            return dx, -x
        softplus = log1p(exp(-abs(x))) + maximum(-x, 0)
        return dx, -x + (pos_weight - 1) * softplus, target * softplus


def _positive(target, pos_weight, x):
    return x if pos_weight is None else (1 + (pos_weight - 1) * target) * x


@op("bce_loss")
class bce_loss(PointLoss):
    """Binary cross-entropy of probabilities; logarithms are cut off at -100, as in PyTorch.

    Parameters
    ----------
    x : probabilities, 0 to 1; floating dtype
    target : probabilities
    reduction : {"mean", "sum", "none"}
    """

    def value(x, target):
        return -(target * maximum(log(x), -100.0) + (1 - target) * maximum(log1p(-x), -100.0))

    def numpy_value(x, target):
        return -(target * np.maximum(np.log(x), -100.0) + (1 - target) * np.maximum(np.log1p(-x), -100.0))

    def slopes(x, target):
        # The denominator is kept from 0 by the amount PyTorch does.
        dx = (x - target) / maximum((1 - x) * x, 1e-12)
        return dx, maximum(log1p(-x), -100.0) - maximum(log(x), -100.0)


@op("kl_div")
class kl_div(PointLoss):
    """Kullback-Leibler divergence, ``target * (log(target) - x)``, of log-probabilities x; 0 where the target is 0, NaN below.

    Parameters
    ----------
    x : log-probabilities, floating dtype
    target : probabilities, or with `log_target` their logarithms
    log_target : bool
    reduction : {"mean", "batchmean", "sum", "none"}
        "batchmean" divides by the first extent, which is what the mathematical definition asks for.
    """

    attrs = {"reduction": "mean", "log_target": False}
    reductions = (*REDUCTIONS, "batchmean")

    def value(x, target, log_target):
        if log_target:
            return exp(target) * (target - x)
        none = target == 0
        return where(none, 0, target * log(where(none, 1, target))) - target * x

    def numpy_value(x, target, log_target):
        if log_target:
            return np.exp(target) * (target - x)
        with np.errstate(invalid="ignore"):
            return np.where(target == 0, 0, target * np.log(np.where(target == 0, 1, target))) - target * x

    def slopes(x, target, log_target):
        if log_target:
            return -exp(target), exp(target) * (target - x + 1)
        none = target == 0
        return -target, where(none, 0, log(where(none, 1, target)) + 1) - x
