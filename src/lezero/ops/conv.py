"""Convolutions: three contractions, each the gradient of the two others, and the layer made of them.

The three are one trilinear form, sum over x, w and dy of ``x[n, c, h, w] * w[o, c, i, j] * dy[n, o, p, q]`` with
``h = p*stride + i*dilation - padding`` and likewise for columns, solved for each of its three factors.  So each one's
gradients are the other two with the arguments in other places, to any order.
"""

from __future__ import annotations

import numpy as np

from lezero.ops.base import Composite, Contraction, op
from lezero.ops.movement import reshape
from lezero.ops.reduce import sum
from lezero.ops.rules import along, shown, wide

_GEOMETRY = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}


def _check(name, dtypes, stride, padding, dilation, groups):
    if any(d is not dtypes[0] for d in dtypes) or dtypes[0].kind not in "fiu":
        listed = ", ".join(d.name for d in dtypes)
        raise TypeError(f"{name}: inputs of one floating or integer dtype are needed, got {listed}")
    if any(s < 1 for s in stride) or any(d < 1 for d in dilation) or groups < 1:
        raise ValueError(f"{name}: stride {stride}, dilation {dilation} and groups {groups} have to be 1 or more")
    if any(p < 0 for pair in padding for p in pair):
        raise ValueError(f"{name}: padding {padding} has to be 0 or more")


def output_extent(extent: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int) -> int:
    """How many windows of `kernel` taps fit; 0 or less where none does."""
    return (extent + padding[0] + padding[1] - dilation * (kernel - 1) - 1) // stride + 1


def _output(name, hw, kernel, stride, padding, dilation):
    out = tuple(output_extent(h, k, s, p, d) for h, k, s, p, d in zip(hw, kernel, stride, padding, dilation))
    if any(o < 1 for o in out):
        padded = shown([h + p[0] + p[1] for h, p in zip(hw, padding)])
        reach = shown([d * (k - 1) + 1 for k, d in zip(kernel, dilation)])
        raise ValueError(
            f"{name}: the padded input {padded} is smaller than the kernel's reach {reach}; pad more or use a smaller kernel"
        )
    return out


