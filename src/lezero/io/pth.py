"""PyTorch's ``.pth`` files, of both formats, read without PyTorch and without running what is in them.

A *zip* (PyTorch 1.6 and later) holds ``data.pkl`` and the storages as files ``data/KEY``.  A *legacy* file is four pickles in
a row (magic number, protocol, the machine's sizes, the value), a fifth with the keys of the storages, and then for each key
its length (64-bit, little endian) and its elements.  The pickles are read by ``pickles.py``, which knows tensors, dicts and
plain values; anything else is refused by name, so that a file cannot execute code.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from lezero.graph.dtype import ALL, DType
from lezero.io.archive import ArchiveError, check_members
from lezero.io.lzm import check_map_location
from lezero.io.pickles import PLAIN, PickleError, unpickle
from lezero.io.source import Source, has_odd_booleans, reading, what_reads

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_MAX_RANK = 64  # NumPy's
_MOST_REPEATED, _ALWAYS_ALLOWED = 16, 1 << 28
"""Times the file's bytes, and bytes beyond that, that its tensors may take: expanded ones repeat elements."""
_PLAIN = (*PLAIN, DType)

STORAGES: dict[str, np.dtype] = {
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


class PthError(PickleError):
    """A file that is not a sound ``.pth``, or that holds more than tensors and plain values."""


class _View:
    """A tensor of the file: which elements of which storage.  The legacy format has the elements after all of them."""

    def __init__(
        self, storage: np.ndarray, offset: Any, shape: Any, strides: Any, lazily: frozenset[str] = frozenset()
    ) -> None:
        self.storage, self.offset, self.shape, self.strides, self.lazily = storage, offset, shape, strides, lazily

    def nbytes(self) -> int:
        """What it takes as an array; raises where it is none."""
        self._check()
        return math.prod(self.shape) * self.storage.itemsize

    def _check(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise PthError("a tensor has an impossible shape, stride or offset")
        if len(self.shape) > _MAX_RANK or max(numbers) >= 1 << 62:
            raise PthError("a tensor has an impossible shape, stride or offset")
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        if math.prod(self.shape) and last >= len(self.storage):
            raise PthError(
                f"a tensor of shape {self.shape} reaches beyond its storage of {len(self.storage):,} elements"
            )

    def array(self) -> np.ndarray:
        strides = [s * self.storage.itemsize for s in self.strides]
        start = self.storage[min(self.offset, len(self.storage)) :]
        array = np.lib.stride_tricks.as_strided(start, self.shape, strides, writeable=False).copy()
        if has_odd_booleans(array):
            raise PthError(f"a tensor of shape {self.shape} has booleans that are neither 0 nor 1")
        if "conj" in self.lazily:
            np.conjugate(array, out=array)
        if "neg" in self.lazily:
            np.negative(array, out=array)
        return array


def _rebuilt(
    storage: Any, offset: Any, shape: Any, strides: Any, _: Any = None, __: Any = None, bits: Any = None
) -> _View:
    """bits : what is still to be done with the elements; PyTorch conjugates and negates some tensors only when it reads them"""
    if not (isinstance(storage, np.ndarray) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise PthError("a tensor is not described as it should be")
    lazily = bits or {}
    if not (isinstance(lazily, dict) and lazily.keys() <= {"conj", "neg"} and all(v is True for v in lazily.values())):
        raise PthError(f"a tensor of shape {shape} has the metadata {str(bits)[:80]}, which is not known")
    if lazily and storage.dtype == np.bool_:
        raise PthError(f"a tensor of booleans is said to be {' and '.join(lazily)}")
    return _View(storage, offset, shape, strides, frozenset(lazily))


def _rebuilt_of_dtype(
    storage: Any, offset: Any, shape: Any, strides: Any, _: Any, __: Any, dtype: Any, bits: Any = None
) -> _View:
    """Dtypes for which PyTorch has no kind of storage lie in untyped ones."""
    if not (isinstance(storage, np.ndarray) and storage.dtype == np.uint8 and isinstance(dtype, DType)):
        raise PthError("a tensor is not described as it should be")
    return _rebuilt(
        storage[: storage.nbytes // dtype.itemsize * dtype.itemsize].view(dtype.numpy),
        offset,
        shape,
        strides,
        bits=bits,
    )


def _size(extents: Any) -> tuple[int, ...]:
    if not (isinstance(extents, tuple) and len(extents) <= _MAX_RANK and all(type(n) is int for n in extents)):
        raise PthError("a torch.Size is not described as it should be")
    return extents


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch", "Size"): _size,
    ("torch._utils", "_rebuild_tensor"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuilt_of_dtype,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch.storage", "UntypedStorage"): np.dtype(np.uint8),
    **{("torch", name): dtype for name, dtype in STORAGES.items()},
    **{("torch", dtype.name): dtype for dtype in ALL},
}


def _stored(storage: Any) -> Any:
    """What makes elements of a persistent id; `storage` gives them for a (dtype, key, count)."""

    def of(saved: Any) -> np.ndarray:
        match saved:
            case ("storage", np.dtype() as dtype, str(key), _, int(count), *view) if count >= 0 and len(view) <= 1:
                whole = storage(dtype, key, count)
                match view:
                    case [] | [None]:
                        return whole
                    case [(_, int(first), int(length))] if 0 <= first <= first + length <= len(whole):
                        return whole[first : first + length]
        raise PthError("a storage is not described as it should be")

    return of


def load_pth(path: Source, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read what ``torch.save`` wrote: nested dicts, lists and tuples of tensors, numbers and strings.

    Both formats are read.  Parameters come as plain tensors, on the CPU whatever device they were on, and ordered dicts as
    dicts.  Tensors that are the same elements of the file are one tensor; others that share elements there do not here.
    Nothing in the file is executed.

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
        If it is truncated or damaged, or holds anything else, as a whole pickled module does; says what.  So is a file
        whose tensors would take more than 16 times its size (and 256 MiB).
    ValueError
        For another `map_location`.
    """
    check_map_location("load_pth", map_location)
    with reading("load_pth", path) as (file, label):
        start = file.read(512)
        size = file.seek(0, 2)
        file.seek(0)
        try:
            zipped = start[:4] == b"PK\x03\x04"
            return _Wrapper(size)((_read_zip if zipped else _read_legacy)(file, size))
        except (PickleError, ArchiveError) as error:
            raise PthError(f"{label}: {error}{what_reads(start, label, 'load_pth')}") from None
        except RecursionError:
            raise PthError(f"{label}: it is nested too deeply, or holds itself") from None
        except MemoryError:
            raise PthError(f"{label}: it claims to hold more than there is memory for, or is damaged") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, NotImplementedError, RuntimeError, ValueError, struct.error) as error:  # fmt: skip
            advice = what_reads(start, label, "load_pth")
            raise PthError(f"{label} is not a .pth file, or is damaged ({error}){advice}") from None


def _read_zip(file: BinaryIO, size: int) -> Any:
    with zipfile.ZipFile(file) as archive:
        names = dict.fromkeys(archive.namelist())  # in the order of the file
        record = next((name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")), None)
        if record is None:
            raise PthError("the zip has no data.pkl, so it is not from torch.save")
        root = record.removesuffix("data.pkl")
        if f"{root}constants.pkl" in names:
            raise PthError(
                "it is a TorchScript program; torch.jit.load(path).state_dict() has its weights, for torch.save"
            )
        check_members(archive, size)
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise PthError("its numbers are big endian, which is not read")
        read: dict[str, np.ndarray] = {}

        def storage(dtype: np.dtype, key: str, count: int) -> np.ndarray:
            if f"{root}data/{key}" not in names:
                raise PthError(f"storage {key!r} is not in the file")
            if key not in read:
                read[key] = np.frombuffer(archive.read(f"{root}data/{key}"), dtype)
            if read[key].dtype != dtype or len(read[key]) < count:
                raise PthError(f"storage {key!r} is not the {count:,} elements of {dtype} that it should be")
            return read[key]

        pickled = archive.read(record)
        return unpickle(io.BytesIO(pickled), len(pickled), _KNOWN, _stored(storage))


def _read_legacy(file: BinaryIO, size: int) -> Any:
    storages: dict[str, np.ndarray] = {}

    def storage(dtype: np.dtype, key: str, count: int) -> np.ndarray:
        if key not in storages:
            if count * dtype.itemsize + sum(s.nbytes for s in storages.values()) > size:
                raise PthError(f"storage {key!r} claims {count:,} elements, more than there is file")
            storages[key] = np.empty(count, dtype)
        if storages[key].dtype != dtype or len(storages[key]) < count:
            raise PthError(f"storage {key!r} is not the {count:,} elements of {dtype} that it should be")
        return storages[key]

    def pickled(stored: Any = None) -> Any:
        return unpickle(file, size - file.tell(), _KNOWN, stored)

    if size == 0:
        raise PthError("it is empty")
    if pickled() != _MAGIC or pickled() != _PROTOCOL:
        raise PthError("not a .pth file: it does not begin as one")
    machine = pickled()
    if not isinstance(machine, dict) or not machine.get("little_endian", True):
        raise PthError("its numbers are big endian, which is not read")
    value = pickled(_stored(storage))
    for key in _keys(pickled()):
        whole = storages.pop(key, None)
        (count,) = struct.unpack("<q", file.read(8).ljust(8, b"\0"))
        if whole is None or count != len(whole) or file.readinto(whole.view(np.uint8)) != whole.nbytes:  # type: ignore[attr-defined]
            raise PthError("the file is truncated, or its storages are not those of its tensors")
    if storages:
        raise PthError("it lacks the elements of some tensors")
    return value


def _keys(value: Any) -> list[str]:
    if not (isinstance(value, list) and all(isinstance(key, str) for key in value)):
        raise PthError("its storages are not listed as they should be")
    return value


class _Wrapper:
    """Puts tensors in the places of the file's views; what occurs twice in the file is one object twice.

    size : bytes of the file, which bound what its tensors may take
    """

    def __init__(self, size: int) -> None:
        self.left = _MOST_REPEATED * size + _ALWAYS_ALLOWED
        self.done: dict[Any, Any] = {}
        self.kept: list[Any] = []  # so that identities stay theirs

    def __call__(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, _View):
            return self._tensor(value)
        if id(value) not in self.done:
            self.kept.append(value)
            self.done[id(value)] = self._wrapped(value)
        return self.done[id(value)]

    def _wrapped(self, value: Any) -> Any:
        if type(value) is dict:
            return {k: self(v) for k, v in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self, value))
        if isinstance(value, (set, frozenset)):
            return value
        raise PthError(f"it holds a {type(value).__name__}, which is neither a tensor nor a plain value")

    def _tensor(self, view: _View) -> Any:
        from lezero.tensor import tensor

        key = (id(view.storage), view.offset, view.shape, view.strides, view.lazily)
        if key not in self.done:
            self.kept.append(view.storage)
            self.left -= view.nbytes()
            if self.left < 0:
                raise PthError("its tensors take far more memory than the file has bytes: their elements are repeated")
            self.done[key] = tensor(view.array())
        return self.done[key]
