"""Products, maxima and minima of elements that an index sends to one place, for ``scatter_reduce``.

Elements are sorted by where they go, so that those of one place are neighbours.  Then each is combined with the one 1, 2, 4, …
before it where that goes to the same place, after which the last of each place holds the result of all.
"""

from __future__ import annotations

from collections.abc import Callable

from lezero.graph import dtype as dt
from lezero.tensor import Tensor, cat, ones, where, zeros


def product(input: Tensor, dim: int, index: Tensor, src: Tensor, met: Tensor, include_self: bool) -> Tensor:
    """met : how many elements of `src` come to each place."""
    found = _combined(input, dim, index, src, Tensor.mul)
    return where(met == 0, input, input * found if include_self else found)


def extreme(
    input: Tensor, dim: int, index: Tensor, src: Tensor, met: Tensor, include_self: bool,
    choose: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """`choose` : maximum or minimum.  All elements that are chosen share the gradient equally."""
    found = _combined(input, dim, index, src, choose).detach()
    was = input.detach()
    best = where(met == 0, was, choose(was, found) if include_self else found)
    if not input.dtype.differentiable or not (input.requires_grad or src.requires_grad):
        return best
    own = was == best if include_self else met == 0
    sent = src.detach() == best.gather(dim, index)
    shares = own.to(dt.int64).scatter_add(dim, index, sent.to(dt.int64)).clamp(min=1).to(best.dtype)
    of_self = where(own, _derivative(input) / shares, 0)
    return best + of_self.scatter_add(dim, index, where(sent, _derivative(src) / shares.gather(dim, index), 0))


def _derivative(x: Tensor) -> Tensor:
    """0, with the derivative of `x` where that is finite."""
    return where(x.detach().isfinite(), x - x.detach(), 0)


def _combined(
    input: Tensor, dim: int, index: Tensor, src: Tensor, combine: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    order = index.argsort(dim)
    at, values = index.gather(dim, order), src.gather(dim, order)
    n = int(index.shape[dim])
    step = 1
    while step < n:
        before, here = values.narrow(dim, 0, n - step), values.narrow(dim, step, n - step)
        same = at.narrow(dim, 0, n - step) == at.narrow(dim, step, n - step)
        values = cat([values.narrow(dim, 0, step), where(same, combine(before, here), here)], dim)
        step *= 2
    edge = [1 if k == dim else d for k, d in enumerate(at.shape)]
    last = cat([at.narrow(dim, 0, n - 1) != at.narrow(dim, 1, n - 1), ones(edge, dtype=dt.bool_)], dim)
    return zeros(input.shape, dtype=input.dtype).scatter_add(dim, at, where(last, values, 0)._cast(input.dtype))
