"""Adafactor."""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes

from lezero.graph.dtype import float64
from lezero.ops.base import REGISTRY
from lezero.ops.elementwise import rsqrt
from lezero.ops.reduce import mean, norm
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, full_for, hyper, zeros_for
from lezero.optim.rules import lerp, update_rule
from lezero.runtime import scalar_input
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad

_MAXIMUM, _MINIMUM = REGISTRY["maximum"], REGISTRY["minimum"]


@update_rule(3)
def _factored(p, rows, columns, grad, step, lr, beta2_decay, eps1, eps2, d, decay, maximize):
    grad = -grad if maximize else grad
    share = step**beta2_decay
    square = grad * grad
    rows = lerp(rows, mean(square, axes=(grad.ndim - 1,), keepdim=True), share)
    columns = lerp(columns, mean(square, axes=(grad.ndim - 2,), keepdim=True), share)
    estimate = rows * columns / _MAXIMUM(mean(rows, axes=(grad.ndim - 2,), keepdim=True), eps1)
    return _stepped(p, grad, estimate, step, lr, eps1, eps2, d, decay), rows, columns


@update_rule(2)
def _unfactored(p, variance, grad, step, lr, beta2_decay, eps1, eps2, d, decay, maximize):
    grad = -grad if maximize else grad
    variance = lerp(variance, grad * grad, step**beta2_decay)
    return _stepped(p, grad, variance, step, lr, eps1, eps2, d, decay), variance


def _stepped(p, grad, estimate, step, lr, eps1, eps2, d, decay):
    """The parameter after a step along the gradient over the root of its estimated square, clipped by its size."""
    rate = _MAXIMUM(eps2, _root_mean_square(p)) * _MINIMUM(lr, 1 / step**0.5)
    change = rsqrt(_MAXIMUM(estimate, eps1 * eps1)) * grad
    return p * (1 - lr * decay) - rate / _MAXIMUM(_root_mean_square(change) / d, 1.0) * change


def _root_mean_square(x):
    return norm(x, axes=tuple(range(x.ndim))) / prod(map(int, x.shape)) ** 0.5


class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern 2018): of the mean squared gradient of a matrix, only rows' and columns' means are kept.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
        The largest rate, relative to the root mean square of the parameter; step t takes at most ``1 / sqrt(t)``.
    beta2_decay : float
        The share of the new square at step t is ``t ** beta2_decay``; not positive.
    eps : (float or None, float)
        The smallest estimate (None: the dtype's epsilon), and the smallest size a parameter is taken to have.
    d : float
        The largest root mean square of a step before it is scaled; 1 or more.
    weight_decay : float
        Taken from the parameter, times `lr`.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ):
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize})

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "weight_decay")
        if any(e is not None and e < 0 for e in group["eps"]):
            raise ValueError(f"{name}: eps must not be negative, got {group['eps']}")
        if group["beta2_decay"] > 0:
            raise ValueError(f"{name}: beta2_decay must not be positive, got {group['beta2_decay']}")
        if group["d"] < 1:
            raise ValueError(f"{name}: d is 1 or more, got {group['d']}")

    def _matches_parameter(self, key: str) -> bool:
        return key not in ("row_var", "col_var")

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            active = counted(self.state, group["params"], _begin)
            by_eps: dict[Any, list[Any]] = {}
            for each in active:
                by_eps.setdefault(each[0].dtype if group["eps"][0] is None else None, []).append(each)
            for dtype, part in by_eps.items():
                _update(group, part, dtype)
        return loss


def _update(group: dict[str, Any], active: list[Any], dtype: Any) -> None:
    """Update parameters with one first `eps`: that of the group, or of their dtype."""
    smallest = None if dtype is None else float(ml_dtypes.finfo(dtype.numpy).eps)
    eps1 = hyper(group, "eps", 0) if smallest is None else scalar_input(lambda: smallest, float64)
    before, after = (hyper(group, "lr"), hyper(group, "beta2_decay")), (hyper(group, "d"), hyper(group, "weight_decay"))
    shared = (*before, eps1, hyper(group, "eps", 1), *after)
    factored, unfactored = (Updates(rule, shared, (group["maximize"],)) for rule in (_factored, _unfactored))
    for p, grad, s in active:
        if "variance" in s:
            unfactored((p, s["variance"]), (grad, s["step"]))
        else:
            factored((p, s["row_var"], s["col_var"]), (grad, s["step"]))


def _begin(p: Any, state: dict[str, Any]) -> None:
    if p.ndim < 2:
        state["variance"] = zeros_for(p)
        return
    *batch, n, m = p.shape
    state["row_var"] = full_for((*batch, n, 1), p.dtype, 0.0)
    state["col_var"] = full_for((*batch, 1, m), p.dtype, 0.0)
