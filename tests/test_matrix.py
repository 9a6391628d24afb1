"""The suite at every CPU level, with 1, 2 and 3 threads, recorded and captured, and on the NumPy backend: a pairwise sample.

The tests of the suite are dealt out among the settings, so that together they run each test once; ``python tests/matrix.py``
runs every test in every setting.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import matrix

SETTINGS = matrix.settings(sample=True)


def test_the_sample_has_every_pair():
    factors = ("LEZERO_CPU", "LEZERO_NUM_THREADS", "LEZERO_TEST_CAPTURED")
    runs = [s for s in SETTINGS if "LEZERO_CPU" in s]
    full = [s for s in matrix.settings(sample=False) if "LEZERO_CPU" in s]
    for i, a in enumerate(factors):
        for b in factors[:i]:
            assert {(s[a], s[b]) for s in runs} == {(s[a], s[b]) for s in full}


@pytest.mark.skipif("LEZERO_TEST_PART" in os.environ, reason="this is one of the runs")
@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=[" ".join(s.values()) for s in SETTINGS])
def test_a_share_of_the_suite(number):
    environment = {**os.environ, **SETTINGS[number], "LEZERO_TEST_PART": f"{number}/{len(SETTINGS)}", "CI": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *matrix.files()]
    done = subprocess.run(
        command,
        cwd=Path(__file__).resolve().parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
