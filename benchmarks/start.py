"""How long until the first training step: importing, and LeNet's first step from an empty and from a warm kernel cache.

    python benchmarks/start.py

Every measurement is a process of its own; the figures are medians over `--rounds`.  The step is the whole of it: building
the model, recording, restructuring, compiling or loading kernels, running, and reading the loss.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

IMPORT = """
import time
start = time.perf_counter(); import numpy; middle = time.perf_counter(); import lezero; end = time.perf_counter()
print(middle - start, end - middle)
"""
STEP = """
import sys, time; sys.path.insert(0, {here!r})
start = time.perf_counter()
from training import lezero_step
import lezero
imported = time.perf_counter()
lezero_step("lenet", {threads}, False)()
print(imported - start, time.perf_counter() - imported)
"""


def run(code, **env):
    text = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=dict(os.environ, **env)
    ).stdout
    return [float(x) for x in text.split()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = p.parse_args()
    imports = [run(IMPORT) for _ in range(args.rounds)]
    step = STEP.format(here=os.path.dirname(os.path.abspath(__file__)), threads=args.threads)
    cold, warm = [], []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(run(step, LEZERO_CACHE_DIR=cache)[1])
            warm.append(run(step, LEZERO_CACHE_DIR=cache)[1])
    beyond = statistics.median(b for _, b in imports)
    print(f"import lezero beyond NumPy:     {beyond:.3f} s (target 0.25)")
    print(f"first step, empty kernel cache: {statistics.median(cold):.2f} s (target 3)")
    print(f"first step, warm kernel cache:  {statistics.median(warm):.2f} s (target 0.5)")


if __name__ == "__main__":
    main()
