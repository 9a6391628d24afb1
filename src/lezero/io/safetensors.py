"""The safetensors format (https://github.com/huggingface/safetensors), reader and writer.

A file is the header's length (64-bit, little endian), the header (JSON: name -> dtype, shape, begin and end of the data;
``__metadata__``: strings), and the data: row-major, little endian, without gaps or overlaps.

The writer pads the header so that the data begins at a multiple of 64, and orders tensors by the largest power of two that
divides their size.  So a tensor of a multiple of 64 bytes lies at a multiple of 64, and every tensor at a multiple of its
item size: they can be mapped into memory and used in place.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from lezero.io.source import Source, Target, arrays_of, has_odd_booleans, is_text, reading, what_reads, writing

ALIGN = 64
MAX_HEADER = 100_000_000  # the reference implementation's limit
_MAX_RANK = 64  # NumPy's
_CHUNK = 1 << 24
_START = 512  # bytes that tell one format from another

_DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "U64": np.dtype("<u8"),
    "I8": np.dtype(np.int8),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class SafetensorsError(ValueError):
    """Data that is not what the format says it should be."""


def load_safetensors(path: Source) -> dict[str, Any]:
    """The tensors in a ``.safetensors`` file, by name; `path` may be a file open for reading bytes.

    Of a ``.safetensors.index.json``, those of all the files it names, which lie beside it.

    Raises
    ------
    SafetensorsError
        If a file is damaged or contradicts itself; says which file, and how.
    FileNotFoundError
    """
    from lezero.io.sharded import SUFFIX, read_sharded
    from lezero.tensor import tensor

    if isinstance(path, (str, os.PathLike)) and str(path).endswith(SUFFIX) and Path(path).is_file():
        return {name: tensor(array) for name, array in read_sharded(Path(path)).items()}
    with reading("load_safetensors", path) as (file, label):
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(_START)
        file.seek(0)
        try:
            return {name: tensor(array) for name, array in read(file, size).items()}
        except SafetensorsError as error:
            raise SafetensorsError(f"{label}: {error}{what_reads(start, label, 'load_safetensors')}") from None


def save_safetensors(tensors: Mapping[str, Any], path: Target, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors (or arrays) by name to a ``.safetensors`` file, atomically, or to a file open for writing bytes.

    Raises
    ------
    TypeError
        For names that are no text, what is no tensor, and metadata that are no text; names it.
    SafetensorsError
        For dtypes that the format lacks.
    """
    arrays = arrays_of("save_safetensors", tensors)
    for key, value in (metadata or {}).items():
        if not (is_text(key) and is_text(value)):
            raise TypeError(f"save_safetensors: metadata are text by text, got {key!r}: {value!r}")
    with writing("save_safetensors", path) as file:
        write(file, arrays, metadata)


