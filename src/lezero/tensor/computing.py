"""Methods that compute and have arguments of their own: reductions, scans, products, gathers, sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from lezero.arguments import need_real, whole
from lezero.graph.dtype import as_dtype, default_dtype
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import normalize_axes, normalize_axis, several_axes
from lezero.runtime.bounds import expect, of_dimension
from lezero.runtime.recorder import record
from lezero.tensor.core import Core
from lezero.tensor.creation import full

if TYPE_CHECKING:
    from lezero.tensor import Tensor

Axes = int | Sequence[int] | None


class Pair(tuple):
    """(values, indices), by position or by name."""

    __slots__ = ()

    def __new__(cls, values: Any, indices: Tensor) -> Pair:
        return tuple.__new__(cls, (values, indices))

    values = property(lambda self: self[0])
    indices = property(lambda self: self[1])


def also_of_scalars(method: Callable) -> Callable:
    """`method` along a dimension, which takes tensors without dimensions as vectors of one element."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.ndim:
            return method(self, *args, **kwargs)
        named = {name: _as_vector(value) for name, value in kwargs.items()}
        return _without_first(method(_as_vector(self), *map(_as_vector, args), **named))

    return call


def _as_vector(value: Any) -> Any:
    return value.reshape(1) if isinstance(value, Core) and not value.ndim else value


def _without_first(result: Any) -> Any:
    if isinstance(result, Pair):
        return Pair(*map(_without_first, result))
    return result.reshape(result.shape[1:]) if result.ndim else result


