"""Functions of the standard about dtypes."""

from __future__ import annotations

from typing import Any

from lezero import composed
from lezero.array_api.operands import need_device, need_tensor
from lezero.graph import dtype as dt
from lezero.tensor import Tensor

_KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}


def kinds_of(kind: str) -> str:
    """The letters of ``DType.kind`` that one of the standard's names of kinds stands for."""
    if kind not in _KINDS:
        raise ValueError(f"array_api: a kind is one of {', '.join(map(repr, _KINDS))}, got {kind!r}")
    return _KINDS[kind]


def isdtype(dtype: dt.DType, kind: Any) -> bool:
    """Whether `dtype` is of a kind (a name of the standard's), is a dtype, or is one of several of both."""
    if isinstance(kind, tuple):
        return any([isdtype(dtype, k) for k in kind])
    return dtype.kind in kinds_of(kind) if isinstance(kind, str) else dtype is dt.as_dtype(kind)


def astype(x: Tensor, dtype: dt.DType, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """With another dtype; without `copy`, x itself where that is its dtype.

    Raises
    ------
    TypeError
        For complex numbers that would become real; ``real`` and ``imag`` say which part is meant.
    """
    need_device("astype", device)
    dtype = dt.as_dtype(dtype)
    if need_tensor("astype", x).is_complex() and dtype.kind not in "cb":
        raise TypeError(f"array_api.astype: {x.dtype.name} does not become {dtype.name}; take real(x) or imag(x)")
    return x._cast(dtype) if x.dtype is not dtype else x.clone() if copy else x


def can_cast(from_: dt.DType | Tensor, to: dt.DType, /) -> bool:
    """Whether the two promote to `to`; between kinds (bool, integers, floating, complex) the standard has no promotion."""
    have = from_.dtype if isinstance(from_, Tensor) else dt.as_dtype(from_)
    related = have.kind == to.kind or {have.kind, to.kind} in ({"i", "u"}, {"f", "c"})
    return related and dt.promote(have, to) is to


def result_type(*arrays_and_dtypes: Tensor | dt.DType | complex) -> dt.DType:
    """The dtype that tensors, dtypes and Python numbers promote to; numbers count by their category only."""
    return composed.result_type(*(x.dtype if isinstance(x, Tensor) else x for x in arrays_and_dtypes))


def finfo(type: dt.DType | Tensor, /) -> dt.FloatLimits:
    """Limits of a floating dtype, or of the parts of a complex one."""
    return dt.finfo(type.dtype if isinstance(type, Tensor) else type)


def iinfo(type: dt.DType | Tensor, /) -> dt.IntegerLimits:
    """Limits of an integer dtype."""
    return dt.iinfo(type.dtype if isinstance(type, Tensor) else type)
