"""The ``.lzm`` container: a zip, stored without compression, of ``header.json`` and ``tensors.safetensors``.

The archive's comment is a SHA-256 of everything before it, so that a change anywhere is noticed before anything is used.
docs/file-format.md describes the format for other programs.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lezero.io import safetensors, tree
from lezero.io.archive import ZIP64_FROM, stored_member
from lezero.io.source import Source, Target, reading, what_reads, writing

FORMAT = "lzm"
VERSION = 1
KINDS = ("checkpoint", "program")

_HEADER, _TENSORS = "header.json", "tensors.safetensors"
_COMMENT = b"sha256:"
_END = struct.Struct("<4s4H2LH")  # zip's end-of-central-directory record; its last field is the comment's length
_END_BYTES = _END.size + len(_COMMENT) + 64
_LOCAL = b"PK\x03\x04"
_MAX_HEADER = 1 << 28
_WRITERS = {
    **dict.fromkeys((".pth", ".pt", ".bin"), "save_pth"),
    ".safetensors": "save_safetensors",
    ".npz": "save_npz",
}
"""Suffix -> what writes files that usually have it."""


class LzmError(ValueError):
    """A file that is not a sound ``.lzm``, or not of the kind that was asked for."""


def save(obj: Any, path: Target, *, kind: str = "checkpoint", extra: dict[str, Any] | None = None) -> None:
    """Write nested dicts, lists and tuples of tensors, arrays, numbers and strings to an ``.lzm`` file, atomically.

    Parameters
    ----------
    obj : a value as ``load`` will return it; tied tensors (the same one in two places) are stored once
    path : str, os.PathLike, or a file object open for writing bytes, which gets it from where it stands, not atomically.  A
        name that ends like another format's (``.pth``, ``.safetensors``, …) gets a warning.
    kind : {"checkpoint", "program"}
    extra : further JSON values for the header, readable with :func:`read_header`

    Raises
    ------
    TypeError
        If something in `obj` cannot be stored; says where it is.
    OSError
        If the file cannot be written; what was there before is still there.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    writer = _WRITERS.get(Path(path).suffix) if isinstance(path, (str, os.PathLike)) else None
    if writer is not None:
        warnings.warn(
            f"{str(path)!r} is written as .lzm, whatever its name, and lz.load reads it; lz.io.{writer} writes files that other "
            "libraries read under such names",
            stacklevel=2,
        )
    try:
        value, arrays = tree.encode(obj)
    except tree.TreeError as error:
        raise TypeError(f"lz.save: {error}") from None
    header = {**(extra or {}), "format": FORMAT, "version": VERSION, "kind": kind, "writer": _writer(), "value": value}
    text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    with writing("lz.save", path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            with archive.open(stored_member(_HEADER, len(text), 0), "w") as member:
                member.write(text)
            size = safetensors.layout(arrays)[2]
            with archive.open(
                stored_member(_TENSORS, size, file.tell()), "w", force_zip64=size >= ZIP64_FROM
            ) as member:
                safetensors.write(member, arrays)  # type: ignore[arg-type]
            archive.comment = _COMMENT + b"0" * 64
        end = file.seek(0, 2) - 64
        file.seek(end)
        file.write(_digest(file, end))


def load(path: Source, map_location: Any = None, *, kind: str = "checkpoint", weights_only: bool = True) -> Any:
    """Read what :func:`save` wrote.  The whole file is checked first; nothing in it is ever executed.

    Parameters
    ----------
    path : str, os.PathLike, or a file object open for reading bytes; of that, all that is left in it
    map_location : "cpu", optional
        As ``torch.load`` takes it; ``.to(device)`` moves what was read to other devices.
    kind : {"checkpoint", "program"}
    weights_only : bool
        As ``torch.load`` takes it; changes nothing: nothing is executed either way.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    LzmError
        If it is truncated, altered, of a newer version, of another kind, or not an ``.lzm``; says which.
    ValueError
        For another `map_location`.
    """
    check_map_location("load", map_location)
    header, arrays, label = _read("lz.load", path, with_tensors=True)
    if header["kind"] != kind:
        advice = {"program": "open it with lz.InferenceSession", "checkpoint": "read it with lz.load"}
        raise LzmError(f"{label} is a {header['kind']}, not a {kind}: {advice[header['kind']]}")
    from lezero.tensor import tensor

    try:
        return tree.decode(header["value"], arrays, tensor)
    except tree.TreeError as error:
        raise LzmError(f"{label} cannot be read: {error}") from None


def check_map_location(name: str, map_location: Any) -> None:
    """Refuse to read onto another device than the one there is."""
    if map_location is not None and str(map_location) != "cpu":
        raise ValueError(
            f"{name}: map_location is 'cpu', where all tensors are put, got {map_location!r}; move them with .to(device) afterwards"
        )


def read_header(path: Source) -> dict[str, Any]:
    """The header of an ``.lzm`` file without its value: format, version, kind, writer, and what `extra` added."""
    header, _, _ = _read("read_header", path, with_tensors=False)
    del header["value"]
    return header


def _read(name: str, path: Source, with_tensors: bool) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """(header, arrays, what errors call the file)."""
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        raise LzmError(f"{path} is a folder, not an .lzm file")
    with reading(name, path) as (file, label):
        size = _check_sum(file, label)
        try:
            with zipfile.ZipFile(file) as archive:
                return *_read_archive(archive, label, size, with_tensors), label
        except safetensors.SafetensorsError as error:
            raise LzmError(f"{label} cannot be read: {error}") from None
        except LzmError:
            raise
        except (zipfile.BadZipFile, ValueError, KeyError, EOFError, struct.error, NotImplementedError) as error:
            raise LzmError(f"{label} cannot be read: its archive is damaged ({error})") from None


def _check_sum(file: BinaryIO, label: str) -> int:
    """The size of a file whose checksum is right."""
    size = file.seek(0, 2)
    file.seek(0)
    start = file.read(512)
    if not start:
        raise LzmError(f"{label} is empty")
    if start[:4] != _LOCAL or start[30 : 30 + len(_HEADER)] != _HEADER.encode():
        raise LzmError(f"{label} is not an .lzm file{what_reads(start, label, 'lz.load')}")
    file.seek(max(0, size - _END_BYTES))
    end = file.read()
    if len(end) < _END_BYTES or end[:4] != b"PK\x05\x06" or end[_END.size : -64] != _COMMENT:
        raise LzmError(f"{label} is truncated or has been altered: its end is missing. Use another copy")
    if _digest(file, size - 64) != end[-64:]:
        raise LzmError(f"{label} has been altered or damaged: its checksum does not match. Use another copy")
    return size


def _read_archive(
    archive: zipfile.ZipFile, label: str, size: int, with_tensors: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    members = {info.filename: info for info in archive.infolist()}
    for info in members.values():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > size or info.file_size != info.compress_size:
            raise LzmError(f"{label} cannot be read: its member {info.filename!r} is not stored as it should be")
    if _HEADER not in members or _TENSORS not in members or members[_HEADER].file_size > _MAX_HEADER:
        raise LzmError(f"{label} cannot be read: it has no proper {_HEADER} and {_TENSORS}")
    header = _parse_header(archive.read(_HEADER), label)
    if not with_tensors:
        return header, {}
    with archive.open(_TENSORS) as member:
        return header, safetensors.read(member, members[_TENSORS].file_size)  # type: ignore[arg-type]


def _parse_header(text: bytes, label: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise LzmError(f"{label} cannot be read: its header is not proper JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise LzmError(f"{label} is not an .lzm file")
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise LzmError(f"{label} cannot be read: its header names no version")
    if version > VERSION:
        raise LzmError(
            f"{label} was written by a newer LeZero (format version {version}; this one reads up to {VERSION}): "
            "pip install --upgrade lezero"
        )
    if header.get("kind") not in KINDS or "value" not in header:
        raise LzmError(f"{label} cannot be read: its header names no known kind")
    return header


def _digest(file: BinaryIO, size: int) -> bytes:
    """Hexadecimal SHA-256 of the first `size` bytes."""
    state = hashlib.sha256()
    position = file.tell()
    file.seek(0)
    while size:
        chunk = file.read(min(size, 1 << 22))
        if not chunk:
            break
        state.update(chunk)
        size -= len(chunk)
    file.seek(position)
    return state.hexdigest().encode()


def _writer() -> str:
    from lezero import __version__

    return f"lezero {__version__}"
