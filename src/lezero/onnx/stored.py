"""What a model's arrays are read from: a file, or bytes in memory."""

from __future__ import annotations

import io
import mmap
from pathlib import Path

import numpy as np

from lezero.graph.dtype import as_dtype
from lezero.tensor.creation import memory_for


class Stored:
    """Bytes that are read piece by piece, each once and to where it will lie.

    A file is not mapped while its arrays are in use: one that is cut short or written to later changes nothing, and arrays lie
    where kernels read them fastest, wherever they begin in the file.

    size : int
        In bytes.
    """

    def __init__(self, source: Path | memoryview):
        self._file: io.BufferedIOBase | io.RawIOBase | None = None
        self._bytes: memoryview | None = None
        if isinstance(source, Path):
            self._file = source.open("rb", buffering=0)
            self.size = self._file.seek(0, io.SEEK_END)
        else:
            self._bytes, self.size = source, source.nbytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def view(self) -> memoryview:
        """All of it; pages of a file are in memory from where they are looked at until the view is let go."""
        if self._bytes is not None:
            return self._bytes
        assert self._file is not None
        return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))

    def array(self, begin: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The elements that begin at a byte, in memory of their own.

        Raises
        ------
        EOFError
            If the file ends before they do.
        """
        made = empty(shape, dtype)
        self._read(begin, made.reshape(-1).view(np.uint8).data)
        return made

    def _read(self, begin: int, into: memoryview) -> None:
        if self._bytes is not None:
            if begin + len(into) > self.size:
                raise EOFError(f"the data end before byte {begin + len(into)}")
            into[:] = self._bytes[begin : begin + len(into)]
            return
        assert isinstance(self._file, io.FileIO)
        self._file.seek(begin)
        while into:  # a call reads at most 2 GB
            count = self._file.readinto(into)
            if not count:
                raise EOFError(f"{self._file.name} ends before byte {begin + len(into)}")
            into = into[count:]


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array, not filled in, in memory of the backend in use if tensors may have its dtype."""
    try:
        return memory_for(shape, as_dtype(dtype))
    except (TypeError, ValueError):
        return np.empty(shape, dtype)


def owned(array: np.ndarray) -> np.ndarray:
    """A copy in such memory."""
    made = empty(array.shape, array.dtype)
    made[...] = array
    return made
