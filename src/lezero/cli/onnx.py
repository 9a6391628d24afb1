"""Something to call a model in an ONNX file with."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from lezero.cli.data import user_errors
from lezero.cli.others import LENGTH, Example
from lezero.onnx.interpreter import check_operands
from lezero.onnx.program import Declared
from lezero.tensor import Tensor, tensor


def example_of(path: str, batch: int, shapes: tuple[str, ...]) -> Example:
    """The model with inputs of the extents that are given, where the file leaves them open `batch` and LENGTH."""
    import lezero as lz

    given = dict(_shape(text) for text in shapes)
    with user_errors():
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path!r}")
        model = lz.onnx.load(path)
    unknown = [name for name in given if name not in model.input_names]
    if unknown:
        raise click.UsageError(
            f"--shape: the model has no input {unknown[0]!r}; its inputs are {', '.join(model.input_names)}"
        )
    symbols = {
        d: n
        for v in model.program.body.inputs
        for d, n in zip(v.shape or (), given.get(v.name, ()))
        if isinstance(d, str)
    }
    inputs = tuple(_input(v, given.get(v.name), symbols, batch) for v in model.program.body.inputs)
    with user_errors():
        check_operands(model.program, inputs, {})
    return Example(model, inputs, None, None)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=2x3 as the name, which may have "=" in it, and the extents; nothing after it is a single number."""
    name, _, extents = text.rpartition("=")
    numbers = extents.split("x") if extents else []
    if not name or not all(n.isdecimal() for n in numbers):
        raise click.UsageError(f"--shape: NAME=1x3x224x224 is needed, got {text!r}")
    return name, tuple(int(n) for n in numbers)


def _input(declared: Declared, shape: tuple[int, ...] | None, symbols: dict[str, int], batch: int) -> Tensor:
    if declared.kind != "tensor" or declared.dtype is None:
        raise click.UsageError(f"input {declared} is no tensor of a known dtype, of which there is no example")
    if shape is None and declared.shape is None:
        raise click.UsageError(
            f"the file does not say how many dimensions {declared} has: give --shape {declared.name}=…"
        )
    if shape is None:
        extents = [symbols.get(d, d) if isinstance(d, str) else d for d in declared.shape or ()]
        shape = tuple(d if isinstance(d, int) else LENGTH if k else batch for k, d in enumerate(extents))
    return tensor(_values(shape, declared.dtype))


def _values(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Between 0 and 1, or ones: no index is out of range, and no mask leaves nothing."""
    if dtype.kind in "iub":
        return np.ones(shape, dtype)
    return np.random.default_rng(0).random(shape, np.float32).astype(dtype)
