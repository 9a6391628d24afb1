"""Who else holds an object: what liveness and ownership of values are decided by.

Interpreters differ in how many references a call itself adds (CPython 3.14 borrows where 3.11 counts), so every form of the
question is asked once of an object whose answer is known, and only differences are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any


def _counts(items: Sequence[Any]) -> list[int]:
    return [getrefcount(items[i]) for i in range(len(items))]


def _count(container: Any, key: Any) -> int:
    return getrefcount(container[key])


class _Object:
    pass


_ONCE_IN_LIST = _counts([_Object()])[0]
_ONCE = _count([_Object()], 0)


def held_once(items: list[Any]) -> list[int]:
    """Positions in a list of the objects that nothing but this list refers to."""
    once = _ONCE_IN_LIST
    return [i for i, n in enumerate(_counts(items)) if n <= once]


def counts(items: list[Any]) -> list[int]:
    """How many references there are to each object in a list besides the list's."""
    return [n - _ONCE_IN_LIST for n in _counts(items)]


def shared(items: list[Any], owners: int) -> bool:
    """Whether any object in a list has more references than this list's and those of so many owners."""
    return bool(items) and max(_counts(items)) > _ONCE_IN_LIST + owners


def others(container: Any, key: Any) -> int:
    """How many references there are to ``container[key]`` besides the container's."""
    return _count(container, key) - _ONCE
