"""LeNet, ResNets and BERT beside PyTorch: the same weights and data, the loss and the gradient of every parameter.

In float64 they agree to 1e-8.  In float32 every gradient is compared with the float64 one, and may be at most 1.5 times as far
from it as PyTorch's own, of whose two memory layouts the worse one counts; so with both sides' autocast to bfloat16.  A ReLU whose input rounds to the other side of zero
moves all gradients before it a thousandfold, in either framework and either layout: ResNet-18's seed 0 has one, for LeZero and for
PyTorch's channels-last, and is left out.  `benchmarks/accuracy.py` shows more draws, and BERT-base with all its layers.
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


def images(*shape):
    return lambda r: r.normal(size=shape).astype(np.float32)


def tokens(*shape, vocabulary):
    return lambda r: r.integers(0, vocabulary, shape)


class MaskedWords(twins.Bert):
    """BERT-base that scores the words in every place, with Hugging Face's initial values."""

    def __init__(self, layers, vocabulary):
        super().__init__(vocabulary, 768, layers, 12, 3072, 512, head="mlm")
        for m in self.modules():
            if isinstance(m, (torch.nn.Linear, torch.nn.Embedding)):
                torch.nn.init.normal_(m.weight, std=0.02)


def bert(layers, vocabulary, *shape):
    options = {"num_hidden_layers": layers, "vocab_size": vocabulary, "dropout": 0.0}
    return (
        lambda: models.bert_base_for_masked_lm(**options),
        lambda: MaskedWords(layers, vocabulary),
        tokens(*shape, vocabulary=vocabulary),
        vocabulary,
    )


NETWORKS = {
    "lenet": (BenchmarkLeNet, TorchLeNet, images(8, 1, 28, 28), 10),
    "resnet18": (
        lambda: models.resnet18(num_classes=7),
        lambda: twins.ResNet(False, [2, 2, 2, 2], 7),
        images(4, 3, 64, 64),
        7,
    ),
    "resnet50": (
        lambda: models.resnet50(num_classes=7),
        lambda: twins.ResNet(True, [3, 4, 6, 3], 7),
        images(8, 3, 64, 64),
        7,
    ),
    "bert": bert(2, 1000, 4, 32),
}


def case(name, seed=0):
    make, reference, draw, classes = NETWORKS[name]
    torch.manual_seed(seed)
    r = np.random.default_rng(seed)
    inputs = draw(r)
    labels = r.integers(0, classes, inputs.shape if inputs.dtype.kind == "i" else inputs.shape[0])
    state = reference().state_dict()
    return make, reference, state, inputs, labels


def loss_of(functional, scores, labels):
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


def theirs(reference, state, inputs, labels, dtype, layout=torch.contiguous_format):
    """PyTorch's loss and gradients, by parameter name."""
    net = reference()
    net.load_state_dict(state)
    net = net.to(dtype).to(memory_format=layout)
    x = torch.tensor(inputs)
    if x.is_floating_point():
        x = x.to(dtype).to(memory_format=layout)
    loss = loss_of(torch.nn.functional, net(x), torch.tensor(labels))
    loss.backward()
    return loss.item(), {k: p.grad.numpy().astype(np.float64) for k, p in net.named_parameters()}


def ours(make, state, inputs, labels, dtype):
    """LeZero's loss and gradients, by parameter name."""
    net = make()
    if dtype is lz.float64:
        net.double()
    net.load_state_dict(
        {k: lz.tensor(v.numpy().astype(dtype.numpy) if v.is_floating_point() else v.numpy()) for k, v in state.items()}
    )
    x = lz.tensor(inputs.astype(dtype.numpy) if inputs.dtype.kind == "f" else inputs)
    loss = loss_of(F, net(x), lz.tensor(labels))
    loss.backward()
    return loss.item(), {k: p.grad.numpy().astype(np.float64) for k, p in net.named_parameters()}


def distances_from(exact, grads):
    """By parameter, the relative L2 distance of gradients from the exact ones.

    The exact gradient of a bias of attention's keys is zero, since it adds the same to all scores that a softmax compares; what
    is there of it counts beside the gradient of the queries' bias.
    """
    return {
        k: np.linalg.norm(grads[k] - g) / np.linalg.norm(exact[k.replace("key.bias", "query.bias")])
        for k, g in exact.items()
    }


@pytest.mark.parametrize("name", list(NETWORKS))
def test_float64_gradients_are_pytorchs(name):
    make, reference, state, inputs, labels = case(name)
    loss, grads = ours(make, state, inputs, labels, lz.float64)
    expected, exact = theirs(reference, state, inputs, labels, torch.float64)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert grads.keys() == exact.keys()
    far = distances_from(exact, grads)
    assert max(far.values()) <= 1e-8, far


def distances(name, seed, bf16=False):
    """By parameter, how far the float32 gradient is from the float64 one: ours, and PyTorch's with its worse layout.

    bf16 : under autocast to bfloat16, on both sides
    """
    make, reference, state, inputs, labels = case(name, seed)
    _, exact = theirs(reference, state, inputs, labels, torch.float64)
    with lz.amp.autocast("cpu", dtype=lz.bfloat16, enabled=bf16):
        _, grads = ours(make, state, inputs, labels, lz.float32)
    formats = [torch.contiguous_format] + [torch.channels_last] * (inputs.ndim == 4)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        layouts = [
            distances_from(exact, theirs(reference, state, inputs, labels, torch.float32, layout)[1])
            for layout in formats
        ]
    return distances_from(exact, grads), {k: max(far[k] for far in layouts) for k in exact}


def over_draws(draws):
    """By parameter, the root mean square of distances over several draws."""
    return {k: float(np.sqrt(np.mean([far[k] ** 2 for far in draws]))) for k in draws[0]}


DRAWS = {"lenet": (0, 1, 2), "resnet18": (1, 2, 3), "bert": (0, 1, 2)}
HALF_ULP = 2.0**-24  # how far the nearest float32 number may be: nobody can be asked to be nearer


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in DRAWS.items() for seed in seeds])
def test_float32_gradients_are_as_exact_as_pytorchs(name, seed):
    near, far = distances(name, seed)
    ratios = {k: near[k] / max(far[k], HALF_ULP) for k in near}
    assert max(ratios.values()) <= 1.5, {k: round(v, 2) for k, v in ratios.items() if v > 1.5}


def test_float32_gradients_of_fifty_layers_are_as_exact_as_pytorchs_over_draws():
    """Some ReLU rounds the other way in every draw and on every side, so that a single draw is decided by chance."""
    near, far = map(over_draws, zip(*(distances("resnet50", seed) for seed in range(4))))
    ratios = {k: near[k] / far[k] for k in near}
    assert max(ratios.values()) <= 1.5, {k: round(v, 2) for k, v in ratios.items() if v > 1.5}


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_gradients_under_autocast_are_as_exact_as_pytorchs_over_draws(name):
    near, far = map(over_draws, zip(*(distances(name, seed, bf16=True) for seed in range(3))))
    ratios = {k: near[k] / far[k] for k in near}
    assert max(ratios.values()) <= 1.5, {k: round(v, 2) for k, v in ratios.items() if v > 1.5}
