"""The .lzm container and the safetensors inside it: everything comes back, and nothing unsound is taken."""

import json
import os
import stat
import struct
import threading
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lezero as lz
from lezero import io, nn
from lezero.graph import dtype as dt
from lezero.io import lzm, safetensors, tree
from lezero.io.atomic import atomic_file
from lezero.tensor import tensor

LENGTHS = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.lzm"


def random_array(dtype, shape, seed=0):
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype is dt.bool_:
        return np.asarray(bits[..., 0] & 1, bool)
    return np.ascontiguousarray(bits).reshape(-1).view(dtype.numpy).reshape(shape)


def bits(x):
    return np.ascontiguousarray(x.numpy() if hasattr(x, "numpy") else x).tobytes()


# -- round trips ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
@given(shape=LENGTHS)
@settings(max_examples=8, deadline=None)
def test_every_dtype_comes_back_bit_for_bit(dtype, shape, tmp_path_factory):
    path = tmp_path_factory.mktemp("io") / "t.lzm"
    array = random_array(dtype, shape)
    io.save({"t": tensor(array), "a": array}, path)
    back = io.load(path)
    for x in back.values():
        assert tuple(x.shape) == shape and bits(x) == bits(array)
    assert back["t"].dtype is dtype and back["a"].dtype == dtype.numpy


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers() | st.tuples(st.integers(), st.text()), inner)
    ),
    max_leaves=20,
)


@given(value=VALUES)
@settings(max_examples=100, deadline=None)
def test_nested_values_come_back_with_their_types(value, tmp_path_factory):
    path = tmp_path_factory.mktemp("io") / "v.lzm"
    io.save(value, path)
    assert repr(io.load(path)) == repr(value)


def test_not_a_number_and_dtypes_come_back(path):
    io.save([float("nan"), float("-inf"), dt.bfloat16, np.float32(1.5)], path)
    nan, minus, dtype, number = io.load(path)
    assert np.isnan(nan) and minus == -np.inf and dtype is dt.bfloat16 and number == 1.5


def test_tied_tensors_are_stored_once_and_tied_again(path):
    weight = tensor(np.ones((64, 64), np.float32))
    io.save({"a": weight, "b": weight, "c": weight.detach(), "other": tensor(np.ones((64, 64), np.float32))}, path)
    assert path.stat().st_size < 2.5 * 64 * 64 * 4
    back = io.load(path)
    assert back["a"] is back["b"] is back["c"]
    assert back["other"] is not back["a"]


def test_what_cannot_be_stored_is_refused_with_its_place(path):
    with pytest.raises(TypeError, match=r"a object at model\.layers\.1 cannot be stored"):
        io.save({"model": {"layers": [1, object()]}}, path)
    nest = []
    for _ in range(200):
        nest = [nest]
    with pytest.raises(TypeError, match="nested more than 100 deep"):
        io.save(nest, path)
    with pytest.raises(TypeError, match="not proper Unicode"):
        io.save({"half\ud800": 1}, path)
    with pytest.raises(TypeError, match="integer at n is too long"):
        io.save({"n": 1 << 20_000}, path)
    assert not path.exists()


# -- the format -----------------------------------------------------------------------------------------------


def test_any_zip_and_json_reader_can_read_it(path):
    io.save({"weight": tensor(np.arange(6.0)), "step": 3}, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["header.json", "tensors.safetensors"]
        header = json.loads(archive.read("header.json"))
        data = archive.read("tensors.safetensors")
    assert header["format"] == "lzm" and header["version"] == 1 and header["kind"] == "checkpoint"
    assert header["value"] == {"weight": {"$tensor": "weight", "dtype": "float64"}, "step": 3}
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + length])["weight"]
    assert entry == {"dtype": "F64", "shape": [6], "data_offsets": [0, 48]}
    assert np.frombuffer(data[8 + length :], "<f8").tolist() == list(range(6))


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if not d.is_complex], ids=lambda d: d.name)
def test_the_reference_implementation_agrees(dtype, path):
    reference = pytest.importorskip("safetensors")
    torch = pytest.importorskip("torch")
    from safetensors.torch import load, save

    array = random_array(dtype, (3, 5))
    io.save_safetensors({"x": array, "empty": array[:0]}, path, {"made": "here"})
    theirs = load(path.read_bytes())["x"]
    assert theirs.contiguous().view(torch.uint8).numpy().tobytes() == array.tobytes()
    with reference.safe_open(str(path), "np") as opened:
        assert opened.metadata() == {"made": "here"}
    path.write_bytes(save({"x": theirs}))
    back = io.load_safetensors(path)["x"]
    assert back.dtype is dtype and bits(back) == array.tobytes()


