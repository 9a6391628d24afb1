"""Recurrent layers, their cells and packed sequences against PyTorch's: same weights, outputs and all gradients."""

import pickle

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn.utils import rnn
from lezero.runtime.jit import CaptureError
from test_nn_layers import close, normal, same, twin

torch = pytest.importorskip("torch")
theirs_rnn = torch.nn.utils.rnn


def leaves(value):
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]


def in_a_row(layers, call=lambda layer, *inputs: layer(*inputs)):
    """Both layers giving all they give in one vector."""

    class Ours(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layers[0]

        def forward(self, *inputs):
            return lz.cat([t.reshape(-1) for t in leaves(call(self.layer, *inputs))])

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layers[1]

        def forward(self, *inputs):
            return torch.cat([t.reshape(-1) for t in leaves(call(self.layer, *inputs))])

    return Ours(), Theirs()


LAYERS = [
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu", "bias": False, "bidirectional": True}),
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"num_layers": 2, "proj_size": 2, "bidirectional": True}),
    ("LSTM", {"proj_size": 2, "bias": False}),
    ("GRU", {}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {"bias": False}),
]


def states(name, layers, batch, hidden=4, proj_size=0):
    h = normal(layers, *batch, proj_size or hidden)
    return (h, normal(layers, *batch, hidden)) if name == "LSTM" else (h,)


def with_states(layer, x, *state):
    return layer(x, state if len(state) > 1 else state[0])


@pytest.mark.parametrize(("name", "options"), LAYERS)
def test_layers(name, options):
    layers = in_a_row(twin(name, 3, 4, **options))
    same(*layers, normal(5, 2, 3))
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    for shape in ((5, 2, 3), (6, 3)):  # a batch, and a sequence alone
        start = states(name, count, shape[1:-1], proj_size=options.get("proj_size", 0))
        same(*in_a_row((layers[0].layer, layers[1].layer), with_states), normal(*shape), *start)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_batch_first(name):
    layers = twin(name, 3, 4, batch_first=True, bidirectional=True)
    for shape in ((2, 5, 3), (1, 1, 3), (0, 5, 3), (5, 3)):
        same(*in_a_row(layers), normal(*shape))


@pytest.mark.parametrize(("name", "options"), LAYERS)
@pytest.mark.parametrize("lengths", [(5, 3, 3, 1), (2, 4, 1)])
def test_packed(name, options, lengths):
    in_order = list(lengths) == sorted(lengths, reverse=True)

    def call(layer, x, *state):
        of = rnn if isinstance(layer, nn.Module) else theirs_rnn
        packed = of.pack_padded_sequence(x, list(lengths), enforce_sorted=in_order)
        y, last = with_states(layer, packed, *state) if state else layer(packed)
        padded, counts = of.pad_packed_sequence(y, padding_value=0.5)
        assert counts.tolist() == list(lengths)
        return padded, y.data, last

    layers = twin(name, 3, 4, **options)
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    same(*in_a_row(layers, call), normal(max(lengths), len(lengths), 3))
    start = states(name, count, (len(lengths),), proj_size=options.get("proj_size", 0))
    same(*in_a_row(layers, call), normal(max(lengths), len(lengths), 3), *start)


@pytest.mark.parametrize(
    ("name", "options"),
    [("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu", "bias": False}), ("LSTMCell", {}), ("GRUCell", {})],
)
def test_cells(name, options):
    layers = twin(name, 3, 4, **options)
    for lead in ((5,), ()):
        same(*in_a_row(layers), normal(*lead, 3))
        start = [normal(*lead, 4) for _ in range(2 if name == "LSTMCell" else 1)]
        same(*in_a_row(layers, with_states), normal(*lead, 3), *start)


