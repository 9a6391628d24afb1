"""A model's computation as a graph, with chosen extents as symbols."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lezero.export import resize
from lezero.export.errors import ExportError
from lezero.export.recurrent import Recorder
from lezero.export.state import unchanged
from lezero.graph.dim import Dim as Extent
from lezero.graph.dim import Guard, noting_guards
from lezero.graph.node import Graph, Node
from lezero.runtime.aside import ExplainError, recorded_only
from lezero.runtime.leaves import import_handle
from lezero.runtime.sites import PACKAGE, user_site
from lezero.runtime.whole import WHOLE
from lezero.switched import switched
from lezero.tensor import Tensor, no_grad, tensor


class Asked(NamedTuple):
    """A comparison of extents that the user's program made, and its line."""

    guard: Guard
    site: tuple[str, int]


class _Asked(list[Asked]):
    """Collects the guards of the user's own comparisons; those of inference bind what is written anyway."""

    def append(self, guard: Any) -> None:
        frame = sys._getframe(3)  # beyond Dim's operator and what it calls
        if not frame.f_code.co_filename.startswith(PACKAGE):
            super().append(Asked(guard, (frame.f_code.co_filename, frame.f_lineno)))

    def extend(self, guards: Any) -> None:
        pass

    def ask(self, guard: Guard) -> None:
        """A question that is the program's, though a function of ours asks."""
        super().append(Asked(guard, user_site() or ("", 0)))


@dataclass
class Traced:
    """What was recorded.

    graph : coarse operations; extents of named dimensions are symbols
    inputs : leaves that stand for the arguments, in order
    symbols : number of a symbol -> its name
    constants : leaf -> (name, value)
    single : whether the function gave one tensor, or several
    sizes : the extents it was recorded at, by name
    asked : what the program asked about extents
    bindings : extents of all symbols, those of tensors from outside among them
    """

    graph: Graph
    inputs: list[Node]
    symbols: dict[int, str]
    constants: dict[Node, tuple[str, np.ndarray]]
    single: bool
    sizes: dict[str, int]
    asked: list[Asked]
    bindings: list[int]

    def extents_of_constants(self) -> set[int]:
        """Those that the recording has as symbols."""
        found = ((node, array) for node, (_, array) in self.constants.items())
        return {n for node, array in found for n, d in zip(array.shape, node.shape) if type(d) is Extent}


def trace(
    function: Any, args: Sequence[Tensor], names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]],
    sizes: dict[str, int] | None = None,
) -> Traced:  # fmt: skip
    """Record ``function(*args)`` without running it.

    dynamic : by input, the names of axes whose extents are to be symbols; equal names are equal extents
    sizes : extents to record at, by name; those of `args` if they will do
    """
    if sizes is not None:
        return _traced(function, args, names, dynamic, sizes)
    traced = _traced(function, args, names, dynamic, _sizes(args, names, dynamic))
    met = traced.extents_of_constants()
    if not met & set(traced.sizes.values()):
        return traced
    # An extent that a constant happens to have, too, would be taken for the same one.
    try:
        return _traced(function, args, names, dynamic, _sizes(args, names, dynamic, met))
    except Exception:  # the program takes no others
        return traced


