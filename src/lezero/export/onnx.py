"""Writing models as ONNX files."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec

import numpy as np

import lezero
from lezero.export import operators, verify
from lezero.export.errors import ExportError
from lezero.export.free import check_free
from lezero.export.trace import Traced, trace
from lezero.export.windows import APART
from lezero.export.writer import Writer
from lezero.graph.dim import Dim as Extent
from lezero.graph.dim import show
from lezero.graph.node import Node
from lezero.io.atomic import atomic_file
from lezero.misspelt import close
from lezero.onnx.module import OnnxModule
from lezero.onnx.program import package
from lezero.ops.expr import Expr
from lezero.tensor import Tensor, as_tensor

P = ParamSpec("P")
MOST_INLINE = 2_000_000_000
"""Bytes of constants from which on they go into a file of their own: a protobuf message ends at 2 GiB."""
LEAST_OPSET, DEFAULT_OPSET = 13, 18
ELSEWHERE = {
    "opset_version": "opset=18 says it",
    "dynamic_axes": "dynamic_shapes={'x': {0: 'batch'}} names the axes of input x that may differ",
    "verbose": "nothing is printed; lz.explain(model, x) shows what is recorded",
    "export_params": "parameters are always written",
    "do_constant_folding": "leave it out: runtimes fold constants",
    "training": "a module is exported in the mode it is in: call model.eval() first",
    "dynamo": "leave it out: there is one way to export",
    "f": "the file is path=",
}
"""Arguments that newcomers bring from PyTorch, and what to do instead."""


@dataclass(frozen=True)
class Dim:
    """A named extent that may differ from call to call, between `min` and `max` (both included).

    >>> dynamic_shapes={"x": {0: lezero.export.Dim("batch", min=1, max=64)}}
    """

    name: str
    min: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"a dimension's name is an identifier, not {self.name!r}")
        if self.min < 1 or (self.max is not None and self.max < self.min):
            raise ValueError(f"dimension {self.name!r}: from {self.min} to {self.max} there is no extent")


def _advises(function: Callable[P, None]) -> Callable[P, None]:
    """Say of a keyword argument that `function` does not have what was probably meant."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name not in known:
                meant = " or ".join(map(repr, close(name, known)))
                said = ELSEWHERE.get(name) or (f"did you mean {meant}?" if meant else f"it takes {', '.join(known)}")
                raise TypeError(f"{function.__name__}: there is no argument {name!r}: {said}")
        function(*args, **kwargs)

    return call


