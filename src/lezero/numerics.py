"""Statistics, integrals, powers of matrices and windows, made of other operations (installed like ``composed``).

Names, arguments and results follow PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lezero.graph import dtype as dt
from lezero.ops.base import normalize_axis
from lezero.rearranged import _values
from lezero.tensor import Tensor, arange, eye, stack, tensor, where

# -- statistics -------------------------------------------------------------------------------------------------------


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Covariances of variables (rows) over observations (columns).

    fweights : how often each observation is there, integers
    aweights : how much each counts
    """
    if input.ndim > 2:
        raise ValueError(f"cov: at most two dimensions are taken, got {input.ndim}")
    x = input.reshape(1, -1) if input.ndim < 2 else input
    x = x if x.dtype.kind in "fc" else x._cast(dt.default_dtype())
    weights = _weights_of(x, fweights, aweights)
    norm: Any
    if weights is None:
        x = x - x.mean(1, keepdim=True)
        scaled, norm = x, max(int(x.shape[1]) - correction, 0)
    else:
        total = weights.sum()
        x = x - (x * weights).sum(1, keepdim=True) / total
        lost = correction if aweights is None else correction * (weights * aweights).sum() / total
        scaled, norm = x * weights, (total - lost).clamp(min=0)
    out = (scaled @ x.mH) / norm
    return out if x.shape[0] != 1 else out.reshape(())


def _weights_of(x: Tensor, fweights: Tensor | None, aweights: Tensor | None) -> Tensor | None:
    given = [w for w in (fweights, aweights) if w is not None]
    for w in given:
        if w.ndim != 1 or w.shape[0] != x.shape[1]:
            raise ValueError(
                f"cov: weights for each of {int(x.shape[1])} observations, got shape {tuple(map(int, w.shape))}"
            )
    for name, own in (("fweights", fweights), ("aweights", aweights)):
        if own is not None and own._buffer is not None and (own._buffer.array < 0).any():
            raise ValueError(f"cov: {name} are 0 or more")
    if fweights is not None and fweights.dtype.kind not in "iu":
        raise TypeError(f"cov: fweights are integers, got {fweights.dtype.name}")
    return None if not given else math.prod(given[1:], start=given[0]._cast(x.dtype.to_real()))


def corrcoef(input: Tensor) -> Tensor:
    """Pearson correlations of variables (rows) over observations (columns)."""
    c = cov(input)
    if not c.ndim:
        return c / c
    d = c.diagonal().sqrt()
    return (c / d.reshape(-1, 1) / d).clamp(-1, 1)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal parts of [min, max] (of their range, where both are 0)."""
    x = _values("histc", input).reshape(-1)
    low, high = (x.min(), x.max()) if min == max == 0 and x.size else (min, max)
    if low == high:
        low, high = low - 1, high + 1
    return tensor(np.histogram(x.astype(np.float64), bins, (float(low), float(high)))[0].astype(x.dtype))


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """With each part along `dim` scaled down to a `p`-norm of at most `maxnorm`."""
    if input.ndim < 2:
        raise ValueError(f"renorm: two dimensions or more are needed, got {input.ndim}")
    d = normalize_axis("renorm", dim, input.ndim)
    size = input.norm(p, tuple(a for a in range(input.ndim) if a != d), keepdim=True)
    # the small number is the one PyTorch divides by
    return where(size > maxnorm, input * (maxnorm / (size + 1e-7)), input)


# -- integrals and powers ---------------------------------------------------------------------------------------------


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integral along `dim` of straight lines between points `dx` apart, or at `x`."""
    return _trapezoids(y, x, dx, dim).sum(dim)


