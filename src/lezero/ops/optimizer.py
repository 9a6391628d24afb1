"""Optimizer updates: element-wise operations with one result each.

Hyper-parameters and the step count are operands (numbers or 0-d tensors), so that a schedule changes no graph; only what
changes the formula is an attribute.  Several results of one step are several operations over the same inputs::

    m = adam_m(param, grad, m, beta1, weight_decay)
    v = adam_v(param, grad, v, beta2, weight_decay)
    param = adam_param(param, m, v, lr, beta1, beta2, eps, weight_decay, step)

The arithmetic, down to its order, is that of PyTorch's single-tensor optimizers (Adam multiplies by the reciprocal where that
divides by the second bias correction).  Bias corrections are computed from the step count inside, in the dtype of the
hyper-parameters; give those in float64.  Arrays of state may be kept in another dtype than the parameter (float32 beside
bfloat16): each result has the dtype of what it replaces, computed in float32 or wider.
"""

from __future__ import annotations

import numpy as np

from lezero.ops.base import Composite, op
from lezero.ops.elementwise import sqrt, where
from lezero.ops.rules import narrow, shown, wide, widen


class Update(Composite):
    """A new value for one of the operands, the one named `replaces`.

    Subclasses give ``update(*operands, **attrs)``, written with operators and with the functions `f` has, so that the one
    formula serves operands and arrays.
    """

    differentiable = False
    updates = True
    replaces = 0
    arrays = 2  # how many of the operands are tensors of the parameter's shape; the others are 0-d

    def __init__(self, name, onnx):
        super().__init__(name, onnx)
        import inspect

        code = inspect.signature(self.update)
        self.inputs = tuple(p for p in code.parameters if p not in self.attrs and p != "f")

    def infer(self, *nodes, **attrs):
        if len(nodes) != len(self.inputs):
            raise TypeError(f"{self.name}: takes {', '.join(self.inputs)}; {len(nodes)} operands were given")
        shape = tuple(nodes[self.replaces].shape)
        for k, (name, node) in enumerate(zip(self.inputs, nodes)):
            wanted = shape if k < self.arrays else ()
            if tuple(node.shape) != wanted:
                raise ValueError(f"{self.name}: {name} has shape {shown(node.shape)}, {shown(wanted)} is needed")
        for name, node in zip(self.inputs, nodes[: self.arrays]):
            if not node.dtype.is_floating_point:
                raise TypeError(f"{self.name}: {name} is {node.dtype.name}, a floating dtype is needed")
        return shape, nodes[self.replaces].dtype

    def reference(self, *operands, **attrs):
        arrays, numbers = operands[: self.arrays], operands[self.arrays :]
        return self.update(_ArrayFunctions, *map(wide, arrays), *(_plain(n) for n in numbers), **attrs)

    def decompose(self, *operands, **attrs):
        wides = (widen(x) if k < self.arrays else x for k, x in enumerate(operands))
        return narrow(self.update(_OperandFunctions, *wides, **attrs), operands[self.replaces].dtype)


def _plain(x):
    """A 0-d array as a Python number, which is weak in NumPy's promotion as a 0-d operand is in ours."""
    return x.item()


class _OperandFunctions:
    sqrt, where = sqrt, where


class _ArrayFunctions:
    sqrt, where = np.sqrt, np.where


@op("update_unless")
class update_unless(Update):
    """The new value of something an optimizer updates, or the old one where the step is skipped.

    Parameters
    ----------
    old, new : floating dtype
    skip : 0-d bool
    """

    arrays = 2

    def update(f, old, new, skip):
        return f.where(skip, old, new)


def _signed(grad, maximize):
    return -grad if maximize else grad


# -- stochastic gradient descent ------------------------------------------------------------------------------


@op("sgd_param")
class sgd_param(Update):
    """A step down the gradient: ``param - lr * (grad + weight_decay * param)``.

    Parameters
    ----------
    param, grad : floating dtype
    lr, weight_decay : 0-d
    maximize : bool
        Go up instead.
    """

    attrs = {"maximize": False}

    def update(f, param, grad, lr, weight_decay, maximize):
        return param - lr * (_signed(grad, maximize) + weight_decay * param)


