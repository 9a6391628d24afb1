"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from lezero.ops.optimizer import sgd_momentum_buffer, sgd_momentum_param, sgd_param
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.runtime.recorder import assign, record
from lezero.tensor import no_grad


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
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not value >= 0.0:  # NaN too
                raise ValueError(f"SGD: {name} is not negative, got {value}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"SGD: nesterov needs a momentum and no dampening, got momentum={momentum}, dampening={dampening}"
            )
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

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            lr, decay, maximize = hyper(group, "lr"), hyper(group, "weight_decay"), group["maximize"]
            if group["momentum"] == 0:
                for p in group["params"]:
                    if p._grad is not None:
                        assign(p, record(sgd_param, (p, p._grad, lr, decay), (maximize,)))
                continue
            momentum, dampening = hyper(group, "momentum"), hyper(group, "dampening")
            attrs = (group["nesterov"], maximize)
            for p, grad, s in counted(self.state, group["params"], _begin):
                buffer = s["momentum_buffer"]
                operands = (p, grad, buffer, momentum, dampening, decay, s["step"])
                assign(buffer, record(sgd_momentum_buffer, operands, (maximize,)))
                assign(p, record(sgd_momentum_param, (p, grad, buffer, lr, momentum, decay), attrs))
        return loss


def _begin(p: Any, state: dict[str, Any]) -> None:
    state["momentum_buffer"] = zeros_for(p)
