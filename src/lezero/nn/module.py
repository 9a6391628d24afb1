"""Module: a function with parameters, and the tree that modules form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from lezero.arguments import check_arguments
from lezero.misspelt import SpeltArguments
from lezero.nn import hooks, state
from lezero.nn.located import name_layer
from lezero.nn.parameter import Buffer, Parameter, clear_grads
from lezero.runtime import recording
from lezero.runtime.writes import assign
from lezero.tensor import Tensor, no_grad
from lezero.tensor.names import Elsewhere

M = TypeVar("M", bound="Module")


class Module(SpeltArguments):
    """The base of every layer and model: assign parameters and modules as attributes, write ``forward``.

    Examples
    --------
    >>> class Regression(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = nn.Linear(10, 1)
    ...     def forward(self, x):
    ...         return self.linear(x)

    Notes
    -----
    Parameters, buffers and children live in the instance's ``__dict__`` like any attribute, so reading one costs what
    reading an attribute costs; there is no ``__getattr__``, which would also keep the interpreter from caching lookups.
    Beside it the module keeps which *names* are registered, in order.  There is one copy of the truth.
    """

    training: bool = True
    _hooks: dict[str, dict[int, Any]] | None = None
    _parameter_names: dict[str, None]
    _buffer_names: dict[str, bool]  # name -> persistent
    _module_names: dict[str, None]
    _states_may_lack: tuple[str, ...] = ()  # buffers that older files were written without; they stay as they are

    def __new__(cls, *args: Any, **kwargs: Any):
        # Here rather than in __init__, so that a subclass may assign before it calls super().__init__().
        self = super().__new__(cls, *args, **kwargs)
        check_arguments(cls, args, kwargs)
        self.__dict__.update(_parameter_names={}, _buffer_names={}, _module_names={})
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; written by subclasses, called as ``module(...)``."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recording.capturing and recording.STATE.capture is not None:
            recording.STATE.capture.saw(self)
        try:
            if self._hooks is None:
                return self.forward(*args, **kwargs)
            return hooks.call(self, args, kwargs)
        except Exception as error:
            name_layer(self, error, args)
            raise

    # -- registration -------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        names = self.__dict__
        if hasattr(getattr(type(self), name, None), "__set__"):  # a property of the class decides for itself
            pass
        elif isinstance(value, Parameter):
            self._forget(name, keep=names["_parameter_names"])
            names["_parameter_names"][name] = None
        elif isinstance(value, Module):
            self._refuse_cycle(name, value)
            self._forget(name, keep=names["_module_names"])
            names["_module_names"][name] = None
        elif isinstance(value, Buffer):
            self._forget(name, keep=names["_buffer_names"])
            names["_buffer_names"][name] = value.persistent
        elif value is not None:
            if name in names["_parameter_names"]:
                raise TypeError(self._cannot_assign(name, value, "a parameter", "an nn.Parameter or None"))
            if name in names["_module_names"]:
                raise TypeError(self._cannot_assign(name, value, "a module", "an nn.Module or None"))
            if name in names["_buffer_names"] and not isinstance(value, Tensor):
                raise TypeError(self._cannot_assign(name, value, "a buffer", "a Tensor or None"))
        object.__setattr__(self, name, value)

    def _refuse_cycle(self, name: str, value: Module) -> None:
        # A module without children and a module still without a parent cannot close a circle; nearly all are one of them.
        if value is self or (value._module_names and any(m is self for m in value.modules())):
            raise ValueError(
                f"{type(self).__name__}.{name}: a module cannot contain itself, directly or through others"
            )

    def _cannot_assign(self, name: str, value: Any, kind: str, accepted: str) -> str:
        return f"{type(self).__name__}.{name} is {kind}: it takes {accepted}, got {type(value).__name__}"

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self._forget(name)

    def _forget(self, name: str, keep: dict | None = None) -> None:
        for registry in (self._parameter_names, self._buffer_names, self._module_names):
            if registry is not keep:
                registry.pop(name, None)

    def _register(self, kind: str, registry: dict, name: str, value: Any, option: Any = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{type(self).__name__}: the name of a {kind} is a string, got {type(name).__name__}")
        if not name or "." in name:
            raise KeyError(f"{type(self).__name__}: a {kind} cannot be named {name!r} (empty, or with a dot)")
        if name not in registry and (name in self.__dict__ or hasattr(type(self), name)):
            raise KeyError(f"{type(self).__name__} already has an attribute {name!r}")
        registry[name] = option
        self.__dict__[name] = value

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter by name; None holds the place of one that is absent (a layer without bias)."""
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(self._cannot_assign(name, param, "a parameter", "an nn.Parameter or None"))
        self._register("parameter", self._parameter_names, name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but not trained; ``persistent=False`` keeps it out of ``state_dict``."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(self._cannot_assign(name, tensor, "a buffer", "a Tensor or None"))
        self._register("buffer", self._buffer_names, name, tensor, persistent)

    def register_module(self, name: str, module: Module | None) -> None:
        """Register a child by name (also ``add_module``)."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}.{name}: a child is an nn.Module or None, got {_kind(module)}")
        if module is not None:
            self._refuse_cycle(name, module)
        self._register("module", self._module_names, name, module)

    add_module = register_module

    def _replace(self, name: str, value: Any) -> None:
        """Put another tensor under a registered name."""
        self.__dict__[name] = value

    @property
    def _parameters(self) -> dict[str, Parameter | None]:
        return {n: self.__dict__.get(n) for n in self._parameter_names}

    @property
    def _buffers(self) -> dict[str, Tensor | None]:
        return {n: self.__dict__.get(n) for n in self._buffer_names}

    @property
    def _modules(self) -> dict[str, Module | None]:
        return {n: self.__dict__.get(n) for n in self._module_names}

    # -- the tree -----------------------------------------------------------------------------------------------

    def named_modules(
        self, memo: set | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """The module itself (named `prefix`) and all below it, parents first; a shared one once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name in self._module_names:
            child = self.__dict__[name]
            if child is not None:
                yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, a shared one once."""
        for _, module in self.named_modules():
            yield module

    def named_children_all(self) -> list[tuple[str, Module | None]]:
        """Direct children by name, absent (None) and repeated ones included."""
        return [(n, self.__dict__[n]) for n in self._module_names]

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct children, a shared one once."""
        seen: set[int] = set()
        for name, child in self.named_children_all():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                yield name, child

    def children(self) -> Iterator[Module]:
        """Direct children, a shared one once."""
        for _, module in self.named_children():
            yield module

    def _named_tensors(
        self, registry: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        owners = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, owner in owners:
            values = owner.__dict__
            for name in values[registry]:
                value = values.get(name)
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with their paths; one that is tied under several names comes once, under the first."""
        return self._named_tensors("_parameter_names", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters (with `recurse`, those of modules below too), a tied one once."""
        for _, p in self.named_parameters(recurse=recurse):
            yield p

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Buffers with their paths, as ``named_parameters``."""
        return self._named_tensors("_buffer_names", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers (with `recurse`, those of modules below too), a shared one once."""
        for _, b in self.named_buffers(recurse=recurse):
            yield b

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; an empty path is the module itself."""
        module: Any = self
        for part in target.split(".") if target else ():
            child = module.__dict__.get(part) if part in module._module_names else None
            if child is None:
                near = ", ".join(module._module_names) or "no children"
                raise AttributeError(
                    f"{type(self).__name__} has no module {target!r}: {type(module).__name__} has {near}"
                )
            module = child
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path; AttributeError where there is none."""
        return self._get_tensor(target, "_parameter_names", "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path; AttributeError where there is none."""
        return self._get_tensor(target, "_buffer_names", "buffer")

    def _get_tensor(self, target: str, registry: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if name not in owner.__dict__[registry]:
            raise AttributeError(f"{type(self).__name__} has no {kind} {target!r}")
        return owner.__dict__[name]

    def apply(self: M, fn: Callable[[Module], Any]) -> M:
        """Call ``fn`` on every module below and then on this one (initialisers)."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # -- modes and placement ------------------------------------------------------------------------------------

    def train(self: M, mode: bool = True) -> M:
        """Training mode, or evaluation mode with ``train(False)``: what dropout and batch norm look at."""
        if not isinstance(mode, bool):
            raise ValueError(f"train: the mode is True or False, got {mode!r}")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Evaluation mode."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Freeze (False) or unfreeze every parameter."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every parameter's gradient, or fill it with zeros."""
        clear_grads(self.parameters(), set_to_none)

    def _convert(self: M, change: Callable[[Tensor], Tensor]) -> M:
        """Change every parameter, its gradient and every buffer in place: the objects stay the ones an optimizer holds."""
        with no_grad():
            for t in (*self.parameters(), *self.buffers()):
                if t.grad is not None:
                    t.grad = change(t.grad)
                converted = change(t)
                if converted is not t:
                    assign(t, converted)
        return self

    def to(self: M, *args: Any, **kwargs: Any) -> M:
        """Move to a device and/or convert floating-point parameters and buffers to a dtype, as ``Tensor.to``."""
        probe = _To.parse(args, kwargs)
        if probe.dtype is not None and not (probe.dtype.is_floating_point or probe.dtype.is_complex):
            raise TypeError(f"Module.to: a floating or complex dtype is needed, got {probe.dtype}")
        return self._convert(probe)

    def type(self: M, dtype: Any) -> M:
        """Convert all parameters and buffers to a dtype, in place."""
        return self._convert(lambda t: t.to(dtype))

    def float(self: M) -> M:
        """Convert floating parameters and buffers to float32, in place."""
        return self.to("float32")

    def double(self: M) -> M:
        """Convert floating parameters and buffers to float64, in place."""
        return self.to("float64")

    def half(self: M) -> M:
        """Convert floating parameters and buffers to float16, in place."""
        return self.to("float16")

    def bfloat16(self: M) -> M:
        """Convert floating parameters and buffers to bfloat16, in place."""
        return self.to("bfloat16")

    cuda = Elsewhere("cuda", "model.to(device) moves it; lz.device.devices() lists the devices there are")
    share_memory = Elsewhere("share_memory", "the DataLoader's workers hand tensors over by themselves; leave it out")
    compile = Elsewhere("compile", "every recorded step is compiled, and lz.jit(model) captures calls as one run")

    def cpu(self: M) -> M:
        """Move to the CPU, in place."""
        return self.to(device="cpu")

    # -- state --------------------------------------------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Name -> tensor for every parameter and persistent buffer; the tensors share the module's values.

        A tied parameter appears under each of its names.  ``keep_vars`` returns the parameters themselves.
        """
        return state.collect(self, {} if destination is None else destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Copy a state into the module, or change nothing and raise RuntimeError saying all that does not fit.

        Parameters
        ----------
        state_dict : mapping from name to Tensor, to NumPy's array, or to PyTorch's tensor
        strict : whether missing and unexpected names are errors; otherwise they are returned
        assign : put the given tensors in place of the module's own (dtype included) instead of copying
        """
        return state.load(self, state_dict, strict, assign)

    def get_extra_state(self) -> Any:
        """What to keep in ``state_dict`` beside tensors; a subclass that defines it defines ``set_extra_state`` too."""
        raise RuntimeError(f"{type(self).__name__} has no extra state")

    def set_extra_state(self, state: Any) -> None:
        """Take what ``get_extra_state`` gave when the state was saved; for subclasses that define both."""
        raise RuntimeError(f"{type(self).__name__} has no extra state")

    # -- hooks --------------------------------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> hooks.HookHandle:
        """``hook(module, args)`` before ``forward``; what it returns replaces the arguments."""
        return hooks.add(self, "forward_pre", hook, prepend=prepend, with_kwargs=with_kwargs)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> hooks.HookHandle:
        """``hook(module, args, output)`` after ``forward``; what it returns replaces the output."""
        return hooks.add(self, "forward", hook, prepend=prepend, with_kwargs=with_kwargs, always_call=always_call)

    def register_full_backward_pre_hook(self, hook: Callable, prepend: bool = False) -> hooks.HookHandle:
        """``hook(module, grad_output)`` when the gradient reaches the module; may return another."""
        return hooks.add(self, "backward_pre", hook, prepend=prepend)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> hooks.HookHandle:
        """``hook(module, grad_input, grad_output)`` when the gradient leaves the module; may return another `grad_input`."""
        return hooks.add(self, "backward", hook, prepend=prepend)

    def register_state_dict_pre_hook(self, hook: Callable) -> hooks.HookHandle:
        """``hook(module, prefix, keep_vars)`` before the state is gathered."""
        return hooks.add(self, "state_dict_pre", hook)

    def register_state_dict_post_hook(self, hook: Callable) -> hooks.HookHandle:
        """``hook(module, state_dict, prefix, local_metadata)`` after; it may change the dictionary."""
        return hooks.add(self, "state_dict", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable) -> hooks.HookHandle:
        """``hook(module, state_dict, prefix, local_metadata, strict, missing, unexpected, errors)`` before anything is checked."""
        return hooks.add(self, "load_state_dict_pre", hook)

    def register_load_state_dict_post_hook(self, hook: Callable) -> hooks.HookHandle:
        """``hook(module, incompatible_keys)`` after loading; it may clear entries to allow them."""
        return hooks.add(self, "load_state_dict_post", hook)

    # -- text ---------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What ``repr`` shows between the parentheses."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr().splitlines()
        lines = []
        for name, child in self.named_children_all():
            text = repr(child).replace("\n", "\n  ")
            lines.append(f"({name}): {text}")
        title = type(self).__name__
        if not lines and len(extra) <= 1:
            return f"{title}({''.join(extra)})"
        body = "\n  ".join(extra + lines)
        return f"{title}(\n  {body}\n)"


def _kind(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Module):
        return f"the class {value.__name__}; give an instance, {value.__name__}(...)"
    return type(value).__name__


class _To:
    """The change ``Module.to`` makes to each tensor: dtypes of integer tensors stay."""

    def __init__(self, dtype: Any, device: Any):
        from lezero.graph.dtype import as_dtype

        self.dtype = None if dtype is None else as_dtype(dtype)
        self.device = device

    @staticmethod
    def parse(args: tuple, kwargs: dict[str, Any]) -> _To:
        from lezero.graph.dtype import DType, as_dtype

        dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
        for k in ("non_blocking", "copy", "memory_format"):
            kwargs.pop(k, None)
        if kwargs:
            raise TypeError(f"Module.to: unknown argument {', '.join(kwargs)}")
        for a in args:
            if isinstance(a, Tensor):
                dtype, device = a.dtype, a.device
            elif isinstance(a, bool):
                pass  # non_blocking
            elif isinstance(a, DType):
                dtype = a
            elif isinstance(a, str):
                try:
                    dtype = as_dtype(a)
                except TypeError:
                    device = a
            else:
                device = a
        return _To(dtype, device)

    def __call__(self, t: Tensor) -> Tensor:
        if self.device is not None:
            t = t.to(device=self.device)
        if self.dtype is not None and (t.dtype.is_floating_point or t.dtype.is_complex):
            t = t.to(self.dtype)
        return t
