"""Weights from one file format, naming and precision to another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lezero import models
from lezero.graph.dtype import DType, as_dtype
from lezero.io.safetensors import save_safetensors
from lezero.io.source import format_of
from lezero.io.weights import Weights, WeightsError, read_weights, writer_for
from lezero.models.names import recognised, renamed
from lezero.tensor import Tensor, tensor

PRECISIONS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Conversion:
    """What :func:`convert_weights` did.

    tensors : what was written, by name
    entry : the part of the source file that was converted, None for all of it
    left_out : names of what else the source holds
    model, naming : the first model of the family that the source's names are of, and whose they are; None if unknown
    bytes_before, bytes_after : of the tensors
    """

    tensors: dict[str, Tensor]
    entry: str | None
    left_out: list[str]
    model: str | None
    naming: str | None
    bytes_before: int
    bytes_after: int


def convert_weights(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    model: str | None = None,
    names: str | None = None,
    dtype: DType | str | None = None,
    entry: str | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Conversion:
    """Convert a file of weights.

    Parameters
    ----------
    source : any file that :func:`lezero.io.load_weights` reads, or a model in ONNX, of which the initialisers and constants of
        floating point are taken
    target : ``.safetensors``, ``.pth`` (or ``.pt``, ``.bin``: PyTorch's zip format), ``.lzm`` or ``.npz``; written atomically
    model : a function of ``lezero.models``; the weights have to be those of it
    names : {"torchvision", "huggingface", "lezero"}, optional
        Whose names the tensors get; the source's are recognised.  As they are unless given.
    dtype : a floating dtype for floating tensors; others stay
    entry : the part of the source that the weights are, where it holds several
    overwrite : whether a file that is there may be replaced
    progress : called with what is being done

    Raises
    ------
    FileExistsError
        If `target` is there, and `overwrite` was not given.
    WeightsError, NamesError, OnnxError and the formats' errors
        If the source cannot be read, is not of that model, or has names that are not known; nothing is written then.
    OverflowError
        If a value is beyond the range of `dtype`; names the tensor.
    """
    source, target = Path(source), Path(target)
    write, wanted = writer_for(target), _precision(dtype)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{str(target)!r} is there already, and is not overwritten unless that is asked for")
    progress(f"reading {source.name}")
    read = _onnx_weights(source, entry) if _is_onnx(source) else read_weights(source, entry)
    tensors, family, naming = read.tensors, None, None
    if names is not None or model is not None:
        progress("translating names")
        family, naming = recognised(tensors, model)
        tensors = renamed(tensors, names or naming, model)
        if model is not None and family.own == "torchvision":
            _check_fit(model, renamed(tensors, "lezero", model))
    before = _bytes(tensors)
    if wanted is not None:
        progress(f"rounding to {wanted.name}")
        tensors = _in_precision(tensors, wanted)
    progress(f"writing {target.name}")
    if write is save_safetensors:
        write(tensors, target, {"format": "pt"})  # transformers refuses files that do not say so
    else:
        write(tensors, target)
    known = None if family is None else model or family.models[0]
    return Conversion(tensors, read.entry, read.left_out, known, naming, before, _bytes(tensors))


def _precision(dtype: DType | str | None) -> DType | None:
    if dtype is None:
        return None
    wanted = as_dtype(dtype)
    if wanted.name not in PRECISIONS:
        raise ValueError(f"weights are converted to {', '.join(PRECISIONS)}, got {wanted.name}")
    return wanted


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(t.numel() * t.dtype.itemsize for t in tensors.values())


def _in_precision(tensors: dict[str, Tensor], dtype: DType) -> dict[str, Tensor]:
    """Floating tensors in another precision; tied ones stay tied."""
    done: dict[int, Tensor] = {}
    for name, t in tensors.items():
        if id(t) not in done:
            done[id(t)] = _rounded(name, t, dtype) if t.dtype.is_floating_point and t.dtype is not dtype else t
    return {name: done[id(t)] for name, t in tensors.items()}


def _rounded(name: str, t: Tensor, dtype: DType) -> Tensor:
    array = t.numpy()
    with np.errstate(over="ignore"):
        result = array.astype(dtype.numpy)
    lost = np.isfinite(array) & ~np.isfinite(result)
    if lost.any():
        largest = np.abs(array[lost]).max()
        raise OverflowError(f"{name!r} has values up to {largest:.3g}, which are beyond the range of {dtype.name}")
    return tensor(result)


def _check_fit(model: str, state: dict[str, Tensor]) -> None:
    """The names are exactly the model's; extents may differ, as those of a classifier of other classes do."""
    own = getattr(models, model)().state_dict()
    missing = [n for n in own if n not in state and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in state if n not in own]
    if missing or unexpected:
        lists = [f"{what} {', '.join(n[:5])}{', …' if len(n) > 5 else ''}" for what, n in (("missing", missing), ("unexpected", unexpected)) if n]  # fmt: skip
        raise WeightsError(f"these are not the weights of {model}: {'; '.join(lists)}")


def _is_onnx(path: Path) -> bool:
    if path.suffix == ".onnx" or not path.is_file():
        return path.suffix == ".onnx"
    with path.open("rb") as file:
        return format_of(file.read(512)) == "onnx"


def _onnx_weights(path: Path, entry: str | None) -> Weights:
    """The initialisers of a model's graphs, and their Constant nodes of floating point, as far as there are tensors for them."""
    from lezero.onnx.module import all_bodies
    from lezero.onnx.program import read
    from lezero.onnx.registry import has_tensor_type

    if entry is not None:
        raise WeightsError(f"{path} has no parts; an entry is named for files of several")
    arrays: dict[str, Any] = {}
    for body in all_bodies(read(path)):
        found = dict(body.constants)
        for call in body.calls:
            value = call.attributes.get("value")
            if call.operator == "Constant" and isinstance(value, np.ndarray) and value.dtype.kind == "f":
                found[call.outputs[0]] = value
        arrays |= {name if name not in arrays else f"{body.name}.{name}": array for name, array in found.items()}
    if not arrays:
        raise WeightsError(f"{path} has no weights")
    tensors = {name: tensor(array) for name, array in arrays.items() if has_tensor_type(array.dtype)}
    return Weights(tensors, None, [name for name in arrays if name not in tensors])
