"""Normalisation: standardise over some axes, then scale and shift.

Variances are computed from centred values (two passes), and everything in float32 for half precision.  The gradient of
``xhat = (x - mean) * rstd`` with an upstream g is ``rstd * (g - mean(g) - xhat * mean(g * xhat))`` (Ioffe & Szegedy 2015,
with the terms collected); it is written with differentiable operations, so second derivatives follow.  Mean and reciprocal
standard deviation are written the same way wherever they occur, so that the same ones computed twice are found to be one.
"""

from __future__ import annotations

from math import prod

import numpy as np

from lezero.ops.base import Composite, op
from lezero.ops.creation import number_of
from lezero.ops.elementwise import rsqrt
from lezero.ops.movement import reshape
from lezero.ops.reduce import mean, sum
from lezero.ops.rules import along, count, narrow, need_floating, shown, wide, wide_dtype, widen


def _centred(x, axes):
    return x - mean(x, axes=axes, keepdim=True)


def _rstd(centred, axes, eps):
    return rsqrt(mean(centred * centred, axes=axes, keepdim=True) + eps)


def _standardize(x, axes, eps, centred=True):
    """(xhat, rstd) of a wide operand."""
    gap = _centred(x, axes) if centred else x
    rstd = _rstd(gap, axes, eps)
    return gap * rstd, rstd


def _numpy_standardize(x, axes, eps, centred=True):
    return _numpy_parts(x, axes, eps, centred)[0]


def _numpy_parts(x, axes, eps, centred):
    gap = x - x.mean(axes, keepdims=True) if centred else x
    rstd = 1 / np.sqrt(np.square(gap).mean(axes, keepdims=True) + eps)
    return gap * rstd, rstd


def _affine(xhat, weight, bias, lay):
    """Scale and shift; `lay` brings the parameters in a shape that broadcasts."""
    if weight is not None:
        xhat = xhat * lay(widen(weight))
    return xhat if bias is None else xhat + lay(widen(bias))


def _numpy_affine(xhat, weight, bias, shape):
    if weight is not None:
        xhat = xhat * wide(weight).reshape(shape)
    return xhat if bias is None else xhat + wide(bias).reshape(shape)


def _check(name, x, shape, *parameters):
    """Floating input, and parameters of the shape they have to have."""
    need_floating(name, x)
    for p in parameters:
        if p is not None and (tuple(p.shape) != tuple(shape) or not p.dtype.is_floating_point):
            raise ValueError(
                f"{name}: weight and bias of shape {shown(shape)} are needed, got {p.dtype.name}{shown(p.shape)}"
            )


def _others(x, axis):
    return tuple(a for a in range(len(x.shape)) if a != axis)


# -- gradients ------------------------------------------------------------------------------------------------

_GEOMETRY = {"axes": (), "lay": (), "eps": 1e-5, "centred": True}


def _gradients(dy, x, weight, bias, **geometry):
    """Those of the input and of the parameters that there are."""
    grads = [normalize_grad(dy, x, **geometry) if weight is None else normalize_grad(dy, x, weight, **geometry)]
    if weight is not None:
        grads.append(normalize_weight_grad(dy, x, **geometry))
    if bias is not None:
        grads.append(sum(widen(dy), axes=_rest(x, geometry["lay"]), keepdim=False))
    return tuple(grads)


def _mean(x, axes):
    """The mean as the sum without the axes, which then is one with that of a parameter's gradient."""
    kept = tuple(1 if a in axes else d for a, d in enumerate(x.shape))
    return reshape(sum(x, axes=axes, keepdim=False), shape=kept) / number_of(x, count(x, axes))


def _rest(x, lay):
    return tuple(a for a in range(len(x.shape)) if a not in lay)


def _laid(shape, lay):
    """The shape in which parameters along the axes `lay` broadcast."""
    return tuple(d if a in lay else 1 for a, d in enumerate(shape))


