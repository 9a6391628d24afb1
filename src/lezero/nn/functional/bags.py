"""Sums, means and maxima of looked-up vectors."""

from __future__ import annotations

import numpy as np

from lezero.nn.functional.sparse import embedding
from lezero.nn.parameter import constant_tensor
from lezero.tensor import Tensor, arange, where, zeros


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of `weight` (rows, features), put together in bags: (bags, features).

    Parameters
    ----------
    input : (bags, indices), or (indices,) with `offsets`
    offsets : (bags,), where each bag begins; with `include_last_offset` also where the last ends
    max_norm, norm_type : rows that are looked up are first scaled down, in place, to this norm
    mode : {"sum", "mean", "max"}; an empty bag gives zeros
    sparse : gradients are dense either way
    per_sample_weights : the shape of `input`, what each row is multiplied by; for sums
    padding_idx : this row counts nowhere, and gets no gradient
    scale_grad_by_freq : divide each row's gradient by how often it is looked up here
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding_bag: mode is 'sum', 'mean' or 'max', got {mode!r}")
    if per_sample_weights is not None and (mode != "sum" or tuple(per_sample_weights.shape) != tuple(input.shape)):
        raise ValueError(
            f"embedding_bag: per_sample_weights go with mode 'sum' and have the input's shape {tuple(input.shape)}, got mode "
            f"{mode!r} and shape {tuple(per_sample_weights.shape)}"
        )
    if input.ndim not in (1, 2) or (input.ndim == 1) != (offsets is not None):
        raise ValueError(
            f"embedding_bag: an input (bags, indices), or (indices,) with offsets, is needed, got shape {tuple(input.shape)} "
            f"{'without' if offsets is None else 'with'} offsets"
        )
    counts = None if padding_idx is None else input != padding_idx % int(weight.shape[0])
    rows = embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is not None:
        starts = offsets[:-1] if include_last_offset else offsets
        if mode == "max":
            return _largest_from(rows, starts, counts)
        return _added_from(rows, starts, counts, mode)
    if mode == "max":
        return _largest(rows, counts)
    if counts is not None:
        rows = where(counts.unsqueeze(-1), rows, 0)
    total = rows.sum(1)
    if mode == "sum":
        return total
    size = max(int(input.shape[1]), 1) if counts is None else counts.sum(1, keepdim=True).clamp(1)
    return (total / size)._cast(weight.dtype)


def _added_from(rows: Tensor, starts: Tensor, counts: Tensor | None, mode: str) -> Tensor:
    """Sums or means of bags that stand one after the other."""
    bags = starts.shape[0]
    bag = (arange(rows.shape[0]) >= starts.unsqueeze(1)).sum(0) - 1  # the last that has begun
    if counts is not None:
        rows = where(counts.unsqueeze(-1), rows, 0)
    total = zeros(bags, rows.shape[-1], dtype=rows.dtype).index_add(0, bag, rows)
    if mode == "sum":
        return total
    one = bag * 0 + 1 if counts is None else counts.to("int64")
    size = zeros(bags, dtype="int64").index_add(0, bag, one)
    return (total / size.clamp(1).unsqueeze(1))._cast(rows.dtype)


def _largest_from(rows: Tensor, starts: Tensor, counts: Tensor | None) -> Tensor:
    """Maxima of bags that stand one after the other; reads where they begin."""
    begins = np.asarray(starts.tolist(), np.int64)
    ends = np.append(begins[1:], int(rows.shape[0]))
    sizes = np.maximum(ends - begins, 0)
    if not sizes.max(initial=0):
        return zeros(len(begins), rows.shape[-1], dtype=rows.dtype)
    places = np.arange(sizes.max())
    here = constant_tensor(places < sizes[:, None])
    at = constant_tensor(np.where(places < sizes[:, None], begins[:, None] + places, 0).reshape(-1))
    if counts is not None:
        here = here & counts.index_select(0, at).reshape(*here.shape)
    return _largest(rows.index_select(0, at).reshape(*here.shape, rows.shape[-1]), here)


def _largest(rows: Tensor, counts: Tensor | None) -> Tensor:
    """The largest of (bags, places, features) along places, where `counts` (bags, places) holds; 0 where it never does."""
    if not int(rows.shape[1]):
        return zeros(rows.shape[0], rows.shape[2], dtype=rows.dtype)
    if counts is None:
        return rows.amax(1)
    largest = where(counts.unsqueeze(-1), rows, float("-inf")).amax(1)
    return where(counts.any(1).unsqueeze(-1), largest, 0)
