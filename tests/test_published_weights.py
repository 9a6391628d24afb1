"""Published weights are read as PyTorch reads them, and give what they are known to give.

They come from where `examples/fetch.py` puts them; continuous integration fetches them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from lezero import models

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import fetch

torch = pytest.importorskip("torch")


def published(package, pattern):
    """The files of a package whose names fit; the test is skipped where it was not fetched."""
    folder = fetch.HOME / package
    if not folder.is_dir():
        pytest.skip(f"python examples/fetch.py {package} has not been run (in {fetch.HOME})")
    found = sorted(folder.rglob(pattern))
    assert found, f"{folder} has no {pattern}"
    return found


@pytest.mark.parametrize(
    ("package", "name", "begins", "count"),
    [
        ("mobilenet", "mobilenet_v2-b0353104.pth", b"\x80", 314),
        ("efficientnet", "efficientnet-lite0-57934424.pth", b"\x80", 296),
        ("mnist-cnn", "mnist.pth", b"PK", 8),
    ],
)
def test_both_of_pytorchs_formats_are_read_as_pytorch_reads_them(package, name, begins, count):
    (path,) = published(package, name)
    assert path.read_bytes()[: len(begins)] == begins
    ours, theirs = lz.io.load_pth(path), torch.load(path, map_location="cpu", weights_only=True)
    assert list(ours) == list(theirs) and len(ours) == count
    for key, tensor in theirs.items():
        assert str(tensor.dtype) == f"torch.{ours[key].dtype.name}" and tuple(ours[key].shape) == tuple(tensor.shape)
        assert ours[key].numpy().tobytes() == tensor.numpy().tobytes()


def test_mobilenet_v2_knows_what_is_on_photographs():
    pytest.importorskip("PIL.Image", reason="needed to open photographs: pip install pillow")
    from transfer import photograph

    (path,) = published("mobilenet", "mobilenet_v2-b0353104.pth")
    photographs = published("photos", "imagenet_*.jpg")
    classes = np.array([int(re.search(r"_(\d+)$", p.stem)[1]) for p in photographs])
    net = models.mobilenet_v2().eval()
    net.load_state_dict(lz.io.load_pth(path))
    with lz.no_grad():
        scores = net(lz.tensor(np.stack([photograph(p) for p in photographs]))).numpy()
    best = np.argsort(-scores, 1)[:, :5]
    assert len(classes) == 20
    assert (best[:, 0] == classes).sum() == 18  # what torchvision's model gets right, too
    assert (best == classes[:, None]).any(1).all()


SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Somebody makes music in front of people.",
    "The stock market fell sharply after the central bank raised interest rates by half a percent, and analysts expect more.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "Please reset my password, I can't log in any more!",
    "wie geht es dir heute",
    "Yes.",
    "The quick brown fox jumps over the lazy dog while 42 engineers debate the merits of quantised matrix multiplication.",
]


@pytest.fixture(scope="module")
def minilm():
    """Its weights, the network that has them, and tokens of the sentences with their mask."""
    from review_sentiment import WordPiece

    (path,), (vocabulary,) = published("minilm", "model.safetensors"), published("minilm", "vocab.txt")
    state = lz.io.load_safetensors(path)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    net = models.bert_base(**sizes).eval()
    net.load_state_dict(state)  # with its position_ids, which newer versions do not store
    tokens = list(map(WordPiece(vocabulary), SENTENCES))
    ids = np.array([t + [0] * (max(map(len, tokens)) - len(t)) for t in tokens])
    return {k: v.numpy() for k, v in state.items()}, net, ids, (ids != 0).astype(np.int64)


def embeddings(hidden, mask):
    """Means over each sentence's tokens, of norm 1."""
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def hidden_of(net, ids, mask):
    with lz.no_grad():
        return net(lz.tensor(ids), lz.tensor(mask)).numpy()


