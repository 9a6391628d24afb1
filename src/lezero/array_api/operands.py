"""What the functions of this package take: tensors and Python numbers of one dtype, axes, devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from lezero.graph import dtype as dt
from lezero.graph.place import Device
from lezero.ops.base import normalize_axes, several_axes
from lezero.tensor import Tensor

Axes = int | tuple[int, ...] | None
CPU = Device("cpu")


def need_tensor(name: str, x: Any) -> Tensor:
    """`x` itself, if it is a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"array_api.{name}: a tensor is needed, got a {type(x).__name__}")
    return x


def promoted(name: str, *operands: Any) -> list[Any]:
    """`operands` with the tensors among them cast to the dtype they promote to; one of them is a tensor.

    In the standard a 0-d array counts like any other; among a tensor's operators it counts by its category only, as in PyTorch.
    Python numbers stay what they are and count by category either way.
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if not tensors:
        raise TypeError(f"array_api.{name}: one of the operands must be a tensor")
    dtype = functools.reduce(dt.promote, (t.dtype for t in tensors))
    return [x._cast(dtype) if isinstance(x, Tensor) else number(name, x) for x in operands]


def number(name: str, x: Any) -> Any:
    """A Python number; of NumPy's scalars the number they hold."""
    if isinstance(x, np.generic):
        return x.item()
    if not isinstance(x, (bool, int, float, complex)):
        raise TypeError(f"array_api.{name}: tensors and Python numbers are needed, got a {type(x).__name__}")
    return x


def need_device(name: str, device: Any) -> None:
    """Raise for a device that is none of `__array_namespace_info__().devices()`."""
    if device is not None and device != CPU:
        raise ValueError(f"array_api.{name}: there is no device {device!r} here, only 'cpu'")


def over(name: str, x: Tensor, axis: Axes, keepdims: bool, reduce: Callable[[Tensor, Any, bool], Tensor]) -> Tensor:
    """`reduce(x, dims, keepdims)` over `axis`; over no axes, which a reduction takes for all, every element by itself."""
    need_tensor(name, x)
    if axis is None:
        return reduce(x, None, keepdims)
    axes = normalize_axes(name, several_axes(name, axis), x.ndim)
    return reduce(x, axes, keepdims) if axes else reduce(x.unsqueeze(-1), (x.ndim,), False)


def accumulated(dtype: dt.DType) -> dt.DType:
    """What sums and products are in: integers at least as wide as the default ones."""
    return {"b": dt.int64, "i": dt.int64, "u": dt.uint64}.get(dtype.kind, dtype)
