"""Operators of ``com.microsoft``, and quantised ones of the standard, give what ONNX Runtime gives."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)


def real(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def bytes_(*shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


def scale(x):
    return np.array(x, np.float32)


def zero(x, dtype=np.uint8):
    return np.array(x, dtype)


def model_of(operator, domain, operands, attributes, results):
    """A model of one node; operands are its inputs, None one that is left out."""
    helper = onnx.helper
    inputs = [None if a is None else f"i{k}" for k, a in enumerate(operands)]
    node = helper.make_node(
        operator, [n or "" for n in inputs], [f"o{k}" for k in range(results)], domain=domain, **attributes
    )
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(inputs, operands) if n
    ]  # fmt: skip
    graph = helper.make_graph([node], "one", declared, [onnx.ValueInfoProto(name=f"o{k}") for k in range(results)])
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


U8, I8 = np.uint8, np.int8
QA = (bytes_(2, 3, 8, 8), scale(0.02), zero(120))  # a quantised picture with its scale and zero point
HIDDEN = 12

# operator: operands, attributes, number of results; a list where there are several
CASES = {
    "QLinearAdd": ([*QA, bytes_(8), scale(0.03), zero(5), scale(0.05), zero(100)], {}, 1),
    "QLinearAdd signed": (
        [bytes_(4, 6, dtype=I8), scale(0.1), zero(-3, I8), bytes_(4, 6, dtype=I8), scale(0.073), zero(9, I8), scale(0.191), zero(1, I8)],
        {}, 1,
    ),
    "QLinearMul": ([*QA, bytes_(3, 1, 8), scale(0.01), zero(7), scale(0.02), zero(30)], {}, 1),
    "QLinearSigmoid": ([*QA, scale(1 / 256), zero(0)], {}, 1),
    "QLinearLeakyRelu": ([*QA, scale(0.02), zero(60)], {"alpha": 0.2}, 1),
    "QLinearSoftmax": ([*QA, scale(1 / 256), zero(0)], {"axis": -1, "opset": 13}, 1),
    "QLinearWhere": (
        [RNG.random((2, 3, 8, 8)) < 0.5, *QA, bytes_(8), scale(0.03), zero(5), scale(0.05), zero(100)], {}, 1
    ),
    "NhwcMaxPool": ([bytes_(2, 7, 6, 3, dtype=I8)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, 1),
    "QLinearConv": (
        [bytes_(2, 6, 5, 3), scale(0.02), zero(120), bytes_(4, 3, 3, 3, dtype=I8), scale(0.3), zero(0, I8), scale(1.5), zero(90),
         np.arange(4, dtype=np.int32)],
        {"channels_last": 1, "pads": [1, 1, 1, 1]}, 1,
    ),
    "QLinearConcat": ([scale(0.03), zero(8), *QA, bytes_(2, 1, 8, 8), scale(0.01), zero(3)], {"axis": 1}, 1),
    "QGemm": (
        [bytes_(4, 6), scale(0.1), zero(9), bytes_(5, 6, dtype=I8), scale(0.2), zero(0, I8), np.arange(5, dtype=np.int32), scale(3), zero(128)],
        {"transB": 1}, 1,
    ),
    "QGemm to floats": (
        [bytes_(4, 6), scale(0.1), zero(9), bytes_(6, 5, dtype=I8), scale(0.2), zero(0, I8), None, None, None],
        {"alpha": 0.5}, 1,
    ),
    "MatMulIntegerToFloat": (
        [bytes_(2, 4, 6), bytes_(6, 5, dtype=I8), scale(0.1), RNG.random(5).astype(np.float32), zero(7), zero(0, I8), real(5)], {}, 1
    ),
    "DynamicQuantizeMatMul": ([real(2, 4, 6), bytes_(6, 5), scale(0.1), zero(99), real(5)], {}, 1),
    "FusedMatMul": ([real(2, 6, 4), real(2, 5, 6)], {"transA": 1, "transB": 1, "alpha": 0.25}, 1),
    "FusedMatMul batches": ([real(4, 2, 6), real(2, 6, 5)], {"transBatchA": 1}, 1),
    "Gelu": ([real(3, 5)], {}, 1),
    "BiasGelu": ([real(3, 5), real(5)], {}, 1),
    "FastGelu": ([real(3, 5), real(5)], {}, 1),
    "QuickGelu": ([real(3, 5)], {"alpha": 1.5}, 1),
    "SkipLayerNormalization": ([real(2, 3, 8), real(2, 3, 8), real(8), real(8), real(8)], {"epsilon": 1e-3}, 1),
    "SkipSimplifiedLayerNormalization": ([real(2, 3, 8), real(2, 3, 8), real(8)], {"epsilon": 1e-3}, 1),
    "EmbedLayerNormalization": (
        [
            RNG.integers(0, 9, (2, 4)).astype(np.int32), RNG.integers(0, 2, (2, 4)).astype(np.int32), real(9, 8), real(6, 8),
            real(2, 8), real(8), real(8), np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32),
        ],
        {"epsilon": 1e-5}, 2,
    ),
    "FusedConv": ([real(1, 3, 7, 7), real(4, 3, 3, 3), real(4)], {"activation": "LeakyRelu", "activation_params": [0.1], "pads": [1] * 4}, 1),
    "FusedConv sum": ([real(1, 3, 7, 7), real(4, 3, 3, 3), real(4), real(1, 4, 5, 5)], {"activation": "Relu"}, 1),
    "FusedGemm": ([real(3, 4), real(4, 5), real(5)], {"activation": "Relu", "alpha": 0.5}, 1),
    "Attention": ([real(2, 5, 6), real(6, 3 * HIDDEN), real(3 * HIDDEN)], {"num_heads": 3}, 1),
    "Attention lengths": (
        [real(2, 5, 6), real(6, 3 * HIDDEN), real(3 * HIDDEN), np.array([3, 5], np.int32)], {"num_heads": 3}, 1
    ),
    "Attention mask": (
        [real(2, 5, 6), real(6, 3 * HIDDEN), real(3 * HIDDEN), np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)],
        {"num_heads": 3, "unidirectional": 1}, 1,
    ),
    "Attention past": (
        [real(2, 2, 6), real(6, 3 * HIDDEN), real(3 * HIDDEN), None, real(2, 2, 3, 4, 4)], {"num_heads": 3, "unidirectional": 1}, 2
    ),
    "QAttention": (
        [bytes_(2, 5, 8), bytes_(8, 3 * HIDDEN, dtype=I8), real(3 * HIDDEN), scale(0.01), scale(0.02), np.array([5, 4], np.int32),
         zero(128), zero(0, I8)],
        {"num_heads": 3}, 1,
    ),
    "RotaryEmbedding": ([real(2, 5, 24), np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]), real(9, 3), real(9, 3)], {}, 1),
    "RotaryEmbedding from a position": (
        [real(2, 4, 5, 8), np.array([2]), real(9, 2), real(9, 2)], {"interleaved": 1, "num_heads": 4, "rotary_embedding_dim": 4}, 1
    ),
    "MultiHeadAttention": (
        [real(2, 5, 12), real(2, 7, 12), real(2, 7, 18), real(42), np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32), real(1, 3, 5, 7)],
        {"num_heads": 3}, 1,
    ),
    "MultiHeadAttention past": (
        [real(2, 2, 12), real(2, 2, 12), real(2, 2, 12), None, None, None, real(2, 3, 4, 4), real(2, 3, 4, 4)],
        {"num_heads": 3, "unidirectional": 1, "scale": 0.3}, 3,
    ),
    "GroupQueryAttention": (
        [real(2, 5, 64), real(2, 5, 32), real(2, 5, 32), None, None, np.array([4, 4], np.int32), np.array(5, np.int32), real(9, 8), real(9, 8)],
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, 3,
    ),
    "GroupQueryAttention past": (
        [real(1, 1, 128), None, None, real(1, 2, 6, 16), real(1, 2, 6, 16), np.array([6], np.int32), np.array(7, np.int32), real(9, 8), real(9, 8)],
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 4, "rotary_interleaved": 1}, 3,
    ),
    "MatMulNBits": (
        [real(2, 3, 40), bytes_(6, 3, 8), RNG.random(18).astype(np.float32), bytes_(12), None, real(6)],
        {"K": 40, "N": 6, "block_size": 16, "bits": 4}, 1,
    ),
    "MatMulNBits without zeros": (
        [real(3, 32), bytes_(6, 1, 32), RNG.random(6).astype(np.float32)], {"K": 32, "N": 6, "block_size": 32, "bits": 8}, 1
    ),
}  # fmt: skip


def compared(operator, domain, operands, attributes, results, rtol=1e-4, atol=1e-5):
    model = model_of(operator, domain, operands, attributes, results)
    given = [a for a in operands if a is not None]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), given)})
    got = lz.onnx.load(model)(*given)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want):
        g = g.detach().numpy()
        assert g.dtype == w.dtype and g.shape == w.shape
        if g.dtype.kind in "iu":  # a quotient in the middle of two integers may be rounded either way
            distance = np.abs(g.astype(int) - w.astype(int))
            assert distance.max() <= 1 and (distance > 0).mean() <= 0.02
        else:
            np.testing.assert_allclose(g, w, rtol, atol)


@pytest.mark.parametrize("name", CASES)
def test_operators_of_microsoft(name):
    compared(name.split()[0], "com.microsoft", *CASES[name])


@pytest.mark.parametrize("each", [False, True])
def test_lstm_with_weights_of_bytes(each):
    """ONNX Runtime rounds inputs and states to bytes as well."""
    rows = (1, 20) if each else (1,)
    weights = [bytes_(1, n, 20, dtype=I8) for n in (4, 5)]
    of = [v for _ in weights for v in (np.full(rows, 0.004, np.float32), np.zeros(rows, I8))]
    operands = [real(6, 2, 4), *weights, real(1, 40) / 2, None, None, None, None, *of]
    compared("DynamicQuantizeLSTM", "com.microsoft", operands, {"hidden_size": 5}, 3, 0, 0.02)


def test_sentences_of_different_lengths_go_on_where_they_end():
    """Keys beyond a sentence's end are nobody's, and the new one takes the place of the first."""
    operands = [
        real(2, 1, 128), None, None, real(2, 2, 6, 16), real(2, 2, 6, 16), np.array([6, 4], np.int32), np.array(7, np.int32),
        real(9, 8), real(9, 8),
    ]  # fmt: skip
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    model = model_of("GroupQueryAttention", "com.microsoft", operands, attributes, 3)
    given = [a for a in operands if a is not None]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), given)})
    got = [t.numpy() for t in lz.onnx.load(model)(*given)]
    np.testing.assert_allclose(got[0], want[0], 1e-4, 1e-5)
    for g, w in zip(got[1:], want[1:]):
        np.testing.assert_allclose(g[1, :, :5], w[1, :, :5], 1e-4, 1e-5)
        np.testing.assert_allclose(g[0], w[0], 1e-4, 1e-5)


QUANTISED_POOLS = {
    "QLinearGlobalAveragePool": {},
    "QLinearAveragePool": {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
}


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("name", QUANTISED_POOLS)
def test_pools_of_quantised_pictures(name, channels_last):
    attributes = QUANTISED_POOLS[name] | {"channels_last": channels_last}
    compared(name, "com.microsoft", [*QA, scale(0.013), zero(100)], attributes, 1)


STANDARD = {
    "QLinearConv": (
        [*QA, bytes_(4, 3, 3, 3, dtype=I8), RNG.random(4).astype(np.float32), np.zeros(4, I8), scale(1.5), zero(90),
         np.arange(4, dtype=np.int32)],
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    "ConvInteger": ([bytes_(1, 2, 6, 6), bytes_(4, 1, 3, 3), zero(7), zero(50)], {"group": 2}),
    "MatMulInteger": ([bytes_(2, 4, 700), bytes_(700, 5, dtype=I8), zero(7), bytes_(5, dtype=I8)], {}),
    "QLinearMatMul": ([bytes_(4, 6), scale(0.13), zero(9), bytes_(6, 5), scale(0.27), zero(11), scale(43.7), zero(128)], {}),
    "QuantizeLinear": ([real(3, 4, 5) * 9, RNG.random(4).astype(np.float32), bytes_(4)], {"axis": 1}),
    "DequantizeLinear": ([bytes_(3, 4, 5), RNG.random(4).astype(np.float32), bytes_(4)], {"axis": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", STANDARD)
def test_quantised_operators_of_the_standard(name):
    operands, attributes = STANDARD[name]
    compared(name, "", operands, attributes, 1, rtol=1e-6)


def test_sums_of_long_products_are_exact():
    """700 products of the largest bytes are no float32 number."""
    a, b = np.full((1, 700), 255, np.uint8), np.full((700, 1), 255, np.uint8)
    a[0, 0] = 254
    compared("MatMulInteger", "", [a, b], {}, 1)
    got = lz.onnx.load(model_of("MatMulInteger", "", [a, b], {}, 1))(a, b)
    assert got.item() == 699 * 255 * 255 + 254 * 255


def test_an_activation_that_is_not_known_is_named():
    model = model_of("FusedConv", "com.microsoft", CASES["FusedConv"][0], {"activation": "Sine"}, 1)
    with pytest.raises(lz.onnx.OnnxError, match=r"FusedConv.*activation 'Sine' is not supported"):
        lz.onnx.load(model)(*CASES["FusedConv"][0])


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("RotaryEmbedding", {"scale": 2.0}), ("GroupQueryAttention", {"sliding_window_cache": 1, "local_window_size": 4}),
        ("GroupQueryAttention", {"k_quant_type": "PER_TENSOR"}), ("MatMulNBits", {"bits": 3}), ("Attention", {"do_rotary": 1}),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(name, attributes):
    """Rather than left out."""
    operands, given, results = CASES[name]
    model = lz.onnx.load(model_of(name, "com.microsoft", operands, given | attributes, results))
    with pytest.raises(lz.onnx.OnnxError, match=f"{name}.*not supported"):
        model(*[a for a in operands if a is not None])
