"""What every optimizer has: parameter groups, state, and a ``step`` that ends the recorded training step."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lezero import runtime
from lezero.misspelt import SpeltArguments
from lezero.nn.hooks import HookHandle
from lezero.nn.parameter import clear_grads
from lezero.optim.recording import share_counts
from lezero.runtime.recording import STATE
from lezero.runtime.replay import replayed
from lezero.runtime.sites import on_line
from lezero.tensor import Tensor, enable_grad, make_parameter, tensor

ParamsT = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class _Required:
    def __repr__(self) -> str:
        return "<required>"


required = _Required()


class Optimizer(SpeltArguments):
    """The base class; an optimizer of your own defines ``step``.

    Parameters
    ----------
    params : iterable of Tensors, of (name, Tensor) pairs, or of dicts with ``"params"`` and their own hyper-parameters
    defaults : dict
        Hyper-parameters of groups that do not give their own.

    Examples
    --------
    >>> class SignSGD(optim.Optimizer):
    ...     def __init__(self, params, lr=1e-3):
    ...         super().__init__(params, {"lr": lr})
    ...     @lz.no_grad()
    ...     def step(self, closure=None):
    ...         for group in self.param_groups:
    ...             for p in group["params"]:
    ...                 if p.grad is not None:
    ...                     p.add_(p.grad.sign(), alpha=-group["lr"])

    Notes
    -----
    ``step`` records the updates; when the outermost one returns, what was recorded since the last step runs.
    """

    _replays = False  # whether a step with equal signatures records equal operations (true of those in this package)

    def __init__(self, params: ParamsT, defaults: dict[str, Any]):
        if isinstance(params, Tensor):
            raise TypeError(
                f"{type(self).__name__}: an iterable of tensors or of dicts is needed; give [tensor] for one tensor"
            )
        if not isinstance(params, Iterable):
            raise TypeError(
                f"{type(self).__name__}: an iterable of tensors or of dicts is needed, got a {type(params).__name__}{_hint(params)}"
            )
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        self._stepping = self._stepped = False
        self._segments: dict[Any, Any] = {}
        self._pre_hooks: dict[int, Any] = {}
        self._post_hooks: dict[int, Any] = {}
        groups = list(params)
        if not groups:
            raise ValueError(f"{type(self).__name__}: got an empty list of parameters")
        if not any(value is required for value in defaults.values()):
            self._check(type(self).__name__, defaults)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)
        # Initial values are computed here: the first step then records what every other step records.
        runtime.realize(*(p for group in self.param_groups for p in group["params"]))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls._replays = cls.__dict__.get("_replays", False)  # what is known of another step says nothing of this one
            cls.step = _ending_step(cls.__dict__["step"])  # type: ignore[method-assign]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters from their gradients.  `closure` clears them, computes the loss, calls ``backward`` and returns it."""
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    def _signature(self) -> tuple[Any, list[Tensor]]:
        """What decides the operations a step records: (a key of everything that is no run-time input, the tensors it reads)."""
        reads: list[Tensor] = []
        key: list[Any] = []
        state = self.state
        for group in self.param_groups:
            key += [_decides(v) for v in group.values()]
            for p in group["params"]:
                grad = p._grad
                if grad is None:
                    key.append(None)
                    continue
                reads += (p, grad)
                key.append(id(p))
                key += map(id, state[p].values()) if p in state else (0,)
        skip = STATE.skip_update
        key += (STATE.autocast, skip is None)
        if skip is not None:
            reads.append(skip)
        return tuple(key), reads

    def _structure(self) -> list[Any]:
        """What decides the operations of a step besides the gradients that are there."""
        found: list[Any] = []
        state = self.state
        for group in self.param_groups:
            found += [_decides(v) for v in group.values()]
            for p in group["params"]:
                found.append(id(p))
                if p in state:
                    found += map(id, state[p].values())
        return found

    def _on_line(self, step: Callable) -> Any:
        with on_line():
            return step(self)

    @staticmethod
    def _loss(closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            return None
        with enable_grad():
            return closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the parameters' gradients (the default), or fill them with zeros."""
        for group in self.param_groups:
            clear_grads(group["params"], set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: ``{"params": [...], "lr": ...}``; what it does not give comes from the defaults."""
        name = type(self).__name__
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f'{name}: a parameter group is a dict with "params", got {type(param_group).__name__}')
        group = dict(param_group)
        params = group["params"]
        if isinstance(params, Tensor):
            params = [params]
        if not isinstance(params, Iterable):
            raise TypeError(f'{name}: "params" are tensors, got a {type(params).__name__}{_hint(params)}')
        if isinstance(params, (set, frozenset)):
            raise TypeError(f"{name}: parameters need an order; give a list instead of a set")
        params = list(params)
        if params and all(isinstance(p, tuple) and len(p) == 2 for p in params):
            group["param_names"] = [n for n, _ in params]
            params = [p for _, p in params]
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"{name}: a parameter is a Tensor, got {type(p).__name__}{_hint(p)}")
            if not p.is_leaf:
                raise ValueError(
                    f"{name}: a tensor of shape {tuple(p.shape)} is the result of an operation, not a leaf to train"
                )
        group["params"] = params
        for key, default in self.defaults.items():
            if default is required and key not in group:
                raise ValueError(f"{name}: a parameter group without {key!r}")
            group.setdefault(key, default)
        self._check(f"{name}, parameter group {len(self.param_groups)}", group)
        taken = {id(p) for g in self.param_groups for p in g["params"]}
        ids = [id(p) for p in params]
        if len(set(ids)) != len(ids):
            raise ValueError(
                f"{name}: a parameter appears twice in one group (tied weights come once in model.parameters())"
            )
        if not taken.isdisjoint(ids):
            raise ValueError(f"{name}: a parameter appears in two groups")
        self.param_groups.append(group)

    def _check(self, name: str, group: dict[str, Any]) -> None:
        """Raise for hyper-parameters that cannot be; the message begins with `name`."""

    # -- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """``{"state": {index: {...}}, "param_groups": [...]}``, parameters numbered in order (as PyTorch's)."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
            packed = {k: v for k, v in group.items() if k != "params"}
            packed["params"] = [numbers[id(p)] for p in group["params"]]
            groups.append(packed)
        return {"state": {numbers[id(p)]: dict(s) for p, s in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; raises ValueError, and changes nothing, if it belongs to another model.

        Values are taken over, not the tensors; those of a floating dtype take their parameter's (the step count keeps its own).
        """
        name = type(self).__name__
        try:
            saved_groups, saved_state = list(state_dict["param_groups"]), state_dict["state"]
        except (TypeError, KeyError):
            raise ValueError(
                f"{name}.load_state_dict: not an optimizer's state (it has no 'param_groups' and 'state')"
            ) from None
        mine = [len(g["params"]) for g in self.param_groups]
        theirs = [len(g["params"]) for g in saved_groups]
        if mine != theirs:
            raise ValueError(
                f"{name}.load_state_dict: the state of another model: its groups hold {theirs} parameters, "
                f"this optimizer's hold {mine}"
            )
        by_number = {n: p for g, s in zip(self.param_groups, saved_groups) for n, p in zip(s["params"], g["params"])}
        state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        for key, values in saved_state.items():
            n = int(key) if isinstance(key, str) and key.isdigit() else key  # JSON turns numbers into strings
            if n not in by_number:
                raise ValueError(f"{name}.load_state_dict: state for parameter {key!r}, which no group lists")
            p = by_number[n]
            state[p] = {k: self._restored(n, p, k, v) for k, v in values.items()}
        share_counts(list(state.values()))
        # In place: a captured step reads hyper-parameters from these dicts.
        for group, saved in zip(self.param_groups, saved_groups):
            group.update(copy.deepcopy({k: v for k, v in saved.items() if k != "params"}))
        self.state = state

    def _restored(self, number: int, p: Tensor, key: str, value: Any) -> Any:
        if not isinstance(value, Tensor) and hasattr(value, "__array__"):
            value = tensor(value)
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if value.ndim and self._matches_parameter(key) and tuple(value.shape) != tuple(p.shape):
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: the state of another model: {key!r} of parameter {number} has shape "
                f"{tuple(value.shape)}, the parameter has {tuple(p.shape)}"
            )
        if key != "step" and p.dtype.is_floating_point and value.dtype.is_floating_point:
            value = value.to(p.dtype)
        return make_parameter(Tensor, value, False)  # shared, and without symbols among its extents

    def _matches_parameter(self, key: str) -> bool:
        """Whether the state entry `key` has its parameter's shape; an optimizer with other entries overrides this."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _stepping=False, _stepped=False, _segments={}, _pre_hooks={}, _post_hooks={})

    # -- hooks --------------------------------------------------------------------------------------------------

    def register_step_pre_hook(self, hook: Callable) -> HookHandle:
        """``hook(optimizer, args, kwargs)`` before a step."""
        return self._hook(self._pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable) -> HookHandle:
        """``hook(optimizer, args, kwargs)`` after a step is recorded, before it runs."""
        return self._hook(self._post_hooks, hook)

    @staticmethod
    def _hook(hooks: dict[int, Any], hook: Callable) -> HookHandle:
        handle = HookHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {group[k]}" for k in sorted(group) if k not in ("params", "param_names")]
        return "\n".join([*lines, ")"])


def _hint(given: Any) -> str:
    return "; pass model.parameters()" if hasattr(given, "parameters") else ""


def _decides(value: Any) -> Any:
    """What of a hyper-parameter decides which operations are recorded: which tensor, which flag, or whether it is zero."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, (int, float)):
        return value == 0
    if isinstance(value, tuple):
        return tuple([_decides(v) for v in value])
    return id(value)


def _ending_step(step: Callable) -> Callable:
    """`step` between its hooks, with the recorded training step ended after the outermost."""

    @functools.wraps(step)
    def wrapped(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._stepping:  # super().step(): the outer call ends the step
            return step(self, *args, **kwargs)
        for hook in list(self._pre_hooks.values()):
            hook(self, args, kwargs)
        self._stepping = self._stepped = True
        if STATE.capture is not None:
            STATE.capture.saw_optimizer(self)
        try:
            key = self._signature() if self._replays and not args and not kwargs else None
            if key is None:
                result = step(self, *args, **kwargs)
            else:
                result = replayed(self._segments, key[0], lambda: self._on_line(step), key[1])
        finally:
            self._stepping = False
        for hook in list(self._post_hooks.values()):
            hook(self, args, kwargs)
        runtime.end_step()
        return result

    return wrapped
