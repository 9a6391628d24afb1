"""Losses, dropout and embedding: parity with PyTorch to second order."""

# ruff: noqa: B023 -- the functions made in a loop are called before it goes on

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lezero.autograd.walk import walk  # noqa: E402
from lezero.ops.dropout import dropout  # noqa: E402
from lezero.ops.embedding import embedding  # noqa: E402
from lezero.ops.expr import Expr, evaluate  # noqa: E402
from lezero.ops.losses import (  # noqa: E402
    bce_loss,
    bce_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)  # fmt: skip
from op_parity import both_roads, check, make_leaves  # noqa: E402

F = torch.nn.functional
reductions = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def uniform(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).uniform(0.05, 0.95, shape)


# -- element by element ---------------------------------------------------------------------------------------


@reductions
@pytest.mark.parametrize("shape", [(4, 3), (), (0, 3)])
def test_errors(reduction, shape):
    x, t = np.asarray(normal(*shape)), np.asarray(normal(*shape, seed=1))
    if shape:
        x[:1] = t[:1]
    order = 2 if x.size else 1
    pairs = [(mse_loss, F.mse_loss), (l1_loss, F.l1_loss)]
    for ours, theirs in pairs:
        check(
            lambda x, t: ours(x, t, reduction=reduction),
            lambda x, t: theirs(x, t, reduction=reduction),
            x,
            t,
            order=order,
        )
    for size in (0.7, 1.0):
        check(
            lambda x, t: smooth_l1_loss(x, t, reduction=reduction, beta=size),
            lambda x, t: F.smooth_l1_loss(x, t, reduction=reduction, beta=size),
            x, t, order=order,
        )  # fmt: skip
        check(
            lambda x, t: huber_loss(x, t, reduction=reduction, delta=size),
            lambda x, t: F.huber_loss(x, t, reduction=reduction, delta=size),
            x, t, order=order,
        )  # fmt: skip


def test_a_target_that_broadcasts():
    check(mse_loss, lambda x, t: ((x - t) ** 2).mean(), normal(4, 3), normal(3))


@reductions
def test_binary_cross_entropy(reduction):
    x, t, w = 3 * normal(4, 3), uniform(4, 3), uniform(3, seed=1) + 1
    check(
        lambda x, t: bce_with_logits(x, t, reduction=reduction),
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=reduction),
        x, t,
    )  # fmt: skip
    check(
        lambda x, t, w: bce_with_logits(x, t, w, reduction=reduction),
        lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, pos_weight=w, reduction=reduction),
        x, t, w, frozen=(2,),
    )  # fmt: skip
    check(
        lambda x, t, w: bce_with_logits(x, t, w, reduction="none"),
        lambda x, t, w: -(w * t * F.logsigmoid(x) + (1 - t) * F.logsigmoid(-x)),
        x, t, w,
    )  # fmt: skip
    check(
        lambda x, t: bce_loss(x, t, reduction=reduction),
        lambda x, t: F.binary_cross_entropy(x, t, reduction=reduction),
        uniform(4, 3, seed=2), t, frozen=(1,),
    )  # fmt: skip


def test_binary_cross_entropy_at_the_ends():
    x = np.array([-1e4, -50.0, 0.0, 50.0, 1e4])
    for t in (0.0, 1.0):
        target = np.full(5, t)
        check(
            lambda x, t: bce_with_logits(x, t, reduction="none"),
            lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
            x, target, order=1,
        )  # fmt: skip
        check(
            lambda x, t: bce_loss(x, t, reduction="none"),
            lambda x, t: F.binary_cross_entropy(x, t, reduction="none"),
            np.array([0.0, 1.0]), np.full(2, t), order=1, frozen=(1,), tol=1e-7,  # its smallest denominator is a float32
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum", "batchmean"])
def test_kullback_leibler(reduction):
    x, t = np.log(uniform(4, 3)), uniform(4, 3, seed=1)
    for log_target in (False, True):
        check(
            lambda x, t: kl_div(x, t, reduction=reduction, log_target=log_target),
            lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=log_target),
            x, np.log(t) if log_target else t,
        )  # fmt: skip
    t[0, 0] = 0
    check(kl_div, lambda x, t: F.kl_div(x, t, reduction="sum") / x.numel(), x, t, order=1, frozen=(1,))


# -- classes --------------------------------------------------------------------------------------------------

SHAPES = [((6, 5), (6,)), ((5,), ()), ((2, 5, 3), (2, 3)), ((2, 5, 3, 2), (2, 3, 2)), ((4, 1), (4,)), ((0, 5), (0,))]


def targets(shape, classes, ignored=True):
    t = np.random.default_rng(0).integers(0, classes, shape)
    if ignored and t.size > 1:
        t.flat[1] = -100
    return t


