"""``scatter_reduce`` against PyTorch: all reductions, with gradients, equal elements, infinities, and places nothing comes to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lezero as lz

torch = pytest.importorskip("torch")

REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(REDUCTIONS), st.booleans(), st.integers(0, 1), st.integers(0, 2**31))
def test_values_and_gradients_are_pytorchs(reduce, include_self, dim, seed):
    rng = np.random.default_rng(seed)
    # few values, so that elements are equal, and no zeros: PyTorch's gradient of a product of zeros has its own rules
    base, src = (rng.choice([-2.0, -1.0, 1.0, 1.5], shape) for shape in ((4, 6), (5, 7)))
    if not include_self:
        base += 0.25  # PyTorch lets an equal element share the gradient even where it does not count
    index = rng.integers(0, (4, 6)[dim], (3, 5))
    weights = rng.normal(size=(4, 6))
    got, want = [], []
    for library, out in ((lz, got), (torch, want)):
        x, y = (library.tensor(a, requires_grad=True) for a in (base, src))
        part = y if library is lz else y[:3, :5]  # PyTorch has no gradient where only a part is scattered
        z = x.scatter_reduce(dim, library.tensor(index), part, reduce, include_self=include_self)
        (z * library.tensor(weights)).sum().backward()
        out += [z.detach().numpy(), x.grad.numpy(), y.grad.numpy()]
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float16", "float32"])
def test_many_elements_in_one_place(reduce, dtype):
    """256 of them are 0 as an 8-bit number."""
    src = np.ones(256, dtype)
    src[100] = 3
    index = np.zeros(256, np.int64)
    got = lz.scatter_reduce(lz.tensor(np.array([2, 5], dtype)), 0, lz.tensor(index), lz.tensor(src), reduce)
    want = torch.tensor(np.array([2, 5], dtype)).scatter_reduce(0, torch.tensor(index), torch.tensor(src), reduce)
    assert got.numpy().dtype == want.numpy().dtype
    np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_infinities_and_nan_are_chosen_as_in_pytorch(reduce):
    base, src = np.array([0.0, 1.0, 2.0, 3.0]), np.array([np.inf, np.inf, -np.inf, np.nan, 4.0])
    index = np.array([0, 0, 1, 2, 2])
    x, y = (lz.tensor(a, requires_grad=True) for a in (base, src))
    got = x.scatter_reduce(0, lz.tensor(index), y, reduce)
    want = torch.tensor(base).scatter_reduce(0, torch.tensor(index), torch.tensor(src), reduce)
    np.testing.assert_array_equal(got.detach().numpy(), want.numpy())


def test_nothing_to_scatter_and_a_reduction_of_no_such_name():
    x, nothing = lz.ones(3), lz.zeros(0, dtype=lz.int64)
    assert lz.scatter_reduce(x, 0, nothing, lz.zeros(0), "amax").tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="'amin', got 'median'"):
        lz.scatter_reduce(x, 0, lz.tensor([0]), lz.ones(1), "median")
