"""Memory that holds a tensor's elements."""

from __future__ import annotations

import numpy as np

LENT = float("-inf")
"""The version of what others may write to: more writes leave it as it is."""


class Buffer:
    """A realised value.

    Immutable as far as users can tell: only a run may write into it, and only when nobody else can see it, which is when
    nothing but the recording refers to this object (arrays that ``numpy()`` gave out refer to it).

    Attributes
    ----------
    array : numpy.ndarray
        The logical shape, with the strides the elements really have (dense in some order of the dimensions).
    device : str
    order : tuple of int or None
        The dimensions from the outermost to the innermost in memory; None is row-major.
    address : int
        Of the first element; found out when first asked for, where it was not given.
    version : int or float
        How often a run wrote other values into it; ``LENT`` where others may.
    """

    __slots__ = ("__weakref__", "address", "array", "device", "order", "version")

    def __init__(
        self, array: np.ndarray, device: str = "cpu", order: tuple[int, ...] | None = None, address: int | None = None
    ):
        self.array, self.device, self.order = array, device, order
        self.version: float = 0
        if address is not None:
            self.address = address

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def __getattr__(self, name: str) -> int:
        # Only for a slot that is still empty: a property would cost a call at each of the many times it is read.
        if name != "address":
            raise AttributeError(name)
        self.address = self.array.__array_interface__["data"][0]
        return self.address


class Part(Buffer):
    """Memory at `offset` bytes in a `block` with others, which is let go of as a whole.

    It is written over by values that do not outlive a run, and by results only where they fill half of the block, which they hold.
    """

    __slots__ = ("block", "offset")

    def __init__(
        self,
        array: np.ndarray,
        order: tuple[int, ...] | None,
        address: int,
        block: object,
        offset: int,
        device: str = "cpu",
    ):
        super().__init__(array, device, order, address)
        self.block, self.offset = block, offset


class Borrowed(Buffer):
    """Memory that belongs to somebody else: read, never written over."""

    __slots__ = ()


class _Exported:
    """What an exported array's ``base`` is, so that the array keeps its buffer in sight."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: Buffer, array: np.ndarray):
        self.buffer = buffer
        self.__array_interface__ = array.__array_interface__


def export(buffer: Buffer) -> np.ndarray:
    """A read-only view of the elements, without a copy.  While it lives, the buffer is not written into."""
    array = buffer.array
    if array.dtype.kind == "V" or not array.dtype.isbuiltin:  # ml_dtypes: the interface cannot name the type
        view = np.asarray(_Exported(buffer, array.view(np.uint16))).view(array.dtype)
    else:
        view = np.asarray(_Exported(buffer, array))
    view.flags.writeable = False
    return view


def lend(buffer: Buffer) -> None:
    """Note that others have got this memory: not all that are told it is read-only keep to that."""
    buffer.version = LENT


def written_by_others(buffer: Buffer) -> bool:
    """Whether values may change without a run."""
    return type(buffer) is Borrowed or buffer.version == LENT
