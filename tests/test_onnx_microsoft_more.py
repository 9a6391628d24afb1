"""Operators of ``com.microsoft`` beyond those of ``test_onnx_microsoft.py``: weights of few bits, experts, older forms."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from test_onnx_microsoft import bytes_, compared, model_of, real, scale, zero  # noqa: E402

RNG = np.random.default_rng(0)


def positive(*shape):
    return RNG.random(shape, np.float32) + np.float32(0.1)


GROUPS = RNG.permutation(np.arange(32) // 16).astype(np.int32)
BITS = {"K": 32, "N": 6, "block_size": 16, "bits": 4}
ROWS = np.array([[0, 3], [8, -1]])
WORDS = [real(2, 5, 64), real(2, 5, 32), real(2, 5, 32), None, None, np.array([4, 4], np.int32), np.array(5, np.int32)]
HEADS = {"num_heads": 4, "kv_num_heads": 2}
PAST = [
    real(1, 1, 128), None, None, real(1, 2, 6, 16), real(1, 2, 6, 16), np.array([6], np.int32), np.array(7, np.int32), real(9, 8),
    real(9, 8),
]  # fmt: skip
TABLES = [bytes_(9, 8), bytes_(6, 8), bytes_(2, 8), bytes_(8), bytes_(8)]

# operator, and what is special: operands, attributes, number of results
CASES = {
    "MatMulNBits, groups": ([real(3, 32), bytes_(6, 2, 8), positive(12), None, GROUPS], BITS, 1),
    "MatMulNBits, groups and real zeros": ([real(3, 32), bytes_(6, 2, 8), positive(12), real(12), GROUPS], BITS, 1),
    "MatMulNBits, 2 bits": ([real(3, 32), bytes_(6, 2, 4), positive(12), bytes_(6)], BITS | {"bits": 2}, 1),
    "MatMulBnb4, FP4": ([real(3, 32), bytes_(96), positive(12)], BITS | {"quant_type": 0, "bits": None}, 1),
    "MatMulBnb4, NF4": ([real(3, 32), bytes_(96), positive(12)], BITS | {"quant_type": 1, "bits": None}, 1),
    "GatherBlockQuantized": ([bytes_(9, 16), ROWS, positive(9, 2)], {"bits": 4, "block_size": 16}, 1),
    "GatherBlockQuantized, zeros": ([bytes_(9, 16), ROWS, positive(9, 2), bytes_(9, 1)], {"bits": 4, "block_size": 16}, 1),
    "GatherBlockQuantized, 8 bits": ([bytes_(9, 32), ROWS, positive(9, 2), bytes_(9, 2)], {"bits": 8, "block_size": 16}, 1),
    "GroupQueryAttention, soft cap": (WORDS, HEADS | {"softcap": 2.0}, 3),
    "GroupQueryAttention, smooth": (WORDS, HEADS | {"smooth_softmax": 1}, 3),
    "GroupQueryAttention, sink": ([*WORDS, None, None, None, None, real(4)], HEADS, 3),
    "GroupQueryAttention, not causal": (WORDS, HEADS | {"causal": 0}, 3),
    "GroupQueryAttention, scores": (WORDS, HEADS | {"qk_output": 1, "softcap": 1.5}, 4),
    "GroupQueryAttention, shares": (WORDS, HEADS | {"qk_output": 2}, 4),
    "GroupQueryAttention, sink and past": (
        [*PAST, None, None, real(4)], HEADS | {"do_rotary": 1, "local_window_size": 4, "softcap": 3.0}, 3
    ),
    "QEmbedLayerNormalization": (
        [
            RNG.integers(0, 9, (2, 4)).astype(np.int32), RNG.integers(0, 2, (2, 4)).astype(np.int32), *TABLES,
            np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32), *map(scale, (0.1, 0.2, 0.3, 0.01, 0.02)),
            *map(zero, (3, 100, 128, 7, 9)),
        ],
        {"epsilon": 1e-5}, 2,
    ),
    "Trilu": ([real(2, 4, 5), np.array(1)], {"upper": 0}, 1),
    "GatherND": ([real(3, 4, 5), np.array([[0, 1], [2, 3]])], {}, 1),
    "Pad": ([real(3, 4), np.array([0, 1, 2, 0]), scale(1.5)], {"mode": "constant"}, 1),
    "Range": ([scale(1), scale(9.5), scale(2)], {}, 1),
    "Range, by one": ([np.array(3), np.array(9)], {}, 1),
    "Unique": ([np.array([2, 1, 1, 3, 4, 3], np.float32)], {}, 3),
    "ExpandDims": ([real(3, 4), np.array(-1, np.int32)], {}, 1),
    "Inverse": ([real(2, 4, 4)], {}, 1),
    "CDist": ([real(5, 4), real(6, 4)], {"metric": "euclidean"}, 1),
    "CDist, squared": ([real(5, 4), real(6, 4)], {"metric": "sqeuclidean"}, 1),
    "GatedRMSNorm": ([real(2, 3, 8), real(4), real(2, 3, 8)], {"activation": "silu", "epsilon": 1e-3}, 1),
    "LinearAttention": (
        [real(2, 3, 8), real(2, 3, 8), real(2, 3, 8), real(2, 2, 4, 4), -abs(real(2, 3, 2)), abs(real(2, 3, 2))],
        {"q_num_heads": 2, "kv_num_heads": 2}, 2,
    ),
    "CausalConvWithState": ([real(2, 3, 8), real(3, 1, 4), real(3), real(2, 3, 3)], {"activation": "silu"}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    operands, attributes, results = CASES[name]
    attributes = {k: v for k, v in attributes.items() if v is not None}
    compared(name.split(",")[0], "com.microsoft", operands, attributes, results)


SWIGLU = {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
"""As gpt-oss has it, with a limit that is met."""


def chosen(activation, normalised):
    gated = activation == "swiglu"
    attributes = {"k": 2, "activation_type": activation, "normalize_routing_weights": normalised}
    return 2 if gated else 1, attributes | (SWIGLU if gated else {})


@pytest.mark.parametrize("normalised", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
def test_mixtures_of_experts(activation, normalised):
    wide, attributes = chosen(activation, normalised)
    operands = [real(5, 8), real(5, 4), real(4, 12 * wide, 8), real(4, 12 * wide), real(4, 8, 12), real(4, 8)]
    compared("MoE", "com.microsoft", operands, attributes, 1)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("activation", ["silu", "swiglu"])
def test_experts_of_few_bits(activation, bits, blocks):
    wide, attributes = chosen(activation, 1)
    each = 8 // bits
    of_1, of_2 = (positive(4, rows, *([n] if blocks else [])) / 99 for rows, n in ((64 * wide, 2), (32, 4)))
    operands = [
        real(2, 3, 32), real(6, 4), bytes_(4, 64 * wide, 32 // each), of_1, real(4, 64 * wide), bytes_(4, 32, 64 // each), of_2,
        real(4, 32),
    ]  # fmt: skip
    attributes |= {"expert_weight_bits": bits} | ({"block_size": 16} if blocks else {})
    compared("QMoE", "com.microsoft", operands, attributes, 1)


def test_groups_with_zero_points_of_few_bits():
    """The definition itself: ONNX Runtime leaves such zero points out where there are groups."""
    a, b, scales, zeros = real(3, 32), bytes_(6, 2, 8), positive(12), bytes_(6)
    model = lz.onnx.load(model_of("MatMulNBits", "com.microsoft", [a, b, scales, zeros, GROUPS], BITS, 1))
    codes = np.stack([b & 15, b >> 4], -1).reshape(6, 32).astype(np.float32)
    zero_of = np.stack([zeros & 15, zeros >> 4], -1).astype(np.float32)
    w = (codes - zero_of[:, GROUPS]) * scales.reshape(6, 2)[:, GROUPS]
    np.testing.assert_allclose(model(a, b, scales, zeros, GROUPS).numpy(), a @ w.T, 1e-4, 1e-4)


def test_a_table_of_narrow_integers():
    """As the quantizer writes it: a constant of 4 bits."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from onnx import TensorProto, helper, numpy_helper

    table = RNG.integers(0, 15, (9, 32)).astype(ml_dtypes.uint4)
    constants = [numpy_helper.from_array(a, n) for n, a in {"t": table, "s": positive(9, 2), "z": table[:, :2]}.items()]
    node = helper.make_node("GatherBlockQuantized", ["t", "i", "s", "z"], ["y"], domain="com.microsoft", block_size=16)
    declared = [helper.make_tensor_value_info("i", TensorProto.INT64, [2, 2])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2, 32])]
    graph = helper.make_graph([node], "g", declared, results, constants)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with lz.no_grad():
        loaded = lz.onnx.load(model)
        for _ in range(4):
            np.testing.assert_allclose(loaded(ROWS).numpy(), session.run(None, {"i": ROWS})[0], 1e-6)


