"""Elements handed to other libraries and taken from them without a copy: DLPack, the buffer protocol, ``__array__``.

What leaves is read-only, for values never change: an array, a view or a capsule keeps the buffer in sight, and while it lives
no run writes into that memory.  What comes in is never written to from here.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from lezero.graph import dtype as dt
from lezero.graph.dtype import as_dtype
from lezero.hal.buffer import Borrowed, export, lend
from lezero.tensor.core import Core
from lezero.tensor.creation import _from_array, tensor

if TYPE_CHECKING:
    from lezero.tensor import Tensor

CPU = (1, 0)
"""DLPack's name of the device."""
_WRITABLE = 1  # PyBUF_WRITABLE
SAYS_READ_ONLY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy knows DLPack 1.0."""


class Exchange(Core):
    """What other libraries ask of a tensor to read its elements."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """As :meth:`numpy`, for ``np.asarray(tensor)``; an array that can be written to, with ``copy=True``.

        Raises
        ------
        ValueError
            With ``copy=False``, for another dtype than the tensor's.
        """
        array = self.numpy()
        if dtype is None or array.dtype == dtype:
            return array.copy() if copy else array
        if copy is False:
            raise ValueError(
                f"a tensor of {self.dtype.name} cannot become an array of {np.dtype(dtype)} without a copy"
            )
        return array.astype(dtype)

    def __buffer__(self, flags: int, /) -> memoryview:
        """A read-only view of the elements, for ``memoryview(tensor)`` (from Python 3.12 on; before, ``tensor.numpy().data``).

        Raises
        ------
        BufferError
            Where writing is asked for, and for bfloat16, which buffers have no format of.
        """
        if flags & _WRITABLE:
            raise BufferError("a tensor's memory is read-only; x.numpy().copy() can be written to")
        if self.dtype is dt.bfloat16:
            raise BufferError("a buffer has no format for bfloat16; use .float() first")
        return memoryview(self.numpy())

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Hand the elements to another library: ``torch.from_dlpack(tensor)``, ``np.from_dlpack(tensor)``.

        Parameters
        ----------
        max_version : (int, int)
            The newest version of DLPack the other side knows.  Before (1, 0) it cannot be told that memory is read-only, and gets
            a copy.
        copy : bool
            True gives a copy that can be written to; False never copies.

        Raises
        ------
        BufferError
            For a tensor that requires a gradient, which would end here (``detach()`` says that it may); where a copy is needed and
            `copy` is False; for another device than the CPU.
        """
        if self.requires_grad:
            raise BufferError("a tensor that requires a gradient is not handed out by DLPack; use x.detach()")
        if stream is not None or (dl_device is not None and tuple(dl_device) != CPU):
            raise BufferError(f"DLPack: the elements are in the CPU's memory; got device {dl_device}, stream {stream}")
        buffer = self._looked_at()
        array, kind = export(buffer), self.dtype.kind
        old = not SAYS_READ_ONLY or max_version is None or max_version[0] < 1
        if old and copy is False:
            raise BufferError(
                "DLPack before version 1.0 cannot say that memory is read-only; copy=False needs max_version=(1, 0)"
            )
        if self.dtype is dt.bfloat16:
            array = array.view(np.uint16)
            kind = "bfloat16"
        if old:
            capsule = array.copy().__dlpack__()
        else:
            capsule = array.__dlpack__(max_version=max_version, copy=copy or None)
            if not copy:
                lend(buffer)
        if kind == "bfloat16":
            _renamed(capsule, _UNSIGNED, _BFLOAT)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


# -- the type a capsule names -----------------------------------------------------------------------------------------

_UNSIGNED, _BFLOAT = 1, 4
_TYPE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Where in the struct that a capsule of that name points to the code of the element type is; the bits follow it."""
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _renamed(capsule: Any, old: int, new: int) -> bool:
    """Give 16-bit elements of a type another type; whether that was their type.  NumPy has no bfloat16 to give or to take."""
    name = _name_of(capsule)
    kind = (ctypes.c_uint8 * 2).from_address(_pointer_of(capsule, name) + _TYPE_AT[name])
    if tuple(kind) != (old, 16):
        return False
    kind[0] = new
    return True


class _Capsule:
    """A capsule as something that ``np.from_dlpack`` takes."""

    def __init__(self, capsule: Any):
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


# -- from others ------------------------------------------------------------------------------------------------------


def from_dlpack(source: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor of what another library holds, by the DLPack protocol.

    Parameters
    ----------
    source : object with ``__dlpack__``, in the CPU's memory
    copy : bool
        None shares the memory where the elements lie in row-major order, False raises where they do not, True copies.  Shared
        memory is never written to from here; whoever owns it must not write to it while tensors computed from it have not been
        run.

    Raises
    ------
    BufferError
        With ``copy=False``, when the elements do not lie in row-major order; for dtypes that there are not, or other devices.
    """
    if device is not None and str(device) != "cpu":
        raise ValueError(f"from_dlpack: there is no device {device!r} here, only 'cpu'")
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack: an object with __dlpack__ is needed, got {type(source).__name__}")
    return _shared(array_of(source), "from_dlpack", copy)


def array_of(source: Any) -> np.ndarray:
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError) as error:  # bfloat16, or not to be had
        if source.__dlpack_device__() != CPU:
            raise BufferError(
                f"from_dlpack: the elements are on DLPack's device {source.__dlpack_device__()}"
            ) from None
        capsule = source.__dlpack__()
        if not _renamed(capsule, _BFLOAT, _UNSIGNED):
            raise BufferError(f"from_dlpack: {error}") from None
        return np.from_dlpack(_Capsule(capsule)).view(dt.bfloat16.numpy)


def aliased(source: Any, dtype: dt.DType | None) -> Tensor:
    """A tensor that shares the memory of an array, of what has a buffer or DLPack; a ValueError where it cannot."""
    if isinstance(source, (bool, int, float, complex, list, tuple)):
        raise ValueError(f"a {type(source).__name__} of Python's has no memory to share; leave out copy=False")
    if not isinstance(source, np.ndarray):
        source = array_of(source) if hasattr(source, "__dlpack__") else np.asarray(memoryview(source))
    if dtype is not None and source.dtype != dtype.numpy:
        raise ValueError(f"{source.dtype} cannot become {dtype.name} without a copy")
    try:
        return _shared(source, "asarray", False)
    except BufferError as error:
        raise ValueError(str(error)) from None


def _shared(array: np.ndarray, name: str, copy: bool | None) -> Tensor:
    """A tensor in an array's memory, or a copy where that is wanted or may be."""
    if copy:
        return tensor(array)
    as_dtype(array.dtype)
    if not array.flags.c_contiguous or not array.flags.aligned:
        if copy is False:
            raise BufferError(f"{name}(copy=False): the elements must lie in row-major order; use copy=True")
        return tensor(array)
    return borrowed(array)


def borrowed(array: np.ndarray) -> Tensor:
    """A tensor in the memory of a row-major array, which is read and never written to."""
    made = _from_array(array)
    made._buffer = Borrowed(array)
    return made
