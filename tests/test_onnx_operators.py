"""What the cases of the ``onnx`` package leave open: transforms at other lengths, gradients, random numbers, narrow types, words."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import lezero as lz

onnx = pytest.importorskip("onnx", reason="needed to read models: pip install 'lezero[onnx]'")

from onnx import TensorProto, helper  # noqa: E402

RNG = np.random.default_rng(0)


def run(operator, *operands, domain="", results=1, opset=23, **attributes):
    """What a model of one node gives; None is an operand that is left out."""
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(operands)]
    given = [a for a in operands if a is not None]
    declared = [onnx.ValueInfoProto(name=n) for n in names if n]
    outputs = [f"o{k}" for k in range(results)]
    node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
    graph = helper.make_graph([node], "one", declared, [onnx.ValueInfoProto(name=o) for o in outputs])
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 5)]
    return lz.onnx.load(helper.make_model(graph, opset_imports=sets, ir_version=10))(*given)


def as_complex(y):
    y = y.detach().numpy()
    return y[..., 0] + 1j * y[..., 1]


@pytest.mark.parametrize("length", [None, 5, 8, 12])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms_cut_and_padded(length, inverse):
    x = RNG.normal(size=(3, 9, 2))
    transform = np.fft.ifft if inverse else np.fft.fft
    got = run("DFT", x, None if length is None else np.array(length), np.array(1), inverse=inverse)
    np.testing.assert_allclose(as_complex(got), transform(x[..., 0] + 1j * x[..., 1], length, 1), atol=1e-13)


@pytest.mark.parametrize("n", [7, 8])
def test_half_spectra_and_back(n):
    x = RNG.normal(size=(3, n, 1))
    half = run("DFT", x, None, np.array(-2), onesided=1)
    np.testing.assert_allclose(as_complex(half), np.fft.rfft(x[..., 0]), atol=1e-13)
    back = run("DFT", half.numpy(), np.array(n), np.array(1), onesided=1, inverse=1)
    np.testing.assert_allclose(back.numpy(), x, atol=1e-13)


def test_gradients_of_frames():
    signal = lz.tensor(RNG.normal(size=(1, 24, 1)))
    window = np.hanning(8)
    assert lz.autograd.gradcheck(lambda x: run("STFT", x, np.array(4), window), (signal.requires_grad_(),))


def test_determinants_and_their_gradients():
    torch = pytest.importorskip("torch")
    matrices = RNG.normal(size=(2, 4, 4))
    matrices[0, 0, 0] = 0  # the first pivot has to be another
    x, z = lz.tensor(matrices, requires_grad=True), torch.tensor(matrices, requires_grad=True)
    got, want = run("Det", x), torch.linalg.det(z)
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-12)
    got.sum().backward()
    want.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=1e-10)
    assert run("Det", np.ones((3, 3))).item() == 0


def test_random_numbers_follow_their_distributions_and_seeds():
    shape = {"shape": [100, 100]}
    normal = run("RandomNormal", mean=3.0, scale=2.0, seed=1.0, **shape).numpy()
    assert abs(normal.mean() - 3) < 0.1 and abs(normal.std() - 2) < 0.1
    np.testing.assert_array_equal(normal, run("RandomNormal", mean=3.0, scale=2.0, seed=1.0, **shape).numpy())
    assert not np.array_equal(normal, run("RandomNormal", mean=3.0, scale=2.0, seed=1.5, **shape).numpy())
    uniform = run("RandomUniform", low=-1.0, high=3.0, dtype=TensorProto.DOUBLE, **shape).numpy()
    assert uniform.dtype == np.float64 and uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 0.1
    chances = np.full((100, 100), 0.3, np.float32)
    ones = run("Bernoulli", chances, dtype=TensorProto.INT32).numpy()
    assert ones.dtype == np.int32 and set(np.unique(ones)) == {0, 1} and abs(ones.mean() - 0.3) < 0.03
    drawn = run("Multinomial", np.log(np.array([[0.1, 0.6, 0.3], [0.5, 0.5, 1e-30]])), sample_size=4000).numpy()
    assert drawn.dtype == np.int32
    np.testing.assert_allclose(np.bincount(drawn[0]) / 4000, [0.1, 0.6, 0.3], atol=0.05)
    np.testing.assert_allclose(np.bincount(drawn[1]) / 4000, [0.5, 0.5], atol=0.05)


SMALL_FLOATS = {"FLOAT8E4M3FN": 448, "FLOAT8E4M3FNUZ": 240, "FLOAT8E5M2": 57344, "FLOAT8E5M2FNUZ": 57344}


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_casts_to_floats_of_8_bits_saturate_or_not(name):
    x = np.array([0.3, 1e6, -1e6, np.inf, -np.inf, np.nan], np.float32)
    most = SMALL_FLOATS[name]
    to = getattr(TensorProto, name)
    clipped = run("Cast", x, to=to).astype(np.float32)
    np.testing.assert_array_equal(clipped[1:], np.array([most, -most, most, -most, np.nan], np.float32))
    beyond = run("Cast", x, to=to, saturate=0).astype(np.float32)
    outside = np.inf if name == "FLOAT8E5M2" else np.nan
    np.testing.assert_array_equal(beyond[1:], np.array([outside, -outside, outside, -outside, np.nan], np.float32))
    assert clipped[0] == beyond[0] and abs(clipped[0] - 0.3) < 0.03


@pytest.mark.parametrize(
    "mode, want", [("up", [2, 4, 4, 4, 8]), ("down", [2, 2, 2, 2, 4]), ("nearest", [2, 2, 4, 4, 4])]
)
def test_casts_to_powers_of_two(mode, want):
    x = np.array([2, 2.9, 3, 3.1, 5], np.float32)
    options = {"to": TensorProto.FLOAT8E8M0, "round_mode": mode, "opset": 24}
    np.testing.assert_array_equal(run("Cast", x, **options).astype(np.float32), want)
    edges = np.array([0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(
        run("Cast", edges, saturate=1, **options).astype(np.float64), [2.0**-127, 2.0**127, np.nan]
    )
    assert np.isnan(run("Cast", edges, saturate=0, **options).astype(np.float64)).all()


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_quantised_to_few_bits_and_back(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    info = ml_dtypes.iinfo(dtype)
    x, scale = (RNG.normal(size=(5, 6)) * 4).astype(np.float32), np.float32(0.5)
    got = run("QuantizeLinear", x, scale, np.array(1).astype(dtype), opset=25)
    want = np.clip(np.round(x / 0.5) + 1, info.min, info.max)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(np.float32), want)
    back = run("DequantizeLinear", got, scale, np.array(1).astype(dtype), opset=25)
    np.testing.assert_array_equal(back.numpy(), (want - 1) * 0.5)


def test_bits_of_other_widths_are_refused():
    with pytest.raises(lz.onnx.OnnxError, match=r"BitCast.*elements of 32 bits cannot be taken for int8 of 8"):
        run("BitCast", np.ones(3, np.float32), to=TensorProto.INT8, opset=26)


def test_labels_of_numbers_that_are_none():
    options = {
        "domain": "ai.onnx.ml",
        "keys_floats": [1.5, np.nan],
        "values_strings": ["a", "b"],
        "default_string": "?",
    }
    got = run("LabelEncoder", np.array([[np.nan, 1.5], [2, 0]], np.float32), **options)
    assert got.tolist() == [["b", "a"], ["?", "?"]]


def test_trees_take_the_least_and_the_mean():
    """Two trees of one node each: x <= 0 gives 1 or else 2, and 3 or else 5."""
    floats = {"nodes_splits": np.zeros(2, np.float32), "leaf_weights": np.array([1, 2, 3, 5], np.float32)}
    attributes = {n: helper.make_tensor(n, TensorProto.FLOAT, a.shape, a) for n, a in floats.items()}
    attributes["nodes_modes"] = helper.make_tensor("nodes_modes", TensorProto.UINT8, (2,), np.zeros(2, np.uint8))
    attributes |= {
        "tree_roots": [0, 1], "nodes_featureids": [0, 0], "nodes_truenodeids": [0, 2], "nodes_falsenodeids": [1, 3],
        "nodes_trueleafs": [1, 1], "nodes_falseleafs": [1, 1], "leaf_targetids": [0] * 4, "n_targets": 1,
    }  # fmt: skip
    x = np.array([[-1], [1]], np.float32)
    for how, want in ((0, [2, 3.5]), (1, [4, 7]), (2, [1, 2]), (3, [3, 5])):
        got = run("TreeEnsemble", x, domain="ai.onnx.ml", aggregate_function=how, **attributes)
        np.testing.assert_array_equal(got.numpy(), np.array(want, np.float32).reshape(2, 1))


def test_pictures_that_cannot_be_read_are_empty():
    pytest.importorskip("PIL")
    assert run("ImageDecoder", np.frombuffer(b"no picture", np.uint8)).shape == (0, 0, 0)
