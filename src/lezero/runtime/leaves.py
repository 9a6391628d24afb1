"""Leaves: how values from outside, tensors and numbers, come into a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lezero.graph.dim import Dim
from lezero.graph.dtype import DType, as_dtype, number_dtype
from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.ops.base import LEAF
from lezero.runtime.inference import Inferred, constant_of, leaf_of, scalar_of
from lezero.runtime.recording import STATE, Handle, Recording
from lezero.runtime.trie import advance, extend


def import_handle(rec: Recording, t: Handle) -> Node:
    """The node of a handle that is not (or no longer) part of this recording: a leaf, or a view derived again."""
    buffer = value_elsewhere(rec, t)
    if buffer is None:
        if t._base is not None and t._view is not None:
            from lezero.runtime.writes import derive_again

            return derive_again(t)
        raise RuntimeError("a tensor without a value: it was made by a run that failed")
    tracks = t._requires_grad or t._history is not None
    if t._dynamic:
        node = _match_leaf(rec, buffer.array.shape, as_dtype(buffer.array.dtype), buffer.device, tracks, t._dynamic)
        rec.bytes += buffer.nbytes
    else:
        node = advance(rec, _leaf_record(t, buffer), (), True, tracks, None)
    if tracks:
        rec.variables[node] = t
    try:
        rec.leaf_handles.append(t)
        rec.leaf_nodes.append(node)
        rec.buffers.append(buffer)
    except BaseException:
        _keep_step(rec)
        raise
    rec.imported[id(t)] = node  # last: until then it is not there
    return node


def value_elsewhere(rec: Recording | None, t: Handle) -> Buffer | None:
    """The value of a handle that is not pending in `rec`; what it waits for is run.  None if it has none.

    Another thread may write to it meanwhile: then it is the value of before or of after.
    """
    while True:
        buffer, waits, node = t._buffer, t._rec, t._node
        if buffer is not None:
            return buffer
        if waits is not None and waits is not rec:
            from lezero.runtime.run import run_recording

            run_recording(waits, t)  # another thread recorded it, or it could not be computed before
        if t._buffer is None and t._rec is waits and t._node is node:
            return None


def _leaf_record(t: Handle, buffer: Buffer) -> Inferred:
    """What a leaf for `t` would be; quicker where its last value was of the same shape and dtype, as a parameter's is."""
    array = buffer.array
    last = t._node
    if last is not None:
        spec = last.found.spec
        leaf = spec.leaf
        if leaf is not None and array.dtype is spec.dtype.numpy and array.shape == spec.shape and not spec.symbolic:
            if buffer.device == spec.device:
                return leaf
    return leaf_of(array.shape, as_dtype(array.dtype), buffer.device)


def _match_leaf(rec: Recording, shape: tuple, dtype: DType, device: str, tracks: bool, dynamic: tuple) -> Node:
    tail = rec.tail
    node = tail.next
    if node is None or not _is_leaf_like(rec, node, shape, dtype, device, tracks, dynamic):
        for node in tail.branches or ():
            if _is_leaf_like(rec, node, shape, dtype, device, tracks, dynamic):
                tail.next = node
                break
        else:
            symbolic = tuple(rec.symbol(n) if i in dynamic else n for i, n in enumerate(shape))
            node = extend(tail, leaf_of(symbolic, dtype, device), (), True, tracks, None)
            node.static = not node.found.spec.symbolic
    rec.tail = node
    return node


def _is_leaf_like(
    rec: Recording, node: Node, shape: tuple, dtype: DType, device: str, tracks: bool, dynamic: tuple
) -> bool:
    if node.op is not LEAF or node.attrs != ("tensor",) or node.dtype is not dtype:
        return False
    if node.tracks is not tracks or node.device != device or len(node.shape) != len(shape):
        return False
    if node.static:
        return node.shape == shape and not any(shape[i] > 1 for i in dynamic)
    bindings = rec.bindings
    before = len(bindings)
    for axis, (d, n) in enumerate(zip(node.shape, shape)):
        if type(d) is Dim:
            k = d.expr[0][0][0][1]
            if axis in dynamic and n > 1:
                if k < len(bindings):
                    if bindings[k] == n:
                        continue
                # A captured call must come to the path it came to before, whatever was recorded in between: there equal
                # extents are one symbol, as they are where a leaf is made.
                elif k == len(bindings) and (STATE.capture is None or n not in bindings):
                    bindings.append(n)
                    continue
        elif d == n and not (axis in dynamic and n > 1):
            continue
        del bindings[before:]
        return False
    return True


def import_scalar(rec: Recording, value: Any) -> Node:
    """A Python number: a run-time input, or a constant inside a gradient rule."""
    value = as_number(value)
    if type(value) is Dim and rec.stale(value):
        value = int(value)
    if type(value) is Dim or STATE.in_rule:
        return constant(rec, value)
    return scalar_leaf(rec, value, None)


_NUMBERS: tuple[type, ...] = (bool, int, float, complex)


def as_number(value: Any) -> Any:
    """A plain Python number or a Dim; TypeError for what is none."""
    kind = type(value)
    if kind is Dim or kind in _NUMBERS:
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim == 0 and value.dtype.kind in "biufc":
            return value.item()
        raise TypeError("a NumPy array among tensors: convert it with lz.tensor(array) or lz.from_numpy(array)")
    for base in _NUMBERS:
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"expected a Tensor or a number, got {kind_of(value)}")


def kind_of(value: Any) -> str:
    """The type of what is no tensor of ours, for an error; those of other libraries with what makes a tensor of them."""
    kind = type(value)
    if not hasattr(kind, "__dlpack__"):
        return kind.__name__
    library = kind.__module__.partition(".")[0]
    return f"{library}.{kind.__name__} (lz.tensor makes a tensor of it)"


def constant(rec: Recording, value: Any) -> Node:
    """A number that is part of the structure: from a gradient rule, or a symbolic extent used as a number."""
    return advance(rec, constant_of(value), (), True, False, None)


def scalar_leaf(
    rec: Recording, value: Any, get: Callable[[], Any] | None, weak: bool = True, dtype: DType | None = None
) -> Node:
    """A leaf for a Python number; `get` reads it again when a captured step is called."""
    dtype = dtype or number_dtype(value)
    try:
        buffer = Buffer(np.array(value, dtype.numpy))
    except OverflowError:
        raise OverflowError(f"{value} does not fit in {dtype.name}") from None
    node = advance(rec, scalar_of(dtype, weak), (), True, False, None)
    try:
        rec.scalars.append((len(rec.buffers), get))
        rec.leaf_handles.append(None)
        rec.leaf_nodes.append(node)
        rec.buffers.append(buffer)
    except BaseException:
        _keep_step(rec)
        raise
    return node


def _keep_step(rec: Recording) -> None:
    """Forget a leaf that an interrupt let only some of a recording's lists hear of."""
    lists: tuple[list, ...] = (rec.leaf_handles, rec.leaf_nodes, rec.buffers)
    known = min(map(len, lists))
    for parallel in lists:
        del parallel[known:]
    rec.scalars[:] = [(k, get) for k, get in rec.scalars if k < known]
