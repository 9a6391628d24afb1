"""Adagrad."""

from __future__ import annotations

from typing import Any

from lezero.ops.optimizer import adagrad_param, adagrad_sum
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad


def _adagrad(p, total, grad, step, lr, lr_decay, eps, decay, maximize):
    total = adagrad_sum(p, grad, total, decay, maximize=maximize)
    return adagrad_param(p, grad, total, lr, lr_decay, eps, decay, step, maximize=maximize), total


class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan & Singer 2011): the gradient divided by the root of the sum of its squares so far.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    lr_decay : float
        The rate of step t is ``lr / (1 + (t - 1) * lr_decay)``.
    weight_decay : float
        Added to the gradient times the parameter.
    initial_accumulator_value : float
        What the sum of squares starts from.
    eps : float
        Added to the divisor.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "eps": eps,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "maximize": maximize,
            },
        )

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "lr_decay", "weight_decay", "eps", "initial_accumulator_value")

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:

            def begin(p: Any, s: dict[str, Any], start: float = group["initial_accumulator_value"]) -> None:
                s["sum"] = zeros_for(p) + start if start else zeros_for(p)

            active = counted(self.state, group["params"], begin)
            if not active:
                continue
            lr, lr_decay = hyper(group, "lr"), hyper(group, "lr_decay")
            eps, decay = hyper(group, "eps"), hyper(group, "weight_decay")
            update = Updates(_adagrad, (lr, lr_decay, eps, decay), (group["maximize"],))
            for p, grad, s in active:
                update((p, s["sum"]), (grad, s["step"]))
        return loss
