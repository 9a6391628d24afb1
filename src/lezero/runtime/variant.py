"""One recorded form of a captured function: what it stands for from call to call, when it fits, and how it is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Any
from weakref import ref

import numpy as np

from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.hal.references import others
from lezero.runtime import recorder
from lezero.runtime.bounds import Check
from lezero.runtime.capture import Capture
from lezero.runtime.leaves import import_handle
from lezero.runtime.recording import STATE, Handle, Recording
from lezero.runtime.replay import between
from lezero.runtime.run import Ran, dynamic, run_recording
from lezero.runtime.steady import Steady
from lezero.runtime.trie import Root
from lezero.runtime.writes import stale_views

Source = Any
"""Where a leaf's value comes from: the position of an argument, a handle, what is the ``grad`` of one of these, a function
giving a number, a number or a constant."""


class GradOf(tuple):
    """(source,): the tensor that is another one's ``grad`` when the function is called."""


class Number(tuple):
    """(value,): a Python number among the operands."""


class Variant:
    """One recorded form of the function.

    parts, tensors : where the called modules keep their parameters and buffers, and which those are
    leaves, written, grads, variables : nodes and what they stand for: the recording's inputs, the handles it pointed
        elsewhere, the handles whose ``grad`` it set, and those gradients may be asked for later
    read_grads : the handles whose ``grad`` it looks at before it sets it; found_grads : which those were at the last call;
        grad_keys : what was recorded of them
    cleared : handles it leaves without a ``grad``
    dynamic : axes of tensors that are no arguments whose extents were symbols
    confirmed : whether a second call recorded the same
    """

    def __init__(self, rec: Recording, root: Root, capture: Capture, result: Any, arguments: list[Handle]):
        self.root, self.tail = root, rec.tail
        self.path = between(root, rec.tail)
        self.count = rec.count
        self.bindings = list(rec.bindings)
        self.freed, self.hooks, self.regions = list(rec.freed), dict(rec.hooks), list(rec.regions)
        self.checks = [(c.low._node, c.high._node, c) for c in rec.checks]
        self.confirmed = False
        places = {id(t): k for k, t in enumerate(arguments)}

        given = {id(grad): t for t, grad, read in capture.grads.values() if read and grad is not None}

        def source(t: Handle) -> Source:
            if id(t) in given and id(t) not in places:
                return GradOf((places.get(id(given[id(t)]), given[id(t)]),))
            return places.get(id(t), t)

        forgotten = _forgotten(rec, capture) - given.keys()
        written: dict[int, Handle] = {}
        for t, before in capture.saved:
            if id(t) not in written and before[0] is not rec and t._rec is rec and id(t) not in forgotten:
                written[id(t)] = t
        self.written = [(t._node, source(t)) for t in written.values()]
        gets = dict(rec.scalars)
        self.leaves: list[tuple[Node, Source]] = []
        for k, (node, leaf) in enumerate(zip(rec.leaf_nodes, rec.leaf_handles)):
            if leaf is None:
                value: Source = gets.get(k) or Number((rec.buffers[k].array[()],))
            else:
                value = rec.buffers[k] if id(leaf) in forgotten else source(leaf)
            self.leaves.append((node, value))
        self.dynamic = {id(t): dynamic(node) for node, t in self.leaves if isinstance(t, Handle)}
        self.variables = [(node, source(t)) for node, t in rec.variables.items()]
        touched = [(t, source(t), grad, read) for t, grad, read in capture.grads.values()]
        self.grads = [
            (t._grad._node, at)
            for t, at, _, _ in touched
            if t._grad is not None and t._grad._rec is rec and id(t._grad) not in written
        ]
        self.grads.sort(key=lambda item: item[0].index)  # in which order they were set depends on the walk
        self.cleared = [at for t, at, _, _ in touched if t._grad is None]
        looked_at = [(at, grad) for _, at, grad, read in touched if read]
        self.read_grads = [at for at, _ in looked_at]
        self.found_grads = _references([grad for _, grad in looked_at])
        self.grad_keys = [_grad_key(grad) for _, grad in looked_at]
        self.by_handle = not any(type(at) is int for at in self.read_grads)
        self.result = _map(result, lambda t: _Result(t, rec, places, written))
        self.modules = list(capture.modules.values())
        self.training = [m.training for m in self.modules]
        parts = [(vars(m), name) for m in self.modules for name in (*m._parameter_names, *m._buffer_names)]
        self.parts, self.tensors = parts, [d.get(name) for d, name in parts]
        self.optimizers = list(capture.optimizers.values())
        self.structures = [o._structure() for o in self.optimizers]
        tracked = [
            (t, node.tracks)
            for node, t in self.leaves
            if isinstance(t, Handle) and (node.tracks or type(t) is not recorder.tensor_class)
        ]
        self.tracked, self.tracks = [t for t, _ in tracked], [tracks for _, tracks in tracked]
        self.plan: Any = None  # that of the last run
        self.steady: Steady | None = None
        self.again = False  # whether it finds the gradients of the last call

    def fits(self, arguments: list[Handle]) -> bool:
        """Whether modules are in the modes they were in, parameters frozen or not as they were, and gradients it looks at
        there or not."""
        return (
            [m.training for m in self.modules] == self.training
            and all(map(is_, [d.get(name) for d, name in self.parts], self.tensors))
            and [o._structure() for o in self.optimizers] == self.structures
            and [t._requires_grad or t._history is not None for t in self.tracked] == self.tracks
            and self._finds_grads(arguments)
        )

    def _finds_grads(self, arguments: list[Handle]) -> bool:
        """Whether gradients it looks at are there as they were; notes whether they are those of the last call."""
        if not self.read_grads:
            self.again = True
            return True
        readers = self.read_grads if self.by_handle else [_found(at, arguments) for at in self.read_grads]
        now = [t._grad for t in readers]
        if [g is None for g in now] != [key is None for key in self.grad_keys]:
            return False
        self.again = all(map(is_, now, [r and r() for r in self.found_grads]))
        return self.again or list(map(_grad_key, now)) == self.grad_keys

    def other_symbols(self, other: Variant) -> bool:
        """Whether the same tensors had other symbols, having been written to in between."""
        return self.dynamic.keys() == other.dynamic.keys() and self.dynamic != other.dynamic

    def become(self, other: Variant) -> None:
        """Stand for what another recording of the same call was."""
        self.__dict__ = other.__dict__

    def same(self, other: Variant) -> bool:
        def alike(ours: list[tuple[Node, Source]], theirs: list[tuple[Node, Source]]) -> bool:
            return len(ours) == len(theirs) and all(
                n is m and _same_source(a, b) for (n, a), (m, b) in zip(ours, theirs)
            )

        return (
            self.tail is other.tail
            and alike(self.leaves, other.leaves)
            and alike(self.written, other.written)
            and alike(self.grads, other.grads)
            and {*map(_key, self.cleared)} == {*map(_key, other.cleared)}
        )

    def run(self, arguments: list[Handle]) -> Any:
        """Do what was recorded with the values of now."""
        if self.steady is not None:
            results = self.steady.call(arguments) if self.again else None
            if results is not None:
                for at in self.cleared:
                    _found(at, arguments)._grad = None
                return _map_results(self.result, None, results, arguments)
            self.steady = None
        state = STATE
        for _, source in self.leaves:
            t = _found(source, arguments)
            if isinstance(t, Handle) and (t._rec is not None or t._buffer is None):
                realize_alone(t)
        if state.recording.count or state.recording.leaf_nodes:
            run_recording(state.recording)
        rec = state.recording
        saved: list[tuple] = []
        grads: list[tuple[Handle, Handle | None]] = []
        entered = [(t, t._grad) for t in (_found(at, arguments) for at in self.read_grads)]
        self.found_grads = _references([grad for _, grad in entered])
        try:
            self._fill(rec, arguments)
            self._point(rec, arguments, saved)
            grads += [(_found(at, arguments), _handle(rec, node)) for node, at in self.grads]
            grads += [(_found(at, arguments), None) for at in self.cleared]
            for t, _ in grads:
                t._grad = None  # the function cleared it, or there was none: its memory is there for the new one
            checks = [
                check._replace(low=_handle(rec, low), high=_handle(rec, high)) for low, high, check in self.checks
            ]
            rec.checks.extend(checks)
            made: dict[Node, Handle] = {}
            result = _map_results(self.result, rec, made, arguments)
            rec.root, rec.tail, rec.count, rec.bindings = self.root, self.tail, self.count, list(self.bindings)
            ran = run_recording(rec)
        except BaseException as error:
            if not hasattr(error, "results"):  # otherwise an interrupt after which the run was completed
                for t, was_rec, node, buffer, history, shape in saved:
                    if t._rec is not rec:
                        continue  # the run was complete, and it has its new value
                    t._rec, t._node, t._history, t._shape = was_rec, node, history, shape
                    t._buffer = buffer() if type(buffer) is ref else buffer
                grads[:] = entered
                state.recording = Recording()
            raise
        finally:
            for t, grad in grads:
                t._grad = grad
        self._settle(ran, arguments, grads, made, checks)
        return result

    def _fill(self, rec: Recording, arguments: list[Handle]) -> None:
        """Give a recording the inputs of now."""
        for node, source in self.leaves:
            handle = None
            source = _found(source, arguments)
            if isinstance(source, Handle):
                handle, buffer = source, source._buffer
            elif type(source) is Buffer:
                buffer = source
            else:
                get = None if type(source) is Number else source
                rec.scalars.append((len(rec.buffers), get))
                buffer = Buffer(np.array(source[0] if get is None else get(), node.dtype.numpy))
            rec.buffers.append(buffer)  # type: ignore[arg-type]
            rec.leaf_handles.append(handle)
            rec.leaf_nodes.append(node)
        for node, source in self.variables:
            rec.variables[node] = _found(source, arguments)
        rec.freed.extend(self.freed)
        rec.regions.extend(self.regions)
        rec.hooks.update(self.hooks)

    def _point(self, rec: Recording, arguments: list[Handle], saved: list[tuple]) -> None:
        """Point what the function writes to at its new values; what it stood for goes to `saved`, before."""
        inputs = {id(b) for b in rec.buffers}
        for node, source in self.written:
            t = _found(source, arguments)
            before: Any = t._buffer
            if id(before) in inputs:
                # Weakly, since the run decides by counting references which memory may be taken over; it holds its inputs.
                before = ref(before)
            saved.append((t, t._rec, t._node, before, t._history, t._shape))
            rec.handles.append(ref(t))
            t._rec, t._node, t._buffer, t._shape, t._history = rec, node, None, None, None
        written = {id(t): t for t, *_ in saved}
        for t in written.values():
            stale_views(t, written)

    def _settle(
        self,
        ran: Ran | None,
        arguments: list[Handle],
        grads: list[tuple[Handle, Handle | None]],
        made: dict[Node, Handle],
        checks: list[Check],
    ) -> None:
        """Prepare for calls that differ in values only, once two in a row came to the same program and added to the same
        gradients."""
        before, self.plan = self.plan, None if ran is None else ran.plan
        if ran is None or ran.plan is not before or not self.again:
            return
        if any(type(s) is int for _, s in (*self.written, *self.grads)):
            return
        leaves = [(node, _found(at, arguments) if type(at) is GradOf else at) for node, at in self.leaves]
        written = [_found(t, arguments) for _, t in self.written]
        new = [(t, g) for t, g in grads if g is not None]
        known = [*written, *[g for _, g in new], *made.values(), *[h for c in checks for h in (c.low, c.high)]]
        if Steady.possible(ran, leaves, known):
            self.steady = Steady(ran, leaves, arguments, written, new, made, checks, self.bindings, self.count)


