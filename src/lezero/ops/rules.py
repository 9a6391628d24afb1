"""Small things that rules of several operations share: precision, axes, messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

import numpy as np

from lezero.graph.dtype import DType, float32
from lezero.ops.base import REGISTRY, promoted

_HALF = ("float16", "bfloat16")


def wide_dtype(dtype: DType) -> DType:
    """The dtype a computation on `dtype` is carried out and accumulated in: float32 for the half types."""
    return float32 if dtype.name in _HALF else dtype


def widen(x: Any) -> Any:
    """An operand in :func:`wide_dtype`, so that a chain of operations rounds to half precision once, at its end."""
    return REGISTRY["cast"](x, dtype=float32) if x.dtype.name in _HALF else x


def narrow(x: Any, dtype: DType) -> Any:
    """The operand in `dtype`: the end of what :func:`widen` began."""
    return x if x.dtype is dtype else REGISTRY["cast"](x, dtype=dtype)


def rounded_once(rule: Callable) -> Callable:
    """A ``decompose`` rule computing in float32 where the operands are of half precision; plain numbers are not rounded to that."""

    @wraps(rule)
    def decompose(*operands: Any, **attrs: Any) -> Any:
        y = rule(*map(widen, operands), **attrs)
        dtype = promoted(*operands)
        return y if wide_dtype(dtype) is dtype else narrow(y, dtype)

    decompose.widens = True  # type: ignore[attr-defined]
    return decompose


def gradient_rounded_once(rule: Callable) -> Callable:
    """A ``gradient`` rule of element-wise operations computing in float32 where the gradient is of half precision."""

    @wraps(rule)
    def gradient(dy: Any, y: Any, *operands: Any, **attrs: Any) -> Any:
        if wide_dtype(dy.dtype) is dy.dtype:
            return rule(dy, y, *operands, **attrs)
        found = rule(widen(dy), widen(y), *map(widen, operands), **attrs)
        if isinstance(found, tuple):
            return tuple(narrow(g, dy.dtype) for g in found)
        return narrow(found, dy.dtype)

    return gradient


def wide(x: np.ndarray) -> np.ndarray:
    """:func:`widen` for NumPy arrays, in reference rules (which are rounded to the result's dtype by their caller)."""
    return x.astype(np.float32) if x.dtype.name in _HALF else x


def conj(x: Any) -> Any:
    """The complex conjugate; real operands as they are."""
    return REGISTRY["conj"](x) if x.dtype.is_complex else x


def count(x: Any, axes: Sequence[int] | None = None) -> int:
    """How many elements `x` has along `axes` (all of them by default)."""
    return prod(x.shape if axes is None else (x.shape[a] for a in axes))


def unsqueeze(x: Any, axis: int) -> Any:
    """A dimension of extent 1 put in at the non-negative position `axis`."""
    return REGISTRY["reshape"](x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


def along(x: Any, axis: int, ndim: int) -> Any:
    """A 1-D operand laid along one axis of `ndim`, to broadcast over the others."""
    return REGISTRY["reshape"](x, shape=(1,) * axis + tuple(x.shape) + (1,) * (ndim - axis - 1))


def shown(shape: Sequence[int]) -> str:
    """A shape in an error message."""
    return str(tuple(int(d) for d in shape))


def need_floating(name: str, *nodes: Any) -> None:
    """Raise unless every input is of one and the same floating dtype."""
    dtypes = [n.dtype for n in nodes]
    if not dtypes[0].is_floating_point or any(d is not dtypes[0] for d in dtypes):
        listed = ", ".join(d.name for d in dtypes)
        raise TypeError(
            f"{name}: inputs of one floating dtype are needed (float16, bfloat16, float32, float64), got {listed}"
        )