@_advises
def to_onnx(
    model: Any, args: Any, path: str | os.PathLike[str], *, input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None, dynamic_shapes: Mapping[str, Mapping[int, str | Dim]] | None = None,
    opset: int = DEFAULT_OPSET, external_data: bool | None = None, verify: bool = True,
) -> None:  # fmt: skip
    """Write what ``model(*args)`` computes as an ONNX file.

    A module is exported in the mode it is in: call ``model.eval()`` first for inference.

    Parameters
    ----------
    model : Module or function of tensors
    args : Tensor, or a tuple of them
        An example.  Its values decide nothing: a model that reads them is refused.
    path : str or os.PathLike
        Written as a whole or not at all, into a folder that is there.
    input_names, output_names : sequence of str, optional
        By default the names of ``forward``'s arguments, and ``output`` (``output_0`` and so on); a model that was loaded from
        an ONNX file keeps its own.
    dynamic_shapes : mapping, optional
        By input name, the axes whose extents may differ from call to call: a name, or a :class:`Dim` with a range.  Axes of
        one name have one extent.
    opset : int
        Version of the operators, 13 or newer.
    external_data : bool, optional
        Constants in a file of their own, ``path + ".data"``; by default from 2 GB on.
    verify : bool
        Check the file, and compare ONNX Runtime's outputs with the model's at the example's extents and at up to three others of
        each dynamic dimension, the smallest and the largest among them; what was compared is stored in the file's metadata under ``lezero.verified``.

    Raises
    ------
    ExportError
        If an operation has no counterpart in ONNX (the message has the line that recorded it), or an extent that was given a
        name does not stay free: the program loops over it or decides by it, which is found by recording at other extents.
    VerificationError
        If the file computes something else; it is not written.
    FileNotFoundError
        If there is no such folder.
    ImportError
        If the ``onnx`` package is missing, or ONNX Runtime where `verify` is asked for.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    examples = _examples(args)
    names = _input_names(model, examples, input_names)
    dims = _dims(dynamic_shapes or {}, names, examples)
    if not isinstance(opset, int) or isinstance(opset, bool):
        raise ExportError(f"opset is a whole number, got {opset!r}")
    if not LEAST_OPSET <= opset <= package().defs.onnx_opset_version():
        raise ExportError(f"opset is {LEAST_OPSET} to {package().defs.onnx_opset_version()}, not {opset}")
    dynamic = {n: {axis: d.name for axis, d in axes.items()} for n, axes in dims.items()}
    named = {d.name: d for axes in dims.values() for d in axes.values()}
    traced = trace(model, examples, names, dynamic)
    if output_names is None and isinstance(model, OnnxModule):
        output_names = model.output_names
    file = _Export(traced, names, output_names, dynamic, opset)
    proto = file.model(type(model).__name__)
    check_free(
        model, examples, names, dynamic, named, traced,
        lambda t: _Export(t, names, output_names, dynamic, opset).written(),
    )  # fmt: skip
    for d in named.values():
        _note(proto, f"lezero.dim.{d.name}", f"{d.min}..{'' if d.max is None else d.max}")
    _write(
        proto,
        file.writer.constants,
        path,
        external_data,
        lambda at: _verified(verify, model, at, proto, examples, names, dynamic, named),
    )


def _verified(
    wanted: bool,
    model: Any,
    at: Path,
    proto: Any,
    examples: list[Tensor],
    names: list[str],
    dynamic: Any,
    named: dict[str, Dim],
) -> None:
    if wanted:
        _note(proto, "lezero.verified", verify.compare(model, at, examples, names, dynamic, named))


def _note(proto: Any, key: str, value: str) -> None:
    entry = proto.metadata_props.add()
    entry.key, entry.value = key, value


def _examples(args: Any) -> list[Tensor]:
    args = args if isinstance(args, (tuple, list)) else (args,)
    for k, a in enumerate(args):
        if a is None or isinstance(a, (Mapping, str)):
            raise ExportError(
                f"args are tensors in the order of forward's arguments, and number {k} is {'None' if a is None else f'a {type(a).__name__}'}: "
                "export a function of tensors that calls the model with it"
            )
    return [as_tensor(a) for a in args]


def _check_names(what: str, given: Any) -> None:
    if isinstance(given, str) or not all(isinstance(n, str) and n for n in given):
        raise ExportError(f"{what} are a list of names that are not empty, got {given!r}")


def _input_names(model: Any, examples: list[Tensor], given: Sequence[str] | None) -> list[str]:
    if given is None and isinstance(model, OnnxModule):
        given = model.input_names[: len(examples)]
    if given is None:
        forward = getattr(model, "forward", model)
        try:
            known = [
                p.name
                for p in inspect.signature(forward).parameters.values()
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
        except (TypeError, ValueError):
            known = []
        given = [*known, *(f"input_{k}" for k in range(len(known), len(examples)))][: len(examples)]
    _check_names("input_names", given)
    if len(given) != len(examples) or len(set(given)) != len(given):
        raise ExportError(f"{len(examples)} inputs need as many different names, got {list(given)}")
    return list(given)


def _dims(
    dynamic: Mapping[str, Mapping[int, str | Dim]], names: list[str], examples: list[Tensor]
) -> dict[str, dict[int, Dim]]:
    found: dict[str, dict[int, Dim]] = {}
    if not isinstance(dynamic, Mapping) or not all(isinstance(axes, Mapping) for axes in dynamic.values()):
        raise ExportError(
            f"dynamic_shapes are axes and their names by input, as {{'x': {{0: 'batch'}}}}; got {dynamic!r}"
        )
    for name, axes in dynamic.items():
        if name not in names:
            raise ExportError(f"dynamic_shapes: there is no input {name!r}; the inputs are {', '.join(names)}")
        rank = examples[names.index(name)].ndim
        for axis, d in axes.items():
            if not isinstance(axis, int) or isinstance(axis, bool):
                raise ExportError(f"dynamic_shapes: an axis is a whole number, got {axis!r} for input {name!r}")
            if not -rank <= axis < rank:
                raise ExportError(f"dynamic_shapes: input {name!r} has {rank} dimensions, and none of number {axis}")
            if not isinstance(d, (str, Dim)):
                raise ExportError(
                    f"dynamic_shapes: a dimension is a name or a Dim, got {d!r} for axis {axis} of {name!r}; leave out the axes "
                    "that keep the example's extent"
                )
            found.setdefault(name, {})[axis % rank] = Dim(d) if isinstance(d, str) else d
    _check_ranges(found, names, examples)
    return found


def _check_ranges(dims: dict[str, dict[int, Dim]], names: list[str], examples: list[Tensor]) -> None:
    """One range for each name, in which the example lies."""
    known: dict[str, Dim] = {}
    for name, axes in dims.items():
        for axis, d in axes.items():
            if known.setdefault(d.name, d) != d:
                raise ExportError(f"dimension {d.name!r} has two ranges, {known[d.name]} and {d}")
            extent = int(examples[names.index(name)].shape[axis])
            if extent < d.min or (d.max is not None and extent > d.max):
                raise ExportError(f"dimension {d.name!r} is {extent} in the example, outside of {d}")


class _Export:
    """One export: the writer, and what each node is called."""

    def __init__(
        self,
        traced: Traced,
        names: list[str],
        output_names: Sequence[str] | None,
        dynamic: dict[str, dict[int, str]],
        opset: int,
    ):
        self.traced, self.names, self.dynamic = traced, names, dynamic
        count = len(traced.graph.outputs)
        _check_names("output_names", output_names or ())
        self.outputs = list(output_names or (["output"] if traced.single else [f"output_{k}" for k in range(count)]))
        if len(self.outputs) != count or len(set(self.outputs) | set(names)) != count + len(names):
            raise ExportError(f"{count} outputs need as many different names, got {self.outputs}")
        places: dict[int, tuple[str, int]] = {}
        for node, name in zip(traced.inputs, names):
            for axis, d in enumerate(node.shape):
                if type(d) is Extent and len(d.expr) == 1:
                    places.setdefault(d.expr[0][0][0][1], (name, axis))
        self.writer = Writer(opset, places, traced.symbols, traced.bindings)
        self.known: dict[Node, str] = {}

    def written(self) -> tuple[Any, dict[str, np.ndarray]]:
        return self.model("").graph, self.writer.constants

    def model(self, title: str) -> Any:
        w, traced, onnx = self.writer, self.traced, package()
        for name in (*self.names, *self.outputs):
            w.fresh(name)
        self.known.update(zip(traced.inputs, self.names))
        for node in traced.graph.nodes():
            if node not in self.known:
                self.known[node] = self._value(node)
        for node, name in zip(traced.graph.outputs, self.outputs):
            w.nodes.append(onnx.helper.make_node("Identity", [self.known[node]], [name], name=name))
        w.leave_out_unused(self.outputs)
        graph = onnx.helper.make_graph(
            w.nodes, title or "model",
            [w.value_info(n, node, self._shown(node)) for node, n in zip(traced.inputs, self.names)],
            [w.value_info(n, node, self._shown(node)) for node, n in zip(traced.graph.outputs, self.outputs)],
        )  # fmt: skip
        imports = [onnx.helper.make_opsetid("", w.opset)]
        proto = onnx.helper.make_model(
            graph, opset_imports=imports, producer_name="lezero", producer_version=lezero.__version__
        )
        proto.ir_version = onnx.helper.find_min_ir_version_for(imports)
        return proto

    def _shown(self, node: Node) -> list[int | str | None]:
        """Extents as ONNX has them: a number, a symbol's name, or nothing for what is computed from several."""
        out: list[int | str | None] = []
        for d in node.shape:
            if type(d) is not Extent:
                out.append(int(d))
            elif len(d.expr) == 1 and d.expr[0][1] == 1 and len(d.expr[0][0]) == 1 and d.expr[0][0][0][0] == "s":
                out.append(self.traced.symbols.get(d.expr[0][0][0][1]))
            else:
                out.append(None)
        return out

    def _value(self, node: Node) -> str:
        """The name of a node's value, whose operands have theirs."""
        if any(n.dtype.is_complex for n in (node, *node.inputs)):
            raise ExportError(_unsupported(node, "ONNX's operators take no complex numbers"))
        if node.op.is_leaf:
            if node not in self.traced.constants:
                raise ExportError("a tensor from outside that is not known")
            name, value = self.traced.constants[node]
            return self.writer.constant(value, name=name)
        if node.op.kind == "source" and node.op.name == "philox":
            raise ExportError(_unsupported(node, "random numbers cannot be exported; call model.eval() first"))
        made = operators.emit(self.writer, node, [self.known[n] for n in node.inputs])
        return self._apart(node) if made is None else made

    def _apart(self, node: Node) -> str:
        """What an operation without a counterpart comes apart into."""
        rule = APART.get(node.op.name, node.op.decompose)
        if rule is None:
            raise ExportError(_unsupported(node, "it has no counterpart in ONNX"))
        result = rule(*map(Expr, node.inputs), **node.named_attrs()).node
        stack = [result]
        while stack:
            n = stack[-1]
            missing = [x for x in n.inputs if x not in self.known]
            if n in self.known or not missing:
                stack.pop()
                if n not in self.known:
                    n.site = n.site or node.site
                    self.known[n] = self._value(n)
            stack += missing
        return self.writer.cast(self.known[result], result.dtype, node.dtype)