def _traced(
    function: Any, args: Sequence[Tensor], names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]], sizes: dict[str, int]
) -> Traced:  # fmt: skip
    asked = _Asked()
    examples = [_resized(t, dynamic.get(n, {}), sizes) for t, n in zip(args, names)]
    with (
        unchanged(function),
        no_grad(),
        recorded_only(getattr(function, "__name__", type(function).__name__)) as (rec, _),
    ):
        for example, name in zip(examples, names):
            example._dynamic = tuple(sorted(dynamic.get(name, {})))
            # Its value is not there to be read: the file would have what follows from it for ever.
            example._node, example._rec, example._buffer = import_handle(rec, example), rec, None
        inputs = [t._node for t in examples]
        known = _names(function)
        whole = {"layers": Recorder(inputs, known), "interpolate": resize.recorder(asked.ask)}
        with noting_guards(asked), switched(WHOLE, "parts", whole):
            result = _called(function, examples, sizes, args, names, dynamic)
        results = list(_tensors(result))
        if not results:
            raise ExportError(f"{type(function).__name__} gave no tensor")
        given = {id(t): node for t, node in zip(examples, inputs)}
        nodes = tuple(given.get(id(r)) or (r._node if r._rec is rec else import_handle(rec, r)) for r in results)
        constants: dict[Node, tuple[str, np.ndarray]] = {}
        for node, handle, buffer in zip(rec.leaf_nodes, rec.leaf_handles, rec.buffers):
            if node not in inputs:
                constants[node] = known.get(id(handle), ""), np.asarray(buffer.array)
        symbols = {k: name for name, n in sizes.items() for k in [_position(inputs, names, dynamic, name)]}
        recorded = Graph(tuple(rec.leaf_nodes), nodes)
        graph = recorded.at(rec.bindings)
        now = dict(zip(recorded.leaves, graph.leaves))
        inputs, constants = [now[n] for n in inputs], {now[n]: c for n, c in constants.items()}
    return Traced(graph, inputs, symbols, constants, isinstance(result, Tensor), sizes, asked, list(rec.bindings))


def _called(
    function: Any, examples: list[Tensor], sizes: Mapping[str, int], args: Sequence[Tensor], names: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
) -> Any:  # fmt: skip
    """The function's result; what stops it is told as what it means for an export."""
    try:
        return function(*examples)
    except ExplainError as error:
        raise ExportError(f"a file has one way to go, and a value is read while it is recorded: {error}") from None
    except ExportError:
        raise
    except ValueError as error:
        given = {c: int(t.shape[a]) for t, n in zip(args, names) for a, c in dynamic.get(n, {}).items()}
        if given == dict(sizes):
            raise
        raise ExportError(
            f"at {dict(sizes)}, where the example has {given}, the model refuses its input: {error}"
        ) from error


def _position(inputs: list[Node], names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]], wanted: str) -> int:
    """Which symbol of the recording a named extent is."""
    for node, name in zip(inputs, names):
        for axis, called in dynamic.get(name, {}).items():
            if called == wanted:
                d = node.shape[axis]
                assert isinstance(d, Extent)
                return d.expr[0][0][0][1]
    raise AssertionError(wanted)


def _sizes(
    args: Sequence[Tensor], names: Sequence[str], dynamic: Mapping[str, Mapping[int, str]], avoid: set[int] | None = None
) -> dict[str, int]:  # fmt: skip
    """An extent for each name, of at least 2 and all different, so that each is a symbol of its own."""
    wanted: dict[str, int] = {}
    for t, name in zip(args, names):
        for axis, called in dynamic.get(name, {}).items():
            n = int(t.shape[axis])
            if wanted.setdefault(called, n) != n:
                raise ExportError(f"{called!r} is {wanted[called]} and {n} in the examples: one name is one extent")
    fixed = {int(d) for t in args for d in t.shape}
    taken = set(avoid or ())
    for called, n in wanted.items():
        n = max(n, 2)
        while n in taken or (n != wanted[called] and n in fixed):
            n += 1
        wanted[called] = n
        taken.add(n)
    return wanted


def _resized(t: Tensor, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Tensor:
    """A tensor of its own like `t`, with other extents: elements are repeated, so that indices stay in range."""
    array = t.detach().numpy()
    for axis, called in axes.items():
        array = np.take(array, np.arange(sizes[called]) % array.shape[axis], axis)
    return tensor(array)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)
    elif value is not None and hasattr(value, "__dict__"):
        yield from _tensors(vars(value))


def _names(function: Any) -> dict[int, str]:
    """Names of a module's parameters and buffers, by identity."""
    if not callable(getattr(function, "named_parameters", None)):
        return {}
    pairs = [*function.named_parameters(), *function.named_buffers()]
    return {id(t): name for name, t in pairs}