def test_data_is_aligned_for_mapping_into_memory(path):
    sizes = [1, 3, 16, 64, 100, 256, 7, 32]
    io.save({f"t{n}": tensor(np.full(n, n, np.float32)) for n in sizes}, path)
    raw = path.read_bytes()
    for n in sizes:
        place = raw.index(np.full(n, n, np.float32).tobytes())
        assert place % (64 if n % 16 == 0 else 4) == 0


def test_the_same_content_makes_the_same_bytes(path, tmp_path):
    for target in (path, tmp_path / "again.lzm"):
        io.save({"b": tensor([1.0]), "a": 1}, target)
    assert path.read_bytes() == (tmp_path / "again.lzm").read_bytes()


def test_the_header_can_be_read_alone(path):
    io.save({"x": tensor([1.0])}, path, extra={"note": "hello"})
    header = io.read_header(path)
    assert header["kind"] == "checkpoint" and header["note"] == "hello" and "value" not in header


# -- writing --------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    io.save({"x": 1}, path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    for module, name in [(safetensors, "write"), (os, "fsync"), (os, "replace")]:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
            patch.setattr(module, name, full)
            io.save({"x": 2}, path)
        assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def test_a_missing_folder_and_a_folder_as_target_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        io.save({}, tmp_path / "no" / "x.lzm")
    with pytest.raises(IsADirectoryError, match="that is a folder"):
        io.save({}, tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_permissions_are_those_of_any_new_file_or_of_the_old_one(path):
    before = os.umask(0o022)
    try:
        io.save({}, path)
        assert path.stat().st_mode & 0o777 == 0o644
        path.chmod(0o600)
        io.save({}, path)
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


# -- refusals -------------------------------------------------------------------------------------------------


def test_missing_files_folders_and_other_files_are_told_apart(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        io.load(path)
    with pytest.raises(io.LzmError, match="is a folder"):
        io.load(tmp_path)
    for content, message in [
        (b"", "is empty"),
        (b"hello" * 20, "is not an .lzm file"),
        (b"PK\x03\x04" * 20, "is not an"),
    ]:
        path.write_bytes(content)
        with pytest.raises(io.LzmError, match=message):
            io.load(path)
    for name, reader in (("weights.pth", "load_pth"), ("weights.safetensors", "load_safetensors")):
        (tmp_path / name).write_bytes(b"hello" * 20)
        with pytest.raises(io.LzmError, match=f"is not an .lzm file; lz.io.{reader} reads"):
            io.load(tmp_path / name)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("something.txt", "else")
    with pytest.raises(io.LzmError, match=r"is not an \.lzm file"):
        io.load(path)


@pytest.mark.parametrize("weights_only", [True, False])
def test_arguments_of_pytorchs_load_are_taken(path, weights_only, tmp_path):
    io.save({"a": tensor([1.0, 2.0])}, path)
    for place in (None, "cpu"):
        assert io.load(path, map_location=place, weights_only=weights_only)["a"].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"load: map_location is 'cpu', .*got 'cuda'; move them with \.to\(device\)"):
        io.load(path, "cuda")
    foreign = tmp_path / "state.pth"
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(2)}, foreign)
    assert io.load_pth(foreign, map_location="cpu", weights_only=weights_only)["a"].tolist() == [1.0, 1.0]


def test_every_truncation_and_every_changed_byte_is_refused(path):
    io.save({"x": tensor(np.arange(5, dtype=np.float32)), "y": [1, (2, "three")]}, path)
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    for n in range(len(sound)):
        changed = bytearray(sound)
        changed[n] ^= 1 << int(rng.integers(8))
        for content in (sound[:n], bytes(changed)):
            path.write_bytes(content)
            with pytest.raises(io.LzmError):
                io.load(path)
    path.write_bytes(sound + b"\0")
    with pytest.raises(io.LzmError, match="truncated or has been altered"):
        io.load(path)


def forge(path, header, tensors=b"\x02\0\0\0\0\0\0\0{}", compress=zipfile.ZIP_STORED):
    """A file with a correct checksum and this content."""
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr("header.json", header if isinstance(header, (str, bytes)) else json.dumps(header))
        archive.writestr("tensors.safetensors", tensors)
        archive.comment = b"sha256:" + b"0" * 64
    with path.open("r+b") as file:
        end = file.seek(0, 2) - 64
        file.seek(end)
        file.write(lzm._digest(file, end))


GOOD = {"format": "lzm", "version": 1, "kind": "checkpoint", "value": None}


