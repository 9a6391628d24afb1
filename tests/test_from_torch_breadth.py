"""Modules of many kinds by way of ``torch.export``: results, gradients, buffers, names, and what is refused."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings

import numpy as np
import pytest

import lezero as lz
from lezero.interop import ConversionError

torch = pytest.importorskip("torch", reason="converting PyTorch's modules needs PyTorch")
nn, F = torch.nn, torch.nn.functional


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


class Of(nn.Module):
    """A function as a module, with the modules it uses."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *args, **kwargs):
        return self.function(self.parts, *args, **kwargs)


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("hidden", torch.ones(2, dtype=torch.float64), persistent=False)
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        self.seen.add_(x.detach().mean(0))
        self.seen = self.seen * 0.5
        return self.layer(x) * self.seen + self.hidden.sum()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again, self.table, self.scores = self.first, nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.scores.weight = self.table.weight

    def forward(self, ids):
        return self.scores(self.again(self.first(self.table(ids)).tanh()))


def in_place(parts, x):
    y = parts[0](x).clone()
    y[:, 1] = 0
    y[0].mul_(2)
    z = torch.zeros_like(y)
    z[:, :2] = y[:, 2:]
    y[:, 0] += z[:, 1]
    return y + z.masked_fill_(z > 2, 0.5)


def branches(parts, x):
    return torch.cond(x.sum() > 0, lambda x: parts[0](x).sin(), lambda x: parts[0](x).cos(), (x,))


def regions(parts, x):
    with torch.no_grad():
        y = parts[0](x)
    return torch.utils.checkpoint.checkpoint(parts[0], x, use_reentrant=False) * y + parts[0](x).detach() * x


def indexing(parts, x, i):
    picked = x[i].sum() + x[:, i].sum() + x[None, i, ..., 1:].sum() + x[x > 0].sum()
    written = x.index_put((i,), x[i] * 2).index_add(0, i, x[i]).scatter_add(1, i[:, None], x[i][:, :1])
    return picked + written + torch.take_along_dim(x[i], i[:, None], 1).sum() + torch.index_put(x, (i,), x[i], True)


def images(parts, x):
    resized = F.interpolate(x, size=(7, 9), mode="bilinear") + F.interpolate(x, (7, 9), mode="nearest-exact")
    pooled = F.adaptive_max_pool2d(x, 2).sum() + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).sum()
    values, places = F.max_pool2d(x, 2, return_indices=True)
    moved = (
        F.fold(F.unfold(x, 2), (4, 6), 2).sum() + F.pixel_shuffle(x, 2).sum() + F.max_unpool2d(values, places, 2).sum()
    )
    return resized.sum() + pooled + moved + F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False).sum()


def resizing(parts, x):
    smooth = [
        F.interpolate(x, size=(3, 9), mode=mode, antialias=antialias, align_corners=corners)
        for mode in ("bilinear", "bicubic")
        for antialias, corners in ((False, True), (True, False))
    ]
    deep = [F.interpolate(x[None], scale_factor=2, mode=mode) for mode in ("trilinear", "nearest", "nearest-exact")]
    return sum(y.sin().sum() for y in (*smooth, *deep))


def products(parts, x):
    y = torch.einsum("bij,bjk->bik", x, x) + torch.tensordot(x, x, dims=([2], [1])).sum()
    y = y + torch.baddbmm(x, x, x, beta=0.5, alpha=2) + torch.block_diag(x[0], x[1]).sum()
    return y + x.norm() + torch.linalg.inv(x @ x.mT + torch.eye(3, dtype=x.dtype)).sum() + x.unfold(1, 2, 1).sum()


def scores(parts, x, target):
    smooth = F.cross_entropy(x, target, label_smoothing=0.1, ignore_index=2) + F.nll_loss(F.log_softmax(x, 1), target)
    pairs = F.binary_cross_entropy_with_logits(x, x.sigmoid(), pos_weight=x[0].detach().exp()) + F.huber_loss(
        x, x * 2, delta=0.3
    )
    return smooth + pairs + F.kl_div(F.log_softmax(x, 1), x.softmax(1), reduction="batchmean") + F.logsigmoid(x).sum()


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, *, scale, extra=None):
        y = self.layer(x["a"][0]) * scale + x["b"]
        return {"y": y, "z": [y + 1, (y * 2, None)], "rows": y.shape[0], "extra": extra}


