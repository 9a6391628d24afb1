"""Tensors that a module owns: trained ones (Parameter) and kept ones (Buffer)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from lezero.graph.dtype import as_dtype, default_dtype
from lezero.tensor import Tensor, empty, from_numpy, make_parameter, no_grad, tensor
from lezero.tensor.creation import _check_device, _from_array


def constant_tensor(array: np.ndarray) -> Tensor:
    """A realised tensor with an array's values, whose extents are never symbols of a recording."""
    return make_parameter(Tensor, from_numpy(array), False)


def new_parameter(*shape: int, device: Any = None, dtype: Any = None) -> Parameter:
    """A parameter of zeros for an initialiser to write; realised, so that making a model runs nothing."""
    return Parameter(new_buffer(*shape, device=device, dtype=dtype))


def new_buffer(*shape: int, fill: float = 0.0, device: Any = None, dtype: Any = None) -> Tensor:
    """A tensor for ``register_buffer``, with `fill` everywhere."""
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape):
        raise ValueError(f"the sizes of a layer are ints, 0 or more; a parameter of shape {shape} cannot be made")
    _check_device(device)
    array = np.zeros(shape, (default_dtype() if dtype is None else as_dtype(dtype)).numpy)
    if fill:  # zeros that nobody has touched take no memory until an initialiser's run replaces them
        array[...] = fill
    return make_parameter(Tensor, _from_array(array), False)


def clear_grads(tensors: Iterable[Tensor], set_to_none: bool) -> None:
    """Drop the gradients of `tensors`, or write zeros into those that are there, where whoever holds them sees it."""
    for t in tensors:
        if set_to_none:
            t.grad = None
        elif (grad := t.grad) is not None:
            if grad.is_leaf:
                grad.requires_grad_(False)
            with no_grad():
                grad.zero_()


class Parameter(Tensor):
    """A tensor that is trained: assigned to an attribute of a Module, it is registered there.

    Parameters
    ----------
    data : Tensor or array
        The initial value; a Tensor is shared, not copied.
    requires_grad : bool
        Whether gradients are gathered in ``.grad``; False freezes it.
    """

    def __init__(self, data: Any = None, requires_grad: bool = True):
        data = _as_tensor(data)
        if requires_grad and not data.dtype.differentiable:
            raise RuntimeError(
                f"Parameter: only floating and complex tensors are trained, this one is {data.dtype.name}"
            )
        self.__dict__.update(make_parameter(Tensor, data, requires_grad).__dict__)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """A tensor that belongs to a module's state and is not trained, registered by assigning it.

    persistent : whether ``state_dict`` holds it.
    """

    persistent: bool

    def __init__(self, data: Any = None, *, persistent: bool = True):
        self.__dict__.update(make_parameter(Tensor, _as_tensor(data), False).__dict__)
        self.persistent = persistent


def _as_tensor(data: Any) -> Tensor:
    if data is None:
        return empty(0)
    return data if isinstance(data, Tensor) else tensor(data)