@op("normalize_grad")
class normalize_grad(Composite):
    """The gradient of a normalisation with respect to its input (see the module).

    Parameters
    ----------
    dy, x : of one shape; floating dtype
    weight : of the extents along `lay`, optional
    axes : tuple of int, which mean and variance are taken over
    lay : tuple of int, which the weight lies along
    eps : float
    centred : bool, whether the mean is subtracted
    """

    attrs = dict(_GEOMETRY)
    keeps = ("dy", "x", "weight")

    def infer(dy, x, weight=None, **geometry):
        return tuple(x.shape), x.dtype

    def reference(dy, x, weight=None, *, axes, lay, eps, centred):
        if x.size == 0:
            return x
        xhat, rstd = _numpy_parts(wide(x), axes, eps, centred)
        g = wide(dy) if weight is None else wide(dy) * wide(weight).reshape(_laid(x.shape, lay))
        mean_g = g.mean(axes, keepdims=True) if centred else 0
        return rstd * (g - mean_g - xhat * (g * xhat).mean(axes, keepdims=True))

    def decompose(dy, x, weight=None, *, axes, lay, eps, centred):
        xhat, rstd = _standardize(widen(x), axes, eps, centred)
        g = widen(dy)
        if weight is not None:
            weight = reshape(widen(weight), shape=_laid(x.shape, lay))
            if set(axes).isdisjoint(lay):
                # The weight is one number for each mean: without it, the sums are those of the parameters' gradients.
                gap = g - _mean(g, axes) if centred else g
                return narrow(rstd * weight * (gap - xhat * _mean(g * xhat, axes)), x.dtype)
            g = g * weight
        gap = g - mean(g, axes=axes, keepdim=True) if centred else g
        return narrow(rstd * (gap - xhat * mean(g * xhat, axes=axes, keepdim=True)), x.dtype)


@op("normalize_weight_grad")
class normalize_weight_grad(Composite):
    """The gradient of a normalisation with respect to its weight: ``sum(dy * xhat)``, float32 for half precision.

    Parameters are those of :data:`normalize_grad`.
    """

    attrs = dict(_GEOMETRY)
    keeps = ("dy", "x")

    def infer(dy, x, axes, lay, eps, centred):
        return tuple(x.shape[a] for a in lay), wide_dtype(x.dtype)

    def reference(dy, x, axes, lay, eps, centred):
        xhat = _numpy_standardize(wide(x), axes, eps, centred) if x.size else wide(x)
        return (wide(dy) * xhat).sum(_rest(x, lay))

    def decompose(dy, x, axes, lay, eps, centred):
        xhat, _ = _standardize(widen(x), axes, eps, centred)
        return sum(widen(dy) * xhat, axes=_rest(x, lay), keepdim=False)


# -- over the batch -------------------------------------------------------------------------------------------


def _check_channels(name, x, axis):
    need_floating(name, x)
    if not 0 <= axis < len(x.shape):
        raise IndexError(f"{name}: the channel axis {axis} is out of range for shape {shown(x.shape)}")


@op("batch_mean")
class batch_mean(Composite):
    """The mean of each channel, over all axes but one: shape (channels,), float32 for half precision.

    Parameters
    ----------
    x : floating dtype
    axis : int, the channels' axis
    """

    attrs = {"axis": 1}

    def infer(x, axis):
        _check_channels("batch_mean", x, axis)
        return (x.shape[axis],), wide_dtype(x.dtype)

    def reference(x, axis):
        return wide(x).mean(_others(x, axis))

    def decompose(x, axis):
        return reshape(mean(widen(x), axes=_others(x, axis), keepdim=True), shape=(x.shape[axis],))

    def gradient(dy, y, x, axis):
        return along(dy, axis, len(x.shape)) / number_of(dy, count(x, _others(x, axis)))


@op("batch_var")
class batch_var(Composite):
    """The variance of each channel, over all axes but one: shape (channels,), float32 for half precision.

    Parameters
    ----------
    x : floating dtype
    axis : int, the channels' axis
    correction : int
        The sum of squares is divided by ``count - correction``: 0 is what :data:`batch_norm` divides by, 1 the unbiased
        estimate that its running variance is made of.
    """

    attrs = {"axis": 1, "correction": 0}
    keeps = ("x",)

    def infer(x, axis, correction):
        _check_channels("batch_var", x, axis)
        return (x.shape[axis],), wide_dtype(x.dtype)

    def reference(x, axis, correction):
        return wide(x).var(_others(x, axis), ddof=correction)

    def decompose(x, axis, correction):
        axes = _others(x, axis)
        centred = _centred(widen(x), axes)
        var = reshape(mean(centred * centred, axes=axes, keepdim=True), shape=(x.shape[axis],))
        return _unbiased(var, count(x, axes), correction) if correction else var

    def gradient(dy, y, x, axis, correction):
        axes = _others(x, axis)
        scale = 2 * along(dy, axis, len(x.shape)) / number_of(dy, count(x, axes) - correction)
        return scale * _centred(widen(x), axes)


def _unbiased(var, n, correction):
    if n == correction:
        return var * float("nan")
    # In this order: a quotient of two numbers alone would be rounded to the default dtype.
    return var * number_of(var, n) / number_of(var, n - correction)