def test_weights_may_be_computed():
    layers = twin("LSTM", 3, 4, 2, proj_size=2)
    for layer, of in zip(layers, (lz, torch)):
        of.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l1")
        with of.no_grad():
            layer.parametrizations.weight_hh_l1.original0.mul_(2)
    same(*in_a_row(layers), normal(5, 2, 3))


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_settings_and_names_are_pytorchs(name):
    ours, theirs = (getattr(of.nn, name)(3, 4, 2, bidirectional=True) for of in (lz, torch))
    assert repr(ours) == repr(theirs)
    mine, other = ([[tuple(w.shape) for w in ws] for ws in m.all_weights] for m in (ours, theirs))
    assert mine == other
    bound = 4**-0.5
    for p in ours.parameters():
        assert abs(p.numpy()).max() <= bound
    assert max(abs(p.numpy()).max() for p in ours.parameters()) > 0.9 * bound
    assert ours.flatten_parameters() is None


def test_dropout_is_between_layers_in_training():
    with pytest.warns(UserWarning, match="between layers"):
        nn.LSTM(3, 4, dropout=0.5)
    layer, x = nn.GRU(3, 4, 2, dropout=0.5), lz.tensor(normal(6, 2, 3)).float()
    assert not np.array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())
    first = layer(x)[1][0].numpy()
    layer.eval()
    np.testing.assert_array_equal(layer(x)[1][0].numpy(), first)  # the first layer drops nothing
    np.testing.assert_array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())
    dropped = nn.GRU(3, 4, 2, dropout=1.0)
    y, _ = dropped(x)
    np.testing.assert_array_equal(y.numpy()[:, 0], y.numpy()[:, 1])  # nothing of the input gets through


def test_a_captured_step_trains_as_a_plain_one():
    x, target = lz.tensor(normal(4, 3, 5)).float(), lz.tensor(normal(4, 3, 6)).float()

    def losses(captured):
        lz.manual_seed(0)
        layer = nn.LSTM(5, 6)
        optimizer = lz.optim.SGD(layer.parameters(), lr=0.5)

        def step(x, target):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(layer(x)[0], target)
            loss.backward()
            optimizer.step()
            return loss

        step = lz.jit(step) if captured else step
        return [step(x, target).item() for _ in range(5)]

    plain = losses(captured=False)
    np.testing.assert_allclose(losses(captured=True), plain, rtol=1e-6)
    assert plain[-1] < plain[0]


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_a_captured_step_takes_packed_sequences_of_any_lengths(name):
    """Outputs, states and parameters after each step are PyTorch's: lengths seen before, new ones, other batches and orders."""
    mine, other = twin(name, 3, 4, bidirectional=True)
    optimizers = [lz.optim.SGD(mine.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)]

    def step(layer, of, optimizer, x, lengths):
        optimizer.zero_grad()
        y, last = layer(of.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        padded, _ = of.pad_packed_sequence(y, batch_first=True)
        state = last[0] if isinstance(last, tuple) else last
        ((padded**2).mean() + (state**2).mean()).backward()
        optimizer.step()
        return padded, state

    captured = lz.jit(lambda x, lengths: step(mine, rnn, optimizers[0], x, lengths))
    for lengths in ((5, 3), (5, 3), (5, 3), (2, 5), (4, 4), (5, 3), (6, 1, 2), (1,), (2, 5)):
        x = normal(len(lengths), max(lengths), 3)
        got = captured(lz.tensor(x), lengths)
        want = step(other, theirs_rnn, optimizers[1], torch.tensor(x), list(lengths))
        for a, b in zip(got, want):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-12)
    for a, b in zip(mine.parameters(), other.parameters()):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_a_packed_sequence_from_outside_is_not_held_to_the_lengths_of_a_capture():
    """(5, 3, 1) and (5, 2, 2) have data and batch sizes of the same shapes."""
    packed = [rnn.pack_padded_sequence(lz.tensor(normal(5, 3, 3)), n) for n in ((5, 3, 1), (5, 2, 2))]
    captured = lz.jit(lambda packed: rnn.pad_packed_sequence(packed)[0])
    with pytest.raises(CaptureError, match="a value is read"):
        captured(packed[0])
    made = lz.jit(lambda x: rnn.pack_padded_sequence(x, [5, 3, 1]))
    for _ in range(3):
        again = pickle.loads(pickle.dumps(made(lz.tensor(normal(5, 3, 3)))))
        assert again.batch_sizes.tolist() == [3, 2, 2, 1, 1] == again.sizes()


