"""Every layer against PyTorch's of the same name: same weights, forward and all gradients, in float64."""

import contextlib
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from interrupts import BeforeLine
from lezero import nn
from lezero.nn import functional as F
from lezero.tensor import no_grad, tensor

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape)


def twin(name, *args, **kwargs):
    """A layer and PyTorch's, in float64, with the same random weights and buffers."""
    ours, theirs = getattr(nn, name)(*args, **kwargs).double(), getattr(torch.nn, name)(*args, **kwargs).double()
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    drawn = {}
    for key, value in theirs.state_dict().items():
        assert tuple(state[key].shape) == tuple(value.shape), key
        drawn[key] = (
            value if not value.dtype.is_floating_point else torch.from_numpy(abs(normal(*value.shape)) * 0.5 + 0.1)
        )
    theirs.load_state_dict(drawn)
    ours.load_state_dict({k: v.numpy() for k, v in drawn.items()})
    return ours, theirs


def close(ours, theirs, tolerance=1e-11):
    theirs = theirs.detach().numpy()
    assert tuple(ours.shape) == theirs.shape
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=tolerance, atol=tolerance)


def same(ours, theirs, *arrays, differentiable=True, tolerance=1e-11):
    """Forward, and the gradients of a random combination of the outputs."""
    mine = [tensor(a, requires_grad=differentiable and a.dtype.kind == "f") for a in arrays]
    other = [torch.tensor(a, requires_grad=differentiable and a.dtype.kind == "f") for a in arrays]
    y, z = ours(*mine), theirs(*other)
    close(y, z, tolerance)
    weights = normal(*z.shape)
    (y * tensor(weights)).sum().backward()
    (z * torch.from_numpy(weights)).sum().backward()
    for a, b in zip(mine, other):
        if b.grad is not None:
            close(a.grad, b.grad, tolerance)
    if isinstance(ours, nn.Module):
        for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters()):
            assert (p.grad is None) == (q.grad is None), name
            if q.grad is not None:
                close(p.grad, q.grad, tolerance)
        for (name, b), (_, c) in zip(ours.named_buffers(), theirs.named_buffers()):
            close(b, c, tolerance), name


