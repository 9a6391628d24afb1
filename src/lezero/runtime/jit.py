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

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any
from weakref import finalize

from lezero.graph.dtype import default_dtype
from lezero.graph.node import Node
from lezero.ops.base import LEAF
from lezero.runtime.capture import Capture, CaptureError
from lezero.runtime.recording import STATE, Handle, Recording, count_capture
from lezero.runtime.run import _release, run_recording
from lezero.runtime.signature import signature
from lezero.runtime.trie import Root, forget
from lezero.runtime.variant import Variant, realize_alone
from lezero.schedule.budget import Limit, MemoryLimitError, MemoryReport, parse_bytes

__all__ = ["MAX_VARIANTS", "CaptureError", "Jitted", "jit"]

MAX_VARIANTS = 16
"""Variants kept for one captured function; the least recently used goes first."""


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
        self._latest: Variant | None = None  # the last of them, where it was called last
        self._memory_limit = memory_limit
        self._limit: Limit | None = None
        if memory_limit is not None:
            name = f"lz.jit: {self._name}()"
            self._limit = Limit(name, parse_bytes(name, memory_limit))
        self._root = Root(self._limit)  # a trie of its own, so that the lines in messages are this function's
        self.reasons: list[str] = []
        finalize(self, forget, self._root).atexit = False

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
            signature(args, kwargs, arguments, self._name),
            STATE.grad_mode,
            STATE.autocast,
            default_dtype(),
        )
        for full, variant in reversed(self._variants.items()):
            if full[0] == key and variant.fits(arguments):  # type: ignore[index]
                break
        else:
            return self._record(key, arguments, args, kwargs, None)
        if variant is not self._latest:  # what a key is found by takes as long to compute as all checks
            self._variants.move_to_end(full)
            self._latest = variant
        if not variant.confirmed:
            return self._record(key, arguments, args, kwargs, variant)
        return variant.run(arguments)

    def _record(self, key: Hashable, arguments: list[Handle], args: tuple, kwargs: dict, before: Variant | None) -> Any:
        state = STATE
        if state.recording.count or state.recording.leaf_nodes:
            run_recording(state.recording)
        for t in arguments:
            if t._buffer is None:
                realize_alone(t)
        rec = state.recording
        rec.bindings.clear()
        rec.root = rec.tail = self._root
        capture = Capture(self._name)
        count_capture(1)
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
            count_capture(-1)
        variant = Variant(rec, self._root, capture, result, arguments)
        if before is not None:
            if variant.same(before):
                before.confirmed = True
            elif variant.other_symbols(before):
                before.become(variant)  # the next call compares
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
            self._latest = None
            if len(self._variants) > MAX_VARIANTS:
                self._variants.popitem(last=False)
        capture.let_go()
        try:
            run_recording(rec)
        except MemoryLimitError:
            capture.undo()
            _release(rec)
            state.recording = Recording()
            self._latest = None
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
