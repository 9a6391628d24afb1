"""Running a recording: everything a live tensor still stands for is computed, and the recording ends.

The structure recorded is the last node of a trie path, so the plan for it is found in that node's ``plans``, keyed by what
else decides it: which results are live, which inputs may be written over, the strides of the inputs, and whether
gradients may still be asked for.  Survivors become leaves of later recordings; those a gradient may still be asked for
keep their past.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from lezero.autograd.walk import reachable
from lezero.graph.dim import Dim
from lezero.graph.dtype import default_watchers
from lezero.graph.node import Graph, Node, toposort
from lezero.hal import registry
from lezero.hal.buffer import Borrowed, Buffer, Part
from lezero.hal.references import counts, held_once, others
from lezero.runtime import bounds, failed, inference, trie
from lezero.runtime.recording import STATE, Handle, Recording, other_threads, start_anew
from lezero.runtime.trie import Root

MAX_PLANS = 512
"""Compiled programs kept; the least recently used goes first."""

PATIENCE, PAUSE = 10, 5e-4
"""How often, and how many seconds at a time, a thread waits for another to run what it has recorded."""

inspect: Callable[[Recording, Any, Any], None] | None = None
"""Called with a recording, its ending and the backend before a run; what it raises stops the run (``lezero.debug``)."""

_lock = threading.RLock()
_plans: OrderedDict[tuple, Plan] = OrderedDict()


class Past:
    """What a finished recording leaves behind for gradients asked for later.

    bindings : the extents of its symbols
    hooks : node -> functions to call with the gradient that arrives there
    values : node -> buffer, of leaves, results and residuals
    variables : leaf node -> the handle whose gradient it is
    waiting : results whose gradients may be asked for
    freed : roots whose gradients have been taken
    """

    __slots__ = ("bindings", "freed", "hooks", "order", "values", "variables", "waiting")
    _count = 0

    def __init__(self, rec: Recording, waiting: tuple[Node, ...], values: dict[Node, Buffer]):
        self.waiting, self.values, self.variables = waiting, values, dict(rec.variables)
        self.freed, self.hooks, self.bindings = list(rec.freed), dict(rec.hooks), list(rec.bindings)
        Past._count += 1
        self.order = Past._count

    def free(self, roots: Iterable[Node]) -> None:
        """The gradients of `roots` have been taken: let go of what only they needed."""
        self.freed.extend(roots)
        gone = set(reachable(self.freed, self.variables))
        if not any(n.op.keeps for n in gone if n.inputs):
            return  # nothing was kept for them, so they can be taken again
        needed = reachable((n for n in self.waiting if n not in gone), self.variables)
        keep = {*needed, *(i for n in needed for i in n.inputs)}
        self.values = {n: b for n, b in self.values.items() if n in keep}


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
    last: tuple[Plan, list[int]] | None = None  # plan and extents of the last run

    def note(self, plan: Plan, bindings: list[int], count: int) -> None:
        """A run of `plan`, with these extents, for so many recorded operations."""
        plan.runs += 1
        self.runs += 1
        self.nodes += count
        self.last = (plan, bindings)


statistics = Statistics()


def run_now(*wanted: Handle) -> None:
    """Run this thread's recording in progress, in order to have the values of `wanted` (see ``run_recording``)."""
    state = STATE
    if state.capture is not None:
        state.capture.refuse()
    run_recording(state.recording, *wanted)


@dataclass
class Ran:
    """What a run did: the plan and ending found for it, the handles it gave values to, the inputs it could write over, the
    memory orders of all inputs, and an interrupt that came too late to stop it."""

    plan: Plan
    ending: Ending
    handles: Sequence[Handle]
    donated: frozenset[int]
    orders: tuple[Any, ...]
    late: BaseException | None


def run_recording(rec: Recording, *wanted: Handle, all_wanted: bool = False) -> Ran | None:
    """Run a recording; None if nothing of it is alive, or not all could be computed.

    Where something in it cannot be computed, that raises if it is among `wanted` (with `all_wanted` always), or if it
    decides a tensor that is written to; otherwise it raises when it is read (``runtime/failed.py``).
    """
    if rec is not STATE.recording:
        if _goes_on_elsewhere(rec):
            return _run_for_another(rec, wanted)
        with _lock:
            return _run(rec, wanted, all_wanted)
    try:
        rec.ready = True
        with _lock:
            return _run(rec, wanted, all_wanted)
    finally:
        rec.ready = False


