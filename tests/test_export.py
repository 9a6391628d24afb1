"""Models written as ONNX files: every model of the package, named extents, and what is refused."""

from __future__ import annotations

import inspect
import json
import threading

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from export_layers import LAYERS, image
from lezero import models, nn
from lezero.export import Dim, ExportError, VerificationError, to_onnx
from lezero.export.trace import _tensors
from lezero.models.resnet import BasicBlock, Bottleneck

onnx = pytest.importorskip("onnx", reason="writing ONNX needs the onnx package")
runtime = pytest.importorskip("onnxruntime", reason="exports are compared with ONNX Runtime")


def note(path):
    model = onnx.load(str(path), load_external_data=False)
    return {e.key: e.value for e in model.metadata_props}


WORDS = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}


def bert(make, *options):
    return make(models.BertConfig(**WORDS), *options)


def gpt2(make):
    return make(models.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=40))


def resnet(block, *layers):
    return models.ResNet(block, list(layers), num_classes=7)


def vgg(**options):
    return models.VGG(((4, 1), (6, 2)), num_classes=7, hidden_features=16, **options)


def vit():
    return models.VisionTransformer(16, 8, 2, 2, 16, 32, num_classes=7)


def ids():
    return lz.randint(0, 50, (2, 9))


IMAGES = image(2, 3, 32, 32)
SMALL = {
    "resnet18": (lambda: resnet(BasicBlock, 1, 2, 1, 1), image(2, 3, 33, 24)),
    "resnet34": (lambda: resnet(BasicBlock, 3, 1, 1, 1), image(2, 3, 16, 16)),
    "resnet50": (lambda: resnet(Bottleneck, 1, 2, 1, 1), image(2, 3, 16, 16)),
    "resnet101": (lambda: resnet(Bottleneck, 1, 1, 3, 1), image(2, 3, 16, 16)),
    "mobilenet_v2": (lambda: models.mobilenet_v2(num_classes=7, width_mult=0.25), IMAGES),
    "vgg16": (vgg, IMAGES),
    "vgg16_bn": (lambda: vgg(batch_norm=True), IMAGES),
    "unet": (lambda: models.unet(width=4), IMAGES),
    "vit_b_16": (vit, image(2, 3, 16, 16)),
    "lenet5": (models.lenet5, image(2, 1, 28, 28)),
    "BertModel": (lambda: bert(models.BertModel), ids),
    "bert_base_for_masked_lm": (lambda: bert(models.BertForMaskedLM), ids),
    "bert_base_for_sequence_classification": (lambda: bert(models.BertForSequenceClassification, 3), ids),
    "GPT2Model": (lambda: gpt2(models.GPT2Model), ids),
    "gpt2": (lambda: gpt2(models.GPT2LMHeadModel), ids),
}


def test_every_model_is_here():
    classes = {type(make()).__name__ for make, _ in SMALL.values()}
    same = {"bert_base": "BertModel"}
    missing = {
        n for n in models.__all__ if same.get(n, n) not in SMALL and n not in classes and not n.endswith("Config")
    }
    assert not missing


def numbers(result):
    return [t.numpy() for t in (result if isinstance(result, tuple) else tuple(_tensors(result)))]


