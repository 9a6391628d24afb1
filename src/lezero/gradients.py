"""Gradients by function call: ``grad`` and ``backward`` of tensors, ``grad_of``, ``value_and_grad`` and ``vjp`` of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lezero.runtime.gradient import accumulate, gradients
from lezero.runtime.run import FREED
from lezero.tensor import Tensor, enable_grad, tensor, zeros_like


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of `outputs` with respect to `inputs`, as new tensors; nobody's ``grad`` changes.

    Parameters
    ----------
    outputs, inputs : Tensor or sequence of Tensor
        Inputs may be leaves or computed on the way.
    grad_outputs : Tensor or sequence of Tensor
        The gradient of each output; None is 1, for an output of a single element.
    retain_graph : bool
        Keep what is needed to ask again (default: `create_graph`).
    create_graph : bool
        Record the gradients so that they can be differentiated themselves.
    allow_unused : bool
        Give None for an input that the outputs do not depend on, instead of raising.
    materialize_grads : bool
        Give zeros for such an input.

    Raises
    ------
    RuntimeError
        An input is not used or does not require a gradient, or what the gradient needs was let go.
    """
    roots, seeds = _roots("grad", outputs, grad_outputs)
    wanted = _tensors("grad", "inputs", inputs)
    for k, t in enumerate(wanted):
        if not t.requires_grad:
            raise RuntimeError(
                f"grad: input {k} of shape {_plain(t)} does not require a gradient; set requires_grad=True"
            )
    distinct = list({id(t): t for t in wanted}.values())
    retain = create_graph if retain_graph is None else retain_graph
    reached, found = gradients(roots, seeds, create_graph=create_graph, retain_graph=retain, wanted=distinct)
    results = {id(t): reached[id(t)][1] if id(t) in reached else g for t, g in zip(distinct, found)}
    missing = [k for k, t in enumerate(wanted) if results[id(t)] is None]
    if missing and not (allow_unused or materialize_grads):
        raise RuntimeError(
            f"grad: the outputs do not depend on input {missing[0]} of shape {_plain(wanted[missing[0]])}; "
            "with allow_unused=True its gradient is None"
        )
    if materialize_grads:
        return tuple(zeros_like(t) if results[id(t)] is None else results[id(t)] for t in wanted)
    return tuple(results[id(t)] for t in wanted)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of the sum of `tensors` to ``grad`` of the leaves they depend on (of `inputs` only, where given).

    Parameters as for :func:`grad`; `grad_tensors` are its `grad_outputs`.
    """
    roots, seeds = _roots("backward", tensors, grad_tensors)
    retain = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        accumulate(roots, seeds, create_graph, retain)
        return
    wanted = _tensors("backward", "inputs", inputs)
    found = grad(roots, wanted, seeds, retain, create_graph, allow_unused=True)
    for t, g in zip(wanted, found):
        if g is not None:
            t.grad = g if t.grad is None else t.grad + g


def _roots(name: str, outputs: Any, seeds: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    roots = _tensors(name, "outputs", outputs)
    given: list[Any] = [None] * len(roots) if seeds is None else [seeds] if isinstance(seeds, Tensor) else list(seeds)
    if len(given) != len(roots):
        raise ValueError(f"{name}: {len(roots)} outputs, but {len(given)} gradients for them")
    for k, (t, g) in enumerate(zip(roots, given)):
        if not t.requires_grad and t._history is not FREED:
            raise RuntimeError(
                f"{name}: output {k} does not depend on anything that requires a gradient, or was computed under no_grad()"
            )
        if g is None and any(d != 1 for d in t.shape):
            raise RuntimeError(
                f"{name}: output {k} has shape {_plain(t)}; give its gradient, which is 1 by itself only for a single element"
            )
        if g is not None and _plain(g) != _plain(t):
            raise ValueError(f"{name}: the gradient for output {k} has shape {_plain(g)}, the output {_plain(t)}")
    return roots, given


def _tensors(name: str, what: str, value: Any) -> list[Tensor]:
    found = [value] if isinstance(value, Tensor) else list(value)
    for t in found:
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: {what} must be tensors, got {type(t).__name__}")
    return found


def _plain(t: Tensor) -> tuple[int, ...]:
    return tuple(int(d) for d in t.shape)


# -- of functions -----------------------------------------------------------------------------------------------------


def grad_of(function: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable:
    """The gradient of a function that returns a single number, as a function of the same arguments (``lz.grad``).

    Parameters
    ----------
    function : callable
        Takes tensors, numbers, or lists, tuples and dicts of them; returns a tensor of one element.
    argnums : int or sequence of int
        Which positional arguments to differentiate by; with several, gradients come as a tuple.
    has_aux : bool
        `function` returns (value, anything else), and so does its gradient.

    Examples
    --------
    >>> lz.grad(lambda x: x**3)(2.0).item()
    12.0
    >>> lz.grad(lz.grad(lambda x: x**3))(2.0).item()
    12.0
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(function: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable:
    """As :func:`grad_of`, returning (what the function returns, its gradient)."""
    if not callable(function):
        raise TypeError(f"grad: a function is needed, got {type(function).__name__}; for tensors use lz.autograd.grad")
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        for n in positions:
            if not -len(args) <= n < len(args):
                raise TypeError(f"grad: argnums={n}, but the function was called with {len(args)} positional arguments")
        nested, given = False, list(args)
        leaves: list[list[Tensor]] = []
        for n in positions:
            mine: list[Tensor] = []
            given[n], deeper = _variables(args[n], mine)
            nested |= deeper
            leaves.append(mine)
        with enable_grad():
            returned = function(*given, **kwargs)
        value = returned[0] if has_aux else returned
        if not isinstance(value, Tensor) or any(d != 1 for d in value.shape):
            what = f"a tensor of shape {_plain(value)}" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"grad: the function must return a tensor of one element, it returned {what}")
        every = [t for mine in leaves for t in mine]
        if value.requires_grad:
            found = iter(grad(value, every, create_graph=nested, materialize_grads=True))
        else:
            found = iter([zeros_like(t) for t in every])
        trees = tuple(_rebuilt(args[n], found) for n in positions)
        return returned, trees[0] if isinstance(argnums, int) else trees

    return both


