"""Products of matrices, convolutions, normalisation, softmax, losses, attention: parity with PyTorch to second order."""

# ruff: noqa: B023 -- the functions made in a loop are called before it goes on

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from op_parity import check, make_leaves

torch = pytest.importorskip("torch")
F = torch.nn.functional

from lezero.graph.dtype import float32  # noqa: E402
from lezero.ops.attention import attention  # noqa: E402
from lezero.ops.conv import conv2d, conv2d_input_grad, conv2d_weight_grad, convolution  # noqa: E402
from lezero.ops.einsum import einsum  # noqa: E402
from lezero.ops.matmul import dot, linear, matmul  # noqa: E402
from lezero.ops.normalization import (  # noqa: E402
    batch_mean,
    batch_norm,
    batch_norm_inference,
    batch_var,
    group_norm,
    layer_norm,
    rms_norm,
)  # fmt: skip
from lezero.ops.softmax import log_softmax, softmax, softmin  # noqa: E402

few = settings(max_examples=15, deadline=None)


def normal(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


# -- matrix products ------------------------------------------------------------------------------------------


@few
@given(st.booleans(), st.booleans(), st.sampled_from([(), (2,), (2, 3), (0,)]), st.tuples(*[st.integers(1, 5)] * 3))
def test_dot_in_all_transpositions(trans_a, trans_b, batch, sizes):
    m, k, n = sizes
    a = normal(*batch, *((k, m) if trans_a else (m, k)))
    b = normal(*batch, *((n, k) if trans_b else (k, n)))

    def theirs(a, b):
        return (a.mT if trans_a else a) @ (b.mT if trans_b else b)

    check(lambda a, b: dot(a, b, trans_a=trans_a, trans_b=trans_b), theirs, a, b)


@pytest.mark.parametrize(
    "a, b",
    [
        ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (4, 3, 6)), ((2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)),
        ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((4, 0, 3), (4, 3, 2)), ((2, 1, 3, 4), (1, 5, 4, 2)),
    ],
)  # fmt: skip
def test_matmul_follows_pytorch_for_all_ranks(a, b):
    check(matmul, torch.matmul, normal(*a), normal(*b))


def test_matmul_says_what_does_not_fit():
    a, b, c = make_leaves([normal(2, 3), normal(4, 5), normal(3, 2, dtype=np.float32)])[0]
    with pytest.raises(ValueError, match=r"matmul: shapes \(2, 3\) and \(4, 5\) do not fit"):
        matmul(a, b)
    with pytest.raises(TypeError, match="matmul: inputs of one dtype"):
        matmul(a, c)
    with pytest.raises(ValueError, match="linear: an input"):
        linear(a, b)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear(lead, biased):
    arrays = [normal(*lead, 5), normal(3, 5), normal(3)][: 2 + biased]
    check(linear, F.linear, *arrays)


