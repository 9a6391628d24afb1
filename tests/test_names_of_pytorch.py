"""Names that users bring from PyTorch and NumPy."""

import ml_dtypes
import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "var", "std", "logsumexp", "norm"])
def test_reductions_take_axis_and_keepdims(name):
    x = lz.rand(3, 4)
    wanted = getattr(x, name)(dim=1, keepdim=True).numpy()
    assert np.array_equal(getattr(x, name)(axis=1, keepdims=True).numpy(), wanted)
    assert np.array_equal(getattr(lz, name)(x, axis=1, keepdims=True).numpy(), wanted)


def test_joining_takes_axis_and_promotes():
    x = lz.arange(6).reshape(2, 3)
    joined = lz.cat([x, x.to(lz.float64)], axis=1)
    assert joined.dtype is lz.float64
    assert np.array_equal(joined.numpy(), np.concatenate([x.numpy(), x.numpy().astype(float)], axis=1))
    assert np.array_equal(lz.stack([x, x], axis=2).numpy(), np.stack([x.numpy(), x.numpy()], axis=2))


def test_an_axis_given_twice_is_refused():
    with pytest.raises(TypeError):
        lz.ones(2, 2).sum(0, axis=1)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_limits_of_floating_dtypes(name):
    found, wanted = lz.finfo(getattr(lz, name)), ml_dtypes.finfo(name)
    assert (found.bits, found.eps, found.max, found.min) == (
        wanted.bits, float(wanted.eps), float(wanted.max), float(wanted.min),
    )  # fmt: skip
    with pytest.raises(TypeError, match="finfo is for floating"):
        lz.iinfo(name)


def test_limits_of_integer_dtypes():
    assert (lz.iinfo(lz.int8).min, lz.iinfo(lz.uint16).max) == (-128, 65535)
    with pytest.raises(TypeError, match="iinfo is for integers"):
        lz.finfo(lz.int32)


def test_dtypes_named_like_pythons_types():
    assert (lz.float, lz.int, lz.bool, lz.long) == (lz.float32, lz.int32, lz.bool_, lz.int64)


def test_result_types():
    x = lz.ones(2, dtype=lz.int8)
    assert lz.result_type(x, 1) is lz.int8
    assert lz.result_type(x, 1.5) is lz.float32
    assert lz.result_type(x, lz.tensor(1.0, dtype=lz.float64)) is lz.float64
    assert lz.promote_types(lz.float16, lz.bfloat16) is lz.float32


def test_random_numbers_of_given_distributions():
    lz.manual_seed(0)
    n = lz.normal(3.0, 0.5, (4000,)).numpy()
    assert abs(n.mean() - 3) < 0.05 and abs(n.std() - 0.5) < 0.05
    assert lz.normal(lz.zeros(3, 1), lz.ones(4)).shape == (3, 4)
    assert lz.bernoulli(lz.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]


def test_arrangements_match_numpy():
    a, b = np.arange(3.0), np.arange(3.0) + 5
    x, y = lz.tensor(a), lz.tensor(b)
    assert np.array_equal(lz.column_stack([x, y]).numpy(), np.column_stack([a, b]))
    assert np.array_equal(lz.dstack([x, y]).numpy(), np.dstack([a, b]))
    np.testing.assert_allclose(lz.logspace(0, 2, 5, dtype=lz.float64).numpy(), np.logspace(0, 2, 5), rtol=1e-12)


@pytest.mark.parametrize("name", ["cuda", "compile", "utils", "amp", "autocast", "FloatTensor"])
def test_what_has_another_name_here_is_pointed_to(name):
    assert not hasattr(lz, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(lz, name)


def test_an_optimizer_of_a_module_asks_for_its_parameters():
    with pytest.raises(TypeError, match=r"Adam: .* got a Linear: give its \.parameters\(\)"):
        optim.Adam(nn.Linear(2, 2))


def test_a_summary_of_a_shape_asks_for_a_tensor():
    with pytest.raises(TypeError, match=r"give lz\.zeros"):
        nn.utils.summary(nn.Linear(2, 2), (1, 2))


def test_a_warning_names_the_line_of_the_user():
    with pytest.warns(UserWarning, match="broadcast") as seen:
        nn.MSELoss()(lz.randn(3, 1), lz.randn(3))
    assert seen[0].filename == __file__


def test_a_loop_over_slices_is_planned_once():
    data, weight = lz.tensor(np.arange(400.0).reshape(100, 4)), lz.tensor(np.ones((4, 2)))
    results = []
    for i in range(0, 100, 10):
        results.append((data[i : i + 10] @ weight).sum().item())
        if i == 10:
            planned = lz.runtime.stats()["plans_built"]
    assert lz.runtime.stats()["plans_built"] == planned
    np.testing.assert_allclose(results, 2 * np.arange(400.0).reshape(10, 40).sum(1))


def test_a_slice_that_has_a_value_is_still_a_view():
    x = lz.tensor([0.0, 1, 2, 3, 4, 5])
    part, inner = x[1:4], x[1:4][1:]
    x.zero_()
    assert part.tolist() == [0, 0, 0] and inner.tolist() == [0, 0]
    part[0] = 7
    inner.fill_(3)
    assert x.tolist() == [0, 7, 3, 3, 0, 0] and part.tolist() == [7, 3, 3]
    x[::2] = 9
    assert part.tolist() == [7, 9, 3] and inner.tolist() == [9, 3]


PARTS = {
    "slice": lambda x, i: x[i : i + 10],
    "narrow": lambda x, i: x.narrow(0, i, 10),
    "select": lambda x, i: x.select(0, i),
    "int": lambda x, i: x[i],
    "ints": lambda x, i: x[i, i % 4],
    "column": lambda x, i: x[:, i % 4],
    "split": lambda x, i: x.split(10)[i // 10],
    "chunk": lambda x, i: x.chunk(10)[i // 10],
    "tensor_split": lambda x, i: x.tensor_split(10)[i // 10],
    "unbind": lambda x, i: x.unbind(0)[i],
    "iteration": lambda x, i: list(x)[i],
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_data_are_planned_and_compiled_once_wherever_they_begin(name):
    array = np.arange(400.0).reshape(100, 4) + len(name)
    data, take = lz.tensor(array), PARTS[name]
    for i in range(0, 100, 10):
        assert (take(data, i) * 2).sum().item() == pytest.approx(2 * np.sum(take_array(name, array, i)))
        stats = lz.runtime.stats()
        counts = stats["plans_built"], stats["kernels_compiled"] + stats["kernels_from_disk"]
        if i == 10:
            planned = counts
    assert counts == planned


def take_array(name, array, i):
    if name in ("slice", "narrow", "split", "chunk", "tensor_split"):
        return array[i : i + 10]
    return array[:, i % 4] if name == "column" else array[i, i % 4] if name == "ints" else array[i]


def test_elements_taken_at_once_are_views():
    x = lz.tensor(np.arange(6.0).reshape(2, 3))
    row, (first, second), corner = x[1], x.unbind(0), x[0, 2]
    row.fill_(7)
    corner.zero_()
    assert x.tolist() == [[0, 1, 0], [7, 7, 7]] and first.tolist() == [0, 1, 0] and second.tolist() == [7, 7, 7]
    first[1] = 9
    assert x.tolist() == [[0, 9, 0], [7, 7, 7]] and corner.item() == 0
