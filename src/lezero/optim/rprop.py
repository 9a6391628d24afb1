"""Resilient backpropagation."""

from __future__ import annotations

from typing import Any

from lezero.ops.base import REGISTRY
from lezero.ops.elementwise import sign, where
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import counted, full_for, hyper, zeros_for
from lezero.optim.rules import update_rule
from lezero.runtime.updates import Updates
from lezero.tensor import no_grad

_MAXIMUM, _MINIMUM = REGISTRY["maximum"], REGISTRY["minimum"]


@update_rule(3)
def _rprop(p, last, size, grad, down, up, smallest, largest, maximize):
    grad = -grad if maximize else grad
    agreement = grad * last
    factor = where(agreement > 0, up, where(agreement < 0, down, 1.0))
    size = _MINIMUM(_MAXIMUM(size * factor, smallest), largest)
    grad = where(agreement < 0, 0.0, grad)
    return p - sign(grad) * size, grad, size


class Rprop(Optimizer):
    """Resilient backpropagation (Riedmiller & Braun 1993): steps by sign, each element with a size of its own.

    Parameters
    ----------
    params : parameters, (name, parameter) pairs or groups
    lr : float
        The size of the first step.
    etas : (float, float)
        Factors of the size where the gradient's sign has changed, and where it has not.
    step_sizes : (float, float)
        The smallest and the largest size.
    maximize : bool
        Go up the gradient.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ):
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize})

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr")
        if not 0.0 < group["etas"][0] < 1.0 < group["etas"][1]:
            raise ValueError(f"{name}: etas are a number between 0 and 1 and one above 1, got {group['etas']}")

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:

            def begin(p: Any, state: dict[str, Any], lr: Any = group["lr"]) -> None:
                state["prev"], state["step_size"] = zeros_for(p), full_for(p.shape, p.dtype, float(lr))

            active = counted(self.state, group["params"], begin)
            if not active:
                continue
            shared = tuple(hyper(group, key, k) for key in ("etas", "step_sizes") for k in (0, 1))
            update = Updates(_rprop, shared, (group["maximize"],))
            for p, grad, s in active:
                update((p, s["prev"], s["step_size"]), (grad,))
        return loss
