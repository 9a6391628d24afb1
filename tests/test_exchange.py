"""Elements given to other libraries and taken from them: DLPack, arrays, buffers; copies and pickles."""

import copy
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.graph.dtype import ALL

A = np.arange(6, dtype=np.float32).reshape(2, 3)
SHAPES = [(2, 3), (), (0, 3), (5,)]
DTYPES = [d for d in ALL if d is not lz.bfloat16]
CPU = (1, 0)


def values(dtype, shape):
    return (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype.numpy)


class Old:
    """Another library of before DLPack 1.0, or one that asks for something in particular."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


# -- DLPack out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_numpy_takes_tensors_without_a_copy_and_cannot_write(dtype, shape):
    x = lz.tensor(values(dtype, shape))
    seen = np.from_dlpack(x)
    assert seen.dtype == dtype.numpy and seen.shape == shape and not seen.flags.writeable
    assert seen.size == 0 or np.shares_memory(seen, x.numpy())
    np.testing.assert_array_equal(seen, values(dtype, shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_pytorch_takes_tensors_and_gives_them_without_a_copy(dtype, shape):
    torch = pytest.importorskip("torch")
    x = lz.tensor(values(dtype, shape))
    theirs = torch.from_dlpack(x)
    assert str(theirs.dtype) == f"torch.{dtype.name}" and theirs.shape == shape
    assert theirs.numel() == 0 or theirs.data_ptr() == x.numpy().ctypes.data
    back = lz.from_dlpack(theirs)
    assert back.dtype is dtype and back.shape == shape
    assert theirs.numel() == 0 or back.numpy().ctypes.data == theirs.data_ptr()
    np.testing.assert_array_equal(back.numpy().astype(np.complex128), values(dtype, shape).astype(np.complex128))


def test_elements_that_do_not_lie_in_row_major_order_are_given_as_they_lie():
    y = nn.Conv2d(8, 16, 3)(lz.randn(2, 8, 16, 16)).relu()
    x = nn.Conv2d(16, 16, 3)(y).detach()
    lz.realize(y, x)
    array = x.numpy()
    assert not array.flags.c_contiguous  # layouts are the schedule's: channels are last
    seen = np.from_dlpack(x)
    assert np.shares_memory(seen, array) and seen.strides == array.strides
    np.testing.assert_array_equal(seen, array)


def test_what_the_other_side_asks_for():
    x = lz.tensor(A)
    with pytest.raises(BufferError, match="cannot say that memory is read-only"):
        x.__dlpack__(copy=False)
    for asked in ({"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError, match="in the CPU's memory"):
            x.__dlpack__(max_version=(1, 0), **asked)
    assert x.__dlpack_device__() == CPU
    seen = np.from_dlpack(x, device="cpu", copy=True)
    assert seen.flags.writeable and not np.shares_memory(seen, x.numpy())
    assert np.shares_memory(np.from_dlpack(x, copy=False), x.numpy())
    old = np.from_dlpack(Old(x))  # cannot be told that memory is read-only: a copy
    np.testing.assert_array_equal(old, A)
    assert not np.shares_memory(old, x.numpy())


def test_a_tensor_that_requires_a_gradient_is_refused():
    w = lz.tensor(A, requires_grad=True)
    for x in (w, w * 2):
        with pytest.raises(BufferError, match=r"requires a gradient.*x\.detach\(\)"):
            np.from_dlpack(x)
    assert np.shares_memory(np.from_dlpack(w.detach()), w.numpy())


def test_the_values_of_a_detached_tensor_are_read_where_they_are():
    w = lz.tensor(A, requires_grad=True)
    kept = w.detach()
    assert np.shares_memory(kept.numpy(), w.numpy()) and w.detach().detach()[0, 1].item() == 1
    with lz.no_grad():
        w += 1
    np.testing.assert_array_equal(kept.numpy(), A + 1)
    kept.mul_(2)
    np.testing.assert_array_equal(w.numpy(), (A + 1) * 2)


# -- DLPack in --------------------------------------------------------------------------------------------------------


def test_arrays_are_taken_without_a_copy_and_never_written_to():
    array = A.copy()
    for given in (array, Old(array)):
        x = lz.from_dlpack(given)
        assert np.shares_memory(x.numpy(), array)
        for _ in range(3):
            x.add_(1)  # gives the handle a new value; the foreign memory stays
            lz.realize(x)
        np.testing.assert_array_equal(array, A)
        np.testing.assert_allclose(x.numpy(), A + 3, rtol=1e-6)
    assert not np.shares_memory(lz.from_dlpack(array, copy=True).numpy(), array)


def test_arrays_that_cannot_be_written_to_are_taken():
    array = A.copy()
    array.flags.writeable = False
    assert np.shares_memory(lz.from_dlpack(array).numpy(), array)


def test_elements_in_another_order_are_copied_unless_that_is_forbidden():
    torch = pytest.importorskip("torch")
    for given in (A.T, torch.tensor(A).T, A[:, ::2], torch.tensor(A).bfloat16().T):
        np.testing.assert_array_equal(lz.from_dlpack(given).float().numpy(), np.asarray(torch.as_tensor(given).float()))
        with pytest.raises(BufferError, match="row-major"):
            lz.from_dlpack(given, copy=False)


def test_foreign_memory_lives_as_long_as_its_tensor():
    class Counted(np.ndarray):
        pass

    array = A.copy().view(Counted)
    before = sys.getrefcount(array)
    x = lz.from_dlpack(array)
    assert sys.getrefcount(array) > before
    del x
    assert sys.getrefcount(array) == before


def test_what_cannot_be_taken():
    torch = pytest.importorskip("torch")

    class Elsewhere(Old):
        def __dlpack__(self, **options):
            raise BufferError("not in the CPU's memory")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(TypeError, match="__dlpack__"):
        lz.from_dlpack([1, 2])
    with pytest.raises(ValueError, match="no device 'cuda'"):
        lz.from_dlpack(A, device="cuda")
    with pytest.raises(BufferError, match=r"DLPack's device \(2, 0\)"):
        lz.from_dlpack(Elsewhere(A))
    with pytest.raises((BufferError, TypeError)):
        lz.from_dlpack(torch.zeros(2).to(torch.float8_e4m3fn))
    with pytest.raises(BufferError, match="gradient"):
        lz.from_dlpack(torch.zeros(2, requires_grad=True))


# -- arrays and buffers -----------------------------------------------------------------------------------------------


def test_arrays_of_tensors():
    x = lz.tensor(A)
    assert np.shares_memory(np.asarray(x), x.numpy()) and np.shares_memory(np.asarray(x, copy=False), x.numpy())
    copied = np.array(x)
    assert copied.flags.writeable and not np.shares_memory(copied, x.numpy())
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, dtype=np.float64, copy=False)
    assert np.asarray(lz.tensor(A, dtype=lz.bfloat16)).dtype == ml_dtypes.bfloat16


def test_buffers_of_tensors():
    x = lz.tensor(A)
    view = x.__buffer__(0)
    assert view.readonly and view.format == "f" and view.shape == (2, 3) and view.tolist() == A.tolist()
    assert np.shares_memory(np.asarray(view), x.numpy()) and bytes(x.numpy().data) == A.tobytes()
    with pytest.raises(BufferError, match="read-only"):
        x.__buffer__(1)
    with pytest.raises(BufferError, match="bfloat16"):
        x.bfloat16().__buffer__(0)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have buffers from Python 3.12 on")
def test_a_tensor_is_a_buffer():
    assert memoryview(lz.tensor(A)).tolist() == A.tolist()


def test_a_buffer_that_was_given_out_is_not_written_into():
    w = lz.tensor(A, requires_grad=True)
    held = w.__buffer__(0)
    opt = lz.optim.SGD([w], lr=0.1)
    for _ in range(2):
        w.grad = None
        (w * w).sum().backward()
        opt.step()
    assert held.tolist() == A.tolist() and w.tolist() != A.tolist()


# -- copies and pickles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_every_protocol_of_pickle(dtype, protocol):
    for shape in SHAPES:
        x = lz.tensor(values(dtype, shape))
        y = pickle.loads(pickle.dumps(x, protocol))
        assert y.dtype is dtype and y.shape == shape and not y.requires_grad
        np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_pickles_out_of_band_do_not_copy_the_values():
    x, buffers = lz.tensor(A), []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert np.shares_memory(np.asarray(buffers[0].raw()), x.numpy()) and len(data) < 400
    y = pickle.loads(data, buffers=buffers)
    y.add_(1)
    lz.realize(y)
    np.testing.assert_array_equal(x.numpy(), A)
    np.testing.assert_array_equal(y.numpy(), A + 1)


def given_away(x):
    return copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), pickle.loads(pickle.dumps(x, 0))


def test_copies_are_of_the_same_class_with_what_was_set_on_it():
    for made in (
        nn.Parameter(lz.tensor(A)),
        nn.Buffer(lz.tensor(A), persistent=False),
        lz.tensor(A, requires_grad=True),
    ):
        made.note = ["a"]
        for other in given_away(made):
            assert type(other) is type(made) and other.requires_grad == made.requires_grad and other.is_leaf
            assert other.note == ["a"] and getattr(other, "persistent", None) == getattr(made, "persistent", None)
            np.testing.assert_array_equal(other.numpy(), A)
    assert copy.copy(made).note is made.note and copy.deepcopy(made).note is not made.note


def test_what_is_shared_and_what_is_not():
    p = nn.Parameter(lz.tensor(A))
    p.sum().backward()
    shared, deep, pickled, _ = given_away(p)
    assert shared.grad is None and pickled.grad is None
    assert deep.grad is not p.grad and deep.grad.tolist() == p.grad.tolist()
    with lz.no_grad():
        shared += 1
    np.testing.assert_array_equal(p.numpy(), A + 1)
    np.testing.assert_array_equal(deep.numpy(), A)


def test_one_tensor_in_two_places_is_one_in_the_copy():
    x = lz.tensor(A)
    a, b = copy.deepcopy([x, x])
    assert a is b and a is not x


def test_a_view_becomes_a_tensor_by_itself():
    x = lz.tensor(A)
    for other in (copy.deepcopy(x[0]), pickle.loads(pickle.dumps(x.T[0]))):
        other.zero_()
        np.testing.assert_array_equal(x.numpy(), A)
    near = copy.copy(x[0])
    near.zero_()
    assert x[0].tolist() == [0, 0, 0]


def test_a_computed_tensor_is_no_leaf_to_be_copied_deeply():
    with pytest.raises(RuntimeError, match="only leaves"):
        copy.deepcopy(lz.tensor(A, requires_grad=True) * 2)


def test_a_numpy_that_does_not_know_dlpack_1_0_gives_copies(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(sys.modules["lezero.tensor.exchange"], "SAYS_READ_ONLY", False)
    x = lz.tensor(A)
    theirs = torch.from_dlpack(x)
    theirs.zero_()
    np.testing.assert_array_equal(x.numpy(), A)
