"""What is noted while a captured function (``lz.jit``) is recorded, and how it is put back if that fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import ref

from lezero.runtime.recording import Handle
from lezero.runtime.sites import PACKAGE

VALUE_IS_READ = "a value is read (by .item(), .numpy(), printing, or an `if` on a tensor)"


class CaptureError(RuntimeError):
    """The function does something a captured function cannot do."""


class Capture:
    """What is noted while a function is recorded; ``STATE.capture`` while that lasts."""

    def __init__(self, name: str):
        self.name = name
        self.modules: dict[int, Any] = {}
        self.optimizers: dict[int, Any] = {}
        self.saved: list[tuple[Handle, tuple]] = []
        self.grads: dict[int, tuple[Handle, Handle | None, bool]] = {}
        self.others: list[Callable[[], None]] = []  # put back what is not in handles

    def refuse(self, why: str = VALUE_IS_READ) -> None:
        """Something that needs a run."""
        at = _user_line()
        raise CaptureError(
            f"lz.jit: inside {self.name}(){at}, {why}. A captured function cannot look at values while it is recorded: "
            "return the tensor and read it outside, or use lz.where"
        )

    def looked(self) -> None:
        """A value that is there is read: later calls would go by the one of now."""
        self.refuse()

    def saw(self, module: Any) -> None:
        self.modules[id(module)] = module

    def saw_optimizer(self, optimizer: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for p in group["params"]:
                self.uses_grad(p)

    def uses_grad(self, t: Handle, read: bool = True) -> None:
        """The ``grad`` of `t` is about to be read or set: note what it was when the function was called, and which came first."""
        self.grads.setdefault(id(t), (t, t._grad, read))

    def before_write(self, t: Handle) -> None:
        """Keep what a handle stood for, to put back if the function raises."""
        self.saved.append((t, (t._rec, t._node, t._buffer, t._history, t._shape)))

    def let_go(self) -> None:
        """Hold old values weakly, so that the run, which holds its inputs, may write over them."""
        self.saved = [
            (t, (rec, node, None if buffer is None else ref(buffer), history, shape))
            for t, (rec, node, buffer, history, shape) in self.saved
        ]

    def undo(self) -> None:
        for t, (rec, node, buffer, history, shape) in reversed(self.saved):
            t._rec, t._node, t._history, t._shape = rec, node, history, shape
            t._buffer = buffer() if type(buffer) is ref else buffer
        for t, grad, _ in self.grads.values():
            t._grad = grad
        for put_back in reversed(self.others):
            put_back()


def _user_line() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return f" at {file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
