"""What becomes of a recording whose run failed: no value is lost but those that cannot be computed.

A run computes everything that is alive, so one tensor too large for the machine would take all others with it.  When a run
raises, what it was asked for is therefore tried by itself, and what cannot be computed stays behind in the recording, which
nothing else is recorded into any more: reading it tries again and raises again.  Nothing of such a recording is donated.

Tensors that had a value before and were written to (parameters, the state of optimizers, running statistics) either get their
new values, all of them, or keep the old ones.  A step that raised is tried once more when one of them is next used, since
there may be room by then; if it cannot be made, it has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.runtime.recording import Handle, Recording
from lezero.runtime.writes import stale_views

Attempt = Callable[[Recording, Sequence[Handle]], object]
"""Computes the given handles of a recording, and nothing else."""


def isolate(
    rec: Recording,
    handles: Sequence[Handle],
    wanted: Sequence[Handle],
    error: Exception,
    attempt: Attempt,
    all_wanted: bool,
) -> None:
    """After a run of all `handles` raised `error`: give values to what can have them, first of all to what is `wanted`.

    Raises what kept the wanted ones from being computed (with `all_wanted` any at all), or what kept tensors from being
    written to; everything else that failed says so when it is read.
    """
    rec.failed = True
    if isinstance(error, FloatingPointError):  # lezero.debug: the run is not to happen
        raise error
    asked = [h for h in wanted if h._rec is rec]
    try:
        if len(asked) == len(handles):
            raise error
        if asked:
            attempt(rec, asked)
    except Exception:
        causes = {h._node for h in asked}
        first = min(n.index for n in causes)
        rest = [h for h in handles if not _reads(h._node, causes, first)]
        if rest:
            with suppress(Exception):
                attempt(rec, rest)
        left = _written(rec)
        if left and not (causes.isdisjoint(h._node for h in left) and _done(attempt, rec, left)):
            undo(rec)
        raise
    left = _written(rec)
    if asked:
        _done(attempt, rec, left)
    elif left:
        rec.told = True
        attempt(rec, left)
        rec.told = False
    if all_wanted and any(h._rec is rec for h in handles):
        raise error


def ask_again(rec: Recording, wanted: Sequence[Handle], attempt: Attempt) -> None:
    """Compute what is wanted of a recording that failed before."""
    if rec.told and any(h is t for t in _written(rec) for h in wanted) and not _done(attempt, rec, _written(rec)):
        undo(rec)  # the step has raised already
    asked = [h for h in wanted if h._rec is rec]
    try:
        if asked:
            attempt(rec, asked)
    except Exception:
        if any(h is t for t in _written(rec) for h in asked):
            undo(rec)
        raise


def undo(rec: Recording, written: Iterable[tuple[Handle, Buffer]] = ()) -> None:
    """Tensors that were written to (those `written` too) have the values they had, and gradients taken are None again."""
    before = [(t, b) for t, b in zip(rec.leaf_handles, rec.buffers) if t is not None]
    for t, buffer in [*written, *before]:
        if t._rec is rec:
            t._rec, t._buffer, t._shape, t._history = None, buffer, None, None
            stale_views(t)
    for t in rec.variables.values():
        if t._grad is not None and t._grad._rec is rec:
            t._grad = None


def _written(rec: Recording) -> list[Handle]:
    """Tensors that came with a value and still wait for another."""
    return [t for t in rec.leaf_handles if t is not None and t._rec is rec]


def _done(attempt: Attempt, rec: Recording, handles: Sequence[Handle]) -> bool:
    if handles:
        with suppress(Exception):
            attempt(rec, handles)
            return True
    return not handles


def _reads(node: Node, causes: set[Node], first: int) -> bool:
    """Whether one of `causes`, of which none was recorded before `first`, is or goes into `node`."""
    seen = {node}
    stack = [node]
    while stack:
        n = stack.pop()
        if n in causes:
            return True
        for i in n.inputs:
            if i.index >= first and i not in seen:
                seen.add(i)
                stack.append(i)
    return False
