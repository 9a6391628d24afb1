"""Multi-head attention as a function against PyTorch's: outputs, weights and all gradients."""

import numpy as np
import pytest

import lezero as lz
from lezero.nn import functional as F
from test_nn_layers import normal, same

torch = pytest.importorskip("torch")

E, HEADS, QUERIES, KEYS, BATCH = 4, 2, 3, 5, 2
PADDING = np.array([[False] * 4 + [True], [False] * 5])

CASES = {
    "plain": {},
    "weights of all heads": {"average_attn_weights": False},
    "without weights": {"need_weights": False},
    "masks": {"attn_mask": normal(QUERIES, KEYS), "key_padding_mask": np.where(PADDING, -np.inf, 0.0)},
    "masks of heads": {"attn_mask": normal(BATCH * HEADS, QUERIES, KEYS) > 1, "key_padding_mask": PADDING},
    "more keys": {"bias_k": normal(1, 1, E), "bias_v": normal(1, 1, E), "add_zero_attn": True},
    "more keys and masks": {
        "bias_k": normal(1, 1, E), "bias_v": normal(1, 1, E), "add_zero_attn": True, "key_padding_mask": PADDING,
        "need_weights": False,
    },
    "given keys": {"static_k": normal(BATCH * HEADS, KEYS, 2), "static_v": normal(BATCH * HEADS, KEYS, 2)},
    "zeros alone": {"add_zero_attn": True},
    "without biases": {"in_proj_bias": None, "out_proj_bias": None},
}  # fmt: skip
WEIGHTS = {
    "in_proj_weight": normal(3 * E, E),
    "in_proj_bias": normal(3 * E),
    "out_proj_weight": normal(E, E),
    "out_proj_bias": normal(E),
    "bias_k": None,
    "bias_v": None,
    "add_zero_attn": False,
}


def call(of, function, options):
    """A function of all floating inputs, with everything it gives in one vector."""
    given = {**WEIGHTS, **options}
    masks = ("attn_mask", "key_padding_mask")
    named = [k for k, v in given.items() if isinstance(v, np.ndarray) and k not in masks]
    rest = {k: of.tensor(v) if isinstance(v, np.ndarray) else v for k, v in given.items() if k not in named}

    def run(q, k, v, *tensors):
        y, weights = function(
            q, k, v, embed_dim_to_check=E, num_heads=HEADS, dropout_p=0.0, **dict(zip(named, tensors)), **rest
        )
        return of.cat([y.reshape(-1)] if weights is None else [y.reshape(-1), weights.reshape(-1)])

    return run, [given[k] for k in named]


def both(options, *inputs):
    ours, tensors = call(lz, F.multi_head_attention_forward, options)
    theirs, _ = call(torch, torch.nn.functional.multi_head_attention_forward, options)
    same(ours, theirs, *inputs, *tensors)


@pytest.mark.parametrize("case", CASES)
def test_as_pytorchs(case):
    both(CASES[case], normal(QUERIES, BATCH, E), normal(KEYS, BATCH, E), normal(KEYS, BATCH, E))


def test_without_batch():
    options = {"key_padding_mask": PADDING[0], "attn_mask": normal(QUERIES, KEYS)}
    both(options, normal(QUERIES, E), normal(KEYS, E), normal(KEYS, E))


def test_a_weight_for_each_input():
    weights = {"q_proj_weight": normal(E, E), "k_proj_weight": normal(E, 3), "v_proj_weight": normal(E, 6)}
    options = {"in_proj_weight": None, "use_separate_proj_weight": True, **weights}
    both(options, normal(QUERIES, BATCH, E), normal(KEYS, BATCH, 3), normal(KEYS, BATCH, 6))


def test_dropout_and_refusals():
    x = lz.tensor(normal(QUERIES, BATCH, E))
    given = {k: lz.tensor(v) if isinstance(v, np.ndarray) else v for k, v in WEIGHTS.items()}
    settings = {"embed_dim_to_check": E, "num_heads": HEADS, "dropout_p": 0.5, **given}
    first, second = (F.multi_head_attention_forward(x, x, x, **settings)[0].numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    first, second = (F.multi_head_attention_forward(x, x, x, **settings, training=False)[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="a multiple of 3 heads"):
        F.multi_head_attention_forward(x, x, x, **{**settings, "num_heads": 3})
    with pytest.raises(ValueError, match="in_proj_weight, or one weight"):
        F.multi_head_attention_forward(x, x, x, **{**settings, "in_proj_weight": None})
