"""Which operations ran in which precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from lezero.amp.autocast import HALF
from lezero.amp.lists import LOW, WIDE, WIDEST
from lezero.graph.dtype import promote
from lezero.graph.node import Graph, Node
from lezero.runtime import run
from lezero.runtime.explain import explain
from lezero.runtime.figures import operations

_HALF = {dtype.name for dtype in HALF}
_WHY = {name: why for names, why in ((LOW, "low"), (WIDE, "float32"), (WIDEST, "widest")) for name in names}


@dataclass(frozen=True)
class Row:
    """An operation in one precision.

    operation : its name
    precision : the name of the dtype it computes in, the widest floating one of its operands; of a cast, both dtypes
    count : how often
    rule : the list of autocast that had its operands cast: ``low``, ``float32`` or ``widest``; ``operands`` where none were,
        and their dtypes decided: outside autocast, in gradients, and where autocast found what it wants
    """

    operation: str
    precision: str
    count: int
    rule: str


@dataclass(frozen=True)
class Report:
    """What :func:`report` returns; printing it shows a table, the most frequent operations first."""

    rows: tuple[Row, ...]

    def precisions(self, operation: str) -> set[str]:
        """The precisions an operation ran in; empty if it did not."""
        return {row.precision for row in self.rows if row.operation == operation}

    def to_dict(self) -> dict[str, Any]:
        """In plain types (for JSON)."""
        return {"rows": [vars(row) for row in self.rows]}

    def __str__(self) -> str:
        cells = [("operation", "precision", "count", "rule")]
        cells += [(r.operation, r.precision, str(r.count), r.rule) for r in self.rows]
        w, x, y = (max(len(row[k]) for row in cells) for k in range(3))
        return "\n".join(f"{a:<{w}}  {b:<{x}}  {c:>{y}}  {d}" for a, b, c, d in cells)

    __repr__ = __str__


def report(function: Callable | None = None, *args: Any, **kwargs: Any) -> Report:
    """Which operations compute in which precision, as they were recorded: those of the forward pass, of gradients and updates.

    Parameters
    ----------
    function : callable, optional
        What it records with `args` and `kwargs` is looked at, and not run (as by ``lz.explain``); without it, the last run.

    Raises
    ------
    RuntimeError
        When there was no run yet.
    """
    if function is not None:
        return _of_graph(explain(function, *args, **kwargs).passes[0][1])
    if run.statistics.last is None:
        raise RuntimeError("amp.report: nothing has run yet; give a function, or call it after a step")
    return _of_graph(run.statistics.last[0].graph)


def _of_graph(graph: Graph) -> Report:
    counts: Counter[tuple[str, str]] = Counter()
    rules: dict[tuple[str, str], str] = {}
    for n in operations(graph):
        precision = _precision(n)
        if precision is not None:
            kind = n.op.name, precision
            counts[kind] += 1
            rules[kind] = _rule(n) or rules.get(kind, "")
    rows = [Row(*kind, count, rules[kind] or "operands") for kind, count in counts.items()]
    return Report(tuple(sorted(rows, key=lambda r: (-r.count, r.operation, r.precision))))


def _rule(node: Node) -> str:
    """The list of autocast an operation is in, if operands were cast for it."""
    rule = _WHY.get(node.op.name, "")
    precision = node.inputs and _precision(node)
    cast = any(
        n.op.name == "cast" and n.dtype.name == precision and n.inputs[0].dtype.is_floating_point for n in node.inputs
    )
    held = precision in _HALF if rule == "low" else rule != "float32" or precision == "float32"
    return rule if cast and held else ""


def _precision(node: Node) -> str | None:
    """None where nothing floating is computed."""
    if node.op.name == "cast":
        (x,) = node.inputs
        return (
            f"{x.dtype.name} -> {node.dtype.name}"
            if x.dtype.is_floating_point and node.dtype.is_floating_point
            else None
        )
    floating = [n.dtype for n in node.inputs if n.dtype.is_floating_point and not n.weak]
    if not floating:
        return node.dtype.name if node.dtype.is_floating_point else None
    arrays = [n.dtype for n in node.inputs if n.dtype.is_floating_point and n.shape]
    return reduce(promote, arrays or floating).name
