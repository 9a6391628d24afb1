"""Parameters computed from others: a module under ``module.parametrizations`` makes the tensor each time it is read."""

from __future__ import annotations

from typing import Any

from lezero.nn.containers import ModuleDict, ModuleList
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter
from lezero.tensor import Tensor, no_grad


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, applied in order, and what they are computed from: `original`, or `original0` …"""

    def __init__(self, modules: list[Module], original: Tensor):
        super().__init__(modules)
        values: Any = original
        inverse: list[Any] = [m for m in reversed(modules) if hasattr(type(m), "right_inverse")]
        with no_grad():
            for m in inverse:
                values = m.right_inverse(values)
        self.is_tensor = isinstance(values, Tensor)
        trained = isinstance(original, Parameter)
        for name, value in zip(
            ["original"] if self.is_tensor else _names(values), [values] if self.is_tensor else values
        ):
            value = value.detach().clone() if value is not original else value
            if trained:
                kept = value if isinstance(value, Parameter) else Parameter(value, requires_grad=original.requires_grad)
                self.register_parameter(name, kept)
            else:
                self.register_buffer(name, value)

    def originals(self) -> list[Tensor]:
        """What the parametrised tensor is computed from."""
        if self.is_tensor:
            return [self.__dict__["original"]]
        return [v for k, v in self.__dict__.items() if k.startswith("original")]

    def forward(self) -> Tensor:
        first, *rest = self
        value = first(*self.originals())
        for m in rest:
            value = m(value)
        return value


def _names(values: Any) -> list[str]:
    return [f"original{i}" for i in range(len(values))]


def is_parametrized(module: Any, tensor_name: str | None = None) -> bool:
    """Whether a tensor of the module (or any) is parametrized."""
    table = module.__dict__.get("parametrizations")
    return isinstance(table, ModuleDict) and (bool(table) if tensor_name is None else tensor_name in table)


def register_parametrization(module: Any, tensor_name: str, parametrization: Module) -> Module:
    """Let ``module.<tensor_name>`` be ``parametrization(original)`` from here on.

    The original is ``module.parametrizations.<tensor_name>.original``; a parametrization with ``right_inverse`` computes it
    from the present value (several originals, if that returns a tuple), and makes assigning to the tensor possible.
    """
    if is_parametrized(module, tensor_name):
        module.parametrizations[tensor_name].append(parametrization)
        return module
    tensor = module.__dict__.get(tensor_name)
    if tensor is None or tensor_name not in (*module._parameter_names, *module._buffer_names):
        raise ValueError(
            f"register_parametrization: {type(module).__name__} has no parameter or buffer {tensor_name!r}"
        )
    made = ParametrizationList([parametrization], tensor)
    shape = tuple(made().shape)
    if shape != tuple(tensor.shape):
        raise ValueError(
            f"register_parametrization: the parametrization gives shape {shape}, {tensor_name} has {tuple(tensor.shape)}"
        )
    delattr(module, tensor_name)
    if not is_parametrized(module):
        base = type(module)
        module.__class__ = type(f"Parametrized{base.__name__}", (base,), {"_parametrized_base": base})
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = made
    setattr(
        type(module), tensor_name, property(lambda self: self.parametrizations[tensor_name](), _assign(tensor_name))
    )
    return module


def _assign(name: str) -> Any:
    def assign(self: Any, value: Any) -> None:
        made = self.parametrizations[name]
        with no_grad():
            for m in reversed(list(made)):
                value = m.right_inverse(value)
            for have, new in zip(made.originals(), [value] if made.is_tensor else value):
                have.copy_(new)

    return assign


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make the tensor an ordinary parameter again, with its present value (or the original one)."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"remove_parametrizations: {tensor_name!r} of {type(module).__name__} is not parametrized")
    made = module.parametrizations[tensor_name]
    if not leave_parametrized and not made.is_tensor:
        raise ValueError(
            "remove_parametrizations: several originals cannot take the tensor's place; use leave_parametrized=True"
        )
    original = made.originals()[0]
    with no_grad():
        value = getattr(module, tensor_name).clone() if leave_parametrized else original
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if isinstance(original, Parameter):
        module.register_parameter(
            tensor_name, value if value is original else Parameter(value.detach(), original.requires_grad)
        )
    else:
        module.register_buffer(tensor_name, value)
    if not module.parametrizations:
        del module.parametrizations
        module.__class__ = type(module)._parametrized_base
    return module