@op("batch_norm", onnx="BatchNormalization")
class batch_norm(Composite):
    """Batch normalisation in training (Ioffe & Szegedy 2015): each channel standardised over the batch, scaled, shifted.

    Parameters
    ----------
    x : floating dtype, two or more dimensions
    weight, bias : (channels,), optional
    axis : int, the channels' axis
    eps : float, added to the (biased) variance

    See also
    --------
    batch_mean, batch_var : the statistics, for running averages; computed once when recorded beside this.
    batch_norm_inference : with given statistics.
    """

    attrs = {"axis": 1, "eps": 1e-5}
    keeps = ("x", "weight")

    def infer(x, weight=None, bias=None, *, axis, eps):
        _check_channels("batch_norm", x, axis)
        _check("batch_norm", x, (x.shape[axis],), weight, bias)
        return tuple(x.shape), x.dtype

    def reference(x, weight=None, bias=None, *, axis, eps):
        if x.size == 0:
            return x
        lay = [1] * x.ndim
        lay[axis] = -1
        return _numpy_affine(_numpy_standardize(wide(x), _others(x, axis), eps), weight, bias, lay)

    def decompose(x, weight=None, bias=None, *, axis, eps):
        xhat, _ = _standardize(widen(x), _others(x, axis), eps)
        return narrow(_affine(xhat, weight, bias, lambda p: along(p, axis, len(x.shape))), x.dtype)

    def gradient(dy, y, x, weight=None, bias=None, *, axis, eps):
        return _gradients(dy, x, weight, bias, axes=_others(x, axis), lay=(axis,), eps=eps)


@op("batch_norm_inference", onnx="BatchNormalization")
class batch_norm_inference(Composite):
    """Batch normalisation with given statistics: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Parameters
    ----------
    x : floating dtype
    mean, var : (channels,)
    weight, bias : (channels,), optional
    axis : int, the channels' axis
    eps : float
    """

    attrs = {"axis": 1, "eps": 1e-5}
    keeps = ("x", "mean", "var", "weight")

    def infer(x, mean, var, weight=None, bias=None, *, axis, eps):
        _check_channels("batch_norm", x, axis)
        _check("batch_norm", x, (x.shape[axis],), mean, var, weight, bias)
        return tuple(x.shape), x.dtype

    def reference(x, mean, var, weight=None, bias=None, *, axis, eps):
        lay = [1] * x.ndim
        lay[axis] = -1
        xhat = (wide(x) - wide(mean).reshape(lay)) / np.sqrt(wide(var).reshape(lay) + eps)
        return _numpy_affine(xhat, weight, bias, lay)

    def decompose(x, mean, var, weight=None, bias=None, *, axis, eps):
        def lay(p):
            return along(p, axis, len(x.shape))

        xhat = (widen(x) - lay(widen(mean))) * lay(rsqrt(widen(var) + eps))
        return narrow(_affine(xhat, weight, bias, lay), x.dtype)

    def gradient(dy, y, x, mean, var, weight=None, bias=None, *, axis, eps):
        axes, dy = _others(x, axis), widen(dy)

        def lay(p):
            return along(p, axis, len(x.shape))

        rstd = rsqrt(widen(var) + eps)
        xhat = (widen(x) - lay(widen(mean))) * lay(rstd)
        g = (dy if weight is None else dy * lay(widen(weight))) * lay(rstd)
        dmean = -sum(g, axes=axes, keepdim=False)
        dvar = -0.5 * rstd * sum(g * xhat, axes=axes, keepdim=False)
        dweight = sum(dy * xhat, axes=axes, keepdim=False)
        dbias = sum(dy, axes=axes, keepdim=False)
        return (g, dmean, dvar, dweight, dbias)[: 3 + (weight is not None) + (bias is not None)]


# -- over each sample -----------------------------------------------------------------------------------------


def _trailing(x, dims):
    return tuple(range(len(x.shape) - dims, len(x.shape)))


def _check_trailing(name, x, dims, *parameters):
    if not 1 <= dims <= len(x.shape):
        raise ValueError(f"{name}: the last {dims} dimensions of shape {shown(x.shape)} cannot be normalised")
    _check(name, x, x.shape[len(x.shape) - dims :], *parameters)
    return tuple(x.shape), x.dtype


