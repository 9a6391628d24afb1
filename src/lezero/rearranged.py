"""Functions that move elements: arrangement, indexing, joining; those of one tensor are also methods (see ``composed``).

Names, arguments and results follow PyTorch.  Those whose result's shape depends on values (``nonzero``, ``unique``,
``masked_select``, ``bincount``) run what has been recorded first, and are refused inside ``lz.jit``.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lezero.arguments import whole
from lezero.graph import dtype as dt
from lezero.graph.dim import Dim
from lezero.ops import rearrange as _rearrange
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import broadcast_shapes, normalize_axis
from lezero.ops.indexing import wrapped as _wrapped
from lezero.runtime.bounds import expect, of_dimension
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.runtime.whole import as_extent
from lezero.tensor import Tensor, arange, cat, rand, tensor, where, zeros
from lezero.tensor.computing import also_of_scalars


def _values(name: str, t: Tensor) -> np.ndarray:
    if STATE.capture is not None:
        STATE.capture.refuse(f"{name} decides the shape of its result by values, so they are read")
    return t.detach().numpy()


# -- arrangement ------------------------------------------------------------------------------------------------------


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Diagonals of the matrices in two dimensions, as a new last one."""
    op = OPS["diagonal"]
    values = (
        whole("diagonal: offset", offset),
        normalize_axis("diagonal", dim1, input.ndim),
        normalize_axis("diagonal", dim2, input.ndim),
    )
    return record(op, (input,), op.bind(dict(zip(op.attrs, values))))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices, in dimensions `dim1` and `dim2` of the result, with the last dimension on their diagonal."""
    if not input.ndim:
        raise ValueError("diag_embed: a tensor of one dimension or more is needed")
    rows, columns = (normalize_axis("diag_embed", d, input.ndim + 1) for d in (dim1, dim2))
    if rows == columns:
        raise ValueError(f"diag_embed: two different dimensions are needed, got {dim1} and {dim2}")
    return _on_diagonals(input, offset).movedim((-2, -1), (rows, columns))


def _on_diagonals(input: Tensor, offset: int) -> Tensor:
    n = input.shape[-1] + abs(offset)
    rows, columns = arange(n).unsqueeze(1), arange(n).unsqueeze(0)
    padded = input
    if offset:
        rest = zeros(*input.shape[:-1], abs(offset), dtype=input.dtype)
        padded = cat([rest, input] if offset > 0 else [input, rest], -1)
    return where(columns - rows == offset, padded.unsqueeze(-2), 0)._cast(input.dtype)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix's diagonal, or the matrix with a vector as its diagonal."""
    if input.ndim not in (1, 2):
        raise ValueError(f"diag: a vector or a matrix is needed, got a tensor of {input.ndim} dimensions")
    return diag_embed(input, diagonal) if input.ndim == 1 else _diagonal(input, diagonal)


_diagonal = diagonal


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with the elements on a diagonal (`offset` above the main one), zeros elsewhere."""
    return diag_embed(input.reshape(-1), offset)


def fliplr(input: Tensor) -> Tensor:
    """Turned round along the second dimension."""
    if input.ndim < 2:
        raise ValueError(f"fliplr: two dimensions or more are needed, got {input.ndim}")
    return input.flip(1)


def flipud(input: Tensor) -> Tensor:
    """Turned round along the first dimension."""
    if not input.ndim:
        raise ValueError("flipud: one dimension or more is needed, got none")
    return input.flip(0)


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved along `dims`, round the end; without `dims`, along all elements in row-major order."""
    if dims is None:
        return roll(input.reshape(-1), shifts, 0).reshape(input.shape)
    shifts, dims = ((x,) if isinstance(x, int) else tuple(x) for x in (shifts, dims))
    if not shifts or len(shifts) != len(dims):
        raise ValueError(f"roll: a shift for each dimension is needed, got {shifts} for dimensions {dims}")
    for shift, dim in zip(shifts, dims):
        d, shift = normalize_axis("roll", dim, input.ndim), whole("roll: a shift", shift)
        n = as_extent(input.shape[d])
        k = shift % n if n else 0
        if type(k) is Dim or k:
            input = cat([input.narrow(d, n - k, k), input.narrow(d, 0, n - k)], d)
    return input


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by 90 degrees, k times, from the first of `dims` towards the second."""
    a, b = (normalize_axis("rot90", d, input.ndim) for d in dims)
    if a == b:
        raise ValueError(f"rot90: two different dimensions are needed, got {tuple(dims)}")
    if k % 4 == 0:
        return input
    if k % 4 == 2:
        return input.flip(a, b)
    return input.flip(b if k % 4 == 1 else a).transpose(a, b)


def repeat_interleave(
    input: Tensor, repeats: int | Tensor | None = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element `repeats` times in a row; repeats of each element (a tensor or a list of ints) are read.

    Without `repeats`, `input` are those, of the positions.  An `output_size` that is not what they add up to is refused.
    """
    if repeats is None:
        input, repeats = arange(input.shape[0]), input
    out = _interleaved(input, repeats, dim)
    d = 0 if dim is None else dim
    if output_size is not None and int(out.shape[d]) != output_size:
        raise ValueError(f"repeat_interleave: output_size is {output_size}, but repeats add up to {int(out.shape[d])}")
    return out