@pytest.mark.parametrize("together", ["all", "keys and values"])
def test_queries_keys_and_values_in_one_tensor(together):
    """Only other devices' kernels take them so: given as three to ONNX Runtime."""
    q, k, v = real(2, 5, 3, 4), real(2, 5, 3, 4), real(2, 5, 3, 4)
    flat = [x.reshape(2, 5, 12) for x in (q, k, v)]
    model = model_of("MultiHeadAttention", "com.microsoft", flat, {"num_heads": 3}, 1)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, dict(zip(("i0", "i1", "i2"), flat)))
    packed = [np.stack([q, k, v], 3)] if together == "all" else [flat[0], np.stack([k, v], 3)]
    got = lz.onnx.load(model_of("MultiHeadAttention", "com.microsoft", packed, {"num_heads": 3}, 1))(*packed)
    np.testing.assert_allclose(got.detach().numpy(), want, 1e-4, 1e-5)


def test_a_norm_of_queries_and_keys():
    """Only other devices' kernels have it: given normalised ones to ONNX Runtime."""
    weights = [positive(16), positive(16)]

    def normal(x, w):
        heads = x.reshape(2, 5, -1, 16)
        return (heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * w).reshape(x.shape)

    plain = [normal(WORDS[0], weights[0]), normal(WORDS[1], weights[1]), *WORDS[2:]]
    model = model_of("GroupQueryAttention", "com.microsoft", plain, HEADS, 3)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, {f"i{k}": a for k, a in enumerate(plain) if a is not None})
    operands = [*WORDS, *[None] * 7, *weights]
    loaded = lz.onnx.load(model_of("GroupQueryAttention", "com.microsoft", operands, HEADS, 3))
    for g, w in zip(loaded(*[a for a in operands if a is not None]), want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, 1e-4, 1e-5)
