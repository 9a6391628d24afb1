"""Adam and AdamW."""

from __future__ import annotations

from typing import Any

from lezero.ops.base import REGISTRY
from lezero.ops.optimizer import adam_m, adam_param, adam_v
from lezero.optim.moments import MEANS, Moments, Rule
from lezero.optim.optimizer import ParamsT

_MAXIMUM = REGISTRY["maximum"]


def _adam(p, m, v, grad, step, lr, beta1, beta2, eps, decay, decoupled, maximize):
    m, v = _moments(p, m, v, grad, beta1, beta2, decay, decoupled, maximize)
    return adam_param(p, m, v, lr, beta1, beta2, eps, decay, step, decoupled=decoupled), m, v


def _amsgrad(p, m, v, largest, grad, step, lr, beta1, beta2, eps, decay, decoupled, maximize):
    m, v = _moments(p, m, v, grad, beta1, beta2, decay, decoupled, maximize)
    largest = _MAXIMUM(largest, v)
    return adam_param(p, m, largest, lr, beta1, beta2, eps, decay, step, decoupled=decoupled), m, v, largest


def _moments(p, m, v, grad, beta1, beta2, decay, decoupled, maximize):
    attrs = {"decoupled": decoupled, "maximize": maximize}
    return adam_m(p, grad, m, beta1, decay, **attrs), adam_v(p, grad, v, beta2, decay, **attrs)


class Adam(Moments):
    """Adam (Kingma & Ba 2015): steps along the mean gradient, divided by the root of the mean squared gradient.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    betas : (float, float)
        How much of the two means is kept at each step.
    eps : float
        Added to the divisor.
    weight_decay : float
        Added to the gradient times the parameter (AdamW takes it from the parameter instead).
    amsgrad : bool
        Divide by the largest mean so far (Reddi et al. 2018).
    maximize : bool
        Go up the gradient.
    """

    _decoupled = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
            },
        )

    def _rule(self, group: dict[str, Any]) -> Rule:
        attrs = self._decoupled, group["maximize"]
        if group["amsgrad"]:
            return Rule(_amsgrad, (*MEANS, "max_exp_avg_sq"), attrs)
        return Rule(_adam, MEANS, attrs)


class AdamW(Adam):
    """Adam with the weight decay taken from the parameter, times the rate (Loshchilov & Hutter 2019).

    Parameters are those of :class:`Adam`; `weight_decay` is 0.01 by default.
    """

    _decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
