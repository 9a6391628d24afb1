"""Contractions against PyTorch: speed ratios (ours / PyTorch's, above 1 is faster), interleaved in one process.

    python benchmarks/contractions.py [--threads 1 2] [--only NAME] [--rounds 9] [--dtype f32] [--planar]

With --dtype bf16: operands and results of bf16, against PyTorch's bf16 and against our own f32.  Convolutions that are computed
by minimal filtering are compared with the direct way as well.

With --planar: convolutions of few channels on planar activations, against PyTorch's on the same memory and against our
own channels-last kernels (which would need transposed activations on top).  Otherwise both sides run on the same memory, channels-last for convolutions, and both pack what they must inside the timed part.
The figure is the median over rounds of the ratio of two measurements that follow each other.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from lezero.backends.cpu.compiler import get_kernels
from lezero.backends.cpu.detect import detect
from lezero.backends.cpu.pool import ThreadPool
from lezero.backends.cpu.table import TableBuilder
from lezero.codegen.contraction import (
    ConvSpec,
    MatmulSpec,
    plan_conv_forward,
    plan_conv_input_grad,
    plan_conv_weight_grad,
    plan_matmul,
)
from lezero.codegen.launch import Plan

MATMULS = {  # name: m, n, k
    "512": (512, 512, 512),
    "1024": (1024, 1024, 1024),
    "2048": (2048, 2048, 2048),
    "4096x64x512": (4096, 512, 64),
    "64x4096x512": (64, 512, 4096),
    "512x512x8192": (512, 512, 8192),
}

CONVS = {  # name: in, out, kernel, stride, pad, groups, size (batch 8)
    "3x3 64@56": (64, 64, 3, 1, 1, 1, 56),
    "1x1 256-64@56": (256, 64, 1, 1, 0, 1, 56),
    "1x1 64-256@56": (64, 256, 1, 1, 0, 1, 56),
    "3x3 128@28": (128, 128, 3, 1, 1, 1, 28),
    "3x3/2 128@56": (128, 128, 3, 2, 1, 1, 56),
    "3x3 256@14": (256, 256, 3, 1, 1, 1, 14),
    "1x1 512-2048@14": (512, 2048, 1, 1, 0, 1, 14),
    "7x7/2 3-64@224": (3, 64, 7, 2, 3, 1, 224),
    "dw 3x3 96@56": (96, 96, 3, 1, 1, 96, 56),
}
BATCH = 8

SETTLE = 0.012
"""Seconds between the two sides.  Idle threads spin before they sleep, on the cores that the other side needs: PyTorch's
were measured to take 7.5 ms of processor time after their last call, ours 2.9 ms.  After a pause of 4 ms our 512-cubed
product still took 1.13 times as long as after 8 ms or more; PyTorch's took the same."""

PLANAR = {  # the same, and the batch
    "LeNet 1": (1, 6, 5, 1, 2, 28, 64),
    "LeNet 2": (6, 16, 5, 1, 0, 14, 64),
    "3x3 3-32@32": (3, 32, 3, 1, 1, 32, 16),
    "3x3 8-8@28": (8, 8, 3, 1, 1, 28, 16),
    "3x3 16-16@28": (16, 16, 3, 1, 1, 28, 16),
    "3x3/2 3-8@56": (3, 8, 3, 2, 1, 56, 16),
}

Case = tuple[Callable[[], object], Callable[[], object], Callable[[], float]]
"""PyTorch's call, ours, and the relative error between their results."""


def runner(plan: Plan, arrays: dict[str, np.ndarray], threads: int) -> Callable[[], None]:
    """Compile a plan and bind it to arrays."""
    target, pool = detect(), ThreadPool(threads)
    memory = {name: _aligned(size) for name, size in plan.workspaces.items()} | arrays
    names = list(memory)
    builder = TableBuilder()
    for launch, kernel in zip(plan.launches, get_kernels([x.source for x in plan.launches], target), strict=True):
        operands = [(names.index(name), 0) for name in launch.operands]
        scratch = launch.source.scratch(launch.params)
        builder.add(kernel, [(operands, launch.params, launch.tasks)], scratch_bytes=scratch, label=launch.source.name)
    table = builder.build()
    bases = np.array([memory[name].ctypes.data for name in names], dtype=np.int64)

    def run() -> None:
        pool.run(table, bases)

    run.keep = memory  # type: ignore[attr-defined]
    run.profile = lambda: pool.profile(table, bases)  # type: ignore[attr-defined]
    return run


