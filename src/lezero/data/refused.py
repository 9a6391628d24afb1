"""How to write what classes and functions contain and plain pickle refuses: a table from a type to its reducer."""

from __future__ import annotations

import dataclasses
import functools
import marshal
import types
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, TypeVar

from lezero.data.by_name import HERE, has_name, module_of, origin_of

_Cached = type(functools.lru_cache(lambda: None))


def _reduce_cached_property(obj: Any) -> Any:
    return functools.cached_property, (obj.func,), {k: v for k, v in vars(obj).items() if k != "lock"}


def _reduce_cached(obj: Any) -> Any:
    """A function under lru_cache starts with an empty cache."""
    return NotImplemented if has_name(obj) else (_make_cached, (obj.__wrapped__, obj.cache_parameters()))


def _make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_type_variable(obj: Any) -> Any:
    parts = obj.__name__, obj.__constraints__, obj.__bound__, obj.__covariant__, obj.__contravariant__
    return NotImplemented if has_name(obj) else (_make_type_variable, parts)


def _make_type_variable(name: str, constraints: Any, bound: Any, covariant: bool, contravariant: bool) -> Any:
    return TypeVar(name, *constraints, bound=bound, covariant=covariant, contravariant=contravariant)  # type: ignore[misc]


def _reduce_sentinel(obj: Any) -> Any:
    """``dataclasses.MISSING`` and its like, which are compared by identity."""
    return getattr, (dataclasses, next(name for name, value in vars(dataclasses).items() if value is obj))


def _reduce_module(module: ModuleType) -> Any:
    origin = origin_of(vars(module))
    if origin[0] == HERE and origin[1] != module.__name__:
        raise TypeError(f"cannot send the module {module.__name__!r}: it was made at run time, so no import finds it")
    return module_of, (origin,)


REDUCERS: dict[type, Callable[[Any], Any]] = {
    ModuleType: _reduce_module,
    CodeType: lambda code: (marshal.loads, (marshal.dumps(code),)),  # typing.ForwardRef has one
    property: lambda obj: (property, (obj.fget, obj.fset, obj.fdel, obj.__doc__)),
    staticmethod: lambda obj: (staticmethod, (obj.__func__,)),
    classmethod: lambda obj: (classmethod, (obj.__func__,)),
    types.MappingProxyType: lambda obj: (types.MappingProxyType, (dict(obj),)),
    functools.cached_property: _reduce_cached_property,
    _Cached: _reduce_cached,
    TypeVar: _reduce_type_variable,
    **{type(v): _reduce_sentinel for v in vars(dataclasses).values() if type(v).__module__ == "dataclasses"},
}
