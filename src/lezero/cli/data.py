"""The images that the command line works on: ``digits``, a folder in MNIST's format, or single files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np

from lezero.data.datasets import MNIST, Digits, Images, read_idx


@contextmanager
def user_errors() -> Iterator[None]:
    """What goes wrong in here (reading files the user named) is for the user to mend: one line, exit code 2."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, ValueError, ModuleNotFoundError) as error:
        raise click.ClickException(str(error)) from error


def open_images(data: str, train: bool) -> Images:
    """``digits`` or a folder with IDX files."""
    with user_errors():
        return Digits(train) if data == "digits" else MNIST(data, train)


def check_output(option: str, path: Path) -> None:
    """Refuse a file that cannot be written before an hour is spent on what goes into it."""
    if not path.parent.is_dir():
        raise click.UsageError(f"{option}: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise click.UsageError(f"{option}: {str(path)!r} is a folder; name a file")
    if not os.access(path.parent, os.W_OK):
        raise click.UsageError(f"{option}: nothing can be written to the folder {str(path.parent)!r}")


def read_images(path: Path) -> np.ndarray:
    """uint8 (count, height, width) from an IDX, ``.npy`` or picture file.

    Arrays of floats are taken to be in [0, 1] if none exceeds 1, in [0, 255] otherwise.
    """
    with user_errors():
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name the files in it, or use --data for a folder of IDX files")
        if not path.exists():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        if path.suffix == ".npy":
            return _as_images(np.load(path, allow_pickle=False), path)
        start = path.open("rb").read(3)
        if start[:2] in (b"\x1f\x8b", b"\0\0"):
            return _as_images(read_idx(path), path)
        return _picture(path)


def _picture(path: Path) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ModuleNotFoundError(
            f"{path} is neither IDX nor .npy; for pictures install Pillow: pip install pillow"
        ) from None
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("L"))[None]
    except (UnidentifiedImageError, OSError):
        raise ValueError(f"{path} is not a picture, an IDX file or a .npy file that can be read") from None


def _as_images(array: np.ndarray, path: Path) -> np.ndarray:
    if array.ndim == 4 and 1 in (array.shape[1], array.shape[3]):
        array = array.squeeze(1 if array.shape[1] == 1 else 3)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.dtype.kind not in "buif" or 0 in array.shape[1:]:
        raise ValueError(f"{path} holds an array of shape {array.shape}; images are (count, height, width)")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(f"{path} holds numbers that are not finite")
        array = array * (255 if array.max(initial=0) <= 1 else 1)
    return np.clip(np.round(array), 0, 255).astype(np.uint8)
