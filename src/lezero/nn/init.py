"""Initial values of parameters, with PyTorch's names and distributions.

Every function writes its tensor in place, outside any gradient, and returns it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lezero.misspelt import suggest_names
from lezero.runtime.inputs import Generator
from lezero.tensor import Tensor, empty, no_grad, where
from lezero.tensor import tensor as make

_LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "sigmoid")


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which a layer's initial deviation is raised for the nonlinearity after it.

    nonlinearity : "linear", "conv1d" …, "sigmoid" (1), "tanh" (5/3), "relu" (√2), "leaky_relu" (√(2/(1+slope²)), `param` is
        the slope, 0.01 by default), "selu" (3/4)
    """
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise ValueError(
        f"calculate_gain: unknown nonlinearity {nonlinearity!r}; there are {', '.join(_LINEAR)}, tanh, relu, leaky_relu, selu"
    )


def _fans(name: str, t: Tensor) -> tuple[int, int]:
    """Inputs and outputs of one unit: a kernel's taps count for both."""
    if t.ndim < 2:
        raise ValueError(f"{name}: a weight of 2 or more dimensions is needed, got shape {tuple(t.shape)}")
    taps = math.prod(int(d) for d in t.shape[2:])
    return int(t.shape[1]) * taps, int(t.shape[0]) * taps


def _fan(name: str, t: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"{name}: mode is 'fan_in' or 'fan_out', got {mode!r}")
    fan_in, fan_out = _fans(name, t)
    return fan_in if mode == "fan_in" else fan_out


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with this mean and standard deviation."""
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal, kept within [a, b] (absolute values, not deviations) by inverting the distribution function."""
    low, high = (_phi((edge - mean) / std) for edge in (a, b))
    u = empty(*tensor.shape, dtype=tensor.dtype).uniform_(2 * low - 1, 2 * high - 1, generator=generator)
    return tensor.copy_((_erfinv(u) * (std * math.sqrt(2.0)) + mean).clamp(a, b))


_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _erfinv(y: Tensor) -> Tensor:
    """The inverse of erf, to single precision (Giles 2012, Approximating the erfinv function)."""
    w = -((1 - y) * (1 + y)).clamp(1e-30).log()
    near, far = w - 2.5, w.sqrt() - 3
    centre, tail = near * 0 + _CENTRE[0], far * 0 + _TAIL[0]
    for c, t in zip(_CENTRE[1:], _TAIL[1:]):
        centre, tail = centre * near + c, tail * far + t
    return where(w < 5, centre, tail) * y


def _phi(x: float) -> float:
    return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """`val` everywhere."""
    return tensor.fill_(val)


@no_grad()
def ones_(tensor: Tensor) -> Tensor:
    """Ones everywhere."""
    return tensor.fill_(1.0)


@no_grad()
def zeros_(tensor: Tensor) -> Tensor:
    """Zeros everywhere."""
    return tensor.fill_(0.0)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix (2 dimensions)."""
    if tensor.ndim != 2:
        raise ValueError(f"eye_: a tensor of 2 dimensions is needed, got shape {tuple(tensor.shape)}")
    return tensor.copy_(_diagonal(tensor, 1))


@no_grad()
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Weights of convolutions that pass as many channels through unchanged as they can, in each of `groups`."""
    if tensor.ndim not in (3, 4, 5):
        raise ValueError(f"dirac_: a tensor of 3 to 5 dimensions is needed, got shape {tuple(tensor.shape)}")
    if tensor.shape[0] % groups:
        raise ValueError(f"dirac_: {tensor.shape[0]} output channels are not a multiple of groups={groups}")
    return tensor.copy_(_diagonal(tensor, groups))


def _diagonal(t: Tensor, groups: int) -> Tensor:

    value = np.zeros(tuple(int(d) for d in t.shape), np.float32)
    per_group = value.shape[0] // groups
    centre = tuple(d // 2 for d in value.shape[2:])
    for g in range(groups):
        for c in range(min(per_group, value.shape[1])):
            value[(g * per_group + c, c, *centre)] = 1.0
    return make(value).to(t.dtype)


@no_grad()
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform within ±gain·√(6/(fan_in+fan_out)) (Glorot & Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / _sum_of_fans("xavier_uniform_", tensor))
    return tensor.uniform_(-bound, bound, generator=generator)


@no_grad()
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with deviation gain·√(2/(fan_in+fan_out)) (Glorot & Bengio 2010)."""
    std = gain * math.sqrt(2.0 / _sum_of_fans("xavier_normal_", tensor))
    return tensor.normal_(0.0, std, generator=generator)


def _sum_of_fans(name: str, t: Tensor) -> int:
    return max(1, sum(_fans(name, t)))


@no_grad()
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within ±gain·√(3/fan) (He et al. 2015).

    a : the slope of a leaky ReLU
    mode : {"fan_in", "fan_out"}; which size keeps its variance, forward or backward
    nonlinearity : what follows, for ``calculate_gain``
    """
    bound = math.sqrt(3.0) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return tensor.uniform_(-bound, bound, generator=generator)


@no_grad()
def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with deviation gain/√fan (He et al. 2015).

    a : the slope of a leaky ReLU
    mode : {"fan_in", "fan_out"}; which size keeps its variance, forward or backward
    nonlinearity : what follows, for ``calculate_gain``
    """
    std = _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity)
    return tensor.normal_(0.0, std, generator=generator)


def _kaiming_std(name: str, t: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, _fan(name, t, mode)))


@no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Orthonormal rows or columns, whichever are fewer (Saxe et al. 2013), times `gain`; further dimensions count as columns."""

    rows, columns = _matrix_shape("orthogonal_", tensor)
    draws = empty(rows, columns).normal_(0.0, 1.0, generator=generator).numpy().astype(np.float64)
    q, r = np.linalg.qr(draws if rows >= columns else draws.T)
    q = q * np.sign(np.diagonal(r))  # makes the distribution uniform (Mezzadri 2007)
    q = gain * (q if rows >= columns else q.T)
    return tensor.copy_(make(q.reshape(tuple(int(d) for d in tensor.shape))).to(tensor.dtype))


@no_grad()
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal, with a share `sparsity` of every column zero (Martens 2010)."""

    if tensor.ndim != 2:
        raise ValueError(f"sparse_: a tensor of 2 dimensions is needed, got shape {tuple(tensor.shape)}")
    rows, columns = _matrix_shape("sparse_", tensor)
    gone = math.ceil(sparsity * rows)
    ranks = np.argsort(empty(rows, columns).uniform_(generator=generator).numpy(), axis=0)
    mask = np.ones((rows, columns), np.float32)
    np.put_along_axis(mask, ranks[:gone], 0.0, axis=0)
    return tensor.normal_(0.0, std, generator=generator).mul_(make(mask).to(tensor.dtype))


def _matrix_shape(name: str, t: Tensor) -> tuple[int, int]:
    if t.ndim < 2:
        raise ValueError(f"{name}: a tensor of 2 or more dimensions is needed, got shape {tuple(t.shape)}")
    return int(t.shape[0]), math.prod(int(d) for d in t.shape[1:])


def layer_(weight: Tensor, bias: Tensor | None, fan_in: int | None = None) -> None:
    """What PyTorch's linear and convolutional layers start from: both uniform within ±1/√fan_in."""
    fan_in = _fans("layer_", weight)[0] if fan_in is None else fan_in
    bound: Any = 1 / math.sqrt(fan_in) if fan_in else 0.0
    uniform_(weight, -bound, bound)
    if bias is not None:
        uniform_(bias, -bound, bound)


suggest_names(__name__)
