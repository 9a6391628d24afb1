"""Test files can be collected with the test extra alone: what it does not install is asked for before it is imported."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IMPORTED_AS = {"scikit-learn": "sklearn", "array-api-strict": "array_api_strict", "pytest-xdist": "xdist"}


def installed():
    """What can be imported after ``pip install '.[test]'``."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = [r.partition(">=")[0] for r in [*project["dependencies"], *project["optional-dependencies"]["test"]]]
    examples = {p.stem for p in (HERE.parent / "examples").glob("*.py")}
    return sys.stdlib_module_names | {IMPORTED_AS.get(p, p) for p in packages} | examples | {"lezero", "benchmarks"}


def roots(statement):
    if isinstance(statement, ast.Import):
        return [name.name.partition(".")[0] for name in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [statement.module.partition(".")[0]]
    return []


def asked_for(statement):
    """The X of every ``importorskip("X")`` in a statement."""
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return {c.args[0].value.partition(".")[0] for c in calls if getattr(c.func, "attr", "") == "importorskip"}


def imported_unasked(path, known):
    """Packages that a file, or one of its neighbours that it imports, needs to be there."""
    found = set()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        known = known | asked_for(statement)
        for root in roots(statement):
            neighbour = HERE / f"{root}.py"
            found |= imported_unasked(neighbour, known) if neighbour.exists() else {root} - known
    return found


@pytest.mark.parametrize("path", sorted(HERE.glob("test_*.py")), ids=lambda p: p.stem)
def test_optional_packages_are_asked_for_before_they_are_imported(path):
    assert not imported_unasked(path, installed())
