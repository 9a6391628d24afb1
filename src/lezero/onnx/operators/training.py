"""Optimisers as operators (the domain ``ai.onnx.preview.training``): each variable with its gradient and its state."""

from __future__ import annotations

from collections.abc import Callable

import lezero as lz
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, operator
from lezero.tensor import Tensor

DOMAIN = "ai.onnx.preview.training"


def _each(tensors: tuple[Tensor, ...], kinds: int, update: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Operands come kind by kind (all variables, all gradients, …) and so do results."""
    if len(tensors) % kinds:
        raise OnnxError(f"{len(tensors)} tensors are not {kinds} for each variable")
    count = len(tensors) // kinds
    results = [update(*tensors[k::count]) for k in range(count)]
    return tuple(r for kind in zip(*results) for r in kind)


@operator("Adagrad", domain=DOMAIN)
def adagrad(
    _: Context, rate: Tensor, step: Tensor, *tensors: Tensor, decay_factor: float = 0.0, epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    rate = rate / (1 + step * decay_factor)

    def update(x: Tensor, gradient: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
        gradient = gradient + norm_coefficient * x
        squares = squares + gradient * gradient
        return x - rate * gradient / (lz.sqrt(squares) + epsilon), squares

    return _each(tensors, 3, update)


@operator("Adam", domain=DOMAIN)
def adam(
    _: Context, rate: Tensor, step: Tensor, *tensors: Tensor, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-6,
    norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    t = step.to(rate.dtype)
    corrected = rate * lz.sqrt(1 - beta**t) / (1 - alpha**t)
    rate = lz.where(step > 0, corrected, rate)

    def update(x: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
        gradient = gradient + norm_coefficient * x
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * gradient * gradient
        x = x - rate * mean / (lz.sqrt(squares) + epsilon)
        return (1 - norm_coefficient_post) * x, mean, squares

    return _each(tensors, 4, update)


@operator("Momentum", domain=DOMAIN)
def momentum(
    _: Context,
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    beta_now = lz.where(step > 0, beta, 1.0).to(rate.dtype)

    def update(x: Tensor, gradient: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        gradient = gradient + norm_coefficient * x
        velocity = alpha * velocity + beta_now * gradient
        return x - rate * (gradient + alpha * velocity if mode == "nesterov" else velocity), velocity

    return _each(tensors, 3, update)
