"""Functions of tensors at the top level: ``lz.exp(x)`` for ``x.exp()``, and those that are no methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lezero import tensor as _t
from lezero.ops.base import REGISTRY as _OPS
from lezero.runtime.recorder import record as _record
from lezero.tensor import Tensor

_METHODS = (
    "abs neg sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc sigmoid floor ceil round trunc frac isnan isinf isfinite logical_not relu lgamma digamma real imag "
    "conj angle add sub mul div floor_divide remainder fmod eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and "
    "bitwise_or bitwise_xor atan2 copysign hypot logaddexp pow sum mean prod amax amin var std any all logsumexp norm argmax argmin "
    "max min softmax log_softmax cumsum cumprod gather index_select scatter_add scatter argsort sort topk matmul mm bmm dot mv tril "
    "triu clamp clip masked_fill reshape flatten permute transpose squeeze unsqueeze flip split chunk unbind movedim broadcast_to "
    "narrow select equal allclose lerp addcmul addcdiv numel ravel unflatten swapaxes t"
).split()

__all__ = [*_METHODS, "maximum", "minimum", "is_tensor", "outer"]


def _function(name: str) -> Callable:
    method = getattr(Tensor, name)

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Tensor):
            input = _t.tensor(input)
        return method(input, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = method.__doc__
    return call


globals().update({name: _function(name) for name in _METHODS if hasattr(Tensor, name)})
__all__ = [n for n in __all__ if n in globals() or n in ("maximum", "minimum", "is_tensor", "outer")]


def maximum(input: Any, other: Any) -> Tensor:
    """Element-wise; NaN if either is."""
    return _record(_OPS["maximum"], (input, other), ())


def minimum(input: Any, other: Any) -> Tensor:
    """Element-wise; NaN if either is."""
    return _record(_OPS["minimum"], (input, other), ())


def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Products of all elements of two vectors."""
    return a.reshape(-1, 1) * b.reshape(1, -1)
