"""Losses, each one node with its gradient in closed form.

Classification losses take classes along axis 1 (axis 0 of a 1-D input), as in PyTorch.  `reduction` is ``"none"``, ``"mean"``
or ``"sum"``.  Everything is computed in float32 for half precision.
"""

from __future__ import annotations

import numpy as np

from lezero.graph.dtype import int64
from lezero.ops.base import Composite, broadcast_shapes, op, promoted
from lezero.ops.creation import arange, number_of
from lezero.ops.elementwise import abs, cast, exp, log, log1p, maximum, sigmoid, sign, where
from lezero.ops.indexing import gather
from lezero.ops.movement import reshape
from lezero.ops.reduce import logsumexp, mean, sum
from lezero.ops.rules import along, count, narrow, shown, unsqueeze, wide, widen

REDUCTIONS = ("none", "mean", "sum")


def _check_reduction(name, reduction, accepted=REDUCTIONS):
    if reduction not in accepted:
        raise ValueError(f"{name}: reduction {reduction!r} is not one of {', '.join(map(repr, accepted))}")


def _total(x):
    return sum(x, axes=tuple(range(len(x.shape))), keepdim=False)


# -- element by element ---------------------------------------------------------------------------------------


class PointLoss(Composite):
    """A loss of an input and a target that broadcast, element by element.

    Subclasses say what one element costs: ``value(x, target, *more, **attrs)`` for operands, ``numpy_value`` likewise for
    arrays, and ``slopes``, the derivatives of the value by each input (None: not differentiated).
    """

    attrs = {"reduction": "mean"}
    reductions = REDUCTIONS
    keeps = ("x", "target")

    def infer(self, x, target, *more, reduction, **attrs):
        _check_reduction(self.name, reduction, self.reductions)
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
        total = value.sum()
        return total / self.divisor(value, reduction)

    def decompose(self, x, target, *more, reduction, **attrs):
        dtype = promoted(*(_Seen(v) for v in (x, target, *more)))
        value = self.value(*(widen(v) for v in (x, target, *more)), **attrs)
        if reduction == "none":
            return narrow(value, dtype)
        if reduction == "mean":
            return narrow(mean(value, axes=tuple(range(len(value.shape))), keepdim=False), dtype)
        n = self.divisor(value, reduction)
        return narrow(_total(value) / number_of(value, n) if reduction != "sum" else _total(value), dtype)

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
    """Kullback-Leibler divergence, ``target * (log(target) - x)``, of log-probabilities x; 0 where the target is 0.

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
        positive = target > 0
        return where(positive, target * log(where(positive, target, 1)), 0) - target * x

    def numpy_value(x, target, log_target):
        if log_target:
            return np.exp(target) * (target - x)
        return np.where(target > 0, target * np.log(np.where(target > 0, target, 1)), 0) - target * x

    def slopes(x, target, log_target):
        if log_target:
            return -exp(target), exp(target) * (target - x + 1)
        positive = target > 0
        return -target, where(positive, log(where(positive, target, 1)) + 1, 0) - x


# -- classes --------------------------------------------------------------------------------------------------


def _class_axis(x):
    return 1 if len(x.shape) > 1 else 0


def _check_classes(name, x, target, weight, reduction):
    """Checks shared by the losses of classes; returns the shape of one loss for each sample."""
    _check_reduction(name, reduction)
    if not x.dtype.is_floating_point or not x.shape:
        raise TypeError(
            f"{name}: floating (batch, classes, ...) or (classes,) is needed, got {x.dtype.name}{shown(x.shape)}"
        )
    axis = _class_axis(x)
    samples = (*x.shape[:axis], *x.shape[axis + 1 :])
    if target.dtype.kind in "iu":
        if tuple(target.shape) != samples:
            raise ValueError(f"{name}: class indices of shape {shown(samples)} are needed, got {shown(target.shape)}")
    elif tuple(target.shape) != tuple(x.shape) or not target.dtype.is_floating_point:
        raise ValueError(
            f"{name}: the target is class indices {shown(samples)} of an integer dtype, or probabilities {shown(x.shape)}; "
            f"got {target.dtype.name}{shown(target.shape)}"
        )
    if weight is not None and tuple(weight.shape) != (x.shape[axis],):
        raise ValueError(f"{name}: the weight has shape {shown(weight.shape)}, not ({int(x.shape[axis])},)")
    return samples


class _Indexed:
    """Class indices as operands: which count, where they point, and what they weigh.

    Attributes
    ----------
    target : (samples), ignored ones replaced by class 0
    valid : (samples), bool
    weight : (samples), 0 for ignored ones
    """

    def __init__(self, x, target, weight, ignore_index):
        self.axis = _class_axis(x)
        self.valid = target != ignore_index
        self.target = cast(where(self.valid, target, 0), dtype=int64)
        one = 1.0 if weight is None else _at(widen(weight), self.target)
        self.weight = cast(where(self.valid, one, 0.0), dtype=widen(x).dtype)

    def pick(self, x):
        """x at the target classes: (samples)."""
        return _squeeze(gather(x, unsqueeze(self.target, self.axis), axis=self.axis), self.axis)

    def is_target(self, x):
        """Whether each element of x belongs to its sample's target class; x's shape."""
        classes = along(arange(start=0, stop=x.shape[self.axis], step=1, dtype=int64, like=x), self.axis, len(x.shape))
        return classes == unsqueeze(self.target, self.axis)

    def reduced(self, loss, reduction):
        """A loss for each sample, reduced; the mean is weighted."""
        if reduction == "none":
            return loss
        return _total(loss) / _total(self.weight) if reduction == "mean" else _total(loss)

    def share(self, dy, reduction):
        """How the upstream gradient is shared out to the samples."""
        return dy / _total(self.weight) if reduction == "mean" else dy


def _at(table, index):
    """table[index] of a 1-D table."""
    return reshape(gather(table, reshape(index, shape=(count(index),)), axis=0), shape=tuple(index.shape))


def _squeeze(x, axis):
    return reshape(x, shape=(*x.shape[:axis], *x.shape[axis + 1 :]))


class _NumpyIndexed:
    """:class:`_Indexed` for arrays."""

    def __init__(self, x, target, weight, ignore_index):
        self.axis = _class_axis(x)
        valid = target != ignore_index
        self.target = np.where(valid, target, 0).astype(np.int64)
        self.weight = np.where(valid, 1 if weight is None else wide(weight)[self.target], 0).astype(x.dtype)

    def pick(self, x):
        return np.take_along_axis(x, np.expand_dims(self.target, self.axis), self.axis).squeeze(self.axis)

    def reduced(self, loss, reduction):
        if reduction == "none":
            return loss
        return loss.sum() / self.weight.sum() if reduction == "mean" else loss.sum()


@op("nll_loss", onnx="NegativeLogLikelihoodLoss")
class nll_loss(Composite):
    """Minus the log-probability of the target class, weighted.

    Parameters
    ----------
    x : (batch, classes, ...) or (classes,), log-probabilities; floating dtype
    target : (batch, ...) or (), class indices; integer dtype
    weight : (classes,), optional; not differentiated
    ignore_index : int
        Targets that do not count.  The mean is over the others, by weight; over none of them it is NaN.
    reduction : {"mean", "sum", "none"}
    """

    attrs = {"ignore_index": -100, "reduction": "mean"}
    keeps = ("target", "weight")

    def infer(x, target, weight=None, *, ignore_index, reduction):
        if target.dtype.kind not in "iu":
            raise TypeError(
                f"nll_loss: the target has to be class indices of an integer dtype, got {target.dtype.name}"
            )
        samples = _check_classes("nll_loss", x, target, weight, reduction)
        return samples if reduction == "none" else (), x.dtype

    def reference(x, target, weight=None, *, ignore_index, reduction):
        x = wide(x)
        chosen = _NumpyIndexed(x, target, weight, ignore_index)
        return chosen.reduced(np.where(target == ignore_index, 0, -chosen.weight * chosen.pick(x)), reduction)

    def decompose(x, target, weight=None, *, ignore_index, reduction):
        chosen = _Indexed(x, target, weight, ignore_index)
        loss = where(chosen.valid, -chosen.weight * chosen.pick(widen(x)), 0)
        return narrow(chosen.reduced(loss, reduction), x.dtype)

    def gradient(dy, y, x, target, weight=None, *, ignore_index, reduction):
        chosen = _Indexed(x, target, weight, ignore_index)
        share = unsqueeze(chosen.share(widen(dy), reduction) * chosen.weight, chosen.axis)
        return (where(chosen.is_target(x), -share, 0), None, None)[: 2 if weight is None else 3]


@op("cross_entropy", onnx="SoftmaxCrossEntropyLoss")
class cross_entropy(Composite):
    """Cross-entropy of logits with target classes or target probabilities.

    ``logsumexp(x) - x[target]`` for each sample, times the class's weight.  With label smoothing s, the share s of a target
    is spread evenly over all classes (Szegedy et al. 2016).  The gradient is ``softmax(x) - onehot(target)``, scaled.

    Parameters
    ----------
    x : (batch, classes, ...) or (classes,), logits; floating dtype
    target : class indices (batch, ...) or () of an integer dtype, or probabilities of x's shape
    weight : (classes,), optional; not differentiated
    ignore_index : int
        Targets that do not count (class indices only).  The mean is over the others, by weight; over none it is NaN.
    label_smoothing : float, 0 to 1
    reduction : {"mean", "sum", "none"}
    """

    attrs = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
    keeps = ("x", "target", "weight")

    def infer(x, target, weight=None, *, ignore_index, label_smoothing, reduction):
        samples = _check_classes("cross_entropy", x, target, weight, reduction)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"cross_entropy: label_smoothing {label_smoothing} has to be between 0 and 1")
        return samples if reduction == "none" else (), x.dtype

    def reference(x, target, weight=None, *, ignore_index, label_smoothing, reduction):
        x = wide(x)
        axis = _class_axis(x)
        classes = x.shape[axis]
        logp = _numpy_log_softmax(x, axis)
        w = np.ones(classes, x.dtype) if weight is None else wide(weight)
        weighted = w.reshape((-1,) + (1,) * (x.ndim - axis - 1)) * logp
        if target.dtype.kind not in "iu":
            q = wide(target) * (1 - label_smoothing) + label_smoothing / classes
            loss = -(q * weighted).sum(axis)
            return loss if reduction == "none" else loss.sum() / (loss.size if reduction == "mean" else 1)
        chosen = _NumpyIndexed(x, target, weight, ignore_index)
        loss = -(1 - label_smoothing) * chosen.pick(weighted)
        if label_smoothing:
            loss = loss - label_smoothing / classes * weighted.sum(axis)
        return chosen.reduced(np.where(target != ignore_index, loss, 0), reduction)

    def decompose(x, target, weight=None, *, ignore_index, label_smoothing, reduction):
        dtype, x = x.dtype, widen(x)
        axis = _class_axis(x)
        lse = logsumexp(x, axes=(axis,), keepdim=True)
        if target.dtype.kind not in "iu":
            q = _class_weighted(_smoothed(widen(target), axis, label_smoothing), weight, axis)
            loss = sum(q * (lse - x), axes=(axis,), keepdim=False)
            if reduction == "mean":
                loss = _total(loss) / number_of(loss, count(loss))
            return narrow(_total(loss) if reduction == "sum" else loss, dtype)
        chosen = _Indexed(x, target, weight, ignore_index)
        loss = chosen.weight * (_squeeze(lse, axis) - chosen.pick(x))
        if label_smoothing:
            spread = sum(_class_weighted(lse - x, weight, axis), axes=(axis,), keepdim=False)
            spread = spread * (label_smoothing / number_of(x, x.shape[axis]))
            loss = (1 - label_smoothing) * loss + spread
        return narrow(chosen.reduced(where(chosen.valid, loss, 0), reduction), dtype)

    def gradient(dy, y, x, target, weight=None, **attrs):
        given = (x, target) if weight is None else (x, target, weight)
        dx = cross_entropy_grad(dy, *given, **attrs)
        dtarget = None
        if target.dtype.kind not in "iu":
            dtarget = cross_entropy_target_grad(dy, *given, **attrs)
        return (dx, dtarget, None)[: len(given)]


def _numpy_log_softmax(x, axis):
    z = x - x.max(axis, keepdims=True)
    return z - np.log(np.exp(z).sum(axis, keepdims=True))


def _sample_share(dy, x, axis, reduction):
    """How the upstream gradient is shared out to the samples where all count alike; it broadcasts with x."""
    if reduction == "mean":
        return dy / number_of(dy, count(x, [a for a in range(len(x.shape)) if a != axis]))
    return unsqueeze(dy, axis) if reduction == "none" else dy


def _numpy_share(dy, x, axis, reduction):
    if reduction == "mean":
        return dy / np.float64(x.size / x.shape[axis] if x.size else 0).astype(dy.dtype)
    return np.expand_dims(dy, axis) if reduction == "none" else dy


@op("cross_entropy_grad")
class cross_entropy_grad(Composite):
    """The gradient of :data:`cross_entropy` with respect to its logits: ``softmax(x) - onehot(target)``, scaled.

    Parameters
    ----------
    dy : the loss's gradient
    x, target, weight, and the attributes : the loss's
    """

    attrs = dict(cross_entropy.attrs)
    keeps = ("dy", "x", "target", "weight")

    def infer(dy, x, target, weight=None, **attrs):
        return tuple(x.shape), x.dtype

    def reference(dy, x, target, weight=None, *, ignore_index, label_smoothing, reduction):
        dy, x = wide(dy), wide(x)
        axis = _class_axis(x)
        classes = x.shape[axis]
        p = np.exp(_numpy_log_softmax(x, axis))
        w = np.ones(classes, x.dtype) if weight is None else wide(weight)
        w = w.reshape((-1,) + (1,) * (x.ndim - axis - 1))
        if target.dtype.kind not in "iu":
            q = w * (wide(target) * (1 - label_smoothing) + label_smoothing / classes)
            return _numpy_share(dy, x, axis, reduction) * (p * q.sum(axis, keepdims=True) - q)
        chosen = _NumpyIndexed(x, target, weight, ignore_index)
        onehot = np.arange(classes).reshape(w.shape) == np.expand_dims(chosen.target, axis)
        q = w * ((1 - label_smoothing) * onehot + label_smoothing / classes)
        share = np.broadcast_to(dy / chosen.weight.sum() if reduction == "mean" else dy, target.shape)
        share = np.expand_dims(np.where(target != ignore_index, share, 0), axis)
        return share * (p * q.sum(axis, keepdims=True) - q)

    def decompose(dy, x, target, weight=None, *, ignore_index, label_smoothing, reduction):
        dtype, x, dy = x.dtype, widen(x), widen(dy)
        axis = _class_axis(x)
        p = exp(x - logsumexp(x, axes=(axis,), keepdim=True))
        if target.dtype.kind not in "iu":
            q = _class_weighted(_smoothed(widen(target), axis, label_smoothing), weight, axis)
            share = _sample_share(dy, x, axis, reduction)
            return narrow(share * (p * sum(q, axes=(axis,), keepdim=True) - q), dtype)
        chosen = _Indexed(x, target, weight, ignore_index)
        share = chosen.share(dy, reduction)
        onehot = cast(chosen.is_target(x), dtype=x.dtype)
        dx = unsqueeze(share * chosen.weight * (1 - label_smoothing), axis) * (p - onehot)
        if label_smoothing:
            classes = number_of(x, x.shape[axis])
            if weight is None:
                pull = p * classes - 1
            else:
                pull = p * _total(widen(weight)) - along(widen(weight), axis, len(x.shape))
            valid = share * cast(chosen.valid, dtype=x.dtype)
            dx = dx + unsqueeze(valid * (label_smoothing / classes), axis) * pull
        return narrow(dx, dtype)


@op("cross_entropy_target_grad")
class cross_entropy_target_grad(Composite):
    """The gradient of :data:`cross_entropy` with respect to target probabilities: ``-log_softmax(x)``, scaled.

    Parameters are those of :data:`cross_entropy_grad`.
    """

    attrs = dict(cross_entropy.attrs)
    keeps = ("dy", "x", "weight")

    def infer(dy, x, target, weight=None, **attrs):
        return tuple(target.shape), target.dtype

    def reference(dy, x, target, weight=None, *, ignore_index, label_smoothing, reduction):
        dy, x = wide(dy), wide(x)
        axis = _class_axis(x)
        w = 1 if weight is None else wide(weight).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        share = _numpy_share(dy, x, axis, reduction)
        return -(1 - label_smoothing) * share * w * _numpy_log_softmax(x, axis)

    def decompose(dy, x, target, weight=None, *, ignore_index, label_smoothing, reduction):
        x = widen(x)
        axis = _class_axis(x)
        logp = x - logsumexp(x, axes=(axis,), keepdim=True)
        share = _sample_share(widen(dy), x, axis, reduction)
        return narrow(_class_weighted(-(1 - label_smoothing) * share * logp, weight, axis), target.dtype)


def _smoothed(q, axis, label_smoothing):
    if not label_smoothing:
        return q
    return q * (1 - label_smoothing) + label_smoothing / number_of(q, q.shape[axis])


def _class_weighted(x, weight, axis):
    return x if weight is None else x * along(widen(weight), axis, len(x.shape))