def test_a_forged_but_proper_file_is_read(path):
    forge(path, {**GOOD, "value": [1]})
    assert io.load(path) == [1]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({**GOOD, "version": 2}, r"newer LeZero \(format version 2; this one reads up to 1\): pip install --upgrade"),
        ({**GOOD, "version": "1"}, "names no version"),
        ({**GOOD, "version": True}, "names no version"),
        ({**GOOD, "format": "other"}, "is not an .lzm file"),
        ({**GOOD, "kind": "program"}, "is a program, not a checkpoint: open it with lz.InferenceSession"),
        ({**GOOD, "kind": "virus"}, "no known kind"),
        ([], "is not an .lzm file"),
        ("{", "not proper JSON"),
        (b"\xff\xfe", "not proper JSON"),
        ("[" * 100_000, "not proper JSON"),
        ('{"format":"lzm","version":1,"kind":"checkpoint","value":' + "9" * 10_000 + "}", "not proper JSON"),
        ({**GOOD, "value": {"$tensor": "gone", "dtype": "float32"}}, "not understood"),
        ({**GOOD, "value": {"$tensor": "gone"}}, "not understood"),
        ({**GOOD, "value": {"$tuple": 3}}, "not understood"),
        ({**GOOD, "value": {"$dict": [[[], 1]]}}, "not understood"),
        ({**GOOD, "value": {"$complex": [1]}}, "not understood"),
        ({**GOOD, "value": {"$exec": "boom"}}, r"'\$exec' is not known"),
        ({**GOOD, "value": json.loads("[" * 500 + "]" * 500)}, "nested too deeply"),
    ],
)
def test_headers_that_lie_are_refused(path, header, message):
    forge(path, header)
    with pytest.raises(io.LzmError, match=message):
        io.load(path)


def test_a_zip_bomb_is_refused(path):
    forge(path, GOOD, b"\0" * 10_000_000, zipfile.ZIP_DEFLATED)
    with pytest.raises(io.LzmError, match="not stored as it should be"):
        io.load(path)


