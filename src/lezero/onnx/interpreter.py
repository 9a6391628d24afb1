"""Making a program's calls, one after the other; what they compute is recorded like anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lezero.onnx.checks import check_call
from lezero.onnx.program import Body, Call, Declared, FromCaller, Function, OnnxError, Program, shown_shape
from lezero.onnx.registry import Context, find, known_domains, on_device
from lezero.runtime.jit import CaptureError
from lezero.tensor import Tensor


class Interpreter:
    """Runs bodies of a program.

    constants : by body, values of its constants (tensors, or host values)
    converted : dtypes that stand for those that the file names
    """

    def __init__(
        self, program: Program, constants: Mapping[Body, Mapping[str, Any]], training: bool,
        converted: Mapping[np.dtype, np.dtype],
    ):  # fmt: skip
        self.program, self.constants, self.training, self.converted = program, constants, training, converted

    def run(
        self, body: Body, operands: Sequence[Any], outer: Mapping[str, Any], opsets: Mapping[str, int],
        attributes: Mapping[str, Any],
    ) -> list[Any]:  # fmt: skip
        """The results of a body called with operands.

        outer : values of the body around it, by name
        attributes : of the function that the body is of
        """
        if len(operands) != len(body.inputs):
            raise OnnxError(f"the graph {body.name!r} has {len(body.inputs)} inputs, and gets {len(operands)}")
        values = {n: outer[n] for n in body.free}
        values.update(self.constants.get(body, {}))
        values.update(zip((v.name for v in body.inputs), operands))
        values[""] = None
        for call, gone in zip(body.calls, body.last):
            results = self._call(call, values, opsets, attributes)
            if any(call.outputs[len(results) :]):
                missing = f"it gives {len(results)} results, and none for {call.outputs[len(results)]!r}"
                raise _located(call, check_call(call, opsets.get(call.domain, 1)) or missing)
            values.update(zip(call.outputs, results))
            values[""] = None
            for name in gone:
                values.pop(name, None)
        return [values[v.name] for v in body.outputs]

    def _call(
        self, call: Call, values: Mapping[str, Any], opsets: Mapping[str, int], attributes: Mapping[str, Any]
    ) -> Sequence[Any]:
        operands = [values[n] for n in call.inputs]
        given = {k: attributes.get(v.name) if isinstance(v, FromCaller) else v for k, v in call.attributes.items()}
        given = {k: v for k, v in given.items() if v is not None}
        function = self.program.functions.get((call.domain, call.operator, call.overload))
        if function is not None:
            return self._call_function(function, operands, given)
        version = opsets.get(call.domain, 1)
        found = find(call.domain, call.operator, version)
        if found is None:
            raise _unknown(call, version)
        context = Context(
            call, version, lambda body, inputs: self.run(body, inputs, values, opsets, attributes), self.training,
            self.converted,
        )  # fmt: skip
        try:
            if found.on_host is not None and all(v is None or isinstance(v, np.ndarray) for v in operands):
                result = _as_array(found.on_host(*operands, **given))
            elif found.host:
                result = found.compute(context, *operands, **given)
            else:
                result = found.compute(context, *map(on_device, operands), **given)
        except CaptureError as error:
            error.add_note(f"in {call}")
            raise
        except Exception as error:
            if isinstance(error, OnnxError) and error.located:
                raise
            raise _located(call, check_call(call, version) or str(error)) from error
        return result if isinstance(result, tuple) else (result,)

    def _call_function(self, function: Function, operands: list[Any], given: dict[str, Any]) -> list[Any]:
        operands += [None] * (len(function.body.inputs) - len(operands))
        attributes = {**function.defaults, **given}
        return self.run(function.body, operands, {}, function.opsets, attributes)


def _as_array(value: Any) -> Any:
    """NumPy gives a scalar for arrays without dimensions; an integer may be a symbol, and stays one."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    return np.array(value, object) if isinstance(value, int) else value


def _located(call: Call, what: str) -> OnnxError:
    error = OnnxError(f"{call}: {what}")
    error.located = True
    return error


def _unknown(call: Call, version: int) -> OnnxError:
    if call.domain in known_domains():
        return _located(call, f"this operator is not supported in version {version} of its set")
    return _located(call, f"nothing is known of the domain {call.domain!r}")


def check_operands(program: Program, operands: Sequence[Any], converted: Mapping[np.dtype, np.dtype]) -> None:
    """Compare operands with what the model says of its inputs.

    converted : dtypes that stand for declared ones

    Raises
    ------
    OnnxError
        If an operand has another dtype, rank or extent than declared, or two inputs another extent for one symbol.
    TypeError
        If it is no tensor where one is declared.
    """
    symbols: dict[str, tuple[int, str]] = {}
    for declared, value in zip(program.body.inputs, operands):
        if declared.kind != "tensor":
            continue
        if isinstance(value, (Tensor, np.ndarray)):
            _check_operand(declared, value, symbols, converted)
        else:
            raise TypeError(f"input {declared} should be a Tensor or an array, not {type(value).__name__}")


def check_results(program: Program, results: Sequence[Any], converted: Mapping[np.dtype, np.dtype]) -> None:
    """Compare results with what the model says of its outputs.

    converted : dtypes that stand for declared ones

    Raises
    ------
    OnnxError
        If a result has another dtype or rank, or another extent where the model names a number.
    """
    for declared, value in zip(program.body.outputs, results):
        if not isinstance(value, Tensor) or declared.kind != "tensor":
            continue
        said_dtype = _now(declared, converted)
        if said_dtype is not None and value.dtype.numpy != said_dtype:
            raise OnnxError(f"output {declared.name!r} is said to be {said_dtype.name}, and is {value.dtype.name}")
        have, said = list(map(int, value.shape)), declared.shape
        if said is not None and (
            len(said) != len(have) or any(isinstance(d, int) and d != n for d, n in zip(said, have))
        ):
            raise OnnxError(f"output {declared.name!r} is said to have shape {shown_shape(said)}, and has {have}")


def _now(declared: Declared, converted: Mapping[np.dtype, np.dtype]) -> np.dtype | None:
    return None if declared.dtype is None else converted.get(declared.dtype, declared.dtype)


def _check_operand(
    declared: Declared,
    value: Tensor | np.ndarray,
    symbols: dict[str, tuple[int, str]],
    converted: Mapping[np.dtype, np.dtype],
) -> None:
    name, dtype = declared.name, _now(declared, converted)
    have = value.dtype if isinstance(value, np.ndarray) else value.dtype.numpy
    if dtype is not None and have != dtype:
        as_it_is = "" if dtype == declared.dtype else ", as the model's parameters are now"
        raise OnnxError(f"input {name!r} should be {dtype.name}{as_it_is}, not {have.name}")
    if declared.shape is None:
        return
    shown = shown_shape(declared.shape)
    shape = list(map(int, value.shape))
    if len(shape) != len(declared.shape):
        raise OnnxError(f"input {name!r} should have shape {shown}, not {shape}")
    for d, n in zip(declared.shape, shape):
        if isinstance(d, int) and d != n:
            raise OnnxError(f"input {name!r} should have shape {shown}, not {shape}")
        if isinstance(d, str):
            known, first = symbols.setdefault(d, (n, name))
            if known != n:
                raise OnnxError(
                    f"input {name!r} has shape {shape} where {shown} is wanted, and {d} is {known} in {first!r}"
                )