def _forgotten(rec: Recording, capture: Capture) -> set[int]:
    """Ids of handles made inside from data that nobody can reach any more: their values are constants."""
    known = [*rec.leaf_handles, *[t for t, _ in capture.saved]]
    ours = Counter(map(id, known))
    # Two references from each place in `known` (it and where it was copied from), less the one asked through.
    return {
        id(known[k]) for k in range(len(known)) if known[k] is not None and others(known, k) < 2 * ours[id(known[k])]
    }


def _handle(rec: Recording, node: Node) -> Handle:
    t = recorder.tensor_class.__new__(recorder.tensor_class)
    t._rec, t._node = rec, node
    rec.handles.append(ref(t))
    return t


def realize_alone(t: Handle) -> None:
    if t._buffer is None and t._rec is None:
        import_handle(STATE.recording, t)
    if t._rec is not None:
        run_recording(t._rec, t)


def _found(at: Source, arguments: list[Handle]) -> Any:
    """What a source stands for in a call with these arguments."""
    if type(at) is int:
        return arguments[at]
    if type(at) is GradOf:
        return _found(at[0], arguments)._grad
    return at


def _key(at: Source) -> Hashable:
    """The same for the same source."""
    return ("argument", at) if type(at) is int else ("grad", _key(at[0])) if type(at) is GradOf else id(at)


