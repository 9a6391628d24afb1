"""``lz.jit``: a function recorded once and called from then on as one run.

The first call records as usual, without running in between, and runs what it recorded.  The second call with equal guards
records again and compares: if it did something else (a Python side effect decided what), that is an error at the line where
the difference is.  From the third call on the function is not called any more.

Read at every call: tensor arguments, the values of all other tensors the function touched, hyper-parameters, seeds.
Guarded (a change records a new variant): structure, shapes and dtypes of arguments, other Python arguments, the gradient
mode, the precision chosen by autocast, ``training`` of modules that were called and which tensors are their parameters and buffers, what decides an optimizer's
operations (its state's tensors, its flags, which hyper-parameters are zero), and which of the gradients it looks at were
there when it was called.
"""

from __future__ import annotations

import cmath
import functools
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Any
from weakref import finalize, ref

import numpy as np

from lezero.graph.dtype import as_dtype, default_dtype
from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.hal.references import others
from lezero.ops.base import LEAF
from lezero.runtime import recorder
from lezero.runtime.bounds import Check
from lezero.runtime.recorder import STATE, Handle, Recording, Root
from lezero.runtime.replay import between
from lezero.runtime.run import Ran, _release, run_recording
from lezero.runtime.steady import Steady
from lezero.schedule.budget import Limit, MemoryLimitError, MemoryReport, parse_bytes

MAX_VARIANTS = 16
"""Variants kept for one captured function; the least recently used goes first."""


class CaptureError(RuntimeError):
    """The function does something a captured function cannot do."""


