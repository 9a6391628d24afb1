"""Comparing an exported file with the model it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lezero.export.errors import ExportError
from lezero.export.state import unchanged
from lezero.export.trace import _resized, _tensors
from lezero.onnx.program import package
from lezero.tensor import Tensor, no_grad

TOLERANCE = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference, as a part of the largest number."""


class VerificationError(AssertionError):
    """An exported file that computes something else than the model."""


def compare(
    model: Any, path: Path, examples: Sequence[Tensor], names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]],
    dims: Mapping[str, Any],
) -> str:  # fmt: skip
    """Check a file and compare it with the model at several extents; what was found, as JSON."""
    _check(path)
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            "verify=True compares with ONNX Runtime: pip install onnxruntime, or pass verify=False"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no class in common
        raise _cannot_run(error) from error
    found = []
    for sizes in _cases(examples, names, dynamic, dims):
        inputs = [_resized(t, dynamic.get(n, {}), sizes) for t, n in zip(examples, names)]
        with unchanged(model), no_grad():
            wanted = [t.detach().numpy() for t in _tensors(_called(model, inputs, sizes))]
        try:
            got = session.run(None, {n: t.numpy() for n, t in zip(names, inputs) if n in _inputs(session)})
        except Exception as error:  # some kernels are missing only when they are called
            raise _cannot_run(error) from error
        found.append(
            {"sizes": sizes, "difference": max(_difference(g, w, sizes) for g, w in zip(got, wanted, strict=True))}
        )
    return json.dumps({"runtime": f"onnxruntime {onnxruntime.__version__}", "cases": found})


def _cannot_run(error: Exception) -> ExportError:
    return ExportError(
        f"ONNX Runtime cannot run the file, so it is not compared; verify=False writes it for others: {error}"
    )


def _check(path: Path) -> None:
    checker = package().checker
    try:
        checker.check_model(str(path), full_check=True)
    except (checker.ValidationError, package().shape_inference.InferenceError) as error:
        raise ExportError(f"the standard does not allow what the model computes: {error}") from error


def _called(model: Any, inputs: list[Tensor], sizes: Mapping[str, int]) -> Any:
    try:
        return model(*inputs)
    except ValueError as error:
        raise ExportError(
            f"at {dict(sizes)} the model refuses its input: {error}; a Dim with min= and max= names the extents that it takes"
        ) from error


def _inputs(session: Any) -> set[str]:
    return {i.name for i in session.get_inputs()}


def _cases(
    examples: Sequence[Tensor], names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]], dims: Mapping[str, Any]
) -> list[dict[str, int]]:
    """The example's extents, and for each dynamic dimension up to three others, within its range."""
    example = {
        called: int(t.shape[axis]) for t, n in zip(examples, names) for axis, called in dynamic.get(n, {}).items()
    }
    cases = [example]
    for called, n in example.items():
        d = dims[called]
        most = d.max if d.max is not None else max(2 * n + 1, n + 3)
        others = [k for k in dict.fromkeys((n + 1, d.min, most, n + 2)) if d.min <= k <= most and k != n]
        cases += [{**example, called: k} for k in others[:3]]
    return cases


def _difference(got: np.ndarray, wanted: np.ndarray, sizes: Mapping[str, int]) -> float:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        raise VerificationError(
            f"at {dict(sizes)}: ONNX Runtime gives {got.dtype} of {list(got.shape)}, the model {wanted.dtype} of {list(wanted.shape)}"
        )
    if not wanted.size:
        return 0.0
    if wanted.dtype.kind not in "fV":
        if not np.array_equal(got, wanted):
            raise VerificationError(f"at {dict(sizes)}: ONNX Runtime gives other integers than the model")
        return 0.0
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0)) or 1.0
    difference = float(np.where(same, 0, np.abs(a - b)).max()) / scale
    if not difference <= TOLERANCE.get(wanted.dtype.name, 1e-4):
        raise VerificationError(f"at {dict(sizes)}: ONNX Runtime's output differs from the model's by {difference:.1e}")
    return difference