def _grad_key(grad: Handle | None) -> Any:
    """What of a gradient decides what is recorded of it."""
    if grad is None:
        return None
    tracks = grad._requires_grad or grad._history is not None
    return tuple([int(d) for d in grad.shape]), grad.dtype, tracks, grad._dynamic  # type: ignore[attr-defined]


def _references(grads: Sequence[Handle | None]) -> list[Any]:
    return [None if g is None else ref(g) for g in grads]


def _same_source(a: Any, b: Any) -> bool:
    if callable(a) and not isinstance(a, Handle):
        return callable(b) and not isinstance(b, Handle)
    if isinstance(a, Number) and isinstance(b, Number):
        return _same_array(a[0], b[0])
    if isinstance(a, Buffer) and isinstance(b, Buffer):
        return _same_array(a.array, b.array)
    if type(a) is GradOf and type(b) is GradOf:
        return _same_source(a[0], b[0])
    return a is b or (type(a) is int and a == b)


def _same_array(a: Any, b: Any) -> bool:
    """Equal to the bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class _Result:
    """A tensor in what the function returned: a recorded value, an argument, or a tensor from outside."""

    __slots__ = ("argument", "node", "tensor")

    def __init__(self, t: Handle, rec: Recording, places: dict[int, int], written: dict[int, Handle]):
        self.node: Node | None = None
        self.argument: int | None = None
        self.tensor: Handle | None = None
        if id(t) in places:
            self.argument = places[id(t)]
        elif t._rec is rec and id(t) not in written:
            self.node = t._node
        else:
            self.tensor = t


def _map(tree: Any, f: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Handle):
        return f(tree)
    if isinstance(tree, dict):
        return {k: _map(v, f) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return _rebuilt(tree, [_map(v, f) for v in tree])
    return tree


def _map_results(tree: Any, rec: Recording | None, made: dict[Node, Handle], arguments: list[Handle]) -> Any:
    if isinstance(tree, _Result):
        if tree.argument is not None:
            return arguments[tree.argument]
        if tree.tensor is not None:
            return tree.tensor
        if tree.node not in made:
            made[tree.node] = _handle(rec, tree.node)  # type: ignore[index, arg-type]
        return made[tree.node]  # type: ignore[index]
    if isinstance(tree, dict):
        return {k: _map_results(v, rec, made, arguments) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return _rebuilt(tree, [_map_results(v, rec, made, arguments) for v in tree])
    return tree


def _rebuilt(like: Any, values: list) -> Any:
    """A list, tuple or subclass (named tuple, values with indices) like the given one."""
    return type(like)(values) if type(like) in (list, tuple) else type(like)(*values)
