"""What ``lz.explain`` returns: its parts, and as text, as plain types, as a page for the browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lezero.graph.dim import Dim, evaluate
from lezero.graph.node import Graph, Node, show
from lezero.runtime.figures import Figures, byte_count, operations
from lezero.runtime.sites import Site, layer_of


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


def shown(e: Explanation, node: Node) -> str:
    """A value in words: what it is called or which operation computes it, and its dtype and extents."""
    called = e.names.get(node) or ("input" if node.op.is_leaf else node.op.name)
    layer = layer_of(node)
    return f"{called} {kind_of(e, node)}" + (f" of {layer}" if layer and not node.op.is_leaf else "")


def kind_of(e: Explanation, node: Node) -> str:
    """``float32[2, 64]``."""
    dims = (evaluate(d.expr, e.bindings) if type(d) is Dim else int(d) for d in node.shape)
    return f"{node.dtype.name}[{', '.join(map(str, dims))}]"
