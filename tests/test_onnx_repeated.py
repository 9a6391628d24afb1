"""A model that is called again without gradients is not interpreted again, and gives what it would if it were."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest

import lezero as lz
from lezero.runtime.jit import MAX_VARIANTS

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from lezero.onnx.interpreter import Interpreter  # noqa: E402

RNG = np.random.default_rng(0)
W = RNG.normal(size=(3, 4)).astype(np.float32)


def model(nodes, inputs, weights):
    declared = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    constants = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", declared, [onnx.ValueInfoProto(name="y")], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return lz.onnx.load(made).eval()


def linear():
    return model(
        [helper.make_node("MatMul", ["x", "part.w"], ["y"])], [("x", TensorProto.FLOAT, ["n", 3])], {"part.w": W}
    )


def chosen():
    """x + 1 where k is 7, x * 2 elsewhere."""

    def branch(name, operator, number):
        value = helper.make_node("Constant", [], [name + "c"], value_float=number)
        nodes = [value, helper.make_node(operator, ["x", name + "c"], [name])]
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=name)])

    nodes = [
        helper.make_node("Equal", ["k", "seven"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("a", "Add", 1.0), else_branch=branch("b", "Mul", 2.0)),
    ]
    inputs = [("x", TensorProto.FLOAT, ["n"]), ("k", TensorProto.INT64, [])]
    return model(nodes, inputs, {"seven": np.array(7)})


def looped():
    """x, doubled until its sum is at least 100."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["w"]),
            helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0),
            helper.make_node("Less", ["s", "most"], ["again"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, t, None) for n, t in (("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("v", TensorProto.FLOAT))],
        [onnx.ValueInfoProto(name=n) for n in ("again", "w")],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["", "", "x"], ["y"], body=body)]
    return model(nodes, [("x", TensorProto.FLOAT, ["n"])], {"most": np.float32(100)})


@pytest.fixture
def runs(monkeypatch):
    """Bodies that were interpreted."""
    bodies = []
    run = Interpreter.run

    def noted(self, body, *args):
        bodies.append(body.name)
        return run(self, body, *args)

    monkeypatch.setattr(Interpreter, "run", noted)
    return bodies


def test_the_third_call_of_a_shape_interprets_nothing(runs):
    m = linear()
    with lz.no_grad():
        for k, rows in enumerate([4, 4, 4, 5, 5, 4, 5, 5]):
            x = RNG.normal(size=(rows, 3)).astype(np.float32)
            np.testing.assert_allclose(m(x).numpy(), x @ W, 1e-5, 1e-6)
            assert len(runs) == [1, 2, 2, 3, 4, 4, 4, 4][k]


def test_gradients_are_there_before_and_after():
    m, x = linear(), RNG.normal(size=(4, 3)).astype(np.float32)
    for _ in range(3):
        with lz.no_grad():
            assert not m(x).requires_grad
        m(x).sum().backward()
    (w,) = m.parameters()
    np.testing.assert_allclose(w.grad.numpy(), 3 * np.tile(x.sum(0)[:, None], 4), 1e-5)


def test_weights_that_are_written_to_or_replaced():
    m, x = linear(), np.eye(3, dtype=np.float32)
    with lz.no_grad():
        for _ in range(3):
            m(x)
        m.load_state_dict({"part.w": lz.tensor(2 * W)})
        np.testing.assert_array_equal(m(x).numpy(), 2 * W)
        m.part.w = lz.nn.Parameter(lz.tensor(3 * W))
        for _ in range(3):
            np.testing.assert_array_equal(m(x).numpy(), 3 * W)


def test_results_are_not_written_over_by_later_calls():
    m = linear()
    xs = [RNG.normal(size=(4, 3)).astype(np.float32) for _ in range(6)]
    with lz.no_grad():
        results = [m(x) for x in xs]
    for x, y in zip(xs, results):
        np.testing.assert_allclose(y.numpy(), x @ W, 1e-5, 1e-6)


def test_a_number_that_decides_which_branch(runs):
    m, x = chosen(), np.arange(3, dtype=np.float32)
    with lz.no_grad():
        for k in (7, 8, 7, 8, 8, 7):
            np.testing.assert_array_equal(m(x, np.array(k)).numpy(), x + 1 if k == 7 else x * 2)
        seen = len(runs)
        for k in (7, 8, 7):
            np.testing.assert_array_equal(m(x, lz.tensor(k)).numpy(), x + 1 if k == 7 else x * 2)
        assert len(runs) == seen


def test_a_number_that_is_always_another(runs):
    m, x = chosen(), np.arange(3, dtype=np.float32)
    with lz.no_grad():
        for k in range(3 * MAX_VARIANTS):
            np.testing.assert_array_equal(m(x, np.array(k)).numpy(), x + 1 if k == 7 else x * 2)
    assert m._captured.refused  # nothing is kept for each of them any more


def test_values_that_decide_how_often_something_is_done():
    m = looped()
    with lz.no_grad():
        for start in (1.0, 30.0, 1.0, 99.0):
            x = np.array([start, 0], np.float32)
            want = 2 * x
            while want.sum() < 100:
                want *= 2
            np.testing.assert_array_equal(m(x).numpy(), want)


def test_inside_a_captured_function_and_when_explained():
    m, x = linear(), lz.tensor(RNG.normal(size=(4, 3)).astype(np.float32))
    doubled = lz.jit(lambda x: m(x) * 2)
    with lz.no_grad():
        for _ in range(4):
            np.testing.assert_allclose(doubled(x).numpy(), 2 * x.numpy() @ W, 1e-5, 1e-6)
            m(x)
        assert "matmul" in str(lz.explain(m, x))


def test_threads_may_call_one_model():
    m, wrong = linear(), []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            with lz.no_grad():
                for rows in rng.integers(2, 40, 500):  # more than are kept
                    x = rng.normal(size=(rows, 3)).astype(np.float32)
                    np.testing.assert_allclose(m(x).numpy(), x @ W, 1e-5, 1e-6)
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_copies_and_pickles_are_called_for_themselves():
    m, x = linear(), np.eye(3, dtype=np.float32)
    with lz.no_grad():
        for _ in range(3):
            m(x)
        others = [copy.deepcopy(m), pickle.loads(pickle.dumps(m))]
        m.load_state_dict({"part.w": lz.tensor(2 * W)})
        for other in others:
            for _ in range(3):
                np.testing.assert_array_equal(other(x).numpy(), W)
        np.testing.assert_array_equal(m(x).numpy(), 2 * W)


def test_a_model_that_was_called_goes_with_its_last_reference():
    m = linear()
    with lz.no_grad():
        for _ in range(3):
            m(np.eye(3, dtype=np.float32))
    gone = weakref.ref(m)
    gc.disable()
    try:
        del m
        assert gone() is None
    finally:
        gc.enable()


def test_operands_that_do_not_fit_are_refused_at_any_call():
    m, x = linear(), np.eye(3, dtype=np.float32)
    with lz.no_grad():
        for _ in range(4):
            m(x)
            with pytest.raises(lz.onnx.OnnxError, match="'x' should be float32"):
                m(x.astype(np.float64))
            with pytest.raises(lz.onnx.OnnxError, match="'x' should have shape"):
                m(x[:, :2])
        np.testing.assert_array_equal(m(x).numpy(), W)


def test_a_number_that_decides_is_checked_as_well():
    m, x = chosen(), np.arange(3, dtype=np.float32)
    with lz.no_grad():
        for _ in range(4):
            m(x, np.array(7))
        with pytest.raises(lz.onnx.OnnxError, match="'k' should be int64"):
            m(x, np.array(7, np.int32))


def test_the_mode_of_a_model_without_weights():
    nodes = [helper.make_node("Dropout", ["x"], ["y"], ratio=0.5)]
    declared = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    graph = helper.make_graph(nodes, "g", declared, [onnx.ValueInfoProto(name="y")])
    m = lz.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6))
    x = np.ones(1000, np.float32)
    with lz.no_grad():
        for training in (False, True, False, True):
            m.train(training)
            for _ in range(3):
                assert (m(x).numpy() == 0).any() == training


@pytest.mark.parametrize("at", [0, 2, -1, -3])
def test_a_known_position_is_picked_without_indices(at):
    """It is a view: there are no indices to compute with and to look at."""
    m = model(
        [helper.make_node("Gather", ["x", "at"], ["y"], axis=1)],
        [("x", TensorProto.FLOAT, ["n", 3])],
        {"at": np.array(at)},
    )
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    with lz.no_grad():
        for _ in range(4):
            np.testing.assert_array_equal(m(x).numpy(), x[:, at])
    (variant,) = m._captured._jitted._variants.values()
    assert len(variant.leaves) == 1 and not variant.checks


def test_a_known_position_that_is_not_there():
    m = model(
        [helper.make_node("Gather", ["x", "at"], ["y"], axis=1)],
        [("x", TensorProto.FLOAT, ["n", 3])],
        {"at": np.array(3)},
    )
    with lz.no_grad(), pytest.raises(lz.onnx.OnnxError, match="Gather"):
        m(np.ones((4, 3), np.float32))
