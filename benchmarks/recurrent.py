"""A training step of a recurrent layer on LeZero, recorded and captured, and on PyTorch, in turn.

    python benchmarks/recurrent.py LSTM 128 [--length 64] [--batch 32] [--rounds 25]

The layer reads as many features as it has, the loss is the mean square of its distance from random states, and the optimizer is SGD.
Each system is a process of its own; they take a step each, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

SYSTEMS = ("torch", "lezero", "lezero-jit")


def worker(options: argparse.Namespace) -> None:
    library: Any
    if options.worker == "torch":
        import torch as library

        library.set_num_threads(options.threads)
    else:
        import lezero as library
    shape = (options.length, options.batch, options.hidden)
    x, y = (library.tensor(a) for a in np.random.default_rng(0).normal(size=(2, *shape)).astype("f4"))
    layer = getattr(library.nn, options.layer)(options.hidden, options.hidden)
    optimizer = library.optim.SGD(layer.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        loss = ((layer(x)[0] - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    step = library.jit(step) if options.worker == "lezero-jit" else step
    for _ in range(4):
        step().item()
    print(json.dumps(0.0), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step().item()
        print(json.dumps(time.perf_counter() - start), flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("layer", choices=["LSTM", "GRU", "RNN"])
    p.add_argument("hidden", type=int)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--rounds", type=int, default=25)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--worker", help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.worker:
        return worker(options)
    threads = str(options.threads)
    env = dict(os.environ, OMP_NUM_THREADS=threads, LEZERO_NUM_THREADS=threads)
    running = []
    for system in SYSTEMS:
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", system]
        proc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert proc.stdout is not None
        proc.stdout.readline()
        running.append((system, proc, []))
    for _ in range(options.rounds):
        for _, proc, taken in running:
            proc.stdin.write("step\n")
            proc.stdin.flush()
            taken.append(json.loads(proc.stdout.readline()))
    reference = running[0][2]
    for system, proc, taken in running:
        proc.stdin.close()
        proc.wait()
        ratio = statistics.median(taken) / statistics.median(reference)
        print(
            f"{options.layer} {options.hidden} {system:10s} median {statistics.median(taken) * 1e3:6.2f} ms, "
            f"of PyTorch's {ratio:.2f} (of minima {min(taken) / min(reference):.2f})"
        )


if __name__ == "__main__":
    main()
