"""What is read from and written to: a path, or a file object that is open for bytes."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from lezero.io.atomic import atomic_file


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Writable(Protocol):
    def write(self, data: bytes, /) -> Any: ...


Source = str | os.PathLike[str] | Readable
Target = str | os.PathLike[str] | Writable

_IN_MEMORY = 1 << 26  # bytes for a file object that wait in memory until they are written


@contextmanager
def reading(name: str, source: Source) -> Iterator[tuple[BinaryIO, str]]:
    """(an open file that begins where the data do, what errors call it).

    Of a file object that stands at its beginning and can be sought in, itself; of another, all that is left in it.

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        Saying which path.
    TypeError
        For anything else, and for a file that is open for text.
    """
    if isinstance(source, (str, os.PathLike)):
        with _opened(Path(source)) as file:
            yield file, str(source)
    elif hasattr(source, "read"):
        yield _from_beginning(name, source), _title(source)
    else:
        raise TypeError(f"{name}: a path, or a file open for reading bytes, is needed; got a {type(source).__name__}")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(path)!r}") from None


def _from_beginning(name: str, file: Any) -> Any:
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"{name}: the file is open for text; open it with mode 'rb'")
    if getattr(file, "seekable", lambda: False)() and file.tell() == 0:
        return file
    return io.BytesIO(file.read())


@contextmanager
def writing(name: str, target: Target) -> Iterator[BinaryIO]:
    """A file open for writing and reading, whose content becomes that of `target` when the block ends.

    A path gets it all or keeps what it had (``atomic_file``); a file object gets it in a row from where it stands, and so do
    devices and pipes.
    """
    if isinstance(target, (str, os.PathLike)):
        path = Path(target)
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb") as device, writing(name, device) as file:
                yield file
            return
        with atomic_file(path) as file:
            yield file
        return
    if not hasattr(target, "write"):
        raise TypeError(f"{name}: a path, or a file open for writing bytes, is needed; got a {type(target).__name__}")
    if isinstance(target, io.TextIOBase):
        raise TypeError(f"{name}: the file is open for text; open it with mode 'wb'")
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as whole:
        yield whole  # type: ignore[misc]
        whole.seek(0)
        shutil.copyfileobj(whole, target)  # type: ignore[misc]


def _title(file: Any) -> str:
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else f"the {type(file).__name__}"


def has_odd_booleans(array: np.ndarray) -> bool:
    """Whether bytes that are to be booleans are others than 0 and 1, which compute as neither."""
    return array.dtype == np.bool_ and array.size > 0 and bool(array.view(np.uint8).max() > 1)


def arrays_of(name: str, tensors: Any) -> dict[str, np.ndarray]:
    """The arrays of tensors (or arrays) by name, for formats that hold nothing else.

    Raises
    ------
    TypeError
        For what is no mapping, a name that is no text or not proper Unicode, and what is neither a tensor nor an array.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(
            f"{name}: a mapping from name to tensor is needed, such as a module's state_dict(); got a {type(tensors).__name__}"
        )
    for key, value in tensors.items():
        if not is_text(key):
            raise TypeError(f"{name}: a tensor's name is text, got {key!r}")
        if not (isinstance(value, (np.ndarray, np.generic)) or callable(getattr(value, "numpy", None))):
            raise TypeError(f"{name}: {key!r} is a {type(value).__name__}; tensors and arrays are written")
    return {
        key: native(np.asarray(v if isinstance(v, (np.ndarray, np.generic)) else v.numpy()))
        for key, v in tensors.items()
    }


def native(array: np.ndarray) -> np.ndarray:
    """An array in this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def is_text(name: Any) -> bool:
    """Whether it is a string that UTF-8 can express (half a surrogate pair is none)."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def what_reads(start: bytes, label: str, asked: str) -> str:
    """Which function reads a file that the one `asked` refused, going by its first bytes and, failing that, by its name."""
    reader = _by_content(start) or _by_name(label)
    return "" if reader is None or asked in reader else f"; {reader}"


def format_of(start: bytes) -> str | None:
    """Which format a file with these first bytes is in, where they tell."""
    if start[:4] == b"PK\x03\x04":
        length = int.from_bytes(start[26:28], "little")
        first = start[30 : 30 + length]
        if first == b"header.json":
            return "lzm"
        if first.endswith(b".npy") or len(first) < length:  # only names of tensors are that long
            return "npz"
        return "pth" if b"/data.pkl" in start[30:300] else None
    if start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04":
        return "pth"
    if start[:6] == b"\x93NUMPY":
        return "npy"
    if start[8:9] == b"{" and start[6:8] == b"\0\0":
        return "safetensors"
    return "onnx" if start[:1] == b"\x08" and start[2:3] in _AFTER_IR_VERSION and 0 < start[1] < 32 else None


_AFTER_IR_VERSION = [bytes([tag]) for tag in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42)]
"""Keys of ModelProto's fields 2 to 8: writers put fields in order, and ``ir_version``, a small number, is the first."""


def _by_content(start: bytes) -> str | None:
    return ADVICE.get(format_of(start) or "")


_PTH = "lz.io.load_pth reads PyTorch's files"
_SAFETENSORS = "lz.io.load_safetensors reads it"
_LZM = "lz.load reads .lzm files"
ADVICE = {
    "lzm": _LZM,
    "npz": "lz.io.load_npz reads NumPy's archives",
    "npy": "np.load reads NumPy's files",
    "pth": _PTH,
    "safetensors": _SAFETENSORS,
    "onnx": "lz.onnx.load reads ONNX models, and lezero convert their weights",
}


def _by_name(label: str) -> str | None:
    suffix = Path(label).suffix
    if suffix in (".pth", ".pt", ".bin"):
        return _PTH
    return {".safetensors": _SAFETENSORS, ".lzm": _LZM}.get(suffix)