ONE_INPUT = [
    ("Identity", (), {}, (2, 3)),
    ("Linear", (5, 3), {}, (4, 5)),
    ("Linear", (5, 3), {"bias": False}, (2, 4, 5)),
    ("Linear", (5, 3), {}, (5,)),
    ("Conv1d", (4, 6, 3), {"padding": 1, "stride": 2}, (2, 4, 9)),
    ("Conv1d", (4, 6, 4), {"padding": "same", "dilation": 2, "bias": False}, (2, 4, 9)),
    ("Conv1d", (4, 6, 3), {"groups": 2}, (4, 9)),
    ("Conv2d", (3, 4, 3), {}, (2, 3, 7, 6)),
    ("Conv2d", (3, 4, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}, (2, 3, 7, 6)),
    ("Conv2d", (4, 4, 3), {"groups": 4, "padding": "same"}, (2, 4, 5, 6)),
    ("Conv2d", (3, 4, (4, 3)), {"padding": "same", "bias": False}, (3, 5, 6)),
    ("Conv2d", (3, 4, 3), {"padding": "valid"}, (1, 3, 5, 6)),
    ("Conv2d", (2, 3, 3), {"padding": (1, 2), "padding_mode": "reflect"}, (2, 2, 5, 6)),
    ("Conv2d", (2, 3, 3), {"padding": 1, "padding_mode": "circular"}, (2, 2, 5, 6)),
    ("Conv2d", (2, 3, 3), {"padding": "same", "padding_mode": "replicate"}, (2, 2, 5, 6)),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 4, 5, 6)),
    ("ConvTranspose2d", (4, 6, (2, 3)), {"groups": 2, "dilation": 2, "bias": False}, (2, 4, 5, 6)),
    ("BatchNorm1d", (5,), {}, (6, 5)),
    ("BatchNorm1d", (5,), {"momentum": 0.3, "eps": 1e-3}, (6, 5, 4)),
    ("BatchNorm2d", (3,), {}, (4, 3, 5, 2)),
    ("BatchNorm2d", (3,), {"momentum": None}, (4, 3, 5, 2)),
    ("BatchNorm2d", (3,), {"affine": False}, (4, 3, 5, 2)),
    ("BatchNorm2d", (3,), {"track_running_stats": False}, (4, 3, 5, 2)),
    ("LayerNorm", (6,), {}, (4, 5, 6)),
    ("LayerNorm", ((5, 6),), {"eps": 1e-3}, (4, 5, 6)),
    ("LayerNorm", (6,), {"elementwise_affine": False}, (4, 6)),
    ("LayerNorm", (6,), {"bias": False}, (4, 6)),
    ("RMSNorm", (6,), {}, (4, 5, 6)),
    ("RMSNorm", ((5, 6),), {"eps": 1e-2, "elementwise_affine": False}, (4, 5, 6)),
    ("GroupNorm", (2, 6), {}, (3, 6, 4, 5)),
    ("GroupNorm", (3, 6), {"affine": False}, (3, 6, 4)),
    ("InstanceNorm1d", (3,), {}, (2, 3, 7)),
    ("InstanceNorm1d", (3,), {"affine": True}, (3, 7)),
    ("InstanceNorm2d", (3,), {"affine": True, "track_running_stats": True}, (2, 3, 4, 5)),
    ("LocalResponseNorm", (3,), {}, (2, 5, 4, 4)),
    ("MaxPool1d", (3,), {"stride": 2, "padding": 1}, (2, 3, 9)),
    ("MaxPool2d", (2,), {}, (2, 3, 6, 8)),
    ("MaxPool2d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True}, (2, 3, 6, 8)),
    ("MaxPool2d", ((3, 2),), {"dilation": 2}, (3, 7, 8)),
    ("AvgPool1d", (3,), {"stride": 2, "padding": 1, "count_include_pad": False}, (2, 3, 9)),
    ("AvgPool2d", (2,), {}, (2, 3, 6, 8)),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1, "ceil_mode": True}, (2, 3, 6, 8)),
    ("AvgPool2d", (3,), {"divisor_override": 4}, (2, 3, 6, 8)),
    ("AdaptiveAvgPool1d", (4,), {}, (2, 3, 10)),
    ("AdaptiveAvgPool2d", ((3, None),), {}, (2, 3, 7, 5)),
    ("AdaptiveAvgPool2d", (1,), {}, (2, 3, 7, 5)),
    ("AdaptiveMaxPool1d", (4,), {}, (2, 3, 10)),
    ("AdaptiveMaxPool2d", ((3, 2),), {}, (2, 3, 7, 6)),
    ("AdaptiveMaxPool2d", (2,), {}, (2, 3, 8, 6)),
    ("Flatten", (), {}, (2, 3, 4)),
    ("Unflatten", (1, (2, 3)), {}, (4, 6, 2)),
    ("Upsample", ((7, 3),), {}, (2, 3, 4, 5)),
    ("Upsample", (5,), {"mode": "nearest-exact"}, (2, 3, 11)),
    ("Upsample", (), {"scale_factor": 3}, (2, 3, 4, 5)),
    ("Upsample", (), {"scale_factor": (1.7, 0.6)}, (2, 3, 7, 8)),
    ("Upsample", (), {"scale_factor": 1.7, "mode": "nearest-exact"}, (2, 3, 7)),
    ("Upsample", (13,), {"mode": "linear"}, (2, 3, 4)),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, (2, 3, 4, 5)),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear", "align_corners": True}, (2, 3, 4, 5)),
    ("Upsample", ((3, 17),), {"mode": "bilinear"}, (2, 3, 8, 2)),
    ("Upsample", ((3, 1),), {"mode": "bilinear", "align_corners": True}, (2, 3, 8, 2)),
    ("Upsample", ((4, 9),), {"mode": "bilinear", "align_corners": True}, (2, 3, 1, 2)),
    ("Upsample", (), {"scale_factor": (2.3, 0.7), "mode": "bilinear"}, (2, 3, 5, 9)),
    (
        "Upsample",
        (),
        {"scale_factor": (2.3, 0.7), "mode": "bilinear", "recompute_scale_factor": True},
        (2, 3, 5, 9),
    ),
    ("ZeroPad2d", (1,), {}, (2, 3, 4, 5)),
    ("ConstantPad1d", ((1, 2), 3.5), {}, (2, 3, 4)),
    ("ConstantPad2d", ((1, -1, 2, 0), 3.5), {}, (2, 3, 4, 5)),
    ("ReflectionPad1d", (2,), {}, (2, 3, 5)),
    ("ReflectionPad2d", ((1, 2, 0, 1),), {}, (2, 3, 4, 5)),
    ("ReplicationPad1d", ((3, 0),), {}, (2, 3, 4)),
    ("ReplicationPad2d", (2,), {}, (2, 3, 4, 5)),
    ("CircularPad1d", (2,), {}, (2, 3, 4)),
    ("CircularPad2d", ((1, 0, 2, 3),), {}, (2, 3, 4, 5)),
    ("ReLU", (), {}, (3, 4)),
    ("ReLU6", (), {}, (3, 4)),
    ("LeakyReLU", (0.2,), {}, (3, 4)),
    ("PReLU", (), {}, (3, 4)),
    ("PReLU", (4,), {}, (3, 4, 2)),
    ("ELU", (0.7,), {}, (3, 4)),
    ("SELU", (), {}, (3, 4)),
    ("CELU", (0.7,), {}, (3, 4)),
    ("GELU", (), {}, (3, 4)),
    ("GELU", (), {"approximate": "tanh"}, (3, 4)),
    ("GLU", (1,), {}, (3, 4)),
    ("SiLU", (), {}, (3, 4)),
    ("Mish", (), {}, (3, 4)),
    ("Sigmoid", (), {}, (3, 4)),
    ("Tanh", (), {}, (3, 4)),
    ("Softplus", (2.0, 1.0), {}, (3, 4)),
    ("Softsign", (), {}, (3, 4)),
    ("Tanhshrink", (), {}, (3, 4)),
    ("Hardshrink", (0.3,), {}, (3, 4)),
    ("Softshrink", (0.3,), {}, (3, 4)),
    ("Threshold", (0.1, 2.0), {}, (3, 4)),
    ("Hardtanh", (-0.5, 0.7), {}, (3, 4)),
    ("Hardsigmoid", (), {}, (3, 4)),
    ("Hardswish", (), {}, (3, 4)),
    ("LogSigmoid", (), {}, (3, 4)),
    ("Softmax", (1,), {}, (3, 4)),
    ("LogSoftmax", (-1,), {}, (3, 4)),
    ("Softmin", (0,), {}, (3, 4)),
    ("Dropout", (0.0,), {}, (3, 4)),
]


