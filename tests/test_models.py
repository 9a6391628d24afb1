"""Models: the shapes, names and numbers of the published ones."""

import numpy as np
import pytest

from lezero import models, nn, optim
from lezero.nn import functional as F
from lezero.tensor import no_grad, tensor

torch = pytest.importorskip("torch")


def test_lenet5_trains():
    net = models.lenet5()
    assert sum(p.numel() for p in net.parameters()) == 61706
    r = np.random.default_rng(0)
    x, y = tensor(r.normal(size=(8, 1, 28, 28)).astype(np.float32)), tensor(r.integers(0, 10, 8))
    opt = optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    with pytest.raises(ValueError, match=r"linear.*\(8, 1024\)"):
        net(tensor(np.zeros((8, 1, 40, 40), np.float32)))


class TorchBlock(torch.nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        conv = lambda i, k, s: torch.nn.Conv2d(i, out, k, s, k // 2, bias=False)
        self.conv1, self.bn1 = conv(channels, 3, stride), torch.nn.BatchNorm2d(out)
        self.conv2, self.bn2 = conv(out, 3, 1), torch.nn.BatchNorm2d(out)
        self.downsample = (
            torch.nn.Sequential(conv(channels, 1, stride), torch.nn.BatchNorm2d(out)) if stride != 1 else None
        )

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class TorchResNet18(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(64)
        widths = [64, 64, 128, 256, 512]
        for i in range(4):
            blocks = [
                TorchBlock(widths[i], widths[i + 1], 1 if i == 0 else 2),
                TorchBlock(widths[i + 1], widths[i + 1], 1),
            ]
            setattr(self, f"layer{i + 1}", torch.nn.Sequential(*blocks))
        self.fc = torch.nn.Linear(512, classes)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def relative(a, b):
    return np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)


def test_resnet18_loss_gradients_and_statistics_are_pytorchs_in_float64():
    ours, theirs = models.resnet18(num_classes=5).double(), TorchResNet18(5).double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    r = np.random.default_rng(0)
    x, y = r.normal(size=(2, 3, 32, 32)), r.integers(0, 5, 2)
    a, b = (
        F.cross_entropy(ours(tensor(x)), tensor(y)),
        torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y)),
    )
    a.backward(), b.backward()
    assert a.item() == pytest.approx(b.item(), rel=1e-8)
    grads = {n: p.grad.numpy() for n, p in theirs.named_parameters()}
    for name, p in ours.named_parameters():
        assert relative(p.grad.numpy(), grads[name]) < 1e-8, name
    buffers = {n: v.numpy() for n, v in theirs.named_buffers()}
    for name, v in ours.named_buffers():
        assert relative(v.numpy(), buffers[name]) < 1e-8, name
    ours.eval(), theirs.eval()
    with no_grad():
        assert relative(ours(tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy()) < 1e-8


def test_blocks_can_start_as_the_identity():
    net = models.resnet18(zero_init_residual=True)
    blocks = [m for m in net.modules() if hasattr(type(m), "last_norm")]
    assert len(blocks) == 8 and not any(b.last_norm.weight.numpy().any() for b in blocks)
    assert isinstance(net.avgpool, nn.AdaptiveAvgPool2d)


@pytest.mark.parametrize(
    "name, parameters, entries",
    [
        ("resnet18", 11_689_512, 122),
        ("resnet34", 21_797_672, 218),
        ("resnet50", 25_557_032, 320),
        ("resnet101", 44_549_160, 626),
    ],
)
def test_resnets_have_the_published_sizes(name, parameters, entries):
    net = getattr(models, name)()
    assert sum(p.numel() for p in net.parameters()) == parameters
    state = net.state_dict()
    assert len(state) == entries
    for key in ("conv1.weight", "bn1.running_var", "layer2.0.downsample.0.weight", "layer4.1.conv2.weight", "fc.bias"):
        assert key in state
    assert ("layer1.0.conv3.weight" in state) == (name in ("resnet50", "resnet101"))
