"""Every network operation on drawn inputs: its rules agree with each other, and its gradients with finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lezero.graph.node import Graph, verify
from op_cases import finite_differences
from op_cases_nn import CASES
from op_parity import both_roads, make_leaves, take_apart


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_inference_reference_and_decomposition_agree(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    leaves, values = make_leaves([np.asarray(a) for a in arrays], differentiate=False)
    y = case(*leaves, **attrs)
    both_roads([y.node], values, 1e-10)
    verify(Graph(tuple(x.node for x in leaves), tuple(take_apart([y.node]))))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.order])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_gradients_are_those_of_finite_differences(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    finite_differences(lambda *xs: case(*xs, **attrs), [np.asarray(a) for a in arrays], case.order, case.frozen)
