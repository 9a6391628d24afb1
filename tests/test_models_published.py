"""Models beside torchvision's and Hugging Face's own, where those are installed: names, shapes, and outputs in float64."""

import numpy as np
import pytest

from lezero import models
from lezero.models.resnet import Bottleneck
from lezero.tensor import no_grad, tensor
from test_models import BERT

torch = pytest.importorskip("torch")

TORCHVISION = "resnet18 resnet34 resnet50 resnet101 mobilenet_v2 vgg16 vgg16_bn vit_b_16".split()
VIT = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 12, "mlp_dim": 20}


def shapes(module):
    return {name: tuple(int(d) for d in value.shape) for name, value in module.state_dict().items()}


def agree(ours, theirs, *inputs, output=lambda z: z):
    """The same state gives the same output."""
    theirs = theirs.double().eval()
    torch.manual_seed(0)
    state = {k: v + 0.1 * torch.rand(v.shape) if v.is_floating_point() else v for k, v in theirs.state_dict().items()}
    theirs.load_state_dict(state)
    ours = ours.double().eval()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    with no_grad(), torch.no_grad():
        y, z = ours(*map(tensor, inputs)).numpy(), output(theirs(*map(torch.tensor, inputs))).numpy()
    assert np.linalg.norm(y - z) < 1e-9 * np.linalg.norm(z)


@pytest.mark.parametrize("name", TORCHVISION)
def test_names_and_shapes_are_torchvisions(name, undrawn):
    torchvision = pytest.importorskip("torchvision")
    with torch.device("meta"):
        theirs = getattr(torchvision.models, name)()
    assert shapes(getattr(models, name)()) == shapes(theirs)


def test_outputs_are_torchvisions():
    tv = pytest.importorskip("torchvision.models")
    image = np.random.default_rng(0).normal(size=(2, 3, 48, 32))
    blocks = [1, 2, 1, 1]
    agree(models.ResNet(Bottleneck, blocks), tv.resnet.ResNet(tv.resnet.Bottleneck, blocks), image)
    agree(models.mobilenet_v2(width_mult=0.35), tv.mobilenet_v2(width_mult=0.35), image)
    vgg = tv.vgg.VGG(tv.vgg.make_layers([6, "M", 512, 512, "M"], batch_norm=True), dropout=0.0)
    vgg.classifier[0], vgg.classifier[3] = torch.nn.Linear(512 * 49, 9), torch.nn.Linear(9, 9)
    vgg.classifier[6] = torch.nn.Linear(9, 1000)
    agree(models.VGG(((6, 1), (512, 2)), batch_norm=True, hidden_features=9), vgg, image)
    agree(
        models.vit_b_16(representation_size=7, **VIT),
        tv.VisionTransformer(representation_size=7, **VIT),
        image[:, :, :16, :16],
    )


def test_bert_is_hugging_faces(undrawn):
    hf = pytest.importorskip("transformers")
    config = hf.BertConfig(**BERT, num_labels=3)
    pairs = [
        (models.bert_base_for_masked_lm(**BERT), hf.BertForMaskedLM(config)),
        (models.bert_base_for_sequence_classification(3, **BERT), hf.BertForSequenceClassification(config)),
        (models.bert_base(**BERT), hf.BertModel(config)),
    ]
    r = np.random.default_rng(0)
    ids, mask, kinds = r.integers(0, 41, (3, 7)), np.ones((3, 7), np.int64), r.integers(0, 2, (3, 7))
    mask[1, 4:] = 0
    for ours, theirs in pairs:
        assert shapes(ours) == shapes(theirs)
        agree(ours, theirs, ids, output=lambda z: z[0])
        agree(ours, theirs, ids, mask, kinds, output=lambda z: z[0])
    with torch.device("meta"):
        theirs = hf.BertForMaskedLM(hf.BertConfig())
    assert shapes(models.bert_base_for_masked_lm()) == shapes(theirs)


def test_gpt2_is_hugging_faces(undrawn):
    hf = pytest.importorskip("transformers")
    sizes = {"vocab_size": 37, "n_positions": 9, "n_embd": 12, "n_layer": 2, "n_head": 3}
    ours, theirs = models.gpt2(**sizes), hf.GPT2LMHeadModel(hf.GPT2Config(**sizes))
    ids, mask = np.random.default_rng(0).integers(0, 37, (2, 6)), np.ones((2, 6), np.int64)
    mask[1, 4:] = 0
    agree(ours, theirs, ids, output=lambda z: z.logits)
    masked = lambda ids, mask: theirs(ids, attention_mask=mask)
    with no_grad(), torch.no_grad():
        y, z = ours(tensor(ids), tensor(mask)).numpy(), masked(torch.tensor(ids), torch.tensor(mask)).logits.numpy()
    assert np.linalg.norm(y - z) < 1e-9 * np.linalg.norm(z)
    with torch.device("meta"):
        theirs = hf.GPT2LMHeadModel(hf.GPT2Config())
    assert shapes(models.gpt2()) == shapes(theirs)
