"""The images that the command line works on: ``digits``, a folder in MNIST's format, or single files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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


Say = Callable[[str], None]
"""Tells the user what was done to an input that is not quite what is expected."""


def read_images(path: Path, say: Say) -> np.ndarray:
    """uint8 (count, height, width) from an IDX, ``.npy`` or picture file.

    Grey values from 0 to 255 are expected.  What can only mean one thing is converted and said (values from 0 to 1, colours);
    values that may be on another scale are said; those that fit no scale are refused.
    """
    with user_errors():
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name the files in it, or use --data for a folder of IDX files")
        if not path.exists():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        if path.suffix == ".npy":
            return _as_images(np.load(path, allow_pickle=False), path, say)
        start = path.open("rb").read(3)
        if start[:2] in (b"\x1f\x8b", b"\0\0"):
            return _as_images(read_idx(path), path, say)
        return _as_images(_picture(path), path, say)


def _picture(path: Path) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ModuleNotFoundError(
            f"{path} is neither IDX nor .npy; for pictures install Pillow: pip install pillow"
        ) from None
    try:
        with Image.open(path) as picture:
            if picture.mode in ("1", "LA"):
                return np.asarray(picture.convert("L"))
            grey = picture.mode == "L" or picture.mode[0] in "IF"  # 8 bits a pixel, or 16 and 32
            return np.asarray(picture if grey else picture.convert("RGB"))
    except (UnidentifiedImageError, OSError):
        raise ValueError(f"{path} is not a picture, an IDX file or a .npy file that can be read") from None


def _as_images(array: np.ndarray, path: Path, say: Say) -> np.ndarray:
    grey = _grey(array, path, say)
    if grey.ndim != 3 or grey.dtype.kind not in "buif" or 0 in grey.shape[1:]:
        raise ValueError(f"{path} holds an array of shape {array.shape}; images are (count, height, width)")
    return np.clip(np.round(_scaled(grey, path, say)), 0, 255).astype(np.uint8)


def _grey(array: np.ndarray, path: Path, say: Say) -> np.ndarray:
    """(count, height, width) of one image or many, with a dimension of 1, 3 or 4 channels or none."""
    if array.ndim == 3 and array.shape[-1] in (1, 3, 4) and min(array.shape[:2]) > 4:
        array = array[None]  # no image is so narrow: these are the channels of one
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 4:
        return array
    axis = next((a for a in (3, 1) if array.shape[a] in (1, 3, 4)), None)
    if axis is None:
        return array
    channels = np.moveaxis(array, axis, 0)
    if len(channels) == 1:
        return channels[0]
    say(f"{path}: colours were turned into grey")
    return np.tensordot([299.0, 587.0, 114.0], channels[:3], 1) / 1000  # ITU-R BT.601


def _scaled(images: np.ndarray, path: Path, say: Say) -> np.ndarray:
    """The values from 0 to 255."""
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise ValueError(f"{path} holds numbers that are not finite")
    low, high = (float(f(initial=0)) for f in (images.min, images.max))
    if low < 0 or high > 255:
        raise ValueError(
            f"{path} holds values from {low:.6g} to {high:.6g}; the model was trained on grey values from 0 to 255 (or 0 to 1)"
        )
    if 0 < high <= 1:
        say(f"{path}: values from 0 to 1 were taken to mean 0 to 255")
        return images * 255.0
    if 1 < high < 32:
        say(
            f"{path}: the largest value is {high:.6g}, where 255 is white; if it is on another scale, multiply it first"
        )
    return images


def say_if_resized(images: np.ndarray, size: int, name: str, say: Say) -> None:
    """Images of another size than the model's are enlarged or shrunk by a whole factor and framed in black."""
    height, width = images.shape[1:]
    if (height, width) != (size, size):
        say(
            f"{name}: images of {height}x{width} pixels were fitted into the {size}x{size} that the model was trained on"
        )
