"""Scans, scatters and sorting: compiled kernels against the operations' reference rules."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from jit_helper import LEVELS, Compiled
from lezero.codegen.emit import emit, kernel_source
from lezero.codegen.target import TARGETS
from lezero.graph import dtype as dtypes
from lezero.graph.dim import Dim
from lezero.graph.node import Node
from lezero.loops import printer
from lezero.loops.verify import verify
from lezero.ops.base import LEAF, REGISTRY
from lezero.ops.indexing import Scatter
from lezero.ops.scan import Scan
from lezero.schedule.lowered import number
from lezero.schedule.opaque import lower_opaque, scan, sort

pytestmark = pytest.mark.parametrize("level", sorted({"generic", "avx2", LEVELS[-1]} & set(LEVELS)))
POISON = 0xA5
_compiled: dict = {}


def compiled(level, kernel):
    key = (level, printer.key(kernel))
    if key not in _compiled:
        verify(kernel)
        _compiled[key] = Compiled(emit(kernel, TARGETS[level]), TARGETS[level])
    return _compiled[key]


def apply(name, arrays, attrs=None, symbolic=None):
    """The node of an operation on leaves like `arrays`; `symbolic` maps (input, axis) to a Dim."""
    op = REGISTRY[name]
    leaves = []
    for k, a in enumerate(arrays):
        shape = tuple((symbolic or {}).get((k, axis), d) for axis, d in enumerate(a.shape))
        leaves.append(Node(LEAF, (), ("tensor",), shape, dtypes._BY_NUMPY[a.dtype]))
    bound = op.bind(attrs or {})
    shape, dtype = op.infer_nodes(tuple(leaves), bound)
    return Node(op, tuple(leaves), bound, shape, dtype)


def run(level, node, arrays, tasks=1, bindings=()):
    """Run the node's kernels; every buffer has a margin of poison on both sides that must survive."""
    memory = {}

    def margin(values):
        raw = np.full(values.nbytes + 256, POISON, np.uint8)
        raw[128 : 128 + values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return raw

    for x, a in zip(node.inputs, arrays):
        memory[x] = margin(a)
    shape = tuple(number(d, bindings) for d in node.shape)
    memory[node] = margin(np.full(prod(shape) * node.dtype.itemsize, POISON, np.uint8))
    before = {x: memory[x].copy() for x in node.inputs}
    for lowered in lower_opaque(node):
        for operand in lowered.operands:
            if isinstance(operand, tuple) and operand not in memory:
                memory[operand] = margin(np.full(number(operand[2], bindings) * operand[3], POISON, np.uint8))
        count = min(tasks, number(lowered.limit, bindings))
        assert (lowered.tasks(4, bindings)[0] >= 1) == (count >= 1)
        views = [memory[o][128:-128] for o in lowered.operands]
        for turn in range(lowered.rounds(bindings) if count else 0):
            named = {"tasks": count, "round": turn}
            params = [named[p] if isinstance(p, str) else number(p, bindings) for p in lowered.params]
            scratch = kernel_source(lowered.kernel).scratch(tuple(params))
            compiled(level, lowered.kernel)(views, params, count, scratch)
    for raw in memory.values():
        assert (raw[:128] == POISON).all() and (raw[-128:] == POISON).all(), "written outside a buffer"
    for x, was in before.items():
        assert (memory[x] == was).all(), "an input was written to"
    return memory[node][128:-128].view(node.dtype.numpy).reshape(shape)


def draw(rng, dtype, shape):
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype.numpy)
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype.numpy)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0 if dtype.kind == "u" else -9, 9, shape).astype(dtype.numpy)


