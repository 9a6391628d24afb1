"""Sorting: one kernel finds the order, everything else reads along it."""

from __future__ import annotations

from typing import Any

import numpy as np

from lezero.graph.dtype import int64
from lezero.ops.base import Opaque, op
from lezero.ops.indexing import gather
from lezero.ops.rules import shown, wide
from lezero.ops.slicing import part


@op("argsort")
class argsort(Opaque):
    """int64 positions that put x in order along `axis`; equal elements keep their order, NaN counts as the greatest.

    Parameters
    ----------
    x : any dtype but complex
    axis : int, non-negative
    descending : bool
    """

    attrs = {"axis": 0, "descending": False}
    differentiable = False

    def infer(x, axis, descending):
        if x.dtype.is_complex:
            raise TypeError(f"argsort: complex numbers have no order, got {x.dtype.name}")
        if not 0 <= axis < len(x.shape):
            raise IndexError(f"argsort: dimension {axis} is out of range for shape {shown(x.shape)}")
        return x.shape, int64

    def reference(x, axis, descending):
        x = wide(x)
        if not descending:
            return np.argsort(x, axis, kind="stable")
        # the reversed order of the reversed elements: equal ones keep their order, NaN comes first
        last = x.shape[axis] - 1
        return last - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)

    def gradient(dy, y, x, axis, descending):
        return None


def sort(x: Any, axis: int, descending: bool = False) -> tuple[Any, Any]:
    """The elements in order along `axis`, and where each came from (int64)."""
    order = argsort(x, axis=axis, descending=descending)
    return gather(x, order, axis=axis), order


def topk(x: Any, k: int, axis: int, largest: bool = True) -> tuple[Any, Any]:
    """The `k` greatest (or least) along `axis`, best first, and where each came from (int64)."""
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"topk: k = {k} is out of range for dimension {axis} of shape {shown(x.shape)}")
    order = part(argsort(x, axis=axis, descending=largest), axis, 0, k)
    return gather(x, order, axis=axis), order


def kthvalue(x: Any, k: int, axis: int) -> tuple[Any, Any]:
    """The k-th least (from 1) along `axis`, which stays with extent 1, and where it came from."""
    if not 1 <= k <= x.shape[axis]:
        raise ValueError(f"kthvalue: k = {k} is out of range for dimension {axis} of shape {shown(x.shape)}")
    order = part(argsort(x, axis=axis), axis, k - 1, k)
    return gather(x, order, axis=axis), order
