"""Adamax."""

from __future__ import annotations

from typing import Any

from lezero.ops.base import REGISTRY
from lezero.optim.moments import Moments, Rule
from lezero.optim.optimizer import ParamsT
from lezero.optim.rules import decayed, lerp, update_rule

_MAXIMUM = REGISTRY["maximum"]


@update_rule(3)
def _adamax(p, m, largest, grad, step, lr, beta1, beta2, eps, decay, maximize):
    grad = decayed(p, grad, decay, maximize)
    m = lerp(m, grad, 1 - beta1)
    largest = _MAXIMUM(largest * beta2, abs(grad) + eps)
    return p - lr / (1 - beta1**step) * m / largest, m, largest


class Adamax(Moments):
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

    def _rule(self, group: dict[str, Any]) -> Rule:
        return Rule(_adamax, ("exp_avg", "exp_inf"), (group["maximize"],))