def check(level, name, arrays, attrs=None, tasks=(1, 3)):
    node = apply(name, arrays, attrs)
    with np.errstate(all="ignore"):
        want = node.op.reference(*arrays, **node.named_attrs()).astype(node.dtype.numpy)
    results = [run(level, node, arrays, t) for t in tasks]
    for got in results:
        # the number of tasks never changes a bit
        np.testing.assert_array_equal(
            got.view(np.uint8) if got.ndim else got, results[0].view(np.uint8) if got.ndim else got
        )
    wide = np.float32 if node.dtype.itemsize == 2 and node.dtype.kind == "f" else want.dtype
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "complex64": 2e-5}.get(node.dtype.name, 1e-12)
    got = results[0]
    if node.dtype.kind in "fc":
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


SHAPES = [
    ((7,), 0),
    ((0,), 0),
    ((1,), 0),
    ((3, 100), 1),
    ((33, 5), 0),
    ((5, 130), 0),
    ((2, 3, 70), 1),
    ((40, 3, 17), 1),
    ((3, 0, 4), 1),
    ((0, 4), 1),
]


# -- scans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_scans_of_every_shape(level, name, reverse):
    rng = np.random.default_rng(0)
    for shape, axis in SHAPES:
        check(level, name, [draw(rng, dtypes.float32, shape)], {"axis": axis, "reverse": reverse})


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_scans_of_every_dtype(level, dtype):
    rng = np.random.default_rng(1)
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        if dtype.is_complex and name.startswith("cumm"):
            continue
        for shape, axis in (((4, 37), 1), ((11, 37), 0)):
            check(level, name, [draw(rng, dtype, shape)], {"axis": axis})


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "bfloat16"])
def test_linear_scan_along_both_axes(level, dtype):
    rng = np.random.default_rng(2)
    for axis in (0, 1):
        for reverse in (False, True):
            a, b = (draw(rng, dtypes._BY_NAME[dtype], (9, 21)) for _ in range(2))
            check(level, "linear_scan", [a, b], {"axis": axis, "reverse": reverse})


def test_scans_of_one_tensor_given_twice_and_of_nan(level):
    x = np.array([[1, 2, np.nan, 0.5, np.inf], [3, -np.inf, 2, 2, 1]], np.float32)
    for name in ("cumsum", "cummax", "cummin"):
        for axis in (0, 1):
            check(level, name, [x], {"axis": axis})


SCANS = ["cumsum", "cumprod", "cummax", "cummin"]


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_in_stretches(level, reverse, monkeypatch):
    monkeypatch.setattr(scan, "STRETCH", 8)
    rng = np.random.default_rng(3)
    for shape, axis in [*SHAPES, ((8,), 0), ((64,), 0), ((65,), 0), ((33, 70), 0)]:
        for name in SCANS:
            check(level, name, [draw(rng, dtypes.float32, shape)], {"axis": axis, "reverse": reverse})
        given = [draw(rng, dtypes.float64, shape) for _ in range(2)]
        check(level, "linear_scan", given, {"axis": axis, "reverse": reverse})


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_scans_of_every_dtype_in_stretches(level, dtype, monkeypatch):
    monkeypatch.setattr(scan, "STRETCH", 8)
    rng = np.random.default_rng(4)
    for name in SCANS:
        if not (dtype.is_complex and name.startswith("cumm")):
            for shape, axis in (((4, 37), 1), ((19, 37), 0)):
                check(level, name, [draw(rng, dtype, shape)], {"axis": axis})


def test_a_scan_of_unknown_length_runs_in_stretches_where_it_is_long(level, monkeypatch):
    monkeypatch.setattr(scan, "STRETCH", 8)
    rng = np.random.default_rng(5)
    for columns in (1, 5):
        length = Dim.symbol(0, 4)
        for n in (4, 8, 30):
            x = draw(rng, dtypes.float32, (n, columns))
            for name in SCANS:
                node = apply(name, [x], {"axis": 0}, {(0, 0): length})
                want = node.op.reference(x, **node.named_attrs())
                np.testing.assert_allclose(run(level, node, [x], 2, (n,)), want, rtol=1e-5, atol=1e-6)


