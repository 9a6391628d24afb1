"""Activation functions.  Half precision is computed in float32 and rounded once, at the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lezero.loops.ir import call, const
from lezero.ops.arithmetic import clamp, minimum
from lezero.ops.base import Elementwise, op
from lezero.ops.comparison import where
from lezero.ops.functions import RealFunction, erf, exp, expm1, log1p, sigmoid, tanh
from lezero.ops.rules import gradient_rounded_once, rounded_once

# -- rectifiers --------------------------------------------------------------------------------------------------


@op("relu", onnx="Relu")
class relu(Elementwise):
    """max(x, 0); NaN stays NaN, and the gradient passes through it.  Gradient 0 at 0."""

    keeps = ("y",)

    def element(x):
        return call("max", x, const(0, x.type))

    def reference(x):
        return np.maximum(x, np.zeros((), x.dtype))

    def gradient(dy, y, x):
        return where(y <= 0, 0, dy)


@op("relu6")
class relu6(Elementwise):
    """x clipped to 0 .. 6.  Gradient 0 at both ends."""

    keeps = ("x",)

    def decompose(x):
        return minimum(relu(x), 6)

    def reference(x):
        return np.minimum(np.maximum(x, 0), 6)

    def gradient(dy, y, x):
        return where((x > 0) & (x < 6), dy, 0)


@op("hardtanh")
class hardtanh(RealFunction):
    """x clipped to `low` .. `high`.  Gradient 0 at both ends."""

    attrs = {"low": -1.0, "high": 1.0}
    keeps = ("x",)

    def decompose(x, low, high):
        return clamp(x, low, high)

    def reference(x, low, high):
        return np.clip(x, low, high)

    def gradient(dy, y, x, low, high):
        return where((x > low) & (x < high), dy, 0)


@op("threshold", onnx="ThresholdedRelu")
class threshold(RealFunction):
    """x where it is greater than `limit` or NaN, else `value`."""

    attrs = {"limit": 0.0, "value": 0.0}
    keeps = ("x",)

    def decompose(x, limit, value):
        return where(x <= limit, value, x)

    def reference(x, limit, value):
        return np.where(x <= limit, x.dtype.type(value), x)

    def gradient(dy, y, x, limit, value):
        return where(x <= limit, 0, dy)


@op("leaky_relu", onnx="LeakyRelu")
class leaky_relu(RealFunction):
    """x where it is greater than 0, else negative_slope * x."""

    attrs = {"negative_slope": 0.01}
    keeps = ("x",)

    @rounded_once
    def decompose(x, negative_slope):
        return where(x > 0, x, x * negative_slope)

    def reference(x, negative_slope):
        return np.where(x > 0, x, x * negative_slope)

    def gradient(dy, y, x, negative_slope):
        return where(x > 0, dy, dy * negative_slope)


@op("prelu", onnx="PRelu")
class prelu(RealFunction):
    """x where it is greater than 0, else weight * x, with a learnt weight that broadcasts with x."""

    keeps = ("x", "weight")

    @rounded_once
    def decompose(x, weight):
        return where(x > 0, x, x * weight)

    def reference(x, weight):
        return np.where(x > 0, x, x * weight)

    @gradient_rounded_once
    def gradient(dy, y, x, weight):
        return where(x > 0, dy, dy * weight), where(x > 0, 0, dy * x)


@op("hardshrink")
class hardshrink(RealFunction):
    """x where its magnitude is greater than `limit` or NaN, else 0."""

    attrs = {"limit": 0.5}
    keeps = ("x",)

    def decompose(x, limit):
        return where((x >= -limit) & (x <= limit), 0, x)

    def reference(x, limit):
        return np.where(np.abs(x) <= limit, 0, x)

    def gradient(dy, y, x, limit):
        return where((x < -limit) | (x > limit), dy, 0)


@op("softshrink", onnx="Shrink")
class softshrink(RealFunction):
    """x moved towards 0 by `limit`, and 0 if it would pass it."""

    attrs = {"limit": 0.5}
    keeps = ("x",)

    @rounded_once
    def decompose(x, limit):
        return where(x > limit, x - limit, where(x < -limit, x + limit, x * 0))

    def reference(x, limit):
        return np.where(x > limit, x - limit, np.where(x < -limit, x + limit, x * 0))

    def gradient(dy, y, x, limit):
        return where((x < -limit) | (x > limit), dy, 0)


# -- exponential -------------------------------------------------------------------------------------------------


@op("elu", onnx="Elu")
class elu(RealFunction):
    """x where it is greater than 0, else alpha * (e**x - 1) (Clevert, Unterthiner, Hochreiter 2015)."""

    attrs = {"alpha": 1.0}
    keeps = ("x",)

    @rounded_once
    def decompose(x, alpha):
        return where(x > 0, x, alpha * expm1(x))

    def reference(x, alpha):
        return np.where(x > 0, x, alpha * np.expm1(x))

    @gradient_rounded_once
    def gradient(dy, y, x, alpha):
        return where(x > 0, dy, dy * (alpha * exp(minimum(x, 0))))


SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


@op("selu", onnx="Selu")
class selu(RealFunction):
    """scale * elu(x, alpha) with the fixed point of Klambauer, Unterthiner, Mayr, Hochreiter 2017."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return SELU_SCALE * where(x > 0, x, SELU_ALPHA * expm1(x))

    def reference(x):
        return SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x))

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * (SELU_SCALE * where(x > 0, 1, SELU_ALPHA * exp(minimum(x, 0))))


