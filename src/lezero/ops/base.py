"""What an operation is.

An operation is one class with all its rules side by side, registered by :func:`op`::

    @op("gelu", onnx="Gelu")
    class Gelu(Elementwise):
        attrs = {"approximate": "none"}
        keeps = ("x",)
        def infer(x, approximate): ...           # -> (shape, dtype); x has .shape, .dtype, .weak
        def reference(x, approximate): ...       # NumPy arrays in, a NumPy array out
        def gradient(dy, y, x, approximate): ... # operands in, one operand (or None) for each input out
        def decompose(x, approximate): ...       # operands in, an operand out: the same in simpler operations
        def element(x): ...                      # (primitives) loop-IR values in, a loop-IR value out

The functions are called without ``self``; attributes arrive by name.  ``gradient`` and ``decompose`` are written with
*operands*: things that have Python's operators and ``.shape``/``.dtype`` and know what it means to apply an operation to
them.  A user's Tensor is one (applying records), and so is :class:`~lezero.ops.expr.Expr`, with which passes build graphs.
The same rule therefore serves recording and restructuring, and gradients of gradients come by themselves.

Kinds of operation (what the scheduler does with them):

=========== ======================================================================================================
Elementwise one value per element; n-ary ones broadcast and promote (done by the decomposition pass, so that ``element``
            and the schedule only see equal shapes and dtypes)
View        moves elements without computing (reshape, permute, expand, slice, pad, …): an index map, free when fused
Reduce      over axes, with a kind of ``loops.ir.REDUCTIONS``
Contraction matrix products and convolutions
Composite   has ``decompose``; never reaches the scheduler
Opaque      a kernel of its own (sort, cumulative sum, scatter)
Source      no inputs (full, arange, random bits)
=========== ======================================================================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from operator import index
from typing import Any

from lezero.graph.dtype import DType, floating, result_type
from lezero.graph.node import Node

REGISTRY: dict[str, Op] = {}


class Op:
    """A registered operation; see the module.  Called with operands, it applies itself to them."""

    kind = "composite"
    attrs: dict[str, Any] = {}
    keeps: tuple[str, ...] = ()  # names of inputs, or "y" for the result, that the gradient reads
    shape_attrs = False  # attributes hold extents, so matching a trace evaluates them
    is_leaf = False
    updates = False  # a parameter: what it comes apart into is fused with its like only
    differentiable = True
    begins = False  # a leaf for the gradient walk, whatever it was computed from
    traceable = (
        True  # `gradient` is a function of structure alone: asked once, and its answer recorded again from then on
    )
    decompose: Callable | None = None
    gradient: Callable | None = None
    element: Callable | None = None

    # What one kind of operation has; named here because a node only knows that it has an operation.
    index: Callable | None
    domain: str
    reduction: str

    name: str
    onnx: str | None
    variadic: bool

    def __init__(self, name: str, onnx: str | None):
        self.name, self.onnx = name, onnx
        self.defaults = tuple(self.attrs.values())
        code = inspect.signature(self.infer)
        self.inputs = tuple(
            name for name, p in code.parameters.items() if name not in self.attrs and p.kind is not p.VAR_KEYWORD
        )
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in code.parameters.values())

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def infer_nodes(self, nodes: tuple[Node, ...], attrs: tuple) -> tuple[tuple[int, ...], DType]:
        return self.infer(*nodes, **dict(zip(self.attrs, attrs)))

    def bind(self, attrs: dict[str, Any]) -> tuple:
        """Keyword attributes as the tuple nodes carry, defaults filled in."""
        if not attrs:
            return self.defaults
        if not attrs.keys() <= self.attrs.keys():
            unknown = attrs.keys() - self.attrs.keys()
            raise TypeError(f"{self.name}: unknown attribute {', '.join(sorted(unknown))}")
        return tuple([attrs.get(k, d) for k, d in self.attrs.items()])

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        """Apply to operands (Tensors record, Exprs build a graph); sources need ``like=`` an operand to know which."""
        like = attrs.pop("like", None) if attrs else None
        for o in operands if like is None else (like,):
            apply = getattr(o, "_apply", None)
            if apply is not None:
                return apply(self, operands, self.bind(attrs) if attrs else self.defaults)
        raise TypeError(f"{self.name}: no tensor among the arguments {operands!r}")

    @staticmethod
    def infer(*args: Any, **attrs: Any) -> tuple[tuple[int, ...], DType]:
        raise NotImplementedError

    @staticmethod
    def reference(*args: Any, **attrs: Any) -> Any:
        raise NotImplementedError


def op(name: str, onnx: str | None = None) -> Callable[[type[Op]], Op]:
    """Register a class of rules as the operation `name`, and return the operation."""

    def register(cls: type[Op]) -> Op:
        for key, rule in list(vars(cls).items()):
            if inspect.isfunction(rule) and not key.startswith("__"):
                setattr(cls, key, staticmethod(rule))
        if name in REGISTRY:
            raise ValueError(f"operation {name!r} is registered twice")
        instance = cls(name, onnx)
        REGISTRY[name] = instance
        return instance

    return register


# -- inference helpers ----------------------------------------------------------------------------------------


def broadcast_shapes(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcasting; the error names the operation and the shapes."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[int] = []
    for axis in range(-rank, 0):
        extent: int = 1
        for s in shapes:
            if -axis <= len(s):
                d = s[axis]
                if d == 1:
                    continue
                if extent == 1:
                    extent = d
                elif extent != d:
                    listed = " and ".join(str(tuple(int(x) for x in s)) for s in shapes)
                    raise ValueError(
                        f"{name}: shapes {listed} do not broadcast: at dimension {axis} the extents are "
                        f"{int(extent)} and {int(d)}, and neither is 1"
                    )
                elif type(d) is int:
                    extent = d  # equal for every input from here on: the number says more than the symbol
        out.append(extent)
    return tuple(out)


def promoted(*nodes: Any) -> DType:
    """Result dtype of an element-wise operation on nodes (PyTorch's rule, Python scalars weak)."""
    return result_type([(n.dtype, 0 if n.weak else 1 if not n.shape else 2) for n in nodes])


def normalize_axis(name: str, axis: int, ndim: int) -> int:
    if type(axis) is not int:
        axis = _axis_number(name, axis)
    if not -max(ndim, 1) <= axis < max(ndim, 1):
        raise IndexError(f"{name}: dimension {axis} is out of range for a tensor of {ndim} dimensions")
    return axis % ndim if ndim else 0


def _axis_number(name: str, axis: Any) -> int:
    try:
        return index(axis)
    except TypeError:
        raise TypeError(f"{name}: a dimension is an int, got {axis!r}") from None


def several_axes(name: str, axes: Any) -> tuple[int, ...]:
    """One dimension, or several in a row, as a tuple."""
    return tuple(axes) if isinstance(axes, Iterable) else (_axis_number(name, axes),)


def normalize_axes(name: str, axes: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Sorted, non-negative, distinct axes; None means all."""
    if axes is None:
        return tuple(range(ndim))
    if isinstance(axes, int):
        axes = (axes,)
    normal = tuple(sorted(normalize_axis(name, a, ndim) for a in axes))
    if len(set(normal)) != len(normal):
        raise ValueError(f"{name}: dimension given twice in {tuple(axes)}")
    return normal if ndim else ()


# -- kinds ----------------------------------------------------------------------------------------------------


class Elementwise(Op):
    """One value per element.  `domain` says what the operands are promoted to before computing:
    ``same`` the common dtype, ``float`` integers become the default floating dtype, ``compare`` common dtype in, bool out,
    ``bool`` everything is tested against zero first."""

    kind = "elementwise"
    domain = "same"

    def compute_dtype(self, nodes: tuple) -> DType:
        dtype = promoted(*nodes)
        return floating(dtype) if self.domain == "float" else dtype

    def __init__(self, name: str, onnx: str | None):
        super().__init__(name, onnx)
        rule = self.element or self.decompose
        if self.infer is Elementwise.infer and rule is not None:
            code = inspect.signature(rule)
            self.inputs = tuple(p for p in code.parameters if p not in self.attrs)

    def infer_nodes(self, nodes: tuple, attrs: tuple) -> tuple[tuple[int, ...], DType]:
        if self.infer is not Elementwise.infer:
            return super().infer_nodes(nodes, attrs)
        shape = nodes[0].shape if len(nodes) == 1 else broadcast_shapes(self.name, *(n.shape for n in nodes))
        from lezero.graph.dtype import bool_

        return shape, bool_ if self.domain in ("compare", "bool") else self.compute_dtype(nodes)

    @staticmethod
    def infer(*nodes: Any, **attrs: Any) -> tuple[tuple[int, ...], DType]:
        raise NotImplementedError


class View(Op):
    """Elements moved, none computed.

    The rule ``index(out, i, *inputs, **attrs)`` says where the element at output position `i` comes from.  `out` is the output's
    shape, `i` a tuple of index objects (they have + - * // % with each other and with extents, comparisons, and & | ~ on the
    comparisons' results; NumPy integer arrays serve too, which is how tests check a rule), and each input has ``.shape``,
    ``.dtype`` and, for inputs of indices, ``input.read(*position)`` giving the integer stored there as an index object.
    It returns a list of pieces ``(k, position, mask)``: the value is that of input k at `position` where `mask` holds (None:
    everywhere); masks of different pieces exclude each other; where none holds, the value is the attribute ``fill`` or 0.
    """

    kind = "view"
    index: Callable | None = None


class Reduce(Op):
    """Over ``axes`` (a sorted tuple), with ``keepdim``; `reduction` is a kind of ``loops.ir.REDUCTIONS``."""

    kind = "reduce"
    reduction = "sum"
    attrs = {"axes": (), "keepdim": False}


class Contraction(Op):
    kind = "contraction"


class Composite(Op):
    kind = "composite"


class Opaque(Op):
    kind = "opaque"


class Source(Op):
    kind = "source"


class _Leaf(Op):
    """A value from outside the recording: ``attrs`` = (kind,), "tensor" or "scalar"."""

    kind = "leaf"
    is_leaf = True
    attrs = {"kind": "tensor"}

    def infer_nodes(self, nodes: tuple, attrs: tuple):
        raise TypeError("a leaf is not inferred")


LEAF = _Leaf("leaf", None)


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)
