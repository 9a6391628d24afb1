"""Models that were read train: through scans, loops and branches, and a published one's last layer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from lezero.nn import functional as F

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import fetch  # noqa: E402

H = onnx.helper
RNG = np.random.default_rng(5)
STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 4, 5
X = RNG.normal(size=(STEPS, BATCH, INPUTS)).astype(np.float32)
START = np.zeros((2, BATCH, HIDDEN), np.float32)
WEIGHTS = {
    "w": RNG.normal(size=(INPUTS, 4 * HIDDEN)).astype(np.float32) / 2,
    "r": RNG.normal(size=(HIDDEN, 4 * HIDDEN)).astype(np.float32) / 2,
    "b": RNG.normal(size=4 * HIDDEN).astype(np.float32),
}


def node(operator, inputs, outputs, **attributes):
    return H.make_node(operator, inputs.split(), outputs.split(), **attributes)


def bare(*names):
    return [onnx.ValueInfoProto(name=n) for n in names]


CELL = [
    node("MatMul", "x_t w", "xw"), node("MatMul", "h r", "hr"), node("Add", "xw hr", "s"), node("Add", "s b", "gates"),
    node("Split", "gates", "i f g o", axis=1, num_outputs=4), node("Sigmoid", "i", "is"), node("Sigmoid", "f", "fs"),
    node("Sigmoid", "o", "os"), node("Tanh", "g", "gt"), node("Mul", "fs c", "fc"), node("Mul", "is gt", "ig"),
    node("Add", "fc ig", "c1"), node("Tanh", "c1", "ct"), node("Mul", "os ct", "h1"), node("Identity", "h1", "y_t"),
]  # fmt: skip
"""One step of an LSTM; its weights are those of the graph around it."""


def model(nodes, inputs, outputs, weights):
    declared = [H.make_tensor_value_info(n, H.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()]
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = H.make_graph(nodes, "g", declared, bare(*outputs), constants)
    return lz.onnx.load(H.make_model(graph, opset_imports=[H.make_opsetid("", 21)], ir_version=10))


def scanned():
    body = H.make_graph(CELL, "cell", bare("h", "c", "x_t"), bare("h1", "c1", "y_t"))
    return [node("Scan", "h0 c0 x", "h_n c_n y", body=body, num_scan_inputs=1)]


def looped():
    given = [
        H.make_tensor_value_info("t", onnx.TensorProto.INT64, []), H.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
        *bare("h", "c"),
    ]  # fmt: skip
    steps = [node("Gather", "x t", "x_t", axis=0), *CELL, node("Identity", "go", "on")]
    body = H.make_graph(steps, "cell", given, bare("on", "h1", "c1", "y_t"))
    count = H.make_node("Constant", [], ["steps"], value_int=STEPS)
    return [count, H.make_node("Loop", ["steps", "", "h0", "c0"], ["h_n", "c_n", "y"], body=body)]


def of_pytorch(x, h, c):
    """The same with PyTorch's cell, and its weights' gradients in the order and shapes that ours have."""
    cell = torch.nn.LSTMCell(INPUTS, HIDDEN)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor(WEIGHTS["w"].T))
        cell.weight_hh.copy_(torch.tensor(WEIGHTS["r"].T))
        cell.bias_ih.copy_(torch.tensor(WEIGHTS["b"]))
        cell.bias_hh.zero_()
    out = []
    for x_t in x:
        h, c = cell(x_t, (h, c))
        out.append(h)
    return torch.stack(out), c, cell


@pytest.mark.parametrize("kind", [scanned, looped])
def test_an_lstm_cell_in_a_body_trains(kind):
    module = model(kind(), {"x": X, "h0": START[0], "c0": START[1]}, ["y", "c_n"], WEIGHTS)
    assert {n for n, _ in module.named_parameters()} == set(WEIGHTS)
    x, theirs = lz.tensor(X, requires_grad=True), torch.tensor(X, requires_grad=True)
    y, c = module(x, *START)
    z, d, cell = of_pytorch(theirs, *map(torch.tensor, START))
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), 1e-5, 1e-5)
    weight = RNG.normal(size=z.shape).astype(np.float32)
    ((y * lz.tensor(weight)).sum() + c.sum()).backward()
    ((z * torch.tensor(weight)).sum() + d.sum()).backward()
    want = {"w": cell.weight_ih.grad.T, "r": cell.weight_hh.grad.T, "b": cell.bias_ih.grad}
    for name, p in module.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), want[name].numpy(), 1e-4, 1e-4)
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), 1e-4, 1e-4)


def test_only_the_branch_that_was_taken_trains():
    def branch(weight):
        return H.make_graph([node("MatMul", f"x {weight}", weight + "y")], weight, [], bare(weight + "y"))

    x = RNG.normal(size=(3, 4)).astype(np.float32)
    weights = {"a": RNG.normal(size=(4, 2)).astype(np.float32), "z": RNG.normal(size=(4, 2)).astype(np.float32)}
    nodes = [node("If", "c", "y", then_branch=branch("a"), else_branch=branch("z"))]
    module = model(nodes, {"x": x, "c": np.array(True)}, ["y"], weights)
    for chosen, other in (("a", "z"), ("z", "a")):
        module.zero_grad()
        module(x, np.array(chosen == "a")).sum().backward()
        gradients = {n: p.grad for n, p in module.named_parameters()}
        np.testing.assert_allclose(gradients[chosen].numpy(), np.tile(x.sum(0)[:, None], 2), 1e-5, 1e-5)
        assert gradients[other] is None or not gradients[other].numpy().any()


def test_dropout_is_for_training_and_statistics_stay():
    x = RNG.normal(size=(400, 3)).astype(np.float32)
    statistics = {"one": np.ones(3, np.float32), "mean": x[0], "var": x[1] ** 2 + 1}
    nodes = [node("BatchNormalization", "x one one mean var", "n"), node("Dropout", "n", "y")]
    module = model(nodes, {"x": x}, ["y"], statistics)
    want = (x - x[0]) / np.sqrt(x[1] ** 2 + 1 + 1e-5) + 1
    with lz.no_grad():
        dropped = module.train()(x).numpy()
        np.testing.assert_allclose(module.eval()(x).numpy(), want, 1e-4, 1e-5)
    gone = dropped == 0
    assert 0.4 < gone.mean() < 0.6
    np.testing.assert_allclose(dropped[~gone], 2 * want[~gone], 1e-4, 1e-5)
    assert {n for n, _ in module.named_buffers()} == {"mean", "var"}


def test_the_last_layer_of_a_published_model_is_trained():
    """Which way up a line of text is: the answer for one picture is turned round, and nothing but the last layer changes."""
    folder = fetch.HOME / "onnx-ocr"
    if not folder.is_dir():
        pytest.skip(f"python examples/fetch.py onnx-ocr has not been run (in {fetch.HOME})")
    module = lz.onnx.load(next(folder.rglob("ch_ppocr_mobile_v2.0_cls_infer.onnx"))).train()
    before = {n: t.numpy().copy() for n, t in module.state_dict().items()}
    last = [module.fc_0.w_0, module.fc_0.b_0]
    for p in module.parameters():
        p.requires_grad_(any(p is q for q in last))
    x = RNG.normal(size=(1, 3, 48, 192)).astype(np.float32)
    optimizer = lz.optim.SGD(last, lr=0.1)
    with lz.no_grad():
        wanted = 1 - module(x).argmax(-1)
    for _ in range(20):
        loss = F.nll_loss(lz.log(module(x)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with lz.no_grad():
        assert module.eval()(x).argmax(-1).item() == wanted.item()
    changed = {n for n, t in module.state_dict().items() if not np.array_equal(t.numpy(), before[n])}
    assert changed == {"fc_0.w_0", "fc_0.b_0"}
