"""What each restructuring is worth: training steps of ResNet-50 and BERT-base with one pass left out, and with all on.

    python benchmarks/ablation.py resnet50 --batch 8
    python benchmarks/ablation.py bert --batch 4 --only fuse epilogue

Every setting is a process of its own.  The one with all passes on and a few others (`--together`) take steps in turn, and a
time is the median of its ratios to the first one's, round by round.  Prints a Markdown table: time, kernels (launches of
updates count once), bytes all kernels read and write, the arena of values between kernels, and what the process took at
its peak beyond what it had after importing.  Linux only (memory is read from /proc).
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

from lezero.passes.pipeline import PIPELINE, REQUIRED, SCHEDULED

PASSES = [*dict.fromkeys(p.__name__ for p in PIPELINE if p.__name__ not in REQUIRED), *sorted(SCHEDULED)]


def status(field):
    """A number of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field + ":"))


def training_step(task, batch, dtype="f32"):
    import lezero as lz
    from lezero import models, optim
    from lezero.nn import functional as F

    lz.manual_seed(0)
    r = np.random.default_rng(0)
    if task == "resnet50":
        model = models.resnet50()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = lz.tensor(r.normal(size=(batch, 3, 224, 224)).astype(np.float32))
        y = lz.tensor(r.integers(0, 1000, batch))
        loss_of = lambda: F.cross_entropy(scores_of(x), y)
    else:
        model = models.bert_base()
        optimizer = optim.AdamW(model.parameters(), lr=1e-4)
        x, y = (lz.tensor(r.integers(0, 30522, (batch, 128))) for _ in range(2))
        loss_of = lambda: F.cross_entropy(scores_of(x).flatten(0, 1), y.flatten())

    def scores_of(x):
        with lz.amp.autocast("cpu", dtype=lz.bfloat16, enabled=dtype == "bf16"):
            return model(x)

    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def work(task, batch):
    """A worker: facts of the step, then a step for each line of input."""
    from lezero.runtime import run

    before = status("VmRSS")
    step = training_step(task, batch)
    for _ in range(2):  # the second has the optimizer's state
        step()
    plan, bindings = run.statistics.last
    instance = plan.program.tables[tuple(bindings)][1]
    facts = {"kernels": plan.program.schedule.kernels, "moved": instance.moved_bytes, "arena": instance.arena_bytes}
    print(json.dumps({**facts, "peak": status("VmHWM") - before}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)


def compare(task, batch, names, rounds):
    """{setting: (facts, ratio of times as text)} of one set of processes that take turns; the setting with all passes on is ""."""
    running = {}
    for name in ("", *names):
        command = [sys.executable, __file__, task, "--batch", str(batch), "--worker"]
        env = dict(os.environ, LEZERO_PASSES=f"-{name}" if name else "")
        p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        running[name] = p, json.loads(p.stdout.readline())
    times = {name: [] for name in running}
    for _ in range(rounds):
        for name, (p, _) in running.items():
            p.stdin.write("\n")
            p.stdin.flush()
            times[name].append(float(p.stdout.readline()))
    for p, _ in running.values():
        p.stdin.close()
        p.wait()

    def ratio(name):
        return f"{statistics.median(a / b for a, b in zip(times[name], times[''])):.2f}" if rounds else ""

    return {name: (facts, ratio(name)) for name, (_, facts) in running.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("task", choices=["resnet50", "bert"])
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--only", nargs="*", default=PASSES, choices=PASSES, metavar="PASS", help=", ".join(PASSES))
    p.add_argument("--rounds", type=int, default=5, help="0: no times")
    p.add_argument("--together", type=int, default=3, help="settings in memory at a time, besides all on")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        return work(args.task, args.batch)
    print(
        f"| {args.task}, batch {args.batch} | time | kernels | bytes moved | arena | added peak |\n|---|---|---|---|---|---|"
    )
    for k in range(0, len(args.only), args.together):
        found = compare(args.task, args.batch, args.only[k : k + args.together], args.rounds)
        for name, (f, ratio) in found.items():
            if name or not k:
                label = f"without `{name}`" if name else "all on"
                sizes = " | ".join(f"{f[x] / 1e6:,.0f} MB" for x in ("moved", "arena", "peak"))
                print(f"| {label} | {ratio} | {f['kernels']} | {sizes} |", flush=True)


if __name__ == "__main__":
    main()
