"""Calls of a model without gradients: recorded twice, and from then on run without interpreting the model again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

        def function(operands: Sequence[Any], numbers: Sequence[Number], training: bool) -> Any:
            return _called(method, operands, numbers)

        self._jitted = Jitted(function)
        self._seen: set[tuple[Number, ...]] = set()
        self._takes_numbers = self.refused = False
        self._lock = Lock()  # what was recorded is one thread's at a time

    def __call__(self, operands: Sequence[Any], training: bool) -> Any:
        """training : the module's mode, which another form is recorded for"""
        with self._lock:
            while not self.refused:
                try:
                    if self._takes_numbers:
                        return self._with_numbers(operands, training)
                    return self._jitted(tuple(operands), (), training)
                except CaptureError:
                    self._takes_numbers, self.refused = True, self._takes_numbers
        return _called(self._method, operands, ())

    def _with_numbers(self, operands: Sequence[Any], training: bool) -> Any:
        numbers = tuple([(k, array.dtype.str, array.item()) for k, array in _numbers(operands)])
        self._seen.add(numbers)
        if len(self._seen) > MAX_VARIANTS:
            raise CaptureError("too many numbers to hold forms for")
        rest = list(operands)
        for k, _, _ in numbers:
            rest[k] = None
        return self._jitted(tuple(rest), numbers, training)


def _called(
    method: WeakMethod[Callable[[Sequence[Any]], Any]], operands: Sequence[Any], numbers: Sequence[Number]
) -> Any:
    given = list(operands)
    for k, dtype, value in numbers:
        given[k] = np.array(value, dtype)
    function = method()
    assert function is not None  # it is called by the module that it is of
    return function(given)


def _numbers(operands: Sequence[Tensor]) -> Iterator[tuple[int, np.ndarray]]:
    """Which operands are single integers, and their values."""
    for k, value in enumerate(operands):
        if value._buffer is None and (value.ndim or value.dtype.kind not in "iub"):
            continue
        array = value._realized().array
        if not array.ndim and array.dtype.kind in "iub":
            yield k, array
