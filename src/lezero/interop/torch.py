"""PyTorch's modules as LeZero's, by way of ``torch.export``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lezero import nn
from lezero.interop.aten import find
from lezero.nn.nested import parent_of
from lezero.tensor import Tensor, tensor


class ConversionError(ValueError):
    """A module that cannot be converted; the message names the operation and the line that called it."""


def from_torch(module: Any, example: Any, *, dynamic_shapes: Any = "auto") -> TorchModule:
    """A PyTorch module as a LeZero module, which trains and infers.

    Parameters
    ----------
    module : torch.nn.Module
        It is exported twice, for training and for inference; which of them runs is decided by ``.train()`` and ``.eval()`` as
        for any module.
    example : torch.Tensor, or a tuple of them
        Arguments of ``module.forward``.
    dynamic_shapes : optional
        As in ``torch.export.export``; by default every extent that may differ from call to call does.

    Returns
    -------
    TorchModule
        Parameters and buffers have the names they have in `module`, and copies of its values: ``load_state_dict`` takes what
        either of them saves.

    Raises
    ------
    ConversionError
        If the module uses an operation that LeZero lacks, or ``torch.export`` refuses it.
    ImportError
        If PyTorch is missing.
    """
    try:
        import torch
    except ImportError:
        raise ImportError("from_torch needs PyTorch, which is not installed") from None
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: a torch.nn.Module is needed, got {type(module).__name__}")
    args = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    was_training = module.training
    programs = {}
    for training in (True, False):
        copied = copy.deepcopy(module).train(training)
        programs[training] = _Program(_exported(torch, copied, args, dynamic_shapes))
    made = TorchModule(programs, _values(torch, module))
    return made.train(was_training)


def _exported(torch: Any, module: Any, args: tuple[Any, ...], dynamic: Any) -> Any:
    auto = torch.export.Dim.AUTO
    shapes = tuple({k: auto for k in range(a.ndim)} if isinstance(a, torch.Tensor) else None for a in args)
    try:
        return torch.export.export(module, args, dynamic_shapes=shapes if dynamic == "auto" else dynamic)
    except Exception as error:
        raise ConversionError(
            f"torch.export refuses {type(module).__name__}: {str(error).strip().splitlines()[0]}"
        ) from error


def _values(torch: Any, module: Any) -> dict[str, tuple[np.ndarray, bool, bool]]:
    """name -> (value, whether it is a parameter, whether a gradient is wanted)."""
    found = {n: (_array(torch, p), True, p.requires_grad) for n, p in module.named_parameters()}
    return found | {n: (_array(torch, b), False, False) for n, b in module.named_buffers()}


def _array(torch: Any, t: Any) -> np.ndarray:
    t = t.detach().cpu().contiguous()
    if t.dtype is torch.bfloat16:
        import ml_dtypes

        return t.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy()


@dataclass(frozen=True)
class _Value:
    """The result of an earlier call, or an input."""

    name: str


class _Program:
    """Calls in order, with their functions found.

    sources : for each of the graph's placeholders what it is: ("input", None), ("state", name) or ("constant", value)
    """

    def __init__(self, exported: Any):
        self.sources: list[tuple[str, str, Any]] = []
        self.calls: list[tuple[str, Callable[..., Any], Any, Any, bool]] = []
        signature = exported.graph_signature
        kinds = {s.arg.name: s for s in signature.input_specs if hasattr(s.arg, "name")}
        self.outputs: Any = None
        for node in exported.graph.nodes:
            if node.op == "placeholder":
                self._source(node, kinds.get(node.name), exported)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self.outputs = _frozen(node.args[0])
            else:
                raise ConversionError(f"{node.op} {node.target} is not supported")
        self.last = self._last_uses()
        self.spec = getattr(exported, "call_spec", None) and exported.call_spec.out_spec

    def _source(self, node: Any, spec: Any, exported: Any) -> None:
        kind = spec.kind.name if spec is not None else "USER_INPUT"
        if kind in ("PARAMETER", "BUFFER"):
            self.sources.append((node.name, "state", spec.target))
        elif kind == "CONSTANT_TENSOR":
            self.sources.append((node.name, "constant", tensor(exported.constants[spec.target].detach().numpy())))
        else:
            self.sources.append((node.name, "input", None))

    def _call(self, node: Any) -> None:
        target = node.target
        name = getattr(getattr(target, "overloadpacket", None), "__name__", None)
        if name is None:
            if getattr(target, "__module__", "") not in ("_operator", "math", "builtins"):
                raise ConversionError(f"{target} is not supported{_where(node)}")
            found: Callable[..., Any] | None = target
        else:
            found = find(name)
        if found is None:
            raise ConversionError(f"LeZero has no aten.{name}{_where(node)}")
        kwargs = {k: v for k, v in node.kwargs.items() if k not in ("pin_memory", "layout", "device")}
        inplace = name is not None and name.endswith("_") and not name.startswith("_")
        self.calls.append((node.name, found, _frozen(node.args), _frozen(kwargs), inplace))

    def _last_uses(self) -> list[tuple[str, ...]]:
        seen = set(_names_in(self.outputs))
        last = []
        for name, _, args, kwargs, _ in reversed(self.calls):
            gone = {n for n in (*_names_in(args), *_names_in(kwargs), name) if n not in seen}
            seen |= gone
            last.append(tuple(gone))
        return last[::-1]

    def run(self, inputs: tuple[Any, ...], state: Mapping[str, Any]) -> Any:
        values: dict[str, Any] = {}
        rest = iter(inputs)
        for name, kind, what in self.sources:
            values[name] = next(rest) if kind == "input" else state[what] if kind == "state" else what
        for (name, function, args, kwargs, inplace), gone in zip(self.calls, self.last):
            operands = _filled(args, values)
            result = function(*operands, **_filled(kwargs, values))
            if inplace and isinstance(result, Tensor) and result is not operands[0]:
                result = operands[0].copy_(result)
            values[name] = result
            for n in gone:
                values.pop(n, None)
        return _filled(self.outputs, values)


def _where(node: Any) -> str:
    trace = (node.meta or {}).get("stack_trace") or ""
    lines = [line.strip() for line in trace.strip().splitlines() if line.strip().startswith("File")]
    return f" ({lines[-1]})" if lines else ""


def _frozen(value: Any) -> Any:
    """Arguments with nodes as names, and PyTorch's types as ours."""
    if isinstance(value, (list, tuple)):
        return type(value)(_frozen(v) for v in value) if type(value) in (list, tuple) else [_frozen(v) for v in value]
    if isinstance(value, dict):
        return {k: _frozen(v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(_frozen(value.start), _frozen(value.stop), _frozen(value.step))
    if hasattr(value, "op") and hasattr(value, "target"):
        return _Value(value.name)
    return value


def _names_in(value: Any) -> list[str]:
    if isinstance(value, _Value):
        return [value.name]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _names_in(v)]
    if isinstance(value, dict):
        return [n for v in value.values() for n in _names_in(v)]
    return []


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, _Value):
        return values[value.name]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(v, values) for v in value)
    if isinstance(value, dict):
        return {k: _filled(v, values) for k, v in value.items()}
    return value


class TorchModule(nn.Module):
    """What :func:`from_torch` gives: called like the module it was made from; outputs in the same structure."""

    def __init__(self, programs: dict[bool, _Program], values: Mapping[str, tuple[np.ndarray, bool, bool]]):
        super().__init__()
        self._programs = programs
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for name, (array, trained, wanted) in values.items():
            at, last = parent_of(self, name)
            value = tensor(array)
            setattr(at, last, nn.Parameter(value, requires_grad=wanted) if trained else nn.Buffer(value))
            self._places[name] = at, last

    def forward(self, *inputs: Any) -> Any:
        state = {name: getattr(module, attribute) for name, (module, attribute) in self._places.items()}
        program = self._programs[self.training]
        results = program.run(inputs, state)
        if program.spec is not None and len(results) > 1:
            return program.spec.unflatten(list(results)) if hasattr(program.spec, "unflatten") else tuple(results)
        return results[0] if len(results) == 1 else tuple(results)
