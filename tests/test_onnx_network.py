"""ONNX's operators of networks: ONNX Runtime's results where it has the operator, PyTorch's results and gradients for what trains."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
H = onnx.helper
P = torch.nn.functional
rng = np.random.default_rng(11)


def drawn(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def model(name, operands, outputs=1, opset=21, **attributes):
    """A graph of one node whose operands are all inputs; None leaves one out."""
    names = [f"x{k}" if a is not None else "" for k, a in enumerate(operands)]
    results = [f"y{k}" for k in range(outputs)]
    node = H.make_node(name, names, results, **attributes)
    inputs = [
        H.make_tensor_value_info(n, H.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, operands)
        if a is not None
    ]
    graph = H.make_graph([node], name, inputs, [H.make_empty_tensor_value_info(r) for r in results])
    return H.make_model(graph, opset_imports=[H.make_opsetid("", opset)], ir_version=10)


def ours(made, operands):
    module = lz.onnx.load(made)
    module.eval()
    result = module(*[a for a in operands if a is not None])
    return result if isinstance(result, tuple) else (result,)


def check(name, operands, outputs=1, opset=21, tolerance=1e-5, **attributes):
    """What LeZero and ONNX Runtime make of one node."""
    made = model(name, operands, outputs, opset, **attributes)
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_inputs()]
    theirs = session.run(None, dict(zip(names, [a for a in operands if a is not None])))
    for a, b in zip(ours(made, operands), theirs):
        assert a.numpy().dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b, tolerance, tolerance)


def trained(name, operands, theirs, opset=21, tolerance=1e-4, **attributes):
    """The first result and the gradients of a weighted sum of it are those of a function of PyTorch's."""
    module = lz.onnx.load(model(name, operands, opset=opset, **attributes))
    mine = [lz.tensor(a, requires_grad=a.dtype == np.float32) for a in operands]
    other = [torch.tensor(a, requires_grad=a.dtype == np.float32) for a in operands]
    y, z = module(*mine), theirs(*other)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), tolerance, tolerance)
    weight = rng.standard_normal(tuple(z.shape)).astype(np.float32)
    (y * lz.tensor(weight)).sum().backward()
    (z * torch.tensor(weight)).sum().backward()
    for a, b in zip(mine, other):
        if b.grad is not None:
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), tolerance, tolerance)


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        {"pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1},
        {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    ],
)
@pytest.mark.parametrize("size", [[3, 2], [4, 4]])
def test_pooling(size, attributes):
    x = drawn(2, 3, 9, 8)
    check("MaxPool", [x], 2, kernel_shape=size, **attributes)
    check("MaxPool", [x], 2, kernel_shape=size, storage_order=1, **attributes)
    for include in (0, 1):
        check("AveragePool", [x], kernel_shape=size, count_include_pad=include, **attributes)
    if not attributes.get("ceil_mode"):
        check("LpPool", [x], kernel_shape=size, p=3, **attributes)


def test_pooling_with_dilations_of_sequences_and_volumes():
    check("AveragePool", [drawn(1, 2, 9, 9)], opset=19, kernel_shape=[3, 2], dilations=[2, 3], pads=[1, 0, 2, 0])
    check("MaxPool", [drawn(2, 2, 11)], 2, kernel_shape=[3], dilations=[2], pads=[0, 2])
    check("MaxPool", [drawn(1, 2, 5, 6, 7)], 2, kernel_shape=[2, 3, 2], strides=[2, 1, 2], pads=[1, 1, 0, 0, 1, 1])
    for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        check(name, [drawn(2, 3, 4, 5)])


def test_uneven_pooling_trains():
    x = drawn(2, 3, 8, 7)
    trained(
        "MaxPool", [x], lambda t: P.max_pool2d(P.pad(t, (1, 0, 0, 2), value=-np.inf), 3, 2), kernel_shape=[3, 3],
        strides=[2, 2], pads=[0, 1, 2, 0],
    )  # fmt: skip
    trained(
        "LpPool", [x], lambda t: P.lp_pool2d(t, 4.0, (2, 3), (1, 2)), kernel_shape=[2, 3], strides=[1, 2], p=4, tolerance=1e-3
    )  # fmt: skip


