"""Weights converted between formats, namings and precisions, by function and by command."""

import hashlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from lezero import io, models
from lezero.cli import run
from lezero.models.names import FAMILIES, NamesError, recognised, renamed
from test_io import random_array
from test_models import BERT

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
load_file, save_file = (getattr(pytest.importorskip("safetensors.numpy"), f"{do}_file") for do in ("load", "save"))

VIT = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 12, "mlp_dim": 20}
GPT2 = {"vocab_size": 37, "n_positions": 9, "n_embd": 12, "n_layer": 2, "n_head": 3}

# What transformers 5.24 gives a model of these sizes: how many tensors, and the SHA-256 of the sorted lines "name shape".
HUGGING_FACE = {
    "resnet18": ({}, 122, "9530b99723a518aa"),
    "resnet50": ({}, 320, "10e82581d4f8dc62"),
    "mobilenet_v2": ({}, 314, "865b9bc36f02df9b"),
    "vit_b_16": (VIT, 40, "3d4782862b55c080"),
}


def shapes(state):
    return {name: tuple(int(d) for d in t.shape) for name, t in state.items()}


def numbered(model, **options):
    """A state with values of its own in every tensor, and without anything drawn."""
    r = np.random.default_rng(0)
    state = getattr(models, model)(**options).state_dict()
    return {k: lz.tensor(r.integers(0, 99, s).astype(state[k].dtype.numpy)) for k, s in shapes(state).items()}


# -- names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", HUGGING_FACE)
def test_names_and_shapes_are_hugging_faces(model, undrawn):
    options, count, digest = HUGGING_FACE[model]
    theirs = renamed(getattr(models, model)(**options).state_dict(), "huggingface")
    lines = "\n".join(sorted(f"{name} {shape}" for name, shape in shapes(theirs).items()))
    assert (len(theirs), hashlib.sha256(lines.encode()).hexdigest()[:16]) == (count, digest)


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "vit_b_16"])
def test_names_there_and_back_change_nothing(model):
    options = {"resnet18": {}, "mobilenet_v2": {"width_mult": 0.1}, "vit_b_16": VIT}[model]
    state = numbered(model, **options)
    theirs = renamed(state, "huggingface")
    assert recognised(theirs)[1] == "huggingface" and not theirs.keys() & state.keys()
    for names in ("torchvision", "lezero"):
        back = renamed(theirs, names)
        assert list(back) == list(state)
        assert all(np.array_equal(back[k].numpy(), state[k].numpy()) for k in state)
    assert list(renamed(state, "torchvision")) == list(state)


def test_names_of_vision_transformers_in_memory_are_read_too():
    """Version 5 of transformers names them otherwise in memory than in files."""
    state = numbered("vit_b_16", **VIT)
    newer = {}
    for name, value in renamed(state, "huggingface").items():
        for old, new in [
            (".encoder.layer.", ".layers."), ("attention.attention.query", "attention.q_proj"), ("attention.attention.key", "attention.k_proj"),
            ("attention.attention.value", "attention.v_proj"), ("attention.output.dense", "attention.o_proj"),
            ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"),
        ]:  # fmt: skip
            name = name.replace(old, new)
        newer[name] = value
    back = renamed(newer, "lezero")
    assert list(back) == list(state) and all(np.array_equal(back[k].numpy(), state[k].numpy()) for k in state)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("bert_base", BERT),
        ("bert_base_for_masked_lm", BERT),
        ("bert_base_for_sequence_classification", BERT),
        ("gpt2", GPT2),
        ("vgg16_bn", {"hidden_features": 9}),
    ],
)
def test_names_that_are_the_same_stay(model, options, undrawn):
    state = getattr(models, model)(**options).state_dict()
    assert list(renamed(state, "lezero", model)) == list(state)
    own = recognised(state)[0].own
    assert list(renamed(state, own)) == list(state)
    with pytest.raises(NamesError, match=f"{'torchvision' if own == 'huggingface' else 'huggingface'} has no"):
        renamed(state, "torchvision" if own == "huggingface" else "huggingface")


def test_older_names_of_bert_become_newer_ones():
    state = {"bert.embeddings.LayerNorm.gamma": lz.ones(2), "bert.embeddings.LayerNorm.beta": lz.ones(2)}
    assert list(renamed(state, "lezero")) == ["bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.bias"]


