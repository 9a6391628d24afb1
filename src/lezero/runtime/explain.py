"""``lz.explain``: what recording and restructuring make of a function, without running it."""

from __future__ import annotations

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lezero.graph.node import Graph, show
from lezero.hal import registry
from lezero.passes.pipeline import restructure
from lezero.runtime import run
from lezero.runtime.figures import Figures, byte_count, operations, restructured, size, unfused
from lezero.runtime.inputs import default_generator
from lezero.runtime.jit import Jitted
from lezero.runtime.recorder import STATE, Handle, Recording
from lezero.switched import switched


class ExplainError(RuntimeError):
    """The function reads a value, so it cannot be explained without running it."""


@dataclass
class Kernel:
    """One kernel: what was fused into it, bytes it reads and writes, and the user's lines behind it."""

    name: str
    operations: list[str]
    moved_bytes: int
    lines: list[str]


@dataclass
class Explanation:
    """What :func:`explain` returns; printing it shows all of it but the graphs (``graph(name)``)."""

    name: str
    before: Figures
    after: Figures | None
    passes: list[tuple[str, Graph]]
    kernels: list[Kernel] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    held: list[tuple[str, str]] = field(default_factory=list)

    def graph(self, name: str = "recorded") -> str:
        """The graph as text: as ``"recorded"``, or after a pass (the last one of that name)."""
        for passed, graph in reversed(self.passes):
            if passed == name:
                return show(graph)
        raise KeyError(f"there is no pass {name!r}; there are {', '.join(dict.fromkeys(n for n, _ in self.passes))}")

    def summary(self) -> str:
        """The numbers before (one kernel for each operation, every result stored) and after."""
        rows = [("", "as recorded", "restructured")]
        a = self.after
        rows += [
            ("operations", str(self.before.operations), str(a.operations) if a else "-"),
            ("kernels", str(self.before.kernels), str(a.kernels) if a else "-"),
            ("bytes moved", byte_count(self.before.moved_bytes), byte_count(a.moved_bytes) if a else "-"),
            ("peak memory", byte_count(self.before.peak_bytes), byte_count(a.peak_bytes) if a else "-"),
        ]
        if a:
            rows.append(("  of which arena", "", byte_count(a.arena_bytes)))
        return "\n".join(f"  {w:<16}{x:>14}{y:>16}".rstrip() for w, x, y in rows)

    def __str__(self) -> str:
        parts = [self.name, self.summary(), "Operations after each pass", self._passes()]
        if self.kernels:
            parts += ["Kernels, with the operations fused in each", self._kernels()]
        if self.refused:
            parts += ["Fusions refused", "\n".join(f"  {n}: {g}: {why}" for n, g, why in self.refused)]
        if self.held:
            parts += [
                "Computed and kept only because a variable still holds it",
                "\n".join(f"  {name}: {what}" for name, what in self.held),
            ]
        return "\n\n".join(parts)

    __repr__ = __str__

    def _passes(self) -> str:
        lines: list[str] = []
        last = 0
        for name, graph in self.passes:
            counts = Counter(n.op.name for n in operations(graph))
            total = sum(counts.values())
            most = ", ".join(f"{n} {op}" for op, n in counts.most_common(6))
            change = f"{total - last:+d}" if lines else ""
            lines.append(f"  {name:<18}{total:>6} {change:>6}  {most}{', …' if len(counts) > 6 else ''}")
            last = total
        return "\n".join(lines)

    def _kernels(self) -> str:
        lines = []
        for k, kernel in enumerate(self.kernels, 1):
            counts = Counter(kernel.operations)
            fused = ", ".join(op if n == 1 else f"{n} {op}" for op, n in counts.items())
            name = kernel.name if len(kernel.name) <= 28 else kernel.name[:27] + "…"
            lines.append(f"  {k:>3} {name:<28}{byte_count(kernel.moved_bytes):>11}  {fused}")
            if kernel.lines:
                shown = ", ".join(kernel.lines[:3]) + (", …" if len(kernel.lines) > 3 else "")
                lines.append(f"      {shown}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the graphs, in plain types (for JSON)."""
        return {
            "name": self.name,
            "before": vars(self.before),
            "after": None if self.after is None else vars(self.after),
            "passes": [
                {"name": n, "operations": dict(Counter(x.op.name for x in operations(g)))} for n, g in self.passes
            ],
            "kernels": [vars(k) for k in self.kernels],
            "refused": [{"operation": n, "kernel": g, "reason": why} for n, g, why in self.refused],
            "held": [{"variable": n, "value": v} for n, v in self.held],
        }

    def save(self, path: str | Path) -> None:
        """Write the whole text, graphs included."""
        parts = [str(self)]
        for name, graph in self.passes:
            parts.append(f"{name}\n\n{show(graph)}")
        Path(path).write_text("\n\n\n".join(parts) + "\n", encoding="utf-8")


def explain(function: Callable, *inputs: Any, backward: bool = False, **options: Any) -> Explanation:
    """Record ``function(*inputs)`` and say what would be run for it; nothing is, and no tensor changes.

    Parameters
    ----------
    function : callable
        A model, a loss, or a whole training step with ``backward()`` and ``optimizer.step()``.  It may not read values.
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
        Prints as text; see also ``summary()``, ``graph(name)``, ``kernels``, ``to_dict()`` and ``save(path)``.
    """
    if isinstance(function, Jitted):
        function = inspect.unwrap(function)
    name = getattr(function, "__name__", type(function).__name__)
    with switched(STATE, "capture", STATE.capture), _recorded_only(name) as (rec, old):
        result = function(*inputs, **options)
        if backward:
            (result if result.numel() == 1 else result.sum()).backward()
        handles = run._live(rec)
        if not handles:
            raise ValueError(f"explain: {name} computed nothing that is returned or kept")
        written = {id(t) for t in old if t._rec is rec}
        ending = run._ending(rec, handles)
        rewritten = [k for k, t in enumerate(rec.leaf_handles) if t is not None and id(t) in written]
        donated = frozenset(rewritten) if not ending.waiting else frozenset()
        backend = registry.current()
        plan = run._build(rec, ending, donated, backend)
        given = {id(t) for t in _tensors_in(result)} | written
        given |= {id(t._grad) for t in rec.variables.values() if t._grad is not None}
        held = list(_names([h for h in handles if id(h) not in given], function))
        del handles, result  # the tensors go before what they stood for is put back
        bindings = list(rec.bindings)
        passes = [("recorded", plan.graph)]
        restructure(plan.graph, lambda n, g: passes.append((n, g)))
        explanation = Explanation(name, unfused(plan.graph), restructured(plan.program, bindings), passes, held=held)
        schedule = getattr(plan.program, "schedule", None)
        if schedule is not None:
            explanation.kernels = [_kernel(steps, bindings) for steps in schedule.steps]
            explanation.refused = list(
                dict.fromkeys((n.op.name, "+".join(_few(g.names())), why) for n, g, why in schedule.refusals)
            )
    return explanation


def _kernel(steps: Sequence[Any], bindings: Sequence[int]) -> Kernel:
    operations: list[str] = []
    lines: dict[str, None] = {}
    moved = 0
    for s in steps:
        operations += s.group.names()
        moved += sum(size(n, bindings) for n in {*s.reads, *s.writes})
        lines |= {f"{n.site[0]}:{n.site[1]}": None for n in s.group.nodes if n.site is not None}
    name = steps[0].name if len(steps) == 1 else f"{steps[0].name} x{len(steps)}"
    return Kernel(name, operations, moved, list(lines))


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:2], "…", names[-1]]


