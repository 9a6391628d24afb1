"""``backward()`` and ``autograd.grad``: the gradient walk over what has been recorded, in this recording and earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lezero.autograd.walk import propagate, pulled, reachable
from lezero.graph import dim as dims
from lezero.graph.dim import Dim, evaluate
from lezero.graph.node import Node
from lezero.ops.base import REGISTRY
from lezero.runtime import recorder
from lezero.runtime.checkpoint import Again
from lezero.runtime.inference import infer
from lezero.runtime.leaves import constant, import_handle
from lezero.runtime.recorder import handle_of, record, step
from lezero.runtime.recording import STATE, Handle, Recording
from lezero.runtime.replay import between
from lezero.runtime.run import FREED, Past, run_now
from lezero.runtime.template import Traced, template
from lezero.runtime.writes import adopt

_ADD = REGISTRY["add"]
_AGAIN = (
    "the gradient of this value has been taken before, and what it needed was let go: "
    "use backward(retain_graph=True) the first time to take it again"
)


def _of_buffer(buffer: Any, node: Node) -> Handle:
    t = recorder.tensor_class.__new__(recorder.tensor_class)
    t._buffer, t._node = buffer, node
    t._dynamic = tuple(i for i, d in enumerate(node.shape) if type(d) is Dim)
    return t


class _PastValues:
    """Operands for the nodes of a past recording: stored values, or recorded again from stored ones.

    Where the gradient is to be differentiated, they remember where they come from.
    """

    def __init__(self, past: Past):
        self.past = past
        self.made: dict[Node, Handle] = {}
        self.own: set[int] = set()  # ids of handles that nobody outside has been given by anybody else

    def let_go(self) -> None:
        """Forget the handles of stored values, whose memory the run may then use for others.

        Not while a capture or a segment wants to know where the leaves of a recording come from.
        """
        if STATE.capture is None and STATE.adopted is None:
            rec = STATE.recording
            for k, t in enumerate(rec.leaf_handles):
                if id(t) in self.own:
                    rec.leaf_handles[k] = None
                    rec.imported.pop(id(t), None)
        self.made.clear()

    def now(self, attrs: tuple) -> tuple:
        rec = STATE.recording
        return tuple(
            self.now(a)
            if type(a) is tuple
            else rec.symbol(evaluate(a.expr, self.past.bindings))
            if type(a) is Dim
            else a
            for a in attrs
        )

    def __call__(self, node: Node) -> Handle:
        made = self.made
        stack = [node]
        while stack:
            n = stack[-1]
            if n in made:
                stack.pop()
                continue
            buffer = self.past.values.get(n)
            if buffer is not None:
                t = self.past.variables.get(n)
                if t is None or t._buffer is not buffer or STATE.grad_mode:
                    t = _of_buffer(buffer, n)
                    self.own.add(id(t))
                    if n.tracks and STATE.grad_mode:
                        t._history = (self.past, n)
                made[n] = t
                stack.pop()
                continue
            missing = [i for i in n.inputs if i not in made]
            if missing:
                stack.extend(missing)
                continue
            if n.op.is_leaf:
                raise RuntimeError(f"backward: {_AGAIN}")
            attrs = self.now(n.attrs)
            made[n] = _source(n, attrs) if not n.inputs else record(n.op, tuple(made[i] for i in n.inputs), attrs)
            stack.pop()
        return made[node]


def _source(node: Node, attrs: tuple) -> Handle:
    if node.op.name == "constant":
        rec = STATE.recording
        return handle_of(rec, constant(rec, attrs[0]))
    return record(node.op, (), attrs)


class _Recorded:
    """How the walk back through one recording, or one past, is recorded.

    Gradients on their way are nodes of the recording in progress; those that somebody outside sees get a handle.
    """

    def __init__(self, here: Any, roots: Sequence[Handle], targets: dict[Any, int], found: list[Any]):
        self.rec, self.here, self.roots, self.targets, self.found = STATE.recording, here, roots, targets, found
        self.grad_mode = STATE.grad_mode
        self.past: Past | None = here if isinstance(here, Past) else None
        self.values = None if self.past is None else _PastValues(self.past)
        self.again = Again(here) if self.past is None and here.regions else None
        self.hooks = here.hooks
        self.site: Any = None

    def arrived(self, node: Node, dy: Any, grads: dict[Node, Any]) -> Any:
        self.site = STATE.site = node.site  # what the gradient of a line records is that line's
        if node in self.hooks or not node.op.traceable:
            # A user's function may run what has been recorded, which only values with a handle survive.
            for n, g in grads.items():
                grads[n] = self.handle(g)
            dy = _hooked(self.handle(dy), self.hooks.get(node))
            self.keep_up()
        if self.targets:
            k = self.targets.get((self.here, node))
            if k is not None:
                dy = self.handle(dy)
                self.found[k] = dy if self.found[k] is None else self.found[k] + dy
        return dy if node.inputs and node not in self.here.variables else self.handle(dy)

    def keep_up(self) -> None:
        """After a user's function: if it ran the recording, go on from what the run kept."""
        if STATE.recording is self.rec:
            return
        self.rec = STATE.recording
        if self.past is None:
            self.past = next(t._history[0] for t in self.roots if isinstance(t._history, tuple))
            self.values = _PastValues(self.past)

    def handle(self, dy: Any) -> Any:
        return handle_of(self.rec, dy) if type(dy) is Node else dy

    def node(self, dy: Any) -> Node:
        """Of a gradient, or of a value from a past."""
        if type(dy) is Node:
            return dy
        rec = self.rec
        return dy._node if dy._rec is rec else rec.imported.get(id(dy)) or import_handle(rec, dy)

    def add(self, a: Any, b: Any) -> Any:
        if type(a) is Node and type(b) is Node:
            return step(self.rec, _ADD, (a, b), ())
        return self.handle(a) + self.handle(b)

    def pull(self, node: Node, dy: Any) -> Any:
        rec, op, values = self.rec, node.op, self.values
        tracks = tuple([n.tracks for n in node.inputs])
        y, inputs = node, node.inputs
        if values is None and self.again is not None:
            y, inputs = self.again.of(node, self.node(dy) if isinstance(dy, (Node, Handle)) else node)
        if not op.traceable:
            at = values or partial(handle_of, rec)
            named = dict(zip(op.attrs, values.now(node.attrs) if values else rec_attrs(rec, node.attrs)))
            given = pulled(op, self.handle(dy), at(y), [at(n) for n in inputs], named, tracks)
            self.keep_up()
            return given
        dy = self.node(dy)
        if values is None:
            attrs, found = node.attrs, node.found
        else:
            y, inputs = self.node(values(node)), tuple([self.node(values(n)) for n in node.inputs])
            attrs = values.now(node.attrs)
            found = infer(rec.bindings, op, tuple([n.found.spec for n in inputs]), attrs)
        if found.templates is None:
            found.templates = {}
        nodes = [dy, y, *inputs]

        def rule(operands: list[Traced]) -> list[Any]:
            up, result, *xs = operands
            return pulled(op, up, result, xs, dict(zip(op.attrs, rec_attrs(rec, attrs))), tracks)

        known = template(found.templates, (dy.found.spec, y.found.spec, tracks), rec, rule, nodes)
        return known.follow(rec, nodes, self.grad_mode, self.site)


