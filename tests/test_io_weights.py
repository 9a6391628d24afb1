"""Weights by name in every format: PyTorch, NumPy and safetensors read what is written, and we what they write."""

import json
import struct
import zipfile

import numpy as np
import pytest

import lezero as lz
from lezero import io
from lezero.graph import dtype as dt
from test_io import random_array

torch = pytest.importorskip("torch")
reference = pytest.importorskip("safetensors.torch")

SUFFIXES = [".safetensors", ".pth", ".pt", ".bin", ".lzm", ".npz"]


def of_torch(array):
    """The same bits as one of PyTorch's tensors."""
    dtype = getattr(torch, dt.as_dtype(array.dtype).name)
    return (
        torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()).view(dtype).reshape(array.shape)
    )


def bits(x):
    x = x.numpy() if isinstance(x, lz.Tensor) else x
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x).tobytes()
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# -- PyTorch's zip format -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_pytorch_reads_every_dtype_and_back(dtype, tmp_path):
    path = tmp_path / "x.pth"
    tensors = {"x": random_array(dtype, (3, 5)), "one": random_array(dtype, ()), "none": random_array(dtype, (0, 4))}
    io.save_pth({k: lz.tensor(a) for k, a in tensors.items()}, path)
    theirs = torch.load(path, weights_only=True)
    for name, array in tensors.items():
        assert theirs[name].dtype is getattr(torch, dtype.name) and tuple(theirs[name].shape) == array.shape
        assert bits(theirs[name]) == array.tobytes()
    torch.save(theirs, path)
    for back in (io.load_pth(path), torch.load(path, weights_only=True)):
        assert all(bits(back[name]) == array.tobytes() for name, array in tensors.items())
    assert torch.load(path, weights_only=True, mmap=True)["x"].shape == (3, 5)


def test_pytorch_reads_what_lies_around_the_tensors(tmp_path):
    path = tmp_path / "x.pth"
    value = {
        "epoch": 3, "best": 0.5, "big": 1 << 70, "less": -129, "names": ["a", ("b", None, True, False)], "empty": [[], (), {}],
        7: {"ü長": ""}, "float": np.float32(1.5),
    }  # fmt: skip
    io.save_pth(value, path)
    assert torch.load(path, weights_only=True) == value == io.load_pth(path)


def test_tied_tensors_stay_tied(tmp_path):
    path = tmp_path / "x.pth"
    weight = lz.tensor(np.ones((64, 64), np.float32))
    io.save_pth({"a": weight, "b": weight.detach(), "c": weight + 0}, path)
    assert path.stat().st_size < 2.2 * 64 * 64 * 4
    theirs = torch.load(path, weights_only=True)
    assert theirs["a"].data_ptr() == theirs["b"].data_ptr() != theirs["c"].data_ptr()
    back = io.load_pth(path)
    assert back["a"] is back["b"] and back["a"] is not back["c"]


