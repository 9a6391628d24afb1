"""What it costs to hand the elements of a tensor to another library, or to take them from one: microseconds a call.

    python benchmarks/exchange.py

Every way is timed in turn, round after round, and the fastest round counts; beside it stands how often PyTorch's own exchange
with NumPy fits into that time.  Nothing is copied, which is checked first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

import lezero as lz

SHAPE = (1000, 1000)
ROUNDS, CALLS = 15, 2000


def address(x: object) -> int:
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    return x.numpy().ctypes.data if isinstance(x, lz.Tensor) else x.ctypes.data  # type: ignore[attr-defined]


def ways() -> dict[str, tuple[Callable[[object], object], object]]:
    ours, array, theirs = lz.ones(*SHAPE).realize(), np.ones(SHAPE, "f4"), torch.ones(SHAPE)
    return {
        "x.numpy()": (lz.Tensor.numpy, ours),
        "np.asarray(x)": (np.asarray, ours),
        "np.from_dlpack(x)": (np.from_dlpack, ours),
        "torch.from_dlpack(x)": (torch.from_dlpack, ours),
        "lz.from_dlpack(NumPy's)": (lz.from_dlpack, array),
        "lz.from_dlpack(PyTorch's)": (lz.from_dlpack, theirs),
        "PyTorch to NumPy by DLPack": (np.from_dlpack, theirs),
    }


def microseconds(call: Callable[[object], object], x: object) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call(x)
    return (time.perf_counter() - begin) / CALLS * 1e6


def main() -> None:
    tried = ways()
    for name, (call, x) in tried.items():
        assert address(call(x)) == address(x), f"{name} copies"
    best = dict.fromkeys(tried, float("inf"))
    for _ in range(ROUNDS):
        for name, (call, x) in tried.items():
            best[name] = min(best[name], microseconds(call, x))
    reference = best["PyTorch to NumPy by DLPack"]
    for name, least in best.items():
        print(f"{name:28} {least:6.2f} us {least / reference:6.2f}")


if __name__ == "__main__":
    main()