def test_a_running_product_overflows_only_where_it_is_large(level, monkeypatch):
    monkeypatch.setattr(scan, "STRETCH", 8)
    x = np.repeat(np.array([1e-4, 1e5, 1e-2], np.float32), 8)  # the second stretch alone comes to 1e40
    check(level, "cumprod", [x], {"axis": 0})


# -- scatters -------------------------------------------------------------------------------------------------------


def indices(rng, extent, shape, dtype=np.int64):
    return rng.integers(0, max(extent, 1), shape).astype(dtype)


@pytest.mark.parametrize("index_type", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
def test_scatter_along_an_axis(level, name, index_type):
    rng = np.random.default_rng(3)
    for shape, axis in SHAPES:
        if 0 in shape:
            continue
        for length in (0, 1, 9):
            ends = tuple(length if a == axis else max(1, d - 1) for a, d in enumerate(shape))
            index = indices(rng, shape[axis], ends, index_type)
            arrays = [draw(rng, dtypes.float32, shape), index, draw(rng, dtypes.float32, ends)]
            check(level, name, arrays, {"axis": axis})


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_scatters_of_every_dtype(level, dtype):
    rng = np.random.default_rng(4)
    x, index = draw(rng, dtype, (5, 40)), indices(rng, 5, (60,))
    if dtype.kind != "b":
        check(level, "index_add", [x, index, draw(rng, dtype, (60, 40))], {"axis": 0})
    for axis, shape in ((0, (23, 40)), (1, (5, 60))):
        index = indices(rng, x.shape[axis], shape)
        check(level, "scatter", [x, index, draw(rng, dtype, shape)], {"axis": axis})


def test_half_precision_adds_up_before_it_rounds(level):
    """4096 additions of 1 to 0 give 4096, not the 256 at which bfloat16 sticks."""
    x, src = np.zeros((2, 3), dtypes.bfloat16.numpy), np.ones((4096, 3), dtypes.bfloat16.numpy)
    node = apply("index_add", arrays := [x, np.zeros(4096, np.int64), src], {"axis": 0})
    assert run(level, node, arrays).astype(np.float32).tolist() == [[4096] * 3, [0] * 3]


def test_index_add_with_any_index_rank_and_axis(level):
    rng = np.random.default_rng(5)
    for shape in ((6, 50, 1), (9, 7, 33), (3, 20, 130), (4, 1, 3)):
        for axis in range(3):
            for index_shape in ((), (1,), (11,), (2, 3), (0,)):
                index = indices(rng, shape[axis], index_shape)
                src = draw(rng, dtypes.float32, shape[:axis] + index_shape + shape[axis + 1 :])
                check(level, "index_add", [draw(rng, dtypes.float32, shape), index, src], {"axis": axis})


@pytest.mark.parametrize("name", ["scatter_nd", "scatter_nd_add"])
def test_scatter_at_several_indices_at_once(level, name):
    rng = np.random.default_rng(6)
    shape = (4, 5, 6)
    for shapes in ([(7,)], [(7,), (7,)], [(3, 1), (1, 4)], [(5,), (2, 5), ()], [(0,), (0,)]):
        index = [indices(rng, d, s) for d, s in zip(shape, shapes)]
        chosen = np.broadcast_shapes(*shapes)
        src = draw(rng, dtypes.float64, chosen + shape[len(index) :])
        check(level, name, [draw(rng, dtypes.float64, shape), src, *index])


def test_the_last_update_of_a_place_stays(level):
    x, index = np.zeros((3, 70), np.int32), np.zeros((9, 70), np.int64)
    src = np.arange(9 * 70, dtype=np.int32).reshape(9, 70)
    got = run(level, apply("scatter", [x, index, src], {"axis": 0}), [x, index, src], 2)
    assert (got[0] == src[-1]).all() and not got[1:].any()


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40, -(1 << 62)])
def test_an_index_out_of_range_writes_nothing(level, wrong):
    for name, shape, index_shape, src_shape, axis in (
        ("index_add", (5, 40), (2,), (2, 40), 0), ("scatter", (5, 40), (2, 40), (2, 40), 0),
        ("scatter_add", (40, 5), (40, 2), (40, 2), 1), ("scatter_add", (5,), (9,), (9,), 0),
    ):  # fmt: skip
        arrays = [np.zeros(shape, np.float32), np.full(index_shape, wrong), np.ones(src_shape, np.float32)]
        got = run(level, apply(name, arrays, {"axis": axis}), arrays, 2)
        assert not got.any(), name


