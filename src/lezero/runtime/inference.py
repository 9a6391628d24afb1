"""Shape and dtype inference for recording, looked up where it has been done before.

What inference sees of a node is its :class:`Spec`; what it found out about an operation with certain attributes on inputs of
certain specs is an :class:`Inferred`.  Both are interned, so a question about structure (is this the node that followed last
time? has this gradient rule been traced?) is a comparison of identities.  A network of equal layers asks the same questions
in each of them, and a new trace asks those of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero.graph import dim as dims
from lezero.graph.dim import Dim
from lezero.graph.dtype import DType, number_dtype
from lezero.ops.base import LEAF, REGISTRY, Op

MAX_INFERRED = 50_000
"""Inference records kept: what an operation gave for inputs of certain shapes and dtypes, whoever recorded it."""
MAX_SPECS = 50_000
"""Specs kept; nodes hold on to theirs, so beginning anew only costs time."""


class Spec:
    """Shape, dtype, device and weakness, as one interned object (compared by identity; extents by expression).

    symbolic : whether an extent is a symbol
    leaf : the record of leaf nodes of this spec, once there is one
    """

    __slots__ = ("device", "dtype", "leaf", "shape", "symbolic", "weak")

    def __init__(self, shape: tuple[int, ...], dtype: DType, device: str, weak: bool, symbolic: bool):
        self.shape, self.dtype, self.device, self.weak, self.symbolic = shape, dtype, device, weak, symbolic
        self.leaf: Inferred | None = None


class Inferred:
    """An operation with its attributes, and what it gives for inputs of the specs it was inferred for.

    guards : the comparisons of symbolic extents inference made
    templates : its gradient rule, traced (see runtime.template)
    """

    __slots__ = ("attrs", "differentiable", "guards", "op", "spec", "templates")

    def __init__(self, op: Op, attrs: tuple, spec: Spec, differentiable: bool, guards: tuple):
        self.op, self.attrs, self.spec, self.differentiable, self.guards = op, attrs, spec, differentiable, guards
        self.templates: dict[Any, Any] | None = None

    def same(self, other: Inferred) -> bool:
        """Whether both say the same: records are made anew when the table was full, or guards did not hold in between."""
        return (
            self.op is other.op
            and self.spec is other.spec
            and self.guards == other.guards
            and dims.exact(self.attrs) == dims.exact(other.attrs)
        )


class Seen:
    """An input as inference sees it: symbolic extents have the values they have in the recording."""

    __slots__ = ("device", "dtype", "shape", "weak")

    def __init__(self, spec: Spec, bindings: Sequence[int]):
        self.shape = dims.rehint(spec.shape, bindings) if spec.symbolic else spec.shape
        self.dtype, self.weak, self.device = spec.dtype, spec.weak, spec.device

    @property
    def ndim(self) -> int:
        return len(self.shape)


_specs: dict[tuple, Spec] = {}
_inferred: dict[tuple, Inferred] = {}


def spec_of(shape: tuple[int, ...], dtype: DType, device: str, weak: bool) -> Spec:
    """The one Spec of these."""
    symbolic = False
    for d in shape:
        if type(d) is Dim:
            symbolic = True
            break
    key = (dims.exact(shape) if symbolic else shape, dtype, device, weak)
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) >= MAX_SPECS:
            _specs.clear()
        spec = _specs[key] = Spec(shape, dtype, device, weak, symbolic)
    return spec


def leaf_of(shape: tuple[int, ...], dtype: DType, device: str) -> Inferred:
    """The record of leaves: tensors from outside."""
    spec = spec_of(shape, dtype, device, False)
    if spec.leaf is None:
        spec.leaf = Inferred(LEAF, ("tensor",), spec, False, ())
    return spec.leaf


def scalar_of(dtype: DType, weak: bool) -> Inferred:
    """The record of leaves that are numbers."""
    key = (LEAF, dtype, weak)
    found = _inferred.get(key)
    if found is None:
        found = _keep(key, Inferred(LEAF, ("scalar",), spec_of((), dtype, "cpu", weak), False, ()))
    return found


def constant_of(value: Any) -> Inferred:
    """The record of a number that is part of the structure."""
    attrs = (value,)
    key = (LEAF, dims.exact(attrs))
    found = _inferred.get(key)
    if found is None:
        found = _keep(
            key, Inferred(REGISTRY["constant"], attrs, spec_of((), number_dtype(value), "cpu", True), False, ())
        )
    return found


def infer(bindings: Sequence[int], op: Op, specs: tuple[Spec, ...], attrs: tuple) -> Inferred:
    """What an operation gives for inputs of these specs; shape and dtype errors raise here."""
    key = (op, attrs if attrs is op.defaults else dims.exact(attrs), specs)
    found = _inferred.get(key)
    if found is not None and (not found.guards or all(dims.holds(g, bindings) for g in found.guards)):
        return found
    with dims.noting_guards() as guards:
        seen: Any = tuple([Seen(s, bindings) for s in specs])
        shape, dtype = op.infer_nodes(seen, attrs)
    devices = {s.device for s in specs if s.shape or not s.weak}
    if len(devices) > 1:
        raise ValueError(
            f"{op.name}: operands are on different devices: {', '.join(sorted(devices))}; move them with .to()"
        )
    weak = bool(specs) and op.kind == "elementwise" and all(s.weak for s in specs)
    spec = spec_of(tuple(shape), dtype, next(iter(devices), "cpu"), weak)
    return _keep(key, Inferred(op, attrs, spec, op.differentiable and dtype.differentiable, tuple(guards)))


def _keep(key: tuple, found: Inferred) -> Inferred:
    if len(_inferred) >= MAX_INFERRED:
        _inferred.clear()
    _inferred[key] = found
    return found


def forget() -> None:
    """Infer everything again; what is remembered by specs elsewhere is not found any more."""
    _specs.clear()
    _inferred.clear()
