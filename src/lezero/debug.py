"""Finding where a NaN or an infinity comes from.

    lz.debug.check_numerics()              # from here on
    with lz.debug.check_numerics(): ...    # or for a while

While it is on, each run is preceded by one that keeps every intermediate result, and looks at all of them.  It is slow (the
run is made twice, nothing is fused away and nothing written in place) and changes no result.
"""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType
from typing import Any

import numpy as np

from lezero.graph.dim import show as show_dim
from lezero.graph.node import Graph, Node
from lezero.hal.backend import Backend
from lezero.misspelt import suggest_names
from lezero.runtime import run, trie, writes
from lezero.runtime.failed import undo
from lezero.runtime.recording import STATE, Recording

_MAX_PROGRAMS = 64


class check_numerics:
    """Raise FloatingPointError where an operation gives a NaN or an infinity.

    An operation is at fault when its result has a NaN and its operands have none, or an infinity and its operands are all
    finite; values that are not finite when they come in (a mask of ``-inf``, data with gaps) are passed over.  The error
    names the operation, its operands' shapes and the line that recorded it, and is raised where the values would have been
    computed: reading a value, or ``optimizer.step()``.  Nothing of that run happens: parameters, optimizer state and running
    statistics are as they were before what was recorded for it, and gradients taken for it are None again.  Results that do
    not depend on the operation at fault can be read afterwards; those that do raise again.

    Parameters
    ----------
    enabled : bool
        On or off from the call on; as a context, until it is left.  Leaving it runs what is pending, and an interrupt
        (Ctrl-C) in that moment can leave checking on: ``check_numerics(False)`` ends it.
    """

    def __init__(self, enabled: bool = True):
        self._before = run.inspect is not None
        _switch(enabled)

    def __enter__(self) -> check_numerics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            run.run_now()  # what was recorded inside is checked
        _switch(self._before)


def is_checking() -> bool:
    """Whether results are being checked."""
    return run.inspect is not None


def _switch(on: bool) -> None:
    if on == is_checking():
        return
    run.run_now()
    run.inspect = _inspect if on else None
    writes.journal = [] if on else None
    _programs.clear()
    # a trace recorded before may stand for several lines of code that do the same: record anew, to know the line
    trie.size = trie.MAX_TRIE_NODES + 1
    STATE.recording = Recording()


_programs: OrderedDict[tuple, tuple[Any, list[Node], tuple[int, ...]]] = OrderedDict()


def _inspect(rec: Recording, ending: Any, backend: Backend) -> None:
    """Run everything with every floating result kept, and look at them in recorded order."""
    key = (ending.goal, tuple(b.order for b in rec.buffers), backend.name, backend.plan_key())
    found = _programs.get(key)
    if found is None:
        graph = Graph(tuple(rec.leaf_nodes), ending.outputs)
        watched = [n for n in graph.nodes() if n.inputs and n.dtype.differentiable]
        watched.sort(key=lambda n: n.index)
        used = {n for n in graph.nodes() if n.op.is_leaf}
        leaves = tuple(k for k, n in enumerate(rec.leaf_nodes) if n in used)
        graph = Graph(tuple(rec.leaf_nodes[k] for k in leaves), tuple(watched)).at(rec.bindings)
        program = backend.compile(graph, frozenset(), [rec.buffers[k] for k in leaves]) if watched else None
        found = _programs[key] = program, watched, leaves
        if len(_programs) > _MAX_PROGRAMS:
            _programs.popitem(last=False)
    program, watched, leaves = found
    assert writes.journal is not None
    if program is not None:
        results = program.run([rec.buffers[k] for k in leaves], rec.bindings)
        values = dict(zip(rec.leaf_nodes, (b.array for b in rec.buffers)))
        values |= zip(watched, (b.array for b in results))
        bad = _first_bad(watched, values)
        if bad is not None:
            message = _message(bad, values)
            undo(rec, reversed(writes.journal))
            writes.journal.clear()
            raise FloatingPointError(message)
    writes.journal.clear()


def _first_bad(watched: list[Node], values: dict[Node, np.ndarray]) -> Node | None:
    """The first operation whose result is not finite through its own doing."""
    kinds: dict[Node, tuple[bool, bool]] = {}

    def kind(n: Node) -> tuple[bool, bool]:
        """(has a NaN, has an infinity)"""
        found = kinds.get(n)
        if found is None:
            a = values.get(n)
            if a is None or not n.dtype.differentiable:
                number = n.attrs[0] if n.op.name == "constant" else 0.0
                a = np.asarray(number if isinstance(number, (int, float, complex)) else 0.0)
            if a.dtype.itemsize == 2 and a.dtype.kind not in "iu":
                a = a.astype(np.float32)
            found = kinds[n] = (
                (False, False) if np.isfinite(a).all() else (bool(np.isnan(a).any()), bool(np.isinf(a).any()))
            )
        return found

    for n in watched:
        nan, infinite = kind(n)
        if not (nan or infinite):
            continue
        inputs = [kind(i) for i in n.inputs]
        if (nan and not any(i[0] for i in inputs)) or (infinite and not any(i[0] or i[1] for i in inputs)):
            return n
    return None


def _message(node: Node, values: dict[Node, np.ndarray]) -> str:
    array = values[node]
    wide = array.astype(np.float32) if array.dtype.itemsize == 2 else array
    nan, infinite = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    count = " and ".join(f"{n} {what}" for n, what in ((nan, "NaN"), (infinite, "infinite")) if n)
    operands = ", ".join(_described(n, values) for n in node.inputs)
    where = f", recorded at {node.site[0]}:{node.site[1]}" if node.site else ""
    return f"{node.op.name}({operands}) gave {count} of {wide.size} values{where}"


def _described(node: Node, values: dict[Node, np.ndarray]) -> str:
    array = values.get(node)
    shape = list(array.shape) if array is not None else [show_dim(d) for d in node.shape]
    text = f"{node.dtype.name}{shape}".replace("'", "")
    if array is None or not array.size or node.dtype.kind not in "fiu":
        return text
    if array.size == 1:
        return f"{array.reshape(())[()]!s}"
    return f"{text} from {float(array.min()):.4g} to {float(array.max()):.4g}"


__all__ = ["check_numerics", "is_checking"]


suggest_names(__name__)