def _taps(kernel, hw_out, stride, dilation):
    """For every kernel tap, which rows and columns of the padded input the outputs see through it."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * dilation[0], i * dilation[0] + (hw_out[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(j * dilation[1], j * dilation[1] + (hw_out[1] - 1) * stride[1] + 1, stride[1])
            yield i, j, (..., rows, columns)


def _grouped(x, groups, axis):
    """Split an axis in (groups, the rest of it)."""
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


@op("conv2d", onnx="Conv")
class conv2d(Contraction):
    """Cross-correlation of images with a bank of kernels.

    Parameters
    ----------
    x : (batch, in_channels, height, width)
    w : (out_channels, in_channels / groups, kernel height, kernel width)
    stride, dilation : (int, int)
    padding : ((top, bottom), (left, right)), zeros
    groups : int
        Channels are divided in as many groups that do not see each other; both channel counts are multiples of it.

    Returns
    -------
    (batch, out_channels, ...), with ``(extent + padding - dilation*(kernel-1) - 1) // stride + 1`` rows and columns.
    """

    attrs = dict(_GEOMETRY)
    keeps = ("x", "w")

    def infer(x, w, stride, padding, dilation, groups):
        _check("conv2d", (x.dtype, w.dtype), stride, padding, dilation, groups)
        if len(x.shape) != 4 or len(w.shape) != 4:
            raise ValueError(
                f"conv2d: an input (batch, channels, height, width) and a weight (out, in / groups, height, width) are "
                f"needed, got {shown(x.shape)} and {shown(w.shape)}"
            )
        if x.shape[1] != w.shape[1] * groups:
            raise ValueError(
                f"conv2d: a weight {shown(w.shape)} with groups={groups} takes an input of {int(w.shape[1]) * groups} "
                f"channels, the input {shown(x.shape)} has {int(x.shape[1])}"
            )
        if w.shape[0] % groups != 0:
            raise ValueError(f"conv2d: the {int(w.shape[0])} output channels are not a multiple of groups={groups}")
        return (
            x.shape[0],
            w.shape[0],
            *_output("conv2d", x.shape[2:], w.shape[2:], stride, padding, dilation),
        ), x.dtype

    def reference(x, w, stride, padding, dilation, groups):
        x, w = wide(x), wide(w)
        hw = _output("conv2d", x.shape[2:], w.shape[2:], stride, padding, dilation)
        padded = _grouped(np.pad(x, ((0, 0), (0, 0), *padding)), groups, 1)
        weight = _grouped(w, groups, 0)
        y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *hw), x.dtype)
        for i, j, seen in _taps(w.shape[2:], hw, stride, dilation):
            y += np.einsum("ngchw,goc->ngohw", padded[seen], weight[..., i, j], optimize=True)
        return y.reshape(x.shape[0], w.shape[0], *hw)

    def gradient(dy, y, x, w, **geometry):
        return (
            conv2d_input_grad(dy, w, input_shape=tuple(x.shape[2:]), **geometry),
            conv2d_weight_grad(x, dy, kernel=tuple(w.shape[2:]), **geometry),
        )


@op("conv2d_input_grad", onnx="ConvTranspose")
class conv2d_input_grad(Contraction):
    """The gradient of :data:`conv2d` with respect to its input; also the transposed convolution.

    Parameters
    ----------
    dy : (batch, out_channels, rows, columns)
    w : (out_channels, in_channels / groups, kernel height, kernel width)
    input_shape : (height, width) of the convolution's input
    stride, padding, dilation, groups : the convolution's
    """

    attrs = {"input_shape": (), **_GEOMETRY}
    shape_attrs = True
    keeps = ("dy", "w")

    def infer(dy, w, input_shape, stride, padding, dilation, groups):
        name = "conv2d_input_grad"
        _check(name, (dy.dtype, w.dtype), stride, padding, dilation, groups)
        hw = _output(name, input_shape, w.shape[2:], stride, padding, dilation)
        if tuple(dy.shape[1:]) != (w.shape[0], *hw):
            raise ValueError(
                f"{name}: for a weight {shown(w.shape)} and an input of {shown(input_shape)} the gradient is "
                f"{shown((dy.shape[0], w.shape[0], *hw))}, got {shown(dy.shape)}"
            )
        return (dy.shape[0], w.shape[1] * groups, *input_shape), dy.dtype

    def reference(dy, w, input_shape, stride, padding, dilation, groups):
        dy, weight = _grouped(wide(dy), groups, 1), _grouped(wide(w), groups, 0)
        (top, bottom), (left, right) = padding
        height, width = input_shape
        dx = np.zeros((dy.shape[0], groups, w.shape[1], height + top + bottom, width + left + right), dy.dtype)
        for i, j, seen in _taps(w.shape[2:], dy.shape[3:], stride, dilation):
            dx[seen] += np.einsum("ngohw,goc->ngchw", dy, weight[..., i, j], optimize=True)
        return dx[..., top : top + height, left : left + width].reshape(dy.shape[0], groups * w.shape[1], height, width)

    def gradient(dx2, dx, dy, w, input_shape, **geometry):
        return conv2d(dx2, w, **geometry), conv2d_weight_grad(dx2, dy, kernel=tuple(w.shape[2:]), **geometry)


@op("conv2d_weight_grad")
class conv2d_weight_grad(Contraction):
    """The gradient of :data:`conv2d` with respect to its weight.

    Parameters
    ----------
    x : (batch, in_channels, height, width)
    dy : (batch, out_channels, rows, columns)
    kernel : (kernel height, kernel width)
    stride, padding, dilation, groups : the convolution's
    """

    attrs = {"kernel": (), **_GEOMETRY}
    keeps = ("x", "dy")

    def infer(x, dy, kernel, stride, padding, dilation, groups):
        name = "conv2d_weight_grad"
        _check(name, (x.dtype, dy.dtype), stride, padding, dilation, groups)
        hw = _output(name, x.shape[2:], kernel, stride, padding, dilation)
        if (dy.shape[0], *dy.shape[2:]) != (x.shape[0], *hw) or x.shape[1] % groups != 0 or dy.shape[1] % groups != 0:
            raise ValueError(
                f"{name}: for an input {shown(x.shape)}, a kernel {kernel} and groups={groups} the gradient is "
                f"({int(x.shape[0])}, out_channels, {int(hw[0])}, {int(hw[1])}), got {shown(dy.shape)}"
            )
        return (dy.shape[1], x.shape[1] // groups, *kernel), x.dtype

    def reference(x, dy, kernel, stride, padding, dilation, groups):
        padded = _grouped(np.pad(wide(x), ((0, 0), (0, 0), *padding)), groups, 1)
        grad = _grouped(wide(dy), groups, 1)
        dw = np.zeros((groups, grad.shape[2], padded.shape[2], *kernel), padded.dtype)
        for i, j, seen in _taps(kernel, dy.shape[2:], stride, dilation):
            dw[..., i, j] = np.einsum("ngchw,ngohw->goc", padded[seen], grad, optimize=True)
        return dw.reshape(dy.shape[1], x.shape[1] // groups, *kernel)

    def gradient(dw2, dw, x, dy, kernel, **geometry):
        return conv2d_input_grad(dy, dw2, input_shape=tuple(x.shape[2:]), **geometry), conv2d(x, dw2, **geometry)


@op("convolution", onnx="Conv")
class convolution(Composite):
    """A convolutional layer over one or two spatial dimensions, with its bias.

    Parameters
    ----------
    x : (batch, in_channels, length) or (batch, in_channels, height, width)
    weight : (out_channels, in_channels / groups, *kernel)
    bias : (out_channels,), optional
    stride, dilation : one int for each spatial dimension
    padding : one (before, after) for each spatial dimension
    groups : int
    """

    attrs = dict(_GEOMETRY)
    keeps = ("x", "weight")

    def infer(x, weight, bias=None, *, stride, padding, dilation, groups):
        n = len(stride)
        if n not in (1, 2) or len(x.shape) != n + 2 or len(weight.shape) != n + 2:
            spatial = "(batch, channels, length)" if n == 1 else "(batch, channels, height, width)"
            raise ValueError(
                f"conv{n}d: an input {spatial} and a weight of as many dimensions are needed, got {shown(x.shape)} and "
                f"{shown(weight.shape)}"
            )
        dtypes = [t.dtype for t in (x, weight, bias) if t is not None]
        if any(t is not x.dtype for t in dtypes):
            listed = ", ".join(t.name for t in dtypes)
            raise TypeError(
                f"conv{n}d: input, weight and bias of one dtype are needed, got {listed}; convert with .to(dtype)"
            )
        if bias is not None and (tuple(bias.shape) != (weight.shape[0],) or bias.dtype is not x.dtype):
            raise ValueError(
                f"conv{n}d: the bias is {bias.dtype.name}{shown(bias.shape)}, not {x.dtype.name}({int(weight.shape[0])},)"
            )
        shape, dtype = conv2d.infer(_Image(x), _Image(weight), **_as_2d(stride, padding, dilation), groups=groups)
        return (*shape[:2], *shape[4 - n :]), dtype

    def reference(x, weight, bias=None, *, stride, padding, dilation, groups):
        n = len(stride)
        image, kernel = (v.reshape(*v.shape[:2], *(1,) * (2 - n), *v.shape[2:]) for v in (x, weight))
        y = conv2d.reference(image, kernel, **_as_2d(stride, padding, dilation), groups=groups)
        y = y.reshape(*y.shape[:2], *y.shape[4 - n :])
        return y if bias is None else y + wide(bias).reshape(-1, *(1,) * n)

    def decompose(x, weight, bias=None, *, stride, padding, dilation, groups):
        y = conv2d(_image(x), _image(weight), **_as_2d(stride, padding, dilation), groups=groups)
        if len(stride) == 1:
            y = reshape(y, shape=(*y.shape[:2], y.shape[3]))
        return y if bias is None else y + along(bias, 1, len(y.shape))

    def gradient(dy, y, x, weight, bias=None, *, stride, padding, dilation, groups):
        geometry = {**_as_2d(stride, padding, dilation), "groups": groups}
        dx, dw = conv2d.gradient(_image(dy), None, _image(x), _image(weight), **geometry)
        if len(stride) == 1:
            dx, dw = reshape(dx, shape=tuple(x.shape)), reshape(dw, shape=tuple(weight.shape))
        if bias is None:
            return dx, dw
        return dx, dw, sum(dy, axes=(0, *range(2, len(dy.shape))))


class _Image:
    """A node's shape and dtype, with a height of 1 put in where it has only a length."""

    def __init__(self, x):
        self.dtype = x.dtype
        self.shape = x.shape if len(x.shape) == 4 else (*x.shape[:2], 1, x.shape[2])


def _image(x):
    return x if len(x.shape) == 4 else reshape(x, shape=(*x.shape[:2], 1, x.shape[2]))


def _as_2d(stride, padding, dilation):
    if len(stride) == 2:
        return {"stride": stride, "padding": padding, "dilation": dilation}
    return {"stride": (1, *stride), "padding": ((0, 0), *padding), "dilation": (1, *dilation)}