def test_names_are_there_where_the_pages_say():
    program = (
        "import lezero as lz; print(list(lz.models.names.renamed(lz.models.resnet18().state_dict(), 'lezero'))[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "conv1.weight\n"


def test_names_that_are_not_known_are_listed():
    with pytest.raises(NamesError, match=r"not those of resnet18, .*: a, b"):
        renamed({"a": lz.ones(1), "b": lz.ones(1)}, "lezero")
    state = numbered("resnet18")
    with pytest.raises(NamesError, match=r"1 of 123 names are none of resnet18's \(torchvision\): head\.weight"):
        renamed(state | {"head.weight": lz.ones(1)}, "huggingface")
    with pytest.raises(NamesError, match=r"are not those of gpt2: conv1\.weight"):
        renamed(state, "lezero", "gpt2")
    with pytest.raises(NamesError, match="no names but ours for 'unet'"):
        renamed(state, "lezero", "unet")
    with pytest.raises(NamesError, match=r"names are those of .*, got 'keras'"):
        renamed(state, "keras")
    theirs = renamed(numbered("vit_b_16", **VIT), "huggingface")
    del theirs["vit.encoder.layer.1.attention.attention.key.bias"]
    with pytest.raises(NamesError, match=r"in_proj_bias is made of .*1\.attention\.attention\.key\.bias is missing"):
        renamed(theirs, "lezero")


def test_every_family_is_of_models_that_there_are():
    assert all(hasattr(models, model) for family in FAMILIES for model in family.models)


def test_outputs_are_hugging_faces():
    hf = pytest.importorskip("transformers")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "image_size": 16, "patch_size": 8}  # fmt: skip
    pairs = [
        (models.resnet18(), hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000, layer_type="basic", depths=[2] * 4, hidden_sizes=[64, 128, 256, 512]))),
        (models.mobilenet_v2(), hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(num_labels=1000, tf_padding=False, layer_norm_eps=1e-5))),
        (models.vit_b_16(**VIT), hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000, layer_norm_eps=1e-6, **sizes))),
    ]  # fmt: skip
    for ours, theirs in pairs:
        size = 16 if isinstance(ours, models.VisionTransformer) else 48
        image = np.random.default_rng(0).normal(size=(2, 3, size, size))
        theirs, ours = theirs.double().eval(), ours.double().eval()
        state = {
            k: v + 0.05 * torch.rand(v.shape) if v.is_floating_point() else v for k, v in theirs.state_dict().items()
        }
        theirs.load_state_dict(state)
        ours.load_state_dict(renamed({k: lz.tensor(v.numpy()) for k, v in state.items()}, "lezero"))
        with lz.no_grad(), torch.no_grad():
            y, z = ours(lz.tensor(image)).numpy(), theirs(torch.tensor(image)).logits.numpy()
        assert np.linalg.norm(y - z) < 1e-9 * np.linalg.norm(z)


# -- files --------------------------------------------------------------------------------------------------------------

KINDS = [".safetensors", ".pth", ".lzm", ".npz"]


def of_another(path):
    """The arrays in a file by the package whose format it is; ours for .lzm."""
    if path.suffix == ".npz":
        return dict(np.load(path))
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".pth":
        return {k: v.numpy() for k, v in torch.load(path, weights_only=True).items()}
    return {k: v.numpy() for k, v in lz.load(path).items()}


