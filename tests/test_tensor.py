"""The tensor's surface: every function of the list is there, as in PyTorch; exchange with other libraries."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import lezero as lz

rng = np.random.default_rng(0)
A = rng.standard_normal((4, 5)).astype(np.float32)
B = rng.standard_normal((4, 5)).astype(np.float32)
SQUARE = rng.standard_normal((4, 4)).astype(np.float32)
V, W = A[0].copy(), B[0].copy()
CUBE = rng.standard_normal((2, 3, 4)).astype(np.float32)
INTS = rng.integers(-5, 6, (3, 4))
NAN = np.array([1.0, np.nan, -np.inf, np.inf, -0.0, 0.0], np.float32)
IDX = np.array([0, 2, -1])
POSITIVE = np.array([0, 2, 1])
MASK = A > 0

# (name, arguments, keyword arguments): called as a function and, where both have it, as a method
CASES = [
    *((name, (A,), {}) for name in ["abs", "neg", "sign", "exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "erf", "erfc", "sigmoid", "floor", "ceil", "round", "trunc", "frac", "square", "relu", "absolute", "negative", "arctan", "arcsinh", "fix", "deg2rad", "rad2deg", "sinc", "sgn", "signbit", "positive", "flatten", "ravel", "fliplr", "flipud", "t", "sum", "mean", "prod", "amax", "amin", "var", "std", "any", "all", "norm", "argmax", "argmin", "max", "min", "median", "count_nonzero", "msort", "isnan", "isinf", "isfinite", "isneginf", "isposinf", "isreal", "logical_not", "numel", "aminmax", "argwhere", "nonzero", "diag", "diagonal", "trace"]),
    *((name, (np.abs(A) + 0.1,), {}) for name in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"]),
    *((name, (np.tanh(A),), {}) for name in ["acos", "asin", "atanh", "arccos", "arcsin", "arctanh"]),
    *((name, (np.abs(A) + 1.5,), {}) for name in ("acosh", "arccosh")),
    *((name, (A, B), {}) for name in ["add", "sub", "mul", "div", "true_divide", "divide", "multiply", "subtract", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "greater_equal", "less_equal", "not_equal", "atan2", "arctan2", "copysign", "hypot", "logaddexp", "logaddexp2", "fmax", "fmin", "isclose", "dist", "fmod", "remainder", "logical_and", "logical_or", "logical_xor", "ldexp", "floor_divide", "heaviside"]),
    *((name, (INTS, INTS[::-1].copy()), {}) for name in ["bitwise_and", "bitwise_or", "bitwise_xor", "add", "mul", "maximum"]),
    *((name, (INTS, np.abs(INTS) % 3), {}) for name in ("bitwise_left_shift", "bitwise_right_shift")),
    ("bitwise_not", (INTS,), {}), ("bitwise_not", (MASK,), {}),
    ("pow", (np.abs(A), 2.5), {}), ("float_power", (INTS, 2), {}), ("xlogy", (np.array([0.0, 1, 2]), np.array([0.0, 2, 3])), {}),
    ("logit", (np.array([0.1, 0.5, 0.9], np.float32),), {}), ("logit", (np.array([0.0, 0.5]),), {"eps": 0.1}),
    ("nan_to_num", (NAN,), {}), ("nan_to_num", (NAN, 1.0, 2.0, 3.0), {}), ("signbit", (NAN,), {}), ("fmax", (NAN, NAN[::-1].copy()), {}),
    ("nansum", (NAN[[0, 1, 4]],), {}), ("nanmean", (NAN[[0, 1, 4]],), {}),
    ("clamp", (A, -0.5, 0.5), {}), ("clamp_min", (A, 0.1), {}), ("clamp_max", (A, 0.1), {}), ("clip", (A,), {"max": 0.3}),
    ("lerp", (A, B, 0.3), {}), ("addcmul", (A, B, B), {"value": 2}), ("addcdiv", (A, B, np.abs(B) + 1), {"value": 0.5}),
    *((name, (A, 1), {}) for name in ["sum", "mean", "prod", "amax", "amin", "var", "std", "any", "all", "logsumexp", "argmax", "argmin", "max", "min", "median", "cumsum", "cumprod", "cummax", "cummin", "softmax", "log_softmax", "argsort", "sort"]),
    *((name, (A,), {"dim": 0, "keepdim": True}) for name in ["sum", "mean", "prod", "amax", "amin", "var", "std", "any", "all", "argmax", "argmin", "max", "min", "median", "aminmax"]),
    ("norm", (A, 3), {}), ("norm", (A, 1, 1), {}), ("var", (A,), {"dim": 1, "correction": 0}), ("std_mean", (A,), {"dim": 1}),
    ("var_mean", (A,), {"dim": 0}), ("quantile", (A, 0.3), {}), ("quantile", (A, np.array([0.1, 0.9], np.float32), 1), {}),
    ("quantile", (A, 0.5), {"dim": 0, "keepdim": True}), ("kthvalue", (A, 2, 0), {}), ("topk", (A, 3), {}), ("topk", (A, 2, 0, False), {}),
    ("diff", (A,), {}), ("diff", (A, 2, 0), {}), ("count_nonzero", (INTS, 1), {}),
    ("matmul", (A, B.T.copy()), {}), ("mm", (A, B.T.copy()), {}), ("bmm", (CUBE, CUBE.transpose(0, 2, 1).copy()), {}), ("dot", (V, W), {}),
    ("mv", (A, V), {}), ("outer", (V, W), {}), ("inner", (A, B), {}), ("vdot", (V, W), {}), ("kron", (A, SQUARE), {}),
    ("addmm", (SQUARE, A, B.T.copy()), {"beta": 0.5, "alpha": 2}), ("addmv", (V[:4].copy(), A, V), {}), ("addr", (SQUARE, V[:4].copy(), W[:4].copy()), {}),
    ("addbmm", (np.zeros((3, 3), np.float32), CUBE, CUBE.transpose(0, 2, 1).copy()), {}),
    ("baddbmm", (np.ones((2, 3, 3), np.float32), CUBE, CUBE.transpose(0, 2, 1).copy()), {"alpha": 0.5}),
    ("cross", (A[:, :3].copy(), B[:, :3].copy()), {"dim": 1}), ("cdist", (A, B), {}), ("tensordot", (CUBE, CUBE), {"dims": ([1, 2], [1, 2])}),
    ("reshape", (A, (2, 10)), {}), ("permute", (CUBE, (2, 0, 1)), {}), ("transpose", (CUBE, 0, 2), {}), ("swapdims", (CUBE, 0, 1), {}),
    ("movedim", (CUBE, 0, -1), {}), ("moveaxis", (CUBE, (0, 1), (2, 0)), {}), ("unsqueeze", (A, 1), {}), ("squeeze", (A[:1], 0), {}),
    ("flip", (CUBE, (0, 2)), {}), ("roll", (A, 2), {}), ("roll", (A, (1, -2), (0, 1)), {}), ("rot90", (A,), {}), ("rot90", (A, 3), {}),
    ("tile", (A, (2, 1, 2)), {}), ("repeat_interleave", (A, 2, 1), {}), ("repeat_interleave", (A, np.array([1, 0, 2, 1]), 0), {}),
    ("broadcast_to", (V, (3, 5)), {}), ("unflatten", (A, 1, (5, 1)), {}), ("narrow", (A, 1, 1, 3), {}), ("select", (A, 1, -1), {}),
    ("split", (A, 3, 1), {}), ("split", (A, [1, 3], 0), {}), ("chunk", (A, 3, 1), {}), ("unbind", (A, 1), {}), ("tensor_split", (A, 3, 1), {}),
    ("tensor_split", (A, (1, 3), 1), {}), ("hsplit", (A, [2]), {}), ("vsplit", (A, 2), {}),
    ("diag", (V,), {}), ("diag", (A, 1), {}), ("diag_embed", (A,), {}), ("diag_embed", (V, -2), {}), ("diagflat", (A,), {"offset": 1}),
    ("diagonal", (CUBE,), {"offset": 1, "dim1": 1, "dim2": 2}), ("tril", (A,), {}), ("triu", (A, 1), {}),
    ("gather", (A, 1, np.abs(INTS)[:, :3] % 5), {}), ("take_along_dim", (A, np.argsort(A, 1), 1), {}), ("index_select", (A, 0, POSITIVE), {}),
    ("take", (A, np.array([[0, 7], [-1, 3]])), {}), ("scatter", (A, 1, np.array([[0, 1], [2, 3]]), A[:2, :2].copy()), {}),
    ("scatter", (A, 0, np.array([[0, 1, 2, 3, 0]]), 9.0), {}), ("scatter_add", (A, 0, np.array([[0, 0, 2, 3, 0]]), A[1:2]), {}),
    ("index_add", (A, 0, np.array([1, 1, 0]), B[:3]), {"alpha": 2}), ("index_copy", (A, 1, POSITIVE, B[:, :3].copy()), {}),
    ("index_fill", (A, 0, POSITIVE, 3.0), {}), ("masked_fill", (A, MASK, -1.0), {}), ("masked_select", (A, MASK), {}),
    ("masked_scatter", (A, MASK, B), {}), ("where", (MASK, A, B), {}), ("searchsorted", (np.sort(V), W), {}), ("bucketize", (W, np.sort(V)), {"right": True}),
    ("unique", (INTS,), {}), ("unique", (INTS,), {"return_inverse": True, "return_counts": True}), ("bincount", (np.abs(INTS).ravel(),), {}),
    ("bincount", (np.array([0, 2, 2]), np.array([0.5, 1.0, 2.0])), {"minlength": 5}), ("equal", (A, A.copy()), {}), ("allclose", (A, A + 1e-9), {}),
    ("real", (A + 1j * B,), {}), ("imag", (A + 1j * B,), {}), ("angle", (A + 1j * B,), {}), ("abs", (A + 1j * B,), {}), ("sgn", (A + 1j * B,), {}),
]  # fmt: skip


def plain(value):
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if hasattr(value, "numpy"):
        return np.asarray(value.resolve_conj().numpy() if hasattr(value, "resolve_conj") else value.numpy())
    return value


def check(mine, theirs, label):
    if isinstance(theirs, list):
        assert len(mine) == len(theirs), label
        for a, b in zip(mine, theirs):
            check(a, b, label)
    elif isinstance(theirs, np.ndarray):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, (
            label,
            mine.dtype,
            theirs.dtype,
            mine.shape,
            theirs.shape,
        )
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5, err_msg=label)
    else:
        assert mine == theirs, label


def given(value, make):
    return make(value.copy()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)])
def test_functions_and_methods_match_pytorch(name, args, kwargs):
    torch = pytest.importorskip("torch")
    wanted = getattr(torch, name, None)
    theirs = [given(a, torch.tensor) for a in args]
    expected = plain(wanted(*theirs, **kwargs) if wanted else getattr(theirs[0], name)(*theirs[1:], **kwargs))
    mine = [given(a, lz.tensor) for a in args]
    check(plain(getattr(lz, name)(*mine, **kwargs)), expected, f"lz.{name}")
    if hasattr(torch.Tensor, name) and name != "where":
        check(plain(getattr(mine[0], name)(*mine[1:], **kwargs)), expected, f"Tensor.{name}")


def test_functions_of_several_tensors():
    torch = pytest.importorskip("torch")
    for name, arrays in [
        ("hstack", [A, B]),
        ("vstack", [V, W]),
        ("cat", [A, B]),
        ("stack", [A, B]),
        ("hstack", [V, W]),
    ]:
        check(
            plain(getattr(lz, name)([lz.tensor(a) for a in arrays])),
            plain(getattr(torch, name)([torch.tensor(a) for a in arrays])),
            name,
        )
    for name, arrays in [("meshgrid", [V, W]), ("broadcast_tensors", [A, V]), ("block_diag", [A, V, SQUARE])]:
        kwargs = {"indexing": "ij"} if name == "meshgrid" else {}
        check(
            plain(getattr(lz, name)(*[lz.tensor(a) for a in arrays], **kwargs)),
            plain(getattr(torch, name)(*[torch.tensor(a) for a in arrays], **kwargs)),
            name,
        )
    check(plain(lz.einsum("ij,kj->ik", lz.tensor(A), lz.tensor(B))), A @ B.T, "einsum")
    assert lz.one_hot(lz.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert lz.tensor(A).index_put((lz.tensor([0, 0]), lz.tensor([1, 1])), lz.ones(2), accumulate=True)[
        0, 1
    ].item() == pytest.approx(A[0, 1] + 2)
    assert lz.tensor(A).sum_to_size(1, 5).shape == (1, 5)
    check(plain(lz.tensor(V).unfold(0, 3, 2)), plain(torch.tensor(V).unfold(0, 3, 2)), "unfold")


ISSUE = [
    "abs",
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "erf",
    "floor",
    "ceil",
    "round",
    "sign",
    "pow",
    "maximum",
    "minimum",
    "clamp",
    "add",
    "sub",
    "mul",
    "div",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_not",
    "bitwise_and",
    "where",
    "isnan",
    "isinf",
    "isfinite",
    "sum",
    "mean",
    "max",
    "min",
    "prod",
    "var",
    "argmax",
    "argmin",
    "any",
    "all",
    "logsumexp",
    "cumsum",
    "reshape",
    "permute",
    "transpose",
    "flip",
    "cat",
    "concatenate",
    "stack",
    "split",
    "gather",
    "scatter_add",
    "take",
    "masked_fill",
    "one_hot",
    "sort",
    "topk",
    "matmul",
    "bmm",
    "einsum",
    "softmax",
    "log_softmax",
    "relu",
    "tril",
    "triu",
]
FUNCTIONAL = [
    "pad",
    "conv1d",
    "conv2d",
    "max_pool1d",
    "max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "mse_loss",
    "l1_loss",
    "binary_cross_entropy_with_logits",
    "nll_loss",
    "dropout",
    "embedding",
    "gelu",
    "silu",
    "relu",
    "leaky_relu",
    "elu",
    "relu6",
    "scaled_dot_product_attention",
    "one_hot",
    "linear",
]


def test_the_whole_list_is_reachable():
    from lezero.nn import functional

    assert [n for n in ISSUE if not hasattr(lz, n)] == []
    assert [n for n in FUNCTIONAL if not hasattr(functional, n)] == []
    methods = [
        "expand",
        "narrow",
        "slice_",
        "squeeze",
        "unsqueeze",
        "flatten",
        "chunk",
        "masked_fill",
        "cumsum",
        "sort",
        "topk",
        "index_add_",
        "scatter_add_",
        "nonzero",
    ]
    assert [n for n in methods if not hasattr(lz.Tensor, n)] == ["slice_"]


def test_in_place_forms_write():
    x = lz.tensor(A)
    x.add_(1).mul_(2).clamp_min_(0).tril_().index_fill_(0, lz.tensor([0]), 5.0)
    expected = np.tril(np.maximum((A + 1) * 2, 0))
    expected[0] = 5
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)


def test_multinomial_draws_by_weight():
    lz.manual_seed(0)
    weights = lz.tensor([0.0, 1.0, 3.0])
    drawn = np.bincount(weights.multinomial(4000, replacement=True).numpy(), minlength=3)
    assert drawn[0] == 0 and abs(drawn[2] / 4000 - 0.75) < 0.03
    assert sorted(lz.multinomial(weights, 2).tolist()) == [1, 2]
    with pytest.raises(ValueError, match="without replacement"):
        lz.multinomial(weights, 4)


# -- exchange ---------------------------------------------------------------------------------------------------------


def test_numpy_sees_the_values_without_a_copy_and_cannot_write():
    x = lz.tensor(A)
    a, b = x.numpy(), np.asarray(x)
    assert np.shares_memory(a, b)
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1
    np.testing.assert_array_equal(np.array(x, dtype=np.float64), A.astype(np.float64))


def test_copies_and_pickles_are_independent():
    x = lz.tensor(A, requires_grad=True)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert other.requires_grad
        with lz.no_grad():
            other.zero_()
        np.testing.assert_array_equal(x.numpy(), A)


def test_a_pickle_has_the_shape_of_its_tensor():
    for x in (lz.tensor(3), lz.tensor(1.5, dtype=lz.bfloat16), lz.zeros((0, 2)), lz.tensor(CUBE).transpose(0, 2)):
        other = pickle.loads(pickle.dumps(x))
        assert other.shape == x.shape and other.dtype is x.dtype
        np.testing.assert_array_equal(other.numpy(), x.numpy())


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_bisects_any_number_of_values(right):
    seen = lz.tensor([-1.0, 0.0, 1.0, 2.5, 40.0, np.nan])
    with lz.no_grad():
        for n in [*range(20), 31, 32, 33, 1000]:
            ordered = np.sort(np.random.default_rng(n).integers(0, 3 + n // 2, n)).astype(np.float32)
            ours = lz.searchsorted(lz.tensor(ordered), seen, right=right)
            np.testing.assert_array_equal(ours, np.searchsorted(ordered, seen, side="right" if right else "left"))


def test_numbers_given_a_dtype_are_rounded_to_it_alone():
    third = 1 / 3
    assert lz.tensor(third, dtype=lz.float64).item() == third
    assert lz.tensor([third], dtype=lz.float64)[0].item() == third
    assert lz.tensor(third * 1j, dtype=lz.complex128).item() == third * 1j
