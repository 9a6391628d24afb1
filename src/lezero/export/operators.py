"""How each operation is written in ONNX's operators.

An emitter takes the writer, the node and the names of its operands, and gives the name of the result.  What has none is taken
apart (``decompose``), so only primitive operations need one; coarse operations have one where ONNX has the same operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lezero.export.writer import Writer
from lezero.graph.dim import Dim, identical
from lezero.graph.dtype import DType, bool_, float32, float64, int64
from lezero.graph.node import Node

Emitter = Callable[[Writer, Node, Sequence[str]], str | None]
EMITTERS: dict[str, Emitter] = {}


def emits(*names: str) -> Callable[[Emitter], Emitter]:
    def register(f: Emitter) -> Emitter:
        for name in names:
            EMITTERS[name] = f
        return f

    return register


def emit(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    """The result's name, None for what has to be taken apart."""
    found = EMITTERS.get(node.op.name)
    return None if found is None else found(w, node, operands)


# -- element by element -----------------------------------------------------------------------------------------------

DIRECT = {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "isnan": "IsNaN", "isinf": "IsInf",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not", "add": "Add", "sub": "Sub", "mul": "Mul",
    "div": "Div", "neg": "Neg", "abs": "Abs", "sign": "Sign", "reciprocal": "Reciprocal", "floor": "Floor", "ceil": "Ceil",
    "round": "Round", "maximum": "Max", "minimum": "Min", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "sigmoid": "Sigmoid", "erf": "Erf", "relu": "Relu", "softsign": "Softsign",
    "hardswish": "HardSwish", "mish": "Mish", "pow": "Pow",
}  # fmt: skip
_SAME_BITS = {
    "bitwise_and": ("And", "BitwiseAnd"),
    "bitwise_or": ("Or", "BitwiseOr"),
    "bitwise_xor": ("Xor", "BitwiseXor"),
}


def _computed(node: Node) -> DType:
    op: Any = node.op
    return bool_ if op.domain == "bool" else op.compute_dtype(node.inputs)


def promoted(w: Writer, node: Node, operands: Sequence[str]) -> list[str]:
    """Operands in the dtype the operation computes in: ONNX does not promote."""
    dtype = _computed(node)
    return [w.cast(name, n.dtype, dtype) for name, n in zip(operands, node.inputs)]


_OF_BOOLS = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}


