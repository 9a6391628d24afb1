"""Layers that learn the number of their inputs."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from test_nn_layers import close, normal

torch = pytest.importorskip("torch")

LAYERS = [
    ("Linear", (3,), {}, (4, 5)),
    ("Linear", (3, False), {}, (5,)),
    ("Conv1d", (4, 3), {"padding": 1, "groups": 2}, (2, 6, 5)),
    ("Conv2d", (4, 3), {"bias": False}, (6, 5, 5)),
    ("ConvTranspose2d", (4, 3), {"stride": 2, "groups": 2}, (2, 6, 5, 5)),
    ("BatchNorm1d", (), {}, (4, 5)),
    ("BatchNorm2d", (), {"affine": False}, (2, 3, 4, 4)),
    ("BatchNorm3d", (1e-3,), {"track_running_stats": False}, (2, 3, 2, 2, 2)),
    ("InstanceNorm1d", (), {}, (2, 3, 5)),
    ("InstanceNorm2d", (), {}, (2, 3, 4, 4)),
    ("InstanceNorm3d", (), {}, (2, 3, 2, 3, 3)),
]


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_becomes_the_layer_that_pytorchs_becomes(name, args, options, shape):
    ours, theirs = (getattr(of.nn, f"Lazy{name}")(*args, **options) for of in (lz, torch))
    assert ours.has_uninitialized_params()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    held = dict(ours.named_parameters())
    x = normal(*shape).astype("f")
    z = theirs(torch.tensor(x))
    ours(lz.tensor(x))
    assert type(ours) is getattr(nn, name) and not hasattr(ours, "has_uninitialized_params")
    assert all(type(p) is nn.Parameter and held[n] is p for n, p in ours.named_parameters())
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    if "Batch" in name or "Instance" in name:
        theirs.eval(), ours.eval()
        z = theirs(torch.tensor(x))
    close(ours(lz.tensor(x)), z, 1e-5)
    assert repr(ours).split("(")[0] == name


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_a_state_says_how_many_inputs_there_are(name, args, options, shape):
    options = {**options, "affine": True} if "affine" in options else options
    full, lazy, loaded = (getattr(nn, f"Lazy{name}")(*args, **options) for _ in range(3))
    x = lz.tensor(normal(*shape)).float()
    full(x)
    model = nn.Sequential(loaded)
    model.load_state_dict({f"0.{k}": v for k, v in full.state_dict().items()})
    assert type(model[0]) is getattr(nn, name)
    close_arrays = [(a.numpy(), b.numpy()) for a, b in zip(model.state_dict().values(), full.state_dict().values())]
    for a, b in close_arrays:
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(model(x).numpy(), full(x).numpy())
    with pytest.raises(RuntimeError, match="missing"):
        lazy.load_state_dict({})
    assert lazy.has_uninitialized_params()


def test_an_optimizer_may_be_made_before():
    lz.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    optimizer = lz.optim.SGD(model.parameters(), lr=0.1)
    x, y = lz.tensor(normal(16, 3)).float(), lz.tensor(normal(16, 1)).float()
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert model[0].weight.shape == (4, 3)


def test_dtypes_and_bad_inputs():
    layer = nn.LazyLinear(2, dtype="float64")
    assert layer(lz.zeros(1, 3, dtype="float64")).dtype is lz.float64
    layer = nn.LazyLinear(2).double()
    layer(lz.zeros(1, 3, dtype="float64"))
    assert layer.weight.dtype is lz.float64 and abs(layer.bias.numpy()).max() > 0
    with pytest.raises(ValueError, match="LazyConv2d: an input of 4 dimensions"):
        nn.LazyConv2d(2, 3)(lz.zeros(1, 3))
    layer = nn.LazyInstanceNorm1d()
    assert layer(lz.zeros(3, 5)).shape == (3, 5) and layer.num_features == 3  # without batch
    assert repr(nn.LazyLinear(2).weight) == "<UninitializedParameter>"