# PyTorch computes these gradients with float32 constants, whatever the dtype.
LOOSER = {"CELU": 1e-7, "Hardsigmoid": 1e-7}


@pytest.mark.parametrize("name, args, kwargs, shape", ONE_INPUT, ids=lambda v: v if isinstance(v, str) else None)
def test_layer_gives_what_pytorch_gives(name, args, kwargs, shape):
    ours, theirs = twin(name, *args, **kwargs)
    same(ours, theirs, normal(*shape), tolerance=LOOSER.get(name, 1e-11))
    ours.eval(), theirs.eval()
    for p in [*ours.parameters(), *theirs.parameters()]:
        p.grad = None
    same(ours, theirs, normal(*shape), tolerance=LOOSER.get(name, 1e-11))


@pytest.mark.parametrize("name, args, kwargs, shape", ONE_INPUT, ids=lambda v: v if isinstance(v, str) else None)
def test_constructor_shows_the_same_settings_as_pytorch(name, args, kwargs, shape):
    ours, theirs = repr(getattr(nn, name)(*args, **kwargs)), repr(getattr(torch.nn, name)(*args, **kwargs))
    assert ours.partition("(")[0] == theirs.partition("(")[0]
    for setting in ours.partition("(")[2].rstrip(")").split(", "):
        if name in ("Linear", "Conv2d", "BatchNorm2d", "Dropout", "LayerNorm") and "bias" not in setting:
            assert setting in theirs


def test_two_inputs():
    ours, theirs = twin("Bilinear", 3, 4, 5)
    same(ours, theirs, normal(2, 6, 3), normal(2, 6, 4))
    same(nn.CosineSimilarity(dim=1), torch.nn.CosineSimilarity(dim=1), normal(3, 5, 2), normal(3, 5, 2))
    same(nn.PairwiseDistance(3.0), torch.nn.PairwiseDistance(3.0), normal(3, 5), normal(3, 5))


def test_embedding_leaves_its_padding_row_alone():
    ours, theirs = twin("Embedding", 7, 4, padding_idx=2)
    same(ours, theirs, np.array([[0, 2, 2], [6, 1, 0]]))
    fresh = nn.Embedding(7, 4, padding_idx=-1)
    assert not fresh.weight.numpy()[6].any() and fresh.weight.numpy()[:6].all()


def test_embedding_with_a_largest_norm_scales_the_rows_it_reads():
    ours, theirs = twin("Embedding", 7, 4, max_norm=0.5)
    index = np.array([0, 3, 3])
    close(ours(tensor(index)), theirs(torch.tensor(index)))
    close(ours.weight, theirs.weight)


def test_embedding_from_pretrained_is_frozen():
    table = tensor(normal(5, 3))
    assert not nn.Embedding.from_pretrained(table).weight.requires_grad
    assert nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad


def probabilities(*shape):
    e = np.exp(normal(*shape))
    return e / e.sum(1, keepdims=True)