def test_a_scatter_of_a_tensor_into_itself(level):
    x, index = np.arange(12.0).reshape(4, 3), np.array([[3, 2, 1], [0, 0, 0], [1, 1, 1], [2, 3, 2]])
    leaf = Node(LEAF, (), ("tensor",), x.shape, dtypes.float64)
    other = Node(LEAF, (), ("tensor",), index.shape, dtypes.int64)
    op = REGISTRY["scatter_add"]
    node = Node(op, (leaf, other, leaf), (0,), x.shape, dtypes.float64)
    want = op.reference(x, index, x, axis=0)
    np.testing.assert_array_equal(run(level, node, [x, index, x]), want)


def test_a_scatter_into_zeros_does_not_read_them(level):
    rng = np.random.default_rng(10)
    zeros, index, src = np.zeros((9, 20), np.float32), indices(rng, 9, (30,)), draw(rng, dtypes.float32, (30, 20))
    full = REGISTRY["full"]
    base = Node(full, (), full.bind({"shape": (9, 20)}), (9, 20), dtypes.float32)
    leaves = apply("index_add", [zeros, index, src], {"axis": 0}).inputs
    node = Node(REGISTRY["index_add"], (base, *leaves[1:]), (0,), (9, 20), dtypes.float32)
    assert all(base not in lowered.operands for lowered in lower_opaque(node))
    got = run(level, node, [zeros, index, src], 2)
    np.testing.assert_allclose(got, node.op.reference(zeros, index, src, axis=0), rtol=1e-5, atol=1e-5)


# -- sorting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
def test_argsort_of_every_shape(level, descending):
    rng = np.random.default_rng(7)
    lengths = (1, 31, 32, 33, 64, 65, 97, 129, 257, 1000, 2049)
    for shape, axis in [*SHAPES, *(((2, n), 1) for n in lengths), ((65, 33), 0), ((4, 4), 0)]:
        # few different values: many equal ones, which must keep their order
        for dtype in (np.float32, np.int64):
            x = rng.integers(-5, 5, shape).astype(dtype)
            check(level, "argsort", [x], {"axis": axis, "descending": descending}, tasks=(1, 2))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_complex], ids=lambda d: d.name)
def test_argsort_of_every_dtype(level, dtype, descending):
    rng = np.random.default_rng(8)
    x = draw(rng, dtype, (3, 90))
    if dtype.kind == "f":
        x[:, ::7] = np.nan
        x[:, 1::11], x[:, 2::11], x[:, 3::11], x[:, 4::11] = np.inf, -np.inf, 0.0, -0.0
        x[0, :14:7] = -np.array(np.nan, x.dtype)
    elif dtype.kind in "iu":
        info = np.iinfo(dtype.numpy)
        x[:, ::5], x[:, 1::5] = info.max, info.min
        x[1] = rng.integers(info.min, info.max, 90, dtype=dtype.numpy, endpoint=True)
    for axis in (0, 1):
        check(level, "argsort", [x], {"axis": axis, "descending": descending})


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_argsort_of_long_rows_merges_runs(level, dtype, descending, monkeypatch):
    monkeypatch.setattr(sort, "RUN", 32)
    rng = np.random.default_rng(3)
    for shape, axis in (((65,), 0), ((128,), 0), ((1000,), 0), ((3, 150), 1), ((150, 3), 0), ((2, 70, 3), 1)):
        x = draw(rng, dtypes._BY_NAME[dtype], shape)
        if x.dtype.kind == "f":
            x = np.where(rng.random(shape) < 0.1, np.nan, np.round(x)).astype(x.dtype)  # equal ones keep their order
        check(level, "argsort", [x], {"axis": axis, "descending": descending})


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "float64"])
def test_argsort_of_rows_too_long_to_pack_positions(level, dtype, monkeypatch):
    monkeypatch.setattr(sort, "PACKED", 2)
    monkeypatch.setattr(sort, "RUN", 32)
    numbers = np.random.default_rng(3)
    for n in (5, 100, 777):
        x = (numbers.standard_normal((2, n)) * 100).astype(dtype)
        if dtype.startswith("float"):
            x[0, :4] = [np.nan, -0.0, 0.0, np.inf]
        for descending in (False, True):
            check(level, "argsort", [x], {"axis": 1, "descending": descending})


