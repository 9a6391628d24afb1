"""Published ONNX files: how long until the first result, how long later ones take, and how much memory, beside ONNX Runtime.

    python examples/fetch.py onnx-ocr onnx-resnet onnx-minilm onnx-minilm-int8 onnx-voice
    python benchmarks/onnx_import.py [FILE ...]       # names that contain one of these; all of them otherwise

Every measurement is a process of its own, LeZero's and ONNX Runtime's in turn; times are medians over `--rounds`, and are
given as ratios.  Kernels are in the cache already (a first process sees to that; `--cold` measures without, once), and so is
Python's bytecode.

Memory: the peak of resident memory (VmHWM) less what was resident after the import of the library, which counts pages of
mapped files.  From LeZero's the memory for one run's values (the arena, inputs and results) is taken off, and the rest is
divided by the size of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from start import bytecode

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

LATER = 20  # runs after the first, of which the median counts


def pictures(name, *shape):
    return {name: (shape, "f4")}


WORDS = ("input_ids", "attention_mask", "token_type_ids")
SOUND = {"input": ((1, 576), "f4"), "state": ((2, 1, 128), "f4")}
FILES = {
    "open-nsfw": ("onnx-resnet", pictures("input:0", 1, 224, 224, 3)),
    "paraphrase-MiniLM-L3-v2": ("onnx-minilm", {n: ((1, 32), "i8") for n in WORDS[:2]}),
    "model": ("onnx-minilm-int8", {n: ((1, 32), "i8") for n in WORDS}),
    "ch_PP-OCRv4_rec_infer": ("onnx-ocr", pictures("x", 1, 3, 48, 320)),
    "ch_PP-OCRv4_det_infer": ("onnx-ocr", pictures("x", 1, 3, 480, 480)),
    "ch_ppocr_mobile_v2.0_cls_infer": ("onnx-ocr", pictures("x", 1, 3, 48, 192)),
    "silero_vad": ("onnx-voice", SOUND | {"sr": ((), "i8")}),
    "silero_vad_op18_ifless": ("onnx-voice", SOUND | {"sr": ((), "i8")}),
    "silero_vad_half": ("onnx-voice", SOUND),
}
"""File: the package it is in (see examples/fetch.py), and its inputs."""


def inputs(name):
    rng = np.random.default_rng(0)
    draw = {"f4": lambda shape: rng.normal(size=shape).astype("f4"), "i8": lambda shape: np.ones(shape, "i8")}
    made = {k: draw[dtype](shape) for k, (shape, dtype) in FILES[name][1].items()}
    return made | ({"sr": np.array(16000)} if "sr" in made else {})


def resident(field):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def start_counting():
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    return resident("VmHWM")


def later(run):
    times = []
    for _ in range(LATER):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_lezero(name, path):
    import onnx.helper
    import onnx.numpy_helper  # noqa: F401

    import lezero as lz
    import lezero.onnx
    from lezero.hal import registry

    given = {k: lz.tensor(v) for k, v in inputs(name).items()}
    before = start_counting()
    start = time.perf_counter()
    model = lz.onnx.load(path).eval()
    loaded = time.perf_counter()

    def run():
        with lz.no_grad():
            results = model(**given)
            results = results if isinstance(results, tuple) else (results,)
            lz.realize(*results)
        return results

    values = run()
    first = time.perf_counter()
    peak = resident("VmHWM") - before
    run_bytes = registry.current().memory_stats()["arena_bytes"]
    run_bytes += sum(t.nbytes for t in (*values, *given.values()))
    return {
        "load": loaded - start, "first": first - loaded, "later": later(run), "peak": peak, "run": run_bytes,
    }  # fmt: skip


def measure_onnxruntime(name, path, threads):
    import onnxruntime as ort

    given = inputs(name)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    before = start_counting()
    start = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter()
    session.run(None, given)
    first = time.perf_counter()
    peak = resident("VmHWM") - before
    return {
        "load": loaded - start, "first": first - loaded, "later": later(lambda: session.run(None, given)), "peak": peak,
    }  # fmt: skip


def measured(which, name, threads, **env):
    command = [sys.executable, __file__, "--one", which, name, "--threads", str(threads)]
    env = os.environ | {"LEZERO_NUM_THREADS": str(threads)} | env
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
    return json.loads(out)


def path_of(name):
    import fetch

    found = list((fetch.HOME / FILES[name][0]).rglob(f"{name}.onnx"))
    if not found:
        sys.exit(fetch.advice(FILES[name][0], "EXAMPLES_DATA=FOLDER"))
    return str(found[0])


HEADINGS = (
    "file", "MB", "load and first run ÷ session creation", "÷ session creation and first run", "later runs ÷ its runs",
    "values of a run, MB", "peak beyond them ÷ file", "its peak ÷ file",
)  # fmt: skip


def row(name, threads, rounds):
    size = os.path.getsize(path_of(name))
    measured("lezero", name, threads)  # fills the kernel cache
    pairs = [(measured("lezero", name, threads), measured("onnxruntime", name, threads)) for _ in range(rounds)]
    ours, theirs = ({k: statistics.median(r[k] for r in side) for k in side[0]} for side in zip(*pairs))
    begun = ours["load"] + ours["first"]
    return (
        name, f"{size / 1e6:.1f}", f"{begun / theirs['load']:.2f}", f"{begun / (theirs['load'] + theirs['first']):.2f}",
        f"{ours['later'] / theirs['later']:.2f}", f"{ours['run'] / 1e6:.1f}", f"{(ours['peak'] - ours['run']) / size:.2f}",
        f"{theirs['peak'] / size:.2f}",
    )  # fmt: skip


def cold(name, threads):
    with tempfile.TemporaryDirectory() as cache:
        return measured("lezero", name, threads, LEZERO_CACHE_DIR=cache)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="*")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--cold", action="store_true", help="the first run from an empty kernel cache ÷ from a full one")
    p.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        which, name = args.one
        path = path_of(name)
        got = measure_lezero(name, path) if which == "lezero" else measure_onnxruntime(name, path, args.threads)
        print(json.dumps(got))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(bytecode(folder))
        compare(args)


def compare(args):
    chosen = [n for n in FILES if not args.files or any(re.search(f, n) for f in args.files)]
    if args.cold:
        for name in chosen:
            empty, full = cold(name, args.threads), measured("lezero", name, args.threads)
            print(f"{name}: {empty['first']:.2f} s from an empty kernel cache, {full['first']:.2f} s from a full one")
        return
    print("| " + " | ".join(HEADINGS) + " |\n|" + " --- |" * len(HEADINGS))
    for name in chosen:
        print("| " + " | ".join(row(name, args.threads, args.rounds)) + " |", flush=True)


if __name__ == "__main__":
    main()