def gradients(
    roots: Sequence[Handle],
    seeds: Sequence[Any],
    *,
    create_graph: bool,
    retain_graph: bool,
    wanted: Sequence[Handle] | None = None,
) -> tuple[dict[int, tuple[Handle, Any]], list[Any]]:
    """Walk back from `roots`.

    Returns the gradients that reached variables (id -> (handle, gradient)) and those of `wanted` (None where unreached).
    """
    state = STATE
    rec = state.recording
    starts: dict[Node, Any] = {}
    root_nodes = []
    for t in roots:
        if t._history is FREED:
            raise RuntimeError(f"backward: {_AGAIN}")
        root_nodes.append(t._node if t._rec is rec else rec.imported.get(id(t)) or import_handle(rec, t))
    targets: dict[Any, int] = {}
    for k, t in enumerate(wanted or ()):
        if t._history is not None and t._history is not FREED and t._rec is None:
            targets[t._history] = k
        else:
            node = t._node if t._rec is rec else rec.imported.get(id(t)) or import_handle(rec, t)
            targets[rec, node] = k
    found: list[Any] = [None] * len(wanted or ())
    variables: dict[int, tuple[Handle, Any]] = {}
    pending: dict[Any, dict[Node, Any]] = {}
    grad_mode, in_rule = state.grad_mode, state.in_rule
    state.grad_mode, state.in_rule = create_graph, True
    try:
        for t, node, seed in zip(roots, root_nodes, seeds):
            if seed is None:
                seed = REGISTRY["full"](shape=tuple(t.shape), value=1, dtype=t.dtype, like=t)  # type: ignore[attr-defined]
            starts[node] = seed if node not in starts else starts[node] + seed
        pending[rec] = starts
        while pending:
            here = max(pending, key=lambda p: p.order if isinstance(p, Past) else float("inf"))
            begin = pending.pop(here)
            _check_not_freed(here, begin)
            recorded = _Recorded(here, roots, targets, found)
            leaves = propagate(begin, recorded.pull, recorded.add, recorded.arrived, here.variables)
            for node, dy in leaves.items():
                t = here.variables.get(node)
                if t is None:
                    continue
                if t._requires_grad:
                    dy = _hooked(dy, t._hooks)
                    before = variables.get(id(t))
                    variables[id(t)] = (t, dy if before is None else before[1] + dy)
                elif t._history is FREED:
                    raise RuntimeError(f"backward: {_AGAIN}")
                elif t._history is not None:
                    past, past_node = t._history
                    into = pending.setdefault(past, {})
                    into[past_node] = dy if past_node not in into else into[past_node] + dy
            if not retain_graph:
                taken = [n for n in begin if n.inputs]
                here.freed.extend(taken) if recorded.past is None else recorded.past.free(taken)
                if recorded.values is not None:
                    recorded.values.let_go()
    finally:
        state.grad_mode, state.in_rule, state.site = grad_mode, in_rule, None
    return variables, found