CLASS_WEIGHTS = abs(normal(5)) + 0.1
LOSSES = [
    ("CrossEntropyLoss", {}, normal(4, 5), np.array([0, 4, 2, 2])),
    ("CrossEntropyLoss", {"label_smoothing": 0.2, "ignore_index": 2}, normal(4, 5), np.array([0, 4, 2, 2])),
    ("CrossEntropyLoss", {"weight": CLASS_WEIGHTS, "reduction": "sum"}, normal(4, 5), np.array([0, 4, 2, 2])),
    ("CrossEntropyLoss", {"weight": CLASS_WEIGHTS}, normal(2, 5, 3), RNG.integers(0, 5, (2, 3))),
    ("CrossEntropyLoss", {}, normal(4, 5), probabilities(4, 5)),
    ("NLLLoss", {"weight": CLASS_WEIGHTS}, normal(4, 5), np.array([0, 4, 2, 2])),
    ("NLLLoss", {"reduction": "none"}, normal(4, 5), np.array([0, 4, 2, -100])),
    ("MSELoss", {}, normal(4, 5), normal(4, 5)),
    ("L1Loss", {"reduction": "sum"}, normal(4, 5), normal(4, 5)),
    ("SmoothL1Loss", {"beta": 0.5}, normal(4, 5), normal(4, 5)),
    ("HuberLoss", {"delta": 0.7, "reduction": "none"}, normal(4, 5), normal(4, 5)),
    ("BCELoss", {}, probabilities(4, 5), probabilities(4, 5)),
    ("BCELoss", {"weight": CLASS_WEIGHTS}, probabilities(4, 5), probabilities(4, 5)),
    ("BCEWithLogitsLoss", {"pos_weight": CLASS_WEIGHTS}, normal(4, 5), probabilities(4, 5)),
    ("BCEWithLogitsLoss", {"weight": CLASS_WEIGHTS, "reduction": "none"}, normal(4, 5), probabilities(4, 5)),
    ("KLDivLoss", {"reduction": "batchmean"}, np.log(probabilities(4, 5)), probabilities(4, 5)),
    ("KLDivLoss", {"log_target": True, "reduction": "sum"}, np.log(probabilities(4, 5)), np.log(probabilities(4, 5))),
]