def layout(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[str], int]:
    """(length and header, the order of the data, bytes in all) of a file that would hold `arrays`."""
    order = sorted(arrays, key=lambda name: (-_divisor(arrays[name].nbytes), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        array = arrays[name]
        if name == "__metadata__":
            raise SafetensorsError("a tensor cannot be named __metadata__")
        if array.dtype not in _NAMES:
            raise SafetensorsError(f"the format has no {array.dtype} (of {name!r}); it has {', '.join(_DTYPES)}")
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGN)
    if len(text) > MAX_HEADER:
        raise SafetensorsError(f"a header of {len(text):,} bytes is more than the format's {MAX_HEADER:,}")
    return struct.pack("<Q", len(text)) + text, order, 8 + len(text) + end


def write(file: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write `arrays` to an open file."""
    header, order, _ = layout(arrays, metadata)
    file.write(header)
    for name in order:
        flat = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _CHUNK):
            file.write(flat[start : start + _CHUNK].data)


def read(file: BinaryIO, size: int) -> dict[str, np.ndarray]:
    """The arrays in the next `size` bytes of an open file; every claim of the header is checked before data is read.

    Raises
    ------
    SafetensorsError
        If anything is missing, out of range, overlapping or left over.
    """
    if size < 8:
        raise SafetensorsError("not a safetensors file: it is shorter than its first field")
    (length,) = struct.unpack("<Q", _exactly(file, 8))
    if length > min(size - 8, MAX_HEADER):
        raise SafetensorsError(f"the header claims {length:,} bytes, but {min(size - 8, MAX_HEADER):,} are possible")
    entries = _parse(_exactly(file, length), size - 8 - length)
    data = np.empty(size - 8 - length, np.uint8)
    _fill(file, data)
    return {name: _array(name, data[begin:end], dtype, shape) for name, dtype, shape, begin, end in entries}


def _array(name: str, data: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    array = data.view(dtype).reshape(shape)
    if has_odd_booleans(array):
        raise SafetensorsError(f"{name!r} has booleans that are neither 0 nor 1")
    return array


def _parse(text: bytes, available: int) -> list[tuple[str, np.dtype, tuple[int, ...], int, int]]:
    """Checked (name, dtype, shape, begin, end), in the order of the data."""
    try:
        header = json.loads(text.decode(), object_pairs_hook=without_repeats)  # decoded here: json guesses at UTF-16
    except (ValueError, RecursionError) as error:
        if isinstance(error, SafetensorsError):
            raise
        raise SafetensorsError("the header is not JSON") from None
    if not isinstance(header, dict):
        raise SafetensorsError("the header is not a JSON object")
    entries = []
    for name, entry in header.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or any(not isinstance(v, str) for v in entry.values()):
                raise SafetensorsError("__metadata__ is not a mapping from text to text")
            continue
        if not is_text(name):
            raise SafetensorsError(f"the name {name!r} is not proper Unicode")
        if isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and entry["dtype"] not in _DTYPES:
            raise SafetensorsError(
                f"{name!r} has the dtype {entry['dtype'][:40]!r}; those that are read are {', '.join(_DTYPES)}"
            )
        try:
            dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise SafetensorsError(f"the entry of {name!r} is not understood: {str(entry)[:200]}") from None
        if len(shape) > _MAX_RANK or any(type(n) is not int or n < 0 for n in (*shape, begin, end)):
            raise SafetensorsError(f"the entry of {name!r} has an impossible shape or place")
        if math.prod(filter(None, shape)) >= 1 << 59:  # NumPy counts bytes in 64 bits, also where there are none
            raise SafetensorsError(f"the entry of {name!r} has an impossible shape or place")
        count = math.prod(shape)
        if end - begin != count * dtype.itemsize:
            raise SafetensorsError(f"{name!r} of shape {shape} does not fill the {end - begin:,} bytes it claims")
        entries.append((name, dtype, shape, begin, end))
    entries.sort(key=lambda e: (e[3], e[4]))
    position = 0
    for name, _, _, begin, end in entries:
        if begin != position or end > available:
            raise SafetensorsError(f"the data of {name!r} overlaps, leaves a gap, or lies outside the file")
        position = end
    if position != available:
        raise SafetensorsError(f"{available - position:,} bytes at the end belong to no tensor")
    return entries


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise SafetensorsError("the header has the same name twice")
    return result


def _divisor(nbytes: int) -> int:
    """The largest power of two, up to ALIGN, that divides a size."""
    return ALIGN if nbytes % ALIGN == 0 else nbytes & -nbytes


def _exactly(file: BinaryIO, count: int) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise SafetensorsError("the file is truncated")
    return content


def _fill(file: BinaryIO, data: np.ndarray) -> None:
    position = 0
    while position < data.size:
        chunk = file.read(min(_CHUNK, data.size - position))
        if not chunk:
            raise SafetensorsError("the file is truncated")
        data[position : position + len(chunk)] = np.frombuffer(chunk, np.uint8)
        position += len(chunk)
