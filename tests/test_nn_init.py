"""Initialisers: PyTorch's distributions."""

import math

import numpy as np
import pytest

from lezero import manual_seed, nn
from lezero.nn import init
from lezero.tensor import empty
from lezero.tensor import tensor as make

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seeded():
    """What is drawn does not depend on the tests before."""
    manual_seed(0)
    torch.manual_seed(0)


# name, arguments, shape; both sides must draw from the same distribution
DRAWN = [
    ("uniform_", (-2.0, 3.0), (240, 200)),
    ("normal_", (1.0, 0.5), (240, 200)),
    ("trunc_normal_", (0.2, 1.0, -1.0, 0.8), (240, 200)),
    ("xavier_uniform_", (1.5,), (240, 200)),
    ("xavier_normal_", (), (240, 200)),
    ("kaiming_uniform_", (math.sqrt(5),), (120, 16, 5, 5)),
    ("kaiming_normal_", (0, "fan_out", "relu"), (120, 16, 5, 5)),
    ("orthogonal_", (2.0,), (240, 200)),
    ("sparse_", (0.3, 0.5), (240, 200)),
]


@pytest.mark.parametrize("name, args, shape", DRAWN, ids=[d[0] for d in DRAWN])
def test_distribution_is_pytorchs(name, args, shape):
    ours = getattr(init, name)(empty(*shape), *args).numpy()
    theirs = getattr(torch.nn.init, name)(torch.empty(*shape), *args).numpy()
    for q in (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0):
        edge = (
            0.4
            if q in (0.0, 1.0) and ("normal" in name or name in ("orthogonal_", "sparse_")) and "trunc" not in name
            else 0.05
        )
        assert abs(np.quantile(ours, q) - np.quantile(theirs, q)) < edge * theirs.std() * (3 if edge > 0.1 else 1.5)
    assert abs(ours.std() / theirs.std() - 1) < 0.05


@pytest.mark.parametrize(
    "name, args, shape",
    [
        ("eye_", (), (3, 4)),
        ("dirac_", (), (4, 3, 5)),
        ("dirac_", (2,), (4, 3, 3, 3)),
        ("ones_", (), (2,)),
        ("constant_", (2.5,), (2, 3)),
    ],
)
def test_fixed_values_are_pytorchs(name, args, shape):
    ours, theirs = getattr(init, name)(empty(*shape), *args), getattr(torch.nn.init, name)(torch.empty(*shape), *args)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 3)])
def test_orthogonal_rows_or_columns(shape):
    w = init.orthogonal_(empty(*shape)).numpy().reshape(shape[0], -1)
    small = w @ w.T if shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)


def test_gains_are_pytorchs():
    for name, param in [
        ("linear", None),
        ("tanh", None),
        ("relu", None),
        ("leaky_relu", None),
        ("leaky_relu", 0.3),
        ("selu", None),
    ]:
        assert init.calculate_gain(name, param) == pytest.approx(torch.nn.init.calculate_gain(name, param), abs=1e-15)
    with pytest.raises(ValueError, match="swish"):
        init.calculate_gain("swish")


LAYERS = [
    ("Linear", (300, 200), {}),
    ("Bilinear", (30, 20, 40), {}),
    ("Conv1d", (30, 40, 5), {}),
    ("Conv2d", (30, 40, 3), {"groups": 2}),
    ("ConvTranspose2d", (30, 40, 3), {}),
    ("Embedding", (100, 50), {}),
    ("MultiheadAttention", (64, 4), {}),
    ("BatchNorm2d", (10,), {}),
    ("LayerNorm", (10,), {}),
]


@pytest.mark.parametrize("name, args, kwargs", LAYERS, ids=[x[0] for x in LAYERS])
def test_layers_start_from_pytorchs_distributions(name, args, kwargs):
    ours, theirs = getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    for (key, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items()):
        a, b = a.numpy().astype(np.float64).ravel(), b.numpy().astype(np.float64).ravel()
        if b.std() == 0:
            np.testing.assert_array_equal(a, b), key
        else:
            few = 4 / math.sqrt(a.size)  # four standard errors, roughly
            assert abs(a.mean() - b.mean()) < 2 * few * b.std(), key
            assert abs(a.std() / b.std() - 1) < few + 0.02, key
            assert abs(a).max() < 1.6 * abs(b).max(), key


def test_initialisers_write_through_slices_and_record_no_gradient():
    layer = nn.Linear(4, 4)
    init.zeros_(layer.weight[:2])
    assert not layer.weight.numpy()[:2].any() and layer.weight.numpy()[2:].any()
    assert layer.weight.is_leaf and layer.weight.requires_grad


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"xavier_uniform_.*\(3,\)"):
        init.xavier_uniform_(empty(3))
    with pytest.raises(ValueError, match="fan_avg"):
        init.kaiming_normal_(empty(3, 3), mode="fan_avg")


def test_the_inverse_error_function():
    y = np.concatenate([np.linspace(-0.999999, 0.999999, 2001), [0.0, 1e-4]]).astype(np.float32)
    np.testing.assert_allclose(
        init._erfinv(make(y)).numpy(), torch.erfinv(torch.tensor(y)).numpy(), rtol=3e-5, atol=1e-7
    )