@op("sgd_momentum_buffer")
class sgd_momentum_buffer(Update):
    """The moving sum of gradients: ``momentum * buffer + (1 - dampening) * (grad + weight_decay * param)``.

    The first step (`step` = 1, with a buffer of zeros) takes the gradient undampened, as PyTorch does.

    Parameters
    ----------
    param, grad, buffer : floating dtype
    momentum, dampening, weight_decay, step : 0-d
    maximize : bool
    """

    attrs = {"maximize": False}
    replaces, arrays = 2, 3

    def update(f, param, grad, buffer, momentum, dampening, weight_decay, step, maximize):
        grad = _signed(grad, maximize) + weight_decay * param
        return momentum * buffer + f.where(step == 1, 1.0, 1 - dampening) * grad


@op("sgd_momentum_param")
class sgd_momentum_param(Update):
    """A step along the moving sum of gradients.

    Parameters
    ----------
    param, grad : floating dtype
    buffer : the *new* moving sum, of :data:`sgd_momentum_buffer`
    lr, momentum, weight_decay : 0-d
    nesterov : bool
        Step along ``grad + momentum * buffer`` (Sutskever et al. 2013).
    maximize : bool
    """

    attrs = {"nesterov": False, "maximize": False}
    arrays = 3

    def update(f, param, grad, buffer, lr, momentum, weight_decay, nesterov, maximize):
        if nesterov:
            buffer = _signed(grad, maximize) + weight_decay * param + momentum * buffer
        return param - lr * buffer


# -- Adam -----------------------------------------------------------------------------------------------------


def _decayed(param, grad, weight_decay, decoupled, maximize):
    """The gradient with the decay in it, unless the decay is decoupled."""
    grad = _signed(grad, maximize)
    return grad if decoupled else grad + weight_decay * param


@op("adam_m")
class adam_m(Update):
    """The first moment: ``m + (grad - m) * (1 - beta1)``.

    Parameters
    ----------
    param, grad, m : floating dtype
    beta1, weight_decay : 0-d
    decoupled : bool
        The decay is not part of the gradient (AdamW).
    maximize : bool
    """

    attrs = {"decoupled": False, "maximize": False}
    replaces, arrays = 2, 3

    def update(f, param, grad, m, beta1, weight_decay, decoupled, maximize):
        return _lerp(f, m, _decayed(param, grad, weight_decay, decoupled, maximize), 1 - beta1)


def _lerp(f, start, end, weight):
    """From start to end; computed from the nearer one, so that both ends are exact."""
    gap = end - start
    return f.where(weight < 0.5, start + weight * gap, end - gap * (1 - weight))


@op("adam_v")
class adam_v(Update):
    """The second moment: ``beta2 * v + (1 - beta2) * grad**2``.

    Parameters
    ----------
    param, grad, v : floating dtype
    beta2, weight_decay : 0-d
    decoupled, maximize : as for :data:`adam_m`
    """

    attrs = {"decoupled": False, "maximize": False}
    replaces, arrays = 2, 3

    def update(f, param, grad, v, beta2, weight_decay, decoupled, maximize):
        grad = _decayed(param, grad, weight_decay, decoupled, maximize)
        return v * beta2 + (1 - beta2) * grad * grad


@op("adam_param")
class adam_param(Update):
    """Adam's step (Kingma & Ba 2015), or AdamW's (Loshchilov & Hutter 2019) with `decoupled`.

    Parameters
    ----------
    param : floating dtype
    m, v : the *new* moments, of :data:`adam_m` and :data:`adam_v`; for AMSGrad, v is the largest second moment so far
    lr, beta1, beta2, eps, weight_decay : 0-d
    step : 0-d, counted from 1
    decoupled : bool
        First shrink the parameter by ``1 - lr * weight_decay``.
    """

    attrs = {"decoupled": False}
    arrays = 3

    def update(f, param, m, v, lr, beta1, beta2, eps, weight_decay, step, decoupled):
        if decoupled:
            param = param * (1 - lr * weight_decay)
        step_size = lr / (1 - beta1**step)
        # The reciprocal, so that an element costs one division: that is what Adam's time goes to.
        inverse = 1 / (1 - beta2**step) ** 0.5
        return param - step_size * m / (f.sqrt(v) * inverse + eps)


