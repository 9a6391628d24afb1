"""The package imported from a zip file."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

PROGRAM = """
import sys
import lezero as lz
from lezero.backends.cpu import kernel_cache
assert lz.__file__.startswith(sys.argv[1]), lz.__file__
lz.explain(lambda x: x.exp(), lz.ones(3)).save(sys.argv[2])
print(kernel_cache._generator())
"""


def zipped(path, changed=""):
    """The package as a zip file; one file of the code generator ends in `changed`."""
    with zipfile.ZipFile(path, "w") as z:
        for file in sorted(p for p in (SOURCE / "lezero").rglob("*") if p.is_file() and p.suffix != ".pyc"):
            end = changed if file.parts[-2:] == ("codegen", "emit.py") else ""
            z.writestr(file.relative_to(SOURCE).as_posix(), file.read_bytes() + end.encode())
    return path


def generator_of(source, tmp_path):
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(page)],
        env={"PYTHONPATH": str(source), "LEZERO_CACHE_DIR": str(tmp_path / "cache"), "LEZERO_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert "</html>" in page.read_text("utf-8")
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="the environment of the child is POSIX's")
def test_kernels_are_told_apart_by_the_code_generator_in_a_zip_too(tmp_path):
    folder = generator_of(SOURCE, tmp_path)
    assert generator_of(zipped(tmp_path / "same.zip"), tmp_path) == folder
    assert generator_of(zipped(tmp_path / "other.zip", "\n"), tmp_path) != folder
