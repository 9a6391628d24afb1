"""An ONNX model as plain data: its calls, constants and declared values, read from a file and checked.

Reading needs the ``onnx`` package (``pip install 'lezero[onnx]'``), for the messages and their versions alone: what operators
compute is in ``operators/``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lezero.io.source import what_reads
from lezero.onnx import wire
from lezero.onnx.stored import Stored, owned

DEFAULT_DOMAINS = ("", "ai.onnx")


class OnnxError(ValueError):
    """A file that is no ONNX model, or one that cannot be run; the message names the node.

    located : whether it does already; what an operator's function raises is located by who called it
    """

    located = False


@dataclass(frozen=True)
class Declared:
    """What a model says of a value.

    kind : "tensor", "sequence", "optional", "map", or "" where nothing is said
    dtype : of its elements, None if unknown
    shape : extents, each a number, a symbol's name, or None; None if the rank is unknown
    """

    name: str
    kind: str = ""
    dtype: np.dtype | None = None
    shape: tuple[int | str | None, ...] | None = None

    def __str__(self) -> str:
        known = [
            self.dtype.name if self.dtype is not None else "",
            "" if self.shape is None else shown_shape(self.shape),
        ]
        kind = "" if self.kind == "tensor" else self.kind
        return f"{self.name!r}: {' '.join(filter(None, [kind, *known])) or '?'}"


def shown_shape(shape: Sequence[int | str | None]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


@dataclass(eq=False)
class Call:
    """One node: an operator and the names of its operands and results ("" for one that is left out)."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    overload: str = ""

    def __str__(self) -> str:
        known = f"{self.domain}.{self.operator}" if self.domain else self.operator
        return (
            f"{known} (node {self.name!r})"
            if self.name
            else f"{known} (the node that gives {next(filter(None, self.outputs), 'nothing')!r})"
        )


@dataclass(eq=False)
class Body:
    """A graph: calls in an order in which they can be made.

    constants : by name, arrays in memory of their own
    numbers : constants of one element that the graph has as nodes, as it has the 6 of a clipping
    free : names that calls read and that neither the graph nor its calls give (of the graph around it)
    last : for each call, names that nothing reads after it
    """

    name: str
    calls: list[Call]
    inputs: list[Declared]
    outputs: list[Declared]
    constants: dict[str, np.ndarray]
    numbers: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    last: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(eq=False)
class Function:
    """A function of the model's own: calls to be made with other operands, and attributes."""

    body: Body
    attributes: tuple[str, ...]
    defaults: dict[str, Any]
    opsets: dict[str, int]


@dataclass(eq=False)
class Program:
    """A model.

    opsets : the version of each domain's operators
    functions : by domain, name and overload
    """

    body: Body
    opsets: dict[str, int]
    functions: dict[tuple[str, str, str], Function]
    metadata: dict[str, str]
    path: str = ""


@dataclass(frozen=True)
class FromCaller:
    """An attribute whose value a function is called with."""

    name: str


def read(source: Any) -> Program:
    """The model in a file, in bytes, or in an ``onnx.ModelProto``.

    Raises
    ------
    OnnxError
        If it is not a model, is cut short, or refers to data outside its folder; if it was written for a newer version of the
        format or of the operators than the installed ``onnx`` package knows; if its nodes depend on each other in a circle or
        read what nothing gives.
    FileNotFoundError
    """
    onnx = package()
    if isinstance(source, onnx.ModelProto):
        return _Reader(source, None, "", "the model").program()
    if isinstance(source, (bytes, bytearray, memoryview)):
        path, data = "", Stored(memoryview(source))
    else:
        path = os.fspath(source)
        data = _opened(Path(path))
    try:
        name = path or "the model"
        return _Reader(_message(data, name), data, path, name).program()
    finally:
        data.close()


def _message(data: Stored, name: str) -> Any:
    """The model without its large arrays."""
    model = package().ModelProto()
    try:
        model.ParseFromString(wire.without_arrays(data.view()))
    except (wire.WireError, onnx_decode_error()) as error:
        raise OnnxError(f"{name} is not an ONNX model, or is cut short: {error}{_advice(data, name)}") from None
    if not model.HasField("graph") or not model.ir_version:
        raise OnnxError(f"{name} is not an ONNX model: it has no graph{_advice(data, name)}")
    return model


def _advice(data: Stored, name: str) -> str:
    return what_reads(bytes(data.view()[:512]), name, "lz.onnx.load")


