"""Losses."""

from __future__ import annotations

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.registry import Context, operator
from lezero.tensor import Tensor

NONE_IGNORED = -(2**62)
"""No class: what is ignored unless a model says."""


@operator("NegativeLogLikelihoodLoss", 12, fixed=(2,))
def negative_log_likelihood_loss(
    _: Context, x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    ignored = NONE_IGNORED if ignore_index is None else ignore_index
    return F.nll_loss(x, target.to(lz.int64), weight, ignored, reduction)


@operator("SoftmaxCrossEntropyLoss", 12, fixed=(2,))
def softmax_cross_entropy_loss(
    ctx: Context, x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, ...]:  # fmt: skip
    ignored, target = NONE_IGNORED if ignore_index is None else ignore_index, target.to(lz.int64)
    if not ctx.wanted(1):
        return (F.cross_entropy(x, target, weight, ignored, reduction),)
    logarithms = F.log_softmax(x, 1)
    return F.nll_loss(logarithms, target, weight, ignored, reduction), logarithms