def test_a_networks_state_goes_to_pytorch_with_its_optimizers(tmp_path):
    ours = lz.nn.Sequential(lz.nn.Conv2d(1, 4, 3), lz.nn.BatchNorm2d(4))
    optimizer = lz.optim.Adam(ours.parameters())
    ours(lz.randn(2, 1, 5, 5)).sum().backward()
    optimizer.step()
    io.save_pth({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.pth")
    saved = torch.load(tmp_path / "x.pth", weights_only=True)
    theirs = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    theirs.load_state_dict(saved["model"])
    for name, value in ours.state_dict().items():
        assert bits(theirs.state_dict()[name]) == bits(value)


def test_data_of_tensors_can_be_mapped(tmp_path):
    io.save_pth({"x": lz.tensor(np.full(100, 7.0, np.float32))}, tmp_path / "x.pth")
    raw = (tmp_path / "x.pth").read_bytes()
    assert raw.index(np.full(100, 7.0, np.float32).tobytes()) % 64 == 0
    with zipfile.ZipFile(tmp_path / "x.pth") as archive:
        assert archive.testzip() is None


def test_what_pytorch_would_not_read_is_refused(tmp_path):
    nest = []
    for _ in range(200):
        nest = [nest]
    for value, message in [
        ({"a": [object()]}, r"object at a\.0"),
        ({(1, 2): 3}, "tuple as a key"),
        (nest, "nested more"),
    ]:
        with pytest.raises(TypeError, match=f"save_pth: .*{message}"):
            io.save_pth(value, tmp_path / "x.pth")
    assert not (tmp_path / "x.pth").exists()


# -- NumPy's ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d is not dt.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "compressed"])
def test_numpy_reads_every_dtype_and_back(dtype, save, tmp_path):
    path = tmp_path / "x.npz"
    arrays = {"x": random_array(dtype, (3, 5)), "a.b": random_array(dtype, ()), "none": random_array(dtype, (0, 4))}
    io.save_npz({k: lz.tensor(a) for k, a in arrays.items()}, path)
    with np.load(path) as theirs:
        assert all(theirs[k].dtype == a.dtype and bits(theirs[k]) == bits(a) for k, a in arrays.items())
    save(path, **{**arrays, "turned": np.asfortranarray(arrays["x"])})
    back = io.load_npz(path)
    assert all(
        back[k].dtype is dtype and tuple(back[k].shape) == a.shape and bits(back[k]) == bits(a)
        for k, a in arrays.items()
    )
    assert bits(back["turned"]) == bits(arrays["x"])


def member(shape="(2,)", dtype="<f4", data=bytes(8), version=b"\x01\x00"):
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


NPZ = {
    "objects": (member(dtype="|O"), "'x.npy' has elements of object"),
    "text": (member(dtype="<U2"), "'x.npy' has elements of <U2"),
    "numbers of 80 bits": (member("(1,)", "<f16", bytes(16)), "'x.npy' has elements of float128"),
    "a size that is computed": (member("(1 << 40,)"), "'x.npy' has a header that is not understood"),
    "more than there is": (member(f"({1 << 40},)"), "does not fill the 8 bytes"),
    "less than there is": (member("(1,)"), "does not fill the 8 bytes"),
    "a negative extent": (member("(-2,)"), "impossible shape"),
    "an extent that is a truth": (member("(True, 2)"), "impossible shape"),
    "odd booleans": (member(dtype="|b1", data=b"\1\5"), "'x.npy' has booleans that are neither 0 nor 1"),
    "code": (member("__import__('os').system('touch harm')"), "header that is not understood"),
    "an open bracket": (member("((("), "header that is not understood"),
    "a deep nest": (member("(" * 4000 + ")" * 4000), "header that is not understood"),
    "a long header": (member("(2," + " " * 20_000 + ")"), "header of 20,\\d+ bytes"),
    "fields": (member(dtype="<f4, <f4"), "are no numbers"),
    "extents beyond 64 bits beside a 0": (member(f"(0, {1 << 62})", data=b""), "impossible shape"),
    "a version there is not": (member(version=b"\x09\x00"), "9, 0"),
    "no array": (b"hello", "is damaged"),
}


@pytest.mark.parametrize("what", NPZ)
def test_npz_files_that_lie_are_refused(what, tmp_path):
    content, message = NPZ[what]
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(io.NpzError, match=message):
        io.load_npz(tmp_path / "x.npz")


def test_an_npz_that_inflates_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(10_000_000))
    with pytest.raises(io.NpzError, match=r"claim to inflate to 80,000,\d+ bytes"):
        io.load_npz(tmp_path / "x.npz")


def test_bfloat16_has_no_place_in_an_npz(tmp_path):
    with pytest.raises(io.NpzError, match="no bfloat16 \\(of 'x'\\)"):
        io.save_npz({"x": lz.ones(2).bfloat16()}, tmp_path / "x.npz")


# -- several files with an index ----------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    """Two files and their index, as the format's own package writes the files."""
    tensors = {name: torch.full((2,), float(k)) for k, name in enumerate("abc")}
    reference.save_file({n: tensors[n] for n in "ab"}, tmp_path / "model-1.safetensors")
    reference.save_file({"c": tensors["c"]}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": MAP}))
    return index


MAP = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}


def test_several_files_are_read_as_one(shards):
    for read in (io.load_safetensors, io.load_weights):
        assert {k: v.tolist() for k, v in read(shards).items()} == {"a": [0, 0], "b": [1, 1], "c": [2, 2]}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"{", ValueError, "is not JSON"),
        (b"\xff", ValueError, "is not JSON"),
        (b"[" * 100_000, ValueError, "is not JSON"),
        (b"[]", ValueError, "no weight_map"),
        (b'{"weight_map": {}}', ValueError, "no weight_map"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', ValueError, "same name twice"),
        ({**MAP, "c": "../model-2.safetensors"}, ValueError, r"'c' is said to lie in '\.\./model-2\.safetensors'"),
        ({**MAP, "c": "/etc/passwd"}, ValueError, "'c' is said to lie in '/etc/passwd'"),
        ({**MAP, "c": ".."}, ValueError, "'c' is said to lie in"),
        ({**MAP, "c": "a\0b"}, ValueError, "'c' is said to lie in"),
        ({**MAP, "c": 3}, ValueError, "'c' is said to lie in 3"),
        ({**MAP, "c": "model-3.safetensors"}, FileNotFoundError, "'model-3.safetensors' that it names is not there"),
        ({**MAP, "d": "model-2.safetensors"}, ValueError, "'model-2.safetensors' contradict each other: the file lacks 'd'"),
        ({k: MAP[k] for k in "ac"}, ValueError, "'model-1.safetensors' contradict each other: the file has 'b'"),
    ],
)  # fmt: skip
def test_an_index_that_lies_is_refused(shards, content, error, message):
    shards.write_bytes(content if isinstance(content, bytes) else json.dumps({"weight_map": content}).encode())
    with pytest.raises(error, match=message):
        io.load_safetensors(shards)


