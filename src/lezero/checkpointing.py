"""Memory on purpose: ``lz.checkpoint`` keeps nothing of a function between its forward and its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lezero.runtime import checkpoint as regions
from lezero.runtime.recording import STATE, Handle


def checkpoint(
    function: Callable, *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """``function(*args, **kwargs)``, of which only the inputs are kept for the gradient; what the gradient needs of the rest
    is computed again when it gets there.

    The function itself is called once: random numbers are the same when they are computed again (whatever
    `preserve_rng_state`), and running statistics are updated once.  Only what the gradient reads is computed a second time,
    so the last operation usually is not.  Regions may lie inside each other; the gradient of the gradient and ``lz.jit`` see
    the same function.

    Parameters
    ----------
    function : callable
    args, kwargs : its arguments; tensors among them, and tensors it reaches otherwise, are kept
    use_reentrant, preserve_rng_state : taken because PyTorch takes them; they change nothing

    Returns
    -------
    What `function` returns.  Results that are held or read outside stay in memory as any tensor does.

    Raises
    ------
    TypeError
        `function` cannot be called.

    Examples
    --------
    >>> for layer in model.layers:
    ...     x = lz.checkpoint(layer, x)
    """
    if not callable(function):
        raise TypeError(f"checkpoint: a function is needed, got {type(function).__name__}")
    if not STATE.grad_mode:
        return function(*args, **kwargs)
    given = [t for a in (*args, *kwargs.values()) for t in (a if isinstance(a, (list, tuple)) else [a])]
    return regions.recorded(partial(function, *args, **kwargs), [t for t in given if isinstance(t, Handle)])


def checkpoint_sequential(
    functions: Sequence[Callable],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
) -> Any:
    """The functions (or the layers of an ``nn.Sequential``) after each other, in so many regions of :func:`checkpoint`.

    The last segment is not one: its gradient comes first, so there is nothing to win.

    Parameters
    ----------
    functions : sequence of callables, each of which takes what the one before returns
    segments : int, from 1 to their number
    input : what the first is given

    Raises
    ------
    ValueError
        There are fewer functions than segments, or `segments` is not positive.
    """
    functions = list(functions)
    if not 1 <= segments <= len(functions):
        raise ValueError(
            f"checkpoint_sequential: 1 to {len(functions)} segments (one for each function at most), got {segments}"
        )
    size = len(functions) // segments

    def run(part: Sequence[Callable], x: Any) -> Any:
        for f in part:
            x = f(x)
        return x

    last = size * (segments - 1)
    for k in range(0, last, size):
        input = checkpoint(partial(run, functions[k : k + size]), input)
    return run(functions[last:], input)
