"""Every operation on the backend in use against the NumPy references: values and gradients.

Inputs come in many shapes and dtypes, as they are and seen through permutations and slices.  ``LEZERO_TEST_EXAMPLES=50`` draws
more of them; with ``LEZERO_TEST_CAPTURED=1`` operations run as captured functions (``lz.jit``).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lezero as lz
from backend_parity import called, close, held, oracle, oracle_gradients
from lezero.graph.dtype import as_dtype
from lezero.ops.base import REGISTRY
from op_cases import CASES

FLOATING = [np.float32, np.float32, np.float64, ml_dtypes.bfloat16, np.float16]
INTEGER = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_]
SHARP = {"prod", "cumprod", "linear_scan", "pow", "lgamma", "digamma", "tan", "div", "reciprocal"}


def converted(arrays, dtype):
    """Floating operands in another dtype; indices and masks as they are."""
    return [np.asarray(a.astype(dtype)) if a.dtype == np.float64 else a for a in arrays]


def takes(case, arrays, attrs):
    """Whether the operation accepts these dtypes."""
    try:
        return oracle(lambda *x: case(*x, **attrs), arrays)
    except (TypeError, ValueError, NotImplementedError, OverflowError):
        return None


def run(case, arrays, attrs, data):
    tensors = [data.draw(held(a)) for a in arrays]
    return called(lambda *x: case(*x, **attrs), *tensors).numpy()


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_values_of_floating_operands(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    dtype = data.draw(st.sampled_from(FLOATING))
    arrays = converted(arrays, dtype)
    expected = takes(case, arrays, attrs)
    if expected is None:
        return
    close(run(case, arrays, attrs, data), expected[0], terms=max([a.size for a in arrays], default=1))


NUMERIC = [n for n, c in CASES.items() if REGISTRY[c.op].kind in ("elementwise", "view", "reduce", "opaque")]


@pytest.mark.parametrize("name", NUMERIC)
@given(data=st.data())
def test_values_of_integer_operands(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    dtype = np.dtype(data.draw(st.sampled_from(INTEGER)))
    if dtype.kind == "u":
        arrays = [np.abs(a) if a.dtype == np.float64 else a for a in arrays]
    arrays = converted(arrays, dtype)
    if case.op in ("floor_divide", "remainder", "fmod"):
        arrays[1] = np.asarray(np.maximum(arrays[1], 1).astype(dtype))
    expected = takes(case, arrays, attrs)
    if expected is None:
        return
    close(run(case, arrays, attrs, data), expected[0])


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.order])
@given(data=st.data())
def test_gradients(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    arrays = converted(arrays, data.draw(st.sampled_from([np.float64, np.float32])))
    wanted = {k for k, a in enumerate(arrays) if as_dtype(a.dtype).differentiable and k not in case.frozen}
    function = lambda *x: case(*x, **attrs)
    (value,) = oracle(function, arrays)
    seed = np.asarray(np.random.default_rng(3).standard_normal(value.shape).astype(value.dtype))
    expected = oracle_gradients(function, arrays, seed, wanted)
    if not expected:
        return
    tensors = [lz.tensor(a, requires_grad=k in wanted) for k, a in enumerate(arrays)]
    start = lz.tensor(seed)

    def forward_and_backward(*x):
        y = function(*x)
        y.backward(start)
        return y

    y = called(forward_and_backward, *tensors)
    for k, g in expected.items():
        close(tensors[k].grad.numpy(), g, ulps=256, terms=max(a.size for a in arrays))
    close(y.numpy(), value, terms=max(a.size for a in arrays))
