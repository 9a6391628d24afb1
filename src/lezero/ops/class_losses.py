"""Losses of classes: negative log-likelihood and cross-entropy.

Classes are along axis 1 (axis 0 of a 1-D input), as in PyTorch.  Each loss is one node, and so is the gradient of
cross-entropy; everything is computed in float32 for half precision.
"""

from __future__ import annotations

import numpy as np

from lezero.graph.dtype import int64
from lezero.ops.base import Composite, op
from lezero.ops.creation import arange, number_of
from lezero.ops.elementwise import cast, exp, where
from lezero.ops.indexing import gather
from lezero.ops.movement import reshape
from lezero.ops.point_losses import check_reduction, total
from lezero.ops.reduce import logsumexp, sum
from lezero.ops.rules import along, count, narrow, shown, unsqueeze, wide, widen


def _class_axis(x):
    return 1 if len(x.shape) > 1 else 0


def _check_classes(name, x, target, weight, reduction):
    """Checks shared by the losses of classes; returns the shape of one loss for each sample."""
    check_reduction(name, reduction)
    if not x.dtype.is_floating_point or not x.shape:
        raise TypeError(
            f"{name}: floating (batch, classes, ...) or (classes,) is needed, got {x.dtype.name}{shown(x.shape)}"
        )
    axis = _class_axis(x)
    samples = (*x.shape[:axis], *x.shape[axis + 1 :])
    if target.dtype.kind in "iu":
        if tuple(target.shape) != samples:
            raise ValueError(
                f"{name}: class indices of shape {shown(samples)} are needed, got {shown(target.shape)}{_last(x, target)}"
            )
    elif tuple(target.shape) != tuple(x.shape) or not target.dtype.is_floating_point:
        raise ValueError(
            f"{name}: the target is class indices {shown(samples)} of an integer dtype, or probabilities {shown(x.shape)}; "
            f"got {target.dtype.name}{shown(target.shape)}"
        )
    if weight is not None and tuple(weight.shape) != (x.shape[axis],):
        raise ValueError(f"{name}: the weight has shape {shown(weight.shape)}, not ({int(x.shape[axis])},)")
    return samples


def _last(x, target):
    """What to do where the classes are last, as in scores of tokens."""
    if len(x.shape) < 3 or tuple(target.shape) != tuple(x.shape[:-1]):
        return ""
    turned = "transpose(1, 2)" if len(x.shape) == 3 else "movedim(-1, 1)"
    return (
        f"; classes are dimension 1 of the scores {shown(x.shape)}: give scores.reshape(-1, {int(x.shape[-1])}) with "
        f"labels.reshape(-1), or scores.{turned}"
    )


class _Indexed:
    """Class indices as operands: which count, where they point, and what they weigh.

    Attributes
    ----------
    target : (samples), ignored ones replaced by class 0
    valid : (samples), bool
    weight : (samples), 0 for ignored ones; NaN where there is no such class, so that wrong labels cannot train unnoticed
    """

    def __init__(self, x, target, weight, ignore_index):
        self.axis = _class_axis(x)
        self.valid = target != ignore_index
        self.target = cast(where(self.valid, target, 0), dtype=int64)
        one = 1.0 if weight is None else _at(widen(weight), self.target)
        classes = number_of(x, x.shape[self.axis])
        one = where((self.target >= 0) & (self.target < classes), one, float("nan"))
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
        return total(loss) / total(self.weight) if reduction == "mean" else total(loss)

    def share(self, dy, reduction):
        """How the upstream gradient is shared out to the samples."""
        return dy / total(self.weight) if reduction == "mean" else dy


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
        Targets that do not count.  The mean is over the others, by weight; over none of them it is NaN.  A target
        that is neither a class nor this gives NaN.
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
        Targets that do not count (class indices only).  The mean is over the others, by weight; over none it is NaN.  A target
        that is neither a class nor this gives NaN.
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
                loss = total(loss) / number_of(loss, count(loss))
            return narrow(total(loss) if reduction == "sum" else loss, dtype)
        chosen = _Indexed(x, target, weight, ignore_index)
        loss = chosen.weight * (_squeeze(lse, axis) - chosen.pick(x))
        if label_smoothing:
            spread = sum(_class_weighted(lse - x, weight, axis), axes=(axis,), keepdim=False)
            spread = spread * (label_smoothing / _classes(x, axis))
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
            classes = _classes(x, axis)
            if weight is None:
                pull = p * classes - 1
            else:
                pull = p * total(widen(weight)) - along(widen(weight), axis, len(x.shape))
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


def _classes(x, axis):
    """How many classes there are: a number, or where that is a symbol an operand of x's dtype."""
    n = number_of(x, x.shape[axis])
    return n if isinstance(n, int) else cast(n, dtype=x.dtype)


def _smoothed(q, axis, label_smoothing):
    if not label_smoothing:
        return q
    return q * (1 - label_smoothing) + label_smoothing / _classes(q, axis)


def _class_weighted(x, weight, axis):
    return x if weight is None else x * along(widen(weight), axis, len(x.shape))
