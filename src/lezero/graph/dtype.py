"""The table of element types, and how they promote (as in PyTorch, with Python scalars weak)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np


class DType:
    """An element type.

    Attributes
    ----------
    name : PyTorch's name, ``float32``
    code : the loop IR's short name, ``f32``
    kind : ``b`` bool, ``u`` unsigned, ``i`` signed, ``f`` floating, ``c`` complex
    numpy : the NumPy dtype of the same layout
    """

    __slots__ = ("code", "is_complex", "is_floating_point", "itemsize", "kind", "name", "numpy", "order")

    def __init__(self, name: str, code: str, kind: str, numpy: object, order: int):
        self.name, self.code, self.kind, self.order = name, code, kind, order
        self.numpy = np.dtype(numpy)  # type: ignore[call-overload]
        self.itemsize = self.numpy.itemsize
        self.is_floating_point = kind == "f"
        self.is_complex = kind == "c"

    @property
    def differentiable(self) -> bool:
        """Whether there are gradients in it: floating and complex dtypes."""
        return self.kind in "fc"

    def __repr__(self) -> str:
        return f"lezero.{self.name}"

    def __reduce__(self):
        return (by_name, (self.name,))

    def to_real(self) -> DType:
        """The dtype of the parts of its complex numbers; itself for others."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    def to_complex(self) -> DType:
        """The complex dtype whose parts hold its numbers; itself for what is not floating."""
        return {"float32": complex64, "float64": complex128, "float16": complex64, "bfloat16": complex64}.get(
            self.name, self
        )


bool_ = DType("bool", "bool", "b", np.bool_, 0)
uint8 = DType("uint8", "u8", "u", np.uint8, 1)
uint16 = DType("uint16", "u16", "u", np.uint16, 2)
uint32 = DType("uint32", "u32", "u", np.uint32, 3)
uint64 = DType("uint64", "u64", "u", np.uint64, 4)
int8 = DType("int8", "i8", "i", np.int8, 5)
int16 = DType("int16", "i16", "i", np.int16, 6)
int32 = DType("int32", "i32", "i", np.int32, 7)
int64 = DType("int64", "i64", "i", np.int64, 8)
float16 = DType("float16", "f16", "f", np.float16, 9)
bfloat16 = DType("bfloat16", "bf16", "f", ml_dtypes.bfloat16, 10)
float32 = DType("float32", "f32", "f", np.float32, 11)
float64 = DType("float64", "f64", "f", np.float64, 12)
complex64 = DType("complex64", "c64", "c", np.complex64, 13)
complex128 = DType("complex128", "c128", "c", np.complex128, 14)

