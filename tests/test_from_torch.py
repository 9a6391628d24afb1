"""PyTorch's modules as LeZero's: outputs, gradients, running statistics and names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from lezero.interop import ConversionError

torch = pytest.importorskip("torch", reason="converting PyTorch's modules needs PyTorch")


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.pool, self.last = torch.nn.MaxPool2d(2), torch.nn.Linear(8 * 16, 5)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.lay = torch.nn.LayerNorm(5)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        h = x.flatten(2).transpose(1, 2)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.lay(self.last(h.reshape(x.shape[0], -1))).softmax(-1)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(20, 6), torch.nn.Linear(6, 3)

    def forward(self, ids):
        x = self.table(ids)
        state = torch.zeros_like(x[:, 0])
        for k in range(ids.shape[1]):
            state = torch.tanh(state + x[:, k])
        return {"logits": self.out(state), "state": state}


def relative(a, b):
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12))


@pytest.mark.parametrize("training", [False, True])
def test_a_step_of_both_is_the_same(training):
    torch.manual_seed(0)
    theirs = Mixed().double().train(training)
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    ours = lz.from_torch(theirs, x)
    assert ours.training is training
    y, z = theirs(x), ours(lz.tensor(x.numpy()))
    assert relative(z.detach().numpy(), y.detach().numpy()) < 1e-12
    g = torch.randn(y.shape, dtype=torch.float64)
    (y * g).sum().backward()
    (z * lz.tensor(g.numpy())).sum().backward()
    mine = dict(ours.named_parameters())
    assert mine.keys() == dict(theirs.named_parameters()).keys()
    largest = max(float(p.grad.norm()) for p in theirs.parameters())
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(mine[name].grad.numpy(), p.grad.numpy(), rtol=1e-8, atol=1e-10 * largest)
    buffers = dict(ours.named_buffers())
    for name, b in theirs.named_buffers():
        np.testing.assert_allclose(buffers[name].numpy(), b.numpy(), rtol=1e-10)


def test_other_batches_and_state_dicts():
    torch.manual_seed(0)
    theirs = Mixed().eval()
    ours = lz.from_torch(theirs, torch.randn(3, 3, 8, 8))
    x = torch.randn(7, 3, 8, 8)
    np.testing.assert_allclose(
        ours(lz.tensor(x.numpy())).detach().numpy(), theirs(x).detach().numpy(), rtol=1e-4, atol=1e-6
    )
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})


def test_results_in_a_structure():
    theirs = Recurrent().eval()
    ours = lz.from_torch(theirs, torch.randint(0, 20, (4, 5)))
    ids = torch.randint(0, 20, (6, 5))
    want, got = theirs(ids), ours(lz.tensor(ids.numpy()))
    assert got.keys() == want.keys()
    for k in want:
        np.testing.assert_allclose(got[k].detach().numpy(), want[k].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_not_there_is_named():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    with pytest.raises(ConversionError, match=r"special_bessel_j0.*test_from_torch"):
        lz.from_torch(Odd(), torch.randn(3))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        lz.from_torch(lambda x: x, torch.randn(3))


@pytest.mark.parametrize("page", ["onnx.md", "onnx.zh-CN.md"])
def test_the_programs_of_the_page_run(page, tmp_path, monkeypatch, capsys):
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package, reason="the page's programs need it")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), page, "exec"), {})
    out = capsys.readouterr().out
    assert "100 %" in out and float(re.search(r"difference (\S+)", out)[1]) < 1e-4


@pytest.mark.parametrize("page", ["migrating.md", "migrating.zh-CN.md"])
def test_the_programs_of_the_page_on_migrating_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), page, "exec"), {})
    out = capsys.readouterr().out
    assert "[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]] [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]" in out
    assert "refused: " in out and float(re.search(r"difference (\S+)", out)[1]) < 1e-5