class Capture:
    """What is noted while a function is recorded; ``STATE.capture`` while that lasts."""

    def __init__(self, name: str):
        self.name = name
        self.modules: dict[int, Any] = {}
        self.optimizers: dict[int, Any] = {}
        self.saved: list[tuple[Handle, tuple]] = []
        self.grads: dict[int, tuple[Handle, Handle | None, bool]] = {}
        self.others: list[Callable[[], None]] = []  # put back what is not in handles

    def refuse(self, why: str = "a value is read (by .item(), .numpy(), printing, or an `if` on a tensor)") -> None:
        """Something that needs a run."""
        at = _user_line()
        raise CaptureError(
            f"lz.jit: inside {self.name}(){at}, {why}. A captured function cannot look at values while it is recorded: "
            "return the tensor and read it outside, or use lz.where"
        )

    def looked(self) -> None:
        """A value that is there is read: later calls would go by the one of now."""
        self.refuse()

    def saw(self, module: Any) -> None:
        self.modules[id(module)] = module

    def saw_optimizer(self, optimizer: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for p in group["params"]:
                self.uses_grad(p)

    def uses_grad(self, t: Handle, read: bool = True) -> None:
        """The ``grad`` of `t` is about to be read or set: note what it was when the function was called, and which came first."""
        self.grads.setdefault(id(t), (t, t._grad, read))

    def before_write(self, t: Handle) -> None:
        """Keep what a handle stood for, to put back if the function raises."""
        self.saved.append((t, (t._rec, t._node, t._buffer, t._history, t._shape)))

    def let_go(self) -> None:
        """Hold old values weakly, so that the run, which holds its inputs, may write over them."""
        self.saved = [
            (t, (rec, node, None if buffer is None else ref(buffer), history, shape))
            for t, (rec, node, buffer, history, shape) in self.saved
        ]

    def undo(self) -> None:
        for t, (rec, node, buffer, history, shape) in reversed(self.saved):
            t._rec, t._node, t._history, t._shape = rec, node, history, shape
            t._buffer = buffer() if type(buffer) is ref else buffer
        for t, grad, _ in self.grads.values():
            t._grad = grad
        for put_back in reversed(self.others):
            put_back()


def _user_line() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(recorder._PACKAGE):
            return f" at {file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


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
        readers = self.read_grads if self.by_handle else [_found(at, arguments) for at in self.read_grads]
        now = [t._grad for t in readers]
        if [g is None for g in now] != [key is None for key in self.grad_keys]:
            return False
        self.again = all(map(is_, now, [r and r() for r in self.found_grads]))
        return self.again or list(map(_grad_key, now)) == self.grad_keys

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
                _realize(t)
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
                handle, buffer = source, recorder.value_elsewhere(rec, source)
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
            recorder.stale_views(t, written)
        if len(recorder.thread_states) > 1:
            recorder.tell_other_threads(written.values())

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
            self.steady = Steady(ran, leaves, written, new, made, checks, self.bindings, self.count)


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


def _realize(t: Handle) -> None:
    if t._buffer is None and t._rec is None:
        recorder.import_handle(STATE.recording, t)
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


def _flatten(tree: Any, tensors: list[Handle], name: str) -> Hashable:
    """A key of everything in the arguments but tensor values; tensors are collected in order."""
    if isinstance(tree, Handle):
        first = len(tensors)
        for k, t in enumerate(tensors):
            if t is tree:
                first = k
                break
        tensors.append(tree)
        if tree._buffer is not None:
            array = tree._buffer.array
            shape, dtype, tracks = array.shape, as_dtype(array.dtype), tree._requires_grad or tree._history is not None
        else:
            shape, dtype, tracks = tuple([int(d) for d in tree.shape]), tree.dtype, tree.requires_grad  # type: ignore[attr-defined]
        return (shape, dtype, tracks, tree._dynamic, first)
    if isinstance(tree, dict):
        return ("dict", tuple((k, _flatten(v, tensors, name)) for k, v in tree.items()))
    if isinstance(tree, (list, tuple)):
        return (type(tree).__name__, tuple([_flatten(v, tensors, name) for v in tree]))
    if isinstance(tree, (float, complex)) and (not tree or cmath.isnan(tree)):
        return (type(tree), repr(tree))  # 0.0 and -0.0 are equal, and NaN equals nothing
    try:
        hash(tree)
    except TypeError:
        raise CaptureError(
            f"lz.jit: an argument of {name}() is a {type(tree).__name__}, which cannot be compared between calls; "
            "pass tensors, numbers, strings, or containers of them"
        ) from None
    return (type(tree), tree)


def _described(node: Node) -> str:
    """What a node is, for a message: an operation, or what comes from outside."""
    if node.op is not LEAF:
        return node.op.name
    kind = node.attrs[0] if node.attrs[0] != "tensor" else f"tensor of shape {tuple(map(int, node.shape))}"
    return f"a {kind} ({node.dtype.name}) from outside"


class Jitted:
    """A captured function; see ``lz.jit``."""

    def __init__(self, fn: Callable, memory_limit: int | str | None = None):
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._variants: OrderedDict[Hashable, Variant] = OrderedDict()
        self._memory_limit = memory_limit
        self._limit: Limit | None = None
        if memory_limit is not None:
            name = f"lz.jit: {self._name}()"
            self._limit = Limit(name, parse_bytes(name, memory_limit))
        self._root = recorder.Root(self._limit)  # a trie of its own, so that the lines in messages are this function's
        self.reasons: list[str] = []
        finalize(self, recorder.forget, self._root).atexit = False

    @property
    def memory(self) -> MemoryReport | None:
        """What keeping to the memory limit took in the last call; None without a limit or before the first call."""
        return None if self._limit is None else self._limit.report

    def __reduce__(self) -> Any:
        """Copied and pickled as the function, bound to the copy where it is a module's, and captured anew at its next calls."""
        name = getattr(self, "__qualname__", "")
        if getattr(sys.modules.get(getattr(self, "__module__", "")), name, None) is self:
            return name  # found by name, as functions are
        return Jitted, (self._fn, self._memory_limit)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if STATE.capture is not None:
            return self._fn(*args, **kwargs)
        arguments: list[Handle] = []
        key: Hashable = (
            _flatten((args, kwargs), arguments, self._name),
            STATE.grad_mode,
            STATE.autocast,
            default_dtype(),
        )
        found = None
        for full in reversed(self._variants):
            variant = self._variants[full]
            if full[0] == key and variant.fits(arguments):  # type: ignore[index]
                found = full
                break
        if found is None:
            return self._record(key, arguments, args, kwargs, None)
        variant = self._variants[found]
        self._variants.move_to_end(found)
        if not variant.confirmed:
            return self._record(key, arguments, args, kwargs, variant)
        return variant.run(arguments)

    def _record(self, key: Hashable, arguments: list[Handle], args: tuple, kwargs: dict, before: Variant | None) -> Any:
        state = STATE
        if state.recording.count or state.recording.leaf_nodes:
            run_recording(state.recording)
        for t in arguments:
            if t._buffer is None:
                _realize(t)
        rec = state.recording
        rec.bindings.clear()
        rec.root = rec.tail = self._root
        capture = Capture(self._name)
        recorder.count_capture(1)
        try:
            state.capture = capture
            result = self._fn(*args, **kwargs)
        except BaseException:
            state.capture = None
            capture.undo()
            state.recording = Recording()
            raise
        finally:
            state.capture = None  # first, and before any call: an interrupt may come with the next one
            recorder.count_capture(-1)
        variant = Variant(rec, self._root, capture, result, arguments)
        if before is not None:
            if variant.same(before):
                before.confirmed = True
            else:
                capture.undo()
                state.recording = Recording()
                raise CaptureError(self._difference(before, variant))
        if before is None:
            if self._variants:
                self.reasons.append(
                    f"variant {len(self._variants) + 1}: other arguments, modes or gradients than before"
                )
            self._variants[(key, len(self.reasons), id(variant))] = variant
            if len(self._variants) > MAX_VARIANTS:
                self._variants.popitem(last=False)
        capture.let_go()
        try:
            run_recording(rec)
        except MemoryLimitError:
            capture.undo()
            _release(rec)
            state.recording = Recording()
            self._variants = OrderedDict((k, v) for k, v in self._variants.items() if v is not (before or variant))
            raise
        return result

    def _difference(self, a: Variant, b: Variant) -> str:
        for x, y in zip(a.path or (), b.path or ()):
            if x is not y:
                where = next((f" at {n.site[0]}:{n.site[1]}" for n in (y, x) if n.site), "")
                return (
                    f"lz.jit: the second call of {self._name}() recorded {_described(y)}{where} where the first recorded "
                    f"{_described(x)}. Something besides its arguments and tensors decides what it does; make that an argument"
                )
        return (
            f"lz.jit: the second call of {self._name}() used or changed other tensors than the first, or recorded more or "
            "less than it; make what differs an argument"
        )

    def __repr__(self) -> str:
        return f"<lz.jit {self._name}: {len(self._variants)} variants>"


_CAPTURED = "lz.jit(function) captures what a function records at its first calls, and needs no example"
_KEPT = "lz.save(model.state_dict(), path) keeps what was learnt, and lz.export.to_onnx writes what is computed"
_PYTHON = "leave it out: what lz.jit captures stays a function of Python"
ELSEWHERE = {
    **dict.fromkeys(
        "ScriptFunction ScriptModule script script_if_tracing script_method trace trace_module".split(), _CAPTURED
    ),
    **dict.fromkeys("load save".split(), _KEPT),
    **dict.fromkeys(
        """annotate export freeze ignore interface is_scripting is_tracing optimize_for_inference optimized_execution
        set_fusion_strategy unused""".split(),
        _PYTHON,
    ),
}


class _Function:
    """A function that says what to do about names that ``torch.jit``, which is a module, has."""

    def __init__(self, function: Callable):
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        advice = ELSEWHERE.get(name)
        raise AttributeError(f"lz.jit has no attribute {name!r}" + (f": {advice}" if advice else ""))

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> str:
        return self._function.__name__


@_Function
def jit(fn: Callable | None = None, *, memory_limit: int | str | None = None) -> Any:
    """Capture a function: recorded at its first calls, then run in one go.

    Parameters
    ----------
    fn : callable
        Takes and returns tensors, Python values and containers of them; may update tensors it reaches (parameters,
        optimizer state, running statistics).
    memory_limit : int (bytes) or str ("2GiB", "512MiB", "1.5GB"), optional
        What a call may need: the arena of intermediate values, and its results as far as they lie in no memory that was there
        before.  Parameters, optimizer state and arguments do not count.  Values are computed again instead of being kept, the
        cheapest for their size first, until a call fits; ``.memory`` says which, and what it costs (a ``MemoryReport``).

    Returns
    -------
    callable with the same arguments.  ``repr`` shows the number of variants, ``.reasons`` why there is more than one.

    Raises
    ------
    CaptureError
        When the function reads a value while it is recorded, or records something else at its second call; the message
        has the line.
    MemoryLimitError
        When no plan within the limit was found; the message has the least that could be met.  The call has not happened:
        parameters and state are what they were.

    Examples
    --------
    >>> @lz.jit
    ... def step(x, y):
    ...     optimizer.zero_grad()
    ...     loss = F.cross_entropy(model(x), y)
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    """
    if fn is None:
        return functools.partial(jit, memory_limit=memory_limit)
    if not callable(fn):
        raise TypeError(f"lz.jit: a function is needed, got {type(fn).__name__}")
    return Jitted(fn, memory_limit)
