"""A graph of ``torch.export`` as calls of LeZero's functions."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import lezero as lz
from lezero.interop import images  # noqa: F401 -- registers its operations
from lezero.interop.aten import as_dtype, find
from lezero.tensor import Tensor, no_grad, tensor


class ConversionError(ValueError):
    """A module that cannot be converted; the message names the operation, the module and the line that called it."""


@dataclass(frozen=True)
class _Value:
    """The result of an earlier call, or an input."""

    name: str


@dataclass(frozen=True)
class _Call:
    name: str
    found: partial[Any]  # gives the function, which is often made here and cannot be pickled
    args: Any
    kwargs: Any
    written: Any  # the value that the result is written into, None for a value of its own
    results: int
    what: str  # for messages
    last: tuple[str, ...] = ()  # values that nothing needs afterwards

    @cached_property
    def function(self) -> Callable[..., Any]:
        return self.found()

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class Program:
    """Calls in order, with their functions found.

    Parameters
    ----------
    graph : torch.fx.Graph
    exported : torch.export.ExportedProgram, or None for the graph of a branch or a region, all of whose placeholders are inputs

    Attributes
    ----------
    in_spec, out_spec : how PyTorch flattens arguments and results; None without `exported`
    """

    def __init__(self, graph: Any, exported: Any = None):
        self._sources: list[tuple[str, str, Any]] = []  # (name, "input", "state" or "constant", which)
        self._written: list[str | None] = []  # for each output the buffer that it is the new value of
        calls: list[_Call] = []
        kinds: dict[str, Any] = {}
        self.in_spec = self.out_spec = None
        if exported is not None:
            kinds = {s.arg.name: s for s in exported.graph_signature.input_specs}
            self._written = [
                s.target if s.kind.name == "BUFFER_MUTATION" else None for s in exported.graph_signature.output_specs
            ]
            self.in_spec, self.out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
        for node in graph.nodes:
            if node.op == "placeholder":
                self._sources.append((node.name, *_source(node, kinds.get(node.name), exported)))
            elif node.op == "get_attr":
                self._sources.append((node.name, "constant", _attribute(graph.owning_module, node.target)))
            elif node.op == "call_function":
                calls.append(_call(node))
            elif node.op == "output":
                self._outputs = _frozen(node.args[0])
        self._calls = _with_last_uses(calls, self._outputs)

    def __deepcopy__(self, memo: Any) -> Program:
        return self  # nothing in it changes

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"in_spec": pickle.dumps(self.in_spec), "out_spec": pickle.dumps(self.out_spec)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            # PyTorch's structures of a single value warn of their own class whenever they are unpickled.
            warnings.filterwarnings("ignore", "`isinstance\\(treespec, LeafSpec", FutureWarning)
            specs = {name: pickle.loads(state[name]) for name in ("in_spec", "out_spec")}
        self.__dict__.update(state | specs)

    def run(self, inputs: Sequence[Any], state: Mapping[str, Any]) -> list[Any]:
        """The outputs, flat, for inputs, flat too."""
        values: dict[str, Any] = {}
        rest = iter(inputs)
        for name, kind, what in self._sources:
            if kind == "input":
                values[name] = given = next(rest)
                _check(given, what, name)
            else:
                values[name] = state[what] if kind == "state" else what
        for call in self._calls:
            operands = _filled(call.args, values)
            try:
                result = call.function(*operands, **_filled(call.kwargs, values))
                if call.results > 1 and not isinstance(result, tuple):
                    raise TypeError(f"{call.results} results are needed, and LeZero's function gives one")
            except Exception as error:
                error.add_note(f"in {call.what}")
                raise
            written = _filled(call.written, values)
            if written is not None and isinstance(result, Tensor) and result is not written:
                result = written.copy_(result)
            values[call.name] = result
            for n in call.last:
                values.pop(n, None)
        results = list(_filled(self._outputs, values))
        for target, result in zip(self._written, results):
            if target is not None:
                with no_grad():
                    state[target].copy_(result)
        return [r for k, r in enumerate(results) if k >= len(self._written) or self._written[k] is None]


def _source(node: Any, spec: Any, exported: Any) -> tuple[str, Any]:
    """What a placeholder stands for; of an input, what it must be: its extents, None for any, or the value it was exported with."""
    kind = spec.kind.name if spec is not None else "USER_INPUT"
    if kind in ("PARAMETER", "BUFFER"):
        return "state", spec.target
    if kind == "CONSTANT_TENSOR":
        return "constant", tensor(exported.constants[spec.target].detach().numpy())
    if kind != "USER_INPUT":
        raise ConversionError(f"an input of kind {kind} is not supported")
    if spec is not None and hasattr(spec.arg, "value"):
        return "input", spec.arg.value
    shape = getattr(node.meta.get("val"), "shape", None)
    return "input", None if shape is None else tuple([d if type(d) is int else None for d in shape])


def _check(given: Any, wanted: Any, name: str) -> None:
    """Refuse what the program was not exported for."""
    if isinstance(wanted, tuple) and isinstance(given, Tensor):
        if len(wanted) != given.ndim or any(w is not None and w != d for w, d in zip(wanted, given.shape)):
            shape = ", ".join("any" if w is None else str(w) for w in wanted)
            raise ValueError(
                f"{name}: converted for the shape ({shape}), got {tuple(given.shape)}; extents are fixed where the example's "
                f"is 1 (give one of 2 or more), where the module's code compares them, or by dynamic_shapes"
            )
    elif not isinstance(wanted, tuple) and not isinstance(given, Tensor) and given != wanted:
        raise ValueError(f"{name}: numbers and flags are part of what was converted: {wanted!r}, got {given!r}")
    elif type(given).__module__.split(".")[0] == "torch":
        raise TypeError(f"{name}: a tensor of LeZero's is needed, such as lz.tensor(x.numpy())")


def _attribute(module: Any, target: str) -> Any:
    found = module
    for part in target.split("."):
        found = getattr(found, part)
    return Program(found.graph) if hasattr(found, "graph") else tensor(found.detach().numpy())


def _call(node: Any) -> _Call:
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    name = getattr(packet or target, "__name__", str(target))
    if packet is not None:
        found: partial[Any] = partial(find, name, [a.name for a in target._schema.arguments])
        known = str(target).startswith("aten.") and found() is not None
    elif getattr(target, "__module__", "") in ("_operator", "math", "builtins"):
        found, known = partial(_itself, target), True
    else:
        found, known = partial(_region, name), name in _REGIONS
    what = f"{str(packet or target).split('.default')[0]}{_where(node)}"
    if not known:
        raise ConversionError(f"LeZero has no {what}")
    kwargs = {k: v for k, v in node.kwargs.items() if k not in ("pin_memory", "layout", "device", "out")}
    in_place = packet is not None and name.endswith("_") and not name.startswith("_")
    written = node.args[0] if in_place else node.kwargs.get("out")
    results = len(target._schema.returns) if packet is not None else 1
    return _Call(node.name, found, _frozen(node.args), _frozen(kwargs), _frozen(written), results, what)


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _region(name: str) -> Callable[..., Any]:
    return _REGIONS[name]


def _where(node: Any) -> str:
    """The module that called an operation, and the line: the last one that is not PyTorch's own."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    module = next((f", in {path} ({str(kind).split('.')[-1]})" for path, kind in modules[::-1][:1] if path), "")
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File")]
    own = str(Path("site-packages") / "torch")
    line = next((x for x in lines[::-1] if own not in x), lines[-1] if lines else "")
    return module + (f" ({line})" if line else "")


