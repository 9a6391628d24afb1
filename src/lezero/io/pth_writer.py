"""PyTorch's zip format, written without PyTorch: ``torch.load(path, weights_only=True)`` reads it."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from lezero.graph.dtype import DType, as_dtype
from lezero.io.archive import ZIP64_FROM, stored_member
from lezero.io.pth import STORAGES
from lezero.io.source import Target, native, writing
from lezero.io.tree import MAX_DEPTH, at, storage_of
from lezero.tensor import Tensor

_ROOT = "archive"
_KINDS = {dtype: name for name, dtype in STORAGES.items()}
_REBUILD = "ctorch._utils\n_rebuild_tensor_v"


def save_pth(obj: Any, path: Target) -> None:
    """Write nested dicts, lists and tuples of tensors, arrays, numbers and strings as ``torch.save`` does, atomically.

    Parameters
    ----------
    obj : tied tensors (the same one in two places) are stored once; arrays become tensors
    path : str, os.PathLike, or a file object open for writing bytes

    Raises
    ------
    TypeError
        If something in `obj` is nothing that ``torch.load`` reads with ``weights_only=True``; says where it is.
    OSError
        If the file cannot be written; what was there before is still there.
    """
    pickled = _Pickled()
    pickled.add(obj, ())
    members: dict[str, Any] = {"data.pkl": bytes(pickled.out) + b".", "byteorder": b"little"}
    members |= {f"data/{k}": array for k, array in enumerate(pickled.storages)}
    members["version"] = b"3\n"
    with writing("save_pth", path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, data in members.items():
            view = memoryview(data).cast("B") if isinstance(data, bytes) else data.view(np.uint8).data
            info = stored_member(f"{_ROOT}/{name}", view.nbytes, file.tell())
            with archive.open(info, "w", force_zip64=view.nbytes >= ZIP64_FROM) as member:
                member.write(view)


class _Pickled:
    """The instructions that make a value, and the elements of its tensors."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.storages: list[np.ndarray] = []
        self._keys: dict[int, int] = {}  # identity of a tensor's storage -> its place in `storages`
        self._alive: list[Any] = []  # so that identities stay theirs

    def add(self, obj: Any, path: tuple[str, ...]) -> None:
        if len(path) > MAX_DEPTH:
            raise TypeError(f"save_pth: it is nested more than {MAX_DEPTH} deep at {at(path)}")
        if isinstance(obj, np.generic):
            obj = obj.item()
        if obj is None or isinstance(obj, bool):
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[obj]
        elif isinstance(obj, int):
            self._int(int(obj))
        elif isinstance(obj, float):
            self.out += b"G" + struct.pack(">d", obj)
        elif isinstance(obj, str):
            self._text(obj)
        elif isinstance(obj, Tensor):
            self._tensor(storage_of(obj), obj.numpy())
        elif isinstance(obj, np.ndarray):
            self._tensor(obj, obj)
        elif isinstance(obj, Mapping):
            self.out += b"}("
            for key, value in obj.items():
                self._key(key, path)
                self.add(value, (*path, str(key)))
            self.out += b"u"
        elif isinstance(obj, (list, tuple)):
            self.out += b"(" if isinstance(obj, tuple) else b"]("
            for k, item in enumerate(obj):
                self.add(item, (*path, str(k)))
            self.out += b"t" if isinstance(obj, tuple) else b"e"
        else:
            raise TypeError(f"save_pth: a {type(obj).__name__} at {at(path)} cannot be stored; tensors, arrays, numbers, strings, None, and dicts, lists and tuples of them can")  # fmt: skip

    def _key(self, key: Any, path: tuple[str, ...]) -> None:
        if not isinstance(key, (str, int, float, type(None))):
            raise TypeError(
                f"save_pth: a dict at {at(path)} has a {type(key).__name__} as a key, which cannot be stored"
            )
        self.add(key, path)

    def _int(self, value: int) -> None:
        raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        self.out += (b"\x8a" + bytes([len(raw)]) if len(raw) < 256 else b"\x8b" + struct.pack("<i", len(raw))) + raw

    def _text(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        self.out += b"X" + struct.pack("<I", len(raw)) + raw

    def _tensor(self, owner: Any, array: np.ndarray) -> None:
        array = np.asarray(native(array), order="C")
        dtype = as_dtype(array.dtype)
        if id(owner) not in self._keys:
            self._keys[id(owner)] = len(self.storages)
            self._alive.append(owner)
            self.storages.append(array.astype(dtype.numpy, copy=False).reshape(-1))
        kind = _KINDS.get(dtype.numpy)
        self.out += f"{_REBUILD}{2 if kind else 3}\n(".encode()
        self._storage(self._keys[id(owner)], kind, array)
        self._int(0)
        self.add(array.shape, ())
        self.add(tuple(s // array.itemsize for s in array.strides), ())
        self.out += b"\x89ccollections\nOrderedDict\n)R"  # requires_grad, hooks
        self.out += b"" if kind else _global(dtype)
        self.out += b"tR"

    def _storage(self, key: int, kind: str | None, array: np.ndarray) -> None:
        self.out += b"("
        self._text("storage")
        self.out += f"ctorch\n{kind}\n".encode() if kind else b"ctorch.storage\nUntypedStorage\n"
        self._text(str(key))
        self._text("cpu")
        self._int(array.size if kind else array.nbytes)
        self.out += b"tQ"


def _global(dtype: DType) -> bytes:
    return f"ctorch\n{dtype.name}\n".encode()