def _goes_on_elsewhere(rec: Recording) -> bool:
    """Whether another thread is recording into it."""
    if rec.ready:
        return False
    return any(state.get("recording") is rec and thread.is_alive() for thread, state in other_threads())


def _run_for_another(rec: Recording, wanted: tuple[Handle, ...]) -> Ran | None:
    """Values of a recording that another thread goes on with: nothing of it is let go of or written over.

    That thread gets some time to run it itself, as it does at the end of a step.  If it does not record meanwhile either, all
    that is pending is computed at once, since what else is there will be wanted next.
    """
    tail = rec.tail
    for _ in range(PATIENCE):
        with _lock:  # which a run of it holds: what waits here comes to its end
            if not _goes_on_elsewhere(rec):
                return _run(rec, wanted, False)
            if not any(h._rec is rec for h in wanted):
                return None
        time.sleep(PAUSE)
    with _lock:
        if not _goes_on_elsewhere(rec):
            return _run(rec, wanted, False)
        held = [h for r in list(rec.handles) if (h := r()) is not None] if rec.tail is tail else wanted
        pending = list({id(h): h for h in held if h._rec is rec}.values())
        return _compute(rec, pending, donate=False) if pending else None


def _live(rec: Recording) -> list[Handle]:
    """Handles that stand for a recorded operation and that somebody outside still holds, in recorded order."""
    found: dict[int, Handle] = {}
    for r in rec.handles:
        h = r()
        if h is not None and h._rec is rec:
            found[id(h)] = h
    h = None
    _let_go(rec, found)
    _cut_views(found)
    return list(found.values())


def _let_go(rec: Recording, found: dict[int, Handle]) -> None:
    """Leave out the parameters that only the recording's list of them refers to: those of a model that was dropped."""
    times: dict[int, int] = {}  # on the list
    for key in map(id, rec.variables.values()):
        if key in found:
            times[key] = times.get(key, 0) + 1
    owners = counts([found[key] for key in times])
    for (key, n), held in zip(times.items(), owners):
        if held - 1 <= n:  # besides `found`
            found.pop(key)._rec = None


def _cut_views(found: dict[int, Handle]) -> None:
    """Leave out tensors that only their views refer to.

    One that is a view itself is derived again from its base, should anybody need it.  Otherwise its one view stands on its
    own from here on.
    """
    again = True
    while again:
        again = False
        for key in list(found):
            h = found[key]
            if h._views is None:
                continue
            views = [v for v in (r() for r in h._views) if v is not None and v._base is h]
            # besides `found`: the local, and the views
            if views and others(found, key) <= 1 + len(views):
                if h._base is not None:
                    h._rec = h._shape = None
                    del found[key]
                elif len(views) == 1:
                    views[0]._base = views[0]._view = None
                    del found[key]
                    again = True
            del views


def _run(rec: Recording, wanted: tuple[Handle, ...], all_wanted: bool) -> Ran | None:
    state = STATE
    if rec.failed and wanted:
        failed.ask_again(rec, wanted, _by_themselves)
        return None
    handles = _live(rec)
    if state.recording is rec:
        state.recording = Recording()
    ran = None
    if handles:
        try:
            ran = _compute(rec, handles, donate=not rec.failed)
        except Exception as error:
            if _too_large(error):
                raise  # the captured function takes it back as a whole
            failed.isolate(rec, handles, wanted, error, _by_themselves, all_wanted)
            return None
        except BaseException:
            if handles[0]._rec is not rec:
                _release(rec)  # it came after the values were handed out
            raise  # otherwise nothing was overwritten: what was recorded still stands, and is computed where it is next used
    raised = (ran and ran.late) or (bounds.complaint(rec) if rec.checks else None)
    _release(rec)
    if raised is not None:
        raise raised
    return ran


def _too_large(error: Exception) -> bool:
    """Whether it says that a memory limit cannot be met."""
    from lezero.schedule.budget import MemoryLimitError

    return isinstance(error, MemoryLimitError)


def _by_themselves(rec: Recording, handles: Sequence[Handle]) -> None:
    """Compute what `handles` stand for without writing over anything that others may still be computed from."""
    late = _compute(rec, handles, donate=False).late
    if late is not None:
        raise late