class Computing(Core):
    """Everything that is neither element by element nor a view."""

    def _reduce(self, name: str, dim: Axes, keepdim: bool, **attrs: Any) -> Tensor:
        axes = normalize_axes(
            name, dim if dim is None or isinstance(dim, int) else several_axes(name, dim) or None, self.ndim
        )
        op = OPS[name]
        return record(op, (self,), op.bind({"axes": axes, "keepdim": keepdim, **attrs}))

    def _as(self, dtype: Any, compute: Callable[[Any], Any]) -> Any:
        """`compute` in the dtype that was asked for, whatever autocast would choose."""
        if dtype is None:
            return compute(self)
        dtype = as_dtype(dtype)
        return compute(self._cast(dtype))._cast(dtype)

    def sum(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        """The sum of all elements, or along dimensions; of bools and integers in int64.  `dtype` is converted to first."""
        return self._as(dtype, lambda x: x._reduce("sum", dim, keepdim))

    def mean(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        """The mean of all elements, or along dimensions; of floating or complex numbers.  `dtype` is converted to first."""
        return self._as(dtype, lambda x: x._reduce("mean", dim, keepdim))

    def prod(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        """The product of all elements, or along dimensions; of bools and integers in int64.  `dtype` is converted to first."""
        return self._as(dtype, lambda x: x._reduce("prod", dim, keepdim))

    def amax(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        """The largest element of all, or along dimensions; equal ones share the gradient."""
        return self._reduce("max", dim, keepdim)

    def amin(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        """The smallest element of all, or along dimensions; equal ones share the gradient."""
        return self._reduce("min", dim, keepdim)

    def var(
        self, dim: Axes = None, correction: float | None = 1, keepdim: bool = False, unbiased: bool | None = None
    ) -> Tensor:
        """The variance of all elements, or along dimensions: squared distances from the mean, divided by their number less `correction`.

        `unbiased` is an older name of corrections 1 (True) and 0.
        """
        return self._spread("var", dim, correction, keepdim, unbiased)

    def std(
        self, dim: Axes = None, correction: float | None = 1, keepdim: bool = False, unbiased: bool | None = None
    ) -> Tensor:
        """The standard deviation: the root of ``var``, whose arguments it takes."""
        return self._spread("std", dim, correction, keepdim, unbiased)

    def _spread(self, name: str, dim: Any, correction: Any, keepdim: bool, unbiased: bool | None) -> Tensor:
        if isinstance(dim, bool):  # PyTorch's var(unbiased)
            dim, unbiased = None, dim
        if unbiased is not None or correction is None:
            correction = int(unbiased is not False)
        return self._reduce(name, dim, keepdim, correction=correction)

    def any(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        """Whether any element is not zero, of all or along dimensions (bool)."""
        return self._reduce("any", dim, keepdim)

    def all(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        """Whether no element is zero, of all or along dimensions (bool)."""
        return self._reduce("all", dim, keepdim)

    def logsumexp(self, dim: Axes, keepdim: bool = False) -> Tensor:
        """``log(sum(exp(x)))`` along dimensions, without overflow on the way."""
        x = self if self.dtype.kind in "fc" else self._cast(default_dtype())
        return x._reduce("logsumexp", dim, keepdim)

    def norm(self, p: Any = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        """``sum(abs(x) ** p) ** (1 / p)`` of all elements, or along dimensions; "fro" is p = 2."""
        if p is None or p == "fro":
            p = 2
        need_real("norm: p", p)
        return self._as(dtype, lambda x: x._reduce("norm", dim, keepdim, p=p))

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Where the largest element is (int64): along `dim`, or among all in row-major order; of equal ones the first."""
        return self._reduce("argmax", dim, keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Where the smallest element is (int64): along `dim`, or among all in row-major order; of equal ones the first."""
        return self._reduce("argmin", dim, keepdim)

    def max(self, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        """The largest element; with `dim`, (values, indices); with a tensor, the element-wise maximum."""
        return self._extreme("max", "argmax", "maximum", dim if other is None else other, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        """The smallest element; with `dim`, (values, indices); with a tensor, the element-wise minimum."""
        return self._extreme("min", "argmin", "minimum", dim if other is None else other, keepdim)

    def _extreme(self, reduce: str, arg: str, binary: str, dim: Any, keepdim: bool) -> Any:
        if isinstance(dim, Core):
            return record(OPS[binary], (self, dim), ())
        if dim is None:
            return self._reduce(reduce, None, False)
        index = self._reduce(arg, dim, True)
        axis = normalize_axis(reduce, dim, self.ndim)
        values = record(OPS["gather"], (self, index), (axis,)) if self.ndim else self
        if not keepdim and self.ndim:
            return Pair(values.squeeze(axis), index.squeeze(axis))
        return Pair(values, index)

    def softmax(self, dim: int, dtype: Any = None) -> Tensor:
        """``exp(x) / sum(exp(x))`` along `dim`."""
        axis = normalize_axis("softmax", dim, self.ndim)
        return self._as(dtype, lambda x: record(OPS["softmax"], (x,), (axis,)))

    def log_softmax(self, dim: int, dtype: Any = None) -> Tensor:
        """``x - log(sum(exp(x)))`` along `dim`."""
        axis = normalize_axis("log_softmax", dim, self.ndim)
        return self._as(dtype, lambda x: record(OPS["log_softmax"], (x,), (axis,)))

    @also_of_scalars
    def cumsum(self, dim: int, dtype: Any = None) -> Tensor:
        """Sums of the elements up to each one along `dim`."""
        return self._as(dtype, lambda x: x._scan("cumsum", dim))

    @also_of_scalars
    def cumprod(self, dim: int, dtype: Any = None) -> Tensor:
        """Products of the elements up to each one along `dim`."""
        return self._as(dtype, lambda x: x._scan("cumprod", dim))

    def _scan(self, name: str, dim: int) -> Tensor:
        op = OPS[name]
        return record(op, (self,), op.bind({"axis": normalize_axis(name, dim, self.ndim)}))

    def gather(self, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
        """The elements along `dim` at `index`, position by position."""
        axis = self._indexed("gather", dim, index)
        if self.ndim and (index.ndim == self.ndim or index.numel()):
            return record(OPS["gather"], (self, index), (axis,))
        if not index.numel():  # which PyTorch takes whatever its rank
            return full(index.shape, 0, dtype=self.dtype)
        if index.ndim > 1:
            raise ValueError(
                f"gather: an index of shape {tuple(map(int, index.shape))} does not fit a tensor of shape ()"
            )
        return record(OPS["gather"], (self.reshape(1), index.reshape(-1)), (0,)).reshape(index.shape)

    def _indexed(self, name: str, dim: int, index: Tensor) -> int:
        """The dimension that is indexed; positions out of range are refused, here or by the run that computes them."""
        axis = normalize_axis(name, dim, self.ndim)
        if not isinstance(index, Core):
            raise TypeError(f"{name}: the index is a tensor of integers, got a {type(index).__name__}")
        expect(index, self.shape[axis] if self.ndim else 1, of_dimension(axis, name))
        return axis

    @also_of_scalars
    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """The parts at the positions `index` (a vector of integers) along `dim`; IndexError for what is out of range."""
        axis = self._indexed("index_select", dim, index)
        if index.ndim > 1:
            raise ValueError(f"index_select: the index is a vector, got shape {tuple(map(int, index.shape))}")
        return record(OPS["take"], (self, index.reshape(-1)), (axis,))

    @also_of_scalars
    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """With the elements of `src` added at the positions `index` along `dim`; IndexError for what is out of range."""
        axis = self._indexed("scatter_add", dim, index)
        if self.dtype.kind == "b":
            return self.to(np.uint8).scatter_add(dim, index, src.to(np.uint8)).ne(0)
        return record(OPS["scatter_add"], (self, index, _as_large(src, index)), (axis,))

    @also_of_scalars
    def scatter(
        self, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
    ) -> Tensor:
        """With `src` (or one `value`) at `index` along `dim`; `reduce` adds to or multiplies what is there."""
        src = value if src is None else src
        if not isinstance(src, Core):
            src = full(index.shape, src, dtype=self.dtype)
        if reduce is not None:
            return self._combined(dim, index, src, reduce)
        axis = self._indexed("scatter", dim, index)
        return record(OPS["scatter"], (self, index, _as_large(src, index)), (axis,))

    def _combined(self, dim: int, index: Tensor, src: Tensor, reduce: str) -> Tensor:
        if reduce not in ("add", "multiply"):
            raise ValueError(f"scatter: reduce is None, 'add' or 'multiply', got {reduce!r}")
        return self.scatter_reduce(dim, index, src, "sum" if reduce == "add" else "prod")

    @also_of_scalars
    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """The positions (int64) that put the elements along `dim` in order; equal ones keep theirs, NaN counts as largest."""
        op = OPS["argsort"]
        return record(
            op, (self,), op.bind({"axis": normalize_axis("argsort", dim, self.ndim), "descending": descending})
        )

    @also_of_scalars
    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Pair:
        """(values in order along `dim`, their positions); equal ones keep their order, NaN counts as largest."""
        index = self.argsort(dim, descending)
        return Pair(record(OPS["gather"], (self, index), (normalize_axis("sort", dim, self.ndim),)), index)

    @also_of_scalars
    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
        """(the `k` largest or smallest values along `dim`, in order, their positions); ValueError where there are fewer."""
        d, k = normalize_axis("topk", dim, self.ndim), whole("topk: k", k, 0)
        if k > self.shape[d]:
            raise ValueError(f"topk: k={k} is more than the extent {int(self.shape[d])} of dimension {dim}")
        index = self.argsort(d, largest).narrow(d, 0, k)
        return Pair(record(OPS["gather"], (self, index), (d,)), index)

    def matmul(self, other: Tensor) -> Tensor:
        """The product of matrices (the last two dimensions; others are batches, broadcast) or vectors, as ``@``."""
        return record(OPS["matmul"], (self, other), ())

    # each takes tensors of its own rank only, and names its operand differently

    def mm(self, mat2: Tensor) -> Tensor:
        """The product of two matrices."""
        return self._product("mm", 2, mat2, 2)

    def bmm(self, mat2: Tensor) -> Tensor:
        """Products of matrices, (batch, n, m) times (batch, m, k)."""
        if self.ndim == mat2.ndim == 3 and self.shape[0] != mat2.shape[0]:
            raise ValueError(f"bmm: batches of one size are needed, got {int(self.shape[0])} and {int(mat2.shape[0])}")
        return self._product("bmm", 3, mat2, 3)

    def dot(self, tensor: Tensor) -> Tensor:
        """The sum of products of two vectors."""
        return self._product("dot", 1, tensor, 1)

    def mv(self, vec: Tensor) -> Tensor:
        """A matrix times a vector."""
        return self._product("mv", 2, vec, 1)

    def _product(self, name: str, rank: int, other: Tensor, rank_of_other: int) -> Tensor:
        if self.ndim != rank or other.ndim != rank_of_other:
            raise ValueError(
                f"{name}: tensors of {rank} and {rank_of_other} dimensions are needed, got {self.ndim} and {other.ndim}"
            )
        return record(OPS["matmul"], (self, other), ())

    def tril(self, diagonal: int = 0) -> Tensor:
        """The lower triangle of matrices, up to the given diagonal (0 the main one, above it positive); zeros elsewhere."""
        return record(OPS["tril"], (self,), (whole("tril: diagonal", diagonal),))

    def triu(self, diagonal: int = 0) -> Tensor:
        """The upper triangle of matrices, from the given diagonal on (0 the main one, above it positive); zeros elsewhere."""
        return record(OPS["triu"], (self,), (whole("triu: diagonal", diagonal),))

    def equal(self, other: Tensor) -> bool:
        """Whether shapes and all elements are equal; reads both."""
        return tuple(self.shape) == tuple(other.shape) and bool((self == other).all())

    def allclose(self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        """Whether all elements are within ``atol + rtol * abs(other)`` of the other's; reads both."""
        return bool(np.allclose(self.numpy(), other.numpy(), rtol, atol, equal_nan))


def _as_large(src: Tensor, index: Tensor) -> Tensor:
    """As much of `src` as the index has positions for."""
    if src.ndim != index.ndim or all(n <= d for n, d in zip(src.shape, index.shape)):
        return src
    return src[tuple(slice(0, n) for n in index.shape)]
