"""Limiting gradients.  The norm is recorded with everything else: nothing is read, so nothing waits for it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lezero.tensor import Tensor, no_grad, stack, tensor


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    return [(p, p.grad) for p in parameters if p.grad is not None]


@no_grad()
def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all tensors' elements taken together, as a 0-d tensor."""
    tensors = list(tensors)
    if not tensors:
        return tensor(0.0)
    if norm_type == math.inf:
        return stack([t.abs().amax() for t in tensors]).amax()
    if norm_type == 2.0:
        # The squares' sums are added up, rather than the norms' squares: one root instead of one a tensor.
        total = stack([(t.float() if t.itemsize < 4 else t).square().sum() for t in tensors]).sum().sqrt()
        return total.to(tensors[0].dtype)
    return stack([t.norm(norm_type) for t in tensors]).norm(norm_type)


@no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients by one factor so that their total norm is at most `max_norm`; returns the norm before.

    error_if_nonfinite : raise if the norm is infinite or NaN; this reads the norm, so it runs what is recorded.
    """
    pairs = _grads(parameters)
    total = get_total_norm([g for _, g in pairs], norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"clip_grad_norm_: the total norm of the gradients is {total.item()}, so they cannot be clipped"
        )
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for p, g in pairs:
        p.grad = g.detach() * factor.to(g.dtype)
    return total


@no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clip every element of the gradients to ±`clip_value`."""
    for p, g in _grads(parameters):
        p.grad = g.detach().clamp(-clip_value, clip_value)
