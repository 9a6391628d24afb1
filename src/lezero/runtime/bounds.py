"""Whether indices are in range, also those that are still to be computed.

Kernels read 0 and write nothing where an index is out of range, which protects memory and says nothing.  Indices that are
there are looked at when they are used; for others their smallest and largest are recorded beside them (fused with whatever
computes them; measured: 10 µs for each use, 4 to 9 % of a gather of single numbers), and the run that computes them
complains.  It is complete by then: what was written to has its new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lezero.graph.dim import Dim, evaluate
from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.ops.base import REGISTRY as OPS
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE, Handle, Recording

MAX_LOOKED_AT = 1 << 16
"""Indices up to this many are looked at at once (30 µs); more are cheaper to check in the run."""

UNSIGNED = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}
"""The dtype without a sign, by size in bytes."""


class Check(NamedTuple):
    """Positions that a recording computes, by their smallest and largest, and where they must lie."""

    low: Handle
    high: Handle
    first: int | None  # None: negative positions count from the end
    extent: int
    message: str


def of_dimension(dim: int, name: str = "") -> str:
    """The message for positions along a dimension."""
    return f"{name + ': ' if name else ''}index {{index}} is out of range for dimension {dim} of extent {{extent}}"


def expect(index: Any, extent: int, message: str, negative: bool = False) -> None:
    """Positions must be at least 0 (or -`extent`, where `negative` ones count from the end) and less than `extent`.

    message : of the IndexError that is raised otherwise, here or by the run; a format of ``index`` and ``extent``
    """
    if index.dtype.kind not in "iu":
        return  # what they are used for refuses them
    first = None if negative else 0
    if index._buffer is not None and (index._buffer.array.size <= MAX_LOOKED_AT or STATE.capture is not None):
        array = index._buffer.array
        if array.size:
            error = _complaint(int(array.min()), int(array.max()), first, int(extent), message)
            if error is not None:
                raise error
        if STATE.capture is None:
            return  # in a captured step these are the values of this call only
    if 0 in index.shape or (STATE.capture is None and _known(index, first, int(extent))):
        return
    if not index.shape:
        low = high = record(OPS["identity"], (index,), ())
    else:
        everything = tuple(range(index.ndim)), False
        high = record(OPS["max"], (index,), everything)
        low = high if index.dtype.kind == "u" else record(OPS["min"], (index,), everything)
    STATE.recording.checks.append(Check(low, high, first, extent, message))


def expect_classes(name: str, target: Any, classes: int, ignored: int) -> None:
    """Class numbers that are there must be from 0 to `classes` - 1, or `ignored`.  Others that are computed make the loss NaN."""
    if target._buffer is None or target.dtype.kind not in "iu" or not target._buffer.array.size:
        return
    array = target._buffer.array
    # One pass for both ends: a negative number is one of the larger half without its sign.
    if np.maximum.reduce(array.view(UNSIGNED[array.itemsize]), axis=None) < min(classes, 1 << 8 * array.itemsize - 1):
        return
    wrong = array[((array < 0) | (array >= classes)) & (array != ignored)]
    if wrong.size:
        raise IndexError(
            f"{name}: class {wrong[0]} is out of range: the input has {classes} classes, numbered from 0"
            f" (and {ignored} is ignored)"
        )


def complaint(rec: Recording) -> IndexError | None:
    """What a run of this recording found out of range."""
    for c in rec.checks:
        low, high = c.low._buffer, c.high._buffer
        if low is None or high is None:
            continue
        error = out_of_range(c, low, high, rec.bindings, c.high._node.site)
        if error is not None:
            return error
    return None


def out_of_range(
    check: Check, low: Buffer, high: Buffer, bindings: Sequence[int], site: tuple[str, int] | None
) -> IndexError | None:
    """The error for the smallest and largest position that a run found, if there is one."""
    extent = evaluate(check.extent.expr, bindings) if type(check.extent) is Dim else check.extent
    error = _complaint(int(low.array[()]), int(high.array[()]), check.first, extent, check.message)
    if error is None:
        return None
    where = f", recorded at {site[0]}:{site[1]}" if site else ""
    error = IndexError(
        f"{error}{where}; this is known when the run is complete: results computed from it are wrong, and parameters and other "
        "tensors that the run wrote to have their new values"
    )
    error.results = ()  # type: ignore[attr-defined]  # the run is complete, as after an interrupt
    return error


def _complaint(low: int, high: int, first: int | None, extent: int, message: str) -> IndexError | None:
    if low >= (-extent if first is None else first) and high < extent:
        return None
    return IndexError(message.format(index=high if high >= extent else low, extent=extent))


_MOVED = frozenset(("reshape", "expand", "permute", "slice", "identity"))
_PLACES = frozenset(("argmax", "argmin", "argsort"))


def _known(index: Any, first: int | None, extent: int) -> bool:
    """Whether how the positions are made says that they are in range."""
    rec = STATE.recording
    if index._rec is not rec:
        return False
    node: Node = index._node
    while node.op.name in _MOVED:
        node = node.inputs[0]
    name, attrs = node.op.name, dict(zip(node.op.attrs, node.attrs))
    if name == "arange":
        low, high = attrs["start"], attrs["stop"] if type(attrs["step"]) is int and attrs["step"] > 0 else None
    elif name == "full":
        low, high = attrs["value"], attrs["value"] + 1 if isinstance(attrs["value"], int) else None
    elif name == "randint":
        low, high = attrs["low"], attrs["high"]
    elif name in _PLACES and node.inputs[0].shape:
        axes = (attrs["axis"],) if "axis" in attrs else attrs["axes"]
        shape = rec.shape_of(node.inputs[0])
        if len(axes) != 1:
            return False
        low, high = 0, shape[axes[0]]
    else:
        return False
    low, high = (evaluate(v.expr, rec.bindings) if type(v) is Dim else v for v in (low, high))
    return type(low) is int and type(high) is int and low >= (-extent if first is None else first) and high <= extent
