"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from lezero.tensor import Tensor, cat, no_grad


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters, one after the other."""
    return cat([p.reshape(-1) for p in parameters])


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write slices of a vector into the parameters, in order."""
    parameters = list(parameters)
    total = sum(p.numel() for p in parameters)
    if tuple(vec.shape) != (total,):
        raise ValueError(
            f"vector_to_parameters: the parameters have {int(total)} elements, the vector has shape {tuple(vec.shape)}"
        )
    at = 0
    for p in parameters:
        n = int(p.numel())
        p.copy_(vec.narrow(0, at, n).reshape(p.shape))
        at += n