def test_complex_products_use_conjugates_in_their_gradients():
    from lezero.autograd.walk import walk
    from lezero.ops.expr import Expr, evaluate

    rng = np.random.default_rng(0)
    a, b, dy = (rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3)) for _ in range(3))
    (x, w, g), values = make_leaves([a, b, dy])
    y = dot(x, w, trans_b=True)
    y.node.tracks = True
    grads = walk({y.node: g}, Expr)
    ours = evaluate([grads[x.node].node, grads[w.node].node], values)
    ta, tb = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    (ta @ tb.mT).backward(torch.tensor(dy))
    np.testing.assert_allclose(ours[0], ta.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(ours[1], tb.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("ij,kj->ki", [(2, 3), (4, 3)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]), ("i,j->ij", [(3,), (4,)]), ("i,i->", [(3,), (3,)]),
        ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("ij->j", [(2, 3)]), ("ii->i", [(3, 3)]), ("ii->", [(3, 3)]),
        ("iji->j", [(3, 2, 3)]), ("iij,jk->ik", [(3, 3, 2), (2, 4)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]), ("ij,ik->j", [(2, 3), (2, 4)]), ("...ij,...jk->...ik", [(2, 3, 4), (5, 1, 4, 3)]),
        ("...i->...", [(2, 3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("ba", [(2, 3)]), ("b...,b...->b...", [(2, 3), (2, 3)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]), ("ij,jk->ki", [(0, 3), (3, 4)]), ("a,b,c->abc", [(2,), (3,), (4,)]),
    ],
)  # fmt: skip
def test_einsum(equation, shapes):
    arrays = [normal(*s, seed=k) for k, s in enumerate(shapes)]
    check(lambda *xs: einsum(*xs, equation=equation), lambda *ts: torch.einsum(equation, *ts), *arrays)


@pytest.mark.parametrize(
    "equation, shapes", [("ij->ik", [(2, 3)]), ("i,j", [(2,)]), ("ij", [(2,)]), ("ij,jk->ik", [(2, 3), (4, 5)])]
)
def test_einsum_refuses_what_makes_no_sense(equation, shapes):
    leaves, _ = make_leaves([normal(*s) for s in shapes])
    with pytest.raises(ValueError, match="einsum"):
        einsum(*leaves, equation=equation)


# -- convolutions ---------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    # x, weight, stride, padding, dilation, groups
    ((2, 3, 7, 6), (4, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    ((2, 4, 9, 8), (6, 2, 3, 2), (2, 3), ((0, 2), (1, 0)), (1, 2), 2),
    ((1, 3, 8, 8), (3, 1, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 3),  # depthwise; the last row is not used
    ((2, 4, 1, 1), (2, 4, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ((1, 2, 5, 7), (3, 2, 2, 3), (3, 2), ((2, 1), (0, 3)), (2, 2), 1),
    ((0, 2, 5, 5), (3, 2, 3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ((1, 2, 3, 3), (4, 1, 3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 2),
]


def torch_conv(x, w, b=None, *, stride, padding, dilation, groups):
    n = len(stride)
    x = F.pad(x, [p for pair in reversed(padding) for p in pair])
    return (F.conv1d if n == 1 else F.conv2d)(x, w, b, stride, 0, dilation, groups)


@pytest.mark.parametrize("xs, ws, stride, padding, dilation, groups", CONVOLUTIONS)
def test_conv2d(xs, ws, stride, padding, dilation, groups):
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, w, b = normal(*xs), normal(*ws), normal(ws[0])
    y = check(lambda x, w: conv2d(x, w, **geometry), lambda x, w: torch_conv(x, w, **geometry), x, w)
    check(
        lambda x, w, b: convolution(x, w, b, **geometry),
        lambda x, w, b: torch_conv(x, w, b, **geometry),
        x,
        w,
        b,
        order=1,
    )

    def their_input_grad(dy, w):
        like = torch.zeros(xs, dtype=dy.dtype, requires_grad=True)
        return torch.autograd.grad(torch_conv(like, w, **geometry), like, dy, create_graph=True)[0]

    def their_weight_grad(x, dy):
        like = torch.zeros(ws, dtype=dy.dtype, requires_grad=True)
        return torch.autograd.grad(torch_conv(x, like, **geometry), like, dy, create_graph=True)[0]

    dy = normal(*y.shape)
    check(lambda dy, w: conv2d_input_grad(dy, w, input_shape=xs[2:], **geometry), their_input_grad, dy, w)
    check(lambda x, dy: conv2d_weight_grad(x, dy, kernel=ws[2:], **geometry), their_weight_grad, x, dy)


@pytest.mark.parametrize("stride, padding, dilation, groups", [(1, (0, 0), 1, 1), (2, (1, 2), 2, 2)])
def test_conv1d(stride, padding, dilation, groups):
    geometry = {"stride": (stride,), "padding": (padding,), "dilation": (dilation,), "groups": groups}
    arrays = normal(2, 4, 9), normal(6, 4 // groups, 3), normal(6)
    for n in (2, 3):
        check(lambda *xs: convolution(*xs, **geometry), lambda *ts: torch_conv(*ts, **geometry), *arrays[:n])


def test_convolutions_say_what_does_not_fit():
    x, w, odd, big = make_leaves([normal(1, 4, 5, 5), normal(6, 3, 3, 3), normal(3, 2, 3, 3), normal(2, 4, 7, 7)])[0]
    with pytest.raises(ValueError, match=r"takes an input of 3 channels, the input .* has 4"):
        conv2d(x, w)
    with pytest.raises(ValueError, match="3 output channels are not a multiple of groups=2"):
        conv2d(x, odd, groups=2)
    with pytest.raises(ValueError, match=r"padded input \(5, 5\) is smaller than the kernel's reach \(7, 7\)"):
        conv2d(x, big)
    with pytest.raises(ValueError, match="has to be 0 or more"):
        conv2d(x, w, padding=((-1, 0), (0, 0)))


def test_half_precision_accumulates_in_float32():
    x, w = normal(1, 600, 3, 3).astype(np.float16), normal(2, 600, 3, 3).astype(np.float16)
    (a, b), values = make_leaves([x, w])
    from lezero.ops.expr import evaluate

    (y,) = evaluate([conv2d(a, b).node], values)
    exact = np.einsum("nchw,ochw->no", x.astype(np.float64), w.astype(np.float64)).reshape(1, 2, 1, 1)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2**-11, atol=1e-3)


# -- normalisation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 1, 1, 3)])
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_batch_norm_in_training(shape, affine):
    arrays = [normal(*shape), normal(shape[1], seed=1), normal(shape[1], seed=2)][: 1 + affine]

    def theirs(x, w=None, b=None):
        return F.batch_norm(x, None, None, w, b, training=True, eps=1e-3)

    check(lambda *xs: batch_norm(*xs, axis=1, eps=1e-3), theirs, *arrays, tol=1e-9)


def test_batch_norm_on_the_last_axis():
    def theirs(x, w):
        return F.batch_norm(x.movedim(-1, 1), None, None, w, training=True).movedim(1, -1)

    check(lambda x, w: batch_norm(x, w, axis=3), theirs, normal(2, 4, 5, 3), normal(3), tol=1e-9)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5)])
def test_batch_statistics(shape):
    x, axes = normal(*shape), tuple(a for a in range(len(shape)) if a != 1)
    check(lambda x: batch_mean(x, axis=1), lambda x: x.mean(axes), x)
    for correction in (0, 1):
        check(lambda x: batch_var(x, axis=1, correction=correction), lambda x: x.var(axes, correction=correction), x)


def test_statistics_of_half_precision_are_float32():
    x = make_leaves([normal(4, 3).astype(np.float16)])[0][0]
    assert batch_mean(x).dtype is float32 and batch_var(x).dtype is float32


@pytest.mark.parametrize("affine", [0, 2])
def test_batch_norm_with_given_statistics(affine):
    x, mean, var = normal(2, 3, 4, 5), normal(3, seed=1), np.abs(normal(3, seed=2)) + 0.5
    more = [normal(3, seed=3), normal(3, seed=4)][:affine]

    def theirs(x, mean, var, w=None, b=None):
        lay = (1, 3, 1, 1)
        y = (x - mean.reshape(lay)) / torch.sqrt(var.reshape(lay) + 1e-5)
        return y if w is None else y * w.reshape(lay) + b.reshape(lay)

    check(batch_norm_inference, theirs, x, mean, var, *more)


@pytest.mark.parametrize(
    "shape, dims", [((4, 6), 1), ((2, 3, 5), 1), ((2, 3, 5), 2), ((7,), 1), ((2, 1), 1), ((0, 4), 1)]
)
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_layer_norm(shape, dims, affine):
    tail = shape[-dims:]
    arrays = [normal(*shape), normal(*tail, seed=1), normal(*tail, seed=2)][: 1 + affine]
    check(
        lambda *xs: layer_norm(*xs, dims=dims, eps=1e-3),
        lambda x, *p: F.layer_norm(x, tail, *p, eps=1e-3),
        *arrays,
        tol=1e-9,
    )


@pytest.mark.parametrize("affine", [0, 1])
def test_rms_norm(affine):
    arrays = [normal(2, 3, 5), normal(5)][: 1 + affine]
    check(lambda *xs: rms_norm(*xs, eps=1e-4), lambda x, *w: F.rms_norm(x, (5,), *w, eps=1e-4), *arrays)


@pytest.mark.parametrize("shape, groups", [((2, 6, 3, 2), 3), ((2, 4), 2), ((2, 4, 5), 4), ((1, 4, 5), 1)])
@pytest.mark.parametrize("affine", [0, 2])
def test_group_norm(shape, groups, affine):
    arrays = [normal(*shape), normal(shape[1], seed=1), normal(shape[1], seed=2)][: 1 + affine]
    check(lambda *xs: group_norm(*xs, groups=groups), lambda x, *p: F.group_norm(x, groups, *p), *arrays, tol=1e-8)


def test_variance_of_values_far_from_zero():
    x = (normal(8, 64) + 1e4).astype(np.float32)
    check(layer_norm, lambda x: F.layer_norm(x.double(), (64,)).float(), x, tol=2e-3, order=0)


def test_normalisation_says_what_does_not_fit():
    x, w = make_leaves([normal(2, 6, 3), normal(5)])[0]
    for broken in (
        lambda: batch_norm(x, w),
        lambda: layer_norm(x, w),
        lambda: group_norm(x, groups=4),
        lambda: layer_norm(x, dims=4),
    ):
        with pytest.raises(ValueError, match="_norm: "):
            broken()


# -- softmax and attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, axis", [((3, 4), 1), ((3, 4), 0), ((2, 3, 4), 1), ((5,), 0), ((), 0), ((0, 3), 1), ((3, 0), 1), ((2, 1), 1)]
)
def test_softmax_and_its_logarithm(shape, axis):
    x = 3 * np.asarray(normal(*shape))
    check(lambda x: softmax(x, axis=axis), lambda x: torch.softmax(x, axis), x)
    check(lambda x: log_softmax(x, axis=axis), lambda x: torch.log_softmax(x, axis), x)
    check(lambda x: softmin(x, axis=axis), lambda x: F.softmin(x, axis), x)


def test_softmax_neither_overflows_nor_hides_nan():
    x = np.array([[1e4, -1e4, 0], [-np.inf, 0, 1], [-np.inf] * 3, [np.nan, 0, 1], [np.inf, 0, 1]], np.float32)
    for ours, theirs in ((softmax, torch.softmax), (log_softmax, torch.log_softmax)):
        check(lambda x: ours(x, axis=1), lambda x: theirs(x, 1), x, order=0, tol=1e-6)


@pytest.mark.parametrize(
    "mask, is_causal", [(None, False), (None, True), ("bool", False), ("float", False), ("broadcast", False)]
)
@pytest.mark.parametrize("lead, keys", [((), 4), ((2, 3), 4), ((2, 3), 6), ((2,), 3)])
def test_attention(mask, is_causal, lead, keys):
    q, k, v = normal(*lead, 4, 5), normal(*lead, keys, 5, seed=1), normal(*lead, keys, 6, seed=2)
    more = []
    if mask:
        shape = (keys,) if mask == "broadcast" else (*lead, 4, keys)
        m = normal(*shape, seed=3)
        more = [m > -0.5 if mask == "bool" else m]

    def theirs(q, k, v, m=None):
        return F.scaled_dot_product_attention(q, k, v, m, is_causal=is_causal)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        check(lambda *xs: attention(*xs, is_causal=is_causal), theirs, q, k, v, *more)


def test_attention_with_shared_keys_and_a_scale():
    q, k, v = normal(2, 6, 4, 5), normal(2, 2, 3, 5, seed=1), normal(2, 2, 3, 5, seed=2)

    def theirs(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        check(lambda *xs: attention(*xs, scale=0.3), theirs, q, k, v)


def test_a_query_that_sees_nothing_gives_zeros():
    mask = np.array([[True, False], [False, False]])
    arrays = normal(2, 3), normal(2, 3, seed=1), normal(2, 3, seed=2)
    y = check(attention, F.scaled_dot_product_attention, *arrays, mask, order=1)
    assert not y[1].any()


def test_attention_says_what_does_not_fit():
    q, k, v = make_leaves([normal(2, 3, 4, 5), normal(2, 2, 4, 5), normal(2, 3, 4, 5)])[0]
    with pytest.raises(ValueError, match="attention: q"):
        attention(q, k, v)