@pytest.mark.parametrize("source", [*KINDS, "legacy.pth"])
@pytest.mark.parametrize("target", KINDS)
def test_every_format_becomes_every_other(source, target, tmp_path):
    arrays = {
        "w": random_array(lz.float32, (3, 4)),
        "n": np.arange(3),
        "on": np.array([True, False]),
        "h": np.float16([1, 2]),
    }
    one, other = tmp_path / f"a{source}", tmp_path / f"b{target}"
    if source.endswith(".pth"):
        torch.save(
            {k: torch.tensor(a) for k, a in arrays.items()}, one, _use_new_zipfile_serialization=source == ".pth"
        )
    elif source == ".safetensors":
        save_file(arrays, one)
    elif source == ".npz":
        np.savez(one, **arrays)
    else:
        lz.save({k: lz.tensor(a) for k, a in arrays.items()}, one)
    done = lz.convert_weights(one, other)
    assert done.bytes_before == done.bytes_after == sum(a.nbytes for a in arrays.values()) and not done.left_out
    found = of_another(other)
    assert found.keys() == arrays.keys()
    assert all(found[k].dtype == a.dtype and found[k].tobytes() == a.tobytes() for k, a in arrays.items())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_precisions_are_rounded_as_pytorch_rounds(dtype, tmp_path):
    values = (
        np.random.default_rng(0).normal(size=4000).astype(np.float32)
        * np.float32(10) ** np.arange(-8, 4).repeat(334)[:4000]
    )
    torch.save({"x": torch.tensor(values), "n": torch.arange(3)}, tmp_path / "x.pth")
    lz.convert_weights(tmp_path / "x.pth", tmp_path / "y.pth", dtype=dtype)
    found = torch.load(tmp_path / "y.pth", weights_only=True)
    assert torch.equal(found["x"], torch.tensor(values).to(getattr(torch, dtype))) and found["n"].dtype is torch.int64


def test_tied_weights_stay_tied(tmp_path):
    net = models.bert_base_for_masked_lm(**BERT)
    lz.save(net.state_dict(), tmp_path / "x.lzm")
    lz.convert_weights(tmp_path / "x.lzm", tmp_path / "y.pth", dtype="bfloat16")
    found = torch.load(tmp_path / "y.pth", weights_only=True)
    tied = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    assert found[tied[0]].data_ptr() == found[tied[1]].data_ptr() and found[tied[0]].dtype is torch.bfloat16


def test_what_a_precision_cannot_hold_is_refused(tmp_path):
    io.save_npz({"small": lz.ones(2), "large": lz.tensor([1.0, 70000.0])}, tmp_path / "x.npz")
    with pytest.raises(OverflowError, match=r"'large' has values up to 7e\+04, which are beyond the range of float16"):
        lz.convert_weights(tmp_path / "x.npz", tmp_path / "y.pth", dtype="float16")
    io.save_npz({"both": lz.tensor([float("nan"), float("inf"), 70000.0, 1.0])}, tmp_path / "x.npz")
    with pytest.raises(OverflowError, match=r"'both' has values up to 7e\+04"):
        lz.convert_weights(tmp_path / "x.npz", tmp_path / "y.pth", dtype="float16")
    io.save_npz({"endless": lz.tensor([float("inf"), float("nan")])}, tmp_path / "x.npz")
    lz.convert_weights(tmp_path / "x.npz", tmp_path / "y.pth", dtype="float16")
    with pytest.raises(ValueError, match="float16, bfloat16, float32, float64, got int8"):
        lz.convert_weights(tmp_path / "x.npz", tmp_path / "z.pth", dtype="int8")
    assert not (tmp_path / "z.pth").exists()


