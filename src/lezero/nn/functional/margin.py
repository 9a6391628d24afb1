"""Losses with margins, and of several labels at once.  `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

from lezero.nn.functional.activation import logsigmoid, softplus
from lezero.nn.functional.loss import _need_same_shape, _reduced, need_margin, pairwise_distance
from lezero.tensor import Tensor, where


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """The input where the target is 1, ``max(0, margin - input)`` where it is -1; their sum where it is neither, as in PyTorch.

    reduction : {"mean", "sum", "none"}
    """
    loss = where(target == -1, 0, input) + where(target == 1, 0, (margin - input).clamp(0))
    return _reduced("hinge_embedding_loss", loss, reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``log(1 + exp(-target * input))``, targets 1 and -1.

    reduction : {"mean", "sum", "none"}
    """
    _need_same_shape("soft_margin_loss", input, target)
    return _reduced("soft_margin_loss", softplus(-target * input), reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross-entropy of each class's logit, averaged over the classes (last dimension).

    target : the same shape, 0 or 1
    weight : (classes,), of each class
    reduction : {"mean", "sum", "none"}
    """
    _need_same_shape("multilabel_soft_margin_loss", input, target)
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    loss = loss if weight is None else loss * weight
    return _reduced("multilabel_soft_margin_loss", loss.mean(-1), reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean over the other classes of ``max(0, margin - input[target] + input[class]) ** p``.

    input : (batch, classes) or (classes,)
    target : (batch,) or one class
    weight : (classes,), of each sample by its target's class
    reduction : {"mean", "sum", "none"}
    """
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: p is 1 or 2, got {p}")
    if input.ndim > 2 or target.numel() != (input.shape[0] if input.ndim == 2 else 1):
        raise ValueError(
            f"multi_margin_loss: an input (batch, classes) and a target (batch,), or (classes,) and one class, are needed, got "
            f"shapes {tuple(input.shape)} and {tuple(target.shape)}"
        )
    alone = not target.ndim or input.ndim < 2
    if input.ndim < 2:
        input, target = input.reshape(1, -1), target.reshape(1)
    chosen = target.unsqueeze(-1)
    gap = (margin - input.gather(-1, chosen) + input).clamp(0) ** p
    if weight is not None:
        gap = gap * weight[target].unsqueeze(-1)
    others = where(_is(chosen, input), 0, gap)
    loss = others.sum(-1) / input.shape[-1]
    return _reduced("multi_margin_loss", loss.reshape(()) if alone else loss, reduction)


def _is(target: Tensor, input: Tensor) -> Tensor:
    from lezero.tensor import arange

    return arange(input.shape[-1]) == target


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-likelihood of the counts `target` under Poisson distributions.

    log_input : the rates are ``exp(input)``, otherwise `input`
    full : with Stirling's approximation of the term that does not depend on the input
    eps : added to a rate where its logarithm is taken
    reduction : {"mean", "sum", "none"}
    """
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        t = where(target > 1, target, 1)
        loss = loss + where(target > 1, t * t.log() - t + 0.5 * (2 * pi * t).log(), 0)
    return _reduced("poisson_nll_loss", loss, reduction)


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Mean over the classes of ``max(0, 1 - (input[label] - input[class]))``, for all labels and all classes that are none.

    input : (batch, classes) or (classes,)
    target : the same shape, integers: labels, up to the first negative number
    reduction : {"mean", "sum", "none"}
    """
    if not input.ndim and not target.ndim:
        input, target = input.reshape(1), target.reshape(1)
    if tuple(input.shape) != tuple(target.shape) or input.ndim not in (1, 2):
        raise ValueError(
            f"multilabel_margin_loss: an input (batch, classes) or (classes,) and a target of its shape are needed, got "
            f"{tuple(input.shape)} and {tuple(target.shape)}"
        )
    from lezero.tensor import arange

    classes = input.shape[-1]
    given = (target < 0).to("int64").cumsum(-1) == 0
    labels = where(given, target, 0).to("int64")
    is_label = ((labels.unsqueeze(-1) == arange(classes)) & given.unsqueeze(-1)).any(-2)
    gap = (1 - input.gather(-1, labels).unsqueeze(-1) + input.unsqueeze(-2)).clamp(0)
    counted = where(given.unsqueeze(-1) & ~is_label.unsqueeze(-2), gap, 0)
    return _reduced("multilabel_margin_loss", counted.sum((-2, -1)) / classes, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)`` for a distance of one's own.

    distance_function : of two tensors; ``pairwise_distance`` unless given
    swap : the negative is as far as the nearer of anchor and positive (Balntas et al. 2016)
    reduction : {"mean", "sum", "none"}
    """
    need_margin("triplet_margin_with_distance_loss", margin)
    distance = distance_function or pairwise_distance
    far = distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    gap = (distance(anchor, positive) - far + margin).clamp(0)
    return _reduced("triplet_margin_with_distance_loss", gap, reduction)
