"""Running a recording: everything a live tensor still stands for is computed, and the recording ends.

The structure recorded is the last node of a trie path, so the plan for it is found in that node's ``plans``, keyed by what
else decides it: which results are live, which inputs may be written over, the strides of the inputs, and whether
gradients may still be asked for.  Survivors become leaves of later recordings; those a gradient may still be asked for
keep their past.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from lezero.autograd.walk import reachable
from lezero.graph.dim import Dim
from lezero.graph.node import Graph, Node
from lezero.hal import registry
from lezero.hal.buffer import Buffer
from lezero.runtime import recorder
from lezero.runtime.recorder import STATE, Handle, Recording

MAX_PLANS = 512
"""Compiled programs kept; the least recently used goes first."""

_lock = threading.RLock()
_plans: OrderedDict[tuple[Node, tuple], Plan] = OrderedDict()


class Past:
    """What a finished recording leaves behind for gradients asked for later.

    bindings : the extents of its symbols
    hooks : node -> functions to call with the gradient that arrives there
    values : node -> buffer, of leaves, results and residuals
    variables : leaf node -> the handle whose gradient it is
    freed : roots whose gradients have been taken
    """

    __slots__ = ("bindings", "freed", "hooks", "order", "values", "variables")
    _count = 0

    def __init__(self, rec: Recording, values: dict[Node, Buffer]):
        self.values, self.variables = values, dict(rec.variables)
        self.freed, self.hooks, self.bindings = list(rec.freed), dict(rec.hooks), list(rec.bindings)
        Past._count += 1
        self.order = Past._count


@dataclass
class Plan:
    """A program for a recording that ended at some trie node with some live results."""

    program: Any
    graph: Graph
    leaves: tuple[int, ...]  # positions of the leaves the graph reads
    residuals: tuple[Node, ...]
    runs: int = 0


@dataclass
class Statistics:
    """Counters since the process started (``lezero.runtime.stats()``)."""

    runs: int = 0
    nodes: int = 0
    plans_built: int = 0
    plan_evictions: int = 0


statistics = Statistics()


def run_now() -> None:
    """Run this thread's recording in progress."""
    state = STATE
    if state.capture is not None:
        state.capture.refuse()
    run_recording(state.recording)


recorder.run_now = run_now


def run_recording(rec: Recording) -> None:
    with _lock:
        _run(rec)


def _live(rec: Recording) -> list[Handle]:
    """Handles that stand for a recorded operation and that somebody outside still holds, in recorded order."""
    found: dict[int, Handle] = {}
    for r in rec.handles:
        h = r()
        if h is not None and h._rec is rec:
            found[id(h)] = h
    _cut_views(found)
    return list(found.values())


def _cut_views(found: dict[int, Handle]) -> None:
    """Leave out tensors that only their one view refers to: the view stands on its own from here on."""
    again = True
    while again:
        again = False
        for key in list(found):
            h = found[key]
            if h._views is None:
                continue
            views = [v for v in (r() for r in h._views) if v is not None and v._base is h]
            # references: `found`, the local, getrefcount's argument, and the views
            if len(views) == 1 and sys.getrefcount(h) <= 3 + len(views):
                views[0]._base = views[0]._view = None
                del found[key]
                again = True
            del views


def _run(rec: Recording) -> None:
    state = STATE
    handles = _live(rec)
    if state.recording is rec:
        state.recording = Recording()
    if not handles:
        _abandon(rec)
        return
    freed = _freed(rec)
    wanted: dict[Node, None] = dict.fromkeys(h._node for h in handles)  # type: ignore[misc]
    waiting = [n for n in wanted if n.tracks and n not in freed and n not in rec.variables]
    outputs = tuple(sorted(wanted, key=lambda n: n.index))

    h = None
    donated = _donatable(rec) if not waiting else frozenset()
    strides = tuple(_order_of(b) for b in rec.buffers)
    backend = registry.current()
    key = (tuple(n.index for n in outputs), tuple(n.index for n in waiting), donated, strides, backend.name, backend.plan_key())
    plan = _plans.get((rec.tail, key))
    if plan is None:
        plan = _build(rec, outputs, waiting, donated, backend)
        _plans[rec.tail, key] = plan
        if len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
            statistics.plan_evictions += 1
    else:
        _plans.move_to_end((rec.tail, key))
    inputs = [rec.buffers[i] for i in plan.leaves]
    gone = [k for k, i in enumerate(plan.leaves) if i in donated]
    try:
        results = plan.program.run(inputs, rec.bindings, gone)
    except BaseException:
        if state.recording is not rec and not state.recording.count and not state.recording.leaf_nodes:
            state.recording = rec  # nothing was overwritten: what was recorded still stands
        raise
    plan.runs += 1
    statistics.runs += 1
    statistics.nodes += rec.count
    values = dict(zip((*outputs, *plan.residuals), results))
    past = None
    if waiting:
        known = dict(zip(rec.leaf_nodes, rec.buffers))
        known.update(values)
        past = Past(rec, known)
    unfinished = set(waiting)
    for h in handles:
        node = h._node
        h._buffer = values[node]  # type: ignore[index]
        h._rec = None
        h._shape = None
        h._dynamic = tuple(i for i, d in enumerate(node.shape) if type(d) is Dim)  # type: ignore[union-attr]
        if past is not None and node in unfinished:
            h._history = (past, node)
        elif node.tracks and not h._requires_grad:  # type: ignore[union-attr]
            h._history = FREED
    _release(rec)