# -- recording without consequences -----------------------------------------------------------------------------------

_KEPT = ("_rec", "_node", "_buffer", "_shape", "_history", "_grad", "_requires_grad", "_base", "_view", "_dynamic")


class _Watch:
    """``STATE.capture`` while a function is explained."""

    def __init__(self, name: str):
        self.name = name
        self.made: list[tuple[Handle, list[Any]]] = []  # tensors made by the function with a value, and what they were
        self.others: list[Callable[[], None]] = []  # put back what is not in handles

    def refuse(self, why: str = "a value is read (by .item(), .numpy(), printing, or an `if` on a tensor)") -> None:
        raise ExplainError(
            f"explain: inside {self.name}, {why}, which needs a run; explain the part before or after it"
        )

    def looked(self) -> None:
        pass  # what is there may be looked at: the function is called this once

    def saw(self, module: Any) -> None:
        pass

    def saw_optimizer(self, optimizer: Any) -> None:
        pass

    def uses_grad(self, t: Handle, read: bool = True) -> None:
        pass

    def before_write(self, t: Handle) -> None:
        if t._buffer is not None:
            self.made.append((t, [getattr(t, k) for k in _KEPT]))


class _recorded_only:
    """Record in a recording of its own; put every tensor back at the end."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> tuple[Recording, list[Handle]]:
        if STATE.capture is not None:
            STATE.capture.refuse("explain is called")
        run.run_now()
        self._before = [
            (t, [getattr(t, k) for k in _KEPT], t._views and list(t._views))
            for t in gc.get_objects()
            if issubclass(type(t), Handle)  # isinstance would ask lazy modules for their class
        ]
        self._generator = default_generator.get_state()
        self._outer, self.rec = STATE.recording, Recording()
        self._watch = _Watch(self.name)
        STATE.recording, STATE.capture = self.rec, self._watch
        return self.rec, [t for t, _, _ in self._before]

    def __exit__(self, *error: Any) -> None:
        STATE.recording, STATE.capture = self._outer, None
        default_generator.set_state(self._generator)
        known = set()
        for t, values, *views in [*reversed(self._watch.made), *self._before]:
            known.add(id(t))
            for k, v in zip(_KEPT, values):
                setattr(t, k, v)
            if views:
                t._views = views[0]
        for r in self.rec.handles:
            t = r()
            if t is not None and id(t) not in known:
                t._rec = None
        for put_back in self._watch.others:
            put_back()
        run._release(self.rec)


# -- who holds what ---------------------------------------------------------------------------------------------------


def _tensors_in(value: Any) -> Iterator[Handle]:
    if isinstance(value, Handle):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors_in(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors_in(v)


def _names(handles: list[Handle], function: Any) -> Iterator[tuple[str, str]]:
    """(variable, what it holds) for tensors that a variable of the user's keeps alive."""
    wanted = {id(h): h for h in handles}
    if not wanted:
        return
    places: list[tuple[str, dict[str, Any]]] = []
    code = getattr(function, "__code__", None)
    if code is not None:
        cells = zip(code.co_freevars, function.__closure__ or ())
        places.append(("", {name: cell.cell_contents for name, cell in cells if _filled(cell)}))
        places.append(("", function.__globals__))
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(run.recorder._PACKAGE):
            places.append(("", frame.f_locals))
        frame = frame.f_back
    for root in (function, *(v for _, place in list(places) for v in place.values())):
        if callable(getattr(root, "named_modules", None)) and not isinstance(root, type):
            places += [(f"{type(root).__name__}{'.' + n if n else ''}.", vars(m)) for n, m in root.named_modules()]
    named: set[int] = set()
    for prefix, variables in places:
        for name, value in list(variables.items()):
            inside = (
                [value]
                if isinstance(value, Handle)
                else _tensors_in(value)
                if type(value) in (list, tuple, dict)
                else ()
            )
            for h in inside:
                if id(h) in wanted and id(h) not in named:
                    named.add(id(h))
                    yield prefix + name, repr(h._node)


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
