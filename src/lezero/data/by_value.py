"""Pickling by value what another process cannot import: the functions and classes of a script, a notebook, a closure.

Plain pickle writes a function or class as its name, and the reader imports it.  That fails for what lives in
``__main__`` (the worker's main program is another one) and for what has no name to import it by (lambdas, whatever is
defined inside a function).  Those are written as their parts instead:

- A *function* is its code object (marshalled, so both sides must run the same interpreter), its cells, its attributes,
  and those globals that its code reads.  Cells are objects of their own: functions that share a variable go on sharing it.
- A *class* is restored from its dictionary, not defined anew: metaclasses do not run, as ``__init__`` does not for a
  restored instance.  (``__init_subclass__`` of a base does run, without keywords: the interpreter leaves no choice.)
- *Globals* live in one dictionary for each module they come from: that of the module itself if the reader can import
  it, else that of a namespace which stands in for it, and which fills up with the globals that arrive.

Everything recursive is written in two steps, first empty and then its contents, so that a method may refer to its class
and a function to itself.  Reading needs no class of its own: ``pickle.loads``.

Each of them has a key and is made only once wherever it arrives (by_name.py).  So what a worker sends back to where it
came from is sent as its key (``returning=True``), and is there the very object, not a copy: ``isinstance`` and
``except`` hold.
"""

from __future__ import annotations

import abc
import dis
import enum
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from lezero.data.by_name import (
    HERE,
    Key,
    Origin,
    has_name,
    key_of,
    known,
    make_once,
    module_of,
    origin_of,
    to_be_filled,
)
from lezero.data.refused import REDUCERS

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made at run time
_INTERPRETER_TYPES = {value: name for name, value in vars(types).items() if isinstance(value, type)}


class Pickler(pickle.Pickler):
    """A pickler that writes by value what cannot be imported, and everything else as ever.

    Parameters
    ----------
    file, protocol, buffer_callback
        As for :class:`pickle.Pickler`.
    returning : bool
        The reader is the process that this one's foreign functions and classes came from, so it has them.
    """

    def __init__(self, file: Any, protocol: int = 5, buffer_callback: Any = None, returning: bool = False) -> None:
        super().__init__(file, protocol, buffer_callback=buffer_callback)
        self._returning = returning

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType or isinstance(obj, type):
            return self._definition(obj)
        if kind is CellType:
            return CellType, (), _contents(obj), None, None, _fill_cell
        reduce = REDUCERS.get(kind)
        return reduce(obj) if reduce else NotImplemented

    def _definition(self, obj: Any) -> Any:
        if has_name(obj):
            return NotImplemented
        if isinstance(obj, type) and not obj.__flags__ & _HEAP_TYPE:
            name = _INTERPRETER_TYPES.get(obj)  # FunctionType and its like call themselves builtins.function
            return (getattr, (types, name)) if name else NotImplemented
        key = key_of(obj)
        if self._returning and key[0] != HERE:
            return known, (key,)
        return _reduce_function(obj, key) if isinstance(obj, FunctionType) else _reduce_class(obj, key)


def dumps(obj: Any, returning: bool = False) -> bytes:
    """`obj` as bytes, with functions and classes by value where needed; ``pickle.loads`` reads it."""
    file = io.BytesIO()
    Pickler(file, returning=returning).dump(obj)
    return file.getvalue()


# -- functions ------------------------------------------------------------------------------------------------

_ANNOTATIONS = "__annotate__" if hasattr(FunctionType, "__annotate__") else "__annotations__"  # lazy since Python 3.14
_ATTRIBUTES = "__qualname__ __module__ __doc__ __defaults__ __kwdefaults__ __type_params__".split() + [_ANNOTATIONS]


def _reduce_function(function: FunctionType, key: Key) -> Any:
    origin = origin_of(function.__globals__)
    reads = globals_read_by(function) if origin[0] else {}
    contents = [content for cell in function.__closure__ or () for content in _contents(cell)]
    imports = _submodules([*reads.values(), *contents], function.__code__)
    attributes = {name: getattr(function, name) for name in _ATTRIBUTES if hasattr(function, name)}
    parts = function.__code__, origin, function.__name__, function.__closure__
    state = imports, reads, attributes, vars(function)
    return make_once, (key, _make_function, *parts), state, None, None, _fill_function


