"""Nested Python values as JSON, with the tensors in them taken out by name.

JSON's own null, booleans, numbers, strings and arrays stand for themselves, and a dict with string keys for itself, unless
a key begins with ``$``.  Everything else is an object with one key:

===================================== =======================================================
``{"$tensor": name, "dtype": d}``     a tensor; complex ones are stored as pairs of reals
``{"$array": name, "dtype": d}``      a NumPy array
``{"$tuple": [...]}``                 a tuple
``{"$dict": [[key, value], ...]}``    a dict with other keys
``{"$float": "nan" | "inf" | "-inf"}`` a float that JSON lacks
``{"$complex": [real, imaginary]}``   a complex number
``{"$dtype": name}``                  a dtype
===================================== =======================================================

Two places that refer to the same name hold the same tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lezero.graph.dtype import DType, as_dtype, by_name
from lezero.io.source import native
from lezero.tensor import Tensor

MAX_DEPTH = 100
_MAX_BITS = 14_000  # Python's own JSON reader takes 4,300 digits


class TreeError(ValueError):
    """A value that cannot be stored, or JSON that stands for none."""


def encode(obj: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """(JSON value, arrays by name) of a nested value."""
    encoder = _Encoder()
    return encoder.value(obj, (), 0), encoder.arrays


class _Encoder:
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {}  # identity of a tensor's storage -> its name
        self._alive: list[Any] = []  # so that identities stay theirs

    def value(self, obj: Any, path: tuple[str, ...], depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise TreeError(f"it is nested more than {MAX_DEPTH} deep at {at(path)}")
        if obj is None or isinstance(obj, bool):
            return obj
        if isinstance(obj, str):
            return _proper(obj, path)
        if isinstance(obj, Tensor):
            return self._tensor(obj, path)
        if isinstance(obj, np.ndarray):
            return self._array("$array", obj, path, obj)
        if isinstance(obj, np.generic):
            obj = obj.item()
        if isinstance(obj, int):
            if obj.bit_length() > _MAX_BITS:
                raise TreeError(f"the integer at {at(path)} is too long for JSON readers")
            return int(obj)
        if isinstance(obj, float):
            return float(obj) if math.isfinite(obj) else {"$float": repr(float(obj))}
        if isinstance(obj, complex):
            return {"$complex": [self.value(part, path, depth) for part in (obj.real, obj.imag)]}
        if isinstance(obj, DType):
            return {"$dtype": obj.name}
        if isinstance(obj, Mapping):
            return self._mapping(obj, path, depth)
        if isinstance(obj, (list, tuple)):
            items = [self.value(item, (*path, str(i)), depth + 1) for i, item in enumerate(obj)]
            return {"$tuple": items} if isinstance(obj, tuple) else items
        raise TreeError(
            f"a {type(obj).__name__} at {at(path)} cannot be stored; tensors, arrays, numbers, strings, None, and dicts, "
            "lists and tuples of them can (for a module or an optimizer, save its state_dict())"
        )

    def _mapping(self, obj: Mapping, path: tuple[str, ...], depth: int) -> Any:
        plain = all(isinstance(k, str) and not k.startswith("$") for k in obj)
        values = [(_proper(k, path) if plain else k, self.value(v, (*path, str(k)), depth + 1)) for k, v in obj.items()]
        if plain:
            return dict(values)
        return {"$dict": [[self._key(k, path), v] for k, v in values]}

    def _key(self, key: Any, path: tuple[str, ...]) -> Any:
        if key is None or isinstance(key, (bool, int, float, str, tuple)):
            return self.value(key, path, 0)
        raise TreeError(f"a dict at {at(path)} has a {type(key).__name__} as a key, which cannot be stored")

    def _tensor(self, t: Tensor, path: tuple[str, ...]) -> Any:
        return self._array("$tensor", storage_of(t), path, t.numpy())

    def _array(self, kind: str, owner: Any, path: tuple[str, ...], array: np.ndarray) -> Any:
        array = native(array)
        dtype = as_dtype(array.dtype)
        name = self._names.get(id(owner))
        if name is None:
            name = base = ".".join(path) or "value"
            while name in self.arrays or name == "__metadata__":
                name = f"{base}#{len(self.arrays)}"
            self._names[id(owner)] = name
            self._alive.append(owner)
            self.arrays[name] = _as_reals(array) if dtype.is_complex else array
        return {kind: name, "dtype": dtype.name}


def storage_of(t: Any) -> Any:
    """What two tensors share if they are one and the same value under two names (a tied weight)."""
    while t._base is not None and t._view is not None and t._view[0].name == "detach":
        t = t._base
    return t


def _as_reals(array: np.ndarray) -> np.ndarray:
    real = np.float32 if array.dtype.itemsize == 8 else np.float64
    return np.ascontiguousarray(array).reshape(-1).view(real).reshape(*array.shape, 2)


def decode(value: Any, arrays: Mapping[str, np.ndarray], wrap: Callable[[np.ndarray], Any]) -> Any:
    """The nested value again; `wrap` makes tensors of arrays, once for each name."""
    made: dict[tuple[str, str], Any] = {}

    def leaf(kind: str, entry: Mapping) -> Any:
        name, dtype = entry[kind], by_name(entry["dtype"])
        if (kind, name) not in made:
            array = arrays[name]
            if dtype.is_complex:
                array = np.ascontiguousarray(array).reshape(-1).view(dtype.numpy).reshape(array.shape[:-1])
            if array.dtype != dtype.numpy:
                raise TreeError(f"tensor {name!r} should be {dtype.name}, but {array.dtype} is stored")
            made[kind, name] = wrap(array) if kind == "$tensor" else array.copy()
        return made[kind, name]

    def build(value: Any, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH + 2:  # a $tuple or $dict is two levels of JSON
            raise TreeError("it is nested too deeply")
        if isinstance(value, list):
            return [build(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        special = next((k for k in value if k.startswith("$")), None)
        if special is None:
            return {k: build(v, depth + 1) for k, v in value.items()}
        if special in ("$tensor", "$array"):
            return leaf(special, value)
        content = value[special]
        if special == "$tuple":
            return tuple(build(item, depth + 2) for item in content)
        if special == "$dict":
            return {build(k, depth + 2): build(v, depth + 2) for k, v in content}
        if special == "$float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if special == "$complex":
            real, imag = (build(part, depth + 1) for part in content)
            return complex(real, imag)
        if special == "$dtype":
            return by_name(content)
        raise TreeError(f"{special!r} is not known")

    try:
        return build(value, 0)
    except TreeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TreeError(f"an entry of the header is not understood ({type(error).__name__}: {error})") from None


def _proper(text: str, path: tuple[str, ...]) -> str:
    """A string that UTF-8 can express (half a surrogate pair is none)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TreeError(f"the string {text!r} at {at(path)} is not proper Unicode") from None
    return text


def at(path: tuple[str, ...]) -> str:
    return ".".join(path) or "the top"
