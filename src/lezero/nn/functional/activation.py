"""Activation functions.  ``inplace=True`` writes the result to the input and returns it; fusion saves the memory without it."""

from __future__ import annotations

from typing import Any

from lezero.graph.dtype import iinfo
from lezero.methods import prelu  # noqa: F401  (a method of tensors, too)
from lezero.nn.functional.dropout import placed
from lezero.ops import activations as act
from lezero.ops.base import normalize_axis
from lezero.ops.functions import sigmoid as _sigmoid
from lezero.ops.functions import tanh as _tanh
from lezero.runtime.recorder import record
from lezero.tensor import Tensor, where


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)"""
    return placed(record(act.relu, (input,), ()), input, inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """x clipped to 0 … 6"""
    return placed(act.relu6(input), input, inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x above 0, else negative_slope · x"""
    return placed(act.leaky_relu(input, negative_slope=float(negative_slope)), input, inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x above 0, else alpha · (exp(x) - 1) (Clevert et al. 2016)"""
    return placed(act.elu(input, alpha=float(alpha)), input, inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The self-normalising ELU (Klambauer et al. 2017)"""
    return placed(act.selu(input), input, inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x above 0, else alpha · (exp(x / alpha) - 1): the continuously differentiable ELU (Barron 2017)"""
    return placed(act.celu(input, alpha=float(alpha)), input, inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x · Φ(x) (Hendrycks & Gimpel 2016); approximate="tanh" is the form GPT-2 was trained with."""
    check_form(approximate)
    return record(act.gelu, (input,), (approximate,))


def check_form(approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', got {approximate!r}")


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x · sigmoid(x), also called swish"""
    y = input * input.sigmoid() if input.is_complex() else record(act.silu, (input,), ())
    return placed(y, input, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · tanh(softplus(x)) (Misra 2019)"""
    return placed(act.mish(input), input, inplace)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    return record(_sigmoid, (input,), ())


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent"""
    return record(_tanh, (input,), ())


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta · x)) / beta; x itself where beta · x is above the threshold"""
    return act.softplus(input, beta=float(beta), limit=float(threshold))


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)"""
    return input / (1 + input.abs()) if input.is_complex() else act.softsign(input)


def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)"""
    return input - input.tanh() if input.is_complex() else act.tanhshrink(input)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| is above lambd, else 0"""
    return act.hardshrink(input, limit=float(lambd))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 if it would pass it"""
    if lambd < 0:
        raise ValueError(f"softshrink: lambd is 0 or more, got {lambd}")
    return act.softshrink(input, limit=float(lambd))


def _whole(name: str, x: Tensor, value: float) -> int:
    """A number cut off to x's integer dtype."""
    cut, limits = int(value), iinfo(x.dtype)
    if not limits.min <= cut <= limits.max:
        raise ValueError(f"{name}: {value} is not among the numbers of {x.dtype.name}")
    return cut


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold, else `value`; of integers, these cut off to whole numbers"""
    if input.dtype.kind in "iu":
        limit, other = (_whole("threshold", input, v) for v in (threshold, value))
        return placed(where(input > limit, input, other)._cast(input.dtype), input, inplace)
    return placed(act.threshold(input, limit=float(threshold), value=float(value)), input, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x clipped to min_val … max_val; of integers, these cut off to whole numbers"""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val={min_val} is above max_val={max_val}")
    if input.dtype.kind in "iu":
        low, high = (_whole("hardtanh", input, v) for v in (min_val, max_val))
        return placed(input.clamp(low, high)._cast(input.dtype), input, inplace)
    return placed(act.hardtanh(input, low=float(min_val), high=float(max_val)), input, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """x/6 + 1/2 clipped to 0 … 1"""
    return placed(act.hardsigmoid(input), input, inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · hardsigmoid(x) (Howard et al. 2019)"""
    return placed(act.hardswish(input), input, inplace)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x))"""
    return act.logsigmoid(input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a · sigmoid(b) of the two halves along `dim` (Dauphin et al. 2017)"""
    axis = normalize_axis("glu", dim, input.ndim)
    if input.shape[axis] % 2:
        raise ValueError(f"glu: an even extent is needed along dimension {dim}, got shape {tuple(input.shape)}")
    a, b = input.chunk(2, axis)
    return a * _sigmoid(b)


def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """exp(x) / Σ exp(x) along `dim`"""
    return input.softmax(_axis("softmax", dim, input), dtype)


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """x - log Σ exp(x) along `dim`"""
    return input.log_softmax(_axis("log_softmax", dim, input), dtype)


def softmin(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """softmax(-x)"""
    return softmax(-input, dim, dtype)


def _axis(name: str, dim: int | None, x: Tensor) -> int:
    if dim is None:
        raise TypeError(f"{name}: say along which dimension with dim= (the input has shape {tuple(x.shape)})")
    return normalize_axis(name, dim, x.ndim)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """A sample of the Gumbel-softmax distribution of `logits` at temperature `tau` (Jang et al. 2017); `hard` gives one-hot values with the
    soft gradient.
    """
    from lezero.tensor import rand

    u = rand(logits.shape, dtype=logits.dtype)
    # -log(-log u) is infinite at u = 0, which a uniform number in [0, 1) may be
    y = softmax((logits - (-u.clamp(1e-30).log()).log()) / tau, dim)
    if not hard:
        return y
    best = (y == y.amax(dim, keepdim=True)).to(y.dtype)
    return best - y.detach() + y
