"""Element-wise operations: against PyTorch, finite differences, their own decompositions, and their loop-IR rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lezero as lz
import lezero.ops.elementwise as E
from lezero.graph.dtype import ALL, as_dtype, bool_, by_name, float32, int64
from lezero.ops.base import REGISTRY
from lezero.ops.expr import evaluate, leaf, reference
from op_cases import CASES, finite_differences, needs_torch, numbers, run_loops, seeds, shapes, variable
from op_parity import check, make_leaves, torch

few = settings(max_examples=6, deadline=None)
ELEMENTWISE = [
    name for name, case in CASES.items() if REGISTRY[case.op].kind == "elementwise" or case.op == "masked_fill"
]
PRIMITIVE = [name for name in ELEMENTWISE if REGISTRY[CASES[name].op].element is not None]


@pytest.mark.parametrize("name", ELEMENTWISE)
@few
@given(data=st.data())
def test_values_and_derivatives_are_pytorchs(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    # torch's own second derivatives of these are wrong or missing; finite differences below check ours
    order = 1 if name in ("digamma", "digamma of negatives", "angle", "hardsigmoid") else case.order
    # torch keeps the slopes of some activations in float32, whatever the dtype
    tol = 1e-9 if "gamma" in name else 1e-7 if name in ("hardsigmoid", "celu", "selu", "elu", "hardswish") else 1e-10
    check(
        lambda *x: case(*x, **attrs),
        lambda *t: case.torch(*t, **attrs),
        *arrays,
        order=order,
        frozen=case.frozen,
        tol=tol,
    )


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if CASES[n].order])
@few
@given(data=st.data())
def test_gradients_are_finite_differences(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    finite_differences(lambda *x: case(*x, **attrs), arrays, order=case.order, frozen=case.frozen)


@pytest.mark.parametrize("name", PRIMITIVE)
@few
@given(data=st.data())
def test_the_element_rule_computes_the_reference(name, data):
    case = CASES[name]
    op = REGISTRY[case.op]
    arrays, attrs = data.draw(case.draw)
    leaves, values = make_leaves(arrays)
    y = case(*leaves, **attrs)
    (expected,) = evaluate([y.node], values)
    if op.domain == "bool":
        arrays = [a != 0 for a in arrays]
    element = op.element(*(variable(f"x{k}", as_dtype(a.dtype).code) for k, a in enumerate(arrays)), **attrs)
    assert element.type == y.dtype.code
    got = run_loops(element, {f"x{k}": a for k, a in enumerate(arrays)})
    np.testing.assert_allclose(got.astype(complex), expected.astype(complex), rtol=1e-12, atol=1e-12)


REALS = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, -7.25, 1e-30, 3e30, np.inf, -np.inf, np.nan]


@needs_torch
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "pow", "atan2", "copysign", "logical_and", "logical_or", "logical_xor", "hypot"])  # fmt: skip
@pytest.mark.parametrize("standing", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_result_dtypes_are_pytorchs(name, standing):
    for a in REALS:
        for b in REALS:
            x, y = (torch.ones((2,) * s, dtype=getattr(torch, d)) for s, d in zip(standing, (a, b)))
            try:
                expected = str(getattr(torch, name)(x, y).dtype)[6:]
            except (RuntimeError, NotImplementedError):
                continue
            ours = REGISTRY[name](leaf(tuple(x.shape), by_name(a)), leaf(tuple(y.shape), by_name(b)))
            assert ours.dtype.name == expected, f"{name}({a}, {b})"


@needs_torch
@pytest.mark.parametrize("dtype", REALS + ["complex64"])
@pytest.mark.parametrize("number", [True, 2, 2.5, 2.5j])
def test_python_numbers_promote_by_category_only(dtype, number):
    if dtype == "float16" and number == 2.5j:
        return  # torch makes it complex32, which LeZero does not have
    t = torch.ones(3, dtype=getattr(torch, dtype))
    ours = leaf((3,), by_name(dtype)) * number
    assert ours.dtype.name == str((t * number).dtype)[6:]


UNARY = [
    n for n in PRIMITIVE if len(REGISTRY[n].inputs if n in REGISTRY else "--") == 1 and CASES[n].torch and n != "cast"
]


@needs_torch
@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("identity", "variable", "detach")])
def test_special_values_are_pytorchs(name):
    x = np.array(SPECIAL, np.float32)
    leaves, values = make_leaves([x])
    (ours,) = evaluate([REGISTRY[name](leaves[0]).node], values)
    theirs = CASES[name].torch(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-30)


@needs_torch
@pytest.mark.parametrize(
    "name",
    [
        "add",
        "mul",
        "div",
        "maximum",
        "minimum",
        "eq",
        "lt",
        "ge",
        "pow",
        "fmod",
        "atan2",
        "copysign",
        "hypot",
        "logaddexp",
    ],
)
def test_special_pairs_are_pytorchs(name):
    a, b = (m.ravel().astype(np.float64) for m in np.meshgrid(SPECIAL, SPECIAL))
    leaves, values = make_leaves([a, b])
    (ours,) = evaluate([REGISTRY[name](*leaves).node], values)
    np.testing.assert_allclose(ours, getattr(torch, name)(torch.from_numpy(a), torch.from_numpy(b)).numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["relu", "gelu", "silu", "exp", "tanh", "sigmoid", "softplus", "mish", "elu", "leaky_relu", "hardswish"]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded_once(name, dtype):
    x = numbers((50,), 3, -4, 4).astype(by_name(dtype).numpy)
    leaves, values = make_leaves([x])
    y = REGISTRY[name](leaves[0])
    assert y.dtype is by_name(dtype)
    leaves32, values32 = make_leaves([x.astype(np.float32)])
    (wide,) = evaluate([REGISTRY[name](leaves32[0]).node], values32)
    (ours,) = evaluate([y.node], values)
    np.testing.assert_array_equal(ours, wide.astype(x.dtype))


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus", "mish", "elu", "selu", "celu", "logsigmoid", "hardswish",
                                  "softsign", "tanhshrink", "tanh", "sigmoid", "tan", "atan", "asinh", "erf", "erfc", "exp2",
                                  "expm1", "prelu", "atan2", "hypot"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_in_half_precision_are_those_of_float32_rounded_once(name, dtype):
    op, half = REGISTRY[name], by_name(dtype)
    arrays = [numbers((50,), seed, -4, 4).astype(half.numpy) for seed in range(2 + len(op.inputs))]  # dy, y, operands

    def gradient(arrays):
        leaves, values = make_leaves(arrays)
        found = op.gradient(*leaves, **op.attrs)
        return evaluate([g.node for g in (found if isinstance(found, tuple) else (found,))], values)

    for ours, wide in zip(gradient(arrays), gradient([a.astype(np.float32) for a in arrays])):
        assert ours.dtype == half.numpy
        np.testing.assert_array_equal(ours, wide.astype(half.numpy))


@needs_torch
@pytest.mark.parametrize(
    "name",
    [
        "add",
        "sub",
        "mul",
        "div",
        "exp",
        "log",
        "sqrt",
        "abs",
        "sign",
        "real",
        "imag",
        "conj",
        "square",
        "reciprocal",
        "rsqrt",
        "angle",
    ],
)
@few
@given(seed=seeds, shape=shapes)
def test_complex_values_and_gradients_are_pytorchs(name, seed, shape):
    op = REGISTRY[name]
    count = len(op.inputs)
    parts = [numbers(shape, seed + k, 0.25, 2) for k in range(2 * count)]
    torch_op = {"real": torch.real, "imag": torch.imag, "sign": torch.sgn, "conj": lambda z: z.conj().resolve_conj()}
    theirs = torch_op.get(name) or getattr(torch, name)

    def ours(*x):
        z = op(*(E.complex(x[2 * k], x[2 * k + 1]) for k in range(count)))
        return E.abs(z * (0.5 + 1j)) if z.dtype.is_complex else z

    def peer(*t):
        z = theirs(*(torch.complex(t[2 * k], t[2 * k + 1]) for k in range(count)))
        return torch.abs(z * (0.5 + 1j)) if z.is_complex() else z

    check(ours, peer, *parts, order=1, tol=1e-9)
    if shape:
        finite_differences(ours, parts, order=2)


@needs_torch
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize(
    "name",
    ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "logical_or_bitwise_not"],
)
def test_bits(name, dtype):
    op = REGISTRY[name]
    if "shift" in name and dtype == "bool":
        with pytest.raises(TypeError, match=name):
            op(leaf((2,), bool_), leaf((2,), bool_))
        return
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2 if dtype == "bool" else 7, 20).astype(by_name(dtype).numpy) for _ in op.inputs]
    leaves, values = make_leaves(arrays)
    (ours,) = evaluate([op(*leaves).node], values)
    theirs = getattr(torch, "bitwise_not" if "not" in name else name)(*map(torch.from_numpy, arrays))
    np.testing.assert_array_equal(ours, theirs.numpy())
    element = op.element(*(variable(f"x{k}", by_name(dtype).code) for k in range(len(arrays))))
    np.testing.assert_array_equal(run_loops(element, {f"x{k}": a for k, a in enumerate(arrays)}), ours)


# -- what the rules promise at the edges -------------------------------------------------------------------------


def gradient_of(build, *arrays):
    from lezero.autograd.walk import walk
    from lezero.ops.expr import Expr
    from op_cases import track

    leaves, values = make_leaves([np.asarray(a, np.float64) for a in arrays])
    y = REGISTRY["sum"](build(*leaves), axes=(0,))
    track([y.node])
    one, more = make_leaves([np.ones(())])
    grads = walk({y.node: one[0]}, Expr)
    return evaluate([grads[x.node].node for x in leaves if x.node in grads], values | more)


@needs_torch
def test_pow_has_gradients_at_zero_and_for_negative_bases():
    a, b = np.array([0.0, 0.0, 0.0, -2.0, -2.0]), np.array([0.0, 1.0, 3.0, 3.0, 2.0])
    x, y = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    (x**y).sum().backward()
    da, db = gradient_of(lambda p, q: p**q, a, b)
    np.testing.assert_allclose(da, x.grad.numpy())
    np.testing.assert_allclose(db, y.grad.numpy())


def test_equal_extremes_share_the_gradient():
    da, db = gradient_of(E.maximum, [1.0, 2.0], [1.0, 3.0])
    np.testing.assert_array_equal(da, [0.5, 0.0])
    np.testing.assert_array_equal(db, [0.5, 1.0])


def test_unchosen_infinities_do_not_reach_the_gradient_of_where():
    (dx,) = gradient_of(lambda x: E.where(x > 0, E.log(E.where(x > 0, x, 1.0)), 0.0), [0.0, 2.0])
    np.testing.assert_array_equal(dx, [0.0, 0.5])


@pytest.mark.parametrize("call, words", [
    (lambda x: x & 1, "integer operands"),
    (lambda x: E.where(x, x, x), "condition must be bool"),
    (lambda x: E.lt(x * 1j, x), "no order"),
    (lambda x: -(x > 0), "bool operands"),
    (lambda x: E.complex(x * 1j, x), "float32 or float64"),
])  # fmt: skip
def test_unfit_dtypes_are_refused_with_a_sentence(call, words):
    with pytest.raises(TypeError, match=words):
        call(leaf((3,), float32))


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ValueError, match=r"add: shapes \(2, 3\) and \(4,\) do not broadcast"):
        leaf((2, 3), float32) + leaf((4,), float32)


def test_small_powers_are_products():
    x = leaf((3,), int64)
    assert (x**2).node.op.name == "integer_power" and (x**2).dtype is int64
    assert (x**2.0).node.op.name == "pow" and (x**2.0).dtype is float32


@pytest.mark.parametrize("dtype", [d.name for d in ALL])
def test_cast_between_all_dtypes(dtype):
    for other in ALL:
        x = np.array([0, 1, 3, 2], as_dtype(dtype).numpy)
        node = E.cast(leaf((4,), as_dtype(dtype)), dtype=other).node
        np.testing.assert_array_equal(reference(node, [x]), x.real.astype(other.numpy))
        code = E.cast.element(variable("x", as_dtype(dtype).code), dtype=other)
        assert code.type == other.code


def test_nan_to_num_is_numpys():
    x = np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)
    (a,), values = make_leaves([x])
    np.testing.assert_array_equal(evaluate([E.nan_to_num(a).node], values)[0], np.nan_to_num(x))
    np.testing.assert_array_equal(evaluate([E.nan_to_num(a, 2.0, 3.0, -3.0).node], values)[0], [2, 3, -3, 1.5])


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_both_operands_of_an_extreme_that_is_nan_get_the_gradient(name):
    nan = float("nan")
    operands = [nan, 1.0, nan, 1.0, 1.0, 2.0], [1.0, nan, nan, 1.0, 2.0, 1.0]
    ours = [lz.tensor(v, requires_grad=True) for v in operands]
    theirs = [torch.tensor(v, requires_grad=True) for v in operands]
    getattr(lz, name)(*ours).sum().backward()
    getattr(torch, name)(*theirs).sum().backward()
    for a, b in zip(ours, theirs):
        assert a.grad.tolist() == b.grad.tolist()
