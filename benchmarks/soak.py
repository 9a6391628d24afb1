"""Does memory stay flat?  Two long runs, each of which fails (exit code 1) when it does not.

    python benchmarks/soak.py steps      # 20,000 training steps over 50 alternating batch sizes
    python benchmarks/soak.py kernels    # 10,000 kernels loaded where only a few may stay
    python benchmarks/soak.py --quick    # both, a hundredth as long

``steps`` also checks that no kernel is compiled twice, and shows how much every cache holds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

import numpy as np

import lezero as lz
from lezero import nn, optim
from lezero.backends.cpu import compiler
from lezero.nn import functional as F
from lezero.runtime import run, stats

TOLERANCE = 1.05


def resident() -> float:
    """Resident memory of this process in MiB."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watch:
    """Samples of resident memory after a warm-up, against the one at its end."""

    def __init__(self, warm: int, every: int):
        self.warm, self.every = warm, every
        self.base = self.most = 0.0

    def __call__(self, done: int) -> None:
        if done == self.warm:
            self.base = self.most = resident()
        elif done > self.warm and done % self.every == 0:
            self.most = max(self.most, resident())

    def verdict(self) -> bool:
        now, flat = resident(), self.most <= TOLERANCE * self.base
        print(
            f"resident: {self.base:.1f} MiB after {self.warm}, at most {self.most:.1f} later (x{self.most / self.base:.3f}), {now:.1f} now"
        )
        print("flat" if flat else f"GROWS beyond x{TOLERANCE}")
        return flat


def compiled_kernels() -> Counter[str]:
    """How often each kernel is compiled from now on."""
    counts: Counter[str] = Counter()
    compile_missing = compiler.Compiler._compile

    def counting(self, missing, *more):
        counts.update(missing.keys())
        return compile_missing(self, missing, *more)

    compiler.Compiler._compile = counting
    return counts


def show_caches() -> None:
    kernels = compiler.default().stats()
    s = stats()
    print(
        f"plans: {s['plans']} held, {s['plans_built']} built, {s['plan_evictions']} evicted; trie: {s['trie_nodes']} nodes"
    )
    print(f"tables: {sum(len(p.program.tables) for p in run._plans.values())} held")
    print(
        f"kernels: {kernels.loaded} loaded, {kernels.compiled} compiled, {kernels.disk_hits} read from disk; "
        f"on disk {kernels.entries} of {kernels.bytes / 2**20:.1f} MiB (limit {kernels.limit / 2**20:.0f})"
    )


def steps(total: int, sizes: int, warm: int) -> bool:
    """Train a small network with a batch of another size at every step."""
    compiled = compiled_kernels()
    net = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5))
    opt = optim.AdamW(net.parameters(), lr=1e-3)
    r = np.random.default_rng(0)
    data = r.normal(size=(2 + 3 * sizes, 20)).astype(np.float32)
    labels = r.integers(0, 5, len(data))
    watch = Watch(warm, max(total // 100, 1))
    began = time.perf_counter()
    for i in range(1, total + 1):
        n = 2 + 3 * (i * 17 % sizes)
        opt.zero_grad()
        loss = F.cross_entropy(net(lz.tensor(data[:n])), lz.tensor(labels[:n]))
        loss.backward()
        opt.step()
        if i % 100 == 0:
            float(loss)
        watch(i)
    seconds = time.perf_counter() - began
    print(f"{total} steps over {sizes} batch sizes, {1e3 * seconds / total:.2f} ms each")
    show_caches()
    twice = {name: n for name, n in compiled.items() if n > 1}
    if twice:
        print(f"COMPILED TWICE: {len(twice)} of {len(compiled)} kernels")
    return watch.verdict() and not twice


FUNCTIONS = (
    (lz.Tensor.relu, lz.Tensor.abs), (lz.Tensor.exp, lz.Tensor.sin), (lz.Tensor.neg, lz.Tensor.square),
    (lz.Tensor.tanh, lz.Tensor.sigmoid), (lz.Tensor.cos, lz.Tensor.floor), (lz.Tensor.sqrt, lz.Tensor.sign),
)  # fmt: skip


def kernels(total: int, warm: int, limit: int = 4) -> bool:
    """Cycle through more different kernels than the caches may hold, so that each is loaded anew every time."""
    loaded = compiler.default().memory
    loaded.limit = run.MAX_PLANS = limit
    x = lz.rand(256).realize()
    before = compiler.default().stats()
    watch = Watch(warm, max(total // 100, 1))
    began = time.perf_counter()
    for i in range(1, total + 1):
        y = x
        for bit, pair in enumerate(FUNCTIONS):
            y = pair[i >> bit & 1](y)
        y.realize()
        watch(i)
    seconds = time.perf_counter() - began
    after = compiler.default().stats()
    replaced = after.compiled + after.disk_hits - before.compiled - before.disk_hits
    print(f"{replaced} kernels loaded into room for {limit}, {1e3 * seconds / total:.2f} ms each with their plans")
    show_caches()
    return watch.verdict() and replaced >= total - 2 * limit


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("steps", "kernels"), help="default: both")
    parser.add_argument("--quick", action="store_true", help="a hundredth as long")
    options = parser.parse_args(arguments)
    good = True
    if options.part != "kernels":
        good &= steps(500, 10, 200) if options.quick else steps(20_000, 50, 2_000)
    if options.part != "steps":
        good &= kernels(256, 128) if options.quick else kernels(10_000, 1_000)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
