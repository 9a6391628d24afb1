"""Functions of the standard that make tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from lezero import rearranged
from lezero.array_api.operands import need_device, need_tensor
from lezero.graph import dtype as dt
from lezero.ops.base import REGISTRY as OPS
from lezero.runtime.recorder import record
from lezero.tensor import Tensor, exchange
from lezero.tensor import creation as _t

Shape = int | tuple[int, ...]


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """`obj` as a tensor: a number, nested sequences, an array, what has a buffer or DLPack, or a tensor.

    Parameters
    ----------
    copy : bool
        True always copies.  None copies what is no tensor of that dtype already.  False never does: of a NumPy array (or what
        has a buffer) in row-major order the memory is shared, and it must not be written to while the tensor is in use.

    Raises
    ------
    ValueError
        With ``copy=False``, where a copy is needed.
    """
    need_device("asarray", device)
    dtype = None if dtype is None else dt.as_dtype(dtype)
    if not isinstance(obj, Tensor):
        if copy is False:
            return exchange.aliased(obj, dtype)
        if not hasattr(obj, "__dlpack__") or isinstance(obj, (np.ndarray, np.generic)):
            return _t.tensor(obj, dtype=dtype)
        obj, copy = exchange.from_dlpack(obj, copy=True), None
    if dtype is None or obj.dtype is dtype:
        return obj.clone() if copy else obj
    if copy is False:
        raise ValueError(f"array_api.asarray: {obj.dtype.name} cannot become {dtype.name} without a copy")
    return obj._cast(dtype)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """See ``lezero.from_dlpack``."""
    return exchange.from_dlpack(x, device=device, copy=copy)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """start, start + step, … before `stop`; int64, or the default floating dtype where one of them is a float."""
    need_device("arange", device)
    if stop is None:
        start, stop = 0, start
    if (stop - start) * step < 0:  # nothing, where PyTorch refuses
        stop = start
    return _t.arange(start, stop, step, dtype=dtype)


def linspace(
    start: complex, stop: complex, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """`num` evenly spaced numbers from `start` to `stop`, which is the last of them or, without `endpoint`, would be the next."""
    need_device("linspace", device)
    if isinstance(start, complex) or isinstance(stop, complex):
        dtype = dt.default_dtype().to_complex() if dtype is None else dt.as_dtype(dtype)
        parts = ((z.real, w.real) for z, w in ((start, stop), (start * -1j, stop * -1j)))
        real, imag = (linspace(a, b, num, dtype=dtype.to_real(), endpoint=endpoint) for a, b in parts)
        return record(OPS["complex"], (real, imag), ())
    if endpoint:
        return _t.linspace(start, stop, num, dtype=dtype)
    return _t.linspace(start, stop, num + 1, dtype=dtype)[:num]


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere."""
    need_device("eye", device)
    rows, columns = _t.arange(n_rows).unsqueeze(1), _t.arange(n_rows if n_cols is None else n_cols)
    return (columns - rows == k)._cast(dt.default_dtype() if dtype is None else dt.as_dtype(dtype))


def full(shape: Shape, fill_value: complex, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`fill_value` everywhere, in its default dtype unless told otherwise."""
    need_device("full", device)
    return _t.full(shape, fill_value, dtype=dtype)


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    need_device("zeros", device)
    return _t.zeros(shape, dtype=dtype)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    need_device("ones", device)
    return _t.ones(shape, dtype=dtype)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros: there is no uninitialised memory to be seen."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Tensor, /, fill_value: complex, *, dtype: Any = None, device: Any = None) -> Tensor:
    need_device("full_like", device)
    return _t.full(tuple(need_tensor("full_like", x).shape), fill_value, dtype=dtype or x.dtype)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros: there is no uninitialised memory to be seen."""
    return full_like(x, 0, dtype=dtype, device=device)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinates of all points of a grid; "xy" has the first vector along the second dimension, "ij" along the first."""
    return rearranged.meshgrid(*arrays, indexing=indexing)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Matrices with zeros above the k-th diagonal."""
    return need_tensor("tril", x).tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Matrices with zeros below the k-th diagonal."""
    return need_tensor("triu", x).triu(k)
