"""Tensors as text, against NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lezero as lz


@pytest.fixture(autouse=True)
def options_as_they_were():
    yield
    lz.set_printoptions(profile="default")


def numpys(array, **options):
    settings = {
        "precision": 4,
        "threshold": 1000,
        "edgeitems": 3,
        "max_line_width": 80,
        "separator": ", ",
        "prefix": "tensor(",
    }
    return np.array2string(array, **settings | options)


numbers = hnp.arrays(
    st.sampled_from(["float32", "float64", "float16", "int64", "uint8", "bool", "complex64"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@given(numbers)
def test_numbers_look_like_numpys(array):
    text = repr(lz.tensor(array))
    shown = numpys(array)
    assert text.startswith("tensor(" + shown)
    rest = text.removeprefix("tensor(" + shown)
    usual = array.dtype in ("float32", "int64", "bool", "complex64")
    assert ("dtype=" in rest) is not usual and ("shape=" in rest) is (array.size == 0 and array.ndim > 1)


@given(hnp.arrays("float32", (4,), elements=st.floats(width=32, allow_subnormal=False)))
def test_numbers_are_read_back_to_four_digits(array):
    back = np.array(eval(repr(lz.tensor(array)), {"tensor": list, "nan": np.nan, "inf": np.inf}), np.float32)
    finite = np.isfinite(array)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(array))
    np.testing.assert_array_equal(back[~finite], array[~finite])
    scale = np.maximum(np.abs(array[finite]), 1)  # powers of ten have four digits behind the point, plain numbers, too
    np.testing.assert_array_less(np.abs(back[finite] - array[finite]) / scale, 1e-4)


CASES = {
    "tensor([ 1.5, -0. ,  nan,  inf])": lambda: lz.tensor([1.5, -0.0, float("nan"), float("inf")]),
    "tensor([])": lambda: lz.zeros(0),
    "tensor([], shape=(0, 3))": lambda: lz.zeros(0, 3),
    "tensor(3.1416)": lambda: lz.tensor(3.14159265),
    "tensor(True)": lambda: lz.tensor(True),
    "tensor([ True, False])": lambda: lz.tensor([True, False]),
    "tensor([  1, 200])": lambda: lz.tensor([1, 200]),
    "tensor([1, 2], dtype=lezero.int8)": lambda: lz.tensor([1, 2], dtype=lz.int8),
    "tensor([0.1001], dtype=lezero.bfloat16)": lambda: lz.tensor([0.1], dtype=lz.bfloat16),
    "tensor([1.e-10, 1.e+10])": lambda: lz.tensor([1e-10, 1e10]),
    "tensor([1.], requires_grad=True)": lambda: lz.tensor([1.0], requires_grad=True),
    "tensor([2.], grad_fn=<mul>)": lambda: lz.tensor([1.0], requires_grad=True) * 2,
    "tensor([1.], dtype=lezero.float64, requires_grad=True)": lambda: lz.tensor(
        [1.0], dtype=lz.float64, requires_grad=True
    ),
    "tensor([1.+2.j])": lambda: lz.tensor([1 + 2j]),
    "tensor([   0,    1,    2, ..., 2997, 2998, 2999])": lambda: lz.arange(3000),
    "Parameter containing:\ntensor([1.], requires_grad=True)": lambda: lz.nn.Parameter(lz.ones(1)),
}


@pytest.mark.parametrize("text", CASES)
def test_what_is_said_of_a_tensor(text):
    assert repr(CASES[text]()) == str(CASES[text]()) == text


def test_words_that_have_no_room_get_a_line():
    x = lz.tensor(np.full(8, 1.23456), requires_grad=True)
    assert repr(x) == (
        "tensor([1.2346, 1.2346, 1.2346, 1.2346, 1.2346, 1.2346, 1.2346, 1.2346],\n"
        "       dtype=lezero.float64, requires_grad=True)"
    )


@pytest.mark.parametrize(
    "options",
    [{"precision": 2}, {"threshold": 10, "edgeitems": 1}, {"linewidth": 40}, {"precision": 8, "linewidth": 120}],
    ids=str,
)
def test_options_are_numpys(options):
    array = np.random.default_rng(0).normal(size=(4, 7)).astype("f4")
    before = lz.get_printoptions()
    lz.set_printoptions(**options)
    assert lz.get_printoptions() == before | options
    renamed = {"max_line_width" if k == "linewidth" else k: v for k, v in options.items()}
    assert repr(lz.tensor(array)) == f"tensor({numpys(array, **renamed)})"
    lz.set_printoptions(profile="default")
    assert lz.get_printoptions() == before


def test_options_of_numpys_own_do_not_matter():
    x = lz.tensor([1.5, 0.25, float("nan")])
    with np.printoptions(precision=1, nanstr="?", sign="+", legacy="1.13", formatter={"all": str}):
        assert repr(x) == "tensor([1.5 , 0.25,  nan])"


@pytest.mark.parametrize("values", [[1.5, -2.0], [float("nan"), 3e20, 1.0], [1e-5, 1e5], [[-2.0], [0.0]], 2.0], ids=str)
def test_powers_of_ten_are_pytorchs(values):
    torch = pytest.importorskip("torch")
    lz.set_printoptions(sci_mode=True)
    torch.set_printoptions(sci_mode=True)
    try:
        assert repr(lz.tensor(values)) == repr(torch.tensor(values))
    finally:
        torch.set_printoptions(profile="default")


def test_powers_of_ten_of_three_digits_are_aligned():
    lz.set_printoptions(sci_mode=True, precision=1)
    assert repr(lz.tensor([1e200, 1.0], dtype=lz.float64)) == "tensor([1.0e+200,  1.0e+00], dtype=lezero.float64)"


def test_no_powers_of_ten():
    lz.set_printoptions(sci_mode=False)
    assert repr(lz.tensor([1e-3, 1e3, 0.5])) == "tensor([   0.001, 1000.   ,    0.5  ])"


def test_profiles():
    x = lz.arange(2000)
    lz.set_printoptions(profile="full")
    assert "..." not in repr(x)
    lz.set_printoptions(profile="short")
    assert repr(x) == "tensor([   0,    1, ..., 1998, 1999])" and repr(lz.tensor([1.23456])) == "tensor([1.23])"
    with pytest.raises(ValueError, match="profile is one of 'default', 'short', 'full', got 'long'"):
        lz.set_printoptions(profile="long")
    with pytest.raises(ValueError, match="precision"):
        lz.set_printoptions(precision=-1)
