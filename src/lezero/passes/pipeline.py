"""The restructuring passes, in order.  Read this file first.

Each pass is a function Graph -> Graph that leaves a graph the verifier accepts.  ``lz.explain`` counts the operations after
each of them, and its ``graph(name)`` shows them; ``LEZERO_PASSES=-name,-name`` leaves some out (not ``decompose`` and
``pin_outputs``, which the scheduler relies on).

Restructuring goes on in ``schedule/``, where kernels are made; what happens there can be left out by name in the same way:

* ``layout``: what is computed from channels-last values is channels-last too (``layout.py``);
* ``fuse``: operations share kernels (``groups.py``; without it, neither ``epilogue`` nor ``see_through`` do anything, and
  only what has no memory by nature, such as views, random numbers and single numbers, is computed where it is used);
* ``epilogue``: element-wise work follows the tiles of a product or a convolution (``epilogues.py``);
* ``statistics``: batch normalisation's sums come from the tiles of the convolution before it (``statistics.py``);
* ``winograd``: 3x3 convolutions of stride 1 in float32, float64 and pairs of bfloat16 are computed by minimal filtering
  (``codegen/contraction/winograd.py``);
* ``packed``: products compute a large operand, such as the gradient of a vocabulary's scores, as they pack it, and round weights to
  half precision as they pack them (``packed.py``);
* ``see_through``: a few steps from one value in memory are made again where they are used (``reads.py``);
* ``recompute``: what is large and cheap is made a second time instead of being kept (``recompute.py``);
* ``order``: what frees memory runs first, instead of in the order recorded (``order.py``);
* ``share``: a value takes the memory of one that is read last where it is written (``schedule.py``), and what is stacked is
  computed where it belongs in the stack (``joining.py``);
* ``together``: updates of parameters are one launch (``schedule.py``);
* ``hoist``: what a captured function computes from no argument is computed once (``runtime/hoist.py``).

Results are right with any of them left out, and the set is part of what compiled programs are known by.
``benchmarks/ablation.py`` measures what each is worth.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from lezero.graph.node import Graph, verify
from lezero.knobs import KnobError
from lezero.passes.attention import attention
from lezero.passes.decompose import decompose
from lezero.passes.parts import join_parts
from lezero.passes.products import join_products
from lezero.passes.scatters import add_into
from lezero.passes.settle import settle_extents
from lezero.passes.simplify import eliminate_common, pin_outputs, remove_idle

Pass = Callable[[Graph], Graph]

PIPELINE: tuple[Pass, ...] = (
    settle_extents,  # first, while the nodes are those that were recorded, with their guards
    eliminate_common,  # the same call recorded twice, on coarse operations: cheap now, and fewer to take apart
    attention,  # where it has a kernel of its own; it is taken apart elsewhere
    decompose,
    remove_idle,
    eliminate_common,  # what different operations have in common inside, such as the mean of a variance
    join_parts,
    join_products,
    add_into,
    pin_outputs,
)
REQUIRED = frozenset({"decompose", "pin_outputs"})
SCHEDULED = frozenset(
    "layout fuse epilogue statistics winograd packed see_through recompute order share together hoist".split()
)
"""What is restructured in ``schedule/``, or between the calls of a captured function, and can be left out in the same way."""


def switched_off() -> frozenset[str]:
    """Names of the passes LEZERO_PASSES leaves out.

    Raises
    ------
    KnobError
        If it names a pass there is not, or one the scheduler relies on.
    """
    return _left_out(os.environ.get("LEZERO_PASSES", ""))


@functools.lru_cache(64)
def _left_out(knob: str) -> frozenset[str]:
    words = knob.replace(",", " ").split()
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