def vjp(function: Callable, *args: Any) -> tuple[Any, Callable]:
    """(what the function returns, a function from the gradient of that to the gradients of the arguments).

    The second may be called any number of times; it takes one gradient for each tensor the function returned, and gives a
    tuple with one entry for each argument.
    """
    leaves: list[Tensor] = []
    nested, given = False, []
    for a in args:
        fresh, deeper = _variables(a, leaves)
        given.append(fresh)
        nested |= deeper
    with enable_grad():
        returned = function(*given)
    outputs = [returned] if isinstance(returned, Tensor) else list(returned)

    def pull_back(*cotangents: Any) -> tuple:
        if len(cotangents) == 1 and isinstance(cotangents[0], (tuple, list)):
            cotangents = tuple(cotangents[0])
        if len(cotangents) != len(outputs):
            raise TypeError(f"vjp: the function returned {len(outputs)} tensors, got {len(cotangents)} gradients")
        deeper = nested or any(isinstance(c, Tensor) and c.requires_grad for c in cotangents)
        pairs = [(y, c) for y, c in zip(outputs, cotangents) if y.requires_grad]
        if pairs:
            ys, cs = zip(*pairs)
            cs = tuple(c if isinstance(c, Tensor) else tensor(c, dtype=y.dtype) for y, c in pairs)
            found = iter(grad(ys, leaves, cs, retain_graph=True, create_graph=deeper, materialize_grads=True))
        else:
            found = iter([zeros_like(t) for t in leaves])
        return tuple(_rebuilt(a, found) for a in args)

    return returned, pull_back


def _variables(tree: Any, leaves: list[Tensor]) -> tuple[Any, bool]:
    """The argument with variables of our own in it, which are appended to `leaves`; whether somebody differentiates it too."""
    if isinstance(tree, (list, tuple)):
        parts = [_variables(v, leaves) for v in tree]
        return _like(tree, [v for v, _ in parts]), any(d for _, d in parts)
    if isinstance(tree, dict):
        parts = [_variables(v, leaves) for v in tree.values()]
        return dict(zip(tree, (v for v, _ in parts))), any(d for _, d in parts)
    if isinstance(tree, Tensor):
        if not tree.dtype.differentiable:
            raise TypeError(f"grad: only floating and complex tensors have gradients, got {tree.dtype.name}")
        deeper = tree.requires_grad
        fresh = tree.clone() if deeper else tree.detach().clone().requires_grad_()
    elif isinstance(tree, (int, float, complex)) and not isinstance(tree, bool):
        deeper, fresh = False, tensor(float(tree) if isinstance(tree, int) else tree, requires_grad=True)
    else:
        raise TypeError(f"grad: cannot differentiate by a value of type {type(tree).__name__}")
    leaves.append(fresh)
    return fresh, deeper


def _rebuilt(tree: Any, found: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return _like(tree, [_rebuilt(v, found) for v in tree])
    if isinstance(tree, dict):
        return {k: _rebuilt(v, found) for k, v in tree.items()}
    return next(found)


def _like(tree: Any, values: list[Any]) -> Any:
    return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