def _aligned(size: int) -> np.ndarray:
    whole = np.zeros(size + 64, dtype=np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


TORCH = {"f32": torch.float32, "bf16": torch.bfloat16}


def memory_of(x: torch.Tensor) -> np.ndarray:
    """A tensor's memory; NumPy has no bf16, and kernels ask only where it is."""
    return (x.view(torch.int16) if x.dtype is torch.bfloat16 else x).numpy()


def matmul_case(name: str, threads: int, dtype: str = "f32") -> Case:
    m, n, k = MATMULS[name]
    a, b = torch.randn(m, k, dtype=TORCH[dtype]), torch.randn(k, n, dtype=TORCH[dtype])
    theirs, ours = torch.empty(m, n, dtype=TORCH[dtype]), torch.empty(m, n, dtype=TORCH[dtype])
    plan = plan_matmul(MatmulSpec(dtype, dtype), 1, m, n, k, threads, detect())
    run = runner(plan, {"a": memory_of(a), "b": memory_of(b), "out": memory_of(ours)}, threads)
    return lambda: torch.matmul(a, b, out=theirs), run, lambda: _error(ours, theirs)


def conv_case(name: str, direction: str, threads: int, dtype: str = "f32", minimal: bool = True) -> Case:
    c, o, kernel, stride, pad, groups, size = CONVS[name]
    spec = ConvSpec(
        (c, o),
        (kernel, kernel),
        (stride, stride),
        (pad,) * 4,
        groups=groups,
        dtype=dtype,
        out_dtype=dtype,
        minimal=minimal,
    )
    out = (size + 2 * pad - kernel) // stride + 1
    last = torch.channels_last
    x = torch.randn(BATCH, c, size, size).to(memory_format=last)
    w = torch.randn(o, c // groups, kernel, kernel) / kernel
    dy = torch.randn(BATCH, o, out, out).to(memory_format=last)
    x, w, dy = (value.to(TORCH[dtype]) for value in (x, w, dy))
    arrays = {"x": x, "w": w, "dy": dy}
    result = {"forward": dy, "input": x, "weight": w}[direction]
    name_of = {"forward": "out", "input": "dx", "weight": "dw"}[direction]
    ours = torch.full_like(result, math.nan)
    make = {"forward": plan_conv_forward, "input": plan_conv_input_grad, "weight": plan_conv_weight_grad}[direction]
    plan = make(spec, BATCH, size, size, threads, detect())
    flat = {key: memory_of(value if key == "w" else value.permute(0, 2, 3, 1)) for key, value in arrays.items()}
    flat[name_of] = memory_of(ours if direction == "weight" else ours.permute(0, 2, 3, 1))
    run = runner(plan, flat, threads)
    theirs_w = w.to(memory_format=last)
    if direction == "forward":

        def theirs() -> torch.Tensor:
            return torch.conv2d(x, theirs_w, None, stride, pad, 1, groups)

        return theirs, run, lambda: _error(ours, theirs())
    mask = [direction == "input", direction == "weight", False]

    def gradient() -> torch.Tensor:
        arguments = ([0], [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, mask)
        return torch.ops.aten.convolution_backward(dy, x, theirs_w, *arguments)[mask.index(True)]

    return gradient, run, lambda: _error(ours, gradient())


PLANS = {  # direction: plan, the result's name there, and the operand whose shape it has
    "forward": (plan_conv_forward, "out", "dy"),
    "input": (plan_conv_input_grad, "dx", "x"),
    "weight": (plan_conv_weight_grad, "dw", "w"),
}


def planar_case(name: str, direction: str, threads: int) -> tuple[Case, Callable[[], None]]:
    """A planar case, and our channels-last kernel for the same convolution."""
    c, o, kernel, stride, pad, size, batch = PLANAR[name]
    make, result_name, like = PLANS[direction]
    out = (size + 2 * pad - kernel) // stride + 1
    x, dy = torch.randn(batch, c, size, size), torch.randn(batch, o, out, out)
    arrays = {"x": x, "w": torch.randn(o, c, kernel, kernel) / kernel, "dy": dy}
    ours = torch.full_like(arrays[like], math.nan)
    runs = []
    for planar in (True, False):
        spec = ConvSpec((c, o), (kernel, kernel), (stride, stride), (pad,) * 4, planar=planar)
        memory = {
            key: (value if planar or key == "w" else value.permute(0, 2, 3, 1).contiguous()).numpy()
            for key, value in arrays.items()
        }
        memory[result_name] = ours.numpy() if planar else memory[like].copy()
        runs.append(runner(make(spec, batch, size, size, threads, detect()), memory, threads))
    mask = [direction == "input", direction == "weight", False]

    def theirs() -> torch.Tensor:
        if direction == "forward":
            return torch.conv2d(x, arrays["w"], None, stride, pad)
        arguments = ([0], [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask)
        return torch.ops.aten.convolution_backward(dy, x, arrays["w"], *arguments)[mask.index(True)]

    return (theirs, runs[0], lambda: _error(ours, theirs())), runs[1]


def compare_planar(threads: int, options: argparse.Namespace) -> None:
    for direction in options.direction:
        for name in (n for n in PLANAR if options.only in n):
            (theirs, ours, error), channels_last = planar_case(name, direction, threads)
            ratio, seconds = compare(theirs, ours, options.rounds)
            other, _ = compare(channels_last, ours, options.rounds)
            print(
                f"{threads} thread  {direction:8} {name:18} ratio {ratio:5.2f}   to channels-last {other:5.2f}"
                f"   {seconds * 1e3:6.3f} ms   difference {error():.0e}",
                flush=True,
            )


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())


def compare(theirs: Callable[[], object], ours: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median ratio of speeds, and our median seconds."""
    for f in (theirs, ours):
        f()
    start = time.perf_counter()
    ours()
    repeat = max(1, int(0.015 / (time.perf_counter() - start)))
    ratios, seconds = [], []
    for _ in range(rounds):
        marks = [time.perf_counter()]
        for f in (theirs, ours):
            time.sleep(SETTLE)
            f()
            marks.append(time.perf_counter())
            for _ in range(repeat):
                f()
            marks.append(time.perf_counter())
        mine = marks[4] - marks[3]
        ratios.append((marks[2] - marks[1]) / mine)
        seconds.append(mine / repeat)
    return statistics.median(ratios), statistics.median(seconds)


def case(kind: str, name: str, threads: int, dtype: str) -> Case:
    return matmul_case(name, threads, dtype) if kind == "matmul" else conv_case(name, kind, threads, dtype)


def work(name: str) -> float:
    """Multiply-adds of a case, times two."""
    if name in MATMULS:
        return 2.0 * math.prod(MATMULS[name])
    c, o, kernel, stride, _, groups, size = CONVS[name]
    return 2.0 * BATCH * (size // stride) ** 2 * kernel**2 * c * o / groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--direction", nargs="+", default=["forward", "input", "weight"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="f32", choices=list(TORCH))
    parser.add_argument("--planar", action="store_true", help="convolutions of few channels instead")
    options = parser.parse_args()
    for threads in options.threads:
        torch.set_num_threads(threads)
        if options.planar:
            compare_planar(threads, options)
            continue
        names = [("matmul", n) for n in MATMULS if options.only in n and "forward" in options.direction]
        names += [(d, n) for d in options.direction for n in CONVS if options.only in n]
        ratios = []
        for kind, name in names:
            theirs, ours, error = case(kind, name, threads, options.dtype)
            ratio, seconds = compare(theirs, ours, options.rounds)
            ratios.append(ratio)
            own = ""
            if options.dtype != "f32":
                own = f"   to f32 {compare(case(kind, name, threads, 'f32')[1], ours, options.rounds)[0]:5.2f}"
            elif kind != "matmul" and CONVS[name][2:4] == (3, 1) and CONVS[name][5] == 1:
                direct = conv_case(name, kind, threads, minimal=False)[1]
                own = f"   to direct {compare(direct, ours, options.rounds)[0]:5.2f}"
            print(
                f"{threads} thread  {kind:8} {name:18} ratio {ratio:5.2f}{own}   {work(name) / seconds / 1e9:6.1f} GFLOP/s"
                f"   difference {error():.0e}",
                flush=True,
            )
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{threads} thread  geometric mean {mean:.3f}, lowest {min(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
