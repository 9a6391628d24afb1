"""Methods that compute and have arguments of their own: reductions, scans, products, gathers, sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lezero.arguments import need_real, whole
from lezero.graph.dtype import as_dtype
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
        return self._as(dtype, lambda x: x._reduce("sum", dim, keepdim))

    def mean(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        return self._as(dtype, lambda x: x._reduce("mean", dim, keepdim))

    def prod(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        return self._as(dtype, lambda x: x._reduce("prod", dim, keepdim))

    def amax(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("max", dim, keepdim)

    def amin(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("min", dim, keepdim)

    def var(
        self, dim: Axes = None, correction: float = 1, keepdim: bool = False, unbiased: bool | None = None
    ) -> Tensor:
        return self._reduce("var", dim, keepdim, correction=correction if unbiased is None else int(unbiased))

    def std(
        self, dim: Axes = None, correction: float = 1, keepdim: bool = False, unbiased: bool | None = None
    ) -> Tensor:
        return self._reduce("std", dim, keepdim, correction=correction if unbiased is None else int(unbiased))

    def any(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("any", dim, keepdim)

    def all(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("all", dim, keepdim)

    def logsumexp(self, dim: Axes, keepdim: bool = False) -> Tensor:
        return self._reduce("logsumexp", dim, keepdim)

    def norm(self, p: Any = 2, dim: Axes = None, keepdim: bool = False) -> Tensor:
        if p == "fro":
            p = 2
        need_real("norm: p", p)
        return self._reduce("norm", dim, keepdim, p=p)

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return self._reduce("argmax", dim, keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return self._reduce("argmin", dim, keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The largest element; with `dim`, (values, indices); with a tensor, the element-wise maximum."""
        return self._extreme("max", "argmax", "maximum", dim, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The smallest element; with `dim`, (values, indices); with a tensor, the element-wise minimum."""
        return self._extreme("min", "argmin", "minimum", dim, keepdim)

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
        axis = normalize_axis("softmax", dim, self.ndim)
        return self._as(dtype, lambda x: record(OPS["softmax"], (x,), (axis,)))

    def log_softmax(self, dim: int, dtype: Any = None) -> Tensor:
        axis = normalize_axis("log_softmax", dim, self.ndim)
        return self._as(dtype, lambda x: record(OPS["log_softmax"], (x,), (axis,)))

    def cumsum(self, dim: int) -> Tensor:
        op = OPS["cumsum"]
        return record(op, (self,), op.bind({"axis": normalize_axis("cumsum", dim, self.ndim)}))

    def cumprod(self, dim: int) -> Tensor:
        op = OPS["cumprod"]
        return record(op, (self,), op.bind({"axis": normalize_axis("cumprod", dim, self.ndim)}))

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """The elements along `dim` at `index`, position by position."""
        return record(OPS["gather"], (self, index), (self._indexed("gather", dim, index),))

    def _indexed(self, name: str, dim: int, index: Tensor) -> int:
        """The dimension that is indexed; positions out of range are refused, here or by the run that computes them."""
        axis = normalize_axis(name, dim, self.ndim)
        if not isinstance(index, Core):
            raise TypeError(f"{name}: the index is a tensor of integers, got a {type(index).__name__}")
        if self.ndim:
            expect(index, self.shape[axis], of_dimension(axis, name))
        return axis

    take_along_dim = lambda self, indices, dim: self.gather(dim, indices)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        return record(OPS["take"], (self, index), (self._indexed("index_select", dim, index),))

    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        return record(OPS["scatter_add"], (self, index, src), (self._indexed("scatter_add", dim, index),))

    def scatter(self, dim: int, index: Tensor, src: Any) -> Tensor:
        if not isinstance(src, Core):
            src = full(index.shape, src, dtype=self.dtype)
        return record(OPS["scatter"], (self, index, src), (self._indexed("scatter", dim, index),))

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        op = OPS["argsort"]
        return record(
            op, (self,), op.bind({"axis": normalize_axis("argsort", dim, self.ndim), "descending": descending})
        )

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Pair:
        index = self.argsort(dim, descending)
        return Pair(
            record(OPS["gather"], (self, index), (normalize_axis("sort", dim, self.ndim),)) if self.ndim else self,
            index,
        )

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
        d, k = normalize_axis("topk", dim, self.ndim), whole("topk: k", k, 0)
        if k > (self.shape[d] if self.ndim else 1):
            raise ValueError(f"topk: k={k} is more than the extent {int(self.shape[d])} of dimension {dim}")
        index = self.argsort(d, largest).narrow(d, 0, k)
        return Pair(record(OPS["gather"], (self, index), (d,)), index)

    def matmul(self, other: Tensor) -> Tensor:
        return record(OPS["matmul"], (self, other), ())

    mm = bmm = dot = mv = matmul

    def tril(self, diagonal: int = 0) -> Tensor:
        return record(OPS["tril"], (self,), (whole("tril: diagonal", diagonal),))

    def triu(self, diagonal: int = 0) -> Tensor:
        return record(OPS["triu"], (self,), (whole("triu: diagonal", diagonal),))

    def equal(self, other: Tensor) -> bool:
        return tuple(self.shape) == tuple(other.shape) and bool((self == other).all())

    def allclose(self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        return bool(np.allclose(self.numpy(), other.numpy(), rtol, atol, equal_nan))
