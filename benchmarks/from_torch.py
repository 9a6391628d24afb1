"""PyTorch's modules converted by ``lz.from_torch``, beside themselves: how near they are, and times in turn.

    python benchmarks/from_torch.py resnet50 [--batch 8] [--rounds 7]
    python benchmarks/from_torch.py minilm [--length 128] [--weights model.safetensors]

resnet50 is torchvision's network (224 x 224 images; PyTorch runs it channels-last), minilm a BERT of 6 layers and 384 features
(all-MiniLM-L6-v2, with its published weights if they are given), both written as plain modules in ``tests/model_twins.py``.
Nearness is measured on --near examples: the largest difference of an inference in float32, relative to the largest value; the loss
and all gradients of a training step in float64; and how far the gradients of both are from PyTorch's in float64, in float32.
Gradients are compared as one vector (relative L2); a ReLU whose input rounds to the other side of zero moves it, on either side.
Times are medians of steps taken one after the other: inference without gradients, and a
training step with SGD (minilm: AdamW) that reads its loss.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import struct
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import lezero as lz
from lezero.nn import functional as LF

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import model_twins as twins

WORDS = 30522


def published(path: str) -> dict[str, torch.Tensor]:
    """The float32 tensors of a safetensors file."""
    raw = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    entries = {k: v for k, v in json.loads(raw[8 : 8 + size]).items() if k != "__metadata__" and v["dtype"] == "F32"}
    data = memoryview(raw)[8 + size :]
    arrays = {k: np.frombuffer(data[slice(*v["data_offsets"])], "<f4").reshape(v["shape"]) for k, v in entries.items()}
    return {k: torch.tensor(a) for k, a in arrays.items()}


def network(options: argparse.Namespace) -> torch.nn.Module:
    torch.manual_seed(0)
    if options.network == "resnet50":
        return twins.ResNet(True, (3, 4, 6, 3), 1000)
    model = twins.Bert(WORDS, 384, 6, 12, 1536, 512)
    if options.weights:
        model.load_state_dict(published(options.weights))
    return model


def examples(options: argparse.Namespace, count: int) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(0)
    if options.network == "resnet50":
        return r.normal(size=(count, 3, 224, 224)).astype("f4"), r.integers(0, 1000, count)
    return r.integers(0, WORDS, (count, options.length)), r.normal(size=(count, options.length, 384)).astype("f4")


def loss_of(library, functional, results, wanted):
    if wanted.dtype == library.int64:
        return functional.cross_entropy(results, wanted)
    return ((results - wanted) ** 2).mean()


def gradients(library, functional, model, x, y) -> tuple[float, np.ndarray]:
    """A loss, and the gradients of all parameters as one vector."""
    model.zero_grad()
    loss = loss_of(library, functional, model(x), y)
    loss.backward()
    found = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    return float(loss.item()), np.concatenate([found[n].ravel() for n in sorted(found)])


def far(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def nearness(options: argparse.Namespace) -> None:
    x, y = examples(options, options.near)
    exact = {}
    for wide in (True, False):
        model = network(options).train()
        model = model.double() if wide else model
        xs, ys = (torch.tensor(a).double() if wide and a.dtype.kind == "f" else torch.tensor(a) for a in (x, y))
        converted = lz.from_torch(model, xs, copy=True)
        mine = [lz.tensor(t.numpy()) for t in (xs, ys)]
        ours = gradients(lz, LF, converted, *mine)
        theirs = gradients(torch, F, model, xs, ys)
        if wide:
            exact = theirs[1]
            print(f"  float64: loss {abs(ours[0] / theirs[0] - 1):.1e}, gradients {far(ours[1], exact):.1e}")
            continue
        print(f"  float32 gradients from float64: ours {far(ours[1], exact):.2e}, PyTorch {far(theirs[1], exact):.2e}")
        model.eval(), converted.eval()
        converted.load_state_dict({k: lz.tensor(v.numpy()) for k, v in model.state_dict().items()})
        with torch.no_grad(), lz.no_grad():
            want, got = model(xs).numpy(), converted(mine[0]).numpy()
        print(f"  float32 inference: largest difference {np.abs(got - want).max() / np.abs(want).max():.1e}")


def timed(options: argparse.Namespace) -> None:
    x, y = examples(options, options.batch)
    model = network(options).train()
    start = time.perf_counter()
    converted = lz.from_torch(copy.deepcopy(model), torch.tensor(x[:2]))
    print(f"  conversion {time.perf_counter() - start:.1f} s")
    theirs, ours = [torch.tensor(a) for a in (x, y)], [lz.tensor(a) for a in (x, y)]
    if options.network == "resnet50":
        model, theirs[0] = (t.to(memory_format=torch.channels_last) for t in (model, theirs[0]))
    rates = {"lr": 0.01} if options.network == "resnet50" else {"lr": 1e-4}
    name = "SGD" if options.network == "resnet50" else "AdamW"
    steps = {
        "PyTorch": (torch, F, model, theirs, getattr(torch.optim, name)(model.parameters(), **rates)),
        "LeZero": (lz, LF, converted, ours, getattr(lz.optim, name)(converted.parameters(), **rates)),
    }

    def train(library, functional, m, data, optimizer):
        optimizer.zero_grad()
        loss = loss_of(library, functional, m(data[0]), data[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    def infer(library, functional, m, data, optimizer):
        with library.no_grad():
            return m(data[0]).numpy()

    for what, step in (("training", train), ("inference", infer)):
        taken: dict[str, list[float]] = {k: [] for k in steps}
        for round_ in range(options.rounds + 2):
            for side, parts in steps.items():
                parts[2].train(what == "training")
                start = time.perf_counter()
                step(*parts)
                if round_ > 1:
                    taken[side].append(time.perf_counter() - start)
        middle = {k: statistics.median(v) for k, v in taken.items()}
        both = ", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in middle.items())
        print(f"  {what}: {both}, LeZero/PyTorch {middle['LeZero'] / middle['PyTorch']:.2f}", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("network", choices=["resnet50", "minilm"])
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--near", type=int, default=2)
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--weights", help="a safetensors file")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", choices=["near", "timed"], help="one part of it")
    options = p.parse_args()
    threads = int(os.environ.get("LEZERO_NUM_THREADS", len(os.sched_getaffinity(0))))
    torch.set_num_threads(threads)
    print(f"{options.network}, batch {options.batch}, {threads} threads")
    if options.only != "timed":
        nearness(options)
    if options.only != "near":
        timed(options)


if __name__ == "__main__":
    main()
