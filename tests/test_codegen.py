"""Generated code against the interpreter of the loop IR, at every level this machine supports."""

from __future__ import annotations

import numpy as np
import pytest

from jit_helper import LEVELS, Compiled
from lezero.codegen.emit import emit, kernel_source
from lezero.codegen.target import TARGETS
from lezero.loops import interpret, ir, printer
from lezero.loops.ir import (
    Acc,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Reduce,
    Scratch,
    Store,
    call,
    cast,
    const,
    load,
    param,
    var,
)
from lezero.loops.verify import LoopError, verify

SIZES = (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1000)
FLOATS, HALVES = ("f32", "f64"), ("f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
pytestmark = pytest.mark.parametrize("level", LEVELS)

i, j, r, c = var("i"), var("j"), var("r"), var("c")


def add(*terms):
    total = terms[0]
    for t in terms[1:]:
        total = call("add", total, t)
    return total


def mul(a, b):
    return call("mul", a, b)


def draw(rng, type, size):
    kind = interpret.dtype(type)
    if type == "bool":
        return rng.integers(0, 2, size).astype(bool)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        small = rng.integers(max(info.min, -20), 20, size)
        return np.where(rng.random(size) < 0.3, rng.integers(info.min, info.max, size, dtype=kind), small.astype(kind))
    if kind.kind == "c":
        return (rng.normal(size=size) + 1j * rng.normal(size=size)).astype(kind)
    return (rng.normal(size=size) * 3).astype(kind)


def check(level, kernel, arrays, params=(), tasks=1, combine_tasks=1, rtol=0.0, atol=0.0):
    """Run compiled and interpreted; every array must agree, and what neither wrote must be untouched."""
    verify(kernel)
    compiled = compile_cached(level, kernel)
    mine, theirs = [a.copy() for a in arrays], [a.copy() for a in arrays]
    scratch = kernel_source(kernel).scratch(tuple(params))
    compiled(mine, params, tasks, scratch)
    if kernel.combine is not None:
        compiled(mine, params, combine_tasks, scratch, "combine")
    interpret.run(kernel, theirs, params, tasks, combine_tasks)
    for got, want in zip(mine, theirs):
        exact = got.dtype.kind in "biu" or (rtol == 0 and atol == 0)
        if got.dtype.kind == "V" or got.dtype.name == "bfloat16":
            got, want = got.astype(np.float32), want.astype(np.float32)
        if exact:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


_compiled: dict = {}


def compile_cached(level, kernel):
    key = (level, printer.key(kernel))
    if key not in _compiled:
        _compiled[key] = Compiled(emit(kernel, TARGETS[level]), TARGETS[level])
    return _compiled[key]


def elementwise(inputs, output, expression, name="test", **loop):
    """out[i] = expression(in0[i], in1[i], ...)."""
    loads = [load(k, t, i) for k, t in enumerate(inputs)]
    body = [Store(len(inputs), i, expression(*loads))]
    buffers = (*(Buffer(t) for t in inputs), Buffer(output, "w"))
    return Kernel(name, buffers, 1, [Loop("i", param(0), body, **(loop or {"vector": True, "task": True}))])


# -- element-wise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_add_of_every_size_and_number_of_tasks(level, tasks):
    kernel = elementwise(["f32", "f32"], "f32", add)
    rng = np.random.default_rng(0)
    for n in SIZES:
        check(level, kernel, [draw(rng, "f32", n + 3) for _ in range(3)], [n], tasks)


@pytest.mark.parametrize("type", [*FLOATS, *INTEGERS, "bool"])
def test_arithmetic_and_comparison_of_every_type(level, type):
    rng = np.random.default_rng(1)
    ops = ["add", "mul", "sub", "max", "min"]
    if type in FLOATS:
        ops += ["div", "copysign"]
    elif type == "bool":
        ops += ["and", "or", "xor"]
    else:
        ops += ["and", "or", "xor", "shl", "shr", "floordiv", "mod", "fmod", "div", "pow"]
    compares = ["eq", "ne", "lt", "le", "gt", "ge"]
    loads = load(0, type, i), load(1, type, i)
    body = [Store(2 + k, i, call(op, *loads)) for k, op in enumerate(ops + compares)]
    outputs = [type] * len(ops) + ["bool"] * 6
    buffers = (Buffer(type), Buffer(type), *(Buffer(t, "w") for t in outputs))
    kernel = Kernel("ops", buffers, 1, [Loop("i", param(0), body, vector=True)])
    x, y = draw(rng, type, 150), draw(rng, type, 150)
    if type in FLOATS:
        x[:6] = [np.nan, 1, np.inf, -np.inf, 0.0, -0.0]
        y[:6] = [1, np.nan, np.inf, 2, -0.0, 0.0]
    elif type[0] == "i":
        x[0], y[0] = np.iinfo(x.dtype).min, -1
    check(level, kernel, [x, y, *(np.zeros(150, interpret.dtype(t)) for t in outputs)], [147])


@pytest.mark.parametrize("type", FLOATS)
def test_rounding_and_classification(level, type):
    ops = ["neg", "abs", "floor", "ceil", "round", "trunc", "sign", "sqrt", "reciprocal"]
    predicates = ["isnan", "isinf", "isfinite"]
    body = [Store(1 + k, i, call(op, load(0, type, i))) for k, op in enumerate(ops + predicates)]
    outputs = [type] * len(ops) + ["bool"] * 3
    kernel = Kernel(
        "u", (Buffer(type), *(Buffer(t, "w") for t in outputs)), 1, [Loop("i", param(0), body, vector=True)]
    )
    x = np.array(
        [0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -1e10, 4e18, 1e30, np.inf, -np.inf, np.nan, 1e-30, 2.0**23 + 0.5]
    )
    x = np.concatenate([x, np.random.default_rng(2).normal(size=50) * 10]).astype(interpret.dtype(type))
    arrays = [x, *(np.zeros(x.size, interpret.dtype(t)) for t in outputs)]
    check(level, kernel, arrays, [x.size])
    mine = [a.copy() for a in arrays]
    compile_cached(level, kernel)(mine, [x.size])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.signbit(mine[3]), np.signbit(np.floor(x)))


