"""Among NumPy's arrays and functions: what meets a tensor becomes one, so that gradients are not lost on the way."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from lezero.runtime.recording import STATE
from lezero.tensor.core import Core
from lezero.tensor.creation import tensor

_OPERATORS: dict[str, Callable] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "true_divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow,
    "matmul": operator.matmul, "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "bitwise_and": operator.and_, "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor, "invert": operator.invert, "negative": operator.neg, "absolute": operator.abs,
}  # fmt: skip
_FUNCTIONS = {
    name: name for name in """
    exp exp2 expm1 log log2 log10 log1p sqrt square reciprocal sin cos tan sinh cosh tanh sign floor ceil trunc isnan isinf
    isfinite logical_not logical_and logical_or logical_xor maximum minimum fmod copysign hypot logaddexp
    """.split()
} | {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "conjugate": "conj", "rint": "round",
}  # fmt: skip
"""NumPy's ufuncs and the functions here that compute the same."""


class Interop(Core):
    """What NumPy asks of a tensor."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """``np.exp(tensor)``, ``array + tensor`` and the like, as tensors; what is not there computes with arrays."""
        name = ufunc.__name__
        if method == "__call__" and not options:
            if name in _OPERATORS:
                return _OPERATORS[name](*map(_operand, inputs))
            if name in _FUNCTIONS:
                from lezero import functions

                return getattr(functions, _FUNCTIONS[name])(*map(_operand, inputs))
        return getattr(ufunc, method)(*map(_as_array, inputs), **options)


def _operand(value: Any) -> Any:
    """An array as a tensor, a scalar of NumPy as a Python number, which decides no dtype."""
    if isinstance(value, np.ndarray) and value.ndim:
        return from_array(value)
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value


def from_array(array: np.ndarray) -> Any:
    """An array that an operator met as a tensor."""
    if STATE.capture is not None:
        raise TypeError(
            "a NumPy array in a captured function: make it an argument, or a tensor outside of it with lz.tensor(array)"
        )
    return tensor(array)


def _as_array(value: Any) -> Any:
    if not isinstance(value, Core):
        return value
    if value.requires_grad and STATE.grad_mode:
        raise RuntimeError(
            "this function of NumPy has no gradient, and a tensor that needs one was given to it; say x.detach() to go on without"
        )
    return value.numpy()
