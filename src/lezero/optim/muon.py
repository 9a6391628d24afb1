"""Muon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero.graph.dtype import bfloat16, float32
from lezero.ops.base import REGISTRY
from lezero.ops.reduce import norm
from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.optim.recording import hyper, zeros_for
from lezero.optim.rules import lerp, update_rule
from lezero.runtime.updates import Updates
from lezero.tensor import Tensor, no_grad

_CAST, _MAXIMUM, _PERMUTE = REGISTRY["cast"], REGISTRY["maximum"], REGISTRY["permute"]
_RATES = {
    None: lambda n, m: max(1.0, n / m) ** 0.5,
    "original": lambda n, m: max(1.0, n / m) ** 0.5,
    "match_rms_adamw": lambda n, m: 0.2 * max(n, m) ** 0.5,
}


@update_rule(2)
def _muon(p, buffer, grad, lr, decay, momentum, a, b, c, eps, nesterov, steps, adjust):
    buffer = lerp(buffer, grad, 1 - momentum)
    direction = _orthogonal(lerp(grad, buffer, momentum) if nesterov else buffer, (a, b, c), steps, eps)
    rate = lr * _RATES[adjust](*map(int, p.shape))
    return p * (1 - lr * decay) - rate * _CAST(direction, dtype=p.dtype), buffer


def _orthogonal(x, coefficients, steps, eps):
    """The nearest matrix of orthonormal rows or columns, nearly: an odd polynomial brings singular values near 1.

    Products are of bfloat16, as PyTorch's.
    """
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = _low(x)
    x = _turned(x) if tall else x
    x = _low(x / _MAXIMUM(norm(x, axes=(0, 1)), _low(eps)))
    for _ in range(steps):
        gram = x @ _turned(x)
        polynomial = _low(b * _wide(gram) + c * _wide(gram @ gram))
        x = _low(a * _wide(x) + _wide(polynomial @ x))
    return _turned(x) if tall else x


def _low(x):
    return _CAST(x, dtype=bfloat16)


def _wide(x):
    return _CAST(x, dtype=float32)


def _turned(x):
    return _PERMUTE(x, axes=(1, 0))


class Muon(Optimizer):
    """Muon (Jordan et al. 2024): momentum whose singular values are all brought near 1, for the matrices of hidden layers.

    Parameters
    ----------
    params : parameters of two dimensions, (name, parameter) pairs or groups
    lr : float
    weight_decay : float
        Taken from the parameter, times the rate.
    momentum : float
    nesterov : bool
        Look ahead along the momentum.
    ns_coefficients : (float, float, float)
        Of the polynomial of degree five that each iteration applies to the singular values.
    eps : float
        The smallest norm the momentum is divided by.
    ns_steps : int
        How many iterations, below 100.
    adjust_lr_fn : {None, "original", "match_rms_adamw"}
        How the rate follows from a matrix's shape (n, m): times ``sqrt(max(1, n / m))``, or, so that AdamW's rates can be
        used, times ``0.2 * sqrt(max(n, m))``.
    """

    _replays = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_coefficients": ns_coefficients,
                "eps": eps,
                "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn,
            },
        )

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "momentum", "weight_decay", "eps")
        if group["adjust_lr_fn"] not in _RATES:
            raise ValueError(
                f"{name}: adjust_lr_fn is None, 'original' or 'match_rms_adamw', got {group['adjust_lr_fn']!r}"
            )
        if len(group["ns_coefficients"]) != 3:
            raise ValueError(f"{name}: ns_coefficients are three numbers, got {group['ns_coefficients']}")
        if not 0 <= group["ns_steps"] < 100:
            raise ValueError(f"{name}: ns_steps is from 0 to 99, got {group['ns_steps']}")
        for p in group.get("params", ()):
            if p.ndim != 2:
                raise ValueError(
                    f"{name}: parameters are matrices, got one of shape {tuple(map(int, p.shape))}; AdamW takes the others"
                )

    def _signature(self) -> tuple[Any, list[Tensor]]:
        key, reads = super()._signature()
        return (key, *self._counts()), reads

    def _structure(self) -> list[Any]:
        return [*super()._structure(), *self._counts()]

    def _counts(self) -> Sequence[Any]:
        """What else decides the operations of a step."""
        return [(group["ns_steps"], group["adjust_lr_fn"]) for group in self.param_groups]

    @no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = self._loss(closure)
        for group in self.param_groups:
            trained = [p for p in group["params"] if p._grad is not None]
            if not trained:
                continue
            shared = (
                *(hyper(group, key) for key in ("lr", "weight_decay", "momentum")),
                *(hyper(group, "ns_coefficients", k) for k in range(3)),
                hyper(group, "eps"),
            )
            update = Updates(_muon, shared, (group["nesterov"], group["ns_steps"], group["adjust_lr_fn"]))
            for p in trained:
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = zeros_for(p)
                update((p, state["momentum_buffer"]), (p._grad,))
        return loss