@pytest.mark.parametrize("source", [*FLOATS, *HALVES, *INTEGERS, "bool"])
def test_casts_to_every_type(level, source):
    outputs = [t for t in (*FLOATS, *HALVES, *INTEGERS, "bool") if t != source]
    body = [Store(1 + k, i, cast(load(0, source, i), t)) for k, t in enumerate(outputs)]
    kernel = Kernel(
        "cast", (Buffer(source), *(Buffer(t, "w") for t in outputs)), 1, [Loop("i", param(0), body, vector=True)]
    )
    x = draw(np.random.default_rng(3), source, 133)
    if interpret.dtype(source).kind in "fV" or source == "bf16":
        special = [
            np.nan,
            np.inf,
            -np.inf,
            1e30,
            -1e30,
            70000.0,
            65519.0,
            65520.0,
            6e-8,
            2.9e-8,
            1e-5,
            -1e-6,
            300.0,
            -0.0,
        ]
        with np.errstate(over="ignore"):
            x[: len(special)] = np.array(special).astype(x.dtype)
    arrays = [x, *(np.zeros(x.size, interpret.dtype(t)) for t in outputs)]
    # f64 to a half type goes through f32 here, as in PyTorch; NumPy rounds once: one unit in the last place apart.
    check(level, kernel, arrays, [x.size], rtol=0 if source != "f64" else 2.0**-7)


