"""Transformer decoders against PyTorch's: same weights, outputs and all gradients."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from test_nn_layers import close, normal, same, twin

torch = pytest.importorskip("torch")

WIDTHS = {"dim_feedforward": 6, "dropout": 0.0}


def pair(layers, **masks):
    """Both with the same masks."""
    ours, theirs = layers
    mine = {k: lz.tensor(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}
    other = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}

    class Ours(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = ours

        def forward(self, *inputs):
            return self.layer(*inputs, **mine)

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = theirs

        def forward(self, *inputs):
            return self.layer(*inputs, **other)

    return Ours(), Theirs()


CAUSAL = np.triu(np.ones((3, 3), bool), 1)
PADDING = np.array([[False] * 3, [False, False, True]])
MASKS = {
    "none": {},
    "causal": {"tgt_mask": CAUSAL, "tgt_is_causal": True},
    "paddings": {
        "tgt_key_padding_mask": PADDING,
        "memory_key_padding_mask": np.array([[False] * 4 + [True], [False] * 5]),
    },
    "floating": {"tgt_mask": normal(3, 3), "memory_mask": normal(3, 5)},
    "heads": {"memory_mask": normal(4, 3, 5) > 1},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(masks, norm_first):
    layers = twin("TransformerDecoderLayer", 4, 2, **WIDTHS, batch_first=True, norm_first=norm_first)
    same(*pair(layers, **MASKS[masks]), normal(2, 3, 4), normal(2, 5, 4), tolerance=1e-10)


def test_decoder_layer_with_lengths_first_and_without_batch():
    layers = twin("TransformerDecoderLayer", 4, 2, **WIDTHS, activation="gelu", bias=False)
    same(*layers, normal(3, 2, 4), normal(5, 2, 4), tolerance=1e-10)
    same(*layers, normal(3, 4), normal(5, 4), tolerance=1e-10)


def test_transformer():
    layers = twin("Transformer", 4, 2, 1, 2, **WIDTHS, batch_first=True)
    masks = {
        "src_mask": normal(5, 5),
        "tgt_mask": CAUSAL,
        "src_key_padding_mask": np.where(np.arange(5) < [[5], [4]], 0.0, -np.inf),
        "memory_key_padding_mask": np.arange(5) >= [[5], [4]],
    }
    same(*pair(layers, **masks), normal(2, 5, 4), normal(2, 3, 4), tolerance=1e-9)
    same(*layers, normal(5, 4), normal(3, 4), tolerance=1e-9)
    with pytest.raises(ValueError, match="Transformer: a source and a target"):
        layers[0](lz.zeros(2, 5, 4), lz.zeros(3, 4))


def test_transformer_begins_as_pytorchs():
    model = nn.Transformer(8, 2, 1, 1, 32)
    for name, p in model.named_parameters():
        if p.ndim > 1:
            bound = (6 / sum(p.shape)) ** 0.5
            assert 0.9 * bound < abs(p.numpy()).max() <= bound * (1 + 1e-6), name
    close(nn.Transformer.generate_square_subsequent_mask(4), torch.nn.Transformer.generate_square_subsequent_mask(4))


def test_own_parts_take_the_places():
    class Memory(nn.Module):
        def forward(self, src, *masks):
            return src * 2

    class Sum(nn.Module):
        def forward(self, tgt, memory, *masks):
            return tgt + memory

    model = nn.Transformer(4, 2, custom_encoder=Memory(), custom_decoder=Sum())
    x = normal(2, 3, 4)
    np.testing.assert_allclose(model(lz.tensor(x), lz.tensor(x)).numpy(), 3 * x)
    assert not list(model.parameters())


def test_dropout_is_at_work_in_training_only():
    layer, x = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.5), lz.tensor(normal(3, 2, 8)).float()
    assert not np.array_equal(layer(x, x).numpy(), layer(x, x).numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x, x).numpy(), layer(x, x).numpy())