@reductions
@pytest.mark.parametrize("logits, samples", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_class_indices(logits, samples, weighted, smoothing, reduction):
    classes = logits[1] if len(logits) > 1 else logits[0]
    w = [uniform(classes)] if weighted else []
    attrs = {"label_smoothing": smoothing, "reduction": reduction}
    check(
        lambda x, t, *w: cross_entropy(x, t, *w, **attrs),
        lambda x, t, *w: F.cross_entropy(x, t, *w, **attrs),
        3 * normal(*logits), targets(samples, classes), *w, frozen=(2,),
    )  # fmt: skip


@reductions
@pytest.mark.parametrize("logits", [s[0] for s in SHAPES])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_probabilities(logits, weighted, smoothing, reduction):
    axis = 1 if len(logits) > 1 else 0
    q = uniform(*logits)
    q /= q.sum(axis, keepdims=True)
    w = [uniform(logits[axis])] if weighted else []
    attrs = {"label_smoothing": smoothing, "reduction": reduction}
    check(
        lambda x, t, *w: cross_entropy(x, t, *w, **attrs),
        lambda x, t, *w: F.cross_entropy(x, t, *w, **attrs),
        3 * normal(*logits), q, *w, frozen=(2,),
    )  # fmt: skip


def test_all_targets_ignored():
    x, t = normal(3, 4), np.full(3, 7)
    for reduction in ("none", "mean", "sum"):
        attrs = {"ignore_index": 7, "reduction": reduction}
        check(lambda x, t: cross_entropy(x, t, **attrs), lambda x, t: F.cross_entropy(x, t, **attrs), x, t, order=0)
        check(lambda x, t: nll_loss(x, t, **attrs), lambda x, t: F.nll_loss(x, t, **attrs), x, t, order=0)


def test_cross_entropy_of_large_logits():
    x = np.array([[1e4, -1e4, 0.0], [0.0, 1e4, -1e4]])
    t = np.array([1, 1])
    check(cross_entropy, F.cross_entropy, x, t, order=1)


@reductions
@pytest.mark.parametrize("logits, samples", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(logits, samples, weighted, reduction):
    classes = logits[1] if len(logits) > 1 else logits[0]
    w = [uniform(classes)] if weighted else []
    check(
        lambda x, t, *w: nll_loss(x, t, *w, reduction=reduction),
        lambda x, t, *w: F.nll_loss(x, t, *w, reduction=reduction),
        normal(*logits), targets(samples, classes), *w, frozen=(2,), order=1,
    )  # fmt: skip


def test_int32_targets_and_half_precision():
    x = (3 * normal(6, 5)).astype(np.float16)
    t = targets((6,), 5).astype(np.int32)
    check(cross_entropy, lambda x, t: F.cross_entropy(x.float(), t.long()).half(), x, t, order=0, tol=1e-3)


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("shape, turned", [((2, 6, 20), "transpose(1, 2)"), ((2, 6, 5, 20), "movedim(-1, 1)")])
def test_scores_with_their_classes_last_are_told_what_to_do(loss, shape, turned):
    import lezero as lz
    from lezero.nn import functional

    scores, labels = lz.randn(*shape), lz.randint(0, 5, shape[:-1])
    labels[..., -1] = 19  # out of range of dimension 1
    lz.realize(labels)
    f = getattr(functional, loss)
    message = f"are needed, got {shape[:-1]}; classes are dimension 1 of the scores {shape}: give scores.reshape(-1, 20) with "
    with pytest.raises(ValueError, match=re.escape(f"{message}labels.reshape(-1), or scores.{turned}")):
        f(scores, labels)
    one = f(scores.reshape(-1, 20), labels.reshape(-1)).item()
    other = f(eval(f"scores.{turned}"), labels).item()
    assert np.isfinite(one) and one == pytest.approx(other, rel=1e-5)
    with pytest.raises(ValueError) as raised:
        f(scores, labels[:1])
    assert "dimension 1" not in str(raised.value)


def test_losses_say_what_does_not_fit():
    x, t, f = make_leaves([normal(4, 3), targets((5,), 3), normal(4)])[0]
    with pytest.raises(ValueError, match=r"cross_entropy: class indices of shape \(4,\) are needed, got \(5,\)"):
        cross_entropy(x, t)
    with pytest.raises(ValueError, match=r"class indices .* or probabilities"):
        cross_entropy(x, f)
    with pytest.raises(ValueError, match="reduction 'avg' is not one of"):
        mse_loss(x, x, reduction="avg")
    with pytest.raises(TypeError, match="nll_loss: the target has to be class indices"):
        nll_loss(x, f)


# -- dropout and embedding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_regenerates_its_mask(p):
    (x, seed, offset, dy), values = make_leaves([np.ones((50, 40)), np.int64(7), np.int64(3), np.ones((50, 40))])
    y = dropout(x, seed, offset, p=p)
    y.node.tracks = True
    dx = walk({y.node: dy}, Expr)[x.node]
    value, grad = both_roads([y.node, dx.node], values, 1e-12)
    np.testing.assert_array_equal(value, grad)
    kept = 1 - (value == 0).mean()
    assert abs(kept - (1 - p)) < 0.05
    assert p == 1 or np.allclose(value[value != 0], 1 / (1 - p))
    values[offset.node] = np.int64(4)
    assert p in (0, 1) or (evaluate([y.node], values)[0] != value).any()


@pytest.mark.parametrize("shape", [(4,), (2, 3), (), (0,)])
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embedding(shape, padding_idx):
    index = np.asarray(np.random.default_rng(0).integers(0, 5, shape))
    if index.size > 1:
        index.flat[:2] = 2
    check(
        lambda w, i: embedding(w, i, padding_idx=padding_idx),
        lambda w, i: F.embedding(i, w, padding_idx=padding_idx),
        normal(5, 3), index, order=1,
    )  # fmt: skip
