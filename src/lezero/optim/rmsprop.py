"""RMSprop."""

from __future__ import annotations

from typing import Any

from lezero.ops.base import REGISTRY
from lezero.ops.optimizer import rmsprop_buffer, rmsprop_mean, rmsprop_param, rmsprop_square
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad

_FULL = REGISTRY["full"]


def _rmsprop(p, square, *others):
    *state, grad, lr, alpha, eps, decay, momentum, centered, maximize = others
    square = rmsprop_square(p, grad, square, alpha, decay, maximize=maximize)
    new, mean = [square], square  # the mean is read only where centred
    if centered:
        mean = rmsprop_mean(p, grad, state.pop(0), alpha, decay, maximize=maximize)
        new.append(mean)
    buffer = state[0] if state else _FULL(shape=p.shape, value=0, dtype=p.dtype, like=p)
    buffer = rmsprop_buffer(p, grad, buffer, square, mean, momentum, eps, decay, centered=centered, maximize=maximize)
    if state:
        new.append(buffer)
    return rmsprop_param(p, buffer, lr), *new


class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton 2012): the gradient divided by the root of its moving mean square.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
    alpha : float
        How much of the moving mean is kept at each step.
    eps : float
        Added to the divisor.
    weight_decay : float
        Added to the gradient times the parameter.
    momentum : float
    centered : bool
        Divide by the deviation instead: the mean gradient's square is taken off (Graves 2013).
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "alpha": alpha,
                "eps": eps,
                "centered": centered,
                "weight_decay": weight_decay,
                "maximize": maximize,
            },
        )

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "alpha", "eps", "weight_decay", "momentum")

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            maximize, centered = group["maximize"], group["centered"]

            def begin(
                p: Any, s: dict[str, Any], centered: bool = centered, moving: bool = group["momentum"] > 0
            ) -> None:
                s["square_avg"] = zeros_for(p)
                if moving:
                    s["momentum_buffer"] = zeros_for(p)
                if centered:
                    s["grad_avg"] = zeros_for(p)

            active = counted(self.state, group["params"], begin)
            if not active:
                continue
            lr, alpha, eps = hyper(group, "lr"), hyper(group, "alpha"), hyper(group, "eps")
            decay, momentum = hyper(group, "weight_decay"), hyper(group, "momentum")
            update = Updates(_rmsprop, (lr, alpha, eps, decay, momentum), (centered, maximize))
            for p, grad, s in active:
                state = [s["square_avg"]]
                if centered:
                    state.append(s["grad_avg"])
                if "momentum_buffer" in s:
                    state.append(s["momentum_buffer"])
                update((p, *state), (grad,))
        return loss
