"""The order in which kernels run."""

from __future__ import annotations

import random

import pytest

from lezero.schedule.order import in_order


def order(units, sizes):
    """units: name -> (values read, values written)"""
    return in_order(list(units), lambda u: units[u][0], lambda u: units[u][1], lambda n: sizes.get(n, 0))


def test_as_given_where_nothing_is_freed():
    units = {"a": ([], ["x"]), "b": ([], ["y"]), "c": (["x", "y"], ["z"])}
    assert order(units, {"x": 4, "y": 4, "z": 8}) == ["a", "b", "c"]


def test_what_frees_memory_comes_first():
    units = {
        "activation": ([], ["a"]), "pool": (["a"], ["p"]), "conv": (["p"], ["c"]), "loss": (["c"], ["l"]),
        "positions": (["a"], ["i"]), "gradient": (["l", "i"], ["g"]),
    }  # fmt: skip
    sizes = {"a": 64, "p": 16, "c": 16, "l": 1, "i": 4, "g": 64}
    assert order(units, sizes)[:3] == ["activation", "pool", "positions"]
    assert order(units, {**sizes, "a": 0}) == list(units)


def test_every_order_respects_what_is_read():
    r = random.Random(0)
    for _ in range(200):
        n = r.randint(1, 30)
        units = {k: ([f"v{j}" for j in range(k) if r.random() < 0.2], [f"v{k}"]) for k in range(n)}
        names = list(units)
        r.shuffle(names)
        found = order({k: units[k] for k in names}, {f"v{k}": r.randint(0, 100) for k in range(n)})
        assert sorted(found) == list(range(n))
        assert all(found.index(int(v[1:])) < found.index(k) for k in units for v in units[k][0])


def test_a_circle_is_an_error():
    with pytest.raises(ValueError, match="circle"):
        order({"a": (["y"], ["x"]), "b": (["x"], ["y"])}, {})
