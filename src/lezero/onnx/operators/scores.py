"""Scores of classes, and which class they speak for (``ai.onnx.ml``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import on_host
from lezero.special import erfinv
from lezero.tensor import Tensor, tensor

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transformed(scores: Tensor, how: str | int) -> Tensor:
    """Scores after a ``post_transform``, by its name or by its number."""
    name = TRANSFORMS[how] if isinstance(how, int) else how
    if name == "NONE":
        return scores
    if name == "SOFTMAX":
        return lz.softmax(scores, -1)
    if name == "LOGISTIC":
        return lz.sigmoid(scores)
    if name == "SOFTMAX_ZERO":  # zeros stay, and do not count
        counted = scores != 0
        powers = lz.where(counted, lz.exp(scores - lz.amax(scores, -1, keepdim=True)), 0.0)
        return powers / lz.clamp(lz.sum(powers, -1, keepdim=True), min=1e-30)
    if name == "PROBIT":
        return math.sqrt(2) * erfinv(2 * scores - 1)
    raise OnnxError(f"post_transform {name!r} is not supported")


def classified(
    scores: Tensor, labels: Sequence[Any], how: str, threshold: float = 0.0, complement: bool = False
) -> tuple[Any, Tensor]:
    """Labels of rows, and their scores.

    threshold, complement : a single score is for the second of two classes where it is larger; the first's is then what is
        missing to 1, or the opposite
    """
    if int(scores.shape[-1]) > 1:
        return labelled(lz.argmax(scores, -1), labels), transformed(scores, how)
    second = lz.squeeze(scores, -1) > threshold
    if how == "LOGISTIC":
        both = lz.cat([lz.sigmoid(-scores), lz.sigmoid(scores)], -1)
    else:
        both = transformed(lz.cat([1 - scores if complement else -scores, scores], -1), how)
    return labelled(second.to(lz.int64), labels), both


def labelled(best: Tensor, labels: Sequence[Any]) -> Any:
    """The labels at these positions: a tensor of integers, or an array of strings."""
    if labels and isinstance(labels[0], str):
        return np.array(labels, object)[on_host(best)]
    return lz.index_select(tensor(np.array(labels, np.int64)), 0, best)
