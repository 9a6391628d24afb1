"""Adadelta."""

from __future__ import annotations

from typing import Any

from lezero.ops.elementwise import sqrt
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.optim.rules import decayed, update_rule
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad


@update_rule(3)
def _adadelta(p, square, changes, grad, lr, rho, eps, decay, maximize):
    grad = decayed(p, grad, decay, maximize)
    square = square * rho + (1 - rho) * grad * grad
    change = sqrt(changes + eps) / sqrt(square + eps) * grad
    return p - lr * change, square, changes * rho + (1 - rho) * change * change


def _begin(p: Any, state: dict[str, Any]) -> None:
    state["square_avg"], state["acc_delta"] = zeros_for(p), zeros_for(p)


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012): the gradient times the root mean square of past changes over that of past gradients.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    rho : float
        How much of the two means is kept at each step, from 0 to 1.
    eps : float
        Added below both roots.
    weight_decay : float
        Added to the gradient times the parameter.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "rho", "eps", "weight_decay")
        if group["rho"] > 1:
            raise ValueError(f"{name}: rho is from 0 to 1, got {group['rho']}")

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            active = counted(self.state, group["params"], _begin)
            if not active:
                continue
            shared = tuple(hyper(group, key) for key in ("lr", "rho", "eps", "weight_decay"))
            update = Updates(_adadelta, shared, (group["maximize"],))
            for p, grad, s in active:
                update((p, s["square_avg"], s["acc_delta"]), (grad,))
        return loss