def _compute(rec: Recording, handles: Sequence[Handle], donate: bool) -> Ran:
    """Give `handles` the values they stand for."""
    ending = _ending(rec, handles)
    backend = registry.current()
    if inspect is not None:
        inspect(rec, ending, backend)
    donated = _donatable(rec, ending.held) if donate else frozenset()
    parts = frozenset([i for i in donated if type(rec.buffers[i]) is Part])
    orders = tuple([b.order for b in rec.buffers])
    key = (ending.goal, donated, parts, orders, backend.name, backend.plan_key())
    plan = _plans.get(key)
    if plan is None:
        plan = _build(rec, ending, donated, backend)
        if not rec.root.forgotten:
            _plans[key] = plan
        while len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
            statistics.plan_evictions += 1
    else:
        _plans[key] = _plans.pop(key, plan)  # to the end
    inputs = [rec.buffers[i] for i in plan.leaves]
    gone = [k for k, i in enumerate(plan.leaves) if i in donated]
    late = results = None
    try:
        results = plan.program.run(inputs, rec.bindings, gone)
        _hand_out(rec, plan, ending, handles, results)
    except BaseException as error:
        complete = getattr(error, "results", None) if results is None else results
        if complete is None:
            raise
        _hand_out(rec, plan, ending, handles, complete)  # it came too late: the run is complete
        if results is not None:
            raise
        late = error
    statistics.note(plan, rec.bindings, rec.count)
    return Ran(plan, ending, handles, donated, orders, late)


def _hand_out(rec: Recording, plan: Plan, ending: Ending, handles: Sequence[Handle], results: list[Buffer]) -> None:
    """Give handles the values they stand for; may be called again when an interrupt cut it short."""
    past = None
    if ending.waiting:
        known = {n: b for n, b in zip(rec.leaf_nodes, rec.buffers) if n in ending.held}
        known.update((n, b) for n, b in zip((*ending.outputs, *plan.residuals), results) if n in ending.held)
        past = Past(rec, ending.waiting, known)
    for h, k, dynamic, fate in zip(handles, ending.positions, ending.dynamic, ending.fates):
        if h._node is not ending.outputs[k]:
            continue  # the thread that goes on recording has written to it meanwhile
        h._buffer = results[k]
        h._rec = None
        h._shape = None
        h._dynamic = dynamic
        if fate is not None and not h._requires_grad:
            h._history = FREED if fate is FREED else (past, h._node)


def dynamic(node: Node) -> tuple[int, ...]:
    """The axes of a node whose extents are symbols."""
    return tuple([i for i, d in enumerate(node.shape) if type(d) is Dim])


class Goal:
    """What is computed in a trie, whichever handles stand for it; its identity is what counts."""

    __slots__ = ("root",)

    def __init__(self, root: Root):
        self.root = root


def _forget_plans(root: Root) -> None:
    for key in list(_plans):
        if key[0].root is root:
            _plans.pop(key, None)


trie.forgetting.append(_forget_plans)


class Ending:
    """What follows from where a recording ended and which of its values are alive; found again when it repeats.

    outputs : the nodes to compute
    waiting : those a gradient may still be asked for
    held : what these were computed from
    goal : the same for all endings of a trace that compute the same
    positions, dynamic, fates : for each live handle its output, its axes with symbolic extents, and what becomes of its
        history (None, FREED, or "past")
    """

    __slots__ = ("dynamic", "fates", "goal", "held", "outputs", "positions", "waiting")

    def __init__(self, rec: Recording, nodes: list[Node]):
        self.outputs = tuple(sorted(dict.fromkeys(nodes), key=attrgetter("index")))
        place = {n: k for k, n in enumerate(self.outputs)}
        tracked = [n for n in self.outputs if n.tracks and n not in rec.variables]
        freed = set(rec.freed)
        if not freed.issuperset(tracked):  # most often what is left is the loss itself
            freed.update(reachable(rec.freed))
        self.waiting = tuple([n for n in tracked if n not in freed])
        self.held = frozenset(toposort(self.waiting))
        self.goal = Goal(rec.root)
        waiting = set(self.waiting)
        self.positions = [place[n] for n in nodes]
        self.dynamic = [dynamic(n) if n.found.spec.symbolic else () for n in nodes]
        self.fates = ["past" if n in waiting else FREED if n.tracks else None for n in nodes]