def test_strides_reversal_broadcast_and_gather(level):
    """Every shape of index: 1, 0, -1, a constant and a run-time stride, division, modulo, a loaded index."""
    n = param(0)
    last = call("sub", call("sub", n, const(1)), i)
    three = call("mul", i, const(3))
    indices = [last, three, mul(i, param(1)), call("floordiv", i, param(1)), call("mod", i, param(1)), call("mod", i, const(4)),
               call("floordiv", add(i, const(-7)), const(4)), cast(load(1, "i32", i), "i64"), const(5)]  # fmt: skip
    indices[6] = add(indices[6], const(2))
    body = [Store(2 + k, i, load(0, "f32", x)) for k, x in enumerate(indices)]
    body.append(Store(2 + len(indices), add(const(1), mul(i, const(2))), load(0, "f32", i)))
    body.append(Store(3 + len(indices), last, load(0, "f32", i)))
    buffers = (Buffer("f32"), Buffer("i32"), *(Buffer("f32", "w") for _ in range(len(indices) + 2)))
    kernel = Kernel("index", buffers, 2, [Loop("i", n, body, vector=True, task=True)])
    rng = np.random.default_rng(4)
    for size in (1, 17, 100, 257):
        x = draw(rng, "f32", 7 * size + 6)
        where = rng.integers(0, x.size, size).astype(np.int32)
        outs = [np.zeros(size, np.float32) for _ in indices] + [
            np.zeros(2 * size, np.float32),
            np.zeros(size, np.float32),
        ]
        for stride in (1, 7):
            check(level, kernel, [x, where, *outs], [size, stride], tasks=2)


@pytest.mark.parametrize("type", ["i64", "i32", "f32"])
def test_floor_division_of_negative_index_arithmetic(level, type):
    """floordiv and mod by a uniform value, of what depends on the loop variable, on both sides of zero."""
    x = call("sub", mul(i, const(3)), const(500))
    body = [Store(k, i, cast(call(op, x, d), type)) for k, (op, d) in enumerate(
        (op, d) for op in ("floordiv", "mod") for d in (param(1), const(8), const(-5)))]  # fmt: skip
    kernel = Kernel("div", tuple(Buffer(type, "w") for _ in body), 2, [Loop("i", param(0), body, vector=True)])
    arrays = [np.zeros(400, interpret.dtype(type)) for _ in body]
    for divisor in (7, -7, 1, 1000):
        check(level, kernel, arrays, [399, divisor])


@pytest.mark.parametrize("type", ["f32", "f64", "f16", "bf16", "i8", "i64", "bool", "c64"])
def test_masked_loads_and_stores_do_not_touch_what_is_masked(level, type):
    """Padding: indices outside the buffer are masked; the buffer ends at the end of its memory page in spirit."""
    index = call("sub", i, const(3))
    inside = call("and", call("ge", index, const(0)), call("lt", index, param(1)))
    odd = call("eq", call("mod", i, const(2)), const(1))
    body = [
        Store(1, i, load(0, type, index, inside)),
        Store(2, i, load(0, type, const(10**12), call("lt", param(0), const(0)))),
        Store(3, call("sub", i, const(10**9)), load(0, type, const(0)), mask=call("lt", i, const(0))),
        Store(4, i, load(0, type, index, inside), mask=odd),
        Store(5, i, load(0, type, const(10**12), call("lt", i, const(0)))),
    ]
    kernel = Kernel(
        "pad", (Buffer(type), *(Buffer(type, "w") for _ in range(5))), 2, [Loop("i", param(0), body, vector=True)]
    )
    rng = np.random.default_rng(5)
    for n in (1, 33, 70):
        arrays = [draw(rng, type, n), *(draw(rng, type, n + 6) for _ in range(5))]
        check(level, kernel, arrays, [n + 6, n])


def test_scatter_add_and_in_place(level):
    index = mul(i, const(2))
    kernel = Kernel("scatter", (Buffer("f32"), Buffer("f32", "rw"), Buffer("bf16", "rw")), 1, [
        Loop("i", param(0), [
            Store(1, index, load(0, "f32", i), add=True),
            Store(1, index, mul(load(1, "f32", index), const(2.0, "f32"))),
            Store(2, i, cast(load(0, "f32", i), "bf16"), add=True),
        ], vector=True),
    ])  # fmt: skip
    rng = np.random.default_rng(6)
    check(level, kernel, [draw(rng, "f32", 99), draw(rng, "f32", 198), draw(rng, "bf16", 99)], [99])


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions(level, seed):
    rng = np.random.default_rng(seed)
    type = FLOATS[seed % 2]
    pool = [
        load(0, type, i),
        load(1, type, mul(i, const(2))),
        load(1, type, const(1)),
        const(0.75, type),
        cast(i, type),
    ]
    for _ in range(25):
        a, b, d = (pool[k] for k in rng.integers(0, len(pool), 3))
        op = rng.choice(["add", "sub", "mul", "max", "min", "where", "fma", "tanh", "abs", "sigmoid"])
        if op == "where":
            pool.append(call("where", call("lt", a, b), b, d))
        elif op == "fma":
            pool.append(add(mul(a, const(0.5, type)), b))
        else:
            pool.append(call(op, a) if op in ("tanh", "abs", "sigmoid") else call(op, a, b))
    bounded = call("tanh", mul(add(*pool[-4:]), const(1e-3, type)))
    kernel = Kernel("random", (Buffer(type), Buffer(type), Buffer(type, "w")), 1,
                    [Loop("i", param(0), [Store(2, i, bounded)], vector=True, task=True)])  # fmt: skip
    arrays = [draw(rng, type, 133), draw(rng, type, 266), np.zeros(133, interpret.dtype(type))]
    check(level, kernel, arrays, [133], 2, rtol=2e-4 if type == "f32" else 1e-12, atol=1e-5 if type == "f32" else 1e-13)


