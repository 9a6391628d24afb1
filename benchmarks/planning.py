"""What a new batch size or sequence length costs: size arithmetic and the memory plan of a training step, kernels cached.

    python benchmarks/planning.py [lenet] [resnet50] [bert]

The steps are recorded and planned, and kernels compiled or loaded; nothing is computed, so values are arbitrary.  Timed is
what the first run with new extents does besides: everything up to the finished table, in processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import lezero as lz
from lezero import models, nn, optim
from lezero.backends.cpu import CpuProgram
from lezero.backends.cpu.pool import ThreadPool
from lezero.nn import functional as F
from training import network

TARGETS = {"lenet": 5, "resnet50": 30, "bert": 30}
"""Milliseconds."""


def images(model, side, classes, optimizer):
    r = np.random.default_rng(0)

    def step(n):
        x = lz.tensor(r.normal(size=(n, *side)).astype(np.float32))
        y = lz.tensor(r.integers(0, classes, n))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def words(model, optimizer):
    r = np.random.default_rng(0)

    def step(batch, length):
        ids, y = (lz.tensor(r.integers(0, 30522, (batch, length))) for _ in range(2))
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), y.flatten()).backward()
        optimizer.step()

    return step


def task(name):
    """(a training step, the extents it is given in turn)"""
    if name == "lenet":
        model = network(nn, "lenet")
        step = images(model, (1, 28, 28), 10, optim.AdamW(model.parameters(), lr=1e-4))
        return step, [(64,), (32,), *((n,) for n in range(33, 63))]
    if name == "resnet50":
        model = models.resnet50()
        step = images(model, (3, 224, 224), 1000, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        return step, [(16,), (8,), *((n,) for n in range(9, 16))]
    model = models.bert_base()
    step = words(model, optim.AdamW(model.parameters(), lr=1e-4))
    return step, [(8, 128), (8, 96), *((n, 128) for n in range(4, 8)), *((8, n) for n in range(100, 120, 5))]


def measure(name):
    step, sizes = task(name)
    times = []
    table = CpuProgram._table

    def timed(self, key):
        start = time.thread_time()
        result = table(self, key)
        times.append(time.thread_time() - start)
        return result

    CpuProgram._table = timed
    step(*sizes[0])
    for extents in sizes[1:]:
        before, plans = len(times), lz.runtime.stats()["plans_built"]
        step(*extents)
        if extents is not sizes[1]:  # once more for the optimizer's state, which is there by then
            assert len(times) == before + 1, "new extents are one new table"
            assert lz.runtime.stats()["plans_built"] == plans, "and no new plan"
    CpuProgram._table = table
    fresh = times[-(len(sizes) - 2) :]
    print(
        f"{name}, {len(fresh)} new extents: median {statistics.median(fresh) * 1e3:.2f} ms, "
        f"most {max(fresh) * 1e3:.2f} ms (target {TARGETS[name]})"
    )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="{" + ",".join(TARGETS) + "}")
    args = p.parse_args()
    ThreadPool._run = lambda self, table, bases, profile: None
    for name in args.names or TARGETS:
        measure(name)


if __name__ == "__main__":
    main()
