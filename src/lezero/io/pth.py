"""PyTorch's ``.pth`` files, of both formats, read without PyTorch and without running what is in them.

A *zip* (PyTorch 1.6 and later) holds ``data.pkl`` and the storages as files ``data/KEY``.  A *legacy* file is four pickles in
a row (magic number, protocol, the machine's sizes, the value), a fifth with the keys of the storages, and then for each key
its length (64-bit, little endian) and its elements.  The pickles are read by an unpickler that knows tensors, dicts and plain
values; anything else is refused by name, so that a file cannot execute code.
"""

from __future__ import annotations

import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from lezero.io.lzm import check_map_location
from lezero.io.source import Source, reading, what_reads

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001

_STORAGES: dict[str, np.dtype] = {
    "BoolStorage": np.dtype(np.bool_),
    "ByteStorage": np.dtype(np.uint8),
    "CharStorage": np.dtype(np.int8),
    "ShortStorage": np.dtype("<i2"),
    "IntStorage": np.dtype("<i4"),
    "LongStorage": np.dtype("<i8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "ComplexFloatStorage": np.dtype("<c8"),
    "ComplexDoubleStorage": np.dtype("<c16"),
}


class PthError(ValueError):
    """A file that is not a sound ``.pth``, or that holds more than tensors and plain values."""


class _View:
    """A tensor of the file: which elements of which storage.  The legacy format has the elements after all of them."""

    def __init__(self, storage: np.ndarray, offset: Any, shape: Any, strides: Any) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def array(self) -> np.ndarray:
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise PthError("a tensor has an impossible shape, stride or offset")
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        if math.prod(self.shape) and last >= len(self.storage):
            raise PthError(
                f"a tensor of shape {self.shape} reaches beyond its storage of {len(self.storage):,} elements"
            )
        strides = [s * self.storage.itemsize for s in self.strides]
        start = self.storage[min(self.offset, len(self.storage)) :]
        return np.lib.stride_tricks.as_strided(start, self.shape, strides, writeable=False).copy()


class _Unpickler(pickle.Unpickler):
    """Knows what a state is made of; `storage` gives the elements for a (dtype, key, count)."""

    def __init__(self, file: BinaryIO, storage: Any) -> None:
        super().__init__(file, encoding="utf-8")
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: _View(storage, offset, tuple(shape), tuple(strides))
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda data, *_: data
        raise PthError(
            f"it refers to {module}.{name}, and only tensors, dicts, lists and plain values are read; save the model's "
            "state_dict()"
        )

    def persistent_load(self, saved: Any) -> np.ndarray:
        match saved:
            case ("storage", np.dtype() as dtype, str(key), _, int(count)) if count >= 0:
                return self._storage(dtype, key, count)
            case ("storage", np.dtype() as dtype, str(key), _, int(count), view) if count >= 0:
                whole = self._storage(dtype, key, count)
                return whole if view is None else whole[view[1] : view[1] + view[2]]
        raise PthError("a storage is not described as it should be")


def load_pth(path: Source, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read what ``torch.save`` wrote: nested dicts, lists and tuples of tensors, numbers and strings.

    Both formats are read.  Parameters come as plain tensors, on the CPU whatever device they were on, and ordered dicts as
    dicts; tensors that share elements in the file do not here.  Nothing in the file is executed.

    Parameters
    ----------
    path : str, os.PathLike, or a file object open for reading bytes; of that, all that is left in it
    map_location : "cpu", optional
        As ``torch.load`` takes it; ``.to(device)`` moves what was read to other devices.
    weights_only : bool
        As ``torch.load`` takes it; changes nothing: nothing is executed either way.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    PthError
        If it is truncated or damaged, or holds anything else, as a whole pickled module does; says what.
    ValueError
        For another `map_location`.
    """
    check_map_location("load_pth", map_location)
    with reading("load_pth", path) as (file, label):
        start = file.read(512)
        file.seek(0)
        try:
            zipped = start[:4] == b"PK\x03\x04"
            return _wrapped(_read_zip(file) if zipped else _read_legacy(file))
        except PthError as error:
            raise PthError(f"{label}: {error}{what_reads(start, label, 'load_pth')}") from None
        except RecursionError:
            raise PthError(f"{label}: it is nested too deeply") from None
        except MemoryError:
            raise PthError(f"{label}: it claims to hold more than there is memory for, or is damaged") from None
        # A damaged pickle makes the unpickler raise about anything.
        except (pickle.UnpicklingError, zipfile.BadZipFile, ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError) as error:  # fmt: skip
            advice = what_reads(start, label, "load_pth")
            raise PthError(f"{label} is not a .pth file, or is damaged ({error}){advice}") from None


def _read_zip(file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        record = next((name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")), None)
        if record is None:
            raise PthError("the zip has no data.pkl, so it is not from torch.save")
        root = record.removesuffix("data.pkl")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise PthError("its numbers are big endian, which is not read")
        read: dict[str, np.ndarray] = {}

        def storage(dtype: np.dtype, key: str, count: int) -> np.ndarray:
            if key not in read:
                read[key] = np.frombuffer(archive.read(f"{root}data/{key}"), dtype)
            if read[key].dtype != dtype or len(read[key]) < count:
                raise PthError(f"storage {key!r} is not the {count:,} elements of {dtype} that it should be")
            return read[key]

        with archive.open(record) as pickled:
            return _Unpickler(pickled, storage).load()  # type: ignore[arg-type]


def _read_legacy(file: BinaryIO) -> Any:
    size = file.seek(0, 2)
    file.seek(0)
    storages: dict[str, np.ndarray] = {}

    def storage(dtype: np.dtype, key: str, count: int) -> np.ndarray:
        if key not in storages:
            if count * dtype.itemsize > size:
                raise PthError(f"storage {key!r} claims {count:,} elements, more than there is file")
            storages[key] = np.empty(count, dtype)
        return storages[key]

    if _plain(file) != _MAGIC or _plain(file) != _PROTOCOL:
        raise PthError("not a .pth file: it does not begin as one")
    if not _plain(file).get("little_endian", True):
        raise PthError("its numbers are big endian, which is not read")
    value = _Unpickler(file, storage).load()
    for key in _plain(file):
        whole = storages.pop(key)
        (count,) = struct.unpack("<q", file.read(8).ljust(8, b"\0"))
        if count != len(whole) or file.readinto(whole.view(np.uint8)) != whole.nbytes:  # type: ignore[attr-defined]
            raise PthError("the file is truncated")
    if storages:
        raise PthError("it lacks the elements of some tensors")
    return value


def _plain(file: BinaryIO) -> Any:
    return _Unpickler(file, None).load()


def _wrapped(value: Any) -> Any:
    """The value with tensors for the file's views."""
    from lezero.tensor import tensor

    if isinstance(value, _View):
        return tensor(value.array())
    if isinstance(value, dict):
        return {_wrapped(k): _wrapped(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_wrapped(v) for v in value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, set)):
        return value
    raise PthError(f"it holds a {type(value).__name__}, which is neither a tensor nor a plain value")
