"""PyTorch's own samples of its operators and layers: some of each, with the NumPy backend.

All of them: ``python tools/pytorch_samples.py``; other dtypes and backends: its ``--help``.
"""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")
TOOL = Path(__file__).parent.parent / "tools" / "pytorch_samples.py"


@pytest.fixture(scope="module")
def samples():
    spec = importlib.util.spec_from_file_location("pytorch_samples", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FEW = ["--most", "2", "--no-layers", "--no-errors"]
PARTS = {
    "a to e": ["--only", "^[a-eTH]", "--no-layers"],
    "f to m": ["--only", "^[f-m](?!inalg)", "--no-layers"],
    "n to z": ["--only", r"^(?!nn\.)[n-z]", "--no-layers"],
    "linear algebra": ["--only", "^linalg", "--no-layers"],
    "linear algebra of complex matrices": ["--only", "^linalg", "--no-layers", "--dtypes", "complex128", "--no-errors"],
    "functions of layers": ["--only", r"^nn\.f", "--no-layers"],
    "whole numbers and bools": [*FEW, "--dtypes", "int64,int32,uint8,bool"],
    "half precision": [*FEW, "--dtypes", "bfloat16,float16"],
    "float64 and complex numbers": [*FEW, "--dtypes", "float64,complex64"],
    "layers": ["--only", r"^nn\.[A-Z]", "--most", "2"],
}


@pytest.mark.parametrize("part", PARTS)
def test_results_gradients_and_refusals_are_pytorchs(samples, part):
    report = samples.run(["--most", "4", *PARTS[part]])
    assert report.tried > 100
    assert not report.found, report.text()


def test_a_difference_is_found(samples, monkeypatch):
    import lezero as lz

    monkeypatch.setattr(lz, "trace", lambda x: x.diagonal().sum() * (1 + 1e-3))
    report = samples.run(["--only", "^trace$", "--no-layers"])
    assert "result 0: values" in report.text() and "not refused" in report.text()
