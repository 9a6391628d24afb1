"""Calls of a model without gradients: recorded twice, and from then on run without interpreting the model again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from weakref import WeakMethod

import numpy as np

from lezero.runtime.jit import MAX_VARIANTS, CaptureError, Jitted
from lezero.tensor import Tensor

Number = tuple[int, str, int]
"""Position of an operand, its dtype, and its value."""


class Captured:
    """A function of operands as ``lz.jit`` captures it, as far as it can be; otherwise called as it is.

    Where a value is read while the function is recorded (the condition of a branch, a number of iterations), operands that
    are single integers are given to it as host values, which the captured form then holds for.  Where that does not do, or
    they are others at every call, the function is called.

    refused : whether it was found that it cannot be captured
    """

    def __init__(self, method: WeakMethod[Callable[[Sequence[Any]], Any]]):
        self._method = method  # a circle would keep the weights until it is collected

        def function(operands: Sequence[Any], numbers: Sequence[Number]) -> Any:
            return _called(method, operands, numbers)

        self._jitted = Jitted(function)
        self._seen: set[tuple[Number, ...]] = set()
        self._takes_numbers = self.refused = False
        self._lock = Lock()  # what was recorded is one thread's at a time

    def __call__(self, operands: Sequence[Any]) -> Any:
        with self._lock:
            while not self.refused:
                try:
                    return self._with_numbers(operands) if self._takes_numbers else self._jitted(tuple(operands), ())
                except CaptureError:
                    self._takes_numbers, self.refused = True, self._takes_numbers
        return _called(self._method, operands, ())

    def _with_numbers(self, operands: Sequence[Any]) -> Any:
        numbers = tuple(number for k, value in enumerate(operands) for number in _number(k, value))
        self._seen.add(numbers)
        if len(self._seen) > MAX_VARIANTS:
            raise CaptureError("too many numbers to hold forms for")
        rest = list(operands)
        for k, _, _ in numbers:
            rest[k] = None
        return self._jitted(tuple(rest), numbers)


def _called(
    method: WeakMethod[Callable[[Sequence[Any]], Any]], operands: Sequence[Any], numbers: Sequence[Number]
) -> Any:
    given = list(operands)
    for k, dtype, value in numbers:
        given[k] = np.array(value, dtype)
    function = method()
    assert function is not None  # it is called by the module that it is of
    return function(given)


def _number(k: int, value: Any) -> tuple[Number, ...]:
    if not isinstance(value, Tensor) or value.ndim or value.dtype.kind not in "iub":
        return ()
    return ((k, value.dtype.name, value.item()),)
