"""Recording: what happens when an operation is applied to a tensor.

A recording is a path through a trie of nodes.  Applying an operation compares it with the node that followed last time:
same operation, attributes and inputs, and the node is used again, without inference.  Otherwise a branch is looked for,
and last of all a node is made (``_branch``; shape and dtype errors raise here, at the user's own line).

Measured on the reference machine: about 1 µs for a repeated operation, so everything on that path is spelled out.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from lezero.graph import dim as dims
from lezero.graph.dim import Dim
from lezero.graph.node import Node
from lezero.ops.base import Op
from lezero.runtime import sites
from lezero.runtime.inference import infer
from lezero.runtime.leaves import import_handle, import_scalar
from lezero.runtime.recording import STATE, Handle, Recording
from lezero.runtime.trie import advance, extend, tracks

MAX_RECORDED = 20_000
"""A recording is run when it reaches this many operations, so that a forgotten tensor cannot grow it for ever."""
MAX_RECORDED_BYTES = 2 << 30
"""A recording is run when it holds more than this many bytes of data (parameters do not count: they are there anyway), so
that results which are collected and never read do not keep all they came from."""

tensor_class: type[Handle] = Handle  # set by lezero.tensor


def record(op: Op, operands: tuple, attrs: tuple) -> Any:
    """Apply `op`: the recorded result as a new Tensor."""
    state = STATE
    if state.autocast is not None and not state.in_rule:
        operands = state.autocast(op, operands)
    rec = state.recording
    imported = rec.imported
    nodes = []
    for t in operands:
        if isinstance(t, Handle):
            if t._rec is rec:
                nodes.append(t._node)
            else:
                nodes.append(imported.get(id(t)) or import_handle(rec, t))
        else:
            nodes.append(import_scalar(rec, t))
    inputs = tuple(nodes)
    node = rec.tail.next
    if (
        node is None
        or node.op is not op
        or node.inputs != inputs
        or node.grad_mode is not state.grad_mode
        or (not _same_attrs(rec, node.attrs, attrs) if op.shape_attrs else node.attrs != attrs)
        or (node.guards and not _guards_hold(rec, node))
    ):
        node = _branch(rec, op, inputs, attrs, state.grad_mode)
    rec.tail = node
    rec.count += 1
    t = tensor_class.__new__(tensor_class)
    t._rec = rec
    t._node = node
    rec.handles.append(ref(t))
    if (rec.count >= MAX_RECORDED or rec.bytes > MAX_RECORDED_BYTES) and state.capture is None and not state.in_rule:
        from lezero.runtime.run import run_now

        run_now()
    return t


def _same_attrs(rec: Recording, ours: tuple, theirs: tuple) -> bool:
    bindings = rec.bindings
    for a, b in zip(ours, theirs):
        if type(a) is tuple:
            if type(b) is not tuple or len(a) != len(b) or not _same_attrs(rec, a, b):
                return False
        elif type(a) is Dim:
            if type(b) is Dim and b.expr != a.expr:
                return False
            try:
                if dims.evaluate(a.expr, bindings) != b:
                    return False
            except IndexError:  # an extent this recording has not seen yet
                return False
        elif type(b) is Dim or a != b or a.__class__ is not b.__class__:
            return False
    return True


def _of_this_recording(rec: Recording, attrs: tuple) -> tuple:
    """Attributes with the extents of a recording that has ended as numbers: their symbols mean others by now."""
    if not any(type(a) is tuple or type(a) is Dim for a in attrs):
        return attrs
    return tuple(
        _of_this_recording(rec, a) if type(a) is tuple else int(a) if type(a) is Dim and rec.stale(a) else a
        for a in attrs
    )


def _guards_hold(rec: Recording, node: Node) -> bool:
    return all(dims.holds(g, rec.bindings) for g in node.guards)


def _branch(rec: Recording, op: Op, inputs: tuple[Node, ...], attrs: tuple, grad_mode: bool) -> Node:
    """The continuation for an operation that is not what followed last time; made if there is none yet."""
    tail = rec.tail
    if op.shape_attrs:
        attrs = _of_this_recording(rec, attrs)
    for node in tail.branches or ():
        if (
            node.op is op
            and node.inputs == inputs
            and node.grad_mode is grad_mode
            and (_same_attrs(rec, node.attrs, attrs) if op.shape_attrs else node.attrs == attrs)
            and _guards_hold(rec, node)
        ):
            tail.next = node
            return node
    found = infer(rec.bindings, op, tuple([n.found.spec for n in inputs]), attrs)
    return extend(tail, found, inputs, grad_mode, tracks(found, inputs, grad_mode), STATE.site or sites.find_site())


def step(rec: Recording, op: Op, inputs: tuple[Node, ...], attrs: tuple) -> Node:
    """Apply `op` to nodes: for what nobody outside will see."""
    grad_mode = STATE.grad_mode
    found = infer(rec.bindings, op, tuple([n.found.spec for n in inputs]), attrs)
    rec.count += 1
    return advance(rec, found, inputs, grad_mode, tracks(found, inputs, grad_mode), STATE.site or sites.find_site())


def handle_of(rec: Recording, node: Node) -> Any:
    """A new Tensor standing for a node of a recording."""
    t = tensor_class.__new__(tensor_class)
    t._rec, t._node = rec, node
    rec.handles.append(ref(t))
    return t
