"""Half precision is rounded once for each operation, whatever it is fused with, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero.loops import ir
from lezero.nn import functional as F
from lezero.schedule.rounding import Rounding

torch = pytest.importorskip("torch")


def roundings(value: ir.Value) -> int:
    return (value.op == "cast" and value.type in ("f16", "bf16")) + sum(map(roundings, value.args))


@pytest.mark.parametrize("type", ["bf16", "f16"])
def test_what_is_rounded_already_is_not_rounded_again(type):
    rounding = Rounding()
    x = ir.load(0, "f32", ir.const(0))
    once = rounding.rounded(ir.call("mul", x, x), type)
    relu = rounding.rounded(ir.call("max", once, ir.const(0.0, "f32")), type)
    masked = rounding.rounded(ir.call("where", ir.call("gt", relu, ir.const(0.0, "f32")), once, relu), type)
    assert roundings(once) == roundings(relu) == 1
    assert masked.op == "where"
    assert rounding.rounded(masked, type) is masked
    assert roundings(rounding.narrow(once, type)) == 1
    assert roundings(rounding.rounded(ir.call("add", once, relu), type)) == 3
    for number in (0.1, 1e9, float("nan")):  # of which it has none
        chosen = ir.call("max", once, ir.const(number, "f32"))
        assert not rounding.exact(chosen, type), number


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_number_goes_through_choices_as_it_is(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    theirs = torch.from_numpy(bits.copy()).view(getattr(torch, dtype))
    ours = lz.tensor(theirs.float().numpy()).to(getattr(lz, dtype))
    other = torch.roll(theirs, 12345)
    second = lz.tensor(other.float().numpy()).to(getattr(lz, dtype))
    for mine, expected in (
        (F.relu(ours), torch.relu(theirs)),
        (F.relu(ours + second), torch.relu(theirs + other)),
        (lz.maximum(-ours, second), torch.maximum(-theirs, other)),
        (lz.minimum(ours.abs(), second), torch.minimum(theirs.abs(), other)),
        (lz.where(ours > second, ours * second, second), torch.where(theirs > other, theirs * other, other)),
    ):
        np.testing.assert_array_equal(mine.float().numpy(), expected.float().numpy())


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_numbers_are_not_rounded_before_something_is_multiplied_or_divided_by_them(name):
    x = np.random.default_rng(0).normal(size=5000).astype("f4")
    ours, theirs = lz.tensor(x).to(getattr(lz, name)), torch.tensor(x).to(getattr(torch, name))
    for f in (lambda a: a * 0.3, lambda a: 0.3 * a, lambda a: a / 0.3, lambda a: a + 0.1, lambda a: 0.1 - a):
        np.testing.assert_array_equal(f(ours).float().numpy(), f(theirs).float().numpy())
    whole = ours.detach().requires_grad_()
    (whole * 0.3).sum().backward()
    assert float(whole.grad.float()[0]) == float(torch.tensor(0.3).to(getattr(torch, name)))
