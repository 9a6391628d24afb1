"""``lz.explain``: what recording and restructuring make of a function, without running it."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import ref

from lezero.graph.dim import Dim, evaluate
from lezero.graph.node import Graph, Node, show
from lezero.hal import registry
from lezero.passes.pipeline import restructure
from lezero.runtime import recorder, run
from lezero.runtime.figures import Figures, byte_count, operations, restructured, size, unfused
from lezero.runtime.inputs import default_generator
from lezero.runtime.jit import Jitted
from lezero.runtime.recorder import STATE, Handle, Recording, Root
from lezero.schedule.schedule import Schedule, Step
from lezero.schedule.work import flops
from lezero.switched import switched


class ExplainError(RuntimeError):
    """The function reads a value, so it cannot be explained without running it."""


@dataclass
class Kernel:
    """One kernel: what was fused into it, bytes it reads and writes, and the user's lines and layers behind it.

    flops : floating-point operations (``schedule/work.py`` says what is counted)
    beside : whether it runs at the same time as the kernel before it, in one launch
    reads, writes : values, as a name or an operation with dtype and extents
    """

    name: str
    operations: list[str]
    moved_bytes: int
    lines: list[str]
    layers: list[str]
    flops: int
    beside: bool
    reads: list[str]
    writes: list[str]
    nodes: list[Node] = field(repr=False)


@dataclass
class Recomputed:
    """A value that is not kept for a late use but computed again for it.

    kernel, again : numbers of the kernels that compute it, from 1; 0 where it is computed inside whatever reads it
    last_early_use : number of the kernel after which it is freed
    made_of : the values in memory that it is computed from
    """

    value: str
    nbytes: int
    kernel: int
    again: int
    last_early_use: int
    made_of: list[str]

    @property
    def why(self) -> str:
        return (
            f"nothing reads it from kernel {self.last_early_use} until kernel {self.again}, and what it is made of is in memory "
            "then anyway, or is smaller"
        )


@dataclass
class Block:
    """A stretch of the arena: what lies there, in bytes, and from which kernel to which (from 1, both included)."""

    value: str
    offset: int
    nbytes: int
    first: int
    last: int


_COUNTED = (
    "As recorded: what the program, its gradients and its optimizer call, and one kernel for each that is no view.",
    "Restructured: the same taken apart into primitives, views among them, and kernels that compute many of them each.",
)


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
    recomputed: list[Recomputed] = field(default_factory=list)
    memory: list[Block] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)  # in the order they were called
    names: dict[Node, str] = field(default_factory=dict, repr=False)
    bindings: Sequence[int] = field(default=(), repr=False)

    def graph(self, name: str = "recorded") -> str:
        """The graph as text: as ``"recorded"``, or after a pass (the last one of that name)."""
        for passed, graph in reversed(self.passes):
            if passed == name:
                return show(graph)
        raise KeyError(f"there is no pass {name!r}; there are {', '.join(dict.fromkeys(n for n, _ in self.passes))}")

    def summary(self) -> str:
        """The numbers before (one kernel for each operation as recorded, every result stored) and after (where operations are
        primitives)."""
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
        lines = [f"  {w:<16}{x:>14}{y:>16}".rstrip() for w, x, y in rows]
        notes = [*_COUNTED, self.counted_together()]
        return "\n".join(lines + [f"  {line}" for line in notes if a and line])

    def counted_together(self) -> str:
        """Why the list of kernels may be longer than their number, where it is."""
        beside = sum(k.beside for k in self.kernels)
        if not beside:
            return ""
        return (
            f"Kernels that run at the same time count as one: {len(self.kernels)} are listed, {beside} of them beside the one "
            "before."
        )

    def __str__(self) -> str:
        parts = [self.name, self.summary(), "Operations after each pass", self._passes()]
        if self.kernels:
            beside = " (+: beside the one before)" if any(k.beside for k in self.kernels) else ""
            parts += [f"Kernels, with the operations fused in each{beside}", self._kernels()]
        if self.refused:
            parts += ["Fusions refused", "\n".join(f"  {n}: {g}: {why}" for n, g, why in self.refused)]
        if self.recomputed:
            parts += [
                "Computed again instead of kept",
                "\n".join(
                    f"  {r.value}, {byte_count(r.nbytes)}, by kernels {r.kernel} and {r.again}, from {', '.join(r.made_of)}:"
                    f"\n      {r.why}"
                    for r in self.recomputed
                ),
            ]
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
            title = f"+ {kernel.name}" if kernel.beside else kernel.name
            name = title if len(title) <= 28 else title[:27] + "…"
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
            "kernels": [{key: v for key, v in vars(k).items() if key != "nodes"} for k in self.kernels],
            "refused": [{"operation": n, "kernel": g, "reason": why} for n, g, why in self.refused],
            "held": [{"variable": n, "value": v} for n, v in self.held],
            "recomputed": [{**vars(r), "why": r.why} for r in self.recomputed],
            "memory": [vars(b) for b in self.memory],
        }

    def forget_lines(self) -> None:
        """Leave the user's lines out, where none of them is behind what was recorded."""
        for kernel in self.kernels:
            kernel.lines.clear()
        for _, graph in self.passes:
            for node in graph.nodes():
                if isinstance(node.site, Site):
                    node.site = Site(("", 0), node.site.layer)
                else:
                    node.site = None

    def save(self, path: str | Path) -> None:
        """Write all of it, graphs included: as a page for the browser where the name ends in .html, else as text.

        The page is one file that fetches nothing; docs/looking-inside.md says how to read it.
        """
        if Path(path).suffix.lower() in (".html", ".htm"):
            self.write_page(path)
            return
        parts = [str(self)]
        for name, graph in self.passes:
            parts.append(f"{name}\n\n{show(graph)}")
        Path(path).write_text("\n\n\n".join(parts) + "\n", encoding="utf-8")

    def write_page(self, path: str | Path) -> None:
        """Write the page for the browser, whatever the file is called."""
        from lezero.runtime.page import page

        Path(path).write_text(page(self), encoding="utf-8")


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
        sites = _Sites(recorder.find_site)
        with switched(recorder, "find_site", sites):
            result = function(*inputs, **options)
            if backward:
                (result if result.numel() == 1 else result.sum()).backward()
        handles = run._live(rec)
        if not handles:
            raise ValueError(f"explain: {name} computed nothing that is returned or kept")
        written = {id(t) for at, _ in changed if (t := at()) is not None and t._rec is rec}
        ending = run._ending(rec, handles)
        rewritten = [k for k, t in enumerate(rec.leaf_handles) if t is not None and id(t) in written]
        donated = frozenset(rewritten) if not ending.waiting else frozenset()
        backend = registry.current()
        plan = run._build(rec, ending, donated, backend)
        given = {id(t) for t in _tensors_in(result)} | written
        given |= {id(t._grad) for t in rec.variables.values() if t._grad is not None}
        held = [(n, repr(h._node)) for n, h in _names([h for h in handles if id(h) not in given], function)]
        leaves = {id(t): n for n, t in zip(rec.leaf_nodes, rec.leaf_handles) if t is not None}
        known = _names([t for t in rec.leaf_handles if t is not None], function)
        names = {leaves[id(t)]: name for name, t in known}
        del handles, result  # the tensors go before what they stood for is put back
        bindings = list(rec.bindings)
        passes = [("recorded", plan.graph)]
        restructure(plan.graph, lambda n, g: passes.append((n, g)))
        explanation = Explanation(
            name, unfused(plan.graph), restructured(plan.program, bindings), passes, held=held, layers=list(sites.layers), names=names, bindings=bindings
        )  # fmt: skip
        schedule = getattr(plan.program, "schedule", None)
        if schedule is not None:
            passes.append(("scheduled", schedule.graph))
            _add_schedule(explanation, schedule)
    return explanation


