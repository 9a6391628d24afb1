"""Embedding: rows of a table."""

from __future__ import annotations

from lezero.ops.base import Composite, op
from lezero.ops.creation import zeros_like
from lezero.ops.elementwise import where
from lezero.ops.indexing import index_add, take
from lezero.ops.rules import shown, unsqueeze


@op("embedding", onnx="Gather")
class embedding(Composite):
    """The rows of `weight` at `index`.

    Parameters
    ----------
    weight : (rows, features)
    index : any shape, integer dtype
    padding_idx : int or None, non-negative
        A row that is not trained: its gradient is 0.

    Returns
    -------
    (*index.shape, features)
    """

    attrs = {"padding_idx": None}
    keeps = ("index",)

    def infer(weight, index, padding_idx):
        if len(weight.shape) != 2 or index.dtype.kind not in "iu":
            raise ValueError(
                f"embedding: a weight (rows, features) and an index of an integer dtype are needed, got "
                f"{weight.dtype.name}{shown(weight.shape)} and {index.dtype.name}{shown(index.shape)}"
            )
        return (*index.shape, weight.shape[1]), weight.dtype

    def reference(weight, index, padding_idx):
        return take.reference(weight, index, axis=0)

    def decompose(weight, index, padding_idx):
        return take(weight, index, axis=0)

    def gradient(dy, y, weight, index, padding_idx):
        if padding_idx is not None:
            dy = where(unsqueeze(index != padding_idx, len(index.shape)), dy, 0)
        return index_add(zeros_like(weight), index, dy, axis=0), None
