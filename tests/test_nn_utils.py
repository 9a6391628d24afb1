"""Gradient clipping, vectors of parameters, parametrizations, the summary."""

import copy

import numpy as np
import pytest

from lezero import nn
from lezero.nn import utils
from lezero.tensor import no_grad, tensor

torch = pytest.importorskip("torch")


def pair(*args):
    ours, theirs = nn.Linear(4, 3).double(), torch.nn.Linear(4, 3).double()
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    x = np.random.default_rng(0).normal(size=(5, 4))
    (ours(tensor(x)) ** 2).sum().backward(), (theirs(torch.tensor(x)) ** 2).sum().backward()
    return ours, theirs


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf"), "inf"])
def test_clipping_by_norm_is_pytorchs(max_norm, norm_type):
    ours, theirs = pair()
    a = utils.clip_grad_norm_(ours.parameters(), max_norm, norm_type)
    b = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type)
    assert a.item() == pytest.approx(b.item(), rel=1e-12)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-11)


def test_clipping_by_value_is_pytorchs():
    ours, theirs = pair()
    utils.clip_grad_value_(ours.parameters(), 0.7), torch.nn.utils.clip_grad_value_(theirs.parameters(), 0.7)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-11)


def test_clipping_reports_what_cannot_be_clipped():
    ours, _ = pair()
    ours.bias.grad = tensor(np.array([1.0, np.nan, 1.0]))
    with pytest.raises(RuntimeError, match=r"total norm.*nan"):
        utils.clip_grad_norm_(ours.parameters(), 1.0, error_if_nonfinite=True)
    assert utils.clip_grad_norm_([], 1.0).item() == 0.0


@pytest.mark.parametrize("clip", [utils.clip_grad_norm_, utils.clip_grad_value_])
def test_clipping_a_module_asks_for_its_parameters(clip):
    ours, _ = pair()
    for model in (ours, nn.Sequential(ours)):
        wanted = (
            f"^{clip.__name__}: an iterable of tensors is needed, got a {type(model).__name__}; pass model.parameters"
        )
        with pytest.raises(TypeError, match=wanted):
            clip(model, 1.0)
    with pytest.raises(TypeError, match=r"an iterable of tensors is needed, got a generator"):
        clip(ours.named_parameters(), 1.0)
    with pytest.raises(TypeError, match="an iterable of tensors is needed, got a float"):
        clip(1.0, 1.0)
    clip(nn.ParameterList(ours.parameters()), 1.0)


def test_parameters_as_a_vector():
    ours, _ = pair()
    vector = utils.parameters_to_vector(ours.parameters())
    assert vector.shape == (15,)
    utils.vector_to_parameters(vector.detach() * 0 + tensor(np.arange(15.0)), ours.parameters())
    np.testing.assert_array_equal(ours.weight.numpy().ravel(), np.arange(12))
    np.testing.assert_array_equal(ours.bias.numpy(), [12, 13, 14])
    with pytest.raises(ValueError, match="15 elements"):
        utils.vector_to_parameters(vector[:3], ours.parameters())


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_is_pytorchs(dim):
    ours, theirs = pair()
    utils.parametrizations.weight_norm(ours, dim=dim), torch.nn.utils.parametrizations.weight_norm(theirs, dim=dim)
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    for name, value in ours.state_dict().items():
        np.testing.assert_allclose(value.numpy(), theirs.state_dict()[name].numpy(), rtol=1e-11)
    ours.zero_grad(), theirs.zero_grad()
    x = np.random.default_rng(1).normal(size=(5, 4))
    (ours(tensor(x)) ** 2).sum().backward(), (theirs(torch.tensor(x)) ** 2).sum().backward()
    grads = {n: p.grad for n, p in theirs.named_parameters()}
    for name, p in ours.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), grads[name].numpy(), rtol=1e-9, atol=1e-12)


def test_a_parametrized_module_copies_assigns_and_goes_back():
    ours, _ = pair()
    plain, untouched = ours.weight.numpy().copy(), nn.Linear(4, 3)
    utils.parametrizations.weight_norm(ours)
    assert utils.parametrize.is_parametrized(ours, "weight") and not utils.parametrize.is_parametrized(untouched)
    assert "weight" not in dict(ours.named_parameters()) and "weight" in dict(untouched.named_parameters())
    twin = copy.deepcopy(ours)
    with no_grad():
        twin.weight = tensor(plain * 2)
    np.testing.assert_allclose(twin.weight.numpy(), plain * 2, rtol=1e-12)
    np.testing.assert_allclose(ours.weight.numpy(), plain, rtol=1e-12)
    utils.parametrize.remove_parametrizations(ours, "weight")
    assert type(ours) is nn.Linear and isinstance(ours.weight, nn.Parameter)
    np.testing.assert_allclose(ours.weight.numpy(), plain, rtol=1e-12)


def test_spectral_norm_makes_the_largest_singular_value_one():
    for layer in (nn.Linear(6, 5), nn.Conv2d(3, 4, 3)):
        # how fast the iteration arrives depends on how close the second singular value is
        utils.parametrizations.spectral_norm(layer, n_power_iterations=40)
        for _ in range(5):
            w = layer.weight.numpy()
        assert np.linalg.svd(w.reshape(w.shape[0], -1), compute_uv=False)[0] == pytest.approx(1.0, rel=1e-3)
    layer.eval()
    np.testing.assert_array_equal(layer.weight.numpy(), layer.weight.numpy())
    layer.weight.sum().backward()
    assert layer.parametrizations.weight.original.grad is not None


def test_summary_lists_modules_shapes_and_counts():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    net[3].bias.requires_grad_(False)
    text = utils.summary(net, tensor(np.zeros((5, 1, 4, 4), np.float32)))
    assert "5×4×2×2" in text and "5×2" in text and "74 parameters, 72 of them trained" in text
    assert net.training and "Conv2d" in utils.summary(net)