def _direct(operator: str) -> Emitter:
    def emitter(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
        operator_here = _OF_BOOLS.get(operator, operator) if node.dtype is bool_ else operator
        return w.add(operator_here, promoted(w, node, operands)) if w.takes(operator_here, _computed(node)) else None

    return emitter


for _name, _operator in DIRECT.items():
    EMITTERS[_name] = _direct(_operator)


@emits("ne")
def _ne(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Not", [w.add("Equal", promoted(w, node, operands))])


@emits(*_SAME_BITS)
def _bits(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add(_SAME_BITS[node.op.name][node.dtype is not bool_], promoted(w, node, operands))


@emits("logical_or_bitwise_not")
def _not(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Not" if node.dtype is bool_ else "BitwiseNot", operands)


@emits("where")
def _where(w: Writer, node: Node, operands: Sequence[str]) -> str:
    condition, *rest = (
        w.cast(o, n.dtype, d) for o, n, d in zip(operands, node.inputs, (bool_, node.dtype, node.dtype))
    )
    return w.add("Where", [condition, *rest])


@emits("identity", "variable", "detach")
def _identity(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return operands[0]


@emits("cast")
def _cast(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.cast(operands[0], node.inputs[0].dtype, node.dtype)


@emits("square")
def _square(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Mul", [operands[0], operands[0]])


@emits("rsqrt")
def _rsqrt(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Reciprocal", [w.add("Sqrt", promoted(w, node, operands))])


@emits("remainder")
def _remainder(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a, b = promoted(w, node, operands)
    if not node.dtype.is_floating_point:
        return w.add("Mod", [a, b])
    return w.add("Sub", [a, w.add("Mul", [b, w.add("Floor", [w.add("Div", [a, b])])])])


@emits("fmod")
def _fmod(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Mod", promoted(w, node, operands), fmod=1)


@emits("floor_divide")
def _floor_divide(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a, b = promoted(w, node, operands)
    if node.dtype.is_floating_point:
        return w.add("Floor", [w.add("Div", [a, b])])
    return w.add("Div", [w.add("Sub", [a, w.add("Mod", [a, b])]), b])


@emits("trunc")
def _trunc(w: Writer, node: Node, operands: Sequence[str]) -> str:
    (x,) = operands
    if not node.dtype.is_floating_point:
        return x
    return w.add("Mul", [w.add("Sign", [x]), w.add("Floor", [w.add("Abs", [x])])])


@emits("isfinite")
def _isfinite(w: Writer, node: Node, operands: Sequence[str]) -> str:
    (x,) = operands
    return w.add("Not", [w.add("Or", [w.add("IsNaN", [x]), w.add("IsInf", [x])])])


def _scaled(operator: str, factor: float, inside: bool) -> Emitter:
    def emitter(w: Writer, node: Node, operands: Sequence[str]) -> str:
        (x,) = promoted(w, node, operands)
        number = w.constant(factor, node.dtype.numpy)
        return w.add(operator, [w.add("Mul", [x, number])]) if inside else w.add("Mul", [w.add(operator, [x]), number])

    return emitter


EMITTERS |= {
    "exp2": _scaled("Exp", math.log(2), True),
    "log2": _scaled("Log", 1 / math.log(2), False),
    "log10": _scaled("Log", 1 / math.log(10), False),
}


def _shifted(operator: str, before: float, after: float) -> Emitter:
    def emitter(w: Writer, node: Node, operands: Sequence[str]) -> str:
        (x,) = promoted(w, node, operands)
        if before:
            x = w.add("Add", [x, w.constant(before, node.dtype.numpy)])
        x = w.add(operator, [x])
        return w.add("Add", [x, w.constant(after, node.dtype.numpy)]) if after else x

    return emitter


EMITTERS |= {"expm1": _shifted("Exp", 0, -1), "log1p": _shifted("Log", 1, 0)}


@emits("erfc")
def _erfc(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Sub", [w.constant(1, node.dtype.numpy), w.add("Erf", promoted(w, node, operands))])


@emits("relu6")
def _relu6(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Clip", [operands[0], w.constant(0, node.dtype.numpy), w.constant(6, node.dtype.numpy)])


@emits("hardtanh")
def _hardtanh(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.named_attrs()
    return w.add("Clip", [operands[0], w.constant(a["low"], node.dtype.numpy), w.constant(a["high"], node.dtype.numpy)])


@emits("leaky_relu")
def _leaky_relu(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("LeakyRelu", operands, alpha=float(node.named_attrs()["negative_slope"]))


@emits("elu", "celu")
def _elu(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Elu" if node.op.name == "elu" else "Celu", operands, alpha=float(node.named_attrs()["alpha"]))


@emits("gelu")
def _gelu(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    return w.add("Gelu", operands, approximate=node.named_attrs()["approximate"]) if w.opset >= 20 else None


@emits("silu")
def _silu(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Mul", [operands[0], w.add("Sigmoid", operands)])


# -- values from nowhere ----------------------------------------------------------------------------------------------


@emits("constant")
def _constant(w: Writer, node: Node, operands: Sequence[str]) -> str:
    value = node.named_attrs()["value"]
    if type(value) is Dim:
        return w.add("Cast", [w.add("Reshape", [w.extent(value), w.integers([])])], to=w.type_of(node.dtype))
    return w.constant(value, node.dtype.numpy)


@emits("full")
def _full(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.named_attrs()
    value = w.onnx.numpy_helper.from_array(np.array([a["value"]], node.dtype.numpy))
    return w.add("ConstantOfShape", [w.extents(a["shape"])], value=value)


@emits("linspace")
def _linspace(w: Writer, node: Node, operands: Sequence[str]) -> str:
    """In double precision, counted from the nearer end, as the operation is."""
    start, stop, steps, _ = node.attrs
    if type(steps) is not Dim:
        return w.constant(node.op.reference(node.shape, node.dtype, *node.attrs))
    number = w.add("Reshape", [w.extent(steps), w.integers([])])
    one, zero = w.constant(1, np.int64), w.constant(0, np.int64)
    k = w.add("Range", [zero, number, one])
    last = w.add("Max", [w.add("Sub", [number, one]), one])
    step = w.add("Div", [w.constant(stop - start, np.float64), w.cast(last, int64, float64)])

    def steps_of(count: str) -> str:
        return w.add("Mul", [w.cast(count, int64, float64), step])

    from_start = w.add("Add", [w.constant(start, np.float64), steps_of(k)])
    from_stop = w.add("Sub", [w.constant(stop, np.float64), steps_of(w.add("Sub", [last, k]))])
    first_half = w.add("Less", [k, w.add("Div", [number, w.constant(2, np.int64)])])
    return w.cast(w.add("Where", [first_half, from_start, from_stop]), float64, node.dtype)


@emits("arange")
def _arange(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.named_attrs()
    parts = [a["start"], a["stop"], a["step"]]
    if any(type(p) is Dim for p in parts):
        # ONNX Runtime makes Gather at a Range that falls to -1 a Slice, whose -1 is the last element.
        falling = a["step"] < 0
        start, stop, step = (
            w.add("Reshape", [w.extents([p]), w.integers([])]) for p in ([0, node.shape[0], 1] if falling else parts)
        )
        places = w.add("Range", [start, stop, step])
        if falling:
            places = w.add("Add", [w.add("Mul", [places, w.integers([a["step"]])]), w.extents([a["start"]])])
        return w.cast(places, int64, node.dtype)
    dtype = node.dtype if node.dtype.is_floating_point else int64
    return w.cast(w.add("Range", [w.constant(p, dtype.numpy) for p in parts]), dtype, node.dtype)


# -- moving elements --------------------------------------------------------------------------------------------------


@emits("reshape")
def _reshape(w: Writer, node: Node, operands: Sequence[str]) -> str:
    shape = node.shape
    if identical(shape, node.inputs[0].shape):
        return operands[0]
    symbols = [k for k, d in enumerate(shape) if type(d) is Dim]
    if len(symbols) == 1 and 0 not in [int(d) for d in shape]:
        wanted = w.integers([-1 if k in symbols else d for k, d in enumerate(shape)])
    else:
        wanted = w.extents(shape)
    return w.add("Reshape", [operands[0], wanted])


@emits("permute")
def _permute(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return _transposed(w, operands[0], node.named_attrs()["axes"])


def _transposed(w: Writer, x: str, axes: Sequence[int]) -> str:
    before = w.made.get(x)
    if before is not None and before.op_type == "Transpose":
        x, first = before.input[0], before.attribute[0].ints
        axes = [first[k] for k in axes]
    return x if list(axes) == sorted(axes) else w.add("Transpose", [x], perm=list(axes))


@emits("expand")
def _expand(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Expand", [operands[0], w.extents(node.shape)])


@emits("slice")
def _slice(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a, x = node.named_attrs(), node.inputs[0]
    axes = []
    for k, (start, stop, step) in enumerate(zip(a["starts"], a["stops"], a["steps"])):
        whole = type(start) is int and start == 0 and step == 1 and _same(stop, x.shape[k])
        if not whole:
            axes.append(k)
    if not axes:
        return operands[0]
    stops = [_stop(a["stops"][k], a["steps"][k]) for k in axes]
    parts = [w.extents([a["starts"][k] for k in axes]), w.extents(stops)]
    return w.add("Slice", [operands[0], *parts, w.integers(axes), w.integers([a["steps"][k] for k in axes])])


def _stop(stop: Any, step: int) -> int:
    """ONNX counts negative stops from the end."""
    return -(1 << 62) if step < 0 and (stop is None or (type(stop) is int and stop < 0)) else stop


def _same(a: int, b: int) -> bool:
    return (a.expr == b.expr) if type(a) is Dim and type(b) is Dim else type(a) is type(b) and a == b


@emits("flip")
def _flip(w: Writer, node: Node, operands: Sequence[str]) -> str:
    axes = node.named_attrs()["axes"]
    n = len(axes)
    parts = [w.integers([-1] * n), w.integers([-(1 << 62)] * n), w.integers(axes), w.integers([-1] * n)]
    return w.add("Slice", [operands[0], *parts])


@emits("pad")
def _pad(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.named_attrs()
    fill = w.constant(a["fill"], node.dtype.numpy)
    return w.add("Pad", [operands[0], w.extents([*a["before"], *a["after"]]), fill])


@emits("concatenate")
def _concatenate(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Concat", operands, axis=node.named_attrs()["axis"])


@emits("embedding", "take")
def _take(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("Gather", operands, axis=node.named_attrs().get("axis", 0))


@emits("gather")
def _gather(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("GatherElements", operands, axis=node.named_attrs()["axis"])


@emits("gather_nd")
def _gather_nd(w: Writer, node: Node, operands: Sequence[str]) -> str:
    lead = node.shape[: node.ndim - (node.inputs[0].ndim - len(operands) + 1)]
    return w.add("GatherND", [operands[0], _places(w, node.inputs[1:], operands[1:], lead)])


@emits("scatter_nd")
def _scatter_nd(w: Writer, node: Node, operands: Sequence[str]) -> str:
    x, updates, *indices = operands
    source = node.inputs[1]
    lead = source.shape[: source.ndim - (node.ndim - len(indices))]
    return w.add(
        "ScatterND", [x, _places(w, node.inputs[2:], indices, lead), w.cast(updates, source.dtype, node.dtype)]
    )


def _places(w: Writer, indices: Sequence[Node], names: Sequence[str], lead: Sequence[int]) -> str:
    """Indices of several dimensions as one value (*lead, dimensions)."""
    parts = []
    for name, n in zip(names, indices):
        whole = name if identical(n.shape, lead) else w.add("Expand", [name, w.extents(lead)])
        parts.append(w.add("Unsqueeze", [w.cast(whole, n.dtype, int64), w.integers([-1])]))
    return parts[0] if len(parts) == 1 else w.add("Concat", parts, axis=-1)


@emits("argsort")
def _argsort(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    """Of equal elements TopK gives the first one first, too; where it puts a NaN is not said."""
    a = node.named_attrs()
    if not w.takes("TopK", node.inputs[0].dtype):
        return None
    count = w.extents([node.shape[a["axis"]]])
    return w.add("TopK", [*operands, count], outputs=2, axis=a["axis"], largest=int(a["descending"]))[1]


@emits("scatter")
def _scatter(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("ScatterElements", operands, axis=node.named_attrs()["axis"])


@emits("tril", "triu")
def _triangle(w: Writer, node: Node, operands: Sequence[str]) -> str:
    k = w.constant(node.named_attrs()["diagonal"], np.int64)
    return w.add("Trilu", [operands[0], k], upper=int(node.op.name == "triu"))


# -- reductions -------------------------------------------------------------------------------------------------------

_REDUCTIONS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin", "mean": "ReduceMean"}


@emits(*_REDUCTIONS)
def _reduce(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.named_attrs()
    axes, keep = list(a["axes"]), int(a["keepdim"])
    x = w.cast(operands[0], node.inputs[0].dtype, node.dtype)
    if not axes:
        return x
    operator = _REDUCTIONS[node.op.name]
    if w.opset >= (13 if operator == "ReduceSum" else 18):
        return w.add(operator, [x, w.integers(axes)], keepdims=keep)
    return w.add(operator, [x], axes=axes, keepdims=keep)


@emits("any", "all")
def _any(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.named_attrs()
    x = w.cast(w.cast(operands[0], node.inputs[0].dtype, bool_), bool_, float32)
    operator = "ReduceMax" if node.op.name == "any" else "ReduceMin"
    axes = list(a["axes"])
    if w.opset >= 18:
        y = w.add(operator, [x, w.integers(axes)], keepdims=int(a["keepdim"]))
    else:
        y = w.add(operator, [x], axes=axes, keepdims=int(a["keepdim"]))
    return w.cast(y, float32, bool_)


@emits("argmax", "argmin", "window_argmax")
def _position(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    a = node.named_attrs()
    if len(a["axes"]) != 1:
        return None
    operator = "ArgMin" if node.op.name == "argmin" else "ArgMax"
    return w.add(operator, operands, axis=a["axes"][0], keepdims=int(a["keepdim"]))


@emits("cumsum")
def _cumsum(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.named_attrs()
    x = w.cast(operands[0], node.inputs[0].dtype, node.dtype)
    return w.add("CumSum", [x, w.constant(a["axis"], np.int64)], reverse=int(a["reverse"]))


@emits("softmax", "log_softmax")
def _softmax(w: Writer, node: Node, operands: Sequence[str]) -> str:
    operator = "Softmax" if node.op.name == "softmax" else "LogSoftmax"
    return w.add(operator, operands, axis=node.named_attrs()["axis"])


# -- networks ---------------------------------------------------------------------------------------------------------


@emits("matmul")
def _matmul(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return w.add("MatMul", [w.cast(o, n.dtype, node.dtype) for o, n in zip(operands, node.inputs)])


@emits("dot")
def _dot(w: Writer, node: Node, operands: Sequence[str]) -> str:
    a = node.inputs[0]
    left, right = operands
    trans_a, trans_b = node.attrs
    swap = [*range(a.ndim - 2), a.ndim - 1, a.ndim - 2]
    left = _transposed(w, left, swap) if trans_a else left
    right = _transposed(w, right, swap) if trans_b else right
    return w.add("MatMul", [left, right])


@emits("linear")
def _linear(w: Writer, node: Node, operands: Sequence[str]) -> str:
    x, weight, *bias = operands
    if node.inputs[0].ndim == 2:
        return w.add("Gemm", [x, weight, *bias], transB=1)
    y = w.add("MatMul", [x, _transposed(w, weight, [1, 0])])
    return w.add("Add", [y, *bias]) if bias else y


def _geometry(node: Node) -> dict[str, Any]:
    a = node.named_attrs()
    pads = a["padding"]
    return {
        "strides": list(a["stride"]), "dilations": list(a["dilation"]), "group": a["groups"],
        "pads": [*(p[0] for p in pads), *(p[1] for p in pads)],
    }  # fmt: skip


@emits("convolution", "conv2d")
def _convolution(w: Writer, node: Node, operands: Sequence[str]) -> str:
    kernel = [int(d) for d in node.inputs[1].shape[2:]]
    return w.add("Conv", operands, kernel_shape=kernel, **_geometry(node))


@emits("conv2d_input_grad")
def _conv_transpose(w: Writer, node: Node, operands: Sequence[str]) -> str:
    """What is left over where the stride does not divide is added behind."""
    a, (dy, weight) = node.named_attrs(), node.inputs
    extra = []
    for k in range(2):
        (before, after), s, d = a["padding"][k], a["stride"][k], a["dilation"][k]
        least = (dy.shape[2 + k] - 1) * s - before - after + d * (weight.shape[2 + k] - 1) + 1
        extra.append(int(node.shape[2 + k] - least))
    kernel = [int(d) for d in weight.shape[2:]]
    return w.add("ConvTranspose", operands, kernel_shape=kernel, output_padding=extra, **_geometry(node))


@emits("batch_norm_inference")
def _batch_norm(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    a = node.named_attrs()
    x, mean, var, *more = operands
    if a["axis"] != 1:
        return None
    channels, dtype = int(node.shape[1]), node.inputs[1].dtype.numpy
    scale = more[0] if more else w.constant(np.ones(channels, dtype))
    bias = more[1] if len(more) > 1 else w.constant(np.zeros(channels, dtype))
    return w.add("BatchNormalization", [x, scale, bias, mean, var], epsilon=float(a["eps"]))


@emits("layer_norm")
def _layer_norm(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    a = node.named_attrs()
    if w.opset < 17:
        return None
    x, *more = operands
    normalized = node.shape[node.ndim - a["dims"] :]
    if not more and any(type(d) is Dim for d in normalized):
        return None
    shape = [int(d) for d in normalized]
    if not more:
        more = [w.constant(np.ones(shape, node.dtype.numpy))]
    return w.add("LayerNormalization", [x, *more], axis=-a["dims"], epsilon=float(a["eps"]))


@emits("max_pool", "avg_pool")
def _pool(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    a = node.named_attrs()
    if a.get("divisor_override") or node.ndim != len(a["kernel"]) + 2:
        return None
    padding = list(a["padding"])
    if any(type(k) is Dim for k in a["kernel"]):
        whole = identical(a["kernel"], node.inputs[0].shape[2:]) and not any(padding)
        operator = "GlobalMaxPool" if node.op.name == "max_pool" else "GlobalAveragePool"
        return w.add(operator, operands) if whole else None
    more: dict[str, Any] = {"ceil_mode": int(a["ceil_mode"])}
    if node.op.name == "max_pool":
        more["dilations"] = list(a["dilation"])
    else:
        more["count_include_pad"] = int(a["count_include_pad"])
    operator = "MaxPool" if node.op.name == "max_pool" else "AveragePool"
    return w.add(
        operator, operands, kernel_shape=list(a["kernel"]), strides=list(a["stride"]), pads=padding * 2, **more
    )


@emits("adaptive_avg_pool")
def _adaptive(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    x, output = node.inputs[0], node.named_attrs()["output"]
    n = len(output)
    spatial = x.shape[x.ndim - n :]
    if x.ndim != n + 2:
        return None
    if all(o == 1 for o in output):
        return w.add("GlobalAveragePool", operands)
    if any(type(d) is Dim for d in spatial) or any(d % o for d, o in zip(spatial, output)):
        return None
    kernel = [int(d) // o for d, o in zip(spatial, output)]
    return w.add("AveragePool", operands, kernel_shape=kernel, strides=kernel)


def _attention_scale(w: Writer, node: Node, given: float | None) -> str:
    width = node.inputs[0].shape[-1]
    if given is None and type(width) is Dim:
        number = w.add("Cast", [w.add("Reshape", [w.extent(width), w.integers([])])], to=w.type_of(node.dtype))
        return w.add("Reciprocal", [w.add("Sqrt", [number])])
    return w.constant(1 / math.sqrt(width) if given is None else given, node.dtype.numpy)


@emits("attention")
def _attention(w: Writer, node: Node, operands: Sequence[str]) -> str | None:
    """As products and a softmax, which every version has; runtimes fuse them."""
    a = node.named_attrs()
    q, k, v, *mask = operands
    nq, nk = node.inputs[0], node.inputs[1]
    if a["p"] or len(mask) > 1 or nq.ndim != 4 or not _same(nq.shape[1], nk.shape[1]):
        return None
    dtype = node.dtype.numpy
    scale = _attention_scale(w, node, a["scale"])
    scores = w.add("MatMul", [w.add("Mul", [q, scale]), _transposed(w, k, [0, 1, 3, 2])])
    masks = [(mask[0], node.inputs[3].dtype is bool_)] if mask else []
    if a["is_causal"]:
        ones = w.onnx.numpy_helper.from_array(np.array([1], np.float32))
        whole = w.add("ConstantOfShape", [w.extents([nq.shape[2], nk.shape[2]])], value=ones)
        seen = w.add("Cast", [w.add("Trilu", [whole], upper=0)], to=w.type_of(bool_))
        masks.append((seen, True))
    for name, boolean in masks:
        if boolean:
            scores = w.add("Where", [name, scores, w.constant(np.finfo(dtype).min, dtype)])
        else:
            scores = w.add("Add", [scores, name])
    return w.add("MatMul", [w.add("Softmax", [scores], axis=-1), v])
