"""Casts from and to types that tensors do not have: strings, and floating-point and integer types of 8, 4 and 2 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from lezero.onnx.registry import on_host


def cast(x: Any, dtype: np.dtype, to: Any, saturate: bool, round_mode: str) -> np.ndarray:
    """`x` as an array of another type; `saturate` and `round_mode` are the operator's attributes."""
    array = on_host(x)
    if dtype.kind in "OSU":
        return _to_strings(array)
    if array.dtype == object:
        return np.array([_number(v) for v in array.flat]).astype(dtype).reshape(array.shape)
    return array.astype(dtype)


def _to_strings(array: np.ndarray) -> np.ndarray:
    return np.array([str(v) for v in array.flat], object).reshape(array.shape)


def _number(text: Any) -> Any:
    return float(text) if isinstance(text, str) else text


_ = ml_dtypes