# -- RMSprop --------------------------------------------------------------------------------------------------


@op("rmsprop_square")
class rmsprop_square(Update):
    """The moving mean of squared gradients: ``alpha * square + (1 - alpha) * grad**2``.

    Parameters
    ----------
    param, grad, square : floating dtype
    alpha, weight_decay : 0-d
    maximize : bool
    """

    attrs = {"maximize": False}
    replaces, arrays = 2, 3

    def update(f, param, grad, square, alpha, weight_decay, maximize):
        grad = _signed(grad, maximize) + weight_decay * param
        return square * alpha + (1 - alpha) * grad * grad


@op("rmsprop_mean")
class rmsprop_mean(Update):
    """The moving mean of gradients, which centred RMSprop subtracts.

    Parameters
    ----------
    param, grad, mean : floating dtype
    alpha, weight_decay : 0-d
    maximize : bool
    """

    attrs = {"maximize": False}
    replaces, arrays = 2, 3

    def update(f, param, grad, mean, alpha, weight_decay, maximize):
        return _lerp(f, mean, _signed(grad, maximize) + weight_decay * param, 1 - alpha)


@op("rmsprop_buffer")
class rmsprop_buffer(Update):
    """The moving sum of scaled gradients: ``momentum * buffer + grad / (sqrt(square - mean**2) + eps)``.

    Without momentum (0) and with a buffer of zeros this is the scaled gradient alone.

    Parameters
    ----------
    param, grad, buffer : floating dtype
    square, mean : the *new* moving means; zeros for `mean` unless centred
    momentum, eps, weight_decay : 0-d
    centered, maximize : bool
    """

    attrs = {"centered": False, "maximize": False}
    replaces, arrays = 2, 5

    def update(f, param, grad, buffer, square, mean, momentum, eps, weight_decay, centered, maximize):
        grad = _signed(grad, maximize) + weight_decay * param
        spread = f.sqrt(square - mean * mean if centered else square) + eps
        return momentum * buffer + grad / spread


@op("rmsprop_param")
class rmsprop_param(Update):
    """A step along the moving sum of scaled gradients: ``param - lr * buffer``.

    Parameters
    ----------
    param : floating dtype
    buffer : the *new* one, of :data:`rmsprop_buffer`
    lr : 0-d
    """

    def update(f, param, buffer, lr):
        return param - lr * buffer


# -- Adagrad --------------------------------------------------------------------------------------------------


@op("adagrad_sum")
class adagrad_sum(Update):
    """The sum of squared gradients so far.

    Parameters
    ----------
    param, grad, total : floating dtype
    weight_decay : 0-d
    maximize : bool
    """

    attrs = {"maximize": False}
    replaces, arrays = 2, 3

    def update(f, param, grad, total, weight_decay, maximize):
        grad = _signed(grad, maximize) + weight_decay * param
        return total + grad * grad


@op("adagrad_param")
class adagrad_param(Update):
    """Adagrad's step (Duchi, Hazan & Singer 2011).

    Parameters
    ----------
    param, grad : floating dtype
    total : the *new* sum, of :data:`adagrad_sum`
    lr, lr_decay, eps, weight_decay : 0-d
    step : 0-d, counted from 1; the learning rate is ``lr / (1 + (step - 1) * lr_decay)``
    maximize : bool
    """

    attrs = {"maximize": False}
    arrays = 3

    def update(f, param, grad, total, lr, lr_decay, eps, weight_decay, step, maximize):
        grad = _signed(grad, maximize) + weight_decay * param
        rate = lr / (1 + (step - 1) * lr_decay)
        return param - rate * grad / (f.sqrt(total) + eps)
