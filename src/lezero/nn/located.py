"""Which layer an error comes from."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lezero.nn.module import Module


def name_layer(module: Module, error: Exception) -> None:
    """Add a note to an error that leaves the call of a module: its path from the outermost module being called, and itself.

    Only the innermost module does; those around it find that the error knows.
    """
    if getattr(error, "_in_layer", False):
        return
    error._in_layer = True  # type: ignore[attr-defined]
    calls = _calls_around()
    path = ""
    for k in range(1, len(calls)):
        name = next((n for n, m in calls[k].named_modules() if m is calls[k - 1]), None)
        if name is None:  # called, but not part of what calls it
            calls = calls[:k]
            break
        path = f"{name}.{path}" if path else name
    title = type(module).__name__
    if not module._module_names:
        with suppress(Exception):  # of a user's extra_repr: this error is not about that
            title = repr(module)
    error.add_note(f"in layer {path} ({title}) of {type(calls[-1]).__name__}" if path else f"in {title}")


def _calls_around() -> list[Module]:
    """The modules being called, the innermost first."""
    frame = sys._getframe(2)
    code = frame.f_code  # Module.__call__
    found = []
    while frame is not None:
        if frame.f_code is code:
            found.append(frame.f_locals["self"])
        frame = frame.f_back  # type: ignore[assignment]
    return found
