"""A training step of a small network on several systems, in turn, as ratios.

    python benchmarks/training.py mlp lezero lezero-jit torch jax
    python benchmarks/training.py lenet --threads 1 lezero torch

Each system is a process of its own that holds model and data; they are given `--inner` steps at a time, one after the
other, so that all see the same weather.  Every step ends with reading the loss.  Printed are the medians, and the median of
the ratios of the first system's time to each other one's, taken round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

BATCH = 64


def data(task):
    r = np.random.default_rng(0)
    shape = (BATCH, 784) if task == "mlp" else (BATCH, 1, 28, 28)
    return r.normal(size=shape).astype(np.float32), r.integers(0, 10, BATCH)


def network(nn, task):
    if task == "mlp":
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def lezero_step(task, threads, captured):
    import lezero as lz
    from lezero import nn, optim
    from lezero.backends.cpu.pool import set_num_threads
    from lezero.nn import functional as F

    set_num_threads(threads)
    lz.manual_seed(0)
    model = network(nn, task)
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    x, y = map(lz.tensor, data(task))

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    call = lz.jit(step) if captured else step
    return lambda: call(x, y).item()


def torch_step(task, threads):
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = network(nn, task)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x, y = map(torch.tensor, data(task))

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def jax_step(task, threads):
    import jax
    import jax.numpy as jnp
    import optax

    assert task == "mlp", "jax runs mlp only"
    r = np.random.default_rng(0)
    p = [(jnp.array(r.normal(size=s) * 0.05, jnp.float32), jnp.zeros(s[1])) for s in ((784, 128), (128, 10))]
    x, y = map(jnp.array, data(task))
    optimizer = optax.adamw(1e-4)
    state = [p, optimizer.init(p)]

    def loss(p):
        logits = jax.nn.relu(x @ p[0][0] + p[0][1]) @ p[1][0] + p[1][1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def update(p, s):
        value, g = jax.value_and_grad(loss)(p)
        u, s = optimizer.update(g, s, p)
        return optax.apply_updates(p, u), s, value

    def step():
        state[0], state[1], value = update(*state)
        return float(value)

    return step


def worker(system, task, threads):
    if system == "torch":
        step = torch_step(task, threads)
    elif system == "jax":
        step = jax_step(task, threads)
    else:
        step = lezero_step(task, threads, system == "lezero-jit")
    start = time.perf_counter()
    step()
    print(json.dumps({"first": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        n = int(line)
        start = time.perf_counter()
        for _ in range(n):
            step()
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("task", choices=["mlp", "lenet"])
    p.add_argument("systems", nargs="+", choices=["lezero", "lezero-jit", "torch", "jax"])
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--inner", type=int, default=100)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        return worker(args.systems[0], args.task, args.threads)
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    if args.threads == 1:
        env["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    running = []
    for system in args.systems:
        command = [sys.executable, __file__, args.task, system, "--threads", str(args.threads), "--worker"]
        proc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        running.append((system, proc, json.loads(proc.stdout.readline())["first"], []))

    def turn(proc):
        proc.stdin.write(f"{args.inner}\n")
        proc.stdin.flush()
        return json.loads(proc.stdout.readline())["seconds"] / args.inner

    for _, proc, _, _ in running:
        turn(proc)
    for _ in range(args.rounds):
        for _, proc, _, times in running:
            times.append(turn(proc))
    print(f"{args.task}, batch {BATCH}, {args.threads} threads, {args.rounds} rounds of {args.inner} steps in turn")
    lead = running[0][3]
    for system, proc, first, times in running:
        proc.stdin.close()
        proc.wait()
        ratio = statistics.median(a / b for a, b in zip(lead, times))
        print(
            f"  {system:11s} median {statistics.median(times) * 1e3:7.3f} ms  min {min(times) * 1e3:7.3f} ms  "
            f"first step {first:6.2f} s  {args.systems[0]}/this {ratio:.3f}"
        )


if __name__ == "__main__":
    main()
