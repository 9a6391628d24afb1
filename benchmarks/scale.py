"""Time of a training step for each image, or each sequence, over batch sizes.

    python benchmarks/scale.py resnet50 [--batch 8 16 32 64] [--dtype f32] [--rounds 5]

All batch sizes are in one process and take a step each in turn.  The last line is the largest median over the smallest.
"""

from __future__ import annotations

import argparse
import statistics
import time

from ablation import training_step


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("task", choices=["resnet50", "bert"])
    p.add_argument("--batch", type=int, nargs="+", default=[8, 16, 32, 64])
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--rounds", type=int, default=5)
    options = p.parse_args()
    steps = {batch: training_step(options.task, batch, options.dtype) for batch in options.batch}
    for step in steps.values():
        step(), step()
    taken: dict[int, list[float]] = {batch: [] for batch in steps}
    for _ in range(options.rounds):
        for batch, step in steps.items():
            start = time.perf_counter()
            step()
            taken[batch].append((time.perf_counter() - start) / batch)
    each = {batch: statistics.median(seconds) for batch, seconds in taken.items()}
    for batch, seconds in each.items():
        print(f"batch {batch:3d}: {seconds * 1e3:6.1f} ms each, at least {min(taken[batch]) * 1e3:.1f}")
    print(f"largest / smallest: {max(each.values()) / min(each.values()):.3f}")


if __name__ == "__main__":
    main()