def _make_function(code: CodeType, origin: Origin, name: str, closure: tuple[CellType, ...] | None) -> FunctionType:
    return FunctionType(code, vars(module_of(origin)), name, None, closure)


def _fill_function(
    function: FunctionType, state: tuple[list[str], dict[str, Any], dict[str, Any], dict[str, Any]]
) -> None:
    if not to_be_filled(function):
        return
    imports, reads, attributes, extra = state
    for name in imports:
        importlib.import_module(name)
    for name, value in reads.items():
        function.__globals__.setdefault(name, value)
    for name, value in attributes.items():
        setattr(function, name, value)
    vars(function).update(extra)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def globals_read_by(function: FunctionType) -> dict[str, Any]:
    """The globals that the code of `function`, and what is defined inside it, reads by name."""
    reads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    found = {
        step.argval for code in _codes(function.__code__) for step in dis.get_instructions(code) if step.opname in reads
    }
    return {name: function.__globals__[name] for name in sorted(found) if name in function.__globals__}


def _submodules(values: Iterable[Any], code: CodeType) -> list[str]:
    """Modules that `code` reaches as attributes of the packages among `values`: ``import xml.dom`` binds only xml."""
    words = {name for part in _codes(code) for name in part.co_names}
    packages = tuple(f"{value.__name__}." for value in values if isinstance(value, ModuleType))
    return [
        name
        for name in list(sys.modules)
        for package in packages
        if name.startswith(package) and words.issuperset(name.removeprefix(package).split("."))
    ]


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a variable that has no value yet
        return ()


def _fill_cell(cell: CellType, contents: tuple[Any, ...]) -> None:
    for content in contents:
        cell.cell_contents = content


# -- classes --------------------------------------------------------------------------------------------------

_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)  # __dict__, __weakref__ and __slots__ make their own
_AT_CREATION = ("__slots__", "__orig_bases__")  # what must be in a class's dictionary from the beginning
_OF_EVERY_ENUM = {*vars(enum.Enum("_", "x")), *vars(enum.Flag("_", "x"))} - {"__doc__"}
_OF_EVERY_MEMBER = ("_value_", "_name_", "__objclass__", "_sort_order_")


def _reduce_class(cls: Any, key: Key) -> Any:
    first = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    first |= {name: vars(cls)[name] for name in _AT_CREATION if name in vars(cls)}
    rest = {
        name: value
        for name, value in vars(cls).items()
        if name not in ("_abc_impl", *_AT_CREATION) and not (isinstance(value, _SLOTS) and value.__objclass__ is cls)
    }
    make: Callable[..., type] = _make_class
    extra: dict[str, dict[str, Any]] = {}  # what the members of an enum carry besides their values
    if isinstance(cls, enum.EnumMeta):
        make, members = _make_enum, dict[str, Any](cls.__members__)
        first["_members"] = {name: member.value for name, member in members.items()}
        first["_boundary"] = getattr(cls, "_boundary_", None)
        rest = {name: value for name, value in rest.items() if name not in members and _is_own(name, value)}
        for name, member in members.items():
            extra[name] = {k: v for k, v in vars(member).items() if k not in _OF_EVERY_MEMBER}
    parts = type(cls), cls.__name__, cls.__bases__, first
    return make_once, (key, make, *parts), (rest, extra), None, None, _fill_class


def _is_own(name: str, value: Any) -> bool:
    """Whether an enum's entry is the user's, and not what every enum has."""
    return name not in _OF_EVERY_ENUM or (isinstance(value, FunctionType) and not has_name(value))


def _make_class(meta: Any, name: str, bases: tuple[type, ...], first: dict[str, Any]) -> type:
    make = abc.ABCMeta.__new__ if issubclass(meta, abc.ABCMeta) else type.__new__
    return make(meta, name, bases, first)


def _make_enum(meta: Any, name: str, bases: tuple[type, ...], first: dict[str, Any]) -> type:
    members, boundary = first.pop("_members"), first.pop("_boundary")
    body = meta.__prepare__(name, bases)
    for entry, value in (first | members).items():
        body[entry] = value
    return enum.EnumMeta.__new__(meta, name, bases, body, boundary=boundary)


def _fill_class(cls: Any, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    if not to_be_filled(cls):
        return
    rest, members = state
    for name, value in rest.items():
        type.__setattr__(cls, name, value)  # whatever its metaclass thinks of assignments
    for name, attributes in members.items():
        vars(cls.__members__[name]).update(attributes)
