"""An attribute that has another value for a while, and its own again afterwards whatever interrupts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from functools import partial
from typing import Any


class _Exit:
    """``__exit__`` as a built-in function, so that nothing can come between the end of a block and the old value.

    CPython looks for signals at the entry of a function written in Python, after a call and at a backward jump.  An
    ``__exit__`` written in Python can therefore raise KeyboardInterrupt before its first line.  It does not look before it
    calls a built-in function, nor where an exception enters a generator: that is how the value is put back here.
    """

    def __get__(self, switch: switched | None, owner: type | None = None) -> Callable[..., Any]:
        if switch is None:
            return lambda switch, *error: switch.__exit__(*error)  # for contextlib.ExitStack, which asks the class
        waiting = _put_back(switch)
        next(waiting)
        # format() takes the three arguments of __exit__ and looks at none of them; the missing key throws.
        return partial("{0[0]}".format, defaultdict(partial(waiting.throw, _Left)))


class _Left(BaseException):
    """Thrown where a block is left."""


def _put_back(switch: switched) -> Generator[str, None, None]:
    try:
        yield ""
    except _Left:
        (switch.owner.__dict__[switch.name], switch.outer) = switch.outer
        yield ""  # what __exit__ returns: the block's exception goes on


class switched:
    """Context: ``owner.name`` is `value` inside the block, and what ``as`` gives.  May be entered again inside itself."""

    __exit__ = _Exit()

    def __init__(self, owner: Any, name: str, value: Any):
        self.owner, self.name, self.value = owner, name, value
        self.outer: Any = None  # (the value before, and this of the block around), while inside

    def __enter__(self) -> Any:
        self.outer = getattr(self.owner, self.name), self.outer
        self.owner.__dict__[self.name] = self.value
        return self.value
