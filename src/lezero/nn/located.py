"""Which layer an error comes from."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from lezero.runtime.leaves import kind_of
from lezero.tensor import Tensor

if TYPE_CHECKING:
    from lezero.nn.module import Module


def name_layer(module: Module, error: Exception, inputs: tuple[Any, ...]) -> None:
    """Say in an error that leaves the call of a module: its path from the outermost module being called, and itself.

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
    place = f"in layer {path} ({title}) of {type(calls[-1]).__name__}" if path else f"in {title}"
    add_to_message(error, place + _wrong_inputs(module, inputs))


def _wrong_inputs(module: Module, inputs: tuple[Any, ...]) -> str:
    """That a layer of ours, all of which take tensors, was given something else."""
    if not type(module).__module__.startswith("lezero.nn."):
        return ""
    wrong = next((x for x in inputs if not isinstance(x, Tensor)), inputs)
    if wrong is inputs:
        return ""
    given = "None" if wrong is None else f"a {type(wrong).__name__}"
    if isinstance(wrong, np.ndarray):
        given = "a numpy array (lz.tensor makes a tensor of it)"
    elif hasattr(wrong, "__dlpack__"):
        given = f"a {kind_of(wrong)}"
    return f", which was given {given} and takes tensors"


def add_to_message(error: Exception, line: str) -> None:
    """A line more in the message, which is what a log shows of an error; a note in an error that is not ours."""
    if type(error) in _PLAIN and len(error.args) == 1 and isinstance(error.args[0], str) and _is_ours(error):
        error.args = (f"{error.args[0]}\n{line}",)
    else:
        error.add_note(line)


_PLAIN = (ValueError, TypeError, IndexError, RuntimeError, AttributeError, NotImplementedError)
"""Errors that consist of their message."""


def _is_ours(error: Exception) -> bool:
    """Whether an error was raised in LeZero and not in a user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("lezero.")


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