@pytest.mark.parametrize("name, kwargs, x, target", LOSSES, ids=lambda v: v if isinstance(v, str) else None)
def test_loss_gives_what_pytorch_gives(name, kwargs, x, target):
    ours = getattr(nn, name)(**{k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()})
    theirs = getattr(torch.nn, name)(
        **{k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    )
    mine, other = tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = ours(mine, tensor(target)), theirs(other, torch.tensor(target))
    close(y, z)
    y.sum().backward(), z.sum().backward()
    close(mine.grad, other.grad)


def test_losses_of_three_inputs():
    pairs = [
        (
            nn.GaussianNLLLoss(full=True),
            torch.nn.GaussianNLLLoss(full=True),
            (normal(4, 3), normal(4, 3), abs(normal(4, 3))),
        ),
        (nn.TripletMarginLoss(0.5), torch.nn.TripletMarginLoss(0.5), (normal(4, 3), normal(4, 3), normal(4, 3))),
        (nn.MarginRankingLoss(0.1), torch.nn.MarginRankingLoss(0.1), (normal(4), normal(4), np.sign(normal(4)))),
        (
            nn.CosineEmbeddingLoss(0.1),
            torch.nn.CosineEmbeddingLoss(0.1),
            (normal(4, 3), normal(4, 3), np.array([1, -1, 1, -1])),
        ),
    ]
    for ours, theirs, arrays in pairs:
        same(ours, theirs, *arrays)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kdim, vdim", [(None, None), (5, 7)])
@pytest.mark.parametrize("masked", [None, "causal", "padding", "added"])
def test_multihead_attention(batch_first, kdim, vdim, masked):
    options = {"batch_first": batch_first, "kdim": kdim, "vdim": vdim}
    ours, theirs = twin("MultiheadAttention", 8, 2, **options)
    shapes = [(2, 4, 8), (2, 6, kdim or 8), (2, 6, vdim or 8)]
    q, k, v = (normal(*s) if batch_first else normal(s[1], s[0], s[2]) for s in shapes)
    masks = {
        None: {},
        "causal": {"attn_mask": np.triu(np.ones((4, 6), bool), 1)},
        "padding": {"key_padding_mask": np.array([[False] * 6, [False] * 4 + [True] * 2])},
        "added": {"attn_mask": normal(4, 4, 6)},
    }[masked]
    mine = [tensor(a, requires_grad=True) for a in (q, k, v)]
    other = [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    for need in (True, False):
        y, w = ours(*mine, need_weights=need, **{m: tensor(a) for m, a in masks.items()})
        z, u = theirs(*other, need_weights=need, **{m: torch.tensor(a) for m, a in masks.items()})
        close(y, z)
        assert (w is None) == (u is None)
        if w is not None:
            close(w, u)
        y.sum().backward(), z.sum().backward()
        for a, b in zip(mine, other):
            close(a.grad, b.grad, 1e-10)


IN_PLACE = {
    "relu": ("ReLU", ()), "relu6": ("ReLU6", ()), "leaky_relu": ("LeakyReLU", (0.1,)), "elu": ("ELU", (0.5,)), "selu": ("SELU", ()),
    "celu": ("CELU", (0.5,)), "silu": ("SiLU", ()), "mish": ("Mish", ()), "threshold": ("Threshold", (0.1, 2.0)),
    "hardtanh": ("Hardtanh", (-0.5, 0.5)), "hardsigmoid": ("Hardsigmoid", ()), "hardswish": ("Hardswish", ()),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_activation_in_place_writes_its_input(name):
    layer, arguments = IN_PLACE[name]
    array = normal(3, 4)

    def run(package, f):
        leaf = package.tensor(array, requires_grad=True)
        x = leaf * 1
        row = x[1]
        y = f(x)
        assert y is x
        (row * row).sum().backward()
        with pytest.raises(RuntimeError, match="in-place operation"):
            f(leaf)
        return y.detach().numpy(), leaf.grad.numpy()

    for ours, theirs in [
        (
            lambda x: getattr(F, name)(x, *arguments, inplace=True),
            lambda x: getattr(torch.nn.functional, name)(x, *arguments, inplace=True),
        ),
        (getattr(nn, layer)(*arguments, inplace=True), getattr(torch.nn, layer)(*arguments, inplace=True)),
        (getattr(nn, layer)(*arguments, True), getattr(torch.nn, layer)(*arguments, True)),
    ]:
        for a, b in zip(run(lz, ours), run(torch, theirs)):
            np.testing.assert_allclose(a, b, rtol=1e-7)  # PyTorch's sixth of hardsigmoid is a float32


@pytest.mark.parametrize("layer", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout])
def test_dropout_in_place_writes_its_input(layer):
    x = lz.ones(2, 30, 4, *[4] * (layer is nn.Dropout2d))
    drop = layer(0.5, inplace=True)
    y = drop(x)
    assert y is x and "inplace=True" in repr(drop)
    assert len(set(x.flatten().tolist())) == 2
    x = lz.ones(2, 30, 4, *[4] * (layer is nn.Dropout2d))
    layer(0.5)(x)
    assert set(x.flatten().tolist()) == {1.0}


def test_an_activation_that_is_never_in_place_does_not_take_it():
    for make in (lambda: nn.Sigmoid(inplace=True), lambda: nn.GELU(inplace=True)):
        with pytest.raises(TypeError, match="inplace"):
            make()


MASKS = {  # name, shape, dtype, batch_first: of 6 positions, 8 of them a batch, and 4 heads
    "another length": ("attn_mask", (4, 4), "bool", True, r"\(6, 6\) or \(32, 6, 6\) is needed.* got bool\(4, 4\)$"),
    "a mask a sample": ("attn_mask", (8, 6, 6), "float32", True, r"batch \* heads.* got float32\(8, 6, 6\)$"),
    "integers": ("attn_mask", (6, 6), "int64", True, r"is bool .* or floating .*int64\(6, 6\); convert it with \.bool\(\)$"),
    "integer paddings": ("key_padding_mask", (8, 6), "int64", True, r"is bool .*\(8, 6\).*int64.*\.bool\(\)$"),
    "one row": ("key_padding_mask", (6,), "bool", True, r"\(8, 6\) is needed, which is \(batch, keys\).* got bool\(6,\)$"),
    "batch_first forgotten": ("key_padding_mask", (6, 8), "bool", True, r"got bool\(6, 8\); .*\(batch, length, f.*batch_first=False$"),
    "batch_first needed": ("key_padding_mask", (8, 6), "bool", False, r"got bool\(8, 6\); .*\(length, batch, f.*batch_first=True$"),
    "square, batch_first needed": ("attn_mask", (6, 6), "bool", False, r"\(8, 8\) or .*; .*batch_first=True$"),
    "a mask a head, batch_first needed": ("attn_mask", (32, 6, 6), "bool", False, r"\(24, 8, 8\) .*; .*batch_first=True$"),
}  # fmt: skip


@pytest.mark.parametrize("case", MASKS)
def test_masks_of_attention_that_do_not_fit_are_named(case):
    name, shape, dtype, batch_first, message = MASKS[case]
    x, mask = lz.zeros(8, 6, 32), lz.zeros(*shape, dtype=dtype)
    error = TypeError if dtype == "int64" else ValueError
    with pytest.raises(error, match=f"(?m)^MultiheadAttention: {name} .*{message}"):
        nn.MultiheadAttention(32, 4, batch_first=batch_first)(x, x, x, **{name: mask})
    name = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}[name]
    with pytest.raises(error, match=f"(?m)^TransformerEncoderLayer: {name} .*{message}"):
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first)(x, **{name: mask})


def test_masks_of_attention_without_a_batch():
    ours, theirs = twin("MultiheadAttention", 8, 2)
    x, mask, padding = normal(5, 8), normal(2, 5, 5), np.array([False] * 4 + [True])
    y = ours(*[tensor(x)] * 3, key_padding_mask=tensor(padding), attn_mask=tensor(mask))[0]
    added = torch.zeros(5, dtype=torch.float64).masked_fill(torch.tensor(padding), -torch.inf)
    close(y, theirs(*[torch.tensor(x)] * 3, key_padding_mask=added, attn_mask=torch.tensor(mask))[0])
    with pytest.raises(ValueError, match=r"key_padding_mask of shape \(5,\) is needed, which is \(keys,\)"):
        ours(*[tensor(x)] * 3, key_padding_mask=tensor(padding[None]))


