"""Losses with margins, and of several labels at once.  `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from math import pi

from lezero.nn.functional.activation import logsigmoid, softplus
from lezero.nn.functional.loss import _need_same_shape, _reduced
from lezero.tensor import Tensor, where


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """The input where the target is 1, ``max(0, margin - input)`` where it is -1."""
    return _reduced("hinge_embedding_loss", where(target == 1, input, (margin - input).clamp(0)), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``log(1 + exp(-target * input))``, targets 1 and -1."""
    _need_same_shape("soft_margin_loss", input, target)
    return _reduced("soft_margin_loss", softplus(-target * input), reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross-entropy of each class's logit, averaged over the classes (last dimension)."""
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
    """Mean over the other classes of ``max(0, margin - input[target] + input[class]) ** p``; input (batch, classes)."""
    chosen = target.unsqueeze(-1)
    gap = (margin - input.gather(-1, chosen) + input).clamp(0) ** p
    if weight is not None:
        gap = gap * weight[target].unsqueeze(-1)
    others = where(_is(chosen, input), 0, gap)
    return _reduced("multi_margin_loss", others.sum(-1) / input.shape[-1], reduction)


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
    """Minus the log-likelihood of counts under Poisson distributions with rates ``exp(input)`` (or `input`).

    full : with Stirling's approximation of the term that does not depend on the input
    """
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        t = where(target > 1, target, 1)
        loss = loss + where(target > 1, t * t.log() - t + 0.5 * (2 * pi * t).log(), 0)
    return _reduced("poisson_nll_loss", loss, reduction)
