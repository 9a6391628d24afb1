"""Files as paths of every kind and as file objects, and files of another kind than asked for."""

import gzip
import io
import pathlib

import numpy as np
import pytest

import lezero as lz


class Path:
    """A path that is no pathlib.Path."""

    def __init__(self, path):
        self.path = str(path)

    def __fspath__(self):
        return self.path


class Pipe:
    """A file that can be read or written in a row only."""

    def __init__(self, content=b""):
        self.content = content

    def read(self, size=-1):
        taken, self.content = (self.content, b"") if size < 0 else (self.content[:size], self.content[size:])
        return taken

    def write(self, data):
        self.content += bytes(data)


VALUE = {"x": lz.tensor([1.0, 2.0]), "words": ["a", "b"]}


def same(found):
    return found["words"] == ["a", "b"] and found["x"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", [str, pathlib.Path, Path])
def test_paths_of_every_kind(tmp_path, kind):
    lz.save(VALUE, kind(tmp_path / "x.lzm"))
    assert (
        same(lz.load(kind(tmp_path / "x.lzm"))) and lz.io.read_header(kind(tmp_path / "x.lzm"))["kind"] == "checkpoint"
    )
    lz.io.save_safetensors({"x": VALUE["x"]}, kind(tmp_path / "x.safetensors"))
    assert lz.io.load_safetensors(kind(tmp_path / "x.safetensors"))["x"].tolist() == [1, 2]


def test_file_objects(tmp_path):
    in_memory, pipe = io.BytesIO(), Pipe()
    lz.save(VALUE, in_memory)
    lz.save(VALUE, pipe)
    with (tmp_path / "x.lzm").open("wb") as file:
        lz.save(VALUE, file)
    with gzip.open(tmp_path / "x.gz", "wb") as file:
        lz.save(VALUE, file)
    lz.save(VALUE, tmp_path / "atomic.lzm")
    content = (tmp_path / "atomic.lzm").read_bytes()
    assert in_memory.getvalue() == pipe.content == (tmp_path / "x.lzm").read_bytes() == content
    in_memory.seek(0)
    assert same(lz.load(in_memory)) and same(lz.load(pipe))
    with (tmp_path / "x.lzm").open("rb") as file:
        assert same(lz.load(file))
    with gzip.open(tmp_path / "x.gz", "rb") as file:
        assert same(lz.load(file))


def test_a_file_object_is_used_from_where_it_stands():
    file = io.BytesIO()
    file.write(b"before")
    lz.save(VALUE, file)
    file.seek(6)
    assert same(lz.load(file))
    tensors = io.BytesIO(b"before")
    tensors.seek(6)
    lz.io.save_safetensors({"x": VALUE["x"]}, tensors)
    tensors.seek(6)
    assert lz.io.load_safetensors(tensors)["x"].tolist() == [1, 2]


def test_pytorchs_files_as_file_objects():
    torch = pytest.importorskip("torch")
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save({"x": torch.arange(3.0)}, file, _use_new_zipfile_serialization=zipped)
        file.seek(0)
        assert lz.io.load_pth(file)["x"].tolist() == [0, 1, 2]
        file.seek(0)
        with pytest.raises(
            lz.io.LzmError, match=r"the BytesIO is not an .lzm file; lz.io.load_pth reads PyTorch's files"
        ):
            lz.load(file)


def test_what_cannot_be_stored_writes_nothing_to_a_file_object():
    file = io.BytesIO()
    with pytest.raises(TypeError, match=r"^lz\.save: "):
        lz.save({"x": object()}, file)
    assert file.getvalue() == b""


def test_a_damaged_file_object_is_named():
    file = io.BytesIO()
    lz.save(VALUE, file)
    with pytest.raises(lz.io.LzmError, match="the BytesIO is truncated or has been altered"):
        lz.load(io.BytesIO(file.getvalue()[:-1]))


@pytest.mark.parametrize("call", [lz.load, lz.io.load_pth, lz.io.load_safetensors, lz.io.read_header])
def test_what_is_no_file_to_read(call, tmp_path):
    with pytest.raises(TypeError, match="a path, or a file open for reading bytes, is needed; got a int"):
        call(3)
    with pytest.raises(TypeError, match="open for text; open it with mode 'rb'"):
        call(io.StringIO("text"))
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*nothing'"):
        call(tmp_path / "nothing")


def test_what_is_no_file_to_write():
    for save in (lambda f: lz.save(VALUE, f), lambda f: lz.io.save_safetensors({"x": VALUE["x"]}, f)):
        with pytest.raises(TypeError, match="a path, or a file open for writing bytes, is needed; got a int"):
            save(3)
        with pytest.raises(TypeError, match="open for text; open it with mode 'wb'"):
            save(io.StringIO())


READERS = {"lz.load": lz.load, "lz.io.load_pth": lz.io.load_pth, "lz.io.load_safetensors": lz.io.load_safetensors}


@pytest.mark.parametrize("written", [*READERS, "np.load"])
def test_files_of_another_kind_name_what_reads_them(written, tmp_path):
    path = tmp_path / "weights"  # its name says nothing
    if written == "lz.io.load_pth":
        pytest.importorskip("torch").save({"x": 1}, path)
    elif written == "np.load":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    else:
        {"lz.load": lz.save, "lz.io.load_safetensors": lz.io.save_safetensors}[written]({"x": VALUE["x"]}, path)
    for name, read in READERS.items():
        if name == written:
            read(path)
            continue
        with pytest.raises(ValueError, match=f"{path}.*; {written} reads"):
            read(path)
