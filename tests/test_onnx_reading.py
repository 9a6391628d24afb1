"""Reading ONNX files: what is in them, where else it may lie, and what is wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import lezero as lz

onnx = pytest.importorskip("onnx", reason="needed to read the files: pip install 'lezero[onnx]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from lezero.onnx import OnnxError, load  # noqa: E402

FLOAT = TensorProto.FLOAT


def value(name, shape=None, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, inputs, outputs, weights=(), opset=21, **more):
    tensors = [numpy_helper.from_array(a, n) for n, a in dict(weights).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset), *more.pop("domains", ())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **more)


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), name=f"the {operator}", **attributes)


RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(4, 60)).astype(np.float32), RNG.normal(size=(60, 50)).astype(np.float32)


def linear(**more):
    return model_of([node("MatMul", "x w", "y")], [value("x", ["n", 60])], [value("y", ["n", 50])], {"w": W}, **more)


def check(model, x=X, want=None):
    np.testing.assert_allclose(model(x).detach().numpy(), x @ W if want is None else want, rtol=1e-5, atol=1e-5)


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_path_bytes_and_a_message_give_the_same(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(linear(), path)
    for source in (path, str(path), path.read_bytes(), linear()):
        model = load(source)
        check(model)
        assert model.input_names == ["x"] and model.output_names == ["y"] and "w" in model.state_dict()


def test_two_sizes_of_a_dynamic_dimension():
    model = load(linear())
    check(model)
    check(model, np.tile(X, (3, 1)))
    check(model, X[:1])


def test_shapes_computed_from_a_dynamic_dimension():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis", "n1"),
        node("Concat", "n1 rest", "to", axis=0),
        node("Reshape", "x to", "y"),
    ]
    weights = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([6, -1])}
    model = load(model_of(nodes, [value("x", ["n", 60])], [value("y")], weights))
    for rows in (4, 7):
        x = RNG.normal(size=(rows, 60)).astype(np.float32)
        np.testing.assert_array_equal(model(x).numpy(), x.reshape(rows, 6, 10))


def test_weights_in_constant_nodes_and_small_ones():
    constant = node("Constant", "", "w", value=numpy_helper.from_array(W, "w"))
    check(load(model_of([constant, node("MatMul", "x w", "y")], [value("x", ["n", 60])], [value("y")])))


def test_what_of_constants_is_trained():
    """Weights, wherever they are; not single numbers in nodes, nor statistics, also where a branch reads them."""
    constants = {"w": W, "three": np.array([3], np.float32), "mean": W[0], "var": W[0] ** 2, "b": W[1]}
    nodes = [node("Constant", "", n, value=numpy_helper.from_array(constants[n])) for n in ("w", "three", "mean")]
    weights = {n: constants[n] for n in ("b", "var")}
    nodes += [node("MatMul", "x w", "h"), node("Mul", "h three", "m"), node("Add", "m one", "p")]
    normal = helper.make_graph([node("BatchNormalization", "p b b mean var", "n")], "n", [], [value("n")])
    nodes.append(node("If", "c", "y", then_branch=normal, else_branch=normal))
    model = load(
        model_of(
            nodes, [value("x"), value("c", [], TensorProto.BOOL)], [value("y")], weights | {"one": np.float32([1])}
        )
    )
    assert {n for n, _ in model.named_parameters()} == {"w", "b", "one"}
    assert {n for n, _ in model.named_buffers()} == {"three", "mean", "var"}
    want = (X @ W * 3 + 1 - W[0]) / np.sqrt(W[0] ** 2 + 1e-5) * W[1] + W[1]
    np.testing.assert_allclose(model(X, np.array(True)).detach().numpy(), want, 1e-4, 1e-4)


def test_a_file_that_is_written_over_or_cut_short_while_its_model_is_in_use(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(linear(), path)
    model = load(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    check(model)
    path.write_bytes(b"")
    check(model)


def test_a_file_that_ends_before_what_it_is_said_to_hold(tmp_path):
    from lezero.onnx.stored import Stored

    path = tmp_path / "w.bin"
    path.write_bytes(bytes(39))
    for stored in (Stored(path), Stored(memoryview(path.read_bytes()))):
        assert not stored.array(7, (2, 4), np.dtype("f4")).any()
        with pytest.raises(EOFError):
            stored.array(8, (2, 4), np.dtype("f4"))
        stored.close()


@pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs"), reason="how much memory a process took is asked of Linux"
)
def test_weights_are_in_memory_once(tmp_path):
    w = np.arange(16 << 20, dtype=np.float32)
    nodes = [node("Mul", "x w", "m"), node("ReduceMax", "m", "y")]
    onnx.save(model_of(nodes, [value("x", [1])], [value("y")], {"w": w}), tmp_path / "m.onnx")
    code = """if True:
        import sys, lezero as lz, numpy as np, onnx.helper, onnx.numpy_helper
        open("/proc/self/clear_refs", "w").write("5")
        peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) << 10
        before = peak()
        with lz.no_grad():
            lz.onnx.load(sys.argv[1]).eval()(np.ones(1, np.float32)).numpy()
        print(peak() - before)
    """
    command = [sys.executable, "-c", code, str(tmp_path / "m.onnx")]
    taken = [int(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(2)]
    assert w.nbytes <= min(taken) < 1.25 * w.nbytes  # the first may compile a kernel


def test_nodes_in_any_order_and_results_left_out():
    nodes = [node("Relu", "m", "y"), node("MatMul", "x w", "m")]
    check(load(model_of(nodes, [value("x")], [value("y")], {"w": W})), want=np.maximum(X @ W, 0))


@pytest.mark.parametrize("folder", ["", "weights"])
def test_data_in_another_file(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    place = os.path.join(folder, "w.bin")
    path = tmp_path / "m.onnx"
    onnx.save(linear(), path, save_as_external_data=True, location=place, size_threshold=0)
    assert (tmp_path / place).stat().st_size >= W.nbytes
    check(load(path))


def test_functions_with_attributes_of_their_own():
    body = [
        helper.make_node("LeakyRelu", ["a"], ["b"]),
        helper.make_node("Add", ["b", "a"], ["c"]),
    ]
    reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    body[0].attribute.append(reference)
    function = helper.make_function("mine", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 21)], ["slope"])
    call = helper.make_node("Twice", ["x"], ["y"], domain="mine", slope=0.25)
    domains = [helper.make_opsetid("mine", 1)]
    model = load(model_of([call], [value("x")], [value("y")], domains=domains, functions=[function]))
    check(model, want=np.where(X > 0, X, X * 0.25) + X)


def test_opset_7():
    """Attributes that are operands later: axes of Squeeze, bounds of Clip, pads of Pad, bounds of Slice."""
    nodes = [
        node("Pad", "x", "p", pads=[0, 1, 0, 2], mode="constant", value=3.0),
        node("Slice", "p", "s", axes=[1], starts=[0], ends=[5]),
        node("Unsqueeze", "s", "u", axes=[0]),
        node("Clip", "u", "c", min=-1.0, max=1.0),
        node("Squeeze", "c", "q", axes=[0]),
        node("ReduceSum", "q", "r", axes=[1], keepdims=0),
        node("Dropout", "r", "y", ratio=0.5),
    ]
    want = np.pad(X, ((0, 0), (1, 2)), constant_values=3)[:, :5].clip(-1, 1).sum(1)
    check(load(model_of(nodes, [value("x")], [value("y")], opset=7)).eval(), want=want)


def test_a_step_of_training_changes_the_weights_and_lowers_the_loss():
    nodes = [node("Gemm", "x w b", "h"), node("Tanh", "h", "t"), node("MatMul", "t v", "y")]
    weights = {"w": W * 0.1, "b": np.zeros(50, np.float32), "v": RNG.normal(size=(50, 1)).astype(np.float32)}
    model = load(model_of(nodes, [value("x", ["n", 60])], [value("y")], weights))
    assert {n for n, _ in model.named_parameters()} == set(weights)
    optimizer = lz.optim.SGD(model.parameters(), lr=1e-3)
    target = lz.tensor(RNG.normal(size=(4, 1)).astype(np.float32))
    losses = []
    for _ in range(2):
        loss = ((model(lz.tensor(X)) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert all(not np.array_equal(p.detach().numpy(), weights[n]) for n, p in model.named_parameters())


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"not a model", bytes(100), b"\x89PNG\r\n\x1a\n" + bytes(range(200))])
def test_a_file_that_is_no_model(tmp_path, data):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(OnnxError, match=r"m\.onnx"):
        load(path)
    with pytest.raises(OnnxError):
        load(data)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut_short(tmp_path, share):
    data = linear().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(OnnxError, match=r"m\.onnx"):
        load(path)


def test_a_newer_format_and_newer_operators():
    newer = linear()
    newer.ir_version = onnx.IR_VERSION + 1
    with pytest.raises(OnnxError, match=rf"version {onnx.IR_VERSION + 1} of the format.*pip install -U onnx"):
        load(newer)
    newest = onnx.defs.onnx_opset_version()
    with pytest.raises(OnnxError, match=rf"version {newest + 1} of the operators.* up to {newest}"):
        load(linear(opset=newest + 1))


def test_a_circle():
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b")]
    with pytest.raises(OnnxError, match=r"the (Add|Relu).*needs its own result"):
        load(model_of(nodes, [value("x")], [value("b")]))


def test_an_operator_and_a_domain_that_are_not_known():
    with pytest.raises(OnnxError, match=r"Frobnicate \(node 'the Frobnicate'\).*not supported in version 21"):
        load(model_of([node("Frobnicate", "x", "y")], [value("x")], [value("y")]))
    unknown = node("Relu", "x", "y", domain="com.example")
    with pytest.raises(OnnxError, match=r"com\.example\.Relu \(node 'the Relu'\).*domain 'com\.example'"):
        load(model_of([unknown], [value("x")], [value("y")], domains=[helper.make_opsetid("com.example", 1)]))


def test_an_operator_that_is_not_known_inside_a_branch():
    branches = {
        name: helper.make_graph([node("Frobnicate", "x", name)], name, [], [value(name)])
        for name in ("then_branch", "else_branch")
    }
    nodes = [node("If", "c", "y", **branches)]
    with pytest.raises(OnnxError, match="node 'the Frobnicate'"):
        load(model_of(nodes, [value("x"), value("c", [], TensorProto.BOOL)], [value("y")]))


def elsewhere(tmp_path, location):
    """A model beside a folder, whose weights are said to lie at `location`."""
    model = linear()
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=str(location))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    return folder / "m.onnx"


@pytest.mark.parametrize("kind", ["above", "absolute", "through a link", "above a folder that is not there"])
def test_data_outside_the_folder_are_refused(tmp_path, kind):
    secret = tmp_path / "secret.bin"
    location = {"above": "../secret.bin", "absolute": secret, "through a link": "w.bin"}.get(
        kind, "no/../../secret.bin"
    )
    path = elsewhere(tmp_path, location)
    if kind == "through a link":
        (path.parent / "w.bin").symlink_to(secret)
    with pytest.raises(OnnxError, match=r"'w'.*outside the model's folder"):
        load(path)


def test_an_absolute_path_inside_the_folder_is_refused_too(tmp_path):
    path = elsewhere(tmp_path, tmp_path / "model" / "w.bin")
    (path.parent / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(OnnxError, match="outside the model's folder"):
        load(path)


def test_data_that_are_missing_or_too_short(tmp_path):
    path = elsewhere(tmp_path, "w.bin")
    with pytest.raises(OnnxError, match=r"'w'.*'w\.bin', which is not there"):
        load(path)
    (path.parent / "w.bin").write_bytes(W.tobytes()[:-4])
    with pytest.raises(OnnxError, match=r"'w' is float32 of shape \[60, 50\], 12000 bytes"):
        load(path)


def test_a_name_that_nothing_gives():
    with pytest.raises(OnnxError, match=r"nothing gives 'nowhere', which is read by Add \(node 'the Add'\)"):
        load(model_of([node("Add", "x nowhere", "y")], [value("x")], [value("y")]))
    with pytest.raises(OnnxError, match="nothing gives 'z', which is read by the results"):
        load(model_of([node("Relu", "x", "y")], [value("x")], [value("z")]))


def test_a_name_that_is_given_twice():
    with pytest.raises(OnnxError, match="gives 'y', which is given already"):
        load(model_of([node("Relu", "x", "y"), node("Neg", "x", "y")], [value("x")], [value("y")]))


def test_a_shape_that_is_contradicted_when_called():
    model = load(linear())
    with pytest.raises(OnnxError, match=r"input 'x' should have shape \[n, 60\], not \[4, 59\]"):
        model(X[:, :59])
    with pytest.raises(OnnxError, match=r"input 'x' should have shape \[n, 60\], not \[60\]"):
        model(X[0])
    with pytest.raises(OnnxError, match="input 'x' should be float32, not float64"):
        model(X.astype(np.float64))
    two = load(model_of([node("Add", "a b", "y")], [value("a", ["n"]), value("b", ["n"])], [value("y")]))
    with pytest.raises(OnnxError, match=r"input 'b' has shape \[1\] where \[n\] is wanted, and n is 3 in 'a'"):
        two(np.zeros(3, np.float32), np.zeros(1, np.float32))


def test_shapes_that_do_not_fit_name_the_node():
    model = load(model_of([node("MatMul", "x w", "y")], [value("x")], [value("y")], {"w": W}))
    with pytest.raises(OnnxError, match=r"MatMul \(node 'the MatMul'\).*\(4, 59\)"):
        model(X[:, :59])


def test_what_an_operator_refuses_names_the_node_once():
    sequence = [node("SequenceConstruct", "x", "s"), node("SequenceAt", "s k", "y")]
    model = load(model_of(sequence, [value("x")], [value("y")], {"k": np.array(7)}))
    with pytest.raises(OnnxError, match=r"^SequenceAt \(node 'the SequenceAt'\): position 7 in a sequence of 1"):
        model(X)


def test_inputs_that_are_missing_or_too_many():
    model = load(linear())
    with pytest.raises(TypeError, match="missing inputs: x"):
        model()
    with pytest.raises(TypeError, match="no input 'z'"):
        model(z=X)
    with pytest.raises(TypeError, match=r"1 inputs \(x\), 2 were given"):
        model(X, X)


@pytest.mark.parametrize("dimension", [-1, "?"])
def test_extents_that_exporters_did_not_know(dimension):
    shape = value("x", [dimension, dimension])
    check(load(model_of([node("MatMul", "x w", "y")], [shape], [value("y")], {"w": W})))


@pytest.fixture
def layer():
    """x @ weight, plus whether x is positive as a float; `mask` is optional in nothing and of integers."""
    weight = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "weight"], ["product"]),
        onnx.helper.make_node("Cast", ["mask"], ["wide"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("MatMul", ["wide", "product"], ["y"]),
    ]
    info, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    graph = onnx.helper.make_graph(
        nodes,
        "layer",
        [info("x", kinds.FLOAT, ["rows", 3]), info("mask", kinds.INT64, [1, "rows"])],
        [info("y", kinds.FLOAT, None)],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    return lz.onnx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10))


def test_a_model_shows_what_it_takes_and_gives(layer):
    text = repr(lz.nn.Sequential(layer))
    for line in (
        "input 'x': float32 [rows, 3]",
        "input 'mask': int64 [1, rows]",
        "output 'y': float32",
        "opset ai.onnx 17; 6 parameters",
    ):
        assert line in text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_converted_model_takes_and_gives_the_new_dtype(layer, dtype, grad):
    x, mask = lz.tensor(np.ones((2, 3), np.float32)), lz.tensor(np.array([[1, 2]]))
    want = layer(x, mask)
    lz.nn.Sequential(layer).to(dtype)
    with lz.set_grad_enabled(grad):
        for _ in range(3):
            got = layer(x.to(dtype), mask)
    assert got.dtype.name == dtype
    np.testing.assert_allclose(got.float().detach().numpy(), want.detach().numpy(), rtol=2e-2)
    with pytest.raises(
        lz.onnx.OnnxError, match=f"'x' should be {dtype}, as the model's parameters are now, not float32"
    ):
        layer(x, mask)
    layer.float()
    np.testing.assert_allclose(layer(x, mask).detach().numpy(), want.detach().numpy(), rtol=2e-2)


@pytest.mark.parametrize("value", [None, "photo.jpg", 1.5, [1.0, 2.0]])
def test_an_input_that_is_no_tensor_is_named(layer, value):
    with pytest.raises(TypeError, match=r"input 'x': float32 \[rows, 3\] should be a Tensor or an array, not"):
        layer(value, np.array([[1, 2]]))
