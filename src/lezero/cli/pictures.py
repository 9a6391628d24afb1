"""Small grey pictures in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import numpy as np

_SHADES = " .:-=+*#%@"


def side_by_side(images: Sequence[np.ndarray], captions: list[str], columns: int | None = None) -> str:
    """Rows of pictures with a caption under each, as wide as the terminal (or `columns`)."""
    drawn = [draw(image) for image in images]
    wide = max([width_of(images[0]), *(len(c) for c in captions)]) + 2 if len(images) else 1
    fit = max(1, (columns or _columns()) // wide)
    blocks = []
    for start in range(0, len(drawn), fit):
        group = drawn[start : start + fit]
        padding = " " * (wide - width_of(images[0]))
        lines = [padding.join(row) for row in zip(*group)]
        lines.append("".join(c.ljust(wide) for c in captions[start : start + fit]).rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def width_of(image: np.ndarray) -> int:
    """Characters across."""
    return image.shape[1] if _colours() else 2 * image.shape[1]


def draw(image: np.ndarray) -> list[str]:
    """The lines of one uint8 picture: half blocks in shades of grey, or characters where there are no colours."""
    if not _colours():
        shades = (image.astype(int) * len(_SHADES)) // 256
        return ["".join(_SHADES[s] * 2 for s in row) for row in shades]
    if len(image) % 2:
        image = np.pad(image, [(0, 1), (0, 0)])
    lines = []
    for upper, lower in zip(image[::2], image[1::2]):
        cells = [f"\x1b[38;5;{_grey(u)};48;5;{_grey(v)}m▀" for u, v in zip(upper, lower)]
        lines.append("".join(cells) + "\x1b[0m")
    return lines


def _grey(value: int) -> int:
    """One of the 24 greys of the 256-colour palette."""
    return 232 + int(value) * 23 // 255


def _colours() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and "NO_COLOR" not in os.environ


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
