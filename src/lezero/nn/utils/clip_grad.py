"""Limiting gradients.  The norm is recorded with everything else: nothing is read, so nothing waits for it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lezero.arguments import need_real
from lezero.tensor import Tensor, no_grad, stack, tensor


def _grads(name: str, parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    listed = [parameters] if isinstance(parameters, Tensor) else parameters
    listed = list(listed) if isinstance(listed, Iterable) else [listed]
    if not all(isinstance(p, Tensor) for p in listed):
        hint = "; pass model.parameters()" if hasattr(parameters, "parameters") else ""
        raise TypeError(f"{name}: an iterable of tensors is needed, got a {type(parameters).__name__}{hint}")
    return [(p, p.grad) for p in listed if p.grad is not None]


@no_grad()
def get_total_norm(tensors: Iterable[Tensor], norm_type: float | str = 2.0) -> Tensor:
    """The norm of all tensors' elements taken together, as a 0-d tensor; `norm_type` is a number, or "inf"."""
    tensors, norm_type = list(tensors), float(norm_type)
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
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients by one factor so that their total norm is at most `max_norm`; returns the norm before.

    norm_type : a number, or "inf" for the largest absolute value
    error_if_nonfinite : raise if the norm is infinite or NaN; this reads the norm, so it runs what is recorded.
    """
    if not isinstance(max_norm, Tensor):
        need_real("clip_grad_norm_: max_norm", max_norm)
    pairs = _grads("clip_grad_norm_", parameters)
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
    need_real("clip_grad_value_: clip_value", clip_value)
    for p, g in _grads("clip_grad_value_", parameters):
        p.grad = g.detach().clamp(-clip_value, clip_value)
