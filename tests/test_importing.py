"""What ``import lezero`` brings in."""

import subprocess
import sys

import pytest

RECORDED = "x = lz.tensor([1.0, 2.0], requires_grad=True); (x * x).sum().backward()"


@pytest.mark.parametrize(
    ("then", "expected"), [(RECORDED, False), (RECORDED + "; x.grad.numpy()", True)], ids=["recorded", "run"]
)
def test_what_plans_and_compiles_is_imported_by_the_first_run(then, expected):
    code = f"""
import sys
import lezero as lz
{then}
for package in ("schedule", "passes", "codegen", "backends"):
    assert (f"lezero.{{package}}" in sys.modules) is {expected}, package
"""
    subprocess.run([sys.executable, "-c", code], check=True)
