"""Functions of tensors at the top level: ``lz.exp(x)`` for ``x.exp()``, and those that are no methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lezero import composed as _composed
from lezero import methods as _methods
from lezero import numerics as _numerics
from lezero import placed as _placed
from lezero import rearranged as _rearranged
from lezero import special as _special
from lezero import spectra as _spectra
from lezero import tensor as _t
from lezero.ops.base import REGISTRY as _OPS
from lezero.runtime.recorder import record as _record
from lezero.tensor import Pair as _Pair
from lezero.tensor import Tensor
from lezero.tensor.writing import in_place as _write_in_place

_METHODS = """
abs neg sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh
cosh tanh asinh acosh atanh erf erfc sigmoid floor ceil round trunc frac isnan isinf isfinite logical_not relu
lgamma digamma real imag conj angle add sub mul div floor_divide remainder fmod eq ne lt le gt ge logical_and
logical_or logical_xor bitwise_and bitwise_or bitwise_xor atan2 copysign hypot logaddexp pow sum mean prod amax
amin var std any all logsumexp norm argmax argmin max min softmax log_softmax cumsum cumprod gather index_select
scatter_add scatter argsort sort topk matmul mm bmm dot mv tril triu clamp clip masked_fill reshape flatten
permute transpose squeeze unsqueeze flip split chunk unbind movedim broadcast_to narrow select equal allclose
lerp addcmul addcdiv numel ravel unflatten swapaxes t clone detach is_nonzero is_signed adjoint
""".strip()


def _function(name: str) -> Callable:
    method = getattr(Tensor, name)

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Tensor):
            input = _t.tensor(input)
        return method(input, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = method.__doc__
    return call


def _numpy_names(method: Callable) -> Callable:
    """`method`, which also takes NumPy's (and the array API standard's) names of its arguments, as PyTorch does.

    ``np.sum(tensor)`` and the like call the method of that name with an `out`, and more that is None.
    """

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            return _asked_by_numpy(method, args, kwargs)
        if kwargs:
            if "axis" in kwargs:
                kwargs["dim"] = kwargs.pop("axis")
            if "keepdims" in kwargs:
                kwargs["keepdim"] = kwargs.pop("keepdims")
        return method(*args, **kwargs)

    return call


def _asked_by_numpy(method: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.pop("out") is not None:
        raise TypeError(f"{method.__name__}: a tensor is computed anew; out= is not taken")
    if "ddof" in kwargs:
        kwargs["correction"] = kwargs.pop("ddof")
    renamed = {_RENAMED.get(name, name): value for name, value in kwargs.items() if value is not None}
    result = method(*args, **renamed)
    return result.values if isinstance(result, _Pair) else result


_RENAMED = {"axis": "dim", "keepdims": "keepdim"}
_WITH_AXIS = """
sum mean prod amax amin var std any all logsumexp norm argmax argmin max min softmax log_softmax cumsum cumprod
squeeze unsqueeze
""".split()
for _name in _WITH_AXIS:
    setattr(Tensor, _name, _numpy_names(getattr(Tensor, _name)))
globals().update({name: _function(name) for name in _METHODS.split() if hasattr(Tensor, name)})


def maximum(input: Any, other: Any) -> Tensor:
    """Element-wise; NaN if either is."""
    return _record(_OPS["maximum"], (input, other), ())


def minimum(input: Any, other: Any) -> Tensor:
    """Element-wise; NaN if either is."""
    return _record(_OPS["minimum"], (input, other), ())


def is_tensor(x: Any) -> bool:
    """Whether `x` is a Tensor."""
    return isinstance(x, Tensor)


# -- what is composed of other operations, and further names -----------------------------------------------------------

_ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "conj_physical": "conj", "divide": "div", "fix": "trunc", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "moveaxis": "movedim", "multiply": "mul", "negative": "neg",
    "not_equal": "ne", "subtract": "sub", "swapdims": "transpose",
}  # fmt: skip


_MODULES = (_composed, _rearranged, _placed, _numerics, _special, _spectra, _methods)


def _install() -> None:
    for module in _MODULES:
        for name in module.METHODS.split():
            if not hasattr(Tensor, name):
                setattr(Tensor, name, getattr(module, name))
        for name in module.IN_PLACE.split():
            setattr(Tensor, name + "_", _write_in_place(getattr(Tensor, name)))
    for name in ("cumprod", "cumsum", "scatter", "scatter_add", "tril", "triu"):
        setattr(Tensor, name + "_", _write_in_place(getattr(Tensor, name)))
    for alias, name in _ALIASES.items():
        setattr(Tensor, alias, getattr(Tensor, name))
        if hasattr(Tensor, name + "_"):
            setattr(Tensor, alias + "_", getattr(Tensor, name + "_"))
    Tensor.fill_diagonal_ = _write_in_place(_placed.fill_diagonal)  # type: ignore[attr-defined]


_install()
for _module in _MODULES:
    globals().update({name: getattr(_module, name) for name in _module.FUNCTIONS.split()})
    globals().update({name: _function(name) for name in _module.METHODS.split()})
globals().update({name: _function(name) for name in _ALIASES})
__all__ = [
    name
    for name in globals()
    if not name.startswith("_") and name not in ("Any", "Callable", "Tensor", "annotations", "functools")
]
