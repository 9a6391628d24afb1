"""What is given to the constructor of a layer must be what its annotations say: numbers are looked at before they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from lezero.arguments import need_real, whole


def _whole_or_several(name: str, value: Any) -> None:
    """An int, or ints in a row."""
    if isinstance(value, str):
        raise TypeError(f"{name} is an int or a tuple of ints, got {value!r}")
    try:
        values = tuple(value)
    except TypeError:
        values = (value,)
    for one in values:
        try:
            whole(name, one)
        except TypeError:
            raise TypeError(f"{name} is an int or a tuple of ints, got {value!r}") from None


def _padding(name: str, value: Any) -> None:
    if not isinstance(value, str):
        _whole_or_several(name, value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "int": whole,
    "float": need_real,
    "IntOrTuple": _whole_or_several,
    "int | Sequence[int]": _whole_or_several,
    "Sequence[int]": _whole_or_several,
    "str | IntOrTuple": _padding,
}
_CHECKS |= {f"{kind} | None": check for kind, check in _CHECKS.items()}


@cache
def _checked(constructor: Any) -> list[tuple[int, str, str]]:
    """(position, name, annotation) of the arguments of a constructor that are looked at."""
    code = constructor.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    kinds = constructor.__annotations__
    return [(i, name, kinds[name]) for i, name in enumerate(names) if kinds.get(name) in _CHECKS]


def check_arguments(layer: type, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise a TypeError that names the layer and the argument for one that is no number where one is needed.

    Only constructors of ours are looked at, also where a user's class inherits one.
    """
    constructor = layer.__init__  # type: ignore[misc]
    if not getattr(constructor, "__module__", "").startswith("lezero."):  # a user's own
        return
    for position, name, kind in _checked(constructor):
        if position < len(args):
            value = args[position]
        elif name in named:
            value = named[name]
        else:
            continue
        if value is not None or not kind.endswith("None"):
            _CHECKS[kind](f"{layer.__name__}: {name}", value)
