"""Casts from and to types that tensors do not have: strings, and floating-point and integer types of 8, 4 and 2 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from lezero.onnx.registry import on_host

FLOAT8 = tuple(
    np.dtype(t)
    for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
)
FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)
POWERS = np.dtype(ml_dtypes.float8_e8m0fnu)
BITS = {np.dtype(getattr(ml_dtypes, f"{sign}int{n}")): n for sign in ("", "u") for n in (2, 4)}
"""How wide the integers of less than a byte are."""


def is_narrow(dtype: np.dtype) -> bool:
    return dtype in FLOAT8 or dtype in (FLOAT4, POWERS) or dtype in BITS


def cast(x: Any, dtype: np.dtype, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """`x` as an array of another type; `saturate` and `round_mode` are the operator's attributes."""
    array = on_host(x)
    if dtype.kind in "OSU":
        return _to_strings(array)
    if array.dtype == object:
        if dtype in (np.int32, np.int64) and not any(isinstance(v, str) for v in array.flat):
            return array  # extents, of which some may be symbols
        array = np.array([_number(v) for v in array.flat], _of_numbers(dtype)).reshape(array.shape)
    if dtype in FLOAT8:
        return _to_float8(array, dtype, saturate)
    return _to_powers(array, saturate, round_mode) if dtype == POWERS else array.astype(dtype)


def _to_float8(array: np.ndarray, dtype: np.dtype, saturate: bool) -> np.ndarray:
    if array.dtype.kind != "f":
        array = array.astype(np.float32)
    if saturate:
        most = float(ml_dtypes.finfo(dtype).max)
        array = array.clip(-most, most)
    with np.errstate(invalid="ignore"):
        return array.astype(dtype)


def _to_powers(array: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Powers of two from 2^-127 to 2^127, held as their exponents + 127; 255 is no number."""
    if round_mode not in ("up", "down", "nearest"):
        raise ValueError(f"round_mode is 'up', 'down' or 'nearest', not {round_mode!r}")
    array = array.astype(np.float64)
    fraction, exponent = np.frexp(array)  # array = fraction * 2^exponent, fraction in [0.5, 1)
    least = {"up": np.nextafter(0.5, 1), "nearest": 0.75, "down": 1.0}[round_mode]
    code = np.where(array == 0, -1, exponent - 1 + (fraction >= least) + 127)
    code = np.where(np.isinf(array), 255, code)
    code = code.clip(0, 254) if saturate else np.where((code < 0) | (code > 254), 255, code)
    return np.where(np.isnan(array), 255, code).astype(np.uint8).view(POWERS)


def _to_strings(array: np.ndarray) -> np.ndarray:
    return np.array([str(v) for v in array.flat], object).reshape(array.shape)


def _number(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


def _of_numbers(dtype: np.dtype) -> np.dtype:
    """In which type numbers are read from strings before they are made `dtype`."""
    return np.dtype(np.float64) if is_narrow(dtype) or dtype.kind == "V" else dtype


def same_bits(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The elements' bits taken for elements of another type of the same width."""
    width = {**BITS, FLOAT4: 4}
    have, want = (width.get(d, d.itemsize * 8) for d in (array.dtype, dtype))
    if have != want or array.dtype == object:
        raise ValueError(f"elements of {have} bits cannot be taken for {dtype.name} of {want}")
    return np.ascontiguousarray(array).view(dtype).reshape(array.shape)