@op("layer_norm", onnx="LayerNormalization")
class layer_norm(Composite):
    """Layer normalisation (Ba, Kiros & Hinton 2016): the last dimensions of each sample standardised, scaled, shifted.

    Parameters
    ----------
    x : floating dtype
    weight, bias : of the shape of the last `dims` dimensions, optional
    dims : int
    eps : float, added to the (biased) variance
    """

    attrs = {"dims": 1, "eps": 1e-5}
    keeps = ("x", "weight")

    def infer(x, weight=None, bias=None, *, dims, eps):
        return _check_trailing("layer_norm", x, dims, weight, bias)

    def reference(x, weight=None, bias=None, *, dims, eps):
        if x.size == 0:
            return x
        return _numpy_affine(_numpy_standardize(wide(x), _trailing(x, dims), eps), weight, bias, x.shape[-dims:])

    def decompose(x, weight=None, bias=None, *, dims, eps):
        xhat, _ = _standardize(widen(x), _trailing(x, dims), eps)
        return narrow(_affine(xhat, weight, bias, lambda p: p), x.dtype)

    def gradient(dy, y, x, weight=None, bias=None, *, dims, eps):
        axes = _trailing(x, dims)
        return _gradients(dy, x, weight, bias, axes=axes, lay=axes, eps=eps)


@op("rms_norm", onnx="RMSNormalization")
class rms_norm(Composite):
    """Root-mean-square normalisation (Zhang & Sennrich 2019): ``x / sqrt(mean(x**2) + eps) * weight``.

    Parameters
    ----------
    x : floating dtype
    weight : of the shape of the last `dims` dimensions, optional
    dims : int
    eps : float
    """

    attrs = {"dims": 1, "eps": 1e-6}
    keeps = ("x", "weight")

    def infer(x, weight=None, *, dims, eps):
        return _check_trailing("rms_norm", x, dims, weight)

    def reference(x, weight=None, *, dims, eps):
        if x.size == 0:
            return x
        x = wide(x)
        xhat = x / np.sqrt(np.square(x).mean(_trailing(x, dims), keepdims=True) + eps)
        return _numpy_affine(xhat, weight, None, x.shape[-dims:])

    def decompose(x, weight=None, *, dims, eps):
        wx = widen(x)
        return narrow(_affine(wx * _rstd(wx, _trailing(x, dims), eps), weight, None, lambda p: p), x.dtype)

    def gradient(dy, y, x, weight=None, *, dims, eps):
        axes = _trailing(x, dims)
        return _gradients(dy, x, weight, None, axes=axes, lay=axes, eps=eps, centred=False)


@op("group_norm", onnx="GroupNormalization")
class group_norm(Composite):
    """Group normalisation (Wu & He 2018): each group of a sample's channels standardised, channels scaled and shifted.

    Parameters
    ----------
    x : (batch, channels, *spatial); floating dtype
    weight, bias : (channels,), optional
    groups : int, divides the channels; as many as there are channels is instance normalisation
    eps : float, added to the (biased) variance
    """

    attrs = {"groups": 1, "eps": 1e-5}
    keeps = ("x", "weight")

    def infer(x, weight=None, bias=None, *, groups, eps):
        if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups != 0:
            raise ValueError(
                f"group_norm: an input (batch, channels, ...) with channels a multiple of groups={groups} is needed, got "
                f"{shown(x.shape)}"
            )
        _check("group_norm", x, (x.shape[1],), weight, bias)
        return tuple(x.shape), x.dtype

    def reference(x, weight=None, bias=None, *, groups, eps):
        if x.size == 0:
            return x
        xhat = _numpy_standardize(wide(x).reshape(x.shape[0], groups, -1), (2,), eps).reshape(x.shape)
        return _numpy_affine(xhat, weight, bias, (-1,) + (1,) * (x.ndim - 2))

    def decompose(x, weight=None, bias=None, *, groups, eps):
        xhat, _ = _standardize(_in_groups(widen(x), groups), (2,), eps)
        xhat = reshape(xhat, shape=tuple(x.shape))
        return narrow(_affine(xhat, weight, bias, lambda p: along(p, 1, len(x.shape))), x.dtype)

    def gradient(dy, y, x, weight=None, bias=None, *, groups, eps):
        grouped = _in_groups(x, groups)
        g = dy if weight is None else widen(dy) * along(widen(weight), 1, len(x.shape))
        dx = normalize_grad(_in_groups(g, groups), grouped, axes=(2,), lay=(), eps=eps)
        grads = [reshape(dx, shape=tuple(x.shape))]
        rest = _others(x, 1)
        if weight is not None:
            xhat, _ = _standardize(widen(grouped), (2,), eps)
            grads.append(sum(widen(dy) * reshape(xhat, shape=tuple(x.shape)), axes=rest, keepdim=False))
        if bias is not None:
            grads.append(sum(widen(dy), axes=rest, keepdim=False))
        return tuple(grads)


def _in_groups(x, groups):
    """(batch, groups, everything else)."""
    return reshape(x, shape=(x.shape[0], groups, prod(x.shape[1:]) // groups))