def test_multihead_self_attention_is_one_product_and_takes_no_batch():
    ours, theirs = twin("MultiheadAttention", 8, 4)
    x = normal(5, 8)
    mine, other = tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = ours(mine, mine, mine)[0], theirs(other, other, other)[0]
    close(y, z)
    y.square().sum().backward(), z.square().sum().backward()
    close(mine.grad, other.grad)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    "batch_first, activation, bias", [(True, "gelu", True), (False, "relu", True), (True, "relu", False)]
)
def test_transformer_encoder(norm_first, batch_first, activation, bias):
    options = {"norm_first": norm_first, "batch_first": batch_first, "activation": activation, "bias": bias}
    ours, theirs = twin("TransformerEncoderLayer", 8, 2, 12, dropout=0.0, layer_norm_eps=1e-3, **options)
    x = normal(3, 5, 8) if batch_first else normal(5, 3, 8)
    same(ours, theirs, x, tolerance=1e-9)
    causal, padding = np.triu(np.ones((5, 5), bool), 1), np.array([[False] * 5, [False] * 3 + [True] * 2, [False] * 5])
    masks = {"src_mask": causal, "src_key_padding_mask": padding}
    y = ours(tensor(x), **{k: tensor(m) for k, m in masks.items()})
    close(y, theirs(torch.tensor(x), **{k: torch.tensor(m) for k, m in masks.items()}), 1e-9)
    close(ours(tensor(x), is_causal=True), theirs(torch.tensor(x), torch.tensor(causal), is_causal=True), 1e-9)


def test_transformer_encoder_of_several_layers():
    layer, reference = nn.TransformerEncoderLayer(8, 2, 12, 0.0), torch.nn.TransformerEncoderLayer(8, 2, 12, 0.0)
    ours = nn.TransformerEncoder(layer, 3, nn.LayerNorm(8)).double()
    theirs = torch.nn.TransformerEncoder(reference, 3, torch.nn.LayerNorm(8), enable_nested_tensor=False).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    drawn = {k: torch.from_numpy(normal(*v.shape)) for k, v in theirs.state_dict().items()}
    theirs.load_state_dict(drawn)
    ours.load_state_dict({k: v.numpy() for k, v in drawn.items()})
    same(ours, theirs, normal(5, 3, 8), tolerance=1e-9)
    assert nn.TransformerEncoder(layer, 2).layers[0].linear1.weight is not layer.linear1.weight
    with pytest.raises(ValueError, match=r"activation.*'swish'"):
        nn.TransformerEncoderLayer(8, 2, activation="swish")


