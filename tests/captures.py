"""Networks and training steps that the tests of ``lz.jit`` capture."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.hal import registry
from lezero.nn import functional as F

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")
"""Tests that look into the CPU backend; all others hold on every backend."""


def batch(n=8, seed=0):
    r = np.random.default_rng(seed)
    return lz.tensor(r.normal(size=(n, 6)).astype(np.float32)), lz.tensor(r.integers(0, 4, n))


def network(kind, seed=0):
    lz.manual_seed(seed)
    layers = {
        "plain": [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)],
        "dropout": [nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.4), nn.Linear(16, 4)],
        "batch_norm": [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)],
    }[kind]
    return nn.Sequential(*layers)


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
}


def trainer(kind, optimizer):
    net = network(kind)
    opt = OPTIMIZERS[optimizer](net.parameters())

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, opt, step


def state_of(net, opt):
    arrays = [t.numpy().copy() for t in net.state_dict().values()]
    return arrays + [v.numpy().copy() for s in opt.state.values() for v in s.values()]


def follow(captured, recorded, net, other_net, opt, other_opt, first=10, calls=4):
    for i in range(first, first + calls):
        assert captured(*batch(seed=i)).item() == recorded(*batch(seed=i)).item()
    for a, b in zip(state_of(net, opt), state_of(other_net, other_opt), strict=True):
        np.testing.assert_array_equal(a, b)
