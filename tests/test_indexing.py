"""``x[index]`` and ``x[index] = value`` against NumPy (and PyTorch where it differs from NumPy)."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interpreted_backend
import lezero as lz
from lezero import nn, optim
from lezero.hal import registry
from lezero.nn import functional as F
from lezero.runtime import run, stats

rng = np.random.default_rng(0)
SHAPE = (4, 5, 3)
BASE = rng.standard_normal(SHAPE).astype(np.float32)

BASIC = [
    0, -1, slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(3, None, -2), slice(10, 20),
    slice(-2, None), slice(2, 1), None, ...,
]  # fmt: skip
ADVANCED = [
    np.array([0, 2, 1]), np.array([-1, 0, -2]), np.array([[0, 1, 2], [2, -3, 1]]), [1, 0, 1], np.array([], np.int64),
]  # fmt: skip


def as_index(index):
    """Arrays in an index as tensors."""
    if isinstance(index, tuple):
        return tuple(as_index(e) for e in index)
    return lz.tensor(index) if isinstance(index, np.ndarray) else index


def combinations(entries, length):
    for index in itertools.product(entries, repeat=length):
        if sum(e is ... for e in index) <= 1 and sum(e is not None and e is not ... for e in index) <= len(SHAPE):
            yield index


@pytest.mark.parametrize("length", [1, 2])
def test_basic_indices_read_views(length):
    x = lz.tensor(BASE)
    for index in combinations(BASIC, length):
        np.testing.assert_array_equal(x[index].numpy(), BASE[index], err_msg=str(index))


def test_three_basic_indices():
    x = lz.tensor(BASE)
    entries = [-2, slice(None, None, -2), slice(1, 3), None, ...]
    for index in combinations(entries, 3):
        np.testing.assert_array_equal(x[index].numpy(), BASE[index], err_msg=str(index))


@pytest.mark.parametrize("index", ADVANCED, ids=str)
def test_one_index_tensor_among_slices(index):
    x = lz.tensor(BASE)
    for place in range(3):
        for other in (slice(None), slice(None, None, -1), slice(1, 3)):
            full = [other] * 3
            full[place] = index
            got = x[as_index(tuple(full))].numpy()
            np.testing.assert_array_equal(got, BASE[tuple(full)], err_msg=f"{place} {other}")


def test_several_index_tensors_follow_pytorch():
    torch = pytest.importorskip("torch")
    x, t = lz.tensor(BASE), torch.tensor(BASE)
    a, b, c = np.array([0, 2, 1]), np.array([[1], [0]]), np.array([0, -1, 2])
    indices = [
        (a, c), (a, b), (a, slice(None), c), (slice(None), a, c), (slice(1, 3), b, c), (a, b, c), (a, None, c), (0, a, c),
        (a, 1, c), (a, slice(None), 1), (1, slice(None), a), (None, a, slice(None), c), (..., a, c), (a, ..., c),
        (b, slice(0, 2), b),
    ]  # fmt: skip
    for index in indices:
        theirs = t[tuple(torch.tensor(e) if isinstance(e, np.ndarray) else e for e in index)]
        np.testing.assert_array_equal(x[as_index(index)].numpy(), theirs.numpy(), err_msg=str(index))


def test_an_index_tensor_of_no_dimensions_acts_like_an_int():
    torch = pytest.importorskip("torch")
    x, t = lz.tensor(BASE), torch.tensor(BASE)
    k, a = np.array(-1), np.array([0, 2])
    for index in [(k,), (k, k), (slice(None), k), (k, slice(None), a), (a, k), (a, k, a), (k, a, k)]:
        theirs = t[tuple(torch.tensor(e) if isinstance(e, np.ndarray) else e for e in index)]
        np.testing.assert_array_equal(x[as_index(index)].numpy(), theirs.numpy(), err_msg=str(index))
        mine, theirs = lz.tensor(BASE), torch.tensor(BASE)
        value = rng.standard_normal(tuple(mine[as_index(index)].shape)).astype(np.float32)
        mine[as_index(index)] = value
        theirs[tuple(torch.tensor(e) if isinstance(e, np.ndarray) else e for e in index)] = torch.tensor(value)
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=str(index))


def test_computed_indices_wrap_too():
    x = lz.tensor(BASE)
    i = lz.arange(3) - 2
    np.testing.assert_array_equal(x[i].numpy(), BASE[np.arange(3) - 2])
    np.testing.assert_array_equal(x[:, i, i].numpy(), BASE[:, np.arange(3) - 2, np.arange(3) - 2])


def test_masks():
    x = lz.tensor(BASE)
    over_one, over_two, over_all = BASE[:, 0, 0] > 0, BASE[..., 0] > 0, BASE > 0
    for index in [
        over_one, over_two, over_all, (over_one,), (slice(None), BASE[0, :, 0] > 0), (over_two, slice(0, 2)),
        (over_two, np.array(1)), (slice(None), BASE[0] > 0), np.zeros(4, bool), (..., BASE[0, 0] > 0), (over_one, 1),
        (BASE[:, 0, 0] > 9, slice(None), slice(None, None, -1)), [True, False, True, False], True, False,
    ]:  # fmt: skip
        np.testing.assert_array_equal(x[as_index(index)].numpy(), BASE[index], err_msg=str(index))


WRITES = [
    0, -1, slice(1, 3), slice(None, None, -2), (slice(None), 1), (..., -1), (None, 1), (slice(None), None, slice(1, 3)), ...,
    np.array([0, 2]), (slice(None), np.array([-1, 0])), (np.array([0, 2, 1]), np.array([1, 1, 0])),
    (slice(1, 3), np.array([[0], [3]]), np.array([0, 2])), (np.array([3, 0]), slice(None), np.array([0, 1])),
    (slice(None, None, -1), slice(1, 4), np.array([2, 0])), BASE > 0, BASE[..., 0] > 0, (slice(None), BASE[0] > 0),
    BASE[:, 0, 0] > 0, (BASE[:, 0, 0] > 0, 2),
]  # fmt: skip


@pytest.mark.parametrize("index", WRITES, ids=lambda i: str(i)[:40])
def test_writes_with_a_number_an_array_and_a_broadcast_array(index):
    part = BASE[index].shape
    values = [7, 2.5, rng.standard_normal(part).astype(np.float32), rng.standard_normal((1, *part)).astype(np.float32)]
    if part:
        values.append(rng.standard_normal(part[-1:]).astype(np.float32))
    for value in values:
        expected = BASE.copy()
        if index is ... or not isinstance(value, np.ndarray) or value.ndim <= len(part):
            expected[index] = value
        else:
            expected[index] = value[0]
        x = lz.tensor(BASE)
        x[as_index(index)] = lz.tensor(value) if isinstance(value, np.ndarray) else value
        np.testing.assert_array_equal(x.numpy(), expected)


def test_writes_through_views_of_views_reach_the_base():
    x, expected = lz.tensor(BASE), BASE.copy()
    x[1][2] = 5.0
    expected[1][2] = 5.0
    x[:, 1:][0, ::-1][1] = lz.tensor([1.0, 2.0, 3.0])
    expected[:, 1:][0, ::-1][1] = [1, 2, 3]
    x.T[0][lz.tensor([0, 2])] = -1.0
    expected.T[0][np.array([0, 2])] = -1
    x.reshape(-1)[::7] = 9.0
    expected.reshape(-1)[::7] = 9
    part = x[2:4].permute(1, 0, 2)
    part[part > 1] = 0.0
    window = expected[2:4].transpose(1, 0, 2)
    window[window > 1] = 0
    x[0].fill_(3.0)
    expected[0] = 3
    x[3, 1:].zero_()
    expected[3, 1:] = 0
    x[1, :, 0] += 1
    expected[1, :, 0] += 1
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_view_sees_what_is_written_to_its_base_and_to_its_sibling():
    x = lz.zeros(4, 3)
    row, column = x[1], x[:, 0]
    x[:] = 2.0
    assert row.tolist() == [2, 2, 2]
    column[1] = 5.0
    assert row.tolist() == [5, 2, 2]
    row[2] = 7.0
    assert x[1].tolist() == [5, 2, 7]
    lz.realize()
    row[0] = 0.0
    assert column.tolist() == [2, 0, 2, 2]


def test_gradients_of_reading_and_writing():
    torch = pytest.importorskip("torch")
    index = (slice(None), np.array([0, 3, 0]), np.array([2, 1, 2]))
    weight = rng.standard_normal(BASE[index].shape).astype(np.float32)

    def run(module, x, v, w, i):
        y = x * 2
        y[1:3, 0] = v
        y[i] = y[i] * w
        return (y * y).sum() + (x[i] * w).sum() + x[x > 0].sum()

    x, v = lz.tensor(BASE, requires_grad=True), lz.tensor([1.0, 2.0, 3.0], requires_grad=True)
    run(lz, x, v, lz.tensor(weight), as_index(index)).backward()
    tx, tv = torch.tensor(BASE, requires_grad=True), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    # of several writes to one element the last stays, and PyTorch's gradient serves them all, as ours does
    run(
        torch, tx, tv, torch.tensor(weight), tuple(torch.tensor(e) if isinstance(e, np.ndarray) else e for e in index)
    ).backward()
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(v.grad.numpy(), tv.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (4, "index 4 is out of range for dimension 0 of extent 4"),
        ((0, -6), "index -6 is out of range for dimension 1 of extent 5"),
        ((0, 0, 0, 0), "too many indices: 4 for a tensor of 3 dimensions"),
        ((..., ...), "one Ellipsis"),
        (np.array([0, 4]), "index 4 is out of range"),
        (np.array([0.5]), "must be integers or bools, not float"),
        (np.zeros(3, bool), "does not fit a tensor of shape"),
        ("a", "not str"),
    ],
)
def test_wrong_indices_say_what_is_wrong(index, words):
    with pytest.raises(IndexError, match=words):
        lz.tensor(BASE)[as_index(index)]


entry = st.one_of(
    st.none(), st.just(...), st.integers(-3, 2), st.slices(4),
    st.lists(st.integers(-3, 2), min_size=2, max_size=2).map(np.array),
)  # fmt: skip


@given(st.lists(entry, min_size=1, max_size=3).map(tuple), st.booleans())
def test_drawn_indices(index, write):
    torch = pytest.importorskip("torch")
    if sum(e is ... for e in index) > 1 or any(isinstance(e, slice) and (e.step or 1) < 0 for e in index):
        return  # (PyTorch has no negative steps)
    theirs = tuple(torch.tensor(e) if isinstance(e, np.ndarray) else e for e in index)
    t = torch.tensor(BASE)
    expected = t[theirs]
    x = lz.tensor(BASE)
    if not write:
        np.testing.assert_array_equal(x[as_index(index)].numpy(), expected.numpy())
        return
    value = torch.arange(expected.numel(), dtype=torch.float32).reshape(expected.shape)
    if any(isinstance(e, np.ndarray) and len(set(e % 3)) < 2 for e in index):
        value = torch.tensor(1.5)
    t[theirs] = value
    x[as_index(index)] = lz.tensor(value.numpy())
    np.testing.assert_array_equal(x.numpy(), t.numpy())


# -- indices that are still to be computed ------------------------------------------------------------------------------


def computed(*values):
    return lz.tensor(values) * 1


USES = {
    "x[i]": (lambda x, i: x[i], 5, -6),
    "x[i, :2]": (lambda x, i: x[i, :2], 5, -6),
    "x[i, j]": (lambda x, i: x[i, lz.zeros_like(i)], 5, -6),
    "x[:, i]": (lambda x, i: x[:, i], 4, -5),
    "take": (lambda x, i: x.take(i), 20, -21),
    "index_select": (lambda x, i: x.index_select(0, i), 5, -1),
    "gather": (lambda x, i: x.gather(1, i.reshape(-1, 1)), 4, -1),
    "scatter_add": (lambda x, i: x.scatter_add(1, i.reshape(-1, 1), lz.ones(2, 1)), 4, -1),
    "scatter": (lambda x, i: x.scatter(1, i.reshape(-1, 1), lz.ones(2, 1)), 4, -1),
    "index_add": (lambda x, i: x.index_add(0, i, lz.ones(2, 4)), 5, -6),
    "index_copy": (lambda x, i: x.index_copy(0, i, lz.ones(2, 4)), 5, -6),
    "index_put": (lambda x, i: x.index_put((i,), lz.ones(2, 4), accumulate=True), 5, -6),
    "embedding": (lambda x, i: F.embedding(i, x), 5, -1),
    "one_hot": (lambda x, i: F.one_hot(i, 5), 5, -1),
    "lz.one_hot": (lambda x, i: lz.one_hot(i, 5), 5, -1),
}


@pytest.mark.parametrize("kind", ["there", "computed"])
@pytest.mark.parametrize("name", USES)
def test_an_index_out_of_range_is_refused_wherever_it_comes_from(name, kind):
    use, above, below = USES[name]
    x = lz.rand(5, 4)
    make = computed if kind == "computed" else lambda *v: lz.tensor(v)
    use(x, make(0, above - 1)).numpy()
    use(x, make(0, below + 1)).numpy()
    for wrong in (above, below, 10**6):
        with pytest.raises(IndexError, match=f"index {wrong} is "):
            use(x, make(0, wrong)).numpy()
    assert x.sum().item() > 0


def test_the_error_of_a_computed_index_names_the_line():
    x, i = lz.rand(5), computed(7)
    y = x[i]  # the line
    with pytest.raises(
        IndexError, match=r"index 7 is out of range for dimension 0 of extent 5, recorded at .*test_indexing\.py"
    ):
        y.numpy()


def test_a_number_that_is_computed_is_an_index():
    x = lz.arange(5) * 1.0
    assert x[computed(3).sum()].item() == 3
    with pytest.raises(IndexError, match="index 5 is"):
        x[computed(2, 3).sum()].item()


def test_a_write_at_a_computed_index_out_of_range():
    x = lz.zeros(5)
    x[computed(1, 9)] = 1.0
    with pytest.raises(IndexError, match="index 9 is"):
        x.numpy()
    assert x.tolist() == [0, 1, 0, 0, 0]


def test_a_captured_step_checks_the_indices_of_each_call():
    table = lz.rand(5, 3)
    look_up = lz.jit(lambda i: F.embedding(i, table) * 2)
    for _ in range(3):
        look_up(lz.tensor([0, 4])).numpy()
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"index {wrong} is not a row of a table of 5"):
            look_up(lz.tensor([0, wrong])).numpy()
    np.testing.assert_array_equal(look_up(lz.tensor([1, 1])).numpy(), 2 * table.numpy()[[1, 1]])


def test_a_captured_training_step_with_a_wrong_index_keeps_its_parameters():
    table = lz.nn.Embedding(5, 3)
    optimizer = lz.optim.SGD(table.parameters(), lr=0.1)

    @lz.jit
    def step(i):
        optimizer.zero_grad()
        table(i).sum().backward()
        optimizer.step()

    for _ in range(3):
        step(lz.tensor([0, 4]))
    before = table.weight.numpy().copy()
    with pytest.raises(IndexError, match="index 7 is not a row"):
        step(lz.tensor([0, 7]))
    assert np.isfinite(table.weight.numpy()).all()
    np.testing.assert_allclose(table.weight.numpy()[1:4], before[1:4])
    step(lz.tensor([1, 2]))
    assert (table.weight.numpy()[1:3] < before[1:3]).all()


@pytest.mark.parametrize("index", [
    lambda: lz.arange(5), lambda: lz.zeros(2, 3, dtype=lz.int64), lambda: lz.randint(0, 5, (4,)), lambda: lz.rand(5, 2).argmax(0),
    lambda: lz.rand(5).argsort(), lambda: lz.arange(5).reshape(5, 1)[1:],
])  # fmt: skip
def test_indices_that_are_in_range_by_the_way_they_are_made_are_not_looked_at(index):
    from lezero.runtime.recording import STATE

    x = lz.rand(5, 2)
    x[index()]
    assert not STATE.recording.checks
    x[index() * 1]
    assert len(STATE.recording.checks) == 1
    lz.realize()


def test_an_empty_computed_index():
    i = lz.zeros(0, dtype=lz.int64) * 1
    assert lz.rand(5, 2)[i].numpy().shape == (0, 2)


@pytest.mark.parametrize("captured", [False, True])
def test_the_error_of_a_computed_index_says_that_parameters_were_updated(captured):
    table = nn.Parameter(lz.ones(5, 2))
    opt = optim.SGD([table], lr=1.0)

    def step(i):
        opt.zero_grad()
        table[i].sum().backward()
        opt.step()

    call = lz.jit(step) if captured else step
    for _ in range(3):
        call(computed(1, 2))
    before = table.numpy().copy()
    with pytest.raises(IndexError, match="parameters and other tensors that the run wrote to have their new values"):
        call(computed(1, 7))
    assert not np.array_equal(table.numpy(), before)


# -- writes at varying places -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i, v: x.__setitem__(i, v),
        lambda x, i, v: x.__setitem__(slice(i, i + 3), v),
        lambda x, i, v: x.__setitem__((slice(None), i % 6), v.sum()),
        lambda x, i, v: x.__setitem__((i, slice(i % 3, None, 2)), 1.5),
        lambda x, i, v: x.__setitem__((None, slice(i + 2, i, -1)), v),
        lambda x, i, v: x.__setitem__((-i, ...), v),
    ],
)
def test_writes_at_varying_places_share_their_plans(write):
    x, expected, v = lz.zeros(60, 6), np.zeros((60, 6), np.float32), np.arange(6, dtype=np.float32)
    vt = lz.tensor(v)
    x.realize()

    def do(k):
        write(x, k, vt)
        write(expected, k, v)
        np.testing.assert_array_equal(x.numpy(), expected)

    for k in range(2, 18):
        do(k)
    before = stats()["plans_built"]
    for k in range(18, 50):
        do(k)
    assert stats()["plans_built"] == before


def test_many_writes_in_one_recording():
    for _ in range(2):
        x, expected = lz.zeros(100, 2), np.zeros((100, 2), np.float32)
        for k in range(0, 100, 2):
            x[k] = float(k)
            expected[k] = k
        np.testing.assert_array_equal(x.numpy(), expected)


def test_captured_writes_are_at_the_place_of_the_argument():
    @lz.jit
    def write(x, i):
        y = x * 1
        y[i : i + 2] = 7.0
        return y

    for k in (2, 3, 2, 3, 2, 3, 4, 4, 4):
        expected = np.zeros(9, np.float32)
        expected[k : k + 2] = 7
        np.testing.assert_array_equal(write(lz.zeros(9), k).numpy(), expected)


def test_gradients_of_writes_at_varying_places():
    for k in range(8):
        x, v = lz.ones(9, requires_grad=True), lz.ones(2, requires_grad=True)
        y = x * 2
        y[k : k + 2] = v
        (y * lz.arange(9)).sum().backward()
        expected = 2 * np.arange(9.0)
        expected[k : k + 2] = 0
        np.testing.assert_array_equal(x.grad.numpy(), expected)
        np.testing.assert_array_equal(v.grad.numpy(), [k, k + 1])


@pytest.mark.skipif(registry.get_backend() != "cpu", reason="about generated code")
def test_a_row_that_is_written_is_read_where_it_is():
    """Read at places that depend on the row, though masked, it took a hundred times as long."""
    x, v = lz.zeros(20, 256), lz.ones(256)
    lz.realize()
    x[5] = v
    x.realize()
    ((step,),) = run.statistics.last[0].program.schedule.steps
    assert "b1[i1 if" in step.sources[0].key


def joined(*parts):
    return lz.cat(parts) if isinstance(parts[0], lz.Tensor) else np.concatenate(parts)


MASKED = {
    "after": lambda x, z, i: joined(x, z[i]),
    "between": lambda x, z, i: joined(x, z[i], x),
    "sorted": lambda x, z, i: joined(x, lz.sort(z)[0] if isinstance(z, lz.Tensor) else np.sort(z)),
    "padded": lambda x, z, i: F.pad(z[i], (40, 5)) if isinstance(z, lz.Tensor) else np.pad(z[i], (40, 5)),
    "computed": lambda x, z, i: joined(x, abs(z[i] * 2) + 1),
    "gathered twice": lambda x, z, i: joined(x, z[i][i]),
    "nested": lambda x, z, i: joined(x, joined(z[i], z, z[i])),
    "with and without": lambda x, z, i: joined(z[i], x) * joined(x, z[i]),
    "a row of columns": lambda x, z, i: joined(x, z.reshape(2, 2)[:, i % 2].reshape(-1)[i]),
    "before another mask": lambda x, z, i: (
        joined(x, z[:2][i % 2].reshape(2, 2)[:, i[1:3] % 2].reshape(-1)[i], x)
        + joined(x, z.reshape(2, 2)[:, i[1:3] % 2].reshape(-1)[i], z[i], x[:36])
    ),
    "picked": lambda x, z, i: joined(x, z.gather(0, i) if isinstance(z, lz.Tensor) else np.take_along_axis(z, i, 0)),
}


@pytest.mark.parametrize("name", MASKED)
def test_an_index_is_only_read_where_its_gather_is(name):
    """The interpreter refuses loads outside of an array that are not masked."""
    x, z = rng.standard_normal(40).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    arguments = x, z, np.array([3, 0, 2, 1])
    with interpreted_backend.use():
        got = MASKED[name](*map(lz.tensor, arguments)).numpy()
    np.testing.assert_array_equal(got, MASKED[name](*arguments))


GUARDED = """
import ctypes, mmap
import numpy as np
import lezero as lz
from lezero.nn import functional as F

memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
count = mmap.PAGESIZE // 8
index = np.frombuffer(memory, np.int64, count, mmap.PAGESIZE)
index[:] = np.arange(count)[::-1]
for page in (0, 2):
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
i = lz.from_dlpack(index, copy=False)
z, x = np.arange(count, dtype=np.float32), np.zeros(400, np.float32)
assert np.shares_memory(i.numpy(), index)
for got in lz.cat([lz.tensor(x), lz.tensor(z)[i], lz.tensor(x)]), F.pad(lz.tensor(z)[i], (400, 400)):
    np.testing.assert_array_equal(got.numpy(), np.concatenate([x, z[::-1], x]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="makes pages that cannot be read")
def test_generated_code_only_reads_an_index_where_its_gather_is():
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