trapz = trapezoid


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integrals up to each point but the first."""
    return _trapezoids(y, x, dx, dim).cumsum(dim)


def _trapezoids(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    d = normalize_axis("trapezoid", dim, y.ndim)
    n = y.shape[d] - 1
    mean = (y.narrow(d, 1, n) + y.narrow(d, 0, n)) / 2
    if x is None:
        return mean * dx
    if x.ndim == 1:
        return mean * (x.narrow(0, 1, n) - x.narrow(0, 0, n)).reshape((-1,) + (1,) * (y.ndim - d - 1))
    return mean * (x.narrow(d, 1, n) - x.narrow(d, 0, n))


def matrix_power(input: Tensor, n: int) -> Tensor:
    """Square matrices multiplied by themselves, `n` factors (0 or more)."""
    if n < 0:
        raise ValueError(f"matrix_power: n is 0 or more; got {n} (linalg.matrix_power takes inverses, too)")
    if n == 0:
        return (input * 0 + eye(int(input.shape[-1]), dtype=input.dtype)).detach()
    out, square = None, input
    while n:
        if n & 1:
            out = square if out is None else out @ square
        n >>= 1
        if n:
            square = square @ square
    assert out is not None
    return out


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, multiplied in the order that takes the fewest operations."""
    sizes = [int(matrices[0].shape[0]), *(int(m.shape[1]) for m in matrices)]
    best: dict[tuple[int, int], tuple[int, int]] = {}

    def cost(i: int, j: int) -> int:
        if i == j:
            return 0
        if (i, j) not in best:
            best[i, j] = min(
                (cost(i, k) + cost(k + 1, j) + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
        return best[i, j][0]

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return matrices[i]
        k = best[i, j][1]
        return product(i, k) @ product(k + 1, j)

    cost(0, len(matrices) - 1)
    return product(0, len(matrices) - 1)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """`N` powers (as many as elements unless given) of the elements of a vector, as columns; highest first unless `increasing`."""
    x = x if x.ndim else x.reshape(1)
    n = int(x.shape[0]) if N is None else N
    columns = [x**k for k in (range(n) if increasing else reversed(range(n)))]
    return stack(columns, 1)


# -- complex numbers --------------------------------------------------------------------------------------------------


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """``real + 1j * imag``, of two tensors of one floating dtype."""
    if real.dtype is not imag.dtype or not real.is_floating_point():
        raise TypeError(
            f"complex: tensors of one floating dtype are needed, got {real.dtype.name} and {imag.dtype.name}"
        )
    return real._cast(real.dtype.to_complex()) + imag._cast(real.dtype.to_complex()) * 1j


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """``abs * exp(1j * angle)``, of two tensors of one floating dtype."""
    return complex(abs * angle.cos(), abs * angle.sin())


def view_as_real(input: Tensor) -> Tensor:
    """Real and imaginary parts along a new last dimension (a copy)."""
    return stack([input.real(), input.imag()], -1)


def view_as_complex(input: Tensor) -> Tensor:
    """Complex numbers of the two elements of the last dimension (a copy)."""
    if int(input.shape[-1]) != 2:
        raise ValueError(f"view_as_complex: the last dimension must have extent 2, got {int(input.shape[-1])}")
    return complex(input[..., 0], input[..., 1])


# -- windows ----------------------------------------------------------------------------------------------------------


def _cosines(window_length: int, periodic: bool, dtype: Any, *coefficients: float) -> Tensor:
    turns = window_length if periodic else window_length - 1
    x = arange(window_length, dtype=dtype or dt.default_dtype()) * (2 * math.pi / max(turns, 1))
    out = x * 0 + coefficients[0]
    for k, a in enumerate(coefficients[1:], 1):
        out = out + (x * k).cos() * (a if k % 2 == 0 else -a)
    return out if window_length != 1 else out * 0 + 1


def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Tensor:
    """``(1 - cos(2 pi n / N)) / 2``; N is `window_length`, or one less where not `periodic`."""
    return _cosines(window_length, periodic, dtype, 0.5, 0.5)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None
) -> Tensor:
    """``alpha - beta cos(2 pi n / N)``; N is `window_length`, or one less where not `periodic`."""
    return _cosines(window_length, periodic, dtype, alpha, beta)


def blackman_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Tensor:
    """``0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N)``; N is `window_length`, or one less where not `periodic`."""
    return _cosines(window_length, periodic, dtype, 0.42, 0.5, 0.08)


def bartlett_window(window_length: int, periodic: bool = True, *, dtype: Any = None) -> Tensor:
    """A triangle, 0 at its ends: ``1 - abs(2 n / N - 1)``; N is `window_length`, or one less where not `periodic`."""
    n = window_length if periodic else window_length - 1
    x = arange(window_length, dtype=dtype or dt.default_dtype()) * (2 / max(n, 1))
    return 1 - (x - 1).abs() if window_length != 1 else x * 0 + 1


def rsub(input: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """``other - alpha * input``."""
    return other - (input if alpha == 1 else input * alpha)


METHODS = """
corrcoef cov histc renorm
"""  # which are methods of Tensor too
IN_PLACE = """
renorm
"""  # which of them have a form that writes in place
FUNCTIONS = """
bartlett_window blackman_window chain_matmul complex corrcoef cov cumulative_trapezoid hamming_window hann_window
histc polar renorm rsub trapezoid trapz vander view_as_complex view_as_real
"""  # for the top level
