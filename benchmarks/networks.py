"""A training step of a large network on LeZero and on PyTorch, in turn: time as ratios, and peak memory.

    python benchmarks/networks.py resnet50 [--batch 16] [--dtype f32] [--rounds 7] [lezero torch torch-compile]
    python benchmarks/networks.py bert lezero lezero-loss-first

Tasks: resnet50 and mobilenet_v2 (224 x 224 images, SGD with momentum and weight decay; PyTorch runs them channels-last) and
bert (BERT-base with the head for masked words, --length words, no dropout, AdamW).  ``--dtype bf16`` is autocast.  Each system is
a process of its own that holds model and data; they take a step each, one after the other, so that all see the same weather.
Memory is the process's highest resident size beyond what it had before it imported anything, and, less parameters, gradients
and the optimizer's state, "above state".  Linux only.  torch-compile needs a C++ compiler and a minute or two;
lezero-loss-first reads its loss before ``backward()``, as loops that print it do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

MOBILENET = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
WORDS = 30522


def resident(field: str) -> int:
    """Bytes that the kernel tells of this process: VmRSS now, VmHWM at the most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def data(options):
    r = np.random.default_rng(0)
    if options.task == "bert":
        shape = (options.batch, options.length)
        return r.integers(0, WORDS, shape), r.integers(0, WORDS, options.batch * options.length)
    return r.normal(size=(options.batch, 3, 224, 224)).astype(np.float32), r.integers(0, 1000, options.batch)


def lezero_step(options):
    import lezero as lz
    from lezero import models, optim
    from lezero.nn import functional as F

    lz.manual_seed(0)
    bert = options.task == "bert"
    model = models.bert_base_for_masked_lm(dropout=0.0) if bert else getattr(models, options.task)()
    x, y = map(lz.tensor, data(options))
    return step_of(lz, F, optim, model, x, y, options)


def torch_step(options):
    import torch
    from torch.nn import functional as F

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import model_twins as twins

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x, y = map(torch.tensor, data(options))
    if options.task == "bert":
        model = twins.Bert(WORDS, 768, 12, 12, 3072, 512, head="mlm")
    else:
        network = {"resnet50": lambda: twins.ResNet(True, (3, 4, 6, 3), 1000),
                   "mobilenet_v2": lambda: twins.MobileNetV2(MOBILENET, 1.0, 1000)}[options.task]  # fmt: skip
        model, x = network().to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if options.systems[0] == "torch-compile":
        model = torch.compile(model)
    return step_of(torch, F, torch.optim, model, x, y, options)


def step_of(library, F, optim, model, x, y, options):
    parameters = list(model.parameters())
    if options.task == "bert":
        optimizer, copies = optim.AdamW(parameters, lr=1e-4), 4
    else:
        optimizer, copies = optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4), 3
    low = options.dtype == "bf16"

    def step():
        optimizer.zero_grad()
        with library.amp.autocast("cpu", dtype=library.bfloat16, enabled=low):
            scores = model(x)
        loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]).float(), y)
        if options.systems[0] == "lezero-loss-first":
            loss.item()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, copies * 4 * sum(int(np.prod(p.shape)) for p in parameters)


def worker(options):
    before = resident("VmRSS")
    step, state = (lezero_step if options.systems[0].startswith("lezero") else torch_step)(options)
    start = time.perf_counter()
    step()
    print(json.dumps({"first": time.perf_counter() - start}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "peak": resident("VmHWM") - before, "state": state}), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("task", choices=["resnet50", "mobilenet_v2", "bert"])
    p.add_argument(
        "systems", nargs="*", default=["lezero", "torch"], help="lezero, lezero-loss-first, torch, torch-compile"
    )
    p.add_argument("--batch", type=int)
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = p.parse_args()
    options.batch = options.batch or (8 if options.task == "bert" else 16)
    if options.worker:
        return worker(options)
    threads = str(options.threads)
    env = dict(os.environ, OMP_NUM_THREADS=threads, LEZERO_NUM_THREADS=threads)
    shared = [
        "--batch",
        str(options.batch),
        "--length",
        str(options.length),
        "--dtype",
        options.dtype,
        "--threads",
        threads,
    ]
    running = []
    for system in options.systems:
        command = [sys.executable, __file__, options.task, system, *shared, "--worker"]
        proc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        running.append((system, proc, json.loads(proc.stdout.readline())["first"], []))

    def turn(proc):
        proc.stdin.write("step\n")
        proc.stdin.flush()
        return json.loads(proc.stdout.readline())

    for _, proc, _, _ in running:
        turn(proc)
    for _ in range(options.rounds):
        for _, proc, _, taken in running:
            taken.append(turn(proc))
    print(f"{options.task}, batch {options.batch}, {options.dtype}, {threads} threads, {options.rounds} rounds in turn")
    lead = [t["seconds"] for t in running[0][3]]
    for system, proc, first, taken in running:
        proc.stdin.close()
        proc.wait()
        seconds = [t["seconds"] for t in taken]
        ratio = statistics.median(lead) / statistics.median(seconds)
        print(
            f"  {system:13s} median {statistics.median(seconds) * 1e3:8.1f} ms  min {min(seconds) * 1e3:8.1f} ms  "
            f"{options.systems[0]}/this {ratio:.3f} (of minima {min(lead) / min(seconds):.3f})  first step {first:5.1f} s  "
            f"added peak {taken[-1]['peak'] / 2**20:6.0f} MB  above state {(taken[-1]['peak'] - taken[-1]['state']) / 2**20:6.0f} MB"
        )


if __name__ == "__main__":
    main()