CASES = {
    "lstm": (nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True), (drawn(3, 6, 4),), {}),
    "lstm with a state": (nn.LSTM(4, 5, proj_size=3), (drawn(6, 3, 4), (drawn(1, 3, 3), drawn(1, 3, 5))), {}),
    "cells": (Of(lambda p, x, h: p[1](x, p[0](x, (h, h))[0]), nn.LSTMCell(4, 5), nn.GRUCell(4, 5)), (drawn(3, 4), drawn(3, 5)), {}),
    "transformer": (
        nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True, norm_first=True),
        (drawn(3, 5, 8), drawn(3, 4, 8)),
        {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])},
    ),
    "attention": (
        nn.MultiheadAttention(8, 2, kdim=6, vdim=7, add_bias_kv=True),
        (drawn(5, 3, 8), drawn(4, 3, 6), drawn(4, 3, 7)),
        {"average_attn_weights": False},
    ),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (drawn(2, 4, 5, 6),), {}),
    "norms": (nn.Sequential(nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True, track_running_stats=True)), (drawn(2, 6, 4, 4),), {}),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), (drawn(2, 3),), {}),
    "bag": (nn.EmbeddingBag(10, 4, mode="mean"), (torch.randint(0, 10, (9,)), torch.tensor([0, 2, 5])), {}),
    "stateful": (Stateful(), (drawn(4, 3),), {}),
    "tied": (Tied(), (torch.randint(0, 7, (3, 4)),), {}),
    "named": (Named(), ({"a": [drawn(3, 3)], "b": drawn(3)},), {"extra": drawn(2), "scale": 2.5}),
    "in place": (Of(in_place, nn.Linear(4, 4)), (drawn(4, 4),), {}),
    "branches": (Of(branches, nn.Linear(3, 3)), (drawn(4, 3),), {}),
    "regions": (Of(regions, nn.Linear(3, 3)), (drawn(4, 3),), {}),
    "indexing": (Of(indexing), (drawn(5, 5), torch.tensor([0, 2, 3])), {}),
    "images": (Of(images), (drawn(2, 4, 4, 6),), {}),
    "resizing": (Of(resizing), (drawn(2, 3, 4, 6),), {}),
    "products": (Of(products), (drawn(2, 3, 3),), {}),
    "scores": (Of(scores), (drawn(4, 6), torch.tensor([0, 2, 5, 1])), {}),
}  # fmt: skip


def ours(value):
    return torch.utils._pytree.tree_map(
        lambda t: lz.tensor(t.detach().numpy(), requires_grad=t.requires_grad) if isinstance(t, torch.Tensor) else t,
        value,
    )


