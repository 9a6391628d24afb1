"""One update, recorded for many parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from lezero.graph.node import Node
from lezero.ops.base import REGISTRY
from lezero.runtime.inference import Spec
from lezero.runtime.leaves import import_handle
from lezero.runtime.recorder import handle_of
from lezero.runtime.recording import STATE, Handle
from lezero.runtime.template import Template, Traced, template
from lezero.runtime.writes import assign, point

_VARIABLE = REGISTRY["variable"]
_UNLESS = REGISTRY["update_unless"]


class Updates:
    """What a step does with each parameter, traced once for each kind of parameter.

    Parameters
    ----------
    rule : ``rule(*written, *read, *shared, *attrs)`` gives the new values of the `written` ones, in their order: the
        parameter first, then its state
    shared : operands of all updates: hyper-parameters
    attrs : what else decides what the rule does

    Where ``STATE.skip_update`` is a tensor that holds, everything `written` stays as it is.
    """

    def __init__(self, rule: Callable[..., Sequence[Any]], shared: Sequence[Handle], attrs: tuple[Hashable, ...] = ()):
        rec = STATE.recording
        self.rec, self.rule, self.attrs, self.site = rec, rule, attrs, STATE.site
        self.skips = STATE.skip_update is not None
        if self.skips:
            shared = (*shared, STATE.skip_update)
        self.shared = [t._node if t._rec is rec else rec.imported.get(id(t)) or import_handle(rec, t) for t in shared]
        self.specs = tuple([n.found.spec for n in self.shared])
        self.grad_mode = STATE.grad_mode
        self.known: dict[Any, Template] = {}  # in this step

    def __call__(self, written: Sequence[Handle], read: Sequence[Handle]) -> None:
        """Record one update: each of `written` becomes what the rule gives."""
        rec = self.rec
        imported = rec.imported
        nodes = [t._node if t._rec is rec else imported.get(id(t)) or import_handle(rec, t) for t in (*written, *read)]
        specs = tuple([n.found.spec for n in nodes])
        trains = written[0]._requires_grad
        known = self.known.get((trains, specs))
        if known is None:
            known = self.known[trains, specs] = self._template(nodes, specs, trains)
        new = known.follow(rec, nodes + self.shared, self.grad_mode, self.site)
        for t in written:
            if t._base is not None or t._views is not None:  # other handles must hear of it
                for each, node in zip(written, new):
                    assign(each, handle_of(rec, node))
                return
        point(written, new)
        if trains:
            rec.variables[new[0]] = written[0]

    def _template(self, nodes: list[Node], specs: tuple[Spec, ...], trains: bool) -> Template:
        table = nodes[0].found
        if table.templates is None:
            table.templates = {}

        def rule(operands: list[Traced]) -> list[Any]:
            if self.skips:
                *operands, skip = operands
                new = self.rule(*operands, *self.attrs)
                first, *others = [_UNLESS(was, becomes, skip) for was, becomes in zip(operands, new)]
            else:
                first, *others = self.rule(*operands, *self.attrs)
            return [_VARIABLE(first) if trains else first, *others]

        key = (self.rule, self.attrs, trains, specs, self.specs)
        return template(table.templates, key, self.rec, rule, nodes + self.shared)
