"""Operators of classical models (``ai.onnx.ml``) give what ONNX Runtime gives."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
H = onnx.helper
X = RNG.normal(size=(7, 4)).astype(np.float32)
WORDS = np.array([["b", "a"], ["c", "?"]], object)


def compared(operator, operands, attributes, results=1, atol=1e-5):
    names = [f"x{k}" for k in range(len(operands))]
    outputs = [f"y{k}" for k in range(results)]
    node = H.make_node(operator, names, outputs, domain="ai.onnx.ml", **attributes)
    declared = [
        H.make_tensor_value_info(n, onnx.TensorProto.STRING if a.dtype == object else H.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, operands)
    ]  # fmt: skip
    graph = H.make_graph([node], "one", declared, [onnx.ValueInfoProto(name=n) for n in outputs])
    sets = [H.make_opsetid("", 21), H.make_opsetid("ai.onnx.ml", 3)]
    model = H.make_model(graph, opset_imports=sets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, dict(zip(names, operands)))
    module = lz.onnx.load(model).eval()
    for _ in range(3):  # also what is captured
        with lz.no_grad():
            got = module(*operands)
        for g, w in zip((got,) if results == 1 else got, want, strict=True):
            alike(g, w, atol)


def alike(got, want, atol):
    if isinstance(want, list):
        assert [list(g) for g in got] == [list(w) for w in want]
        np.testing.assert_allclose([list(g.values()) for g in got], [list(w.values()) for w in want], 1e-5)
        return
    got = got.numpy() if isinstance(got, lz.Tensor) else got
    assert got.shape == want.shape
    if want.dtype.kind in "OSU":
        np.testing.assert_array_equal(got.astype(str), want.astype(str))
    else:
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, 1e-4, atol)


def numbers(*shape):
    return RNG.normal(size=shape).reshape(-1).tolist()


FEATURES = {
    "Normalizer MAX": ([np.abs(X)], {"norm": "MAX"}),
    "Normalizer L1": ([X], {"norm": "L1"}),
    "Normalizer L2": ([X], {"norm": "L2"}),
    "OneHotEncoder": ([np.array([[3, 1], [9, 5]])], {"cats_int64s": [1, 3, 5], "zeros": 1}),
    "OneHotEncoder words": ([WORDS], {"cats_strings": ["a", "b", "c"], "zeros": 1}),
    "CategoryMapper": ([WORDS], {"cats_int64s": [4, 5, 6], "cats_strings": ["a", "b", "c"], "default_int64": 9}),
    "CategoryMapper back": ([np.array([4, 7])], {"cats_int64s": [4, 5], "cats_strings": ["a", "b"], "default_string": "none"}),
    "FeatureVectorizer": ([X, X[:, :2] ** 2], {"inputdimensions": [4, 2]}),
    "ZipMap": ([X[:, :2]], {"classlabels_strings": ["no", "yes"]}),
    "ZipMap numbers": ([X[:, :2]], {"classlabels_int64s": [5, 6]}),
    "LinearRegressor": ([X], {"coefficients": numbers(3, 4), "intercepts": numbers(3), "targets": 3}),
    "SVMRegressor": (
        [X], {"coefficients": numbers(5), "support_vectors": numbers(5, 4), "n_supports": 5, "rho": [0.3],
              "kernel_type": "RBF", "kernel_params": [0.4, 0.0, 3.0]},
    ),
    "SVMRegressor polynomial": (
        [X], {"coefficients": numbers(5), "support_vectors": numbers(5, 4), "n_supports": 5, "rho": [0.3],
              "kernel_type": "POLY", "kernel_params": [0.4, 0.1, 2.0]},
    ),
    "SVMRegressor linear": ([X], {"coefficients": numbers(4), "rho": [0.3], "kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}),
    "SVMRegressor one class": (
        [X], {"coefficients": numbers(5), "support_vectors": numbers(5, 4), "n_supports": 5, "rho": [-0.3], "one_class": 1,
              "kernel_type": "SIGMOID", "kernel_params": [0.4, 0.1, 3.0]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
def test_features_and_regressors(name):
    compared(name.split()[0], *FEATURES[name])


LABELS = {"ints": [2, 5, 7], "strings": ["a", "b", "c"]}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("post_transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear_classifiers(kind, post_transform):
    labels = {f"classlabels_{kind}": LABELS[kind], "post_transform": post_transform}
    compared("LinearClassifier", [X], {"coefficients": numbers(3, 4), "intercepts": numbers(3), **labels}, 2)
    labels[f"classlabels_{kind}"] = LABELS[kind][:2]
    if post_transform != "SOFTMAX":
        compared("LinearClassifier", [X], {"coefficients": numbers(4), "intercepts": numbers(1), **labels}, 2)


@pytest.mark.parametrize("chances", [False, True])
@pytest.mark.parametrize("per_class", [[3, 2], [2, 3, 2], [2, 2, 1, 3]])
def test_support_vector_classifiers(per_class, chances):
    classes, vectors = len(per_class), sum(per_class)
    pairs = classes * (classes - 1) // 2
    attributes = {
        "coefficients": numbers(classes - 1, vectors), "support_vectors": numbers(vectors, 4), "rho": numbers(pairs),
        "vectors_per_class": per_class, "kernel_type": "RBF", "kernel_params": [0.3, 0.0, 3.0],
        "classlabels_ints": list(range(10, 10 + classes)),
    }  # fmt: skip
    if chances:
        attributes |= {"prob_a": (-np.abs(RNG.normal(size=pairs)) - 0.5).tolist(), "prob_b": numbers(pairs)}
    # ONNX Runtime couples the pairs' probabilities by steps, and stops when they are as near as this.
    compared("SVMClassifier", [X], attributes, 2, atol=5e-3 / classes if chances else 1e-5)


def trees(votes, targets, count=3, positive=False):
    """`count` full trees of depth 2 over four features, each leaf with a vote for each target."""
    modes = ["BRANCH_LEQ", "BRANCH_GT", "BRANCH_LT"]
    made = {
        k: []
        for k in (
            "treeids",
            "nodeids",
            "featureids",
            "values",
            "modes",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        )
    }
    given = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(count):
        for node in range(7):
            leaf = node >= 3
            row = (
                tree,
                node,
                int(RNG.integers(4)),
                RNG.normal() / 2,
                "LEAF" if leaf else modes[node],
                *([0, 0] if leaf else [2 * node + 1, 2 * node + 2]),
                node % 2,
            )
            for k, v in zip(made, row):
                made[k].append(v)
            for target in targets if leaf else ():
                weight = RNG.normal()
                for k, v in zip(given, (tree, node, target, abs(weight) / 4 if positive else weight)):
                    given[k].append(v)
    return {f"nodes_{k}": v for k, v in made.items()} | {f"{votes}_{k}": v for k, v in given.items()}


HOLES = np.where(RNG.random(X.shape) < 0.2, np.nan, X).astype(np.float32)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressions_of_trees(aggregate):
    for targets in ([0], [0, 1]):
        attributes = trees("target", targets) | {"n_targets": len(targets), "aggregate_function": aggregate}
        compared("TreeEnsembleRegressor", [HOLES], attributes)
    compared("TreeEnsembleRegressor", [X], trees("target", [0]) | {"n_targets": 1, "base_values": [0.5]})


@pytest.mark.parametrize("post_transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_classifications_by_trees(post_transform):
    words = {"classlabels_strings": LABELS["strings"], "post_transform": post_transform}
    compared("TreeEnsembleClassifier", [HOLES], trees("class", [0, 1, 2]) | words, 2)
    for positive in (False, True):
        two = {"classlabels_int64s": [3, 8], "post_transform": post_transform}
        if post_transform != "SOFTMAX":
            compared("TreeEnsembleClassifier", [X], trees("class", [0], positive=positive) | two, 2)


def test_a_tree_that_is_a_leaf():
    one = {k: v for k, v in trees("target", [0], count=2).items()}
    for k in [k for k in one if k.startswith("nodes_")]:
        one[k] = one[k][:7] + [[1], [0], [0], [0.0], ["LEAF"], [0], [0], [0]][list(one).index(k)]
    for k, v in (("treeids", [1]), ("nodeids", [0]), ("ids", [0]), ("weights", [2.5])):
        one[f"target_{k}"] = one[f"target_{k}"][:4] + v
    compared("TreeEnsembleRegressor", [X], one | {"n_targets": 1})


def test_a_value_that_is_no_category():
    node = H.make_node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_int64s=[1, 2], zeros=0)
    value = H.make_tensor_value_info("x", onnx.TensorProto.INT64, [2])
    graph = H.make_graph([node], "one", [value], [onnx.ValueInfoProto(name="y")])
    model = H.make_model(graph, opset_imports=[H.make_opsetid("", 21), H.make_opsetid("ai.onnx.ml", 3)], ir_version=10)
    with pytest.raises(lz.onnx.OnnxError, match="none of the categories"):
        lz.onnx.load(model)(np.array([1, 3]))
