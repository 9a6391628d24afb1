"""Modules that hold others: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lezero.nn.module import Module
from lezero.nn.parameter import Parameter
from lezero.tensor import Tensor


class _Indexed(Module):
    """Children named "0", "1", … (Sequential may have other names)."""

    def _children(self) -> list[Module]:
        values = self.__dict__
        return [values[n] for n in self._module_names]

    def _name_at(self, index: Any) -> str:
        names = list(self._module_names)
        try:
            return names[operator.index(index)]
        except IndexError:
            raise IndexError(f"{type(self).__name__}: index {index} is out of range for {len(names)} modules") from None

    def _set_children(self, named: Iterable[tuple[str, Module]]) -> None:
        for name in list(self._module_names):
            delattr(self, name)
        for name, child in named:
            self.register_module(name, child)

    def __len__(self) -> int:
        return len(self._module_names)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._children())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        return self.__dict__[self._name_at(index)]

    def _slice(self, index: slice) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: int, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: an element is an nn.Module, got {type(module).__name__}")
        self.__dict__[self._name_at(index)] = module

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._module_names)
        gone = set(names[index]) if isinstance(index, slice) else {self._name_at(index)}
        named = len(names) and names != [str(i) for i in range(len(names))]
        left = [(n, self.__dict__[n]) for n in names if n not in gone]
        self._set_children(left if named else [(str(i), m) for i, (_, m) in enumerate(left)])

    def append(self, module: Module):
        """Add a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]):
        """Add modules at the end."""
        for m in list(modules):
            self.append(m)
        return self

    def insert(self, index: int, module: Module):
        """Put a module before the one at `index`."""
        children = self._children()
        if not -len(children) <= index <= len(children):
            raise IndexError(f"{type(self).__name__}: index {index} is out of range for {len(children)} modules")
        children.insert(index if index >= 0 else index + len(children), module)
        self._set_children((str(i), m) for i, m in enumerate(children))
        return self

    def pop(self, index: int = -1) -> Module:
        """Take the module at `index` out, and give it."""
        module = self[index]
        del self[index]
        return module


class Sequential(_Indexed):
    """Modules one after the other: ``Sequential(a, b)`` computes ``b(a(x))``; an OrderedDict gives them names."""

    def __init__(self, *modules: Any):
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], (list, tuple)):
            raise TypeError("Sequential: layers are given one by one, as in Sequential(*layers), not as a list")
        if len(modules) == 1 and isinstance(modules[0], (OrderedDict, dict)):
            named = list(modules[0].items())
        else:
            named = [(str(i), m) for i, m in enumerate(modules)]
        for name, module in named:
            self.register_module(name, module)

    def forward(self, input: Any) -> Any:
        values = self.__dict__
        for name in values["_module_names"]:
            input = values[name](input)
        return input

    def _slice(self, index: slice) -> Sequential:
        names = list(self._module_names)[index]
        return type(self)(OrderedDict((n, self.__dict__[n]) for n in names))

    def __add__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            raise TypeError(f"Sequential + {type(other).__name__}: only another Sequential can be added")
        return Sequential(*self, *other)


class ModuleList(_Indexed):
    """A list of modules that registers them; it has no ``forward``."""

    def __init__(self, modules: Iterable[Module] | None = None):
        super().__init__()
        if modules is not None:
            self.extend(_modules_in("ModuleList", modules))

    def _slice(self, index: slice) -> ModuleList:
        return type(self)(self._children()[index])

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(other)


class ModuleDict(Module):
    """A dictionary of modules that registers them, in order of insertion."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None):
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        if key not in self._module_names:
            raise KeyError(key)
        return self.__dict__[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.register_module(key, module)

    def __delitem__(self, key: str) -> None:
        if key not in self._module_names:
            raise KeyError(key)
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._module_names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._module_names)

    def __contains__(self, key: object) -> bool:
        return key in self._module_names

    def keys(self) -> Iterable[str]:
        """The names, in order of insertion."""
        return self._module_names.keys()

    def items(self) -> Iterable[tuple[str, Module]]:
        """(name, module), in order of insertion."""
        return self._modules.items()  # type: ignore[return-value]

    def values(self) -> Iterable[Module]:
        """The modules, in order of insertion."""
        return self._modules.values()  # type: ignore[return-value]

    def clear(self) -> None:
        """Take all modules out."""
        for key in list(self._module_names):
            delattr(self, key)

    def pop(self, key: str) -> Module:
        """Take a module out, and give it; KeyError where there is none."""
        module = self[key]
        del self[key]
        return module

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Put modules in: a dictionary, or (name, module) pairs."""
        if not isinstance(modules, Mapping):
            try:
                modules = dict(modules)
            except (TypeError, ValueError):
                raise TypeError(
                    f"ModuleDict: a dict of modules, or (name, module) pairs, got a {type(modules).__name__}"
                ) from None
        for key, module in modules.items():
            self[key] = module


def _modules_in(name: str, modules: Any) -> Iterable[Module]:
    if not isinstance(modules, Iterable):
        raise TypeError(f"{name}: a list of modules is needed, got a {type(modules).__name__}")
    return modules


def _parameter(value: Any) -> Any:
    """Tensors become parameters, as in PyTorch; anything else is kept as it is."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters that registers them; tensors put into it become parameters."""

    def __init__(self, values: Iterable[Any] | None = None):
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def _name_at(self, index: Any) -> str:
        i = operator.index(index)
        if not -self._size <= i < self._size:
            raise IndexError(f"ParameterList: index {i} is out of range for {self._size} parameters")
        return str(i % self._size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self.__dict__[str(i)] for i in range(self._size))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return self.__dict__[self._name_at(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._name_at(index), _parameter(value))

    def append(self, value: Any) -> ParameterList:
        """Put one more at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Put several more at the end."""
        for v in list(values):
            self.append(v)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(_describe(str(i), v) for i, v in enumerate(self))


class ParameterDict(Module):
    """A dictionary of parameters that registers them; tensors put into it become parameters."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None):
        super().__init__()
        self._keys: dict[str, None] = {}
        if values is not None:
            self.update(values)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return self.__dict__[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self._keys and (key in self.__dict__ or hasattr(type(self), key)):
            raise KeyError(f"ParameterDict already has an attribute {key!r}")
        self._keys[key] = None
        setattr(self, key, _parameter(value))

    def __delitem__(self, key: str) -> None:
        if key not in self._keys:
            raise KeyError(key)
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def keys(self) -> Iterable[str]:
        """The names, in order of insertion."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """(name, parameter), in order of insertion."""
        return [(k, self.__dict__[k]) for k in self._keys]

    def values(self) -> Iterable[Any]:
        """The parameters, in order of insertion."""
        return [self.__dict__[k] for k in self._keys]

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter of a name, or `default`."""
        return self.__dict__[key] if key in self._keys else default

    def pop(self, key: str) -> Any:
        """Take a parameter out, and give it; KeyError where there is none."""
        value = self[key]
        del self[key]
        return value

    def clear(self) -> None:
        """Take all parameters out."""
        for key in list(self._keys):
            del self[key]

    def update(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Put parameters in: a dictionary, or (name, parameter) pairs."""
        for key, value in dict(values).items():
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(_describe(k, v) for k, v in self.items())


def _describe(name: str, value: Any) -> str:
    if isinstance(value, Tensor):
        return f"({name}): {type(value).__name__}({', '.join(str(int(d)) for d in value.shape)}; {value.dtype.name})"
    return f"({name}): {value!r}"