FREED = "freed"
"""The history of a tensor whose gradient has been taken (and its residuals let go)."""


def _freed(rec: Recording) -> set[Node]:
    return set(reachable(rec.freed)) if rec.freed else set()


def _donatable(rec: Recording) -> frozenset[int]:
    """Inputs that only this recording refers to any more."""
    count = sys.getrefcount
    buffers = rec.buffers
    scalars = {i for i, _ in rec.scalars}
    # references: the list and getrefcount's argument
    return frozenset(i for i in range(len(buffers)) if count(buffers[i]) <= 2 and i not in scalars)


_ORDERS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _order_of(b: Buffer) -> tuple[int, ...] | None:
    """None for row-major memory, else the strides' order."""
    a = b.array
    if a.flags.c_contiguous:
        return None
    return tuple(sorted(range(a.ndim), key=lambda i: (-a.strides[i], i)))


def _build(rec: Recording, outputs: tuple[Node, ...], waiting: list[Node], donated: frozenset[int], backend: Any) -> Plan:
    residuals = _residuals(rec, outputs, waiting)
    needed = Graph(tuple(rec.leaf_nodes), (*outputs, *residuals))
    used = {n for n in needed.nodes() if n.op.is_leaf}
    positions = tuple(i for i, n in enumerate(rec.leaf_nodes) if n in used)
    graph = Graph(tuple(rec.leaf_nodes[i] for i in positions), needed.outputs)
    donatable = frozenset(k for k, i in enumerate(positions) if i in donated)
    statistics.plans_built += 1
    program = backend.compile(graph, donatable, [rec.buffers[i] for i in positions])
    return Plan(program, graph, positions, residuals)


def _residuals(rec: Recording, outputs: tuple[Node, ...], waiting: list[Node]) -> tuple[Node, ...]:
    """Values a later ``backward()`` will read: what the operations on the way declare they keep."""
    have = set(outputs) | set(rec.leaf_nodes)
    keep: dict[Node, None] = {}
    for node in reachable(waiting):
        if node.op.is_leaf:
            continue
        for name in node.op.keeps:
            if name == "y":
                kept: tuple[Node, ...] = (node,)
            elif node.op.variadic:
                kept = node.inputs
            else:
                position = node.op.inputs.index(name)
                kept = node.inputs[position : position + 1]
            for n in kept:
                if n not in have and n.op.kind != "source":
                    keep[n] = None
    return tuple(keep)


def _release(rec: Recording) -> None:
    rec.handles.clear()
    rec.imported.clear()
    rec.leaf_handles.clear()
    rec.buffers.clear()
    rec.leaf_nodes.clear()


def _abandon(rec: Recording) -> None:
    """Nothing recorded is wanted any more."""
    _release(rec)


def realize(*tensors: Any) -> None:
    """Run what has been recorded, so that the given tensors (and all others that are alive) hold values."""
    if not tensors or any(t._rec is not None for t in tensors):
        run_now()


def end_step() -> None:
    """The end of an optimizer's step: run, unless a capture is recording."""
    if STATE.capture is None:
        run_recording(STATE.recording)


def stats() -> dict[str, Any]:
    """Counters of recording and running since the process started."""
    return {
        "runs": statistics.runs,
        "nodes_run": statistics.nodes,
        "plans": len(_plans),
        "plans_built": statistics.plans_built,
        "plan_evictions": statistics.plan_evictions,
        "trie_nodes": recorder._trie_size,
        "trie_resets": recorder.trie_resets,
        **registry.current().memory_stats(),
    }
