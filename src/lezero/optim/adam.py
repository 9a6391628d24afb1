"""Adam and AdamW."""

from __future__ import annotations

from typing import Any

from lezero.ops.base import REGISTRY
from lezero.ops.optimizer import adam_m, adam_param, adam_v
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.runtime.recorder import assign, record
from lezero.tensor import no_grad

_MAXIMUM = REGISTRY["maximum"]


class Adam(Optimizer):
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
    _replays = True

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
        name = type(self).__name__
        for key, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0.0:  # NaN too
                raise ValueError(f"{name}: {key} is not negative, got {value}")
        if len(betas) != 2 or not all(0.0 <= b < 1.0 for b in betas):
            raise ValueError(f"{name}: betas are two numbers from 0 to below 1, got {betas}")
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

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        decoupled = self._decoupled
        for group in self.param_groups:
            active = counted(self.state, group["params"], _begin_amsgrad if group["amsgrad"] else _begin)
            if not active:
                continue
            lr, eps, decay = hyper(group, "lr"), hyper(group, "eps"), hyper(group, "weight_decay")
            beta1, beta2 = hyper(group, "betas", 0), hyper(group, "betas", 1)
            moment_attrs, attrs, amsgrad = (decoupled, group["maximize"]), (decoupled,), group["amsgrad"]
            for p, grad, s in active:
                m, v = s["exp_avg"], s["exp_avg_sq"]
                assign(m, record(adam_m, (p, grad, m, beta1, decay), moment_attrs))
                assign(v, record(adam_v, (p, grad, v, beta2, decay), moment_attrs))
                if amsgrad:
                    largest = s["max_exp_avg_sq"]
                    assign(largest, record(_MAXIMUM, (largest, v), ()))
                    v = largest
                assign(p, record(adam_param, (p, m, v, lr, beta1, beta2, eps, decay, s["step"]), attrs))
        return loss


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


def _begin(p: Any, state: dict[str, Any]) -> None:
    state["exp_avg"], state["exp_avg_sq"] = zeros_for(p), zeros_for(p)


def _begin_amsgrad(p: Any, state: dict[str, Any]) -> None:
    _begin(p, state)
    state["max_exp_avg_sq"] = zeros_for(p)
