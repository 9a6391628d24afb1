"""Losses with margins, of counts, of sequences without alignment and of large vocabularies, as modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from lezero.nn import functional as F
from lezero.nn.containers import ModuleList, Sequential
from lezero.nn.linear import Linear
from lezero.nn.loss import NLLLoss, _Loss
from lezero.nn.module import Module
from lezero.tensor import Tensor, cat, where


class PoissonNLLLoss(_Loss):
    """Minus the log-likelihood of counts under Poisson distributions.

    Parameters
    ----------
    log_input : the input is the logarithm of the rate
    full : with Stirling's approximation of the term that does not depend on the input
    eps : float, added to the rate where its logarithm is taken
    reduction : {"mean", "sum", "none"}
    """

    function = staticmethod(F.poisson_nll_loss)

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"):
        super().__init__(reduction, log_input=log_input, full=full, eps=eps)


class HingeEmbeddingLoss(_Loss):
    """The input where the target is 1, ``max(0, margin - input)`` where it is -1.

    reduction : {"mean", "sum", "none"}
    """

    function = staticmethod(F.hinge_embedding_loss)

    def __init__(self, margin: float = 1.0, reduction: str = "mean"):
        super().__init__(reduction, margin=margin)


class SoftMarginLoss(_Loss):
    """``log(1 + exp(-target * input))``, targets 1 and -1."""

    function = staticmethod(F.soft_margin_loss)

    def __init__(self, reduction: str = "mean"):
        super().__init__(reduction)


class MultiMarginLoss(_Loss):
    """Mean over the other classes of ``max(0, margin - input[target] + input[class]) ** p``.

    Parameters
    ----------
    p : 1 or 2
    margin : float
    weight : (classes,), optional
    reduction : {"mean", "sum", "none"}
    """

    function = staticmethod(F.multi_margin_loss)
    tensors = ("weight",)

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean"):
        if p not in (1, 2):
            raise ValueError(f"MultiMarginLoss: p is 1 or 2, got {p}")
        super().__init__(reduction, weight=weight, p=p, margin=margin)


class MultiLabelMarginLoss(_Loss):
    """Margins between all labels and all classes that are none; targets are labels up to the first negative number."""

    function = staticmethod(F.multilabel_margin_loss)

    def __init__(self, reduction: str = "mean"):
        super().__init__(reduction)


class MultiLabelSoftMarginLoss(_Loss):
    """Binary cross-entropy of each class's logit, averaged over the classes; `weight` (classes,) multiplies each.

    reduction : {"mean", "sum", "none"}
    """

    function = staticmethod(F.multilabel_soft_margin_loss)
    tensors = ("weight",)

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        super().__init__(reduction, weight=weight)


class NLLLoss2d(NLLLoss):
    """:class:`NLLLoss` under an older name."""


class TripletMarginWithDistanceLoss(Module):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)`` for a distance of one's own.

    Parameters are those of :func:`~lezero.nn.functional.triplet_margin_with_distance_loss`.
    """

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ):
        super().__init__()
        self.distance_function, self.margin, self.swap, self.reduction = distance_function, margin, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function, margin=self.margin, swap=self.swap,
            reduction=self.reduction,
        )  # fmt: skip


class CTCLoss(Module):
    """Connectionist temporal classification (Graves et al. 2006); see :func:`~lezero.nn.functional.ctc_loss`."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False):
        super().__init__()
        self.blank, self.reduction, self.zero_infinity = blank, reduction, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


class LinearCrossEntropyLoss(Module):
    """Cross-entropy of what a linear layer of its own gives; see :func:`~lezero.nn.functional.linear_cross_entropy`.

    Parameters
    ----------
    in_features, num_classes : int
    out_features : extents of the positions that have a class each
    bias : bool
    weight, reduction, ignore_index, label_smoothing : as for :class:`CrossEntropyLoss`
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: Sequence[int] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
    ):
        super().__init__()
        self.register_buffer("weight", weight)
        self.num_classes, self.out_features, self.reduction = num_classes, tuple(out_features), reduction
        self.ignore_index, self.label_smoothing, self.options = ignore_index, label_smoothing, options
        self.linear = Linear(in_features, num_classes * prod(self.out_features), bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """(batch, in_features), (batch, *out_features) -> a number, or (batch, *out_features)"""
        shape, bias = (self.num_classes, *self.out_features), self.linear.bias
        return F.linear_cross_entropy(
            input,
            self.linear.weight.reshape(*shape, self.linear.in_features),
            target,
            linear_bias=None if bias is None else bias.reshape(*shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )


class ASMoutput(NamedTuple):
    """The target's log-probability, (batch,), and the mean loss."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-softmax over many classes that are sorted by frequency (Grave et al. 2017): rare ones have narrower layers.

    Parameters
    ----------
    in_features, n_classes : int
    cutoffs : rising ints between 1 and n_classes - 1; the first classes are in the head, each further stretch is a cluster
    div_value : how many times narrower each cluster is than the one before
    head_bias : bool

    Notes
    -----
    Shapes do not depend on the targets: every cluster is computed for the whole batch.  So it saves parameters, not products.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        ends = [int(c) for c in cutoffs]
        if not ends or ends != sorted(set(ends)) or ends[0] < 1 or ends[-1] > n_classes - 1 or ends != list(cutoffs):
            raise ValueError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs are rising ints from 1 to {n_classes - 1}, got {list(cutoffs)}"
            )
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*ends, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = ends[0], len(ends)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, **made)
        self.tail = ModuleList()
        for i, (start, stop) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            width = int(in_features // div_value ** (i + 1))
            self.tail.append(
                Sequential(
                    Linear(in_features, width, bias=False, **made), Linear(width, stop - start, bias=False, **made)
                )
            )

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> ASMoutput:
        """(batch, in_features), (batch,) -> the targets' log-probabilities and minus their mean; or without batch"""
        if input_.ndim != target_.ndim + 1 or target_.ndim > 1 or input_.shape[-1] != self.in_features:
            raise ValueError(
                f"AdaptiveLogSoftmaxWithLoss: an input (batch, {self.in_features}) and a target (batch,), or both without batch, "
                f"are needed, got {tuple(input_.shape)} and {tuple(target_.shape)}"
            )
        target = target_.to("int64").unsqueeze(-1)
        found = self.log_prob(input_.reshape(-1, self.in_features)).gather(-1, target.reshape(-1, 1))
        output = found.reshape(target_.shape)
        return ASMoutput(output, -output.mean())

    def log_prob(self, input: Tensor) -> Tensor:
        """Log-probabilities of all classes: (batch, in_features) -> (batch, n_classes)"""
        head = F.log_softmax(self.head(input), 1)
        clusters = [
            F.log_softmax(cluster(input), 1) + head[:, self.shortlist_size + i : self.shortlist_size + i + 1]
            for i, cluster in enumerate(self.tail)
        ]
        return cat([head[:, : self.shortlist_size], *clusters], 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class: of the head where that beats all clusters, else of all classes; (batch,) of int64."""
        best = self.head(input).argmax(1)
        return where(best < self.shortlist_size, best, self.log_prob(input).argmax(1))