def test_a_link_out_of_the_folder_is_refused(shards, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x.safetensors"
    (shards.parent / "model-2.safetensors").rename(elsewhere)
    (shards.parent / "model-2.safetensors").symlink_to(elsewhere)
    with pytest.raises(io.SafetensorsError, match="link to another folder"):
        io.load_safetensors(shards)


def test_a_damaged_file_of_several_is_named(shards):
    path = shards.parent / "model-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(io.SafetensorsError, match=r"model-2\.safetensors: .*outside the file"):
        io.load_safetensors(shards)


# -- whichever it is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("named", ["as it is", "without a suffix"])
def test_every_format_is_recognised_by_its_content(suffix, named, tmp_path):
    path = tmp_path / f"x{suffix}"
    tensors = {"a.weight": lz.randn(3, 4), "a.bias": lz.arange(5)}
    io.save_weights(tensors, path)
    if named != "as it is":
        path = path.rename(tmp_path / "weights")
    back = io.load_weights(path)
    assert list(back) == list(tensors) or sorted(back) == sorted(tensors)
    assert all(bits(back[k]) == bits(v) for k, v in tensors.items())


def test_the_part_that_is_weights_is_found(tmp_path):
    state, other = {"w": lz.ones(2)}, {"w": lz.zeros(2)}
    path = tmp_path / "x.lzm"
    lz.save({"model": state, "optimizer": {"state": {0: {"m": lz.ones(1)}}, "groups": []}, "epoch": 3}, path)
    assert io.load_weights(path)["w"].tolist() == [1, 1] == io.load_weights(path, "model")["w"].tolist()
    with pytest.raises(io.WeightsError, match="no weights named 'optimizer'; it has model"):
        io.load_weights(path, "optimizer")
    lz.save({"model": state, "ema": other}, path)
    with pytest.raises(io.WeightsError, match="several: model, ema; say which"):
        io.load_weights(path)
    assert io.load_weights(path, "ema")["w"].tolist() == [0, 0]
    for value, message in [({"epoch": 3}, "none"), ([1], "holds a list")]:
        lz.save(value, path)
        with pytest.raises(io.WeightsError, match=message):
            io.load_weights(path)


def test_what_holds_no_weights_is_said(tmp_path):
    for content, message in [(b"", "it is empty"), (b"\x89PNG\r\n", "it is neither"), (b"hello" * 9, "it is neither")]:
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(io.WeightsError, match=message):
            io.load_weights(tmp_path / "x")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        io.load_weights(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        io.load_weights(tmp_path / "nothing")
    with pytest.raises(io.WeightsError, match=r"\.safetensors, \.pth"):
        io.save_weights({}, tmp_path / "x.onnx")


NAMES = ["", "ü/日本", "a/b", "../x", "a\\b", "x" * 3000, "a\0b", "a.npy", "a b\n", ".", "data.pkl"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_odd_names_come_back_or_are_refused_and_none_becomes_another(suffix, tmp_path):
    path = tmp_path / f"w{suffix}"
    for name in NAMES:
        if suffix == ".npz" and "\0" in name:
            with pytest.raises(io.NpzError, match=r"no member of the name 'a.x00b'"):
                io.save_weights({name: lz.ones(2)}, path)
            continue
        io.save_weights({name: lz.ones(2), "other": lz.zeros(1)}, path)
        back = io.load_weights(path)
        assert set(back) == {name, "other"} and back[name].tolist() == [1, 1]
    with pytest.raises(io.NpzError, match="of 70,000 characters"):
        io.save_npz({"x" * 70_000: lz.ones(1)}, path)


@pytest.mark.parametrize("save", [io.save_safetensors, io.save_npz])
@pytest.mark.parametrize(
    "tensors, message",
    [
        ({1: lz.ones(1)}, "name is text, got 1"),
        ({None: lz.ones(1)}, "name is text, got None"),
        ({"\ud800": lz.ones(1)}, "name is text"),
        ({"a": 1.5}, "'a' is a float"),
        ({"a": {"b": lz.ones(1)}}, "'a' is a dict"),
        ([lz.ones(1)], "a mapping from name to tensor is needed.*; got a list"),
    ],
)
def test_what_is_not_tensors_by_name_is_refused_and_nothing_is_written(save, tensors, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        save(tensors, tmp_path / "w")
    assert not list(tmp_path.iterdir())


def test_metadata_that_nobody_could_read_is_refused(tmp_path):
    with pytest.raises(TypeError, match="metadata are text by text, got 'epoch': 3"):
        io.save_safetensors({"a": lz.ones(1)}, tmp_path / "w", {"epoch": 3})


def test_an_npz_of_what_is_no_number_is_refused(tmp_path):
    for array in (np.array(["x"]), np.array([None]), np.zeros(1, "datetime64[s]")):
        with pytest.raises(io.NpzError, match="'a' has elements of"):
            io.save_npz({"a": array}, tmp_path / "w.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_of_the_other_byte_order_are_stored_as_what_they_are(suffix, tmp_path):
    io.save_weights({"a": np.arange(3, dtype=">f4"), "b": np.float32(2)}, tmp_path / f"w{suffix}")
    assert io.load_weights(tmp_path / f"w{suffix}")["a"].tolist() == [0, 1, 2]
