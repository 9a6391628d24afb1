"""Hooks of modules: where they are kept, how they are removed, and the slow path of a call that has some."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lezero.tensor import Tensor, is_grad_enabled

if TYPE_CHECKING:
    from lezero.nn.module import Module

_ids = itertools.count()


class HookHandle:
    """What registering a hook returns: ``remove()`` it, or use it as a context manager."""

    def __init__(self, hooks: dict[int, Any]):
        self.hooks: dict[int, Any] | None = hooks
        self.id = next(_ids)

    def remove(self) -> None:
        if self.hooks is not None:
            self.hooks.pop(self.id, None)
            self.hooks = None

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def __deepcopy__(self, memo: dict) -> HookHandle:
        return HookHandle({})  # the copy of a module has hooks of its own


def add(module: Module, kind: str, hook: Callable, *, prepend: bool = False, **options: Any) -> HookHandle:
    """Register `hook` under `kind` on the module; `options` are kept beside it."""
    if not callable(hook):
        raise TypeError(f"{type(module).__name__}: a {kind} hook must be callable, got {type(hook).__name__}")
    everything = module.__dict__.setdefault("_hooks", {})
    hooks = everything.setdefault(kind, {})
    handle = HookHandle(hooks)
    entry = (hook, options)
    if prepend:
        later = dict(hooks)
        hooks.clear()
        hooks[handle.id] = entry
        hooks.update(later)
    else:
        hooks[handle.id] = entry
    return handle


def of(module: Module, kind: str) -> list[tuple[Callable, dict[str, Any]]]:
    """The module's hooks of a kind, in order (a list, so that a hook may remove itself)."""
    hooks = (module._hooks or {}).get(kind)
    return list(hooks.values()) if hooks else []


def call(module: Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``module(*args, **kwargs)`` with the hooks around ``forward``."""
    always = [(hook, o) for hook, o in of(module, "forward") if o["always_call"]]
    ran: set[int] = set()
    try:
        for hook, o in of(module, "forward_pre"):
            if o["with_kwargs"]:
                result = hook(module, args, kwargs)
                if result is not None:
                    if not (isinstance(result, tuple) and len(result) == 2):
                        raise TypeError(
                            f"{type(module).__name__}: a forward-pre hook with_kwargs returns None or (args, kwargs), "
                            f"got {type(result).__name__}"
                        )
                    args, kwargs = result
            else:
                result = hook(module, args)
                if result is not None:
                    args = result if isinstance(result, tuple) else (result,)

        backward = of(module, "backward"), of(module, "backward_pre")
        watch = _BackwardWatch(module, *backward) if any(backward) and is_grad_enabled() else None
        if watch is not None:
            args = watch.inputs(args)
        y = module.forward(*args, **kwargs)
        for hook, o in of(module, "forward"):
            ran.add(id(hook))
            result = hook(module, args, kwargs, y) if o["with_kwargs"] else hook(module, args, y)
            if result is not None:
                y = result
        return y if watch is None else watch.outputs(y)
    except BaseException:
        for hook, o in always:
            if id(hook) not in ran:
                _report(module, hook, o, args, kwargs)
        raise


def _report(module: Module, hook: Callable, options: dict, args: tuple, kwargs: dict) -> None:
    """An ``always_call`` hook after a failure; its own failure must not hide the first one."""
    try:
        hook(module, args, kwargs, None) if options["with_kwargs"] else hook(module, args, None)
    except Exception as e:
        warnings.warn(f"{type(module).__name__}: a forward hook with always_call=True raised {e!r}", stacklevel=4)


class _BackwardWatch:
    """Gathers the gradients that pass a module's outputs and inputs, and shows them to its backward hooks.

    Inputs and outputs go through aliases of their own, so that another use of the same tensor is not counted.
    """

    def __init__(self, module: Module, hooks: list, pre_hooks: list):
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.grad_input: list[Any] = []
        self.grad_output: list[Any] = []
        self.watched_inputs = 0
        self.seen_inputs = 0
        self.watched_outputs = 0
        self.seen_outputs = 0

    def inputs(self, args: tuple) -> tuple:
        self.grad_input = [None] * len(args)
        watched = list(args)
        for i, x in enumerate(args):
            if isinstance(x, Tensor) and x.requires_grad:
                self.watched_inputs += 1
                watched[i] = x.view_as(x)
                watched[i].register_hook(lambda g, i=i: self._input_arrived(i, g))
        return tuple(watched)

    def outputs(self, y: Any) -> Any:
        several = isinstance(y, (tuple, list))
        outputs = list(y) if several else [y]
        self.grad_output = [None] * len(outputs)
        self.watched_outputs = sum(isinstance(t, Tensor) and t.requires_grad for t in outputs)
        for i, t in enumerate(outputs):
            if isinstance(t, Tensor) and t.requires_grad:
                outputs[i] = t.view_as(t)
                outputs[i].register_hook(lambda g, i=i: self._output_arrived(i, g))
        if not several:
            return outputs[0]
        return type(y)(*outputs) if hasattr(y, "_fields") else type(y)(outputs)

    def _output_arrived(self, i: int, grad: Tensor) -> Any:
        self.grad_output[i] = grad
        self.seen_outputs += 1
        if self.seen_outputs == self.watched_outputs:
            self._run_pre()
            if not self.watched_inputs:  # a first layer: nothing further down would call the hooks
                self._run()
        return self.grad_output[i]

    def _run_pre(self) -> None:
        self.seen_outputs = 0
        for hook, _ in self.pre_hooks:
            result = hook(self.module, tuple(self.grad_output))
            if result is not None:
                if self.watched_outputs > 1:
                    raise RuntimeError(_only_one(self.module, "backward-pre", "outputs"))
                self.grad_output = list(result) if isinstance(result, tuple) else [result]

    def _input_arrived(self, i: int, grad: Tensor) -> Any:
        self.grad_input[i] = grad
        self.seen_inputs += 1
        if self.seen_inputs < self.watched_inputs:
            return None
        self.seen_inputs = 0
        result = self._run()
        if result is None:
            return None
        if self.watched_inputs > 1:
            raise RuntimeError(_only_one(self.module, "full backward", "inputs"))
        return result[i]

    def _run(self) -> tuple | None:
        replaced = None
        for hook, _ in self.hooks:
            result = hook(self.module, tuple(self.grad_input), tuple(self.grad_output))
            if result is not None:
                replaced = result if isinstance(result, tuple) else (result,)
                if len(replaced) != len(self.grad_input):
                    raise RuntimeError(
                        f"{type(self.module).__name__}: a full backward hook returned {len(replaced)} gradients for "
                        f"{len(self.grad_input)} inputs"
                    )
                self.grad_input = list(replaced)
        return replaced


def _only_one(module: Module, kind: str, what: str) -> str:
    return (
        f"{type(module).__name__}: a {kind} hook may replace the gradient of a module with one differentiable tensor "
        f"among its {what}; with several it can only look at them (return None)"
    )
