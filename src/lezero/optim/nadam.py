"""NAdam and RAdam."""

from __future__ import annotations

from typing import Any

from lezero.graph.dtype import float32, float64
from lezero.ops.elementwise import sqrt, where
from lezero.ops.rules import narrow
from lezero.optim.checks import not_negative, two_betas
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, full_for, hyper, zeros_for
from lezero.optim.rules import lerp, update_rule
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad


def _decay(p, grad, lr, decay, decoupled, maximize):
    """(parameter, gradient) with the weight decay taken from the one or added to the other."""
    grad = -grad if maximize else grad
    return (p * (1 - lr * decay), grad) if decoupled else (p, grad + decay * p)


def _moments(m, v, grad, beta1, beta2):
    return lerp(m, grad, 1 - beta1), v * beta2 + (1 - beta2) * grad * grad


@update_rule(4)
def _nadam(p, m, v, mu_product, grad, step, lr, beta1, beta2, eps, decay, momentum_decay, decoupled, maximize):
    p, grad = _decay(p, grad, lr, decay, decoupled, maximize)
    mu = beta1 * (1 - 0.5 * 0.96 ** (step * momentum_decay))
    following = beta1 * (1 - 0.5 * 0.96 ** ((step + 1) * momentum_decay))
    mu_product = mu_product * narrow(mu, mu_product.dtype)  # rounded as PyTorch does, in the dtype of the state
    m, v = _moments(m, v, grad, beta1, beta2)
    divisor = sqrt(v / (1 - beta2**step)) + eps
    product = narrow(mu_product, float64)
    p = p - lr * (1 - mu) / (1 - product) * grad / divisor
    return p - lr * following / (1 - product * following) * m / divisor, m, v, mu_product


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


def _begin(p: Any, state: dict[str, Any]) -> None:
    state["exp_avg"], state["exp_avg_sq"] = zeros_for(p), zeros_for(p)


def _begin_nadam(p: Any, state: dict[str, Any]) -> None:
    state["mu_product"] = full_for((), float32, 1.0)
    _begin(p, state)


class NAdam(Optimizer):
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

    _replays = True

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

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "eps", "weight_decay", "momentum_decay")
        two_betas(name, group["betas"])

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            active = counted(self.state, group["params"], _begin_nadam)
            if not active:
                continue
            shared = (*_shared(group), hyper(group, "momentum_decay"))
            update = Updates(_nadam, shared, (group["decoupled_weight_decay"], group["maximize"]))
            for p, grad, s in active:
                update((p, s["exp_avg"], s["exp_avg_sq"], s["mu_product"]), (grad, s["step"]))
        return loss


class RAdam(Optimizer):
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

    _replays = True

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
            update = Updates(_radam, _shared(group), (group["decoupled_weight_decay"], group["maximize"]))
            for p, grad, s in active:
                update((p, s["exp_avg"], s["exp_avg_sq"]), (grad, s["step"]))
        return loss


def _shared(group: dict[str, Any]) -> tuple[Any, ...]:
    betas = hyper(group, "betas", 0), hyper(group, "betas", 1)
    return (hyper(group, "lr"), *betas, hyper(group, "eps"), hyper(group, "weight_decay"))
