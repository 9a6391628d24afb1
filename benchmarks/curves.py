"""Loss curves beside others': float32 ResNet-50 beside PyTorch's two memory layouts, bfloat16 beside float32 on real text.

    python benchmarks/curves.py resnet50
    python benchmarks/curves.py bert --text FILE

**resnet50**: 20 steps of SGD with momentum on batches of small images, for several seeds, each with the same initial weights
and batches on all sides.  Training amplifies rounding, so PyTorch's contiguous and channels-last runs part; the root mean
square over the seeds of the difference of their losses is the spread at a step.  LeZero's curve is inside if its distance from
each of the two is at most 1.5 times that, in a typical step (geometric mean over the steps, in which early ones count as much
as late ones) and in all together (root mean square, which the late ones decide).  A third run of PyTorch, parted from the two as
they are from each other, comes to 1.2 in the worst of the four numbers, and with four seeds over 1.5 once or twice in ten times.

**bert**: BERT of 4 layers of 256 features predicts masked words of a text, 200 steps on fresh batches, once in float32 and
once under autocast to bfloat16.  The mean losses of the last 20 steps are compared; they may differ by 1 %.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np

import lezero as lz
from lezero import models, optim
from lezero.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

STEPS, CLASSES = 20, 10
TRAINING = {"lr": 5e-4, "momentum": 0.9}


def batches(seed: int, count: int = 16, size: int = 64):
    """Noise with a pattern for each class, so that there is something to learn."""
    r = np.random.default_rng(seed)
    patterns = r.normal(size=(CLASSES, 3, size, size)).astype(np.float32)
    for _ in range(STEPS):
        labels = r.integers(0, CLASSES, count)
        yield (patterns[labels] + r.normal(size=(count, 3, size, size))).astype(np.float32), labels


def pytorchs(seed: int, layout) -> tuple[dict, list[float]]:
    """(initial state, losses)"""
    import torch

    from model_twins import ResNet

    torch.manual_seed(seed)
    net = ResNet(True, [3, 4, 6, 3], CLASSES)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    net = net.to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), **TRAINING)
    losses = []
    for images, labels in batches(seed):
        optimizer.zero_grad()
        x = torch.tensor(images).to(memory_format=layout)
        loss = torch.nn.functional.cross_entropy(net(x), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return state, losses


def lezeros(seed: int, state: dict) -> list[float]:
    net = models.resnet50(num_classes=CLASSES)
    net.load_state_dict({k: v.numpy() for k, v in state.items()})
    optimizer = optim.SGD(net.parameters(), **TRAINING)
    losses = []
    for images, labels in batches(seed):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(lz.tensor(images)), lz.tensor(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def resnet50(args: argparse.Namespace) -> None:
    import torch

    curves: list[tuple[list[float], ...]] = []
    for seed in range(args.seeds):
        state, contiguous = pytorchs(seed, torch.contiguous_format)
        _, last = pytorchs(seed, torch.channels_last)
        curves.append((contiguous, last, lezeros(seed, state)))
        a, b, c = map(np.array, curves[-1])
        print(
            f"seed {seed}: loss {a[0]:.3f} to {a[-1]:.3f}; largest difference between PyTorch's {abs(a - b).max():.1e}, "
            f"of LeZero's from the nearer one {np.minimum(abs(c - a), abs(c - b)).max():.1e}",
            flush=True,
        )
        if seed:
            report(curves)


def report(curves: list) -> None:
    a, b, c = np.array(curves).transpose(1, 0, 2)
    spread, first, second = (np.sqrt((d**2).mean(0)) for d in (a - b, c - a, c - b))
    print("step by step, root mean square over the seeds, between PyTorch's runs:", *(f"{x:.0e}" for x in spread))
    worst = 0.0
    for name, far in (("contiguous", first), ("channels-last", second)):
        floor = 2.0**-24 * a.mean(0)  # no distance counts as less than half a unit in the last place
        typical = np.exp(np.log(np.maximum(far, floor) / np.maximum(spread, floor)).mean())
        whole = np.linalg.norm(far) / np.linalg.norm(spread)
        print(
            f"LeZero's distance from PyTorch's {name}, of the spread: {typical:.2f} in a typical step, {whole:.2f} in all"
        )
        worst = max(worst, typical, whole)
    print(f"{len(curves)} seeds: {'inside' if worst <= 1.5 else 'OUTSIDE'}", flush=True)


def masked_words(text: str, words: int, count: int, length: int):
    """Endless batches of (ids with some masked, the labels, -100 where nothing is asked); 0 is the mask, 1 any rare word."""
    found = re.findall(r"\w+|[^\w\s]", text.lower())
    known = {word: i for i, (word, _) in enumerate(Counter(found).most_common(words - 2), 2)}
    ids = np.array([known.get(word, 1) for word in found])
    r = np.random.default_rng(0)
    while True:
        rows = ids[r.integers(0, len(ids) - length, (count, 1)) + np.arange(length)]
        asked = r.random(rows.shape) < 0.15
        yield np.where(asked, 0, rows), np.where(asked, rows, -100)


def mean_of_last(text: str, dtype, steps: int = 200, last: int = 20) -> float:
    words = 4000
    lz.manual_seed(0)
    net = models.bert_base_for_masked_lm(
        vocab_size=words, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        dropout=0.0, pad_token_id=None,
    )  # fmt: skip
    optimizer = optim.AdamW(net.parameters(), lr=5e-4)
    losses = []
    for _, (ids, labels) in zip(range(steps), masked_words(text, words, 16, 64)):
        optimizer.zero_grad()
        with lz.amp.autocast("cpu", dtype=dtype or lz.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(net(lz.tensor(ids)).flatten(0, 1), lz.tensor(labels).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{'float32' if dtype is None else dtype.name}: {losses[0]:.3f} to {np.mean(losses[-last:]):.4f}", flush=True)
    return float(np.mean(losses[-last:]))


def bert(args: argparse.Namespace) -> None:
    if args.text is None:
        sys.exit("bert needs --text FILE: some megabytes of prose")
    text = args.text.read_text(encoding="utf-8")
    ratio = mean_of_last(text, lz.bfloat16) / mean_of_last(text, None)
    print(f"bfloat16 / float32 {ratio:.4f}: {'within' if abs(ratio - 1) <= 0.01 else 'NOT within'} 1 %")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("curve", choices=["resnet50", "bert"])
    p.add_argument("--seeds", type=int, default=4)
    p.add_argument("--text", type=Path, help="a text file, for bert")
    args = p.parse_args()
    {"resnet50": resnet50, "bert": bert}[args.curve](args)


if __name__ == "__main__":
    main()
