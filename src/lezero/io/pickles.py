"""Pickles read without Python's unpickler: an interpreter of the instructions that plain values need, and of no others.

Python's own unpickler calls and imports what a file names, and trusts the sizes it claims: six bytes make it allocate a table
of 32 GB.  Here a global name is a key of a table of functions that the caller knows, looked up and never imported; attributes
are not set, classes not instantiated; and what is built is bounded by the length of the file.
"""

from __future__ import annotations

import pickletools
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

_FIRST_EQUAL_HASH = sys.hash_info.modulus
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class PickleError(ValueError):
    """A pickle that is damaged, or that asks for more than plain values."""


class Global(NamedTuple):
    """A name that the pickle refers to; the caller knows it."""

    module: str
    name: str


Known = Mapping[tuple[str, str], Any]


def unpickle(file: BinaryIO, size: int, known: Known, stored: Callable[[Any], Any] | None = None) -> Any:
    """The value of the pickle that begins where `file` stands; afterwards the file stands behind it.

    Parameters
    ----------
    size : bytes that the file still has
    known : by module and name, what a global stands for where it is called; a value that is no function stands for itself
    stored : what makes a value of a persistent id

    Raises
    ------
    PickleError
        Saying which name or instruction is not one of a plain value's.
    """
    machine = _Machine(known, stored, size)
    try:
        for opcode, argument, _ in pickletools.genops(_Bounded(file, size)):  # type: ignore[arg-type]
            if opcode.name == "STOP":
                break
            machine.step(opcode.name, argument)
        return machine.pop()
    except PickleError:
        raise
    # Damage makes anything of these, in pickletools as in the instructions.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise PickleError(f"its pickle is damaged ({error})") from None


class _Bounded:
    """A file that refuses to read more than it has, before anything is allocated for it."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.left = file, size

    def read(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise PickleError(
                f"its pickle claims {count:,} bytes where {self.left:,} are left: it is truncated or damaged"
            )
        self.left -= count
        return self.file.read(count)

    def readline(self) -> bytes:
        line = self.file.readline()
        self.left -= len(line)
        return line


class _Machine:
    def __init__(self, known: Known, stored: Callable[[Any], Any] | None, size: int):
        self.known, self.stored = known, stored
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each mark
        self.memo: dict[int, Any] = {}
        self.copies = size  # elements that may still be copied; an honest pickle copies none twice

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in _BYTE_STRINGS:
            self.stack.append(argument.encode("latin1").decode())
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            shown = f" {argument.replace(' ', '.')}" if isinstance(argument, str) else ""
            raise PickleError(f"its pickle has the instruction {name}{shown}, which {_ADVICE}")

    def pop(self) -> Any:
        return self.stack.pop()

    def popmark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def gather(self, kind: Callable[[list[Any]], Any]) -> None:
        value = kind(self.popmark())
        self.stack.append(value)

    def mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def discard(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.popmark()

    def pop_mark(self, _: Any) -> None:
        self.popmark()

    def put(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, key: int) -> None:
        self.stack.append(self.memo[key])

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def global_(self, argument: str) -> None:
        self.find(*argument.split(" ", 1))

    def stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        self.find(module, name)

    def find(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("its pickle names something by what is not text")
        if (module, name) not in self.known and (module, name) not in _CALLED:
            raise PickleError(f"it refers to {module}.{name}, and {_ADVICE}")
        found = self.known.get((module, name))
        self.stack.append(Global(module, name) if found is None or callable(found) else found)

    def reduce(self, _: Any) -> None:
        arguments, target = self.pop(), self.pop()
        if not (isinstance(target, Global) and isinstance(arguments, tuple)):
            raise PickleError(f"its pickle calls a {type(target).__name__}, which {_ADVICE}")
        if target in self.known:
            self.stack.append(self.known[target](*arguments))
        else:
            self.stack.append(_CALLED[target](self, *arguments))

    def build(self, _: Any) -> None:
        self.pop()  # the attributes of an ordered dict: a state's versions
        if type(self.stack[-1]) is not dict:
            raise PickleError(f"its pickle sets attributes of a {type(self.stack[-1]).__name__}, which {_ADVICE}")

    def persistent(self, _: Any) -> None:
        if self.stored is None:
            raise PickleError("its pickle refers to a storage where none can be")
        self.stack.append(self.stored(self.pop()))

    def append(self, _: Any) -> None:
        self.extend([self.pop()])

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            target.update(map(_plain, items))
        else:
            raise PickleError(f"its pickle adds elements to a {type(target).__name__}")

    def appends(self, _: Any) -> None:
        items = self.popmark()
        self.extend(items)

    def sets(self, _: Any) -> None:
        items = self.popmark()
        self.set_items(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise PickleError(f"its pickle sets items of a {type(target).__name__}")
        target.update(zip(map(_key, items[::2]), items[1::2]))

    def set_item(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def dict_of(self, _: Any) -> None:
        items = self.popmark()
        self.stack.append({})
        self.set_items(items)

    def copied(self, items: Any) -> Any:
        """What is about to be copied, counted: a list copied again and again is how a short file fills memory."""
        self.copies -= len(items)
        if self.copies < 0:
            raise PickleError("its pickle copies more than it has bytes")
        return items


def _plain(value: Any) -> Any:
    """An element of a set.  Numbers chosen so that many have one hash would take quadratic time."""
    if isinstance(value, complex) or (isinstance(value, int) and abs(value) >= _FIRST_EQUAL_HASH):
        raise PickleError(
            f"{str(value)[:40]} is an element of a set or a key in it, and numbers like it may all have one hash"
        )
    if not isinstance(value, PLAIN):
        raise PickleError(f"a set in it has a {type(value).__name__} as an element")
    return value


def _key(key: Any) -> Any:
    """A key of a dict.  Tuples in tuples are refused: their hash takes time that is exponential in their depth."""
    parts = key if type(key) is tuple else (key,)
    if not all(isinstance(part, PLAIN) for part in parts):
        raise PickleError(
            f"a dict in it has a {type(key).__name__} as a key that is neither a plain value nor a tuple of them"
        )
    for part in parts:
        _plain(part)
    return key


def _ordered_dict(machine: _Machine, items: Any = ()) -> dict:
    return {_key(k): v for k, v in machine.copied(items)}


def _encoded(machine: _Machine, text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise PickleError(f"its pickle has bytes encoded as {encoding!r}")
    return machine.copied(text).encode("latin1")


def _set(machine: _Machine, items: Any = ()) -> set:
    return set(map(_plain, machine.copied(items)))


def _complex(machine: _Machine, real: float, imaginary: float) -> complex:
    return complex(real, imaginary)


_ADVICE = "only tensors, dicts, lists and plain values are read; save the model's state_dict()"

# What protocol 2 calls to make plain values for which it has no instruction.
_CALLED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("_codecs", "encode"): _encoded,
    ("__builtin__", "set"): _set,
    ("builtins", "set"): _set,
    ("__builtin__", "complex"): _complex,
    ("builtins", "complex"): _complex,
}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_ARGUMENTS = set(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES "
    "SHORT_BINBYTES BINBYTES8".split()
)
_BYTE_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}  # Python 2's, which hold UTF-8
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "MARK": _Machine.mark,
    "POP": _Machine.discard,
    "POP_MARK": _Machine.pop_mark,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE": lambda m, _: m.gather(tuple),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "LIST": lambda m, _: m.gather(list),
    "DICT": _Machine.dict_of,
    "FROZENSET": lambda m, _: m.gather(lambda items: frozenset(map(_plain, items))),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.sets,
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}
