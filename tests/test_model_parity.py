"""LeNet and ResNet-18 beside PyTorch: the same weights and images, the loss and the gradient of every parameter.

In float64 they agree to 1e-8.  In float32 every gradient is compared with the float64 one, and may be at most 1.5 times as far
from it as PyTorch's own, of whose two memory layouts the worse one counts.  A ReLU whose input rounds to the other side of zero
moves all gradients before it a thousandfold, in either framework and either layout: ResNet-18's seed 0 has one, for LeZero and for
PyTorch's channels-last, and is left out.  `benchmarks/accuracy.py` shows more draws.
"""

import numpy as np
import pytest

import lezero as lz
from lezero import models, nn
from lezero.nn import functional as F

torch = pytest.importorskip("torch")

import model_twins as twins  # noqa: E402


class BenchmarkLeNet(nn.Module):
    """The network of the benchmarks: five layers, ReLU, max pooling."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.l1, self.l2, self.l3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2).flatten(1)
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


class TorchLeNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = torch.nn.Conv2d(1, 6, 5, padding=2), torch.nn.Conv2d(6, 16, 5)
        self.l1, self.l2, self.l3 = torch.nn.Linear(400, 120), torch.nn.Linear(120, 84), torch.nn.Linear(84, 10)

    def forward(self, x):
        f = torch.nn.functional
        x = f.max_pool2d(f.relu(self.c1(x)), 2)
        x = f.max_pool2d(f.relu(self.c2(x)), 2).flatten(1)
        return self.l3(f.relu(self.l2(f.relu(self.l1(x)))))


NETWORKS = {
    "lenet": (BenchmarkLeNet, TorchLeNet, (8, 1, 28, 28), 10),
    "resnet18": (
        lambda: models.resnet18(num_classes=7),
        lambda: twins.ResNet(False, [2, 2, 2, 2], 7),
        (4, 3, 64, 64),
        7,
    ),
}


def case(name, seed=0):
    make, reference, shape, classes = NETWORKS[name]
    torch.manual_seed(seed)
    r = np.random.default_rng(seed)
    images, labels = r.normal(size=shape).astype(np.float32), r.integers(0, classes, shape[0])
    state = reference().state_dict()
    return make, reference, state, images, labels


def theirs(reference, state, images, labels, dtype, layout):
    """PyTorch's loss and gradients, by parameter name."""
    net = reference()
    net.load_state_dict(state)
    net = net.to(dtype).to(memory_format=layout)
    x = torch.tensor(images).to(dtype).to(memory_format=layout)
    loss = torch.nn.functional.cross_entropy(net(x), torch.tensor(labels))
    loss.backward()
    return loss.item(), {k: p.grad.numpy().astype(np.float64) for k, p in net.named_parameters()}


def ours(make, state, images, labels, dtype):
    """LeZero's loss and gradients, by parameter name."""
    net = make()
    if dtype is lz.float64:
        net.double()
    net.load_state_dict(
        {k: lz.tensor(v.numpy().astype(dtype.numpy) if v.is_floating_point() else v.numpy()) for k, v in state.items()}
    )
    x = lz.tensor(images.astype(dtype.numpy))
    loss = F.cross_entropy(net(x), lz.tensor(labels))
    loss.backward()
    return loss.item(), {k: p.grad.numpy().astype(np.float64) for k, p in net.named_parameters()}


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_float64_gradients_are_pytorchs(name):
    make, reference, state, images, labels = case(name)
    loss, grads = ours(make, state, images, labels, lz.float64)
    expected, exact = theirs(reference, state, images, labels, torch.float64, torch.contiguous_format)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert grads.keys() == exact.keys()
    far = {k: distance(grads[k], exact[k]) for k in exact}
    assert max(far.values()) <= 1e-8, far


def distances(name, seed):
    """By parameter, how far the float32 gradient is from the float64 one: ours, and PyTorch's with its worse layout."""
    make, reference, state, images, labels = case(name, seed)
    _, exact = theirs(reference, state, images, labels, torch.float64, torch.contiguous_format)
    _, grads = ours(make, state, images, labels, lz.float32)
    layouts = [
        theirs(reference, state, images, labels, torch.float32, layout)[1]
        for layout in (torch.contiguous_format, torch.channels_last)
    ]
    return (
        {k: distance(grads[k], exact[k]) for k in exact},
        {k: max(distance(g[k], exact[k]) for g in layouts) for k in exact},
    )


DRAWS = {"lenet": (0, 1, 2), "resnet18": (1, 2, 3)}
HALF_ULP = 2.0**-24  # how far the nearest float32 number may be: nobody can be asked to be nearer


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in DRAWS.items() for seed in seeds])
def test_float32_gradients_are_as_exact_as_pytorchs(name, seed):
    near, far = distances(name, seed)
    ratios = {k: near[k] / max(far[k], HALF_ULP) for k in near}
    assert max(ratios.values()) <= 1.5, {k: round(v, 2) for k, v in ratios.items() if v > 1.5}