def test_unpooling_scatters_to_where_the_maxima_were():
    x, at = P.max_pool2d(torch.tensor(drawn(1, 1, 6, 6)), 2, return_indices=True)
    check("MaxUnpool", [x.numpy(), at.numpy()], kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": 2, "pads": 1, "output_padding": 1},
        {"strides": 3, "dilations": 2, "group": 2},
        {"strides": 2, "auto_pad": "SAME_UPPER"},
        {"strides": 2, "output_shape": (10, 8, 6)},
    ],
)
def test_transposed_convolutions(n, attributes):
    group = attributes.get("group", 1)
    spread = {k: [v] * (2 * n if k == "pads" else n) for k, v in attributes.items() if type(v) is int and k != "group"}
    rest = {k: list(v[:n]) if k == "output_shape" else v for k, v in attributes.items() if k not in spread}
    operands = [drawn(2, 4, *(5, 4, 3)[:n]), drawn(4, 6 // group, *(3, 2, 3)[:n]), drawn(6)]
    check("ConvTranspose", operands, **spread, **rest)


def test_convolutions_of_volumes():
    operands = [drawn(2, 4, 5, 6, 7), drawn(6, 2, 3, 2, 3), drawn(6)]
    check("Conv", operands, group=2, strides=[2, 1, 1], pads=[1, 0, 1, 2, 0, 1], dilations=[1, 2, 1])


def test_deformable_convolutions():
    x, w = drawn(1, 4, 6, 7), drawn(6, 2, 3, 2)
    offset, mask = drawn(1, 2 * 2 * 6, 6, 8), drawn(1, 2 * 6, 6, 8)
    check("DeformConv", [x, w, offset, drawn(6), mask], opset=19, group=2, offset_group=2, pads=[1, 1, 1, 1])


def test_columns_to_images():
    x = drawn(2, 3 * 6, 20)
    made = model("Col2Im", [x, np.array([6, 8]), np.array([2, 3])], pads=[0, 1, 1, 0], strides=[1, 2], dilations=[2, 1])
    folded = P.fold(torch.tensor(x), (7, 9), (2, 3), (2, 1), 0, (1, 2))[:, :, :6, 1:]
    (y,) = ours(made, [x, np.array([6, 8]), np.array([2, 3])])
    np.testing.assert_allclose(y.numpy(), folded.numpy(), 1e-5, 1e-5)


def test_normalisation():
    x, scale, bias = drawn(3, 4, 5, 6), drawn(4), drawn(4)
    trained("InstanceNormalization", [x, scale, bias], lambda t, s, b: P.instance_norm(t, None, None, s, b))
    trained("GroupNormalization", [x, scale, bias], lambda t, s, b: P.group_norm(t, 2, s, b), num_groups=2)
    check("LayerNormalization", [x, drawn(5, 6), drawn(5, 6)], 3, axis=2, opset=17)
    check("LayerNormalization", [x, drawn(6)], axis=1, opset=17)
    trained("RMSNormalization", [x, drawn(5, 6)], lambda t, s: P.rms_norm(t, (5, 6), s, 1e-5), opset=23, axis=2)
    check("LRN", [x], size=3, alpha=0.5, bias=2.0)
    check("MeanVarianceNormalization", [x], opset=13)
    for p in (1, 2):
        check("LpNormalization", [x], axis=1, p=p, opset=13)


def test_an_even_number_of_neighbours_has_one_more_behind():
    x = drawn(2, 5, 3)
    sums = sum(np.pad(x * x, ((0, 0), (1, 2), (0, 0)))[:, k : k + 5] for k in range(4))
    (y,) = ours(model("LRN", [x], size=4, alpha=0.5, bias=2.0), [x])
    np.testing.assert_allclose(y.numpy(), x / (2 + 0.5 / 4 * sums) ** 0.75, 1e-5)


def test_batch_normalisation_and_its_statistics():
    operands = [drawn(3, 4, 5), drawn(4), drawn(4), drawn(4), abs(drawn(4))]
    check("BatchNormalization", operands, opset=15)
    check("BatchNormalization", operands, 3, opset=15, training_mode=1, momentum=0.7)
    mean, var = operands[0].mean((0, 2)), operands[0].var((0, 2))
    _, running, spread, seen, seen_spread = ours(
        model("BatchNormalization", operands, 5, opset=9, momentum=0.7), operands
    )
    for got, expected in zip((running, seen), (operands[3] * 0.7 + mean * 0.3, mean)):
        np.testing.assert_allclose(got.numpy(), expected, 1e-5, 1e-5)
    for got, expected in zip((spread, seen_spread), (operands[4] * 0.7 + var * 0.3, var)):
        np.testing.assert_allclose(got.numpy(), expected, 1e-5, 1e-5)


def test_dropout_drops_where_the_model_or_its_training_says_so():
    x = np.ones((50, 40), np.float32)
    fixed = model("Dropout", [x, np.float32(0.25), np.array(True)], 2, opset=13)
    y, mask = ours(fixed, [x, np.float32(0.25), np.array(True)])
    np.testing.assert_allclose(y.numpy(), mask.numpy() / np.float32(0.75), 1e-6)
    assert 0.7 < mask.numpy().mean() < 0.8
    module = lz.onnx.load(model("Dropout", [x], opset=13))
    assert (module(lz.tensor(x)).numpy() == 0).mean() > 0.4
    module.eval()
    assert (module(lz.tensor(x)).numpy() == 1).all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction):
    x, weight = drawn(3, 5, 4), abs(drawn(5))
    target = rng.integers(0, 5, (3, 4))
    options = {"reduction": reduction, "ignore_index": 2}
    trained(
        "SoftmaxCrossEntropyLoss",
        [x, target, weight],
        lambda t, c, w: P.cross_entropy(t, c, w.detach(), **options),
        **options,
    )
    trained(
        "NegativeLogLikelihoodLoss",
        [x, target, weight],
        lambda t, c, w: P.nll_loss(t, c, w.detach(), **options),
        **options,
    )
    check("SoftmaxCrossEntropyLoss", [x, target], 2, reduction=reduction)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("name", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(name, gates, direction):
    d = 2 if direction == "bidirectional" else 1
    x, w, r, b = drawn(5, 3, 4), drawn(d, gates * 6, 4), drawn(d, gates * 6, 6), drawn(d, 2 * gates * 6)
    lengths, h = np.array([5, 2, 4], np.int32), drawn(d, 3, 6)
    rest = [drawn(d, 3, 6), drawn(d, 18)] if name == "LSTM" else []
    options = {"linear_before_reset": 1} if name == "GRU" else {}
    check(
        name, [x, w, r, b, lengths, h, *rest], 3 if rest else 2, hidden_size=6, direction=direction, clip=1.5, **options
    )
    check(name, [x, w, r], 2, hidden_size=6, direction=direction)


def test_a_recurrent_layer_trains():
    lstm = torch.nn.LSTM(4, 6)
    w, r, *biases = (p.detach() for p in lstm.parameters())

    def turned(p):  # input, forget, cell, output: the standard's order is input, output, forget, cell
        i, f, c, o = p.chunk(4, 0)
        return torch.cat([i, o, f, c], 0)

    arrays = [drawn(7, 2, 4), *(turned(p).unsqueeze(0).numpy() for p in (w, r))]
    both = torch.cat([turned(p) for p in biases]).unsqueeze(0).numpy()
    module = lz.onnx.load(model("LSTM", [*arrays, both], hidden_size=6))
    x, z = lz.tensor(arrays[0], requires_grad=True), torch.tensor(arrays[0], requires_grad=True)
    y = module(x, *map(lz.tensor, [*arrays[1:], both]))
    out, _ = lstm(z)
    np.testing.assert_allclose(y.detach().numpy()[:, 0], out.detach().numpy(), 1e-5, 1e-5)
    y.square().sum().backward()
    out.square().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize(
    "attributes", [{}, {"is_causal": 1}, {"scale": 0.3}, {"softcap": 2.0}, {"softcap": 2.0, "is_causal": 1}]
)
def test_attention(attributes):
    q, k, v = drawn(2, 6, 5, 8), drawn(2, 6, 7, 8), drawn(2, 6, 7, 8)
    scale, cap = attributes.get("scale", 8**-0.5), attributes.get("softcap", 0)

    def theirs(q, k, v):
        scores = q @ k.mT * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        if attributes.get("is_causal"):
            scores = scores.masked_fill(~torch.ones(5, 7, dtype=torch.bool).tril(), -np.inf)
        return torch.softmax(scores, -1) @ v

    trained("Attention", [q, k, v], theirs, opset=23, **attributes)


def test_attention_with_shared_heads_a_past_and_a_mask():
    q, k, v = drawn(2, 4, 3 * 8), drawn(2, 2, 8), drawn(2, 2, 8)
    past = drawn(2, 1, 3, 8), drawn(2, 1, 3, 8)
    mask = rng.random((4, 5)) < 0.6
    mask[1] = False  # sees nothing, and gives zeros
    operands = [q, k, v, mask, *past]
    y, key, _ = ours(model("Attention", operands, 3, 23, q_num_heads=3, kv_num_heads=1), operands)
    whole = [torch.cat([torch.tensor(p), torch.tensor(x).unsqueeze(1)], 2) for p, x in zip(past, (k, v))]
    np.testing.assert_array_equal(key.numpy(), whole[0].numpy())
    heads = torch.tensor(q).reshape(2, 4, 3, 8).transpose(1, 2)
    out = P.scaled_dot_product_attention(heads, *whole, torch.tensor(mask), enable_gqa=True)
    out = torch.where(torch.tensor(mask).any(-1).reshape(4, 1), out, 0.0)
    np.testing.assert_allclose(y.numpy(), out.transpose(1, 2).reshape(2, 4, 24).numpy(), 1e-5, 1e-5)


def test_gradients_of_attention_stay_finite_where_a_query_sees_nothing():
    q, k, v = (lz.tensor(drawn(1, 1, 3, 4), requires_grad=True) for _ in range(3))
    mask = np.array([[True, False, True], [False] * 3, [True] * 3])
    module = lz.onnx.load(model("Attention", [q.detach().numpy()] * 3 + [mask], opset=23))
    module(q, k, v, lz.tensor(mask)).square().sum().backward()
    assert all(np.isfinite(t.grad.numpy()).all() for t in (q, k, v))
    assert (q.grad.numpy()[0, 0, 1] == 0).all()


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_positions(interleaved):
    x, angles = drawn(2, 3, 5, 8), drawn(9, 3)
    positions = rng.integers(0, 9, (2, 5))
    options = {"interleaved": interleaved, "rotary_embedding_dim": 6}
    operands = [x, np.cos(angles), np.sin(angles), positions]
    (y,) = ours(model("RotaryEmbedding", operands, opset=23, **options), operands)
    turn = np.exp(1j * angles[positions])[:, None]
    a, b = (x[..., 0:6:2], x[..., 1:6:2]) if interleaved else (x[..., :3], x[..., 3:6])
    z = (a + 1j * b) * turn
    parts = np.stack([z.real, z.imag], -1).reshape(2, 3, 5, 6) if interleaved else np.concatenate([z.real, z.imag], -1)
    np.testing.assert_allclose(y.numpy(), np.concatenate([parts, x[..., 6:]], -1), 1e-5, 1e-5)


def test_linear_attention_is_attention_without_a_softmax():
    q, k, v = drawn(2, 6, 4 * 3), drawn(2, 6, 2 * 3), drawn(2, 6, 2 * 5)
    options = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "linear", "scale": 0.5}

    def theirs(q, k, v):
        q, k, v = (t.reshape(2, 6, n, -1).transpose(1, 2) for t, n in ((q, 4), (k, 2), (v, 2)))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        return ((q @ k.mT).tril() @ v * 0.5).transpose(1, 2).reshape(2, 6, 20)

    trained("LinearAttention", [q, k, v], theirs, opset=27, **options)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_goes_on_where_it_stopped(rule):
    q, k, v, decay, beta = drawn(1, 5, 6), drawn(1, 5, 6), drawn(1, 5, 8), -abs(drawn(1, 5, 2)), abs(drawn(1, 5, 2))
    options = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": rule}

    def run(part, past):
        operands = [q[:, part], k[:, part], v[:, part], past, decay[:, part], beta[:, part]]
        return [y.numpy() for y in ours(model("LinearAttention", operands, 2, 27, **options), operands)]

    whole, last = run(slice(None), np.zeros((1, 2, 3, 4), np.float32))
    first, state = run(slice(2), np.zeros((1, 2, 3, 4), np.float32))
    second, end = run(slice(2, None), state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, 1e-5, 1e-6)
    np.testing.assert_allclose(end, last, 1e-5, 1e-6)


def test_causal_convolution_with_a_state():
    x, w, b, past = drawn(2, 3, 7), drawn(3, 1, 4), drawn(3), drawn(2, 3, 3)

    def theirs(x, w, b, past):
        return P.silu(P.conv1d(torch.cat([past, x], 2), w, b, groups=3))

    trained("CausalConvWithState", [x, w, b, past], theirs, opset=27, activation="silu")


def test_swiglu():
    trained("SwiGLU", [drawn(3, 4), drawn(3, 4)], lambda a, b: a * torch.sigmoid(1.5 * a) * b, opset=28, alpha=1.5)


RESIZED = [
    {"mode": "nearest", "nearest_mode": m, "coordinate_transformation_mode": c}
    for m, c in [("floor", "asymmetric"), ("round_prefer_ceil", "half_pixel"), ("ceil", "align_corners")]
] + [
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel", "antialias": 1},
    {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
]


@pytest.mark.parametrize("options", RESIZED)
@pytest.mark.parametrize("size", [(4, 5), (11, 13)])
def test_resizing(size, options):
    x = drawn(2, 3, 7, 8)
    check("Resize", [x, None, None, np.array([2, 3, *size])], opset=19, tolerance=1e-4, **options)


def test_older_forms_of_resizing():
    x, scales = drawn(1, 2, 4, 5), np.array([1, 1, 2, 1.5], np.float32)
    for mode in ("nearest", "linear"):
        check("Upsample", [x], opset=7, mode=mode, scales=scales.tolist())
        check("Upsample", [x, scales], opset=9, mode=mode)
        check("Resize", [x, scales], opset=10, mode=mode)
    cropped = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    roi = np.array([0, 0, -0.2, 0.1, 1, 1, 0.7, 1.2], np.float32)
    check("Resize", [x, roi, np.zeros(0, np.float32), np.array([1, 2, 6, 3])], opset=11, **cropped)


def test_whole_numbers_at_given_places():
    x, grid = rng.integers(-9, 9, (1, 2, 4, 5), np.int32), drawn(1, 3, 3, 2)
    made = model("GridSample", [x, grid], opset=20, mode="nearest")
    expected = P.grid_sample(torch.tensor(x).float(), torch.tensor(grid), "nearest", align_corners=False)
    np.testing.assert_array_equal(ours(made, [x, grid])[0].numpy(), expected.numpy().astype(np.int32))


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize(("mode", "name"), [("linear", "bilinear"), ("cubic", "bicubic")])
def test_resizing_trains(mode, name, antialias):
    """PyTorch leaves out what is outside where it smooths, and uses another cubic."""
    x = drawn(2, 3, 7, 8)
    options = {"exclude_outside": 1, "cubic_coeff_a": -0.5} if antialias else {}
    nodes = [H.make_node("Resize", ["x", "", "", "size"], ["y"], mode=mode, antialias=antialias, **options)]
    size = H.make_tensor("size", onnx.TensorProto.INT64, [4], [2, 3, 4, 4])
    inputs = [H.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)]
    graph = H.make_graph(nodes, "resize", inputs, [H.make_empty_tensor_value_info("y")], [size])
    module = lz.onnx.load(H.make_model(graph, opset_imports=[H.make_opsetid("", 19)], ir_version=10))
    mine, other = lz.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = module(mine), P.interpolate(other, (4, 4), mode=name, antialias=bool(antialias))
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), 1e-4, 1e-5)
    y.square().sum().backward()
    z.square().sum().backward()
    np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions(mode, ratio):
    x, images = drawn(2, 3, 9, 10), np.array([0, 1, 1])
    rois = np.array([[0, 0, 9, 9], [2.2, 1.5, 6.1, 7.7], [-3, 4, 2, 12]], np.float32)
    options = {"output_height": 2, "output_width": 3, "sampling_ratio": ratio, "spatial_scale": 0.8}
    if mode == "avg":  # what is the largest differs between versions of ONNX Runtime
        check("RoiAlign", [x, rois, images], opset=16, mode=mode, **options)
    made = model("RoiAlign", [x, rois, images], opset=16, mode=mode, **options)
    mine = lz.tensor(x, requires_grad=True)
    y = lz.onnx.load(made)(mine, lz.tensor(rois), lz.tensor(images))
    y.sum().backward()
    # results are proportional to the images
    np.testing.assert_allclose((mine.grad.numpy() * x).sum(), y.detach().numpy().sum(), 1e-4)


def test_suppression_of_boxes():
    boxes, scores = rng.random((2, 20, 4)).astype(np.float32), rng.random((2, 3, 20)).astype(np.float32)
    limits = [np.array([4]), np.array([0.3], np.float32), np.array([0.2], np.float32)]
    for centred in (0, 1):
        check("NonMaxSuppression", [boxes, scores, *limits], center_point_box=centred)
