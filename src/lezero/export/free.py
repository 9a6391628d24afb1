"""Whether named extents are free: what is recorded at other extents has to be the same program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from lezero.export.errors import ExportError
from lezero.export.trace import Asked, Traced, trace
from lezero.graph.dim import exact, holds, symbols
from lezero.graph.node import Node
from lezero.tensor import Tensor

Written = tuple[Any, Mapping[str, np.ndarray]]
ADVICE = (
    "the program loops over this extent, decides by it, or takes it for a plain number, and a file has one program for all "
    "extents. Leave the dimension out of dynamic_shapes, so that it keeps the example's extent, or use operations on whole "
    "tensors (nn.LSTM, nn.GRU and nn.RNN take any length, a cell that is called in a loop does not)"
)


def check_free(
    function: Any, args: Sequence[Tensor], names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]],
    dims: Mapping[str, Any], traced: Traced, written: Callable[[Traced], Written],
) -> None:  # fmt: skip
    """Record the function again at other extents of each dimension, and refuse it where something else is recorded or written.

    written : the ONNX graph of a recording, and its constants by name
    """
    file = written(traced) if traced.symbols else None
    for number, called in traced.symbols.items():
        refusal: tuple[int, Exception] | None = None
        accepted = False
        for n, why in _others(called, number, dims[called], traced):
            try:
                other = trace(function, args, names, dynamic, {**traced.sizes, called: n})
            except Exception as failed:  # whatever the program says of an extent that it does not take
                if why is None:
                    refusal = refusal or (n, failed)
                continue
            accepted |= why is None
            _compare(called, traced, other, n, why)
            if why is None and file is not None:
                _compare_files(called, file, written(other), n)
        if refusal is not None and not accepted:
            n, error = refusal
            said = str(error) if isinstance(error, ExportError) else f"at {n}: {type(error).__name__}: {error}"
            raise ExportError(f"dimension {called!r} is not free: {said}") from error


def _others(called: str, number: int, d: Any, traced: Traced) -> Iterator[tuple[int, Asked | None]]:
    """Extents to record at, with the question of the program that has another answer there, if it is for that."""
    n = traced.sizes[called]
    taken = {size for other, size in traced.sizes.items() if other != called} | {n} | traced.extents_of_constants()

    def allowed(k: int) -> bool:
        return max(d.min, 2) <= k and (d.max is None or k <= d.max) and k not in taken

    last = 2 * n + 1 if d.max is None else min(d.max, 2 * n + 1)
    # Larger ones where there are any: a slice that reaches up to a constant is another program below that, and right there.
    larger = list(filter(allowed, dict.fromkeys((n + 1, n + 2, 2 * n, last))))
    for k in larger or filter(allowed, [n - 1]):
        yield k, None
    for asked in traced.asked:
        _, left, right, _ = asked.guard
        if number in symbols(left) | symbols(right):
            near = {abs(c) + k for side in (left, right) for _, c in side for k in (-1, 0, 1)}
            flips = (k for k in (*range(2, 33), *sorted(near)) if allowed(k))
            for k in flips:
                if not holds(asked.guard, [k if s == number else size for s, size in enumerate(traced.bindings)]):
                    yield k, asked
                    break


def _compare(called: str, traced: Traced, other: Traced, n: int, why: Asked | None) -> None:
    ours, theirs = _keys(traced), _keys(other)
    for k, (a, b) in enumerate(zip_longest(ours, theirs)):
        if a != b:
            first, second = _operation(traced, k), _operation(other, k)
            sites = [why.site] if why is not None else [x.site for x in (first, second) if x is not None and x.site]
            line = f" ({sites[0][0]}, line {sites[0][1]})" if sites else ""
            raise ExportError(
                f"dimension {called!r} is not free: where it is {traced.sizes[called]}, {_shown(first)} is recorded, and where "
                f"it is {n}, {_shown(second)}{line}: {ADVICE}"
            )


def _compare_files(called: str, file: Written, other: Written, n: int) -> None:
    """An operation may be written with an extent as a number, though it is recorded as a symbol."""
    (ours, constants), (theirs, others) = file, other
    for field in ("node", "input", "output"):
        for a, b in zip_longest(getattr(ours, field), getattr(theirs, field)):
            if a != b:
                raise ExportError(f"dimension {called!r} is not free: {(a or b).name} is written otherwise at {n}")
    for name, value in constants.items():
        if _Constant(value) != _Constant(others[name]):
            users = [x.op_type for x in ours.node if name in x.input]
            raise ExportError(
                f"dimension {called!r} is not free: {' and '.join(users)} is written with another constant at {n}"
            )


def _keys(t: Traced) -> list[tuple]:
    """What each node is, in order, up to the values of symbols; the outputs at the end."""
    nodes = t.graph.nodes()
    place = {node: k for k, node in enumerate(nodes)}
    keys: list[tuple] = []
    for node in nodes:
        operands = tuple(place[x] for x in node.inputs)
        leaf: Any = None
        if node.op.is_leaf:
            leaf = t.inputs.index(node) if node in t.inputs else _Constant(t.constants[node][1])
        keys.append((node.op.name, exact(node.attrs), exact(node.shape), node.dtype, operands, leaf))
    return [*keys, tuple(place[x] for x in t.graph.outputs)]


class _Constant:
    """A constant's value; equal to one of the same elements."""

    def __init__(self, value: np.ndarray):
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return False
        a, b = self.value, other.value
        return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())

    __hash__ = None  # type: ignore[assignment]


def _operation(t: Traced, k: int) -> Node | None:
    """The first operation from place `k` on."""
    return next((x for x in t.graph.nodes()[k:] if not x.op.is_leaf), None)


def _shown(node: Node | None) -> str:
    if node is None:
        return "no further operation"
    attrs = ", ".join(f"{k}={v!r}" for k, v in node.named_attrs().items())
    dims = ", ".join(str(int(d)) for d in node.shape)
    return f"{node.op.name}({attrs}) of {node.dtype.name}[{dims}]"
