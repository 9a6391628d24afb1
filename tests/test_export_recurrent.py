"""Recurrent layers in ONNX files: operators that take sequences and batches of any size."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.export import ExportError, to_onnx
from lezero.hal.registry import get_backend, set_backend
from lezero.nn.recurrent import KINDS, run_layers

onnx = pytest.importorskip("onnx", reason="writing ONNX needs the onnx package")
runtime = pytest.importorskip("onnxruntime", reason="exports are compared with ONNX Runtime")

OPTIONS = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True, "dropout": 0.3},
    "no biases": {"bias": False, "bidirectional": True},
    "batch first": {"batch_first": True},
}
LAYERS = {
    **{f"{kind} {name}": (kind, o) for kind in ("LSTM", "GRU", "RNN") for name, o in OPTIONS.items()},
    "RNN relu": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
    "LSTM projected": ("LSTM", {"proj_size": 2}),
    "LSTM all": ("LSTM", {"proj_size": 2, "num_layers": 2, "bidirectional": True, "batch_first": True}),
}
SIZES = [(1, 1), (7, 3), (3, 5)]  # (length, batch); the example has (4, 2)


@pytest.fixture(autouse=True)
def nothing_compiled():
    before = get_backend()
    set_backend("numpy")
    yield
    set_backend(before)


class Layer(nn.Module):
    """A layer of three features and five of state, whose results are several tensors; first states come in a row."""

    def __init__(self, kind, **options):
        super().__init__()
        lz.manual_seed(0)
        self.layer = getattr(nn, kind)(3, 5, **options)

    def forward(self, x, *state):
        y, last = self.layer(x, None if not state else state if len(state) > 1 else state[0])
        return (y, *last) if isinstance(last, tuple) else (y, last)

    def example(self, length, batch, with_state):
        of = self.layer
        rng = np.random.default_rng(length)
        shapes = [(batch, length, 3) if of.batch_first else (length, batch, 3)]
        if with_state:
            shapes += [(of.num_layers * (1 + of.bidirectional), batch, width) for width in of._widths()]
        return [rng.normal(size=shape).astype("f4") for shape in shapes]


def agree(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_any_length_and_batch(name, with_state, tmp_path):
    kind, options = LAYERS[name]
    net, path = Layer(kind, **options).eval(), tmp_path / "m.onnx"
    example = net.example(4, 2, with_state)
    names = ["x", "h", "c"][: len(example)]
    axes = {0: "batch", 1: "length"} if options.get("batch_first") else {0: "length", 1: "batch"}
    dims = {"x": axes} | {n: {1: "batch"} for n in names[1:]}
    to_onnx(net, tuple(map(lz.tensor, example)), path, input_names=names, dynamic_shapes=dims)
    operators = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert operators.count(kind) == options.get("num_layers", 1) and "Sigmoid" not in operators
    session, again = runtime.InferenceSession(str(path)), lz.onnx.load(path).eval()
    for length, batch in SIZES:
        inputs = net.example(length, batch, with_state)
        want = net(*map(lz.tensor, inputs))
        agree(session.run(None, dict(zip(names, inputs))), want)
        agree([t.detach().numpy() for t in again(*map(lz.tensor, inputs))], want)


class Tagger(nn.Module):
    """One layer read twice, of which only h is used, and weights that are computed."""

    def __init__(self):
        super().__init__()
        self.words, self.shared = nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True)
        self.computed = nn.utils.parametrizations.weight_norm(nn.GRU(4, 3, batch_first=True), "weight_hh_l0")

    def forward(self, ids):
        x = self.words(ids)
        x = self.shared(self.shared(x)[0])[0]
        return self.computed(x)[0]


def test_a_layer_used_twice_and_weights_that_are_computed(tmp_path):
    net, path = Tagger().eval(), tmp_path / "m.onnx"
    to_onnx(net, lz.randint(0, 9, (2, 4)), path, dynamic_shapes={"ids": {0: "batch", 1: "length"}})
    again, ids = lz.onnx.load(path), lz.randint(0, 9, (3, 6))
    agree([again(ids).detach().numpy()], [net(ids)])
    names = [name for name, _ in again.named_parameters()]
    assert names.count("shared.weight_ih_l0.LSTM") == 1 and "shared.weight_ih_l0.LSTM_1" not in names
    again(ids).sum().backward()
    assert float(dict(again.named_parameters())["shared.weight_ih_l0.LSTM"].grad.abs().sum()) > 0


def test_weights_as_arguments(tmp_path):
    def call(x, h, w_ih, w_hh):
        return run_layers([[KINDS["GRU"](w_ih, w_hh, None, None)]], x, (h,), [2] * int(x.shape[0]), False, 0.0)[0]

    def drawn(length):
        return tuple(lz.randn(*shape) for shape in ((length, 2, 3), (1, 2, 4), (12, 3), (12, 4)))

    path = tmp_path / "m.onnx"
    to_onnx(call, drawn(4), path, dynamic_shapes={"x": {0: "length"}})
    inputs = drawn(6)
    names = ["x", "h", "w_ih", "w_hh"]
    got = runtime.InferenceSession(str(path)).run(None, {n: t.numpy() for n, t in zip(names, inputs)})
    agree(got, [call(*inputs)])


def test_what_the_runtime_does_not_compute(tmp_path):
    path, x = tmp_path / "m.onnx", lz.randn(4, 2, 3, dtype=lz.float64)
    for kind in ("LSTM", "GRU", "RNN"):
        net = Layer(kind).double()
        to_onnx(net, x, path)  # step by step
        assert kind not in [node.op_type for node in onnx.load(str(path)).graph.node]
        with pytest.raises(ExportError, match=r"ONNX Runtime cannot run.*verify=False"):
            to_onnx(net, x, path, dynamic_shapes={"x": {0: "length"}})
        to_onnx(net, x, path, dynamic_shapes={"x": {0: "length"}}, verify=False)
        inputs = lz.randn(6, 2, 3, dtype=lz.float64)
        agree([t.detach().numpy() for t in lz.onnx.load(path)(inputs)], net(inputs))


def test_half_precision(tmp_path):
    net, path = Layer("GRU", bidirectional=True).half(), tmp_path / "m.onnx"
    to_onnx(net, lz.randn(4, 2, 3).half(), path, dynamic_shapes={"x": {0: "length", 1: "batch"}})
    assert "GRU" in [node.op_type for node in onnx.load(str(path)).graph.node]


def test_dropout_in_training_and_packed_sequences_are_named(tmp_path):
    net = nn.LSTM(3, 5, 2, dropout=0.5).train()
    with pytest.raises(ExportError, match=r"eval\(\)"):
        to_onnx(net, lz.randn(4, 2, 3), tmp_path / "m.onnx", dynamic_shapes={"input": {0: "length"}})

    def packed(x, lengths):
        return net(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data

    net.eval()
    with pytest.raises(ExportError, match="a value is read"):
        to_onnx(packed, (lz.randn(4, 2, 3), lz.tensor([4, 2])), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    to_onnx(lambda x: packed(x, [4, 2]), lz.randn(4, 2, 3), tmp_path / "m.onnx")  # lengths of the program are its own
