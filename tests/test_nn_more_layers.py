"""Layers of patches, bags, volumes and further names against PyTorch's: results and all gradients."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F
from test_nn_layers import RNG, close, normal, same, twin

torch = pytest.importorskip("torch")
TF = torch.nn.functional

ONE_INPUT = [
    ("Unfold", ((2, 3),), {}, (2, 3, 5, 6)),
    ("Unfold", (3,), {"dilation": (1, 2), "padding": (1, 2), "stride": (2, 1)}, (3, 5, 6)),
    ("Fold", ((5, 6), (2, 3)), {}, (2, 12, 16)),
    ("Fold", ((5, 6), 3), {"dilation": (1, 2), "padding": (1, 2), "stride": (2, 1)}, (9, 18)),
    ("Softmax2d", (), {}, (2, 3, 4, 4)),
    ("Softmax2d", (), {}, (3, 4, 4)),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, (2, 3, 4, 5)),
    ("UpsamplingBilinear2d", ((7, 6),), {}, (2, 3, 4, 5)),
    ("ZeroPad3d", (1,), {}, (2, 3, 2, 3, 2)),
    ("ConstantPad3d", ((1, 0, 2, 1, 0, -1), 0.5), {}, (2, 3, 2, 3, 2)),
    ("ReflectionPad3d", ((1, 1, 2, 0, 1, 1),), {}, (2, 3, 2, 3, 4)),
    ("ReplicationPad3d", ((1, 1, 2, 0, 1, 3),), {}, (3, 2, 3, 4)),
    ("CircularPad3d", ((1, 1, 2, 0, 1, 2),), {}, (2, 3, 2, 3, 4)),
    ("BatchNorm3d", (3,), {}, (2, 3, 2, 3, 2)),
    ("InstanceNorm3d", (3,), {"affine": True, "track_running_stats": True}, (2, 3, 2, 3, 2)),
    ("InstanceNorm3d", (3,), {}, (3, 2, 3, 2)),
]


@pytest.mark.parametrize(("name", "args", "options", "shape"), ONE_INPUT)
def test_layers(name, args, options, shape):
    layers = twin(name, *args, **options)
    same(*layers, normal(*shape))
    for layer in layers:
        layer.eval()
    same(*layers, normal(*shape))


def test_sync_batch_norm_is_batch_norm_in_one_process():
    ours, theirs = twin("BatchNorm2d", 3)
    model = nn.Sequential(ours, nn.Sequential(nn.BatchNorm1d(4)))
    weight = ours.weight
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model and type(model[0]) is nn.SyncBatchNorm and type(model[1][0]) is nn.SyncBatchNorm
    assert model[0].weight is weight and list(model[0].state_dict()) == list(theirs.state_dict())
    same(model[0], theirs, normal(2, 3, 4, 4))
    assert list(nn.SyncBatchNorm(3).state_dict()) == list(torch.nn.SyncBatchNorm(3).state_dict())


# -- what is random ---------------------------------------------------------------------------------------------------


def test_rrelu():
    x = normal(1000)
    for training in (False, True):
        layer = nn.RReLU(0.2, 0.4).train(training)
        given = lz.tensor(x, requires_grad=True)
        y = layer(given)
        y.sum().backward()
        slopes = y.detach().numpy() / x
        np.testing.assert_allclose(given.grad.numpy(), slopes, rtol=1e-12)
        assert (slopes[x > 0] == 1).all()
        below = slopes[x <= 0]
        if training:
            assert 0.2 <= below.min() < 0.21 and 0.39 < below.max() <= 0.4 and abs(below.mean() - 0.3) < 0.02
        else:
            np.testing.assert_allclose(below, 0.3)
    with pytest.raises(ValueError, match="above upper"):
        nn.RReLU(0.5, 0.2)
    assert repr(nn.RReLU(0.25, 0.5)) == "RReLU(lower=0.25, upper=0.5)"


@pytest.mark.parametrize(("name", "shape"), [("Dropout3d", (40, 50, 2, 2, 2)), ("FeatureAlphaDropout", (40, 50, 2, 3))])
def test_whole_channels_are_dropped(name, shape):
    layer, x = getattr(nn, name)(0.4), lz.ones(*shape, dtype="float64")
    y = layer(x).numpy().reshape(2000, -1)
    assert (y == y[:, :1]).all()
    values, counts = np.unique(y[:, 0], return_counts=True)
    assert len(values) == 2 and abs(counts[0] / 2000 - 0.4) < 0.05
    if name == "Dropout3d":
        np.testing.assert_allclose(values, [0, 1 / 0.6])
    else:
        theirs = torch.nn.FeatureAlphaDropout(0.4)(torch.ones(200, 1, 1, dtype=torch.float64)).unique().numpy()
        np.testing.assert_allclose(values, theirs)
    layer.eval()
    assert layer(x) is x
    for p in (0.0, 1.0):
        np.testing.assert_array_equal(
            getattr(nn, name)(p)(x).numpy(), getattr(torch.nn, name)(p)(torch.ones(shape)).numpy()
        )


# -- bags -------------------------------------------------------------------------------------------------------------

MODES = ("sum", "mean", "max")
BAGS, ROW, STARTS = RNG.integers(0, 9, (5, 3)), RNG.integers(0, 9, 8), np.array([0, 3, 3, 7, 8])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding_idx", [None, 4, -1])
def test_embedding_bag(mode, padding_idx):
    options = {"mode": mode, "padding_idx": padding_idx}
    layers = twin("EmbeddingBag", 9, 4, **options)
    bags, row = BAGS.copy(), ROW.copy()
    bags[0] = bags[1, 1] = row[3:7] = row[0] = (4 if padding_idx is None else padding_idx) % 9
    same(*layers, bags)
    same(*layers, row, STARTS)  # with empty bags
    same(*layers, bags[:0])
    last = twin("EmbeddingBag", 9, 4, **options, include_last_offset=True)
    same(*last, row, STARTS)


def test_weighted_bags():
    layers = twin("EmbeddingBag", 9, 4, mode="sum", padding_idx=2)
    same(lambda w: layers[0](lz.tensor(BAGS), None, w), lambda w: layers[1](torch.tensor(BAGS), None, w), normal(5, 3))
    same(lambda w: layers[0](lz.tensor(ROW), lz.tensor(STARTS), w),
         lambda w: layers[1](torch.tensor(ROW), torch.tensor(STARTS), w), normal(8))  # fmt: skip


def test_bags_of_rows_of_limited_norm():
    table = normal(9, 4)
    ours, theirs = lz.tensor(table), torch.tensor(table)
    close(
        F.embedding_bag(lz.tensor(BAGS), ours, max_norm=1.0),
        TF.embedding_bag(torch.tensor(BAGS), theirs, max_norm=1.0),
        1e-6,
    )
    close(ours, theirs, 1e-6)
    given = nn.EmbeddingBag.from_pretrained(lz.tensor(table), mode="sum")
    assert not given.weight.requires_grad
    close(given(lz.tensor(BAGS)), TF.embedding_bag(torch.tensor(BAGS), torch.tensor(table), mode="sum"))


def test_refusals():
    table = lz.tensor(normal(9, 4))
    for call, says in [
        (lambda: F.embedding_bag(lz.tensor(BAGS), table, mode="min"), "'sum', 'mean' or 'max'"),
        (lambda: F.embedding_bag(lz.tensor(ROW), table), "without offsets"),
        (lambda: F.embedding_bag(lz.tensor(BAGS), table, lz.tensor(STARTS)), "with offsets"),
        (lambda: F.embedding_bag(lz.tensor(BAGS), table, per_sample_weights=lz.tensor(normal(5, 3))), "mode 'sum'"),
        (lambda: F.unfold(lz.zeros(1, 1, 2, 2), 3), "do not fit"),
        (lambda: F.fold(lz.zeros(1, 4, 3), (3, 3), 2), "is needed for an output"),
        (lambda: nn.Softmax2d()(lz.zeros(2, 2)), "3 or 4 dimensions"),
        (lambda: F.pdist(lz.zeros(2)), r"\(rows, features\)"),
    ]:
        with pytest.raises(ValueError, match=says):
            call()


# -- further names ----------------------------------------------------------------------------------------------------

IN_PLACE = [
    ("relu_", ()), ("elu_", (0.5,)), ("celu_", (0.5,)), ("selu_", ()), ("leaky_relu_", (0.2,)), ("hardtanh_", (-0.5, 0.7)),
    ("threshold_", (0.1, 3.0)), ("rrelu_", (0.1, 0.3)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), IN_PLACE)
def test_in_place(name, args):
    same(lambda x: getattr(F, name)(x * 1, *args), lambda x: getattr(TF, name)(x * 1, *args), normal(20))
    x = lz.tensor(normal(20))
    assert getattr(F, name)(x, *args) is x


FUNCTIONS = [
    ("pdist", (), (normal(5, 3),)),
    ("pdist", (1.0,), (normal(5, 3),)),
    ("pdist", (), (normal(1, 3),)),
    ("conv_tbc", (1,), (normal(6, 2, 3), normal(3, 3, 4), normal(4))),
    ("native_channel_shuffle", (2,), (normal(2, 4, 3, 3),)),
    ("upsample", (None, 2, "bilinear", True), (normal(2, 3, 4, 5),)),
    ("upsample_nearest", (7,), (normal(2, 3, 4, 5),)),
    ("upsample_bilinear", (None, 2), (normal(2, 3, 4, 5),)),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "args", "inputs"), FUNCTIONS)
def test_functions(name, args, inputs):
    theirs = getattr(TF, name.removeprefix("native_"))  # of which PyTorch has no gradient
    same(lambda *x: getattr(F, name)(*x, *args), lambda *x: theirs(*x, *args), *inputs)


def test_pooling_with_indices():
    for n, shape in ((1, (2, 3, 8)), (2, (2, 3, 6, 7))):
        x = normal(*shape)
        name = f"max_pool{n}d_with_indices"
        for ours, theirs in zip(getattr(F, name)(lz.tensor(x), 3, 2, 1), getattr(TF, name)(torch.tensor(x), 3, 2, 1)):
            close(ours, theirs)