def attention_with(options, functional, make):
    options = {n: make(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    return lambda *qkv: functional.scaled_dot_product_attention(*qkv, **options)


def test_scaled_dot_product_attention():
    q, k, v = normal(2, 4, 5, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 3)
    for options in ({}, {"scale": 0.3}, {"attn_mask": RNG.random((5, 7)) > 0.2}):
        same(attention_with(options, F, tensor), attention_with(options, torch.nn.functional, torch.tensor), q, k, v)
    square = normal(2, 4, 5, 8)
    causal = {"is_causal": True}
    pair = attention_with(causal, F, tensor), attention_with(causal, torch.nn.functional, torch.tensor)
    same(*pair, square, square, square)


def test_dropped_values_are_zero_and_the_rest_is_scaled():
    x = tensor(np.ones((200, 100), np.float32), requires_grad=True)
    y = nn.Dropout(0.25)(x)
    values = y.numpy()
    assert set(np.unique(values)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((values == 0).mean() - 0.25) < 0.02
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), values)


def test_dropout_draws_anew_each_time_and_rests_in_evaluation():
    layer, x = nn.Dropout(0.5), tensor(np.ones((50, 50), np.float32))
    assert (layer(x).numpy() != layer(x).numpy()).any()
    layer.eval()
    assert layer(x) is x


@pytest.mark.parametrize("name, shape", [("Dropout1d", (20, 30, 4)), ("Dropout2d", (20, 30, 4, 5))])
def test_channel_dropout_drops_whole_channels(name, shape):
    y = getattr(nn, name)(0.4)(tensor(np.ones(shape, np.float32))).numpy().reshape(20, 30, -1)
    assert (y == y[:, :, :1]).all()
    assert abs((y[:, :, 0] == 0).mean() - 0.4) < 0.1


def test_alpha_dropout_keeps_mean_and_variance():
    x = tensor(RNG.normal(size=(300, 300)).astype(np.float32))
    y = F.alpha_dropout(x, 0.3, training=True).numpy()
    assert abs(y.mean()) < 0.02 and abs(y.var() - 1) < 0.05


def test_batch_norm_follows_pytorch_over_several_batches():
    for momentum in (0.1, None):
        ours, theirs = twin("BatchNorm2d", 3, momentum=momentum)
        with no_grad():
            ours.reset_running_stats(), theirs.reset_running_stats()
        for _ in range(4):
            x = normal(4, 3, 5, 2)
            close(ours(tensor(x)), theirs(torch.tensor(x)))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            close(getattr(ours, name), getattr(theirs, name))


def test_max_pool_indices_are_pytorchs():
    x = normal(2, 3, 7, 8)
    y, i = F.max_pool2d(tensor(x), 3, 2, 1, return_indices=True)
    z, j = torch.nn.functional.max_pool2d(torch.tensor(x), 3, 2, 1, return_indices=True)
    close(y, z)
    np.testing.assert_array_equal(i.numpy(), j.numpy())


def test_further_functions():
    index = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(
        F.one_hot(tensor(index)).numpy(), torch.nn.functional.one_hot(torch.tensor(index)).numpy()
    )
    same(lambda x: F.normalize(x, dim=1), lambda x: torch.nn.functional.normalize(x, dim=1), normal(3, 4))
    weight, w = normal(3, 4), normal(3, 4)
    for name in ("mse_loss", "l1_loss"):
        same(
            lambda x, t, n=name: getattr(F, n)(x, t, weight=tensor(abs(w))),
            lambda x, t, n=name: getattr(torch.nn.functional, n)(x, t, weight=torch.tensor(abs(w))),
            normal(3, 4),
            weight,
        )


def test_gumbel_softmax_gives_one_hot_values_with_a_gradient():
    x = tensor(normal(6, 4), requires_grad=True)
    y = F.gumbel_softmax(x, hard=True)
    np.testing.assert_allclose(np.sort(y.numpy(), 1), [[0, 0, 0, 1]] * 6, atol=1e-12)
    (y * tensor(normal(6, 4))).sum().backward()
    assert abs(x.grad.numpy()).max() > 0


BAD = [
    (lambda: nn.Linear(5, 3)(tensor(normal(2, 4).astype(np.float32))), ValueError, r"linear.*\(2, 4\).*\(3, 5\)"),
    (lambda: nn.Conv2d(3, 4, 3)(tensor(normal(2, 5, 6, 6).astype(np.float32))), ValueError, r"conv.*channels"),
    (
        lambda: nn.Conv2d(3, 4, 3)(tensor(normal(6, 6).astype(np.float32))),
        ValueError,
        r"conv2d.*4 dimensions.*\(6, 6\)",
    ),
    (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), ValueError, "same.*stride"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, "Conv2d.*groups"),
    (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ValueError, "kernel_size"),
    (lambda: nn.Conv2d(1, 1, 0), ValueError, "^Conv2d: kernel_size is 1 or more, got 0"),
    (lambda: nn.Conv2d(1, 1, (3, -1)), ValueError, r"^Conv2d: kernel_size is 1 or more, got \(3, -1\)"),
    (lambda: nn.Conv1d(1, 1, 3, stride=0), ValueError, "^Conv1d: stride is 1 or more, got 0"),
    (lambda: nn.Conv2d(1, 1, 3, dilation=0), ValueError, "^Conv2d: dilation is 1 or more, got 0"),
    (lambda: nn.ConvTranspose2d(1, 1, 0), ValueError, "^ConvTranspose2d: kernel_size is 1 or more, got 0"),
    (lambda: nn.ConvTranspose2d(1, 1, 2, stride=0), ValueError, "^ConvTranspose2d: stride is 1 or more, got 0"),
    (lambda: F.gelu(tensor([1.0]), approximate="tan"), ValueError, "^gelu: approximate is 'none' or 'tanh', got 'tan'"),
    (lambda: nn.GELU("foo"), ValueError, "^gelu: approximate is 'none' or 'tanh', got 'foo'"),
    (
        lambda: nn.BatchNorm2d(3)(tensor(normal(2, 4, 5, 5).astype(np.float32))),
        ValueError,
        r"BatchNorm2d.*3 channels.*\(2, 4, 5, 5\)",
    ),
    (lambda: nn.BatchNorm1d(3)(tensor(normal(1, 3).astype(np.float32))), ValueError, "more than one value per channel"),
    (lambda: nn.LayerNorm(4)(tensor(normal(2, 3).astype(np.float32))), ValueError, r"layer_norm.*\(3,\).*\(4,\)"),
    (lambda: nn.GroupNorm(4, 6), ValueError, "GroupNorm.*6.*4"),
    (lambda: nn.MaxPool2d(2)(tensor(normal(3, 4).astype(np.float32))), ValueError, r"max_pool2d.*\(3, 4\)"),
    (lambda: nn.MultiheadAttention(7, 2), ValueError, "7.*2 heads"),
    (lambda: nn.Dropout(1.5), ValueError, "Dropout.*1.5"),
    (lambda: nn.MSELoss(reduction="avg"), ValueError, "MSELoss.*avg"),
    (lambda: F.softmax(tensor([1.0])), TypeError, "softmax.*dim="),
    (lambda: F.pad(tensor([[1.0, 2.0]]), (3, 0), "reflect"), ValueError, "reflect.*widths"),
    (lambda: F.pad(tensor([[1.0, 2.0]]), (-1, -1), "replicate"), ValueError, "leave nothing of a dimension of 2"),
    (lambda: nn.Softplus(1.0, 2.0, 3.0), TypeError, "Softplus.*beta, threshold"),
    (lambda: F.binary_cross_entropy(tensor([0.5]), tensor([[0.5]])), ValueError, "binary_cross_entropy.*shape"),
]


