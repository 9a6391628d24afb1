"""Linear models and support vector machines (``ai.onnx.ml``)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.operators.scores import classified, labelled, transformed
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, on_host, operator
from lezero.tensor import Tensor, tensor

DOMAIN = "ai.onnx.ml"


@operator("LinearRegressor", domain=DOMAIN)
def linear_regressor(
    _: Context, x: Tensor, *, coefficients: list[float], intercepts: list[float] | None = None, targets: int = 1,
    post_transform: str = "NONE",
) -> Tensor:  # fmt: skip
    return transformed(_linear(x, coefficients, intercepts, targets), post_transform)


@operator("LinearClassifier", domain=DOMAIN)
def linear_classifier(
    _: Context, x: Tensor, *, coefficients: list[float], intercepts: list[float] | None = None,
    classlabels_ints: list[int] | None = None, classlabels_strings: list[str] | None = None, multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Any, Tensor]:  # fmt: skip
    labels = classlabels_strings or classlabels_ints or []
    rows = len(intercepts) if intercepts else len(labels)
    return classified(_linear(x, coefficients, intercepts, rows), labels, post_transform, complement=True)


def _linear(x: Tensor, coefficients: list[float], intercepts: list[float] | None, rows: int) -> Tensor:
    x = x.float() if x.ndim > 1 else x.float().unsqueeze(0)
    y = lz.matmul(x, tensor(np.array(coefficients, np.float32).reshape(rows, -1).T))
    return y + tensor(np.array(intercepts, np.float32)) if intercepts else y


# -- support vector machines ------------------------------------------------------------------------------------------


def _kernel(x: Tensor, vectors: np.ndarray, kind: str, parameters: list[float] | None) -> Tensor:
    """Of each row with each vector, [rows, vectors]."""
    gamma, coef0, degree = parameters or (0.0, 0.0, 3.0)
    v = tensor(vectors)
    if kind == "RBF":
        return lz.exp(-gamma * ((x.unsqueeze(1) - v) ** 2).sum(-1))
    products = lz.matmul(x, v.t())
    if kind == "LINEAR":
        return products
    if kind == "POLY":
        return (gamma * products + coef0) ** degree
    if kind == "SIGMOID":
        return lz.tanh(gamma * products + coef0)
    raise OnnxError(f"kernel_type {kind!r} is not supported")


@operator("SVMRegressor", domain=DOMAIN)
def svm_regressor(
    _: Context, x: Tensor, *, coefficients: list[float], rho: list[float], n_supports: int = 0,
    support_vectors: list[float] | None = None, kernel_type: str = "LINEAR", kernel_params: list[float] | None = None,
    one_class: int = 0, post_transform: str = "NONE",
) -> Tensor:  # fmt: skip
    weights = tensor(np.array(coefficients, np.float32).reshape(-1, 1))
    values = x.float()
    if n_supports:
        vectors = np.array(support_vectors, np.float32).reshape(n_supports, -1)
        values = _kernel(values, vectors, kernel_type, kernel_params)
    y = lz.matmul(values, weights) + rho[0]
    return lz.where(y > 0, 1.0, -1.0) if one_class else transformed(y, post_transform)


@operator("SVMClassifier", domain=DOMAIN, host=True)
def svm_classifier(
    _: Context, x: Any, *, coefficients: list[float], rho: list[float], vectors_per_class: list[int] | None = None,
    support_vectors: list[float] | None = None, kernel_type: str = "LINEAR", kernel_params: list[float] | None = None,
    prob_a: list[float] | None = None, prob_b: list[float] | None = None, classlabels_ints: list[int] | None = None,
    classlabels_strings: list[str] | None = None, post_transform: str = "NONE",
) -> tuple[Any, Tensor]:  # fmt: skip
    """Each pair of classes has a machine (Chang & Lin, LIBSVM, 2011); their votes decide, also where scores are probabilities."""
    labels = classlabels_strings or classlabels_ints or []
    rows = tensor(on_host(x)).float()
    if not vectors_per_class:
        return classified(_linear(rows, coefficients, None, len(labels)) + rho[0], labels, post_transform)
    vectors = np.array(support_vectors, np.float32).reshape(sum(vectors_per_class), -1)
    kernel = _kernel(rows, vectors, kernel_type, kernel_params).numpy()
    weights = np.array(coefficients, np.float32).reshape(len(vectors_per_class) - 1, -1)
    decisions = _decisions(kernel, weights, vectors_per_class, rho)
    pairs = list(combinations(range(len(vectors_per_class)), 2))
    best = labelled(tensor(_votes(decisions, pairs).argmax(1)), labels)
    scores = decisions if len(pairs) > 1 else np.concatenate([-decisions, decisions], 1)
    if prob_a and prob_b:
        chances = 1 / (1 + np.exp(decisions * np.array(prob_a) + np.array(prob_b)))
        scores = _coupled(chances, pairs, len(vectors_per_class))
    return best, transformed(tensor(scores.astype(np.float32)), post_transform)


def _votes(decisions: np.ndarray, pairs: list[tuple[int, int]]) -> np.ndarray:
    """How many pairs speak for each class, [rows, classes]."""
    votes = np.zeros((len(decisions), pairs[-1][1] + 1))
    for k, (i, j) in enumerate(pairs):
        votes[:, i] += decisions[:, k] > 0
        votes[:, j] += decisions[:, k] <= 0
    return votes


def _decisions(kernel: np.ndarray, weights: np.ndarray, per_class: list[int], rho: list[float]) -> np.ndarray:
    """What the machine of each pair says of each row, [rows, pairs]: positive for the pair's first."""
    ends = np.cumsum(per_class)
    of = [slice(end - n, end) for end, n in zip(ends, per_class)]
    return np.stack(
        [
            kernel[:, of[i]] @ weights[j - 1, of[i]] + kernel[:, of[j]] @ weights[i, of[j]] + rho[k]
            for k, (i, j) in enumerate(combinations(range(len(per_class)), 2))
        ],
        1,
    )


def _coupled(chances: np.ndarray, pairs: list[tuple[int, int]], classes: int) -> np.ndarray:
    """Probabilities of classes from those of pairs, kept away from 0 and 1 (Wu, Lin & Weng 2004, second method)."""
    r = np.zeros((len(chances), classes, classes))
    for k, (i, j) in enumerate(pairs):
        r[:, i, j] = np.clip(chances[:, k], 1e-7, 1 - 1e-7)
        r[:, j, i] = 1 - r[:, i, j]
    if classes == 2:
        return np.stack([r[:, 0, 1], r[:, 1, 0]], 1)
    q = -r.transpose(0, 2, 1) * r
    q[:, range(classes), range(classes)] = (r.transpose(0, 2, 1) ** 2).sum(2)
    system = np.zeros((len(chances), classes + 1, classes + 1))
    system[:, :classes, :classes], system[:, classes, :classes], system[:, :classes, classes] = q, 1, 1
    wanted = np.zeros((len(chances), classes + 1, 1))
    wanted[:, classes] = 1
    return np.linalg.solve(system, wanted)[:, :classes, 0]