# -- what the schedule knows ------------------------------------------------------------------------------------------


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


def shown(e: Explanation, node: Node) -> str:
    """A value in words: what it is called or which operation computes it, and its dtype and extents."""
    called = e.names.get(node) or ("input" if node.op.is_leaf else node.op.name)
    layer = layer_of(node)
    return f"{called} {kind_of(e, node)}" + (f" of {layer}" if layer and not node.op.is_leaf else "")


def kind_of(e: Explanation, node: Node) -> str:
    """``float32[2, 64]``."""
    dims = (evaluate(d.expr, e.bindings) if type(d) is Dim else int(d) for d in node.shape)
    return f"{node.dtype.name}[{', '.join(map(str, dims))}]"


def layer_of(node: Node) -> str:
    """The innermost module whose call recorded a node, ``ResNet.layer1.0.conv1``; "" outside of all."""
    return node.site.layer if isinstance(node.site, Site) else ""


def _what(e: Explanation, value: Any) -> str:
    if isinstance(value, Node):
        return shown(e, value)
    step, name = value
    label = name[2:] if isinstance(name, str) else name[0 if name[0] == "partial" else 1]
    return f"memory of {step.name}'s own ({label})"


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:2], "…", names[-1]]


# -- where something was recorded -------------------------------------------------------------------------------------


