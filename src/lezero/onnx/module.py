"""An ONNX model as a module."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakMethod

import numpy as np

from lezero import nn
from lezero.graph.dtype import as_dtype
from lezero.nn.nested import parent_of
from lezero.onnx.captured import Captured
from lezero.onnx.checks import check_functions
from lezero.onnx.interpreter import Interpreter, check_operands, check_results
from lezero.onnx.program import Body, OnnxError, Program, _bodies, package, read
from lezero.onnx.registry import find, has_tensor_type, on_device
from lezero.runtime.recording import STATE
from lezero.tensor import Tensor
from lezero.tensor.creation import _from_array

SMALL = 1024
"""Elements up to which integers may be shapes, axes and the like, which are known while recording."""


def load(source: Any) -> OnnxModule:
    """The model in an ONNX file, ready to call and to train.

    Parameters
    ----------
    source : str, os.PathLike, bytes or onnx.ModelProto
        Data in further files must lie in the same folder or below.

    Returns
    -------
    OnnxModule

    Raises
    ------
    OnnxError
        If it is not an ONNX model, is cut short, is newer than the installed ``onnx`` package, has an operator that is not
        supported, or is contradictory; the message names the node.
    ImportError
        If the ``onnx`` package is missing: ``pip install 'lezero[onnx]'``.

    Examples
    --------
    >>> model = lz.onnx.load("model.onnx")
    >>> y = model(x)
    """
    try:
        return OnnxModule(read(source))
    except OnnxError:
        raise
    # What a damaged file makes of its own numbers and names is not foreseen one by one.
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if not isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview, package().ModelProto)):
            raise
        name = source if isinstance(source, (str, os.PathLike)) else "the model"
        raise OnnxError(f"{name} contradicts itself or is damaged: {error}") from error


class OnnxModule(nn.Module):
    """A model read from ONNX: called with its inputs in order, or by name; gives its output, or a tuple of them.

    Floating-point constants that operators compute with are parameters, under the names they have in the file; statistics,
    scales and the like are buffers.  Where they have been converted (``half()``, ``to(dtype)``), inputs and outputs that the file
    says to be of their dtype are to be of the new one too.

    Attributes
    ----------
    program : Program
        The model as data.
    input_names, output_names : list of str
    metadata : dict
    """

    def __init__(self, program: Program):
        super().__init__()
        self.program = program
        self.input_names = [v.name for v in program.body.inputs]
        self.output_names = [v.name for v in program.body.outputs]
        self.metadata = program.metadata
        _check_operators(program)
        self._captured: Captured | None = None
        self._places: list[tuple[Body, str, Any, str]] = []  # body, name, and where its tensor is: module and attribute
        self._host: dict[Body, dict[str, Any]] = {}
        uses = _uses(program)
        for body in all_bodies(program):
            host = self._host[body] = {}
            for name in list(body.constants):
                array, use = body.constants.pop(name), uses.get((body, name), {"trained"})
                if _on_host(array, use):
                    host[name] = array
                else:
                    trained = "trained" in use and name not in body.numbers and array.ndim > 0
                    self._keep(body, name, array, trained and as_dtype(array.dtype).is_floating_point)
        self._witnesses: dict[np.dtype, tuple[Any, str]] = {}  # of each floating dtype of the file one tensor
        for _, _, at, attribute in self._places:
            if (dtype := getattr(at, attribute).dtype).is_floating_point:
                self._witnesses.setdefault(dtype.numpy, (at, attribute))
        self._holders = list({id(m): m for _, _, m, _ in self._places}.values())

    def _keep(self, body: Body, name: str, array: np.ndarray, trained: bool) -> None:
        at, last = parent_of(self, name)
        while hasattr(at, last):
            last += "_"
        value = _from_array(array)
        setattr(at, last, nn.Parameter(value) if trained else nn.Buffer(value))
        self._places.append((body, name, at, last))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model.

        Parameters
        ----------
        *inputs, **named : Tensor or numpy.ndarray
            In the order of `input_names`, or by name; lists of them for inputs that are sequences, None for optional ones that
            are left out.
        """
        operands = [_operand(v) for v in self._in_order(inputs, named)]
        captured = STATE.capture is None and not STATE.grad_mode and all([isinstance(v, Tensor) for v in operands])
        results = self._without_gradients(operands) if captured else self._results(operands)
        return results[0] if len(results) == 1 else tuple(results)

    def extra_repr(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        versions = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.program.opsets.items())
        return "\n".join(
            [
                *(f"input {v}" for v in self.program.body.inputs),
                *(f"output {v}" for v in self.program.body.outputs),
                f"opset {versions}; {count:,} parameters",
            ]
        )

    def __repr__(self) -> str:
        lines = self.extra_repr().replace(
            "\n", "\n  "
        )  # the modules in it only hold what the file gives names with dots
        return f"{type(self).__name__}(\n  {lines}\n)"

    def _converted(self) -> dict[np.dtype, np.dtype]:
        """What the file's floating dtypes are now."""
        return {dtype: getattr(*place).dtype.numpy for dtype, place in self._witnesses.items()}

    def _without_gradients(self, operands: Sequence[Any]) -> list[Any]:
        if self._captured is None:
            self._captured = Captured(WeakMethod(self._results))
        return self._captured(operands, self.training)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_captured": None}

    def _results(self, operands: Sequence[Any]) -> list[Any]:
        """The results, recorded operator by operator.

        What is captured is not checked again: its form holds for operands of the same shapes and dtypes.
        """
        constants = {body: dict(host) for body, host in self._host.items()}
        for body, name, module, attribute in self._places:
            constants[body][name] = getattr(module, attribute)
        if STATE.capture is not None:
            for module in self._holders:
                STATE.capture.saw(module)
        converted = self._converted()
        check_operands(self.program, operands, converted)
        interpreter = Interpreter(self.program, constants, self.training, converted)
        results = interpreter.run(self.program.body, operands, {}, self.program.opsets, {})
        results = [on_device(v) for v in results]
        check_results(self.program, results, converted)
        return results

    def _in_order(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        names = self.input_names
        if len(inputs) == len(names) and not named:
            return list(inputs)
        if len(inputs) > len(names):
            raise TypeError(f"the model has {len(names)} inputs ({', '.join(names)}), {len(inputs)} were given")
        given = dict(zip(names, inputs))
        for name, value in named.items():
            if name not in names:
                raise TypeError(f"the model has no input {name!r}; its inputs are {', '.join(names)}")
            if name in given:
                raise TypeError(f"input {name!r} was given twice")
            given[name] = value
        missing = [v.name for v in self.program.body.inputs if v.name not in given and v.kind != "optional"]
        if missing:
            raise TypeError(f"missing inputs: {', '.join(missing)}")
        return [given.get(name) for name in names]


def _on_host(array: np.ndarray, use: set[str]) -> bool:
    if not has_tensor_type(array.dtype):
        return True
    return array.size <= SMALL and (array.dtype.kind in "iub" or use == {"known"})


def _operand(value: Any) -> Any:
    if isinstance(value, list):
        return [_operand(v) for v in value]
    return on_device(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def all_bodies(program: Program) -> Iterator[Body]:
    todo = [program.body, *(f.body for f in program.functions.values())]
    while todo:
        body = todo.pop()
        yield body
        for call in body.calls:
            todo += _bodies(call)


def _check_operators(program: Program) -> None:
    """Everything the model calls is known: said when it is read, not when it is called."""
    from lezero.onnx.interpreter import _unknown

    check_functions(program)
    opsets = {f.body: f.opsets for f in program.functions.values()}
    for body in all_bodies(program):
        versions = opsets.get(body, program.opsets)
        for call in body.calls:
            if (call.domain, call.operator, call.overload) in program.functions:
                continue
            version = versions.get(call.domain, 1)
            if find(call.domain, call.operator, version) is None:
                raise _unknown(call, version)


def _uses(program: Program) -> dict[tuple[Body, str], set[str]]:
    """How each constant is used: "trained", "fixed", or "known" where it is asked for while recording, as sizes are."""
    uses: dict[tuple[Body, str], set[str]] = {}

    def visit(body: Body, around: Mapping[str, Body], opsets: Mapping[str, int]) -> None:
        owners = {n: around[n] for n in body.free if n in around} | dict.fromkeys(body.constants, body)
        for call in body.calls:
            found = find(call.domain, call.operator, opsets.get(call.domain, 1))
            for k, name in enumerate(call.inputs):
                if name in owners:
                    use = "trained" if found is None or k not in found.fixed else "known" if found.host else "fixed"
                    uses.setdefault((owners[name], name), set()).add(use)
            for inner in _bodies(call):
                visit(inner, owners, opsets)

    visit(program.body, {}, program.opsets)
    for function in program.functions.values():
        visit(function.body, {}, function.opsets)
    return uses


def as_arrays(value: Any) -> Any:
    """Results as NumPy arrays, lists of them, or None."""
    if isinstance(value, (list, tuple)):
        return [as_arrays(v) for v in value]
    return value.detach().numpy() if isinstance(value, Tensor) else value