def test_a_sentence_encoder_gives_what_pytorch_computes(minilm):
    from model_twins import Bert

    state, net, ids, mask = minilm
    twin = Bert(30522, 384, 6, 12, 1536, 512).double()
    twin.load_state_dict({k: torch.tensor(v) for k, v in state.items() if k != "embeddings.position_ids"})
    with torch.no_grad():
        theirs = twin(torch.tensor(ids[:2]), torch.tensor(mask[:2])).numpy()
    ours = hidden_of(net, ids[:2], mask[:2])
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)


def rounded_weights(path, state):
    """The state with the file's weights of 8 bits in their places; they are called val_N there, in the network's order."""
    from onnx import load, numpy_helper

    arrays = {t.name.removeprefix("inner."): numpy_helper.to_array(t) for t in load(path).graph.initializer}
    products = sorted((n for n in arrays if re.fullmatch(r"val_\d+_q", n)), key=lambda n: int(n[4:-2]))
    order = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense"]  # fmt: skip
    names = [f"encoder.layer.{k}.{part}.weight" for k in range(6) for part in order]
    places = dict(zip(names, products, strict=True))
    places |= {n: f"{n}_q" for n in state if f"{n}_q" in arrays}
    rounded = {}
    for name, value in state.items():
        if name in places:
            levels, scale = arrays[places[name]], arrays[places[name].removesuffix("q") + "scale"]
            found = levels * scale if f"{name}_q" in arrays else (levels * scale).T
            step = scale if f"{name}_q" in arrays else scale.T
            assert (np.abs(found - value) <= 0.501 * step).all(), name
            rounded[name] = found
        else:
            assert np.array_equal(value, arrays.get(name, value)), name
    assert len(rounded) == 38
    return state | rounded


def test_its_embeddings_are_those_of_the_onnx_file_of_the_same_network(minilm):
    """The file has the same numbers, those of its large matrices rounded to 8 bits; with these our network gives what it gives.

    With the numbers before rounding, cosines are 0.9994 to 0.9997 for seven of the sentences and 0.9964 for the shortest.
    """
    pytest.importorskip("onnx", reason="needed to read the file: pip install 'lezero[onnx]'")
    ort = pytest.importorskip("onnxruntime", reason="needed to run the file: pip install onnxruntime")
    state, net, ids, mask = minilm
    (path,) = published("onnx-minilm-int8", "model.onnx")
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    theirs = embeddings(ort.InferenceSession(str(path)).run(None, given)[0], mask)
    cosines = (theirs * embeddings(hidden_of(net, ids, mask), mask)).sum(1)
    assert cosines.min() > 0.996 and np.sort(cosines)[1] > 0.999
    try:
        net.load_state_dict(rounded_weights(path, state))
        assert (theirs * embeddings(hidden_of(net, ids, mask), mask)).sum(1).min() > 1 - 1e-6
    finally:
        net.load_state_dict(state)


def test_its_embeddings_are_those_of_its_own_onnx_file(minilm, tmp_path):
    """Exported by us and run by ONNX Runtime, at sizes that were not the example's."""
    pytest.importorskip("onnx", reason="needed to write the file: pip install 'lezero[onnx]'")
    ort = pytest.importorskip("onnxruntime", reason="needed to run the file: pip install onnxruntime")
    _, net, ids, mask = minilm
    axes = {0: lz.export.Dim("sentences", min=1, max=64), 1: lz.export.Dim("tokens", min=2, max=512)}
    names = ["input_ids", "attention_mask"]
    lz.export.to_onnx(
        net, (lz.tensor(ids[:3, :9]), lz.tensor(mask[:3, :9])), tmp_path / "m.onnx", input_names=names, output_names=["hidden"],
        dynamic_shapes=dict.fromkeys(names, axes), verify=False,
    )  # fmt: skip
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    ours = hidden_of(net, ids, mask)
    assert (embeddings(theirs, mask) * embeddings(ours, mask)).sum(1).min() > 1 - 1e-6
    np.testing.assert_allclose(theirs[mask != 0], ours[mask != 0], atol=2e-5)