def close(a, b, scale=0.0):
    a, b = a.detach().numpy(), b.detach().numpy()
    assert a.shape == b.shape
    assert np.linalg.norm(a - b) <= 1e-9 * max(np.linalg.norm(b), scale, 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_training_step_is_pytorchs(name):
    torch.manual_seed(0)
    module, args, kwargs = CASES[name]
    module = module.double().train()
    tree = torch.utils._pytree
    args = tree.tree_map(
        lambda t: t.clone().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args
    )
    converted = lz.from_torch(module, args, kwargs)
    mine = ours(args)
    got, structure = tree.tree_flatten(converted(*mine, **ours(kwargs)))
    want, expected = tree.tree_flatten(module(*args, **kwargs))
    assert structure == expected
    total, other = 0.0, 0.0
    for g, w in zip(got, want):
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        close(g, w)
        if w.requires_grad:
            factors = torch.randn(w.shape, dtype=w.dtype)
            total, other = total + (w * factors).sum(), other + (g * lz.tensor(factors.numpy())).sum()
    total.backward()
    other.backward()
    gradients = dict(converted.named_parameters())
    assert list(gradients) == [n for n, _ in module.named_parameters()]
    largest = max([float(p.grad.norm()) for p in module.parameters() if p.grad is not None], default=0.0)
    for n, p in module.named_parameters():
        if p.grad is None:
            assert gradients[n].grad is None or not gradients[n].grad.numpy().any()
        else:
            close(gradients[n].grad, p.grad, largest)
    for theirs, here in zip(tree.tree_leaves(args), tree.tree_leaves(mine)):
        if isinstance(theirs, torch.Tensor) and theirs.grad is not None:
            close(here.grad, theirs.grad)
    buffers = dict(converted.named_buffers())
    for n, b in module.named_buffers():
        close(buffers[n], b)
    assert list(converted.state_dict()) == list(module.state_dict())


def test_parameters_lie_in_pytorchs_memory_until_they_are_trained():
    module = nn.Linear(3, 2)
    shared, own = lz.from_torch(module, torch.randn(2, 3)), lz.from_torch(module, torch.randn(2, 3), copy=True)
    before = module.weight.detach().numpy().copy()
    with torch.no_grad():
        module.weight += 1
    x = lz.ones(1, 3)
    assert np.shares_memory(shared.weight.numpy(), module.weight.detach().numpy())
    np.testing.assert_allclose(shared(x).detach().numpy(), module(torch.ones(1, 3)).detach().numpy(), rtol=1e-6)
    np.testing.assert_array_equal(own.weight.numpy(), before)
    optimizer = lz.optim.SGD(shared.parameters(), lr=0.5)
    shared(x).sum().backward()
    optimizer.step()
    np.testing.assert_array_equal(module.weight.detach().numpy(), before + 1)
    np.testing.assert_allclose(shared.weight.numpy(), before + 0.5, rtol=1e-6)


def test_half_precision_and_autocast():
    class Low(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.layer(x), self.layer(x).float()

    x = torch.randn(3, 8)
    module = Low()
    low, high = lz.from_torch(module, x)(lz.tensor(x.numpy()))
    assert low.dtype is lz.bfloat16 and high.dtype is lz.float32
    np.testing.assert_allclose(high.detach().numpy(), module(x)[1].detach().numpy(), atol=0.02)
    half = nn.Linear(8, 8).bfloat16()
    converted = lz.from_torch(half, x.bfloat16())
    assert converted.weight.dtype is lz.bfloat16
    got = converted(lz.tensor(x.numpy()).bfloat16()).float().detach().numpy()
    np.testing.assert_allclose(got, half(x.bfloat16()).float().detach().numpy(), atol=0.02)


def test_dropout_is_there_in_training_only_and_frozen_parts_stay_frozen():
    module = nn.Sequential(nn.BatchNorm1d(64), nn.Dropout(0.5)).train()
    module[0].eval()
    converted = lz.from_torch(module, torch.randn(50, 64))
    assert [m.training for m in module] == [False, True]
    x = lz.ones(50, 64)
    y = converted(x).detach().numpy()
    assert 0.4 < (y == 0).mean() < 0.6
    np.testing.assert_allclose(y[y != 0], 2, rtol=1e-4)
    np.testing.assert_array_equal(dict(converted.named_buffers())["0.running_mean"].numpy(), np.zeros(64))
    np.testing.assert_allclose(converted.eval()(x).detach().numpy(), 1, rtol=1e-4)


def test_extents_change_from_call_to_call_as_far_as_they_may():
    module = nn.Linear(4, 2)
    free = lz.from_torch(module, torch.randn(3, 5, 4))
    assert tuple(free(lz.ones(7, 2, 4)).shape) == (7, 2, 2)
    batch = torch.export.Dim("batch", max=64)
    some = lz.from_torch(module, torch.randn(3, 5, 4), dynamic_shapes=({0: batch},))
    assert tuple(some(lz.ones(9, 5, 4)).shape) == (9, 5, 2)
    with pytest.raises(ValueError, match=r"converted for the shape \(any, 5, 4\), got \(9, 6, 4\)"):
        some(lz.ones(9, 6, 4))


def test_calls_that_do_not_fit_are_refused():
    converted = lz.from_torch(Named(), ({"a": [torch.ones(3, 3)], "b": torch.ones(3)},), {"scale": 2.5})
    x = {"a": [lz.ones(3, 3)], "b": lz.ones(3)}
    with pytest.raises(ValueError, match=r"part of what was converted: 2\.5, got 3"):
        converted(x, scale=3)
    with pytest.raises(TypeError, match=r"by name \['scale'\], got \[\]"):
        converted(x)
    with pytest.raises(TypeError, match="structure"):
        converted({"a": [], "b": lz.ones(3)}, scale=2.5)
    with pytest.raises(TypeError, match=r"lz\.tensor\(x\.numpy\(\)\)"):
        converted({"a": [torch.ones(3, 3)], "b": lz.ones(3)}, scale=2.5)


def test_what_is_missing_is_named_with_its_module_and_line():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    with pytest.raises(
        ConversionError, match=r"aten\.special_bessel_j0, in 1 \(Inner\) \(File .*test_from_torch_breadth"
    ):
        lz.from_torch(nn.Sequential(nn.ReLU(), Inner()), torch.randn(3))
    with pytest.raises(ConversionError, match=r"torch\.export refuses Of"):
        lz.from_torch(Of(lambda p, x: x if x.sum().item() > 0 else -x), torch.randn(3))


class Sharing(nn.Module):
    """Two layers, and norms, that share what `how` says."""

    def __init__(self, how):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        self.m, self.n = nn.BatchNorm1d(4).double(), nn.BatchNorm1d(4).double()
        match how:
            case "a parameter":
                self.b.weight = self.a.weight
            case "a module":
                self.b, self.n = self.a, self.m
            case "buffers":
                self.n.running_mean, self.n.running_var = self.m.running_mean, self.m.running_var
            case "a parametrised module":
                self.b = self.a = nn.utils.parametrizations.weight_norm(self.a)
            case "weight norm":
                self.a = nn.utils.weight_norm(self.a)
            case "spectral norm":
                self.a = nn.utils.parametrizations.spectral_norm(self.a)

    def forward(self, x):
        return self.b(self.n(self.m(self.a(x)).tanh()))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning", "ignore:The tensor attribute")
@pytest.mark.parametrize(
    "how", ["a parameter", "a module", "buffers", "a parametrised module", "weight norm", "spectral norm"]
)
def test_what_is_shared_in_pytorch_is_one_here_and_in_copies(how):
    torch.manual_seed(0)
    theirs, x = Sharing(how), drawn(5, 4)
    ours = lz.from_torch(theirs, x, copy=True)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copies = [ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    steps = torch.optim.SGD(theirs.parameters(), 0.1)
    for _ in range(2):
        steps.zero_grad()
        theirs(x).square().sum().backward()
        steps.step()
    want = theirs.state_dict()
    for module in copies:
        optimizer = lz.optim.SGD(module.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(lz.tensor(x.numpy())).square().sum().backward()
            optimizer.step()
        assert len(list(module.parameters())) == len(list(theirs.parameters()))
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(value.numpy(), want[name].detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)
        module.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("given", [{}, {"is_causal": False}])
def test_a_mask_of_an_encoder_needs_no_word_about_being_causal(given):
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).double().eval()
    x, mask = drawn(2, 5, 8), nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    ours = lz.from_torch(theirs, x, {"mask": mask, **given})
    for m in (mask, mask.T.contiguous()):
        got = ours(lz.tensor(x.numpy()), mask=lz.tensor(m.numpy()), **given)
        want = theirs(x, mask=m, **given).detach()
        np.testing.assert_allclose(got.detach().numpy(), want.numpy(), rtol=1e-9, atol=1e-12)


def test_an_example_may_be_an_array_or_a_tensor_of_lezeros():
    theirs, x = nn.Linear(3, 2), np.ones((2, 3), np.float32)
    for example in (x, lz.tensor(x)):
        got = lz.from_torch(theirs, example)(lz.tensor(x)).detach().numpy()
        np.testing.assert_allclose(got, theirs(torch.tensor(x)).detach().numpy(), rtol=1e-6)


def test_refusals_are_short_and_say_what_to_do(capfd):
    with pytest.raises(ConversionError, match=r"data-dependent.*by the values of a tensor.*a flag") as refused:
        lz.from_torch(Of(lambda p, x: x if x.sum().item() > 0 else -x), torch.randn(3))
    assert len(str(refused.value).splitlines()) == 1
    single = lz.from_torch(nn.Linear(3, 2), torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"\(1, any\), got \(4, 3\).*example's is 1 \(give one of 2 or more\)"):
        single(lz.ones(4, 3))
    assert capfd.readouterr() == ("", "")


def test_without_pytorch_its_installation_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        lz.from_torch(object(), None)
