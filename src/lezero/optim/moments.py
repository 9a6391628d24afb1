"""What the optimizers of Adam's family share: running means kept for each parameter, and one rule that updates all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lezero.optim.checks import not_negative, two_betas
from lezero.optim.optimizer import Optimizer
from lezero.optim.recording import counted, hyper, zeros_for
from lezero.runtime.updates import Updates
from lezero.tensor import Tensor, no_grad

MEANS = ("exp_avg", "exp_avg_sq")


class Rule(NamedTuple):
    """How the parameters of a group are updated.

    update : (parameter, *kept, gradient, step, lr, beta1, beta2, eps, weight_decay, *rates, *attrs) -> (parameter, *kept)
    kept : names of a parameter's state besides its count
    attrs : what decides which operations are recorded
    """

    update: Callable[..., Any]
    kept: tuple[str, ...]
    attrs: tuple[bool, ...]


class Moments(Optimizer):
    """An optimizer with ``lr``, ``betas``, ``eps`` and ``weight_decay``; subclasses give the rule."""

    _replays = True
    _rates: tuple[str, ...] = ()  # names of further hyper-parameters

    def _rule(self, group: dict[str, Any]) -> Rule:
        raise NotImplementedError

    def _initial(self, p: Tensor, name: str) -> Tensor:
        """What a parameter's state begins with."""
        return zeros_for(p)

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "eps", "weight_decay", *self._rates)
        two_betas(name, group["betas"])

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            rule = self._rule(group)

            def begin(p: Tensor, state: dict[str, Any], kept: tuple[str, ...] = rule.kept) -> None:
                state.update({name: self._initial(p, name) for name in kept})

            active = counted(self.state, group["params"], begin)
            if not active:
                continue
            betas = hyper(group, "betas", 0), hyper(group, "betas", 1)
            rates = [hyper(group, name) for name in ("eps", "weight_decay", *self._rates)]
            update = Updates(rule.update, (hyper(group, "lr"), *betas, *rates), rule.attrs)
            for p, grad, s in active:
                update((p, *(s[name] for name in rule.kept)), (grad, s["step"]))
        return loss
