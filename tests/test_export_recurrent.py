"""Recurrent layers in ONNX files: operators that take sequences and batches of any size."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.export import Dim, ExportError, to_onnx
from lezero.nn.recurrent import KINDS, run_layers
from lezero.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

onnx = pytest.importorskip("onnx", reason="writing ONNX needs the onnx package")
runtime = pytest.importorskip("onnxruntime", reason="exports are compared with ONNX Runtime")

pytestmark = pytest.mark.usefixtures("nothing_compiled")

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


def test_dropout_in_training_is_named(tmp_path):
    net = nn.LSTM(3, 5, 2, dropout=0.5).train()
    with pytest.raises(ExportError, match=r"eval\(\)"):
        to_onnx(net, lz.randn(4, 2, 3), tmp_path / "m.onnx", dynamic_shapes={"input": {0: "length"}})


# -- packed sequences -------------------------------------------------------------------------------------------------


class Packed(Layer):
    def __init__(self, kind, total=True, **options):
        super().__init__(kind, batch_first=True, **options)
        self.total = total

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, last = self.layer(packed)
        y, counts = pad_packed_sequence(y, True, 0.5, x.shape[1] if self.total else None)
        return (y, counts, *(last if isinstance(last, tuple) else (last,)))


@pytest.mark.parametrize("kind, options", [
    ("LSTM", {"num_layers": 2, "bidirectional": True}), ("LSTM", {"proj_size": 2, "bidirectional": True}), ("GRU", {}),
    ("RNN", {"bidirectional": True, "bias": False}),
])  # fmt: skip
def test_lengths_that_are_an_argument(kind, options, tmp_path):
    net, path = Packed(kind, **options).eval(), tmp_path / "m.onnx"
    dims = {"x": {0: "batch", 1: Dim("length", min=4)}, "lengths": {0: "batch"}}
    to_onnx(net, (lz.randn(3, 4, 3), lz.tensor([2, 4, 1])), path, dynamic_shapes=dims)
    session, again = runtime.InferenceSession(str(path)), lz.onnx.load(path).eval()
    for counts in ([7, 1, 3, 5], [4, 6]):
        x, lengths = lz.randn(len(counts), max(counts) + 1, 3), lz.tensor(counts)
        want = net(x, lengths)
        agree(session.run(None, {"x": x.numpy(), "lengths": lengths.numpy()}), want)
        agree([t.detach().numpy() for t in again(x, lengths)], want)


def test_what_is_not_known_of_packed_sequences_is_named(tmp_path):
    x, lengths, path = lz.randn(3, 4, 3), lz.tensor([2, 4, 1]), tmp_path / "m.onnx"
    with pytest.raises(ValueError, match=r"total_length= says .* 4, got None"):
        to_onnx(Packed("LSTM", total=False), (x, lengths), path)
    with pytest.raises(ValueError, match=r"float32 and float16 only.*got float64"):
        to_onnx(Packed("GRU").double(), (x.double(), lengths), path)
    with pytest.raises(ValueError, match=r"PackedSequence\.data: .*stay padded"):
        to_onnx(lambda a, n: pack_padded_sequence(a, n, enforce_sorted=False).data, (x, lz.tensor([2, 3, 1, 1])), path)
    net = nn.LSTM(3, 4, proj_size=2, bidirectional=True)

    def given(x, lengths, h, c):
        return net(pack_padded_sequence(x, lengths, True, False), (h, c))[1]

    with pytest.raises(ExportError, match="first state"):
        to_onnx(given, (x, lengths, lz.ones(2, 3, 2), lz.ones(2, 3, 4)), path)
    assert not list(tmp_path.iterdir())
    # Lengths of the program are its own.
    to_onnx(lambda a: net(pack_padded_sequence(a, [4, 2, 1], True))[0].data, x, path)