def st_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "shorter than its first field"),
        (struct.pack("<Q", 1 << 60), "header claims"),
        (st_file(b"nonsense"), "not JSON"),
        (st_file([]), "not a JSON object"),
        (st_file(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}'), "same name twice"),
        (st_file({"a": 5}), "not understood"),
        (st_file({"a": entry("F33")}, bytes(8)), r"'a' has the dtype 'F33'; those that are read are BOOL"),
        (st_file({"a": entry("f32")}, bytes(8)), r"'a' has the dtype 'f32'"),
        (st_file({"a": {**entry(), "dtype": ["F32"]}}, bytes(8)), "not understood"),
        (st_file({"a": {**entry(), "data_offsets": [0, 8, 8]}}, bytes(8)), "not understood"),
        (st_file({"a": {**entry(), "data_offsets": [0, 8.0]}}, bytes(8)), "impossible"),
        (st_file({"a": {**entry(), "shape": "2"}}, bytes(8)), "impossible"),
        (st_file({"a": {**entry(), "shape": [True, 2]}}, bytes(8)), "impossible"),
        (st_file({"a": {**entry(), "shape": None}}, bytes(8)), "not understood"),
        (st_file({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "not understood"),
        (st_file({"a": None}), "not understood"),
        (st_file({"a": entry(offsets=(8, 0))}, bytes(8)), "does not fill"),
        (st_file({"a": entry(offsets=(-8, 0))}, bytes(8)), "impossible"),
        (st_file({"a": entry(shape=(0, 1 << 62), offsets=(0, 0))}), "impossible"),
        (st_file({"a": entry(shape=(1 << 62, 1 << 62, 0), offsets=(0, 0))}), "impossible"),
        (st_file({"a": entry(shape=(1 << 60,) * 64)}, bytes(8)), "impossible"),
        (st_file({"a": entry("BOOL", offsets=(0, 2))}, b"\x01\x05"), "'a' has booleans that are neither 0 nor 1"),
        (st_file({"__metadata__": {"a": 3}}), "not a mapping from text to text"),
        (st_file({"__metadata__": [1]}), "not a mapping from text to text"),
        (st_file(b'{"\xff": 1}'), "not JSON"),
        (st_file(b"\xef\xbb\xbf{}"), "not JSON"),
        (st_file('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'.encode("utf-16")), "not JSON"),
        (st_file(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "not proper Unicode"),
        (st_file(b'{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "same name twice"),
        (st_file(b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}'), "not JSON"),
        (st_file(b"[" * 200_000), "not JSON"),
        (st_file(json.dumps({"a": entry()}).encode() + b"\0", bytes(8)), "not JSON"),
        (struct.pack("<Q", 0), "not JSON"),
        (struct.pack("<Q", 100_000_001) + b"{}", "the header claims 100,000,001 bytes"),
        (st_file({"a": entry(shape=(-2,))}, bytes(8)), "impossible"),
        (st_file({"a": entry(shape=(2.0,))}, bytes(8)), "impossible"),
        (st_file({"a": entry(shape=(1,) * 65, offsets=(0, 4))}, bytes(4)), "impossible"),
        (st_file({"a": entry(offsets=(0, 12))}, bytes(12)), "does not fill"),
        (st_file({"a": entry(offsets=(0, 8))}, bytes(4)), "outside the file"),
        (st_file({"a": entry(offsets=(4, 12))}, bytes(12)), "gap"),
        (st_file({"a": entry(), "b": entry()}, bytes(8)), "overlaps"),
        (st_file({"a": entry()}, bytes(9)), "belong to no tensor"),
        (st_file({"a": entry(shape=(1 << 40, 1 << 40), offsets=(0, 1 << 82))}, bytes(8)), "impossible"),
        (st_file({"a": entry(shape=(1 << 40, 1 << 4), offsets=(0, 1 << 46))}, bytes(8)), "outside the file"),
    ],
)
def test_safetensors_that_lie_are_refused(content, message, path, tmp_path):
    plain = tmp_path / "x.safetensors"
    plain.write_bytes(content)
    with pytest.raises(io.SafetensorsError, match=message):
        io.load_safetensors(plain)
    forge(path, GOOD, content)
    with pytest.raises(io.LzmError, match=message):
        io.load(path)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_never_do_more_than_be_refused(tmp_path_factory, content):
    target = tmp_path_factory.mktemp("io") / "r"
    for raw in (content, st_file(content), b"PK\x03\x04" + bytes(26) + b"header.json" + content):
        target.write_bytes(raw)
        with pytest.raises(io.LzmError):
            io.load(target)
        with suppress(io.SafetensorsError):
            io.load_safetensors(target)


def test_trees_name_colliding_paths_apart():
    value, arrays = tree.encode({"a.b": tensor([1.0]), "a": {"b": tensor([2.0])}})
    assert len(arrays) == 2
    back = tree.decode(value, arrays, lambda a: a)
    assert back["a.b"][0] == 1 and back["a"]["b"][0] == 2


@pytest.mark.parametrize(
    ("name", "writer"),
    [("x.pth", "save_pth"), ("x.pt", "save_pth"), ("x.safetensors", "save_safetensors"), ("x.npz", "save_npz")],
)
def test_saving_under_the_name_of_another_format_warns(name, writer, tmp_path):
    with pytest.warns(UserWarning, match=rf"{name}' is written as \.lzm.*lz\.io\.{writer} writes"):
        lz.save({"x": lz.ones(2)}, tmp_path / name)
    assert lz.load(tmp_path / name)["x"].tolist() == [1, 1]
    getattr(lz.io, writer)({"x": lz.ones(2)}, tmp_path / name)
    with pytest.raises(ValueError):
        lz.load(tmp_path / name)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["x.lzm", "x", "x.ckpt"])
def test_saving_under_names_that_are_no_format_does_not_warn(name, tmp_path):
    lz.save({"x": lz.ones(2)}, tmp_path / name)


@pytest.mark.parametrize("writer", ["save_safetensors", "save_npz"])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (nn.Linear(2, 3), r"a mapping from name to tensor is needed, such as a module's state_dict\(\); got a Linear"),
        (lz.ones(2), "got a Tensor"),
        ({"a": lz.ones(2), "b": 3}, "'b' is a int; tensors and arrays are written"),
    ],
    ids=["module", "tensor", "number"],
)
def test_what_is_no_dict_of_tensors_is_refused_by_formats_of_tensors(writer, value, says, tmp_path):
    with pytest.raises(TypeError, match=f"{writer}: .*{says}"):
        getattr(lz.io, writer)(value, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_link_stays_one_and_what_it_names_is_replaced(path, tmp_path):
    link = tmp_path / "latest.lzm"
    io.save({"step": 1}, path)
    link.symlink_to(path.name)
    io.save({"step": 2}, link)
    assert link.is_symlink() and io.load(path) == {"step": 2}


def test_a_name_as_long_as_can_be_is_written(tmp_path):
    path = tmp_path / ("x" * 255)
    io.save({"step": 1}, path)
    assert io.load(path) == {"step": 1} and [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are Unix's")
def test_a_pipe_gets_the_bytes_and_is_not_replaced(path, tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    io.save({"step": 1}, pipe)
    reader.join(10)
    io.save({"step": 1}, path)
    assert received == [path.read_bytes()] and stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(OSError, match="device or a pipe"), atomic_file(pipe):
        pass


def test_writing_in_several_threads_leaves_the_processs_umask_alone(path, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "umask", asked.append)  # it is the whole process's: to read it is to set it
    io.save({"step": 1}, path)
    assert not asked