@pytest.mark.parametrize("name", SMALL)
def test_models_go_out_and_come_back(name, tmp_path, nothing_compiled):
    lz.manual_seed(0)
    make, example = SMALL[name]
    net, x, path = make().eval(), example(), tmp_path / "model.onnx"
    dims = {0: "batch", 1: Dim("words", max=40)} if x.ndim == 2 else {0: "batch"}
    to_onnx(net, x, path, input_names=["x"], dynamic_shapes={"x": dims})
    again = lz.onnx.load(path).eval()
    cases = json.loads(again.metadata["lezero.verified"])["cases"]
    assert {c["sizes"]["batch"] for c in cases} == {2, 3, 1, 5}
    used = [
        p for name, p in net.named_parameters() if not name.startswith("pooler.")
    ]  # BertModel gives all words' states
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in used)
    for n in (4, 1):
        x = lz.cat([example()] * 2)[:n]
        x = x[:, : 5 + n] if x.ndim == 2 else x
        with lz.no_grad():
            for got, want in zip(numbers(again(x)), numbers(net(x)), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_network_of_words_with_two_free_extents(tmp_path):
    lz.manual_seed(0)
    net = bert(models.BertForMaskedLM).eval()
    ids = lz.randint(0, 50, (2, 9))
    path = tmp_path / "bert.onnx"
    dims = {"input_ids": {0: Dim("batch", max=16), 1: Dim("words", min=2, max=40)}}
    to_onnx(net, ids, path, dynamic_shapes=dims, opset=20)
    cases = json.loads(note(path)["lezero.verified"])["cases"]
    assert {c["sizes"]["words"] for c in cases} > {9} and all(2 <= c["sizes"]["words"] <= 40 for c in cases)
    assert note(path)["lezero.dim.words"] == "2..40"
    session = runtime.InferenceSession(str(path))
    assert session.get_inputs()[0].shape == ["batch", "words"]
    again = lz.onnx.load(path)
    ids = lz.randint(0, 50, (3, 17))
    with lz.no_grad():
        want = net(ids)
        want = want if isinstance(want, lz.Tensor) else want.logits
        np.testing.assert_allclose(again(ids).numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_functions_several_outputs_and_names(tmp_path):
    def f(a, b):
        y = F.softmax(a @ b.transpose(0, 1), -1)
        return y.sum(0), (y > 0.1).any(1), lz.cat([a, b[:1].expand(a.shape[0], b.shape[1])], 1).flip(0)

    path = tmp_path / "f.onnx"
    to_onnx(f, (lz.randn(3, 4), lz.randn(5, 4)), path, input_names=["left", "right"], output_names=["s", "t", "u"],
            dynamic_shapes={"left": {0: "n"}, "right": {0: "m"}}, opset=17)  # fmt: skip
    session = runtime.InferenceSession(str(path))
    assert [o.name for o in session.get_outputs()] == ["s", "t", "u"]
    a, b = np.random.default_rng(0).normal(size=(2, 7, 4)).astype("f4")
    for got, want in zip(
        session.run(None, {"left": a, "right": b[:6]}), f(lz.tensor(a), lz.tensor(b[:6])), strict=True
    ):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)


def test_extents_that_are_computed(tmp_path):
    def f(x):
        n, c, h, w = x.shape
        pooled = x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))
        return pooled.reshape(n, -1) * (h * w + n), lz.arange(h).float() + x.sum()

    path = tmp_path / "f.onnx"
    shapes = {"x": {0: "n", 2: Dim("h", min=2, max=2), 3: "w"}}
    with pytest.raises((ExportError, VerificationError, ValueError)):
        to_onnx(f, lz.randn(2, 3, 4, 6), path, dynamic_shapes=shapes)  # odd widths do not divide
    assert not path.exists() and not list(tmp_path.iterdir())
    to_onnx(f, lz.randn(2, 3, 4, 6), path, dynamic_shapes={"x": {0: "n"}})
    assert path.exists()