def test_argsort_of_unknown_length_merges_runs_where_there_are_several(level, monkeypatch):
    rng = np.random.default_rng(4)
    for length, n in ((sort.RUN, 5), (sort.RUN, 70_000), (32, 5), (32, 32), (32, 33), (32, 400)):
        monkeypatch.setattr(sort, "RUN", length)
        x = np.round(draw(rng, dtypes.float32, (n,)))
        node = apply("argsort", [x], {"axis": 0}, {(0, 0): Dim.symbol(0, 5)})
        np.testing.assert_array_equal(run(level, node, [x], 2, (n,)), np.argsort(x, kind="stable"))


def test_argsort_of_what_is_sorted_already_or_backwards(level):
    for x in (np.arange(500.0), -np.arange(500.0), np.zeros(500), np.r_[np.arange(250.0), np.arange(250.0)]):
        for dtype in (np.float32, np.float64):
            for descending in (False, True):
                check(level, "argsort", [x.astype(dtype)], {"axis": 0, "descending": descending}, tasks=(1,))


# -- every operation ------------------------------------------------------------------------------------------------


def test_every_opaque_operation_has_kernels(level):
    for op in REGISTRY.values():
        if op.kind == "opaque":
            assert isinstance(op, (Scan, Scatter)) or op.name in ("argsort", "joined"), op


# -- extents --------------------------------------------------------------------------------------------------------


def test_a_kernel_serves_every_extent(level):
    """Symbolic extents: lowered once for 4 rows, run for others, without a new kernel."""
    rng = np.random.default_rng(9)
    for name, attrs in (
        ("cumsum", {"axis": 0}),
        ("cumsum", {"axis": 1}),
        ("argsort", {"axis": 0}),
        ("argsort", {"axis": 1}),
    ):
        s = Dim.symbol(0, 4)
        node = apply(name, [np.zeros((4, 37), np.float32)], attrs, {(0, 0): s})
        for rows in (2, 4, 19, 100):
            x = rng.normal(size=(rows, 37)).astype(np.float32)
            got = run(level, node, [x], 2, (rows,))
            np.testing.assert_allclose(got, node.op.reference(x, **node.named_attrs()), rtol=1e-5, atol=1e-5)
    s = Dim.symbol(0, 4)
    arrays = [np.zeros((50, 37), np.float32), np.zeros(4, np.int64), np.zeros((4, 37), np.float32)]
    node = apply("index_add", arrays, {"axis": 0}, {(1, 0): s, (2, 0): s})
    for rows in (2, 4, 300):
        arrays = [arrays[0], indices(rng, 50, (rows,)), rng.normal(size=(rows, 37)).astype(np.float32)]
        got = run(level, node, arrays, 2, (rows,))
        np.testing.assert_allclose(got, node.op.reference(*arrays, axis=0), rtol=1e-5, atol=1e-5)
