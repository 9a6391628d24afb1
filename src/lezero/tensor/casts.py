"""Conversions named after the dtype they convert to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lezero.graph import dtype as dt
from lezero.tensor.core import Core

if TYPE_CHECKING:
    from lezero.tensor import Tensor


def _to(name: str, dtype: dt.DType) -> Callable[[Core], Tensor]:
    def method(self: Core) -> Tensor:
        return self._cast(dtype)

    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    method.__doc__ = f"The values as {dtype.name}."
    return method


class Casts(Core):
    """``x.float()``, ``x.long()`` and their like."""

    double, half, bfloat16 = _to("double", dt.float64), _to("half", dt.float16), _to("bfloat16", dt.bfloat16)
    long, short, char, byte = _to("long", dt.int64), _to("short", dt.int16), _to("char", dt.int8), _to("byte", dt.uint8)
    bool, int, float = _to("bool", dt.bool_), _to("int", dt.int32), _to("float", dt.float32)