def _hooked(dy: Any, hooks: dict | None) -> Any:
    """A gradient after the user's hooks, each of which may replace it."""
    for hook in (hooks or {}).values():
        replaced = hook(dy)
        if replaced is None:
            continue
        if not isinstance(replaced, Handle):
            raise TypeError(f"backward: a hook must return a tensor or None, got {type(replaced).__name__}")
        if tuple(replaced.shape) != tuple(dy.shape):  # type: ignore[attr-defined]
            raise ValueError(f"backward: a hook returned shape {_shown(replaced)} for a gradient of shape {_shown(dy)}")
        dy = replaced
    return dy


def _shown(t: Any) -> str:
    return str(tuple(int(d) for d in t.shape))


def rec_attrs(rec: Recording, attrs: tuple) -> tuple:
    """Attributes with this recording's extents in their symbols."""
    if not any(type(a) is tuple or type(a) is Dim for a in attrs):
        return attrs
    return tuple(
        rec_attrs(rec, a) if type(a) is tuple else Dim(evaluate(a.expr, rec.bindings), a.expr) if type(a) is Dim else a
        for a in attrs
    )


def _check_not_freed(here: Any, begin: dict[Node, Any]) -> None:
    if not here.freed:
        return
    gone = {n for n in reachable(here.freed, here.variables) if n.inputs and n.op.keeps and n not in here.variables}
    for node in reachable(begin, here.variables):
        if node in gone:
            raise RuntimeError(f"backward through {node.op.name}: {_AGAIN}")


