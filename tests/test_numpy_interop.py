"""Tensors among NumPy's arrays, scalars and functions."""

import operator

import numpy as np
import pytest

import lezero as lz

rng = np.random.default_rng(0)
A, B = rng.standard_normal((3, 3)).astype("f4"), rng.random((3, 3)).astype("f4") + 0.5

OPERATORS = "add sub mul truediv floordiv mod pow matmul eq ne lt le gt ge".split()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_take_arrays_on_either_side(name):
    compute = getattr(operator, name)
    for left, right in ((B, A), (A, B)) if name != "pow" else ((B, A),):
        wanted = compute(left, right)
        for got in (compute(lz.tensor(left), right), compute(left, lz.tensor(right))):
            assert type(got) is lz.Tensor and got.dtype.name == wanted.dtype.name
            np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-5, atol=1e-6)


def test_gradients_go_through_arrays():
    w = lz.tensor(A, requires_grad=True)
    loss = np.sum(np.exp(B * w - np.float64(2)) + w @ B)
    loss.backward()
    v = lz.tensor(A, requires_grad=True)
    ((lz.tensor(B) * v - 2).exp() + v @ lz.tensor(B)).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), v.grad.numpy())


def test_arrays_decide_the_dtype_and_scalars_do_not():
    x = lz.ones(3)
    assert (x + np.ones(3)).dtype is (np.ones(3) + x).dtype is lz.float64
    for scalar in (np.float64(2), np.float32(2), np.int64(2), np.array(2.0)):
        for got in (scalar * x, x * scalar, np.multiply(scalar, x)):
            assert got.dtype is lz.float32 and got.tolist() == [2, 2, 2]


REDUCTIONS = "sum mean prod max min any all std var argmax argmin".split()


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1, "keepdims": True}], ids=str)
def test_reductions_of_numpy_are_those_of_tensors(name, options):
    compute, x = getattr(np, name), lz.tensor(A)
    got = compute(x, **options)
    assert type(got) is lz.Tensor
    np.testing.assert_allclose(got.numpy(), compute(A, **options), rtol=2e-5)


def test_reductions_with_more_arguments():
    x = lz.tensor(A)
    np.testing.assert_allclose(np.std(x, ddof=1).item(), np.std(A, ddof=1), rtol=2e-5)
    assert np.sum(x, dtype=np.float64).dtype is lz.float64
    with pytest.raises(TypeError, match="sum: a tensor is computed anew; out= is not taken"):
        np.sum(x, out=np.zeros(()))


UFUNCS = """exp expm1 log sqrt square sin tanh arctan arcsinh floor ceil trunc rint sign isnan isfinite negative absolute
maximum minimum arctan2 hypot logaddexp copysign fmod power equal less logical_and""".split()


@pytest.mark.parametrize("name", UFUNCS)
def test_functions_of_numpy_give_tensors(name):
    compute = getattr(np, name)
    arguments = (B, A)[: compute.nin]
    wanted = compute(*arguments)
    mixed = [[lz.tensor(v) for v in arguments]]
    if compute.nin == 2:
        mixed += [[lz.tensor(B), A], [B, lz.tensor(A)]]
    for given in mixed:
        got = compute(*given)
        assert type(got) is lz.Tensor
        np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-5, atol=1e-6)


def test_what_tensors_have_no_function_for_is_computed_with_arrays():
    x = lz.tensor(B)
    np.testing.assert_allclose(np.cbrt(x), np.cbrt(B))
    np.testing.assert_allclose(np.add.reduce(x), np.add.reduce(B))
    array = A.copy()
    array += x
    np.testing.assert_array_equal(array, A + B)
    for call in (np.cbrt, np.add.reduce):
        with pytest.raises(RuntimeError, match=r"has no gradient.*x\.detach\(\)"):
            call(lz.tensor(B, requires_grad=True))
        with lz.no_grad():
            call(lz.tensor(B, requires_grad=True))


def test_values_are_read_whether_or_not_a_gradient_is_needed():
    w = lz.tensor(A, requires_grad=True)
    np.testing.assert_array_equal(np.asarray(w), A)
    np.testing.assert_array_equal(w.numpy(), A)
    assert np.allclose(w, A) and np.allclose(A, w * 1) and np.array_equal(w, A)
    assert np.stack([lz.tensor(A), lz.tensor(B)]).shape == (2, 3, 3)


def test_an_array_in_a_captured_function_is_refused():
    step = lz.jit(lambda x: x + B)
    with pytest.raises(TypeError, match=r"captured function: make it an argument, or a tensor outside"):
        step(lz.tensor(A))
