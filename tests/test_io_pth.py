"""PyTorch's files: both formats come back as PyTorch reads them, and nothing in them is ever run."""

import contextlib
import io as streams
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lezero import io, nn

torch = pytest.importorskip("torch")

DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()
FORMATS = {"zip": True, "legacy": False}


@pytest.fixture(params=FORMATS)
def save(request, tmp_path):
    """A function that saves a value in one of the formats and gives the path."""

    def write(value):
        path = tmp_path / "state.pth"
        torch.save(value, path, _use_new_zipfile_serialization=FORMATS[request.param])
        return path

    return write


def assert_same(ours, theirs):
    ours = ours.numpy()
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert ours.shape == tuple(theirs.shape)
    assert ours.tobytes() == theirs.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(dtype, save):
    x = torch.arange(-6, 6).reshape(3, 4).to(getattr(torch, dtype))
    assert_same(io.load_pth(save({"x": x}))["x"], x)


def test_what_pytorch_conjugates_and_negates_when_it_is_read_comes_back_so(save):
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    values = {
        "conjugate": z.conj(),
        "as it is": z,
        "negative": torch.arange(3.0)._neg_view(),
        "both": z.T.conj()._neg_view(),
    }
    assert all(t.is_conj() or t.is_neg() for name, t in values.items() if name != "as it is")
    back = io.load_pth(save(values))
    for name, value in values.items():
        assert back[name].tolist() == value.tolist(), name


def test_views_parameters_and_empty_tensors_come_back(save):
    x = torch.randn(4, 6)
    tensors = {
        "transposed": x.T,
        "every other": x[1:, ::2],
        "repeated": x[:, :1].expand(4, 3),
        "one": x.sum(),
        "none": x[:0],
        "parameter": torch.nn.Parameter(x),
    }
    back = io.load_pth(save(tensors))
    for name, tensor in tensors.items():
        assert_same(back[name], tensor)


def test_what_lies_around_the_tensors_comes_back(save):
    value = {
        "epoch": 3,
        "best": 0.5,
        "names": ["a", ("b", None, True)],
        "shape": torch.Size([2, 3]),
        7: OrderedDict(x=1),
    }
    back = io.load_pth(save(value))
    assert back == value
    assert type(back[7]) is dict


def test_a_networks_state_and_its_optimizers_come_back(save):
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 1, 5, 5)).sum().backward()
    optimizer.step()
    back = io.load_pth(save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}))
    ours = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    ours.load_state_dict(back["model"])
    for name, tensor in ours.state_dict().items():
        assert_same(tensor, net.state_dict()[name])
    assert_same(back["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_a_pickled_module_is_refused_by_name(save):
    with pytest.raises(io.PthError, match=r"torch\.nn\.modules\.linear\.Linear.*state_dict"):
        io.load_pth(save(torch.nn.Linear(2, 2)))


class Executes:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return open, (str(self.target), "w")


def test_code_in_a_file_is_not_run(save, tmp_path):
    path = save({"x": Executes(tmp_path / "harm")})
    with pytest.raises(io.PthError, match="open"):
        io.load_pth(path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("keep", [0, 3, 40, 200, -400, -20, -1])
def test_a_truncated_file_is_refused(keep, save):
    path = save({"x": torch.randn(50), "y": torch.randn(3)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(io.PthError):
        io.load_pth(path)


def _rebuilt(count, offset, shape, strides, *metadata):
    """A pickle of a tensor as torch writes it, with claims of one's own."""

    class Storage:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return ("storage", torch.FloatStorage, "0", "cpu", count) if isinstance(obj, Storage) else None

    class Tensor:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, shape, strides, False, OrderedDict(), *metadata)

    buffer = streams.BytesIO()
    Pickler(buffer, 2).dump(Tensor())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ((4, 0, (2, 2), (2, 1)), None),
        ((4, 1, (2, 2), (2, 1)), "beyond its storage"),
        ((4, 0, (2, 2), (3, 1)), "beyond its storage"),
        ((4, -1, (2,), (1,)), "impossible"),
        ((4, 0, (2,), (-1,)), "impossible"),
        ((4, 0, (2, 2), (1,)), "impossible"),
        ((5, 0, (2,), (1,)), "elements of float32"),
        ((4, 0, (2, 2), (2, 1), {}), None),
        ((4, 0, (2, 2), (2, 1), {"rotated": True}), "metadata .*rotated"),
        ((4, 0, (2, 2), (2, 1), 5), "metadata 5"),
    ],
)
def test_tensors_that_lie_are_refused(claim, message, tmp_path):
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", _rebuilt(*claim))
        archive.writestr("x/data/0", np.arange(4, dtype=np.float32).tobytes())
    if message is None:
        assert io.load_pth(path).numpy().tolist() == [[0, 1], [2, 3]]
        return
    with pytest.raises(io.PthError, match=message):
        io.load_pth(path)


def test_missing_and_other_files_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        io.load_pth(tmp_path / "none.pth")
    other = tmp_path / "other.pth"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme", "no tensors")
    with pytest.raises(io.PthError, match=r"no data\.pkl"):
        io.load_pth(other)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_never_do_more_than_be_refused(data, tmp_path):
    path = tmp_path / "x.pth"
    torch.save({"x": torch.arange(5.0)}, path, _use_new_zipfile_serialization=data.draw(st.booleans()))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 700))  # within any file: the length differs, it names addresses
        content[at % len(content)] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(io.PthError):
        io.load_pth(path)