def backward(root: Handle, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False) -> None:
    """Add the gradient of `root` to the ``grad`` of every leaf it depends on that requires one."""
    shape = root.shape  # type: ignore[attr-defined]
    if gradient is None and any(d != 1 for d in shape):
        raise RuntimeError(
            f"backward: the gradient of a tensor of shape {tuple(int(d) for d in shape)} needs a `gradient` of that shape; "
            "only for a single element is it 1 by itself (did you forget .mean() or .sum()?)"
        )
    if not root.requires_grad and root._history is not FREED:  # type: ignore[attr-defined]
        raise RuntimeError(
            "backward: this tensor does not depend on anything that requires a gradient "
            "(a parameter, or requires_grad=True), or it was computed under no_grad()"
        )
    if gradient is not None and not isinstance(gradient, Handle):
        raise TypeError(f"backward: `gradient` must be a tensor, got {type(gradient).__name__}")
    if gradient is not None and tuple(gradient.shape) != tuple(shape):  # type: ignore[attr-defined]
        raise RuntimeError(f"backward: gradient has shape {_shown(gradient)}, the tensor {_shown(root)}")
    _run_pending_accumulation()
    retain = create_graph if retain_graph is None else retain_graph
    rec = STATE.recording
    plain = gradient is None and not create_graph and root._rec is rec and not rec.freed and not rec.hooks
    if not plain or any(t._grad is not None or t._hooks or not t._requires_grad for t in rec.variables.values()):
        accumulate([root], [gradient], create_graph, retain)
        return
    if not replayed_gradients(rec, root._node, retain):
        accumulate([root], [gradient], create_graph, retain)


def accumulate(roots: Sequence[Handle], seeds: Sequence[Any], create_graph: bool, retain: bool) -> None:
    """Add what reaches variables from `roots` to their ``grad``."""
    reached, _ = gradients(roots, seeds, create_graph=create_graph, retain_graph=retain)
    capture = STATE.capture
    for t, dy in reached.values():
        if capture is not None:
            capture.uses_grad(t)
        if t._grad is None:
            t._grad = dy
        elif create_graph:
            t._grad = t._grad + dy
        else:
            adopt(t._grad, t._grad + dy)


def replayed_gradients(rec: Recording, root: Node, retain: bool) -> bool:
    """First gradients of leaves: recorded once for a trace, followed in one go when it repeats; whether there are any now."""
    start = rec.tail
    key = ("backward", root.index, retain)
    table = start.replays
    learned = table.get(key) if table is not None else None
    if learned is None:
        symbols, leaves = len(rec.bindings), len(rec.leaf_nodes)
        count = rec.count
        with dims.noting_guards() as guards:
            accumulate([handle_of(rec, root)], [None], False, retain)
        if len(rec.bindings) == symbols and len(rec.leaf_nodes) == leaves and STATE.recording is rec:
            path = between(start, rec.tail)
            if path is not None:
                effects = [(n, t._grad._node) for n, t in rec.variables.items() if t._grad is not None]
                every = (*guards, *(g for n in path for g in n.guards))
                if table is None:
                    table = start.replays = start.replays or {}
                table[key] = (rec.tail, rec.count - count, effects, every)
        return True
    end, count, effects, guards = learned
    if not all(dims.holds(g, rec.bindings) for g in guards):
        return False
    for leaf, node in effects:
        t = rec.variables[leaf]
        if STATE.capture is not None:
            STATE.capture.uses_grad(t)
        t._grad = handle_of(rec, node)
    rec.tail = end
    rec.count += count
    if not retain:
        rec.freed.append(root)
    return True


def _run_pending_accumulation() -> None:
    """Gradients not yet realised are about to be added to: run first, so that micro-batches do not pile up in one graph."""
    rec = STATE.recording
    if STATE.capture is None and any(t._grad is not None and t._grad._rec is rec for t in rec.variables.values()):
        run_now()
