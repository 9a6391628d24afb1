"""Branches, loops, sequences and optional values.

Conditions and numbers of iterations are read as they come up, which runs what has been recorded, unless they are host values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.program import Body, OnnxError
from lezero.onnx.registry import Context, dimension, integers, on_device, on_host, operator


def truth(value: Any) -> bool:
    array = np.asarray(on_host(value))
    if array.size != 1:
        raise OnnxError(f"a condition is one truth, not values of shape {list(array.shape)}")
    return bool(array.reshape(-1)[0])


@operator("If", host=True)
def if_(ctx: Context, condition: Any, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    return tuple(ctx.run(then_branch if truth(condition) else else_branch, ()))


@operator("Loop", host=True)
def loop(ctx: Context, trips: Any, condition: Any, *carried: Any, body: Body) -> tuple[Any, ...]:
    most = None if trips is None else integers(trips)[0]
    go_on = condition is None or truth(condition)
    state = list(carried)
    collected: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    k = 0
    while go_on and (most is None or k < most):
        condition, *results = ctx.run(body, (np.array(k), np.array(True), *state))
        state = results[: len(state)]
        for values, value in zip(collected, results[len(state) :]):
            values.append(value)
        go_on, k = condition is None or truth(condition), k + 1
    return (*state, *(_stacked(c, body, k) for k, c in enumerate(collected, 1 + len(state))))


def _stacked(values: list[Any], body: Body, k: int, axis: int = 0) -> Any:
    if values:
        return lz.stack([on_device(v) for v in values], axis)
    declared = body.outputs[k]
    extents = [d if isinstance(d, int) else 0 for d in declared.shape or ()]
    return on_device(np.zeros((0, *extents), declared.dtype or np.float32))


@operator("Scan", 8, host=True)
def scan_8(
    ctx: Context, lengths: Any, *operands: Any, body: Body, num_scan_inputs: int, directions: list[int] | None = None
) -> tuple[Any, ...]:
    """Version 8 has a batch before the scanned axis."""
    if lengths is not None:
        raise OnnxError("sequences of different lengths are not supported")
    batches = [
        _scan(ctx, body, num_scan_inputs, [on_device(x)[b] for x in operands], directions, None, None, None)
        for b in range(int(operands[0].shape[0]))
    ]
    return tuple(lz.stack(list(results), 0) for results in zip(*batches))


@operator("Scan", 9, host=True)
def scan(
    ctx: Context, *operands: Any, body: Body, num_scan_inputs: int, scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None, scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    xs = [on_device(x) for x in operands]
    return _scan(
        ctx, body, num_scan_inputs, xs, scan_input_directions, scan_input_axes, scan_output_directions, scan_output_axes
    )


def _scan(
    ctx: Context, body: Body, count: int, operands: list[Any], directions: list[int] | None, axes: list[int] | None,
    out_directions: list[int] | None, out_axes: list[int] | None,
) -> tuple[Any, ...]:  # fmt: skip
    if not 0 < count <= len(operands):
        raise OnnxError(f"{count} operands are to be scanned, and there are {len(operands)}")
    state, scanned = operands[: len(operands) - count], operands[len(operands) - count :]
    axes, directions = axes or [0] * count, directions or [0] * count
    steps = int(scanned[0].shape[axes[0]])
    outputs: list[list[Any]] = [[] for _ in range(len(body.outputs) - len(state))]
    for k in range(steps):
        now = [x.select(dimension(a, x.ndim), steps - 1 - k if d else k) for x, a, d in zip(scanned, axes, directions)]
        results = ctx.run(body, (*state, *now))
        state = results[: len(state)]
        for values, value in zip(outputs, results[len(state) :]):
            values.append(value)
    out_axes, out_directions = out_axes or [0] * len(outputs), out_directions or [0] * len(outputs)
    stacked = [
        _stacked(v[::-1] if d else v, body, k, a)
        for k, (v, a, d) in enumerate(zip(outputs, out_axes, out_directions), len(state))
    ]
    return (*state, *stacked)


# -- sequences --------------------------------------------------------------------------------------------------------


@operator("SequenceEmpty", host=True)
def sequence_empty(_: Context, *, dtype: int = 1) -> list[Any]:
    return []


@operator("SequenceConstruct", host=True)
def sequence_construct(_: Context, *values: Any) -> list[Any]:
    return list(values)


@operator("SequenceInsert", host=True)
def sequence_insert(_: Context, sequence: list[Any], value: Any, position: Any = None) -> list[Any]:
    out = list(sequence)
    out.insert(len(out) if position is None else _place(position, len(out) + 1), value)
    return out


@operator("SequenceErase", host=True)
def sequence_erase(_: Context, sequence: list[Any], position: Any = None) -> list[Any]:
    out = list(sequence)
    del out[-1 if position is None else _place(position, len(out))]
    return out


@operator("SequenceAt", host=True)
def sequence_at(_: Context, sequence: list[Any], position: Any) -> Any:
    return sequence[_place(position, len(sequence))]


@operator("SequenceLength", host=True)
def sequence_length(_: Context, sequence: list[Any]) -> np.ndarray:
    return np.array(len(sequence))


def _place(position: Any, length: int) -> int:
    (k,) = integers(position)
    if not -length <= k < length:
        raise OnnxError(f"position {k} in a sequence of {length}")
    return k + length if k < 0 else k


@operator("SequenceMap", host=True)
def sequence_map(ctx: Context, first: list[Any], *others: Any, body: Body) -> tuple[Any, ...]:
    rows = [ctx.run(body, (v, *(o[k] if isinstance(o, list) else o for o in others))) for k, v in enumerate(first)]
    return tuple([r[k] for r in rows] for k in range(len(body.outputs)))


@operator("ConcatFromSequence", host=True)
def concat_from_sequence(_: Context, sequence: list[Any], *, axis: int, new_axis: int = 0) -> Any:
    values = [on_device(v) for v in sequence]
    return lz.stack(values, axis) if new_axis else lz.cat(values, axis)


@operator("SplitToSequence", host=True)
def split_to_sequence(_: Context, x: Any, split: Any = None, *, axis: int = 0, keepdims: int = 1) -> list[Any]:
    from lezero.onnx.operators.shaping import _split_at

    extent = int(x.shape[axis])
    if split is None:
        parts = _split_at(x, axis, [1] * extent)
        return list(parts) if keepdims else [_squeeze_axis(p, axis) for p in parts]
    sizes = integers(split)
    if np.ndim(on_host(split)) == 0:
        (size,) = sizes
        sizes = [min(size, extent - at) for at in range(0, extent, size)]
    return list(_split_at(x, axis, sizes))


def _squeeze_axis(x: Any, axis: int) -> Any:
    return x.squeeze(axis)


# -- optional values --------------------------------------------------------------------------------------------------


@operator("Optional", host=True)
def optional(_: Context, value: Any = None, *, type: Any = None) -> Any:
    return value


@operator("OptionalHasElement", host=True)
def optional_has_element(_: Context, value: Any = None) -> np.ndarray:
    return np.array(value is not None)


@operator("OptionalGetElement", host=True)
def optional_get_element(_: Context, value: Any) -> Any:
    if value is None:
        raise OnnxError("an optional value that is not there")
    return value
