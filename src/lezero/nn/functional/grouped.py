"""Products of groups of matrices, as mixtures of experts have them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from lezero.rearranged import _values
from lezero.tensor import Tensor, cat, stack


def grouped_mm(
    mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """Products of groups of matrices.

    Parameters
    ----------
    mat_a, mat_b : (groups, m, k) and (groups, k, n), or one of them or both with the groups side by side in one matrix:
        (m, k) and (groups, k, n), where rows are divided; (groups, m, k) and (k, n), columns; (m, k) and (k, n), what is summed
    offs : (groups,) integers: where each group ends; read when called.  Rows (columns) behind the last end are zeros.
    bias : added to the result
    out_dtype : of the result, that of the operands unless given

    Returns
    -------
    (groups, m, n), (m, n), (m, n) or (groups, m, n)
    """
    ranks = mat_a.ndim, mat_b.ndim
    if not all(r in (2, 3) for r in ranks) or (offs is None) != (ranks == (3, 3)):
        raise ValueError(
            f"grouped_mm: matrices, or groups of them, are needed, and offs where groups are in one matrix; got shapes "
            f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)} {'without' if offs is None else 'with'} offs"
        )
    if offs is None:
        y = mat_a @ mat_b
    else:
        ends = [int(e) for e in _values("grouped_mm", offs)]
        y = _divided(mat_a, mat_b, [0, *ends])
    y = y if bias is None else y + bias
    return y if out_dtype is None else y.to(out_dtype)


def _divided(a: Tensor, b: Tensor, ends: list[int]) -> Tensor:
    parts = [(start, max(stop - start, 0)) for start, stop in pairwise(ends)]
    if a.ndim == b.ndim == 2:
        return stack([a.narrow(1, at, n) @ b.narrow(0, at, n) for at, n in parts])
    if a.ndim == 2:
        found = [a.narrow(0, at, n) @ b[g] for g, (at, n) in enumerate(parts)]
        return _filled_up(found, 0, int(a.shape[0]))
    found = [a[g] @ b.narrow(1, at, n) for g, (at, n) in enumerate(parts)]
    return _filled_up(found, 1, int(b.shape[1]))


def _filled_up(parts: list[Tensor], axis: int, extent: int) -> Tensor:
    """Parts side by side, with zeros up to an extent."""
    from lezero.nn.functional.padding import pad

    y = cat(parts, axis)
    rest = extent - int(y.shape[axis])
    return y if not rest else pad(y, (0, 0, 0, rest) if axis == 0 else (0, rest))
