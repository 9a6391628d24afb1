"""The loss of sequences that are not aligned with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lezero.nn.functional.loss import _reduced
from lezero.nn.functional.padding import pad
from lezero.nn.parameter import constant_tensor
from lezero.tensor import Tensor, arange, full_like, stack, where

_NEVER = -1e30
"""Stands for the logarithm of 0: differences of infinities would be NaN, in gradients too."""


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Connectionist temporal classification (Graves et al. 2006): minus the log-probability of all alignments together.

    Parameters
    ----------
    log_probs : (steps, batch, classes) or (steps, classes), logarithms of probabilities
    targets : (batch, longest), or (sum of the lengths,): the labels one sequence after the other; or (length,) without batch
    input_lengths, target_lengths : (batch,) ints, or one without batch
    blank : the class that stands for no label
    reduction : "mean" divides each loss by the target's length first
    zero_infinity : 0 instead of infinity (and no gradient) where the input is too short for its labels

    Notes
    -----
    The gradient is that of this function of `log_probs`.  PyTorch's takes it for granted that they come from ``log_softmax``
    and adds their exponentials; behind ``log_softmax`` both are the same.
    """
    if log_probs.ndim not in (2, 3):
        raise ValueError(
            f"ctc_loss: log_probs (steps, batch, classes) or (steps, classes) are needed, got shape {tuple(log_probs.shape)}"
        )
    alone = log_probs.ndim == 2
    if alone:
        log_probs = log_probs.unsqueeze(1)
    steps, batch, classes = (int(d) for d in log_probs.shape)
    if not 0 <= blank < classes:
        raise ValueError(f"ctc_loss: blank={blank} is not one of {classes} classes")
    heard = _lengths("input_lengths", input_lengths, batch, steps)
    if targets.ndim == 1 and not alone:
        targets, said = _separate(targets, target_lengths, batch)
    else:
        targets = targets.reshape(batch, -1)
        said = _lengths("target_lengths", target_lengths, batch, int(targets.shape[1]))
    loss = _alignments(log_probs, targets, heard, said, blank)
    if zero_infinity:
        loss = where(loss.isinf(), 0.0, loss)
    if reduction == "mean":
        return (loss / said.clamp(1)).mean()
    return _reduced("ctc_loss", loss.squeeze(0) if alone else loss, reduction)


def _lengths(name: str, lengths: Any, batch: int, most: int) -> Tensor:
    """(batch,) of int64; those given as numbers are looked at."""
    if isinstance(lengths, Tensor):
        lengths = lengths.reshape(-1).to("int64")
        if int(lengths.shape[0]) != batch:
            raise ValueError(f"ctc_loss: {name} of {batch} sequences are needed, got shape {tuple(lengths.shape)}")
        return lengths
    counts = np.asarray(lengths, np.int64).reshape(-1)
    if len(counts) != batch or (counts < 0).any() or (counts > most).any():
        raise ValueError(f"ctc_loss: {name} are {batch} numbers from 0 to {most}, got {counts.tolist()}")
    return constant_tensor(counts)


def _separate(targets: Tensor, lengths: Any, batch: int) -> tuple[Tensor, Tensor]:
    """Labels that stand one sequence after the other as (batch, longest), and their lengths."""
    counts = np.asarray(lengths.tolist() if isinstance(lengths, Tensor) else lengths, np.int64).reshape(-1)
    if len(counts) != batch or (counts < 0).any() or counts.sum() != int(targets.shape[0]):
        raise ValueError(
            f"ctc_loss: target_lengths are {batch} numbers that add up to the {int(targets.shape[0])} targets, got {counts.tolist()}"
        )
    longest, total = int(counts.max(initial=0)), int(counts.sum())
    places = (np.cumsum(counts) - counts)[:, None] + np.arange(longest)
    said = constant_tensor(counts)
    if not total:
        return targets.reshape(batch, 0), said
    rows = constant_tensor(np.minimum(places, total - 1).reshape(-1))
    return targets.index_select(0, rows).reshape(batch, longest), said


def _alignments(log_probs: Tensor, targets: Tensor, heard: Tensor, said: Tensor, blank: int) -> Tensor:
    """Minus the log-probability of each sequence, (batch,); the forward variables of section 4.1 of the paper."""
    steps, batch, _ = log_probs.shape
    most = int(targets.shape[1])
    known = arange(most) < said.unsqueeze(1)
    labels = where(known, targets.to("int64"), blank)  # what lies behind the end is not looked at
    # Blanks around all labels: place s is label (s - 1) / 2 where s is odd.
    path = pad(stack([full_like(labels, blank), labels], -1).reshape(batch, 2 * most), (0, 1), value=blank)
    places = 2 * most + 1
    emitted = log_probs.clamp(min=_NEVER).gather(2, path.unsqueeze(0).expand(steps, batch, places))
    may_skip = (path != blank) & (path != pad(path, (2, 0), value=blank)[:, :places])
    alpha = None
    for t, now in enumerate(emitted.unbind(0)):
        if alpha is None:
            alpha = where(arange(places) < 2, now, _NEVER)
            continue
        one, two = (pad(alpha, (k, 0), value=_NEVER)[:, :places] for k in (1, 2))
        after = _log_of_sum(alpha, one, where(may_skip, two, _NEVER)) + now
        alpha = where((t < heard).unsqueeze(1), after, alpha)
    if alpha is None:
        alpha = log_probs.sum(0)[:, :1].expand(batch, places)
    last = said.unsqueeze(1) * 2
    end, label = alpha.gather(1, last).squeeze(1), alpha.gather(1, (last - 1).clamp(0)).squeeze(1)
    total = end.logaddexp(where(said > 0, label, _NEVER))
    total = where(heard > 0, total, where(said > 0, _NEVER, 0.0))
    return where(total > _NEVER / 2, -total, float("inf"))._cast(log_probs.dtype)


def _log_of_sum(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """log(exp(a) + exp(b) + exp(c)), element by element."""
    most = a.maximum(b).maximum(c).detach()
    return most + ((a - most).exp() + (b - most).exp() + (c - most).exp()).log()
