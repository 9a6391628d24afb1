"""Published ONNX files give ONNX Runtime's outputs, at two sizes where their shapes vary.

They come from where `examples/fetch.py` puts them; continuous integration fetches them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lezero as lz

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import fetch

pytest.importorskip("onnx", reason="needed to read the files: pip install 'lezero[onnx]'")
ort = pytest.importorskip("onnxruntime", reason="compared with ONNX Runtime: pip install onnxruntime")

RNG = np.random.default_rng(0)


def pictures(name, *sizes):
    return [{name: RNG.normal(scale=0.5, size=size).astype(np.float32)} for size in sizes]


def sentences(*names):
    """Numbers of words, of sentences of 12 and of 30; the second of each is shorter."""
    out = []
    for length in (12, 30):
        words = RNG.integers(1000, 2000, (2, length))
        mask = np.ones_like(words)
        mask[1, -5:] = 0
        given = {"input_ids": words, "attention_mask": mask, "token_type_ids": np.zeros_like(words)}
        out.append({n: given[n] for n in names})
    return out


def sounds(*states, batches=(1, 2), rate=False):
    """A piece of sound for each of the batch, and the network's state."""
    out = []
    for batch in batches:
        given = {"input": RNG.normal(scale=0.3, size=(batch, 576))}
        given |= {name: RNG.normal(size=[batch if d == "batch" else d for d in shape]) for name, shape in states}
        given = {n: a.astype(np.float32) for n, a in given.items()}
        out.append(given | ({"sr": np.array(16000)} if rate else {}))
    return out


STATE = ("state", (2, "batch", 128))

# file: the package it is in (see examples/fetch.py), inputs
FILES = {
    "ch_ppocr_mobile_v2.0_cls_infer": ("onnx-ocr", pictures("x", (1, 3, 48, 192), (2, 3, 64, 100))),
    "ch_PP-OCRv4_det_infer": ("onnx-ocr", pictures("x", (1, 3, 64, 96), (2, 3, 96, 128))),
    "ch_PP-OCRv4_rec_infer": ("onnx-ocr", pictures("x", (1, 3, 48, 96), (2, 3, 48, 160))),
    "open-nsfw": ("onnx-resnet", pictures("input:0", (1, 224, 224, 3), (2, 224, 224, 3))),
    "paraphrase-MiniLM-L3-v2": ("onnx-minilm", sentences("input_ids", "attention_mask")),
    "model": ("onnx-minilm-int8", sentences("input_ids", "attention_mask", "token_type_ids")),
    "silero_vad": ("onnx-voice", sounds(STATE, rate=True)),
    "silero_vad_16k_op15": ("onnx-voice", sounds(STATE, rate=True)),
    "silero_vad_16k_sequence": ("onnx-voice", sounds(("h", (1, 1, 128)), ("c", (1, 1, 128)))),
    "silero_vad_half": ("onnx-voice", sounds(STATE)),
    "silero_vad_op18_ifless": ("onnx-voice", sounds(STATE, rate=True)),
    "silero_vad_openvino_16k": ("onnx-voice", sounds(STATE, batches=(1,))),
}


@pytest.mark.parametrize("name", FILES)
def test_outputs_are_onnx_runtimes(name):
    package, sizes = FILES[name]
    folder = fetch.HOME / package
    if not folder.is_dir():
        pytest.skip(f"python examples/fetch.py {package} has not been run (in {fetch.HOME})")
    (path,) = folder.rglob(f"{name}.onnx")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = lz.onnx.load(path).eval()
    for given in sizes:
        with lz.no_grad():
            results = model(**given)
        for got, want in zip(
            results if isinstance(results, tuple) else (results,), session.run(None, given), strict=True
        ):
            assert got.numpy().dtype == want.dtype
            np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-4 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("package", sorted({package for package, _ in FILES.values()}))
def test_no_file_is_forgotten(package):
    folder = fetch.HOME / package
    if not folder.is_dir():
        pytest.skip(f"python examples/fetch.py {package} has not been run (in {fetch.HOME})")
    assert {p.stem for p in folder.rglob("*.onnx")} == {name for name, (where, _) in FILES.items() if where == package}
