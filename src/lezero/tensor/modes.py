"""Whether gradients can be asked for of what is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from lezero.runtime.recorder import STATE


class set_grad_enabled(contextlib.ContextDecorator):
    """Whether gradients can be asked for of what is recorded: from the call on, or as a context or decorator."""

    def __init__(self, mode: bool):
        self._before, self._mode = STATE.grad_mode, bool(mode)
        STATE.grad_mode = self._mode

    def __enter__(self) -> None:
        STATE.grad_mode = self._mode

    def __exit__(self, *error: Any) -> None:
        STATE.grad_mode = self._before


class no_grad(contextlib.ContextDecorator):
    """Context and decorator: what is computed inside does not track gradients."""

    _mode = False

    def __enter__(self) -> None:
        self._stack = [*getattr(self, "_stack", ()), STATE.grad_mode]
        STATE.grad_mode = self._mode

    def __exit__(self, *error: Any) -> None:
        STATE.grad_mode = self._stack.pop()

    def _recreate_cm(self) -> Any:
        return type(self)()

    def __call__(self, func: Callable) -> Callable:  # type: ignore[override]
        return super().__call__(func)


class enable_grad(no_grad):
    """Context and decorator: gradients are tracked inside a ``no_grad`` block."""

    _mode = True


class inference_mode(no_grad):
    """As ``no_grad``."""

    def __init__(self, mode: bool = True):
        self._mode = not mode


def is_grad_enabled() -> bool:
    return STATE.grad_mode
