"""How long until the first training step: importing, and a first step from an empty and from a warm kernel cache.

    python benchmarks/start.py [lenet | resnet50]

Every measurement is a process of its own; the figures are medians over `--rounds`.  The step is the whole of it: building
the model, recording, restructuring, compiling or loading kernels, running, and reading the loss.  ResNet-50 is given batches of
16 images, and its second step is measured too: the first can hardly take less.

Python keeps the bytecode of what it imports (in a folder of the measurement's own), as it does where packages are installed;
`--no-bytecode` compiles the sources in every process.
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
from {module} import {name}
import lezero
imported = time.perf_counter()
step = {name}({arguments})
step()
end = time.perf_counter()
if {again}: step()
print(imported - start, end - imported, time.perf_counter() - end)
"""
NETWORKS = {
    "lenet": ("training", "lezero_step", lambda threads: f"'lenet', {threads}, False", 3, 0.5),
    "resnet50": ("ablation", "training_step", lambda threads: "'resnet50', 16", 10, 2),
}
"""Where a step comes from, and the targets for an empty and a warm cache in seconds."""


def run(code, env):
    env = os.environ | env
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env).stdout
    return [float(x) for x in text.split()]


def bytecode(folder):
    """The environment of a process that keeps bytecode there, or nowhere."""
    if folder is None:
        return {"PYTHONDONTWRITEBYTECODE": "1"}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("network", nargs="?", default="lenet", choices=list(NETWORKS))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--no-bytecode", action="store_true")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(args, bytecode(None if args.no_bytecode else folder))


def measure(args, python):
    run(IMPORT, python)
    imports = [run(IMPORT, python) for _ in range(args.rounds)]
    module, name, arguments, empty, full = NETWORKS[args.network]
    step = STEP.format(
        here=os.path.dirname(os.path.abspath(__file__)), module=module, name=name, arguments=arguments(args.threads),
        again=args.network != "lenet",
    )  # fmt: skip
    cold, warm = [], []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as cache:
            env = python | {"LEZERO_CACHE_DIR": cache, "LEZERO_NUM_THREADS": str(args.threads)}
            cold.append(run(step, env))
            warm.append(run(step, env))
    beyond = statistics.median(b for _, b in imports)
    print(f"import lezero beyond NumPy:     {beyond:.3f} s (target 0.25)")
    median = lambda runs, k: statistics.median(r[k] for r in runs)
    print(f"first step, empty kernel cache: {median(cold, 1):.2f} s (target {empty})")
    print(f"first step, warm kernel cache:  {median(warm, 1):.2f} s (target {full})")
    if args.network != "lenet":
        print(f"second step:                    {median(warm, 2):.2f} s")


if __name__ == "__main__":
    main()
