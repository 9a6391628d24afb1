"""ONNX files that are damaged, lie or mean harm: each is an error of ours that names the file, the node or the tensor."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest

import lezero as lz

onnx = pytest.importorskip("onnx", reason="needed to read the files: pip install 'lezero[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from lezero.onnx import OnnxError, load, wire  # noqa: E402
from test_onnx_reading import X, linear, model_of, node, value  # noqa: E402

SMALL = np.ones((2, 3), np.float32)


def small():
    """A model whose whole weight is in its message."""
    return model_of([node("MatMul", "x w", "y")], [value("x", ["n", 2])], [value("y")], {"w": SMALL})


# -- files of another kind, and pieces of files --------------------------------------------------------------------------


def a_zip():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("model.onnx", linear().SerializeToString())
    return out.getvalue()


def a_safetensors():
    out = io.BytesIO()
    lz.io.save_safetensors({"w": lz.ones(2)}, out)
    return out.getvalue()


OTHER = {
    "nothing": (b"", "is empty"),
    "zeros": (bytes(5000), "is not an ONNX model"),
    "noise": (np.random.default_rng(0).bytes(5000), "is not an ONNX model"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 20, "is not an ONNX model"),
    "text": ("Ceci n'est pas un modèle.\n".encode() * 300, "is not an ONNX model"),
    "JSON": (b'{"ir_version": 10}' * 300, "is not an ONNX model"),
    "an archive": (a_zip(), "is not an ONNX model"),
    "safetensors": (a_safetensors(), "is not an ONNX model.*; lz.io.load_safetensors reads it"),
    "a graph by itself": (linear().graph.SerializeToString(), "is not an ONNX model"),
    "a tensor by itself": (numpy_helper.from_array(SMALL, "w").SerializeToString(), "is not an ONNX model"),
    "a length beyond the end": (b"\x08\x0a\x3a" + b"\xff" * 8 + b"\x7f", "goes on after the end"),
    "a number without end": (b"\x08" + b"\xff" * 5000, "a number that does not end"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_files_of_another_kind(kind, tmp_path):
    content, message = OTHER[kind]
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(OnnxError, match=rf"m\.onnx.*{message}"):
        load(tmp_path / "m.onnx")


def test_folders_and_what_is_not_there(tmp_path):
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.onnx"):
        load(tmp_path / "nothing.onnx")
    with pytest.raises(TypeError, match="not int"):
        load(3)


@pytest.mark.parametrize("build", [small, linear], ids=["small", "with an array kept in the file"])
def test_every_piece_of_a_file_is_refused(build):
    data = build().SerializeToString()
    cuts = range(len(data)) if len(data) < 1000 else [*range(300), *range(300, len(data) - 200, 97), *range(len(data) - 200, len(data))]  # fmt: skip
    for cut in cuts:
        with pytest.raises(OnnxError):
            load(data[:cut])
    load(data)


# -- tensors --------------------------------------------------------------------------------------------------------------


def with_weight(build=small, dims=None, **fields):
    model = build()
    (weight,) = model.graph.initializer
    if dims is not None:
        weight.dims[:] = dims
    for name, content in fields.items():
        setattr(weight, name, content)
    return model


IMPOSSIBLE = {
    "negative": [-2, 3],
    "negative twice": [-2, -3],
    "one unknown": [-1, 3],
    "a product beyond 64 bits": [1 << 40, 1 << 40],
    "a product that wraps to 0": [1 << 32, 1 << 32],
    "a product that wraps to 6": [(1 << 63) - 1, 1 << 10],
    "too many": [1] * 70,
}
UNFITTING = {
    "too few bytes": {"raw_data": bytes(20)},
    "too many bytes": {"raw_data": bytes(28)},
    "half an element": {"raw_data": bytes(23)},
    "no bytes": {"raw_data": b""},
    "a larger shape": {"dims": [2, 4]},
    "a smaller shape": {"dims": [2, 2]},
    "an empty shape": {"dims": [0, 3]},
    "an unknown dtype": {"data_type": 99},
    "no dtype": {"data_type": 0},
    "bytes of text": {"data_type": TensorProto.STRING},
}


@pytest.mark.parametrize("build", [small, linear], ids=["in the message", "kept in the file"])
@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_shapes_that_cannot_be(what, as_bytes, build):
    model = with_weight(build, dims=IMPOSSIBLE[what])
    with pytest.raises(OnnxError, match="the tensor 'w' has an impossible shape"):
        load(model.SerializeToString() if as_bytes else model)


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("what", UNFITTING)
def test_data_that_do_not_fit(what, as_bytes):
    model = with_weight(**UNFITTING[what])
    with pytest.raises(OnnxError, match=r"the tensor 'w' of shape \[.*\] is damaged"):
        load(model.SerializeToString() if as_bytes else model)


def test_a_shape_without_data_takes_no_memory():
    model = with_weight(dims=[1 << 40, 3])
    model.graph.initializer[0].ClearField("raw_data")
    with pytest.raises(OnnxError, match=r"'w' of shape .* is damaged"):
        load(model)


@pytest.mark.parametrize(
    ("shape", "indices", "message"),
    [
        ([1 << 20, 1 << 20], [0, 5], "takes more than"),
        ([-2, 2], [0, 1], "takes more than|impossible"),
        ([2, 2], [0, 5], "elements outside it"),
        ([2, 2], [-1, 1], "elements outside it"),
        ([2, 2], [[0, 0], [1, 2]], "elements outside it"),
    ],
)
def test_sparse_tensors_that_lie(shape, indices, message):
    sparse = onnx.SparseTensorProto(dims=shape)
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array(indices), "w_indices"))
    model = small()
    del model.graph.initializer[:]
    model.graph.sparse_initializer.append(sparse)
    with pytest.raises(OnnxError, match=f"sparse tensor 'w'.*({message})"):
        load(model)


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        ("offset", "abc", "'w'.*is damaged"),
        ("offset", "-8", "bytes -8 to"),
        ("offset", "9" * 40, "bytes 9999"),
        ("length", "-1", "bytes 0 to -1"),
        ("length", "12001", "bytes 0 to 12001 of 12000"),
        ("length", "11996", "bytes 0 to 11996 of 12000"),
        ("location", "", "outside the model's folder"),
        ("location", ".", "should lie in '.', which is not there"),
        ("location", "a\0b", "'w'.*is damaged"),
        ("location", "w.bin/../../m.onnx", "outside the model's folder|not there"),
    ],
)
def test_places_in_other_files_that_lie(key, content, message, tmp_path):
    model = linear()
    (weight,) = model.graph.initializer
    (tmp_path / "w.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for k, v in ({"location": "w.bin", "offset": "0"} | {key: content}).items():
        weight.external_data.add(key=k, value=v)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(OnnxError, match=message):
        load(tmp_path / "m.onnx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX pipes")
def test_a_pipe_in_the_place_of_data_is_not_waited_for(tmp_path):
    model = linear()
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    os.mkfifo(tmp_path / "w.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(OnnxError, match="which is not there"):
        load(tmp_path / "m.onnx")


# -- names and calls ------------------------------------------------------------------------------------------------------


def test_names_that_occur_twice():
    for what, field in (("initialisers", "initializer"), ("inputs", "input")):
        model = small()
        getattr(model.graph, field).append(getattr(model.graph, field)[0])
        name = {"initialisers": "w", "inputs": "x"}[what]
        with pytest.raises(OnnxError, match=f"two {what} are named {name!r}"):
            load(model)


def test_a_model_that_names_no_operators():
    model = small()
    del model.opset_import[:]
    with pytest.raises(OnnxError, match="does not say which version of the operators it uses"):
        load(model)
    for version in (0, -5):
        model = small()
        model.opset_import[0].version = version
        with pytest.raises(OnnxError, match=f"MatMul .*not supported in version {version}"):
            load(model)


CALLS = {
    "too few operands": (node("Add", "x", "y"), "Add .*has 1 operands where version 21 of its set wants 2"),
    "too many operands": (node("Relu", "x x", "y"), "Relu .*has 2 operands where .* wants 1"),
    "too many results": (node("Relu", "x", "y z"), "Relu .*has 2 results where .* wants at most 1"),
    "an unknown attribute": (node("Relu", "x", "y", slope=3.0), "Relu .*no attribute 'slope'; it has none"),
    "a misspelt attribute": (node("LeakyRelu", "x", "y", alhpa=3.0), "LeakyRelu .*no attribute 'alhpa'; it has alpha"),
    "a missing attribute": (node("Cast", "x", "y"), "Cast .*attribute 'to' is missing"),
    "an If without branches": (node("If", "x", "y"), "If .*attribute 'else_branch' is missing"),
}


@pytest.mark.parametrize("what", CALLS)
def test_what_is_not_as_declared_is_said_of_calls_that_fail(what):
    call, message = CALLS[what]
    with pytest.raises(OnnxError, match=message):
        load(model_of([call], [value("x")], [value("y")]))(np.ones(3, np.float32))


def test_a_node_without_name_and_results_can_be_named():
    with pytest.raises(OnnxError, match=r"Frobnicate \(the node that gives 'nothing'\)"):
        load(model_of([helper.make_node("Frobnicate", ["x"], [])], [value("x")], [value("x")]))


def graph_of(inputs, outputs=("o",)):
    return helper.make_graph([node("Identity", "x", "o")], "inner", list(map(value, inputs)), list(map(value, outputs)))


IMAGE = np.ones((1, 3, 8, 8), np.float32)
CONTRADICTIONS = {
    "a negative extent": (node("ConstantOfShape", "s", "y"), [3, -1], X, "has the extent -1"),
    "a negative expansion": (node("Expand", "x s", "y"), [-1, 60], X, "has the extent -1"),
    "repeats of other dimensions": (node("Tile", "x s", "y"), [1, 2, 3], X, "3 numbers of repeats for 2 dimensions"),
    "half a padding": (node("Pad", "x s", "y"), [1, 0, 0], X, "3 numbers of padding for 2 axes"),
    "parts of another sum": (node("Split", "x s", "y z"), [3, 3], X, r"parts of \[3, 3\] do not make up axis 0 of \[4, 60\]"),
    "a negative part": (node("Split", "x s", "y z"), [5, -1], X, r"parts of \[5, -1\] do not make up"),
    "an axis to gather along": (node("Gather", "x s", "y", axis=5), [0], X, "no axis 5 in 2 dimensions"),
    "an axis to reduce": (node("ReduceSum", "x s", "y"), [9], X, "no axis 9 in 2 dimensions"),
    "an axis to add up": (node("CumSum", "x s", "y"), [9], X, "no axis 9 in 2 dimensions|dimension 9"),
    "an axis to squeeze": (node("Squeeze", "x s", "y"), [-3], X, "no axis -3 in 2 dimensions"),
    "an axis to cut": (node("Slice", "x s s s", "y"), [7], X, "no axis 7 in 2 dimensions"),
    "an axis to normalise": (node("LayerNormalization", "x x", "y", axis=2), [0], X, "no axis 2 in 2 dimensions"),
    "another size": (node("Reshape", "x s", "y"), [7, -1], X, "240 elements"),
    "two unknown extents": (node("Reshape", "x s", "y"), [-1, -1], X, "only one extent"),
    "an order with one twice": (node("Transpose", "x", "y", perm=[0, 0]), [0], X, "does not name each"),
    "channels of another layer": (node("Conv", "x w", "y"), [0], IMAGE[:, :2], "input of 3 channels"),
    "a condition of many": (
        node("If", "x", "y", then_branch=graph_of([]), else_branch=graph_of([])), [0], X, r"one truth, not values of shape \[4, 60\]",
    ),
    "a body of other inputs": (node("Loop", "s t x", "y", body=graph_of(["i"])), [3], X, "graph 'inner' has 1 inputs, and gets 3"),
    "more scanned than there is": (node("Scan", "x", "y", num_scan_inputs=5, body=graph_of(["i"])), [0], X, "5 operands are to be scanned"),
    "fewer results than asked for": (
        node("If", "t", "y", then_branch=graph_of([], []), else_branch=graph_of([])), [0], X, "gives 0 results, and none for 'y'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_operands_that_contradict_a_node_name_it_when_called(what):
    call, numbers, x, message = CONTRADICTIONS[what]
    weights = {"s": np.array(numbers), "t": np.array(True), "w": np.ones((3, 3, 3, 3), np.float32)}
    model = load(model_of([call], [value("x")], [value("y")], weights))
    with pytest.raises(OnnxError, match=rf"^{call.op_type} \(node 'the {call.op_type}'\).*({message})"):
        model(x)


def test_an_attribute_of_another_kind_names_the_node_when_called():
    model = load(model_of([node("Softmax", "x", "y", axis="one")], [value("x")], [value("y")]))
    with pytest.raises(OnnxError, match=r"Softmax \(node 'the Softmax'\).*'one'"):
        model(X)


def test_results_that_are_not_as_the_file_says():
    for said, message in [
        (value("y", [4, 7]), r"output 'y' is said to have shape \[4, 7\], and has \[4, 60\]"),
        (value("y", ["n"]), r"output 'y' is said to have shape \[n\], and has \[4, 60\]"),
        (value("y", None, TensorProto.INT64), "output 'y' is said to be int64, and is float32"),
    ]:
        model = load(model_of([node("Relu", "x", "y")], [value("x")], [said]))
        with pytest.raises(OnnxError, match=message):
            model(X)
    load(model_of([node("Relu", "x", "y")], [value("x")], [value("y", ["a", 60])]))(X)


def test_more_results_than_an_operator_gives_name_the_node():
    """Where the standard declares nothing."""
    calls = [node("FusedMatMul", "x x", "y z", domain="com.microsoft", transB=1)]
    domains = [helper.make_opsetid("com.microsoft", 1)]
    model = load(model_of(calls, [value("x")], [value("z")], domains=domains))
    with pytest.raises(OnnxError, match=r"FusedMatMul .*gives 1 results, and none for 'z'"):
        model(X)


# -- functions and graphs in graphs ---------------------------------------------------------------------------------------


def calling(name, *called):
    """A function of a domain of its own that calls others of it, one after the other."""
    names = ["a", *(f"b{k}" for k in range(len(called) - 1)), "c"]
    calls = [
        helper.make_node(f, [i], [o], domain="" if f == "Relu" else "mine")
        for f, i, o in zip(called, names, names[1:])
    ]  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    return helper.make_function("mine", name, ["a"], ["c"], calls, opsets)


def with_functions(*functions):
    first = helper.make_node(functions[0].name, ["x"], ["y"], domain="mine")
    return model_of([first], [value("x")], [value("y")], domains=[helper.make_opsetid("mine", 1)], functions=functions)


def levels(count, width):
    return [calling(f"F{k}", *[f"F{k + 1}" if k < count - 1 else "Relu"] * width) for k in range(count)]


FUNCTIONS = {
    "itself": ([calling("F", "F")], r"mine\.F calls itself"),
    "each other": ([calling("F", "G"), calling("G", "F")], r"mine\.F calls itself, directly or through others"),
    "too deep": (levels(2000, 1), "nested more than 100 deep"),
    "too often": (levels(40, 2), "stands for more than 1,000,000 calls"),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_functions_that_never_end(what):
    functions, message = FUNCTIONS[what]
    with pytest.raises(OnnxError, match=message):
        load(with_functions(*functions))


def test_functions_in_functions_are_called():
    model = load(with_functions(*levels(60, 1)))
    np.testing.assert_array_equal(model(X).numpy(), np.maximum(X, 0))
    np.testing.assert_array_equal(load(with_functions(*levels(5, 3)))(X).numpy(), np.maximum(X, 0))


def nested(depth):
    """Bytes of graphs in attributes of nodes of graphs."""
    body = b"x" * wire.LEAST
    for _ in range(depth):
        for field in (6, 5, 1):
            body = wire._varint(field << 3 | 2) + wire._varint(len(body)) + body
    return b"\x08\x0a" + wire._varint(7 << 3 | 2) + wire._varint(len(body)) + body


@pytest.mark.parametrize("depth", [40, 5000])
def test_graphs_nested_beyond_what_protobuf_reads(depth):
    with pytest.raises(OnnxError, match=r"nested more than 100 deep|is not an ONNX model"):
        load(nested(depth))


def test_graphs_nested_as_deep_as_protobuf_reads():
    last = lambda: [node("Relu", "x", "o")]
    graph = helper.make_graph(last(), "g", [], [value("o")])
    for _ in range(25):
        other = helper.make_graph(last(), "e", [], [value("o")])
        call = helper.make_node("If", ["c"], ["o"], then_branch=graph, else_branch=other)
        graph = helper.make_graph([call], "g", [], [value("o")])
    graph.input.extend([value("x"), value("c", [], TensorProto.BOOL)])
    model = load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )
    for which in (True, False):
        np.testing.assert_array_equal(model(X, np.array(which)).numpy(), np.maximum(X, 0))


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_files_that_would_take_terabytes_are_refused_without_taking_them(tmp_path):
    """In a process that has 2 GB more than it begins with."""
    size = numpy_helper.from_array(np.array([1 << 24, 1 << 20]), "s")
    lies = {
        "shape": with_weight(dims=[1 << 40, 3]),
        "expand": model_of([node("Expand", "x s", "y")], [value("x")], [value("y")], {"s": np.array([1 << 40, 4, 60])}),
        "fill": model_of([node("ConstantOfShape", "s", "y")], [value("x")], [value("y")], {"s": numpy_helper.to_array(size)}),
        "range": model_of([node("Range", "a b c", "y")], [value("x")], [value("y")], {"a": np.array(0), "b": np.array(1 << 50), "c": np.array(1)}),
        "tile": model_of([node("Tile", "x s", "y")], [value("x")], [value("y")], {"s": numpy_helper.to_array(size)}),
        "pad": model_of([node("Pad", "x s", "y")], [value("x")], [value("y")], {"s": np.array([0, 0, 1 << 40, 1 << 10])}),
    }  # fmt: skip
    for name, model in lies.items():
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    program = textwrap.dedent("""
        import pathlib, resource, sys
        import numpy as np, lezero as lz
        x = np.ones((4, 60), np.float32)
        (lz.tensor(x) * 2).numpy()
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30),) * 2)
        for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
            try:
                lz.onnx.load(path)(x).numpy()
                print(path.stem, "was computed")
            except (lz.onnx.OnnxError, MemoryError):
                pass
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done