def _interleaved(input: Tensor, repeats: Any, dim: int | None) -> Tensor:
    x = input.reshape(-1) if dim is None else input
    d = normalize_axis("repeat_interleave", 0 if dim is None else dim, x.ndim)
    if isinstance(repeats, (list, tuple)):
        repeats = tensor(repeats)
    if isinstance(repeats, Tensor):
        n = int(x.shape[d])
        counts = _repeats(repeats, n, d)
        return x.index_select(d, tensor(np.repeat(np.arange(n), counts)))
    return _rearrange.repeat_interleave(x, whole("repeat_interleave: repeats", repeats, 0), d)


def _repeats(repeats: Tensor, n: int, d: int) -> np.ndarray:
    """How often each of `n` elements is repeated."""
    if repeats.dtype.kind not in "iu":
        raise TypeError(f"repeat_interleave: repeats are integers, got {repeats.dtype.name}")
    counts = _values("repeat_interleave", repeats)
    if counts.ndim > 1 or counts.size not in (1, n):
        raise ValueError(
            f"repeat_interleave: one count, or one for each of the {n} elements of dimension {d}, is needed; got repeats of "
            f"shape {counts.shape}"
        )
    if counts.size and counts.min() < 0:
        raise ValueError(f"repeat_interleave: repeats must not be negative, got {counts.min()}")
    return np.broadcast_to(counts.reshape(-1), (n,))


