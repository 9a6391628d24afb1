"""Losses as modules.  `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from typing import Any

from lezero.nn import functional as F
from lezero.nn.module import Module
from lezero.tensor import Tensor


class _Loss(Module):
    """Buffers named in `tensors` and plain settings, handed to a function by name."""

    function: Any
    tensors: tuple[str, ...] = ()

    def __init__(self, reduction: str = "mean", **settings: Any):
        super().__init__()
        accepted = ("none", "mean", "sum", "batchmean") if isinstance(self, KLDivLoss) else ("none", "mean", "sum")
        if reduction not in accepted:
            raise ValueError(f"{type(self).__name__}: reduction is one of {', '.join(accepted)}, got {reduction!r}")
        for name in self.tensors:
            self.register_buffer(name, settings.pop(name))
        self.reduction = reduction
        self._settings = tuple(settings)
        self.__dict__.update(settings)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        own = self.__dict__
        named = {k: own[k] for k in (*self.tensors, *self._settings)}
        return type(self).function(input, target, reduction=self.reduction, **named)

    def extra_repr(self) -> str:
        settings = [f"{k}={self.__dict__[k]}" for k in self._settings]
        return ", ".join([*settings, f"reduction={self.reduction!r}"])


class CrossEntropyLoss(_Loss):
    """Cross-entropy of logits (batch, classes, ...) with class indices (batch, ...) or probabilities.

    Parameters
    ----------
    weight : (classes,), optional
    ignore_index : int, targets that do not count
    reduction : {"mean", "sum", "none"}
    label_smoothing : float, 0 to 1
    """

    function = staticmethod(F.cross_entropy)
    tensors = ("weight",)

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        super().__init__(reduction, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)


class NLLLoss(_Loss):
    """Minus the log-probability of the target class.

    Parameters
    ----------
    weight : (classes,), optional
    ignore_index : int, targets that do not count
    reduction : {"mean", "sum", "none"}
    """

    function = staticmethod(F.nll_loss)
    tensors = ("weight",)

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"):
        super().__init__(reduction, weight=weight, ignore_index=ignore_index)


class MSELoss(_Loss):
    """Squared error.

    Parameters are those of :func:`~lezero.nn.functional.mse_loss`.
    """

    function = staticmethod(F.mse_loss)

    def __init__(self, reduction: str = "mean"):
        super().__init__(reduction)


class L1Loss(_Loss):
    """Absolute error.

    Parameters are those of :func:`~lezero.nn.functional.l1_loss`.
    """

    function = staticmethod(F.l1_loss)

    def __init__(self, reduction: str = "mean"):
        super().__init__(reduction)


class SmoothL1Loss(_Loss):
    """Squared error below `beta`, absolute error above it (Girshick 2015).

    Parameters are those of :func:`~lezero.nn.functional.smooth_l1_loss`.
    """

    function = staticmethod(F.smooth_l1_loss)

    def __init__(self, reduction: str = "mean", beta: float = 1.0):
        super().__init__(reduction, beta=beta)


class HuberLoss(_Loss):
    """Half the squared error below `delta`, a straight line above it.

    Parameters are those of :func:`~lezero.nn.functional.huber_loss`.
    """

    function = staticmethod(F.huber_loss)

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        super().__init__(reduction, delta=delta)


class BCELoss(_Loss):
    """Cross-entropy of probabilities with targets between 0 and 1; `weight` multiplies each element.

    Parameters are those of :func:`~lezero.nn.functional.binary_cross_entropy`.
    """

    function = staticmethod(F.binary_cross_entropy)
    tensors = ("weight",)

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        super().__init__(reduction, weight=weight)


class BCEWithLogitsLoss(_Loss):
    """Cross-entropy of logits with targets between 0 and 1; `pos_weight` multiplies the positive part.

    Parameters are those of :func:`~lezero.nn.functional.binary_cross_entropy_with_logits`.
    """

    function = staticmethod(F.binary_cross_entropy_with_logits)
    tensors = ("weight", "pos_weight")

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None):
        super().__init__(reduction, weight=weight, pos_weight=pos_weight)


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log-probabilities; `reduction` may be "batchmean", the mathematical definition.

    Parameters are those of :func:`~lezero.nn.functional.kl_div`.
    """

    function = staticmethod(F.kl_div)

    def __init__(self, reduction: str = "mean", log_target: bool = False):
        super().__init__(reduction, log_target=log_target)


class GaussianNLLLoss(Module):
    """Minus the log-likelihood under a normal distribution of given mean and variance.

    Parameters are those of :func:`~lezero.nn.functional.gaussian_nll_loss`.
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean"):
        super().__init__()
        self.full, self.eps, self.reduction = full, eps, reduction

    def forward(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class CosineEmbeddingLoss(Module):
    """Pulls pairs together (target 1) or apart (target -1) by their angle.

    Parameters are those of :func:`~lezero.nn.functional.cosine_embedding_loss`.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean"):
        super().__init__()
        self.margin, self.reduction = margin, reduction

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class MarginRankingLoss(Module):
    """``max(0, -target * (input1 - input2) + margin)``.

    Parameters are those of :func:`~lezero.nn.functional.margin_ranking_loss`.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean"):
        super().__init__()
        self.margin, self.reduction = margin, reduction

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class TripletMarginLoss(Module):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``.

    Parameters are those of :func:`~lezero.nn.functional.triplet_margin_loss`.
    """

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean"
    ):
        super().__init__()
        self.margin, self.p, self.eps, self.swap, self.reduction = margin, p, eps, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction
        )
