"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from lezero.ops.optimizer import sgd_momentum_buffer, sgd_momentum_param, sgd_param
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad


def _plain(p, grad, lr, decay, maximize):
    return (sgd_param(p, grad, lr, decay, maximize=maximize),)


def _momentum(p, buffer, grad, step, lr, momentum, dampening, decay, nesterov, maximize):
    buffer = sgd_momentum_buffer(p, grad, buffer, momentum, dampening, decay, step, maximize=maximize)
    return sgd_momentum_param(p, grad, buffer, lr, momentum, decay, nesterov=nesterov, maximize=maximize), buffer


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Sutskever et al. 2013).

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    momentum : float
        The buffer becomes ``momentum * buffer + (1 - dampening) * grad``; the first step takes the gradient undampened.
    dampening : float
    weight_decay : float
        Added to the gradient times the parameter.
    nesterov : bool
        Step along ``grad + momentum * buffer``.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
        )

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "momentum", "weight_decay")
        momentum, dampening = group["momentum"], group["dampening"]
        if group["nesterov"] and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"{name}: nesterov needs a momentum and no dampening, got momentum={momentum}, dampening={dampening}"
            )

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            lr, decay, maximize = hyper(group, "lr"), hyper(group, "weight_decay"), group["maximize"]
            if group["momentum"] == 0:
                update = Updates(_plain, (lr, decay), (maximize,))
                for p in group["params"]:
                    if p._grad is not None:
                        update((p,), (p._grad,))
                continue
            momentum, dampening = hyper(group, "momentum"), hyper(group, "dampening")
            update = Updates(_momentum, (lr, momentum, dampening, decay), (group["nesterov"], maximize))
            for p, grad, s in counted(self.state, group["params"], _begin):
                update((p, s["momentum_buffer"]), (grad, s["step"]))
        return loss


def _begin(p: Any, state: dict[str, Any]) -> None:
    state["momentum_buffer"] = zeros_for(p)