def test_the_weights_of_an_onnx_model(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    weights = {"w": np.ones((4, 3), np.float32), "shape": np.array([2, 2])}
    constant = numpy_helper.from_array(np.full(3, 2, np.float32))
    nodes = [helper.make_node("Constant", [], ["c"], value=constant), helper.make_node("MatMul", ["x", "w"], ["m"])]
    nodes += [helper.make_node("Add", ["m", "c"], ["a"]), helper.make_node("Reshape", ["a", "shape"], ["y"])]
    ends = [[helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None)] for n in "xy"]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    lz.convert_weights(tmp_path / "m.onnx", tmp_path / "m.safetensors")
    found = load_file(tmp_path / "m.safetensors")
    want = weights | {"c": np.full(3, 2, np.float32)}
    assert found.keys() == want.keys() and all(np.array_equal(found[k], a) for k, a in want.items())
    (tmp_path / "m.onnx").rename(tmp_path / "model.bin")  # seen from the content, as every format is
    lz.convert_weights(tmp_path / "model.bin", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    with pytest.raises(
        io.WeightsError, match=r"is a model; lz\.onnx\.load reads ONNX models, and lezero convert their"
    ):
        io.load_weights(tmp_path / "model.bin")
    with pytest.raises(ValueError, match=r"; lz\.onnx\.load reads ONNX models"):
        io.load_pth(tmp_path / "model.bin")


def test_weights_of_another_model_are_refused(tmp_path):
    state = numbered("resnet18")
    io.save_weights({k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}, tmp_path / "x.pth")
    lz.convert_weights(tmp_path / "x.pth", tmp_path / "y.pth", model="resnet18", names="huggingface")
    for source in ("x.pth", "y.pth"):
        with pytest.raises(io.WeightsError, match=r"not the weights of resnet34: missing layer1\.2\.conv1\.weight"):
            lz.convert_weights(tmp_path / source, tmp_path / "z.pth", model="resnet34", names="torchvision")
    assert not (tmp_path / "z.pth").exists()


@pytest.mark.parametrize("page", ["file-format.md", "file-format.zh-CN.md"])
def test_what_the_page_shows_runs(page, tmp_path, monkeypatch, capsys):
    from lezero.cli.convert import convert

    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lz.save({"weight": lz.ones(2)}, "digits.lzm")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec"), {})
    assert "122 " in capsys.readouterr().out
    for line in re.findall(r"^lezero (convert .*)", text, re.MULTILINE):
        command, *arguments = shlex.split(line)
        assert convert.make_context(command, arguments).params["source"]


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def call(capsys):
    def call(*arguments):
        code = run(["convert", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_command_says_what_it_did(call, tmp_path):
    lz.save({"model": numbered("resnet18", num_classes=10), "epoch": 3}, tmp_path / "x.lzm")
    code, out, err = call(
        tmp_path / "x.lzm", tmp_path / "y.safetensors", "--names", "huggingface", "--dtype", "bfloat16"
    )
    assert code == 0 and err == ""
    assert "y.safetensors: 122 tensors (102 bfloat16, 20 int64), 11,191,262 values, 42.7 MiB → 21.3 MiB" in out
    assert "model" in out and "resnet18's, torchvision → huggingface" in out and "left out: epoch" in out
    with safetensors.safe_open(str(tmp_path / "y.safetensors"), "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
        assert opened.get_tensor("classifier.1.weight").dtype is torch.bfloat16
    code, out, err = call(tmp_path / "y.safetensors", tmp_path / "z.pth", "--names", "lezero", "--json")
    facts = json.loads(out)
    assert (
        code == 0 and facts["names"] == ["huggingface", "lezero"] and facts["dtypes"] == {"bfloat16": 102, "int64": 20}
    )
    models.resnet18(num_classes=10).load_state_dict(io.load_weights(tmp_path / "z.pth"))


def test_a_file_that_is_there_is_replaced_only_by_force(call, tmp_path):
    io.save_npz({"x": lz.ones(2)}, tmp_path / "x.npz")
    (tmp_path / "y.pth").write_bytes(b"mine")
    code, _, err = call(tmp_path / "x.npz", tmp_path / "y.pth")
    assert code == 2 and "--force" in err and (tmp_path / "y.pth").read_bytes() == b"mine"
    with pytest.raises(FileExistsError, match="is there already"):
        lz.convert_weights(tmp_path / "x.npz", tmp_path / "y.pth")
    assert call(tmp_path / "x.npz", tmp_path / "y.pth", "--force")[0] == 0
    assert call(tmp_path / "y.pth", tmp_path / "y.pth", "--force", "--dtype", "float16")[0] == 0
    assert io.load_weights(tmp_path / "y.pth")["x"].dtype is lz.float16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.pth", "y.pth"), "there is no file 'nothing.pth'"),
        (("x.npz", "y.onnx"), "the suffix says what is written"),
        (("x.npz", "no/y.pth"), "there is no folder 'no'"),
        (("junk", "y.pth"), "holds no weights"),
        (("junk.onnx", "y.pth"), "junk.onnx is not an ONNX model"),
        (("x.npz", "y.pth", "--names", "keras"), "are not those of"),
        (("x.npz", "y.pth", "--model", "resnet51"), "no names but ours for 'resnet51'"),
        (("x.npz", "y.pth", "--dtype", "float31"), "'float31' is not a dtype"),
        (("x.npz", "y.pth", "--dtype", "float16"), "beyond the range of float16"),
        (("x.npz", "y.pth", "--entry", "model"), "no weights named 'model'"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(arguments, message, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    io.save_npz({"x": lz.tensor([1e6])}, "x.npz")
    (tmp_path / "junk").write_bytes(b"hello" * 20)
    (tmp_path / "junk.onnx").write_bytes(b"hello" * 20)
    code, out, err = call(*arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert not (tmp_path / "y.pth").exists()
