"""An :class:`~lezero.runtime.explanation.Explanation` as one page for the browser, with its style, script and facts inside."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lezero.graph.node import Graph, Node
from lezero.runtime.explanation import kind_of
from lezero.runtime.figures import size
from lezero.runtime.sites import layer_of

if TYPE_CHECKING:
    from lezero.runtime.explanation import Explanation

_HERE = Path(__file__).parent
_MOST_ATTRIBUTES = 160
"""Characters of a node's attributes."""


def page(explanation: Explanation) -> str:
    """The whole page; it fetches nothing."""
    facts = json.dumps(_facts(explanation), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    parts = {
        "title": html.escape(explanation.name),
        "style": (_HERE / "page.css").read_text("utf-8"),
        "facts": facts,
        "script": (_HERE / "page.js").read_text("utf-8"),
    }
    frame = (_HERE / "page.html").read_text("utf-8")
    before, *rest = frame.split("{{")
    return before + "".join(parts[key] + text for key, text in (piece.split("}}", 1) for piece in rest))


def _facts(e: Explanation) -> dict[str, Any]:
    table = _Table(e)
    passes = [{"name": name, "nodes": table.add(graph)} for name, graph in e.passes]
    kernels = [
        {**shown, "nodes": [table.number[n] for n in k.nodes]} for shown, k in zip(e.to_dict()["kernels"], e.kernels)
    ]
    return {
        **e.to_dict(),
        "passes": passes,
        "kernels": kernels,
        "nodes": table.rows,
        "words": list(table.words),
        "layers": e.layers,
    }


class _Table:
    """All nodes of all passes: a number and a row for each.

    A row: operation, dtype and extents, attributes, layer, line, name (places in `words`), bytes, then its inputs' numbers.
    """

    def __init__(self, e: Explanation):
        self.e = e
        self.rows: list[list[int]] = []
        self.number: dict[Node, int] = {}
        self.words: dict[str, int] = {}

    def add(self, graph: Graph) -> list[int]:
        """The numbers of a graph's nodes, inputs first."""
        nodes = graph.nodes()
        sites: dict[Node, Node] = {}  # what has no line of its own belongs to what reads it first
        for n in reversed(nodes):
            owner = n if n.site is not None else sites.get(n, n)
            for x in n.inputs:
                sites[x] = owner
        for n in nodes:
            if n not in self.number:
                row = self._row(n, n if n.site is not None else sites.get(n, n))
                self.number[n] = len(self.rows)
                self.rows.append(row)
        return [self.number[n] for n in nodes]

    def _row(self, n: Node, owner: Node) -> list[int]:
        attributes = ", ".join(f"{k}={v!r}" for k, v in n.named_attrs().items() if not n.op.is_leaf)[:_MOST_ATTRIBUTES]
        line = f"{owner.site[0]}:{owner.site[1]}" if owner.site is not None and owner.site[0] else ""
        name = "input" if n.op.is_leaf else n.op.name
        layer = layer_of(owner) or ("(optimizer)" if owner.update or owner.op.updates else "")
        texts = (name, kind_of(self.e, n), attributes, layer, line, self.e.names.get(n, ""))
        return [*map(self._word, texts), size(n, self.e.bindings), *(self.number[x] for x in n.inputs)]

    def _word(self, text: str) -> int:
        return self.words.setdefault(text, len(self.words))
