"""Compiled kernels, kept on disk between processes and in memory within one.

A kernel's name on disk is a hash of everything its code depends on: the source's key, the target, the code
generator's own files and LLVM's version.  So nothing is ever out of date; old entries only get old, and the least
recently used go when the folder outgrows its limit.

Knobs: ``LEZERO_CACHE_DIR`` (the folder), ``LEZERO_CACHE_LIMIT`` (bytes on disk, default 1 GiB).
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import lezero.codegen
import lezero.loops
from lezero import knobs
from lezero.backends.cpu.loader import LoadedKernel
from lezero.codegen.launch import KernelSource
from lezero.codegen.target import Target

_MAGIC = b"LZK2"
_HEADER = len(_MAGIC) + 32  # then a SHA-256 of the name and the object, then the object
_DEFAULT_LIMIT = 1 << 30


@dataclass
class CacheStats:
    """What the caches hold and how they did since the process started."""

    folder: str
    entries: int
    bytes: int
    limit: int
    loaded: int  # kernels in memory
    memory_hits: int
    disk_hits: int
    misses: int
    compiled: int
    damaged: int  # files that failed their checksum and were compiled again


class DiskCache:
    """A folder of object files, written atomically and checked when read.

    Nothing here ever raises for the state of the file system: a folder that cannot be read or written costs
    compilations, and one warning.
    """

    def __init__(self, folder: Path, limit: int = _DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.damaged = 0
        self._bytes: int | None = None  # known once something was written
        self._warned = False

    def read(self, digest: str) -> bytes | None:
        """The object stored under `digest`; None if there is none.  A damaged file is deleted."""
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if content[:_HEADER] != _header(digest, content[_HEADER:]):
            self.damaged += 1
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # recently used
        return content[_HEADER:]

    def write(self, digest: str, image: bytes) -> None:
        content = _header(digest, image) + image
        temporary = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, self._path(digest))
        except OSError as error:
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)
            self._warn(error)
            return
        self._bytes = self.size()[1] if self._bytes is None else self._bytes + len(content)
        if self._bytes > self.limit:
            self._evict()

    def size(self) -> tuple[int, int]:
        """Number of kernels on disk, and their bytes."""
        files = self._files()
        return len(files), sum(nbytes for _, nbytes, _ in files)

    def clear(self) -> int:
        """Delete every kernel on disk; how many there were."""
        files = self._files()
        for _, _, path in files:
            with suppress(OSError):
                os.unlink(path)
        self._bytes = None
        return len(files)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.o"

    def _files(self) -> list[tuple[float, int, str]]:
        """(last use, bytes, path) of each kernel, and of what a killed writer left behind."""
        found = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((".o", ".tmp")):
                    with suppress(OSError):
                        status = entry.stat()
                        found.append((status.st_mtime, status.st_size, entry.path))
        return found

    def _evict(self) -> None:
        """Delete the least recently used files, down to nine tenths of the limit."""
        files = sorted(self._files())
        total = sum(nbytes for _, nbytes, _ in files)
        for _, nbytes, path in files:
            if total <= self.limit * 9 // 10:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= nbytes
        self._bytes = total

    def _warn(self, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"compiled kernels cannot be kept in {str(self.folder)!r} ({error.strerror or error}), so every new process "
            "compiles them again. Make the folder writable or free some space there, or set LEZERO_CACHE_DIR to "
            "another folder.",
            RuntimeWarning,
            stacklevel=2,
        )


def _header(digest: str, image: bytes) -> bytes:
    """What a file begins with.  The name is part of the checksum: a good kernel under another's name is damage too."""
    return _MAGIC + hashlib.sha256(digest.encode() + image).digest()


class MemoryCache:
    """Loaded kernels, least recently used out first.  A kernel that a table still holds stays loaded regardless."""

    def __init__(self, limit: int = 4096) -> None:
        self.limit = limit
        self._kernels: OrderedDict[str, LoadedKernel] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> LoadedKernel | None:
        with self._lock:
            kernel = self._kernels.get(digest)
            if kernel is not None:
                self._kernels.move_to_end(digest)
            return kernel

    def put(self, digest: str, kernel: LoadedKernel) -> None:
        with self._lock:
            self._kernels[digest] = kernel
            while len(self._kernels) > self.limit:
                self._kernels.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._kernels.clear()

    def __len__(self) -> int:
        return len(self._kernels)


def cache_folder() -> Path:
    """``LEZERO_CACHE_DIR``, or the platform's folder for a user's caches."""
    chosen = os.environ.get("LEZERO_CACHE_DIR")
    if chosen:
        try:
            return Path(chosen).expanduser()
        except RuntimeError:
            raise knobs.KnobError(
                f"LEZERO_CACHE_DIR={chosen!r}: expected a folder, and there is no such user's home"
            ) from None
    try:
        home = Path.home()
    except RuntimeError:  # a container's nameless user: leads to the warning that names LEZERO_CACHE_DIR
        return Path(os.devnull) / "kernels"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local") / "lezero" / "Cache" / "kernels"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "lezero" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "lezero" / "kernels"


def writable(folder: Path) -> bool:
    """Whether a kernel can be kept there, or in the folder where it would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(bytes(1 << 16)) == 1 << 16  # a full disk still takes an empty file
    except OSError:
        return False


def cache_limit() -> int:
    """``LEZERO_CACHE_LIMIT`` in bytes, or 1 GiB."""
    return knobs.number("LEZERO_CACHE_LIMIT", _DEFAULT_LIMIT, "a number of bytes", 0, 1 << 62)


def digest(source: KernelSource, target: Target) -> str:
    """The name of a kernel's machine code: a hash of everything that determines it."""
    return hashlib.sha256(f"{source.key}\0{_target_key(target)}\0{_generator()}".encode()).hexdigest()


@functools.cache
def _target_key(target: Target) -> str:
    return repr(astuple(target))


@functools.cache
def _generator() -> str:
    """Hash of the code generator's sources and of LLVM's version, which together turn a key into machine code."""
    import llvmlite

    state = hashlib.sha256(llvmlite.__version__.encode())
    for package in (lezero.codegen, lezero.loops):
        for name, source in sorted(_sources(resources.files(package))):
            state.update(name.encode() + b"\0" + source)
    return state.hexdigest()


def _sources(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Name and content of every Python file, wherever the package was imported from: a folder or a zip."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield prefix + entry.name, entry.read_bytes()
