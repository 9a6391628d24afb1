"""NAdam and RAdam."""

from __future__ import annotations

from typing import Any

from lezero.graph.dtype import float32, float64
from lezero.ops.elementwise import sqrt, where
from lezero.ops.rules import narrow
from lezero.optim.moments import MEANS, Moments, Rule
from lezero.optim.optimizer import ParamsT
from lezero.optim.recording import full_for
from lezero.optim.rules import lerp, update_rule
from lezero.tensor import Tensor


def _decay(p, grad, lr, decay, decoupled, maximize):
    """(parameter, gradient) with the weight decay taken from the one or added to the other."""
    grad = -grad if maximize else grad
    return (p * (1 - lr * decay), grad) if decoupled else (p, grad + decay * p)


def _moments(m, v, grad, beta1, beta2):
    return lerp(m, grad, 1 - beta1), v * beta2 + (1 - beta2) * grad * grad


@update_rule(4)
def _nadam(p, mu_product, m, v, grad, step, lr, beta1, beta2, eps, decay, momentum_decay, decoupled, maximize):
    p, grad = _decay(p, grad, lr, decay, decoupled, maximize)
    mu = beta1 * (1 - 0.5 * 0.96 ** (step * momentum_decay))
    following = beta1 * (1 - 0.5 * 0.96 ** ((step + 1) * momentum_decay))
    mu_product = mu_product * narrow(mu, mu_product.dtype)  # rounded as PyTorch does, in the dtype of the state
    m, v = _moments(m, v, grad, beta1, beta2)
    divisor = sqrt(v / (1 - beta2**step)) + eps
    product = narrow(mu_product, float64)
    p = p - lr * (1 - mu) / (1 - product) * grad / divisor
    return p - lr * following / (1 - product * following) * m / divisor, mu_product, m, v


@update_rule(3)
def _radam(p, m, v, grad, step, lr, beta1, beta2, eps, decay, decoupled, maximize):
    p, grad = _decay(p, grad, lr, decay, decoupled, maximize)
    m, v = _moments(m, v, grad, beta1, beta2)
    correction = 1 - beta2**step
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / correction
    rectified = (length > 5) & (longest > 5)
    safe = where(rectified, length, longest + 5)  # no root of a negative number
    rectification = ((safe - 4) * (safe - 2) * longest / ((longest - 4) * (longest - 2) * safe)) ** 0.5
    scale = where(rectified, rectification * correction**0.5 / (sqrt(v) + eps), 1.0)
    return p - lr * m / (1 - beta1**step) * scale, m, v


class NAdam(Moments):
    """NAdam (Dozat 2016): Adam with Nesterov's momentum.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    betas : (float, float)
        How much of the two means is kept at each step.
    eps : float
        Added to the divisor.
    weight_decay : float
        Added to the gradient times the parameter.
    momentum_decay : float
        How fast the momentum approaches ``betas[0]``, from half of it.
    decoupled_weight_decay : bool
        Take the weight decay from the parameter, times the rate, as AdamW does.
    maximize : bool
        Go up the gradient.
    """

    _rates = ("momentum_decay",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
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
                "momentum_decay": momentum_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                "maximize": maximize,
            },
        )

    def _rule(self, group: dict[str, Any]) -> Rule:
        attrs = group["decoupled_weight_decay"], group["maximize"]
        return Rule(_nadam, ("mu_product", *MEANS), attrs)

    def _initial(self, p: Tensor, name: str) -> Tensor:
        return full_for((), float32, 1.0) if name == "mu_product" else super()._initial(p, name)


class RAdam(Moments):
    """RAdam (Liu et al. 2020): Adam that divides by the second moment only once its variance is known.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    betas : (float, float)
        How much of the two means is kept at each step.
    eps : float
        Added to the divisor.
    weight_decay : float
        Added to the gradient times the parameter.
    decoupled_weight_decay : bool
        Take the weight decay from the parameter, times the rate, as AdamW does.
    maximize : bool
        Go up the gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
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
                "decoupled_weight_decay": decoupled_weight_decay,
                "maximize": maximize,
            },
        )

    def _rule(self, group: dict[str, Any]) -> Rule:
        return Rule(_radam, MEANS, (group["decoupled_weight_decay"], group["maximize"]))