def test_data_in_a_file_of_its_own(tmp_path):
    net = nn.Linear(30, 40)
    path = tmp_path / "sub" / "m.onnx"
    with pytest.raises(FileNotFoundError, match="no folder"):
        to_onnx(net, lz.randn(2, 30), path)
    path.parent.mkdir()
    to_onnx(net, lz.randn(2, 30), path, external_data=True)
    assert (tmp_path / "sub" / "m.onnx.data").stat().st_size >= 4 * 30 * 40
    assert sorted(p.name for p in path.parent.iterdir()) == ["m.onnx", "m.onnx.data"]
    x = lz.randn(2, 30)
    np.testing.assert_allclose(lz.onnx.load(path)(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-5)


def test_what_cannot_be_exported_is_named_with_the_user_s_line(tmp_path):
    def f(x):
        return lz.cummax(x, 0)[0]

    with pytest.raises(ExportError, match=r"cummax.*test_export\.py"):
        to_onnx(f, lz.randn(3, 2), tmp_path / "f.onnx")
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).train()
    with pytest.raises(ExportError, match=r"eval\(\)"):
        to_onnx(net, lz.randn(3, 3), tmp_path / "f.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_there_stays_when_an_export_fails(tmp_path):
    path = tmp_path / "m.onnx"
    to_onnx(nn.Linear(3, 2), lz.randn(2, 3), path)
    before = path.read_bytes()
    with pytest.raises(ExportError):
        to_onnx(lambda x: lz.cummax(x, 0)[0], lz.randn(3, 2), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("options, message", [
    ({"dynamic_shapes": {"y": {0: "n"}}}, "no input 'y'"),
    ({"dynamic_shapes": {"input": {5: "n"}}}, "none of number 5"),
    ({"opset": 9}, "opset is 13"),
    ({"opset": "18"}, "whole number"),
    ({"opset": 99}, "opset is 13"),
    ({"opset": True}, "whole number"),
    ({"input_names": "x"}, "a list of names"),
    ({"input_names": [""]}, "not empty"),
    ({"output_names": [""]}, "not empty"),
    ({"output_names": "y"}, "a list of names"),
    ({"dynamic_shapes": ["n"]}, "by input"),
    ({"dynamic_shapes": {"input": ["n"]}}, "by input"),
    ({"dynamic_shapes": {"input": {0: 5}}}, "a name or a Dim, got 5 .* leave out"),
    ({"dynamic_shapes": {"input": {"0": "n"}}}, "an axis is a whole number, got '0'"),
    ({"dynamic_shapes": {"input": {0: Dim("n", min=3)}}}, "is 2 in the example"),
    ({"dynamic_shapes": {"input": {1: "n"}}}, "the model refuses"),
    ({"input_names": ["a", "b"]}, "as many different names"),
    ({"output_names": ["input"]}, "as many different names"),
])  # fmt: skip
def test_arguments_that_make_no_sense(options, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        to_onnx(nn.Sequential(nn.Linear(3, 2)), lz.randn(2, 3), tmp_path / "m.onnx", **options)
    with pytest.raises(ValueError, match="no extent"):
        Dim("n", min=4, max=2)


def test_another_result_is_found(tmp_path, monkeypatch):
    from lezero.export import operators

    monkeypatch.setitem(operators.EMITTERS, "relu", lambda w, node, names: w.add("Abs", names))
    with pytest.raises(VerificationError, match="differs"):
        to_onnx(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), lz.randn(4, 3), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


# -- layers -----------------------------------------------------------------------------------------------------------


def _exported(name, path, **options):
    lz.manual_seed(0)
    make, example = LAYERS[name]
    net, x = make().eval(), example()
    first = next(iter(inspect.signature(net.forward).parameters))
    to_onnx(net, x, path, dynamic_shapes={first: {0: "n"}}, **options)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_written_with_any_batch(name, tmp_path, nothing_compiled):
    _exported(name, tmp_path / "m.onnx")
    cases = json.loads(note(tmp_path / "m.onnx")["lezero.verified"])["cases"]
    assert len({c["sizes"]["n"] for c in cases}) == 4


VERSIONS = range(13, onnx.defs.onnx_opset_version() + 1)


@pytest.mark.parametrize("opset", VERSIONS)
def test_every_version_of_the_operators(opset, tmp_path, nothing_compiled):
    for name in (
        "Conv2d",
        "LSTM",
        "TransformerEncoder",
        "AdaptiveMaxPool2d",
        "grid_sample",
        "Fold",
        "GELU",
        "ReflectionPad2d",
    ):
        _exported(name, tmp_path / "m.onnx", opset=opset)
        assert onnx.load(str(tmp_path / "m.onnx")).opset_import[0].version == opset


def test_one_name_has_one_range(tmp_path):
    x = lz.ones(2, 3)
    dims = {"a": {0: Dim("n", max=4)}, "b": {0: Dim("n", max=8)}}
    with pytest.raises(ExportError, match="two ranges"):
        to_onnx(lambda a, b: a + b, (x, x), tmp_path / "m.onnx", dynamic_shapes=dims)


@pytest.mark.parametrize("read", [
    lambda a: a * 2 if a.sum() > 0 else a, lambda a: a * float(a.sum()), lambda a: lz.linalg.inv(a @ a.mT),
    lambda a: a * a.tolist()[0][0], lambda a: a * float(a.numpy().sum()),
])  # fmt: skip
def test_values_that_decide_are_refused(read, tmp_path):
    with pytest.raises(ExportError, match="one way to go"):
        to_onnx(read, lz.ones(2, 3), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def looped(a):
    for _ in range(a.shape[1]):
        a = a + 1
    return a


def branched(a):
    return a * 2 if a.shape[1] > 300 else a


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, a):
        state = None
        for t in range(a.shape[1]):
            state = self.cell(a[:, t], state)
        return state[0]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("program, operation", [
    (looped, r"add\(\)"), (branched, r"mul\(\)"), (Steps(), r"slice\(starts=\(0, 4"),
    (lambda a: a.reshape(a.shape[0], int(a.shape[1]) * 3), r"reshape\(shape=\(2, 12\)"),
    (lambda a: a / int(a.shape[1]), r"div\(\)"),
    (lambda a: a + lz.tensor(np.ones((a.shape[1], 1), "f4")), r"add\(\)"),
])  # fmt: skip
def test_a_program_that_changes_with_an_extent_is_refused(program, operation, verify, tmp_path, nothing_compiled):
    x, dims = lz.ones(2, 4, 3), {"a": {0: "batch", 1: "length"}}
    with pytest.raises(
        ExportError, match=rf"(?s)'length' is not free.*{operation}.*test_export.py, line \d+.*dynamic_shapes"
    ):
        to_onnx(program, x, tmp_path / "m.onnx", dynamic_shapes=dims, verify=verify)
    assert not list(tmp_path.iterdir())
    to_onnx(program, x, tmp_path / "m.onnx", dynamic_shapes={"a": {0: "batch"}}, verify=True)


def test_the_line_of_a_comparison_is_named_and_its_range_may_settle_it(tmp_path, nothing_compiled):
    line = branched.__code__.co_firstlineno + 1
    with pytest.raises(ExportError, match=f"it is 301.*line {line}"):
        to_onnx(branched, lz.ones(2, 4), tmp_path / "m.onnx", dynamic_shapes={"a": {1: "n"}}, verify=False)
    to_onnx(branched, lz.ones(2, 4), tmp_path / "m.onnx", dynamic_shapes={"a": {1: Dim("n", max=300)}})


@pytest.mark.parametrize("program, axis", [
    (lambda a: F.scaled_dot_product_attention(a, a, a), 3), (lambda a: F.adaptive_avg_pool2d(a, (2, 3)), 2),
])  # fmt: skip
@pytest.mark.parametrize("extent", [5, 6])
def test_what_an_operation_makes_of_an_extent_follows_it(program, axis, extent, tmp_path, nothing_compiled):
    path, shape = tmp_path / "m.onnx", [2, 2, 4, 4]
    shape[axis] = extent
    to_onnx(program, lz.randn(*shape), path, dynamic_shapes={"a": {axis: "n"}}, verify=False)
    session = runtime.InferenceSession(str(path))
    for n in (3, 8, 9):
        shape[axis] = n
        x = lz.randn(*shape)
        np.testing.assert_allclose(session.run(None, {"a": x.numpy()})[0], program(x).numpy(), rtol=1e-4, atol=1e-5)


def test_an_operation_written_with_a_number_for_an_extent_is_refused(tmp_path, monkeypatch, nothing_compiled):
    from lezero.export import operators

    for made, message in (
        (lambda w, node, names: w.add("Mul", [*names, w.constant(int(node.shape[0]), "f4")]), "Mul is written with"),
        (lambda w, node, names: w.add("LeakyRelu", names, alpha=float(node.shape[0])), "written otherwise"),
    ):
        monkeypatch.setitem(operators.EMITTERS, "relu", made)
        with pytest.raises(ExportError, match=f"'n' is not free: .*{message}"):
            to_onnx(nn.ReLU(), lz.ones(2, 3), tmp_path / "m.onnx", dynamic_shapes={"input": {0: "n"}}, verify=False)


def test_an_extent_that_the_program_refuses_is_named(tmp_path, nothing_compiled):
    def f(a):
        assert int(a.shape[0]) == 2, "two rows"
        return a + 1

    with pytest.raises(ExportError, match="'n' is not free: at 3: AssertionError: two rows"):
        to_onnx(f, lz.ones(2, 4), tmp_path / "m.onnx", dynamic_shapes={"a": {0: "n"}}, verify=False)


@pytest.mark.parametrize("program", [
    lambda a: a[:, :3] / a.shape[1], lambda a: a + lz.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4),
    lambda a: lz.zeros_like(a[:, :1, 0] + lz.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])) + a[:, 0, :1],
])  # fmt: skip
@pytest.mark.parametrize("length", [4, 7])
def test_extents_that_constants_have_too_stay_free(program, length, tmp_path, nothing_compiled):
    to_onnx(
        program,
        lz.randn(2, length, 4),
        tmp_path / "m.onnx",
        dynamic_shapes={"a": {0: "batch", 1: "length"}},
    )


