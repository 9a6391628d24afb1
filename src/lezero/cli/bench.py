"""``lezero bench``: a first impression; benchmarks/ in the repository has the careful comparisons."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import click

_BUDGET_S = 1.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(as_json: bool) -> None:
    """Time a few operations and a training step.

    Medians of about a second each, on as many threads as LeZero uses here. Times depend on what else the machine does:
    compare only rows of one run.
    """
    rows = []
    for name, call, gflop in _cases():
        seconds = _median(call)
        rows.append({"name": name, "milliseconds": 1e3 * seconds, "gflops": gflop / seconds if gflop else None})
        if not as_json:
            rate = f"{gflop / seconds:8.0f} GFLOP/s" if gflop else ""
            click.echo(f"{name:<44} {1e3 * seconds:9.3f} ms  {rate}")
    if as_json:
        click.echo(json.dumps(rows))


def _cases() -> list[tuple[str, Callable[[], Any], float]]:
    """(name, what to time, 10^9 floating-point operations)."""
    import numpy as np

    import lezero as lz
    from lezero.cli.explain import training_step
    from lezero.cli.networks import Classifier
    from lezero.nn import functional as F

    rng = np.random.default_rng(0)

    def arrays(*shapes: tuple[int, ...]) -> list[Any]:
        return [rng.standard_normal(s).astype(np.float32) for s in shapes]

    a, b = arrays((1024, 1024), (1024, 1024))
    ta, tb = lz.tensor(a), lz.tensor(b)
    x, w = (lz.tensor(v) for v in arrays((8, 64, 56, 56), (64, 64, 3, 3)))
    rows = lz.tensor(arrays((4096, 1024))[0])
    step, batch = training_step(Classifier("lenet5", 28, [str(n) for n in range(10)]), 64)

    def without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            with lz.no_grad():
                call().realize()

        return run

    return [
        ("matrix product 1024 x 1024 x 1024", without_gradients(lambda: ta @ tb), 2 * 1024**3 / 1e9),
        ("the same in NumPy", lambda: a @ b, 2 * 1024**3 / 1e9),
        ("convolution 3x3, 64 to 64, 56 x 56, batch 8", without_gradients(lambda: F.conv2d(x, w, padding=1)),
         2 * 8 * 56 * 56 * 64 * 64 * 9 / 1e9),
        ("softmax of 4096 rows of 1024", without_gradients(lambda: F.softmax(rows, 1)), 0),
        ("LeNet-5 training step, batch 64", lambda: step(*batch).item(), 0),
    ]  # fmt: skip


def _median(call: Callable[[], Any]) -> float:
    for _ in range(3):
        call()
    times: list[float] = []
    end = time.perf_counter() + _BUDGET_S
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
