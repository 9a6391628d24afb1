"""Names of PyTorch that are not there say what to do, and what they advise does it."""

import copy
import importlib
import inspect
import pickle
import re
import sys

import pytest

import lezero as lz
from lezero import models, nn
from lezero.absent import NAMES
from lezero.misspelt import PUBLIC_PARTS
from lezero.nn.absent import FUNCTIONS, LAYERS
from lezero.runtime.jit import ELSEWHERE

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("module", "theirs", "advised"),
    [
        ("lezero", torch, NAMES),
        ("lezero.nn", torch.nn, LAYERS),
        ("lezero.nn.functional", torch.nn.functional, FUNCTIONS),
        ("lezero.special", torch.special, lz.special.ELSEWHERE),
        ("lezero.jit", torch.jit, ELSEWHERE),
    ],
    ids=["names", "layers", "functions", "special", "jit"],
)
def test_advice_is_about_names_of_pytorch_that_are_not_there(module, theirs, advised):
    ours = lz.jit if module == "lezero.jit" else importlib.import_module(module)
    for name, advice in advised.items():
        assert hasattr(theirs, name) and not hasattr(ours, name), name
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}: {advice}") + "$"):
            getattr(ours, name)
        for dotted in re.findall(r"\b(?:lz\.|lz\.nn\.|nn\.)[\w.]*\w", advice):  # what is advised is there
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
        ("lezero.nn", "quantized", "not there yet"),
        ("lezero.nn.utils", "weight_norm", "lz.nn.utils.parametrizations.weight_norm"),
        ("lezero.optim", "SparseAdam", "AdamW"),
        ("lezero.data", "DistributedSampler", "not there yet"),
        ("lezero.autograd", "detect_anomaly", "lz.debug.check_numerics"),
        ("lezero.onnx", "export", "lz.export.to_onnx"),
        ("lezero.onnx", "laod", "lezero.onnx.load"),
        ("lezero.profiler", "ProfilerActivity", "every kernel is noted"),
        ("lezero.profiler", "schedule", "warm up"),
        ("lezero.profiler", "record_function", "lz.explain"),
        ("lezero.models", "ResNet50_Weights", "load_pth"),
    ],
)
def test_other_modules_say_what_to_do(module, name, says):
    with pytest.raises(AttributeError, match=rf"no attribute {name!r}: .*{re.escape(says)}"):
        getattr(importlib.import_module(module), name)


def test_no_name_of_pytorch_is_taken_for_a_part_that_users_do_not_know():
    for name in (n for n in dir(torch) if not n.startswith("_") and not hasattr(lz, n)):
        with pytest.raises(AttributeError) as caught:
            getattr(lz, name)
        for suggested in re.findall(r"lezero\.([\w.]+)", str(caught.value)):
            found = importlib.import_module("lezero")
            for part in suggested.split("."):
                found = getattr(found, part)
            if inspect.ismodule(found):
                assert suggested in PUBLIC_PARTS, (name, suggested)
            else:
                assert getattr(found, "__module__", None) in (None, "builtins") or found.__module__.startswith(
                    "lezero"
                ), name


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            "from lezero.nn import DataParallel",
            "cannot import name 'DataParallel' from 'lezero.nn': training on several",
        ),
        ("from lezero.nn import Linear, Lineer", "'Lineer' from 'lezero.nn': did you mean lezero.nn.Linear?"),
        ("from lezero.nn.functional import rellu", "did you mean lezero.nn.functional.relu"),
        ("from lezero import compile", "'compile' from 'lezero': every recorded step"),
        ("from lezero import nn, DataParallel", "'DataParallel' from 'lezero': training on several"),
        ("from lezero.autograd import Variable", "'Variable' from 'lezero.autograd': every tensor"),
        ("from lezero.optim import Adma", "did you mean lezero.optim.Adam?"),
        ("from lezero.data import qwxyz", "cannot import name 'qwxyz' from 'lezero.data'$"),
    ],
)
def test_imports_say_what_attributes_say(statement, says):
    with pytest.raises(ImportError, match=says) as caught:
        exec(statement)
    assert type(caught.value) is ImportError


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("import lezero.fx", "no module named 'lezero.fx': lz.explain"),
        (
            "from lezero.utils.data import DataLoader",
            "no module named 'lezero.utils': what loads data is in lezero.data",
        ),
        ("from lezero.cuda.amp import autocast", "'lezero.cuda.amp': lz.amp.autocast"),
        ("import lezero.optm", "did you mean lezero.optim?"),
        ("import lezero.nn.Linear", "it is a type of lezero.nn; from lezero.nn import Linear"),
        ("import lezero.qwxyz", "no module named 'lezero.qwxyz'$"),
        ("import qwxyz", "No module named 'qwxyz'$"),
    ],
)
def test_modules_that_are_not_there_say_so_too(statement, says):
    with pytest.raises(ModuleNotFoundError, match=says) as caught:
        exec(statement)
    assert caught.value.name in statement