def test_bad_inputs_are_named():
    lstm, cell = nn.LSTM(3, 4), nn.LSTMCell(3, 4)
    for call, says in [
        (lambda: lstm(lz.zeros(5, 2, 4)), "LSTM: an input of 3 features"),
        (lambda: lstm(lz.zeros(0, 2, 3)), "one step or more"),
        (lambda: lstm(lz.zeros(5, 2, 3), (lz.zeros(1, 2, 4), lz.zeros(1, 3, 4))), r"\(1, 2, 4\) and \(1, 2, 4\) are needed"),
        (lambda: lstm(lz.zeros(5, 2, 3), lz.zeros(1, 2, 4)), r"are needed, got \(1, 2, 4\)\n"),
        (lambda: cell(lz.zeros(2, 4)), r"LSTMCell: an input \(batch, 3\)"),
        (lambda: cell(lz.zeros(2, 3), (lz.zeros(1, 4), lz.zeros(2, 4))), r"a state of shape \(2, 4\)"),
        (lambda: nn.GRU(3, 0), "hidden_size and num_layers"),
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), "'tanh' or 'relu'"),
        (lambda: nn.LSTM(3, 4, proj_size=4), "proj_size is for an LSTM"),
        (lambda: nn.LSTM(3, 4, 2, dropout=2), "a probability"),
        (lambda: rnn.pack_padded_sequence(lz.zeros(4, 2, 3), [1, 4]), "lengths have to fall"),
        (lambda: rnn.pack_padded_sequence(lz.zeros(4, 2, 3), [2.5, 1]), "lengths are integers"),
        (lambda: rnn.pack_padded_sequence(lz.zeros(4, 2, 3), [5, 1]), "from 1 to 4"),
        (lambda: rnn.pack_padded_sequence(lz.zeros(4, 2, 3), [4]), "each of 2 sequences"),
        (lambda: rnn.pad_sequence([]), "one sequence or more"),
        (lambda: rnn.pack_sequence([lz.zeros(2, 3), lz.zeros(2, 4)]), "differ in length only"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=says):
            call()


SEQUENCES = [normal(2, 3), normal(5, 3), normal(1, 3)]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_pad_sequence(batch_first, side):
    def padded(of, *sequences):
        return of.pad_sequence(sequences, batch_first, 0.25, side)

    same(lambda *s: padded(rnn, *s), lambda *s: padded(theirs_rnn, *s), *SEQUENCES)
    if side == "right":
        back = rnn.unpad_sequence(padded(rnn, *map(lz.tensor, SEQUENCES)), lz.tensor([2, 5, 1]), batch_first)
        for ours, theirs in zip(back, SEQUENCES, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)


def test_pack_sequence():
    ours = rnn.pack_sequence([lz.tensor(s) for s in SEQUENCES], enforce_sorted=False)
    theirs = theirs_rnn.pack_sequence([torch.tensor(s) for s in SEQUENCES], enforce_sorted=False)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for a, b in zip(rnn.unpack_sequence(ours), SEQUENCES, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    assert ours.float().data.dtype is lz.float32 and ours.float().batch_sizes.dtype is lz.int64
    with pytest.raises(ValueError, match="lengths have to fall"):
        rnn.pack_sequence([lz.tensor(s) for s in SEQUENCES])


def test_padding_to_a_length():
    drawn = normal(4, 2, 3, 2)
    ours = rnn.pack_padded_sequence(lz.tensor(drawn), lz.tensor([3, 2]))
    theirs = theirs_rnn.pack_padded_sequence(torch.tensor(drawn), torch.tensor([3, 2]))
    for batch_first in (False, True):
        y, counts = rnn.pad_packed_sequence(ours, batch_first, -1.0, 5)
        z, others = theirs_rnn.pad_packed_sequence(theirs, batch_first, -1.0, 5)
        close(y, z)
        assert counts.tolist() == others.tolist()
    with pytest.raises(ValueError, match="total_length=2 is below the longest length, 3"):
        rnn.pad_packed_sequence(ours, total_length=2)
