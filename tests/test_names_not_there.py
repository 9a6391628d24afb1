"""Names of PyTorch that are not there say what to do, and what they advise does it."""

import importlib
import re

import numpy as np
import pytest

import lezero as lz
from lezero import models, nn
from lezero.nn import functional as F
from lezero.nn.absent import FUNCTIONS, LAYERS

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("module", "theirs", "advised"),
    [
        ("lezero.nn", torch.nn, LAYERS),
        ("lezero.nn.functional", torch.nn.functional, FUNCTIONS),
    ],
    ids=["layers", "functions"],
)
def test_advice_is_about_names_of_pytorch_that_are_not_there(module, theirs, advised):
    ours = importlib.import_module(module)
    for name, advice in advised.items():
        assert hasattr(theirs, name) and not hasattr(ours, name), name
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}: {advice}") + "$"):
            getattr(ours, name)
        for dotted in re.findall(r"\b(?:lz\.)?nn\.[\w.]*\w", advice):  # what is advised is there
            found = lz
            for part in dotted.removeprefix("lz.").split("."):
                found = getattr(found, part)


def test_every_layer_of_pytorch_is_there_or_says_something():
    layers = [n for n, c in vars(torch.nn).items() if isinstance(c, type) and issubclass(c, torch.nn.Module)]
    assert len(layers) > 150
    for name in set(layers) - {"Container"}:
        if not hasattr(nn, name):
            with pytest.raises(AttributeError, match=f"no attribute {name!r}: "):
                getattr(nn, name)


@pytest.mark.parametrize(
    ("module", "name", "says"),
    [
        ("lezero.nn", "Conv3d", "not there yet"),
        ("lezero.nn.utils", "weight_norm", "lz.nn.utils.parametrizations.weight_norm"),
        ("lezero.optim", "NAdam", "AdamW"),
        ("lezero.optim.lr_scheduler", "CyclicLR", "OneCycleLR"),
        ("lezero.data", "DistributedSampler", "not there yet"),
        ("lezero.autograd", "detect_anomaly", "lz.debug.check_numerics"),
        ("lezero.profiler", "ProfilerActivity", "every kernel is noted"),
        ("lezero.profiler", "schedule", "warm up"),
        ("lezero.profiler", "record_function", "lz.explain"),
        ("lezero.models", "ResNet50_Weights", "load_pth"),
    ],
)
def test_other_modules_say_what_to_do(module, name, says):
    with pytest.raises(AttributeError, match=rf"no attribute {name!r}: .*{re.escape(says)}"):
        getattr(importlib.import_module(module), name)


rng = np.random.default_rng(0)
SEQUENCE, WEIGHT = rng.standard_normal((2, 3, 7), np.float32), rng.standard_normal((3, 4, 3), np.float32)

# name: (what is advised, what PyTorch's is)
ADVISED = {
    "conv_transpose1d": (
        lambda: F.conv_transpose2d(lz.tensor(SEQUENCE).unsqueeze(2), lz.tensor(WEIGHT).unsqueeze(2), stride=(1, 2)).squeeze(2),
        lambda: torch.nn.functional.conv_transpose1d(torch.tensor(SEQUENCE), torch.tensor(WEIGHT), stride=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_advised_gives_what_pytorchs_does(name):
    assert name in LAYERS or name in FUNCTIONS
    ours, theirs = (f() for f in ADVISED[name])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: models.resnet50(weights="DEFAULT"),
        lambda: models.mobilenet_v2(pretrained=True),
        lambda: models.vgg16(weights=None),
        lambda: models.vit_b_16(pretrained=False),
        lambda: models.unet(pretrained=True),
        lambda: models.bert_base(weights="FILE"),
        lambda: models.gpt2(pretrained=True),
    ],
)
def test_networks_say_how_published_weights_are_loaded(make):
    with pytest.raises(TypeError, match=r"load_state_dict\(lz\.io\.load_pth"):
        make()


def test_sizes_of_language_models_are_spelt():
    with pytest.raises(TypeError, match="BertConfig: there is no argument 'hiden_size': did you mean 'hidden_size'"):
        models.bert_base(hiden_size=8)


def test_where_a_pth_file_is_mapped_to(tmp_path):
    torch.save({"w": torch.arange(3.0)}, tmp_path / "w.pth")
    for place in ("cpu", lz.device("cpu"), torch.device("cpu"), None):
        assert lz.io.load_pth(tmp_path / "w.pth", map_location=place)["w"].tolist() == [0, 1, 2]
    for place in ("cuda:0", lambda storage, location: storage, {"cuda:0": "cpu"}):
        with pytest.raises(ValueError, match=r"map_location is 'cpu'.*\.to\(device\)"):
            lz.io.load_pth(tmp_path / "w.pth", map_location=place)


def test_a_profile_takes_pytorchs_names_or_says_what_to_use(tmp_path):
    with lz.profiler.profile() as p:
        lz.ones(1000).exp().sum().item()
    p.export_chrome_trace(tmp_path / "trace.json")
    assert '"traceEvents"' in (tmp_path / "trace.json").read_text()
    for name in ("key_averages", "export_stacks", "step", "start", "total_average", "export_memory_timeline"):
        assert not hasattr(p, name)
        with pytest.raises(AttributeError, match=f"'profile' has no attribute '{name}': "):
            getattr(p, name)
    with pytest.raises(AttributeError, match=r"no attribute 'qwxyz'$"):
        _ = p.qwxyz
    with pytest.raises(TypeError, match="profile: there is no argument 'record_shapes': it takes none"):
        lz.profiler.profile(record_shapes=True)