@pytest.mark.parametrize("type", FLOATS)
def test_functions_outside_vector_loops(level, type):
    """The same operations one at a time, as for the scalars of an optimizer step."""
    x, y = load(0, type, i), load(1, type, i)
    ops = ("exp", "log", "tanh", "sin", "erf", "sigmoid", "rsqrt", "floor", "log1p", "lgamma")
    values = [call(op, x) for op in ops] + [call(op, x, y) for op in ("pow", "fmod", "mod", "atan2")]
    body = [Store(2 + k, i, v) for k, v in enumerate(values)]
    body += [Store(2 + len(values), i, cast(x, "f16")), Store(3 + len(values), i, cast(cast(y, "i32"), "bf16"))]
    outputs = [*[type] * len(values), "f16", "bf16"]
    kernel = Kernel("scalars", (Buffer(type), Buffer(type), *(Buffer(t, "w") for t in outputs)), 1,
                    [Loop("i", param(0), body, task=True)])  # fmt: skip
    rng = np.random.default_rng(12)
    arrays = [
        np.abs(draw(rng, type, 40)) + 0.1,
        draw(rng, type, 40),
        *(np.zeros(40, interpret.dtype(t)) for t in outputs),
    ]
    arrays[0] = arrays[0].astype(arrays[1].dtype)
    check(level, kernel, arrays, [40], 2, rtol=3e-6 if type == "f32" else 1e-12, atol=1e-7 if type == "f32" else 1e-14)


def test_only_the_tail_of_a_heavy_loop_is_masked(level):
    """Masked stores took three times as long as plain ones where they miss the caches (AVX-512, Zen 5)."""
    x = load(0, "f32", i)
    heavy = call("exp", call("div", call("erf", x), call("log", call("add", call("exp", x), const(1, "f32")))))
    body = [Loop("i", param(0), [Store(1, i, heavy)], vector=True, task=True)]
    kernel = Kernel("heavy", (Buffer("f32"), Buffer("f32", "w")), 1, body)
    text = emit(kernel, TARGETS[level]).split("define")[1]
    lanes = TARGETS[level].lanes(4)
    assert f"store <{lanes} x float>" in text and "masked.store" in text
    values = np.linspace(-3, 3, 71, dtype=np.float32)
    check(level, kernel, [values, np.zeros_like(values)], [71], 2, rtol=1e-5, atol=1e-6)


# -- reductions -----------------------------------------------------------------------------------------------------


def row_kernel(kind, type, inner="vector"):
    """out[r] = reduce over c of x[r, c]; argmax and argmin also store where."""
    index = add(mul(r, param(1)), c)
    init = {
        "sum": 0,
        "prod": 1,
        "any": 0,
        "all": 1,
        "max": -np.inf,
        "argmax": -np.inf,
        "min": np.inf,
        "argmin": np.inf,
        "argmax_of_window": -np.inf,
    }[kind]
    if type not in FLOATS and abs(init) > 1:
        info = np.iinfo(interpret.dtype(type))
        init = info.min if init < 0 else info.max
    value = load(0, type, index)
    body: list = [Acc("a", type, const(init, type))]
    buffers = [Buffer(type), Buffer(type, "w")]
    if kind.startswith("arg"):
        body += [Acc("w", "i64", const(0)), Loop("c", param(1), [Reduce("a", kind, value, "w", c)], **{inner: True})]
        buffers.append(Buffer("i64", "w"))
    else:
        body.append(Loop("c", param(1), [Reduce("a", kind, value)], **{inner: True}))
    body.append(Store(1, r, ir.acc("a", type)))
    if kind.startswith("arg"):
        body.append(Store(2, r, ir.acc("w", "i64")))
    return Kernel(kind, tuple(buffers), 2, [Loop("r", param(0), body, task=True)])


