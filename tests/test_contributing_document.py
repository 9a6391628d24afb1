"""CONTRIBUTING's walk-throughs, followed to the letter in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lezero

ROOT = Path(__file__).parents[1]


def blocks(title, language):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## Walk-through: {title}\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    return [
        textwrap.dedent(b) for b in re.findall(rf"^ *```{language}\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
    ]


def write(folder, block):
    """Put the lines of a block into the file that its first line names: after those already there, or at the end."""
    heading, lines = block.split("\n", 1)
    path = folder / heading.removeprefix("# ")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for part in lines.split("\n\n"):
        first = part.split("\n", 1)[0] + "\n"
        if first not in text:
            path.write_text(f"{text}\n\n{lines}", encoding="utf-8")
            return
        assert text.count(first) == 1
        text = text.replace(first, part.rstrip("\n") + "\n")
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(lezero.__file__).parent, tmp_path / "src" / "lezero", ignore=ignored)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
    return tmp_path


def output(folder, *arguments):
    path = os.pathsep.join([str(folder / "src"), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": path}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_operation_is_added_as_described(copy):
    *files, look = blocks("add an operation", "python")
    for block in files:
        write(copy, block)
    (command,) = blocks("add an operation", "sh")
    said = output(copy, "-m", *command.split(), "-q", "-p", "no:cacheprovider")
    assert re.search(r"[1-9]\d* passed", said)
    assert re.search(r"kernels +\d+ +1\b", output(copy, "-c", look)) or lezero.device.get_backend() != "cpu"


def test_a_pass_is_added_as_described(copy):
    for block in blocks("add a restructuring pass", "python"):
        write(copy, block)
    said = output(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_signs.py")
    assert "2 passed" in said
