"""Malicious pickles in PyTorch's files: nothing in them runs, and a short file takes neither memory nor time."""

import copyreg
import io as streams
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest

from lezero import io

MAGIC, PROTOCOL, MACHINE = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}
TOUCH = "import pathlib; pathlib.Path({!r}).write_text('harm')"


def text(value):
    """The instruction that pushes a string."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def zipped(pickled, *, name="x", storages=()):
    out = streams.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(f"{name}/data.pkl", pickled)
        for key, data in enumerate(storages):
            archive.writestr(f"{name}/data/{key}", data)
    return out.getvalue()


def legacy(pickled, keys=()):
    return b"".join(pickle.dumps(v, 2) for v in (MAGIC, PROTOCOL, MACHINE)) + pickled + pickle.dumps(list(keys), 2)


FORMATS = {"zip": zipped, "legacy": legacy}


def calls(target):
    """Pickles that make the file `target` when Python's unpickler reads them; each by another way."""
    module, name = exec.__module__, "exec"
    code = text(TOUCH.format(str(target)))
    exec_ = f"c{module}\n{name}\n".encode()
    system = text(f"touch {target}")
    posix = b"cos\nsystem\n"
    return {
        "REDUCE": exec_ + code + b"\x85R.",
        "eval": b"cbuiltins\neval\n" + text(f"open({str(target)!r}, 'w').close()") + b"\x85R.",
        "os.system": posix + system + b"\x85R.",
        "python 2's name": b"c__builtin__\nexec\n" + code + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04" + text(module) + text(name) + b"\x93" + code + b"\x85R.",
        "INST": b"(" + system + b"ios\nsystem\n.",
        "OBJ": b"(" + posix + system + b"o.",
        "in a dict": b"}" + text("w") + exec_ + code + b"\x85Rs.",
        "before the value": exec_ + code + b"\x85R0}.",
        "as a key": b"}" + exec_ + code + b"\x85RNs.",
        "as an argument": b"ctorch\nSize\n" + exec_ + code + b"\x85R\x85R.",
        "by way of the memo": exec_ + b"q\x07" + b"0" + b"h\x07" + code + b"\x85R.",
        "getattr": b"cbuiltins\ngetattr\ncbuiltins\n__import__\n" + text("os") + b"\x85R" + text("system") + b"\x86R"
        + system + b"\x85R.",
        "a dotted name": b"\x80\x04" + text("shutil") + text("os.system") + b"\x93" + system + b"\x85R.",
    }  # fmt: skip


WAYS = list(calls(""))


@pytest.fixture
def harm(tmp_path):
    return tmp_path / "harm"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMATS)
def test_calls_are_refused_and_not_made(form, way, harm):
    content = FORMATS[form](calls(harm)[way])
    with pytest.raises(io.PthError, match="only tensors, dicts, lists and plain values are read"):
        io.load_pth(streams.BytesIO(content))
    assert not harm.exists()


@pytest.mark.parametrize("way", [w for w in WAYS if w != "as an argument"])
def test_the_same_pickles_do_harm_elsewhere(way, harm):
    """So the test above says something."""
    pickle.loads(calls(harm)[way])
    assert harm.exists()


def test_what_is_named_is_not_even_imported(tmp_path, monkeypatch):
    (tmp_path / "made_for_this.py").write_text(TOUCH.format(str(tmp_path / "harm")))
    monkeypatch.syspath_prepend(tmp_path)
    for pickled in (b"cmade_for_this\nname\n.", b"(imade_for_this\nname\n."):
        with pytest.raises(io.PthError, match=r"made_for_this\.name"):
            io.load_pth(streams.BytesIO(zipped(pickled)))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("code", [b"\x82\xf0", b"\x83\xf0\x00", b"\x84\xf0\x00\x00\x00"], ids=["EXT1", "EXT2", "EXT4"])
def test_registered_extensions_are_refused(code, harm):
    copyreg.add_extension("builtins", "exec", 0xF0)
    try:
        pickled = code + text(TOUCH.format(str(harm))) + b"\x85R."
        with pytest.raises(io.PthError, match="instruction EXT"):
            io.load_pth(streams.BytesIO(zipped(pickled)))
        assert not harm.exists()
        pickle.loads(pickled)
        assert harm.exists()
    finally:
        copyreg.remove_extension("builtins", "exec", 0xF0)


SIZE, DICT = b"ctorch\nSize\n", b"ccollections\nOrderedDict\n"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x04tQ"


def tensor(storage=STORAGE, shape=b"K\x02\x85", strides=b"K\x01\x85"):
    return TENSOR + b"(" + storage + b"K\x00" + shape + strides + b"\x89" + DICT + b")RtR"


