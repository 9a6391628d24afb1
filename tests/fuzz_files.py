"""Files with bytes changed at random: whatever a reader makes of one, it is a value or an error of the format's own.

    PYTHONPATH=src python tests/fuzz_files.py --seconds 60            each format for a minute
    PYTHONPATH=src python tests/fuzz_files.py --seconds 60 onnx pth   these

What is changed lies under the checksums (those of zip members and of .lzm are made anew), so that changes reach the readers.
A file that breaks the rule is kept as ``fuzz-FORMAT-SEED.bin`` in the current folder.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pickle
import signal
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lezero as lz
from lezero.io import lzm

SECONDS_EACH = 5
"""What a file of a few hundred bytes may take to be read, on a machine that does other things as well."""


MOST_SHOWN = 20


class Format(NamedTuple):
    """seeds : sound contents; wrap : the file of a content; read : the reader; refusals : its errors"""

    seeds: Callable[[], list[bytes]]
    wrap: Callable[[bytes], bytes]
    read: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...]


ARRAYS = {
    "w": np.arange(6, dtype="f4").reshape(2, 3),
    "n": np.arange(3),
    "on": np.array([True, False]),
    "none": np.zeros((0, 2)),
}


def saved(save: Callable, value: Any = None) -> bytes:
    out = io.BytesIO()
    save({k: lz.tensor(a) for k, a in ARRAYS.items()} if value is None else value, out)
    return out.getvalue()


def member(content: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(name)


# -- formats --------------------------------------------------------------------------------------------------------------

TREE = {
    "w": lz.tensor(ARRAYS["w"]),
    "a": [1, (2.5, None, float("nan")), {3: "x", (1, "b"): 1 + 2j}],
    "c": lz.tensor([1j]),
}


def lzm_wrapped(header: bytes) -> bytes:
    """An .lzm with this header and the checksum that fits."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("header.json", header)
        archive.writestr("tensors.safetensors", member(saved(lz.save, TREE), "tensors.safetensors"))
        archive.comment = b"sha256:" + b"0" * 64
    content = out.getvalue()
    return content[:-64] + lzm._digest(io.BytesIO(content), len(content) - 64)


def pth_wrapped(pickled: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
        for k, array in enumerate(ARRAYS.values()):
            archive.writestr(f"x/data/{k}", array.tobytes())
    return out.getvalue()


def legacy_wrapped(content: bytes) -> bytes:
    """The older format: the pickle, then its storages, as far as its own list of them goes."""
    head = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    arrays = b"".join(struct.pack("<q", a.size) + a.tobytes() for a in ARRAYS.values())
    return head + content + pickle.dumps([str(k) for k in range(len(ARRAYS))], 2) + arrays


def npz_wrapped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", content)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def sharded_read(index: bytes) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        lz.io.save_safetensors({"w": lz.ones(2)}, Path(folder) / "a.safetensors")
        (Path(folder) / "m.safetensors.index.json").write_bytes(index)
        return lz.io.load_safetensors(Path(folder) / "m.safetensors.index.json")


def onnx_models() -> list[bytes]:
    from onnx import TensorProto, helper, numpy_helper

    def value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def branch(operator: str) -> Any:
        return helper.make_graph([helper.make_node(operator, ["x"], ["o"])], operator, [], [value("o", None)])

    function = helper.make_function("mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)])  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Twice", ["m"], ["t"], domain="mine"),
        helper.make_node("Reshape", ["t", "to"], ["r"]),
        helper.make_node("Softmax", ["r"], ["s"], axis=-1),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg")),
    ]
    weights = {"w": np.ones((2, 3), np.float32), "to": np.array([3, -1])}
    ends = [value("x", ["n", 2]), value("c", [], TensorProto.BOOL)], [value("s", [3, "k"]), value("y", None)]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    return [helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10).SerializeToString()]


def onnx_read(content: bytes) -> Any:
    model = lz.onnx.load(content)
    x = np.ones((3, 2), np.float32)
    with contextlib.suppress(TypeError, MemoryError):  # inputs of other names; more than there is memory for
        model(x=x, c=np.array(True))
    return model


