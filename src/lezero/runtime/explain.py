"""``lz.explain``: what recording and restructuring make of a function, without running it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

from lezero.graph.node import Node
from lezero.hal import registry
from lezero.passes.pipeline import restructure
from lezero.runtime import run, sites
from lezero.runtime.aside import recorded_only
from lezero.runtime.explanation import Block, Explanation, Kernel, Recomputed, shown
from lezero.runtime.figures import restructured, size, unfused
from lezero.runtime.holders import tensors_in, variables_of
from lezero.runtime.jit import Jitted
from lezero.runtime.recording import STATE, Handle, Recording
from lezero.runtime.sites import LayerSites, layer_of
from lezero.schedule.schedule import Schedule, Step
from lezero.schedule.work import flops
from lezero.switched import switched


def explain(function: Callable, *inputs: Any, backward: bool = False, **options: Any) -> Explanation:
    """Record ``function(*inputs)`` and say what would be run for it; nothing is, and no tensor changes.

    Parameters
    ----------
    function : callable
        A model, a function that gives a loss, or a whole training step with ``backward()`` and ``optimizer.step()``.  It may not read values.
        Parameters, gradients, optimizer state and random numbers are put back; other Python objects it changes are not.
    inputs
        Its arguments.
    backward : bool
        Also take the gradient of what it returns (the sum of it, where that is not one number).
    options
        Its keyword arguments.

    Returns
    -------
    Explanation
        Prints as text; see also ``summary()``, ``graph(name)``, ``kernels``, ``to_dict()`` and ``save(path)``, which writes
        a page for the browser where `path` ends in .html.
    """
    if not callable(function):
        raise TypeError(
            f"explain: a function or a model is needed, got {type(function).__name__}; its arguments follow it"
        )
    if isinstance(function, Jitted):
        function = inspect.unwrap(function)
    name = getattr(function, "__name__", type(function).__name__)
    with switched(STATE, "capture", STATE.capture), recorded_only(name) as (rec, changed):
        layers = LayerSites(sites.find_site)
        with switched(sites, "find_site", layers):
            result = function(*inputs, **options)
            if backward:
                (result if result.numel() == 1 else result.sum()).backward()
        handles = run._live(rec)
        if not handles:
            raise ValueError(f"explain: {name} computed nothing that is returned or kept")
        written = {id(t) for at, _ in changed if (t := at()) is not None and t._rec is rec}
        plan = _planned(rec, handles, written)
        held, names = _held(rec, handles, result, written, function), _leaf_names(rec, function)
        del handles, result  # the tensors go before what they stood for is put back
        bindings = list(rec.bindings)
        passes = [("recorded", plan.graph)]
        restructure(plan.graph, lambda n, g: passes.append((n, g)))
        explanation = Explanation(
            name, unfused(plan.graph), restructured(plan.program, bindings), passes, held=held, layers=list(layers.layers), names=names, bindings=bindings
        )  # fmt: skip
        schedule = getattr(plan.program, "schedule", None)
        if schedule is not None:
            passes.append(("scheduled", schedule.graph))
            _add_schedule(explanation, schedule)
    return explanation


def _planned(rec: Recording, handles: list[Handle], written: Collection[int]) -> run.Plan:
    """What would be run; the memory of the tensors with the ids `written` may be used again."""
    ending = run._ending(rec, handles)
    rewritten = [k for k, t in enumerate(rec.leaf_handles) if t is not None and id(t) in written]
    donated = frozenset(rewritten) if not ending.waiting else frozenset()
    return run._build(rec, ending, donated, registry.current())


def _held(
    rec: Recording, handles: list[Handle], result: Any, written: Collection[int], function: Callable
) -> list[tuple[str, str]]:
    """(variable, what it holds) for what is neither a result, nor written, nor a gradient of a parameter."""
    given = {id(t) for t in tensors_in(result)} | set(written)
    given |= {id(t._grad) for t in rec.variables.values() if t._grad is not None}
    return [(n, repr(h._node)) for n, h in variables_of([h for h in handles if id(h) not in given], function)]


def _leaf_names(rec: Recording, function: Callable) -> dict[Node, str]:
    leaves = {id(t): n for n, t in zip(rec.leaf_nodes, rec.leaf_handles) if t is not None}
    known = variables_of([t for t in rec.leaf_handles if t is not None], function)
    return {leaves[id(t)]: name for name, t in known}


def _add_schedule(e: Explanation, schedule: Schedule) -> None:
    e.kernels = [_kernel(e, steps, entry in schedule.beside) for entry, steps in enumerate(schedule.steps)]
    e.refused = list(dict.fromkeys((n.op.name, "+".join(_few(g.names())), why) for n, g, why in schedule.refusals))
    e.recomputed = _recomputed(e, schedule)
    instance = schedule.instantiate(e.bindings)
    kernel_of = [r.entry + 1 for r in instance.records]
    e.memory = [
        Block(_what(e, b.value), b.offset, b.nbytes, kernel_of[b.first], kernel_of[b.last]) for b in instance.memory
    ]


def _kernel(e: Explanation, steps: Sequence[Step], beside: bool) -> Kernel:
    nodes = [n for s in steps for n in s.group.nodes]
    name = steps[0].name if len(steps) == 1 else f"{steps[0].name} x{len(steps)}"
    return Kernel(
        name,
        [n.op.name for n in nodes],
        sum(size(n, e.bindings) for s in steps for n in {*s.reads, *s.writes}),
        list(dict.fromkeys(f"{n.site[0]}:{n.site[1]}" for n in nodes if n.site is not None)),
        list(dict.fromkeys(filter(None, map(layer_of, nodes)))),
        sum(flops(n, e.bindings) for n in nodes),
        beside,
        [shown(e, n) for n in sorted({n for s in steps for n in s.reads}, key=lambda n: -size(n, e.bindings))],
        [shown(e, n) for s in steps for n in s.writes],
        nodes,
    )


def _recomputed(e: Explanation, schedule: Schedule) -> list[Recomputed]:
    made = {n: k for k, steps in enumerate(schedule.steps, 1) for s in steps for n in s.group.nodes}
    used: dict[Node, int] = {}  # by which kernel last
    for k, steps in enumerate(schedule.steps, 1):
        used |= {n: k for s in steps for n in s.reads}
    found = []
    for r in schedule.recomputed:
        if r.first not in made:
            continue  # nothing needs it early: it is only computed later
        kernel, of = made[r.first], [shown(e, n) for n in sorted(r.made_of, key=lambda n: -size(n, e.bindings))]
        last = used.get(r.first, kernel)
        found.append(Recomputed(shown(e, r.first), size(r.first, e.bindings), kernel, made.get(r.again, 0), last, of))
    return found


def _what(e: Explanation, value: Any) -> str:
    if isinstance(value, Node):
        return shown(e, value)
    step, name = value
    label = name[2:] if isinstance(name, str) else name[0 if name[0] == "partial" else 1]
    return f"memory of {step.name}'s own ({label})"


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:2], "…", names[-1]]