def _with_last_uses(calls: list[_Call], outputs: Any) -> list[_Call]:
    seen = set(_names_in(outputs))
    found = []
    for c in reversed(calls):
        gone = {n for n in (*_names_in((c.args, c.kwargs, c.written)), c.name) if n not in seen}
        seen |= gone
        found.append(replace(c, last=tuple(gone)))
    return found[::-1]


# -- parts of a program that are run as one -----------------------------------------------------------------------


def _branch(condition: Any, yes: Program, no: Program, operands: Sequence[Any] = ()) -> list[Any]:
    """``torch.cond``: the condition is read, so a function with one is not for ``lz.jit``."""
    return (yes if bool(condition) else no).run(operands, {})


def _gradients(enabled: bool, region: Program, *operands: Any) -> list[Any]:
    with lz.set_grad_enabled(enabled):
        return region.run(operands, {})


def _precision(device: str, dtype: Any, enabled: bool, cache: bool, region: Program, *operands: Any) -> list[Any]:
    with lz.amp.autocast("cpu", dtype=as_dtype(dtype), enabled=enabled):
        return region.run(operands, {})


def _checkpointed(region: Program, *operands: Any, **_: Any) -> list[Any]:
    return lz.checkpoint(region.run, operands, {})


_REGIONS: dict[str, Callable[..., Any]] = {
    "cond": _branch,
    "wrap_with_set_grad_enabled": _gradients,
    "wrap_with_autocast": _precision,
    "tag_activation_checkpoint": _checkpointed,
}


# -- arguments ----------------------------------------------------------------------------------------------------


def _frozen(value: Any) -> Any:
    """Arguments with nodes as names."""
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
    if isinstance(value, slice):
        return _names_in((value.start, value.stop, value.step))
    return []


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, _Value):
        return values[value.name]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(v, values) for v in value)
    if isinstance(value, dict):
        return {k: _filled(v, values) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(_filled(v, values) for v in (value.start, value.stop, value.step)))
    return value
