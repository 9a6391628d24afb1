"""What ``import lezero`` brings in."""

import subprocess
import sys
from pathlib import Path

import pytest

import lezero as lz

RECORDED = "x = lz.tensor([1.0, 2.0], requires_grad=True); (x * x).sum().backward()"


@pytest.mark.parametrize(
    ("then", "expected"), [(RECORDED, False), (RECORDED + "; x.grad.numpy()", True)], ids=["recorded", "run"]
)
def test_what_plans_and_compiles_is_imported_by_the_first_run(then, expected):
    code = f"""
import sys
from pathlib import Path
import lezero as lz
{then}
for package in ("schedule", "passes", "codegen", "backends"):
    assert (f"lezero.{{package}}" in sys.modules) is {expected}, package
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_is_hidden_by_a_package_of_its_name():
    root = Path(lz.__file__).parent
    assert not [module for module in root.rglob("*.py") if (module.with_suffix("") / "__init__.py").exists()]
