"""What is left of a captured call once nothing changes between calls but values.

A call of a captured function normally puts its recording together again and runs it, and the run finds out what is alive and
which memory may be written over.  After such a run all of that is known, and stays true as long as the same handles stand
for values in memory of the same layout that nobody else holds.  `Steady` checks just this, and runs the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_, itemgetter
from typing import Any
from weakref import ref

import numpy as np

from lezero.graph.node import Node
from lezero.hal import registry
from lezero.hal.buffer import Borrowed, Buffer
from lezero.hal.references import shared
from lezero.runtime import recorder, run
from lezero.runtime.bounds import Check, out_of_range
from lezero.runtime.hoist import Hoisted, hoisted
from lezero.runtime.recording import STATE, Handle
from lezero.runtime.run import FREED, Ran, statistics


class Steady:
    """One captured form of a function and the program it came to.

    Parameters
    ----------
    ran : what the run of a call did
    leaves : for each leaf of the recording its handle, argument position, constant buffer, or the function giving its number
    arguments : the tensors among the arguments of that call
    written : handles that got new values
    grads : (handle, the handle that became its ``grad``)
    results : node -> the handle made for it in what was returned
    checks : the ranges of positions it looks at
    bindings, count : the extents of the recording's symbols, its operations
    """

    def __init__(
        self,
        ran: Ran,
        leaves: Sequence[tuple[Node, Any]],
        arguments: Sequence[Handle],
        written: Sequence[Handle],
        grads: Sequence[tuple[Handle, Handle]],
        results: dict[Node, Handle],
        checks: Sequence[Check],
        bindings: Sequence[int],
        count: int,
    ):
        plan, ending = ran.plan, ran.ending
        self.plan, self.bindings, self.count = plan, list(bindings), count
        self.backend = registry.current()
        self.backend_key = self.backend.plan_key()
        place = {id(h): k for h, k in zip(ran.handles, ending.positions)}
        self._take_inputs([leaves[i] for i in plan.leaves], arguments)
        self.gone = [k for k, i in enumerate(plan.leaves) if i in ran.donated]
        of_handle = {slot: n for n, slot in enumerate(self.handle_slots)}
        self.taken = [of_handle[slot] for slot in self.gone]
        self.moves = [(t, place[id(t)]) for t in written if id(t) in place]
        self.trained = [t for t, g in grads if id(g) in place]
        self._note_grads([g for _, g in grads if id(g) in place])
        self.grad_places = [place[id(g)] for _, g in grads if id(g) in place]
        self.grad_orders = [g._buffer.order for _, g in grads if id(g) in place]  # type: ignore[union-attr]
        self.checks = [(c, place[id(c.low)], place[id(c.high)], c.high._node.site) for c in checks]
        self.results = [(node, place[id(h)], h._dynamic, h._history) for node, h in results.items() if id(h) in place]
        self.hoisted: Hoisted | None = None
        self.divides = not self.moves and not self.trained and not self.gone and ending.goal.root.limit is None

    @staticmethod
    def possible(ran: Ran | None, leaves: Sequence[tuple[Node, Any]], known: Sequence[Handle]) -> bool:
        """Whether calls like the one that made this run can be repeated without looking further.

        known : the handles whose fate the caller knows; a run that gave values to others is not repeatable
        """
        if ran is None or ran.ending.waiting:
            return False
        ids = {id(h) for h in known}
        return (
            all(id(h) in ids for h in ran.handles)
            and all(isinstance(leaves[i][1], Handle) for i in ran.donated)
            and not any(h._views for h in known)
            and all(h._history is None or h._history is FREED for h in known)
        )

    def _take_inputs(self, leaves: Sequence[tuple[Node, Any]], arguments: Sequence[Handle]) -> None:
        """Sort leaves by where their values come from: handles, arguments, numbers, constants, in this order."""
        self.handles: list[Handle] = []
        self.argument_places: list[int] = []
        self.numbers: list[tuple[Any, np.ndarray]] = []
        fixed: list[Buffer] = []
        slots: tuple[list[int], ...] = ([], [], [], [])
        for slot, (node, source) in enumerate(leaves):
            if isinstance(source, Handle):
                kind = 0
                self.handles.append(source)
            elif type(source) is int:
                kind = 1
                self.argument_places.append(source)
            elif callable(source):
                kind = 2
                array = np.zeros((), node.dtype.numpy)
                self.numbers.append((source, array))
            else:
                kind = 3
                fixed.append(source if type(source) is Buffer else Buffer(np.array(source[0], node.dtype.numpy)))
            slots[kind].append(slot)
        self.handle_slots = slots[0]
        self.unvarying = sorted(slots[0] + slots[3])
        self.orders: list[Any] = [t._buffer.order for t in self.handles]  # type: ignore[union-attr]
        self.orders += [arguments[k]._buffer.order for k in self.argument_places]  # type: ignore[union-attr]
        self.constant = [Buffer(array) for _, array in self.numbers] + fixed
        order = [slot for kind in slots for slot in kind]
        back = [order.index(slot) for slot in range(len(order))]
        self.arrange: Callable[..., tuple] = itemgetter(*back) if len(back) > 1 else tuple

    def _note_grads(self, grads: Sequence[Handle]) -> None:
        self.grads = [ref(g) for g in grads]

    def call(self, arguments: Sequence[Handle]) -> dict[Node, Handle] | None:
        """Run with the values of now.  The handles made for returned values; None (and nothing done) if something is not
        as it was."""
        rec = STATE.recording
        backend = registry.current()
        if rec.count or rec.leaf_nodes or run.inspect is not None:
            return None
        if backend is not self.backend or backend.plan_key() != self.backend_key:
            return None
        with run._lock:
            values: list[Any] = [t._buffer for t in self.handles]
            values += [arguments[k]._buffer for k in self.argument_places]
            if None in values or [b.order for b in values] != self.orders:
                return None
            taken = [values[n] for n in self.taken]
            if shared(taken, 2) or Borrowed in map(type, taken):  # held by `values` and by the handle
                return None
            for t, _ in self.moves:
                if t._views:
                    return None
            del taken
            for get, array in self.numbers:
                array[()] = get()
            return self._run(values)

    def _run(self, values: list[Any]) -> dict[Node, Handle]:
        kept = self._kept_grads() if self.trained else None
        if kept is None:
            for t in self.trained:
                t._grad = None  # its memory is there for the new one
        values += self.constant
        inputs: Sequence[Buffer] = self.arrange(values)
        program = self.plan.program
        if self.divides:
            program, inputs = self._divided(inputs)
        interrupt: BaseException | None = None
        try:
            outputs = program.run(inputs, self.bindings, self.gone, kept)
        except BaseException as error:
            outputs = getattr(error, "results", None)
            if outputs is None:
                raise
            interrupt = error  # it came too late: the run is complete
        try:
            made = self._hand_out(outputs, kept is None)
        except BaseException:
            self._hand_out(outputs, kept is None)
            raise
        statistics.note(self.plan, self.bindings, self.count)
        for check, low, high, site in self.checks:
            interrupt = interrupt or out_of_range(check, outputs[low], outputs[high], self.bindings, site)
        if interrupt is not None:
            raise interrupt
        return made

    def _divided(self, inputs: Sequence[Buffer]) -> tuple[Any, Sequence[Buffer]]:
        """The program without what it computes from no argument, and what it reads; the whole, where that is not worth it."""
        plan = self.plan
        if self.hoisted is None:
            self.hoisted = hoisted(plan.graph, self.unvarying, inputs, self.backend, self.bindings)
        if self.hoisted is None or self.hoisted.useless:
            self.divides, self.hoisted = False, None
            return plan.program, inputs
        return self.hoisted.program, self.hoisted.inputs(inputs, self.bindings)

    def _kept_grads(self) -> dict[int, Buffer] | None:
        """The gradients of the last call by output, if nobody but their parameters holds them: the new ones go there."""
        old = [t._grad for t in self.trained]
        if any(map(is_, old, repeat(None))) or not all(map(is_, old, [r() for r in self.grads])) or shared(old, 1):
            return None
        buffers = [g._buffer for g in old]
        if None in buffers or [b.order for b in buffers] != self.grad_orders:
            return None
        if shared(buffers, 1) or Borrowed in map(type, buffers):
            return None
        return dict(zip(self.grad_places, buffers))

    def _hand_out(self, outputs: list[Buffer], new_grads: bool) -> dict[Node, Handle]:
        for t, k in self.moves:
            t._buffer = outputs[k]
        if not new_grads:
            for t, k in zip(self.trained, self.grad_places):
                t._grad._buffer = outputs[k]
        elif self.trained:
            grads = [_realised(outputs[k]) for k in self.grad_places]
            for t, g in zip(self.trained, grads):
                t._grad = g
            self._note_grads(grads)
        return {node: _realised(outputs[k], dynamic, history) for node, k, dynamic, history in self.results}


def _realised(buffer: Buffer, dynamic: tuple[int, ...] = (), history: Any = None) -> Handle:
    t = recorder.tensor_class.__new__(recorder.tensor_class)
    t._buffer = buffer
    if dynamic:
        t._dynamic = dynamic
    if history is not None:
        t._history = history
    return t
