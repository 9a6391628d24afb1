"""The short form of ``benchmarks/soak.py``: memory stays flat, no kernel is compiled twice, evicted kernels come back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent / "benchmarks" / "soak.py"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("part", ["steps", "kernels"])
def test_quick_soak(part):
    """In a process of its own: what other tests left behind would hide growth, and it shrinks the caches."""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, SOAK, part, "--quick"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flat" in done.stdout and "TWICE" not in done.stdout