@pytest.mark.parametrize("call, error, message", BAD, ids=range(len(BAD)))
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_loss_of_other_shapes_warns():
    with pytest.warns(UserWarning, match=r"mse_loss.*\(3,\).*\(3, 1\)"):
        F.mse_loss(tensor(normal(3)), tensor(normal(3, 1)))


LAYERS = Path(nn.__file__).parent


def moves_values(code):
    """The layers' own code, and what points tensors at new values."""
    return code.co_name in ("point", "_point") or Path(code.co_filename).is_relative_to(LAYERS)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None), nn.InstanceNorm1d(3, track_running_stats=True)]
)
def test_an_interrupt_at_any_line_moves_all_running_statistics_or_none(layer):
    batches = [tensor(normal(4, 3, 5)) for _ in range(8)]
    layer.double().train()
    before = [t.numpy().copy() for t in layer.buffers()]
    moving = [k for k in range(3) if k < 2 or isinstance(layer, nn.BatchNorm1d)]
    seen = set()
    for n in itertools.count(1):
        interrupt = BeforeLine(n, moves_values)
        with contextlib.suppress(KeyboardInterrupt), interrupt:
            layer(batches[n % 8])
        if interrupt.left > 0:
            break
        now = [t.numpy().copy() for t in layer.buffers()]
        moved = {not np.array_equal(now[k], before[k]) for k in moving}
        assert len(moved) == 1, (n, before, now)
        seen |= moved
        before = now
        lz.set_grad_enabled(True)  # no signal is answered right before the line that does it, as happens here
    assert seen == {True, False}


@pytest.mark.parametrize(
    "layer, shape, read",
    [
        (nn.Conv1d(1, 2, 3), (5, 8), "(channels, length)"),
        (nn.Conv2d(1, 2, 3), (5, 8, 8), "(channels, height, width)"),
        (nn.ConvTranspose2d(1, 2, 3), (5, 8, 8), "(channels, height, width)"),
    ],
)
def test_a_batch_without_channels_is_said_to_have_been_taken_as_unbatched(layer, shape, read):
    with pytest.raises(ValueError, match=re.escape(f"of shape {shape} was taken for {read} without batch")):
        layer(lz.ones(*shape))
    assert layer(lz.ones(*shape).unsqueeze(1)).shape[0] == 5


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("widths", [(-2, 3, 0, -1), (1, -2, -1, -1), (3, -1, -2, 2), (0, 0, -1, 0)])
def test_negative_widths_cut_off_what_pytorch_cuts_off(mode, widths):
    x = normal(2, 3, 5, 6)
    theirs = torch.nn.functional.pad(torch.tensor(x), widths, mode=mode).numpy()
    np.testing.assert_array_equal(F.pad(tensor(x), widths, mode=mode).numpy(), theirs)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
def test_clipping_integers_gives_integers(dtype):
    x = np.array([-3, -1, 0, 1, 2, 7]).astype(dtype)
    for name, numbers in (
        ("threshold", (6, 9)),
        ("threshold", (0.5, 1.7)),
        ("hardtanh", (-0.5, 1.9)),
        ("hardtanh", (0.5, 3.0)),
    ):
        got = getattr(nn.functional, name)(lz.tensor(x), *numbers)
        want = getattr(torch.nn.functional, name)(torch.tensor(x), *numbers)
        assert got.dtype.name == dtype and got.tolist() == want.tolist(), (name, numbers)
    with (
        pytest.raises(ValueError, match=r"hardtanh: -300 is not among the numbers of u?int8")
        if dtype != "int64"
        else contextlib.nullcontext()
    ):
        nn.functional.hardtanh(lz.tensor(x), -300, 3)


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool"])
def test_logsumexp_of_integers_is_in_the_default_dtype(dtype):
    x = np.array([[-3, 1, 0], [1, 2, 7]]).astype(dtype)
    got, want = lz.tensor(x).logsumexp(1), torch.tensor(x).logsumexp(1)
    assert got.dtype.name == "float32"
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
