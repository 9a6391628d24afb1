"""Operations with a gradient of one's own: ``Function`` and the decorator ``custom_op``.

What a call records::

    y_0, …      = forward(ctx, *args)        under no_grad
    call        = call(x_0, …, s_0, …)       the tensors passed in and those saved; has no value, only a gradient
    result_i    = result(y_i, call)          y_i as it is

Going back, ``result`` hands its gradient on to ``call`` in a bag, bags add up, and ``call`` asks ``backward`` once for all
results.  Saved tensors are inputs of the node, so a trace that repeats is followed, residuals are kept where the gradient
is asked for later, and gradients of gradients see where everything came from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from lezero.graph.dim import rehint
from lezero.graph.dtype import float32
from lezero.ops.base import REGISTRY, Composite, Op, op
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.tensor import Tensor, no_grad, zeros


class Context:
    """What ``forward`` leaves for ``backward``.

    Any attribute may be set.  Tensors among them (also those in ``save_for_backward``) are kept like residuals; everything
    else should be hashable, or a call that repeats is not recognized as such.

    Attributes
    ----------
    saved_tensors : tuple of Tensor
        In ``backward``: what ``save_for_backward`` was given.
    needs_input_grad : tuple of bool
        For each argument of ``forward``, whether a gradient for it is wanted.
    """

    saved_tensors: tuple = ()
    needs_input_grad: tuple[bool, ...] = ()
    materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (or None) that ``backward`` reads as ``ctx.saved_tensors``."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(
                    f"save_for_backward: tensors only, got {type(t).__name__}; set other things as attributes"
                )
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These results have no gradient (integer and bool ones never have)."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether results nobody used get a gradient of zeros in ``backward`` (the default) or None."""
        self.materialize_grads = bool(value)


