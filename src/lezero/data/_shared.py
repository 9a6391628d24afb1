"""Memory that a loader shares with its workers: files without a name, so that nothing can be left behind.

On POSIX a block is a file in ``/dev/shm`` (or the folder for temporary files) whose name is removed as soon as it is
open; workers inherit the descriptor, and the kernel frees the memory with the last process, however it ended.  Windows
cannot do that: there the file keeps its name, workers open it by that name, and it is deleted on closing.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

_MEMORY_FOLDER = "/dev/shm"
INHERITS_DESCRIPTORS = sys.platform != "win32"


class Block:
    """A growable piece of shared memory.  The loader makes it; a worker opens ``Block(*other.address())``."""

    def __init__(self, descriptor: int | None = None, path: str | None = None) -> None:
        self._path = path
        self._owner = descriptor is None and path is None
        self._map: mmap.mmap | None = None
        if descriptor is not None:
            self._fd = descriptor
        elif path is not None:
            self._fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        else:
            self._fd, self._path = _create()

    @property
    def fd(self) -> int:
        return self._fd

    def address(self) -> tuple[int | None, str | None]:
        """How a worker reaches this block."""
        return (self._fd, None) if INHERITS_DESCRIPTORS else (None, self._path)

    def reserve(self, nbytes: int) -> bool:
        """Make room for `nbytes`; False if the file system has not enough (writing would then be a bus error)."""
        size = os.fstat(self._fd).st_size
        if nbytes > size:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._fd, 0, nbytes)
                else:
                    os.ftruncate(self._fd, nbytes)
            except OSError:
                return False
        return True

    def view(self, nbytes: int, private: bool = False) -> memoryview:
        """The first `nbytes` bytes; `private`: writing to them changes only this process's copy."""
        if private:
            return memoryview(mmap.mmap(self._fd, nbytes, access=mmap.ACCESS_COPY))  # lives as long as a view of it
        if self._map is None or len(self._map) < nbytes:
            self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return memoryview(self._map)[:nbytes]

    def close(self) -> None:
        if self._map is not None:
            with suppress(BufferError):  # somebody still looks at it: the memory goes with the last view
                self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._owner and self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)


def _create() -> tuple[int, str | None]:
    folders: list[Any] = [_MEMORY_FOLDER] if Path(_MEMORY_FOLDER).is_dir() else []
    for folder in [*folders, None]:
        try:
            fd, path = tempfile.mkstemp(prefix="lezero-loader-", dir=folder)
        except OSError:
            if folder is None:
                raise
            continue
        if not INHERITS_DESCRIPTORS:
            return fd, path
        os.unlink(path)
        return fd, None
    raise AssertionError("unreachable")