def package() -> Any:
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise ModuleNotFoundError(
            "reading and writing ONNX models needs the onnx package: pip install 'lezero[onnx]'"
        ) from None
    return onnx


def onnx_decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError

    return DecodeError


def _opened(path: Path) -> Stored:
    stored = Stored(path)
    if not stored.size:
        stored.close()
        raise OnnxError(f"{path} is empty")
    return stored


class _Reader:
    """From messages to a program.  `data` is what the file holds, `path` where it lies."""

    def __init__(self, model: Any, data: Stored | None, path: str, name: str):
        self.onnx, self.model, self.data, self.path, self.name = package(), model, data, path, name
        self.files: dict[Path, Stored] = {}

    def program(self) -> Program:
        try:
            return self._program()
        finally:
            for file in self.files.values():
                file.close()

    def _program(self) -> Program:
        model, onnx = self.model, self.onnx
        if model.ir_version > onnx.IR_VERSION:
            raise OnnxError(
                f"{self.name} is of version {model.ir_version} of the format; the installed onnx package knows up to "
                f"{onnx.IR_VERSION}: a newer one is needed (pip install -U onnx)"
            )
        if model.ir_version >= 3 and not model.opset_import:
            raise OnnxError(f"{self.name} does not say which version of the operators it uses, or is cut short")
        opsets = self._opsets(model.opset_import)
        functions = {(_domain(f.domain), f.name, f.overload): self._function(f, opsets) for f in model.functions}
        metadata = {e.key: e.value for e in model.metadata_props}
        return Program(self._closed(self._body(model.graph)), opsets, functions, metadata, self.path)

    def _opsets(self, imports: Iterable[Any]) -> dict[str, int]:
        opsets = {_domain(i.domain): i.version for i in imports}
        newest = self.onnx.defs.onnx_opset_version()
        if opsets.setdefault("", 1) > newest:
            raise OnnxError(
                f"{self.name} uses version {opsets['']} of the operators; the installed onnx package knows up to {newest}"
            )
        return opsets

    def _function(self, f: Any, opsets: Mapping[str, int]) -> Function:
        inputs, outputs = [Declared(n) for n in f.input], [Declared(n) for n in f.output]
        body = self._closed(self._ordered(f.name, self._calls(f.node), inputs, outputs, {}))
        defaults = {a.name: self._attribute(a) for a in f.attribute_proto}
        return Function(body, tuple(f.attribute), defaults, {**opsets, **self._opsets(f.opset_import)})

    def _body(self, graph: Any) -> Body:
        self._differ(
            "initialisers", [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
        )
        self._differ("inputs", [v.name for v in graph.input])
        constants = {t.name: self.array(t) for t in graph.initializer}
        for s in graph.sparse_initializer:
            constants[s.values.name] = self._dense(s)
        inputs = [self._declared(v) for v in graph.input if v.name not in constants]
        outputs = [self._declared(v) for v in graph.output]
        return self._ordered(graph.name, self._calls(graph.node), inputs, outputs, constants)

    def _differ(self, what: str, names: list[str]) -> None:
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise OnnxError(f"{self.name}: two {what} are named {twice!r}")

    def _ordered(
        self, name: str, calls: list[Call], inputs: list[Declared], outputs: list[Declared],
        constants: dict[str, np.ndarray],
    ) -> Body:  # fmt: skip
        """A body with its calls in order; what is read and not given is of the graph around it."""
        given = {v.name for v in inputs} | constants.keys()
        made_by: dict[str, Call] = {}
        for c in calls:
            for o in c.outputs:
                if o and (o in made_by or o in given):
                    raise OnnxError(f"{self.name}: {c} gives {o!r}, which is given already")
                made_by[o] = c
        made_by.pop("", None)
        known = {name: constant_value(c) for name, c in made_by.items() if _is_constant(c)}
        given |= known.keys() | {""}
        made_by = {name: c for name, c in made_by.items() if name not in known}
        ordered = self._sorted([c for c in calls if not _is_constant(c)], made_by)
        reads = [(*c.inputs, *(n for b in _bodies(c) for n in b.free)) for c in ordered]
        free = {n for r in reads for n in r} | {v.name for v in outputs}
        numbers = frozenset(n for n, array in known.items() if array.size == 1)
        body = Body(
            name, ordered, inputs, outputs, constants | known, numbers, frozenset(free - given - made_by.keys())
        )
        body.last = _last_reads(body, reads)
        return body

    def _closed(self, body: Body) -> Body:
        """A body around which there is no other."""
        for name in sorted(body.free):
            readers = [str(c) for c in body.calls if name in (*c.inputs, *(n for b in _bodies(c) for n in b.free))]
            raise OnnxError(f"{self.name}: nothing gives {name!r}, which is read by {(readers or ['the results'])[0]}")
        return body

    def _sorted(self, calls: list[Call], made_by: dict[str, Call]) -> list[Call]:
        done: dict[Call, bool] = {}  # False while what it needs is being placed
        out: list[Call] = []
        for first in calls:
            stack = [first]
            while stack:
                call = stack[-1]
                if done.get(call):
                    stack.pop()
                    continue
                done[call] = False
                names = (*call.inputs, *(n for b in _bodies(call) for n in b.free))
                needed = [made_by[n] for n in names if n in made_by and not done.get(made_by[n], False)]
                circle = next((c for c in needed if c in done), None)
                if circle is not None:
                    raise OnnxError(f"{self.name}: {circle} needs its own result, by way of {call}")
                if not needed:
                    done[call] = True
                    out.append(call)
                    stack.pop()
                stack += needed
        return out

    def _calls(self, nodes: Iterable[Any]) -> list[Call]:
        return [
            Call(
                n.op_type, _domain(n.domain), n.name, tuple(n.input), tuple(n.output),
                {a.name: self._attribute(a) for a in n.attribute}, n.overload,
            )
            for n in nodes
        ]  # fmt: skip

    def _attribute(self, a: Any) -> Any:
        if a.ref_attr_name:
            return FromCaller(a.ref_attr_name)
        kind = self.onnx.AttributeProto.AttributeType.Name(a.type)
        match kind:
            case "TENSOR":
                return self.array(a.t)
            case "TENSORS":
                return [self.array(t) for t in a.tensors]
            case "GRAPH":
                return self._body(a.g)
            case "GRAPHS":
                return [self._body(g) for g in a.graphs]
            case "SPARSE_TENSOR":
                return self._dense(a.sparse_tensor)
            case "STRING":
                return a.s.decode()
            case "STRINGS":
                return [s.decode() for s in a.strings]
            case "TYPE_PROTO":
                return self._of_type("", a.tp)
            case "FLOAT":
                return a.f
            case "INT":
                return a.i
            case "FLOATS":
                return list(a.floats)
            case "INTS":
                return list(a.ints)
        raise OnnxError(f"{self.name}: attribute {a.name!r} is of a kind that is not supported, {kind}")

    def _declared(self, v: Any) -> Declared:
        return self._of_type(v.name, v.type)

    def _of_type(self, name: str, t: Any) -> Declared:
        kind = (t.WhichOneof("value") or "").removesuffix("_type")
        if kind != "tensor":
            return Declared(name, kind)
        tensor = t.tensor_type
        dtype = numpy_dtype(tensor.elem_type) if tensor.elem_type else None
        if not tensor.HasField("shape"):
            return Declared(name, kind, dtype)
        return Declared(name, kind, dtype, tuple(map(_extent, tensor.shape.dim)))

    # -- arrays -------------------------------------------------------------------------------------------------

    def array(self, t: Any) -> np.ndarray:
        """A tensor message as an array in memory of its own."""
        try:
            return self._array(t)
        except OnnxError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise OnnxError(
                f"{self.name}: the tensor {t.name!r} of shape {list(t.dims)} is damaged: {error}"
            ) from error

    def _array(self, t: Any) -> np.ndarray:
        if len(t.dims) > MOST_DIMENSIONS or any(d < 0 for d in t.dims) or math.prod(t.dims) >= 1 << 62:
            raise OnnxError(f"{self.name}: the tensor {t.name!r} has an impossible shape, {list(t.dims)}")
        if t.data_location != self.onnx.TensorProto.EXTERNAL:
            array = self.onnx.numpy_helper.to_array(t)
            return array.astype(object) if array.dtype.kind in "OSU" else owned(array)
        where = {e.key: e.value for e in t.external_data}
        data = self._file(t.name, where.get("location", ""))
        begin = int(where.get("offset", 0))
        end = begin + int(where["length"]) if "length" in where else data.size
        shape, dtype = tuple(t.dims), numpy_dtype(t.data_type)
        count = math.prod(shape)
        bits = PACKED.get(self.onnx.TensorProto.DataType.Name(t.data_type), dtype.itemsize * 8)
        if not 0 <= begin <= end <= data.size or end - begin != -(-count * bits // 8):
            raise OnnxError(
                f"{self.name}: {t.name!r} is {dtype.name} of shape {list(shape)}, {-(-count * bits // 8)} bytes, and its data are said to "
                f"lie at bytes {begin} to {end} of {data.size}"
            )
        try:
            return data.array(begin, shape, dtype) if bits >= 8 else self._unpacked(t, data, begin, end)
        except EOFError as error:
            raise OnnxError(f"{self.name} was cut short while it was read: {error}") from None

    def _unpacked(self, t: Any, data: Stored, begin: int, end: int) -> np.ndarray:
        """Of a type of which several elements share a byte."""
        whole = self.onnx.TensorProto()
        whole.CopyFrom(t)
        del whole.external_data[:]
        raw = data.array(begin, (end - begin,), np.dtype(np.uint8)).tobytes()
        whole.data_location, whole.raw_data = self.onnx.TensorProto.DEFAULT, raw
        return self.onnx.numpy_helper.to_array(whole)

    def _file(self, tensor: str, location: str) -> Stored:
        if location == wire.HERE and self.data is not None:
            return self.data
        folder = Path(self.path or ".").resolve().parent if self.path else Path.cwd()
        path = (folder / location).resolve()
        if not location or Path(location).is_absolute() or not path.is_relative_to(folder):
            raise OnnxError(
                f"{self.name}: the data of {tensor!r} are said to lie outside the model's folder: {location!r}"
            )
        if path not in self.files:
            if not path.is_file():
                raise OnnxError(f"{self.name}: the data of {tensor!r} should lie in {location!r}, which is not there")
            self.files[path] = _opened(path)
        return self.files[path]

    def _dense(self, s: Any) -> np.ndarray:
        values, indices = self.array(s.values), self.array(s.indices)
        shape = tuple(s.dims)
        if any(d < 0 for d in shape) or math.prod(shape) * values.itemsize > MOST_DENSE:
            raise OnnxError(
                f"{self.name}: the sparse tensor {s.values.name!r} of shape {list(shape)} takes more than {MOST_DENSE:,} bytes"
            )
        if indices.size and (
            indices.min() < 0 or (indices >= (math.prod(shape) if indices.ndim == 1 else np.array(shape))).any()
        ):
            raise OnnxError(
                f"{self.name}: the sparse tensor {s.values.name!r} of shape {list(shape)} has elements outside it"
            )
        dense = np.zeros(tuple(s.dims), values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
        return dense


MOST_DENSE = 1 << 31
"""Bytes that a sparse tensor may take, since it is kept dense."""
MOST_DIMENSIONS = 64
"""NumPy's."""
PACKED = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
"""Bits of an element of the types of which several share a byte."""


def numpy_dtype(element_type: int) -> np.dtype:
    """NumPy's (or ml_dtypes') name for an ONNX element type."""
    return np.dtype(package().helper.tensor_dtype_to_np_dtype(element_type))


def _extent(d: Any) -> int | str | None:
    """Some exporters write -1 or a question mark for what they do not know."""
    if d.HasField("dim_value"):
        return d.dim_value if d.dim_value >= 0 else None
    return d.dim_param if d.dim_param not in ("", "?") else None


def _domain(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain


def _bodies(call: Call) -> Iterator[Body]:
    for v in call.attributes.values():
        if isinstance(v, Body):
            yield v
        elif isinstance(v, list):
            yield from (b for b in v if isinstance(b, Body))


def _is_constant(call: Call) -> bool:
    """Whether it stands for a value that is known now, and no function's caller gives."""
    if (call.domain, call.operator) != ("", "Constant"):
        return False
    return not any(isinstance(v, FromCaller) for v in call.attributes.values())


def constant_value(call: Call) -> np.ndarray:
    """What a node `Constant` gives."""
    if len(call.attributes) != 1:
        raise OnnxError(f"{call}: one value is needed, and there are {len(call.attributes)}")
    ((name, value),) = call.attributes.items()
    if name in ("value", "sparse_value"):
        return value
    dtype = {"float": np.float32, "int": np.int64, "string": object}[name.removeprefix("value_").removesuffix("s")]
    return np.array(value, dtype)


def _last_reads(body: Body, reads: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """For each call the names that nothing reads after it, results that nothing reads included."""
    kept = {v.name for v in body.outputs} | body.free | {""}
    last: list[tuple[str, ...]] = []
    for call, names in zip(reversed(body.calls), reversed(reads)):
        gone = dict.fromkeys(n for n in (*names, *call.outputs) if n not in kept)
        last.append(tuple(gone))
        kept |= gone.keys()
    last.reverse()
    return last
