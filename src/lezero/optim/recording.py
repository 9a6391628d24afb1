"""What the built-in optimizers share: hyper-parameters as run-time inputs, zeroed state, and the step count.

Everything a step does for each parameter is spelled out with ``record`` and ``assign``: a network has hundreds of them, and
the arithmetic itself runs as one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lezero.graph.dtype import DType, float32, float64
from lezero.nn.parameter import constant_tensor
from lezero.ops.base import REGISTRY
from lezero.runtime import scalar_input
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.runtime.writes import assign
from lezero.tensor import Tensor, make_parameter
from lezero.tensor.creation import _from_array, memory_for

_ADD, _WHERE = REGISTRY["add"], REGISTRY["where"]


def hyper(group: dict[str, Any], key: str, index: int | None = None) -> Tensor:
    """A hyper-parameter as a 0-d input that is read from the group at every run, in float64 (a Tensor is used as it is)."""
    value = group[key] if index is None else group[key][index]
    if isinstance(value, Tensor):
        return value
    if index is None:
        return scalar_input(lambda: group[key], float64)
    return scalar_input(lambda: group[key][index], float64)


def zeros_for(p: Tensor) -> Tensor:
    """State of a parameter's shape and dtype; realised, so that the first step has the structure of all others."""
    return full_for(p.shape, p.dtype, 0)


def full_for(shape: Sequence[int], dtype: DType, value: float) -> Tensor:
    """Realised state of any shape that starts from one value."""
    made = memory_for(tuple(map(int, shape)), dtype)
    made.fill(value)
    return make_parameter(Tensor, _from_array(made), False)


def zero_step(dtype: DType = float32) -> Tensor:
    return constant_tensor(np.zeros((), dtype.numpy))


def counted(
    state: dict[Tensor, dict[str, Any]], params: list[Tensor], begin: Callable[[Tensor, dict[str, Any]], None]
) -> list[tuple[Tensor, Tensor, dict[str, Any]]]:
    """(parameter, gradient, state) of those that have a gradient, with their step counts increased.

    Parameters that began together share one count, so that a step increases one number and not one for each parameter; one
    that sits a step out gets a count of its own.

    begin : fills the state of a parameter that has none
    """
    active: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
    first: Tensor | None = None
    idle: list[dict[str, Any]] = []
    for p in params:
        grad = p._grad
        s = state.get(p)
        if grad is None:
            if s:
                idle.append(s)
            continue
        if not s:
            s = state[p]
            if first is None:
                first = zero_step()
            s["step"] = first
            begin(p, s)
        active.append((p, grad, s))
    if idle:
        counts = {id(s["step"]) for _, _, s in active}
        for s in idle:
            if id(s["step"]) in counts:
                s["step"] = s["step"].clone()
    done: set[int] = set()
    skip = STATE.skip_update
    for _, _, s in active:
        step = s["step"]
        if id(step) not in done:
            done.add(id(step))
            more = record(_ADD, (step, 1.0), ())
            assign(step, more if skip is None else record(_WHERE, (skip, step, more), ()))
    return active


def share_counts(states: list[dict[str, Any]]) -> None:
    """Let states with equal step counts share one again (after loading)."""
    shared: dict[float, Tensor] = {}
    for s in states:
        step = s.get("step")
        if step is not None:
            value = float(step)
            if value not in shared:
                shared[value] = constant_tensor(np.array(value, np.float32))
            s["step"] = shared[value]
