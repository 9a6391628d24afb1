"""What gradients are asked of, where they arrive, and what happens to them on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from lezero.ops.base import REGISTRY as OPS
from lezero.runtime import recording
from lezero.runtime.gradient import backward as _backward
from lezero.runtime.leaves import import_handle
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.runtime.writes import adopt, as_variable
from lezero.tensor.core import Core
from lezero.tensor.modes import no_grad

if TYPE_CHECKING:
    from lezero.tensor import Tensor


class _HookHandle:
    """What ``register_hook`` returns; ``remove()`` takes the hook away."""

    def __init__(self, table: dict, hook: Callable):
        self._table, self._key = table, object()
        table[self._key] = hook

    def remove(self) -> None:
        self._table.pop(self._key, None)


class GradientOf(NamedTuple):
    """What ``grad_fn`` answers: it names an operation, and cannot be called or walked."""

    operation: str

    def name(self) -> str:
        return f"gradient of {self.operation}"


class Gradients(Core):
    """``requires_grad``, ``grad``, ``backward()`` and hooks."""

    _retains = False

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is computed for it: a leaf that wants one, or computed from such."""
        if self._requires_grad:
            return True
        if self._rec is not None:
            return self._node.tracks
        if self._buffer is None:
            import_handle(STATE.recording, self)
            return self._node.tracks
        return self._history is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say whether gradients of this leaf are wanted."""
        if requires_grad and not self.dtype.differentiable:
            raise RuntimeError(
                f"only floating and complex tensors can require gradients, this one is {self.dtype.name}"
            )
        if not requires_grad and not self.is_leaf:
            raise RuntimeError("requires_grad can only be switched off for leaves; use .detach() for a computed tensor")
        if requires_grad == self._requires_grad or (requires_grad and not self.is_leaf):
            return self
        rec = STATE.recording
        if STATE.capture is not None:
            STATE.capture.others.append(partial(setattr, self, "_requires_grad", self._requires_grad))
        self._requires_grad = bool(requires_grad)
        rec.imported.pop(id(self), None)
        if self._rec is not None:
            if requires_grad:
                fresh = as_variable(self)
            else:
                fresh = record(OPS["detach"], (self,), ())
            adopt(self, fresh)
            if requires_grad:
                rec.variables[self._node] = self
        return self

    @property
    def grad_fn(self) -> GradientOf | None:
        """The operation whose gradient is asked for first when going back from here; None for leaves."""
        if self.is_leaf:
            return None
        if self._rec is not None:
            return GradientOf(self._node.op.name)
        return GradientOf(self._history[1].op.name) if isinstance(self._history, tuple) else None

    @property
    def retains_grad(self) -> bool:
        """Whether ``retain_grad`` was called."""
        return self._retains

    @property
    def is_leaf(self) -> bool:
        """Whether it was not computed from what requires a gradient; ``grad`` is kept for leaves."""
        return self._requires_grad or not self.requires_grad

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated by ``backward()``, or None."""
        if recording.capturing and STATE.capture is not None:
            STATE.capture.uses_grad(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and tuple(value.shape) != tuple(self.shape):
            raise ValueError(f"grad: shape {tuple(value.shape)} does not fit the tensor's {tuple(self.shape)}")
        if recording.capturing and STATE.capture is not None:
            STATE.capture.uses_grad(self, read=False)
        self._grad = value

    def backward(
        self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add this tensor's gradient to ``grad`` of every leaf it depends on that requires one.

        Parameters
        ----------
        gradient : Tensor of this shape
            What this tensor's own gradient is; for a single element it is 1.
        retain_graph : bool
            Keep what is needed to call backward again.
        create_graph : bool
            Record the gradients so that they can be differentiated.
        """
        _backward(self, gradient, retain_graph, create_graph)

    def detach(self) -> Tensor:
        """The same value, cut off from how it was computed; writing to it writes to this tensor."""
        return self._as_view(OPS["detach"], ())

    def detach_(self) -> Self:
        """Cut off from how it was computed, in place."""
        adopt(self, record(OPS["detach"], (self,), ()))
        return self

    @property
    def data(self) -> Tensor:
        """The value without its history, as ``detach()`` gives; assigning replaces the value."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        with no_grad():
            self._set(value)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> _HookHandle:
        """Call `hook` with the gradient of this tensor; what it returns (if anything) replaces the gradient."""
        if not self.requires_grad:
            raise RuntimeError("register_hook: this tensor does not require a gradient")
        if self._requires_grad:
            if self._hooks is None:
                self._hooks = {}
            table = self._hooks
        elif self._rec is not None:
            table = self._rec.hooks.setdefault(self._node, {})
        elif isinstance(self._history, tuple):
            table = self._history[0].hooks.setdefault(self._history[1], {})
        else:
            raise RuntimeError("register_hook: the gradient of this tensor has been taken already")
        return _HookHandle(table, hook)

    def retain_grad(self) -> None:
        """Also store the gradient that passes through this computed tensor in its ``grad``."""
        if not self._requires_grad:

            def store(g: Tensor) -> None:
                self._grad = g if self._grad is None else self._grad + g

            self.register_hook(store)
            self._retains = True
