"""Ensembles of decision trees (``ai.onnx.ml``).

Rows walk down each tree on the host, all together; which leaves they come to decides what is added up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lezero.onnx.operators.scores import classified, transformed
from lezero.onnx.registry import Context, on_host, operator
from lezero.tensor import Tensor, tensor

DOMAIN = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_COMPARISONS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_MEMBER = 6
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass
class Trees:
    """Nodes that ask; leaves have numbers of their own.

    roots : the first node of each tree
    following : for the answers no and yes, the node or the leaf after each node; leaf : which of them it is
    missing : nodes at which a NaN is a yes
    members : values that count as a yes, of nodes that ask for membership
    """

    roots: np.ndarray
    features: np.ndarray
    modes: np.ndarray
    splits: np.ndarray
    following: np.ndarray
    leaf: np.ndarray
    missing: np.ndarray
    members: dict[int, np.ndarray] = field(default_factory=dict)

    def leaves(self, rows: np.ndarray) -> np.ndarray:
        """The leaf that each row comes to in each tree, [rows, trees]."""
        out = np.empty((len(rows), len(self.roots)), np.int64)
        for k, root in enumerate(self.roots):
            at, walking = np.full(len(rows), root), np.arange(len(rows))
            while len(walking):
                node = at[walking]
                value = rows[walking, self.features[node]]
                yes = (self._decided(node, value) | (np.isnan(value) & self.missing[node])).astype(int)
                at[walking] = self.following[yes, node]
                walking = walking[~self.leaf[yes, node]]
            out[:, k] = at
        return out

    def _decided(self, node: np.ndarray, value: np.ndarray) -> np.ndarray:
        yes = np.zeros(len(node), bool)
        for mode in np.unique(self.modes[node]):
            these = self.modes[node] == mode
            if mode == _MEMBER:
                yes[these] = [v in self.members[n] for n, v in zip(node[these], value[these])]
            else:
                yes[these] = _COMPARISONS[mode](value[these], self.splits[node[these]])
        return yes


@operator("TreeEnsemble", 5, domain=DOMAIN, host=True)
def tree_ensemble(
    _: Context, x: Any, *, tree_roots: list[int], nodes_featureids: list[int], nodes_modes: np.ndarray, nodes_splits: np.ndarray,
    nodes_truenodeids: list[int], nodes_trueleafs: list[int], nodes_falsenodeids: list[int], nodes_falseleafs: list[int],
    leaf_targetids: list[int], leaf_weights: np.ndarray, n_targets: int = 1, aggregate_function: int = 1,
    post_transform: int = 0, membership_values: np.ndarray | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None, nodes_hitrates: Any = None,
) -> Tensor:  # fmt: skip
    rows = on_host(x)
    trees = Trees(
        np.array(tree_roots), np.array(nodes_featureids), nodes_modes, nodes_splits,
        np.array([nodes_falsenodeids, nodes_truenodeids]), np.array([nodes_falseleafs, nodes_trueleafs], bool),
        np.array(nodes_missing_value_tracks_true or [0] * len(nodes_modes), bool), _members(nodes_modes, membership_values),
    )  # fmt: skip
    votes = Votes(np.arange(len(leaf_targetids)), np.array(leaf_targetids), leaf_weights.astype(rows.dtype))
    scores = votes.gathered(trees.leaves(rows), n_targets, _AGGREGATES[aggregate_function])
    return transformed(tensor(scores), post_transform)


def _members(modes: np.ndarray, values: np.ndarray | None) -> dict[int, np.ndarray]:
    """The set of each node that asks for membership; a NaN ends one."""
    nodes = np.flatnonzero(modes == _MEMBER)
    if values is None or not len(nodes):
        return {}
    ends = np.flatnonzero(np.isnan(values))
    return {int(n): values[a:b] for n, a, b in zip(nodes, [0, *(ends + 1)], [*ends, len(values)])}


@dataclass
class Votes:
    """What leaves add to targets: entries, in the order of the leaves."""

    leaf: np.ndarray
    target: np.ndarray
    weight: np.ndarray

    def gathered(self, leaves: np.ndarray, targets: int, how: str) -> np.ndarray:
        """The aggregate of all trees for each row, [rows, targets]; 0 where no leaf had a vote."""
        begin, end = (np.searchsorted(self.leaf, leaves, side) for side in ("left", "right"))
        count = (end - begin).reshape(-1)
        first = np.repeat(begin.reshape(-1) - (np.cumsum(count) - count), count)
        entry = first + np.arange(len(first))
        row = np.repeat(np.repeat(np.arange(len(leaves)), leaves.shape[1]), count)
        start = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0)
        out = np.full((len(leaves), targets), start, self.weight.dtype)
        add = {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add)
        add.at(out, (row, self.target[entry]), self.weight[entry])
        out[np.isinf(out) & (start != 0)] = 0
        return out / out.dtype.type(leaves.shape[1]) if how == "AVERAGE" else out


@operator("TreeEnsembleRegressor", 1, domain=DOMAIN, host=True)
def tree_ensemble_regressor(
    _: Context, x: Any, *, n_targets: int = 1, aggregate_function: str = "SUM", post_transform: str = "NONE",
    base_values: Any = None, base_values_as_tensor: Any = None, **attributes: Any,
) -> Tensor:  # fmt: skip
    rows = _real(x)
    trees, votes = _parsed(attributes, "target", rows.dtype)
    scores = votes.gathered(trees.leaves(rows), n_targets, aggregate_function)
    base = base_values if base_values_as_tensor is None else base_values_as_tensor
    scores = scores if base is None else scores + np.asarray(base, scores.dtype)
    return transformed(tensor(scores.astype(np.float32)), post_transform)


@operator("TreeEnsembleClassifier", 1, domain=DOMAIN, host=True)
def tree_ensemble_classifier(
    _: Context, x: Any, *, classlabels_int64s: list[int] | None = None, classlabels_strings: list[str] | None = None,
    post_transform: str = "NONE", base_values: Any = None, base_values_as_tensor: Any = None, **attributes: Any,
) -> tuple[Any, Tensor]:  # fmt: skip
    rows, labels = _real(x), classlabels_strings or classlabels_int64s or []
    trees, votes = _parsed(attributes, "class", rows.dtype)
    base = base_values if base_values_as_tensor is None else base_values_as_tensor
    base = np.zeros(1) if base is None else np.asarray(base)
    if len(labels) == 2 and not votes.target.any():  # all votes are for or against the second class
        positive = bool((votes.weight >= 0).all())
        score = votes.gathered(trees.leaves(rows), 1, "SUM") + base[-1].astype(rows.dtype)
        return classified(tensor(score.astype(np.float32)), labels, post_transform, 0.5 * positive, positive)
    scores = votes.gathered(trees.leaves(rows), len(labels), "SUM") + base.astype(rows.dtype)
    return classified(tensor(scores.astype(np.float32)), labels, post_transform)


def _real(x: Any) -> np.ndarray:
    array = on_host(x)
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _parsed(attributes: dict[str, Any], votes: str, dtype: np.dtype) -> tuple[Trees, Votes]:
    """Trees of the operators that came before TreeEnsemble, whose leaves are nodes like others."""

    def of(name: str, kind: Any = np.int64) -> np.ndarray:
        given = attributes.get(f"{name}_as_tensor")
        return np.asarray(attributes.get(name, ()) if given is None else given, kind)

    tree, name = of("nodes_treeids"), of("nodes_nodeids")
    place = {key: k for k, key in enumerate(zip(tree.tolist(), name.tolist()))}
    modes = attributes["nodes_modes"]
    is_leaf = np.array([m == "LEAF" for m in modes])
    codes = np.array([0 if m == "LEAF" else MODES.index(m) for m in modes])

    def after(which: str) -> np.ndarray:
        targets = of(which).tolist()
        return np.array([k if is_leaf[k] else place[t, targets[k]] for k, t in enumerate(tree.tolist())])

    following = np.array([after("nodes_falsenodeids"), after("nodes_truenodeids")])
    missing = (
        of("nodes_missing_value_tracks_true").astype(bool) if "nodes_missing_value_tracks_true" in attributes else None
    )
    inner = following[:, ~is_leaf].reshape(-1)
    roots = _roots(tree, inner)
    features = np.where(is_leaf, 0, of("nodes_featureids"))
    trees = Trees(
        roots, features, codes, of("nodes_values", dtype), following, is_leaf[following],
        np.zeros(len(tree), bool) if missing is None else missing,
    )  # fmt: skip
    leaf = np.array(
        [place[key] for key in zip(of(f"{votes}_treeids").tolist(), of(f"{votes}_nodeids").tolist())], np.int64
    )
    order = np.argsort(leaf, kind="stable")
    return trees, Votes(leaf[order], of(f"{votes}_ids")[order], of(f"{votes}_weights", dtype)[order])


def _roots(tree: np.ndarray, followed: np.ndarray) -> np.ndarray:
    """The node of each tree that follows no other."""
    first = np.ones(len(tree), bool)
    first[followed] = False
    return np.flatnonzero(first)
