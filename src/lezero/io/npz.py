"""NumPy's ``.npz``: arrays by name.  Objects, which NumPy would pickle, are refused."""

from __future__ import annotations

import ast
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from lezero.graph.dtype import as_dtype, bfloat16
from lezero.io.archive import ZIP64_FROM, ArchiveError, check_members, stored_member
from lezero.io.source import Source, Target, arrays_of, has_odd_booleans, reading, what_reads, writing

_LENGTHS = {(1, 0): 2, (2, 0): 4}
"""Bytes of the field that says how long the header is."""
_MAX_HEADER = 10_000
_MAX_RANK = 64  # NumPy's


_LONGEST_NAME = 0xFFFF - len(".npy")  # bytes; zip has 16 bits for it


class NpzError(ValueError):
    """A file that is not a sound ``.npz``, or that holds more than numbers."""


def load_npz(path: Source) -> dict[str, Any]:
    """The arrays in an ``.npz`` file as tensors, by name.

    Parameters
    ----------
    path : str, os.PathLike, or a file object open for reading bytes

    Raises
    ------
    NpzError
        If it is damaged, or a member is no array of numbers; names the member.
    FileNotFoundError
    """
    from lezero.tensor import tensor

    with reading("load_npz", path) as (file, label):
        start = file.read(512)
        size = file.seek(0, 2)
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                check_members(archive, size, compressed=True)
                return {i.filename.removesuffix(".npy"): tensor(_array(archive, i)) for i in archive.infolist()}
        except (NpzError, ArchiveError) as error:
            raise NpzError(f"{label}: {error}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, SyntaxError, TypeError, ValueError) as error:  # fmt: skip
            raise NpzError(f"{label} is not an .npz file, or is damaged ({error}){what_reads(start, label, 'load_npz')}") from None  # fmt: skip


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    name = info.filename
    with archive.open(info) as member:
        shape, in_columns, dtype = _header(member, name)  # type: ignore[arg-type]
        _need_numbers(name, dtype)
        data = member.read()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise NpzError(f"{name!r} of shape {shape} and {dtype} does not fill the {len(data):,} bytes it has")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if in_columns else "C")
    if has_odd_booleans(array.reshape(-1)):
        raise NpzError(f"{name!r} has booleans that are neither 0 nor 1")
    return array


def _need_numbers(name: str, dtype: np.dtype) -> None:
    try:
        as_dtype(dtype.newbyteorder("="))
    except TypeError:
        raise NpzError(f"{name!r} has elements of {dtype}, which are no numbers LeZero has") from None


def _header(member: BinaryIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, whether columns lie behind each other, dtype).  NumPy's own reader takes headers that are Python 2's, too."""
    version = np.lib.format.read_magic(member)
    if version not in _LENGTHS:
        raise NpzError(f"{name!r} is of version {version} of the .npy format; 1.0 and 2.0 are read")
    width = _LENGTHS[version]
    length = int.from_bytes(member.read(width), "little")
    if length > _MAX_HEADER:
        raise NpzError(f"{name!r} has a header of {length:,} bytes; that of numbers has at most {_MAX_HEADER:,}")
    try:
        header = ast.literal_eval(member.read(length).decode("latin1").strip())
        shape, in_columns, dtype = header["shape"], header["fortran_order"], np.dtype(header["descr"])
    except (SyntaxError, TypeError, ValueError, LookupError, RecursionError, MemoryError) as error:
        raise NpzError(f"{name!r} has a header that is not understood: {error}") from None
    if not (isinstance(shape, tuple) and isinstance(in_columns, bool) and len(shape) <= _MAX_RANK):
        raise NpzError(f"{name!r} has a header that is not understood: {str(header)[:200]}")
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(filter(None, shape)) >= 1 << 59:
        raise NpzError(f"{name!r} has an impossible shape, {shape}")
    return shape, in_columns, dtype


def _shortened(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}… of {len(name):,} characters"


def save_npz(tensors: Mapping[str, Any], path: Target) -> None:
    """Write tensors (or arrays) by name to an ``.npz`` file, which ``numpy.load`` reads, atomically.

    Raises
    ------
    NpzError
        For bfloat16 and names that the format lacks, and for arrays of what is no number.
    TypeError
        For names that are no text, and for what is no tensor; names it.
    """
    arrays = arrays_of("save_npz", tensors)
    for name, array in arrays.items():
        if "\0" in name or len(name.encode()) > _LONGEST_NAME:
            raise NpzError(f"an archive has no member of the name {_shortened(name)}")
        _need_numbers(name, array.dtype)
        if array.dtype == bfloat16.numpy:
            raise NpzError(f".npz files have no bfloat16 (of {name!r}); convert to float32 or float16")
    with writing("save_npz", path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            info = stored_member(f"{name}.npy", array.nbytes, file.tell())
            with archive.open(info, "w", force_zip64=array.nbytes >= ZIP64_FROM) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[arg-type]
