"""Rules traced once, and recorded again by structure alone.

A gradient rule, or an optimizer's update, is a function from operands to operands that depends on nothing but the specs of
the operands and on attributes.  The first time it is called with *traced* operands, which stand for any node of their spec,
and what it applies to them becomes a :class:`Template`.  From then on, in this trace and in others, its operations are
recorded from the template: no rule, no shape arithmetic, no handles, and nothing for results that nobody wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from lezero.graph import dim as dims
from lezero.graph.node import Node
from lezero.ops.base import Op
from lezero.ops.operand import Operand
from lezero.runtime.inference import Inferred, Seen, Spec, constant_of, infer
from lezero.runtime.leaves import as_number
from lezero.runtime.recording import Recording
from lezero.runtime.trie import advance, extend, tracks


class Traced(Operand):
    """An operand that stands for any node of its spec: number `slot` among the values of a template."""

    __slots__ = ("_trace", "device", "dtype", "shape", "slot", "weak")

    def __init__(self, trace: _Trace, slot: int, spec: Spec):
        seen = Seen(spec, trace.bindings)
        self._trace, self.slot = trace, slot
        self.shape, self.dtype, self.weak, self.device = seen.shape, seen.dtype, seen.weak, seen.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def _apply(self, op: Op, operands: tuple, attrs: tuple) -> Traced:
        return self._trace.apply(op, operands, attrs)


class _Trace:
    """The operations a rule has applied so far."""

    def __init__(self, specs: Sequence[Spec], bindings: Sequence[int]):
        self.specs, self.bindings = list(specs), bindings
        self.steps: list[tuple[Inferred, list[int]]] = []

    def apply(self, op: Op, operands: tuple, attrs: tuple) -> Traced:
        slots = [o.slot if type(o) is Traced else self._add(constant_of(as_number(o)), []) for o in operands]
        found = infer(self.bindings, op, tuple([self.specs[k] for k in slots]), attrs)
        return Traced(self, self._add(found, slots), found.spec)

    def _add(self, found: Inferred, slots: list[int]) -> int:
        self.steps.append((found, slots))
        self.specs.append(found.spec)
        return len(self.specs) - 1


class Template:
    """What a rule recorded.

    steps : (what follows, how its inputs are taken from the values so far); the values begin with the operands
    results : the place of each result among the values; None for those that are not wanted or do not exist
    noted : the guards of the rule itself
    guards : those and the guards of its operations
    count : operations, without numbers
    """

    __slots__ = ("count", "guards", "noted", "results", "steps")

    def __init__(self, rule: Callable[[list[Traced]], Sequence[Any]], specs: Sequence[Spec], bindings: Sequence[int]):
        trace = _Trace(specs, bindings)
        operands = [Traced(trace, k, s) for k, s in enumerate(specs)]
        with dims.noting_guards() as guards:
            wanted = [None if r is None else r.slot for r in rule(operands)]
        # Guards of operations nobody needs stay: the rule may have decided by their shapes.
        self.noted = tuple(dict.fromkeys(guards))
        self.guards = tuple(dict.fromkeys((*guards, *(g for found, _ in trace.steps for g in found.guards))))
        place = {k: k for k in range(len(specs))}
        needed = set(wanted)
        first = len(specs)
        for k in reversed(range(len(trace.steps))):
            if first + k in needed:
                needed.update(trace.steps[k][1])
        self.steps: list[tuple[Inferred, Any]] = []
        self.count = 0
        for k, (found, slots) in enumerate(trace.steps):
            if first + k in needed:
                place[first + k] = first + len(self.steps)
                self.steps.append((found, _picker([place[s] for s in slots])))
                self.count += found.op.name != "constant" or bool(slots)
        self.results = [None if k is None else place[k] for k in wanted]

    def holds(self, rec: Recording) -> bool:
        """Whether the rule would do the same in this recording."""
        if not self.guards or self in rec.held:
            return True
        bindings = rec.bindings
        if all([dims.holds(g, bindings) for g in self.guards]):
            rec.held.add(self)  # symbols only ever get added
            return True
        return False

    def follow(self, rec: Recording, values: list[Node], grad_mode: bool, site: Any) -> list[Any]:
        """Record the operations for these operands (`values` is added to); the node of each result, or None."""
        if self.noted:
            dims.note(self.noted)
        tail = rec.tail
        for found, pick in self.steps:
            kind = pick.__class__
            inputs: tuple = pick(values) if kind is itemgetter else (values[pick],) if kind is int else ()
            node = tail.next
            if node is None or node.found is not found or node.inputs != inputs or node.grad_mode is not grad_mode:
                track = tracks(found, inputs, True) if grad_mode else found.op.begins
                if node is None:
                    node = extend(tail, found, inputs, grad_mode, track, site)
                else:
                    rec.tail = tail
                    node = advance(rec, found, inputs, grad_mode, track, site)
            values.append(node)
            tail = node
        rec.tail = tail
        rec.count += self.count
        return [None if k is None else values[k] for k in self.results]


def _picker(slots: list[int]) -> Any:
    """How to take inputs from the values: called, an index, or None for no inputs."""
    return itemgetter(*slots) if len(slots) > 1 else slots[0] if slots else None


MAX_TEMPLATES = 32
"""Templates kept in one table: one for each combination of specs the rule has met."""


def template(
    table: dict[Any, Template],
    key: Any,
    rec: Recording,
    rule: Callable[[list[Traced]], Sequence[Any]],
    nodes: Sequence[Node],
) -> Template:
    """The template of `rule` for operands like `nodes`; `key` has everything that decides what the rule does."""
    known = table.get(key)
    if known is None or not known.holds(rec):
        known = Template(rule, [n.found.spec for n in nodes], rec.bindings)
        if len(table) >= MAX_TEMPLATES:
            table.clear()
        table[key] = known
    return known
