"""Diagonals and triangles of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from lezero.graph.dtype import int64
from lezero.ops.base import Composite, View, op
from lezero.ops.comparison import where
from lezero.ops.creation import arange
from lezero.ops.rules import along, shown

DIAGONAL = {"offset": 0, "axis1": 0, "axis2": 1}


def _diagonal_extent(shape: tuple[int, ...], offset: int, axis1: int, axis2: int) -> int:
    n, m = shape[axis1] + (offset if offset < 0 else 0), shape[axis2] - (offset if offset > 0 else 0)
    n = n if n < m else m
    return n if n > 0 else 0


def _matrix_position(rest: tuple, row: Any, column: Any, axis1: int, axis2: int) -> tuple:
    """A position with `row` and `column` at their axes and the others in order."""
    others = iter(rest)
    return tuple(row if a == axis1 else column if a == axis2 else next(others) for a in range(len(rest) + 2))


@op("diagonal")
class diagonal(View):
    """The diagonal of the matrices in `axis1` and `axis2` as a new last axis; `offset` > 0 is above the main one."""

    attrs = DIAGONAL

    def infer(x, offset, axis1, axis2):
        if axis1 == axis2:
            raise ValueError(f"diagonal: two different axes are needed, got {axis1} twice")
        rest = tuple(d for a, d in enumerate(x.shape) if a not in (axis1, axis2))
        return (*rest, _diagonal_extent(x.shape, offset, axis1, axis2)), x.dtype

    def index(out, i, x, offset, axis1, axis2):
        *rest, k = i
        row, column = (k, k + offset) if offset >= 0 else (k - offset, k)
        return [(0, _matrix_position(tuple(rest), row, column, axis1, axis2), None)]

    def reference(x, offset, axis1, axis2):
        return np.diagonal(x, offset, axis1, axis2)

    def gradient(dy, y, x, offset, axis1, axis2):
        return diagonal_embed(dy, shape=tuple(x.shape), offset=offset, axis1=axis1, axis2=axis2)


@op("diagonal_embed")
class diagonal_embed(View):
    """Zeros of `shape` with x's last axis on a diagonal: the adjoint of ``diagonal``."""

    attrs = {"shape": (), **DIAGONAL}
    shape_attrs = True

    def infer(x, shape, offset, axis1, axis2):
        rest = tuple(d for a, d in enumerate(shape) if a not in (axis1, axis2))
        wanted = (*rest, _diagonal_extent(shape, offset, axis1, axis2))
        if tuple(x.shape) != wanted:
            raise ValueError(f"diagonal_embed: shape {tuple(x.shape)} does not fit a diagonal of {wanted}")
        return shape, x.dtype

    def index(out, i, x, shape, offset, axis1, axis2):
        rest = tuple(p for a, p in enumerate(i) if a not in (axis1, axis2))
        row, column = i[axis1], i[axis2]
        k = row if offset >= 0 else column
        return [(0, (*rest, k), column - row == offset)]

    def reference(x, shape, offset, axis1, axis2):
        y = np.zeros(shape, x.dtype)
        matrices = np.moveaxis(y, (axis1, axis2), (-2, -1))
        k = np.arange(x.shape[-1])
        matrices[..., k + max(-offset, 0), k + max(offset, 0)] = x
        return y

    def gradient(dy, y, x, shape, offset, axis1, axis2):
        return diagonal(dy, offset=offset, axis1=axis1, axis2=axis2)


# -- triangles ---------------------------------------------------------------------------------------------------


def _below(x: Any, diagonal: int) -> Any:
    """Whether an element of the matrices in the last two axes is on or below the diagonal."""
    row = arange(start=0, stop=x.shape[-2], step=1, dtype=int64, like=x)
    column = arange(start=0, stop=x.shape[-1], step=1, dtype=int64, like=x)
    return along(column, 1, 2) <= along(row, 0, 2) + diagonal


def _matrices(name: str, x: Any):
    if len(x.shape) < 2:
        raise ValueError(f"{name}: at least 2 dimensions are needed, got shape {shown(x.shape)}")
    return x.shape, x.dtype


@op("tril", onnx="Trilu")
class tril(Composite):
    """The elements on and below a diagonal of the matrices in the last two axes; zeros above.  ``diagonal=1`` is one higher."""

    attrs = {"diagonal": 0}

    def infer(x, diagonal):
        return _matrices("tril", x)

    def decompose(x, diagonal):
        return where(_below(x, diagonal), x, 0)

    def reference(x, diagonal):
        return np.tril(x, diagonal)

    def gradient(dy, y, x, diagonal):
        return tril(dy, diagonal=diagonal)


@op("triu", onnx="Trilu")
class triu(Composite):
    """The elements on and above a diagonal of the matrices in the last two axes; zeros below."""

    attrs = {"diagonal": 0}

    def infer(x, diagonal):
        return _matrices("triu", x)

    def decompose(x, diagonal):
        return where(_below(x, diagonal - 1), 0, x)

    def reference(x, diagonal):
        return np.triu(x, diagonal)

    def gradient(dy, y, x, diagonal):
        return triu(dy, diagonal=diagonal)