REFUSED = {
    "attributes of a function": (TENSOR + b"}" + text("__code__") + text("x") + b"sb.", "sets attributes of a Global"),
    "attributes of a dtype": (b"ctorch\nFloatStorage\n}b.", "sets attributes of a .*dtype|sets attributes of a Float32"),
    "attributes of elements": (STORAGE + b")b.", "sets attributes of a ndarray"),
    "attributes of a tensor": (tensor() + b"}" + text("storage") + b"Nsb.", "sets attributes of a _View"),
    "an instance": (DICT + b")\x81.", "instruction NEWOBJ"),
    "an instance with keywords": (b"\x80\x04" + DICT + b")}\x92.", "instruction NEWOBJ_EX"),
    "a bytearray": (b"\x80\x05\x96" + struct.pack("<Q", 0) + b".", "instruction BYTEARRAY8"),
    "a buffer elsewhere": (b"\x80\x05\x97.", "instruction NEXT_BUFFER"),
    "a persistent id that is text": (b"Pos.system\n.", "instruction PERSID"),
    "a codec": (b"c_codecs\nencode\n" + text("x") + text("idna") + b"\x86R.", "encoded as 'idna'"),
    "a call of a dtype": (b"ctorch\nFloatStorage\n)R.", "calls a .*[dD]"),
    "a call of a tensor": (tensor() + b")R.", "calls a _View"),
    "a tensor of a list": (tensor(storage=b"]"), None),
    "a tensor of no shape": (tensor(shape=b"N") + b".", "not described as it should be"),
    "a shape of text": (tensor(shape=text("a") + b"\x85") + b".", "impossible shape"),
    "a size that is a list": (SIZE + b"]\x85R.", r"torch\.Size is not described"),
    "a name that is a number": (b"\x80\x04K\x01K\x02\x93.", "by what is not text"),
    "a list as a key": (b"}]Ns.", "list as a key"),
    "a tuple in a tuple as a key": (b"}))\x86K\x01\x86\x85Ns.", "tuple as a key"),
    "a list in a set": (b"\x80\x04\x8f(]\x90.", "list as an element"),
    "an item of a list": (b"]K\x00Ns.", "sets items of a list"),
    "an element of a tuple": (b")Na.", "adds elements to a tuple"),
    "a name as a value": (TENSOR + b".", "holds a Global"),
    "a storage as a value": (STORAGE + b".", "holds a ndarray"),
    "no end": (b"}", "claims 1 bytes where 0 are left"),
    "an empty stack": (b".", "damaged"),
    "no mark": (b"t.", "damaged"),
    "no memo": (b"h\x00.", "damaged"),
    "an unknown instruction": (b"\xff.", "damaged"),
    "another storage's dtype": (
        b"]" + STORAGE + b"a(" + text("storage") + b"ctorch\nLongStorage\n" + text("0") + text("cpu") + b"K\x01tQa.",
        "is not the 1 elements",
    ),
    "a storage that is not there": (STORAGE.replace(text("0"), text("9")) + b".", "storage '9'"),
    "odd booleans": (
        tensor(STORAGE.replace(b"Float", b"Bool"), shape=b"K\x04\x85") + b".", r"shape \(4,\) has booleans that are neither 0 nor 1",
    ),
    "another member as a storage": (STORAGE.replace(text("0"), text("../data.pkl")) + b".", "storage '../data.pkl'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_instructions_that_no_state_needs_are_refused(what):
    pickled, message = REFUSED[what]
    with pytest.raises(io.PthError, match=message) as error:
        io.load_pth(streams.BytesIO(zipped(pickled, storages=[bytes([1, 5] * 8)])))
    assert ("its pickle is damaged" in str(error.value)) == (message == "damaged")


def test_what_the_refused_ones_are_made_of_is_read():
    value = io.load_pth(streams.BytesIO(zipped(tensor() + b".", storages=[np.arange(4, dtype="f4").tobytes()])))
    assert value.numpy().tolist() == [0, 1]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_back_from_every_protocol(protocol):
    shared = [1, 2]
    value = {
        "numbers": [0, 255, -1, 70_000, 1 << 80, -(1 << 70), 0.5, float("inf"), 1 + 2j, True, False, None],
        "words": ["", "ü", "長", "a" * 300, b"\x00\xff" * 200 if protocol else "b"],
        "nested": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, [4])),
        "twice": [shared, shared],
        ("a", 1): {1, 2} if protocol > 1 else 3,
        2.5: {},
    }
    if protocol < 2:  # complex numbers and sets go by way of copyreg there
        value["numbers"].remove(1 + 2j)
    back = io.load_pth(streams.BytesIO(zipped(pickle.dumps(value, protocol))))
    assert back == value and back["twice"][0] is back["twice"][1]


# -- files that would build more than they are --------------------------------------------------------------------------


def doubled(first, pair):
    """60 levels, each of which holds the one below twice."""
    return first + b"".join(b"q%c" % (k,) + b"h%c" % (k,) + pair for k in range(60))


def many_views(count):
    one = lambda k: (
        TENSOR
        + b"("
        + STORAGE.replace(b"K\x04", b"J\x00\x00\x04\x00")
        + b"J"
        + struct.pack("<i", k)
        + (b"J\x00\xfc\x03\x00\x85K\x01\x85\x89" + DICT + b")RtR")
    )
    return b"](" + b"".join(map(one, range(count))) + b"e."


