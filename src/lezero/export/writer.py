"""Building an ONNX graph: names, constants, nodes, and extents computed from the inputs' shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lezero.graph.dim import Dim
from lezero.graph.dtype import DType
from lezero.graph.node import Node
from lezero.onnx.program import package

_NAMES = {"float32": "float", "float64": "double"}
"""What ONNX calls dtypes, where it is something else."""


def _positive(atom: tuple) -> bool:
    """Whether an atom of an extent's expression is 0 or more at all extents, as far as signs say it."""
    return atom[0] == "s" or all(
        factor >= 0 and all(map(_positive, atoms)) for poly in atom[1:] for atoms, factor in poly
    )


class Writer:
    """Collects nodes and constants.

    opset : version of the operators
    places : symbol number -> (input name, axis) where it can be seen
    bindings : extents of the symbols, for those that no input has: they are constants
    """

    def __init__(
        self, opset: int, places: dict[int, tuple[str, int]], symbols: dict[int, str], bindings: Sequence[int]
    ):
        self.bindings = bindings
        self.onnx, self.opset, self.places, self.symbols = package(), opset, places, symbols
        self.nodes: list[Any] = []
        self.made: dict[str, Any] = {}  # result -> its node
        self.constants: dict[str, np.ndarray] = {}
        self._taken: set[str] = set()
        self._known: dict[Any, str] = {}

    def fresh(self, stem: str) -> str:
        """A name that nothing else has."""
        name, k = stem, 0
        while name in self._taken:
            k += 1
            name = f"{stem}_{k}"
        self._taken.add(name)
        return name

    def add(self, operator: str, inputs: Sequence[str], outputs: int = 1, stem: str = "", **attributes: Any) -> Any:
        """A node; the name of its result, or a list of them."""
        names = [self.fresh(stem or operator.lower()) for _ in range(outputs)]
        attributes = {k: v for k, v in attributes.items() if v is not None}
        node = self.onnx.helper.make_node(operator, list(inputs), names, name=names[0], **attributes)
        self.nodes.append(node)
        self.made |= dict.fromkeys(names, node)
        return names[0] if outputs == 1 else names

    def once(self, key: Any, write: Callable[[], Any]) -> Any:
        """What `write` gives, which is called at the first asking for `key`."""
        if key not in self._known:
            self._known[key] = write()
        return self._known[key]

    def constant(self, value: Any, dtype: Any = None, name: str = "") -> str:
        """A constant; equal small ones without a name of their own are one."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes()) if not name and array.size <= 64 else None
        if key is not None and key in self._known:
            return self._known[key]
        made = self.fresh(name or "constant")
        self.constants[made] = array
        if key is not None:
            self._known[key] = made
        return made

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array([int(v) for v in values], np.int64).reshape(len(values)))

    def leave_out_unused(self, outputs: Sequence[str]) -> None:
        """Only nodes and constants that `outputs` need stay."""
        needed = set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                needed.update(node.input)
                kept.append(node)
        self.nodes[:] = kept[::-1]
        for name in self.constants.keys() - needed:
            del self.constants[name]

    # -- extents ------------------------------------------------------------------------------------------------

    def extents(self, shape: Sequence[int]) -> str:
        """A one-dimensional int64 value of extents, symbols computed from the inputs' shapes."""
        if not any(type(d) is Dim for d in shape):
            return self.integers(shape)
        parts = [self.extent(d) if type(d) is Dim else self.integers([d]) for d in shape]
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, axis=0, stem="shape")

    def extent(self, d: Dim) -> str:
        """One extent as an int64 value of one element."""
        return self._polynomial(d.expr)

    def _polynomial(self, expr: tuple) -> str:
        key = ("extent", expr)
        if key not in self._known:
            terms = [self._term(atoms, factor) for atoms, factor in expr]
            total = terms[0]
            for t in terms[1:]:
                total = self.add("Add", [total, t], stem="extent")
            self._known[key] = total
        return self._known[key]

    def _term(self, atoms: tuple, factor: int) -> str:
        value = None
        for atom in atoms:
            x = self._atom(atom)
            value = x if value is None else self.add("Mul", [value, x], stem="extent")
        if value is None:
            return self.integers([factor])
        return value if factor == 1 else self.add("Mul", [value, self.integers([factor])], stem="extent")

    def _atom(self, atom: tuple) -> str:
        key = ("atom", atom)
        if key not in self._known:
            if atom[0] == "s" and atom[1] not in self.places:
                self._known[key] = self.integers([self.bindings[atom[1]]])
            elif atom[0] == "s":
                source, axis = self.places[atom[1]]
                whole = self._known.get(("shape", source))
                if whole is None:
                    whole = self._known["shape", source] = self.add("Shape", [source], stem=f"{source}_shape")
                self._known[key] = self.add(
                    "Gather", [whole, self.integers([axis])], axis=0, stem=self.symbols[atom[1]]
                )
            else:
                a, b = (self._polynomial(p) if p else self.integers([0]) for p in atom[1:])
                self._known[key] = self._divided(a, b, _positive(atom)) if atom[0] == "//" else self._rest(a, b)
        return self._known[key]

    def _rest(self, a: str, b: str) -> str:
        return self.add("Mod", [a, b], stem="extent")

    def _divided(self, a: str, b: str, positive: bool) -> str:
        """Rounded down; Div cuts off towards zero."""
        return self.add(
            "Div", [a if positive else self.add("Sub", [a, self._rest(a, b)], stem="extent"), b], stem="extent"
        )

    def takes(self, operator: str, dtype: DType) -> bool:
        """Whether the operator, in this version, is defined for operands of a dtype."""
        schema = self.onnx.defs.get_schema(operator, self.opset)
        return _NAMES.get(dtype.name, dtype.name) in {t[7:-1] for t in schema.inputs[0].types}

    # -- types --------------------------------------------------------------------------------------------------

    def type_of(self, dtype: DType) -> int:
        return self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype.numpy))

    def cast(self, name: str, have: DType, want: DType) -> str:
        return name if have is want else self.add("Cast", [name], to=self.type_of(want))

    def value_info(self, name: str, node: Node, shape: Sequence[int | str | None]) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, self.type_of(node.dtype), list(shape))