@pytest.mark.parametrize(
    "kind,type",
    [
        (k, t)
        for k in ("sum", "max", "min", "prod", "argmax", "argmin", "argmax_of_window")
        for t in ("f32", "f64", "i64", "i32", "u8")
    ]
    + [("any", "bool"), ("all", "bool")],
)
def test_row_reductions(level, kind, type):
    kernel = row_kernel(kind, type)
    rng = np.random.default_rng(7)
    for rows, columns in ((1, 1), (3, 17), (2, 64), (5, 131), (2, 0), (0, 5)):
        x = draw(rng, type, rows * columns)
        if kind == "prod" and type in FLOATS:
            x = (1 + 0.1 * x / 3).astype(x.dtype)
        if kind.startswith("arg") or kind in ("max", "min"):
            x = np.round(x, 0).astype(x.dtype)  # many ties: the first must win
            if rows > 2 and type in FLOATS:
                x[columns + columns // 2] = np.nan
                x[columns + columns // 2 + 2] = np.nan
        arrays = [x, np.zeros(rows, interpret.dtype(type))]
        if kind.startswith("arg"):
            arrays.append(np.zeros(rows, np.int64))
        tolerance = {"f32": 1e-5, "f64": 1e-13}.get(type, 0) if kind in ("sum", "prod") else 0
        check(level, kernel, arrays, [rows, columns], 3, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("type", ["f32", "f64", "i32"])
def test_column_sums_keep_one_accumulator_per_lane(level, type):
    """Vector loop over columns, accumulators inside it, a serial loop over rows between."""
    index = add(mul(r, param(1)), c)
    kernel = Kernel("columns", (Buffer(type), Buffer(type, "w"), Buffer(type, "w")), 2, [
        Loop("c", param(1), [
            Acc("s", type, const(0, type)), Acc("last", type, const(7, type)),
            Loop("r", param(0), [Reduce("s", "sum", load(0, type, index)), Assign("last", load(0, type, index))]),
            Store(1, c, ir.acc("s", type)), Store(2, c, add(ir.acc("last", type), ir.acc("s", type))),
        ], vector=True, task=True),
    ])  # fmt: skip
    rng = np.random.default_rng(8)
    for rows, columns in ((0, 5), (1, 1), (4, 63), (7, 65), (3, 200)):
        arrays = [draw(rng, type, rows * columns), *(np.zeros(columns, interpret.dtype(type)) for _ in range(2))]
        check(level, kernel, arrays, [rows, columns], 2, rtol=0 if type == "i32" else 1e-4, atol=1e-5)


def softmax_kernel():
    index = add(mul(r, param(1)), c)
    x = load(0, "f32", index)
    e = call("exp", call("sub", x, ir.acc("m", "f32")))
    return Kernel("softmax", (Buffer("f32"), Buffer("f32", "w")), 2, [
        Loop("r", param(0), [
            Acc("m", "f32", const(-np.inf, "f32")),
            Loop("c", param(1), [Reduce("m", "max", x)], vector=True),
            Acc("s", "f32", const(0, "f32")),
            Loop("c", param(1), [Store(1, index, e), Reduce("s", "sum", e)], vector=True),
            Loop("c", param(1), [Store(1, index, mul(load(1, "f32", index), call("reciprocal", ir.acc("s", "f32"))))], vector=True),
        ], task=True),
    ])  # fmt: skip


def test_softmax_rows(level):
    kernel = softmax_kernel()
    kernel.buffers = (kernel.buffers[0], Buffer("f32", "rw"))
    rng = np.random.default_rng(9)
    for rows, columns in ((1, 1), (3, 10), (2, 100), (4, 1000)):
        check(
            level,
            kernel,
            [draw(rng, "f32", rows * columns), np.zeros(rows * columns, "f4")],
            [rows, columns],
            2,
            rtol=2e-6,
        )


def test_partial_sums_per_task_are_combined(level):
    kernel = Kernel("total", (Buffer("f32"), Buffer("f32", "rw"), Buffer("f32", "w")), 1,
        [Acc("s", "f32", const(0, "f32")), Loop("i", param(0), [Reduce("s", "sum", load(0, "f32", i))], vector=True, task=True),
         Store(1, ir.TASK, ir.acc("s", "f32"))],
        [Acc("t", "f32", const(0, "f32")), Loop("j", const(4), [Reduce("t", "sum", load(1, "f32", j))]),
         Store(2, const(0), ir.acc("t", "f32"))])  # fmt: skip
    for n in (0, 1, 64, 65, 1000):
        x = draw(np.random.default_rng(n), "f32", n)
        check(level, kernel, [x, np.zeros(4, "f4"), np.zeros(1, "f4")], [n], 4, rtol=1e-5, atol=1e-4)


def test_scratch_unrolled_loops_and_nested_serial_loops(level):
    """A 3-tap filter through scratch memory, taps unrolled, borders masked."""
    at = add(mul(r, param(1)), call("sub", add(c, j), const(1)))
    inside = call("and", call("ge", add(c, j), const(1)), call("lt", add(c, j), add(param(1), const(1))))
    kernel = Kernel("filter", (Buffer("f32"), Buffer("f32"), Buffer("f32", "w")), 2, [
        Loop("r", param(0), [
            Loop("c", param(1), [
                Acc("s", "f32", const(0, "f32")),
                Loop("j", const(3), [Reduce("s", "sum", mul(load(0, "f32", at, inside), load(1, "f32", j)))], unroll=True),
                Store(3, c, ir.acc("s", "f32")),
            ], vector=True),
            Loop("c", param(1), [Store(2, add(mul(r, param(1)), c), load(3, "f32", call("sub", call("sub", param(1), const(1)), c)))],
                 vector=True),
        ], task=True),
    ], scratch=(Scratch("f32", param(1)),))  # fmt: skip
    rng = np.random.default_rng(10)
    for rows, columns in ((1, 1), (3, 17), (2, 130)):
        arrays = [draw(rng, "f32", rows * columns), draw(rng, "f32", 3), np.zeros(rows * columns, "f4")]
        check(level, kernel, arrays, [rows, columns], 2, rtol=1e-5, atol=1e-5)


def test_a_load_is_not_hoisted_over_a_store_to_its_buffer(level):
    """A running product in memory: b[0] is read again in every iteration, and after the loop."""
    kernel = Kernel("carry", (Buffer("f64", "rw"), Buffer("f64", "w")), 1, [
        Store(1, const(0), load(0, "f64", const(0))),
        Loop("i", param(0), [
            Store(0, const(0), add(load(0, "f64", const(0)), cast(i, "f64"))), Store(1, add(i, const(1)), load(0, "f64", const(0))),
        ]),
        Store(1, const(0), load(0, "f64", const(0))),
    ])  # fmt: skip
    check(level, kernel, [np.ones(1), np.zeros(20)], [10])


def test_invariant_loads_of_an_empty_loop_are_not_made(level):
    """x[huge] would fault if it moved in front of a loop that does not run."""
    kernel = Kernel("empty", (Buffer("f32"), Buffer("f32", "w")), 2, [
        Loop("r", param(0), [Loop("i", param(1), [Store(1, i, load(0, "f32", const(10**13)))], vector=True)], task=True),
    ])  # fmt: skip
    check(level, kernel, [np.zeros(1, "f4"), np.zeros(1, "f4")], [3, 0])


@pytest.mark.parametrize("type", ["c64", "c128"])
def test_complex_arithmetic(level, type):
    real = {"c64": "f32", "c128": "f64"}[type]
    x, y = load(0, type, i), load(1, type, i)
    results = [call(op, x, y) for op in ("add", "sub", "mul", "div")] + [
        call(op, x) for op in ("neg", "conj", "exp", "log", "sqrt")
    ]
    reals = [call(op, x) for op in ("abs", "real", "imag")]
    s = ir.acc("s", type)
    body = [Store(2 + k, i, v) for k, v in enumerate(results + reals)]
    outputs = [type] * len(results) + [real] * len(reals)
    kernel = Kernel("complex", (Buffer(type), Buffer(type), *(Buffer(t, "w") for t in outputs), Buffer(type, "w")), 1, [
        Acc("s", type, const(0, type)), Loop("i", param(0), [*body, Reduce("s", "sum", mul(x, y))], vector=True),
        Store(2 + len(outputs), const(0), call("complex", call("real", s), call("imag", s))),
    ])  # fmt: skip
    rng = np.random.default_rng(11)
    arrays = [draw(rng, type, 77), draw(rng, type, 77), *(np.zeros(77, interpret.dtype(t)) for t in outputs)]
    arrays.append(np.zeros(1, interpret.dtype(type)))
    tolerance = 2e-5 if type == "c64" else 1e-13
    check(level, kernel, arrays, [77], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("extent", [0, 1, 5, 16, 33, 40])
def test_constant_extents(level, extent):
    """Loops whose length is known: shorter than a vector, or not a multiple of one."""
    at = add(mul(r, const(extent)), c)
    kernel = Kernel("fixed", (Buffer("f32"), Buffer("f32", "w"), Buffer("f32", "w")), 1, [
        Loop("r", param(0), [
            Acc("s", "f32", const(0.5, "f32")),
            Loop("c", const(extent), [
                Reduce("s", "sum", load(0, "f32", at)), Store(1, at, call("tanh", load(0, "f32", at))),
            ], vector=True),
            Store(2, r, ir.acc("s", "f32")),
        ], task=True),
    ])  # fmt: skip
    x = draw(np.random.default_rng(extent), "f32", 3 * extent)
    check(level, kernel, [x, np.zeros_like(x), np.zeros(3, "f4")], [3], 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_random_kernels(level, seed):
    """Random loop nests over a matrix: where vectors lie, what is reduced, masked, broadcast or read across rows."""
    rng = np.random.default_rng(seed)
    type = ("f32", "f64", "i32", "i16")[seed % 4]
    rows, columns = (int(v) for v in rng.integers(1, 90, 2))
    at = add(mul(r, param(1)), c)
    transposed = add(mul(c, param(0)), r)
    inside = call("and", call("ge", c, const(2)), call("lt", c, call("sub", param(1), r)))
    reads = [
        load(0, type, at), load(0, type, transposed), load(1, type, r), load(1, type, c), load(1, type, const(1)),
        load(0, type, call("sub", at, const(2)), inside), load(1, type, call("mod", at, const(7))),
        load(1, type, call("floordiv", c, const(3))), cast(call("sub", mul(r, const(3)), c), type),
        load(0, type, call("sub", mul(param(0), param(1)), add(at, const(1)))),
    ]  # fmt: skip

    def expression(extra=()):
        pool = [*reads, *extra]
        value = pool[rng.integers(len(pool))]
        for _ in range(4):
            other = pool[rng.integers(len(pool))]
            op = ("add", "sub", "max", "min")[rng.integers(4)]
            value = call(op, value, other)
            if rng.random() < 0.3:
                value = call("where", inside, value, other)
        return value

    outer, inner = (r, c) if rng.random() < 0.5 else (c, r)
    extents = {"r": param(0), "c": param(1)}
    total, best, where = ir.acc("s", type), ir.acc("b", type), ir.acc("w", "i64")
    inner_vector = bool(rng.random() < 0.5)
    first, last = expression(), expression((total, best))
    nest = Loop(outer.attr, extents[outer.attr], [
        Acc("s", type, const(0, type)), Acc("b", type, const(-30000, type)), Acc("w", "i64", const(0)),
        Loop(inner.attr, extents[inner.attr], [
            Reduce("s", "sum", first), Reduce("b", "argmax", expression(), "w", inner), Store(2, at, first),
        ], vector=inner_vector),
        Store(3, outer, total), Store(4, outer, where, mask=call("lt", outer, const(50))),
        Loop(inner.attr, extents[inner.attr], [Store(5, at, last, add=True)], vector=inner_vector),
    ], vector=not inner_vector, task=True)  # fmt: skip
    buffers = (Buffer(type), Buffer(type), Buffer(type, "w"), Buffer(type, "w"), Buffer("i64", "w"), Buffer(type, "rw"))
    kernel = Kernel("random", buffers, 2, [nest])
    small = lambda size: rng.integers(-9, 10, size).astype(interpret.dtype(type))
    arrays = [
        small(rows * columns),
        small(100),
        small(rows * columns),
        small(100),
        np.zeros(100, np.int64),
        small(rows * columns),
    ]
    check(level, kernel, arrays, [rows, columns], 3)


def test_external_symbols_would_be_noticed(level):
    text = "declare double @llvm.sin.f64(double)\ndefine double @kernel(double %x) {\n%y = call double @llvm.sin.f64(double %x)\n"
    with pytest.raises(AssertionError, match="sin"):
        Compiled(text + "ret double %y\n}", TARGETS[level])


# -- text, keys and rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad,message", [
    (Store(0, i, const(1, "f32")), "mode is 'r'"),
    (Store(1, i, const(1, "f64")), "f64, not f32"),
    (Store(1, j, const(1, "f32")), "outside its loop"),
    (Store(9, i, const(1, "f32")), "does not exist"),
    (Reduce("s", "sum", const(1, "f32")), "not declared"),
    (Loop("j", param(0), [], vector=True), "inside vector loop"),
    (Loop("j", param(0), [], task=True), "not at the top level"),
    (Store(1, param(5), const(1, "f32")), "param 5 of 1"),
])  # fmt: skip
def test_a_broken_kernel_is_refused(level, bad, message):
    kernel = Kernel("bad", (Buffer("f32"), Buffer("f32", "w")), 1, [Loop("i", param(0), [bad], vector=True)])
    with pytest.raises(LoopError, match=message):
        verify(kernel)


def test_key_ignores_names_and_nothing_else(level):
    def kernel(name, v, op="add"):
        x = load(0, "f32", var(v))
        return Kernel(name, (Buffer("f32"), Buffer("f32", "w")), 1,
                      [Loop(v, param(0), [Store(1, var(v), call(op, x, mul(x, x)))], vector=True)])  # fmt: skip

    assert printer.key(kernel("a", "i")) == printer.key(kernel("b", "k"))
    assert printer.key(kernel("a", "i")) != printer.key(kernel("a", "i", "sub"))
    assert "b1[i] = " in printer.text(kernel("a", "i"))
    deep = load(0, "f32", i)
    for _ in range(20_000):
        deep = add(deep, deep)
    assert printer.show(deep).count("t19998") == 3


def test_every_other_element_of_short_rows_and_lanes_folded_behind_the_last_row(level):
    """Pairs added (tails load two masked vectors), halves repeated, and a sum over the nest of rows, once for all of them."""
    at = add(mul(r, param(1)), c)
    pair = add(load(0, "f32", mul(at, const(2))), load(0, "f32", add(mul(at, const(2)), const(1))))
    half = load(1, "f32", call("floordiv", c, const(2)))
    value = add(mul(pair, half), cast(call("mod", c, const(2)), "f32"))
    kernel = Kernel("pairs", (Buffer("f32"), Buffer("f32"), Buffer("f32", "w"), Buffer("f32", "w")), 2, [
        Acc("s", "f32", const(0, "f32")),
        Loop("r", param(0), [
            Loop("c", param(1), [Reduce("s", "sum", value), Store(2, at, value)], vector=True),
        ]),
        Store(3, const(0), ir.acc("s", "f32")),
    ])  # fmt: skip
    rng = np.random.default_rng(11)
    for rows, columns in ((1, 1), (3, 5), (4, 14), (2, 28), (2, 67), (0, 5)):
        n = rows * columns
        halves = draw(rng, "f32", (columns + 1) // 2)
        arrays = [draw(rng, "f32", 2 * n), halves, np.zeros(n, "f4"), np.zeros(1, "f4")]
        check(level, kernel, arrays, [rows, columns], rtol=1e-4, atol=1e-4)