def over_each_other():
    data = streams.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("x/data.pkl", b"}.")
        archive.writestr("x/data/0", bytes(100_000))
        for k in range(1, 50):
            again = zipfile.ZipInfo(f"x/data/{k}")
            for name in ("header_offset", "CRC", "file_size", "compress_size"):
                setattr(again, name, getattr(archive.filelist[1], name))
            archive.filelist.append(again)
    return data.getvalue()


def inflating():
    data = streams.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", tensor() + b".")
        archive.writestr("x/data/0", bytes(1 << 24))
    return data.getvalue()


BOMBS = {
    "a place in the memo": (zipped(b"}r\xff\xff\xff\x7f."), None),
    "a length of bytes": (zipped(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"."), "truncated or damaged"),
    "a length of text": (legacy(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"."), "truncated or damaged"),
    "a length of a number": (zipped(b"\x80\x02\x8b\xff\xff\xff\x7f."), "truncated or damaged"),
    "lists of lists": (zipped(doubled(b"]", b"\x86") + b"."), None),
    "the hash of tuples": (zipped(b"}" + doubled(b")", b"\x86") + b"Ns."), "as a key"),
    "keys of one hash": (
        zipped(b"}(" + b"".join(b"\x8a\x0b" + (k * sys.hash_info.modulus).to_bytes(11, "little") + b"N" for k in range(70_000)) + b"u."),
        "may all have one hash",
    ),
    "complex numbers of one hash": (
        zipped(b"}c__builtin__\ncomplex\n(G" + struct.pack(">d", 1.0) + b"G" + struct.pack(">d", 2.0) + b"tRNs."),
        "may all have one hash",
    ),
    "a dict copied again": (
        zipped(b"](" + b"K\x01K\x02\x86" * 5000 + b"e" + b"q\x01" + (DICT + b"h\x01\x85R0") * 5000 + b"."),
        "copies more than it has bytes",
    ),
    "bytes copied again": (
        zipped(text("a" * 50_000) + b"q\x01" + (b"c_codecs\nencode\nh\x01" + text("latin1") + b"\x86R0") * 5000 + b"."),
        "copies more than it has bytes",
    ),
    "a repeated element": (
        zipped(tensor(shape=b"\x8a\x06" + (1 << 40).to_bytes(6, "little") + b"\x85", strides=b"K\x00\x85") + b".", storages=[bytes(16)]),
        "far more memory than the file",
    ),
    "a shape beyond 64 bits": (
        zipped(tensor(shape=b"\x8a\x09" + (1 << 66).to_bytes(9, "little") + b"\x85", strides=b"K\x00\x85") + b".", storages=[bytes(16)]),
        "impossible shape",
    ),
    "views of one storage": (zipped(many_views(900), storages=[bytes(1 << 20)]), "far more memory than the file"),
    "a storage larger than the file": (
        legacy(STORAGE.replace(b"K\x04", b"\x8a\x06" + (1 << 40).to_bytes(6, "little")) + b"."),
        "more than there is file",
    ),
    "members over each other": (over_each_other(), "lie upon each other"),
    "members that inflate": (inflating(), "members are compressed"),
    "a list that holds itself": (zipped(b"]q\x01h\x01a."), "holds itself"),
    "a deep nest": (zipped(b"]" + b"\x85" * 200_000 + b"."), "nested too deeply"),
}  # fmt: skip


def test_short_files_take_neither_memory_nor_time(tmp_path):
    """Each in one process with 1.5 GB more than it begins with, and two seconds."""
    for k, (content, message) in enumerate(BOMBS.values()):
        (tmp_path / f"{k}.pth").write_bytes(content)
        (tmp_path / f"{k}.txt").write_text(message or "")
        assert len(content) < 1_200_000
    program = textwrap.dedent("""
        import pathlib, re, resource, sys, time
        import lezero as lz
        lz.tensor([1.0]).numpy()
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 29),) * 2)
        for k in range(int(sys.argv[2])):
            path = pathlib.Path(sys.argv[1]) / f"{k}.pth"
            said, start = "", time.perf_counter()
            try:
                lz.io.load_pth(path)
            except lz.io.PthError as error:
                said = str(error)
            wanted = path.with_suffix(".txt").read_text()
            assert re.search(wanted, said) if wanted else not said, (k, said)
            assert time.perf_counter() - start < 2, (k, said)
    """)
    command = [sys.executable, "-c", program, str(tmp_path), str(len(BOMBS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# -- archives -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["..", "/", "~", "C:"])
def test_names_of_members_lead_nowhere(root, tmp_path):
    path = tmp_path / "inside" / "x.pth"
    path.parent.mkdir()
    path.write_bytes(zipped(tensor() + b".", name=root, storages=[bytes(16)]))
    before = sorted(tmp_path.rglob("*"))
    if root == "/":
        with pytest.raises(io.PthError, match=r"no data\.pkl"):
            io.load_pth(path)
    else:
        assert io.load_pth(path).shape == (2,)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_member_that_was_changed_is_noticed():
    content = bytearray(zipped(tensor() + b".", storages=[np.full(4, 7.5, "f4").tobytes()]))
    content[content.index(np.float32(7.5).tobytes())] ^= 1
    with pytest.raises(io.PthError, match="Bad CRC"):
        io.load_pth(streams.BytesIO(content))
