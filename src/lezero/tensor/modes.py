"""Whether gradients can be asked for of what is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from lezero.runtime.recording import STATE
from lezero.switched import switched


class set_grad_enabled(switched, contextlib.ContextDecorator):
    """Whether gradients can be asked for of what is recorded: from the call on, or as a context or decorator."""

    def __init__(self, mode: bool):
        super().__init__(STATE, "grad_mode", bool(mode))
        self._before = STATE.grad_mode
        STATE.grad_mode = self.value

    def __enter__(self) -> None:
        super().__enter__()
        _, outer = self.outer
        self.outer = self._before, outer


class no_grad(switched, contextlib.ContextDecorator):
    """Context and decorator: what is computed inside does not track gradients."""

    _mode = False

    def __init__(self) -> None:
        super().__init__(STATE, "grad_mode", self._mode)

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
        super().__init__()


def is_grad_enabled() -> bool:
    """Whether what is recorded now gets a gradient (see ``no_grad``)."""
    return STATE.grad_mode
