"""Writing a file so that there is the old one or the new one, whatever happens."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file open for writing and reading that becomes `path` when the block ends, and vanishes if it fails.

    It is written beside `path`, flushed to the disk, and renamed.
    """
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot save {str(path)!r}: there is no folder {str(folder)!r}")
    if path.is_dir():
        raise IsADirectoryError(f"cannot save {str(path)!r}: that is a folder")
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".tmp", dir=folder)
    except OSError as error:
        raise _said(error, path, "choose a folder that files can be made in") from None
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if type(error) in (OSError, PermissionError):
            raise _said(error, path, "make room there, or save elsewhere") from error  # type: ignore[arg-type]
        raise
    _sync_folder(folder)


def _said(error: OSError, path: Path, what_to_do: str) -> OSError:
    """The error of the system with the file it is about and what became of it."""
    left = "the file that was there is as it was" if path.exists() else "no file was left behind"
    return type(error)(error.errno, f"cannot save {str(path)!r}: {error.strerror}; {left}; {what_to_do}")


def _mode(path: Path) -> int:
    """The permissions of the file being replaced, or what a new file would get."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def _sync_folder(folder: Path) -> None:
    """Make the rename last; not every system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
