"""One update, recorded for many parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from lezero.ops.base import REGISTRY
from lezero.runtime.recorder import STATE, Handle, assign, handle_of, import_handle, point
from lezero.runtime.template import Traced, template

_VARIABLE = REGISTRY["variable"]


class Updates:
    """What a step does with each parameter, traced once for each kind of parameter.

    Parameters
    ----------
    rule : ``rule(*written, *read, *shared, *attrs)`` gives the new values of the `written` ones, in their order
    shared : operands of all updates: hyper-parameters
    attrs : what else decides what the rule does
    """

    def __init__(self, rule: Callable[..., Sequence[Any]], shared: Sequence[Handle], attrs: tuple[Hashable, ...] = ()):
        rec = STATE.recording
        self.rec, self.rule, self.attrs, self.site = rec, rule, attrs, STATE.site
        self.shared = [t._node if t._rec is rec else rec.imported.get(id(t)) or import_handle(rec, t) for t in shared]
        self.specs = [n.found.spec for n in self.shared]

    def __call__(self, written: Sequence[Handle], read: Sequence[Handle]) -> None:
        """Record one update: each of `written` becomes what the rule gives."""
        rec = self.rec
        imported = rec.imported
        nodes = [t._node if t._rec is rec else imported.get(id(t)) or import_handle(rec, t) for t in (*written, *read)]
        variable = tuple([t._requires_grad for t in written])
        table = nodes[0].found
        if table.templates is None:
            table.templates = {}
        key = (self.rule, self.attrs, variable, tuple([n.found.spec for n in nodes] + self.specs))
        nodes += self.shared

        def rule(operands: list[Traced]) -> list[Any]:
            results = self.rule(*operands, *self.attrs)
            return [_VARIABLE(y) if v else y for y, v in zip(results, variable)]

        new = template(table.templates, key, rec, rule, nodes).follow(rec, nodes, STATE.grad_mode, self.site)
        for t, node in zip(written, new):
            if t._base is None and t._views is None:
                point(t, node)
                if t._requires_grad:
                    rec.variables[node] = t
            else:
                assign(t, handle_of(rec, node))
