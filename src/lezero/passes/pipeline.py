"""The restructuring passes, in order.  Read this file first.

Each pass is a function Graph -> Graph that leaves a graph the verifier accepts.  ``lz.explain`` counts the operations after
each of them, and its ``graph(name)`` shows them; ``LEZERO_PASSES=-name,-name`` leaves some out (not ``decompose`` and
``pin_outputs``, which the scheduler relies on).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from lezero.graph.node import Graph, verify
from lezero.knobs import KnobError
from lezero.passes.decompose import decompose
from lezero.passes.settle import settle_extents
from lezero.passes.simplify import eliminate_common, pin_outputs, remove_idle

Pass = Callable[[Graph], Graph]

PIPELINE: tuple[Pass, ...] = (
    settle_extents,  # first, while the nodes are those that were recorded, with their guards
    eliminate_common,  # the same call recorded twice, on coarse operations: cheap now, and fewer to take apart
    decompose,
    remove_idle,
    eliminate_common,  # what different operations have in common inside, such as the mean of a variance
    pin_outputs,
)
REQUIRED = frozenset({"decompose", "pin_outputs"})
SCHEDULED = frozenset({"packed", "recompute"})
"""What is restructured when kernels are known (``schedule/``), and can be left out in the same way."""


def switched_off() -> frozenset[str]:
    """Names of the passes LEZERO_PASSES leaves out.

    Raises
    ------
    KnobError
        If it names a pass there is not, or one the scheduler relies on.
    """
    words = [w.strip() for w in os.environ.get("LEZERO_PASSES", "").split(",") if w.strip()]
    optional = sorted({p.__name__ for p in PIPELINE} - REQUIRED | SCHEDULED)
    for w in words:
        if w[0] != "-" or w[1:] not in optional:
            listed = ", ".join(f"-{name}" for name in optional)
            raise KnobError(f"LEZERO_PASSES={','.join(words)!r}: {w!r} is not one of {listed}")
    return frozenset(w[1:] for w in words)


def restructure(graph: Graph, watch: Callable[[str, Graph], None] | None = None) -> Graph:
    """Run the pipeline; `watch` is called with each pass's name and the graph after it."""
    off = switched_off()
    check = bool(os.environ.get("LEZERO_VERIFY"))
    for p in PIPELINE:
        if p.__name__ in off:
            continue
        graph = p(graph)
        if check:
            verify(graph)
        if watch is not None:
            watch(p.__name__, graph)
    return graph
