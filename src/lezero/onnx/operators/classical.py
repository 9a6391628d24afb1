"""Operators of the domain ``ai.onnx.ml``."""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.operators.strings import text
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, on_device, on_host, operator
from lezero.tensor import Tensor, tensor, where

DOMAIN = "ai.onnx.ml"


@operator("ArrayFeatureExtractor", domain=DOMAIN, host=True)
def array_feature_extractor(_: Context, x: Any, indices: Any) -> Any:
    at = np.asarray(on_host(indices)).reshape(-1)
    if isinstance(x, Tensor):
        return lz.index_select(x if x.ndim > 1 else x.unsqueeze(0), -1, tensor(at))
    return np.atleast_2d(x)[..., at]


@operator("Binarizer", domain=DOMAIN)
def binarizer(_: Context, x: Tensor, *, threshold: float = 0.0) -> Tensor:
    return (x > threshold).to(x.dtype)


@operator("Scaler", domain=DOMAIN)
def scaler(_: Context, x: Tensor, *, offset: list[float] | None = None, scale: list[float] | None = None) -> Tensor:
    x = x.float()
    if offset is not None:
        x = x - tensor(offset)
    return x if scale is None else x * tensor(scale)


@operator("Imputer", domain=DOMAIN)
def imputer(
    _: Context, x: Tensor, *, imputed_value_floats: list[float] | None = None, imputed_value_int64s: list[int] | None = None,
    replaced_value_float: float = 0.0, replaced_value_int64: int = 0,
) -> Tensor:  # fmt: skip
    if imputed_value_floats is not None:
        wanted = lz.isnan(x) if np.isnan(replaced_value_float) else x == replaced_value_float
    else:
        wanted = x == replaced_value_int64
    values = imputed_value_int64s if imputed_value_floats is None else imputed_value_floats
    return where(wanted, tensor(values, dtype=x.dtype), x)


@operator("LabelEncoder", domain=DOMAIN, host=True)
def label_encoder(
    _: Context, x: Any, *, default_float: float = -0.0, default_int64: int = -1, default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None, classes_strings: list[str] | None = None, **tables: Any,
) -> Any:  # fmt: skip
    array = on_host(x)
    strings = array.dtype.kind in "OSU"
    if classes_strings is not None:  # version 1 maps between words and their positions
        numbers = list(range(len(classes_strings)))
        keys, values = (classes_strings, numbers) if strings else (numbers, classes_strings)
    else:
        keys, values = _table(tables, "keys"), _table(tables, "values")
    default, dtype = _default(values, default_tensor, default_float, default_int64, default_string)
    found = dict(zip(map(_key, keys), values))
    labels = [found.get(_key(k), default) for k in (text(array) if strings else array).reshape(-1).tolist()]
    return on_device(np.array(labels, dtype).reshape(array.shape))


def _key(value: Any) -> Any:
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def _table(tables: dict[str, Any], name: str) -> list[Any]:
    for kind in ("strings", "int64s", "floats", "tensor"):
        if (values := tables.get(f"{name}_{kind}")) is not None:
            if kind == "floats":
                return np.array(values, np.float32).tolist()
            return list(text(values)) if kind == "strings" else values if isinstance(values, list) else _plain(values)
    raise OnnxError(f"no {name} are given")


def _plain(array: np.ndarray) -> list[Any]:
    return list(text(array).reshape(-1)) if array.dtype.kind in "OSU" else array.reshape(-1).tolist()


def _default(values: list[Any], given: np.ndarray | None, number: float, integer: int, word: str) -> tuple[Any, Any]:
    """The label of what is no key, and the type of labels."""
    if given is not None:
        return _plain(given)[0], object if given.dtype.kind in "OSU" else given.dtype
    if any(isinstance(v, str) for v in values):
        return word, object
    return (number, np.float32) if any(isinstance(v, float) for v in values) else (integer, np.int64)


# -- trees ------------------------------------------------------------------------------------------------------------

_COMPARISONS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_MEMBER = 6


@operator("TreeEnsemble", 5, domain=DOMAIN, host=True)
def tree_ensemble(
    _: Context, x: Any, *, tree_roots: list[int], nodes_featureids: list[int], nodes_modes: np.ndarray, nodes_splits: np.ndarray,
    nodes_truenodeids: list[int], nodes_trueleafs: list[int], nodes_falsenodeids: list[int], nodes_falseleafs: list[int],
    leaf_targetids: list[int], leaf_weights: np.ndarray, n_targets: int = 1, aggregate_function: int = 1,
    post_transform: int = 0, membership_values: np.ndarray | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None, nodes_hitrates: Any = None,
) -> Tensor:  # fmt: skip
    """Rows walk down each tree on the host, all together; what is added up of the leaves is a tensor."""
    rows = on_host(x)
    member = _members(nodes_modes, membership_values)
    missing = np.array(nodes_missing_value_tracks_true or [0] * len(nodes_modes), bool)
    features, leaf = np.array(nodes_featureids), np.array([nodes_falseleafs, nodes_trueleafs], bool)
    following = np.array([nodes_falsenodeids, nodes_truenodeids])
    every, leaves = np.arange(len(rows)), np.empty((len(rows), len(tree_roots)), np.int64)
    for k, root in enumerate(tree_roots):
        at, there = np.full(len(rows), root), np.zeros(len(rows), bool)
        while not there.all():
            walking = np.flatnonzero(~there)
            node, value = at[walking], rows[walking, features[at[walking]]]
            yes = _decided(node, value, nodes_modes, nodes_splits, member) | (np.isnan(value) & missing[node])
            at[walking], there[walking] = following[yes.astype(int), node], leaf[yes.astype(int), node]
        leaves[every, k] = at
    weights, targets = tensor(leaf_weights.astype(rows.dtype)), tensor(np.array(leaf_targetids))
    chosen = lz.index_select(weights, 0, tensor(leaves.reshape(-1))).reshape(leaves.shape)
    places = lz.index_select(targets, 0, tensor(leaves.reshape(-1))).reshape(leaves.shape)
    nothing = lz.zeros(len(rows), n_targets, dtype=weights.dtype)
    how = ("sum", "sum", "amin", "amax")[aggregate_function]
    scores = lz.scatter_reduce(nothing, 1, places, chosen, how, include_self=False)
    return _post_transformed(scores / len(tree_roots) if aggregate_function == 0 else scores, post_transform)


def _decided(
    node: np.ndarray, value: np.ndarray, modes: np.ndarray, splits: np.ndarray, member: dict[int, np.ndarray]
) -> np.ndarray:
    yes = np.zeros(len(node), bool)
    for mode in np.unique(modes[node]):
        these = modes[node] == mode
        if mode == _MEMBER:
            yes[these] = [v in member[n] for n, v in zip(node[these], value[these])]
        else:
            yes[these] = _COMPARISONS[mode](value[these], splits[node[these]])
    return yes


def _members(modes: np.ndarray, values: np.ndarray | None) -> dict[int, np.ndarray]:
    """The set of each node that asks for membership; a NaN ends one."""
    nodes = np.flatnonzero(modes == _MEMBER)
    if values is None or not len(nodes):
        return {}
    ends = np.flatnonzero(np.isnan(values))
    return {int(n): values[a:b] for n, a, b in zip(nodes, [0, *(ends + 1)], [*ends, len(values)])}


def _post_transformed(scores: Tensor, kind: int) -> Tensor:
    if kind == 0:
        return scores
    if kind == 1:
        return lz.softmax(scores, -1)
    if kind == 2:
        return lz.sigmoid(scores)
    raise OnnxError(f"post_transform {kind} is not supported")
