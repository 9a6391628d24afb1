"""Gradients against finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lezero.gradients import grad
from lezero.tensor import Tensor, enable_grad, no_grad, tensor


class GradcheckError(AssertionError):
    """A gradient that finite differences do not confirm; names the output and the input."""


def gradcheck(
    function: Callable,
    inputs: Tensor | Sequence[Tensor],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare the gradients of `function` with central differences.

    Parameters
    ----------
    function : callable
        Takes the inputs, returns a Tensor or a tuple of them; must give the same for the same inputs.
    inputs : Tensor or sequence of Tensor
        Those that require a gradient must be float64 or complex128: differences of narrower numbers show nothing.
    eps : float
        Half the step of the differences.
    atol, rtol : float
        How far ``|gradient - difference|`` may be from 0: ``atol + rtol * |difference|``.

    Returns
    -------
    bool
        True; on a mismatch it raises :class:`GradcheckError`, or returns False with ``raise_exception=False``.
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    where = [k for k, t in enumerate(given) if isinstance(t, Tensor) and t.requires_grad]
    if not where:
        raise ValueError("gradcheck: none of the inputs requires a gradient")
    for k in where:
        if given[k].dtype.name not in ("float64", "complex128"):
            raise TypeError(f"gradcheck: input {k} is {given[k].dtype.name}; use float64 or complex128")
    arrays = [np.array(t.detach().numpy()) if isinstance(t, Tensor) else t for t in given]

    def outputs(values: list[Any], track: bool) -> tuple[list[Tensor], list[Tensor]]:
        leaves = [
            tensor(a, requires_grad=track and k in where) if isinstance(given[k], Tensor) else a
            for k, a in enumerate(values)
        ]
        with enable_grad() if track else no_grad():
            y = function(*leaves)
        ys = [y] if isinstance(y, Tensor) else list(y)
        return leaves, [t for t in ys if isinstance(t, Tensor) and t.dtype.differentiable]

    leaves, ys = outputs(arrays, True)
    wanted = [leaves[k] for k in where]
    for n, y in enumerate(ys):
        numeric = [_differences(lambda a, n=n: outputs(a, False)[1][n].numpy(), arrays, k, eps) for k in where]
        analytic = _derivatives(y, wanted)
        for k, a, d in zip(where, analytic, numeric):
            far = np.abs(a - d) > atol + rtol * np.abs(d)
            if far.any() or not np.isfinite(a).all():
                if not raise_exception:
                    return False
                at = np.unravel_index(np.argmax(np.abs(a - d)), a.shape)
                raise GradcheckError(
                    f"gradcheck: the gradient of output {n} with respect to input {k} is off: element {at[1]} of the input on "
                    f"element {at[0]} of the output gives {a[at]:.6g}, finite differences {d[at]:.6g} "
                    f"({int(far.sum())} of {far.size} are off)"
                )
    return True


def gradgradcheck(
    function: Callable,
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    **options: Any,
) -> bool:
    """Compare the gradients of the gradients of `function` with central differences; `options` as for :func:`gradcheck`."""
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    with no_grad():
        y = function(*given)
    ys = [t for t in ([y] if isinstance(y, Tensor) else y) if isinstance(t, Tensor) and t.dtype.differentiable]
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        seeds = [tensor(_random(rng, t), requires_grad=True) for t in ys]
    else:
        seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    n = len(given)

    def first(*args: Any) -> tuple:
        xs, vs = args[:n], args[n:]
        z = function(*xs)
        zs = [t for t in ([z] if isinstance(z, Tensor) else z) if isinstance(t, Tensor) and t.dtype.differentiable]
        wanted = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
        if not wanted:  # a plain evaluation: gradients are still what is evaluated
            with enable_grad():
                xs = tuple(
                    x.detach().requires_grad_() if isinstance(g, Tensor) and g.requires_grad else x
                    for x, g in zip(xs, given)
                )
                return first(*xs, *vs)
        pairs = [(t, v) for t, v in zip(zs, vs) if t.requires_grad]
        return grad([t for t, _ in pairs], wanted, [v for _, v in pairs], create_graph=True, materialize_grads=True)

    return gradcheck(first, [*given, *seeds], **options)


def _random(rng: np.random.Generator, t: Tensor) -> np.ndarray:
    shape = tuple(int(d) for d in t.shape)
    values = rng.standard_normal(shape)
    return np.asarray(values + 1j * rng.standard_normal(shape) if t.dtype.is_complex else values).astype(t.dtype.numpy)


def _directions(array: np.ndarray) -> list[complex | float]:
    """Complex numbers are checked as pairs of real ones."""
    return [1.0, 1j] if array.dtype.kind == "c" else [1.0]


def _real(array: np.ndarray) -> np.ndarray:
    flat = np.asarray(array).reshape(-1)
    return np.concatenate([flat.real, flat.imag]) if flat.dtype.kind == "c" else flat


def _differences(evaluate: Callable, arrays: list[Any], k: int, eps: float) -> np.ndarray:
    """d(output element) / d(input element), one row for each output element."""
    columns = []
    for direction in _directions(arrays[k]):
        for i in range(arrays[k].size):
            sides = []
            for sign in (1, -1):
                moved = arrays[k].copy()
                moved.reshape(-1)[i] += sign * eps * direction
                sides.append(_real(evaluate([*arrays[:k], moved, *arrays[k + 1 :]])))
            columns.append((sides[0] - sides[1]) / (2 * eps))
    return np.stack(columns, 1) if columns else np.zeros((_real(evaluate(arrays)).size, 0))


def _derivatives(y: Tensor, wanted: list[Tensor]) -> list[np.ndarray]:
    """The same by the gradient: row by row, with a seed of one element."""
    shape = tuple(int(d) for d in y.shape)
    rows: list[list[np.ndarray]] = [[] for _ in wanted]
    seed = np.zeros(shape, y.dtype.numpy)
    for direction in _directions(seed):
        for i in range(seed.size):
            one = seed.copy()
            one.reshape(-1)[i] = direction
            found = (
                grad(y, wanted, tensor(one), retain_graph=True, materialize_grads=True)
                if y.requires_grad
                else [tensor(np.zeros(tuple(int(d) for d in t.shape), t.dtype.numpy)) for t in wanted]
            )
            for mine, g in zip(rows, found):
                mine.append(_real(g.numpy()))  # type: ignore[union-attr]
    return [
        np.stack(mine) if mine else np.zeros((0, _real(np.zeros(tuple(t.shape), t.dtype.numpy)).size))
        for mine, t in zip(rows, wanted)
    ]
