"""Interpolation: parity with PyTorch to second order, in every mode and geometry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import lezero as lz  # noqa: E402
from lezero.nn import functional as F  # noqa: E402
from op_parity import check  # noqa: E402


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


MODES = [
    ("nearest", None),
    ("nearest-exact", None),
    ("linear", False),
    ("linear", True),
]


@st.composite
def interpolations(draw):
    mode, align = draw(st.sampled_from(MODES))
    n = draw(st.sampled_from([1, 2]))
    extents = tuple(draw(st.integers(1, 12)) for _ in range(n))
    if draw(st.booleans()):
        how = {"size": tuple(draw(st.integers(1, 40)) for _ in extents)}
    else:
        scales = tuple(draw(st.floats(1 / d, 5)) for d in extents)
        how = {"scale_factor": scales, "recompute_scale_factor": draw(st.sampled_from([None, False, True]))}
        if any(int(d * s) < 1 for d, s in zip(extents, scales)):  # 1 / d, rounded down
            how["scale_factor"] = (1.0,) * n
    blend = "bilinear" if mode == "linear" and n == 2 else mode
    return extents, {**how, "mode": blend, "align_corners": align}


def _contradicts_itself(extents, mode, scale_factor=(1.0,), recompute_scale_factor=None, **_):
    """Where PyTorch's gradient is none of its result's (gradcheck fails): one dimension that a scale leaves as it is."""
    stays = len(extents) == 1 and mode == "nearest" and int(extents[0] * scale_factor[0]) == extents[0]
    return stays and scale_factor[0] != 1 and not recompute_scale_factor


@settings(max_examples=150, deadline=None)
@given(interpolations())
def test_values_and_gradients_are_pytorchs(case):
    extents, options = case
    assume(not _contradicts_itself(extents, **options))
    x = normal(2, 1, *extents)
    check(lambda x: F.interpolate(x, **options), lambda x: torch.nn.functional.interpolate(x, **options), x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("extents", [(7, 301), (97, 4096), (4096, 97), (301, 7), (49, 2401), (7, 287), (56, 112)])
def test_which_element_is_nearest_is_decided_as_in_pytorch(mode, extents):
    x = np.arange(extents[0], dtype=np.float32)[None, None]
    ours = F.interpolate(lz.tensor(x), extents[1], mode=mode).numpy()
    theirs = torch.nn.functional.interpolate(torch.tensor(x), extents[1], mode=mode).numpy()
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("extents", [(11,), (11, 11), (11, 5)])
@pytest.mark.parametrize("scale", [1.0, 1.03, 1.08])
def test_what_a_scale_does_that_leaves_the_size_as_it_is(mode, extents, scale):
    x, scales = normal(1, 1, *extents), (scale,) * len(extents)
    ours = F.interpolate(lz.tensor(x), scale_factor=scales, mode=mode).numpy()
    theirs = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=scales, mode=mode).numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert lz.autograd.gradcheck(
        lambda t: F.interpolate(t, scale_factor=scales, mode=mode), lz.tensor(x, requires_grad=True)
    )


def test_integers_are_taken_by_the_modes_that_do_not_blend():
    x = np.arange(6).reshape(1, 1, 2, 3)
    np.testing.assert_array_equal(F.interpolate(lz.tensor(x), scale_factor=2).numpy(), x.repeat(2, 2).repeat(2, 3))
    with pytest.raises(TypeError, match=r"interpolate.*floating"):
        F.interpolate(lz.tensor(x), scale_factor=2, mode="bilinear")


@pytest.mark.parametrize("dtype", [lz.float16, lz.bfloat16])
def test_half_precision_is_blended_in_single(dtype):
    x = lz.tensor(normal(1, 2, 5, 6).astype(np.float32)).to(dtype)
    fine = F.interpolate(x.float(), scale_factor=3, mode="bilinear")
    halves = F.interpolate(x, scale_factor=3, mode="bilinear")
    assert halves.dtype is dtype
    np.testing.assert_allclose(halves.float().numpy(), fine.numpy(), rtol=2**-7, atol=2**-7)


MISTAKES = [
    (F.interpolate, "either size or scale_factor"),
    (lambda x: F.interpolate(x, 3, 2.0), "either size or scale_factor"),
    (lambda x: F.interpolate(x, 3, mode="cubic"), "'cubic'"),
    (lambda x: F.interpolate(x, 3, mode="linear"), r"'linear'.*3 dimensions.*\(1, 1, 4, 4\)"),
    (lambda x: F.interpolate(x, 3, align_corners=False), "'nearest' has no align_corners"),
    (lambda x: F.interpolate(x, (3, 3, 3)), r"2 extents.*\(3, 3, 3\)"),
    (lambda x: F.interpolate(x, 0), "1 or more"),
    (lambda x: F.interpolate(x, scale_factor=0.1), "1 or more"),
    (lambda x: F.interpolate(x, 3, recompute_scale_factor=True), "recompute_scale_factor"),
]


@pytest.mark.parametrize("call, message", MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(lz.zeros(1, 1, 4, 4))
