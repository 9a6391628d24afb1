"""The test suite on every CPU level, thread count and backend, recorded and captured.

    python tests/matrix.py              everything: all levels this machine has, 1, 2 and 3 threads, recorded and captured,
                                        and the NumPy backend
    python tests/matrix.py --sample     a fixed pairwise sample: each level with each thread count, and both ways with each of them
    python tests/matrix.py --list       what would be run
    python tests/matrix.py -- -k softmax    further arguments go to pytest

Each setting is a pytest run of its own, since the level and the number of threads are read once by a process.  The plain
`pytest` runs the sample too, with its tests dealt out among the settings (``test_matrix.py``).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
THREADS = (1, 2, 3)
SUITE = (
    "test_backend_ops.py", "test_backend_fuzz.py", "test_backend_limits.py", "test_kernel_counts.py", "test_contractions.py",
    "test_codegen.py", "test_vector_math.py", "test_opaque.py", "test_models.py",
    "test_jit.py", "test_jit_extents.py", "test_jit_failures.py", "test_jit_gradients.py", "test_jit_state.py", "test_jit_steady.py",
    "test_traps.py", "test_traps_failures.py", "test_traps_gradients.py", "test_traps_plans.py", "test_traps_threads.py",
)  # fmt: skip
"""What depends on the level, the threads or the backend."""


def levels() -> list[str]:
    """CPU levels this machine can run, the lowest first."""
    sys.path.insert(0, str(HERE.parent / "src"))
    from lezero.backends.cpu.detect import available_levels

    return list(available_levels())


def settings(sample: bool) -> list[dict[str, str]]:
    """Environment variables of each run."""
    runs = []
    for row, level in enumerate(levels()):
        for column, threads in enumerate(THREADS):
            for captured in (0, 1):
                if not sample or captured == (row + column) % 2:
                    setting = {
                        "LEZERO_CPU": level,
                        "LEZERO_NUM_THREADS": str(threads),
                        "LEZERO_TEST_CAPTURED": str(captured),
                    }
                    runs.append(setting)
    return [*runs, {"LEZERO_BACKEND": "numpy"}]


def files() -> list[str]:
    return [str(HERE / name) for name in SUITE]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", action="store_true", help="a fixed pairwise sample of the settings")
    parser.add_argument("--list", action="store_true", help="print the settings and stop")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    failed = []
    for setting in settings(options.sample):
        words = " ".join(f"{k}={v}" for k, v in setting.items())
        if options.list:
            print(words)
            continue
        start = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", *files(), *options.pytest]
        code = subprocess.run(command, cwd=HERE.parent, env={**os.environ, **setting}, check=False).returncode
        good = code in (0, 5)  # 5: nothing was selected
        print(f"{'passed' if good else 'FAILED'}  {words}  {time.perf_counter() - start:.0f} s", flush=True)
        if not good:
            failed.append(words)
    for words in failed:
        print(f"failed: {words}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
