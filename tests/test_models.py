"""Models: the names and sizes of the published ones, and the loss and all gradients of PyTorch's twins in float64."""

import hashlib
import math
import subprocess
import sys

import numpy as np
import pytest

import lezero as lz
from lezero import models, nn, optim
from lezero.models.resnet import Bottleneck
from lezero.nn import functional as F
from lezero.runtime import stats
from lezero.tensor import no_grad, tensor

torch = pytest.importorskip("torch")

import model_twins as twins  # noqa: E402


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


def relative(a, b, scale=0.0):
    """‖a - b‖ / ‖b‖; a gradient that is zero but for rounding is measured against `scale`."""
    return np.linalg.norm(a - b) / max(np.linalg.norm(b), scale, 1e-30)


BERT = {
    "vocab_size": 41,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
BERT_TWIN = (41, 16, 2, 4, 24, 12)
MOBILE = ((1, 16, 1, 1), (6, 24, 2, 2), (3, 32, 2, 2))
VIT = {"image_size": 12, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 12, "mlp_dim": 20}
VGG = ((6, 1), (8, 2))
images = lambda *shape: lambda r: (r.normal(size=shape),)
tokens = lambda vocab: lambda r: (r.integers(1, vocab, (3, 7)),)


def padded_tokens(vocab):
    """Tokens with paddings (token 0), the mask that hides them, and, for two kinds of segments, their numbers."""

    def draw(r):
        ids, mask = r.integers(1, vocab, (3, 7)), np.ones((3, 7), np.int64)
        ids[1, 5:], mask[1, 5:] = 0, 0
        return ids, mask

    return draw


def segmented_tokens(r):
    ids, mask = padded_tokens(41)(r)
    return ids, mask, r.integers(0, 2, (3, 7))


# name: our network, PyTorch's, what draws the inputs
SMALL = {
    "resnet18": (
        lambda: models.resnet18(num_classes=5),
        lambda: twins.ResNet(False, [2, 2, 2, 2], 5),
        images(2, 3, 32, 32),
    ),
    "bottleneck": (
        lambda: models.ResNet(Bottleneck, [2, 1, 1, 1], num_classes=5),
        lambda: twins.ResNet(True, [2, 1, 1, 1], 5),
        images(2, 3, 40, 33),
    ),
    "mobilenet_v2": (
        lambda: models.mobilenet_v2(num_classes=5, width_mult=0.6, inverted_residual_setting=MOBILE, dropout=0.0),
        lambda: twins.MobileNetV2(MOBILE, 0.6, 5),
        images(2, 3, 24, 20),
    ),
    "vgg": (
        lambda: models.VGG(VGG, num_classes=5, hidden_features=9, dropout=0.0),
        lambda: twins.VGG(VGG, False, 9, 5),
        images(2, 3, 16, 12),
    ),
    "vgg_bn": (
        lambda: models.VGG(VGG, batch_norm=True, num_classes=5, hidden_features=9, dropout=0.0),
        lambda: twins.VGG(VGG, True, 9, 5),
        images(2, 3, 28, 30),
    ),
    "vit": (
        lambda: models.vit_b_16(num_classes=5, **VIT),
        lambda: twins.ViT(12, 4, 2, 2, 12, 20, 5),
        images(2, 3, 12, 12),
    ),
    "vit with representation": (
        lambda: models.vit_b_16(num_classes=5, representation_size=7, **VIT),
        lambda: twins.ViT(12, 4, 2, 2, 12, 20, 5, 7),
        images(2, 3, 12, 12),
    ),
    "bert": (
        lambda: models.bert_base(dropout=0.0, **BERT),
        lambda: twins.Bert(*BERT_TWIN),
        tokens(41),
    ),
    "bert for masked tokens": (
        lambda: models.bert_base_for_masked_lm(dropout=0.0, **BERT),
        lambda: twins.Bert(*BERT_TWIN, head="mlm"),
        padded_tokens(41),
    ),
    "bert for sequences": (
        lambda: models.bert_base_for_sequence_classification(3, dropout=0.0, **BERT),
        lambda: twins.Bert(*BERT_TWIN, head=3),
        segmented_tokens,
    ),
    "gpt2": (
        lambda: models.gpt2(vocab_size=37, n_positions=9, n_embd=12, n_layer=2, n_head=3, dropout=0.0),
        lambda: twins.GPT2(37, 9, 12, 2, 3),
        tokens(37),
    ),
    "gpt2 with paddings": (
        lambda: models.gpt2(vocab_size=37, n_positions=9, n_embd=12, n_layer=2, n_head=3, dropout=0.0),
        lambda: twins.GPT2(37, 9, 12, 2, 3),
        padded_tokens(37),
    ),
    "unet": (lambda: models.unet(width=4), lambda: twins.UNet(3, 2, False, 4), images(2, 3, 32, 37)),
    "bilinear unet": (
        lambda: models.unet(n_channels=2, n_classes=3, bilinear=True, width=4),
        lambda: twins.UNet(2, 3, True, 4),
        images(2, 2, 32, 37),
    ),
}


def drawn_state(module):
    """PyTorch's initial values and some noise on them, so that no bias is zero and no scale one."""
    state = {}
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            value = value + 0.1 * torch.randn(value.shape, dtype=value.dtype)
        state[name] = value.abs() + 0.5 if name.endswith("running_var") else value
    return state


def pair(name):
    """Our network and PyTorch's with the same values, in float64, and inputs."""
    make, reference, draw = SMALL[name]
    torch.manual_seed(0)
    ours, theirs = make().double(), reference().double()
    theirs.load_state_dict(drawn_state(theirs))
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return ours, theirs, draw(np.random.default_rng(0))


@pytest.mark.parametrize("name", SMALL)
def test_loss_gradients_and_statistics_are_pytorchs_in_float64(name):
    ours, theirs, inputs = pair(name)
    y, z = ours(*map(tensor, inputs)), theirs(*map(torch.tensor, inputs))
    assert tuple(y.shape) == tuple(z.shape)
    classes = z.shape[1] if z.ndim == 4 else z.shape[-1]
    target = np.random.default_rng(1).integers(0, classes, z.numel() // classes)
    rows = (lambda v: v.permute(0, 2, 3, 1).reshape(-1, classes)) if z.ndim == 4 else lambda v: v.reshape(-1, classes)
    a = F.cross_entropy(rows(y), tensor(target))
    b = torch.nn.functional.cross_entropy(rows(z), torch.tensor(target))
    a.backward(), b.backward()
    assert a.item() == pytest.approx(b.item(), rel=1e-8)
    mine = {n: p.grad.numpy() for n, p in ours.named_parameters() if p.grad is not None}
    grads = {n: p.grad.numpy() for n, p in theirs.named_parameters() if p.grad is not None}
    assert mine.keys() == grads.keys()
    largest = max(np.linalg.norm(g) for g in grads.values())
    far = {n: relative(mine[n], grads[n], 1e-6 * largest) for n in grads}
    assert max(far.values()) < 1e-8, {n: d for n, d in far.items() if d >= 1e-8}
    buffers = {n: v.numpy() for n, v in theirs.named_buffers()}
    for n, v in ours.named_buffers():
        assert relative(v.numpy(), buffers[n]) < 1e-8, n
    ours.eval(), theirs.eval()
    with no_grad():
        y, z = ours(*map(tensor, inputs)), theirs(*map(torch.tensor, inputs))
    assert relative(y.numpy(), z.detach().numpy()) < 1e-8


@pytest.mark.parametrize("name", SMALL)
def test_states_go_through_a_file(name, tmp_path):
    ours, theirs, inputs = pair(name)
    lz.save(ours.state_dict(), tmp_path / "model.lzm")
    again = SMALL[name][0]().double()
    again.load_state_dict(lz.load(tmp_path / "model.lzm"))
    for n, value in theirs.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[n].numpy(), value.numpy(), err_msg=n)
    ours.eval(), again.eval()
    with no_grad():
        np.testing.assert_array_equal(ours(*map(tensor, inputs)).numpy(), again(*map(tensor, inputs)).numpy())


def test_blocks_can_start_as_the_identity():
    net = models.resnet18(zero_init_residual=True)
    blocks = [m for m in net.modules() if hasattr(type(m), "last_norm")]
    assert len(blocks) == 8 and not any(b.last_norm.weight.numpy().any() for b in blocks)
    assert isinstance(net.avgpool, nn.AdaptiveAvgPool2d)


def digest(state):
    lines = "\n".join(sorted(f"{name} {tuple(int(d) for d in value.shape)}" for name, value in state.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


# parameters, entries of the state, and a digest of their names and shapes: those of torchvision 0.28 and transformers 5.24
PUBLISHED = {
    "resnet18": (11689512, 122, "5191d63ec3989592"),
    "resnet34": (21797672, 218, "f8de2a1812ef85e4"),
    "resnet50": (25557032, 320, "a87e91cd6bd1f939"),
    "resnet101": (44549160, 626, "dbc3ca74fffafc72"),
    "mobilenet_v2": (3504872, 314, "e3eb10f890f74c6e"),
    "vgg16": (138357544, 32, "ba63c2556d912509"),
    "vgg16_bn": (138365992, 97, "86bad13b66635552"),
    "vit_b_16": (86567656, 152, "2c2360f6707280a8"),
    "bert_base": (109482240, 199, "7c984fc4b78ff000"),
    "bert_base_for_masked_lm": (109514298, 204, "03c540530381ce4c"),
    "bert_base_for_sequence_classification": (109483778, 201, "14950d2c4ae9e7cb"),
    "gpt2": (124439808, 149, "70c5d03877850dde"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_shapes_and_sizes_are_the_published_ones(name, undrawn):
    net = getattr(models, name)()
    state = net.state_dict()
    assert (sum(p.numel() for p in net.parameters()), len(state), digest(state)) == PUBLISHED[name]


def test_unet_has_the_sizes_of_the_implementation_it_is_named_after(undrawn):
    sizes = {
        bilinear: sum(p.numel() for p in models.unet(bilinear=bilinear).parameters()) for bilinear in (False, True)
    }
    assert sizes == {False: 31_037_698, True: 17_263_042}


MAKING = """
from pathlib import Path
from lezero import models

peak = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
before = peak()
net = models.bert_base_for_masked_lm()
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_a_large_model_takes_no_memory_before_its_values_are_drawn():
    done = subprocess.run([sys.executable, "-c", MAKING], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 60  # MiB; the word embeddings alone are 89


def test_making_a_model_runs_nothing():
    before = stats()["runs"]
    models.bert_base_for_masked_lm(hidden_size=24, intermediate_size=24)
    models.resnet18(num_classes=3)
    models.vit_b_16(hidden_dim=24, mlp_dim=24)
    assert stats()["runs"] == before


# model, parameter, its mean and deviation at the start
small_mobilenet = lambda: models.mobilenet_v2(inverted_residual_setting=MOBILE)
small_vgg = lambda: models.VGG(((64, 2),), hidden_features=80)
small_vit = lambda: models.vit_b_16(num_layers=1)
small_bert = lambda: models.bert_base(num_hidden_layers=1, vocab_size=50)
small_gpt2 = lambda: models.gpt2(n_layer=8, n_embd=96, vocab_size=50)
STARTS = [
    (small_mobilenet, "features.1.conv.0.0.weight", 0.0, math.sqrt(2 / (32 * 9))),
    (small_mobilenet, "classifier.1.weight", 0.0, 0.01),
    (models.resnet18, "layer1.0.conv2.weight", 0.0, math.sqrt(2 / (64 * 9))),
    (small_vgg, "features.2.weight", 0.0, math.sqrt(2 / (64 * 9))),
    (small_vgg, "features.2.bias", 0.0, 0.0),
    (small_vgg, "classifier.0.weight", 0.0, 0.01),
    (small_vit, "encoder.pos_embedding", 0.0, 0.02),
    (small_vit, "encoder.layers.encoder_layer_0.mlp.0.weight", 0.0, math.sqrt(2 / (768 + 3072))),
    (small_vit, "conv_proj.weight", 0.0, math.sqrt(1 / 768)),
    (small_vit, "heads.head.weight", 0.0, 0.0),
    (small_bert, "encoder.layer.0.attention.self.query.weight", 0.0, 0.02),
    (small_bert, "encoder.layer.0.intermediate.dense.bias", 0.0, 0.0),
    (small_bert, "embeddings.position_embeddings.weight", 0.0, 0.02),
    (small_gpt2, "transformer.h.0.attn.c_attn.weight", 0.0, 0.02),
    (small_gpt2, "transformer.h.0.attn.c_proj.weight", 0.0, 0.005),
    (small_gpt2, "transformer.h.0.ln_1.weight", 1.0, 0.0),
]


@pytest.mark.parametrize("make, name, mean, deviation", STARTS)
def test_parameters_start_as_published(make, name, mean, deviation):
    value = dict(make().named_parameters())[name].numpy().astype(np.float64)
    few = 5 * deviation / math.sqrt(value.size)  # five standard errors
    assert abs(value.mean() - mean) <= few
    assert abs(value.std() - deviation) <= few


def test_paddings_start_at_zero_and_are_not_trained_as_inputs():
    net = models.bert_base(dropout=0.0, **BERT)
    words = net.embeddings.word_embeddings.weight
    assert not words.numpy()[0].any() and words.numpy()[1:].all()
    net(tensor(np.array([[0, 3, 0]]))).sum().backward()
    assert not words.grad.numpy()[0].any()


def test_tied_weights_stay_tied():
    for net in (models.bert_base_for_masked_lm(**BERT), models.gpt2(vocab_size=37, n_embd=12, n_layer=1, n_head=3)):
        net = net.double()
        state = net.state_dict()
        if "lm_head.weight" in state:
            words, decoder = net.transformer.wte.weight, net.lm_head.weight
        else:
            words, decoder = net.bert.embeddings.word_embeddings.weight, net.cls.predictions.decoder.weight
        assert words is decoder
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        out = net(tensor(np.array([[1, 2, 3]])))
        out.square().mean().backward()
        optimizer.step()
        np.testing.assert_array_equal(words.numpy(), decoder.numpy())


@pytest.mark.parametrize(
    "make", [lambda p: models.bert_base(dropout=p, **BERT), lambda p: models.vit_b_16(dropout=p, **VIT)]
)
def test_dropout_is_drawn_in_training_only(make):
    x = tensor(np.array([[1, 2, 3]])) if make(0.0).__class__ is models.BertModel else lz.randn(1, 3, 12, 12)
    for p, same in ((0.0, True), (0.5, False)):
        net = make(p)
        if hasattr(net, "heads"):
            nn.init.normal_(net.heads.head.weight)  # they start at zero
        assert np.array_equal(net(x).numpy(), net(x).numpy()) == same
        net.eval()
        np.testing.assert_array_equal(net(x).numpy(), net(x).numpy())


GPT2 = {"vocab_size": 37, "n_positions": 9, "n_embd": 12, "n_layer": 2, "n_head": 3}
ZEROS = np.zeros(1, np.float32)


def older(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def bert_files(state):
    """The state of a model with a head, as files have it."""
    tied = [n for n in state if "predictions.decoder" in n]
    yield {older(n): v for n, v in state.items() if n not in tied} | {"bert.embeddings.position_ids": ZEROS}
    yield {n: v for n, v in state.items() if n != "cls.predictions.bias"}


def gpt2_files(state):
    body = {n.removeprefix("transformer."): v for n, v in state.items() if n != "lm_head.weight"}
    yield body | {f"h.{i}.attn.{n}": ZEROS for i in range(2) for n in ("bias", "masked_bias")}
    yield {n: v for n, v in state.items() if n != "lm_head.weight"}


@pytest.mark.parametrize(
    "make, files",
    [(lambda: models.bert_base_for_masked_lm(**BERT), bert_files), (lambda: models.gpt2(**GPT2), gpt2_files)],
)
def test_states_are_taken_in_the_forms_of_published_files(make, files):
    state = {n: v.numpy() for n, v in make().state_dict().items()}
    for file in files(state):
        net = make()
        assert not any(net.load_state_dict(file))
        for n, v in net.state_dict().items():
            np.testing.assert_array_equal(v.numpy(), state[n], err_msg=n)


def test_the_encoder_is_loaded_from_a_model_with_a_head():
    whole, net = models.bert_base_for_sequence_classification(**BERT), models.bert_base(**BERT)
    keys = net.load_state_dict(whole.state_dict(), strict=False)
    assert keys.missing_keys == [] and keys.unexpected_keys == ["classifier.weight", "classifier.bias"]
    np.testing.assert_array_equal(net.pooler.dense.weight.numpy(), whole.bert.pooler.dense.weight.numpy())


def test_what_does_not_fit_a_published_model_is_still_said():
    net = models.gpt2(**GPT2)
    state = net.state_dict()
    with pytest.raises(RuntimeError, match=r"missing: transformer\.ln_f\.bias"):
        net.load_state_dict({n: v for n, v in state.items() if n != "transformer.ln_f.bias"})
    with pytest.raises(RuntimeError, match=r"unexpected: h\.9\.ln_1\.bias"):
        net.load_state_dict({**state, "h.9.ln_1.bias": ZEROS})
    with pytest.raises(TypeError, match="mapping"):
        net.load_state_dict([])


MISTAKES = [
    (lambda: models.bert_base(**{**BERT, "num_attention_heads": 3}), "hidden_size=16.*num_attention_heads=3"),
    (lambda: models.bert_base(**BERT)(lz.zeros(1, 13, dtype=lz.int64)), r"BERT.*at most 12.*\(1, 13\)"),
    (lambda: models.gpt2(n_embd=10, n_head=3, vocab_size=5), "n_embd=10.*n_head=3"),
    (lambda: models.gpt2(n_positions=4, n_embd=8, n_head=2, vocab_size=5)(lz.zeros(1, 5, dtype=lz.int64)), "at most 4"),
    (lambda: models.vit_b_16(image_size=30), "image_size=30.*patch_size=16"),
    (lambda: models.vit_b_16(**VIT)(lz.zeros(1, 3, 12, 16)), r"12×12.*\(1, 3, 12, 16\)"),
]


@pytest.mark.parametrize("call, message", MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
