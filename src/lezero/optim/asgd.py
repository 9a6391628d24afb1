"""Averaged stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from lezero.graph.dtype import float32
from lezero.ops.base import REGISTRY
from lezero.ops.elementwise import where
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, full_for, hyper, zeros_for
from lezero.optim.rules import decayed, update_rule
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad

_MAXIMUM = REGISTRY["maximum"]


@update_rule(4)
def _asgd(p, average, rate, share, grad, step, lr, lambd, alpha, t0, decay, maximize):
    grad = decayed(p, grad, decay, maximize)
    p = p * (1 - lambd * rate) - rate * grad
    average = where(share == 1, p, average + (p - average) * share)
    return p, average, lr / (1 + lambd * lr * step) ** alpha, 1 / _MAXIMUM(step - t0, 1.0)


class ASGD(Optimizer):
    """Averaged stochastic gradient descent (Polyak & Juditsky 1992); the average is each parameter's state ``"ax"``.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    lambd : float
        Decay; the rate of step t + 1 is ``lr / (1 + lambd * lr * t) ** alpha``.
    alpha : float
    t0 : float
        The step from which on parameters are averaged.
    weight_decay : float
        Added to the gradient times the parameter.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "maximize": maximize},
        )

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "weight_decay")

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:

            def begin(p: Any, state: dict[str, Any], lr: Any = group["lr"]) -> None:
                state["eta"], state["mu"] = full_for((), float32, float(lr)), full_for((), float32, 1.0)
                state["ax"] = zeros_for(p)

            active = counted(self.state, group["params"], begin)
            if not active:
                continue
            shared = tuple(hyper(group, key) for key in ("lr", "lambd", "alpha", "t0", "weight_decay"))
            update = Updates(_asgd, shared, (group["maximize"],))
            for p, grad, s in active:
                update((p, s["ax"], s["eta"], s["mu"]), (grad, s["step"]))
        return loss