def tile(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Repeated along every dimension; dimensions not named are not."""
    dims = args if dims is None else (dims,)
    counts = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return input.repeat((1,) * (input.ndim - len(counts)) + tuple(counts))


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """``split``, with the size of each part."""
    return input.split(list(split_sizes), dim)


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut at the given positions (ints, or a vector of them), or into a number of parts whose extents differ by one at most."""
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    n = int(input.shape[normalize_axis("tensor_split", dim, input.ndim)])
    if not isinstance(indices_or_sections, (tuple, list)):
        parts = whole("tensor_split: the number of parts", indices_or_sections, 1)
        sizes = [n // parts + (k < n % parts) for k in range(parts)]
    else:
        edges = [0, *(builtins.min(builtins.max(i if i >= 0 else n + i, 0), n) for i in indices_or_sections), n]
        sizes = [builtins.max(b - a, 0) for a, b in pairwise(edges)]
    return input.split(sizes, dim)


def even_split(name: str, input: Tensor, indices_or_sections: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    """As ``tensor_split``, of `least` dimensions or more, into parts of one size where their number is given."""
    if input.ndim < least:
        raise ValueError(f"{name}: {least} dimensions or more are needed, got {input.ndim}")
    if isinstance(indices_or_sections, int) and int(input.shape[dim]) % builtins.max(indices_or_sections, 1):
        raise ValueError(
            f"{name}: an extent of {int(input.shape[dim])} cannot be cut into {indices_or_sections} parts of one size"
        )
    return tensor_split(input, indices_or_sections, dim)


def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """In parts along the second dimension (of vectors: the first)."""
    return even_split("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """In parts along the first dimension."""
    return even_split("vsplit", input, indices_or_sections, 0, 2)


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Summed over the dimensions that broadcasting `size` to this shape would repeat."""
    wanted = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    extra = input.ndim - len(wanted)
    axes = [i for i in range(input.ndim) if i < extra or (wanted[i - extra] == 1 and input.shape[i] != 1)]
    return (input.sum(axes, keepdim=True) if axes else input).reshape(wanted)


@also_of_scalars
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements every `step` elements along a dimension, as a new last one (each holds copies)."""
    d = normalize_axis("unfold", dimension, input.ndim)
    size, step = whole("unfold: size", size, 0), whole("unfold: step", step, 1)
    if int(size) > int(input.shape[d]):
        raise ValueError(
            f"unfold: a window of {int(size)} elements is more than the extent {int(input.shape[d])} of dimension {d}"
        )
    count = (input.shape[d] - size) // step + 1
    index = arange(count).unsqueeze(1) * step + arange(size)
    return record(OPS["take"], (input, index), (d,)).movedim(d + 1, -1)


# -- indexing ---------------------------------------------------------------------------------------------------------


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened tensor."""
    return input.reshape(-1)[index]


@also_of_scalars
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """With `source` added to the positions along `dim` that `index` names; all that meet are added up."""
    d = normalize_axis("index_add", dim, input.ndim)
    _expect_in("index_add", index, d, input.shape[d])
    src = (source if alpha == 1 else source * alpha)._cast(input.dtype)
    return record(OPS["index_add"], (input, _wrapped(index, input.shape[d]), src), (d,))


def _expect_in(name: str, index: Tensor, dim: int, extent: int) -> None:
    expect(index, extent, of_dimension(dim, name), True)


@also_of_scalars
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """With `source` written to the positions along `dim` that `index` names."""
    out = input.clone()
    out[(slice(None),) * normalize_axis("index_copy", dim, input.ndim) + (index,)] = source
    return out


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """With `value` (a number, or a tensor without dimensions) at the positions along `dim` that `index` names."""
    d = normalize_axis("index_fill", dim, input.ndim)
    extent = input.shape[d] if input.ndim else 1
    _expect_in("index_fill", index, d, extent)
    named = zeros(extent, dtype=dt.bool_)
    named[index.reshape(-1)] = True
    return input.masked_fill(named.reshape((-1,) + (1,) * (input.ndim - d - 1)) if input.ndim else named.any(), value)


def index_put(input: Tensor, indices: tuple, values: Any, accumulate: bool = False) -> Tensor:
    """As ``input[indices] = values`` on a copy; with `accumulate`, added to what is there, all that meet together."""
    out = input.clone()
    if not accumulate:
        out[tuple(indices)] = values
        return out
    indices = tuple(part for i in indices for part in (nonzero(i, as_tuple=True) if i.dtype is dt.bool_ else (i,)))
    for k, (i, n) in enumerate(zip(indices, input.shape)):
        _expect_in("index_put", i, k, n)
    where_ = tuple(_wrapped(i, n) for i, n in zip(indices, input.shape))
    shape = record(OPS["gather_nd"], (input, *where_), ()).shape
    values = (
        (values if isinstance(values, Tensor) else tensor(values, dtype=input.dtype))._cast(input.dtype).expand(shape)
    )
    return record(OPS["scatter_nd_add"], (input, values, *where_), ())


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """With the elements of `source`, one after the other, where the mask holds; there are at least as many as it has places.

    Masks that are still to be computed, and all under ``lz.jit``, are not counted; elements that lack are the last one then.
    """
    from lezero.ops.indexing import masked_scatter as rule

    shape = broadcast_shapes("masked_scatter", input.shape, mask.shape)
    input = input if tuple(input.shape) == shape else input.expand(shape)
    buffer = mask._buffer
    if buffer is not None and mask.dtype is dt.bool_ and STATE.capture is None:
        places = int(np.broadcast_to(buffer.array, tuple(map(int, input.shape))).sum())
        if places > source.numel():
            raise ValueError(f"masked_scatter: the mask has {places} places, the source {int(source.numel())} elements")

    return rule(input, mask, source)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds, as a vector; both are broadcast."""
    shape = np.broadcast_shapes(tuple(map(int, input.shape)), tuple(map(int, mask.shape)))
    return input.expand(shape)[mask.expand(shape)]


def nonzero(input: Tensor, as_tuple: bool = False) -> Any:
    """Positions that are not zero: one row each, or with `as_tuple` one vector for each dimension (a number is a vector then)."""
    values = _values("nonzero", input)
    if as_tuple:
        return tuple(tensor(p) for p in np.nonzero(np.atleast_1d(values)))
    return tensor(np.argwhere(values))


def argwhere(input: Tensor) -> Tensor:
    """Where the elements are that are not zero, (how many, ndim) int64; reads the values."""
    return nonzero(input)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Distinct elements (or slices along `dim`) in ascending order; on request with the place of each, and the counts."""
    found = np.unique(_values("unique", input), return_inverse=True, return_counts=True, axis=dim)
    shape = tuple(map(int, input.shape)) if dim is None else (-1,)
    out = [tensor(found[0])]
    if return_inverse:
        out.append(tensor(found[1].reshape(shape)))
    if return_counts:
        out.append(tensor(found[2]))
    return out[0] if len(out) == 1 else tuple(out)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer occurs, or the sum of its weights."""
    values = _values("bincount", input)
    if values.ndim != 1 or values.dtype.kind not in "iub" or (values.size and values.min() < 0):
        raise ValueError("bincount: a vector of integers from 0 on is needed")
    n = builtins.max(minlength, int(values.max()) + 1 if values.size else 0)
    source = record(OPS["full"], (), (tuple(input.shape), 1, dt.int64)) if weights is None else weights
    if weights is not None and source.dtype is not dt.float32:  # in float64, as PyTorch's
        source = source.double()
    return index_add(zeros(n, dtype=source.dtype), 0, input, source)


def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """For each value the first position in an ascending tensor before which it can be inserted.

    Parameters
    ----------
    sorted_sequence : (n,), or (*batch, n) for values (*batch, m); in any order where `sorter` puts it in one
    right : bool, also as ``side="right"``
        After elements that are equal, instead of before them.
    out_int32 : bool
        Positions in int32 instead of int64.
    """
    from lezero.ops.indexing import searchsorted as rule

    if side not in (None, "left", "right") or (side == "left" and right):
        raise ValueError(f"searchsorted: side is 'left' or 'right' and agrees with right={right}, got {side!r}")
    values = input if isinstance(input, Tensor) else tensor(input, dtype=sorted_sequence.dtype)
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape or sorter.dtype.kind not in "iu":
            raise ValueError(
                f"searchsorted: a sorter of integers and of shape {tuple(map(int, sorted_sequence.shape))} is needed, got "
                f"{sorter.dtype.name}{list(map(int, sorter.shape))}"
            )
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    found = rule(sorted_sequence, values, right or side == "right")
    return found.int() if out_int32 else found


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """For each value the first position in an ascending vector before which it can be inserted; see ``searchsorted``."""
    if boundaries.ndim != 1:
        raise ValueError(f"bucketize: boundaries are a vector, got shape {tuple(map(int, boundaries.shape))}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """int64 with a new last dimension: 1 at the class, 0 elsewhere; ``num_classes=-1`` reads the largest class."""
    n = int(_values("one_hot", input).max()) + 1 if num_classes == -1 else num_classes
    expect(input, n, "one_hot: index {index} is not one of {extent} classes")
    return record(OPS["one_hot"], (input,), (n,))


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Positions along the last dimension drawn with the given weights (which need not add up to 1).

    Raises
    ------
    ValueError
        For weights that are negative, infinite or NaN, or of which too few in a row are above 0: `num_samples` are needed, or
        one with `replacement`.  Weights that are still to be computed are looked at by the run that does, which raises an
        IndexError.
    """
    num_samples = whole("multinomial: num_samples", num_samples, 1)
    if not input.is_floating_point():
        raise TypeError(f"multinomial: weights are floating-point numbers, got {input.dtype.name}")
    if input.ndim not in (1, 2):
        raise ValueError(f"multinomial: weights are a vector or rows of a matrix, got {input.ndim} dimensions")
    n = int(input.shape[-1])
    if not replacement:
        if num_samples > n:
            raise ValueError(f"multinomial: {num_samples} draws from {n} without replacement")
    _expect_weights(input, 1 if replacement else int(num_samples))
    if not replacement:
        # the largest of log w + Gumbel noise is a draw by weight; the k largest are k draws without replacement
        u = rand(*input.shape, dtype=dt.float64, generator=generator)
        return (input.double().log() - (-(u.clamp(1e-300).log())).log()).topk(num_samples, -1).indices
    total = input.double().cumsum(-1)
    u = rand(*input.shape[:-1], num_samples, dtype=dt.float64, generator=generator) * total[..., -1:]
    return (total.unsqueeze(-2) <= u.unsqueeze(-1)).sum(-1).clamp(max=n - 1)


def _expect_weights(weights: Tensor, needed: int) -> None:
    """Finite, not negative, and `needed` of each row above 0; the run that computes them looks at those that are not there."""
    says = f"multinomial: weights must be finite and not negative, {needed} or more of each row above 0"
    buffer = weights._buffer
    if buffer is not None and STATE.capture is None:
        array = buffer.array
        if not (((array >= 0) & (array < np.inf)).all() and ((array > 0).sum(-1) >= needed).all()):
            raise ValueError(says)
        return
    sound = ((weights >= 0) & (weights < float("inf"))).all(-1) & ((weights > 0).sum(-1) >= needed)
    expect((~sound.all())._cast(dt.int64), 1, says)


# -- of several tensors -------------------------------------------------------------------------------------------------


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in the shape they broadcast to together."""
    shape = broadcast_shapes("broadcast_tensors", *(tuple(t.shape) for t in tensors))
    return tuple(t.expand(shape) for t in tensors)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of all points of a grid, from the coordinates along each axis.

    indexing : "ij", the first axis is dimension 0; "xy", it is dimension 1, and the second dimension 0
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        tensors = tuple(tensors[0])
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"meshgrid: coordinates are tensors, got a {type(t).__name__}")
    return tuple(_rearrange.meshgrid(*(_at_least(t, 1) for t in tensors), indexing=indexing))


def _at_least(t: Tensor, n: int) -> Tensor:
    return t if t.ndim >= n else t.reshape((1,) * (n - t.ndim) + tuple(t.shape))


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second dimension (vectors: the first)."""
    tensors = [_at_least(t, 1) for t in tensors]
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined as rows."""
    return cat([_at_least(t, 2) for t in tensors], 0)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the third dimension."""
    return cat([_at_least(t, 2).unsqueeze(-1) if t.ndim < 3 else t for t in tensors], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors as columns, matrices as they are, side by side."""
    return cat([t.reshape(t.numel(), 1) if t.ndim < 2 else t for t in tensors], 1)


def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with the given ones along its diagonal."""
    matrices = [_at_least(t, 2) for t in tensors]
    width = builtins.sum(int(m.shape[1]) for m in matrices)
    rows, at = [], 0
    for m in matrices:
        h, w = int(m.shape[0]), int(m.shape[1])
        rows.append(cat([zeros(h, at, dtype=m.dtype), m, zeros(h, width - at - w, dtype=m.dtype)], 1))
        at += w
    return cat(rows, 0)


METHODS = """
argwhere bincount diag diag_embed diagflat diagonal fliplr flipud hsplit index_add index_copy index_fill
index_put masked_scatter masked_select multinomial nonzero repeat_interleave roll rot90 split_with_sizes
sum_to_size take tensor_split tile unfold unique vsplit
"""  # which are methods of Tensor too
IN_PLACE = """
index_add index_copy index_fill index_put masked_scatter
"""  # which of them have a form that writes in place
FUNCTIONS = """
argwhere bincount block_diag broadcast_tensors bucketize column_stack diag diag_embed diagflat diagonal dstack
fliplr flipud hsplit hstack index_add index_copy index_fill index_put masked_scatter masked_select meshgrid multinomial nonzero
one_hot repeat_interleave roll rot90 searchsorted split_with_sizes sum_to_size take tensor_split tile unfold
unique vsplit vstack
"""  # for the top level
