"""Writing: values never change, handles are pointed at others, and views hear of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from weakref import ref

from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.ops.base import REGISTRY, Op
from lezero.runtime import recorder
from lezero.runtime.leaves import import_handle
from lezero.runtime.recorder import record, step
from lezero.runtime.recording import STATE, Handle, Recording, thread_states

journal: list[tuple[Handle, Buffer]] | None = None
"""While ``lezero.debug`` watches: handles written to, and the values they had."""


def adopt(t: Handle, value: Handle) -> None:
    """Make `t` stand for what `value` stands for, without telling anybody (see ``assign``)."""
    rec = STATE.recording
    if value._rec is not rec:  # a realised value: give it a node in this recording
        value = record(REGISTRY["identity"], (value,), ())
    point((t,), (value._node,))


def point(handles: Sequence[Handle], nodes: Sequence[Node]) -> None:
    """Make handles stand for nodes of the recording in progress, without telling anybody; all of them, even when an
    interrupt comes in between."""
    try:
        _point(handles, nodes)
    except BaseException:
        _point(handles, nodes)
        raise


def _point(handles: Sequence[Handle], nodes: Sequence[Node]) -> None:
    state = STATE
    rec, capture = state.recording, state.capture
    imported, made = rec.imported, rec.handles
    if state.adopted is not None:
        state.adopted.extend([(t, t._rec, t._node, t._buffer, t._shape, t._history) for t in handles])
    for t, node in zip(handles, nodes):
        imported.pop(id(t), None)
        if capture is not None:
            capture.before_write(t)
        if journal is not None and t._buffer is not None:
            journal.append((t, t._buffer))
        made.append(ref(t))  # first: an interrupt in between must not leave a handle that no run knows of
        t._rec, t._node, t._buffer, t._shape, t._history = rec, node, None, None, None
    if len(thread_states) > 1:
        tell_other_threads(handles)


def tell_other_threads(written: Iterable[Handle]) -> None:
    """Other threads that have used these handles in the recordings they are making use their new values from now on."""
    mine = STATE.recording
    for state in list(thread_states.values()):
        rec = state.get("recording")
        if rec is not None and rec is not mine:
            for t in written:
                rec.imported.pop(id(t), None)


def derive_again(t: Handle) -> Node:
    """A view whose base was written to: take it from the base as that is now."""
    op, attrs = t._view  # type: ignore[misc]
    fresh = record(op, (t._base,), attrs)
    adopt(t, fresh)
    return t._node


def assign_together(handles: Sequence[Handle], values: Sequence[Handle]) -> None:
    """``assign`` for several handles: an interrupt leaves all of them written or none, where no view and no gradient has to
    hear of it."""
    for t in handles:
        if t._base is not None or t._views is not None or t._requires_grad:
            for each, value in zip(handles, values):
                assign(each, value)
            return
    rec = STATE.recording
    point(
        handles, [v._node if v._rec is rec else step(rec, REGISTRY["identity"], (_source(rec, v),), ()) for v in values]
    )


def assign(t: Handle, value: Handle) -> None:
    """Point `t` at a new value of the same shape and dtype, and carry the write through to what it is a view of."""
    state = STATE
    if state.grad_mode:
        _refuse_leaves(t)
    if t._requires_grad:
        node = value._node if value._rec is state.recording else None
        if node is None or node.op.name != "variable":
            value = as_variable(value)
    adopt(t, value)
    if t._requires_grad:
        state.recording.variables[t._node] = t
    stale_views(t)
    base = t._base
    came_from = t
    while base is not None:
        updated = _write_back(base, came_from)
        if base._requires_grad:
            updated = as_variable(updated)
        adopt(base, updated)
        if base._requires_grad:
            state.recording.variables[base._node] = base
        stale_views(base, (id(came_from),))
        came_from, base = base, base._base


def _source(rec: Recording, value: Handle) -> Node:
    """The node of a handle in a recording."""
    return value._node if value._rec is rec else rec.imported.get(id(value)) or import_handle(rec, value)


def _refuse_leaves(t: Handle) -> None:
    """A gradient cannot account for writes to leaves, except through ``detach`` and ``data``, which ask it not to."""
    written: Handle | None = t
    while written is not None:
        if written._requires_grad:
            what = "an in-place operation on" if written is t else "a write through a view of"
            raise RuntimeError(
                f"{what} a leaf that requires a gradient: wrap it in `with lz.no_grad():` "
                "(or work on its detach(), which shares the value)"
            )
        if written._view is not None and written._view[0].name == "detach":
            return
        written = written._base


def as_variable(value: Handle) -> Handle:
    """A leaf boundary: gradients stop here (see ``variables``)."""
    rec = STATE.recording
    t = recorder.tensor_class.__new__(recorder.tensor_class)
    t._rec, t._node = rec, step(rec, REGISTRY["variable"], (_source(rec, value),), ())
    return t


def _write_back(base: Handle, view: Handle) -> Handle:
    """The base's new value after its view was written to."""
    op, attrs = view._view  # type: ignore[misc]
    rule = WRITE_BACK.get(op.name)
    if rule is None:
        raise RuntimeError(f"{op.name} gives a view that cannot be written through; write to the tensor itself")
    return rule(base, view, **dict(zip(op.attrs, attrs)))


WRITE_BACK: dict[str, Callable[..., Any]] = {}
"""View operation -> (base, view with its new value, **attrs) -> the base's new value; filled by lezero.tensor."""


def stale_views(t: Handle, fresh: Collection[int] = ()) -> None:
    """Views of `t`, except those with the ids `fresh`, must be derived again when next used."""
    if not t._views:
        return
    alive = []
    for r in t._views:
        view = r()
        if view is None:
            continue
        alive.append(r)
        if id(view) not in fresh:
            STATE.recording.imported.pop(id(view), None)
            view._rec = view._buffer = view._shape = view._history = None
            if len(thread_states) > 1:
                tell_other_threads((view,))
            stale_views(view, fresh)
    t._views = alive


def note_view(view: Handle, base: Handle, op: Op, attrs: tuple) -> None:
    """Remember that writing through `view` writes to `base`."""
    view._base, view._view = base, (op, attrs)
    if base._views is None:
        base._views = []
    elif len(base._views) > 16:
        base._views = [r for r in base._views if r() is not None]
    base._views.append(ref(view))