@op("celu", onnx="Celu")
class celu(RealFunction):
    """x where it is greater than 0, else alpha * (e**(x / alpha) - 1) (Barron 2017)."""

    attrs = {"alpha": 1.0}
    keeps = ("x",)

    @rounded_once
    def decompose(x, alpha):
        return where(x > 0, x, alpha * expm1(x / alpha))

    def reference(x, alpha):
        return np.where(x > 0, x, alpha * np.expm1(x / alpha))

    @gradient_rounded_once
    def gradient(dy, y, x, alpha):
        return where(x > 0, dy, dy * exp(minimum(x, 0) / alpha))


# -- sigmoid family ----------------------------------------------------------------------------------------------

_CUBIC = 0.044715
_ROOT = math.sqrt(2 / math.pi)


def _tanh_argument(x: Any) -> Any:
    return _ROOT * (x + _CUBIC * (x * x * x))


@op("gelu", onnx="Gelu")
class gelu(RealFunction):
    """Gaussian error linear unit, x * Phi(x) (Hendrycks & Gimpel 2016).

    Parameters
    ----------
    x : any shape
    approximate : {"none", "tanh"}
        Which form of Phi; "tanh" is what GPT-2 was trained with.
    """

    attrs = {"approximate": "none"}
    keeps = ("x",)

    @rounded_once
    def decompose(x, approximate):
        phi = erf(x * math.sqrt(0.5)) if approximate == "none" else tanh(_tanh_argument(x))
        return 0.5 * x * (1 + phi)

    def reference(x, approximate):
        phi = erf.reference(x * math.sqrt(0.5)) if approximate == "none" else np.tanh(_tanh_argument(x))
        return 0.5 * x * (1 + phi)

    @gradient_rounded_once
    def gradient(dy, y, x, approximate):
        if approximate == "none":
            phi = 0.5 * (1 + erf(x * math.sqrt(0.5)))
            return dy * (phi + x * (exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))))
        t = tanh(_tanh_argument(x))
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (_ROOT * (1 + 3 * _CUBIC * (x * x))))


@op("silu")
class silu(RealFunction):
    """x * sigmoid(x), also called swish."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return x * sigmoid(x)

    def reference(x):
        return x * sigmoid.reference(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        s = sigmoid(x)
        return dy * (s * (1 + x * (1 - s)))


@op("softplus", onnx="Softplus")
class softplus(RealFunction):
    """log(1 + e**(beta * x)) / beta; x itself where beta * x is greater than `limit`."""

    attrs = {"beta": 1.0, "limit": 20.0}
    keeps = ("x",)

    @rounded_once
    def decompose(x, beta, limit):
        return where(x * beta > limit, x, log1p(exp(x * beta)) / beta)

    def reference(x, beta, limit):
        return np.where(x * beta > limit, x, np.log1p(np.exp(x * beta)) / beta)

    @gradient_rounded_once
    def gradient(dy, y, x, beta, limit):
        return where(x * beta > limit, dy, dy * sigmoid(x * beta))


@op("mish", onnx="Mish")
class mish(RealFunction):
    """x * tanh(softplus(x)) (Misra 2019)."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return x * tanh(softplus(x))

    def reference(x):
        return x * np.tanh(softplus.reference(x, 1.0, 20.0))

    @gradient_rounded_once
    def gradient(dy, y, x):
        t = tanh(softplus(x))
        return dy * (t + x * (1 - t * t) * sigmoid(x))


@op("logsigmoid")
class logsigmoid(RealFunction):
    """log(sigmoid(x)), exact for large magnitudes."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return minimum(x, 0) - log1p(exp(-abs(x)))

    def reference(x):
        return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))

    @gradient_rounded_once
    def gradient(dy, y, x):
        return dy * sigmoid(-x)


@op("hardsigmoid", onnx="HardSigmoid")
class hardsigmoid(RealFunction):
    """x / 6 + 1/2, clipped to 0 .. 1."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return clamp(x + 3, 0, 6) / 6

    def reference(x):
        return np.clip(x + 3, 0, 6) / 6

    def gradient(dy, y, x):
        return where((x > -3) & (x < 3), dy * (1 / 6), 0)


@op("hardswish", onnx="HardSwish")
class hardswish(RealFunction):
    """x * hardsigmoid(x) (Howard et al. 2019)."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return x * clamp(x + 3, 0, 6) / 6

    def reference(x):
        return x * np.clip(x + 3, 0, 6) / 6

    @gradient_rounded_once
    def gradient(dy, y, x):
        return where(x <= -3, 0, where(x < 3, dy * (x / 3 + 0.5), dy))


@op("softsign", onnx="Softsign")
class softsign(RealFunction):
    """x / (1 + |x|)."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return x / (1 + abs(x))

    def reference(x):
        return x / (1 + np.abs(x))

    @gradient_rounded_once
    def gradient(dy, y, x):
        size = 1 + abs(x)
        return dy / (size * size)


@op("tanhshrink")
class tanhshrink(RealFunction):
    """x - tanh(x)."""

    keeps = ("x",)

    @rounded_once
    def decompose(x):
        return x - tanh(x)

    def reference(x):
        return x - np.tanh(x)

    @gradient_rounded_once
    def gradient(dy, y, x):
        t = tanh(x)
        return dy * (t * t)


def glu(x: Any, axis: int) -> Any:
    """a * sigmoid(b), with a and b the halves of `x` along `axis` (Dauphin et al. 2016)."""
    from lezero.ops.slicing import part

    half, odd = x.shape[axis] // 2, x.shape[axis] % 2
    if odd:
        raise ValueError(f"glu: dimension {axis} of shape {tuple(x.shape)} is odd and has no halves")
    return part(x, axis, 0, half) * sigmoid(part(x, axis, half, 2 * half))