def formats() -> dict[str, Format]:
    from lezero.onnx import OnnxError

    torch_pickle = member(saved(lz.io.save_pth), "archive/data.pkl")
    plain = lambda content: content
    load = lambda read: lambda content: read(io.BytesIO(content))
    pth = (lz.io.PthError,)
    return {
        "safetensors": Format(lambda: [saved(lz.io.save_safetensors)], plain, load(lz.io.load_safetensors), (lz.io.SafetensorsError,)),
        "index": Format(lambda: [json.dumps({"weight_map": {"w": "a.safetensors"}}).encode()], plain, sharded_read, (lz.io.SafetensorsError, FileNotFoundError)),
        "lzm": Format(lambda: [saved(lz.save, TREE)], plain, load(lz.load), (lz.io.LzmError,)),
        "lzm-header": Format(lambda: [member(saved(lz.save, TREE), "header.json")], lzm_wrapped, load(lz.load), (lz.io.LzmError,)),
        "pth": Format(lambda: [torch_pickle, *(pickle.dumps([1, "a", {2: (3.5, None)}, {4}], p) for p in range(6))], pth_wrapped, load(lz.io.load_pth), pth),
        "pth-zip": Format(lambda: [saved(lz.io.save_pth)], plain, load(lz.io.load_pth), pth),
        "pth-legacy": Format(lambda: [torch_pickle], legacy_wrapped, load(lz.io.load_pth), pth),
        "npz": Format(lambda: [npy(ARRAYS["w"]), npy(ARRAYS["w"].T)], npz_wrapped, load(lz.io.load_npz), (lz.io.NpzError,)),
        "npz-zip": Format(lambda: [saved(lz.io.save_npz)], plain, load(lz.io.load_npz), (lz.io.NpzError,)),
        "onnx": Format(onnx_models, plain, onnx_read, (OnnxError,)),
    }  # fmt: skip


# -- changes --------------------------------------------------------------------------------------------------------------

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 62), (1 << 63) - 1, (1 << 64) - 1]


def changed(content: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes: a byte or a bit, a number that is a limit, a piece left out, doubled or put elsewhere, the end cut off."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(len(data) + 1))
        length = int(rng.integers(1, 9))
        kind = rng.integers(7)
        if kind == 0:
            data[at : at + 1] = bytes([rng.integers(256)])
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            number = NUMBERS[rng.integers(len(NUMBERS))]
            data[at : at + 8] = number.to_bytes(8, "little")[:length]
        elif kind == 3:
            del data[at : at + length]
        elif kind == 4:
            data[at:at] = data[at : at + length * 4]
        elif kind == 5:
            other = int(rng.integers(len(data) + 1))
            data[other:other] = data[at : at + length * 4]
        else:
            del data[max(at, len(data) - 64) :]
    return bytes(data)


def files(name: str, seed: int = 0) -> Iterator[tuple[int, bytes]]:
    """Changed files of a format without end, each with the seed it was made of."""
    found = formats()[name]
    seeds = found.seeds()
    while True:
        rng = np.random.default_rng(seed)
        yield seed, found.wrap(changed(seeds[rng.integers(len(seeds))], rng))
        seed += 1


class Slow(BaseException):
    """Reading took too long; no Exception, so that no reader takes it for its own."""


def _too_slow(*_: Any) -> None:
    raise Slow


def offence(name: str, content: bytes, seconds: int = SECONDS_EACH) -> BaseException | None:
    """What a reader should not have done: another error than its own, or taking too long."""
    found = formats()[name]
    before = signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(seconds)
    try:
        found.read(content)
    except found.refusals:
        pass
    except (Exception, Slow) as error:
        return error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", default=[], choices=[*formats(), []], help="formats [all]")
    p.add_argument("--seconds", type=float, default=60, help="for each format [60]")
    p.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    args = p.parse_args()
    offences = 0
    for name in args.names or formats():
        end, count, taken = time.monotonic() + args.seconds, 0, 0.0
        for seed, content in files(name, args.seed):
            start = time.monotonic()
            error = offence(name, content)
            taken, count = max(taken, time.monotonic() - start), count + 1
            if error is not None:
                offences += 1
                Path(f"fuzz-{name}-{seed}.bin").write_bytes(content)
                print(f"{name}, seed {seed}: {type(error).__name__}: {error}", flush=True)
            if time.monotonic() > end or offences > MOST_SHOWN:
                break
        print(f"{name}: {count} files, the slowest took {taken:.2f} s", flush=True)
    sys.exit(1 if offences else 0)


if __name__ == "__main__":
    main()
