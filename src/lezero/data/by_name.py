"""Which functions, classes and modules another process can import, and what stands in for those that it cannot.

A function or class that has no importable name gets a *key*: the process that defined it, and a number.  It is made only
once in each process where it arrives.  Globals that belong to no importable module get an *origin* likewise, and a
namespace module wherever functions that use them arrive.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import secrets
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

Key = tuple[str, int]
Origin = tuple[str, str]  # the process, or "" for a module that can be imported anywhere, and a name

HERE = secrets.token_hex(8)
_MAINS = ("__main__", "__mp_main__")  # the second is what multiprocessing calls a script that it has run again
_MARK = "__lezero_origin__"  # the global in which a namespace that is no module of this process keeps its origin

_numbers = itertools.count()
_key_of: WeakKeyDictionary[Any, Key] = WeakKeyDictionary()
_of_key: WeakValueDictionary[Key, Any] = WeakValueDictionary()
_unfilled: set[Key] = set()  # made, and waiting for their contents
_namespaces: dict[Origin, ModuleType] = {}


def _is_importable(name: Any, namespace: dict[str, Any]) -> bool:
    module = sys.modules.get(name) if isinstance(name, str) and name not in _MAINS else None
    return getattr(module, "__dict__", None) is namespace and getattr(module, "__spec__", None) is not None


def has_name(obj: Any) -> bool:
    """Whether another process can import `obj`."""
    module = getattr(obj, "__module__", None)
    found: Any = sys.modules.get(module) if isinstance(module, str) else None
    if found is None or not _is_importable(module, vars(found)):
        return False
    for part in getattr(obj, "__qualname__", obj.__name__).split("."):
        found = getattr(found, part, None)
    return found is obj


def key_of(obj: Any) -> Key:
    """The key of a function or class; it gets one now if it has none."""
    key = _key_of.get(obj)
    if key is None:
        key = HERE, next(_numbers)
        _key_of[obj], _of_key[key] = key, obj
    return key


def known(key: Key) -> Any:
    """What has this key here."""
    obj = _of_key.get(key)
    if obj is None:
        raise LookupError("a function or class came back to the process that defined it, but is gone from there")
    return obj


def make_once(key: Key, make: Callable[..., Any], *arguments: Any) -> Any:
    """What has this key, if need be made and still to be filled."""
    obj = _of_key.get(key)
    if obj is None:
        obj = make(*arguments)
        _key_of[obj], _of_key[key] = key, obj
        _unfilled.add(key)
    return obj


def to_be_filled(obj: Any) -> bool:
    """Whether `obj` still needs its contents; what was here before the pickle keeps its own."""
    key = _key_of[obj]
    fresh = key in _unfilled
    _unfilled.discard(key)
    return fresh


def origin_of(namespace: dict[str, Any]) -> Origin:
    """Where the globals `namespace` come from."""
    name = namespace.get("__name__")
    if _is_importable(name, namespace):
        return "", str(name)
    if name in _MAINS and vars(sys.modules[name]) is namespace:
        return HERE, str(name)
    return namespace.setdefault(_MARK, (HERE, f"{name}#{next(_numbers)}"))


def module_of(origin: Origin) -> ModuleType:
    """The module whose globals have this origin, or the namespace that stands in for it."""
    home, name = origin
    if not home:
        return importlib.import_module(name)
    if home == HERE and name in _MAINS:
        return sys.modules[name]
    if origin not in _namespaces:
        module = _namespaces[origin] = ModuleType(name.partition("#")[0])
        vars(module).update({_MARK: origin, "__builtins__": builtins})  # some C code insists on the second
    return _namespaces[origin]