ALL: tuple[DType, ...] = (
    bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
FLOATING = (float16, bfloat16, float32, float64)
_BY_NAME = (
    {d.name: d for d in ALL}
    | {d.code: d for d in ALL}
    | {"float": float32, "double": float64, "half": float16, "long": int64, "int": int32}
)
_BY_NUMPY = {d.numpy: d for d in ALL}

_default = float32


def by_name(name: str) -> DType:
    return _BY_NAME[name]


def default_dtype() -> DType:
    """The dtype of tensors made from Python floats."""
    return _default


default_watchers: list[Callable[[], None]] = []
"""Called when the default dtype has changed: by what remembers which dtype an operation gave."""


def set_default_dtype(dtype: DType) -> None:
    """Set the dtype of tensors made from Python floats; a floating dtype."""
    global _default
    dtype = as_dtype(dtype)
    if not dtype.is_floating_point:
        raise TypeError(f"set_default_dtype: a floating dtype is needed, got {dtype}")
    if dtype is not _default:
        _default = dtype
        for changed in default_watchers:
            changed()


def as_dtype(x: object) -> DType:
    """A DType from a DType, its name, a NumPy dtype, or Python's bool, int, float, complex."""
    if isinstance(x, DType):
        return x
    if x is bool:
        return bool_
    if x is int:
        return int64
    if x is float:
        return _default
    if x is complex:
        return _default.to_complex()
    if isinstance(x, str) and x in _BY_NAME:
        return _BY_NAME[x]
    try:
        return _BY_NUMPY[np.dtype(x)]  # type: ignore[call-overload]
    except (TypeError, KeyError):
        names = ", ".join(d.name for d in ALL)
        raise TypeError(f"{x!r} is not a dtype LeZero has; it has {names}") from None


def number_dtype(value: bool | int | float | complex) -> DType:
    """The dtype a Python number is held in: the widest of its category.

    Beside a tensor it counts by its category only, so this decides how exact it is (an eps of 1e-5 in a float64
    computation), not what the result is.
    """
    if isinstance(value, bool):
        return bool_
    return int64 if isinstance(value, int) else complex128 if isinstance(value, complex) else float64


_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def promote(a: DType, b: DType) -> DType:
    """The dtype that holds both, for two tensors of equal standing."""
    if a is b:
        return a
    ca, cb = _CATEGORY[a.kind], _CATEGORY[b.kind]
    if ca != cb:
        high, low = (a, b) if ca > cb else (b, a)
        return high.to_complex() if high.kind == "f" and low.kind == "c" else _widen_complex(high, low)
    if a.kind == b.kind:
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if a.order > b.order else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return {1: int16, 2: int32, 4: int64, 8: float64}[unsigned.itemsize]


def _widen_complex(high: DType, low: DType) -> DType:
    return complex128 if high is complex64 and low is float64 else high


def result_type(operands: list[tuple[DType, int]]) -> DType:
    """The dtype of an element-wise result.

    operands : (dtype, standing) with standing 2 for a tensor of one or more dimensions, 1 for a 0-d tensor, 0 for a
        Python scalar.  A lower standing counts only by its category (bool < integer < floating < complex), as in PyTorch.
    """
    best: list[DType | None] = [None, None, None]
    for dtype, standing in operands:
        have = best[standing]
        best[standing] = dtype if have is None else promote(have, dtype)
    result: DType | None = None
    for standing in (2, 1, 0):
        dtype = best[standing]  # type: ignore[assignment]
        if dtype is None:
            continue
        if result is None:
            result = _default_of(dtype) if standing == 0 else dtype
        elif _CATEGORY[dtype.kind] > _CATEGORY[result.kind]:
            if standing == 0:
                dtype = _default_of(dtype)
            result = result.to_complex() if dtype.kind == "c" and result.kind == "f" else promote(result, dtype)
    assert result is not None
    return result


def _default_of(dtype: DType) -> DType:
    """What a lone Python scalar becomes."""
    return {"f": _default, "c": _default.to_complex()}.get(dtype.kind, dtype)


def floating(dtype: DType) -> DType:
    """The dtype of a function of real numbers (exp, mean): integers and bools become the default floating dtype."""
    return dtype if dtype.kind in "fc" else _default


@dataclass(frozen=True)
class FloatLimits:
    """What :func:`finfo` returns."""

    dtype: DType
    bits: int
    eps: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    resolution: float


@dataclass(frozen=True)
class IntegerLimits:
    """What :func:`iinfo` returns."""

    dtype: DType
    bits: int
    max: int
    min: int


def finfo(dtype: object = None) -> FloatLimits:
    """Limits of a floating dtype (of a complex one's parts; of the default dtype), as Python numbers."""
    chosen = _default if dtype is None else as_dtype(dtype)
    if chosen.kind not in "fc":
        raise TypeError(f"finfo: a floating or complex dtype is needed, got {chosen}; iinfo is for integers")
    real = chosen.to_real()
    found = ml_dtypes.finfo(real.numpy)
    names = ("eps", "max", "min", "tiny", "smallest_normal", "resolution")
    return FloatLimits(real, int(found.bits), *(float(getattr(found, name)) for name in names))


def iinfo(dtype: object) -> IntegerLimits:
    """Limits of an integer dtype."""
    chosen = as_dtype(dtype)
    if chosen.kind not in "ui":
        raise TypeError(f"iinfo: an integer dtype is needed, got {chosen}; finfo is for floating ones")
    found = np.iinfo(chosen.numpy)
    return IntegerLimits(chosen, int(found.bits), int(found.max), int(found.min))
