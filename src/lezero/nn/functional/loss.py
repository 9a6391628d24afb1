"""Losses.  `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from lezero.ops import losses
from lezero.ops.base import broadcast_shapes
from lezero.runtime.bounds import expect_classes
from lezero.runtime.sites import user_site
from lezero.tensor import Tensor, where

_WARNED: dict = {}
"""Where Python notes which of the user's lines have been warned about."""


def _reduced(name: str, loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    raise ValueError(f"{name}: reduction is 'mean', 'sum' or 'none', got {reduction!r}")


def _same_shape(name: str, input: Tensor, target: Tensor) -> None:
    """Broadcasting (n,) with (n, 1) gives n × n differences, which is hardly ever meant."""
    if tuple(input.shape) != tuple(target.shape):
        file, line = user_site() or (__file__, 1)
        warnings.warn_explicit(
            f"{name}: the input has shape {tuple(input.shape)} and the target {tuple(target.shape)}; they are broadcast, which is "
            f"likely not what is meant. Make them the same shape",
            UserWarning,
            file,
            line,
            registry=_WARNED,
        )


def _expect_classes(name: str, input: Any, target: Any, ignore_index: int) -> None:
    if isinstance(input, Tensor) and isinstance(target, Tensor) and input.ndim:
        shape, axis = input.shape, min(1, input.ndim - 1)
        try:
            expect_classes(name, target, int(shape[axis]), ignore_index)
        except IndexError:
            # With another shape it is the shape that is wrong, which the loss says.
            if (*shape[:axis], *shape[axis + 1 :]) == tuple(target.shape):
                raise


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of logits (batch, classes, ...) with class indices (batch, ...) or probabilities of the input's shape.

    An index out of range is an IndexError, unless it is `ignore_index`; where the indices are still to be computed, or in a
    captured function, it makes the loss NaN.

    weight : (classes,), of each class; a mean is by weight
    ignore_index : class indices that do not count
    reduction : {"mean", "sum", "none"}
    label_smoothing : the share of the target, 0 to 1, that is spread evenly over the classes
    """
    _expect_classes("cross_entropy", input, target, ignore_index)
    operands = (input, target) if weight is None else (input, target, weight)
    return losses.cross_entropy(
        *operands, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Minus the log-probability (batch, classes, ...) of the target class (batch, ...).

    weight : (classes,), of each class; a mean is by weight
    ignore_index : class indices that do not count
    reduction : {"mean", "sum", "none"}
    """
    _expect_classes("nll_loss", input, target, ignore_index)
    operands = (input, target) if weight is None else (input, target, weight)
    return losses.nll_loss(*operands, ignore_index=ignore_index, reduction=reduction)


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """Squared error, of tensors of one shape.

    reduction : {"mean", "sum", "none"}
    weight : of each element; a mean is by weight
    """
    _same_shape("mse_loss", input, target)
    if weight is not None:
        return _weighted("mse_loss", losses.mse_loss(input, target, reduction="none"), weight, reduction)
    return losses.mse_loss(input, target, reduction=reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """Absolute error, of tensors of one shape.

    reduction : {"mean", "sum", "none"}
    weight : of each element; a mean is by weight
    """
    _same_shape("l1_loss", input, target)
    if input.is_complex() or target.is_complex():
        size = (input - target).abs()
        return _reduced("l1_loss", size, reduction) if weight is None else _weighted("l1_loss", size, weight, reduction)
    if weight is not None:
        return _weighted("l1_loss", losses.l1_loss(input, target, reduction="none"), weight, reduction)
    return losses.l1_loss(input, target, reduction=reduction)


def _weighted(name: str, loss: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """A weighted error; its mean is by weight, as in PyTorch."""
    loss = loss * weight
    return loss.sum() / weight.expand_as(loss).sum() if reduction == "mean" else _reduced(name, loss, reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """``(input - target) ** 2 / (2 * beta)`` below `beta`, ``abs(input - target) - beta / 2`` above it.

    reduction : {"mean", "sum", "none"}
    """
    _same_shape("smooth_l1_loss", input, target)
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    return losses.smooth_l1_loss(input, target, reduction=reduction, beta=float(beta))


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """``(input - target) ** 2 / 2`` below `delta`, ``delta * (abs(input - target) - delta / 2)`` above it.

    reduction : {"mean", "sum", "none"}
    weight : of each element; a mean is by weight
    """
    _same_shape("huber_loss", input, target)
    if delta <= 0:
        raise ValueError(f"huber_loss: delta is positive, got {delta}")
    if weight is not None:
        loss = losses.huber_loss(input, target, reduction="none", delta=float(delta))
        return _weighted("huber_loss", loss, weight, reduction)
    return losses.huber_loss(input, target, reduction=reduction, delta=float(delta))


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy of probabilities with targets between 0 and 1, of one shape.

    weight : of each element, broadcast
    reduction : {"mean", "sum", "none"}
    """
    _need_same_shape("binary_cross_entropy", input, target)
    if weight is None:
        return losses.bce_loss(input, target, reduction=reduction)
    return _reduced("binary_cross_entropy", losses.bce_loss(input, target, reduction="none") * weight, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of logits with targets between 0 and 1, of one shape; `pos_weight` multiplies the positive part.

    weight : of each element, broadcast
    reduction : {"mean", "sum", "none"}
    """
    _need_same_shape("binary_cross_entropy_with_logits", input, target)
    operands = (input, target) if pos_weight is None else (input, target, pos_weight)
    if weight is None:
        return losses.bce_with_logits(*operands, reduction=reduction)
    return _reduced(
        "binary_cross_entropy_with_logits", losses.bce_with_logits(*operands, reduction="none") * weight, reduction
    )


def _need_same_shape(name: str, input: Tensor, target: Tensor) -> None:
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"{name}: the target has the input's shape; the input's is {tuple(input.shape)}, the target's {tuple(target.shape)}"
        )


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Kullback-Leibler divergence of log-probabilities `input` from a distribution `target` (its logarithm where `log_target`).

    reduction : {"mean", "sum", "none", "batchmean"}; the last is the mathematical definition, "mean" divides by the number of elements
    """
    return losses.kl_div(input, target, reduction=reduction, log_target=log_target)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Minus the log-likelihood of a target under a normal distribution with mean `input` and variance `var`.

    var : of input's shape, or without its last dimension: one for all elements along that; or of a shape that broadcasts
        to input's
    full : with the constant ``log(2 * pi) / 2``
    eps : what smaller variances count as, in gradients too
    reduction : {"mean", "sum", "none"}
    """
    if tuple(var.shape) == tuple(input.shape)[:-1]:
        var = var.unsqueeze(-1)
    elif broadcast_shapes("gaussian_nll_loss", input.shape, var.shape) != tuple(input.shape):
        raise ValueError(
            f"gaussian_nll_loss: var of shape {tuple(var.shape)} does not broadcast to {tuple(input.shape)}, that of input"
        )
    var = where(var < eps, var - var.detach() + eps, var)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.9189385332046727  # log(2π) / 2
    return _reduced("gaussian_nll_loss", loss, reduction)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `dim`; each norm counts as at least `eps`."""
    if tuple(x1.shape) != tuple(x2.shape):
        shape = broadcast_shapes("cosine_similarity", x1.shape, x2.shape)
        x1, x2 = x1.expand(*shape), x2.expand(*shape)
    lengths = x1.norm(2, dim).clamp(eps) * x2.norm(2, dim).clamp(eps)
    return (x1 * x2).sum(dim) / lengths


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of ``x1 - x2 + eps`` along the last dimension."""
    return (x1 - x2 + eps).norm(p, -1, keepdim)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``1 - cos`` where the target is 1, ``max(0, cos - margin)`` where it is -1.

    reduction : {"mean", "sum", "none"}
    """
    input1 = input1 if input1.is_floating_point() else input1.float()
    input2 = input2 if input2.is_floating_point() else input2.float()
    similarity = cosine_similarity(input1, input2, dim=-1)
    loss = where(target == 1, 1 - similarity, (similarity - margin).clamp(0))
    return _reduced("cosine_embedding_loss", loss, reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``max(0, -target * (input1 - input2) + margin)``.

    reduction : {"mean", "sum", "none"}
    """
    return _reduced("margin_ranking_loss", (-target * (input1 - input2) + margin).clamp(0), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``.

    swap : the negative is as far as the nearer of anchor and positive (Balntas et al. 2016)
    p : of the norm that is the distance d; `eps` is added to each difference
    reduction : {"mean", "sum", "none"}
    """
    need_margin("triplet_margin_loss", margin)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = far.minimum(pairwise_distance(positive, negative, p, eps))
    gap = pairwise_distance(anchor, positive, p, eps) - far
    return _reduced("triplet_margin_loss", (gap + margin).clamp(0), reduction)


def need_margin(name: str, margin: float) -> None:
    if margin <= 0:
        raise ValueError(f"{name}: the margin is greater than 0, got {margin}")


@dataclass(frozen=True)
class LinearCrossEntropyOptions:
    """How PyTorch's :func:`linear_cross_entropy` goes through a batch in parts; here nothing follows from it."""

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: LinearCrossEntropyOptions | None = None,
) -> Tensor:
    """Cross-entropy of what a linear layer gives.

    Parameters
    ----------
    input : (batch, features) or (features,)
    linear_weight : (classes, *positions, features); linear_bias (classes, *positions)
    target : (batch, *positions) of class indices, or probabilities of the logits' shape (batch, classes, *positions)
    options : PyTorch's way to do it in parts; accepted, and not needed

    Further parameters are those of ``cross_entropy``.
    """
    from lezero.nn.functional.convolution import linear

    classes, *positions, features = linear_weight.shape
    if input.ndim not in (1, 2) or input.shape[-1] != features or (positions and input.ndim == 1):
        raise ValueError(
            f"linear_cross_entropy: an input (batch, {int(features)}) is needed for a weight {tuple(linear_weight.shape)}, got "
            f"shape {tuple(input.shape)}"
        )
    logits = linear(
        input, linear_weight.reshape(-1, features), None if linear_bias is None else linear_bias.reshape(-1)
    ).reshape(*input.shape[:-1], classes, *positions)
    if ignore_index is not None and tuple(target.shape) == tuple(logits.shape):
        raise ValueError("linear_cross_entropy: ignore_index goes with class indices, not with probabilities")
    return cross_entropy(
        logits, target, weight, -100 if ignore_index is None else ignore_index, reduction, label_smoothing
    )
