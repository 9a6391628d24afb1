"""Losses with margins, of counts, of sequences without alignment and of large vocabularies against PyTorch's."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F
from test_nn_layers import RNG, close, normal, same, twin

torch = pytest.importorskip("torch")

REDUCTIONS = ("mean", "sum", "none")
SIGNS = np.where(normal(4, 3) > 0, 1.0, -1.0)
LABELS = np.array([[2, 0, -1, 1, 1], [-1, 3, 2, 1, 0], [4, 4, 0, -1, -1], [1, 2, 3, 4, 0]])

LOSSES = [
    ("PoissonNLLLoss", {}, (normal(4, 3), abs(normal(4, 3)) * 3)),
    ("PoissonNLLLoss", {"log_input": False, "full": True, "eps": 0.5}, (abs(normal(4, 3)), abs(normal(4, 3)) * 3)),
    ("HingeEmbeddingLoss", {"margin": 0.5}, (normal(4, 3), SIGNS)),
    ("SoftMarginLoss", {}, (normal(4, 3), SIGNS.astype(int))),
    ("MultiMarginLoss", {}, (normal(4, 5), RNG.integers(0, 5, 4))),
    ("MultiMarginLoss", {"p": 2, "margin": 0.3}, (normal(5), np.array(2))),
    ("MultiLabelMarginLoss", {}, (normal(4, 5), LABELS)),
    ("MultiLabelMarginLoss", {}, (normal(5), LABELS[0])),
    ("MultiLabelSoftMarginLoss", {}, (normal(4, 3), (SIGNS + 1) / 2)),
    ("TripletMarginLoss", {"swap": True, "margin": 2.0}, (normal(4, 3), normal(4, 3), normal(4, 3))),
    ("TripletMarginWithDistanceLoss", {}, (normal(4, 3), normal(4, 3), normal(4, 3))),
    ("TripletMarginWithDistanceLoss", {"swap": True, "margin": 2.0}, (normal(4, 3), normal(4, 3), normal(4, 3))),
    ("NLLLoss2d", {"ignore_index": 1}, (normal(2, 3, 2, 2), RNG.integers(0, 3, (2, 2, 2)))),
]


@pytest.mark.parametrize(("name", "options", "inputs"), LOSSES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses(name, options, inputs, reduction):
    same(*twin(name, **options, reduction=reduction), *inputs)


@pytest.mark.parametrize(("name", "options"), [("MultiMarginLoss", {"p": 2}), ("MultiLabelSoftMarginLoss", {})])
def test_weights_of_classes(name, options):
    weight = abs(normal(5))
    target = RNG.integers(0, 5, 4) if name == "MultiMarginLoss" else RNG.integers(0, 2, (4, 5)).astype(float)
    ours = getattr(nn, name)(weight=lz.tensor(weight), **options)
    same(ours, getattr(torch.nn, name)(weight=torch.tensor(weight), **options), normal(4, 5), target)


def test_a_distance_of_ones_own():
    def loss(of):
        return of.nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1), swap=True)

    same(loss(lz), loss(torch), normal(4, 3), normal(4, 3), normal(4, 3))


def test_refusals():
    for call, says in [
        (lambda: nn.MultiMarginLoss(p=3), "p is 1 or 2"),
        (lambda: F.multilabel_margin_loss(lz.zeros(2, 3), lz.zeros(2, 2, dtype="int64")), "a target of its shape"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5, 3]), "rising ints from 1 to 9"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3])(lz.zeros(2, 4), lz.zeros(1, 2)), "both without batch"),
        (lambda: F.linear_cross_entropy(lz.zeros(2, 3), lz.zeros(5, 4), lz.zeros(2)), r"\(batch, 4\) is needed"),
        (lambda: F.ctc_loss(lz.zeros(4, 2, 3), lz.zeros(2, 2), [4, 5], [2, 2]), "numbers from 0 to 4"),
        (lambda: F.ctc_loss(lz.zeros(4, 2, 3), lz.zeros(3), [4, 4], [2, 2]), "add up to the 3 targets"),
        (lambda: F.ctc_loss(lz.zeros(4, 2, 3), lz.zeros(2, 2), [4, 4], [2, 2], blank=3), "blank=3"),
    ]:
        with pytest.raises(ValueError, match=says):
            call()


# -- alignment --------------------------------------------------------------------------------------------------------

STEPS, BATCH, CLASSES = 7, 4, 5
TARGETS = np.array([[1, 2, 2], [3, 3, 3], [4, 1, 2], [2, 4, 4]])
HEARD, SAID = (7, 5, 4, 6), (3, 3, 1, 0)


def of_scores(of, args, **options):
    """PyTorch takes it for granted that what it gets are logarithms of probabilities."""
    functional = F if of is lz else torch.nn.functional
    return lambda scores: functional.ctc_loss(scores.log_softmax(-1), *args(of), **options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("form", ["padded", "one after the other", "tensors"])
@pytest.mark.parametrize("blank", [0, 4])
def test_ctc_loss(reduction, form, blank):
    targets = np.where(blank == TARGETS, 0, TARGETS) if blank else TARGETS

    def args(of):
        if form == "padded":
            return of.tensor(targets), HEARD, SAID
        if form == "tensors":
            return of.tensor(targets), of.tensor(HEARD), of.tensor(SAID)
        return of.tensor(np.concatenate([row[:n] for row, n in zip(targets, SAID)])), HEARD, SAID

    scores = normal(STEPS, BATCH, CLASSES)
    options = {"reduction": reduction, "blank": blank}
    same(of_scores(lz, args=args, **options), of_scores(torch, args=args, **options), scores, tolerance=1e-9)


def test_ctc_loss_without_batch():
    for reduction in REDUCTIONS:
        same(
            *(of_scores(of, lambda of: (of.tensor(TARGETS[0]), (7,), (3,)), reduction=reduction) for of in (lz, torch)),
            normal(STEPS, CLASSES), tolerance=1e-9,
        )  # fmt: skip


def test_labels_that_do_not_fit():
    """Three equal labels need five steps."""
    scores = normal(4, 2, CLASSES)
    targets = np.array([[3, 3, 3], [1, 2, 1]])

    def args(of):
        return of.tensor(targets), (4, 4), (3, 3)

    ours = F.ctc_loss(lz.tensor(scores).log_softmax(-1), *args(lz), reduction="none")
    theirs = torch.nn.functional.ctc_loss(torch.tensor(scores).log_softmax(-1), *args(torch), reduction="none")
    close(ours, theirs, 1e-9)
    assert np.isinf(ours.numpy()).tolist() == [True, False]
    options = {"reduction": "sum", "zero_infinity": True}
    same(*(of_scores(of, args, **options) for of in (lz, torch)), scores, tolerance=1e-9)


def test_classes_of_probability_0_and_nothing_heard():
    chances = np.full((3, 2, 3), 0.5)
    chances[1, 0, 1] = 0.0
    x = lz.tensor(chances).log().requires_grad_()
    loss = F.ctc_loss(x, lz.tensor([[1, 2], [1, 2]]), [3, 0], [2, 0], reduction="none")
    with np.errstate(divide="ignore"):
        theirs = torch.nn.functional.ctc_loss(
            torch.tensor(np.log(chances)), torch.tensor([[1, 2], [1, 2]]), (3, 0), (2, 0), reduction="none"
        )
    close(loss, theirs)
    loss.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_ctc_gradient_by_finite_differences():
    """Of log_probs that are not normalised, where PyTorch's is not the function's own."""
    x = lz.tensor(normal(4, 2, 3), requires_grad=True)
    targets = lz.tensor([[1, 1], [2, 1]])
    assert lz.autograd.gradcheck(lambda x: F.ctc_loss(x, targets, [4, 3], [2, 1], reduction="none"), (x,))


# -- large vocabularies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_bias", [False, True])
def test_adaptive_log_softmax(head_bias):
    ours, theirs = twin("AdaptiveLogSoftmaxWithLoss", 16, 12, [4, 8], div_value=2.0, head_bias=head_bias)
    x, target = normal(6, 16), np.array([0, 5, 11, 3, 8, 7])

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = theirs

        def forward(self, x, target):
            output, loss = self.layer(x, target)
            return output * loss

    class OurLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = ours

        def forward(self, x, target):
            y = self.layer(x, target)
            return y.output * y.loss

    same(OurLoss(), Loss(), x, target)
    same(OurLoss(), Loss(), x[0], target[1])
    close(ours.log_prob(lz.tensor(x)), theirs.log_prob(torch.tensor(x)))
    x = normal(200, 16) * 3
    np.testing.assert_array_equal(ours.predict(lz.tensor(x)).numpy(), theirs.predict(torch.tensor(x)).numpy())
    before = ours.head.weight.numpy().copy()
    ours.reset_parameters()
    assert not np.array_equal(ours.head.weight.numpy(), before)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_linear_cross_entropy(reduction):
    layers = twin("LinearCrossEntropyLoss", 3, 5, bias=True, reduction=reduction, ignore_index=2, label_smoothing=0.1)
    same(*layers, normal(4, 3), np.array([0, 2, 4, 1]))
    layers = twin("LinearCrossEntropyLoss", 3, 5, out_features=(2, 2), bias=True, reduction=reduction)
    same(*layers, normal(4, 3), RNG.integers(0, 5, (4, 2, 2)))
    layers = twin("LinearCrossEntropyLoss", 3, 5, reduction=reduction)
    same(*layers, normal(4, 3), abs(normal(4, 5)))