class Site(tuple[str, int]):
    """A user's (file, line), and the layer being called.  What a gradient records has the site of what it is a gradient of."""

    layer: str

    def __new__(cls, site: tuple[str, int], layer: str) -> Site:
        made = super().__new__(cls, site)
        made.layer = layer
        return made


class _Sites:
    """How nodes are given their sites while a function is explained."""

    def __init__(self, find: Callable[[], tuple[str, int] | None]):
        self.find = find
        self.layers: dict[str, None] = {}  # in the order they were called
        self.outermost: dict[int, tuple[Any, dict[int, str]]] = {}  # by id: a module, and what each in it is called

    def __call__(self) -> Site | None:
        site, layer = self.find(), self._layer()
        if layer:
            self.layers[layer] = None
        return None if site is None else Site(site, layer)

    def _layer(self) -> str:
        called = []
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "__call__":
                module = frame.f_locals.get("self")
                if callable(getattr(module, "named_modules", None)):
                    called.append(module)
            frame = frame.f_back
        if not called:
            return ""
        root = called[-1]
        if id(root) not in self.outermost:
            title = type(root).__name__
            self.outermost[id(root)] = root, {id(m): f"{title}.{n}" if n else title for n, m in root.named_modules()}
        paths = self.outermost[id(root)][1]
        return next((paths[id(m)] for m in called if id(m) in paths), "")


# -- recording without consequences -----------------------------------------------------------------------------------

_KEPT = ("_rec", "_node", "_buffer", "_shape", "_history", "_grad", "_requires_grad", "_base", "_view", "_dynamic")


class _Watch:
    """``STATE.capture`` while a function is explained."""

    def __init__(self, name: str):
        self.name = name
        self.before: list[tuple[ref[Handle], list[Any]]] = []  # tensors the function changed, and what they were before
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
        self._note(t)

    def _note(self, t: Handle) -> None:
        if t._rec is not STATE.recording:
            self.before.append((ref(t), [getattr(t, k) for k in _KEPT]))

    def before_write(self, t: Handle) -> None:
        while t._base is not None:
            t = t._base
        todo: list[Handle] = [t]  # with its views, which are no more what they were either
        while todo:
            t = todo.pop()
            self._note(t)
            todo += [view for r in t._views or () if (view := r()) is not None]


class recorded_only:
    """Record in a recording of its own; put back at the end what was changed.  Other threads go on with theirs meanwhile."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> tuple[Recording, list[tuple[ref[Handle], list[Any]]]]:
        if STATE.capture is not None:
            STATE.capture.refuse("explain is called")
        run.run_now()
        self._generator = default_generator.get_state()
        self._outer, self.rec = STATE.recording, Recording()
        self.rec.root = self.rec.tail = Root()  # a trie of its own: nodes of another know no layers
        self._watch = _Watch(self.name)
        recorder.count_capture(1)
        STATE.recording, STATE.capture = self.rec, self._watch
        return self.rec, self._watch.before

    def __exit__(self, *error: Any) -> None:
        STATE.recording, STATE.capture = self._outer, None
        recorder.count_capture(-1)
        default_generator.set_state(self._generator)
        for at, values in reversed(self._watch.before):
            if (t := at()) is not None:
                for k, v in zip(_KEPT, values):
                    setattr(t, k, v)
        for r in self.rec.handles:
            t = r()
            if t is not None and t._rec is self.rec:
                t._rec = None
        for put_back in reversed(self._watch.others):
            put_back()
        run._release(self.rec)
        recorder.forget(self.rec.root)


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


def _names(handles: list[Handle], function: Any) -> Iterator[tuple[str, Handle]]:
    """(variable, tensor) for tensors that a variable of the user's keeps alive."""
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
                    yield prefix + name, h


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