def _ending(rec: Recording, handles: Sequence[Handle]) -> Ending:
    nodes = [h._node for h in handles]
    key = (tuple(nodes), tuple(rec.freed))
    tail = rec.tail
    plans = tail.plans
    if plans is None:
        plans = tail.plans = {}
    ending = plans.get(key)
    if ending is None:
        ending = Ending(rec, nodes)
        for other in plans.values():
            if other.outputs == ending.outputs and other.waiting == ending.waiting:
                ending.goal = other.goal
                break
        if len(plans) >= 32:
            plans.clear()
        plans[key] = ending
    return ending


FREED = "freed"
"""The history of a tensor whose gradient has been taken (and its residuals let go)."""


def _donatable(rec: Recording, held: Collection[Node]) -> frozenset[int]:
    """Inputs that only this recording refers to any more, and whose nodes are not among those `held` for later."""
    buffers = rec.buffers
    kept = {i for i, _ in rec.scalars}
    if held:
        kept.update(i for i, n in enumerate(rec.leaf_nodes) if n in held)
    return frozenset([i for i in held_once(buffers) if i not in kept and type(buffers[i]) is not Borrowed])


def _build(rec: Recording, ending: Ending, donated: frozenset[int], backend: Any) -> Plan:
    from lezero.runtime.residuals import residuals  # the scheduler is imported when there is something to run

    outputs = ending.outputs
    kept = residuals(reachable(ending.waiting), {*outputs, *rec.leaf_nodes}, rec.regions, rec.bindings)
    needed = Graph(tuple(rec.leaf_nodes), (*outputs, *kept))
    used = {n for n in needed.nodes() if n.op.is_leaf}
    positions = tuple(i for i, n in enumerate(rec.leaf_nodes) if n in used)
    graph = Graph(tuple(rec.leaf_nodes[i] for i in positions), needed.outputs).at(rec.bindings)
    donatable = frozenset(k for k, i in enumerate(positions) if i in donated)
    statistics.plans_built += 1
    buffers = [rec.buffers[i] for i in positions]
    if rec.root.limit is None:
        together = frozenset(range(len(outputs), len(graph.outputs)))
        program = backend.compile(graph, donatable, buffers, together)
    else:
        program = backend.compile_within(graph, donatable, buffers, rec.root.limit)
    return Plan(program, graph, positions, kept)


def _release(rec: Recording) -> None:
    """Let go of what a recording holds of the outside."""
    rec.handles.clear()
    rec.checks.clear()
    rec.imported.clear()
    rec.leaf_handles.clear()
    rec.buffers.clear()
    rec.leaf_nodes.clear()


def realize(*tensors: Any) -> None:
    """Run what has been recorded, so that the given tensors (and all others that are alive) hold values.

    What an interrupted run was to give waits until it is used, or given here.
    """
    if not tensors:
        if STATE.capture is not None:
            STATE.capture.refuse()
        run_recording(STATE.recording, all_wanted=True)
    for rec in {id(t._rec): t._rec for t in tensors if t._rec is not None}.values():
        if STATE.capture is not None:
            STATE.capture.refuse()
        run_recording(rec, *[t for t in tensors if t._rec is rec])


def _default_dtype_changed() -> None:
    """Operations may give other dtypes now: nothing that was recorded before is followed again."""
    if STATE.capture is not None:
        STATE.capture.refuse("the default dtype is changed")
    run_recording(STATE.recording)
    inference.forget()
    start_anew()


default_watchers.append(_default_dtype_changed)


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
        "trie_nodes": trie.size,
        "trie_resets": trie.resets,
        **registry.current().memory_stats(),
        "last_run": _last_run(),
    }


def _last_run() -> dict[str, Any]:
    """The last run in numbers: as recorded (one kernel for each operation, nothing fused), and as it was run."""
    from lezero.runtime.figures import restructured, unfused

    if statistics.last is None:
        return {}
    plan, bindings = statistics.last
    before, after = unfused(plan.graph.at(bindings)), restructured(plan.program, bindings)
    return {"recorded": vars(before), "restructured": None if after is None else vars(after)}


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # whoever held it is not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
