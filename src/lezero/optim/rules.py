"""What update rules written with ordinary operations share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from lezero.ops.elementwise import where
from lezero.ops.rules import narrow, widen


def update_rule(written: int) -> Callable[[Callable], Callable]:
    """A rule for ``Updates`` whose first `written` operands get the values it returns, each in the dtype it had.

    Half precision is computed in float32.
    """

    def decorate(rule: Callable) -> Callable:
        @wraps(rule)
        def new_values(*operands: Any) -> list[Any]:
            wides = [widen(x) if hasattr(x, "dtype") else x for x in operands]
            return [narrow(y, x.dtype) for x, y in zip(operands[:written], rule(*wides), strict=True)]

        return new_values

    return decorate


def lerp(start, end, weight):
    """From start to end; computed from the nearer one, so that both ends are exact."""
    gap = end - start
    return where(weight < 0.5, start + weight * gap, end - gap * (1 - weight))


def decayed(p, grad, decay, maximize):
    """The gradient to go down, with the weight decay in it."""
    return (-grad if maximize else grad) + decay * p
