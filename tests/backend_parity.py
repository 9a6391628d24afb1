"""Running a function of operands on the backend in use and by the NumPy references, and comparing the two."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import lezero as lz
from lezero.autograd.walk import walk
from lezero.graph.dtype import as_dtype
from lezero.ops.expr import Expr, evaluate, leaf
from op_cases import track

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "complex64": 2.0**-23, "complex128": 2.0**-52}  # fmt: skip
ULPS = 64
"""How many roundings of the largest element two orders of computing may be apart."""


CAPTURED = os.environ.get("LEZERO_TEST_CAPTURED", "0") not in ("", "0")


def called(function: Callable, *operands: Any) -> Any:
    """What a function of tensors gives: as it is recorded, or (LEZERO_TEST_CAPTURED=1) when it was captured by earlier calls."""
    if not CAPTURED:
        return function(*operands)
    captured = lz.jit(function)
    for _ in range(3):
        for t in operands:
            t.grad = None
        result = captured(*operands)
    return result


@st.composite
def held(draw: Any, array: np.ndarray) -> Any:
    """A tensor with the array's values: as it is, or seen through a permutation or a slice of something larger."""
    way = draw(st.sampled_from(["plain", "plain", "permuted", "sliced", "reversed"]))
    if way == "permuted" and array.ndim > 1:
        axes = draw(st.permutations(range(array.ndim)))
        return lz.tensor(np.ascontiguousarray(array.transpose(axes))).permute(*np.argsort(axes).tolist())
    if way == "sliced" and array.ndim:
        step = draw(st.sampled_from([1, 2]))
        wide = np.full(tuple(d * step + 2 for d in array.shape), 1, array.dtype)
        cut = tuple(slice(1, 1 + d * step, step) for d in array.shape)
        wide[cut] = array
        return lz.tensor(wide)[cut]
    if way == "reversed" and array.ndim:
        return lz.tensor(np.ascontiguousarray(np.flip(array, 0))).flip(0)
    return lz.tensor(array)


def leaves_of(arrays: Sequence[np.ndarray]) -> tuple[list[Expr], dict]:
    leaves = [leaf(a.shape, as_dtype(a.dtype)) for a in arrays]
    return leaves, {x.node: a for x, a in zip(leaves, arrays)}


def oracle(function: Callable, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the references make of it."""
    leaves, values = leaves_of(arrays)
    results = function(*leaves)
    results = results if isinstance(results, (tuple, list)) else [results]
    return evaluate([y.node for y in results], values)


def oracle_gradients(
    function: Callable, arrays: Sequence[np.ndarray], seed: np.ndarray, wanted: set[int]
) -> dict[int, np.ndarray]:
    """Gradients of ``sum(function(*arrays) * seed)`` for the operands numbered `wanted`, by the references."""
    leaves, values = leaves_of([*arrays, seed])
    for k in wanted:
        leaves[k].node.tracks = True
    y = function(*leaves[:-1])
    track([y.node])
    if not y.node.tracks:
        return {}
    found = walk({y.node: leaves[-1]}, Expr)
    reached = [k for k in sorted(wanted) if leaves[k].node in found]
    return dict(zip(reached, evaluate([found[leaves[k].node].node for k in reached], values)))


def close(ours: np.ndarray, expected: np.ndarray, ulps: float = ULPS, terms: int = 1) -> None:
    """Equal for integers and bool; for the others within `ulps` roundings of the size of what was computed with."""
    assert ours.shape == expected.shape
    assert ours.dtype == expected.dtype
    name = as_dtype(expected.dtype).name
    if name not in EPSILON:
        np.testing.assert_array_equal(ours, expected)
        return
    wide = np.complex128 if name.startswith("complex") else np.float64
    a, b = ours.astype(wide), expected.astype(wide)
    finite = np.abs(b[np.isfinite(b)])
    scale = max(float(finite.max()) if finite.size else 1.0, 1.0)
    tol = ulps * EPSILON[name]
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol * scale * max(1.0, terms**0.5 / 8))
