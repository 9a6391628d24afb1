"""Functions that write parts of tensors, or list positions; those of one tensor are also methods (see ``composed``).

Names, arguments and results follow PyTorch.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lezero import segments
from lezero.graph import dtype as dt
from lezero.ops.base import normalize_axis
from lezero.ops.indexing import wrapped
from lezero.rearranged import _values, even_split, meshgrid
from lezero.runtime.bounds import expect, of_dimension
from lezero.tensor import Tensor, arange, ones, stack, tensor, where, zeros
from lezero.tensor.computing import also_of_scalars

# -- parts written on a copy ------------------------------------------------------------------------------------------


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """With `src` at position `index` of a dimension."""
    return _with(input, _at(input, "select_scatter", dim, index), src)


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """With `src` at ``start:end:step`` of a dimension."""
    return _with(input, _at(input, "slice_scatter", dim, slice(start, end, step)), src)


def _at(x: Tensor, name: str, dim: int, index: Any) -> tuple:
    return (slice(None),) * normalize_axis(name, dim, x.ndim) + (index,)


def _with(x: Tensor, at: tuple, value: Tensor) -> Tensor:
    out = x.clone()
    out[at] = value
    return out


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """With `src` along the diagonals of the matrices in two dimensions; it has the shape that ``diagonal`` gives."""
    first, second = (normalize_axis("diagonal_scatter", d, input.ndim) for d in (dim1, dim2))
    matrices = input.movedim((first, second), (0, 1))
    rows, columns = (int(d) for d in matrices.shape[:2])
    i = arange(builtins.max(builtins.min(rows + builtins.min(offset, 0), columns - builtins.max(offset, 0)), 0))
    at = (i + builtins.max(-offset, 0), i + builtins.max(offset, 0))
    wanted = (*matrices.shape[2:], i.shape[0])
    if tuple(src.shape) != wanted:
        raise ValueError(f"diagonal_scatter: a source of shape {wanted} is needed, got {tuple(map(int, src.shape))}")
    return _with(matrices, at, src.movedim(-1, 0)).movedim((0, 1), (first, second))


def fill_diagonal(input: Tensor, fill_value: Any) -> Tensor:
    """A matrix with `fill_value` along its diagonal."""
    on = arange(input.shape[0]).reshape(-1, 1) == arange(input.shape[1])
    return where(on, fill_value, input)._cast(input.dtype)


@also_of_scalars
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """With the sums, means, products, maxima or minima of all elements of `src` that `index` sends to one place.

    reduce : "sum", "mean", "prod", "amax" or "amin"
    include_self : whether what was there counts
    """
    if reduce not in _REDUCTIONS:
        raise ValueError(f"scatter_reduce: reduce is one of {', '.join(map(repr, _REDUCTIONS))}, got {reduce!r}")
    dim = normalize_axis("scatter_reduce", dim, input.ndim)
    met = zeros(input.shape, dtype=dt.int64).scatter_add(dim, index, ones(index.shape, dtype=dt.int64))
    if src.shape != index.shape and src.ndim == index.ndim:
        src = src[tuple(slice(0, d) for d in index.shape)]
    if reduce in ("sum", "mean"):
        base = input if include_self else where(met == 0, input, 0)._cast(input.dtype)
        out = base.scatter_add(dim, index, src)
        count = met + 1 if include_self else met.clamp(min=1)
        return out if reduce == "sum" else out / count if out.is_floating_point() else (out // count)._cast(out.dtype)
    if 0 in index.shape:
        return input.clone()
    if reduce == "prod":
        return segments.product(input, dim, index, src, met, include_self)
    return segments.extreme(input, dim, index, src, met, include_self, getattr(Tensor, _EXTREMES[reduce]))


_REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")
_EXTREMES = {"amax": "maximum", "amin": "minimum"}


# -- positions and products of them -----------------------------------------------------------------------------------


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dt.int64, device: Any = None) -> Tensor:
    """(2, how many): rows and columns of the lower triangle, `row` by `col`, up to the diagonal `offset` above the main one."""
    return tensor(np.stack(np.tril_indices(row, offset, col)), dtype=dtype, device=device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dt.int64, device: Any = None) -> Tensor:
    """(2, how many): rows and columns of the upper triangle, `row` by `col`, from the diagonal `offset` above the main one on."""
    return tensor(np.stack(np.triu_indices(row, offset, col)), dtype=dtype, device=device)


def unravel_index(indices: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Positions (int64) in a tensor of a shape, from positions among its elements in row-major order."""
    found, indices = [], indices.long()
    for extent in reversed(tuple(shape)):
        found.append(indices % extent)
        indices = indices // extent
    return tuple(reversed(found))


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each vector, as rows."""
    if len(tensors) == 1:
        return tensors[0]
    return stack([g.reshape(-1) for g in meshgrid(*tensors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of `r` elements of a vector, as rows; an element more than once `with_replacement`."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = np.array(list(choose(builtins.range(int(input.shape[0])), r)), np.int64).reshape(-1, r)
    return input[tensor(chosen)]


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements along `dim` at `indices`, which broadcast with the other dimensions; without `dim`, of all in a row."""
    if dim is None:
        return take_along_dim(input.reshape(-1), indices.reshape(-1), 0)
    if input.ndim != indices.ndim:
        raise ValueError(f"take_along_dim: indices of {input.ndim} dimensions are needed, got {indices.ndim}")
    d = normalize_axis("take_along_dim", dim, input.ndim)
    expect(indices, input.shape[d], of_dimension(d, "take_along_dim"), True)
    others = broadcast_shapes(*(tuple(1 if k == d else n for k, n in enumerate(t.shape)) for t in (input, indices)))
    input, indices = (t.expand((*others[:d], t.shape[d], *others[d + 1 :])) for t in (input, indices))
    return input.gather(d, wrapped(indices, input.shape[d]))


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each of `elements` is among `test_elements` (is not, where `invert`); `assume_unique` changes nothing."""
    x, among = (t if isinstance(t, Tensor) else tensor(t) for t in (elements, test_elements))
    found = (x.unsqueeze(-1) == among.reshape(-1)).any(-1)
    return ~found if invert else found


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """As ``unique``, of neighbours only: the first of each run of equal elements."""
    array = _values("unique_consecutive", input)
    if dim is None:
        rows = array.reshape(-1, 1)
    else:
        first = np.moveaxis(array, dim, 0)
        rows = first.reshape(len(first), prod(first.shape[1:]))
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(1)
    starts = np.nonzero(new)[0]
    out = [tensor(array.reshape(-1)[starts] if dim is None else array.take(starts, dim))]
    if return_inverse:
        inverse = np.cumsum(new) - 1
        out.append(tensor(inverse.reshape(array.shape) if dim is None else inverse))
    if return_counts:
        out.append(tensor(np.diff(np.append(starts, len(rows)))))
    return out[0] if len(out) == 1 else tuple(out)


# -- shapes -----------------------------------------------------------------------------------------------------------


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that all broadcast to together."""
    return np.broadcast_shapes(*((s,) if isinstance(s, int) else tuple(s) for s in shapes))