def test_attributes_can_be_asked_for():
    assert not hasattr(nn, "DataParallel") and getattr(nn, "DataParallel", 3) == 3 and not hasattr(lz, "compile")


UNCAUGHT = [
    ("lz.ones(3).sofmax()", "'Tensor' object has no attribute 'sofmax'. Did you mean: 'softmax'?"),
    ("lz.nn.Linear(2, 2).wieght", "'Linear' object has no attribute 'wieght'. Did you mean: 'weight'?"),
    ("lz.nn.Linear(2, 2).paramters()", "Did you mean: 'parameters'?"),
    ("lz.optim.SGD(lz.nn.Linear(2, 2).parameters()).zero_grads()", "Did you mean: 'zero_grad'?"),
]


@pytest.mark.parametrize(("expression", "says"), UNCAUGHT)
def test_python_itself_suggests_members_of_tensors_and_layers(expression, says, capsys):
    with pytest.raises(AttributeError) as caught:
        eval(expression)
    sys.__excepthook__(caught.type, caught.value, caught.tb)  # what prints an error that nobody caught
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["fused", "foreach", "capturable"])
def test_optimizers_say_that_their_steps_are_fused(argument):
    with pytest.raises(TypeError, match=rf"AdamW: there is no argument '{argument}': leave it out: every step is"):
        lz.optim.AdamW(nn.Linear(2, 3).parameters(), **{argument: True})


@pytest.mark.parametrize("argument", ["size_average", "reduce"])
def test_losses_say_what_became_of_their_old_arguments(argument):
    with pytest.raises(TypeError, match=rf"MSELoss: there is no argument '{argument}': reduction="):
        nn.MSELoss(**{argument: False})


def test_what_ported_programs_ask_of_cuda_first():
    assert lz.cuda.is_available() is False and lz.cuda.device_count() == 0
    assert lz.ones(2).to("cuda" if lz.cuda.is_available() else "cpu").tolist() == [1, 1]
    lz.cuda.manual_seed_all(3), lz.cuda.empty_cache(), lz.cuda.synchronize()
    for name, says in (
        ("amp", "lz.amp.autocast"),
        ("memory_reserved", "lz.device"),
        ("get_device_name", "lz.device.properties"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{says}"):
            getattr(lz.cuda, name)


@pytest.mark.parametrize(
    ("name", "says"),
    [("cuda", r"model\.to\(device\)"), ("share_memory", "leave it out"), ("compile", r"lz\.jit\(model\)")],
)
def test_methods_of_modules_that_are_not_there_say_what_to_do(name, says):
    model = nn.Linear(2, 3)
    assert hasattr(torch.nn.Module, name) and not hasattr(model, name)
    with pytest.raises(AttributeError, match=f"'Linear' has no attribute '{name}': .*{says}"):
        getattr(model, name)
    model.add_module(name, nn.Identity())
    assert isinstance(getattr(model, name), nn.Identity)


def test_devices_of_a_backend_with_cuda(monkeypatch):
    monkeypatch.setattr("lezero.cuda.devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    assert lz.cuda.is_available() and lz.cuda.device_count() == 2


def test_settings_of_backends_say_what_to_do():
    with pytest.raises(AttributeError, match=r"no attribute 'mps': lz.device.devices"):
        lz.backends.mps.is_available()
    with pytest.raises(AttributeError, match="no attribute 'cudnn': nothing has to be switched"):
        lz.backends.cudnn.benchmark = True


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


def test_every_function_of_torch_special_is_there_or_says_something():
    names = [n for n in torch.special.__all__ if not hasattr(lz.special, n)]
    assert len(names) > 30
    for name in names:
        with pytest.raises(AttributeError, match=f"no attribute {name!r}: "):
            getattr(lz.special, name)


def test_jit_is_a_function_in_every_other_way():
    assert copy.deepcopy(lz.jit) is lz.jit is pickle.loads(pickle.dumps(lz.jit))
    assert list(inspect.signature(lz.jit).parameters) == ["fn", "memory_limit"] and lz.jit.__name__ == "jit"
    assert not hasattr(lz.jit, "script") and repr(lz.jit).startswith("<function jit")
