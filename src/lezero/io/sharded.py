"""Weights in several safetensors files with an index, ``NAME.safetensors.index.json``, as Hugging Face stores large models.

The index is JSON: ``weight_map`` says for each tensor which file beside the index it is in.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from lezero.io import safetensors
from lezero.io.safetensors import SafetensorsError

SUFFIX = ".index.json"
_MAX_INDEX = 1 << 28


def read_sharded(index: Path) -> dict[str, np.ndarray]:
    """The arrays of all the files that an index names.

    Raises
    ------
    SafetensorsError
        If the index is none, if it and the files contradict each other, or if a file is not in the index's folder.
    FileNotFoundError
        If a file is missing.
    """
    wanted = _by_file(index)
    arrays: dict[str, np.ndarray] = {}
    for name, tensors in wanted.items():
        path = index.parent / name
        if not path.is_file():
            raise FileNotFoundError(f"{index}: the file {name!r} that it names is not there")
        if path.resolve().parent != index.resolve().parent:
            raise SafetensorsError(f"{index}: the file {name!r} is a link to another folder")
        with path.open("rb") as file:
            try:
                shard = safetensors.read(file, path.stat().st_size)
            except SafetensorsError as error:
                raise SafetensorsError(f"{path}: {error}") from None
        odd = sorted(shard.keys() ^ tensors)
        if odd:
            where = "lacks" if odd[0] in tensors else "has"
            raise SafetensorsError(f"{index} and {name!r} contradict each other: the file {where} {odd[0]!r}")
        arrays |= shard
    return arrays


def _by_file(index: Path) -> dict[str, set[str]]:
    if index.stat().st_size > _MAX_INDEX:
        raise SafetensorsError(f"{index} is too large for an index")
    try:
        content: Any = json.loads(index.read_bytes(), object_pairs_hook=safetensors.without_repeats)
    except SafetensorsError as error:
        raise SafetensorsError(f"{index}: {error}") from None
    except (ValueError, RecursionError):
        raise SafetensorsError(f"{index} is not JSON") from None
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        raise SafetensorsError(f"{index} is not an index of safetensors files: it has no weight_map")
    files: dict[str, set[str]] = defaultdict(set)
    for tensor, name in names.items():
        if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\\0"):
            raise SafetensorsError(
                f"{index}: {tensor!r} is said to lie in {name!r}, which is no file in the index's folder"
            )
        files[name].add(tensor)
    return files