def _at_least(tensors: tuple, reshape: Any) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
        return tuple(reshape(t) for t in tensors)
    out = tuple(reshape(t) for t in tensors)
    return out[0] if len(out) == 1 else out


def atleast_1d(*tensors: Any) -> Any:
    """With at least one dimension."""
    return _at_least(tensors, lambda t: t if t.ndim else t.reshape(1))


def atleast_2d(*tensors: Any) -> Any:
    """With at least two dimensions: vectors as rows."""
    return _at_least(tensors, lambda t: t if t.ndim > 1 else t.reshape(1, -1))


def atleast_3d(*tensors: Any) -> Any:
    """With at least three dimensions: vectors as (1, n, 1), matrices as (n, m, 1)."""
    return _at_least(
        tensors, lambda t: t if t.ndim > 2 else t.unsqueeze(-1) if t.ndim == 2 else t.reshape(1, -1).unsqueeze(-1)
    )


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """In parts along the third dimension."""
    return even_split("dsplit", input, indices_or_sections, 2, 3)


def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """``narrow``, as a tensor of its own."""
    return input.narrow(dim, start, length).clone()


def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A number as a tensor of no dimensions, of the default dtype."""
    return tensor(s, dtype=dtype or dt.default_dtype(), device=device, requires_grad=requires_grad)


METHODS = """
diagonal_scatter dsplit narrow_copy scatter_reduce select_scatter slice_scatter take_along_dim unique_consecutive
"""  # which are methods of Tensor too
IN_PLACE = """
scatter_reduce
"""  # which of them have a form that writes in place
FUNCTIONS = """
atleast_1d atleast_2d atleast_3d broadcast_shapes cartesian_prod combinations diagonal_scatter dsplit isin narrow_copy
scalar_tensor scatter_reduce select_scatter slice_scatter take_along_dim tril_indices triu_indices unique_consecutive unravel_index
"""  # for the top level
