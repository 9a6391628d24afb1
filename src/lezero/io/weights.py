"""Weights by name, whichever of the formats they are in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lezero.io.lzm import load, save
from lezero.io.npz import load_npz, save_npz
from lezero.io.pth import load_pth
from lezero.io.pth_writer import save_pth
from lezero.io.safetensors import load_safetensors, save_safetensors
from lezero.io.sharded import SUFFIX
from lezero.io.source import ADVICE, format_of
from lezero.tensor import Tensor, tensor

_READERS = {"lzm": load, "npz": load_npz, "pth": load_pth, "safetensors": load_safetensors}
_WRITERS = {
    ".safetensors": save_safetensors,
    ".pth": save_pth,
    ".pt": save_pth,
    ".bin": save_pth,
    ".lzm": save,
    ".npz": save_npz,
}


class WeightsError(ValueError):
    """A file that holds no weights, or none of a kind that is known."""


class Weights(NamedTuple):
    """What a file holds.

    tensors : by name
    entry : the name of the part of the file they are, or None if they are the whole
    left_out : names of what else the file holds
    """

    tensors: dict[str, Tensor]
    entry: str | None
    left_out: list[str]


def load_weights(path: str | os.PathLike[str], entry: str | None = None) -> dict[str, Tensor]:
    """The weights in a file, by name.  Nothing in it is executed.

    Parameters
    ----------
    path : a ``.safetensors`` file or the ``.index.json`` of several, PyTorch's of either format, ``.lzm`` or ``.npz``; which it
        is, is seen from its content
    entry : the name of the part that the weights are, for files that hold several, such as checkpoints of a training

    Raises
    ------
    WeightsError
        If it holds no weights, or several parts that may be meant; names them.
    SafetensorsError, PthError, LzmError, NpzError, FileNotFoundError
        As the functions for each format.
    """
    return read_weights(Path(path), entry).tensors


def read_weights(path: Path, entry: str | None = None) -> Weights:
    """As :func:`load_weights`, with what was left out."""
    return weights_in(_reader(path)(path), path, entry)


def save_weights(tensors: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write tensors (or arrays) by name in the format that the path's suffix names, atomically.

    Parameters
    ----------
    path : with the suffix ``.safetensors``, ``.pth`` (or ``.pt``, ``.bin``: PyTorch's zip format), ``.lzm`` or ``.npz``

    Raises
    ------
    WeightsError
        For another suffix.
    """
    writer_for(Path(path))(tensors, path)


def writer_for(path: Path) -> Any:
    """What writes files with the path's suffix."""
    if path.suffix not in _WRITERS:
        raise WeightsError(f"{str(path)!r}: the suffix says what is written, and {', '.join(_WRITERS)} are known")
    return _WRITERS[path.suffix]


def _reader(path: Path) -> Any:
    """The function for the format that a file is in, going by its content."""
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder; name a file in it, such as the .index.json")
    if path.name.endswith(SUFFIX):
        return load_safetensors
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(path)!r}") from None
    known = format_of(start) or ("pth" if start[:4] == b"PK\x03\x04" else None)
    if known in _READERS:
        return _READERS[known]
    if known == "onnx":
        raise WeightsError(f"{str(path)!r} is a model; {ADVICE[known]}")
    raise WeightsError(
        f"{str(path)!r} holds no weights that can be read: it is {'empty' if not start else 'neither safetensors, nor a .pth, .lzm, .npz or ONNX file'}"
    )


def weights_in(value: Any, path: Path, entry: str | None) -> Weights:
    """The weights in what a file holds: all of it, or its one part that is a dict of tensors."""
    if not isinstance(value, dict):
        raise WeightsError(f"{path} holds a {type(value).__name__}, not tensors by name")
    parts = [str(k) for k, v in value.items() if _tensors_of(v)]
    if entry is None and not _tensors_of(value):
        if len(parts) != 1:
            which = f"several: {', '.join(parts)}; say which is meant" if parts else "none"
            raise WeightsError(f"{path} holds {len(value)} entries, and of those that are tensors by name {which}")
        (entry,) = parts
    if entry is None:
        return Weights(_tensors_of(value), None, [str(k) for k, v in value.items() if not _is_tensor(v)])
    if entry not in parts:
        known = ", ".join(parts) or "none that are tensors by name"
        raise WeightsError(f"{path} has no weights named {entry!r}; it has {known}")
    tensors = _tensors_of(value[entry])
    inner = [f"{entry}.{k}" for k in value[entry] if k not in tensors]
    return Weights(tensors, entry, [*(str(k) for k in value if k != entry), *inner])


def _tensors_of(value: Any) -> dict[str, Tensor]:
    if not isinstance(value, dict):
        return {}
    return {
        k: v if isinstance(v, Tensor) else tensor(v) for k, v in value.items() if isinstance(k, str) and _is_tensor(v)
    }


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))
