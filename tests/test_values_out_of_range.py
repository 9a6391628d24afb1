"""Values that an operation has no result for are refused as far as they are there, as PyTorch does."""

import numpy as np
import pytest

import lezero as lz

torch = pytest.importorskip("torch")

DTYPES = ["uint8", "int8", "int16", "int32", "int64"]
NUMBERS = [300, -300, 2**40, 1e30, float("nan"), float("inf"), 0, 1.5, -1.5, 127, True]


def written(t, value):
    t[0] = value
    return t


WAYS = {
    "tensor": lambda m, v, d: m.tensor(v, dtype=d),
    "in a list": lambda m, v, d: m.tensor([[1, v]], dtype=d),
    "as_tensor": lambda m, v, d: m.as_tensor(v, dtype=d),
    "full": lambda m, v, d: m.full((2,), v, dtype=d),
    "fill_": lambda m, v, d: m.zeros(2, dtype=d).fill_(v),
    "written": lambda m, v, d: written(m.zeros(2, dtype=d), v),
    "masked_fill": lambda m, v, d: m.zeros(2, dtype=d).masked_fill(m.tensor([True, False]), v),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_a_dtype_of_integers_does_not_hold_are_refused(way, dtype):
    for value in NUMBERS:
        if way == "masked_fill" and isinstance(value, float):
            continue  # PyTorch refuses all of them, LeZero cuts them off
        try:
            wanted = WAYS[way](torch, value, getattr(torch, dtype))
        except RuntimeError:
            wanted = None
        if wanted is None or (dtype == "uint8" and value == -1.5):  # which PyTorch lets wrap around
            with pytest.raises(
                OverflowError, match=rf"^(tensor|full|fill_|in-place write|masked_fill): .*does not fit {dtype}"
            ):
                WAYS[way](lz, value, dtype)
        else:
            assert WAYS[way](lz, value, dtype).tolist() == wanted.tolist(), value


def test_other_numbers_that_meet_integers_fit_too():
    x = lz.tensor([250], dtype=lz.uint8)
    for call in (
        lambda: x.clamp(0, 300),
        lambda: lz.where(x > 0, x, 300),
        lambda: lz.randint(0, 300, (2,), dtype=lz.uint8),
        lambda: lz.tensor(-1, dtype=lz.uint8),
    ):
        with pytest.raises(OverflowError, match="does not fit uint8, which holds 0 to 255"):
            call()
    assert (x + 300).tolist() == [38] and (x == 506).tolist() == [True]  # arithmetic wraps around, as in PyTorch
    with pytest.raises(TypeError, match="complex numbers do not fit float32"):
        lz.tensor(1j, dtype=lz.float32)


def test_elements_of_arrays_and_tensors_are_converted():
    wide = np.array([300, -1])
    assert lz.tensor(wide, dtype=lz.uint8).tolist() == torch.tensor(wide, dtype=torch.uint8).tolist() == [44, 255]
    assert lz.tensor(wide).to(lz.uint8).tolist() == lz.tensor(lz.tensor(wide), dtype=lz.uint8).tolist() == [44, 255]


DIVISIONS = {
    "//": lambda m, x, y: x // y,
    "%": lambda m, x, y: x % y,
    "floor_divide": lambda m, x, y: m.floor_divide(x, y),
    "remainder": lambda m, x, y: m.remainder(x, y),
    "fmod": lambda m, x, y: m.fmod(x, y),
    "div floor": lambda m, x, y: m.div(x, y, rounding_mode="floor"),
    "div trunc": lambda m, x, y: m.div(x, y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("way", DIVISIONS)
def test_integers_divided_by_zero_are_refused(way):
    divide = DIVISIONS[way]
    for x, y in (([4, -7], 0), ([4, -7], [2, 0]), (4, [1, 0])):
        if not isinstance(x, list) and way not in ("//", "%"):
            continue
        ours, theirs = ([m.tensor(v) if isinstance(v, list) else v for v in (x, y)] for m in (lz, torch))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(torch, *theirs)
        with pytest.raises(ZeroDivisionError, match="integers divided by 0"):
            divide(lz, *ours)
    for x, y in (([4, -7], 2), ([4, -7], [-3, 2]), ([4.5, -7.0], 0), ([4, -7], [2.0, 0.0])):
        ours, theirs = ([m.tensor(v) if isinstance(v, list) else v for v in (x, y)] for m in (lz, torch))
        wanted = divide(torch, *theirs)
        got = divide(lz, *ours)
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())
        assert got.dtype.name == str(wanted.dtype).removeprefix("torch.")


def test_divisors_that_are_still_to_be_computed_give_zero():
    x, y = lz.tensor([4]), lz.tensor([1])
    assert (x // (y - 1)).tolist() == [0]
    divide = lz.jit(lambda x, y: x // y)
    for _ in range(3):
        assert divide(x, lz.tensor([0])).tolist() == [0] and divide(x, lz.tensor([2])).tolist() == [2]


def test_integers_have_no_negative_powers():
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.tensor([2]) ** -1
    with pytest.raises(ValueError, match=r"negative exponents such as -1; x\.float\(\)"):
        lz.tensor([2]) ** -1
    assert (lz.tensor([2.0]) ** -1).tolist() == [0.5]


@pytest.mark.parametrize(
    ("weights", "count", "replacement"),
    [
        ([0.0, 0.0, 0.0], 1, False),
        ([0.0, 0.0, 0.0], 1, True),
        ([-1.0, 2.0], 1, False),
        ([float("nan"), 2.0], 1, True),
        ([float("inf"), 2.0], 1, False),
        ([[1.0, 2.0], [0.0, 0.0]], 1, False),
        ([0.0, 2.0, 0.0], 2, False),
    ],
)
def test_weights_that_nothing_can_be_drawn_by_are_refused(weights, count, replacement):
    if count == 1:
        with pytest.raises(RuntimeError):
            torch.multinomial(torch.tensor(weights), count, replacement)
    there = lz.tensor(weights)
    with pytest.raises(ValueError, match="multinomial: weights must be finite and not negative"):
        lz.multinomial(there, count, replacement)
    with pytest.raises(
        IndexError, match=r"multinomial: weights must be finite.*recorded at .*test_values_out_of_range"
    ):
        lz.multinomial(there * 2, count, replacement).tolist()
    draw = lz.jit(lambda w: lz.multinomial(w, count, replacement))
    draw(lz.ones(*there.shape))
    draw(lz.ones(*there.shape) * 2)
    with pytest.raises(IndexError, match="multinomial: weights must be finite"):
        draw(there).tolist()


def test_weights_that_something_can_be_drawn_by():
    assert lz.multinomial(lz.tensor([0.0, 2.0, 0.0]), 3, replacement=True).tolist() == [1, 1, 1]
    assert sorted(lz.multinomial(lz.tensor([0.0, 2.0, 1.0]) * 2, 2).tolist()) == [1, 2]
    with pytest.raises(ValueError, match="multinomial: num_samples must be 1 or more"):
        lz.multinomial(lz.ones(2), 0)


def test_other_random_numbers_say_what_they_need():
    with pytest.raises(ValueError, match="bernoulli: probabilities must be from 0 to 1"):
        lz.bernoulli(lz.tensor([2.0]))
    with pytest.raises(ValueError, match="normal: std must be 0 or more, got -1"):
        lz.normal(0.0, -1.0, (2,))


@pytest.mark.parametrize(("size", "step", "says"), [
    (5, 1, "unfold: a window of 5 elements is more than the extent 4"), (2, 0, "unfold: step must be 1 or more"),
    (-1, 1, "unfold: size must be 0 or more"),
])  # fmt: skip
def test_windows_that_are_not_there(size, step, says):
    with pytest.raises(RuntimeError):
        torch.arange(4.0).unfold(0, size, step)
    with pytest.raises(ValueError, match=says):
        lz.arange(4.0).unfold(0, size, step)
