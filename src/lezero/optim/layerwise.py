"""Lion and LAMB: newer optimizers, written with ordinary operations."""

from __future__ import annotations

from typing import Any

from lezero.ops.elementwise import sign, sqrt, where
from lezero.ops.reduce import norm
from lezero.optim.checks import not_negative, two_betas
from lezero.optim.moments import MEANS, Moments, Rule
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.optim.rules import update_rule
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad


class Lion(Optimizer):
    """Lion (Chen et al. 2023): steps by the sign of an interpolation of gradient and momentum.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
        Three to ten times smaller than AdamW's.
    betas : (float, float)
        The share of the momentum in the step, and how much of it is kept.
    weight_decay : float
        Taken from the parameter, times the rate.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "weight_decay")
        two_betas(name, group["betas"])

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            active = counted(self.state, group["params"], _begin_lion)
            if not active:
                continue
            lr, decay = hyper(group, "lr"), hyper(group, "weight_decay")
            beta1, beta2 = hyper(group, "betas", 0), hyper(group, "betas", 1)
            update = Updates(_lion, (lr, beta1, beta2, decay), (group["maximize"],))
            for p, grad, s in active:
                update((p, s["exp_avg"]), (grad,))
        return loss


@update_rule(2)
def _lion(p, m, grad, lr, beta1, beta2, decay, maximize):
    grad = -grad if maximize else grad
    direction = sign(m * beta1 + grad * (1 - beta1))
    return p * (1 - lr * decay) - lr * direction, m * beta2 + grad * (1 - beta2)


def _begin_lion(p: Any, state: dict[str, Any]) -> None:
    state["exp_avg"] = zeros_for(p)


class LAMB(Moments):
    """LAMB (You et al. 2020): Adam's step, scaled for each parameter by the ratio of its norm to the step's.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    betas : (float, float)
    eps : float
    weight_decay : float
        Added to the step times the parameter, before the ratio is taken.
    maximize : bool
        Go up the gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        )

    def _rule(self, group: dict[str, Any]) -> Rule:
        return Rule(_lamb, MEANS, (group["maximize"],))


@update_rule(3)
def _lamb(p, m, v, grad, t, lr, beta1, beta2, eps, decay, maximize):
    grad = -grad if maximize else grad
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + grad * grad * (1 - beta2)
    step = (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps) + decay * p
    every = tuple(range(len(p.shape)))
    size, length = norm(p, axes=every), norm(step, axes=every)
    ratio = where((size > 0) & (length > 0), size / length, 1.0)
    return p - lr * ratio * step, m, v
