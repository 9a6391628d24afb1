"""Views, indexing, scatters, sorting and scans: against PyTorch and NumPy, finite differences, and their own rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lezero as lz
from lezero.graph.dim import Dim, noting_guards
from lezero.graph.dtype import as_dtype, by_name, float32, int64
from lezero.ops import indexing, movement, scan, sorting
from lezero.ops.base import REGISTRY, View
from lezero.ops.expr import evaluate, leaf
from lezero.ops.shaping import blocks
from op_cases import CASES, Indexed, finite_differences, numbers, run_index, run_loops, seeds, variable
from op_parity import check, make_leaves, torch

few = settings(max_examples=10, deadline=None)
MOVING = [
    n
    for n, c in CASES.items()
    if REGISTRY[c.op].kind in ("view", "opaque") or c.op in ("tril", "triu", "window", "one_hot")
]


@pytest.mark.parametrize("name", [n for n in MOVING if CASES[n].torch])
@few
@given(data=st.data())
def test_values_and_derivatives_are_pytorchs(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    order = 1 if name in ("cumprod", "linear_scan") and 0 in arrays[0].shape else case.order
    check(lambda *x: case(*x, **attrs), lambda *t: case.torch(*t, **attrs), *arrays, order=order, tol=1e-9)


@pytest.mark.parametrize("name", [n for n in MOVING if CASES[n].order])
@few
@given(data=st.data())
def test_gradients_are_finite_differences(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    finite_differences(lambda *x: case(*x, **attrs), arrays, order=2)


@pytest.mark.parametrize("name", [n for n in MOVING if isinstance(REGISTRY[CASES[n].op], View)])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_index_rule_moves_what_the_reference_moves(name, data):
    case = CASES[name]
    arrays, attrs = data.draw(case.draw)
    leaves, values = make_leaves(arrays)
    y = case(*leaves, **attrs)
    (expected,) = evaluate([y.node], values)
    np.testing.assert_array_equal(run_index(REGISTRY[case.op], expected.shape, arrays, attrs), expected)


# -- slices as Python has them -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_slices_are_numpys(data):
    from op_cases import shapes, slices

    shape = data.draw(shapes)
    keys, attrs = data.draw(slices(shape))
    x, new = numbers(shape, 1), numbers(np.empty(shape)[keys].shape, 2)
    (a, b), values = make_leaves([x, new])
    placed = x.copy()
    placed[keys] = new
    back = np.zeros(shape)
    back[keys] = new
    outputs = [
        movement.slice(a, **attrs),
        movement.slice_update(a, b, **attrs),
        movement.embed(b, shape=shape, starts=attrs["starts"], steps=attrs["steps"]),
    ]
    for ours, theirs in zip(evaluate([o.node for o in outputs], values), (x[keys], placed, back)):
        np.testing.assert_array_equal(ours, theirs)


def test_a_stop_of_none_is_past_the_first_element():
    (x,), values = make_leaves([np.arange(5.0)])
    y = movement.slice(x, starts=(4,), stops=(None,), steps=(-2,))
    np.testing.assert_array_equal(evaluate([y.node], values)[0], [4, 2, 0])


@pytest.mark.parametrize("call, error, words", [
    (lambda x: movement.reshape(x, shape=(4, 2)), ValueError, r"shape \(2, 3\) has 6 elements"),
    (lambda x: movement.permute(x, axes=(0, 0)), ValueError, "not an order"),
    (lambda x: movement.expand(x, shape=(2, 4)), ValueError, "expand"),
    (lambda x: movement.slice(x, starts=(0, 0), stops=(3, 3), steps=(1, 1)), IndexError, "axis 0 of extent 2"),
    (lambda x: movement.concatenate(x, leaf((2, 3), int64), axis=0), ValueError, "dtypes and all other extents"),
    (lambda x: movement.pad(x, before=(-3, 0), after=(0, 0)), ValueError, "cut more than there is"),
    (lambda x: indexing.take(x, x, axis=0), TypeError, "indices must be integers"),
    (lambda x: indexing.gather(x, leaf((3, 3), int64), axis=1), ValueError, "does not fit"),
    (lambda x: sorting.argsort(x, axis=2), IndexError, "out of range"),
    (lambda x: movement.resolved_shape((4, -1), (2, 3)), ValueError, "no whole extent"),
])  # fmt: skip
def test_misfits_are_refused_with_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call(leaf((2, 3), float32))


@pytest.mark.parametrize("index", [[-1], [3]])
def test_an_index_out_of_range_is_refused_by_the_reference(index):
    (x, i, s), values = make_leaves([np.arange(3.0), np.array(index), np.ones(1)])
    for y in (indexing.take(x, i, axis=0), indexing.gather(x, i, axis=0), indexing.scatter_add(x, i, s, axis=0)):
        with pytest.raises(IndexError, match="out of range"):
            evaluate([y.node], values)


def test_wrapped_indices_count_from_the_end():
    (x, i), values = make_leaves([np.arange(5.0), np.array([-1, 0, -5, 4])])
    (y,) = evaluate([indexing.take(x, indexing.wrapped(i, x.shape[0]), axis=0).node], values)
    np.testing.assert_array_equal(y, [4, 0, 0, 4])


# -- symbolic extents --------------------------------------------------------------------------------------------


def test_reshape_keeps_axes_apart_that_stay_apart_for_every_extent():
    s = Dim.symbol(0, 3)
    assert blocks((s, 6, 4), (s, 24)) == [(range(0, 1), range(0, 1)), (range(1, 3), range(1, 2))]
    assert blocks((s, 6), (s * 2, 3)) == [(range(0, 2), range(0, 2))]  # with s = 3 that is (3, 6) and (6, 3)
    assert blocks((2, 3, s), (6, s)) == [(range(0, 2), range(0, 1)), (range(2, 3), range(1, 2))]


@pytest.mark.parametrize("extent", [2, 3, 5, 8])
def test_rules_hold_for_symbolic_extents(extent):
    from lezero.graph.dim import rehint

    s = Dim.symbol(0, 4)
    x = leaf((s, 6), float32)
    with noting_guards() as guards:
        chain = movement.flip(x, axes=(0,))
        chain = movement.cat([chain, x], 0)
        chain = movement.reshape(chain, shape=(s * 2, 2, 3))
        chain = movement.part(chain, 0, 1, s * 2)
        chain = movement.pad(chain, before=(2, 0, 0), after=(0, 0, 1))
        chain = movement.permute(chain, axes=(2, 0, 1))
    assert not guards, "these shapes are the same expressions for every extent"
    data = np.arange(extent * 6, dtype=np.float32).reshape(extent, 6)
    want = np.concatenate([data[::-1], data]).reshape(extent * 2, 2, 3)[1:]
    want = np.pad(want, [(2, 0), (0, 0), (0, 1)]).transpose(2, 0, 1)
    assert rehint(chain.shape, [extent]) == want.shape


# -- functions made of views -------------------------------------------------------------------------------------

X = numbers((2, 3, 4), 5)


@pytest.mark.parametrize("ours, theirs", [
    (lambda x: movement.stack([x, x * 2], 1), lambda x: torch.stack([x, x * 2], 1)),
    (lambda x: movement.split(x, 3, 2)[1], lambda x: x.split(3, 2)[1]),
    (lambda x: movement.split(x, (1, 3), 2)[1], lambda x: x.split((1, 3), 2)[1]),
    (lambda x: movement.chunk(x, 3, 2)[1], lambda x: x.chunk(3, 2)[1]),
    (lambda x: movement.repeat(x, (2, 1, 3, 2)), lambda x: x.repeat(2, 1, 3, 2)),
    (lambda x: movement.tile(x, (2, 2)), lambda x: torch.tile(x, (2, 2))),
    (lambda x: movement.repeat_interleave(x, 3, 1), lambda x: x.repeat_interleave(3, 1)),
    (lambda x: movement.squeeze(movement.unsqueeze(x, 1)), lambda x: x),
    (lambda x: movement.border(x, (0, 2, 1), (0, 1, 3), "reflect"), lambda x: torch.nn.functional.pad(x, (1, 3, 2, 1), mode="reflect")),
    (lambda x: movement.border(x, (0, 2, 1), (0, 1, 5), "replicate"), lambda x: torch.nn.functional.pad(x, (1, 5, 2, 1), mode="replicate")),
    (lambda x: movement.border(x, (0, 0, 1), (0, 0, 3), "circular"), lambda x: torch.nn.functional.pad(x, (1, 3), mode="circular")),
    (lambda x: movement.meshgrid(x[0], x[1], indexing="xy")[0] if isinstance(x, tuple) else x, lambda x: x),
    (lambda x: sorting.sort(x, 2, True)[0], lambda x: x.sort(2, True).values),
    (lambda x: sorting.topk(x, 2, 1)[0], lambda x: x.topk(2, 1).values),
    (lambda x: sorting.topk(x, 2, 2, largest=False)[0], lambda x: x.topk(2, 2, largest=False).values),
    (lambda x: sorting.kthvalue(x, 2, 2)[0], lambda x: x.kthvalue(2, 2, keepdim=True).values),
    (lambda x: scan.exclusive_cumprod(x, 1), lambda x: torch.cat([torch.ones(2, 1, 4), x[:, :2].cumprod(1)], 1)),
])  # fmt: skip
def test_composed_functions_are_pytorchs(ours, theirs):
    check(ours, theirs, X, order=2)


def test_meshgrid_is_numpys():
    (a, b), values = make_leaves([np.arange(3.0), np.arange(4.0)])
    for indexing_ in ("ij", "xy"):
        grids = evaluate([g.node for g in movement.meshgrid(a, b, indexing=indexing_)], values)
        for ours, theirs in zip(grids, np.meshgrid(np.arange(3.0), np.arange(4.0), indexing=indexing_)):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_is_numpys(right):
    ordered, v = np.array([0.0, 1, 1, 2, 5]), np.array([[1.0, -1], [5, 6], [2, 1.5]])
    leaves, values = make_leaves([ordered, v])
    (ours,) = evaluate([indexing.searchsorted(*leaves, right=right).node], values)
    np.testing.assert_array_equal(ours, np.searchsorted(ordered, v, side="right" if right else "left"))


def test_masked_scatter_is_pytorchs():
    mask = np.random.default_rng(0).random((3, 4)) < 0.5
    check(
        indexing.masked_scatter, lambda x, m, s: x.masked_scatter(m, s),
        numbers((3, 4), 1), mask, numbers((12,), 2), order=1,
    )  # fmt: skip


# -- scatters, sorting, scans ------------------------------------------------------------------------------------


def test_the_last_of_several_writes_stays():
    (x, i, s), values = make_leaves([np.zeros(3), np.array([1, 1, 0, 1]), np.array([1.0, 2, 3, 4])])
    np.testing.assert_array_equal(evaluate([indexing.scatter_nd(x, s, i).node], values)[0], [3, 4, 0])


def test_scattered_halves_add_up_in_float32():
    ones = np.ones(4096, by_name("bfloat16").numpy)
    (x, i, s), values = make_leaves([ones[:1] * 0, np.zeros(4096, np.int64), ones])
    (y,) = evaluate([indexing.index_add(x, i, s, axis=0).node], values)
    assert float(y[0]) == 4096


@pytest.mark.parametrize("descending", [False, True])
def test_nan_counts_as_the_greatest_when_sorting(descending):
    x = np.array([1.0, np.nan, -np.inf, np.inf, 0, np.nan])
    check(
        lambda a: sorting.argsort(a, axis=0, descending=descending),
        lambda a: a.argsort(dim=0, descending=descending, stable=True),
        x, order=0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "linear_scan"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "int64", "bool", "complex64"])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_step_rule_computes_the_reference(name, dtype, reverse):
    op = REGISTRY[name]
    if (dtype == "complex64" and "cumm" in name) or (name == "linear_scan" and as_dtype(dtype).kind not in "fc"):
        return
    arrays = [(numbers((6, 3), 3 + k) * 2).astype(by_name(dtype).numpy) for k in range(len(op.inputs))]
    leaves, values = make_leaves(arrays)
    y = op(*leaves, axis=0, reverse=reverse)
    (expected,) = evaluate([y.node], values)
    code = y.dtype.code
    step = op.step(variable("state", code), *(variable(f"x{k}", code) for k in range(len(arrays))))
    state = np.broadcast_to(run_loops(op.start(code), {}), (3,))
    for row in reversed(range(6)) if reverse else range(6):
        state = run_loops(
            step, {"state": state} | {f"x{k}": a[row].astype(y.dtype.numpy) for k, a in enumerate(arrays)}
        )
        np.testing.assert_allclose(state.astype(complex), expected[row].astype(complex), rtol=1e-5)


@given(seed=seeds)
@few
def test_running_products_have_gradients_of_every_order_at_zeros(seed):
    x = np.array([0.5, 0.0, -1.5, 0.0, 2.0])
    finite_differences(lambda a: scan.cumprod(a, axis=0), [np.roll(x, seed % 5)], order=3, )  # fmt: skip


@pytest.mark.parametrize("largest", [True, False])
def test_running_extremes_know_where(largest):
    x = np.array([[1.0, 3, 3, 2], [np.nan, 0, 5, 1]])
    name = "cummax" if largest else "cummin"
    check(
        lambda a: scan.extreme_positions(REGISTRY[name](a, axis=1), a, 1),
        lambda a: getattr(torch, name)(a, 1).indices,
        x, order=0,
    )  # fmt: skip


def test_scatter_rules_say_where_each_element_goes():
    index = np.array([[0, 2], [1, 0]])
    x, src = np.zeros((3, 2)), np.ones((2, 2))
    j = tuple(np.indices((2, 2)))
    position, mask = indexing.scatter_add.target(j, *map(Indexed, (x, index, src)), axis=0)
    np.testing.assert_array_equal(position[0], index)
    assert mask.all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
@pytest.mark.parametrize(("parts", "columns"), [(2, 4), (2, 37), (4, 8), (3, 5)])
def test_interleaved_tensors_keep_every_part(dtype, parts, columns):
    """Stacked along a new last dimension and flattened: neighbouring lanes read one element behind different masks."""
    arrays = [np.arange(3 * columns).reshape(3, columns).astype(dtype) + k for k in range(parts)]
    mixed = lz.stack([lz.tensor(a) for a in arrays], -1).reshape(3, parts * columns)
    np.testing.assert_array_equal(mixed.numpy(), np.stack(arrays, -1).reshape(3, -1))
