"""Writing a file so that there is the old one or the new one, whatever happens."""

from __future__ import annotations

import os
import secrets
import stat
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
    path = Path(os.path.realpath(path))  # a link stays one, and the file that it names is replaced
    folder, mode = path.parent, _mode(path)
    try:
        handle, temporary = _new_file(path, mode)
    except OSError as error:
        raise _said(error, path, "choose a folder that files can be made in") from None
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
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


def _mode(path: Path) -> int | None:
    """The permissions of the file that is to be replaced, None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"cannot save {str(path)!r}: that is a device or a pipe, which cannot be replaced")
    return found.st_mode & 0o777


def _new_file(beside: Path, mode: int | None) -> tuple[int, Path]:
    """An open file that was not there, with the permissions given or those of any new file, and its path."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        # Part of the name, since the whole may be as long as names can be.
        path = beside.with_name(f".{beside.name[:40]}-{secrets.token_hex(4)}.tmp")
        with suppress(FileExistsError):
            return os.open(path, flags, 0o666 if mode is None else mode), path


def _sync_folder(folder: Path) -> None:
    """Make the rename last; not every system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
