"""Reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.registry import Context, dimension, integers, on_device, operator
from lezero.tensor import Tensor


def _reduction(name: str, compute: Callable[[Tensor, tuple[int, ...], bool], Tensor], on_host: Any, since: int) -> None:
    """Up to version `since` - 1 the axes are an attribute, from it on an operand."""

    def call(x: Any, axes: list[int] | None, keep: bool, nothing: bool) -> Any:
        if axes is None or not len(axes):
            if nothing:
                return compute(on_device(x), (), keep)
            axes = list(range(x.ndim))
        axes = [dimension(int(a), x.ndim) for a in axes]
        if isinstance(x, np.ndarray) and on_host is not None:
            return np.asarray(on_host(x, axis=tuple(axes), keepdims=keep))
        return compute(on_device(x), tuple(axes), keep)

    @operator(name, 1, host=True)
    def by_attribute(_: Context, x: Any, *, axes: list[int] | None = None, keepdims: int = 1) -> Any:
        return call(x, axes, bool(keepdims), False)

    @operator(name, since, host=True)
    def by_operand(_: Context, x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return call(x, None if axes is None else integers(axes), bool(keepdims), bool(noop_with_empty_axes))


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if any(x.shape[a] == 0 for a in axes):
        return lz.log(_sum(x, axes, keep))  # of nothing: minus infinity
    return lz.logsumexp(x, dim=axes, keepdim=keep) if axes else x


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return lz.sum(x, dim=axes, keepdim=keep, dtype=x.dtype) if axes else x


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for a in sorted(axes, reverse=True):
        x = lz.prod(x, dim=a, keepdim=keep, dtype=x.dtype)
    return x


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if not axes:
        return x
    return lz.mean(x.float() if not x.dtype.is_floating_point else x, dim=axes, keepdim=keep).to(x.dtype)


def _extreme(f: Callable[..., Tensor]) -> Callable[[Tensor, tuple[int, ...], bool], Tensor]:
    def compute(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        if not axes:
            return x
        if any(x.shape[a] == 0 for a in axes):
            least = f is lz.amin
            if x.dtype.is_floating_point:
                value: Any = float("inf") if least else float("-inf")
            elif x.dtype is lz.bool_:
                value = least
            else:
                value = lz.iinfo(x.dtype).max if least else lz.iinfo(x.dtype).min
            shape = [1 if k in axes else d for k, d in enumerate(x.shape) if keep or k not in axes]
            return lz.full(tuple(shape), value, dtype=x.dtype)
        if x.dtype is lz.bool_:
            return f(x.to(lz.uint8), dim=axes, keepdim=keep).to(lz.bool_)
        return f(x, dim=axes, keepdim=keep)

    return compute


_reduction("ReduceSum", _sum, np.sum, 13)
_reduction("ReduceProd", _product, np.prod, 18)
_reduction("ReduceMean", _mean, None, 18)
_reduction("ReduceMax", _extreme(lz.amax), np.max, 18)
_reduction("ReduceMin", _extreme(lz.amin), np.min, 18)
_reduction("ReduceL1", lambda x, axes, keep: _sum(lz.abs(x), axes, keep), None, 18)
_reduction("ReduceSumSquare", lambda x, axes, keep: _sum(x * x, axes, keep), None, 18)
_reduction("ReduceL2", lambda x, axes, keep: lz.sqrt(_sum(x * x, axes, keep)), None, 18)
_reduction("ReduceLogSum", lambda x, axes, keep: lz.log(_sum(x, axes, keep)), None, 18)
_reduction("ReduceLogSumExp", _log_sum_exp, None, 18)


def _position(name: str, f: Callable[..., Tensor]) -> None:
    @operator(name)
    def call(_: Context, x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        axis = dimension(axis, x.ndim)
        if not select_last_index:
            return f(x, dim=axis, keepdim=bool(keepdims))
        return x.shape[axis] - 1 - f(lz.flip(x, (axis,)), dim=axis, keepdim=bool(keepdims))


_position("ArgMax", lz.argmax)
_position("ArgMin", lz.argmin)