def _unsupported(node: Node, why: str) -> str:
    line = f" (recorded at {node.site[0]}, line {node.site[1]})" if node.site else ""
    shapes = ", ".join(f"{n.dtype.name}[{', '.join(show(d) for d in n.shape)}]" for n in node.inputs)
    return f"{node.op.name} of {shapes or 'nothing'}{line}: {why}"


def _write(proto: Any, constants: dict[str, np.ndarray], path: Path, external: bool | None, check: Any) -> None:
    """The file with its constants; it takes the place of one that is there only when all went well."""
    onnx = package()
    total = sum(a.nbytes for a in constants.values())
    apart = total > MOST_INLINE if external is None else external
    data = path.with_name(path.name + ".data")
    # A folder of its own: exports to one path at the same time do not meet, and the data have their final name.
    with TemporaryDirectory(prefix=".lezero-", dir=path.parent) as folder:
        draft, draft_data = Path(folder, "model.onnx"), Path(folder, data.name)
        if apart:
            _write_data(proto, constants, draft_data)
        else:
            proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
        draft.write_bytes(proto.SerializeToString())
        check(draft)
        if apart:
            os.replace(draft_data, data)
        with atomic_file(path) as file:
            file.write(proto.SerializeToString())


def _write_data(proto: Any, constants: dict[str, np.ndarray], path: Path) -> None:
    onnx = package()
    with path.open("wb") as file:
        for name, array in constants.items():
            file.write(b"\0" * (-file.tell() % 64))
            t = proto.graph.initializer.add()
            t.name, t.data_type = name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            t.dims.extend(array.shape)
            t.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", path.name), ("offset", file.tell()), ("length", array.nbytes)):
                entry = t.external_data.add()
                entry.key, entry.value = key, str(value)
            file.write(np.ascontiguousarray(array).tobytes())