class Function:
    """Base class of operations with a gradient of their own.

    Subclasses have two static methods, both written with ordinary operations on tensors, and are called by ``apply``::

        class Clipped(lz.autograd.Function):
            @staticmethod
            def forward(ctx, x, limit):
                ctx.save_for_backward(x)
                ctx.limit = limit
                return x.clamp(-limit, limit)

            @staticmethod
            def backward(ctx, dy):
                (x,) = ctx.saved_tensors
                return dy * (x.abs() <= ctx.limit), None

        y = Clipped.apply(x, 1.0)

    ``backward`` takes one gradient for each result and returns one for each argument of ``forward`` (None for arguments
    that are no tensors, or need none).  It may be differentiated itself if it does not read values.
    """

    _calls: ClassVar[dict[tuple[int, int], Op]]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls._calls = {}

    @staticmethod
    def forward(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        """Compute the result: a Tensor, or a tuple of Tensors (and anything else, which is passed on)."""
        raise NotImplementedError("a Function needs a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """The gradient for each argument of ``forward`` from that of each of its results."""
        raise NotImplementedError("a Function needs a static method backward(ctx, *grads)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the operation."""
        ctx = Context()
        xs = [a for a in args if isinstance(a, Tensor)]
        wanted = STATE.grad_mode
        ctx.needs_input_grad = tuple(wanted and isinstance(a, Tensor) and a.requires_grad for a in args)
        with no_grad():
            returned = cls.forward(ctx, *args, **kwargs)
        results = returned if isinstance(returned, tuple) else (returned,)
        if not any(ctx.needs_input_grad):
            return returned
        call = _Call(cls, ctx, args, results)
        kept, call.kept = call.kept, ()  # nodes outlive a step and must not hold its tensors
        node = cls._op(len(xs), len(kept))
        hub = record(node, (*xs, *kept), (call,))
        # A user's backward may do anything, so it is called each time, as hooks are, and never followed from a trace.
        rec = STATE.recording
        rec.hooks.setdefault(hub._node, {})
        given = tuple(record(_RESULT, (y, hub), (k,)) if k in call.differentiable else y for k, y in enumerate(results))
        return given if isinstance(returned, tuple) else given[0]

    @classmethod
    def _op(cls, inputs: int, kept: int) -> Op:
        found = cls._calls.get((inputs, kept))
        if found is None:
            found = cls._calls[inputs, kept] = _CallOp(cls.__name__, inputs, kept)
        return found


class _Call:
    """Everything about one call that is not a tensor; an attribute of its node, equal to that of the same call repeated."""

    def __init__(self, function: type[Function], ctx: Context, args: tuple, results: tuple):
        self.function = function
        self.tensors = tuple(isinstance(a, Tensor) for a in args)
        self.needs, self.materialize = ctx.needs_input_grad, ctx.materialize_grads
        constant = {id(t) for t in getattr(ctx, "_constant", ())}
        self.differentiable = tuple(
            k
            for k, y in enumerate(results)
            if isinstance(y, Tensor) and y.dtype.differentiable and id(y) not in constant
        )
        self.results = tuple((tuple(y.shape), y.dtype) if isinstance(y, Tensor) else None for y in results)
        kept: dict[int, Tensor] = {}
        place = {id(y): k for k, y in enumerate(results) if k in self.differentiable}

        def seat(t: Tensor | None) -> tuple[str, int] | None:
            """Where a saved tensor is found again: among the results, or the tensors kept."""
            if t is None:
                return None
            kept.setdefault(id(t), t)
            return ("result", place[id(t)]) if id(t) in place else ("kept", list(kept).index(id(t)))

        self.saved = tuple(seat(t) for t in ctx.saved_tensors)
        own = {k: v for k, v in vars(ctx).items() if k not in _CONTEXT}
        self.attributes = {k: seat(v) for k, v in own.items() if isinstance(v, Tensor)}
        self.plain = {k: v for k, v in own.items() if not isinstance(v, Tensor)}
        # results that are read again are kept by value, and found by position
        self.raw = {place[i]: list(kept).index(i) for i in kept if i in place}
        self.kept: tuple[Tensor, ...] = tuple(kept.values())
        self.key = (
            function, self.tensors, self.needs, self.materialize, self.differentiable,
            tuple(r and r[1] for r in self.results), self.saved, tuple(self.attributes.items()), tuple(self.raw.items()),
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key and _equal(self.plain, other.plain)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return self.function.__name__

    def backward(self, bag: _Bag, hub: Tensor, inputs: tuple[Tensor, ...]) -> tuple:
        """Ask the user's rule; one gradient for each tensor that was passed in."""
        xs = inputs[: sum(self.tensors)]
        kept = inputs[len(xs) :]

        def found(seat: tuple[str, int] | None) -> Tensor | None:
            if seat is None:
                return None
            kind, k = seat
            return kept[k] if kind == "kept" else record(_RESULT, (kept[self.raw[k]], hub), (k,))

        ctx = Context()
        vars(ctx).update(self.plain)
        vars(ctx).update({k: found(seat) for k, seat in self.attributes.items()})
        ctx.saved_tensors = tuple(found(seat) for seat in self.saved)
        ctx.needs_input_grad, ctx.materialize_grads = self.needs, self.materialize
        grads = [bag.grads.get(k) for k in range(len(self.results))]
        if self.materialize:
            bindings = STATE.recording.bindings  # the shapes are of the recording that called this first
            grads = [
                zeros(*rehint(r[0], bindings), dtype=r[1]) if g is None and r is not None else g
                for g, r in zip(grads, self.results)
            ]
        name = self.function.__name__
        # numbers in the rule are the user's own, run-time inputs as everywhere else
        STATE.in_rule, before = False, STATE.in_rule
        try:
            answer = self.function.backward(ctx, *grads)
        finally:
            STATE.in_rule = before
        answer = answer if isinstance(answer, (tuple, list)) else (answer,)
        if len(answer) != len(self.tensors):
            raise RuntimeError(
                f"{name}.backward returned {len(answer)} gradients, but forward took {len(self.tensors)} arguments; "
                "return None for those that need none"
            )
        out: list[Tensor | None] = []
        for k, (is_tensor, needed, g) in enumerate(zip(self.tensors, self.needs, answer)):
            if not is_tensor:
                if g is not None:
                    raise RuntimeError(f"{name}.backward returned a gradient for argument {k}, which is not a tensor")
                continue
            x = xs[len(out)]
            if g is not None and not isinstance(g, Tensor):
                raise TypeError(f"{name}.backward must return tensors or None, got {type(g).__name__} for argument {k}")
            if g is not None and tuple(g.shape) != tuple(x.shape):
                have, want = (tuple(int(d) for d in t.shape) for t in (g, x))
                raise RuntimeError(
                    f"{name}.backward returned a gradient of shape {have} for argument {k} of shape {want}"
                )
            out.append(g if needed else None)
        return (*out, *(None for _ in kept))


_CONTEXT = frozenset({"saved_tensors", "needs_input_grad", "materialize_grads", "_constant"})


def _equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two contexts hold the same; what cannot say so (an array) is only equal to itself."""
    if a.keys() != b.keys():
        return False
    for k, v in a.items():
        w = b[k]
        if v is w:
            continue
        if (
            type(v) is not type(w)
            or not isinstance(v, (bool, int, float, complex, str, bytes, tuple, frozenset))
            or v != w
        ):
            return False
    return True


class _Bag:
    """Gradients of a call's results on their way to it; adds up like a gradient."""

    shape = ()
    dtype = float32

    def __init__(self, grads: dict[int, Tensor]):
        self.grads = grads

    def __add__(self, other: _Bag) -> _Bag:
        merged = dict(self.grads)
        for k, g in other.grads.items():
            merged[k] = merged[k] + g if k in merged else g
        return _Bag(merged)


class _CallOp(Composite):
    """The node of a call: depends on its arguments, passes gradients on to them, and computes nothing."""

    attrs = {"call": None}
    traceable = False  # a user's backward may do anything

    def __init__(self, name: str, inputs: int, kept: int):
        self._names = tuple(f"x{i}" for i in range(inputs)), tuple(f"kept{i}" for i in range(kept))
        super().__init__(name, None)
        self.inputs, self.variadic = self._names[0] + self._names[1], False
        self.keeps = self._names[1]

    @staticmethod
    def infer(*inputs: Any, call: Any) -> tuple:
        return (), float32

    @staticmethod
    def reference(*inputs: Any, call: Any) -> Any:
        return np.zeros((), np.float32)

    @staticmethod
    def decompose(*inputs: Any, call: Any) -> Any:
        return REGISTRY["full"](shape=(), value=0, dtype=float32, like=inputs[0])

    @staticmethod
    def gradient(dy: Any, hub: Any, *inputs: Any, call: Any) -> Any:
        return call.backward(dy, hub, inputs)


@op("function_result")
class function_result(Composite):
    """A result of a custom function: its value as it is, and where its gradient goes."""

    attrs = {"place": 0}
    traceable = False  # bags are no nodes

    def infer(y, call, place):
        return y.shape, y.dtype

    def reference(y, call, place):
        return y

    def decompose(y, call, place):
        return y

    def gradient(dy, result, y, call, place):
        return None, _Bag({place: dy})


_RESULT: Any = function_result


# -- the decorator ----------------------------------------------------------------------------------------------------


class CustomOp:
    """What :func:`custom_op` makes of a function."""

    def __init__(self, forward: Callable):
        functools.update_wrapper(self, forward)
        self._forward = forward
        self._rule: type[Function] | None = None

    def gradient(self, rule: Callable) -> Callable:
        """Decorator: `rule(dy, y, *args)` gives the gradient of each tensor among the arguments (None where there is none)."""
        forward, name = self._forward, getattr(self, "__name__", "custom_op")

        class Rule(Function):
            @staticmethod
            def forward(ctx: Context, *args: Any) -> Any:
                y = forward(*args)
                if not isinstance(y, Tensor):
                    raise TypeError(f"{name}: an operation with a gradient returns one tensor, got {type(y).__name__}")
                ctx.save_for_backward(y, *(a for a in args if isinstance(a, Tensor)))
                ctx.args = tuple(None if isinstance(a, Tensor) else a for a in args)  # type: ignore[attr-defined]
                ctx.places = tuple(k for k, a in enumerate(args) if isinstance(a, Tensor))  # type: ignore[attr-defined]
                return y

            @staticmethod
            def backward(ctx: Any, dy: Any) -> Any:
                y, *tensors = ctx.saved_tensors
                args = list(ctx.args)
                for k, t in zip(ctx.places, tensors):
                    args[k] = t
                found = rule(dy, y, *args)
                found = found if isinstance(found, (tuple, list)) else (found,)
                if len(found) != len(tensors):
                    raise RuntimeError(
                        f"{name}: the gradient rule gave {len(found)} results for {len(tensors)} tensors"
                    )
                out: list[Any] = [None] * len(args)
                for k, g in zip(ctx.places, found):
                    out[k] = g
                return tuple(out)

        Rule.__name__ = Rule.__qualname__ = name
        self._rule = Rule
        return rule

    def __call__(self, *args: Any) -> Any:
        return self._forward(*args) if self._rule is None else self._rule.apply(*args)


def custom_op(function: Callable) -> CustomOp:
    """Decorator: a function of tensors as an operation that can be given a gradient of its own.

    ::

        @lz.autograd.custom_op
        def swish(x, beta=1.0):
            return x * (beta * x).sigmoid()

        @swish.gradient
        def _(dy, y, x, beta=1.0):
            s = (beta * x).sigmoid()
            return dy * (s + beta * y * (1 - s))

    Without a rule, gradients go through what the function records.  For an operation that the compiler knows (shape
    inference, kernels, a name in exported files), see "add an operation" in CONTRIBUTING.md.
    """
    return CustomOp(function)
