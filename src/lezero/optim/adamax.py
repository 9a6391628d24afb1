"""Adamax."""

from __future__ import annotations

from typing import Any

from lezero.ops.base import REGISTRY
from lezero.optim.checks import not_negative, two_betas
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.optim.rules import decayed, lerp, update_rule
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad

_MAXIMUM = REGISTRY["maximum"]


@update_rule(3)
def _adamax(p, m, largest, grad, step, lr, beta1, beta2, eps, decay, maximize):
    grad = decayed(p, grad, decay, maximize)
    m = lerp(m, grad, 1 - beta1)
    largest = _MAXIMUM(largest * beta2, abs(grad) + eps)
    return p - lr / (1 - beta1**step) * m / largest, m, largest


def _begin(p: Any, state: dict[str, Any]) -> None:
    state["exp_avg"], state["exp_inf"] = zeros_for(p), zeros_for(p)


class Adamax(Optimizer):
    """Adamax (Kingma & Ba 2015, section 7.1): Adam divided by a decaying maximum instead of a root mean square.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    betas : (float, float)
        How much of the mean gradient, and of the maximum, is kept at each step.
    eps : float
        Added to the size of the gradient.
    weight_decay : float
        Added to the gradient times the parameter.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        )

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "eps", "weight_decay")
        two_betas(name, group["betas"])

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            active = counted(self.state, group["params"], _begin)
            if not active:
                continue
            shared = (
                hyper(group, "lr"), hyper(group, "betas", 0), hyper(group, "betas", 1), hyper(group, "eps"),
                hyper(group, "weight_decay"),
            )  # fmt: skip
            update = Updates(_adamax, shared, (group["maximize"],))
            for p, grad, s in active:
                update((p, s["exp_avg"], s["exp_inf"]), (grad, s["step"]))
        return loss