def test_an_interrupted_export_leaves_the_file_that_was_there(tmp_path, monkeypatch, nothing_compiled):
    path = tmp_path / "m.onnx"
    to_onnx(nn.Linear(3, 2), lz.ones(2, 3), path)
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lezero.export.verify.compare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        to_onnx(nn.Linear(3, 2), lz.ones(2, 3), path, external_data=True)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.calls, self.seen = nn.BatchNorm1d(3), 0, []
        self.last = lz.zeros(3)

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        self.last.add_(1)
        self.extra = x
        return self.norm(x) * self.calls + self.last


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_is_as_before(verify, wrapped, tmp_path, nothing_compiled):
    net = Counting()
    before, own = {k: v.numpy().copy() for k, v in net.state_dict().items()}, dict(vars(net))
    x = lz.randn(4, 3)
    to_onnx((lambda a: net(a) + 0) if wrapped else net, x, tmp_path / "m.onnx", verify=verify)
    assert vars(net) == own and net.calls == 0 and net.seen == [] and net.training
    np.testing.assert_array_equal(net.last.numpy(), 0)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(got, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert net.calls == 1


def test_what_an_export_leaves_as_it_is_it_does_not_touch(nothing_compiled):
    from lezero.export.state import unchanged

    class Watched(list):
        def clear(self):
            raise AssertionError("another thread would find it empty")

    net = nn.Linear(3, 2)
    net.log = Watched([1])
    with unchanged(net):
        net(lz.ones(2, 3))
    with pytest.raises(AssertionError, match="empty"), unchanged(net):
        net.log.append(2)


def test_a_model_that_fails_while_it_is_exported_is_as_before(tmp_path, nothing_compiled):
    class Failing(Counting):
        def forward(self, x):
            return lz.cummax(super().forward(x), 0)[0]

    net = Failing()
    with pytest.raises(ExportError, match="cummax"):
        to_onnx(net, lz.randn(4, 3), tmp_path / "m.onnx")
    assert net.calls == 0 and net.seen == [] and int(net.norm.num_batches_tracked) == 0


@pytest.mark.parametrize("args, message", [
    ({"x": 1}, "number 0 is a dict"), (None, "number 0 is None"), ((lz.ones(2), None), "number 1 is None"),
])  # fmt: skip
def test_inputs_that_are_no_tensors(args, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        to_onnx(lambda a: a, args, tmp_path / "m.onnx")


@pytest.mark.parametrize("name, advice", [
    ("opset_version", "opset=18"), ("dynamic_axes", "dynamic_shapes="), ("verbose", "lz.explain"), ("opsett", "'opset'"),
    ("nothing", "it takes model, args, path"),
])  # fmt: skip
def test_arguments_of_another_spelling(name, advice, tmp_path):
    with pytest.raises(TypeError, match=f"no argument '{name}': .*{advice}"):
        to_onnx(nn.Linear(3, 2), lz.ones(2, 3), tmp_path / "m.onnx", **{name: 1})
    with pytest.raises(AttributeError, match=r"lz\.export\.to_onnx"):
        _ = lz.export.export


def test_operations_of_booleans(tmp_path, nothing_compiled):
    def f(a, b):
        return a + b, a * b, lz.maximum(a, b), lz.minimum(a, b), a.cumsum(0), a.sum(1)

    a = lz.tensor([[True, True, False, False]] * 2)
    to_onnx(f, (a, lz.tensor([True, False, True, False])), tmp_path / "m.onnx", dynamic_shapes={"a": {0: "n"}})


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("f", [lambda a: a + a, lambda a: a.reshape(-1), lambda a: a @ a, lambda a: a.abs()])
def test_complex_numbers_are_refused(f, verify, tmp_path, nothing_compiled):
    with pytest.raises(ExportError, match=r"complex64\[2, 2\].*test_export.py.*no complex numbers"):
        to_onnx(f, lz.complex(lz.ones(2, 2), lz.ones(2, 2)), tmp_path / "m.onnx", verify=verify)


def test_what_a_runtime_or_a_version_lacks(tmp_path, nothing_compiled):
    double, path = lambda a: a + a, tmp_path / "m.onnx"
    with pytest.raises(ExportError, match=r"ONNX Runtime cannot run.*verify=False"):
        to_onnx(double, lz.ones(2).bfloat16(), path)
    to_onnx(double, lz.ones(2).bfloat16(), path, verify=False)
    onnx.checker.check_model(str(path), full_check=True)
    with pytest.raises(ExportError, match=r"add of int8\[2\].*no counterpart"):
        to_onnx(double, lz.ones(2).to(lz.int8), path, opset=13)
    to_onnx(double, lz.ones(2).to(lz.int8), path, opset=14)
    with pytest.raises(ExportError, match="the standard does not allow"):
        to_onnx(nn.Conv2d(3, 2, 1).bfloat16(), lz.ones(1, 3, 2, 2).bfloat16(), path)


def test_a_loaded_model_keeps_its_names(tmp_path, nothing_compiled):
    path, dims = tmp_path / "m.onnx", {"l": {0: "n"}, "r": {0: "n"}}
    x = lz.ones(2), lz.ones(2)
    to_onnx(
        lambda a, b: (a + b, a - b), x, path, input_names=["l", "r"], output_names=["sum", "rest"], dynamic_shapes=dims
    )
    to_onnx(lz.onnx.load(path), x, path, dynamic_shapes=dims)
    again = lz.onnx.load(path)
    assert (again.input_names, again.output_names) == (["l", "r"], ["sum", "rest"])
    assert json.loads(again.metadata["lezero.verified"])["cases"][0]["sizes"] == {"n": 2}


def test_exports_to_one_path_at_the_same_time_and_long_names(tmp_path, nothing_compiled):
    path = tmp_path / ("m" * 245 + ".onnx")
    net, failures = nn.Linear(3, 2), []

    def export():
        try:
            to_onnx(net, lz.ones(2, 3), path, dynamic_shapes={"input": {0: "n"}})
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=export) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and [p.name for p in tmp_path.iterdir()] == [path.name]
    lz.onnx.load(path)
