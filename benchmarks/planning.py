"""What a new batch size costs: size arithmetic and the memory plan of LeNet's training step, with all kernels cached.

python benchmarks/planning.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np

import lezero as lz
from lezero import nn, optim
from lezero.backends.cpu import CpuProgram
from lezero.nn import functional as F
from training import network


def main():
    model = network(nn, "lenet")
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    r = np.random.default_rng(0)
    times = []
    table = CpuProgram._table

    def timed(self, key):
        start = time.thread_time()
        result = table(self, key)
        times.append(time.thread_time() - start)
        return result

    CpuProgram._table = timed
    sizes = [64, 32, *range(33, 63)]
    for n in sizes:
        x = lz.tensor(r.normal(size=(n, 1, 28, 28)).astype(np.float32))
        y = lz.tensor(r.integers(0, 10, n))
        before = len(times)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert n == 64 or len(times) == before + 1, "a new batch size is one new table, and nothing else"
    fresh = times[-(len(sizes) - 2) :]
    print(
        f"LeNet, {len(fresh)} new batch sizes: median {statistics.median(fresh) * 1e3:.2f} ms, most {max(fresh) * 1e3:.2f} ms (target 5)"
    )
    print(f"plans built: {lz.runtime.stats()['plans_built']}")


if __name__ == "__main__":
    main()
