"""What the Python array API standard asks of an array object and PyTorch's tensors do not have, or have otherwise."""

from __future__ import annotations

from math import prod
from typing import Any, Self

from lezero.ops.base import REGISTRY as OPS
from lezero.runtime.recorder import record
from lezero.tensor.core import Core
from lezero.tensor.writing import in_place

_REVISIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
"""Of the standard; each later one only adds to those before."""


class Size(int):
    """The number of elements, as the standard and NumPy have it; called, what PyTorch's ``size()`` gives: extents."""

    shape: tuple[int, ...]

    def __new__(cls, shape: tuple[int, ...]) -> Self:
        made = super().__new__(cls, prod(shape))
        made.shape = shape
        return made

    def __call__(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]


class Standard(Core):
    """Further operators, and where the functions are."""

    @property
    def size(self) -> Size:  # type: ignore[override]
        """The number of elements; ``size()`` gives the extents, ``size(dim)`` one of them."""
        return Size(self.shape)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """``lezero.array_api``, the module with the functions of the array API standard.

        Raises
        ------
        ValueError
            For a revision that is none of 2021.12 to 2025.12.
        """
        if api_version is not None and api_version not in _REVISIONS:
            raise ValueError(f"the revisions of the array API are {', '.join(_REVISIONS)}, got {api_version!r}")
        from lezero import array_api

        return array_api

    def to_device(self, device: Any, /, *, stream: Any = None) -> Self:
        """On a device; the standard's name of ``to``.  Streams are a matter of devices that have them."""
        if stream is not None:
            raise ValueError(f"to_device: the device {self.device!r} has no streams, got {stream!r}")
        return self.to(device=device)

    def __pos__(self) -> Self:
        return self

    def __rlshift__(self, other: Any) -> Any:
        return self._apply(OPS["bitwise_left_shift"], (other, self), ()) if self._accepts(other) else NotImplemented

    def __rrshift__(self, other: Any) -> Any:
        return self._apply(OPS["bitwise_right_shift"], (other, self), ()) if self._accepts(other) else NotImplemented

    __ilshift__ = in_place(lambda self, other: self << other)
    __irshift__ = in_place(lambda self, other: self >> other)
    __imatmul__ = in_place(lambda self, other: record(OPS["matmul"], (self, other), ()))
