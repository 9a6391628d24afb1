"""A module's state as a dictionary from name to tensor, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lezero.nn import hooks
from lezero.nn.parameter import Parameter, constant_tensor
from lezero.tensor import Tensor, no_grad

if TYPE_CHECKING:
    from lezero.nn.module import Module

EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict(strict=False)`` passed over."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def collect(module: Module, into: dict[str, Any], prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Fill `into` with the state of the module and of everything below it."""
    for hook, _ in hooks.of(module, "state_dict_pre"):
        hook(module, prefix, keep_vars)
    for name, value in own_tensors(module):
        into[prefix + name] = value if keep_vars else value.detach()
    if has_extra(module):
        into[prefix + EXTRA] = module.get_extra_state()
    for name, child in module.named_children_all():
        if child is not None:
            child.state_dict(destination=into, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook, _ in hooks.of(module, "state_dict"):
        hook(module, into, prefix, {})
    return into


def own_tensors(module: Module) -> list[tuple[str, Tensor]]:
    """The module's own parameters and persistent buffers, in order of registration."""
    values = module.__dict__
    names = [*module._parameter_names, *(n for n, persistent in module._buffer_names.items() if persistent)]
    pairs = [(n, values.get(n)) for n in names]
    return [(n, v) for n, v in pairs if v is not None]


def has_extra(module: Module) -> bool:
    from lezero.nn.module import Module

    return type(module).get_extra_state is not Module.get_extra_state


def takes_extra(module: Module) -> bool:
    from lezero.nn.module import Module

    return type(module).set_extra_state is not Module.set_extra_state


def load(module: Module, state: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Check everything, then write everything: a module is never left half-loaded."""
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: a mapping from name to tensor is needed, got {type(state).__name__}")
    state = {name: _taken_over(value) for name, value in state.items()}
    missing: list[str] = []
    errors: list[str] = []
    extra_unexpected: list[str] = []
    writes: list[tuple[Module, str, Tensor, Tensor]] = []
    extras: list[tuple[Module, Any]] = []
    expected: set[str] = set()
    # A tied parameter has several names; each is checked, and the last one given wins.
    for path, owner in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for hook, _ in hooks.of(owner, "load_state_dict_pre"):
            hook(owner, state, prefix, {}, strict, missing, extra_unexpected, errors)
        for name, have in own_tensors(owner):
            key = prefix + name
            expected.add(key)
            if key not in state:
                if name not in owner._states_may_lack:
                    missing.append(key)
                continue
            new = state[key]
            if isinstance(new, (np.ndarray, np.generic)):
                try:
                    new = constant_tensor(np.asarray(new))
                except TypeError as error:
                    errors.append(f"{key}: {error}")
                    continue
            if not isinstance(new, Tensor):
                errors.append(f"{key}: expected a tensor or an array, got {type(new).__name__}")
            elif tuple(new.shape) != tuple(have.shape):
                errors.append(f"{key}: the module has shape {_shape(have)}, the state has {_shape(new)}")
            elif new.dtype.is_complex and not have.dtype.is_complex:
                errors.append(f"{key}: the module has dtype {have.dtype}, the state has {new.dtype}")
            else:
                writes.append((owner, name, have, new))
        if takes_extra(owner):
            expected.add(prefix + EXTRA)
            if prefix + EXTRA in state:
                extras.append((owner, state[prefix + EXTRA]))
            else:
                missing.append(prefix + EXTRA)
    unexpected = [*extra_unexpected, *(str(k) for k in state if k not in expected)]
    if errors or (strict and (missing or unexpected)):
        complaint = _complaint(module, missing if strict else [], unexpected if strict else [], errors)
        raise RuntimeError(complaint + _inside(state, expected))

    with no_grad():
        for owner, name, have, new in writes:
            if assign:
                owner._replace(name, _assigned(have, new))
            else:
                have.copy_(new)
    for owner, value in extras:
        owner.set_extra_state(value)
    result = IncompatibleKeys(missing, unexpected)
    for _, owner in module.named_modules():
        for hook, _ in hooks.of(owner, "load_state_dict_post"):
            if hook(owner, result) is not None:
                raise TypeError("load_state_dict: a post hook changes the IncompatibleKeys in place and returns None")
    if strict and any(result):
        raise RuntimeError(_complaint(module, missing, unexpected, []))
    return result


def _taken_over(value: Any) -> Any:
    """A copy of PyTorch's tensor or another library's array, whose gradients end here; ours and NumPy's as they are."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)) or not hasattr(value, "__dlpack__"):
        return value
    from lezero.tensor import tensor

    detach = getattr(value, "detach", None)
    return constant_tensor(tensor(value if detach is None else detach()).numpy())


def _inside(state: Mapping[str, Any], expected: set[str]) -> str:
    """Where in a larger dictionary, such as a trainer's checkpoint, the state is, or what stands before all its names."""
    found = [k for k, v in state.items() if isinstance(v, Mapping) and expected & v.keys()]
    if found:
        return f"\n  did you mean load_state_dict(state[{found[0]!r}])?"
    first = next(iter(state), "")
    prefix = next((f"{p}." for p in _PREFIXES if str(first).startswith(f"{p}.")), "")
    if prefix and expected & {str(k).removeprefix(prefix) for k in state} and first not in expected:
        return f"\n  did you mean load_state_dict({{k.removeprefix({prefix!r}): v for k, v in state.items()}})?"
    return ""


_PREFIXES = "module", "_orig_mod", "model"
"""What DataParallel, torch.compile and PyTorch Lightning put before the names of a module."""


def _assigned(have: Tensor, new: Tensor) -> Tensor:
    if not isinstance(have, Parameter):
        new.realize()._dynamic = ()  # the extents of what a module owns are no symbols
        return new
    return new if isinstance(new, Parameter) else Parameter(new, requires_grad=have.requires_grad)


def _shape(t: Tensor) -> str:
    return str(tuple(int(d) for d in t.shape))


def _complaint(module: Module, missing: list[str], unexpected: list[str], errors: list[str]) -> str:
    lines = [f"load_state_dict: the state does not fit {type(module).__name__}, and nothing was loaded"]
    if errors:
        lines += ["  mismatched:", *(f"    {e}" for e in errors)]
    if missing:
        lines.append(f"  missing: {', '.join(missing)}")
    if unexpected:
        lines.append(f"  unexpected: {', '.join(unexpected)}")
    if (missing or unexpected) and not errors:
        lines.append("  strict=False loads what matches and returns the rest")
    return "\n".join(lines)
