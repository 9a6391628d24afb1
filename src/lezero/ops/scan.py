"""Running results along one axis.

A :class:`Scan` is described by ``start(code)``, the state before the first element as a loop-IR constant, and
``step(state, *elements)``, the next one; the result holds every state.  ``reverse`` runs from the end.
The state has the result's dtype (half precision: float32).
Where states can be joined like elements, whatever their values, `reduction` names how: what any stretch of elements comes to
is a reduction of them, and ``step(state, that)`` is the state behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lezero.graph.dtype import int64
from lezero.loops.ir import Value, call, const
from lezero.ops.base import Opaque, op
from lezero.ops.comparison import isnan, where
from lezero.ops.creation import arange, zeros_like
from lezero.ops.rules import along, shown, wide
from lezero.ops.rules import conj as conjugate
from lezero.ops.shaping import expand
from lezero.ops.slicing import pad


class Scan(Opaque):
    """See the module."""

    attrs = {"axis": 0, "reverse": False}
    start: Callable
    step: Callable
    reduction: str | None = None


def shifted(x: Any, axis: int, reverse: bool, fill: float = 0) -> Any:
    """Each element replaced by the one a scan meets just before it, the first by `fill`."""
    ahead = tuple(int(a == axis) for a in range(len(x.shape)))
    back = tuple(-k for k in ahead)
    return pad(x, before=back, after=ahead, fill=fill) if reverse else pad(x, before=ahead, after=back, fill=fill)


def exclusive_cumprod(x: Any, axis: int, reverse: bool = False) -> Any:
    """For each element the product of those before it (1 for the first)."""
    return cumprod(shifted(x, axis, reverse, fill=1), axis=axis, reverse=reverse)


def _along(ufunc: Any, x: np.ndarray, axis: int, reverse: bool, dtype: Any = None) -> np.ndarray:
    x = np.flip(x, axis) if reverse else x
    y = ufunc.accumulate(x, axis=axis, dtype=dtype)
    return np.flip(y, axis) if reverse else y


def _summed(x: np.ndarray) -> Any:
    return x.dtype if x.dtype.kind in "fc" else np.int64


def _has_axis(name: str, x: Any, axis: int) -> None:
    if not 0 <= axis < len(x.shape):
        raise IndexError(f"{name}: dimension {axis} is out of range for shape {shown(x.shape)}")


@op("cumsum", onnx="CumSum")
class cumsum(Scan):
    """Running sums; integers and bools in int64."""

    reduction = "sum"

    def infer(x, axis, reverse):
        _has_axis("cumsum", x, axis)
        return x.shape, x.dtype if x.dtype.kind in "fc" else int64

    def start(code):
        return const(0, code)

    def step(state, x):
        return call("add", state, x)

    def reference(x, axis, reverse):
        x = wide(x)
        return _along(np.add, x, axis, reverse, _summed(x))

    def gradient(dy, y, x, axis, reverse):
        return cumsum(dy, axis=axis, reverse=not reverse)


@op("cumprod")
class cumprod(Scan):
    """Running products; integers and bools in int64.  The gradient holds for zeros too, to any order."""

    keeps = ("x",)

    def infer(x, axis, reverse):
        _has_axis("cumprod", x, axis)
        return x.shape, x.dtype if x.dtype.kind in "fc" else int64

    def start(code):
        return const(1, code)

    def step(state, x):
        return call("mul", state, x)

    def reference(x, axis, reverse):
        x = wide(x)
        return _along(np.multiply, x, axis, reverse, _summed(x))

    def gradient(dy, y, x, axis, reverse):
        # dx_k = (product before k) * r_k, where r_k = dy_k + x_{k+1} r_{k+1} gathers what comes after
        x = conjugate(x)
        after = linear_scan(shifted(x, axis, not reverse), dy, axis=axis, reverse=not reverse)
        return exclusive_cumprod(x, axis, reverse) * after


@op("linear_scan")
class linear_scan(Scan):
    """s_k = a_k * s_{k-1} + b_k, from s = 0: a first-order linear recurrence.

    Parameters
    ----------
    a, b : of one shape and one floating or complex dtype
    """

    keeps = ("a", "y")

    def infer(a, b, axis, reverse):
        _has_axis("linear_scan", a, axis)
        if tuple(a.shape) != tuple(b.shape) or a.dtype is not b.dtype:
            raise ValueError(
                f"linear_scan: one shape and dtype are needed, got {a.dtype.name}{list(a.shape)} and {b.dtype.name}{list(b.shape)}"
            )
        return a.shape, a.dtype

    def start(code):
        return const(0, code)

    def step(state, a, b):
        return call("add", call("mul", a, state), b)

    def reference(a, b, axis, reverse):
        a, b = (np.moveaxis(wide(v), axis, 0) for v in (a, b))
        y, state = np.empty_like(b), np.zeros_like(b[0]) if len(b) else None
        for k in reversed(range(len(b))) if reverse else range(len(b)):
            state = y[k] = a[k] * state + b[k]
        return np.moveaxis(y, 0, axis)

    def gradient(dy, y, a, b, axis, reverse):
        db = linear_scan(shifted(conjugate(a), axis, not reverse), dy, axis=axis, reverse=not reverse)
        return db * conjugate(shifted(y, axis, reverse)), db


def _lowest(code: str) -> Value:
    if code == "bool":
        return const(False, code)
    if code[0] in "iu":
        return const(0 if code[0] == "u" else -(1 << (int(code[1:]) - 1)), code)
    return const(float("-inf"), code)


def _highest(code: str) -> Value:
    if code == "bool":
        return const(True, code)
    if code[0] in "iu":
        return const((1 << (int(code[1:]) - (code[0] == "i"))) - 1, code)
    return const(float("inf"), code)


@op("cummax")
class cummax(Scan):
    """The greatest so far; NaN from the first NaN on.  The last of equal ones gets the gradient."""

    reduction = "max"
    keeps = ("x", "y")

    def infer(x, axis, reverse):
        _has_axis("cummax", x, axis)
        return x.shape, x.dtype

    def start(code):
        return _lowest(code)

    def step(state, x):
        return call("max", state, x)

    def reference(x, axis, reverse):
        return _along(np.maximum, wide(x), axis, reverse)

    def gradient(dy, y, x, axis, reverse):
        return _to_extremes(dy, y, x, axis, reverse)


@op("cummin")
class cummin(Scan):
    """The least so far; NaN from the first NaN on.  The last of equal ones gets the gradient."""

    reduction = "min"
    keeps = ("x", "y")

    def infer(x, axis, reverse):
        _has_axis("cummin", x, axis)
        return x.shape, x.dtype

    def start(code):
        return _highest(code)

    def step(state, x):
        return call("min", state, x)

    def reference(x, axis, reverse):
        return _along(np.minimum, wide(x), axis, reverse)

    def gradient(dy, y, x, axis, reverse):
        return _to_extremes(dy, y, x, axis, reverse)


def extreme_positions(y: Any, x: Any, axis: int, reverse: bool = False) -> Any:
    """Where the running extreme `y` of `x` was met last: the indices that ``torch.cummax`` and ``cummin`` give (int64)."""
    n = x.shape[axis]
    place = arange(start=0, stop=n, step=1, dtype=int64, like=x)
    place = expand(along(place, axis, len(x.shape)), shape=tuple(x.shape))
    hit = (x == y) | isnan(x)
    if reverse:
        return cummin(where(hit, place, n - 1), axis=axis, reverse=True)
    return cummax(where(hit, place, 0), axis=axis)


def _to_extremes(dy: Any, y: Any, x: Any, axis: int, reverse: bool) -> Any:
    from lezero.ops.indexing import scatter_add

    return scatter_add(zeros_like(x), extreme_positions(y, x, axis, reverse), dy, axis=axis)
