"""Reductions: against PyTorch, finite differences, and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lezero as lz
from lezero.graph.dtype import by_name, float32, int32, int64
from lezero.ops import reduce as R
from lezero.ops.base import REGISTRY
from lezero.ops.expr import evaluate, leaf
from op_cases import CASES, finite_differences, needs_torch
from op_parity import check, make_leaves, torch

few = settings(max_examples=15, deadline=None)
REDUCTIONS = [
    "sum",
    "prod",
    "max",
    "min",
    "mean",
    "var",
    "std",
    "logsumexp",
    "any",
    "all",
    "count_nonzero",
    "argmax",
    "argmin",
    "norm",
]
SMOOTH = [n for n in REDUCTIONS if CASES[n].order]


def reference_is_degenerate(name, attrs):
    """Where the value is 0/0 or has no derivative: nothing to compare."""
    return name in ("var", "std") and not attrs["axes"]


@pytest.mark.parametrize("name", REDUCTIONS)
@few
@given(data=st.data())
def test_values_and_derivatives_are_pytorchs(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    n = math.prod(arrays[0].shape[a] for a in attrs["axes"])
    order = 0 if name in ("var", "std") and n < 2 else 1 if name == "norm" else case.order
    check(lambda *x: case(*x, **attrs), lambda *t: case.torch(*t, **attrs), *arrays, order=order, tol=1e-8)


@pytest.mark.parametrize("name", SMOOTH)
@few
@given(data=st.data())
def test_gradients_are_finite_differences(name, data):
    case = CASES[name]
    (x,), attrs = data.draw(case.draw)
    if name in ("var", "std") and math.prod(x.shape[a] for a in attrs["axes"]) < 2:
        return
    if name == "std":  # two equal elements: no spread, no derivative
        x = x + np.arange(x.size).reshape(x.shape)
    finite_differences(lambda a: case(a, **attrs), [x], order=2)


@given(shift=st.integers(0, 3), zeros=st.integers(0, 3))
@few
def test_products_have_gradients_of_every_order_at_zeros(shift, zeros):
    x = np.array([1.5, -0.5, 2.0, 0.75])
    x[:zeros] = 0
    finite_differences(lambda a: R.prod(a, axes=(0,)), [np.roll(x, shift)], order=3)


DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["sum", "prod", "max", "min", "any", "all", "argmax", "count_nonzero", "mean", "logsumexp"]
)
def test_result_dtypes_and_values_are_pytorchs(name, dtype):
    x = np.array([[1, 0, 3], [2, 2, 0]]).astype(by_name(dtype).numpy)
    t = torch.tensor(x.astype(np.float64)).to(getattr(torch, dtype))
    op = REGISTRY[name]
    leaves, values = make_leaves([x])
    call = {"max": torch.amax, "min": torch.amin, "logsumexp": lambda v: torch.logsumexp(v, (0, 1))}.get(
        name
    ) or getattr(torch, name)
    try:
        expected = call(t)
    except RuntimeError:
        if name != "argmax":  # which works on bools here
            with pytest.raises(TypeError, match="cast it"):
                op(*leaves, axes=(0, 1))
        return
    if name == "logsumexp" and dtype in DTYPES[:5]:
        return  # refused here with a hint, promoted there
    y = op(*leaves, axes=(0, 1))
    if not (name in ("any", "all") and dtype == "uint8"):  # torch keeps uint8 for the sake of its past
        assert y.dtype.name == str(expected.dtype)[6:]
    (ours,) = evaluate([y.node], values)
    assert abs(float(ours) - float(expected)) <= 1e-2 * abs(float(expected))


def test_halves_add_up_in_float32():
    for dtype in ("float16", "bfloat16"):
        leaves, values = make_leaves([np.full(5000, 0.5, by_name(dtype).numpy)])
        (y,) = evaluate([R.sum(*leaves, axes=(0,)).node], values)
        assert float(y) == np.asarray(2500, by_name(dtype).numpy)


def test_nan_wins_extremes_and_their_positions():
    x = np.array([1.0, np.nan, 3.0, np.nan])
    leaves, values = make_leaves([x])
    ours = evaluate([f(*leaves, axes=(0,)).node for f in (R.max, R.min, R.argmax, R.argmin)], values)
    assert np.isnan(ours[0]) and np.isnan(ours[1]) and ours[2] == ours[3] == 1


def test_logsumexp_of_infinities():
    x = np.array([[-np.inf, -np.inf], [np.inf, 1.0], [-np.inf, 2.0]])
    check(lambda a: R.logsumexp(a, axes=(1,)), lambda a: a.logsumexp(1), x, order=0)


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_share_the_gradient_and_the_first_keeps_it_with_a_position(name):
    x = np.array([[1.0, 3, 3], [2, 2, 2]])
    check(lambda a: REGISTRY[name](a, axes=(1,)), lambda a: getattr(a, "a" + name)(1), x, order=1)
    ours, theirs = lz.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    for t in (ours, theirs):
        getattr(t, name)(1).values.sum().backward()
    assert ours.grad.tolist() == theirs.grad.tolist()
    assert getattr(ours, name)(1, True).indices.tolist() == getattr(theirs, name)(1, True).indices.tolist()


def test_norm_has_gradient_zero_at_zero():
    from lezero.autograd.walk import walk
    from lezero.ops.expr import Expr
    from op_cases import track

    for p in (1.0, 2.0, 3.0):
        (x, one), values = make_leaves([np.zeros(3), np.ones(())])
        y = R.norm(x, axes=(0,), p=p)
        track([y.node])
        (dx,) = evaluate([walk({y.node: one}, Expr)[x.node].node], values)
        np.testing.assert_array_equal(dx, 0)


def test_sums_of_nothing():
    leaves, values = make_leaves([np.zeros((0, 2))])
    ours = evaluate([f(*leaves, axes=(0,)).node for f in (R.sum, R.prod, R.any, R.all, R.mean)], values)
    np.testing.assert_array_equal(ours, [[0, 0], [1, 1], [0, 0], [1, 1], [np.nan] * 2])


@pytest.mark.parametrize("call, error, words", [
    (lambda: R.max(leaf((0, 2), float32), axes=(0,)), ValueError, "dimension 0 of shape .* is empty"),
    (lambda: R.argmax(leaf((2, 3, 4), float32), axes=(0, 1)), ValueError, "one axis or all"),
    (lambda: R.mean(leaf((2,), int32), axes=(0,)), TypeError, "floating"),
    (lambda: R.max(leaf((2,), by_name("complex64")), axes=(0,)), TypeError, "no order"),
])  # fmt: skip
def test_misuse_is_refused_with_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_count_of_a_mean_stays_symbolic():
    from lezero.graph.dim import Dim

    s = Dim.symbol(0, 4)
    y = R.mean.decompose(leaf((s, 3), float32), axes=(0, 1), keepdim=False)
    (count,) = [n for n in y.node.inputs if n.op.name == "constant"]
    assert isinstance(count.attrs[0], Dim) and count.dtype is int64 and y.dtype is float32
